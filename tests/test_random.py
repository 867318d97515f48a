"""gt.random: values where they were asked for, and what it refuses in one sentence."""

from __future__ import annotations

import json

import numpy as np
import pytest

import gtensor as gt


def test_values_lie_where_they_were_asked_for():
    for dtype in (gt.float64, gt.float32, gt.float16):
        x = gt.random.normal((4000,), mean=3.0, std=0.5, dtype=dtype)
        assert x.dtype == dtype and abs(x.numpy().mean(dtype=float) - 3) < 0.1
        y = gt.random.uniform((4000,), low=-2.0, high=-1.0, dtype=dtype).numpy()
        assert -2 <= y.min() < -1.9 and -1.1 < y.max() <= -1
    assert set(gt.random.integers(2, 5, (500,)).tolist()) == {2, 3, 4}
    assert gt.random.normal(3, std=0).tolist() == [0.0] * 3
    assert gt.random.uniform(2, low=1, high=1).tolist() == [1.0, 1.0]


@pytest.mark.parametrize("call,kind,sentence", [
    (lambda r: r.uniform((3,), low=5, high=1), ValueError, "low=5 and high=1"),
    (lambda r: r.uniform((3,), high=np.inf), ValueError, "wanted finite low <= high"),
    (lambda r: r.integers(5, 1, (3,)), ValueError, "integers was given low=5 and high=1"),
    (lambda r: r.integers(5, 5, (3,)), ValueError, "wanted low < high"),
    (lambda r: r.normal((3,), std=-1), ValueError, "normal was given std=-1; wanted 0 or more"),
    (lambda r: r.normal((3,), dtype=gt.int64), TypeError, "normal was given dtype=int64"),
    (lambda r: r.uniform((3,), dtype=gt.complex64), TypeError, "wanted a floating-point dtype"),
    (lambda r: r.normal(2, 3), TypeError, "positional argument"),  # PyTorch's randn(2, 3)
    (lambda r: r.uniform(2, 3), TypeError, "positional argument"),
])
def test_mistakes_get_one_sentence(call, kind, sentence):
    before = gt.random.get_state()
    with pytest.raises(kind, match=sentence):
        call(gt.random)
    assert gt.random.get_state() == before


def test_random_states_are_json():
    gt.random.normal(3)
    state = json.loads(json.dumps(gt.random.get_state()))
    first = gt.random.uniform(5).tolist()
    gt.random.set_state(state)
    assert gt.random.uniform(5).tolist() == first

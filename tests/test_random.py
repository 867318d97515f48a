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


def changed(state, path, value):
    """A state with one field replaced, or left out (...)."""
    state = json.loads(json.dumps(state))
    place = state["state"] if path in ("counter", "key") else state
    if value is ...:
        del place[path]
    else:
        place[path] = value
    return state


BAD_FIELDS = [
    *(("buffer_pos", n) for n in (
        -1, -2**31, 5, 2**31, 2**63, 2**64, 10**400, 1.0, True, None, ...)),
    *((name, value) for name in ("counter", "key", "buffer") for value in (
        ..., None, 3, "1234", [1], [1] * 5, [-1] * 4, [-1] * 2, [2**64] * 4, [2**64] * 2,
        [10**400] * 2, [0.5] * 4, [float("nan")] * 2, [None] * 4, {"0": 1}, np.zeros((2, 2)))),
    *(("has_uint32", n) for n in (-1, 2, 10**400, 0.5, None, ...)),
    *(("uinteger", n) for n in (-1, 2**32, 10**400, "0", ...)),
    *(("state", value) for value in (None, 3, [], ...)),
    *(("bit_generator", name) for name in (
        "MT19937", "PCG64", "PCG64DXSM", "SFC64", "philox", "", 3, None, ["Philox"], ...))]


@pytest.mark.parametrize(("path", "value"), BAD_FIELDS)
def test_every_field_of_a_random_state_is_checked(path, value):
    before = gt.random.get_state()
    with pytest.raises(ValueError, match=r"^a random state .* given; wanted .*; nothing was chang"):
        gt.random.set_state(changed(before, path, value))
    assert gt.random.get_state() == before


@pytest.mark.parametrize("state", [None, 3, [], "Philox", {}, np.zeros(3), 10**400])
def test_what_is_no_random_state_is_refused(state):
    with pytest.raises(ValueError, match="wanted one of get_state"):
        gt.random.set_state(state)


def test_any_state_that_the_generator_can_be_in_is_taken():
    for position in range(5):
        state = changed(gt.random.get_state(), "buffer_pos", position)
        gt.random.set_state(state)
        assert gt.random.get_state() == state
        gt.random.set_state(gt.random.generator().bit_generator.state)  # with NumPy's own arrays
        assert gt.random.get_state() == state


def test_random_states_are_json():
    gt.random.normal(3)
    state = json.loads(json.dumps(gt.random.get_state()))
    first = gt.random.uniform(5).tolist()
    gt.random.set_state(state)
    assert gt.random.uniform(5).tolist() == first


def test_a_seeded_block_draws_its_own_numbers():
    gt.manual_seed(1)
    wanted = gt.random.normal(4).tolist()
    gt.manual_seed(1)
    with gt.random.seeded(7):
        first = gt.random.normal(3).tolist()
        gt.manual_seed(2)  # of this block
    with gt.random.seeded(7):
        assert gt.random.normal(3).tolist() == first
    assert gt.random.normal(4).tolist() == wanted
    with pytest.raises(ValueError, match="seed -1 given"):
        gt.random.seeded(-1)


def test_ranks_of_one_seed_have_streams_of_their_own():
    def drawn(rank, before=0):
        gt.manual_seed(5)
        gt.random.normal(before)
        gt.random.jump(rank)
        return gt.random.normal(1000).numpy()

    streams = [drawn(rank) for rank in range(3)]
    gt.manual_seed(5)
    assert np.array_equal(streams[0], gt.random.normal(1000).numpy())  # rank 0 goes on
    for a, b in ((0, 1), (1, 2), (0, 2)):
        assert abs(np.corrcoef(streams[a], streams[b])[0, 1]) < 0.15
    assert np.array_equal(drawn(2), streams[2]) and not np.array_equal(drawn(2, 3), streams[2])
    for wrong in (-1, 1.0):
        with pytest.raises(ValueError, match="wanted an integer of 0 or more"):
            gt.random.jump(wrong)

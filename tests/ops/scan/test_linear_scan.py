"""linear_scan beyond opcheck: halves, memory, broadcasting, infinite factors, mistakes."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

import gtensor as gt
from gtensor import nn
from gtensor.engine.handle.namespaces import raw
from gtensor.nn import functional as F

SHAPE = (600, 700)  # a step has 1/600 of it


def random(*shape: int, dtype: Any = np.float32, low: float = 0.5) -> np.ndarray:
    return np.random.default_rng(len(shape)).uniform(low, 1.0, shape).astype(dtype)


@pytest.mark.parametrize("dtype", [gt.float16, gt.bfloat16])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_halves_are_added_up_in_float32(dtype: Any, device: str) -> None:
    """600 small terms: a half type would lose each beside their sum."""
    b = gt.tensor(np.full((600, 3), 1 / 64), dtype=dtype, device=device)
    a = gt.ones_like(b).requires_grad_()
    initial = gt.tensor([64.0] * 3, dtype=dtype, device=device).requires_grad_()
    h = F.linear_scan(a, b, initial)
    assert h.dtype == dtype
    assert h[-1].tolist() == [64.0 + 600 / 64 if dtype == gt.float16 else 73.5] * 3
    (h * b).sum().backward()
    np.testing.assert_allclose(initial.grad.numpy().astype(float), 600 / 64, rtol=1e-2)
    wanted = h.numpy().astype(float)[-2] / 64
    np.testing.assert_allclose(a.grad.numpy().astype(float)[-1], wanted, rtol=1e-2)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_no_array_is_made_but_what_is_returned(dtype: Any) -> None:
    a, b, g = (random(*SHAPE, dtype=dtype) for _ in range(3))
    h, wanted = np.empty_like(b), (True, True, True)
    step = 4 * SHAPE[1]
    ns = raw["cpu"]
    ns.linear_scan(a, b, b[0], reverse=False, out=h)
    for out in (None, g):
        tracemalloc.start()
        if out is None:
            ns.linear_scan(a, b, b[0], reverse=False, out=h)
            returned = 0
        else:
            ns.linear_scan_grad(g, a, h, b[0], reverse=False, wanted=wanted, out=g)
            returned = a.nbytes + a[0].nbytes  # of da and the first state; db is written over g
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert most < returned + 4 * step + 60_000  # and the buffers in which ufuncs convert halves


def test_only_the_factors_and_the_states_are_saved() -> None:
    a, b = (gt.tensor(random(5, 3)).requires_grad_() for _ in range(2))
    h = F.linear_scan(a, b)
    saved = [x for x in h._node.saved if x is not None]
    assert len(saved) == 2
    assert any(np.shares_memory(x, a.numpy()) for x in saved)
    assert any(np.shares_memory(x, h.numpy()) for x in saved)


def test_inputs_are_broadcast() -> None:
    a, b, initial = gt.tensor(random(1, 4)), gt.tensor(random(2, 5, 4)), gt.tensor(random(4))
    for x in (a, b, initial):
        x.requires_grad_()
    h = F.linear_scan(a, b, initial)
    whole = F.linear_scan(gt.broadcast_to(a, b.shape), b, gt.broadcast_to(initial, (2, 4)))
    assert np.array_equal(h.numpy(), whole.numpy())
    h.sum().backward()
    assert [x.grad.shape for x in (a, b, initial)] == [a.shape, b.shape, initial.shape]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_the_first_factor_is_not_read_without_an_initial_state(device: str) -> None:
    a, b = np.full((40, 2), 0.5), np.ones((40, 2))
    wanted = F.linear_scan(*(gt.tensor(x, device=device) for x in (a, b))).numpy()
    a[0] = np.inf
    found = gt.tensor(a, device=device).requires_grad_()
    h = F.linear_scan(found, gt.tensor(b, device=device))
    assert np.array_equal(h.numpy(), wanted)
    h.sum().backward()
    assert not found.grad.numpy()[0].any() and np.isfinite(found.grad.numpy()).all()


@pytest.mark.parametrize(("call", "error", "message"), [
    (lambda x: F.linear_scan(x, x[:, :2]), ValueError,
     r"linear_scan was given a of shape \(2, 3\), b of shape \(2, 2\); wanted \(\.\.\., T, C\)"),
    (lambda x: F.linear_scan(x[0], x[0]), ValueError, r"a of shape \(3,\), b of shape \(3,\)"),
    (lambda x: F.linear_scan(x, x, x), ValueError, r"and initial of shape \(2, 3\); wanted"),
    (lambda x: F.linear_scan(x, x.astype("float64")), TypeError, "one floating-point dtype"),
    (lambda x: F.linear_scan(x, "a"), TypeError, r"linear_scan \(b\) was given str of dtype"),
])
def test_mistakes_are_named(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call(gt.ones((2, 3)))


def test_it_is_checkpointed() -> None:
    a, b = (gt.tensor(random(5, 3)).requires_grad_() for _ in range(2))
    nn.utils.checkpoint(lambda a, b: F.linear_scan(a * a, b), a, b).sum().backward()
    found = a.grad.numpy().copy()
    a.grad = None
    F.linear_scan(a * a, b).sum().backward()
    assert np.array_equal(found, a.grad.numpy())

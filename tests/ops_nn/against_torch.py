"""Comparison of a function with PyTorch's, in value and in derivatives of two orders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

import gtensor as gt

Function = Callable[..., Any]
Layout = Callable[[np.ndarray], np.ndarray]


def strided(a: np.ndarray) -> np.ndarray:
    """Every second element of a larger array, from an offset."""
    if not a.ndim:
        return a
    big = np.full([2 * n + 1 for n in a.shape], 7, a.dtype)
    view = big[(slice(1, None, 2),) * a.ndim]
    view[...] = a
    return view


def transposed(a: np.ndarray) -> np.ndarray:
    """The axes in the opposite order in memory."""
    return np.ascontiguousarray(a.T).T if a.ndim else a


LAYOUTS: dict[str, Layout] = {
    "contiguous": np.copy,
    "strided": strided,
    "transposed": transposed,
}


def compare(
    function: Function,
    reference: Function,
    arrays: Sequence[np.ndarray],
    *,
    second: bool = True,
    layouts: Sequence[str] = tuple(LAYOUTS),
    tolerance: float = 1e-10,
) -> None:
    """Assert that both functions agree on float arrays: values, gradients, second derivatives.

    `function(*tensors)` of gtensor, `reference(*tensors)` of PyTorch, each returning one tensor.
    The upstream gradient is random, once dense and once a broadcast view. Gradients are computed
    with raw arrays and recorded, and must agree with PyTorch's in both ways.
    """
    rng = np.random.default_rng(sum(a.size for a in arrays))
    theirs = [torch.tensor(a, requires_grad=True) for a in arrays]
    wanted = reference(*theirs)
    for layout in layouts:
        laid_out = [LAYOUTS[layout](a) for a in arrays]
        before = [a.copy() for a in laid_out]
        y = function(*leaves(laid_out))
        close(y, wanted, tolerance, f"value, {layout}")
        for g in upstreams(rng, y.shape):
            given = g.copy()
            first = torch.autograd.grad(wanted, theirs, torch.tensor(given), create_graph=True)
            ours = leaves(laid_out)
            function(*ours).backward(gt.asarray(g, device="cpu"))
            for i, (mine, their) in enumerate(zip(ours, first, strict=True)):
                assert mine.grad is not None
                close(mine.grad, their, tolerance, f"gradient {i}, {layout}")
            assert np.array_equal(g, given), "the upstream gradient was written"
            if second and layout == layouts[0]:
                _compare_second(function, laid_out, theirs, g, first, tolerance)
        for a, b in zip(laid_out, before, strict=True):
            assert np.array_equal(a, b), "an input was written"


def _compare_second(
    function: Function,
    arrays: Sequence[np.ndarray],
    theirs: Sequence[Any],
    g: np.ndarray,
    first: Sequence[Any],
    tolerance: float,
) -> None:
    """Derivatives of the sum of the gradients' cubes and the inputs' squares: all take part."""
    ours = leaves(arrays)
    y = function(*ours)
    upstream = gt.tensor(g, device="cpu")
    mine = gt.grad(y, ours, upstream, create_graph=True)
    for i, (a, b) in enumerate(zip(mine, first, strict=True)):
        close(a, b, tolerance, f"recorded gradient {i}")
    loss = sum(
        ((a * a * a).sum() for a in mine),
        sum(((x * x).sum() for x in ours), gt.tensor(0.0, gt.float64, device="cpu")),
    )
    their_loss = sum((b**3).sum() for b in first) + sum((x * x).sum() for x in theirs)
    found = gt.grad(loss, ours)
    expected = torch.autograd.grad(their_loss, theirs, retain_graph=True)
    for i, (a, b) in enumerate(zip(found, expected, strict=True)):
        close(a, b, 100 * tolerance, f"second derivative {i}")


def upstreams(rng: np.random.Generator, shape: tuple[int, ...]) -> list[np.ndarray]:
    """A dense gradient, and one whose elements share memory."""
    dense = rng.standard_normal(shape)
    return [dense] if not shape else [dense, np.broadcast_to(dense[:1], shape)]


def leaves(arrays: Sequence[np.ndarray]) -> list[Any]:
    """Tensors over these very arrays, requiring gradients."""
    return [gt.asarray(a, device="cpu").detach().requires_grad_() for a in arrays]


def close(ours: Any, theirs: Any, tolerance: float, what: str) -> None:
    """Assert equal shapes and, within the tolerance, values."""
    wanted = theirs.detach().numpy()
    given = ours.numpy()
    assert given.shape == wanted.shape, f"{what}: shape {given.shape}, wanted {wanted.shape}"
    scale = max(1.0, float(np.abs(wanted).max(initial=0.0))) if np.isfinite(wanted).all() else 1.0
    np.testing.assert_allclose(given, wanted, rtol=tolerance, atol=tolerance * scale, err_msg=what)

"""Reductions of half types: float32 from the first element to the last rounding, both ways."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
import torch.nn.functional as TF

import gtensor as gt
import gtensor.nn.functional as F

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
DTYPES = [np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)]

Function = Callable[[Any], Any]
REDUCTIONS: dict[str, tuple[Function, Function]] = {
    "sum": (lambda x: gt.sum(x, axis=-1), lambda x: x.sum(-1)),
    "sum of rows": (lambda x: gt.sum(x, axis=0), lambda x: x.sum(0)),
    "mean": (lambda x: gt.mean(x, axis=-1), lambda x: x.mean(-1)),
    "prod": (lambda x: gt.prod(x, axis=-1), lambda x: x.prod(-1)),
    "var": (lambda x: gt.var(x, axis=-1), lambda x: x.var(-1, correction=0)),
    "var of sample": (lambda x: gt.var(x, axis=0, correction=1), lambda x: x.var(0, correction=1)),
    "std": (lambda x: gt.std(x, axis=-1), lambda x: x.std(-1, correction=0)),
    "std of all": (lambda x: gt.std(x, correction=1), lambda x: x.std(correction=1)),
    "logsumexp": (lambda x: gt.logsumexp(x, axis=-1), lambda x: x.logsumexp(-1)),
    "cumulative_sum": (lambda x: gt.cumulative_sum(x, axis=-1), lambda x: x.cumsum(-1)),
    "normalize": (lambda x: F.normalize(x, dim=-1), lambda x: TF.normalize(x, dim=-1)),
    "cosine_similarity": (lambda x: F.cosine_similarity(x, x * 0 + 1),
                          lambda x: TF.cosine_similarity(x, x * 0 + 1)),
    "trace": (gt.linalg.trace, torch.trace),
    **{f"vector_norm {p}": (lambda x, p=p: gt.linalg.vector_norm(x, axis=-1, ord=p),
                            lambda x, p=p: torch.linalg.vector_norm(x, p, dim=-1))
       for p in (0.5, 1, 2, 3, float("inf"))},
    **{f"matrix_norm {p}": (lambda x, p=p: gt.linalg.matrix_norm(x, ord=p),
                            lambda x, p=p: torch.linalg.matrix_norm(x, ord=p))
       for p in ("fro", "nuc", 1, 2, float("inf"))},
}


def _inputs(rng: np.random.Generator) -> dict[str, np.ndarray]:
    noise = rng.standard_normal((4, 4))
    signs = rng.choice([-1.0, 1.0], (3, 3))
    return {
        "ordinary": noise, "squares overflow": 300 * noise, "squares vanish": 3e-4 * noise,
        "sums overflow": rng.uniform(4e4, 5e4, (3, 3)) * signs,
        "far from 0": 60 + 3 * rng.standard_normal((40, 40)),
        "many": rng.standard_normal((60, 60)),
    }


def _roundings(given: Any, wanted: np.ndarray, dtype: np.dtype) -> float:
    """The largest error in units of the last place of `dtype`, but for float32's own."""
    given = np.asarray(given.numpy()).astype(np.float64)
    nearest = wanted.astype(dtype).astype(np.float64)
    info = ml_dtypes.finfo(dtype)
    with np.errstate(all="ignore"):
        exponent = np.floor(np.log2(np.maximum(np.abs(wanted), float(info.smallest_normal))))
        off = np.maximum(np.abs(given - wanted) - 1e-5 * np.abs(wanted).max(), 0)
        off /= 2.0 ** (exponent - info.nmant)
    off = np.where((given == nearest) | (np.isnan(given) & np.isnan(nearest)), 0.0, off)
    return float(np.max(np.where(np.isnan(off), np.inf, off), initial=0.0))


@pytest.mark.filterwarnings("ignore:overflow encountered")
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_half_types_are_rounded_once(name, dtype, device, rng):
    """Value and gradient are those of float64, to the last place, whatever overflows between."""
    ours, theirs = REDUCTIONS[name]
    for kind, values in _inputs(rng).items():
        values = values.astype(dtype)
        exact = torch.tensor(values.astype(np.float64), requires_grad=True)
        wanted = theirs(exact)
        g = rng.standard_normal(tuple(wanted.shape)).astype(dtype)
        wanted.backward(torch.tensor(g.astype(np.float64)))
        x = gt.asarray(values, device=device).requires_grad_()
        y = ours(x)
        assert y.dtype == dtype
        y.backward(gt.asarray(g, device=device))
        assert _roundings(y.detach(), wanted.detach().numpy(), dtype) <= 1.01, kind
        assert _roundings(x.grad, exact.grad.numpy(), dtype) <= 1.01, kind


@pytest.mark.parametrize("device", DEVICES)
def test_deviations_of_large_halves(device):
    """The three that the first report named: infinite, infinite, and no gradient."""
    def half(*values: float) -> gt.Tensor:
        return gt.asarray(np.array(values, np.float16), device=device)

    assert half(40000, 40000).var().item() == 0
    assert half(300, -300).std().item() == 300
    x = half(40000, 41000).requires_grad_()
    x.std().backward()
    np.testing.assert_array_equal(x.grad.numpy(), np.array([-0.5, 0.5], np.float16))


@pytest.mark.parametrize("name", ["var", "std", "logsumexp"])
@pytest.mark.parametrize("device", DEVICES)
def test_higher_derivatives_of_half_types(name, device, rng):
    """Forward and second derivatives of data far from 0, where a mean of halves has no digits.

    The second is a sum of several terms, each of which is rounded to half precision.
    """
    values = (1000 + 3 * rng.standard_normal(8)).astype(np.float16)
    t = rng.standard_normal(8).astype(np.float16)
    exact, direction = (torch.tensor(a.astype(np.float64)) for a in (values, t))
    function = {"var": lambda x: x.var(correction=0), "std": lambda x: x.std(correction=0),
                "logsumexp": lambda x: x.logsumexp(0)}[name]
    tangent = torch.autograd.functional.jvp(function, exact, direction)[1].numpy()
    second = torch.autograd.functional.vhp(function, exact, direction)[1].numpy()
    x, v = (gt.asarray(a, device=device) for a in (values, t))
    ours = getattr(gt, name)
    assert _roundings(gt.func.jvp(ours, (x,), (v,))[1], tangent, v.dtype) <= 1.01
    x.requires_grad_()
    (g,) = gt.func.grad([ours(x)], [x], create_graph=True)
    (g * v).sum().backward()
    given = x.grad.numpy().astype(np.float64)
    np.testing.assert_allclose(given, second, rtol=0, atol=0.01 * np.abs(second).max() + 1e-6)


@pytest.mark.parametrize("device", DEVICES)
def test_normalize_of_zeros_is_zero(device):
    """1e-12 is 0 in float16, and the quotient was NaN."""
    x = gt.zeros((2, 3), dtype=gt.float16, device=device)
    np.testing.assert_array_equal(F.normalize(x).numpy(), np.zeros((2, 3), np.float16))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("count", [5, 40])
def test_the_gradient_of_a_factor_that_a_batch_shares_is_rounded_once(
    count: int, dtype: np.dtype, device: str
) -> None:
    rng = np.random.default_rng(0)
    a, b, g = (rng.standard_normal(shape).astype(dtype)
               for shape in ((count, 2, 3, 4), (2, 4, 5), (count, 2, 3, 5)))
    factor = gt.tensor(b, device=device, requires_grad=True)
    gt.matmul(gt.tensor(a, device=device), factor).backward(gt.tensor(g, device=device))
    left, right = (x.astype(np.float64) for x in (a.swapaxes(-1, -2), g))
    half = float(ml_dtypes.finfo(dtype).eps) / 2
    np.testing.assert_allclose(factor.grad.numpy().astype(np.float64), (left @ right).sum(0),
                               rtol=1.01 * half, atol=1e-5 * count)

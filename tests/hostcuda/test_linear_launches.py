"""`linear` on CUDA: one product for all rows, however their axes lie, and for what is added."""

from __future__ import annotations

from contextlib import nullcontext
from unittest.mock import patch

import numpy as np
import pytest

import gtensor as gt
from gtensor.backend import cublaslt
from gtensor.hostcuda import configure, counters, reset_counters
from gtensor.nn import functional as F
from gtensor.ops.linalg.linear import linear_sum

pytestmark = pytest.mark.host_cuda


@pytest.mark.parametrize("turned", [(True, False), (False, True), (True, True)])
def test_mixed_layouts_take_one_product(turned: tuple[bool, bool]) -> None:
    """Time before examples, or after them, in the input and in the gradient that arrives."""
    configure("eager")
    rng = np.random.default_rng(0)
    values, upstream = (rng.standard_normal((40, 8, n)).astype(np.float32) for n in (24, 12))

    def laid(a: np.ndarray, swap: bool) -> gt.Tensor:
        if not swap:
            return gt.tensor(a, device="cuda")
        return gt.tensor(a.swapaxes(0, 1).copy(), device="cuda").permute_dims((1, 0, 2))

    x, g = laid(values, turned[0]), laid(upstream, turned[1])
    weight = gt.tensor(rng.standard_normal((12, 24)).astype(np.float32), device="cuda",
                       requires_grad=True)
    bias = gt.zeros(12, device="cuda", requires_grad=True)
    y = F.linear(x, weight, bias)
    reset_counters()
    y.backward(g)
    found = counters()
    assert sum(found.library.values()) == 1
    assert sum(found.kernels.values()) + sum(found.copies.values()) <= 1  # of one operand
    np.testing.assert_allclose(weight.grad.numpy(), np.einsum("tbo,tbi->oi", upstream, values),
                               rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(bias.grad.numpy(), upstream.sum((0, 1)), rtol=1e-4, atol=1e-4)


def test_rows_that_lie_apart_are_products_of_the_longest_axis() -> None:
    """Eight of forty rows, where forty of eight would start as many small ones."""
    configure("eager")
    rng = np.random.default_rng(0)
    values, matrix = (rng.standard_normal(s).astype(np.float32) for s in ((8, 40, 24), (12, 24)))
    x = gt.tensor(values, device="cuda").permute_dims((1, 0, 2))
    reset_counters()
    y = F.linear(x, gt.tensor(matrix, device="cuda"), gt.ones(12, device="cuda"))
    assert counters().library == {"cublasGemmStridedBatchedEx": 1}
    np.testing.assert_allclose(y.numpy(), values.swapaxes(0, 1) @ matrix.T + 1, rtol=1e-4,
                               atol=1e-4)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("case", ["float32", "bfloat16", "turned", "refused"])
def test_a_summand_is_part_of_the_product(case: str, bias: bool) -> None:
    """One call, into float32 under autocast; where cublasLt cannot, a copy and a product."""
    configure("eager")
    rng = np.random.default_rng(0)
    shapes = (2, 40, 24), (12, 24), (12,), (2, 40, 12)
    values = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    x, weight, shift, summand = (gt.tensor(v, device="cuda", requires_grad=True) for v in values)
    if case == "turned":
        turned = gt.tensor(values[3].swapaxes(0, 1).copy(), device="cuda", requires_grad=True)
        summand = turned.permute_dims((1, 0, 2))
    low = case == "bfloat16"
    given = x.to("bfloat16") if low else x
    refused = patch.object(cublaslt, "matmul", return_value=False)
    with gt.autocast("bfloat16") if low else nullcontext():
        if low:
            linear_sum(given, weight, shift if bias else None, summand)  # which casts the weight
        with refused if case == "refused" else nullcontext():
            reset_counters()
            y = linear_sum(given, weight, shift if bias else None, summand)
    found = counters()
    assert y.dtype == np.float32
    if case in ("float32", "bfloat16"):
        assert found.launches == 1 and found.library == {"cublasLtMatmul": 1}
    else:
        assert sum(found.library.values()) == 1
    rounded = [v.astype(gt.bfloat16).astype(np.float64) if low else v for v in values[:2]]
    wanted = rounded[0] @ rounded[1].T + values[2] * bias + values[3]
    np.testing.assert_allclose(y.numpy(), wanted, rtol=1e-5, atol=1e-5)  # no half in between
    g = rng.standard_normal(shapes[3]).astype(np.float32)
    y.backward(gt.tensor(g, device="cuda"))
    sent = g.astype(gt.bfloat16).astype(np.float64) if low else g
    own = turned.grad.permute_dims((1, 0, 2)) if case == "turned" else summand.grad
    np.testing.assert_array_equal(own.numpy(), g)
    np.testing.assert_allclose(weight.grad.numpy(), np.einsum("tbo,tbi->oi", sent, rounded[0]),
                               rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(x.grad.numpy(), sent @ rounded[1], rtol=1e-2 if low else 1e-4,
                               atol=3e-2 if low else 1e-4)
    if bias:
        np.testing.assert_allclose(shift.grad.numpy(), sent.sum((0, 1)), rtol=1e-4, atol=1e-4)

"""Gradients of `linear` on CUDA: one product for all rows, however their axes lie in memory."""

from __future__ import annotations

import numpy as np
import pytest

import gtensor as gt
from gtensor.hostcuda import configure, counters, reset_counters
from gtensor.nn import functional as F

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

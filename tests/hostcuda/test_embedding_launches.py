"""A table on CUDA: its rows are added to a gradient that is there, without a table of zeros."""

from __future__ import annotations

import numpy as np
import pytest

import gtensor as gt
from gtensor.hostcuda import configure, counters, reset_counters
from gtensor.nn import functional as F

pytestmark = pytest.mark.host_cuda


def test_a_table_that_is_also_the_last_layers_has_one_gradient() -> None:
    configure("eager")
    rng = np.random.default_rng(0)
    table, upstream = (rng.standard_normal(s).astype(np.float32) for s in ((30, 16), (9, 30)))
    numbers = rng.integers(0, 5, 9)
    weight, places, g = gt.tensor(table, device="cuda", requires_grad=True), *(
        gt.tensor(a, device="cuda") for a in (numbers, upstream))
    reset_counters()
    y = F.embedding(places, weight)
    assert counters().kernels == {"cupy_take": 1} and not counters().copies
    z = F.linear(y, weight)
    reset_counters()
    z.backward(g)
    found = counters()
    assert found.kernels == {"cupy_scatter_add": 1}
    assert not found.memsets and not found.copies and found.launches == 3
    wanted = upstream.T @ table[numbers]
    np.add.at(wanted, numbers, upstream @ table)
    np.testing.assert_allclose(weight.grad.numpy(), wanted, rtol=1e-4, atol=1e-4)

"""What linear_scan launches on CUDA: one kernel forward, one backward, no copy."""

from __future__ import annotations

import pytest

import gtensor as gt
from gtensor.hostcuda import counters, reset_counters
from gtensor.nn import functional as F

pytestmark = [pytest.mark.host_cuda, pytest.mark.usefixtures("dry_cuda")]


@pytest.mark.parametrize("shape", [(2, 300, 40), (70, 9)])
def test_a_scan_is_one_launch_each_way(shape: tuple[int, ...]) -> None:
    a, b, g = (gt.ones(shape, device="cuda") for _ in range(3))
    initial = gt.ones((*shape[:-2], shape[-1]), device="cuda")
    for x in (a, b, initial):
        x.requires_grad_()
    h = F.linear_scan(a, b, initial)  # once before, so that the arena has its memory
    reset_counters()
    h = F.linear_scan(a, b, initial)
    forward = counters()
    reset_counters()
    h.backward(g)
    backward = counters()
    assert forward.kernels == {"linear_scan_forward<float>": 1} and forward.launches == 1
    assert backward.kernels == {"linear_scan_backward<float>": 1} and backward.launches == 1
    assert not forward.copies and not backward.copies

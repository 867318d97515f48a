"""What cross entropy launches and allocates on CUDA: one kernel over the logits each way."""

from __future__ import annotations

from typing import Any

import pytest

import gtensor as gt
import gtensor.nn.functional as F
from gtensor.hostcuda import counters, reset_counters

pytestmark = [pytest.mark.host_cuda, pytest.mark.usefixtures("dry_cuda")]
ROWS, CLASSES = 1024, 4096


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("casts", [True, False])
def test_half_logits_are_read_as_they_are_and_overwritten(
    casts: bool, weighted: bool, smoothing: float
) -> None:
    """At no time is there more than the logits and 5 % of them."""
    low = gt.bfloat16
    column = gt.zeros((ROWS, 1), dtype=low, requires_grad=True)
    row = gt.zeros((1, CLASSES), dtype=low)
    target = gt.zeros(ROWS, dtype=gt.int64)
    weight = gt.ones(CLASSES, dtype=gt.float32 if casts else low) if weighted else None
    options: dict[str, Any] = {"label_smoothing": smoothing}

    def forward() -> gt.Tensor:
        with gt.autocast("bfloat16", enabled=casts):
            return F.cross_entropy(column + row, target, weight, **options)

    forward().backward()  # compiles
    column.grad = None
    gt.memory.reset_peak("cuda")
    before = gt.memory.stats("cuda").allocated
    reset_counters()
    loss = forward()
    kernels = dict(counters().kernels)
    for name in ("cross_entropy_forward", "cross_entropy_reduce"):
        assert kernels.pop(f"{name}<__nv_bfloat16>") == 1
    cast = {} if casts else {"cupy_copy__float32_bfloat16": 1}  # of the loss
    heavy = {"cupy_copy__bfloat16_float32": 1} if weighted and not casts else {}
    assert {name: n for name, n in kernels.items() if "add" not in name} == cast | heavy
    loss.backward()
    assert counters().kernels["cross_entropy_backward<__nv_bfloat16>"] == 1
    peak = gt.memory.stats("cuda").peak_allocated - before
    assert peak <= 1.05 * ROWS * CLASSES * low.itemsize

"""What cross entropy and group norm launch and allocate on CUDA: one kernel over rows each way."""

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


@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("dtype", [gt.float32, gt.bfloat16])
def test_group_norm_is_one_launch_forward_and_two_backward(dtype: Any, affine: bool) -> None:
    """Nothing is made but the gradients."""
    name = {gt.float32: "float", gt.bfloat16: "__nv_bfloat16"}[dtype]
    x = gt.zeros((4, 64, 16, 16), dtype=dtype, requires_grad=True)
    weight, bias = (gt.ones(64, dtype=dtype, requires_grad=True) if affine else None
                    for _ in range(2))
    y = F.group_norm(x, 32, weight, bias)
    g = gt.ones(x.shape, dtype=dtype)
    reset_counters()
    F.group_norm(x, 32, weight, bias)
    assert dict(counters().kernels) == {f"group_norm_forward<{name}>": 1}
    gt.memory.reset_peak("cuda")
    before = gt.memory.stats("cuda").allocated
    y.backward(g)
    kernels = dict(counters().kernels)
    assert kernels.pop(f"group_norm_backward<{name}>") == 1
    assert kernels.pop(f"layer_norm_parameters<{name}>", 0) == affine
    assert kernels == {f"group_norm_forward<{name}>": 1}
    assert gt.memory.stats("cuda").peak_allocated - before <= 1.05 * x.nbytes

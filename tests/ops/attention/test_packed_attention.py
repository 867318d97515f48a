"""Attention of one projection: on a GPU its kernels read and write the parts where they lie."""

from __future__ import annotations

import numpy as np
import pytest

import gtensor as gt
from gtensor.hostcuda import configure, counters, reset_counters
from gtensor.ops.attention.packed import packed_attention


def gradient(x: np.ndarray, kv_heads: int, dtype: str, device: str) -> list[np.ndarray]:
    """The output and the gradient, for a seed that differs by element."""
    packed = gt.tensor(x, device=device).to(dtype).requires_grad_()
    y = packed_attention(packed, kv_heads)
    seed = np.linspace(-1, 1, y.size).reshape(y.shape).astype(np.float32)
    y.backward(gt.tensor(seed, device=device).to(dtype))
    assert packed.grad is not None and packed.grad.shape == x.shape
    return [a.to("float32").numpy() for a in (y, packed.grad)]


@pytest.mark.host_cuda
@pytest.mark.parametrize(("dtype", "ctype", "tolerance"), [
    ("bfloat16", "__nv_bfloat16", 0.03), ("float32", "float", 1e-6)])
@pytest.mark.parametrize("kv_heads", [1, 2])
def test_the_kernels_write_one_gradient(
    kv_heads: int, dtype: str, ctype: str, tolerance: float
) -> None:
    """Groups of heads, too: two launches, and none that puts the parts together."""
    configure("eager")
    x = np.random.default_rng(0).standard_normal((2, 40, 2 + 2 * kv_heads, 16), np.float32)
    reset_counters()
    found = gradient(x, kv_heads, dtype, "cuda")
    kernels = {name for name in counters().kernels if not name.startswith("cupy_copy")}
    assert kernels == {f"attention_{name}_64<{ctype}>"
                       for name in ("forward", "backward_queries", "backward_keys")}
    for one, other in zip(found, gradient(x, kv_heads, "float64", "cpu"), strict=True):
        np.testing.assert_allclose(one, other, atol=tolerance * np.abs(other).max())


@pytest.mark.parametrize("shape,kv_heads", [((4, 5, 2), 2), ((4, 3), 1), ((4, 3, 2), 0)])
def test_heads_that_are_no_groups_are_refused(shape: tuple[int, ...], kv_heads: int) -> None:
    with pytest.raises(ValueError, match=r"wanted \(..., T, heads \+ 2 \* kv_heads, D\)"):
        packed_attention(gt.ones(shape), kv_heads)

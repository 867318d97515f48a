"""Random tensors like others: `gt.random` has the draws themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gtensor.ops.define.arguments import takes_arrays
from gtensor.random import integers, normal, uniform

if TYPE_CHECKING:
    from gtensor.backend import Device
    from gtensor.backend.typing import DTypeLike
    from gtensor.engine.handle.tensor import Tensor


@takes_arrays
def randn_like(
    input: Tensor, *, dtype: DTypeLike | None = None, device: Device | str | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """Standard normal values of the shape, dtype and device of a tensor."""
    return normal(input.shape, dtype=dtype or input.dtype, device=device or input.device,
                  requires_grad=requires_grad)


@takes_arrays
def rand_like(
    input: Tensor, *, dtype: DTypeLike | None = None, device: Device | str | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """Values uniform in [0, 1) of the shape, dtype and device of a tensor."""
    return uniform(input.shape, dtype=dtype or input.dtype, device=device or input.device,
                   requires_grad=requires_grad)


@takes_arrays
def randint_like(
    input: Tensor, low: int, high: int | None = None, *, dtype: DTypeLike | None = None,
    device: Device | str | None = None,
) -> Tensor:
    """Integers uniform in [low, high) of the shape, dtype and device of a tensor.

    `randint_like(x, high)` is `randint_like(x, 0, high)`. Raises ValueError as `random.integers`.
    """
    low, high = (0, low) if high is None else (low, high)
    return integers(low, high, input.shape, dtype=dtype or input.dtype,
                    device=device or input.device)

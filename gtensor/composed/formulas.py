"""Short formulas that other libraries have as functions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gtensor.ops import abs, clip, pow, reciprocal, remainder, sqrt, where
from gtensor.ops.define.arguments import takes_arrays
from gtensor.system.written_code import enter

if TYPE_CHECKING:
    from gtensor.engine.handle.tensor import Operand, Tensor

__all__ = ["fmod", "lerp"]


@takes_arrays
def lerp(x1: Tensor, x2: Tensor, weight: Operand, /) -> Tensor:
    """x1 + weight * (x2 - x1): exactly x1 at weight 0, and x2 at 1."""
    way = x2 - x1
    if not hasattr(weight, "dtype"):
        return x1 + way * weight if weight < 0.5 else x2 - way * (1 - weight)  # type: ignore
    return where(weight < 0.5, x1 + way * weight, x2 - way * (1 - weight))  # type: ignore


@takes_arrays
def fmod(x1: Tensor, x2: Operand, /) -> Tensor:
    """x1 - x2 * trunc(x1 / x2): it has the sign of x1, as C's fmod; `remainder` has that of x2."""
    found = remainder(x1, x2)
    if found.dtype.kind in "iu":  # the smallest integer has no opposite
        return where((found != 0) & ((found < 0) != (x1 < 0)), found - x2, found)
    size = abs(x2) if hasattr(x2, "dtype") else x2 if x2 >= 0 else -x2  # type: ignore[operator]
    return where(x1 < 0, -remainder(-x1, size), remainder(x1, size))


@takes_arrays
def rsqrt(x: Tensor) -> Tensor:
    """1 / sqrt(x)."""
    return reciprocal(sqrt(x))


@takes_arrays
def exp2(x: Tensor) -> Tensor:
    """2 ** x."""
    return pow(2.0, x)


@takes_arrays
def clamp_min(x: Tensor, min: Operand) -> Tensor:
    """x, but at least `min`."""
    return clip(x, min)


@takes_arrays
def clamp_max(x: Tensor, max: Operand) -> Tensor:
    """x, but at most `max`."""
    return clip(x, None, max)


@takes_arrays
def addcmul(input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: float = 1) -> Tensor:
    """input + value * tensor1 * tensor2, as PyTorch's."""
    return input + tensor1 * tensor2 * value


@takes_arrays
def addcdiv(input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: float = 1) -> Tensor:
    """input + value * tensor1 / tensor2, as PyTorch's."""
    return input + tensor1 / tensor2 * value


def is_tensor(obj: object) -> bool:
    """Whether obj is a Tensor."""
    from gtensor.engine.handle.tensor import Tensor

    return isinstance(obj, Tensor)


enter(globals())

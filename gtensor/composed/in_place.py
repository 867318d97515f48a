"""PyTorch's methods that end in `_`: each writes the tensor's own memory, by the rule of `x += 1`.

They are recorded, return the tensor, and are refused where `x += 1` is: on a leaf that requires a
gradient, and within transforms.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import gtensor.ops as functions
from gtensor import random
from gtensor.composed.formulas import lerp
from gtensor.composed.scattering import index_add, masked_scatter, scatter, scatter_add
from gtensor.composed.shapes import booleans
from gtensor.engine.handle.namespaces import public
from gtensor.ops.define.arguments import takes_arrays

if TYPE_CHECKING:
    from gtensor.engine.handle.tensor import Operand, Tensor


def _operator(op: str, name: str) -> Callable[[Tensor, Operand], Tensor]:
    def method(self: Tensor, other: Operand) -> Tensor:
        return public.assign(op, self, other)

    method.__name__, method.__qualname__ = name, f"Tensor.{name}"
    method.__doc__ = f"x = {op}(x, other) in x's memory."
    return method


mul_, div_, pow_, remainder_, floor_divide_, bitwise_and_, bitwise_or_, bitwise_xor_ = (
    _operator(op, name) for op, name in (
        ("multiply", "mul_"), ("divide", "div_"), ("pow", "pow_"), ("remainder", "remainder_"),
        ("floor_divide", "floor_divide_"), ("bitwise_and", "bitwise_and_"),
        ("bitwise_or", "bitwise_or_"), ("bitwise_xor", "bitwise_xor_")))


def add_(self: Tensor, other: Operand, *, alpha: float = 1) -> Tensor:
    """x += alpha * other."""
    return public.assign("add", self, other if alpha == 1 else alpha * other)  # type: ignore


def sub_(self: Tensor, other: Operand, *, alpha: float = 1) -> Tensor:
    """x -= alpha * other."""
    return public.assign("subtract", self, other if alpha == 1 else alpha * other)  # type: ignore


def fill_(self: Tensor, value: Operand) -> Tensor:
    """x[...] = value."""
    self[...] = value
    return self


def zero_(self: Tensor) -> Tensor:
    """x[...] = 0."""
    return fill_(self, 0)


@takes_arrays
def copy_(self: Tensor, src: Tensor, non_blocking: bool = False) -> Tensor:
    """x[...] = src, in x's dtype and place."""
    return fill_(self, src.to(self.device).astype(self.dtype, copy=False))


@takes_arrays
def masked_fill_(self: Tensor, mask: Tensor, value: Operand) -> Tensor:
    """x[mask] = value; the mask may broadcast to x. Raises TypeError unless it is of booleans."""
    self[functions.broadcast_to(booleans("masked_fill_", mask), self.shape)] = value
    return self


@takes_arrays
def masked_scatter_(self: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """x[...] = gt.masked_scatter(x, mask, source)."""
    return fill_(self, masked_scatter(self, mask, source))


@takes_arrays
def scatter_(self: Tensor, dim: int, index: Tensor, src: Operand) -> Tensor:
    """x[...] = gt.scatter(x, dim, index, src)."""
    return fill_(self, scatter(self, dim, index, src))


@takes_arrays
def scatter_add_(self: Tensor, dim: int, index: Tensor, src: Operand) -> Tensor:
    """x[...] = gt.scatter_add(x, dim, index, src)."""
    return fill_(self, scatter_add(self, dim, index, src))


@takes_arrays
def index_add_(
    self: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: float = 1
) -> Tensor:
    """x[...] = gt.index_add(x, dim, index, source, alpha=alpha)."""
    return fill_(self, index_add(self, dim, index, source, alpha=alpha))


@takes_arrays
def lerp_(self: Tensor, end: Tensor, weight: Operand) -> Tensor:
    """x[...] = gt.lerp(x, end, weight)."""
    return fill_(self, lerp(self, end, weight))


@takes_arrays
def addcmul_(self: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: float = 1) -> Tensor:
    """x += value * tensor1 * tensor2."""
    return public.assign("add", self, tensor1 * tensor2 * value)


@takes_arrays
def addcdiv_(self: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: float = 1) -> Tensor:
    """x += value * tensor1 / tensor2."""
    return public.assign("add", self, tensor1 / tensor2 * value)


def normal_(self: Tensor, mean: float = 0.0, std: float = 1.0, *,
            generator: random.Generator | None = None) -> Tensor:
    """x[...] = gt.random.normal(x.shape, mean=mean, std=std)."""
    return fill_(self, random.normal(self.shape, mean=mean, std=std, dtype=self.dtype,
                                     device=self.device, generator=generator))


def uniform_(self: Tensor, low: float = 0.0, high: float = 1.0, *,
             generator: random.Generator | None = None) -> Tensor:
    """x[...] = gt.random.uniform(x.shape, low=low, high=high)."""
    return fill_(self, random.uniform(self.shape, low=low, high=high, dtype=self.dtype,
                                      device=self.device, generator=generator))


def bernoulli_(self: Tensor, p: Tensor | float = 0.5, *,
               generator: random.Generator | None = None) -> Tensor:
    """x[...] = gt.random.bernoulli(p, x.shape), or of a tensor of probabilities."""
    shape = None if hasattr(p, "shape") else self.shape
    device = None if hasattr(p, "shape") else self.device
    return fill_(self, random.bernoulli(p, shape, device=device, generator=generator))

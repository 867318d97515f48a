"""Signals (N, C, L) as images of one row, for ops over two axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from gtensor.engine.tensor import Tensor
from gtensor.ops.arrange.shape import expand_dims, reshape, squeeze
from gtensor.ops.conv.paths import Pair

PerAxis: TypeAlias = "int | Sequence[int]"  # one for all axes, or one per axis


def per_axis(name: str, what: str, value: PerAxis, least: int, axes: int) -> Pair:
    """(height, width) of an integer or of one per axis; ValueError below `least`.

    With one axis the height is that of the images' only row: 1, or 0 where 0 is allowed.
    """
    each = (value,) * axes if isinstance(value, int) else tuple(value)
    if len(each) != axes or any(not isinstance(n, int) or n < least for n in each):
        more = "two of them (height, width)" if axes == 2 else "a tuple of one"
        raise ValueError(f"{name} was given {what}={value!r}; wanted an integer from {least} on, "
                         f"or {more}")
    return (least, each[0]) if axes == 1 else (each[0], each[1])


def as_images(x: Tensor, axes: int) -> Tensor:
    """x itself, or signals (..., L) as images of one row (..., 1, L)."""
    return x if axes == 2 else expand_dims(x, -2)


def on_images(x: Tensor, axes: int, function: Callable[[Tensor], Tensor]) -> Tensor:
    """`function` of images (N, C, H, W) on images or signals, batched or not."""
    images = as_images(x, axes)
    if images.ndim == 3:
        images = reshape(images, (1, *images.shape))
    y = function(images)
    if x.ndim == axes + 1:
        y = reshape(y, y.shape[1:])
    return y if axes == 2 else squeeze(y, -2)

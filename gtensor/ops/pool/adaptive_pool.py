"""Adaptive pooling: windows laid out to give a wanted size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from gtensor.engine.handle.tensor import Tensor
from gtensor.ops.arrange.index import take
from gtensor.ops.arrange.shape import reshape
from gtensor.ops.conv.convolution import per_axis
from gtensor.ops.conv.paths import Pair
from gtensor.ops.define.arguments import takes_arrays
from gtensor.ops.pool.max_pool import max_pool2d
from gtensor.ops.pool.mixing import window_bounds
from gtensor.ops.pool.resample import resample
from gtensor.ops.pool.windows import Single, check_rank
from gtensor.ops.reduce.reductions import mean

AdaptiveSize: TypeAlias = "int | Sequence[int | None]"  # None keeps an axis' size


@takes_arrays
def adaptive_avg_pool2d(input: Tensor, output_size: int | tuple[int | None, int | None]) -> Tensor:
    """Means of windows laid out so that (N, C, H, W) becomes (N, C, *output_size).

    output_size is one integer or (height, width); None keeps that size. Where it divides the
    image's size the windows lie side by side, otherwise they overlap as in PyTorch.
    """
    return _adaptive_mean("adaptive_avg_pool2d", 2, input, output_size)


@takes_arrays
def adaptive_avg_pool1d(input: Tensor, output_size: Single) -> Tensor:
    """Means of windows laid out so that (N, C, L) becomes (N, C, output_size).

    Raises ValueError for an input that is neither (N, C, L) nor (C, L), and for an output_size
    below 1.
    """
    return _adaptive_mean("adaptive_avg_pool1d", 1, input, output_size)


@takes_arrays
def adaptive_max_pool2d(input: Tensor, output_size: int | tuple[int | None, int | None]) -> Tensor:
    """The largest elements of the windows of adaptive_avg_pool2d.

    Where output_size does not divide the image's size the windows are first copied side by side: at
    most (1 + OH / H) * (1 + OW / W) times the image, rounded up to whole windows. The gradient of
    the copies is summed up on a GPU by atomics; GTENSOR_REPEATABLE=1 makes its bits repeat.
    """
    wanted = _adaptive_size("adaptive_max_pool2d", 2, input, output_size)
    kernel = []
    for axis, count in zip((-2, -1), wanted, strict=True):
        size = input.shape[axis]
        if size % count == 0:
            kernel.append(size // count)
            continue
        places = _window_places(size, count)
        input = take(input, places.reshape(-1), input.ndim + axis)
        kernel.append(places.shape[1])
    return max_pool2d(input, (kernel[0], kernel[1]))


def _adaptive_mean(name: str, axes: int, x: Tensor, output_size: AdaptiveSize) -> Tensor:
    wanted = _adaptive_size(name, axes, x, output_size)[-axes:]
    sizes = x.shape[-axes:]
    if all(size % count == 0 for size, count in zip(sizes, wanted, strict=True)):
        split = [part for size, count in zip(sizes, wanted, strict=True)
                 for part in (count, size // count)]  # equal windows side by side
        y = reshape(x, (*x.shape[:-axes], *split))
        return mean(y, tuple(range(x.ndim - axes + 1, y.ndim, 2)))
    for axis, size, count in zip(range(-axes, 0), sizes, wanted, strict=True):
        x = resample(x, axis=axis, matrix=("window means", size, count), transposed=False)
    return x


def _adaptive_size(name: str, axes: int, x: Tensor, output_size: AdaptiveSize) -> Pair:
    check_rank(name, axes, x)
    sizes = x.shape[-axes:]
    if 0 in sizes:
        raise ValueError(f"{name} was given an input of shape {x.shape}; wanted at least one "
                         "element along each pooled axis")
    given: tuple[Any, ...]  # None is left in it only where its length is refused
    given = (output_size,) * axes if isinstance(output_size, int) else tuple(output_size)
    if len(given) == axes:
        given = tuple(n if wanted is None else wanted
                      for wanted, n in zip(given, sizes, strict=True))
    return per_axis(name, "output_size", given, 1, axes)


def _window_places(size: int, count: int) -> np.ndarray:
    """The elements of each window (count, longest); a shorter one repeats its last."""
    first, end = window_bounds(size, count)
    return np.minimum(first[:, None] + np.arange((end - first).max()), end[:, None] - 1)

"""The public pooling functions: arguments as PyTorch's, one axis as images of one row."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from gtensor.engine.tensor import Tensor
from gtensor.ops.arrange.index import take
from gtensor.ops.arrange.shape import reshape
from gtensor.ops.conv.images import as_images, on_images, per_axis
from gtensor.ops.conv.paths import Pair
from gtensor.ops.pool.average_pool import avg_pool2d_op
from gtensor.ops.pool.pool import max_pool2d_op, windows
from gtensor.ops.pool.resample import Mixing, mixing, resample
from gtensor.ops.reduce.reductions import mean

Single = int | tuple[int]


def max_pool2d(
    input: Tensor, kernel_size: int | Pair, stride: int | Pair | None = None,
    padding: int | Pair = 0, dilation: int | Pair = 1, ceil_mode: bool = False,
) -> Tensor:
    """The largest element of each window. Saves where it was (int32 per output).

    Args:
        input: (N, C, H, W) or (C, H, W).
        kernel_size, stride, padding, dilation: one integer, or (height, width). The stride is the
            kernel's size by default; padding, at most half of it, never wins.
        ceil_mode: windows may also begin where less than a whole one fits.
    """
    params = _window("max_pool2d", 2, input, kernel_size, stride, padding, dilation, ceil_mode)
    return on_images(input, 2, lambda x: max_pool2d_op(x, **params))


def max_pool1d(
    input: Tensor, kernel_size: Single, stride: Single | None = None, padding: Single = 0,
    dilation: Single = 1, ceil_mode: bool = False,
) -> Tensor:
    """max_pool2d of signals (N, C, L) or (C, L)."""
    params = _window("max_pool1d", 1, input, kernel_size, stride, padding, dilation, ceil_mode)
    return on_images(input, 1, lambda x: max_pool2d_op(x, **params))


def avg_pool2d(
    input: Tensor, kernel_size: int | Pair, stride: int | Pair | None = None,
    padding: int | Pair = 0, ceil_mode: bool = False, count_include_pad: bool = True,
) -> Tensor:
    """The mean of each window. Saves nothing.

    Args:
        input: (N, C, H, W) or (C, H, W).
        kernel_size, stride, padding, ceil_mode: as for max_pool2d.
        count_include_pad: the padding's zeros count as elements.
    """
    params = _window("avg_pool2d", 2, input, kernel_size, stride, padding, 1, ceil_mode)
    return on_images(input, 2, lambda x: avg_pool2d_op(
        x, count_include_pad=bool(count_include_pad), **params))


def avg_pool1d(
    input: Tensor, kernel_size: Single, stride: Single | None = None, padding: Single = 0,
    ceil_mode: bool = False, count_include_pad: bool = True,
) -> Tensor:
    """avg_pool2d of signals (N, C, L) or (C, L)."""
    params = _window("avg_pool1d", 1, input, kernel_size, stride, padding, 1, ceil_mode)
    return on_images(input, 1, lambda x: avg_pool2d_op(
        x, count_include_pad=bool(count_include_pad), **params))


def _window(
    name: str, axes: int, x: Tensor, kernel_size: Any, stride: Any, padding: Any, dilation: Any,
    ceil: bool,
) -> dict[str, Any]:
    """The parameters of the ops; ValueError for windows that do not fit."""
    _check_rank(name, axes, x)
    kernel = per_axis(name, "kernel_size", kernel_size, 1, axes)
    steps = kernel if stride is None else per_axis(name, "stride", stride, 1, axes)
    border = per_axis(name, "padding", padding, 0, axes)
    spacing = per_axis(name, "dilation", dilation, 1, axes)
    if any(2 * border[i] > kernel[i] for i in (0, 1)):
        raise ValueError(f"{name} was given padding={padding} for kernel_size={kernel_size}; "
                         "wanted at most half the kernel")
    params = {"kernel": kernel, "stride": steps, "padding": border, "dilation": spacing,
              "ceil": bool(ceil)}
    out = windows(as_images(x, axes).shape[-2:], **params).out  # type: ignore[arg-type]
    if min(out) < 1:
        raise ValueError(f"{name} of an input of shape {x.shape} with kernel_size={kernel_size} "
                         f"would have an output of {out[-axes:]}; wanted an input at least as "
                         "large as the kernel")
    return params


def _check_rank(name: str, axes: int, x: Tensor) -> None:
    if x.ndim not in (axes + 1, axes + 2):
        wanted = "(N, C, H, W) or (C, H, W)" if axes == 2 else "(N, C, L) or (C, L)"
        raise ValueError(f"{name} was given an input of shape {x.shape}; wanted {wanted}")


# -- windows laid out to give a wanted size --------------------------------------------------------


def adaptive_avg_pool2d(input: Tensor, output_size: int | tuple[int | None, int | None]) -> Tensor:
    """Means of windows laid out so that (N, C, H, W) becomes (N, C, *output_size).

    output_size is one integer or (height, width); None keeps that size. Where it divides the
    image's size the windows lie side by side, otherwise they overlap as in PyTorch.
    """
    return _adaptive_mean("adaptive_avg_pool2d", 2, input, output_size)


def adaptive_avg_pool1d(input: Tensor, output_size: Single) -> Tensor:
    """Means of windows laid out so that (N, C, L) becomes (N, C, output_size)."""
    return _adaptive_mean("adaptive_avg_pool1d", 1, input, output_size)


def adaptive_max_pool2d(input: Tensor, output_size: int | tuple[int | None, int | None]) -> Tensor:
    """The largest elements of the windows of adaptive_avg_pool2d.

    Where output_size does not divide the image's size the windows are first copied side by side: at
    most (1 + OH / H) * (1 + OW / W) times the image, rounded up to whole windows.
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


def _adaptive_mean(name: str, axes: int, x: Tensor, output_size: Any) -> Tensor:
    wanted = _adaptive_size(name, axes, x, output_size)[-axes:]
    sizes = x.shape[-axes:]
    if all(size % count == 0 for size, count in zip(sizes, wanted, strict=True)):
        split = [part for size, count in zip(sizes, wanted, strict=True)
                 for part in (count, size // count)]  # equal windows side by side
        y = reshape(x, (*x.shape[:-axes], *split))
        return mean(y, tuple(range(x.ndim - axes + 1, y.ndim, 2)))
    for axis, size, count in zip(range(-axes, 0), sizes, wanted, strict=True):
        x = resample(x, axis=axis, matrix=window_means(size, count))
    return x


def _adaptive_size(name: str, axes: int, x: Tensor, output_size: Any) -> Pair:
    _check_rank(name, axes, x)
    sizes = x.shape[-axes:]
    if 0 in sizes:
        raise ValueError(f"{name} was given an input of shape {x.shape}; wanted at least one "
                         "element along each pooled axis")
    given = (output_size,) * axes if isinstance(output_size, int) else tuple(output_size)
    if len(given) == axes:
        given = tuple(n if wanted is None else wanted
                      for wanted, n in zip(given, sizes, strict=True))
    return per_axis(name, "output_size", given, 1, axes)


def _window_bounds(size: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """First and one past the last element of each window, as even as whole elements allow."""
    i = np.arange(count)
    return i * size // count, -((i + 1) * size // -count)


def _window_places(size: int, count: int) -> np.ndarray:
    """The elements of each window (count, longest); a shorter one repeats its last."""
    first, end = _window_bounds(size, count)
    return np.minimum(first[:, None] + np.arange((end - first).max()), end[:, None] - 1)


@lru_cache(maxsize=64)
def window_means(size: int, count: int) -> Mixing:
    """The mixing that averages `count` windows of `size` elements."""
    first, end = _window_bounds(size, count)
    place = first[:, None] + np.arange((end - first).max())
    weight = np.where(place < end[:, None], 1 / (end - first)[:, None], 0)
    return mixing(np.minimum(place, size - 1), weight, size)

"""interpolate: images and signals at another size."""

from __future__ import annotations

from math import floor
from typing import Any

from gtensor.engine.handle.tensor import Tensor
from gtensor.ops.define.arguments import autocast, refuse_unsupported, same_dtype, takes_arrays
from gtensor.ops.pool.adaptive_pool import adaptive_avg_pool1d, adaptive_avg_pool2d
from gtensor.ops.pool.mixing import Made
from gtensor.ops.pool.resample import resample

_MODES = {"nearest": (1, 2), "linear": (1,), "bilinear": (2,), "area": (1, 2)}  # and their axes
_CORNERS = ("linear", "bilinear")


@takes_arrays
def interpolate(
    input: Tensor, size: int | tuple[int, ...] | None = None,
    scale_factor: float | tuple[float, ...] | None = None, mode: str = "nearest",
    align_corners: bool | None = None, recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Tensor:
    """Signals (N, C, L) or images (N, C, H, W) at another size.

    Args:
        input: (N, C, L) or (N, C, H, W).
        size: the new length, or height and width; one integer stands for both.
        scale_factor: in place of size: the new sizes are the old times this, rounded down.
        mode: "nearest" (the element at the same fraction, rounded down), "linear" (of signals),
            "bilinear" (of images), or "area" (means, as adaptive_avg_pool).
        align_corners: for the linear modes: the first and last elements lie on those of the input;
            otherwise (the default) the outer edges of the elements do.
        recompute_scale_factor: use the ratio of the rounded sizes instead of scale_factor itself.
        antialias: must be False.

    Raises ValueError for a mode that does not fit the input, align_corners with a mode that is not
    linear, an empty input, and unless one of size and scale_factor is given.
    """
    refuse_unsupported(False, "interpolate", antialias=antialias)
    axes = input.ndim - 2
    if mode not in _MODES or axes not in _MODES[mode]:
        raise ValueError(f"interpolate was given mode={mode!r} for an input of shape "
                         f"{input.shape}; wanted 'nearest' or 'area', 'linear' for (N, C, L) or "
                         "'bilinear' for (N, C, H, W)")
    if align_corners is not None and mode not in _CORNERS:
        raise ValueError(f"interpolate was given align_corners={align_corners} with mode={mode!r}; "
                         "wanted None, or a linear mode")
    same_dtype("interpolate", input=input)
    if 0 in input.shape[2:]:
        raise ValueError(f"interpolate was given an input of shape {input.shape}; wanted at least "
                         "one element along each axis")
    sizes, ratios = _new_sizes(input, axes, size, scale_factor, bool(recompute_scale_factor))
    if mode == "area":
        return (adaptive_avg_pool1d(input, sizes) if axes == 1  # type: ignore[arg-type]
                else adaptive_avg_pool2d(input, sizes))  # type: ignore[arg-type]
    (input,) = autocast("float32", input)
    shrinking = sorted(range(-axes, 0), key=lambda axis: sizes[axis] / input.shape[axis])
    for axis in shrinking:  # so that the array in between is small
        old, new, ratio = input.shape[axis], sizes[axis], ratios[axis]
        matrix: Made
        if mode != "nearest":
            matrix = "linear", old, new, ratio, bool(align_corners)
        elif axes == 2 and new in (old, 2 * old):  # here PyTorch goes by the sizes
            matrix = "nearest", old, new, None
        else:
            matrix = "nearest", old, new, ratio
        input = resample(input, axis=axis, matrix=matrix, transposed=False)
    return input


def _new_sizes(
    x: Tensor, axes: int, size: int | tuple[int, ...] | None,
    scale_factor: float | tuple[float, ...] | None, recompute: bool,
) -> tuple[tuple[int, ...], tuple[float | None, ...]]:
    """The new sizes, and for each axis the factor that positions are computed by, if given."""
    if (size is None) == (scale_factor is None):
        raise ValueError(f"interpolate was given size={size} and scale_factor={scale_factor}; "
                         "wanted one of them")
    given: Any = scale_factor if size is None else size  # a number, or a tuple of them
    each = (given,) * axes if isinstance(given, (int, float)) else tuple(given)
    if len(each) != axes:
        raise ValueError(f"interpolate was given {given} for an input of shape {x.shape}; wanted "
                         f"{axes} numbers, or one")
    if size is None:
        sizes = tuple(floor(n * factor) for n, factor in zip(x.shape[2:], each, strict=True))
    else:
        sizes = each
    if any(not isinstance(n, int) or n < 1 for n in sizes):
        raise ValueError(f"interpolate of an input of shape {x.shape} was asked for the size "
                         f"{sizes}; wanted integers from 1 on")
    return sizes, (None,) * axes if size is not None or recompute else each

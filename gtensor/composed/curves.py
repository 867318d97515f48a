"""Samples of functions: slopes, areas, interpolation, convolution."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import TYPE_CHECKING

from gtensor.creation.new_tensors import full
from gtensor.ops import (
    broadcast_to,
    clip,
    concat,
    conj,
    cumulative_sum,
    flip,
    moveaxis,
    reshape,
    searchsorted,
    sum,
    where,
)
from gtensor.ops.arrange.shape import axis_index, integers
from gtensor.ops.conv.convolution import conv1d
from gtensor.ops.define.arguments import floats, given_axis, takes_arrays
from gtensor.system.written_code import enter

if TYPE_CHECKING:
    from gtensor.engine.handle.tensor import Tensor

__all__ = ["convolve", "correlate", "cumulative_trapezoid", "gradient", "interp", "trapezoid"]


@takes_arrays
def trapezoid(
    y: Tensor, x: Tensor | None = None, /, dx: float = 1.0, axis: int = -1, *,
    dim: int | None = None,
) -> Tensor:
    """The area under y along `axis` by the trapezoidal rule, at the places x, or `dx` apart.

    A 1-d x lies along the axis; raises ValueError for another number of places than of values.
    """
    axis = axis if dim is None else given_axis("trapezoid", axis, dim, -1)
    return sum(_areas("trapezoid", y, x, dx, axis), axis=-1) * 0.5


@takes_arrays
def cumulative_trapezoid(
    y: Tensor, x: Tensor | None = None, /, dx: float = 1.0, axis: int = -1, *,
    initial: float | None = None, dim: int | None = None,
) -> Tensor:
    """The areas under y from the first place to the second, the third, ... along `axis`.

    SciPy's and PyTorch's; x, dx and errors as of `trapezoid`. The axis is one shorter; `initial`,
    which SciPy wants to be 0, is put before the areas and makes it as long.

        gt.cumulative_trapezoid(gt.tensor([1.0, 2.0, 4.0]))            # [1.5, 4.5]
    """
    name = "cumulative_trapezoid"
    axis = axis if dim is None else given_axis(name, axis, dim, -1)
    found = cumulative_sum(_areas(name, y, x, dx, axis), axis=-1) * 0.5
    if initial is not None and y.shape[axis]:
        first = full((*found.shape[:-1], 1), initial, dtype=found.dtype, device=found.device)
        found = concat([first, found], -1)
    return moveaxis(found, -1, axis)


def _areas(name: str, y: Tensor, x: Tensor | None, dx: float, axis: int) -> Tensor:
    """Twice the area between each two neighbours, along the last axis."""
    y = floats(y)
    rows = moveaxis(y, axis, -1)
    steps: Tensor | float = dx
    if x is not None:
        x = places = floats(x)
        if x.ndim != 1:  # its axes are the last ones of y
            places = moveaxis(reshape(x, (1,) * (y.ndim - x.ndim) + x.shape), axis, -1)
        if places.shape[-1] != rows.shape[-1]:
            raise ValueError(f"{name} of shape {y.shape} along axis {axis} at places of shape "
                             f"{x.shape}; wanted as many places as values")
        steps = places[..., 1:] - places[..., :-1]
    return (rows[..., 1:] + rows[..., :-1]) * steps


def gradient(
    x: Tensor, /, *spacing: float, axis: int | Sequence[int] | None = None
) -> Tensor | tuple[Tensor, ...]:
    """Central differences of x along each axis, one-sided ones at its ends; one axis: no tuple.

    `spacing` is one number for all axes, or one for each. PyTorch's gives a tuple also for one.
    Integers become the default dtype first. Raises TypeError for a spacing that is no number,
    ValueError for other numbers of spacings, no axis, and one of fewer than two elements.
    """
    x = floats(x)
    if any(getattr(step, "shape", ()) or isinstance(step, Sequence) for step in spacing):
        raise TypeError("gradient was given a spacing that is no number; wanted the distance "
                        "between places, which is the same for all")
    places = ([axis_index(a, x.ndim, "gradient") for a in integers(axis)] if axis is not None
              else list(range(x.ndim)))
    if not places:
        raise ValueError(f"gradient of a tensor of shape {x.shape} along no axis; wanted one")
    steps = spacing or (1.0,)
    steps = steps * len(places) if len(steps) == 1 else steps
    if len(steps) != len(places):
        raise ValueError(f"gradient was given {len(spacing)} spacings for {len(places)} axes; "
                         "wanted one, or one for each")
    found = tuple(_slopes(x, a, step) for a, step in zip(places, steps, strict=True))
    return found[0] if len(found) == 1 else found


def _slopes(x: Tensor, axis: int, step: float) -> Tensor:
    if x.shape[axis] < 2:
        raise ValueError(f"gradient along axis {axis} of a tensor of shape {x.shape}; wanted two "
                         "elements or more")
    rows = moveaxis(x, axis, -1)
    found = concat([(rows[..., 1:2] - rows[..., :1]) / step,
                    (rows[..., 2:] - rows[..., :-2]) / (2 * step),
                    (rows[..., -1:] - rows[..., -2:-1]) / step], axis=-1)
    return moveaxis(found, -1, axis)


@takes_arrays
def interp(x: Tensor, xp: Tensor, fp: Tensor, /) -> Tensor:
    """The values at x of the line through the points (xp, fp), xp ascending; constant beyond them.

    Gradients reach x and the points. Raises ValueError unless xp and fp are 1-d and of one length.
    """
    x, xp, fp = map(floats, (x, xp, fp))
    if xp.ndim != 1 or xp.shape != fp.shape or not xp.size:
        raise ValueError(f"interp was given points of shapes {xp.shape} and {fp.shape}; wanted two "
                         "1-d tensors of one length: interp(x, xp, fp)")
    if xp.size == 1:
        return broadcast_to(fp, x.shape) if x.ndim else reshape(fp, ())
    left = clip(searchsorted(xp.detach(), x.detach(), side="right") - 1, 0, xp.size - 2)
    gap, beyond = xp[left + 1] - xp[left], (x >= xp[left + 1]).astype(x.dtype)
    share = clip((x - xp[left]) / where(gap == 0, 1, gap), 0, 1)
    share = where(gap == 0, beyond, share)  # where the last place is there twice
    return fp[left] + share * (fp[left + 1] - fp[left])


@takes_arrays
def convolve(x1: Tensor, x2: Tensor, /, mode: str = "full") -> Tensor:
    """The convolution of two 1-d tensors; mode "full", "same" (as long as the longer), "valid".

    Raises ValueError for other modes or shapes.
    """
    if x1.ndim != 1 or x2.ndim != 1 or not x1.size or not x2.size:
        raise ValueError(f"convolve of shapes {x1.shape} and {x2.shape}; wanted two 1-d tensors")
    if mode not in ("full", "same", "valid"):
        raise ValueError(f"convolve was given mode={mode!r}; wanted 'full', 'same' or 'valid'")
    long, short = (x1, x2) if x1.size >= x2.size else (x2, x1)
    beyond = index(short.size) - 1
    found = conv1d(reshape(long, (1, 1, -1)), reshape(flip(short), (1, 1, -1)),
                   padding=0 if mode == "valid" else beyond)
    found = reshape(found, (-1,))
    return found[beyond // 2:beyond // 2 + long.size] if mode == "same" else found


@takes_arrays
def correlate(x1: Tensor, x2: Tensor, /, mode: str = "valid") -> Tensor:
    """The sums of x1[n + k] * conj(x2[n]) over n for each shift k, of two 1-d tensors: NumPy's.

    `mode` as of `convolve`. Raises ValueError for other modes or shapes.

        gt.correlate(gt.tensor([1.0, 2.0, 3.0]), gt.tensor([0.0, 1.0]))        # [2, 3]
    """
    if x1.ndim != 1 or x2.ndim != 1 or not x1.size or not x2.size:
        raise ValueError(f"correlate of shapes {x1.shape} and {x2.shape}; wanted two 1-d tensors")
    if mode not in ("full", "same", "valid"):
        raise ValueError(f"correlate was given mode={mode!r}; wanted 'full', 'same' or 'valid'")
    if x1.size < x2.size:  # as NumPy, whose middle part of an even size then begins one later
        return flip(conj(correlate(x2, x1, mode)))
    return convolve(x1, flip(conj(x2)), mode)


enter(globals())

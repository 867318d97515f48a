"""Scans along an axis: cumulative sums, functions that all scans share, and differences."""

from __future__ import annotations

from functools import partial
from math import prod
from types import EllipsisType
from typing import TYPE_CHECKING, Any

import numpy as np

from gtensor.backend import element_type, host
from gtensor.backend.cuda import cupy
from gtensor.creation.new_tensors import asarray
from gtensor.engine.handle.namespaces import recorded
from gtensor.engine.handle.tensor import Tensor
from gtensor.engine.tape.op import Op, op
from gtensor.engine.tape.samples import Draw, Sample, normal
from gtensor.ops.arrange.joining import concat
from gtensor.ops.arrange.shape import (
    along,
    along_one,
    axis_index,
    broadcast_to,
    clone,
    expand_dims,
    from_end,
    linear_tangent,
    resized,
)
from gtensor.ops.define import rows
from gtensor.ops.define.arguments import given_axis, takes_arrays
from gtensor.ops.define.batching import unchanged
from gtensor.ops.define.cpu_tiles import SMALL, computed_in, row_tiles
from gtensor.ops.reduce.reductions import accumulator
from gtensor.settings import settings

if TYPE_CHECKING:
    from gtensor.backend.typing import Array, DTypeLike
    from gtensor.engine.handle.namespaces import Namespace
    from gtensor.engine.handle.tensor import Operand
    from gtensor.engine.walk.typing import Step

__all__ = ["cumulative_sum", "diff"]

METHODS = ("cumulative_sum",)
Key = tuple[slice | EllipsisType, ...]
_SLICE = 256  # elements of a slice from which a step of it costs less than NumPy's strides
_ACCUMULATES = "fdFDlL"  # dtypes in which NumPy's scans are what is wanted


def shifted_keys(axis: int, reverse: bool) -> tuple[Key, Key]:
    """The keys of the elements that links lead to, and of those they come from."""
    later, earlier = along(axis, 1, None), along(axis, 0, -1)
    return (earlier, later) if reverse else (later, earlier)


# -- paths -----------------------------------------------------------------------------------------


def accumulated(
    x: Array, axis: int, dtype: DTypeLike | None, initial: int | None, reverse: bool,
    function: np.ufunc, out: Array | None
) -> Array:
    """The scan of x by a ufunc, from the end if `reverse`; `initial` before all of it, if given."""
    if (out is None and dtype is None and initial is None and not reverse and x.size < SMALL
            and x.dtype.char in _ACCUMULATES and x.nbytes < settings.arena_min_bytes
            and not _in_slices(x, axis)):
        return function.accumulate(x, axis)
    if out is None:
        wanted = dtype or accumulator(x.dtype) or x.dtype
        name = "cumulative_sum" if function is np.add else "cumulative_prod"
        size = x.shape[axis] + (initial is not None)
        out = host().empty(resized(x.shape, axis, size), wanted, name)
    if initial is None and axis == -1 and function is np.add and (
            rows.cumulative_sum(x, out, reverse)):
        return out
    result = out
    if reverse:
        x, result = x[along(axis, None, None, -1)], out[along(axis, None, None, -1)]
    if initial is not None:
        result[along(axis, 0, 1)] = initial
        result = result[along(axis, 1, None)]
    if result.dtype.itemsize == 2 and result.dtype.kind in "fV":
        _accumulate_half(function, np.moveaxis(x, axis, -1), np.moveaxis(result, axis, -1))
        return out
    if x.dtype != result.dtype:  # converted in place: NumPy would convert a copy
        result[...] = x
        x = result
    if _in_slices(x, axis):
        slices, targets = iter(x.swapaxes(axis, 0)), iter(result.swapaxes(axis, 0))
        last = next(targets)
        last[...] = next(slices)
        for each, target in zip(slices, targets, strict=True):
            function(last, each, target)
            last = target
    else:
        function.accumulate(x, axis, None, result)
    return out


def _in_slices(x: Array, axis: int) -> bool:
    """Whether steps of whole slices are quicker than NumPy's scan, which goes along the axis."""
    return axis < -1 and prod(x.shape[axis + 1:]) >= _SLICE and x.shape[axis] > 0


def _accumulate_half(function: np.ufunc, x: Array, result: Array) -> None:
    """In float32, by tiles of whole rows; a row beyond a tile needs a buffer of its length."""
    if x.size:
        for tile in row_tiles(x.shape):
            result[tile] = function.accumulate(x[tile], -1, np.float32)


def _cumulative_sum_cpu(
    x: Array, *, axis: int, include_initial: bool = False, reverse: bool = False,
    dtype: DTypeLike | None = None, out: Array | None = None,
) -> Array:
    return accumulated(x, axis, dtype, 0 if include_initial else None, reverse, np.add, out)


def cumulative_gpu(
    name: str, initial: int, x: Array, *, axis: int, include_initial: bool = False,
    reverse: bool = False, dtype: DTypeLike | None = None, out: Array | None = None,
) -> Array:
    """The scan of x by CuPy's function of that name, `initial` before it if `include_initial`."""
    xp = cupy()
    wanted = dtype or accumulator(x.dtype) or x.dtype
    if out is None:
        out = xp.empty(resized(x.shape, axis, x.shape[axis] + include_initial), wanted)
    result = out
    if reverse:
        x, result = x[along(axis, None, None, -1)], out[along(axis, None, None, -1)]
    if include_initial:
        result[along(axis, 0, 1)] = initial
        result = result[along(axis, 1, None)]
    result[...] = getattr(xp, name)(x, axis=axis, dtype=computed_in(np.dtype(wanted)))
    return out


# -- cumulative sum --------------------------------------------------------------------------------


def _cumulative_sum_backward(ns: Namespace, step: Step, g: Array) -> None:
    """The sum from the other end."""
    axis, reverse = step.params["axis"], step.params.get("reverse", False)
    if step.params.get("include_initial", False):
        g = ns.slice(g, key=along(axis, 0, -1) if reverse else along(axis, 1, None))
    step.give(0, ns.cumulative_sum(g, axis=axis, reverse=not reverse))


def samples(draw: Draw = normal, **params: Any) -> list[Sample]:
    """Samples of a scan."""
    return [Sample((s,), draw, {"axis": a, "include_initial": i, **params}) for s, a, i in (
        ((7,), -1, False), ((3, 5), -1, True), ((3, 5), -2, False), ((2, 3, 4), -2, True),
        ((0,), -1, True), ((3, 0), -1, False), ((3, 0), -2, False), ((4, 1), -1, False))]


def torch_scan(
    torch: Any, x: Any, function: str, axis: int, include_initial: bool, reverse: bool = False
) -> Any:
    """The scan by PyTorch's function of that name."""
    x = x.flip(axis) if reverse else x
    y = getattr(torch, function)(x, dim=axis)
    if include_initial:
        shape = resized(x.shape, axis, 1)
        first = (torch.zeros if function == "cumsum" else torch.ones)(shape, dtype=y.dtype)
        y = torch.cat([first, y], dim=axis)
    return y.flip(axis) if reverse else y


_cumulative_sum = op(
    "cumulative_sum", autocast="float32",
    cpu=_cumulative_sum_cpu, gpu=partial(cumulative_gpu, "cumsum", 0),
    complex=True, backward=_cumulative_sum_backward, tangent=linear_tangent("cumulative_sum"),
    batch=unchanged,
    samples=samples() + samples(reverse=True),
    reference=lambda torch, x, **params: torch_scan(torch, x, "cumsum", **params),
)


@takes_arrays
def cumulative_sum(
    x: Tensor, /, axis: int | None = None, *, dtype: DTypeLike | None = None,
    include_initial: bool = False, dim: int | None = None,
) -> Tensor:
    """The sums of the first 1, 2, ... elements along `axis`, which a 1-d x may leave out.

    `include_initial`: a 0 comes first, so the axis is one longer. Booleans and small integers add
    up as int64 (unsigned: uint64) unless `dtype` says otherwise; half precision adds up in float32.

    Raises ValueError for an axis not there, or none given where there are several.
    """
    if dim is not None:
        axis = given_axis("cumulative_sum", axis, dim)
    return scanned(_cumulative_sum, x, axis, dtype, include_initial)


def scanned(
    scan: Op, x: Tensor, axis: int | None, dtype: DTypeLike | None, include_initial: bool
) -> Tensor:
    """The scan along the axis; its dtype is a parameter where it is not x's."""
    name = scan.name
    if axis is None and x.ndim != 1:
        raise ValueError(f"{name} of a tensor of {x.ndim} dimensions without an axis; wanted one, "
                         "or a 1-d tensor")
    wanted = accumulator(x.dtype) if dtype is None else element_type(dtype)
    run = partial(scan, include_initial=include_initial,
                  **{} if wanted is None else {"dtype": wanted})
    place = 0 if axis is None else axis
    if include_initial:  # of a 0-d tensor two elements would lie along no axis
        return run(x, axis=from_end(axis_index(place, x.ndim, name), x.ndim))
    return along_one(run, x, place, name)


# -- differences -----------------------------------------------------------------------------------


@takes_arrays
def diff(
    x: Tensor, /, n: int = 1, axis: int = -1, prepend: Operand | None = None,
    append: Operand | None = None, *, dim: int | None = None,
) -> Tensor:
    """x[1:] - x[:-1] along `axis`, n times (0: a copy); booleans are compared, not subtracted.

    `prepend`, `append`: tensors put before and behind x first, of x's shape but along `axis`; one
    number stands for one element. The result has their common dtype.

    Raises ValueError for a negative n, and for an axis not there.
    """
    if dim is not None:
        axis = given_axis("diff", axis, dim, -1)
    place = from_end(axis_index(axis, x.ndim, "diff"), x.ndim)
    if n < 0:
        raise ValueError(f"diff was given n={n}; wanted 0 or more")
    if n == 0:
        return clone(x)
    for number in (prepend, append):
        if isinstance(number, (float, complex)):
            x = x.to((x.detach()[:0] + number).dtype)  # integers become floating
    parts = [_edge(p, x, place) if p is not None else None for p in (prepend, append)]
    found = [p for p in (parts[0], x, parts[1]) if p is not None]
    if len(found) > 1:
        x = concat(found, place)
    later, earlier = shifted_keys(place, False)
    change = recorded.not_equal if x.dtype == np.bool_ else recorded.subtract
    for _ in range(n):
        if not x.shape[place]:
            break  # also for a large n
        x = change(recorded.slice(x, key=later), recorded.slice(x, key=earlier))
    return x


def _edge(value: Operand, x: Tensor, axis: int) -> Tensor:
    """A tensor as it is; a number as one of x's shape, with size 1 along the axis."""
    weak = isinstance(value, (bool, int, float, complex))
    dtype = (x.detach()[:0] + value).dtype if weak else None  # a number's own kind is weak
    edge = asarray(value, dtype=dtype, device=x.device)
    if edge.ndim:
        return edge
    return broadcast_to(expand_dims(edge), resized(x.shape, axis, 1))

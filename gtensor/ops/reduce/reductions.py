"""Reductions: sum, mean, max, min, any, all; and functions that all reductions share."""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from functools import lru_cache
from math import prod
from operator import index
from typing import TYPE_CHECKING, Any

import numpy as np

from gtensor.backend import element_type, host
from gtensor.backend.cuda import cupy
from gtensor.backend.kernels import BLOCK, C_TYPES, NULL, elementwise, raw
from gtensor.engine.handle.tensor import Tensor
from gtensor.engine.tape.op import Op, op
from gtensor.engine.tape.samples import Draw, Sample, below, binary, distinct, normal
from gtensor.ops.arrange.shape import integers, linear_tangent, lone
from gtensor.ops.define.arguments import autocast, refuse_pair, takes_arrays, torch_words
from gtensor.ops.define.batching import in_dtype, unchanged
from gtensor.ops.define.cpu_tiles import computed_in
from gtensor.ops.define.flops import of_input
from gtensor.ops.define.path_builders import settled, tiled, tiles
from gtensor.ops.define.pointwise import pointwise, zero_tangent
from gtensor.ops.define.sums import sum_over
from gtensor.ops.elementwise.rounding import ZERO
from gtensor.settings import settings

if TYPE_CHECKING:
    from gtensor.backend.typing import Array, DTypeLike, Params, Path
    from gtensor.engine.handle.namespaces import Namespace
    from gtensor.engine.walk.typing import Step, Values
    from gtensor.ops.define.cpu_tiles import Tile

__all__ = ["all", "any", "max", "mean", "min", "sum"]

METHODS = __all__
Axis = int | tuple[int, ...] | None


# -- axes ------------------------------------------------------------------------------------------


def normalize_axis(axis: Axis, ndim: int, op_name: str) -> tuple[int, ...]:
    """Sorted axes, counted from the end; all for None. Raises AxisError for one not there.

    Of a 0-d tensor 0 and -1 are its one element's, see `lone`.
    """
    if axis is not None and not isinstance(axis, int):
        axis = integers(axis)
    return _normalized(axis, ndim, op_name)


@lru_cache(maxsize=1024)
def _normalized(axis: Axis, ndim: int, op_name: str) -> tuple[int, ...]:
    if axis is None or lone(axis, ndim):
        return tuple(range(-ndim, 0))
    axes = (axis,) if isinstance(axis, int) else axis
    found = sorted(index(a) - ndim if a >= 0 else index(a) for a in axes)
    if builtins.any(not -ndim <= a < 0 for a in found) or len(set(found)) != len(found):
        wanted = f"different axes from {-ndim} to {ndim - 1}" if ndim else "0, -1 or None"
        raise np.exceptions.AxisError(
            f"{op_name} over axis {axis} of a tensor of {ndim} dimensions; wanted {wanted}")
    return tuple(found)


def kept_shape(shape: tuple[int, ...], axis: tuple[int, ...], keepdims: bool) -> tuple[int, ...]:
    """The shape after a reduction over `axis`, counted from either end."""
    if keepdims:
        sizes = list(shape)
        for a in axis:
            sizes[a] = 1
        return tuple(sizes)
    gone = [a % len(shape) for a in axis]
    return tuple([n for i, n in enumerate(shape) if i not in gone])


def reduced(shape: tuple[int, ...], axis: tuple[int, ...]) -> int:
    """How many elements a reduction over `axis` makes one of."""
    return prod([shape[i] for i in axis])


def nonempty_axes(x: Tensor, axis: Axis, name: str) -> tuple[int, ...]:
    """The axes, over which there must be an element. Raises ValueError if there is none."""
    axes = normalize_axis(axis, x.ndim, name)
    if reduced(x.shape, axes) == 0:
        raise ValueError(f"{name} over axis {axis} of a tensor of shape {x.shape}, which has no "
                         "elements there; wanted at least one")
    return axes


def reduction_tiles(
    shape: tuple[int, ...], axis: tuple[int, ...]
) -> Iterator[tuple[Tile, Tile, tuple[int, ...]]]:
    """(key, key of its results, axes): tiles of an array that is reduced over `axis`.

    The second key is for results that keep the reduced axes with size 1; the axes are those of the
    tile that are reduced. Several tiles may have the same results, which the caller adds up.
    """
    axis = tuple(sorted(a % len(shape) for a in axis))
    for tile in tiles(shape, settings.tile_elements):
        gone = builtins.sum(isinstance(k, int) for k in tile)
        result = [k if i not in axis else 0 if isinstance(k, int) else slice(None)
                  for i, k in enumerate(tile)]
        yield (*tile, ...), (*result, ...), tuple(a - gone for a in axis if a >= gone)


def accumulator(dtype: np.dtype) -> np.dtype | None:
    """The dtype in which sums and products of small integers are kept; None: their own."""
    if dtype.kind in "biu" and dtype.itemsize < 8:
        return np.dtype(np.uint64 if dtype.kind == "u" else np.int64)
    return None


def widened(ns: Namespace, x: Array) -> Array:
    """x in the dtype that its sums and statistics are computed in."""
    return in_dtype(ns, x, computed_in(x.dtype))


def rounded_last(reduction: Op, x: Tensor, **params: Any) -> Tensor:
    """The reduction of x. That of a half type is one into float32, and then a cast.

    So the gradient is computed from a result in float32: one of half precision has lost digits,
    and may be 0 or infinite.
    """
    if reduction.autocast is not None:
        (x,) = autocast(reduction.autocast, x)
    work = computed_in(x.dtype)
    if work == x.dtype:
        return reduction(x, **params)
    return reduction(x, dtype=work, **params).astype(x.dtype)


def reduction_samples(
    draw: Draw = normal, *, none: bool = True, no_axis: bool = True
) -> list[Sample]:
    """Samples of a reduction; with nothing to reduce, and over no axis, if it allows them."""
    cases: list[tuple[tuple[int, ...], tuple[int, ...], bool]] = [
        ((7,), (-1,), False), ((3, 5), (-1,), False), ((3, 5), (-2,), True),
        ((2, 3, 4), (-3, -1), False), ((2, 3), (-2, -1), False)]
    if no_axis:
        cases += [((), (), False), ((3, 4), (), False)]
    if none:
        cases.append(((3, 0), (-1,), False))
    return [Sample((s,), draw, {"axis": a, "keepdims": k}) for s, a, k in cases]


def torch_reduction(function: str, over_nothing: Path = lambda torch, x: x.clone()) -> Path:
    """PyTorch's function of that name; for no axes, which it takes for all, `over_nothing`."""

    def reference(torch: Any, x: Any, axis: tuple[int, ...], keepdims: bool) -> Any:
        if not axis:
            return over_nothing(torch, x)
        return getattr(torch, function)(x, dim=axis, keepdim=keepdims)

    return reference


# -- paths -----------------------------------------------------------------------------------------


def _long(x: Array) -> builtins.bool:
    """Whether many floating-point terms may lie apart in memory."""
    return x.dtype.kind in "fcV" and (
        x.size > 32 * x.shape[-1] or not x.flags.c_contiguous)


_FLOAT32 = np.dtype(np.float32)


def reduction_cpu(name: str, function: np.ufunc, dtype: np.dtype | None = None) -> Path:
    """A reduction by its ufunc: NumPy's functions of that name only add Python around it.

    Sums and products of half precision are kept in float32. `dtype`: that of the output, if it is
    the same for all inputs.
    """
    reduce: Any = function.reduce
    widens = function in (np.add, np.multiply)

    def path(
        x: Array, *, axis: tuple[int, ...], keepdims: bool = False,
        dtype: DTypeLike | None = dtype, out: Array | None = None,
    ) -> Array:
        kept: Any = x.dtype if dtype is None else dtype  # a dtype or a type: both have itemsize
        if widens and kept.itemsize == 2 and kept.kind in "fV":
            total = None
            if function is np.add and x.ndim > 1 and _long(x):
                total = sum_over(x, axis, _FLOAT32, None, keepdims)
            if total is None:
                total = reduce(x, axis, np.float32, None, bool(keepdims))
            if out is None:
                return total.astype(kept)
            out[...] = total
            return out
        if out is None and x.nbytes >= settings.arena_min_bytes:
            wanted = dtype or (widens and accumulator(x.dtype)) or x.dtype
            out = host().empty(kept_shape(x.shape, axis, keepdims), wanted, name)
        if function is np.add and x.ndim > 1 and dtype is None and _long(x) and (
                found := sum_over(x, axis, x.dtype, out, keepdims)
        ) is not None:
            return found
        if out is None:
            return reduce(x, axis, dtype, None, bool(keepdims))
        reduce(x, axis, dtype, out, bool(keepdims))
        return out

    return path


def reduction_gpu(name: str, widens: bool = False) -> Path:
    def path(
        x: Array, *, axis: tuple[int, ...], keepdims: bool = False,
        dtype: DTypeLike | None = None, out: Array | None = None,
    ) -> Array:
        kept: Any = x.dtype if dtype is None else dtype
        half = widens and kept.itemsize == 2 and kept.kind in "fV"
        wide = {"dtype": np.float32 if half else dtype} if widens else {}
        result = getattr(cupy(), name)(x, axis=axis, keepdims=keepdims, **wide)
        if out is not None:
            out[...] = result
            return out
        return result.astype(kept, copy=False) if half else result

    return path


_SUM_ROWS = raw("sum_rows.cu", "sum_rows")
_cupy_sum = reduction_gpu("sum", widens=True)
_WIDTH = 32  # columns of a block, at most
_STEPS = 8  # rows of a thread, at least, before the rows are divided among blocks
_CHAIN = 2048  # terms, from which on CuPy's threads have several: 512 share them
_MATRICES = 1 << 16  # what a launch allows in its third dimension
_BLOCKS = 1024  # enough for several on each multiprocessor
_PARTS = {"complex64": "float32", "complex128": "float64"}


def _sum_gpu(
    x: Array, *, axis: tuple[int, ...], keepdims: bool = False,
    dtype: DTypeLike | None = None, out: Array | None = None,
) -> Array:
    """CuPy gives a sum over the first axes a block for each 32 of its results.

    Over axes between, its threads add many terms one after the other.
    """
    count = len(axis)
    places = sorted(a % x.ndim for a in axis)
    rows_summed = (0 < count < x.ndim and places[-1] - places[0] == count - 1
                   and places[-1] < x.ndim - 1 and x.size and x.flags.c_contiguous
                   and dtype is None and (x.dtype.name in C_TYPES or x.dtype.name in _PARTS))
    matrices = prod(x.shape[:places[0]]) if rows_summed else 0
    if not rows_summed or places[0] and not (
            matrices < _MATRICES and prod([x.shape[a] for a in places]) > _CHAIN):
        return _cupy_sum(x, axis=axis, keepdims=keepdims, dtype=dtype, out=out)
    shape = kept_shape(x.shape, axis, keepdims)
    total = out
    if total is None or not total.flags.c_contiguous or total.dtype != x.dtype:
        total = cupy().empty(shape, x.dtype)
    real = _PARTS.get(x.dtype.name, x.dtype)
    flat = x.reshape(matrices, prod([x.shape[a] for a in places]), -1).view(real)
    _sum_rows(flat, total.reshape(-1).view(real))
    return settled(total, None if total is out else out)


def _sum_rows(x: Array, total: Array) -> None:
    """total = x (matrices, rows, columns) summed over its rows."""
    xp, (matrices, rows, columns) = cupy(), x.shape
    width, lanes = (1 << (n - 1).bit_length() for n in (columns, rows))
    width = builtins.min(_WIDTH, width)
    lanes = builtins.min(BLOCK // width, builtins.max(lanes, _WIDTH // width))  # whole warps
    across = -(-columns // width)
    most = rows // (lanes * _STEPS)
    parts = builtins.max(1, builtins.min(most, -(-_BLOCKS // (across * matrices))))
    space: tuple[Any, Any] = NULL, NULL
    if parts > 1:
        space = (xp.empty((matrices, parts, columns), computed_in(x.dtype)),
                 xp.zeros(matrices * across, np.uint32))
    _SUM_ROWS[x.dtype]((across, parts, matrices), (lanes * width,), (
        x, total, *space, rows, columns, width))


# -- sum and mean ----------------------------------------------------------------------------------


def broadcast_gradient(ns: Namespace, step: Step, g: Array) -> Array:
    """The gradient of a reduction, as a view of the input's shape."""
    shape = step.shape(0)
    if g.ndim:
        g = ns.reshape(g, shape=kept_shape(shape, step.params["axis"], True))
    return ns.broadcast_to(g, shape=shape)


_sum = op(
    "sum", flops=of_input,
    autocast="float32", cpu=reduction_cpu("sum", np.add), gpu=_sum_gpu, complex=True,
    backward=lambda ns, step, g: step.give(0, broadcast_gradient(ns, step, g)),
    tangent=linear_tangent("sum"), batch=unchanged,
    samples=reduction_samples(), reference=torch_reduction("sum"),
)


@takes_arrays
def sum(
    x: Tensor, /, axis: Axis = None, *, dtype: DTypeLike | None = None, keepdims: bool = False,
    dim: Axis = None, keepdim: bool | None = None,
) -> Tensor:
    """The sum over `axis` (all by default), in `dtype`, by default x's own.

    Booleans are counted; small integers add up as int64, small unsigned ones as uint64 (in
    PyTorch int64); half precision adds up in float32. The gradient of every element is the
    output's: a broadcast view, no new memory.
    """
    if dim is not None or keepdim is not None:
        axis, keepdims = torch_words("sum", axis, dim, keepdims, keepdim)
    axes = normalize_axis(axis, x.ndim, "sum")
    dtype = accumulator(x.dtype) if dtype is None else element_type(dtype)
    if dtype is None:
        return _sum(x, axis=axes, keepdims=keepdims)
    return _sum(x, axis=axes, keepdims=keepdims, dtype=dtype)


_add_up = reduction_cpu("mean", np.add)


def _mean_cpu(
    x: Array, *, axis: tuple[int, ...], keepdims: bool = False, out: Array | None = None
) -> Array:
    wide = np.float32 if x.dtype.itemsize == 2 else None
    total = _add_up(x, axis=axis, keepdims=keepdims, dtype=wide, out=None if wide else out)
    count = reduced(x.shape, axis) or float("nan")  # the mean of nothing is NaN
    if wide is None and isinstance(total, np.ndarray):
        total /= count
        return total
    total = total / count
    if out is None:
        return total.astype(x.dtype) if wide else total
    out[...] = total
    return out


def _mean_backward(ns: Namespace, step: Step, g: Array) -> None:
    count = builtins.max(1, reduced(step.shape(0), step.params["axis"]))
    step.give(0, broadcast_gradient(ns, step, ns.multiply(g, 1.0 / count)))


_mean = op(
    "mean", flops=of_input,
    cpu=_mean_cpu, gpu=reduction_gpu("mean", widens=True), floating=True, complex=True,
    backward=_mean_backward, tangent=linear_tangent("mean"), batch=unchanged,
    samples=reduction_samples(none=False), reference=torch_reduction("mean"),
)


@takes_arrays
def mean(
    x: Tensor, /, axis: Axis = None, *, keepdims: bool = False, dim: Axis = None,
    keepdim: bool | None = None,
) -> Tensor:
    """The arithmetic mean over `axis` (all axes by default), NaN over no elements.

    Integers become the default dtype first; PyTorch refuses them.
    """
    if dim is not None or keepdim is not None:
        axis, keepdims = torch_words("mean", axis, dim, keepdims, keepdim)
    return _mean(x, axis=normalize_axis(axis, x.ndim, "mean"), keepdims=keepdims)


# -- maximum and minimum ---------------------------------------------------------------------------


def _ties(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return below(3)(rng, shape) * 1.0


_equal_number = op(
    "equal_number", inputs="x y",
    cpu=tiled("equal_number", lambda ns, x, y: ns.equal(x, y).astype(x.dtype)),
    gpu=elementwise("T x, T y", "T hit", "hit = x == y ? T(1) : T(0)", name="gt_equal_number"),
    backward=pointwise(ZERO, ZERO), samples=binary(_ties),
    reference=lambda torch, x, y: 0 * x + (x == y),
    doc="1 where x = y, else 0, in their dtype: no mask beside it. Its gradient is 0.",
)


def _hits(ns: Namespace, x: Array, y: Array, axis: tuple[int, ...]) -> tuple[Array, Array]:
    """1 where x is the extreme y, else 0; and how many share it, which a half cannot count."""
    hits = ns.equal_number(x, ns.reshape(y, shape=kept_shape(x.shape, axis, True)))
    return hits, ns.sum(hits, axis=axis, keepdims=True, dtype=computed_in(x.dtype))


def _shared(ns: Namespace, a: Array, count: Array) -> Array:
    """a / count, in a's dtype."""
    share = ns.divide(a, count)
    return share if share.dtype == a.dtype else ns.astype(share, dtype=a.dtype)


def _extreme_backward(ns: Namespace, step: Step, g: Array) -> None:
    """To the extreme elements; ties share the gradient equally, as PyTorch's amax and amin do."""
    x, y = step.saved
    hits, count = _hits(ns, x, y, step.params["axis"])
    share = _shared(ns, ns.reshape(g, shape=count.shape), count)
    step.give(0, ns.multiply(hits, share, out=hits if hits.ndim else None))  # no NumPy scalar


def _extreme_tangent(
    ns: Namespace, primals: Values, tangents: Values, out: Array, params: Params
) -> Array:
    hits, count = _hits(ns, primals[0], out, params["axis"])
    total = ns.sum(ns.multiply(tangents[0], hits), **params)
    return _shared(ns, total, ns.reshape(count, shape=total.shape))


def _extreme(name: str, function: np.ufunc) -> Op:
    return op(
        name, flops=of_input, cpu=reduction_cpu(name, function), gpu=reduction_gpu(name),
        saves={"x": "x out"},
        backward=_extreme_backward, tangent=_extreme_tangent, batch=unchanged,
        samples=reduction_samples(distinct, none=False), reference=torch_reduction(f"a{name}"),
    )


_max, _min = _extreme("max", np.maximum), _extreme("min", np.minimum)


@takes_arrays
def max(
    x: Tensor, /, axis: Axis = None, *, keepdims: bool = False, dim: Axis = None,
    keepdim: bool | None = None,
) -> Tensor:
    """The largest element over `axis` (all axes by default); NaN if there is one.

    PyTorch gives the indices, too, if an axis is given: `argmax` has them.
    Raises ValueError for a reduction over no elements.
    """
    if dim is not None:
        refuse_pair("max", dim)
    if keepdim is not None:
        axis, keepdims = torch_words("max", axis, None, keepdims, keepdim)
    return _max(x, axis=nonempty_axes(x, axis, "max"), keepdims=keepdims)


@takes_arrays
def min(
    x: Tensor, /, axis: Axis = None, *, keepdims: bool = False, dim: Axis = None,
    keepdim: bool | None = None,
) -> Tensor:
    """The smallest element over `axis` (all axes by default); NaN if there is one.

    PyTorch gives the indices, too, if an axis is given: `argmin` has them.
    Raises ValueError for a reduction over no elements.
    """
    if dim is not None:
        refuse_pair("min", dim)
    if keepdim is not None:
        axis, keepdims = torch_words("min", axis, None, keepdims, keepdim)
    return _min(x, axis=nonempty_axes(x, axis, "min"), keepdims=keepdims)


# -- logic -----------------------------------------------------------------------------------------


def _logical(name: str, function: np.ufunc) -> Op:
    return op(
        name, flops=of_input, cpu=reduction_cpu(name, function, np.dtype(bool)),
        gpu=reduction_gpu(name),
        backward=None, tangent=zero_tangent, batch=unchanged, samples=reduction_samples(below(2)),
        reference=torch_reduction(name, lambda torch, x: x != 0),
        doc=f"Whether {name} of the elements over `axis` are true (not zero; NaN is true).",
    )


_any, _all = _logical("any", np.logical_or), _logical("all", np.logical_and)


@takes_arrays
def any(
    x: Tensor, /, axis: Axis = None, *, keepdims: bool = False, dim: Axis = None,
    keepdim: bool | None = None,
) -> Tensor:
    """Whether any element over `axis` is not zero (NaN is not); False over no elements.

    Booleans without the axes of `axis`, or with axes of size 1 if `keepdims`. Raises AxisError for
    an axis that there is not, or that is given twice.
    """
    if dim is not None or keepdim is not None:
        axis, keepdims = torch_words("any", axis, dim, keepdims, keepdim)
    return _any(x, axis=normalize_axis(axis, x.ndim, "any"), keepdims=keepdims)


@takes_arrays
def all(
    x: Tensor, /, axis: Axis = None, *, keepdims: bool = False, dim: Axis = None,
    keepdim: bool | None = None,
) -> Tensor:
    """Whether all elements over `axis` are not zero (NaN is not); True over no elements.

    Booleans without the axes of `axis`, or with axes of size 1 if `keepdims`. Raises AxisError for
    an axis that there is not, or that is given twice.
    """
    if dim is not None or keepdim is not None:
        axis, keepdims = torch_words("all", axis, dim, keepdims, keepdim)
    return _all(x, axis=normalize_axis(axis, x.ndim, "all"), keepdims=keepdims)

"""Searching: positions and counts. All results are integers, without gradients."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from gtensor.backend import host
from gtensor.backend.cuda import cupy
from gtensor.engine.handle.tensor import Tensor
from gtensor.engine.tape.op import Op, op
from gtensor.engine.tape.samples import Sample, below, boolean, distinct, normal
from gtensor.ops.arrange.shape import axis_index, from_end, lone
from gtensor.ops.define.arguments import takes_arrays, torch_words
from gtensor.ops.define.batching import batch_size, sized_by_values, spread, unchanged
from gtensor.ops.define.cpu_tiles import sortable
from gtensor.ops.define.path_builders import placed, settled
from gtensor.ops.define.pointwise import zero_tangent
from gtensor.ops.reduce.reductions import (
    Axis,
    kept_shape,
    nonempty_axes,
    normalize_axis,
    reduction_samples,
    reduction_tiles,
)

if TYPE_CHECKING:
    from gtensor.backend import Device
    from gtensor.backend.typing import Array, Params, Path
    from gtensor.engine.handle.namespaces import Namespace
    from gtensor.ops.define.batching import Inputs, Mapped

__all__ = ["argmax", "argmin", "count_nonzero", "nonzero", "searchsorted"]

METHODS = __all__
_INT64 = np.dtype(np.int64)


# -- the place of an extreme -----------------------------------------------------------------------


def _place_batch(
    ns: Namespace, run: Path, inputs: Inputs, mapped: Mapped, params: Params
) -> Any:
    """Without an axis, that of each example's elements in a row."""
    (x,) = inputs
    if params["axis"] is not None:
        return run(x, **params)
    size, *shape = x.shape
    places = run(ns.reshape(x, shape=(size, prod(shape))), axis=-1, keepdims=False)
    return ns.reshape(places, shape=(size, *(1,) * len(shape))) if params["keepdims"] else places


def _place(name: str) -> Op:
    def path(x: Array, *, axis: int | None, keepdims: bool, out: Array | None = None) -> Array:
        return getattr(x, name)(axis=axis, keepdims=keepdims, out=out)

    return op(
        name, flops=0, cpu=path, gpu=path, backward=None, tangent=zero_tangent, batch=_place_batch,
        samples=[Sample((s,), distinct, {"axis": a, "keepdims": k})
                 for s, a, k in (((7,), -1, False), ((3, 5), -1, True), ((3, 5), None, False),
                                 ((2, 3, 4), -2, False), ((3, 5), None, True), ((), None, False))],
        reference=lambda torch, x, axis, keepdims: getattr(torch, name)(
            x, dim=axis, keepdim=keepdims),
    )


_argmax, _argmin = _place("argmax"), _place("argmin")


@takes_arrays
def argmax(
    x: Tensor, /, axis: int | None = None, *, keepdims: bool = False, dim: int | None = None,
    keepdim: bool | None = None,
) -> Tensor:
    """Index of the first largest element along `axis` (of the flattened tensor for None); int64.

    The first NaN, if there is one. Raises ValueError if there is no element.
    """
    if dim is not None or keepdim is not None:
        axis, keepdims = torch_words("argmax", axis, dim, keepdims, keepdim)
    return _argmax(x, axis=_searched(x, axis, "argmax"), keepdims=keepdims)


@takes_arrays
def argmin(
    x: Tensor, /, axis: int | None = None, *, keepdims: bool = False, dim: int | None = None,
    keepdim: bool | None = None,
) -> Tensor:
    """Index of the first smallest element along `axis` (of the flattened tensor for None); int64.

    The first NaN, if there is one. Raises ValueError if there is no element.
    """
    if dim is not None or keepdim is not None:
        axis, keepdims = torch_words("argmin", axis, dim, keepdims, keepdim)
    return _argmin(x, axis=_searched(x, axis, "argmin"), keepdims=keepdims)


def _searched(x: Tensor, axis: int | None, name: str) -> int | None:
    if axis is None and x.size:
        return None
    place = (None if axis is None or lone(axis, x.ndim)
             else from_end(axis_index(axis, x.ndim, name), x.ndim))
    nonempty_axes(x, place, name)
    return place


# -- elements that are not zero --------------------------------------------------------------------


def _count_cpu(
    x: Array, *, axis: tuple[int, ...], keepdims: bool = False, out: Array | None = None
) -> Array:
    if out is None and len(axis) == x.ndim and not keepdims:
        return np.asarray(np.count_nonzero(x), _INT64)
    if out is None:
        out = host().empty(kept_shape(x.shape, axis, keepdims), _INT64, "count_nonzero")
    if len(axis) == x.ndim:
        out[...] = np.count_nonzero(x)
        return out
    total = out.reshape(kept_shape(x.shape, axis, True))
    total[...] = 0
    for tile, result, axes in reduction_tiles(x.shape, axis):
        part = x[tile]
        counted = part if part.dtype == np.bool_ else part != 0
        total[result] += np.add.reduce(counted, axis=axes, dtype=_INT64, keepdims=True)
    return out


def _count_gpu(
    x: Array, *, axis: tuple[int, ...], keepdims: bool = False, out: Array | None = None
) -> Array:
    return settled(cupy().sum(x != 0, axis=axis, dtype=_INT64, keepdims=keepdims), out)


_count_nonzero = op(
    "count_nonzero", flops=0, cpu=_count_cpu, gpu=_count_gpu, backward=None, tangent=zero_tangent,
    batch=unchanged,
    samples=reduction_samples(below(2)) + reduction_samples(boolean),
    reference=lambda torch, x, axis, keepdims: (x != 0).sum(dim=axis, keepdim=keepdims)
    if axis else (x != 0).long(),
)


@takes_arrays
def count_nonzero(
    x: Tensor, /, axis: Axis = None, *, keepdims: bool = False, dim: Axis = None,
    keepdim: bool | None = None,
) -> Tensor:
    """How many elements over `axis` (all by default) are not zero; int64. NaN is not zero.

    Without the axes of `axis`, or with axes of size 1 if `keepdims`. Raises AxisError for an axis
    that there is not, or that is given twice.
    """
    if dim is not None or keepdim is not None:
        axis, keepdims = torch_words("count_nonzero", axis, dim, keepdims, keepdim)
    return _count_nonzero(x, axis=normalize_axis(axis, x.ndim, "count_nonzero"), keepdims=keepdims)


def _places_cpu(x: Array, out: Array | None = None) -> Array:
    places = x.nonzero()
    if out is None:
        out = host().empty((x.ndim, places[0].size), _INT64, "nonzero")
    for row, place in zip(out, places, strict=True):
        row[...] = place
    return out


def _places_gpu(x: Array, out: Array | None = None) -> Array:
    places = cupy().stack(cupy().nonzero(x))
    return settled(places, out)


_nonzero = op(
    "nonzero", flops=0, cpu=_places_cpu, gpu=_places_gpu, backward=None, tangent=zero_tangent,
    batch=sized_by_values("nonzero"),
    samples=[Sample((s,), below(2)) for s in ((7,), (3, 5), (2, 0, 3))],
    reference=lambda torch, x: torch.nonzero(x).T,
    doc="The places of the elements that are not zero, (ndim, count), int64; a GPU is waited for.",
)


@takes_arrays
def nonzero(x: Tensor, /) -> tuple[Tensor, ...]:
    """The indices of the elements that are not zero, in order: per axis one int64 tensor.

    PyTorch gives one tensor with a row for each element, `stack(nonzero(x), axis=1)`. The shape
    depends on the values, so it waits for a GPU. Raises ValueError for a 0-d tensor.
    """
    if not x.ndim:
        raise ValueError("nonzero of a 0-d tensor; wanted at least one dimension")
    return tuple(_nonzero(x))


# -- places in a sorted tensor ---------------------------------------------------------------------


def _search(
    device: Device, x1: Array, x2: Array, sorter: Array | None = None, *, side: str = "left",
    out: Array | None = None
) -> Array:
    xp = device.xp
    places = xp.searchsorted(sortable(x1), sortable(x2), side, sorter)
    return settled(places, out)


def _search_batch(
    ns: Namespace, run: Path, inputs: Inputs, mapped: Mapped, params: Params
) -> Any:
    """In a sorted array per example: by the places of both arrays' elements in one order."""
    if not (mapped[0] or mapped[2]):
        return run(*inputs, **params)
    size = batch_size(inputs, mapped)
    x1, x2, sorter = (spread(ns, x, m, size) for x, m in zip(inputs, mapped, strict=True))
    if sorter is not None:
        x1 = ns.take_along_axis(x1, sorter, axis=-1)
    count = prod(x2.shape[1:])
    sought = ns.reshape(x2, shape=(x2.shape[0], count))
    if params["side"] == "left":  # equal ones of x2 stand before those of x1, which do not count
        rows, part = (sought, x1), slice(0, count)
    else:
        rows, part = (x1, sought), slice(x1.shape[-1], None)
    joined = ns.concat(*rows, axis=-1, sizes=tuple(row.shape[-1] for row in rows))
    among_both = ns.slice(_ranks(ns, joined), key=(..., part))
    return ns.reshape(ns.subtract(among_both, _ranks(ns, sought)), shape=x2.shape)


def _ranks(ns: Namespace, x: Any) -> Any:
    """The place of each element in a row's ascending order; equal ones in theirs."""
    how = {"axis": -1, "descending": False, "stable": True}
    return ns.argsort(ns.argsort(x, **how), **how)


def _ascending(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return np.sort(rng.integers(0, 5, shape))


def _between(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Away from integers: the places are constant around these."""
    return _ascending(rng, shape) + 0.5


_searchsorted = op(
    "searchsorted", flops=0,
    **placed(_search), backward=None, tangent=zero_tangent, batch=_search_batch,
    samples=[Sample(((6,), s, None), (draw, below(6), normal), {"side": side})
             for draw in (_between, _ascending) for s in ((3, 4), (), (0,))
             for side in ("left", "right")],
    reference=lambda torch, x1, x2, sorter, side: torch.searchsorted(
        x1, x2.to(x1.dtype), side=side),
)


@takes_arrays
def searchsorted(
    x1: Tensor, x2: Tensor, /, *, side: str = "left", sorter: Tensor | None = None
) -> Tensor:
    """The places in the sorted 1-d x1 at which x2's elements keep it sorted; int64, x2's shape.

    `side` "left": before elements equal to it, "right": behind them. `sorter`: the indices that
    sort x1, if it is not sorted. Raises ValueError for another side, and for x1 not 1-d.
    """
    if side not in ("left", "right"):
        raise ValueError(f"searchsorted was given side={side!r}; wanted 'left' or 'right'")
    if x1.ndim != 1:
        raise ValueError(f"searchsorted in a tensor of shape {x1.shape}; wanted one dimension")
    if sorter is not None and sorter.shape != x1.shape:
        raise ValueError(f"searchsorted in a tensor of shape {x1.shape} with a sorter of shape "
                         f"{sorter.shape}; wanted equal shapes")
    return _searchsorted(x1, x2, sorter, side=side)

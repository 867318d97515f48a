"""Sorting: values by an order, orders, the largest or smallest few."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from gtensor.backend import host
from gtensor.backend.cuda import cupy
from gtensor.engine.handle.namespaces import recorded
from gtensor.engine.handle.tensor import Tensor
from gtensor.engine.tape.op import op
from gtensor.engine.tape.samples import Draw, Sample, below, distinct, normal
from gtensor.ops.arrange.shape import (
    along,
    along_one,
    axis_index,
    first_tangent,
    from_end,
    lone,
    reshape,
    resized,
)
from gtensor.ops.define.arguments import given_axis, refuse_pair, takes_arrays
from gtensor.ops.define.batching import trailing, unchanged
from gtensor.ops.define.cpu_tiles import row_tiles, sortable
from gtensor.ops.define.path_builders import placed, settled, tiles
from gtensor.ops.define.pointwise import zero_tangent
from gtensor.settings import settings

if TYPE_CHECKING:
    from types import ModuleType

    from gtensor.backend import Device
    from gtensor.backend.typing import Array

__all__ = ["argsort", "sort", "topk"]

METHODS = __all__
_INT64 = np.dtype(np.int64)


class TopK(NamedTuple):
    """The extreme elements along an axis, and where they were."""

    values: Tensor
    indices: Tensor


def _flipped(x: Array, axis: int) -> Array:
    """x with an axis backwards: a view."""
    return x[along(axis, None, None, -1)]


# -- elements in an order, and back ----------------------------------------------------------------


def _key(xp: ModuleType, order: Array, axis: int) -> tuple[Array, ...]:
    """The key of the elements at places `order` along an axis."""
    key: list[Array] = []
    for i, n in zip(range(-order.ndim, 0), order.shape, strict=True):
        key.append(order if i == axis else xp.arange(n).reshape(n, *(1,) * (-i - 1)))
    return tuple(key)


def _take_order_cpu(x: Array, order: Array, *, axis: int, out: Array | None = None) -> Array:
    """By tiles of whole rows."""
    if out is None:
        out = host().empty(order.shape, x.dtype, "take_order")
    rows, places, result = (np.moveaxis(a, axis, -1) for a in (x, order, out))
    if out.size:
        for tile in row_tiles(places.shape):
            result[tile] = np.take_along_axis(rows[tile], places[tile], -1)
    return out


def _take_order_gpu(x: Array, order: Array, *, axis: int, out: Array | None = None) -> Array:
    return settled(x[_key(cupy(), order, axis)], out)


def _put_order(
    device: Device, g: Array, order: Array, *, axis: int, size: int, out: Array | None = None
) -> Array:
    if out is None:
        out = device.empty(resized(g.shape, axis, size), g.dtype, "put_order")
    out[...] = 0
    out[_key(device.xp, order, axis)] = g
    return out


def _places(axis: int, size: int) -> Draw:
    """Different places below `size` along the axis."""

    def draw(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        order = rng.standard_normal(resized(shape, axis, size)).argsort(axis)
        return order[along(axis, None, shape[axis])]

    return draw


_ORDERS = (((7,), -1, 7), ((3, 5), -1, 2), ((3, 5), -2, 3), ((2, 0), -1, 0), ((2, 4, 3), -2, 1))


def _torch_put(torch: Any, g: Any, order: Any, axis: int, size: int) -> Any:
    return torch.zeros(resized(g.shape, axis, size), dtype=g.dtype).scatter(
        axis, order, g)


take_order = op(
    "take_order", flops=0,
    cpu=_take_order_cpu, gpu=_take_order_gpu, complex=True, saves={"x": "order"},
    backward=lambda ns, step, g: step.give(0, ns.put_order(
        g, step.saved[0], axis=step.params["axis"], size=step.shape(0)[step.params["axis"]])),
    tangent=first_tangent("take_order"), batch=trailing,
    samples=[Sample((s, resized(s, a, k)), (normal, _places(a, s[a])), {"axis": a})
             for s, a, k in _ORDERS],
    reference=lambda torch, x, order, axis: torch.gather(x, axis, order),
    doc="The elements of x at places `order` along an axis, no place twice.",
)

put_order = op(
    "put_order", flops=0, **placed(_put_order), complex=True, saves={"g": "order"},
    backward=lambda ns, step, g: step.give(0, ns.take_order(
        g, step.saved[0], axis=step.params["axis"])),
    tangent=first_tangent("put_order"), batch=trailing,
    samples=[Sample((resized(s, a, k),) * 2, (normal, _places(a, s[a])),
                    {"axis": a, "size": s[a]}) for s, a, k in _ORDERS],
    reference=_torch_put,
    doc="Zeros, and g at places `order` along an axis, no place twice: the adjoint of take_order.",
)


# -- orders ----------------------------------------------------------------------------------------


def _argsort_cpu(
    x: Array, *, axis: int, descending: bool, stable: bool, out: Array | None = None
) -> Array:
    """By tiles of whole rows.

    Backwards before and behind, so that equal elements keep their order when descending.
    """
    if out is None:
        out = host().empty(x.shape, _INT64, "argsort")
    rows, result = np.moveaxis(x, axis, -1), np.moveaxis(out, axis, -1)
    kind: Literal["stable"] | None = "stable" if stable else None
    if not x.size:
        return out
    for tile in row_tiles(rows.shape):
        part = sortable(rows[tile])
        if descending:
            order = part[..., ::-1].argsort(axis=-1, kind=kind)
            np.subtract(x.shape[axis] - 1, order[..., ::-1], result[tile])
        else:
            result[tile] = part.argsort(axis=-1, kind=kind)
    return out


def _argsort_gpu(
    x: Array, *, axis: int, descending: bool, stable: bool, out: Array | None = None
) -> Array:
    x = sortable(_flipped(x, axis) if descending else x)
    order = cupy().argsort(x, axis=axis, kind="stable" if stable else None)
    if descending:
        order = x.shape[axis] - 1 - _flipped(order, axis)
    return settled(order, out)


def _samples(draw: Draw, *stables: bool) -> list[Sample]:
    return [Sample((s,), draw, {"axis": a, "descending": d, "stable": stable})
            for stable in stables for d in (False, True)
            for s, a in (((7,), -1), ((3, 5), -1), ((3, 5), -2), ((0, 2), -1), ((2, 0), -1))]


_argsort = op(
    "argsort", flops=0, cpu=_argsort_cpu, gpu=_argsort_gpu, backward=None, tangent=zero_tangent,
    batch=unchanged,
    samples=_samples(below(3), True) + _samples(distinct, False),
    reference=lambda torch, x, axis, descending, stable: torch.argsort(
        x, dim=axis, descending=descending, stable=stable),
)


@takes_arrays
def argsort(
    x: Tensor, /, axis: int = -1, *, descending: bool = False, stable: bool = True,
    dim: int | None = None,
) -> Tensor:
    """The indices that sort x along `axis`; int64. NaN counts as the largest.

    `stable`: equal elements stay in their order, descending too. A row beyond a tile needs a
    second buffer of its length for a moment.

    Raises AxisError for an axis not there.
    """
    if dim is not None:
        axis = given_axis("argsort", axis, dim, -1)
    return along_one(partial(_argsort, descending=descending, stable=stable), x, axis, "argsort")


def _told_apart(x: Array) -> bool:
    """Whether equal elements may differ, so that their order shows: 0.0 and -0.0 do."""
    if x.dtype.kind not in "fV":
        return x.dtype.kind == "c"
    positive = negative = False
    for tile in tiles(x.shape, settings.tile_elements):
        part = x[(*tile, ...)]
        signs = np.signbit(part[part == 0])
        negative = negative or bool(signs.any())
        positive = positive or not signs.all()
    return positive and negative


def _sort_cpu(
    x: Array, *, axis: int, descending: bool, stable: bool, out: Array | None = None
) -> Array:
    """A copy, sorted in place; read backwards it is a stable descending order."""
    if out is None:
        out = host().empty(x.shape, x.dtype, "sort")
    out[...] = x
    kind: Literal["stable"] | None = "stable" if stable and _told_apart(x) else None
    result = _flipped(out, axis) if descending else out
    if x.dtype.kind == "V":  # NumPy sorts these wrong where there is a NaN
        _sort_rows(np.moveaxis(result, axis, -1), kind)
    else:
        result.sort(axis=axis, kind=kind)
    return out


def _sort_rows(rows: Array, kind: Literal["stable"] | None) -> None:
    """Sorted in place in float32, by tiles of whole rows."""
    if rows.size:
        for tile in row_tiles(rows.shape):
            rows[tile] = np.sort(sortable(rows[tile]), axis=-1, kind=kind)


def _sort_gpu(
    x: Array, *, axis: int, descending: bool, stable: bool, out: Array | None = None
) -> Array:
    result = cupy().sort(sortable(_flipped(x, axis) if descending else x), axis=axis)
    if out is None:
        out = cupy().empty(x.shape, x.dtype)
    out[...] = _flipped(result, axis) if descending else result
    return out


def _composed_sort(x: Tensor, *, axis: int, descending: bool, stable: bool) -> Tensor:
    order = recorded.argsort(x, axis=axis, descending=descending, stable=stable)
    return recorded.take_order(x, order, axis=axis)


_sort = op(
    "sort", flops=0,
    cpu=_sort_cpu, gpu=_sort_gpu, backward=None, tangent=None, composed=_composed_sort,
    batch=unchanged,
    samples=_samples(distinct, False, True),
    reference=lambda torch, x, axis, descending, stable: torch.sort(
        x, dim=axis, descending=descending, stable=stable).values,
)


@takes_arrays
def sort(
    x: Tensor, /, axis: int = -1, *, descending: bool = False, stable: bool = True,
    dim: int | None = None,
) -> Tensor:
    """x sorted along `axis`: a copy. NaN counts as the largest.

    PyTorch gives the indices, too: `argsort` has them.

    `stable`: equal elements (0.0 and -0.0) stay in their order, descending too. Where a gradient is
    due the order is made and saved (int64), and the gradient scattered by it.

    Raises AxisError for an axis not there.
    """
    if dim is not None:
        refuse_pair("sort", dim)
    return along_one(partial(_sort, descending=descending, stable=stable), x, axis, "sort")


# -- the largest or smallest few -------------------------------------------------------------------


def _top(x: Array, k: int, largest: bool, ordered: bool) -> Array:
    """Places of the k extreme elements along the last axis; k is at least 1."""
    n = x.shape[-1]
    if k == n:
        places = x.argsort(axis=-1, kind="stable")
        return places[..., ::-1] if largest else places
    split = n - k if largest else k - 1
    places = x.argpartition(split, axis=-1)
    places = places[..., split:] if largest else places[..., :k]
    if not ordered:
        return places
    order = np.take_along_axis(x, places, -1).argsort(axis=-1, kind="stable")
    return np.take_along_axis(places, order[..., ::-1] if largest else order, -1)


def _topk_cpu(
    x: Array, *, k: int, axis: int, largest: bool, ordered: bool, out: Array | None = None
) -> Array:
    if out is None:
        out = host().empty(resized(x.shape, axis, k), _INT64, "topk")
    rows, result = np.moveaxis(x, axis, -1), np.moveaxis(out, axis, -1)
    if out.size:
        for tile in row_tiles(rows.shape):
            result[tile] = _top(sortable(rows[tile]), k, largest, ordered)
    return out


def _topk_gpu(
    x: Array, *, k: int, axis: int, largest: bool, ordered: bool, out: Array | None = None
) -> Array:
    order = _argsort_gpu(x, axis=axis, descending=largest, stable=True)
    places = order[along(axis, None, k)]
    if out is None:
        return cupy().ascontiguousarray(places)
    out[...] = places
    return out


topk_order = op(
    "topk_order", flops=0, cpu=_topk_cpu, gpu=_topk_gpu, backward=None, tangent=zero_tangent,
    batch=unchanged,
    samples=[Sample((s,), distinct, {"k": k, "axis": a, "largest": b, "ordered": True})
             for s, a, k in (*_ORDERS, ((4,), -1, 0)) for b in (True, False)],
    reference=lambda torch, x, k, axis, largest, ordered: torch.topk(
        x, k, dim=axis, largest=largest, sorted=ordered).indices,
    doc="The places of the k largest or smallest elements along `axis`, int64. A row beyond a tile "
        "needs as many indices as it has elements.",
)


@takes_arrays
def topk(x: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> TopK:
    """The k largest (or smallest) elements along `dim`: named tuple (values, indices).

    By value if `sorted`, else in any order; NaN counts as the largest. Gradients flow through the
    values. As PyTorch's.

    Raises ValueError for a dim not there, or a k that is negative or larger than its size.
    """
    if lone(dim, x.ndim):
        values, indices = topk(reshape(x, (1,)), k, 0)
        return TopK(reshape(values, (k,) * (k != 1)), reshape(indices, (k,) * (k != 1)))
    axis = from_end(axis_index(dim, x.ndim, "topk"), x.ndim)
    if not 0 <= k <= x.shape[axis]:
        raise ValueError(f"topk was given k={k} for a tensor of shape {x.shape}; wanted 0 to "
                         f"{x.shape[axis]}, the size of dim {dim}")
    indices = topk_order(x, k=k, axis=axis, largest=bool(largest), ordered=bool(sorted))
    return TopK(take_order(x, indices, axis=axis), indices)

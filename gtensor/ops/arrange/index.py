"""Indexing: slices are views, index arrays gather; their adjoints scatter back."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from gtensor.engine.handle.tensor import Tensor
from gtensor.engine.run.call_text import short_view
from gtensor.engine.tape.op import op
from gtensor.engine.tape.samples import Sample
from gtensor.ops.arrange.example_keys import gather_batch, scatter_batch
from gtensor.ops.arrange.index_keys import (
    BOUNDS,
    PLAIN,
    PLAIN_KEY,
    Key,
    described,
    filled,
    normalized,
    refuse_places,
    rows_of,
    sample,
)
from gtensor.ops.arrange.scatter import added
from gtensor.ops.arrange.shape import axis_index, first_tangent, linear_tangent
from gtensor.ops.define.arguments import takes_arrays
from gtensor.ops.define.batching import whole_axis_first
from gtensor.ops.define.path_builders import placed, settled
from gtensor.settings import settings

if TYPE_CHECKING:
    from gtensor.backend import Device
    from gtensor.backend.typing import Array
    from gtensor.engine.handle.namespaces import Namespace
    from gtensor.engine.walk.typing import Step

__all__ = ["take"]

METHODS = ("get_item",)


# -- basic keys: a view, and its adjoint -----------------------------------------------------------


def _slice_path(x: Array, *, key: Key, out: Array | None = None) -> Array:
    if out is None:
        if not any(k is ... for k in key):
            key = (*key, ...)  # so NumPy returns a view also for a single element
        return x[key]
    out[...] = x[key]
    return out


def _slice_backward(ns: Namespace, step: Step, g: Array) -> None:
    """Into the slot's own buffer where there is one: slices of one tensor share a gradient."""
    buffer, beta = step.into(0)
    shape, key = step.shape(0), step.params["key"]
    step.give(0, ns.unslice(g, key=key, shape=shape, out=buffer, beta=beta))


Cases = tuple[tuple[tuple[int, ...], Key], ...]  # shapes, and keys as NumPy takes them


def _samples(cases: Cases) -> list[Sample]:
    return [sample((shape,), key) for shape, key in cases]


def _adjoint_samples(cases: Cases) -> list[Sample]:
    """Gradients of the shape that each key selects."""
    return [sample((np.empty(shape)[key].shape,), key, shape=shape) for shape, key in cases]


def _reference(torch: Any, x: Any, *indices: Any, key: Key) -> Any:
    return x[filled(key, indices)]


_SLICES: Cases = (
    ((5,), (builtins.slice(1, 4),)),
    ((3, 5), (1, builtins.slice(None, None, 2))),
    ((3, 5), (..., None, 2)),
    ((4,), (builtins.slice(2, 2),)),
    ((4,), (3,)),
)

slice = op(
    "slice", flops=0, cpu=_slice_path, gpu=_slice_path, view=True, complex=True,
    backward=_slice_backward, tangent=linear_tangent("slice"),
    batch=whole_axis_first,
    samples=_samples(_SLICES), reference=_reference,
    doc="x[key] for integers, slices, None and an ellipsis: a view.",
)


def _unslice_path(
    device: Device, g: Array, *, key: Key, shape: tuple[int, ...], out: Array | None = None,
    beta: float = 0.0
) -> Array:
    if out is None or not beta:
        out = device.empty(shape, g.dtype, "unslice") if out is None else out
        out[...] = 0
        out[key] = g
    else:
        out[key] += g
    return out


unslice = op(
    "unslice", flops=0, **placed(_unslice_path), complex=True,
    backward=lambda ns, step, g: step.give(0, ns.slice(g, key=step.params["key"])),
    tangent=linear_tangent("unslice"), batch=whole_axis_first,
    samples=_adjoint_samples(_SLICES),
    doc="Zeros of `shape` with g at `key`: the adjoint of slice.",
)


# -- index arrays: a copy, and its adjoint ---------------------------------------------------------


def _gather_path(
    device: Device, x: Array, *indices: Array, key: Key, out: Array | None = None
) -> Array:
    if out is None and len(key) == len(indices) == 1 and device.type == "cpu":
        places = indices[0]  # of the first axis: most often few
        if places.dtype.kind == "i" and places.ndim and x.ndim and (
                x.nbytes * places.size < settings.arena_min_bytes * max(1, len(x))):
            return x[places]
    key = filled(key, indices)
    refuse_places(device, key, x.shape)
    rows = rows_of(x, key)
    if rows is not None:
        source, places = rows
        if out is None:
            out = device.empty((places.size, *source.shape[1:]), x.dtype, "gather")
        return np.take(source, places, axis=0, out=out, mode="clip")  # "raise" would buffer `out`
    axis = _lone_axis(x, key)
    return settled(x[key], out) if axis is None else _take(device, x, key, axis, out)


def _lone_axis(x: Array, key: Key) -> int | None:
    """The axis that a host array of integers indexes alone, where NumPy's take copies no x."""
    parts = key[:-1] if key[-1] is ... else key
    others = [i for i, p in enumerate(parts)
              if not isinstance(p, builtins.slice) or p != builtins.slice(None)]
    if len(others) != 1 or len(parts) > x.ndim or not x.flags.c_contiguous:
        return None
    places = parts[others[0]]
    whole = isinstance(places, np.ndarray) and places.ndim and places.dtype.kind == "i"
    return others[0] if whole else None


def _take(device: Device, x: Array, key: Key, axis: int, out: Array | None) -> Array:
    """The slices at places along an axis. Raises IndexError for one out of range."""
    places, size = key[axis], x.shape[axis]
    shape = (*x.shape[:axis], *places.shape, *x.shape[axis + 1:])
    if out is None:
        if prod(shape) * x.itemsize < settings.arena_min_bytes:
            return x[key]
        out = device.empty(shape, x.dtype, "gather")
    if places.size:
        low, high = places.min(), places.max()
        if low < -size or high >= size:
            raise IndexError(f"index {low if low < -size else high} is out of bounds for axis "
                             f"{axis} with size {size}")
    return np.take(x, places, axis=axis, out=out, mode="wrap")  # "raise" would buffer `out`


def _gather_backward(ns: Namespace, step: Step, g: Array) -> None:
    buffer, beta = step.into(0)
    step.give(0, ns.scatter_add(
        g, *step.saved, key=step.params["key"], shape=step.shape(0), out=buffer, beta=beta))


_GATHERS: Cases = (
    ((5,), (np.array([0, 3, 3, -1]),)),
    ((3, 5), (np.array([[0, 2], [1, 1]]), np.array([4, 0]))),
    ((3, 5), (builtins.slice(None), np.array([1, 1, 2]))),
    ((3, 2), (np.zeros(0, np.int64),)),
    ((4, 9), (np.array([2, 0, -2]),)),
    ((2, 3, 4), (np.array([1, 1]), builtins.slice(None), 2)),
    # as many in every row: opcheck also gives the first for all of them
    ((2, 3, 2), (np.array([[True, False, True], [False, True, True]]),)),
    ((3,), (np.array(True), ...)),
)
_MASKED = ((2, 3), (builtins.slice(None), np.array([True, False, True])))

gather = op(
    "gather", flops=0, inputs="x indices", variadic=True, **placed(_gather_path), complex=True,
    saves={"x": "indices"}, backward=_gather_backward, tangent=first_tangent("gather"),
    batch=gather_batch,
    samples=_samples((*_GATHERS, _MASKED)), reference=_reference,
    doc="x[key] where the key holds integer or boolean arrays: a copy. The arrays are the further "
        "inputs; in `key` the word 'array' stands for each.",
)


def _scatter_add_path(
    device: Device, g: Array, *indices: Array, key: Key, shape: tuple[int, ...],
    out: Array | None = None, beta: float = 0.0,
) -> Array:
    return added(device, g, filled(key, indices), shape, "scatter_add", out, beta)


scatter_add = op(
    "scatter_add", flops=0,
    inputs="g indices", variadic=True, **placed(_scatter_add_path), complex=True,
    saves={"g": "indices"},
    backward=lambda ns, step, g: step.give(0, ns.gather(g, *step.saved, key=step.params["key"])),
    tangent=first_tangent("scatter_add"), batch=scatter_batch,
    samples=_adjoint_samples(_GATHERS),
    doc="Zeros of `shape` with g added at `key`, repeated places summed: the adjoint of gather. "
        "Half types are summed in a float32 copy of the output. On a GPU repeated places are "
        "summed by atomics, or with GTENSOR_REPEATABLE=1 in one order.",
)


# -- public ----------------------------------------------------------------------------------------


def get_item(x: Tensor, key: object) -> Tensor:
    """x[key]: a view for integers, slices, None and an ellipsis; a copy where the key holds arrays.

    Integer arrays, boolean masks (of all axes or some), lists and tensors mix with the rest by
    NumPy's rules. Raises IndexError as NumPy does, with the shape and the key.

    On a GPU the range of index arrays is not checked, since that would wait, and an index out of it
    selects any element; GTENSOR_DEBUG=1 checks it.

    On a GPU the gradient sums up repeated indices by atomics; GTENSOR_REPEATABLE=1 makes its bits
    repeat.
    """
    parts, indices = normalized(x, key, x.requires_grad)
    return _selected(x, parts, indices, key)


SHORT = {"__getitem__": short_view(
    slice, f"{PLAIN_KEY}    out = a1[parts if ... in parts else (*parts, ...)]", "{'key': parts}",
    PLAIN=PLAIN, BOUNDS=BOUNDS)}


def _selected(x: Tensor, parts: Key, indices: tuple[Tensor, ...], key: object) -> Tensor:
    """x at a normalized key; `key` is the user's."""
    try:
        return gather(x, *indices, key=parts) if indices else slice(x, key=parts)
    except IndexError as error:
        raise IndexError(f"{described(key, x.shape)}: {error}") from None


@takes_arrays
def take(
    x: Tensor, indices: int | Sequence[int] | Array | Tensor, /, axis: int | None = None
) -> Tensor:
    """The slices of x along `axis` at integer `indices`, of any shape; negative ones from the end.

    Raises ValueError if no axis is given for a tensor of several (which PyTorch flattens),
    IndexError for an index that is out of range.

    On a GPU the range is not checked, since that would wait, and such an index selects any slice;
    GTENSOR_DEBUG=1 checks it.

    On a GPU the gradient sums up repeated indices by atomics; GTENSOR_REPEATABLE=1 makes its bits
    repeat.
    """
    if axis is None and x.ndim != 1:
        raise ValueError(f"take of a tensor of shape {x.shape} without an axis; wanted one")
    place = axis_index(0 if axis is None else axis, x.ndim, "take")
    key = (builtins.slice(None),) * place + (indices,)
    parts, arrays = normalized(x, key, x.requires_grad)
    if any(a.dtype == np.bool_ for a in arrays):
        raise IndexError("take with boolean indices; wanted integers")
    return _selected(x, parts, arrays, key)

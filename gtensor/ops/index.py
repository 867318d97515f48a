"""Indexing: slices are views, index arrays gather; their adjoints scatter back."""

from __future__ import annotations

import builtins
from types import EllipsisType
from typing import Any

import numpy as np

from gtensor.backend import device_of
from gtensor.core.inplace import write, written_back
from gtensor.core.modes import STATE
from gtensor.core.op import op
from gtensor.core.samples import Sample, normal
from gtensor.core.tensor import Tensor
from gtensor.ops.shape import linear_tangent

__all__ = ["take"]

METHODS = ("get_item", "set_item")
Key = tuple[Any, ...]
_BASIC = (int, np.integer, builtins.slice, type(None), EllipsisType)


# -- basic keys: a view, and its adjoint -----------------------------------------------------------


def _slice_path(x: Any, *, key: Key, out: Any = None) -> Any:
    if out is None:
        if not any(k is ... for k in key):
            key = (*key, ...)  # so NumPy answers a view for a single element, too
        return x[key]
    out[...] = x[key]
    return out


def _slice_backward(ns: Any, step: Any, g: Any) -> None:
    """Into the slot's own buffer where there is one: slices of one tensor share a gradient."""
    buffer, beta = step.into(0)
    shape, key = step.shape(0), step.params["key"]
    step.give(0, ns.unslice(g, key=key, shape=shape, out=buffer, beta=beta))


def adjoint_samples(samples: list[Sample]) -> list[Sample]:
    """Gradients of the shape that each key selects."""
    found = []
    for sample in samples:
        shape = sample.shapes[0] or ()
        selected = np.empty(shape)[sample.params["key"]].shape
        found.append(Sample((selected,), normal, {**sample.params, "shape": shape}))
    return found


def _slice_reference(torch: Any, x: Any, key: Key) -> Any:
    return x[key]


_SLICES = [
    Sample(((5,),), normal, {"key": (builtins.slice(1, 4),)}),
    Sample(((3, 5),), normal, {"key": (1, builtins.slice(None, None, 2))}),
    Sample(((3, 5),), normal, {"key": (..., None, 2)}),
    Sample(((4,),), normal, {"key": (builtins.slice(2, 2),)}),
    Sample(((4,),), normal, {"key": (3,)}),
]

slice = op(
    "slice", cpu=_slice_path, gpu=_slice_path, view=True,
    backward=_slice_backward, tangent=linear_tangent("slice"),
    samples=_SLICES, reference=_slice_reference,
    doc="x[key] for integers, slices, None and an ellipsis: a view.",
)


def _unslice_path(
    g: Any, *, key: Key, shape: tuple[int, ...], out: Any = None, beta: float = 0.0
) -> Any:
    if out is None or not beta:
        out = device_of(g).empty(shape, g.dtype, "unslice") if out is None else out
        out[...] = 0
        out[key] = g
    else:
        out[key] += g
    return out


unslice = op(
    "unslice", cpu=_unslice_path, gpu=_unslice_path,
    backward=lambda ns, step, g: step.give(0, ns.slice(g, key=step.params["key"])),
    tangent=linear_tangent("unslice"),
    samples=adjoint_samples(_SLICES),
    doc="Zeros of `shape` with g at `key`: the adjoint of slice.",
)


# -- index arrays: a copy, and its adjoint ---------------------------------------------------------


def _gather_path(x: Any, *, key: Key, out: Any = None) -> Any:
    picked = x[key]
    if out is None:
        return picked
    out[...] = picked
    return out


def _gather_backward(ns: Any, step: Any, g: Any) -> None:
    buffer, beta = step.into(0)
    shape, key = step.shape(0), step.params["key"]
    step.give(0, ns.scatter_add(g, key=key, shape=shape, out=buffer, beta=beta))


_GATHERS = [
    Sample(((5,),), normal, {"key": (np.array([0, 3, 3, -1]),)}),
    Sample(((3, 5),), normal, {"key": (np.array([[0, 2], [1, 1]]), np.array([4, 0]))}),
    Sample(((3, 5),), normal, {"key": (builtins.slice(None), np.array([1, 1, 2]))}),
    Sample(((3, 2),), normal, {"key": (np.zeros(0, np.int64),)}),
]

gather = op(
    "gather", cpu=_gather_path, gpu=_gather_path,
    backward=_gather_backward, tangent=linear_tangent("gather"),
    samples=_GATHERS, reference=_slice_reference,
    doc="x[key] where the key holds integer arrays: a copy.",
)


def _scatter_add_path(
    g: Any, *, key: Key, shape: tuple[int, ...], out: Any = None, beta: float = 0.0
) -> Any:
    device = device_of(g)
    if out is None or not beta:
        out = device.empty(shape, g.dtype, "scatter_add") if out is None else out
        out[...] = 0
    if g.dtype.itemsize > 2:
        device.xp.add.at(out, key, g)
        return out
    wide = device.copy(out, np.float32, "workspace")  # repeats of half types are added wide
    device.xp.add.at(wide, key, g.astype(np.float32))
    out[...] = wide
    return out


scatter_add = op(
    "scatter_add", cpu=_scatter_add_path, gpu=_scatter_add_path,
    backward=lambda ns, step, g: step.give(0, ns.gather(g, key=step.params["key"])),
    tangent=linear_tangent("scatter_add"),
    samples=adjoint_samples(_GATHERS),
    doc="Zeros of `shape` with g added at `key`, repeated places summed: the adjoint of gather.",
)


def get_item(x: Tensor, key: Any) -> Tensor:
    """x[key]: a view for integers, slices, None and an ellipsis; a copy where the key holds arrays.

    Raises IndexError as NumPy does, naming the shape and the key.
    """
    parts, basic = _normalize(x, key, x.requires_grad)
    try:
        return slice(x, key=parts) if basic else gather(x, key=parts)
    except IndexError as error:
        raise IndexError(f"index {key!r} of a tensor of shape {x.shape}: {error}") from None


def take(x: Tensor, indices: Any, axis: int = 0) -> Tensor:
    """The slices of x along `axis` at integer `indices`, of any shape."""
    if not -x.ndim <= axis < x.ndim:
        raise ValueError(f"take along axis {axis} of a tensor of {x.ndim} dimensions")
    index = _index_array(x, indices, copy=False)
    return get_item(x, (builtins.slice(None),) * (axis % x.ndim) + (index,))


def _normalize(x: Tensor, key: Any, recorded: bool) -> tuple[Key, bool]:
    """The key as a tuple of raw parts, and whether it is basic.

    Index arrays of a recorded op are copied: its backward needs them as they are now.
    """
    parts = key if isinstance(key, tuple) else (key,)
    if all(isinstance(p, _BASIC) and not isinstance(p, bool) for p in parts):
        return parts, True
    found: list[Any] = []
    for part in parts:
        if isinstance(part, _BASIC) and not isinstance(part, bool):
            found.append(part)
        else:
            array = _index_array(x, part, recorded)
            found += array.nonzero() if array.dtype.kind == "b" and array.ndim else [array]
    return tuple(found), False


def _index_array(x: Tensor, part: Any, copy: bool) -> Any:
    """An index as an array of x's device."""
    array = part._array if isinstance(part, Tensor) else part
    if not isinstance(array, x.device.array_type):
        array = np.asarray(array)
        array = x.device.from_numpy(array.astype(np.int64) if array.size == 0 else array)
    if array.dtype.kind not in "iub":
        raise IndexError(f"an index of dtype {array.dtype} given; wanted integers or booleans")
    return array.copy() if copy and STATE.grad_enabled else array


# -- writing at a key ------------------------------------------------------------------------------


def _set_item_path(x: Any, value: Any, *, key: Key, out: Any = None) -> Any:
    if out is None:
        out = device_of(x).copy(x, label="set_item")
    elif out is not x:
        out[...] = x
    out[key] = value
    return out


def _set_item_backward(ns: Any, step: Any, g: Any) -> None:
    key = step.params["key"]
    if step.needs(1):
        step.give(1, ns.clone(ns.gather(g, key=key)))
    if step.needs(0):
        step.give(0, ns.set_item(g, 0.0, key=key, out=step.reuse(g)))


def _set_item_tangent(
    ns: Any, primals: Any, tangents: Any, out: Any, params: dict[str, Any]
) -> Any:
    dx, dvalue = tangents
    dx = ns.multiply(primals[0], 0) if dx is None else dx
    return ns.set_item(dx, 0.0 if dvalue is None else dvalue, **params)


set_item_op = op(
    "set_item", cpu=_set_item_path, gpu=_set_item_path,
    backward=_set_item_backward, tangent=_set_item_tangent,
    samples=[Sample(((5,), (3,)), normal, {"key": (builtins.slice(1, 4),)}),
             Sample(((3, 5), ()), normal, {"key": (1,)}),
             Sample(((3, 5), (5,)), normal, {"key": (np.array([0, 2]),)})],
    doc="x with `value` at `key`; in place through x[key] = value.",
)


def set_item(x: Tensor, key: Any, value: Any) -> None:
    """x[key] = value in x's memory; recorded. Raises before writing if shape or dtype is wrong."""
    tracked = x.requires_grad or (isinstance(value, Tensor) and value.requires_grad)
    parts, _ = _normalize(x, key, tracked)
    part = x._array[parts]
    target = part.shape
    source = value._array if isinstance(value, Tensor) else value
    shape = np.shape(source)
    try:
        fits = np.broadcast_shapes(shape, target) == target
    except ValueError:
        fits = False
    if not fits:
        raise ValueError(f"x[key] = value with a value of shape {shape} where the key selects "
                         f"shape {target}")
    kind = np.result_type(source) if x.dtype.kind != "V" else x.dtype
    if not isinstance(value, (bool, int, float)) and not np.can_cast(kind, x.dtype, "same_kind"):
        raise TypeError(f"x[key] = value with a value of dtype {kind} into dtype {x.dtype}; "
                        "convert it with astype() first")
    params = {"key": parts}
    if not isinstance(value, Tensor) or not written_back(set_item_op, x, part, value, params):
        write(set_item_op, x, value, params)

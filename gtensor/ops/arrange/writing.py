"""Writing in place: the operators by the name of their op, and x[key] = value."""

from __future__ import annotations

from math import isfinite, prod
from typing import TYPE_CHECKING, Any

import numpy as np

from gtensor.engine.handle.interchange import given_values
from gtensor.engine.handle.namespaces import recorded
from gtensor.engine.handle.tensor import Tensor
from gtensor.engine.run import in_place, writable
from gtensor.engine.run.bind import INTEGERS
from gtensor.engine.run.call_text import short_write
from gtensor.engine.tape.levels import Traced
from gtensor.engine.tape.op import Op, op, registry
from gtensor.ops.arrange.example_keys import last_batch, set_batch
from gtensor.ops.arrange.index_keys import (
    BOUNDS,
    PLAIN,
    PLAIN_KEY,
    Key,
    Selection,
    described,
    filled,
    normalized,
    refuse_places,
    rows_of,
    sample,
    selected_shape,
    unique,
)
from gtensor.ops.arrange.shape import reshape
from gtensor.ops.define.path_builders import placed, settled
from gtensor.ops.define.pointwise import zero_tangent
from gtensor.system.written_code import entrance

if TYPE_CHECKING:
    from collections.abc import Callable

    from gtensor.backend import Device
    from gtensor.backend.typing import Array, Params, Scalar
    from gtensor.engine.handle.namespaces import Namespace
    from gtensor.engine.handle.tensor import Operand
    from gtensor.engine.walk.typing import Step, Values

__all__: list[str] = []

METHODS = ("assign", "set_item")
RECORDS = {"pow": "power"}  # operators whose op has another name


def assign(name: str, target: Tensor, other: Operand) -> Tensor:
    """target = op(target, other) in target's memory."""
    return in_place.assign(registry[RECORDS.get(name, name)], target, other)


def overwrite(function: Callable[..., Tensor], target: Tensor, *args: Any, **params: Any) -> Tensor:
    """target = function(target, ...), of the same shape and dtype: the handle is the result.

    This is the in-place form of a function. One op of one input writes the target's memory or
    moves the handle (`in_place.overwrite`). Of any other function the result comes first, and the
    handle moves to its memory unless the target's is shared, which is written then. Afterwards the
    handle's values are the same.

    Raises before anything is written, as `x += 1` does: GradientError for a leaf that requires a
    gradient, TypeError for a result of another shape or dtype. Within a transform the handle moves,
    and LevelError is raised for one whose memory others share, as an argument's.
    """
    name = getattr(function, "__name__", "write")
    dtype = in_place.check_target(name, target)
    traced = isinstance(target, Traced)
    if isinstance(function, Op) and not (
            traced or args or dtype.kind == "c" or function.backward is None
            or function.floating and dtype.kind in INTEGERS):
        return in_place.overwrite(function, target, params)
    movable = in_place.may_move(target)
    result = function(target if movable else recorded.clone(target), *args, **params)
    if result.shape != target.shape or result.dtype != target.dtype:
        raise TypeError(f"in-place {name} into shape {target.shape} and dtype {target.dtype}: the "
                        f"result has shape {result.shape} and dtype {result.dtype}; use the form "
                        "that makes a new tensor")
    if result is target:
        return target
    if traced or movable and result._storage is not target._storage:
        return in_place.move(target, result)
    set_item(target, ..., result)
    return target


def in_place_form(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The form of a function that makes its first argument the result."""

    def form(input: Tensor, /, *args: Any, **params: Any) -> Tensor:
        return overwrite(function, input, *args, **params)

    name = function.__name__
    form.__name__, form.__qualname__ = f"{name}_", f"Tensor.{name}_"
    form.__doc__ = f"`{name}` in place: the tensor itself becomes the result, as by `x += 1`."
    form.__wrapped__ = function  # type: ignore[attr-defined]  # whose signature it has
    return entrance(form)


# -- x[key] = value --------------------------------------------------------------------------------


def _set_item_path(
    device: Device, x: Array, value: Array | Scalar, *indices: Array, key: Key,
    out: Array | None = None,
) -> Array:
    key = filled(key, tuple([_in_order(i) for i in indices]))
    if out is None:
        out = device.copy(x, label="set_item")
    elif out is not x:
        out[...] = x
    value = device.assignable(value, out.dtype)
    rows = rows_of(out, key)
    if rows is None:
        out[key] = value
    else:
        target, places = rows
        target[places] = value
    return out


def _in_order(index: Array) -> Array:
    """The index in C order: NumPy writes in the order of an index's memory."""
    if type(index) is not np.ndarray or index.flags.c_contiguous:
        return index
    return index.copy()


def _set_item_gpu(
    device: Device, x: Array, value: Array | Scalar, *indices: Array, key: Key,
    out: Array | None = None,
) -> Array:
    """Equal places get equal values, those of the last write to each: threads write in no order."""
    refuse_places(device, filled(key, indices), x.shape)
    if getattr(value, "ndim", 0) and not unique(indices):
        selected = Selection(filled(key, indices), x.shape)
        first, lead = selected.place, len(selected.lead)
        xp = device.xp
        each = xp.broadcast_to(value, selected.shape)
        rows = each.reshape((*each.shape[:first], prod(selected.lead), *each.shape[first + lead:]))
        _, last = selected.last_writes(xp)
        value = rows.take(last.reshape(-1), axis=first).reshape(each.shape)
    return _set_item_path(device, x, value, *indices, key=key, out=out)


def _last_writes(
    device: Device, *indices: Array, key: Key, shape: tuple[int, ...], out: Array | None = None
) -> Array:
    selected = Selection(filled(key, indices), shape)
    number, last = selected.last_writes(device.xp)
    return settled(selected.along(number == last), out)


def _set_item_backward(ns: Namespace, step: Step, g: Array) -> None:
    """The value gets the gradient of its last writes, x that of all other elements."""
    key, indices = step.params["key"], step.saved
    if step.needs(1):
        if not indices:
            part = ns.slice(g, key=key)
            part = ns.clone(part) if step.needs(0) else part  # g is written below
        else:
            part = ns.gather(g, *indices, key=key)
            if not unique(indices):
                last = ns.last_writes(*indices, key=key, shape=g.shape)
                part = ns.where(last, part, 0.0)
        step.give(1, part)
    if step.needs(0):
        step.give(0, ns.set_item(g, 0.0, *indices, key=key, out=step.reuse(g)))


def _set_item_tangent(
    ns: Namespace, primals: Values, tangents: Values, out: Array, params: Params
) -> Array:
    dx, dvalue, *_ = tangents
    dx = ns.zero_gradient(primals[0]) if dx is None else dx
    return ns.set_item(dx, 0.0 if dvalue is None else dvalue, *primals[2:], **params)


_REPEATED = (((4, 3), (np.array([0, 2, 0, 3, 2]),)),
             ((2, 3, 3), (slice(None), np.array([0, 0, 1]), slice(1, None), None)))

last_writes = op(
    "last_writes", flops=0, inputs="indices", variadic=True, **placed(_last_writes),
    backward=None, tangent=zero_tangent, batch=last_batch,
    samples=[sample((), key, shape=shape) for shape, key in _REPEATED],
    doc="Whether a write x[key] = value is the last one to its place in an x of `shape`; the "
        "result broadcasts against x[key].",
)

set_item_op = op(
    "set_item", flops=0, inputs="x value indices", variadic=True,
    **placed(_set_item_path, _set_item_gpu), complex=True,
    saves={"x": "indices", "value": "indices"},
    backward=_set_item_backward, tangent=_set_item_tangent, batch=set_batch,
    samples=[sample(((5,), (3,)), (slice(1, 4),)),
             sample(((3, 5), ()), (1,)),
             sample(((3, 5), (5,)), (np.array([0, 2]),)),
             *(sample((shape, of), key)
               for (shape, key), of in zip(_REPEATED, ((5, 3), (3, 2, 1)), strict=True)),
             sample(((2, 3), (4,)), (np.array([[True, False, True], [False, True, True]]),))],
    doc="x with `value` at `key`, the last one where places repeat; in place by x[key] = value.",
)


def set_item(x: Tensor, key: object, value: Operand) -> None:
    """x[key] = value in x's memory; recorded. The last value stays where the key repeats a place.

    Raises before anything is written: IndexError for the key, ValueError for the value's shape,
    TypeError for its dtype.

    On a GPU the range of index arrays is not checked, since that would wait, and an index out of it
    overwrites any element of x; GTENSOR_DEBUG=1 checks it.
    """
    writable.refuse_traced(x, "x[key] = value")
    tracked = x.requires_grad or (isinstance(value, Tensor) and value.requires_grad)
    parts, indices = normalized(x, key, tracked)
    given = given_values(value, x.device, "x[key] = value")
    try:
        part, target = _selected(x, parts, indices, np.ndim(_raw(given)) == 0)
        values = given if target is None else fitted(given, target, "x[key] = value")
        _write(x, parts, indices, part, values)
    except IndexError as error:
        raise IndexError(f"{described(key, x.shape)}: {error}") from None


SHORT = {"__setitem__": short_write(
    set_item_op, f"{PLAIN_KEY}    refused = 0 in a1.strides", "a1[parts] = a2", value="value",
    number="value", sized="a2", PLAIN=PLAIN, BOUNDS=BOUNDS)}


def _write(
    x: Tensor, key: Key, indices: tuple[Tensor, ...], part: Array | None,
    value: Tensor | Array | Scalar,
) -> None:
    """x[key] = value for a value of a shape that fits; `part` is x[key] if that is a view."""
    value = taken(x, value, "x[key] = value")
    params = {"key": key}
    if part is None or not isinstance(value, Tensor) or not in_place.written_back(
            set_item_op, x, part, value, params):
        in_place.write(set_item_op, x, value, params, indices)


def taken(x: Tensor, value: Any, what: str) -> Any:
    """A value that is to be written into x. Raises TypeError if that would lose a part of it."""
    kind = value.dtype if isinstance(value, Tensor) else np.result_type(value)
    if x.dtype.kind == "V" and kind.kind != "c":  # ml_dtypes: any real value goes in
        kind = x.dtype
    loses_parts = kind.kind == "c" and x.dtype.kind != "c"
    number = isinstance(value, (bool, int, float))
    if loses_parts or not number and not np.can_cast(kind, x.dtype, "same_kind"):
        raise TypeError(f"{what} with a value of dtype {kind} into dtype {x.dtype}; "
                        "convert it with astype() first")
    if isinstance(value, float) and not isfinite(value) and x.dtype.kind in "iu":
        raise TypeError(f"{what} with the value {value} into dtype {x.dtype}; wanted a finite one")
    if isinstance(value, float) and x.dtype.kind in INTEGERS:  # with it an op would promote x
        value = bool(value) if x.dtype.kind == "b" else int(value)
    return value


def _raw(value: Tensor | Array | Scalar) -> Array | Scalar:
    return value._array if isinstance(value, Tensor) else value


def _selected(
    x: Tensor, key: Key, indices: tuple[Tensor, ...], single: bool
) -> tuple[Array | None, tuple[int, ...] | None]:
    """The part of x that a key without index arrays selects, and the selection's shape.

    The shape is None for a `single` value, which fits any; on a GPU, counting a mask would wait.
    """
    if not indices:
        part = x._array[(*key, ...) if not any(p is ... for p in key) else key]
        return part, part.shape
    if single:
        return None, None
    return None, selected_shape(filled(key, tuple(i._array for i in indices)), x.shape)


def fitted(value: Any, target: tuple[int, ...], what: str) -> Any:
    """The value without leading axes of size 1 that the selection lacks, as NumPy allows."""
    shape = np.shape(_raw(value))
    extra = max(0, len(shape) - len(target))
    try:
        fits = (prod(shape[:extra]) == 1
                and np.broadcast_shapes(shape[extra:], target) == target)
    except ValueError:
        fits = False
    if not fits:
        raise ValueError(f"{what} with a value of shape {shape} where the key selects "
                         f"shape {target}; wanted a shape that broadcasts to it")
    if not extra:
        return value
    return (reshape(value, shape[extra:]) if isinstance(value, Tensor)
            else value.reshape(shape[extra:]))

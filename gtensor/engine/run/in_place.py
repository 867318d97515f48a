"""In-place writes: `y += x`, `y[key] = x`, `relu_(y)`. The handle stays, and is the result.

Its memory is written and the storage's version increased. `overwrite` moves the handle to new
memory instead where only records read the old one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gtensor.backend import DEFAULTS
from gtensor.engine.handle.arrays import layout
from gtensor.engine.handle.context import grad_enabled
from gtensor.engine.handle.errors import GradientError
from gtensor.engine.handle.interchange import given_values
from gtensor.engine.handle.node import Leaf, Node
from gtensor.engine.handle.tensor import Tensor
from gtensor.engine.run.bind import INTEGERS, bind, saves
from gtensor.engine.run.take_over import recording
from gtensor.engine.run.writable import (
    check_writable,
    count_write,
    overlapping,
    refuse_traced,
    same_layout,
)
from gtensor.engine.tape.execute import execute, run_noted
from gtensor.engine.tape.levels import Traced, underlying
from gtensor.engine.tape.op import Op
from gtensor.engine.tape.record import Record, new_record
from gtensor.settings import settings
from gtensor.system.bus import ListenerError, bus, here

if TYPE_CHECKING:

    from gtensor.backend import Device
    from gtensor.backend.typing import Array, Params, Scalar
    from gtensor.engine.handle.tensor import Operand


def assign(op: Op, target: Tensor, other: Operand) -> Tensor:
    """target = op(target, other) elementwise, in target's memory, shape and dtype.

    Raises before anything is written: GradientError for a leaf that requires a
    gradient, DeviceError, ValueError if the result has another shape, TypeError if its
    dtype cannot be cast to target's.
    """
    refuse_traced(target, f"in-place {op.name}")
    array = target._array
    given = given_values(other, target._device, f"in-place {op.name}")
    value = given._array if isinstance(given, Tensor) else given
    _refuse_other_shape(op.name, array.shape, np.shape(value))
    result = _result_dtype(op, array, value)
    loses_parts = result.kind == "c" and array.dtype.kind != "c"  # ml_dtypes would drop them
    if loses_parts or not np.can_cast(result, array.dtype, "same_kind"):
        raise TypeError(f"in-place {op.name} of dtype {np.result_type(value)} into dtype "
                        f"{array.dtype}: the result has dtype {result}; convert with astype() "
                        "first")
    return write(op, target, given, {})


def _refuse_other_shape(name: str, target: tuple[int, ...], given: tuple[int, ...]) -> None:
    """Raise ValueError unless the target's shape is that to which both broadcast."""
    try:
        fits = np.broadcast_shapes(target, given) == target
    except ValueError:
        fits = False
    if not fits:
        raise ValueError(f"in-place {name} of shape {given} into shape {target}; wanted a shape "
                         "that broadcasts to the latter")


def _result_dtype(op: Op, array: Array, value: Array | Scalar) -> np.dtype:
    """The dtype of op(array, value)."""
    if array.dtype.kind == "V":  # with which NumPy would promote a number as float64
        given = np.result_type(value)
        return given if given.kind == "c" else array.dtype
    result = np.result_type(array, value)
    if array.dtype.kind in INTEGERS and (
            type(value) in (float, complex) or op.floating and result.kind in INTEGERS):
        return DEFAULTS["c" if result.kind == "c" else "f"]
    return result


def overwrite(op: Op, target: Tensor, params: Params) -> Tensor:
    """target = op(target), for a target that `check_target` accepted: the handle is the result.

    Its memory is written, as by `assign`. But where only records read the old values, because an
    earlier op saved them or this one's rule needs them, the handle gets new memory, and they keep
    the old.
    """
    needed = recording(target) and 0 in op.plan(1, 1)
    if (needed or target._storage.saved) and may_move(target):
        return move(target, op(target, **params))
    return bind(op, (target,), params, _into_first)


def check_target(name: str, target: Tensor) -> np.dtype:
    """The dtype of a tensor that an op is to overwrite; raises for one that must not be."""
    if not isinstance(target, Tensor):
        raise TypeError(f"in-place {name} was given {type(target).__name__}; wanted a Tensor")
    target._current_node(f"in-place {name}")
    _refuse_leaf(name, target, recording(target))
    if not isinstance(target, Traced):
        check_writable(name, target._array)
    elif not may_move(target):
        refuse_traced(target, f"in-place {name}")
    return target.dtype


def may_move(x: Tensor) -> bool:
    """Whether nothing but records and this handle can read its memory, so that it may leave it.

    Replays of graphs are others. Within a transform it is the memory behind it, which the
    function's arguments share with the caller.
    """
    x = underlying(x)
    storage = x._storage
    return storage.made and not (storage.exported or storage.leaf or storage.shared_beside(x)
                                 or x._device.in_graphs(x._array))


def move(target: Tensor, result: Tensor) -> Tensor:
    """Let the handle be a result that no other code has, in that one's memory."""
    if isinstance(target, Traced):
        return target.become(result)
    before, storage = target._storage, result._storage
    if storage.handles is not None:
        storage.join(target)
    if result._node is not None:
        _replace_node(target, result._node)
    # stores: from the node's on
    target._array, target._storage, target._version = result._array, storage, storage.version
    before.part(target)
    return target


def write(
    op: Op, target: Tensor, value: Tensor | Array | Scalar, params: Params,
    indices: tuple[Tensor, ...] = (), others: tuple[Tensor, ...] = (),
) -> Tensor:
    """Overwrite `target` with op(target, value, *indices); the caller has checked shapes, dtypes.

    The indices are inputs that get no gradient. The path overwrites the `others`, too, which it is
    given as `state`; nothing is recorded of them.
    """
    if others:
        for other in others:  # first: an interrupt may come during or after the write
            count_write(other)
        params = {**params, "state": tuple([other._array for other in others])}
    return bind(op, (target, value, *indices), params, _into_first)


def _into_first(
    op: Op, inputs: tuple[Any, ...], params: Params, arrays: list[Any],
    parents: tuple[Node | None, ...], mask: int, device: Device,
) -> Tensor:
    """The output in the first input's memory; the handle of that input is the result."""
    target, *others = inputs
    value = others[0] if others else None
    tracked = mask != 0 and grad_enabled()
    _refuse_leaf(op.name, target, tracked)
    if 0 in arrays[0].strides or not getattr(arrays[0].flags, "writeable", True):
        check_writable(op.name, arrays[0])
    kept: tuple[Any, Any] = (arrays[0], value)  # the operands that the backward rule may save
    if tracked:
        kept = _kept_values(op, mask, arrays, value, device)
    storage, writer = target._storage, id(target._array)
    if storage.common:
        storage = target._own_storage()
    refused, heard_error = False, None
    try:
        _write_over(op, device, arrays, params)
    except (IndexError, TypeError, ValueError):  # a path raises these before it writes
        refused = True
        raise
    except ListenerError as error:  # the path has written, so the write must be recorded
        heard_error = error
    finally:  # an interrupt, or another error, may come during or after the write
        if not refused:
            storage.version += 1
            storage.writer = writer
            target._version = storage.version
            if bus.listeners and here.recorder is not None:
                here.recorder.wrote(target)
    if tracked:
        storage.history = True
        handles: list[object] = [None, *others, target]
        values = [kept[0], *arrays[1:], target._array]
        if others:
            values[1] = kept[1]._array if isinstance(kept[1], Tensor) else kept[1]
            handles[1] = value if kept[1] is value else None
        plan = op.plan(mask, len(arrays))
        saved, guards = saves(plan, values, handles) if plan else op.nothing_saved
        node = new_record(op, parents, mask, saved, guards, params, target._array, device)
        _replace_node(target, node)
    if heard_error is not None:
        try:
            raise heard_error
        finally:
            del heard_error  # its traceback refers to this frame
    return target


def written_back(op: Op, target: Tensor, part: Array, value: Tensor, params: Params) -> bool:
    """Record `target[key] = value` without a write, if `value` is that part, just written in place.

    Python runs `target[key] += x` as `value = target[key]; value += x; target[key] = value`. At the
    last step the memory is already written, but target's history lacks the write. `part` is
    target's array at the key; `op` saves nothing.
    """
    storage = value._storage
    if (storage is not target._storage or value._array is target._array
            or storage.writer != id(value._array)
            or value._version != storage.version or target._version < storage.version - 1
            or not same_layout(part, value._array)):
        return False
    target._version = storage.version
    parents = (target._node, value._node)
    mask = (parents[0] is not None) + 2 * (parents[1] is not None)
    if mask and grad_enabled():
        node = new_record(op, parents, mask, (), (), params, target._array, target._device)
        _replace_node(target, node)
    return True


def _replace_node(target: Tensor, node: Node) -> None:
    """Give the handle the node of its new values; gradients that are kept go with them."""
    at = target._node
    while at is not None:
        if at.retain or at.heir is not None:
            from gtensor.engine.run.retained import node_after_write

            node = node_after_write(target, node)
            break
        at = at.parents[0] if isinstance(at, Record) and at.op.view and at.parents else None
    target._node = node


def _kept_values(
    op: Op, mask: int, arrays: list[Any], value: object, device: Device
) -> tuple[Any, Any]:
    """The operands, copied where the rule needs them and the write would destroy them."""
    plan = op.plan(mask, len(arrays))
    before = _copy(op, device, arrays[0]) if 0 in plan else arrays[0]
    if len(arrays) > 1 and 1 in plan and overlapping(device, arrays[0], arrays[1]):
        twice = 0 in plan and same_layout(arrays[0], arrays[1])  # y *= y: one copy suffices
        value = before if twice else _copy(op, device, arrays[1])
    return before, value


def _copy(op: Op, device: Device, array: Array) -> Array:
    return run_noted(op.name, device, device.copy, array, None, op.name)


def _refuse_leaf(name: str, target: Tensor, tracked: bool) -> None:
    in_use = target._storage.leaf or isinstance(target, Traced)
    if tracked and in_use and _views_leaf(target._node):
        raise GradientError(f"in-place {name} on a leaf that requires a gradient, or a view of "
                            "one; do it under no_grad(), or on a clone()")


def _views_leaf(node: Node | None) -> bool:
    """Whether a node is a leaf, or a view of one."""
    while isinstance(node, Record) and node.op.view and node.parents:
        node = node.parents[0]
    return isinstance(node, Leaf)


def _write_over(op: Op, device: Device, arrays: list[Any], params: Params) -> None:
    target, *others = arrays
    value: Any = others[0] if others else None
    if overlapping(device, target, value) and not same_layout(target, value):
        # With a key, a tile of the value does not go where the same tile of the target is.
        if device.type == "cpu" and not params and _is_transpose(target, value):
            _with_own_transpose(op, target)
            return
        arrays = [target, _copy(op, device, value), *others[1:]]
    execute(op, device, arrays, {**params, "out": target})


def _is_transpose(a: Array, b: Array) -> bool:
    at, shape, strides = layout(a)
    return a.ndim == 2 and layout(b) == (at, shape, strides[::-1])


def _with_own_transpose(op: Op, y: np.ndarray) -> None:
    """y = op(y, y.T) in place: two mirrored tiles are read before either is written."""
    side = max(1, int(settings.tile_elements ** 0.5))
    n = y.shape[0]
    for i in range(0, n, side):
        for j in range(i, n, side):
            upper = y[i:i + side, j:j + side]
            lower = y[j:j + side, i:i + side]
            before = upper.copy()  # one tile
            op.cpu(upper, lower.T if i != j else before.T, out=upper)
            if i != j:
                op.cpu(lower, before.T, out=lower)

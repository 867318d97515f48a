"""Ops that write their output over their first input and take its memory: in-place batch norm.

These ops are called like any other, so they overwrite only a buffer that has no other reader: an op
made it, no other living tensor shares it, no record saved it and it never left gtensor. Otherwise
the output gets a new buffer, which `gtensor.memory.copies()` counts, and the input is unchanged.
"""

from __future__ import annotations

import weakref
from functools import partial
from typing import TYPE_CHECKING, Any

from gtensor.engine.handle.arrays import writable
from gtensor.engine.handle.consumed import Consumed, ConsumedStorage
from gtensor.engine.handle.context import grad_enabled
from gtensor.engine.handle.tensor import Tensor
from gtensor.engine.run.bind import Target, bind, fresh
from gtensor.engine.tape.op import Op
from gtensor.engine.tape.recipes import Recipe, WithRecipes, keep_as_it_is
from gtensor.engine.tape.record import here
from gtensor.system.bus import ListenerError

if TYPE_CHECKING:
    from gtensor.backend.typing import Array, Params


def overwritable(x: Tensor) -> bool:
    """Whether no other reader can see a write to this handle's memory."""
    storage = x._storage
    return (storage.made and not (storage.saved or storage.exported or storage.leaf)
            and not storage.shared_beside(x) and writable(x._array))


def recording(*inputs: object) -> bool:
    """Whether an op on these inputs would be recorded."""
    return grad_enabled() and any(isinstance(x, Tensor) and x._node is not None for x in inputs)


def apply_over(
    op: Op, inputs: tuple[Any, ...], params: Params
) -> tuple[Tensor, tuple[Array, ...]]:
    """The op's output over its first input's memory if that is overwritable, and the path's extras.

    The first input is then consumed: its shape, dtype and gradient stay, any other use raises
    ConsumedError. After an earlier error it is unchanged.
    """
    x = inputs[0]
    free = overwritable(x)
    target = Target(x._array if free else None)
    left = _left(x, op) if free else None
    try:
        result = bind(op, inputs, params, partial(fresh, target=target))
    except BaseException as error:  # undone
        # A path checks and allocates before it writes, so after an error nothing is written; but
        # an interrupt may come in the middle of the write, a listener's error after it.
        if left and (not isinstance(error, Exception) or isinstance(error, ListenerError)):
            x._array, x._storage = left
        raise
    if left:
        x._array, x._storage = left  # stores: behind the write no call may be interrupted
    else:
        x._device.note_copy(op.name, x.nbytes)
    return result, target.extras


def apply_keeping(op: Op, inputs: tuple[Any, ...], params: Params) -> Tensor:
    """The op's output in a new buffer; the record saves the first input's.

    For ops that cannot be inverted. Consumers of the output save a recipe in its place, so only one
    buffer is kept. The input is consumed as by `apply_over`. If nothing is recorded, the op
    overwrites its memory, too.
    """
    if not recording(*inputs):
        return apply_over(op, inputs, params)[0]
    x = inputs[0]
    free = overwritable(x)
    keep_as_it_is(x)
    result = bind(op, inputs, params)
    recipe = Recipe(op, inputs, params, result)
    result._own_storage().recipe = weakref.ref(recipe)
    record: Any = result._node
    record.saved = WithRecipes(record.saved)
    record.saved.own = recipe
    if free:
        x._array, x._storage = _left(x, op)
    return result


def _left(x: Tensor, op: Op) -> tuple[Any, ConsumedStorage]:
    """What is left in a handle whose memory is taken; later errors name this op and line."""
    stand_in = Consumed(x._array, f"taken over by {op.name} at {here()}")
    return stand_in, ConsumedStorage(stand_in)

"""Ops that write their output over their first input and take its memory: in-place batch norm.

`x += y` is asked for by the user, who sees the name that is written. These ops are called like any
other, so they must prove that nobody can see the write: an op made the buffer, no other living
tensor shares it, no record saved it and it never left gtensor. Without that proof the output gets a
buffer of its own, which `gtensor.memory.copies()` counts, and the input stays as it was.
"""

from __future__ import annotations

import weakref
from typing import Any

from gtensor.core.apply import Target, apply
from gtensor.core.arrays import writable
from gtensor.core.consumed import Consumed, ConsumedStorage
from gtensor.core.modes import STATE
from gtensor.core.node import here
from gtensor.core.op import Op
from gtensor.core.recipe import Recipe, WithRecipes, keep_as_it_is
from gtensor.core.tensor import Tensor


def overwritable(x: Tensor) -> bool:
    """Whether nobody but this handle can see what is written over its memory."""
    storage = x._storage
    return (storage.made and not (storage.saved or storage.exported or storage.leaf)
            and not storage.shared_beside(x) and writable(x._array))


def recording(*inputs: Any) -> bool:
    """Whether an op on these inputs would be put on the tape."""
    return STATE.grad_enabled and any(isinstance(x, Tensor) and x._node is not None for x in inputs)


def apply_over(op: Op, inputs: tuple[Any, ...], params: dict[str, Any]) -> tuple[Tensor, Any]:
    """The op's output over its first input's memory if that is free, and the path's extras.

    The first input is then consumed: its shape, dtype and gradient stay, any other use raises
    ConsumedError. An error before that leaves it as it was.
    """
    x = inputs[0]
    free = overwritable(x)
    target = Target(x._array if free else None)
    try:
        result = apply(op, inputs, params, target)
    except BaseException as error:
        # A path checks and allocates before it writes, so what fails has written nothing; but an
        # interrupt may have come in the middle of the write.
        if free and not isinstance(error, Exception):
            consume(x, op)
        raise
    if free:
        consume(x, op)
    else:
        x._device.note_copy(op.name, x.nbytes)
    return result, target.extras


def apply_keeping(op: Op, inputs: tuple[Any, ...], params: dict[str, Any]) -> Tensor:
    """The op's output in a buffer of its own, beside the first input's, which the record saves.

    For ops that cannot be inverted. Consumers of the output save a recipe in its place, so that
    again one buffer is kept. The input is consumed where `apply_over` would have consumed it, and
    where nothing is recorded its memory is taken, too.
    """
    if not recording(*inputs):
        return apply_over(op, inputs, params)[0]
    x = inputs[0]
    free = overwritable(x)
    keep_as_it_is(x)
    result = apply(op, inputs, params)
    recipe = Recipe(op, inputs, params, result)
    result._facts().recipe = weakref.ref(recipe)
    record: Any = result._node
    record.saved = WithRecipes(record.saved)
    record.saved.own = recipe
    if free:
        consume(x, op)
    return result


def consume(x: Tensor, op: Op) -> None:
    """Take the memory from a handle, which from now on names the line that did it."""
    stand_in = Consumed(x._array, f"taken over by {op.name} at {here()}")
    x._array = stand_in
    x._storage = ConsumedStorage(stand_in)

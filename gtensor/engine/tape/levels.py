"""Levels: a running transform, the handles that it gives a function, and the tape that lies on it.

A transform such as `jvp` runs a function on handles of its level in place of tensors. `bind` hands
an op with such a handle among its inputs to the newest level among them, which runs it one level
down. So levels nest in any order, and each has a tape of its own: `grad` within a transform records
there, and its walk does not switch off the tapes below.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from math import nan
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import numpy as np

from gtensor.engine.handle.context import (
    STATE,
    casting,
    current_casts,
    enable_grad,
    grad_enabled,
)
from gtensor.engine.handle.errors import LevelError
from gtensor.engine.handle.node import Leaf
from gtensor.engine.handle.saved import Guard
from gtensor.engine.handle.stand_in import StandIn
from gtensor.engine.handle.storage import Storage
from gtensor.engine.handle.tensor import Tensor
from gtensor.engine.tape.execute import name_shapes
from gtensor.engine.tape.record import Record, new_record

if TYPE_CHECKING:
    from gtensor.backend import Device
    from gtensor.backend.typing import Params
    from gtensor.engine.handle.node import Node, Tape
    from gtensor.engine.tape.op import Op


class _TracedStorage(Storage):
    """Storage whose version never matches, so that every call path hands the op to `bind`."""

    def __init__(self) -> None:
        self.__dict__["version"] = nan

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise LevelError("the memory of a value within a transform was asked for or written; "
                         "wanted a value outside of it")


TRACED = _TracedStorage()


class _NoArray(StandIn):
    __slots__ = ("transform",)

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype, transform: str) -> None:
        super().__init__(shape, dtype)
        self.transform = transform

    def refuse(self) -> NoReturn:
        raise LevelError(f"the values of a tensor within {self.transform}() were asked for, which "
                         "has no memory within a transform; return it from the function instead")


_no_array: Any = lru_cache(256)(_NoArray)  # equal ones are one: each output of an op has one


class Traced(Tensor):
    """A handle of a level: shape and dtype where the array would be, and no memory."""

    __slots__ = ("_level",)

    _level: Level

    def _check_version(self, reader: str) -> None:
        """Raise LevelError for a handle that left its transform."""
        self._level.check_alive(reader)

    def __repr__(self) -> str:
        return (f"tensor(<in {self._level.name}() at level {self._level.depth}>, "
                f"shape={self.shape}, dtype={self.dtype.name})")

    def __copy__(self) -> Traced:
        copy = self._sharing()
        copy._node = self._current_node("copy")
        return copy

    def become(self, other: Tensor) -> Tensor:
        """Take the values of a handle that no other code has: an op's result, in place."""
        if type(other) is not type(self) or other._level is not self._level:
            self._level.refuse_write("an op in place")
        for name in type(self).__slots__:
            setattr(self, name, getattr(other, name))
        self._node = other._node or self._node
        return self

    def detach(self) -> Traced:
        """The values as a constant: without a place on any tape, and without a tangent."""
        raise NotImplementedError

    def _own_storage(self, shares: bool = True) -> Storage:
        return self._storage

    def _leaf(self) -> Leaf:
        return Leaf(self.shape, self.dtype, self._device, self._level)

    def _parts(self) -> tuple[Tensor | None, ...]:
        """The values of lower levels that it stands for."""
        raise NotImplementedError

    def _copied(self) -> Traced:
        """A new handle with the same values, without a node."""
        raise NotImplementedError

    def _sharing(self) -> Traced:
        """The same for another reader: it counts as one of those that share the memory."""
        raise NotImplementedError


class KeptExtras:
    """A store that keeps what an op returns beside its output, for the record of a level."""

    extras: tuple[Tensor, ...] = ()


class Level:
    """One run of a transform in one thread; the base of `dual` and `batched`.

    `depth` orders the levels of a thread, 1 for the outermost. `grad_enabled` is off while a
    walk of this level's tape runs that is not itself recorded.
    """

    name = ""  # of the transform, for messages
    randomness = ""  # of a `vmap`: "error", "different" or "same"

    def __init__(self) -> None:
        self.depth = len(STATE.levels) + 1
        self.alive = True
        self.grad_enabled = True

    def check_alive(self, reader: str) -> None:
        """Raise LevelError once the transform is over."""
        if not self.alive:
            raise LevelError(f"{reader} was given a value from within {self.name}() after that "
                             "had ended; return the value from the function instead")

    def lift(self, x: Tensor) -> Traced:
        """A value of a lower level as a handle of this one: constant, or the same throughout."""
        raise NotImplementedError

    def run(
        self, op: Op, inputs: tuple[Any, ...], params: Params, keep: bool
    ) -> tuple[Traced, tuple[Traced, ...]]:
        """The op's output on this level, and its extras if they are to be kept.

        Computed by binding one level down.
        """
        raise NotImplementedError

    def step(self, wanted: set[Node] | None) -> Any:
        """What the rules of a walk of this level's tape see; None for recorded ops."""
        return None

    def bind(
        self, op: Op, inputs: tuple[Any, ...], params: Params,
        store: Callable[..., Tensor] | None,
    ) -> Tensor:
        """Run an op on inputs of which one at least is a handle of this level."""
        if store is not None and not isinstance(store, KeptExtras):
            self.refuse_write(op.name)
        if current_casts() is not None:  # rules run in the dtypes of the inputs
            with casting(None):
                return self.bind(op, inputs, params, store)
        tracked = False
        for x in inputs:
            if isinstance(x, Traced) and x._node is not None and x._level is self:
                tracked = self.grad_enabled and grad_enabled()
                break
        # no extras come of a composed form, so a rule that wants them gets the op's own
        if tracked and (op.backward is None or (op.saves_extras and store is None)) and (
                op.composed is not None):
            return op.composed(*inputs, **params)
        try:
            result, extras = self.run(op, inputs, params, tracked or store is not None)
        except ValueError as error:
            name_shapes(op.name, error, inputs)  # those of an example
            raise
        if store is not None:
            store.extras = extras
        if tracked and result._array.dtype.kind in "fVc":
            result._node = self._record(op, (*inputs, result), extras, params)
        return result

    def refuse_write(self, name: str) -> NoReturn:
        """Raise LevelError for a write to a handle."""
        raise LevelError(f"{name} would overwrite a value within {self.name}(), which has no "
                         "memory of its own; use the form that makes a new tensor")

    def _record(
        self, op: Op, values: Sequence[Any], extras: tuple[Traced, ...], params: Params
    ) -> Record:
        """A record on this level's tape, of inputs and result; it saves handles without a node."""
        *inputs, result = values
        nodes: list[Node | None] = []
        mask, bit = 0, 1
        for x in inputs:
            node = x._node if isinstance(x, Traced) and x._level is self else None
            nodes.append(node)
            if node is not None:
                mask |= bit
            bit += bit
        if op.saves_extras and not extras:
            raise LevelError(f"{op.name} cannot be differentiated within {self.name}(): its rule "
                             "there gives no extra results; detach() its input")
        saved: list[Any] = []
        guards: list[Guard] = []
        for position in op.plan(mask, len(nodes)):
            value = None if position is None else (*values, *extras)[position]
            if isinstance(value, Tensor):
                guard(value, guards)
                if isinstance(value, Traced) and value._level is self:
                    value = value._copied()  # no node, now or later: the tape has no cycles
            saved.append(value)
        record = new_record(
            op, tuple(nodes), mask, tuple(saved) or op.nothing_saved[0], tuple(guards), params,
            result._array, result._device)
        record.level = self
        return record

    def owns(self, x: object) -> bool:
        """Whether x is a handle of this level."""
        return isinstance(x, Traced) and x._level is self


def on_level(op: Op, inputs: tuple[Any, ...], params: Params) -> Tensor:
    """Run an op on inputs of which one at least is a handle of a level."""
    level: Any = newest(op.name, inputs)
    return level.bind(op, inputs, params, None)


def newest(name: str, inputs: Sequence[object]) -> Level | None:
    """The newest level among the inputs of the op of that name, None if all of them are plain.

    Raises LevelError for a level that is over, and for two that run beside each other.
    """
    found: Level | None = None
    for x in inputs:
        if not isinstance(x, Traced) or x._level is found:
            continue
        level = x._level
        level.check_alive(name)
        if found is not None and found.depth == level.depth:
            raise LevelError(f"{name} was given values from within two transforms that run beside "
                             "each other, in two threads; wanted those of one")
        if found is None or level.depth > found.depth:
            found = level
    return found


def underlying(x: Tensor) -> Tensor:
    """The plain values behind a handle, of all examples, for checks; x itself outside of levels."""
    while isinstance(x, Traced):
        first: Any = x._parts()[0]
        x = first
    return x


def guard(value: Tensor | None, guards: list[Guard]) -> None:
    """Add what detects a write to the tensors behind a saved value."""
    if isinstance(value, Traced):
        for part in value._parts():
            guard(part, guards)
    elif value is not None:
        storage = value._storage
        if storage.common:
            storage = value._own_storage(False)
        storage.saved = True
        guards.append((storage, value._version, -1))


def traced(
    kind: type[Traced], level: Level, shape: tuple[int, ...], dtype: np.dtype, device: Device
) -> Any:
    """A handle of a level; the caller adds what it stands for."""
    handle = object.__new__(kind)
    handle._array = _no_array(shape, dtype, level.name)
    handle._device = device
    handle._storage, handle._version, handle._node = TRACED, 0, None
    handle._level = level
    return handle


L = TypeVar("L", bound=Level)


@contextmanager
def running(level: L) -> Iterator[L]:
    """The level runs within the block; its handles cannot be used after it."""
    before = STATE.levels
    STATE.levels = (*before, level)
    try:
        yield level
    finally:
        level.alive = False
        STATE.levels = before


def vectorizing() -> bool:
    """Whether a `vmap` is running in this thread."""
    return any(level.randomness for level in STATE.levels)


@contextmanager
def recording() -> Iterator[None]:
    """Record ops of this thread in the block, also where a walk of the level's tape runs it."""
    level = innermost()
    with enable_grad():
        if level is None:
            yield
            return
        before = level.grad_enabled
        level.grad_enabled = True
        try:
            yield
        finally:
            level.grad_enabled = before


def innermost() -> Level | None:
    """The running level; None outside of transforms."""
    return STATE.levels[-1] if STATE.levels else None


def is_recording(level: Tape | None) -> bool:
    """Whether this thread records ops on the tape of a level; None is that of tensors."""
    return grad_enabled() and (level is None or level.grad_enabled)


def lifted(x: Tensor) -> Tensor:
    """x as a handle of the running level; x itself outside of transforms, or if it is one."""
    levels = STATE.levels
    return x if not levels or levels[-1].owns(x) else levels[-1].lift(x)

"""Checkpointed regions: the walk recomputes what their records saved.

The records of a region stay on the tape with their parents and hooks; only their saved values are
dropped. When the walk enters the first of them, it runs the function again, and the values saved by
the records of this second run replace the dropped ones.

Source: Chen et al., "Training deep nets with sublinear memory cost", 2016.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from itertools import zip_longest
from operator import attrgetter
from types import CodeType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from gtensor.engine.handle.context import (
    STATE,
    casting,
    current_casts,
    enable_grad,
    grad_enabled,
    noting,
    recomputing,
)
from gtensor.engine.handle.errors import GradientError
from gtensor.engine.handle.node import Leaf, Node, next_seq
from gtensor.engine.handle.saved import Guard, Guards
from gtensor.engine.handle.storage import FRESH, FRESH_ELSEWHERE
from gtensor.engine.handle.tensor import Tensor, wrap
from gtensor.engine.run.bind import saves
from gtensor.engine.tape.op import Op
from gtensor.engine.tape.recipes import Recipe, WithRecipes
from gtensor.engine.tape.record import Record
from gtensor.system.source_line import place

if TYPE_CHECKING:
    from gtensor.engine.handle.saved import Saved
    from gtensor.engine.tape.recipes import Remade

T = TypeVar("T")
Draws = Callable[[], AbstractContextManager[None]]  # a context in which the same numbers are drawn


def run_region(
    function: Callable[..., T], args: tuple[object, ...], kwargs: dict[str, object], draws: Draws
) -> T:
    """function(*args, **kwargs), recorded without saved values.

    Values within a transform have no memory to drop, so there the function is only called.
    """
    if not grad_enabled() or STATE.levels:
        return function(*args, **kwargs)
    guards: list[Guard] = []
    inputs = _mapped((args, kwargs), Tensor, lambda x: _Input(x, guards))
    region = _Region(function, inputs, draws)
    start = next_seq()
    with casting(region.casts), noting(region.noted, again=False):
        outputs = function(*args, **kwargs)
    region.drop_saves(_records(outputs, start), tuple(guards))
    return outputs


class _Input:
    """An input of a region, saved and guarded as by a record."""

    def __init__(self, x: Tensor, guards: list[Guard]) -> None:
        self.tracked = x._current_node("checkpoint") is not None
        self.saved, found = saves((0,), (x._array,), (x,))
        _stays(x)
        guards += [(storage, version, -1) for storage, version, _ in found]
        self.device = x._device
        self.storage = (
            x._own_storage() if type(self.saved) is not WithRecipes
            else FRESH if self.device.type == "cpu" else FRESH_ELSEWHERE)

    def handle(self) -> Tensor:
        """The input as a new leaf, so that the second run records nothing before it."""
        (array,) = self.saved.made({}) if type(self.saved) is WithRecipes else self.saved
        x = wrap(array, self.device, self.storage)
        if self.tracked:
            x._node = Leaf(x.shape, x.dtype, x._device)
        return x


def _stays(x: Tensor) -> None:
    """Let no op overwrite an input, also if its recipe was saved: it belongs to the caller."""
    x._own_storage().saved = True


class _Mark(NamedTuple):
    """The facts in which the records of both runs must agree."""

    op: Op
    shape: tuple[int, ...]
    dtype: np.dtype
    mask: int
    options: dict[str, bool | int | str]  # e.g. dropout's seed, and whether a batch norm trains
    code: CodeType  # not compared: in the second run it may be the line that called backward
    lasti: int

    @classmethod
    def of(cls, record: Record) -> _Mark:
        options = {k: v for k, v in record.params.items() if type(v) in (bool, int, str)}
        return cls(record.op, record.shape, record.dtype, record.mask, options, record.code,
                   record.lasti)


class _Region:
    """A function with its inputs, to be run again. Records own it, so it holds no record."""

    def __init__(self, function: Callable[..., object], inputs: object, draws: Draws) -> None:
        self.function = function
        self.inputs = inputs  # (args, kwargs), with each tensor replaced by an _Input
        self.draws = draws
        self.noted: deque[Any] = deque()  # by `same_again` in the first run
        casts = current_casts()
        self.casts = None if casts is None else casts.apart()  # each run casts by itself
        self.marks: list[_Mark] = []  # of the first run's records
        self.dropped: list[int] = []  # the records whose saved values were dropped

    def drop_saves(self, records: list[Record], guards: Guards) -> None:
        """Drop what the records saved, unless it was made outside the region."""
        inside = set(records)
        for number, record in enumerate(records):
            self.marks.append(_Mark.of(record))
            if _saved_inside(record, inside):
                record.saved = _Recomputed(self, number)
                record.guards += guards
                self.dropped.append(number)

    def saved_again(self, number: int, remade: Remade) -> Saved:
        """What a record saved; `remade` is the walk's: region -> number -> recomputed values."""
        waiting = remade.get(self)
        if waiting is None:
            waiting = remade[self] = self._run_again()
        saved: Any = waiting.pop(number)
        if not waiting:
            del remade[self]
        return saved if type(saved) is tuple else saved.made(remade)

    def _run_again(self) -> dict[int, Saved]:
        noted = noting(deque(self.noted), again=True)
        with enable_grad(), recomputing(), casting(self.casts), noted, self.draws():
            args, kwargs = _mapped(self.inputs, _Input, _Input.handle)
            start = next_seq()
            records = _records(self.function(*args, **kwargs), start)
        self._compare(records)
        return {number: records[number].saved for number in self.dropped}

    def _compare(self, records: list[Record]) -> None:
        again = [_Mark.of(record) for record in records]
        for first, second in zip_longest(self.marks, again):
            if first is None or second is None or first[:-2] != second[:-2]:
                raise GradientError(
                    f"a checkpointed function recorded {_said(first)} in its first run and "
                    f"{_said(second)} in the second, for its gradient; it must do the same in both")


class _Recomputed(WithRecipes):
    """Replaces the saved values of a record in a region."""

    region: _Region
    number: int

    def __new__(cls, region: _Region, number: int) -> _Recomputed:
        again = super().__new__(cls)
        again.region, again.number = region, number
        return again

    def made(self, remade: Remade) -> Saved:
        """The saved arrays and scalars, from the second run."""
        return self.region.saved_again(self.number, remade)


def _saved_inside(record: Record, inside: set[Record]) -> bool:
    """Whether a record saved memory that the region made, or may have made."""
    if type(record.saved) is _Recomputed:  # a nested region
        return True
    plan = record.op.plan(record.mask, len(record.parents))
    for value, position in zip(record.saved, plan, strict=False):
        recipe = isinstance(value, Recipe)
        if position is not None and (recipe or getattr(value, "ndim", 0) > 0):
            parent = record.parents[position] if position < len(record.parents) else record
            # An array without history may have been made inside; a recipe without one was not.
            if parent in inside or (parent is None and not recipe):
                return True
    return False


def _records(outputs: object, start: int) -> list[Record]:
    """The records behind the outputs with a number above `start`, oldest first."""
    stack: list[Node | None] = []
    _mapped(outputs, Tensor, lambda x: stack.append(x._node))
    found: set[Record] = set()
    while stack:
        node = stack.pop()
        if isinstance(node, Record) and node.seq > start and node not in found:
            found.add(node)
            stack += node.parents
    return sorted(found, key=attrgetter("seq"))


def _mapped(value: Any, kind: type[T], change: Callable[[T], object]) -> Any:
    """`value` with all objects of a type changed, also within tuples, lists and dicts."""
    if isinstance(value, kind):
        return change(value)
    if type(value) is dict:
        return {key: _mapped(item, kind, change) for key, item in value.items()}
    named = isinstance(value, tuple) and hasattr(value, "_fields")
    if named or type(value) in (tuple, list):
        items = [_mapped(item, kind, change) for item in value]
        return type(value)(*items) if named else type(value)(items)
    return value


def _said(mark: _Mark | None) -> str:
    if mark is None:
        return "nothing more"
    options = "".join(f", {name}={value!r}" for name, value in mark.options.items())
    return (f"{mark.op.name} of shape {mark.shape}, {mark.dtype}{options} "
            f"({place(mark.code, mark.lasti)})")

"""The calls of a program and its values, as passes change them; what a call reads and makes."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from gtensor.execution.steps.comparing import values_of
from gtensor.execution.steps.numbers import Live
from gtensor.execution.steps.recorder import (
    Call,
    Facts,
    Recorder,
    Root,
    Stored,
    Value,
    Written,
    like,
)


@dataclass(eq=False, slots=True)
class Listing:
    """A recording that passes may change: the recording itself is compared with later ones."""

    calls: list[Any]
    values: list[Facts]
    returned: list[int]  # the values that replays return, in their order
    strides: dict[int, tuple[int, ...]]  # of values
    addresses: dict[int, int]  # of values when they were recorded: only within a root they tell
    earlier: dict[int, int] = field(default_factory=dict)  # value -> that whose memory it took over

    def new(self, model: int, root: Root | None = None) -> int:
        """The number of a value like another one, in memory of its own if no root is given."""
        facts = self.values[model]
        root = root or Root(facts.root.owner, True, None)  # type: ignore[union-attr]
        self.values.append(replace(facts, kind="made", root=root, array=None, argument=None))
        number = len(self.values) - 1
        self.strides[number] = self.strides[model]
        self.addresses[number] = self.addresses[model]
        return number

    def contiguous(self, number: int) -> bool:
        """Whether a value lies densely in memory, its last axis innermost."""
        facts = self.values[number]
        return all(size == 1 or stride == wanted for size, stride, wanted in zip(
            facts.shape, self.strides[number], dense(facts), strict=True))


    def span(self, number: int) -> tuple[int, int]:
        """The addresses between which a value's elements lie."""
        facts, start = self.values[number], self.addresses[number]
        end = start + facts.dtype.itemsize  # type: ignore[union-attr]
        for size, stride in zip(facts.shape, self.strides[number], strict=True):
            if size == 0:
                return self.addresses[number], self.addresses[number]
            start, end = start + min(0, (size - 1) * stride), end + max(0, (size - 1) * stride)
        return start, end


def dense(facts: Facts) -> tuple[int, ...]:
    """The strides of an array that lies densely, as NumPy and CuPy give them."""
    assert facts.dtype is not None
    found = []
    step = facts.dtype.itemsize
    for size in reversed(facts.shape):
        found.append(step)
        step *= max(1, size)
    return tuple(reversed(found))


def listed(recording: Recorder, returned: Iterable[int]) -> Listing:
    """A recording, without the views of lasting arrays that last by themselves."""
    values = [*recording.values]
    keys = {number: key for facts in values if facts.root is not None
            for key, number in facts.root.values.items()}
    calls = []
    for call in recording.calls:
        if isinstance(call, Call) and call.name == "view" and call.op is None:
            number: Any = call.made[0]
            facts = values[number]
            base = values[call.args[0].number]
            if base.kind == "external" and facts.array is not None and facts.array() is not None:
                values[number] = replace(facts, kind="external")  # such as a transposed weight
                continue
        calls.append(call)
    strides = {n: key[2] for n, key in keys.items()}
    addresses = {n: key[0] for n, key in keys.items()}
    known: dict[Live, Value] = {}
    for number, live in enumerate(lives_of(recording), len(values)):
        known[live] = Value(number)
        strides[number], addresses[number] = (), 0
    calls = [replace(call, args=tuple([known[x] if type(x) is Live else x for x in call.args]))
             if isinstance(call, Call) and not call.host and any(type(x) is Live for x in call.args)
             else call for call in calls]
    for k, live in enumerate(known):
        root = Root(weakref.ref(recording), False, None)
        values.append(Facts("argument", (), live.dtype, root, contiguous=True, dense=True,
                            argument=len(recording.owners) + k))
    return Listing(calls, values, [*returned], strides, addresses)


def lives_of(recording: Recorder) -> list[Live]:
    """The live numbers that a program takes as further arguments, in their order."""
    return [*dict.fromkeys([x for call in recording.calls if isinstance(call, Call)
                            for x in call.args if type(x) is Live])]


def reads(call: Any) -> list[int]:
    """The values that a call uses."""
    if isinstance(call, Written):
        return []
    if isinstance(call, Stored):
        return [number for _, number, _ in call.entries if number is not None]
    return [] if call.host else values_of((call.args, call.params))


def makes(call: Any) -> list[int]:
    """The values that there were not before a call."""
    if not isinstance(call, Call):
        return []
    known = {*reads(call)}
    return [n for n in call.made if n is not None and n not in known]


def users_of(listing: Listing) -> dict[int, set[int]]:
    """Of each value the calls that use it, by their places."""
    found: dict[int, set[int]] = {}
    for i, call in enumerate(listing.calls):
        for n in reads(call):
            found.setdefault(n, set()).add(i)
    return found


def renamed(coded: Any, names: dict[int, int]) -> Any:
    """Coded arguments with other values."""
    if isinstance(coded, Value):
        return Value(names.get(coded.number, coded.number))
    if isinstance(coded, (tuple, list)):
        return like(coded, [renamed(item, names) for item in coded])
    if isinstance(coded, dict):
        return {key: renamed(item, names) for key, item in coded.items()}
    return coded


def size_of(facts: Facts) -> int:
    """The number of a value's elements."""
    return math.prod(facts.shape)


def is_floating(dtype: np.dtype | None) -> bool:
    """Whether values of a dtype are computed in it."""
    return dtype is not None and dtype.char in "fd"

"""Sums of all elements of a value that is made tile by tile, with the bits of NumPy's own sum.

NumPy adds the two halves of a dense array, the first of a multiple of 8, each in the same way, and
up to 128 numbers in eight running totals. So the sum of a part that is one of these halves, or of
their halves, may be taken as soon as it is there.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Container
from typing import Any, NamedTuple

import numpy as np

from gtensor.backend import host
from gtensor.engine.tape.op import registry
from gtensor.execution.steps.listing import Listing, is_floating, size_of
from gtensor.execution.steps.recorder import Call, Value

SMALL = 1 << 16  # bytes of an array up to which it is one tile
_PART = 8192  # elements summed at a time, about


class Total(NamedTuple):
    """A call that sums all of a value."""

    given: int
    made: int
    shape: tuple[int, ...]
    divisor: int | None  # of a mean


def reduction(call: Any, names: Container[str], listing: Listing) -> tuple[int, int] | None:
    """What a call of these ops reduces, a large dense value, and what it makes; else None."""
    if not isinstance(call, Call) or call.host or call.name not in names or (
            call.function is not registry[call.name].cpu or len(call.args) != 1):
        return None
    given, made = call.args[0], call.made[0]
    if not isinstance(given, Value) or made is None or "out" in call.params:
        return None
    facts, result = listing.values[given.number], listing.values[made]
    if (not is_floating(facts.dtype) or result.dtype != facts.dtype
            or size_of(facts) * facts.dtype.itemsize <= SMALL  # type: ignore[union-attr]
            or not listing.contiguous(given.number)):
        return None
    return given.number, made


def total_of(call: Any, listing: Listing) -> Total | None:
    """A call as a sum over all of a large value; None for any other call."""
    found = reduction(call, ("sum", "mean"), listing)
    if found is None:
        return None
    facts, result = (listing.values[n] for n in found)
    if size_of(result) != 1 or len(call.params.get("axis", ())) != len(facts.shape):
        return None
    return Total(*found, result.shape, size_of(facts) if call.name == "mean" else None)


class RunningSum:
    """The sum of numbers that are written in order, into places that it gives."""

    def __init__(self, count: int, dtype: np.dtype, most: int) -> None:
        self._count, self._next = count, iter(_parts(count))
        self._part = next(self._next)
        self._window = host().empty((_PART + most,), dtype, "workspace")
        self._begin = self._end = 0
        self._sums: list[Any] = []

    def place(self, shape: tuple[int, ...]) -> np.ndarray:
        """Where the next numbers are to be written; those before are there."""
        while self._part and self._end - self._begin >= self._part:
            begin = self._begin
            self._begin = begin + self._part
            self._sums.append(np.add.reduce(self._window[begin:self._begin]))
            self._part = next(self._next, 0)
        left = self._end - self._begin
        if self._begin:
            self._window[:left] = self._window[self._begin:self._end]
        self._begin, self._end = 0, left + math.prod(shape)
        return self._window[left:self._end].reshape(shape)

    def total(self, shape: tuple[int, ...], divisor: int | None) -> np.ndarray:
        """The sum, or that divided."""
        self.place((0,))
        sums = iter(self._sums)

        def added(size: int) -> Any:
            if size <= _PART:
                return next(sums)
            first = _half(size)
            return added(first) + added(size - first)

        total = added(self._count)
        return np.asarray(total if divisor is None else total / divisor).reshape(shape)


def _half(size: int) -> int:
    half = size // 2
    return half - half % 8


@functools.lru_cache(256)
def _parts(size: int) -> tuple[int, ...]:
    """The sizes of the parts that are summed at a time, in order."""
    if size <= _PART:
        return (size,)
    first = _half(size)
    return *_parts(first), *_parts(size - first)

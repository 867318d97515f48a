"""Mutations of the passes over captured steps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import patch

from gtensor.engine.handle.context import EXCHANGES, again
from gtensor.engine.walk import slots
from gtensor.execution.steps import flow, fusing, passes, pieces, signature, totals
from gtensor.execution.steps.comparing import values_of
from gtensor.execution.steps.program import Program
from gtensor.execution.steps.recorder import Call, Constant, Recorder
from gtensor.ops.attention import cache_length
from gtensor.ops.attention.cache_length import CacheLength
from gtensor.system import structure
from gtensor.system.bus import here

Context = AbstractContextManager[Any]


def composed_formulas_simplified() -> Context:
    """ops that are put together are simplified as one formula"""
    right = pieces.composed
    return patch.object(fusing, "composed", lambda members, outputs, relaxed=False: right(
        members, outputs, True))


def writes_before_reads() -> Context:
    """a call that writes does not wait for the reads of what was there before"""
    return patch.object(flow, "_reads_since", lambda read, root: set())


@contextmanager
def sums_parted_anywhere() -> Iterator[None]:
    """a sum is that of a third and of the rest"""
    with patch.object(totals, "_half", lambda size: size // 3), patch.object(
            totals, "_parts", totals._parts.__wrapped__):  # the parts that are kept are right
        yield


def writes_unrecorded() -> Context:
    """a call that only writes memory which it was given is not recorded"""
    right = Recorder.note

    def note(self: Recorder, *given: Any, **named: Any) -> Any:
        known = len(self.values)
        result = right(self, *given, **named)
        last: Any = self.calls[-1]
        if all(n is not None and n < known for n in last.made):
            self.calls.pop()
        return result
    return patch.object(Recorder, "note", note)


def numbers_not_compared() -> Context:
    """numbers of Python's that calls were given are not compared"""
    return patch.object(Constant, "__eq__", lambda one, other: isinstance(other, Constant))


def places_not_compared() -> Context:
    """where arguments lie in memory that they share is no part of the signature"""
    return patch.object(signature, "layout", lambda array: (0,))


def memory_outside_not_compared() -> Context:
    """an argument may be what the step reads from outside"""
    return patch.object(Program, "fits", lambda program, arguments: True)


def arguments_of_the_recording() -> Context:
    """a replay computes with the arguments of the first replay"""
    right, first = Program.run, {}  # type: ignore[var-annotated]

    def run(program: Program, arguments: Any, lasting: Any) -> Any:
        return right(program, first.setdefault(program, arguments), lasting)
    return patch.object(Program, "run", run)


def collectives_without_order() -> Context:
    """a collective may move behind another one"""
    return patch.object(flow, "is_effect", lambda call: not isinstance(call, Call) or call.host)


def _collective(listing: Any) -> int:
    """The place of the first one."""
    return next(i for i, c in enumerate(listing.calls) if getattr(c, "kind", "") == EXCHANGES)


def collectives_dropped() -> Context:
    """a pass leaves out a collective"""
    return patch.object(passes, "drop_nothings",
                        lambda listing: listing.calls.pop(_collective(listing)))


def collectives_doubled() -> Context:
    """a pass makes a collective twice"""
    return patch.object(passes, "drop_nothings", lambda listing: listing.calls.insert(
        _collective(listing), listing.calls[_collective(listing)]))


def sums_of_ranks_folded() -> Context:
    """what ranks sum counts as written only if the call returns it"""
    return patch.object(passes, "values_written", lambda call: [
        n for n in call.made if n is not None and n in values_of(call.args)])


def copies_to_buckets_unrecorded() -> Context:
    """the copy of a gradient into its bucket is not told"""
    return patch.object(slots, "run_aside", lambda name, device, function, *arrays: device.path(
        name, function)(*arrays))


def positions_of_the_first_call() -> Context:
    """replays of a step add the positions that its first call has added"""
    starts: dict[CacheLength, int] = {}
    right = cache_length._first

    def first(length: CacheLength, *given: Any) -> Any:
        found = right(length, *given)
        found._array[...] = starts.setdefault(length, found.item())
        return found
    recorded = again(first)
    return patch.object(cache_length, "_first", lambda *given: (
        right if here.recorder is None else recorded)(*given))


def positions_not_counted() -> Context:
    """a replay does not count the positions that it adds"""
    def count(length: CacheLength) -> None:
        if here.recorder is not None:
            length._number = length._next
    return patch.object(cache_length, "_count", count)


def positions_beyond_the_capacity() -> Context:
    """a replay adds positions beyond the capacity"""
    return patch.object(CacheLength, "after", lambda length, start, count: min(
        start + count, length.capacity))


def replaced_caches_unnoticed() -> Context:
    """a cache may have other memory, which no captured step notices"""
    return patch.object(structure, "changed", lambda what: None)

"""Mutations of the passes over captured steps."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from gtensor.engine.handle.context import EXCHANGES
from gtensor.engine.walk import slots
from gtensor.execution.steps import flow, fusing, passes, pieces, signature, totals
from gtensor.execution.steps.comparing import values_of
from gtensor.execution.steps.program import Program
from gtensor.execution.steps.recorder import Call, Constant, Recorder

Context = AbstractContextManager[Any]


def composed_formulas_simplified() -> Context:
    """ops that are put together are simplified as one formula"""
    right = pieces.composed
    return patch.object(fusing, "composed", lambda members, outputs, relaxed=False: right(
        members, outputs, True))


def writes_before_reads() -> Context:
    """a call that writes does not wait for the reads of what was there before"""
    return patch.object(flow, "_reads_since", lambda read, root: set())


def sums_parted_anywhere() -> Context:
    """a sum is that of a third and of the rest"""
    return patch.object(totals, "_half", lambda size: size // 3)


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

"""Timelines: every allocation and free of a device, with its op, module and category.

A timeline is an adaptor over the device's resource, so it records what passes that place in the
chain; of phases, modules and segments it hears on the event bus. It stores one tuple per block;
lines of code, categories and lifetimes are computed when the timeline is read.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable
from itertools import accumulate
from os import PathLike
from threading import Lock
from time import perf_counter_ns
from types import CodeType
from typing import Any, NamedTuple

from gtensor.memory.arena.layout import LIVE, Piece, SegmentLayout, layout_and_stats, opened
from gtensor.memory.contract.adaptors import Adaptor, bottom_of, current_category
from gtensor.memory.contract.resource import Block, OutOfMemoryError, Resource
from gtensor.memory.trace.export import save
from gtensor.memory.trace.lifetimes import (
    OUT_OF_MEMORY,
    Classifier,
    History,
    Life,
    Mark,
    SegmentChange,
    Source,
    unknown_life,
)
from gtensor.memory.trace.owners import NOT_FOUND, Found, objects_of, present, uses
from gtensor.system.bus import PhaseEvent, Registered, SegmentEvent, bus, here
from gtensor.system.collector import collector_paused
from gtensor.system.fork_safety import free_at_forks
from gtensor.system.frees import FreeListener
from gtensor.system.source_line import line_of, user_frame
from gtensor.system.written_code import enter_class

_frame_at = sys._getframe
_tuple = tuple.__new__


class Event(NamedTuple):
    """One allocation or free.

    `time` in seconds from the start of the timeline, `delta` in bytes (negative for a free),
    `allocated` the live bytes after it, `label` the op, `serial` the block's number, `module` the
    dotted path of the module that ran, `source` the user's line (with `stacks`).
    """

    time: float
    delta: int
    allocated: int
    label: str
    category: str
    serial: int
    module: str = ""
    source: Source | None = None


class Made(NamedTuple):
    """The facts stored when a block is made; `phase` is None if it is older than the recording."""

    serial: int
    address: int
    size: int
    nbytes: int
    stream: int
    label: str
    category: str
    module: str
    phase: str | None
    instruction: tuple[CodeType, int] | None


class Timeline(Adaptor):
    """Records every allocation and free until `close`, the latest `most` of them.

    Blocks that exist at the start have their op, and their use if a module or an optimizer holds
    them; their frees count, but are not in `events`. With `stacks` the user's line is recorded,
    too. It records until it is closed, as `gt.memory.timeline` does.
    """

    def __init__(self, upstream: Resource, most: int = 1_000_000, stacks: bool = False) -> None:
        super().__init__(upstream)
        self.recorded = 0  # events so far, also those no longer kept
        self.stacks = stacks
        self._events: deque[tuple[int, Made, bool]] = deque(maxlen=most)  # time, block, born
        self._marks: list[tuple[int, int, str, bool, int]] = []
        self._live: dict[int, Made] = {}  # by the id of the block
        self._found: dict[int, tuple[Made, Found]] = {}  # by the id of `Made`
        self._frees = FreeListener(self._freed)
        self._segments = _Segments(self)
        self._ended: tuple[list[SegmentLayout], dict[str, object]] | None = None
        self._total = 0
        live = self._adopt()
        self._total += live  # a separate statement: frees during `_adopt` changed `_total`
        self.unknown = self._total - sum(made.size for made in self._live.values())
        self._start = perf_counter_ns()
        self._open = True
        self._hearing = Registered(_Hears(self))
        bus.add(self._hearing)

    # -- recording --------------------------------------------------------------------------------

    def allocate(self, nbytes: int, stream: int = 0, label: str = "") -> Block:
        """A block of the upstream; it is noted with its op, or with the error."""
        try:
            block = self.upstream.allocate(nbytes, stream, label)
        except OutOfMemoryError:
            if self._open:
                self._marks.append((self.recorded, perf_counter_ns(), OUT_OF_MEMORY, True,
                                    nbytes))
            raise
        if self._open:
            instruction = None
            if self.stacks:
                instruction = here.instruction
                if instruction is None:
                    frame = user_frame(_frame_at(1))
                    instruction = frame.f_code, frame.f_lasti
            self._frees.listen(block, id(block))
            size = block.size
            self._live[id(block)] = made = _tuple(Made, (
                block.serial, block.ptr, size, nbytes, stream, label, current_category(),
                here.module, here.phase, instruction))
            if self._segments.changed:
                self._segments.look(self.recorded)
            self._note(made, size, True)
        return block

    def _freed(self, key: int) -> None:
        made = self._live.pop(key, None)
        if made is not None:
            self._note(made, -made.size, False)

    def _note(self, made: Made, delta: int, born: bool) -> None:
        self._total += delta
        self.recorded += 1
        self._events.append((perf_counter_ns(), made, born))

    def _mark(self, phase: str, begins: bool) -> None:
        if self._open:
            self._marks.append((self.recorded, perf_counter_ns(), phase, begins, 0))

    def close(self) -> None:
        """Record no more. Blocks handed out so far stay valid."""
        if self._open:
            try:  # before `_now`, so that nothing is freed between this and reading the segments
                objects = objects_of(Adaptor)
                self._find(objects)
            finally:
                self._open = False
                self._frees.close()
                bus.remove(self._hearing)
            self._ended = self._now(objects)

    # -- reading ----------------------------------------------------------------------------------

    @property
    def events(self) -> list[Event]:
        """The events so far of blocks made in the recording, oldest first."""
        sources, found = _Sources(), []
        events = list(self._events)  # unlike `tuple`, atomic: a garbage collection adds events
        total = self._total - sum(made.size if born else -made.size for _, made, born in events)
        for time, (_, made, born) in zip(self._times(events), events, strict=True):
            delta = made.size if born else -made.size
            total += delta
            if made.phase is not None:
                found.append(Event(time, delta, total, made.label, made.category, made.serial,
                                   made.module, sources.of(made.instruction)))
        return found

    def _times(self, events: Iterable[tuple[int, Made, bool]]) -> list[float]:
        """Seconds from the start, made rising: threads may have read the clock out of order."""
        return [(time - self._start) * 1e-9
                for time in accumulate((time for time, _, _ in events), max)]

    def save(self, path: str | PathLike[str]) -> None:
        """Write the recording in the format of the file's suffix.

        `.png`: live bytes over time as a picture; `.html`: as a page to hover and zoom, which needs
        no network; `.pickle`: a snapshot for PyTorch's memory viewer; `.json`: one as plain JSON.
        Raises ValueError for another suffix, OSError if the file cannot be written (an existing
        file stays unchanged), ModuleNotFoundError for `.png` without matplotlib.
        """
        with collector_paused():
            save(path, self.history())

    def _repr_html_(self) -> str:
        """What a notebook shows: live bytes over time, and their use at the peak."""
        from gtensor.memory.trace.curves import html

        return html(self.history())

    def history(self) -> History:
        """The lifetimes and the layout of segments: now, or at `close`."""
        if self._ended is None:
            objects = objects_of(Adaptor)
            self._find(objects)
        segments, stats = self._ended or self._now(objects)
        events, live = list(self._events), dict(self._live)
        first = self.recorded - len(events)
        marks = [Mark(max(at - first, 0), (time - self._start) * 1e-9, name, begins, nbytes)
                 for at, time, name, begins, nbytes in self._marks]
        changes = [SegmentChange(max(at - first, 0), (time - self._start) * 1e-9, taken, *segment)
                   for at, time, taken, segment in self._segments.changes]
        spans: dict[int, list[Any]] = {}  # by the id of a `Made`: it, its first and last event
        for number, (_, made, born) in enumerate(events):
            if born:
                spans[id(made)] = [made, number, None]
            else:
                spans.setdefault(id(made), [made, None, None])[2] = number
        for made in live.values():
            spans.setdefault(id(made), [made, None, None])
        classifier = Classifier(marks)
        sources = _Sources()
        lives = [self._life(made, born, end, classifier, sources)
                 for made, born, end in spans.values()]
        if self.unknown > 0:
            lives.append(unknown_life(self.unknown))
        name = getattr(self._segments.bottom, "name", "memory")
        return History(name, self._times(events), lives, marks, segments, changes, stats)

    def _life(self, made: Made, born: int | None, end: int | None, classifier: Classifier,
              sources: _Sources) -> Life:
        _, found = self._found.get(id(made), (made, NOT_FOUND))
        category = classifier.category(made.category or found.category, made.label,
                                       made.phase or "", born, end)
        return Life(
            made.address, made.size, made.nbytes, made.stream, found.name or made.label,
            found.module or made.module, category, sources.of(made.instruction), born, end)

    # -- the ends ---------------------------------------------------------------------------------

    def _adopt(self) -> int:
        """Listen to the frees of blocks that already exist; returns the live bytes."""
        objects = objects_of(Block, Adaptor)
        found = present(objects, self._segments.bottom)
        for block in found.blocks:
            self._live[id(block)] = Made(
                block.serial, block.ptr, block.size, block.nbytes, block.stream, block.label,
                "", "", None, None)
            self._frees.listen(block, id(block))
        self._find(objects)
        return found.allocated

    def _find(self, objects: list[Any]) -> None:
        """Find the owners of live blocks."""
        for made, found in uses(self._live.values(), objects):
            self._found[id(made)] = made, found

    def _now(self, objects: list[Any]) -> tuple[list[SegmentLayout], dict[str, object]]:
        self._segments.look(self.recorded)
        segments, stats = layout_and_stats(self._segments.bottom)
        held = present(objects, self._segments.bottom).held
        return opened(segments, held, [
            Piece(made.address, made.size, LIVE, made.nbytes, made.label)
            for made in list(self._live.values())]), stats


enter_class(Timeline, check=True)


class _Hears:
    """What a timeline hears on the bus: phases of a training step, and segments of its arena."""

    def __init__(self, timeline: Timeline) -> None:
        self._mark = timeline._mark
        self._segments = timeline._segments

    def phase_begins(self, event: PhaseEvent) -> None:
        self._mark(event.name, True)

    def phase_ends(self, event: PhaseEvent) -> None:
        self._mark(event.name, False)

    def segment(self, event: SegmentEvent) -> None:
        if event.origin is self._segments.source:
            self._segments.changed = True


class _Segments:
    """The known segments, read again at the first allocation after one came or went."""

    def __init__(self, resource: Resource) -> None:
        self.changes: list[tuple[int, int, bool, tuple[int, int, int]]] = []
        self.bottom = bottom_of(resource)
        self.source = getattr(self.bottom, "source", None)  # whose segment events are of interest
        self._looking = Lock()
        free_at_forks(self._looking)
        self.changed = False  # a new reading is wanted
        self._known = self._ranges()

    def look(self, number: int) -> None:
        """Record the segments acquired and released since; `number` is that of the next event.

        If another thread, or the code that a finalizer interrupted, is reading them already, it
        reads them once more. This call must not wait for it: it may be waiting for the arena.
        """
        self.changed = True
        while self.changed and self._looking.acquire(False):
            try:
                self.changed = False
                time, present = perf_counter_ns(), self._ranges()
                if not present and self.bottom.stats().segments:
                    self.changed = True  # this thread is changing the pools: read them later
                    return
                self.changes += [
                    *((number, time, False, gone) for gone in sorted(self._known - present)),
                    *((number, time, True, new) for new in sorted(present - self._known))]
                self._known = present
            finally:
                self._looking.release()

    def _ranges(self) -> set[tuple[int, int, int]]:
        return {segment[:3] for segment in layout_and_stats(self.bottom)[0]}


class _Sources(dict[tuple[int, int], Source]):
    """The lines of instructions, found once each; by `id`, as comparing code objects is slow."""

    def of(self, instruction: tuple[CodeType, int] | None) -> Source | None:
        """The line, None for None."""
        if instruction is None:
            return None
        code, lasti = instruction
        found = self.get((id(code), lasti))
        if found is None:
            found = self[id(code), lasti] = Source(
                code.co_filename, line_of(code, lasti), code.co_qualname)
        return found

"""The listener behind `profile`: it notes what happens as flat rows, and makes spans of them later.

Where arrays are small, noting an op costs more than its arithmetic. So a row holds only what can be
read at once: the clock, the op, the user's instruction, sizes. Names, lines, operations and the
links from backward to forward are computed when the profile is read.
"""

from __future__ import annotations

import itertools
import sys
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from math import prod
from time import perf_counter_ns
from types import CodeType
from typing import Any, NamedTuple

import numpy as np

from gtensor.backend import Device, cuda_device_count, device_of, get_device, host
from gtensor.backend.timing import launches, mark, seconds_between
from gtensor.engine.handle.tensor import Tensor
from gtensor.profiler.machine import machine
from gtensor.profiler.open_events import Open
from gtensor.profiler.spans import ProfileError, Recorded, Span
from gtensor.profiler.work import NOTHING, PathWork, Work, path_work, rule_work
from gtensor.system.bus import (
    MemoryEvent,
    ModuleEvent,
    OpEvent,
    PhaseEvent,
    RangeEvent,
    SegmentEvent,
    here,
    listen,
)
from gtensor.system.source_line import place, user_frame

_frame_at = sys._getframe
_ndarray = np.ndarray


class _Row(NamedTuple):
    """What is noted of one event."""

    begin: int  # nanoseconds
    end: int
    op: Any  # the op, or the kind of another event
    phase: str  # or the other event's name
    module: str
    code: CodeType | None  # with `instruction`: the user's
    instruction: int
    number: int  # of a path; of a rule that of its path
    size: int  # elements of a path's output; of a rule, bit i: input i needs a gradient
    dtype: Any  # of a path's output; of a rule None
    shapes: Any  # where the definition counts operations by shapes: of the inputs and the output
    extra: int  # bytes of a path's outputs beside the first
    state: Any  # on a GPU: device, stream's id, marks at begin and end, how much was launched
    sizes: int  # how many bytes of arrays follow: a path's inputs, a rule's gradient and saves


_KINDS = {"user": "range"}  # of spans, where they differ from the category
_ROW = len(_Row._fields)


class _Notes:
    """What one thread has noted.

    Rows lie one after another without a container each: garbage collections would search those.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.rows: list[Any] = []
        self.blocks: list[tuple[int, str, int, int, bool]] = []  # time, device, size, live, reused
        self.grown = False  # a segment was acquired since the last block


class _Here(threading.local):
    """The notes of this thread."""

    def __init__(self, threads: list[_Notes], number: Callable[[], int]) -> None:
        self.notes = _Notes(number())
        threads.append(self.notes)


class Recorder:
    """Notes ops, phases and allocations of all threads while it is `measuring`."""

    def __init__(self) -> None:
        self._threads: list[_Notes] = []
        self._here = _Here(self._threads, itertools.count().__next__)
        _ = self._here.notes  # so that this thread is number 0
        self._open: Open[Any] = Open()
        self._first: dict[Device, tuple[Any, int]] = {}  # a GPU's first mark, and when it was made
        self._within = False  # the block
        self._start = self._end = perf_counter_ns()

    @contextmanager
    def block(self) -> Iterator[None]:
        """The block of a profile, within which it cannot be read."""
        self._within = True
        try:
            yield
        finally:
            self._within = False

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """Measure the block, or a part of it."""
        self._start = perf_counter_ns()
        try:
            with listen(self):
                yield
        finally:
            self._end = perf_counter_ns()

    # -- noting ------------------------------------------------------------------------------------

    def op_ends(self, event: OpEvent, state: Any = None) -> None:
        """Note a row; on a GPU with its `_Row.state`.

        A row is added by one call of C, so that an interrupt leaves no part of it.
        """
        args, line = event.args, here.instruction
        if event.phase == "backward":
            _, step, g = args
            args = (g, *step.saved)
            code, instruction = line or (None, 0)
            self._here.notes.rows += (
                event.begin, event.end, event.op, "backward", event.module, code, instruction,
                event.number, step.mask, None, None, 0, state, len(args), *_sizes(args))
            return
        op, out, extra = event.op, event.result, 0
        if type(out) is tuple:
            extra = sum(map(_nbytes, out[1:]))
            out = out[0]
        if line is None:
            frame = user_frame(_frame_at(2))
            line = frame.f_code, frame.f_lasti
        flops = op.flops
        self._here.notes.rows += (
            event.begin, event.end, op, here.phase or "forward", event.module, *line, event.number,
            getattr(out, "size", 0), getattr(out, "dtype", None),
            None if flops is None or type(flops) is int else _shapes(args, out), extra, state,
            len(args), *_sizes(args))

    def phase_begins(self, event: object) -> None:
        """Note the time."""
        self._open.push(event, perf_counter_ns())

    module_begins = range_begins = phase_begins

    def phase_ends(self, event: PhaseEvent) -> None:
        """Note a row."""
        self._other("phase", event.name, event)

    def module_ends(self, event: ModuleEvent) -> None:
        """Note a row."""
        self._other("module", event.name, event)

    def range_ends(self, event: RangeEvent) -> None:
        """Note a row."""
        self._other(_KINDS.get(event.category, event.category), event.name, event)

    def _other(self, kind: str, name: str, event: Any) -> None:
        end = perf_counter_ns()
        found = self._open.taken(event)
        if not found:
            return  # it began before this listener
        frame = None if kind == "module" else user_frame(_frame_at(2))  # its ops name lines
        self._here.notes.rows += (
            found[0], end, kind, name, event.module, frame and frame.f_code,
            frame.f_lasti if frame else 0, 0, 0, None, None, 0, None, 0)

    def allocated(self, event: MemoryEvent) -> None:
        """Note a block, and what is live with it."""
        notes = self._here.notes
        resource = get_device(event.device).resource
        notes.blocks.append((perf_counter_ns(), event.device, event.size,
                             0 if resource is None else resource.allocated, not notes.grown))
        notes.grown = False

    def segment(self, event: SegmentEvent) -> None:
        """The next block of this thread is one of new memory."""
        if event.acquired:
            self._here.notes.grown = True

    # -- reading -----------------------------------------------------------------------------------

    def recorded(self) -> Recorded:
        """What was noted; waits for the work that GPUs were given in the block.

        Raises ProfileError within the block.
        """
        if self._within:
            raise ProfileError("the profile was read within its block; wanted after the block")
        found = sorted(
            ((row, sizes, notes) for notes in [*self._threads] for row, sizes in _rows(notes.rows)),
            key=lambda one: (one[0].begin, -one[0].end))
        parents = _parents((notes.number, row.begin, row.end) for row, _, notes in found)
        launched = _own([row.state for row, _, _ in found], parents)
        outer = _outer(found, parents)
        blocks = _blocks(self._threads, found, parents)
        works, places = _Works(), _Places()
        spans: list[Span] = []
        for at, (row, sizes, notes) in enumerate(found):
            is_op = not isinstance(row.op, str)
            link, work = works.of(at, row, sizes, at in outer) if is_op else (None, NOTHING)
            parent = parents[at]
            stream, start, seconds = self._on_device(row.state)
            spans.append(Span(
                name=row.op.name if is_op else row.phase, kind="op" if is_op else row.op,
                phase=row.phase if is_op else "",
                module=row.module or ("" if parent is None else spans[parent].module),
                source=places[row.code, row.instruction], thread=notes.number,
                start=(row.begin - self._start) * 1e-9, seconds=(row.end - row.begin) * 1e-9,
                stream=stream, device_start=start, device_seconds=seconds, launches=launched[at],
                read=work.read, written=work.written, flops=work.flops, **blocks[at],
                link=link, parent=parent))
        live = sorted(((time - self._start) * 1e-9, device, total) for notes in self._threads
                      for time, device, _, total, _ in notes.blocks)
        used = [row.state[0] for row, _, _ in found if row.state]
        return Recorded(spans, live, (self._end - self._start) * 1e-9,
                        machine(used[0] if used else host()))

    def _on_device(self, state: Any) -> tuple[int | None, float | None, float | None]:
        """The stream, begin and duration of an op on a GPU."""
        if state is None or state[2] is None:
            return (None if state is None else state[1]), None, None
        device, stream, begin, end, _ = state
        first, made = self._first[device]
        start = (made - self._start) * 1e-9 + seconds_between(first, begin)
        return stream, start, seconds_between(begin, end)


class GpuRecorder(Recorder):
    """Also notes when a GPU reaches the begin and the end of an op, and what the op launches."""

    def __init__(self) -> None:
        super().__init__()
        self._count = launches()

    def op_begins(self, event: OpEvent) -> None:
        """Record a mark behind the work so far."""
        device = _device_of(event)
        if device.type != "cpu":
            stream, begin = mark(device)
            if begin is not None:
                self._first.setdefault(device, (begin, perf_counter_ns()))
            self._open.push(event, (device, stream, begin, self._count()))

    def op_ends(self, event: OpEvent, state: Any = None) -> None:
        """Record a mark behind the op's work; note a row."""
        for device, stream, begin, count in self._open.taken(event):
            state = device, stream, begin, mark(device)[1], self._count() - count
        super().op_ends(event, state)


def new_recorder() -> Recorder:
    """A recorder for the devices of this machine."""
    return GpuRecorder() if cuda_device_count() else Recorder()


# -- rows ------------------------------------------------------------------------------------------


def _rows(flat: Sequence[Any]) -> Iterator[tuple[_Row, Sequence[int]]]:
    """The rows of a thread, each with the bytes of its arrays."""
    at, flat = 0, [*flat]
    while at < len(flat):
        row = _Row(*flat[at:at + _ROW])
        at += _ROW + row.sizes
        yield row, flat[at - row.sizes:at]


def _parents(times: Iterable[tuple[int, int, int]]) -> list[int | None]:
    """Of thread, begin and end of events in order of their begins: the event around each."""
    around: dict[int, list[tuple[int, int]]] = {}
    found: list[int | None] = []
    for at, (thread, begin, end) in enumerate(times):
        stack = around.setdefault(thread, [])
        while stack and stack[-1][1] <= begin:
            stack.pop()
        found.append(stack[-1][0] if stack else None)
        stack.append((at, end))
    return found


def _outer(found: Sequence[tuple[_Row, Any, _Notes]], parents: Sequence[int | None]) -> set[int]:
    """The events in which there are ops, also within ranges or modules in them."""
    outer: set[int] = set()
    for (row, _, _), parent in zip(found, parents, strict=True):
        if not isinstance(row.op, str):
            while parent is not None and parent not in outer:
                outer.add(parent)
                parent = parents[parent]
    return outer


def _own(states: list[Any], parents: list[int | None]) -> list[int]:
    """What each op launched itself, without ops within it."""
    own = [state[-1] if state else 0 for state in states]
    for state, parent in zip(states, parents, strict=True):
        while state and parent is not None and not states[parent]:
            parent = parents[parent]
        if state and parent is not None:
            own[parent] -= state[-1]
    return own


def _blocks(
    threads: Iterable[_Notes], found: Sequence[tuple[_Row, Any, _Notes]],
    parents: Sequence[int | None],
) -> list[dict[str, int]]:
    """What each event allocated itself."""
    own = [{"allocations": 0, "allocated": 0, "reused": 0} for _ in found]
    of_thread: dict[int, list[int]] = {}
    for place_of, (_, _, notes) in enumerate(found):
        of_thread.setdefault(notes.number, []).append(place_of)
    for notes in threads:
        places = of_thread.get(notes.number, [])
        begins = [found[at][0].begin for at in places]
        for time, _, size, _, reused in notes.blocks:
            k = bisect_right(begins, time) - 1
            at: int | None = places[k] if k >= 0 else None
            while at is not None and found[at][0].end < time:
                at = parents[at]
            if at is not None:
                own[at]["allocations"] += 1
                own[at]["allocated"] += size
                own[at]["reused"] += reused
    return own


class _Works:
    """The work of ops, rules after their paths."""

    def __init__(self) -> None:
        self._paths: dict[int, PathWork] = {}  # by their numbers

    def of(self, at: int, row: _Row, sizes: Sequence[int], is_outer: bool) -> tuple[
            int | None, Work]:
        """The place of a rule's path, and the work; that of an op made of ops is theirs."""
        if row.dtype is not None:
            work = path_work(row.op, sizes, row.size, row.dtype.itemsize, row.extra, row.shapes)
            self._paths[row.number] = PathWork(at, row.op.name, sizes, row.shapes, work)
            return None, NOTHING if is_outer else work
        path = self._paths.get(row.number)
        if path is not None and path.name != row.op.name:
            path = None  # the record's op was made of others
        link = None if path is None else path.at
        if row.phase != "backward" or is_outer:
            return link, NOTHING
        return link, rule_work(row.op, sizes, row.size, path)


class _Places(dict[Any, str]):
    """A user's instruction -> its place as text."""

    def __missing__(self, key: tuple[CodeType | None, int]) -> str:
        code, instruction = key
        self[key] = found = "" if code is None else place(code, instruction)
        return found


# -- arrays ----------------------------------------------------------------------------------------


def _nbytes(x: Any) -> int:
    """Bytes that reading an array touches: elements that are repeated along an axis count once."""
    if type(x) is not _ndarray:
        x = x._array if isinstance(x, Tensor) else x  # in a walk that is recorded
    size: int = getattr(x, "nbytes", 0)
    if size and 0 in getattr(x, "strides", ()):
        return prod(n for n, step in zip(x.shape, x.strides, strict=True) if step) * x.itemsize
    return size


def _sizes(args: Sequence[Any]) -> list[int]:
    return [x.nbytes if type(x) is _ndarray and x.base is None else _nbytes(x) for x in args]


def _shapes(args: Sequence[Any], out: Any) -> list[tuple[int, ...]]:
    return [getattr(x, "shape", ()) for x in (*args, out)]


def _device_of(event: OpEvent) -> Device:
    if event.phase == "backward":
        device: Device = event.args[1].record.device
        return device
    for x in event.args:
        if type(x) is not _ndarray and hasattr(x, "device") and hasattr(x, "nbytes"):
            return device_of(x)
    return getattr(event.op, "device", None) or host()

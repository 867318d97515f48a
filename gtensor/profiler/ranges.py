"""NVTX ranges of ops, modules, phases, memory, data, graphs and collectives (`backend/nvtx.py`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gtensor.backend import nvtx
from gtensor.profiler.open_events import Open
from gtensor.settings import settings
from gtensor.system.bus import (
    ModuleEvent,
    OpEvent,
    PhaseEvent,
    RangeEvent,
    Registered,
    SegmentEvent,
    ShortageEvent,
    WaitEvent,
    bus,
    here,
    listen,
)

_PHASES = {"": "forward", "backward": "backward", "update": "optimizer"}


class Ranges:
    """A listener that opens and closes NVTX ranges. A profiler must be attached.

    | event | label | category | payload |
    |---|---|---|---|
    | op | module, name, "forward" or "backward" | forward, backward, optimizer | bytes it reads |
    | module | its path | forward, or backward if it is run again there | |
    | phase | "backward", "Adam update" | backward, optimizer | |
    | range | its name | its own | its own |
    | segment, shortage, wait | "segment acquired", "short of memory: borrow" | memory | bytes |

    Those of the last row begin and end at once.

    Args:
        shapes: with the shapes of the arrays given, in the labels of ops.
    """

    def __init__(self, shapes: bool = False) -> None:
        self._shapes = shapes
        self._open: Open[None] = Open()

    def op_begins(self, event: OpEvent) -> None:
        """Open a range."""
        module = event.module + " " if event.module else ""
        arrays = event.arrays
        nvtx.push(_PHASES[here.phase] if event.phase == "forward" else "backward",
                  f"{module}{event.name} {event.phase}", sum(x.nbytes for x in arrays),
                  " ".join(str(x.shape) for x in arrays) if self._shapes else "")
        self._open.push(event, None)  # last: no end is told of a begin that raised

    def module_begins(self, event: ModuleEvent) -> None:
        """Open a range."""
        nvtx.push(_PHASES[here.phase], event.name)
        self._open.push(event, None)

    def phase_begins(self, event: PhaseEvent) -> None:
        """Open a range."""
        of = event.module + " " if event.name == "update" else ""
        nvtx.push(_PHASES[event.name], of + event.name)
        self._open.push(event, None)

    def range_begins(self, event: RangeEvent) -> None:
        """Open a range."""
        nvtx.push(event.category, event.name, event.payload)
        self._open.push(event, None)

    def op_ends(self, event: object) -> None:
        """Close the event's range."""
        for _ in self._open.pop(event):
            nvtx.pop()

    module_ends = phase_ends = range_ends = op_ends

    def segment(self, event: SegmentEvent) -> None:
        """An empty range."""
        _mark("segment acquired" if event.acquired else "segment released", event.nbytes)

    def short_of_memory(self, event: ShortageEvent) -> None:
        """An empty range."""
        _mark(f"short of memory: {event.step}", event.nbytes)

    def waited(self, event: WaitEvent) -> None:
        """An empty range."""
        _mark("stream waits")

    def close(self) -> None:
        """Close the ranges of this thread whose ends were not told."""
        while self._open.stack:
            self._open.stack.pop()
            nvtx.pop()


def _mark(label: str, nbytes: int | None = None) -> None:
    nvtx.push("memory", label, nbytes)
    nvtx.pop()


@contextmanager
def nvtx_ranges(shapes: bool = False) -> Iterator[None]:
    """NVTX ranges in the block, e.g. "Net.first linear forward" for an op; see `Ranges`.

    Nothing listens without a profiler, with `settings.nvtx = 0`, and where ranges are on for the
    whole program (`settings.nvtx` of 1 or 2).

    Args:
        shapes: with the shapes of arrays, in the labels of ops.
    """
    if settings.nvtx >= 0 or not nvtx.attached():
        yield
        return
    ranges = Ranges(shapes)
    try:
        with listen(ranges):
            yield
    finally:
        ranges.close()


class _Program:
    """The ranges of the whole program: of `settings.nvtx` 1 and 2."""

    ranges: Ranges | None = None
    registered: Registered | None = None


def switch(mode: int) -> None:
    """Begin or end the ranges of the whole program, as `settings.nvtx` now says."""
    if _Program.registered is not None and _Program.ranges is not None:
        bus.remove(_Program.registered)
        _Program.ranges.close()
        _Program.ranges = _Program.registered = None
    if mode > 0 and nvtx.attached():
        _Program.ranges = Ranges(shapes=mode > 1)
        _Program.registered = Registered(_Program.ranges)
        bus.add(_Program.registered)

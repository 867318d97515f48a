"""The steps for a request that its own free list cannot serve, in order.

Each step makes room, then calls `Segments.take`, which tries the free list, retired chunks, other
streams' memory and a new segment. The first step makes no room. The next ones release free segments
(as many as needed, then all), collect garbage, and wait for the streams that use retired chunks.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Protocol, TypeVar

from gtensor.memory.arena.segments import NoRoom, Segments
from gtensor.memory.arena.streams import Streams

Held = TypeVar("Held")


class Changing(Protocol):
    """The type of `Arena._changing`."""

    def __call__(self, work: Callable[[bool], Held]) -> Held: ...


class OutOfMemorySteps:
    """The steps over an arena's segments; `changing` holds the arena's lock during a step."""

    def __init__(self, segments: Segments, streams: Streams, changing: Changing) -> None:
        self._segments = segments
        self._streams = streams
        self._changing = changing
        self._steps = (("", None), ("release", self._make_room), ("release", self._release),
                       ("collect", self._collect), ("wait", self._wait))

    def run(self, size: int, attempt: Callable[[bool], Held]) -> Held:
        """The result of `attempt`, called under the lock. Raises NoRoom as its last call did."""
        why = ""
        for step, makes_room in self._steps:
            if makes_room is None or makes_room(size):
                if makes_room is not None:
                    self._segments.tell_short(size, step)
                try:
                    return self._changing(attempt)
                except NoRoom as error:
                    why = str(error)
        if self._streams.capturing:
            why += "; nothing is released or waited for while a graph is captured"
        self._segments.tell_short(size, "fail")
        raise NoRoom(why)

    def _make_room(self, size: int) -> bool:
        return self._changing(lambda _: self._segments.make_room(size) > 0)

    def _release(self, size: int) -> bool:
        return self._changing(lambda _: self._segments.release() > 0)

    def _collect(self, size: int) -> bool:
        gc.collect()
        self._release(size)
        return True

    def _wait(self, size: int) -> bool:
        waits = self._changing(lambda _: self._streams.count > 0 and self._streams.synchronize())
        if waits:
            self._release(size)
        return waits

"""What is tried for a request that its own free list cannot serve, in order.

Each rung is one look at everything `Reserve.take` knows: the free list again, retired chunks, other
streams' memory, a new segment. Between two looks something may make room: free segments go back to
the source (as many as are needed, then all), garbage is collected, and last the streams that hold
retired chunks are waited for.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Protocol, TypeVar

from gtensor.memory.reserve import Reserve
from gtensor.memory.streams import Streams

Held = TypeVar("Held")


class Changing(Protocol):
    """`Arena._changing`: runs some work under the lock."""

    def __call__(self, work: Callable[[bool], Held]) -> Held: ...


class Ladder:
    """The rungs over one reserve; `changing` takes the arena's lock for a rung."""

    def __init__(self, reserve: Reserve, streams: Streams, changing: Changing) -> None:
        self._reserve = reserve
        self._streams = streams
        self._changing = changing

    def climb(self, size: int, attempt: Callable[[bool], Held | str]) -> Held | str:
        """What `attempt` makes, under the lock, of `size` bytes; or why there are none."""
        why = ""
        for rung in (None, self._make_room, self._release, self._collect, self._wait):
            if rung is not None and not rung(size):
                continue
            found = self._changing(attempt)
            if not isinstance(found, str):
                return found
            why = found
        if self._streams.capturing:
            why += "; nothing goes back or is waited for while a graph is captured"
        return why

    def _make_room(self, size: int) -> bool:
        return self._changing(lambda _: self._reserve.make_room(size) > 0)

    def _release(self, size: int) -> bool:
        return self._changing(lambda _: self._reserve.release() > 0)

    def _collect(self, size: int) -> bool:
        gc.collect()
        self._release(size)
        return True

    def _wait(self, size: int) -> bool:
        if not self._changing(lambda _: self._synchronize()):
            return False
        self._release(size)
        return True

    def _synchronize(self) -> bool:
        if not self._streams.count or self._streams.capturing:
            return False
        self._streams.synchronize()
        return True

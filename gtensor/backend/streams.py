"""Streams and events: the interface for the arena and the engine.

It has three implementations: `HostStream` (NumPy is synchronous, so every event is done when it is
recorded), `CudaStream` in `cuda_streams.py`, and `SimulatedStream`, on which a test decides when
work completes.
"""

from __future__ import annotations

import itertools
from collections import deque
from typing import Protocol


class Event(Protocol):
    """A point in a stream's work."""

    def done(self) -> bool:
        """True once all work recorded before the event has completed; never blocks."""

    def synchronize(self) -> None:
        """Block until the event is done."""


class Stream(Protocol):
    """An ordered queue of work. `id` is never reused, unlike a driver handle."""

    @property
    def id(self) -> int: ...

    def record(self) -> Event:
        """An event behind all work queued so far."""

    def wait(self, event: Event) -> None:
        """Let work queued from now on start only after `event`."""

    def synchronize(self) -> None:
        """Block until all queued work has completed."""

    def __enter__(self) -> Stream: ...

    def __exit__(self, *exception: object) -> None: ...


class HostEvent:
    """An event of the CPU, which is always done."""

    def done(self) -> bool:
        return True

    def synchronize(self) -> None:
        return None


class HostStream:
    """The one stream of the CPU; as a `with` block it changes nothing."""

    id = 0

    def __enter__(self) -> HostStream:
        return self

    def __exit__(self, *exception: object) -> None:
        return None

    def record(self) -> HostEvent:
        return HostEvent()

    def wait(self, event: Event) -> None:
        event.synchronize()

    def synchronize(self) -> None:
        return None


class SimulatedEvent:
    """Done when the simulated stream has completed the work in front of it, and its waits."""

    def __init__(self, stream: SimulatedStream, position: int, waits: tuple[Event, ...]) -> None:
        self.stream = stream
        self.position = position
        self._waits = waits
        self._done = False  # cached: events that wait for each other form exponentially many paths

    def done(self) -> bool:
        if not self._done:
            self._done = (self.stream.completed >= self.position
                          and all(event.done() for event in self._waits))
        return self._done

    def synchronize(self) -> None:
        if not self._done:
            self.stream.run_to(self.position)
            for event in self._waits:
                event.synchronize()
            self._done = True


class SimulatedStream:
    """A stream for tests: `launch` queues work, `step` completes the oldest unless it must wait."""

    _ids = itertools.count(1)

    def __init__(self) -> None:
        self.id = next(self._ids)
        self.launched = 0
        self.completed = 0
        self._waits: deque[tuple[int, Event]] = deque()  # (position before which to wait, event)

    def launch(self) -> None:
        """Queue one unit of work."""
        self.launched += 1

    def step(self) -> bool:
        """Complete the oldest unit of work; False if there is none or it waits for an event."""
        if self.completed == self.launched:
            return False
        while self._waits and self._waits[0][0] <= self.completed:
            if not self._waits[0][1].done():
                return False
            self._waits.popleft()
        self.completed += 1
        return True

    def run_to(self, position: int) -> None:
        """Complete work up to `position`, and first the work of other streams that it waits for."""
        while self.completed < position:
            if not self.step():
                self._waits[0][1].synchronize()

    def __enter__(self) -> SimulatedStream:
        return self

    def __exit__(self, *exception: object) -> None:
        return None

    def record(self) -> SimulatedEvent:
        return SimulatedEvent(self, self.launched, tuple(event for _, event in self._waits))

    def wait(self, event: Event) -> None:
        self._waits.append((self.launched, event))

    def synchronize(self) -> None:
        self.run_to(self.launched)

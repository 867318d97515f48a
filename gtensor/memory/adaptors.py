"""Adaptors: resources that hold another one as `upstream` and add one thing to it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from time import perf_counter_ns
from typing import NamedTuple

from gtensor.memory.resource import Block, OutOfMemoryError, Resource, Stats

_category: ContextVar[str] = ContextVar("gtensor memory category", default="")


@contextmanager
def category(name: str) -> Iterator[None]:
    """Blocks made within are of this category in timelines, e.g. "parameters" or "gradients"."""
    token = _category.set(name)
    try:
        yield
    finally:
        _category.reset(token)


class Adaptor:
    """Passes everything on to `upstream`. Blocks it hands out report their free to it."""

    def __init__(self, upstream: Resource) -> None:
        self.upstream = upstream

    @property
    def allocated(self) -> int:
        return self.upstream.allocated

    def allocate(self, nbytes: int, stream: int = 0, label: str = "") -> Block:
        block = self.upstream.allocate(nbytes, stream, label)
        block.owner = self
        return block

    def deallocate(self, block: Block) -> None:
        self.upstream.deallocate(block)

    def stats(self) -> Stats:
        return self.upstream.stats()

    def reset_peak(self) -> None:
        self.upstream.reset_peak()

    def set_limit(self, nbytes: int | None) -> None:
        self.upstream.set_limit(nbytes)

    def empty_cache(self) -> int:
        return self.upstream.empty_cache()


class Event(NamedTuple):
    """One allocation or free.

    `time` in seconds from the start of the timeline, `delta` in bytes (negative for a free),
    `allocated` the live bytes after it, `serial` the block's number.
    """

    time: float
    delta: int
    allocated: int
    label: str
    category: str
    serial: int


class Timeline(Adaptor):
    """Records every allocation and free until `close`, the latest `most` of them.

    `allocated` of an event counts all live blocks, also those made before the timeline; the free of
    such a block is no event of its own, it shows in `allocated` of the next.
    """

    def __init__(self, upstream: Resource, most: int = 1_000_000) -> None:
        super().__init__(upstream)
        self.recorded = 0  # events so far, also those no longer kept
        self._start = perf_counter_ns()
        self._open = True
        self._events: deque[tuple[int, int, int, str, str, int]] = deque(maxlen=most)
        self._categories: dict[int, str] = {}

    @property
    def events(self) -> list[Event]:
        """What is recorded so far, oldest first."""
        return [Event((event[0] - self._start) * 1e-9, *event[1:])
                for event in tuple(self._events)]

    def allocate(self, nbytes: int, stream: int = 0, label: str = "") -> Block:
        block = super().allocate(nbytes, stream, label)
        if self._open:
            made_for = self._categories[block.serial] = _category.get()
            self._record(block.size, label, made_for, block.serial)
        return block

    def deallocate(self, block: Block) -> None:
        super().deallocate(block)
        if self._open:
            made_for = self._categories.pop(block.serial, "")
            self._record(-block.size, block.label, made_for, block.serial)

    def close(self) -> None:
        """Record no more. Blocks handed out so far stay valid."""
        self._open = False
        self._categories.clear()

    def _record(self, delta: int, label: str, made_for: str, serial: int) -> None:
        self.recorded += 1
        self._events.append(
            (perf_counter_ns(), delta, self.upstream.allocated, label, made_for, serial))


class Failing(Adaptor):
    """Refuses the given allocations (1 is the first), for tests of what happens then."""

    def __init__(self, upstream: Resource, *calls: int) -> None:
        super().__init__(upstream)
        self.calls = 0
        self._refused = frozenset(calls)

    def allocate(self, nbytes: int, stream: int = 0, label: str = "") -> Block:
        self.calls += 1
        if self.calls in self._refused:
            raise OutOfMemoryError(f"allocation {self.calls} was told to fail", nbytes)
        return super().allocate(nbytes, stream, label)

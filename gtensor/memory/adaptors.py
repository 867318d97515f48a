"""Adaptors: resources that hold another one as `upstream` and add one thing to it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import get_ident
from typing import Any
from weakref import WeakSet

from gtensor.memory.resource import Block, OutOfMemoryError, Resource, Stats

_category: ContextVar[str] = ContextVar("gtensor memory category", default="")
current_category = _category.get


@contextmanager
def category(name: str) -> Iterator[None]:
    """Blocks made within are of this category in timelines, e.g. "parameters" or "gradients"."""
    token = _category.set(name)
    try:
        yield
    finally:
        _category.reset(token)


class Adaptor:
    """Passes everything on to `upstream`. Blocks it hands out report their free to it.

    `no_capture` names what is under way, if no capture of a graph may begin within it.
    """

    no_capture = ""

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

    def record_use(self, block: Block, stream: int) -> None:
        self.upstream.record_use(block, stream)

    def stats(self) -> Stats:
        return self.upstream.stats()

    def reset_peak(self) -> None:
        self.upstream.reset_peak()

    def set_limit(self, nbytes: int | None) -> None:
        self.upstream.set_limit(nbytes)

    def empty_cache(self) -> int:
        return self.upstream.empty_cache()


def down_from(resource: Any) -> Iterator[Any]:
    """A resource and all those below it; nothing for None."""
    while resource is not None:
        yield resource
        resource = getattr(resource, "upstream", None)


class Captured(Adaptor):
    """Stands over a device's resource while a thread captures its work into a graph.

    `blocks` are those of the capture that somebody holds. `thread`, None once the capture is over,
    gets no memory of other streams: nobody could keep it for the graph. Others are served as ever.
    """

    no_capture = "another capture"

    def __init__(self, upstream: Resource, stream: int) -> None:
        super().__init__(upstream)
        self.stream = stream
        self.thread: int | None = get_ident()
        self.blocks: WeakSet[Block] = WeakSet()

    def allocate(self, nbytes: int, stream: int = 0, label: str = "") -> Block:
        if get_ident() != self.thread:
            return self.upstream.allocate(nbytes, stream, label)
        if stream != self.stream:
            raise RuntimeError(f"memory for stream {stream} was asked for in the middle of a "
                               f"capture on stream {self.stream}; wanted all work of the capture "
                               "on its own stream")
        block = self.upstream.allocate(nbytes, stream, label)
        self.blocks.add(block)
        return block


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

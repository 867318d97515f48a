"""Adaptors: resources that hold another one as `upstream` and add one thing to it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

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

"""The pools of an arena: by stream, by graph, and those of ended streams and graphs.

A stream has a pool for large requests and, where small ones are kept apart, one for those. Graphs
(`graphs.py`) have pools of their own, under numbers below those of streams; until such a pool is
forgotten it serves only captures into it, and its segments are not released. The pools of a
forgotten stream or graph are orphans, with their blocks in use, until another stream inherits them.

The caller holds the arena's lock, except where a function says that it needs none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import count
from typing import NamedTuple

from gtensor.memory.arena.chunks import Segment
from gtensor.memory.arena.free_lists import BlockPool

_LARGE = 64 << 20  # a free segment up to this size may change pools for any smaller request
FIRST_PRIVATE = -2  # the number of the first pool for graphs; the next ones count down


class Orphan(NamedTuple):
    """The pool of an ended stream or graph, and the pools (`large` or `small`) of its heir."""

    pool: BlockPool
    kind: dict[int, BlockPool]


class Capture:
    """The memory of a capture, and of its replays as long as this object is referenced.

    While it is in progress `left` are the pools of streams and graphs that ended before it; its
    replays wait for their work. `addresses` were joined for its blocks: they stay mapped.
    """

    __slots__ = ("__weakref__", "addresses", "left")

    def __init__(self, left: list[Orphan]) -> None:
        self.left = left
        self.addresses: set[int] = set()


class Pools:
    """All pools of an arena; `new` makes one for a stream or a number of graphs.

    Requests up to `small` bytes have pools of their own (0: none have).
    """

    def __init__(self, new: Callable[[int], BlockPool], small: int) -> None:
        self._new = new
        self._private_numbers = count(FIRST_PRIVATE, -1)
        self.most_small = small
        self.large: dict[int, BlockPool] = {}
        self.small: dict[int, BlockPool] = {}
        self.private: dict[int, tuple[BlockPool, BlockPool]] = {}  # of graphs: for large, for small
        self.orphans: list[Orphan] = []

    def all(self) -> list[BlockPool]:
        """Every pool."""
        return [*self.shared(), *self._of_graphs()]

    def shared(self) -> list[BlockPool]:
        """The pools whose free memory may serve other streams or be released: all but graphs'."""
        return [pool for pool in (*self.large.values(), *self.small.values(),
                                  *(orphan.pool for orphan in tuple(self.orphans)))
                if pool.stream not in self.private]

    def _of_graphs(self) -> list[BlockPool]:
        return [pool for pair in tuple(self.private.values()) for pool in pair]

    def of(self, stream: int, size: int) -> BlockPool:
        """The pool that serves requests of that size on that stream."""
        return self.heir(stream, self.kind(size))

    def heir(self, stream: int, kind: dict[int, BlockPool]) -> BlockPool:
        """A stream's pool among those of one kind; made if it has none."""
        pool = kind.get(stream)
        return kind.setdefault(stream, self._new(stream)) if pool is None else pool

    def others(self, stream: int, size: int) -> list[BlockPool]:
        """The pools that serve requests of that size on other streams."""
        return [pool for pool in tuple(self.kind(size).values()) if pool.stream != stream]

    def kind(self, size: int) -> dict[int, BlockPool]:
        """The pools by stream that serve requests of that size."""
        return self.small if size <= self.most_small else self.large

    def private_bytes(self) -> int:
        """Bytes of the segments that belong to graphs."""
        return bytes_of(self._of_graphs())

    def open_private(self) -> int:
        """The number of a new pool for graphs; `forget` ends it. Needs no lock."""
        number = next(self._private_numbers)
        self.private[number] = self._new(number), self._new(number)
        return number

    def forget(self, stream: int) -> None:
        """The stream, or a pool of graphs, has ended: the next request inherits its pools."""
        kinds = self.large, self.small
        own = self.private.get(stream) or [kind.get(stream) for kind in kinds]
        left = [Orphan(pool, kind) for pool, kind in zip(own, kinds, strict=True)
                if pool is not None and pool.segments]
        self.orphans = [*self.orphans, *left]  # stores
        if stream in self.private:
            del self.private[stream]
        else:
            if stream in self.large:
                del self.large[stream]
            if stream in self.small:
                del self.small[stream]

    def forget_empty(self) -> None:
        """Forget the orphans without segments."""
        self.orphans = [orphan for orphan in self.orphans if orphan.pool.segments]


def smallest_free(size: int, pools: list[BlockPool]) -> Segment | None:
    """The smallest free segment for a request that is not far larger than it."""
    return min((segment for pool in pools for segment in pool.free_segments()
                if size <= segment.size <= max(2 * size, _LARGE)),
               key=lambda segment: segment.size, default=None)


def bytes_of(pools: Iterable[BlockPool]) -> int:
    """Bytes of the pools' segments."""
    return sum(segment.size for pool in pools for segment in pool.segments.values())

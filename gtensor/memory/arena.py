"""The arena: blocks cut from large segments, reused without asking the system again.

One pool of chunks per stream: a block belongs to the stream it was allocated on, and its bytes
serve only that stream again. One lock guards the pools. A free never waits for it: garbage
collection may free a block in the middle of an allocation, of this thread or another. A free that
does not get the lock is left in `_pending`, and whoever holds the lock settles it.
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import RLock

from gtensor.memory import report
from gtensor.memory.blocks import BlockPool, Chunk, Segment
from gtensor.memory.resource import Block, OutOfMemoryError, Stats
from gtensor.memory.segments import SegmentSource, segment_sizes


class Arena:
    """A `Resource` over a segment source. `name` stands in reports, e.g. the device's.

    A chunk is split if at least `min_remainder` bytes are left over (default: 8 granules).
    """

    def __init__(self, source: SegmentSource, name: str = "memory",
                 min_remainder: int | None = None) -> None:
        self.source = source
        self.name = name
        self.limit: int | None = None
        self._round = source.granularity - 1
        self._mask = -source.granularity
        self._min_remainder = 8 * source.granularity if min_remainder is None else min_remainder
        self._pools: dict[int, BlockPool] = {}
        self._lock = RLock()
        self._busy = False  # the thread that holds the lock is changing the pools
        self._pending: deque[Chunk] = deque()  # chunks to free, and segments to take over
        self._allocated = 0
        self._active = 0
        self._reserved = 0
        self._peak_allocated = 0
        self._peak_reserved = 0
        self._serial = 0
        self._misses = 0

    @property
    def allocated(self) -> int:
        """Bytes of live blocks, as in `Stats`."""
        if self._pending:
            self._settle()
        return self._allocated

    def allocate(self, nbytes: int, stream: int = 0, label: str = "") -> Block:
        """A block of `nbytes` bytes (at least one granule) for work on the stream with that id.

        Raises OutOfMemoryError when neither cached memory nor the source has room, even after
        cached segments went back and garbage was collected; ValueError if `nbytes` is negative.
        """
        size = (nbytes + self._round) & self._mask
        if size <= 0:
            if nbytes < 0:
                raise ValueError(f"a block of {nbytes} bytes was asked for; wanted 0 or more")
            size = -self._mask
        chunk = None
        with self._lock:
            if self._busy:
                return self._allocate_aside(size, nbytes, stream, label)
            self._busy = True
            try:
                if self._pending:
                    self._drain()
                pool = self._pools.get(stream)
                if pool is not None:
                    chunk = pool.take(size)
                    if chunk is not None:  # what `_hold` does, without the call
                        chunk.used = size
                        chunk.nbytes = nbytes
                        chunk.label = label
                        self._active += chunk.size
                        self._allocated = allocated = self._allocated + size
                        if allocated > self._peak_allocated:
                            self._peak_allocated = allocated
                        self._serial = serial = self._serial + 1
            finally:
                self._busy = False
        if chunk is None:
            chunk, serial = self._grow(size, nbytes, stream, label)
        if self._pending:
            self._settle()
        return Block(self, chunk, chunk.ptr, size, nbytes, label, stream, serial)

    def deallocate(self, block: Block) -> None:
        """Take a block's bytes back, or leave them to the lock's holder. Never waits."""
        chunk = block.node
        if chunk is None:
            return
        block.node = None
        lock = self._lock
        if lock.acquire(False):
            try:
                if self._busy:
                    self._pending.append(chunk)
                else:
                    self._busy = True
                    try:
                        used = chunk.used
                        size = chunk.size
                        chunk.pool.give(chunk)
                        self._allocated -= used
                        self._active -= size
                    finally:
                        self._busy = False
            finally:
                lock.release()
        else:
            self._pending.append(chunk)
        if self._pending:
            self._settle()

    def stats(self) -> Stats:
        """The counters now, over all streams."""
        with self._changing():
            pools = tuple(self._pools.values())
            free = self._reserved - self._active
            largest = max((pool.largest_free() for pool in pools), default=0)
            return Stats(
                allocated=self._allocated,
                reserved=self._reserved,
                active=self._active,
                peak_allocated=self._peak_allocated,
                peak_reserved=self._peak_reserved,
                hits=self._serial - self._misses,
                misses=self._misses,
                segments=sum(len(pool.segments) for pool in pools),
                fragmentation=1 - largest / free if free else 0.0,
            )

    def reset_peak(self) -> None:
        """Let both peaks start again from what is in use now."""
        with self._changing():
            self._peak_allocated = self._allocated
            self._peak_reserved = self._reserved

    def set_limit(self, nbytes: int | None) -> None:
        """Hold at most `nbytes` bytes of segments from now on; None lifts the limit.

        What is reserved beyond a new limit goes back as far as its segments are free; live blocks
        stay, and no segment is added until there is room below the limit.
        """
        if nbytes is not None and nbytes < 0:
            raise ValueError(f"a limit of {nbytes} bytes was given; wanted 0 or more, or None")
        self.limit = nbytes
        if nbytes is not None and self._reserved > nbytes:
            self.empty_cache()

    def empty_cache(self) -> int:
        """Return segments without a live block to the source; the bytes returned."""
        returned = 0
        with self._changing() as allowed:
            if not allowed:
                return 0
            for pool in tuple(self._pools.values()):
                for segment in pool.drop_free():
                    self._reserved -= segment.size
                    returned += segment.size
                    self.source.release(segment.ptr, segment.size)
        return returned

    def holdings(self) -> list[report.Holding]:
        """Every live block: bytes requested, and the op that made it."""
        with self._changing() as allowed:
            if not allowed:
                return []
            return [report.Holding(chunk.nbytes, chunk.label)
                    for pool in tuple(self._pools.values()) for chunk in pool.live()]

    def summary(self) -> str:
        """The counters and the ops that hold most, as a table."""
        return report.summary_text(self.name, self.stats(), self.limit, self.holdings())

    def _grow(self, size: int, nbytes: int, stream: int, label: str) -> tuple[Chunk, int]:
        """The way of a request that the free lists cannot serve: what else is tried, in order."""
        why = ""
        remedies: tuple[Callable[[], int] | None, ...] = (
            None, self.empty_cache, gc.collect, self.empty_cache)
        for remedy in remedies:
            if remedy is not None:
                remedy()
            with self._changing():
                pool = self._pool(stream)
                chunk = pool.take(size)
                if chunk is None:
                    segment = self._new_segment(pool, size)
                    if isinstance(segment, str):
                        why = segment
                        continue
                    pool.add(segment)
                    pool.give(segment.right)
                    chunk = pool.take(size)
                    assert chunk is not None
                    self._drain()  # what was freed meanwhile is not part of a new peak
                return chunk, self._hold(chunk, size, nbytes, label)
        raise OutOfMemoryError(report.out_of_memory_text(
            self.name, nbytes, label, why, self.stats(), self.holdings()), nbytes)

    def _new_segment(self, pool: BlockPool, size: int, tight: bool = False) -> Segment | str:
        """A segment with room for `size` bytes, the smallest if `tight`; or why there is none."""
        why = ""
        sizes = segment_sizes(size, self._reserved, self.source.page)
        for wanted in sizes[-1:] if tight else sizes:
            if self.limit is not None and self._reserved + wanted > self.limit:
                why = f"the limit is {report.size_text(self.limit)}"
                continue
            try:
                ptr = self.source.acquire(wanted)
            except MemoryError as error:
                why = str(error)
                continue
            self._misses += 1
            self._reserved += wanted
            self._peak_reserved = max(self._peak_reserved, self._reserved)
            return Segment(pool, ptr, wanted)
        return why

    def _allocate_aside(self, size: int, nbytes: int, stream: int, label: str) -> Block:
        """A block for code that interrupts this very thread while it changes the pools.

        A signal handler or a finalizer that makes an array must neither wait for its own thread
        nor touch the pools. It gets a segment of its own, which joins its pool when that is whole.
        """
        segment = self._new_segment(self._pool(stream), size, tight=True)
        if isinstance(segment, str):
            raise OutOfMemoryError(
                f"out of memory on {self.name}: {report.size_text(nbytes)} wanted in the middle of "
                f"another allocation, but {segment}", nbytes)
        self._pending.append(segment)
        chunk = segment.right
        serial = self._hold(chunk, size, nbytes, label)
        return Block(self, chunk, chunk.ptr, size, nbytes, label, stream, serial)

    def _pool(self, stream: int) -> BlockPool:
        pool = self._pools.get(stream)
        if pool is None:
            pool = self._pools.setdefault(stream, BlockPool(-self._mask, self._min_remainder))
        return pool

    def _hold(self, chunk: Chunk, size: int, nbytes: int, label: str) -> int:
        """Count a chunk as a block's; the block's serial number."""
        chunk.used = size
        chunk.nbytes = nbytes
        chunk.label = label
        self._active += chunk.size
        self._allocated += size
        self._peak_allocated = max(self._peak_allocated, self._allocated)
        self._serial += 1
        return self._serial

    @contextmanager
    def _changing(self) -> Iterator[bool]:
        """Hold the pools with nothing pending; False if this very thread is changing them."""
        try:
            with self._lock:
                if self._busy:
                    yield False
                    return
                self._busy = True
                try:
                    self._drain()
                    yield True
                finally:
                    self._busy = False
        finally:
            if self._pending:
                self._settle()

    def _settle(self) -> None:
        """Free what is pending, unless a holder of the lock will.

        A free is appended before the lock is tried, and a holder looks at `_pending` again after it
        let the lock go: one of the two sees it, so no free is lost.
        """
        while self._pending and self._lock.acquire(False):
            try:
                if self._busy:
                    return
                self._busy = True
                try:
                    self._drain()
                finally:
                    self._busy = False
            finally:
                self._lock.release()

    def _drain(self) -> None:
        """Settle what is pending; the caller holds the lock."""
        while self._pending:
            chunk = self._pending.popleft()
            if isinstance(chunk, Segment):
                chunk.pool.add(chunk)
                continue
            used, size = chunk.used, chunk.size
            chunk.pool.give(chunk)
            self._allocated -= used
            self._active -= size

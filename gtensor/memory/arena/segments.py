"""The memory behind an arena: its segments, the pools that cut them, growth and release.

Every segment belongs to one pool, and every pool to one stream. A chunk borrowed by another stream
stays in its segment; the borrower waits for the owner, and the chunk is retired at its free like
any other that a foreign stream used. So free neighbours always join. A whole segment changes pools
only while it is entirely free.

**Memory of other streams.** A stream whose own pool has no fit takes from others before a new
segment is acquired: a free segment that is not far larger, which changes pools, else a part of one.
That costs an event and no memory, but the stream waits for the owner in every iteration; so after
`MOST_TAKEN` takings it gets a segment of its own if there is room. The pools of ended streams, with
their blocks in use, go to the first stream that needs memory.

**The stitcher** (`stitched.py`; None without virtual memory) joins scattered free pages. So only
the pages that a request lacks are acquired, behind a segment where possible, and only when no other
stream has free memory.

A full release also releases the free pages of segments partly in use, where the source can take
them: pages of virtual memory, 256 KiB of the host.

The caller holds the arena's lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, TypeAlias

from gtensor.backend.streams import Stream
from gtensor.memory.arena.chunks import Chunk, Segment
from gtensor.memory.arena.free_lists import BlockPool, give_all
from gtensor.memory.arena.pools import Capture, Orphan, Pools, bytes_of, smallest_free
from gtensor.memory.arena.streams import Streams
from gtensor.memory.contract import report
from gtensor.memory.contract.resource import Stats
from gtensor.memory.sources import HUGE_PAGE, SegmentSource, segment_sizes
from gtensor.memory.sources.base import round_up
from gtensor.system.bus import SegmentEvent, ShortageEvent, bus, tell_aside

Stitcher: TypeAlias = Any  # of stitched, which imports this

MOST_TAKEN = 16
SMALL_SEGMENT = HUGE_PAGE

Aside = Callable[[Segment], object]


class NoRoom(MemoryError):
    """No free memory serves a request, and no segment can be had; the message says why."""


class Segments:
    """Segments from one source, in one pool per stream, and one more for small requests.

    `small`: requests up to this many bytes are cut from separate segments, so that a long-lived
    small block never splits a large segment (0: no such distinction).
    """

    def __init__(self, source: SegmentSource, streams: Streams, min_remainder: int,
                 small: int, stitcher: Stitcher | None) -> None:
        self.source = source
        self.stitcher = stitcher
        self.streams = streams
        self.limit: int | None = None
        self.reserved = 0
        self.peak = 0
        self.misses = 0
        self.borrowed = 0
        page = 0 if stitcher is None else stitcher.page
        self._part: int = page or getattr(source, "part", 0)  # bytes that can be released alone
        self.pools = Pools(
            lambda stream: BlockPool(source.granularity, min_remainder, stream, page), small)
        self.captures: dict[int, Capture] = {}  # captures in progress, by pool of graphs

    def stats(self, allocated: int, peak_allocated: int, active: int, requests: int) -> Stats:
        """All counters, with those of the arena."""
        pools = self.pools.all()
        pending = self.streams.nbytes
        free = self.reserved - active - pending
        largest = max((pool.largest_free() for pool in pools), default=0)
        return Stats(
            allocated=allocated,
            reserved=self.reserved,
            active=active,
            peak_allocated=peak_allocated,
            peak_reserved=self.peak,
            hits=requests - self.misses,
            misses=self.misses,
            segments=sum(len(pool.segments) for pool in pools),
            fragmentation=1 - largest / free if free else 0.0,
            pending=pending,
            borrowed=self.borrowed,
            private=self.pools.private_bytes(),
        )

    def take(self, size: int, stream: int) -> Chunk:
        """A chunk for a request that its free list cannot serve. Raises NoRoom."""
        pool = self.pools.of(stream, size)
        chunk = (pool.take(size) or self.streams.claim(size, stream, self.pools.private)
                 or self._composed(pool, size))
        if chunk is not None:
            return chunk
        ordered = self.streams.may_order(stream)
        if self.pools.orphans and pool.stream not in self.pools.private and self._inherit(stream):
            chunk = self._composed(pool, size)
        if chunk is None and ordered and pool.taken < MOST_TAKEN:
            chunk = self._from_others(pool, size, self.pools.others(stream, size))
        if chunk is None and pool.stream in self.captures:
            chunk = self._from_orphans(pool, size, self.captures[pool.stream].left)
        if chunk is not None:
            return chunk
        if self.stitcher is not None and self.stitcher.extend(self, pool, size):
            pool.taken = 0
            if chunk := pool.take(size) or self._composed(pool, size):
                return chunk
        try:
            self.grow(stream, size)
        except NoRoom:  # any free chunk
            chunk = self._from_others(pool, size, [
                other for other in self.pools.all()
                if other is not pool and (other.stream == pool.stream or (
                    ordered and other.stream not in self.pools.private))])
            if chunk is None:
                raise
            return chunk
        pool.taken = 0
        chunk = pool.take(size, breaking=True)
        assert chunk is not None  # of the new segment
        return chunk

    def grow(self, stream: int, size: int, aside: Aside | None = None) -> Segment:
        """A new free segment with room for `size` bytes. Raises NoRoom.

        With `aside` the pools are not changed: it receives the smallest such segment, which is in
        no pool yet and counts as in use.
        """
        why = ""
        pool = self.pools.of(stream, size)
        sizes = self._sizes(size, pool)
        for wanted in sizes[-1:] if aside else sizes:
            if self.limit is not None and self.reserved + wanted > self.limit:
                why = f"the limit is {report.size_text(self.limit)}"
                continue
            try:
                return self.acquired(pool, wanted, aside)
            except MemoryError as error:
                why = str(error)
        raise NoRoom(why)

    def acquired(self, pool: BlockPool, wanted: int, aside: Aside | None = None) -> Segment:
        """A segment of that size from the source; raises its MemoryError. `aside` as in `grow`."""
        segment = Segment(pool, 0, wanted)
        new = [segment.right]
        if aside is None:
            pool.provide(wanted)
        ptr = self.source.acquire(wanted)
        segment.ptr = segment.right.ptr = ptr  # stores
        self.misses += 1
        self.reserved += wanted
        if self.reserved > self.peak:
            self.peak = self.reserved
        if aside is not None:
            aside(segment)
        else:
            pool.segments[ptr] = segment
            try:
                give_all(new)
            finally:
                give_all(new)
        self.tell(ptr, wanted, True)
        return segment

    def tell(self, ptr: int, nbytes: int, acquired: bool) -> None:
        """Tell listeners that so many bytes came from the source, or went back to it."""
        if bus.segments:
            tell_aside(bus.segments, SegmentEvent(self.source, ptr, nbytes, acquired))

    def tell_short(self, size: int, step: str) -> None:
        """Tell listeners what is done for a request that its own free list cannot serve."""
        if bus.shortages:
            tell_aside(bus.shortages, ShortageEvent(self.source, size, step))

    def _composed(self, pool: BlockPool, size: int) -> Chunk | None:
        """A chunk of a pool's free bytes, stitched if they are scattered."""
        chunk = None if self.stitcher is None else self.stitcher.compose(
            pool, size, self.captures.get(pool.stream))
        return chunk or pool.take(size, breaking=True)

    def _sizes(self, size: int, pool: BlockPool) -> list[int]:
        """The segment sizes to try for a request, preferred first.

        The free memory of a pool of graphs serves no other pool, so such a pool grows in proportion
        to its own size.
        """
        graphs = self.pools.private.get(pool.stream)
        reserved = self.reserved if graphs is None else bytes_of(graphs)
        sizes = segment_sizes(size, reserved, self.source.page)
        if self.stitcher is not None:
            return sizes[-1:]
        small = size <= self.pools.most_small
        return [max(SMALL_SEGMENT, sizes[-1]), sizes[-1]] if small else sizes

    def make_room(self, size: int) -> int:
        """Release free segments so that one for `size` bytes fits; the number of bytes released.

        The smallest segment that suffices alone, else the largest ones until their sum suffices.
        """
        wanted = segment_sizes(size, self.reserved, self.source.page)[-1]
        if self.limit is not None and self.reserved + wanted > self.limit:
            wanted = self.reserved + wanted - self.limit
        free = sorted((segment for pool in self.pools.shared()
                       for segment in pool.free_segments()), key=lambda segment: segment.size)
        enough = next((segment for segment in free if segment.size >= wanted), None)
        return self._release([enough] if enough is not None else free[::-1], wanted)

    def release(self) -> int:
        """Release every free segment, and free pages of the others; the number of bytes."""
        self.streams.poll()
        if self._part and not self.streams.capturing:
            self._set_free_pages_apart(self._part)
        return self._release([segment for pool in self.pools.shared()
                              for segment in pool.free_segments()])

    def _set_free_pages_apart(self, page: int) -> None:
        """Make the whole pages in free chunks segments of their own, which can be released."""
        for pool in self.pools.shared():
            for segment in tuple(pool.segments.values()):
                if segment.free:
                    continue
                for chunk in tuple(segment):
                    start = round_up(chunk.ptr, page)
                    end = (chunk.ptr + chunk.size) & -page
                    if chunk.bin >= 0 and start < end:
                        segment = pool.cut(segment, chunk, start, end)

    def live(self) -> Iterator[Chunk]:
        """Every chunk that a block holds."""
        for pool in self.pools.all():
            yield from pool.live()
        if self.stitcher is not None:
            yield from self.stitcher.live()

    def holdings(self) -> list[report.Holding]:
        """The bytes and op of every live block."""
        return [report.Holding(chunk.used, chunk.label) for chunk in self.live()]

    def live_at(self, ptr: int) -> Chunk | None:
        """The chunk of the live block in which an address lies."""
        return next((chunk for chunk in self.live()
                     if chunk.ptr <= ptr < chunk.ptr + chunk.used), None)

    def _from_others(self, pool: BlockPool, size: int, others: list[BlockPool]) -> Chunk | None:
        """A chunk from other pools: of a free segment, which changes pools, else a part of one."""
        segment = smallest_free(size, others)
        if segment is not None:
            owner = segment.pool
            if owner.stream != pool.stream:
                self.streams.order(pool.stream, owner.stream)
                self.tell_short(size, "borrow")
            owner.hand_over(segment, pool)
            pool.taken += 1
            return pool.take(size) or self._composed(pool, size)
        for owner in others:
            chunk = owner.take(size, breaking=True)
            if chunk is None:
                continue
            if owner.stream != pool.stream:
                try:
                    self.streams.order(pool.stream, owner.stream)
                    self.tell_short(size, "borrow")
                except BaseException:  # undone
                    owner.give(chunk)
                    raise
                chunk.uses = {pool.stream}
                self.borrowed += 1
                pool.taken += 1
            return chunk
        return None

    def settle_orphans(self, home: Stream) -> tuple[list[Orphan], bool]:
        """The pools of ended streams and graphs, for a capture that is about to begin.

        `home` waits for all work on them. Also returns whether there was such work; the capture's
        replays must wait for it.
        """
        if self.streams.capturing:
            return [], False
        left = [orphan for orphan in self.pools.orphans
                if not self.streams.settling_blocks(orphan.pool.stream)]
        return left, self.streams.settle_ended(home, {orphan.pool.stream for orphan in left})

    def _from_orphans(self, pool: BlockPool, size: int, left: list[Orphan]) -> Chunk | None:
        """A chunk of an orphan's free segment, which moves to a pool of graphs."""
        segment = smallest_free(size, [orphan.pool for orphan in left
                                       if orphan.kind is self.pools.kind(size)])
        if segment is None:
            return None
        segment.pool.hand_over(segment, pool)
        self.pools.forget_empty()
        return pool.take(size) or self._composed(pool, size)

    def _inherit(self, stream: int) -> bool:
        """Take over the pools of ended streams, except those that only the host can wait for.

        Returns whether there were any.
        """
        taken = False
        for estate in tuple(self.pools.orphans):
            orphan = estate.pool
            if orphan.stream in self.streams.ended:
                if not self.streams.may_order(stream) or self.streams.blocks(orphan.stream):
                    continue
                self.streams.order(stream, orphan.stream)
            heir = self.pools.heir(stream, estate.kind)
            for segment in tuple(orphan.segments.values()):
                orphan.hand_over(segment, heir)
            self.pools.orphans.remove(estate)
            taken = True
        return taken

    def _release(self, segments: list[Segment], wanted: int | None = None) -> int:
        released = 0
        if self.stitcher is not None:
            self.stitcher.part_idle()
        if self.streams.capturing:
            return 0  # the source may wait for the device, which breaks a capture
        for segment in segments:
            if wanted is not None and released >= wanted:
                break
            pool = segment.pool
            last = self.streams.record(pool.stream)
            if last is not None:
                last.synchronize()
            pool.drop(segment)
            self.reserved -= segment.size
            try:
                self.source.release(segment.ptr, segment.size)
            except Exception:  # the segment was not released
                self.reserved += segment.size
                pool.add(segment)
                pool.give(segment.right)
                raise
            except BaseException:  # undone: an interrupt came before or after it
                with suppress(Exception):
                    self.source.release(segment.ptr, segment.size)
                raise
            released += segment.size
            self.tell(segment.ptr, segment.size, False)
        self.pools.forget_empty()
        return released

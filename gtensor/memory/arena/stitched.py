"""Blocks joined from scattered free memory, where the source has virtual memory.

A request that no free chunk serves well is composed of free whole pages. For the rest below a page
it takes a hole at the end of a page in front of them, one at the start of a page behind them, or
both: only space that touches a page boundary, and at most two holes. Their pages are also mapped at
new, consecutive addresses (`PagedSource.join`), so kernels see one contiguous block. The arena goes
on counting the parts at their first addresses. Nothing is copied and nothing waits.

An arena over a `PagedSource` has a `Stitcher`, which its `Segments` asks; others have None. The
caller holds the arena's lock.

(Virtual memory stitching: GMLake, Guo et al., ASPLOS 2024. There whole pages are joined; here a
page may be shared, so that the rest below a page breaks no page.)
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import chain, islice, pairwise
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakSet

from gtensor.memory.arena.chunks import IN_USE, Chunk
from gtensor.memory.arena.free_lists import BlockPool, give_all
from gtensor.memory.arena.layout import LIVE, PENDING, Piece, requested_of
from gtensor.memory.arena.pools import Capture
from gtensor.memory.arena.streams import Streams
from gtensor.memory.sources import PagedSource, round_up

if TYPE_CHECKING:
    from gtensor.memory.arena.segments import Segments

JOINED = -3  # the `bin` of a chunk that is a part of a `Stitched`, which has the block's state
_LOOKS = 64  # chunks of each kind that are searched for the rest below a page
_EVERY = 1 << 50  # more bytes than a chunk has
_TRIED = 4  # segments to try to grow in place before a new one is acquired


class Parts:
    """The chunks of a stitched block in order; it takes the place of the block's pool."""

    __slots__ = ("chunks", "stitched")

    def __init__(self, chunks: list[Chunk], stitched: set[Stitched]) -> None:
        self.chunks = chunks
        self.stitched = stitched

    @property
    def stream(self) -> int:
        """The stream of the pool that has the chunks now."""
        return self.chunks[0].pool.stream

    def give(self, whole: Stitched) -> None:
        """Give the chunks back to the pool that has them now."""
        try:
            give_all(self.chunks)
        finally:
            self.stitched.discard(whole)


class Stitched(Chunk):
    """A block's bytes in several chunks, joined at an address of their own.

    It is a chunk to the arena, but is in no ring and no free list.
    """

    __slots__ = ("parts",)

    def __init__(self, ptr: int, chunks: list[Chunk], stitched: set[Stitched]) -> None:
        self.ptr = ptr
        self.size = sum(chunk.size for chunk in chunks)
        self.bin = IN_USE
        self.uses = None
        self.used = self.nbytes = 0
        self.label = ""
        self.parts = chunks
        self.pool = Parts(chunks, stitched)  # has `stream`, `give`


class Stitcher:
    """Composes requests of an arena's scattered free pages, and adds and releases single pages."""

    def __init__(self, source: PagedSource, streams: Streams) -> None:
        self.page = source.page
        self.stitched: set[Stitched] = set()  # those that blocks hold, and those that are retired
        self.captures: WeakSet[Capture] = WeakSet()  # replays write the addresses that they joined
        self._source = source
        self._streams = streams

    def compose(self, pool: BlockPool, size: int, capture: Capture | None) -> Chunk | None:
        """A chunk of a pool's free bytes, joined if they are scattered; None if it is impossible.

        `capture` is the one in progress into that pool.
        """
        if capture is not None:
            self.captures.add(capture)
        try:
            chunk = self._compose(pool, size)
        except MemoryError:  # too many pages are joined
            self.part_idle()
            try:
                chunk = self._compose(pool, size)
            except MemoryError:
                return None
        if capture is not None and type(chunk) is Stitched:
            capture.addresses.add(chunk.ptr & -self.page)
        return chunk

    def part_idle(self) -> None:
        """Release joined addresses that no block uses and no live graph writes."""
        if not self._streams.capturing:
            self._source.part({whole.ptr & -self.page for whole in self.stitched}.union(
                *(capture.addresses for capture in self.captures)))

    def live(self) -> Iterator[Chunk]:
        """The chunks that blocks hold."""
        return (whole for whole in self.stitched if whole.bin == IN_USE)

    def pieces(self) -> dict[Chunk, Piece]:
        """The parts of stitched blocks; the last of each has the bytes that were not requested."""
        found = {}
        for whole in self.stitched:
            state = LIVE if whole.bin == IN_USE else PENDING
            offset = 0
            for part in whole.parts:
                found[part] = Piece(
                    part.ptr, part.size, state, requested_of(whole.nbytes, offset, part.size),
                    whole.label, whole.ptr, offset)
                offset += part.size
        return found

    def missing(self, pool: BlockPool, size: int) -> int:
        """Bytes, in whole pages, that a pool lacks to compose a request; 0 if none."""
        free = self._free(pool, size)
        needed = min(round_up(whole, self.page) for whole, *_ in free.ways(size))
        return max(needed - free.whole, 0)

    def extend(self, segments: Segments, pool: BlockPool, size: int) -> bool:
        """Add the pages that a pool lacks to compose a request; whether any were added.

        They extend one of the pool's segments if the addresses behind it are free, else they are a
        new segment.
        """
        more = self.missing(pool, size)
        if not more or (segments.limit is not None and segments.reserved + more > segments.limit):
            return False
        try:
            if not self._grown(segments, pool, more):
                segments.acquired(pool, more)
        except MemoryError:
            return False
        return True

    def _grown(self, segments: Segments, pool: BlockPool, more: int) -> bool:
        """Whether one of the pool's latest segments could be grown in place by `more` bytes.

        The one with most free bytes at its end is tried first. Older segments are mostly followed
        by another segment, and a pool may have thousands. Raises the source's MemoryError.
        """
        last = islice(reversed(pool.segments.values()), _TRIED)
        for segment in sorted(last, reverse=True, key=lambda segment: (
                segment.left.size if segment.left.bin >= 0 else 0)):
            chunk = pool.extension(segment, more)
            new = [chunk]
            if self._source.grow(segment.ptr, segment.size, segment.size + more):
                chunk.left.right = segment.left = chunk  # stores
                segment.size += more
                segments.misses += 1
                segments.reserved += more
                if segments.reserved > segments.peak:
                    segments.peak = segments.reserved
                try:
                    give_all(new)
                finally:
                    give_all(new)
                segments.tell(chunk.ptr, more, True)
                return True
        return False

    def _compose(self, pool: BlockPool, size: int) -> Chunk | None:
        """As `compose`. Raises MemoryError, with nothing changed, if no addresses are left."""
        holes = self._free(pool, size).composed(size)
        if not holes:
            return None
        if all(a.start + a.size == b.start and a.chunk is b.chunk for a, b in pairwise(holes)):
            return pool.carve(holes[0].chunk, holes[0].start, holes[0].start + size)
        ptr = self._source.join([(hole.start, hole.size) for hole in holes])
        return self._stitch(pool, ptr, holes)

    def _stitch(self, pool: BlockPool, ptr: int, holes: list[_Hole]) -> Stitched:
        """Take the holes into use as one chunk at an address."""
        held: dict[int, Chunk] = {}
        parts: list[Chunk] = []
        cut: Chunk | None = None  # the chunk that was cut last
        whole: Stitched | None = None
        try:
            for hole in sorted(holes, key=lambda hole: hole.start):
                # after a part was carved from a chunk, the bytes behind that part are another chunk
                inside = parts[-1].right if hole.chunk is cut else hole.chunk
                parts.append(pool.carve(inside, hole.start, hole.start + hole.size))
                held[hole.start] = parts[-1]
                cut = hole.chunk
            whole = Stitched(ptr, [held[hole.start] for hole in holes], self.stitched)
            for part in parts:
                part.bin = JOINED
            self.stitched.add(whole)
        except BaseException:  # undone
            if whole is not None:
                self.stitched.discard(whole)
            give_all(parts)
            raise
        return whole

    def _free(self, pool: BlockPool, size: int) -> _Free:
        """The free bytes of which a request may be composed.

        Of the largest chunks until they have enough pages, and of some whose sizes are near the
        rest below a page.
        """
        page = self.page
        odd = size & page - 1
        found = dict.fromkeys(chain(
            islice(pool.free(odd), _LOOKS), islice(pool.free_below(odd), _LOOKS),
            islice(pool.free_below(page), _LOOKS)))
        lacking = size + page
        for chunk in pool.free_below(_EVERY):
            if lacking <= 0 or chunk.size < page:
                break
            found[chunk] = None
            lacking -= max((chunk.ptr + chunk.size & -page) - round_up(chunk.ptr, page), 0)
        return _Free(found, page)


class _Hole(NamedTuple):
    """Consecutive free bytes of a chunk: whole pages, or a part of a page at one of its ends."""

    size: int
    start: int
    chunk: Chunk

    def first(self, nbytes: int) -> _Hole:
        """A hole of its first bytes."""
        return self._replace(size=nbytes)

    def last(self, nbytes: int) -> _Hole:
        """A hole of its last bytes."""
        return self._replace(size=nbytes, start=self.start + self.size - nbytes)


class _Free:
    """The free bytes of a pool that a request can be composed of.

    `pages` are runs of whole pages, `whole` is the sum of their bytes; `tails` are holes at the end
    of a page, `heads` those at the start of one. All are sorted by size.
    """

    def __init__(self, chunks: Iterable[Chunk], page: int) -> None:
        self._page = page
        pages: list[_Hole] = []
        tails: list[_Hole] = []
        heads: list[_Hole] = []
        for chunk in chunks:
            low = chunk.ptr
            high = low + chunk.size
            first, last = low + page - 1 & -page, high & -page
            if first > last:
                continue  # it touches no page boundary
            if low < first:
                tails.append(_Hole(first - low, low, chunk))
            if first < last:
                pages.append(_Hole(last - first, first, chunk))
            if last < high:
                heads.append(_Hole(high - last, last, chunk))
        for holes in (pages, tails, heads):
            holes.sort()  # ties by address, so that equal requests reuse joined addresses
        self.pages, self.tails, self.heads = pages, tails, heads
        self.whole = sum(hole.size for hole in pages)

    def ways(self, size: int) -> Iterator[tuple[int, list[_Hole], list[_Hole]]]:
        """The ways to compose `size` bytes: bytes in whole pages, holes before and behind them.

        Best first; a way may need more pages than there are.
        """
        odd = size & self._page - 1
        for beside in (odd, odd + self._page):
            found = self._one(beside) or self._two(beside)
            if found is not None and beside <= size:
                yield size - beside, *found
        yield size, [], []

    def composed(self, size: int) -> list[_Hole]:
        """The holes of the best way with enough pages; none if there is no such way."""
        for whole, before, behind in self.ways(size):
            if whole <= self.whole:
                return [*before, *self.take(whole), *behind]
        return []

    def take(self, nbytes: int) -> Iterator[_Hole]:
        """Runs of whole pages, short ones first; the last run may be cut."""
        for run in self.pages:
            if not nbytes:
                return
            part = min(nbytes, run.size)
            yield run.first(part)
            nbytes -= part

    def _one(self, nbytes: int) -> tuple[list[_Hole], list[_Hole]] | None:
        """The smallest hole with `nbytes` bytes (no hole for 0); None if there is none."""
        if not nbytes:
            return [], []
        tail, head = _least(self.tails, nbytes), _least(self.heads, nbytes)
        if tail is not None and (head is None or tail.size <= head.size):
            return [tail.last(nbytes)], []
        return None if head is None else ([], [head.first(nbytes)])

    def _two(self, nbytes: int) -> tuple[list[_Hole], list[_Hole]] | None:
        """A tail and a head with `nbytes` bytes and the smallest sum; None if there are none."""
        best: tuple[_Hole, _Hole] | None = None
        at = len(self.heads) - 1
        for tail in self.tails:
            while at >= 0 and tail.size + self.heads[at].size >= nbytes:
                head = self.heads[at]
                if best is None or tail.size + head.size < best[0].size + best[1].size:
                    best = tail, head
                at -= 1
        if best is None:
            return None
        tail, head = best
        return [tail], [head.first(nbytes - tail.size)]


def _least(holes: list[_Hole], nbytes: int) -> _Hole | None:
    """The smallest hole with at least `nbytes` bytes."""
    at = bisect_left(holes, nbytes, key=lambda hole: hole.size)
    return holes[at] if at < len(holes) else None

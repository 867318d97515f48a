"""Blocks joined from scattered free memory, where the source has virtual memory.

A request that no free chunk serves well is composed of free whole pages. For the rest below a page
it takes a hole at the end of a page in front of them, one at the start of a page behind them, or
both: only space that touches a page boundary, and at most two holes. Their pages are also mapped at
new, consecutive addresses (`PagedSource.join`), so kernels see one contiguous block. The arena goes
on counting the parts at their first addresses. Nothing is copied and nothing waits.

(Virtual memory stitching: GMLake, Guo et al., ASPLOS 2024. There whole pages are joined; here a
page may be shared, so that the rest below a page breaks no page.)
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import chain, islice, pairwise
from typing import NamedTuple

from gtensor.memory.arena.chunks import IN_USE, JOINED, Chunk
from gtensor.memory.arena.free_lists import BlockPool, give_all
from gtensor.memory.sources import PagedSource, round_up

_LOOKS = 64  # chunks of each kind that are searched for the rest below a page
_EVERY = 1 << 50  # more bytes than a chunk has


class Parts:
    """The chunks of a span in order; it takes the place of the span's pool.

    `spans` are the reserve's spans: those of live blocks and retired ones.
    """

    __slots__ = ("chunks", "spans")

    def __init__(self, chunks: list[Chunk], spans: set[Span]) -> None:
        self.chunks = chunks
        self.spans = spans

    @property
    def stream(self) -> int:
        """The stream of the pool that has the chunks now."""
        return self.chunks[0].pool.stream

    def give(self, span: Span) -> None:
        """Give the chunks back to the pool that has them now."""
        try:
            give_all(self.chunks)
        finally:
            self.spans.discard(span)


class Span(Chunk):
    """A block's bytes in several chunks, joined at an address of their own.

    It is a chunk to the arena, but is in no ring and no free list.
    """

    __slots__ = ("parts",)

    def __init__(self, ptr: int, chunks: list[Chunk], spans: set[Span]) -> None:
        self.ptr = ptr
        self.size = sum(chunk.size for chunk in chunks)
        self.bin = IN_USE
        self.uses = None
        self.used = self.nbytes = 0
        self.label = ""
        self.parts = chunks
        self.pool = Parts(chunks, spans)  # type: ignore[assignment]  # has `stream`, `give`


class Joined:
    """The joined addresses that a capture used, which its replays write.

    They stay mapped while this object is referenced.
    """

    __slots__ = ("__weakref__", "addresses")

    def __init__(self) -> None:
        self.addresses: set[int] = set()


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


def _fitting(pool: BlockPool, size: int, page: int) -> Iterable[Chunk]:
    """The free chunks of which a request may be composed.

    The largest ones until they have enough pages, and some whose sizes are near the rest below a
    page.
    """
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
    return found


def missing(pool: BlockPool, size: int, page: int) -> int:
    """Bytes, in whole pages, that a pool lacks to compose a request; 0 if none."""
    free = _Free(_fitting(pool, size, page), page)
    needed = min(round_up(whole, page) for whole, *_ in free.ways(size))
    return max(needed - free.whole, 0)


def join(pool: BlockPool, size: int, source: PagedSource, spans: set[Span]) -> Chunk | None:
    """Compose a request of a pool's free bytes; None if that is not possible.

    Contiguous bytes are carved; else the new span is added to `spans`. Raises MemoryError, with
    nothing changed, if the source has no addresses left.
    """
    holes = _Free(_fitting(pool, size, source.page), source.page).composed(size)
    if not holes:
        return None
    if all(a.start + a.size == b.start and a.chunk is b.chunk for a, b in pairwise(holes)):
        return pool.carve(holes[0].chunk, holes[0].start, holes[0].start + size)
    ptr = source.join([(hole.start, hole.size) for hole in holes])
    return _joined(pool, ptr, holes, spans)


def _joined(pool: BlockPool, ptr: int, holes: list[_Hole], spans: set[Span]) -> Span:
    """Take the holes into use as one span at an address."""
    held: dict[int, Chunk] = {}
    parts: list[Chunk] = []
    cut: Chunk | None = None  # the chunk that was cut last
    span: Span | None = None
    try:
        for hole in sorted(holes, key=lambda hole: hole.start):
            # after a part was carved from a chunk, the bytes behind that part are another chunk
            inside = parts[-1].right if hole.chunk is cut else hole.chunk
            parts.append(pool.carve(inside, hole.start, hole.start + hole.size))
            held[hole.start] = parts[-1]
            cut = hole.chunk
        span = Span(ptr, [held[hole.start] for hole in holes], spans)
        for part in parts:
            part.bin = JOINED
        spans.add(span)
    except BaseException:
        if span is not None:
            spans.discard(span)
        give_all(parts)
        raise
    return span

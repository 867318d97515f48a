"""Blocks joined from free memory that lies apart, where the source has virtual memory.

A request that no free chunk serves well is composed of whole pages, wherever they are free, and for
its odd part of a hole at the end of a page in front of them, one at the start of a page behind
them, or both. Their pages are put behind new, consecutive addresses as well (`PagedSource.join`),
so the block is in one piece for whoever computes with it, while the arena goes on counting its
parts where they were: nothing is copied and nothing waits. Of holes it takes two at most,
and none that reaches no end of a page.

(Virtual memory stitching: GMLake, Guo et al., ASPLOS 2024. There whole pages are joined; here a
page may be shared, so that an odd part breaks no page.)
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import chain, islice, pairwise
from typing import NamedTuple

from gtensor.memory.blocks import BlockPool, give_all
from gtensor.memory.chunks import IN_USE, JOINED, Chunk
from gtensor.memory.sources import PagedSource, round_up

_LOOKS = 64  # chunks of each kind that are looked at for what stands beside whole pages
_EVERY = 1 << 50  # more bytes than a chunk has


class Parts:
    """The chunks whose bytes a span has one after another; for the span it stands for a pool.

    `spans` are those that blocks hold, or that are retired.
    """

    __slots__ = ("chunks", "spans")

    def __init__(self, chunks: list[Chunk], spans: set[Span]) -> None:
        self.chunks = chunks
        self.spans = spans

    @property
    def stream(self) -> int:
        """Of the pool that has the chunks now."""
        return self.chunks[0].pool.stream

    def give(self, span: Span) -> None:
        """Give the chunks back to whichever pool has them now."""
        try:
            give_all(self.chunks)
        finally:
            self.spans.discard(span)


class Span(Chunk):
    """A block's bytes in several chunks, joined at an address of their own.

    It is a chunk to the arena, but stands in no ring and no list.
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
    """The joined addresses that a capture used. They stay while somebody holds this: replays write
    them, whoever has the memory."""

    __slots__ = ("__weakref__", "addresses")

    def __init__(self) -> None:
        self.addresses: set[int] = set()


class _Hole(NamedTuple):
    """Consecutive free bytes of a chunk: whole pages, or a part of a page at one of its ends."""

    size: int
    start: int
    chunk: Chunk

    def first(self, nbytes: int) -> _Hole:
        """Its first bytes."""
        return self._replace(size=nbytes)

    def last(self, nbytes: int) -> _Hole:
        """Its last bytes."""
        return self._replace(size=nbytes, start=self.start + self.size - nbytes)


class _Free:
    """The free bytes of a pool, as a request can be composed of them.

    `pages` are runs of whole pages, `whole` their bytes together; `tails` are holes that end with a
    page, `heads` those that begin one. All smallest first.
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
                continue  # it reaches no end of a page
            if low < first:
                tails.append(_Hole(first - low, low, chunk))
            if first < last:
                pages.append(_Hole(last - first, first, chunk))
            if last < high:
                heads.append(_Hole(high - last, last, chunk))
        for holes in (pages, tails, heads):
            holes.sort()  # ties by address, so that the same memory is joined in the same order
        self.pages, self.tails, self.heads = pages, tails, heads
        self.whole = sum(hole.size for hole in pages)

    def ways(self, size: int) -> Iterator[tuple[int, list[_Hole], list[_Hole]]]:
        """How `size` bytes can be composed: bytes in whole pages, holes before and behind them.

        Best first; there may be fewer pages than a way needs.
        """
        odd = size & self._page - 1
        for beside in (odd, odd + self._page):
            found = self._one(beside) or self._two(beside)
            if found is not None and beside <= size:
                yield size - beside, *found
        yield size, [], []

    def composed(self, size: int) -> list[_Hole]:
        """`size` bytes in the best way that there are pages for; nothing if there is none."""
        for whole, before, behind in self.ways(size):
            if whole <= self.whole:
                return [*before, *self.take(whole), *behind]
        return []

    def take(self, nbytes: int) -> Iterator[_Hole]:
        """Whole pages, of short runs first, the last one perhaps not to its end."""
        for run in self.pages:
            if not nbytes:
                return
            part = min(nbytes, run.size)
            yield run.first(part)
            nbytes -= part

    def _one(self, nbytes: int) -> tuple[list[_Hole], list[_Hole]] | None:
        """The smallest hole with so many bytes, if one is needed; None if there is none."""
        if not nbytes:
            return [], []
        tail, head = _least(self.tails, nbytes), _least(self.heads, nbytes)
        if tail is not None and (head is None or tail.size <= head.size):
            return [tail.last(nbytes)], []
        return None if head is None else ([], [head.first(nbytes)])

    def _two(self, nbytes: int) -> tuple[list[_Hole], list[_Hole]] | None:
        """The two holes with so many bytes that are smallest together; None if there are none."""
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
    """The smallest hole with so many bytes."""
    at = bisect_left(holes, nbytes, key=lambda hole: hole.size)
    return holes[at] if at < len(holes) else None


def _fitting(pool: BlockPool, size: int, page: int) -> Iterable[Chunk]:
    """The free chunks of which a request may be composed: the largest until they have pages enough,
    and some of those whose sizes are near to what may stand beside the pages."""
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
    """Bytes in whole pages that a pool lacks to compose a request; 0 if it lacks none."""
    free = _Free(_fitting(pool, size, page), page)
    needed = min(round_up(whole, page) for whole, *_ in free.ways(size))
    return max(needed - free.whole, 0)


def join(pool: BlockPool, size: int, source: PagedSource, spans: set[Span]) -> Chunk | None:
    """Compose a request of a pool's free bytes; None if that is not possible.

    What turns out to lie in one piece is not joined; what is, is added to `spans`.

    Raises MemoryError if the source has no addresses left for it; then nothing has changed.
    """
    holes = _Free(_fitting(pool, size, source.page), source.page).composed(size)
    if not holes:
        return None
    if all(a.start + a.size == b.start and a.chunk is b.chunk for a, b in pairwise(holes)):
        return pool.carve(holes[0].chunk, holes[0].start, holes[0].start + size)
    ptr = source.join([(hole.start, hole.size) for hole in holes])
    return _joined(pool, ptr, holes, spans)


def _joined(pool: BlockPool, ptr: int, holes: list[_Hole], spans: set[Span]) -> Span:
    """Hold them, as one at that address."""
    held: dict[int, Chunk] = {}
    parts: list[Chunk] = []
    cut: Chunk | None = None  # the chunk that was cut last
    span: Span | None = None
    try:
        for hole in sorted(holes, key=lambda hole: hole.start):
            # what a chunk has behind a part that was cut from it is a chunk of its own by now
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

"""What must hold of an arena at any moment, read from its own records. Tests call `check`."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from gtensor.memory import Arena, Block, SegmentSource
from gtensor.memory.arena.chunks import IN_USE, RETIRED
from gtensor.memory.arena.free_lists import BlockPool
from gtensor.memory.arena.stitched import JOINED


def physical(source: SegmentSource, ptr: int, nbytes: int) -> list[tuple[int, int]]:
    """The bytes of the device behind some addresses, as ranges (start, end) in their order.

    Pages are asked where they are; other bytes are named by their address, of which each has one.
    """
    pages = getattr(source, "pages", None)
    return pages.behind(ptr, nbytes) if hasattr(pages, "behind") else [(ptr, ptr + nbytes)]


def check_apart(source: SegmentSource, blocks: Iterable[Block]) -> None:
    """Assert that no byte of the device lies behind two of the blocks."""
    held = sorted(((start, end, block) for block in blocks
                   for start, end in physical(source, block.ptr, block.size)),
                  key=lambda part: part[:2])
    for (_, end, low), (start, _, high) in pairwise(held):
        assert end <= start, f"{low} and {high} overlap"


def check(arena: Arena, blocks: Iterable[Block]) -> None:
    """Assert that `blocks` are exactly the live ones, that none overlap and no byte is lost."""
    blocks = sorted(blocks, key=lambda block: block.ptr)
    stats = arena.stats()
    pools = arena._segments.pools.all()
    stitcher = arena._segments.stitcher
    spans = () if stitcher is None else tuple(stitcher.stitched)
    held = [span for span in spans if span.bin == IN_USE]
    retired, free = sum(span.size for span in spans if span.bin == RETIRED), 0
    joined = {id(part) for span in spans for part in span.parts}
    assert len(joined) == sum(len(span.parts) for span in spans), "two blocks share a part"
    for span in spans:
        assert span.size == sum(part.size for part in span.parts)
        assert _merged(physical(arena.source, span.ptr, span.size)) == _merged(
            place for part in span.parts for place in physical(arena.source, part.ptr, part.size))
    for pool in pools:
        held += check_pool(pool, arena.source.granularity, joined)
        for segment in pool.segments.values():
            assert segment.pool is pool
            retired += sum(chunk.size for chunk in segment if chunk.bin == RETIRED)
            free += sum(chunk.size for chunk in segment if chunk.bin >= 0)

    check_apart(arena.source, blocks)
    granule = arena.source.granularity
    for block in blocks:
        assert block.ptr % granule == 0
        most = block.nbytes + granule
        most += most // arena._steps if arena._steps else 0
        assert max(block.nbytes, 1) <= block.size <= most
    held.sort(key=lambda chunk: chunk.ptr)
    assert [(chunk.ptr, chunk.used, chunk.nbytes, chunk.label) for chunk in held] == [
        (block.ptr, block.size, block.nbytes, block.label) for block in blocks]

    reserved = sum(segment.size for pool in pools for segment in pool.segments.values())
    assert stats.reserved == reserved
    assert stats.segments == sum(len(pool.segments) for pool in pools)
    assert stats.allocated == sum(block.size for block in blocks)
    assert stats.active == sum(chunk.size for chunk in held)
    assert stats.pending == retired and (arena._orders.count > 0) == (retired > 0)
    assert stats.allocated <= stats.active
    assert stats.active + retired + free == stats.reserved, "bytes were lost, or counted twice"
    assert stats.peak_allocated >= stats.allocated
    assert stats.peak_reserved >= stats.reserved
    assert 0 <= stats.fragmentation < 1
    if not blocks and not retired:
        assert all(segment.free for pool in pools for segment in pool.segments.values())


def _merged(places: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same bytes in the same order, in as few pieces as possible."""
    found: list[tuple[int, int]] = []
    for low, high in places:
        if found and found[-1][1] == low:
            low = found.pop()[0]
        found.append((low, high))
    return found


def check_pool(pool: BlockPool, granularity: int, joined: Iterable[int] = ()) -> list:
    """Assert that a pool's rings tile its segments and its lists hold the free chunks, each once.

    `joined` are the ids of the chunks that are parts of others. Answers the chunks in use.
    """
    listed = {}
    for number, head in enumerate(pool._bins):
        assert bool(pool._filled & head.bit) == head.marked
        if head.after is head:  # as most are, and all are looked at after every step of a test
            assert head.before is head
            continue
        assert head.marked, "no search would find this list"
        previous = head
        for chunk in head:
            assert chunk.bin == number, "a chunk stands in another bin's list"
            assert chunk.before is previous
            assert id(chunk) not in listed, "a chunk stands in two lists"
            listed[id(chunk)] = chunk
            previous = chunk
        assert head.before is previous
    assert not pool._filled >> len(pool._bins)

    held, free = [], {}
    for ptr, segment in pool.segments.items():
        end, previous = ptr, segment
        assert segment.ptr == ptr and segment.bin == IN_USE
        for chunk in segment:
            assert chunk.ptr == end, "chunks do not tile their segment"
            assert chunk.size > 0 and chunk.size % granularity == 0
            assert chunk.left is previous and chunk.pool is pool
            if chunk.bin == IN_USE:
                held.append(chunk)
            elif chunk.bin == JOINED:
                assert id(chunk) in joined, "a part of nothing is lost"
            elif chunk.bin != RETIRED:
                assert chunk.uses is None
                assert previous.bin < 0, "two free chunks side by side were not joined"
                assert chunk.bin == bin_of(chunk.size // granularity)
                free[id(chunk)] = chunk
            end, previous = chunk.ptr + chunk.size, chunk
        assert segment.left is previous
        assert end == ptr + segment.size, "bytes of a segment were lost"
    assert free.keys() == listed.keys(), "free chunks and free lists differ"
    return held


def bin_of(granules: int) -> int:
    """The bin of a chunk, said in another way than the pool does: 16 even steps per octave."""
    if granules < 32:
        return granules
    octave = 0
    while granules >> octave >= 32:
        octave += 1
    return 16 * octave + (granules >> octave)

"""Blocks joined of memory that lies apart: which gaps they take, and which arrays share bytes."""

from __future__ import annotations

import itertools
import json
import pickle
import random

import pytest
from simulated import SimulatedPages

import gtensor as gt
from gtensor.backend.streams import SimulatedStream
from gtensor.memory import Arena, OutOfMemoryError, VirtualSegments
from gtensor.memory.arena.chunks import Segment
from gtensor.memory.arena.free_lists import BlockPool
from gtensor.memory.arena.stitched import Stitched, Stitcher
from gtensor.memory.arena.streams import Streams
from gtensor.memory.sources import virtual as virtual_source
from gtensor.memory.trace.owners import standing
from gtensor.memory.trace.reading import read_snapshot
from gtensor.memory.trace.snapshots import json_file, pickle_file

from ..interrupts import interrupt_after
from ..invariants import check, check_pool
from .model_streams import ModelStream

KIB, MIB = 1 << 10, 1 << 20
PAGE = 64 * KIB


def virtual(capacity: int = 64 * MIB) -> tuple[SimulatedPages, Arena]:
    pages = SimulatedPages(capacity, PAGE)
    return pages, Arena(VirtualSegments(pages), min_remainder=512)


def apart(arena: Arena, *sizes: int, stream: int = 0) -> list:
    """Free pieces of these sizes with a live block behind each; the live blocks."""
    blocks = [arena.allocate(size, stream, "piece")
              for gap in sizes for size in (gap, PAGE // 2)]
    assert not any(isinstance(block.node, Stitched) for block in blocks)
    return blocks[1::2]


# -- what is joined --------------------------------------------------------------------------------


def test_a_free_segment_of_another_stream_serves_what_is_no_whole_page():
    pages, arena = virtual()
    streams = [SimulatedStream(), SimulatedStream()]
    arena.streams.update({stream.id: stream for stream in streams})
    arena.allocate(3 * PAGE, streams[0].id)
    block = arena.allocate(2 * PAGE + PAGE // 2, streams[1].id)
    assert pages.used == 3 * PAGE
    check(arena, [block])


def test_pages_that_lie_apart_serve_a_block_of_their_size():
    pages, arena = virtual()
    kept = apart(arena, 2 * PAGE + PAGE // 2, 3 * PAGE + PAGE // 2)
    used = pages.used
    block = arena.allocate(5 * PAGE, 0, "joined")
    assert isinstance(block.node, Stitched)
    assert pages.used == used and arena.stats().reserved == used
    check(arena, [*kept, block])
    del block
    check(arena, kept)
    assert arena.allocate(3 * PAGE + PAGE // 2).ptr < kept[1].ptr, "a part was not given back"


def test_an_odd_part_takes_a_hole_and_no_page_of_its_own():
    pages, arena = virtual()
    kept = apart(arena, PAGE // 2 + 2 * PAGE, PAGE // 2 + 2 * PAGE, PAGE // 2 + PAGE)
    used = pages.used
    blocks = [arena.allocate(2 * PAGE + PAGE // 4) for _ in range(2)]
    check(arena, [*kept, *blocks])
    assert pages.used == used
    assert arena.allocate(PAGE + PAGE // 2).size and pages.used == used


def test_a_joined_block_is_one_block_in_every_report():
    _, arena = virtual()
    kept = apart(arena, 2 * PAGE + PAGE // 2, 3 * PAGE + PAGE // 2)
    block = arena.allocate(5 * PAGE - 100, 0, "joined")
    assert [h.nbytes for h in arena.holdings() if h.label == "joined"] == [block.size]
    history = standing(arena)
    history.check()
    for again in (history, read_back(json_file(history), "json"),
                  read_back(pickle_file(history), "pickle")):
        lives = [life for life in again.lives if life.op == "joined"]
        assert [(life.address, life.size, life.nbytes) for life in lives] == [
            (block.ptr, block.size, block.nbytes)]
        assert len(again.lives) == len(kept) + 1
        assert sum(piece.nbytes for segment in again.segments for piece in segment.pieces
                   if piece.holder == block.ptr) == block.nbytes


def test_planned_blocks_in_a_joined_reservation_lie_in_its_pieces():
    _, arena = virtual()
    recording = gt.memory.Recording(arena)
    sizes = 3 * PAGE, PAGE + PAGE // 4 - 1000
    blocks = [recording.allocate(size, 0, f"op {size}") for size in sizes]
    blocks.clear()
    recording.close()
    kept = apart(arena, 2 * PAGE + PAGE // 2, 3 * PAGE + PAGE // 2)
    planned = gt.memory.Planned(arena, recording.plan())
    assert isinstance(next(iter(planned._regions.values())).reserved.node, Stitched)
    timeline = gt.memory.Timeline(planned)
    planned.begin()
    blocks = [timeline.allocate(size, 0, f"op {size}") for size in sizes]
    history = timeline.history()
    planned.end()
    timeline.close()
    history.check()
    pieces = [piece for segment in history.segments for piece in segment.pieces]
    for block in blocks:
        own = [piece for piece in pieces if piece.owner == block.ptr]
        assert sum(piece.size for piece in own) == block.size
        assert sum(piece.nbytes for piece in own) == block.nbytes
    assert max(len([piece for piece in pieces if piece.owner == block.ptr])
               for block in blocks) > 1, "none lies in two pieces: no proof"
    assert {piece.label for piece in pieces if piece.state == "live"} == {
        "piece", *(block.label for block in blocks)}
    assert len(kept) == 2


def read_back(data: bytes, suffix: str):
    assert json.loads(data) if suffix == "json" else pickle.loads(data)
    path = f"snapshot.{suffix}"
    with open(path, "wb") as file:
        file.write(data)
    return read_snapshot(path)


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_a_loop_that_repeats_maps_nothing_after_its_first_rounds():
    pages, arena = virtual()
    rng = random.Random(0)
    sizes = [rng.randrange(PAGE // 2, 9 * PAGE) for _ in range(200)]
    ends = [rng.randrange(1, 30) for _ in sizes]

    def iteration():
        live = {}
        for number, size in enumerate(sizes):
            live[number] = arena.allocate(size)
            for other in [o for o in live if o + ends[o] <= number]:
                del live[other]

    for _ in range(4):
        iteration()
    before = pages.mapped, pages.aliased, arena.stats().misses
    assert before[1] > 0
    for _ in range(3):
        iteration()
    assert (pages.mapped, pages.aliased, arena.stats().misses) == before


# -- how a request is composed ---------------------------------------------------------------------


def pool_of(holes: list[tuple[int, int]], total: int) -> BlockPool:
    """A pool of one segment from address `PAGE` on, free in these places only."""
    pool = BlockPool(512, 512, page=PAGE)
    pool.add(segment := Segment(pool, PAGE, total))
    pool.give(segment.right)
    end = PAGE
    for start, size in [*holes, (PAGE + total, 0)]:
        if end < start:
            pool.carve(next(c for c in pool.free() if c.ptr <= end < c.ptr + c.size), end, start)
        end = start + size
    return pool


def composable(holes: list[tuple[int, int]], size: int, more: int) -> bool:
    """Whether any hole that ends a page, whole pages and `more`, and any hole that begins one, have
    room for the request, tried one by one."""
    whole, tails, heads = more, {0}, {0}
    for start, length in holes:
        first, last = -(-start // PAGE) * PAGE, (start + length) // PAGE * PAGE
        if first <= last:
            whole += (last - first) // PAGE
            tails.add(first - start)
            heads.add(start + length - last)
    return any(-(-max(size - tail - head, 0) // PAGE) <= whole
               for tail in tails for head in heads)


@pytest.mark.parametrize("seed", range(60))
def test_a_request_is_composed_exactly_if_it_can_be(seed):
    rng = random.Random(seed)
    total = 12 * PAGE
    cuts = sorted(rng.sample(range(0, total, 512), 2 * rng.randrange(1, 7)))
    holes = [(PAGE + a, b - a) for a, b in zip(cuts[::2], cuts[1::2], strict=True)]
    pages = SimulatedPages(64 * MIB, PAGE)
    for _ in range(20):
        size = rng.randrange(PAGE, total, 512)
        pool = pool_of(holes, total)
        source = VirtualSegments(pages)
        assert source.acquire(PAGE + total)
        source.join = lambda parts: parts[0][0]
        stitcher = Stitcher(source, Streams())
        lacking = stitcher.missing(pool, size) // PAGE
        span = stitcher.compose(pool, size, None)
        assert (span is not None) == composable(holes, size, 0)
        if span is None:
            assert composable(holes, size, lacking) and not composable(holes, size, lacking - 1)
            continue
        assert span.size == size
        if not isinstance(span, Stitched):  # it lies in one piece
            assert any(a <= span.ptr and span.ptr + size <= a + b for a, b in holes)
            continue
        ends = [part.ptr + part.size for part in span.parts]
        assert not any(part.ptr % PAGE for part in span.parts[1:])
        assert not any(end % PAGE for end in ends[:-1])
        for part in span.parts:
            assert any(a <= part.ptr and part.ptr + part.size <= a + b for a, b in holes)
        assert stitcher.stitched == {span}
        span.pool.give(span)
        assert not stitcher.stitched
        free = sorted((chunk.ptr, chunk.size) for chunk in pool.free())
        assert free == holes


# -- streams ---------------------------------------------------------------------------------------


def joined_on(stream_of: dict) -> tuple[Arena, list, object]:
    _, arena = virtual()
    arena.streams.update(stream_of)
    kept = apart(arena, 2 * PAGE + PAGE // 2, 3 * PAGE + PAGE // 2, stream=1)
    return arena, kept, arena.allocate(5 * PAGE, 1, "joined")


def test_a_joined_block_waits_for_the_streams_that_use_it():
    home, other = ModelStream(), ModelStream()
    arena, kept, block = joined_on({1: home, 2: other})
    arena.record_use(block.ptr + 4 * PAGE, 2)
    other.launch()
    span, ptr = block.node, block.ptr
    del block
    check(arena, kept)
    assert arena.stats().pending == 5 * PAGE
    pieces = [piece for segment in arena.layout() for piece in segment.pieces if piece.holder]
    assert {piece.state for piece in pieces} == {"pending"}
    again = arena.allocate(5 * PAGE, 1)  # the stream is made to wait, and has it whole
    assert again.node is span and again.ptr == ptr
    assert home._waits
    check(arena, [*kept, again])
    arena.record_use(again, 2)
    other.launch()
    del again, span
    other.step(), other.step()
    check(arena, [*kept, arena.allocate(512, 1)])
    assert arena.stats().pending == 0


def test_a_joined_block_of_a_stream_that_ends_goes_to_its_heir():
    home, other = ModelStream(), ModelStream()
    arena, kept, block = joined_on({1: home, 2: other})
    arena.forget_stream(1)
    first = arena.allocate(PAGE, 2)  # inherits
    assert block.node.pool.stream == 2
    check(arena, [*kept, block, first])
    del block
    check(arena, [*kept, first])
    assert isinstance(arena.allocate(4 * PAGE + PAGE // 2, 2).node, Stitched)


# -- when something fails --------------------------------------------------------------------------


def test_missing_pages_come_in_a_segment_of_their_own_where_none_can_grow(monkeypatch):
    pages, arena = virtual()
    blocks = [arena.allocate(PAGE) for _ in range(200)]
    del blocks[::2]
    arena.empty_cache()  # addresses behind each segment are free, for one page
    blocks.append(arena.allocate(PAGE // 2))
    tried, real = [], arena.source.grow
    monkeypatch.setattr(arena.source, "grow", lambda ptr, old, new: tried.append(ptr)
                        or real(ptr, old, new))
    for size in (2 * PAGE, 3 * PAGE + PAGE // 2, 4 * PAGE):
        used = pages.used
        blocks.append(arena.allocate(size))
        assert pages.used - used == size & -PAGE, "more than was missing"
        assert len(tried) <= 4, "all segments were tried, and there may be thousands"
        tried.clear()
    check(arena, blocks)


def test_without_addresses_the_arena_grows(monkeypatch):
    monkeypatch.setattr(virtual_source, "MOST_JOINED", 0)
    pages, arena = virtual()
    kept = apart(arena, 2 * PAGE + PAGE // 2, 3 * PAGE + PAGE // 2)
    used = pages.used
    block = arena.allocate(5 * PAGE)
    assert not isinstance(block.node, Stitched) and pages.used > used
    check(arena, [*kept, block])


def test_a_driver_that_refuses_an_alias_leaves_everything_whole(monkeypatch):
    pages, arena = virtual()
    kept = apart(arena, 2 * PAGE + PAGE // 2, 3 * PAGE + PAGE // 2)
    reserved = pages.reserved

    def refuse(address, of):
        raise RuntimeError("cuMemMap answered CUDA_ERROR_UNKNOWN")

    monkeypatch.setattr(pages, "alias", refuse)
    with pytest.raises(RuntimeError, match="cuMemMap"):
        arena.allocate(5 * PAGE)
    assert pages.reserved == reserved
    check(arena, kept)
    monkeypatch.undo()
    check(arena, [*kept, arena.allocate(5 * PAGE)])


def test_released_pages_leave_no_joined_address_behind():
    pages, arena = virtual()
    kept = apart(arena, 2 * PAGE + PAGE // 2, 3 * PAGE + PAGE // 2)
    block = arena.allocate(5 * PAGE)
    arena.empty_cache()
    pages.touch(block.ptr, block.size)  # it lives, so it stays
    check(arena, [*kept, block])
    del block
    arena.empty_cache()
    assert not arena.source._joined and pages.used == arena.stats().reserved
    check(arena, kept)
    kept.clear()
    arena.empty_cache()
    assert (pages.used, pages.reserved) == (0, 0)


def test_a_limit_holds_while_blocks_are_joined():
    pages, arena = virtual()
    arena.set_limit(8 * PAGE)
    kept = apart(arena, 2 * PAGE + PAGE // 2, 3 * PAGE + PAGE // 2)
    block = arena.allocate(5 * PAGE)
    with pytest.raises(OutOfMemoryError, match="the limit is 512 KiB"):
        arena.allocate(2 * PAGE)
    check(arena, [*kept, block])
    assert pages.used <= 8 * PAGE


@pytest.mark.parametrize("part", ["allocation", "free"])
def test_an_interrupt_at_any_point_leaves_the_arena_whole(part):
    for place in itertools.count(1):
        _, arena = virtual()
        kept = apart(arena, 2 * PAGE + PAGE // 2, 3 * PAGE + PAGE // 2)
        freed = [arena.allocate(5 * PAGE)] if part == "free" else []
        hit = interrupt_after(place, lambda arena=arena, freed=freed: (
            freed.clear() or arena.allocated if freed else arena.allocate(5 * PAGE)))
        assert not arena._busy
        check(arena, [*kept, *freed])  # before the free is reached, the block is there
        for pool in arena._large.values():
            check_pool(pool, 512, {id(chunk) for segment in pool.segments.values()
                                   for chunk in segment})
        assert arena.allocate(7 * PAGE).size
        if not hit:
            break
    assert place > 5

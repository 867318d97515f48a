"""Joined blocks that belong to a graph: replays go on writing their addresses."""

from __future__ import annotations

import gc

import pytest
from simulated import SimulatedPages

from gtensor.memory import Arena, VirtualSegments
from gtensor.memory.arena.segments import Segments
from gtensor.memory.arena.stitched import Stitched

from ..invariants import check

PAGE = 64 << 10
STREAM = 7


def captured() -> tuple[SimulatedPages, Arena, object, list, int]:
    """A capture that joins a block and drops it: pages, arena, pool, live blocks, its address."""
    pages = SimulatedPages(64 << 20, PAGE)
    arena = Arena(VirtualSegments(pages), min_remainder=512)
    pool = arena.graph_pool()
    with pool.capturing(STREAM) as joined_addresses:
        blocks = [arena.allocate(size, STREAM) for gap in (5, 7)
                  for size in (gap * PAGE // 2, PAGE // 2)]
        del blocks[::2]
        joined = arena.allocate(5 * PAGE, STREAM)
        assert isinstance(joined.node, Stitched)
        at = joined.ptr
        del joined
    return pages, arena, (pool, joined_addresses), blocks, at


def test_joined_addresses_stay_while_the_graph_lives():
    pages, arena, pool, blocks, at = captured()
    arena.empty_cache()
    pages.touch(at, 5 * PAGE)  # what a replay does
    other = arena.allocate(5 * PAGE)
    arena.empty_cache()
    pages.touch(at, 5 * PAGE)
    check(arena, [*blocks, other])
    kept = [pool[0]]
    del pool, other
    arena.empty_cache()
    with pytest.raises(ValueError, match="not mapped"):  # the graph is gone, its pool is not
        pages.touch(at, 5 * PAGE)
    kept.clear()
    gc.collect()
    arena.empty_cache()
    check(arena, blocks)
    with pytest.raises(ValueError, match="not mapped"):
        pages.touch(at, 5 * PAGE)
    blocks.clear()
    arena.empty_cache()
    assert (pages.used, pages.reserved) == (0, 0)


def test_a_later_capture_into_the_pool_has_the_same_address():
    _, arena, (pool, _), blocks, at = captured()
    with pool.capturing(STREAM + 1):
        again = arena.allocate(5 * PAGE, STREAM + 1)
    assert again.ptr == at
    check(arena, [*blocks, again])


def test_planted_fault_joined_addresses_that_are_forgotten_are_caught(monkeypatch):
    real = Segments.release

    def release(reserve):
        reserve.stitcher.captures.clear()
        return real(reserve)

    monkeypatch.setattr(Segments, "release", release)
    with pytest.raises(ValueError, match="not mapped"):
        test_joined_addresses_stay_while_the_graph_lives()

"""The block policy alone: fit, split, join, and what an interrupt leaves behind."""

from __future__ import annotations

import itertools

import pytest

from gtensor.memory.arena.chunks import Segment
from gtensor.memory.arena.free_lists import BlockPool

from ..interrupts import interrupt_after
from ..invariants import bin_of, check_pool

KIB = 1 << 10


def make_pool(nbytes: int = 1 << 20, min_remainder: int = 64) -> BlockPool:
    pool = BlockPool(64, min_remainder)
    grow(pool, 1 << 30, nbytes)
    return pool


def grow(pool: BlockPool, ptr: int, nbytes: int) -> None:
    segment = Segment(pool, ptr, nbytes)
    pool.add(segment)
    pool.give(segment.right)


def take(pool: BlockPool, nbytes: int):
    chunk = pool.take(nbytes)
    assert chunk is not None and chunk.size >= nbytes
    return chunk


def test_a_chunk_is_cut_from_the_front_of_a_larger_one():
    pool = make_pool()
    first, second = take(pool, 64), take(pool, 4096)
    assert (first.ptr, second.ptr) == (1 << 30, (1 << 30) + 64)
    assert pool.largest_free() == (1 << 20) - 64 - 4096
    check_pool(pool, 64)


def test_a_small_remainder_stays_with_the_chunk():
    pool = make_pool(4096, min_remainder=512)
    assert take(pool, 4096 - 448).size == 4096
    pool = make_pool(4096, min_remainder=512)
    assert take(pool, 4096 - 512).size == 4096 - 512
    assert pool.largest_free() == 512


@pytest.mark.parametrize("order", list(itertools.permutations(range(5))))
def test_free_chunks_join_whatever_the_order(order):
    pool = make_pool(5 * 4096)
    chunks = [take(pool, 4096) for _ in order]
    assert pool.take(64) is None
    for i in order:
        pool.give(chunks[i])
        check_pool(pool, 64)
    assert all(segment.free for segment in pool.segments.values())
    assert take(pool, 5 * 4096).ptr == 1 << 30


def test_segments_side_by_side_do_not_join():
    pool = make_pool(4096)
    grow(pool, (1 << 30) + 4096, 4096)
    assert pool.take(8192) is None
    assert pool.largest_free() == 4096


def test_an_exact_hole_is_preferred_to_a_large_chunk():
    pool = make_pool()
    chunks = [take(pool, 100 * KIB) for _ in range(5)]
    hole = chunks[1].ptr
    pool.give(chunks[1])
    assert take(pool, 100 * KIB).ptr == hole


def test_the_smallest_filled_bin_above_is_preferred():
    pool = make_pool()
    chunks = [take(pool, size * KIB) for size in (80, 1, 40, 1, 160, 1)]
    at = [chunk.ptr for chunk in chunks]
    for chunk in chunks[::2]:
        pool.give(chunk)
    assert take(pool, 30 * KIB).ptr == at[2]
    assert take(pool, 70 * KIB).ptr == at[0]


def test_many_near_fits_do_not_hide_the_one_fit():
    # A bin holds sizes that differ by up to 1/16, and only its first few chunks are tried at once.
    pool = make_pool(64 * 1032 + 30 * 64 * 1025 + 31 * 64)
    fit = take(pool, 64 * 1032)
    near = []
    walls = [take(pool, 64)]
    for _ in range(30):
        near.append(take(pool, 64 * 1025))
        walls.append(take(pool, 64))
    assert pool.largest_free() == 0
    pool.give(fit)
    for chunk in near:
        pool.give(chunk)
    assert bin_of(1025) == bin_of(1030) == bin_of(1032)
    assert take(pool, 64 * 1030).ptr == 1 << 30


def drop_free(pool: BlockPool) -> list[int]:
    dropped = pool.free_segments()
    for segment in dropped:
        pool.drop(segment)
    return [segment.size for segment in dropped]


def test_segments_without_live_chunks_are_dropped():
    pool = make_pool(4096)
    grow(pool, 1 << 31, 8192)
    held = take(pool, 8192)
    assert drop_free(pool) == [4096]
    check_pool(pool, 64)
    assert pool.take(64) is None
    pool.give(held)
    assert drop_free(pool) == [8192]
    assert not pool.segments and pool.largest_free() == 0
    check_pool(pool, 64)


def test_a_segment_moves_with_its_chunks():
    pool, heir = make_pool(64 * KIB), BlockPool(64, 64, stream=3)
    chunks = [take(pool, 4096) for _ in range(8)]
    for chunk in chunks[::2]:
        pool.give(chunk)
    (segment,) = pool.segments.values()
    pool.hand_over(segment, heir)
    assert not pool.segments and pool.take(64) is None
    held = check_pool(heir, 64)
    assert held == chunks[1::2]
    assert take(heir, 4096) in chunks[::2]
    for chunk in held:
        chunk.pool.give(chunk)
    check_pool(heir, 64)
    check_pool(pool, 64)


def interrupt_everywhere(sabotage=lambda pool: None) -> int:
    """Interrupt takes and gives of every kind at every point; how many times that was."""
    interrupts = 0
    for kind in ("split", "exact", "search", "miss", "alone", "left", "right", "both"):
        for place in itertools.count(1):
            pool = make_pool(20 * 64 * 64)
            chunks = [take(pool, 64 * 64) for _ in range(6)]
            freed = {"exact": [2], "left": [1], "right": [3], "both": [1, 3]}.get(kind, [])
            if kind == "search":
                chunks.append(take(pool, 64 * 70))
                chunks += [take(pool, 64) for _ in range(9)] + [take(pool, 64 * 64)]
                freed = [6]
            for i in freed:
                pool.give(chunks[i])
            sabotage(pool)
            size = {"exact": 64 * 64, "search": 64 * 71, "miss": 1 << 20}.get(kind, 128)
            if kind in ("split", "exact", "search", "miss"):
                def run(pool=pool, size=size):
                    pool.take(size)
            else:
                def run(pool=pool, chunk=chunks[2]):
                    pool.give(chunk)
            hit = interrupt_after(place, run)
            check_pool(pool, 64)
            if not hit:
                break
            interrupts += 1
    return interrupts


def test_an_interrupt_at_any_point_leaves_the_lists_whole():
    assert interrupt_everywhere() > 15


def test_planted_fault_a_call_between_the_stores_is_caught():
    class Calling(list):
        def __getitem__(self, index):
            return list.__getitem__(self, index)

    def sabotage(pool):
        pool._bins = Calling(pool._bins)

    with pytest.raises((AssertionError, AttributeError)):
        interrupt_everywhere(sabotage)

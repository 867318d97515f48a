"""Limits as parts, watermarks, small segments, sizes in steps."""

from __future__ import annotations

import threading

import pytest
from simulated import SimulatedSegments

from gtensor import memory
from gtensor.memory import Arena, OutOfMemoryError
from gtensor.memory.contract.limits import Watermarks, amount_of

from .invariants import check

KIB, MIB = 1 << 10, 1 << 20


@pytest.fixture
def arena():
    return Arena(SimulatedSegments(1 << 30))


@pytest.mark.parametrize(("amount", "nbytes"), [
    (500, 500), ("8 KiB", 8192), (0.5, 500), ("50%", 500), ("12.5 %", 125), (1.0, 1000)])
def test_amounts(amount, nbytes):
    assert amount_of(amount, lambda: 1000) == nbytes


@pytest.mark.parametrize("text", ["0.5", "0.2 B", "0", "0.0001 KB"])
def test_a_text_of_less_than_a_byte_is_no_size(text):
    with pytest.raises(ValueError, match="wanted bytes above 0"):
        amount_of(text, lambda: 1000)


def test_sizes_are_exact():
    assert amount_of("9007199254740993", lambda: 0) == 9007199254740993
    assert amount_of("9" * 400, lambda: 0) == int("9" * 400)
    assert amount_of("0.1 KB", lambda: 0) == 100


def test_a_watermark_that_is_added_while_another_is_removed_is_not_lost():
    marks = Watermarks()
    old, threads = marks.add(0, print), []

    class Meeting(tuple):
        """Lets another thread add a watermark while this one looks at what there is."""

        def __iter__(self):
            threads.append(threading.Thread(target=marks.add, args=(5, print)))
            threads[0].start()
            threads[0].join(0.2)  # it may have to wait for this one
            return super().__iter__()

    marks._all = Meeting(marks._all)
    old.remove()
    threads[0].join()
    assert [mark.nbytes for mark in marks._all] == [5]


def test_a_limit_may_be_a_part_of_the_device():
    try:
        memory.set_limit(0.5, "cpu")
        half = memory.arena_of("cpu").limit
        memory.set_limit("100%", "cpu")
        assert memory.arena_of("cpu").limit == pytest.approx(2 * half, rel=1e-6)
        mark = memory.on_watermark("50%", print, "cpu")
        assert mark.nbytes == half  # of the limit
        mark.remove()
    finally:
        memory.set_limit(None, "cpu")


def test_a_watermark_is_called_each_time_it_is_passed(arena):
    seen = []
    low = arena.on_watermark(3 * MIB, lambda live: seen.append(("low", live)))
    arena.on_watermark(5 * MIB, lambda live: seen.append(("high", live)))
    blocks = [arena.allocate(MIB) for _ in range(3)]
    assert seen == []
    blocks.append(arena.allocate(MIB))
    blocks.append(arena.allocate(MIB))
    assert seen == [("low", 4 * MIB)]
    blocks.append(arena.allocate(MIB))
    assert seen[1:] == [("high", 6 * MIB)]
    del blocks[2:], seen[:]
    blocks.append(arena.allocate(20 * MIB))  # through a new segment
    assert seen == [("low", 22 * MIB), ("high", 22 * MIB)]
    low.remove()
    low.remove()
    del blocks[:], seen[:]
    blocks.append(arena.allocate(20 * MIB))
    assert seen == [("high", 20 * MIB)]
    check(arena, blocks)
    with pytest.raises(ValueError, match="a watermark of -1 bytes"):
        arena.on_watermark(-1, print)


def test_a_callback_may_free_and_allocate(arena):
    cache = [arena.allocate(4 * MIB)]
    made = []

    def relieve(live):
        cache.clear()
        made.append(arena.allocate(9 * MIB))  # passes the mark again: not called in itself
        assert arena._lock.acquire(False)
        arena._lock.release()

    arena.on_watermark(5 * MIB, relieve)
    block = arena.allocate(2 * MIB)
    assert len(made) == 1
    check(arena, [block, *made])


def test_what_a_callback_raises_comes_out_and_leaves_nothing(arena):
    def stop(live):
        raise RuntimeError("enough")

    mark = arena.on_watermark(MIB, stop)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="enough"):
            arena.allocate(2 * MIB)
        assert arena.allocated == 0
    mark.remove()
    check(arena, [arena.allocate(2 * MIB)])


def test_peaks_are_right_beside_watermarks(arena):
    arena.on_watermark(2 * MIB, lambda live: None)
    blocks = [arena.allocate(MIB) for _ in range(5)]
    assert arena.stats().peak_allocated == 5 * MIB
    del blocks[1:]
    arena.reset_peak()
    blocks.append(arena.allocate(MIB))
    assert arena.stats().peak_allocated == 2 * MIB


def test_small_blocks_never_keep_a_large_segment():
    source = SimulatedSegments(1 << 30)
    arena = Arena(source, small=MIB)
    large = arena.allocate(100 * MIB)
    small = arena.allocate(KIB)
    assert source.used == 102 * MIB
    del large
    edge = arena.allocate(MIB)
    assert arena.stats().segments == 2
    assert arena.empty_cache() == 100 * MIB
    check(arena, [small, edge])


def test_small_blocks_use_whatever_there_is_before_memory_is_out():
    arena = Arena(SimulatedSegments(100 * MIB), small=MIB)
    large = [arena.allocate(50 * MIB), arena.allocate(50 * MIB)]
    del large[0]
    hold = arena.allocate(40 * MIB)  # the rest of 10 MiB is in a segment that is not free
    blocks = [arena.allocate(KIB) for _ in range(100)]
    check(arena, [*large, hold, *blocks])


def test_sizes_in_steps_share_their_chunks():
    arena = Arena(SimulatedSegments(1 << 30), steps=4)
    sizes = {arena.allocate(nbytes).size for nbytes in range(4 * MIB + 1, 5 * MIB, 7919)}
    assert sizes == {5 * MIB}
    assert arena.allocate(MIB).size == MIB and arena.allocate(1).size == 512
    assert arena.allocate(3 * MIB + 1).size == 3 * MIB + MIB // 2
    with pytest.raises(ValueError, match="3 steps per power of two"):
        Arena(SimulatedSegments(MIB), steps=3)


def test_limits_count_with_watermarks_and_errors(arena):
    seen = []
    arena.on_watermark(MIB, seen.append)
    arena.set_limit(8 * MIB)
    with pytest.raises(OutOfMemoryError):
        arena.allocate(9 * MIB)
    assert seen == [], "a block that was not made passed a mark"

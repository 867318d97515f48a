"""Frees and allocations that arrive in the middle of another: collections, finalizers, threads."""

from __future__ import annotations

import gc
import itertools
import sys
import threading
from contextlib import suppress
from typing import ClassVar

import pytest
from simulated import SimulatedSegments

from gtensor.memory import Arena, Block, OutOfMemoryError
from gtensor.memory.arena.free_lists import BlockPool

from ..interrupts import interrupt_after
from ..invariants import check, check_pool

MIB = 1 << 20


class Disturbed(SimulatedSegments):
    """A source whose next `acquire` runs something first, while the arena holds its lock."""

    def __init__(self, capacity: int = 1 << 40) -> None:
        super().__init__(capacity)
        self.disturb = None

    def acquire(self, nbytes: int) -> int:
        disturb, self.disturb = self.disturb, None
        if disturb is not None:
            disturb()
        return super().acquire(nbytes)


class Cycle:
    """Garbage that only a collection can free, holding a block; maybe with a finalizer."""

    def __init__(self, block, finalizer=None):
        self.itself = self
        self.block = block
        self.finalizer = finalizer

    def __del__(self):
        if self.finalizer is not None:
            self.finalizer()


@pytest.fixture
def no_collections():
    """Only the collections that the test asks for."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def test_blocks_collected_in_the_middle_of_an_allocation_come_back(no_collections):
    source = Disturbed()
    arena = Arena(source)
    held = [arena.allocate(MIB) for _ in range(6)]
    for _ in range(3):
        Cycle(held.pop())
    seen = []

    def collect():
        gc.collect()
        seen.append((arena._busy, len(arena._pending)))

    source.disturb = collect
    big = arena.allocate(100 * MIB)
    assert seen == [(True, 3)], "the collection did not fall into the allocation"
    assert not arena._pending
    check(arena, [*held, big])
    assert arena.stats().peak_allocated == 103 * MIB  # the three were free before it was counted


def test_a_finalizer_may_allocate_in_the_middle_of_an_allocation(no_collections):
    source = Disturbed()
    arena = Arena(source)
    made = []

    def finalizer():
        made.append(arena.allocate(3 * MIB, 0, "aside"))
        made.append(arena.allocate(MIB, 5, "aside on a stream that is new"))
        arena.allocate(MIB, 5, "aside, dropped at once")
        arena.empty_cache()  # must not touch what is being changed
        assert arena.stats().reserved > 0
        assert arena.holdings() == []
        arena.reset_peak()

    Cycle(None, finalizer)
    source.disturb = gc.collect
    big = arena.allocate(100 * MIB)
    assert [block.label[:5] for block in made] == ["aside", "aside"]
    check(arena, [big, *made])
    made.clear()
    check(arena, [big])
    assert arena.allocate(3 * MIB).ptr and arena.stats().misses == 4


def test_an_allocation_aside_keeps_the_limit(no_collections):
    source = Disturbed()
    arena = Arena(source)
    arena.set_limit(10 * MIB)
    refused = []

    def finalizer():
        with pytest.raises(OutOfMemoryError, match="in the middle of another") as caught:
            arena.allocate(11 * MIB)
        refused.append(caught.value)

    Cycle(None, finalizer)
    source.disturb = gc.collect
    block = arena.allocate(4 * MIB)
    assert len(refused) == 1
    check(arena, [block])


def test_a_free_never_waits_for_an_allocation_of_another_thread():
    source = Disturbed()
    arena = Arena(source)
    blocks = [arena.allocate(MIB)]
    inside, go_on = threading.Event(), threading.Event()

    def disturb():
        inside.set()
        assert go_on.wait(60)

    source.disturb = disturb
    thread = threading.Thread(target=lambda: blocks.append(arena.allocate(100 * MIB)))
    thread.start()
    assert inside.wait(60)
    del blocks[0]  # would wait for ever here
    assert len(arena._pending) == 1
    go_on.set()
    thread.join()
    assert not arena._pending
    check(arena, blocks)


class LastMoment:
    """A lock that runs something just before it is released."""

    def __init__(self, lock, action):
        self.lock, self.acquire = lock, lock.acquire
        self.action = action

    def release(self):
        self.action()
        self.lock.release()

    def __enter__(self):
        return self.acquire()

    def __exit__(self, *exception):
        self.release()


@pytest.mark.parametrize("call", [lambda arena: arena.allocate(MIB), Arena.stats])
def test_a_free_just_before_the_lock_is_released_is_not_lost(call):
    arena = Arena(SimulatedSegments(1 << 30))
    blocks = [arena.allocate(MIB)]
    waiting = []

    def free_elsewhere():
        thread = threading.Thread(target=blocks.clear)
        thread.start()
        thread.join()
        waiting.append(len(arena._pending))

    arena._lock = LastMoment(arena._lock, free_elsewhere)
    result = call(arena)
    arena._lock.action = lambda: None
    assert waiting == [1]
    left = [result] if isinstance(result, Block) else []
    assert arena.allocated == MIB * len(left), "a free was left behind"
    check(arena, left)


def test_an_interrupt_at_any_point_of_an_allocation_leaves_the_arena_usable():
    interrupts = 0
    for place in itertools.count(1):
        arena = Arena(SimulatedSegments(1 << 30))
        held = arena.allocate(MIB)
        if not interrupt_after(place, lambda arena=arena: arena.allocate(MIB)):
            break
        interrupts += 1
        assert not arena._busy
        thread = threading.Thread(target=lambda arena=arena: arena.allocate(2 * MIB))
        thread.start()
        thread.join(60)
        assert not thread.is_alive(), "the lock was not let go"
        for pool in arena._large.values():
            check_pool(pool, 512)
        assert arena.allocated <= 2 * MIB  # at worst the interrupted block is lost
        del held
    assert interrupts > 5


# What is freed before an allocation of 1 MiB: five blocks are live, the last one of 3 MiB.
FREED = {"nothing": [], "a fit": [1], "a fit first": [1, 4, 3], "no fit first": [4, 1],
         "a fit, and joined": [1, 2]}


@pytest.mark.parametrize("freed", FREED.values(), ids=FREED)
@pytest.mark.parametrize("settled", [False, True])
def test_an_interrupt_at_any_point_of_a_hit_loses_no_byte(
    freed, settled, monkeypatch, patience=10
):
    unraisable = []
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)

    def allocate(arena, blocks):
        if settled:
            assert arena.allocated
        blocks[-1] = arena.allocate(MIB)

    for place in itertools.count(1):
        arena = Arena(SimulatedSegments(1 << 30))
        blocks = [arena.allocate(size * MIB) for size in (1, 1, 1, 1, 3)] + [None]
        misses = arena.stats().misses
        for which in freed:
            blocks[which] = None
        hit = interrupt_after(
            place, lambda arena=arena, blocks=blocks: allocate(arena, blocks))
        assert not arena._busy
        thread = threading.Thread(target=arena.stats)  # waits for the lock
        thread.start()
        thread.join(patience)
        assert not thread.is_alive(), "the lock was not let go"
        check(arena, filter(None, blocks))
        assert arena.stats().misses == misses
        if not hit:
            break
    assert place > 4 and blocks[-1] is not None
    assert not unraisable, "a free failed"


def test_a_freed_block_that_fits_is_handed_on_as_it_is():
    arena = Arena(SimulatedSegments(1 << 30))
    blocks = [arena.allocate(MIB, 0, "before") for _ in range(3)]
    before, freed = arena.stats(), blocks[1].ptr
    del blocks[1]
    blocks.append(arena.allocate(MIB - 1, 0, "after"))
    block = blocks[-1]
    assert (block.ptr, block.size, block.nbytes, block.label) == (freed, MIB, MIB - 1, "after")
    assert block.serial not in [other.serial for other in blocks[:-1]]
    after = arena.stats()
    assert (after.allocated, after.peak_allocated, after.hits) == (
        before.allocated, before.peak_allocated, before.hits + 1)
    check(arena, blocks)


@pytest.mark.parametrize("nbytes, stream", [(2 * MIB, 0), (MIB, 7)])
def test_a_freed_block_is_not_handed_on_if_size_or_stream_differ(nbytes, stream):
    arena = Arena(SimulatedSegments(1 << 30))
    blocks = [arena.allocate(MIB) for _ in range(3)]
    freed = blocks[1].ptr
    del blocks[1]
    blocks.append(arena.allocate(nbytes, stream))
    assert blocks[-1].ptr != freed
    check(arena, blocks)


@pytest.mark.parametrize("call", [lambda arena: arena.allocate(MIB), Arena.stats])
def test_planted_fault_a_free_that_is_never_settled_is_caught(monkeypatch, call):
    monkeypatch.setattr(Arena, "_settle", lambda arena: None)
    with pytest.raises(AssertionError, match="left behind"):
        test_a_free_just_before_the_lock_is_released_is_not_lost(call)


class CarelessLock:
    """A lock that an interrupt right behind `acquire` leaves taken, as without the `try`."""

    made: ClassVar = []

    def __init__(self):
        self.lock = threading.RLock()
        self.acquire = self.lock.acquire
        self.made.append(self)

    def release(self):
        if sys.exc_info()[0] is not None:
            raise RuntimeError("cannot release")
        self.lock.release()

    def __enter__(self):
        return self.acquire()

    def __exit__(self, *exception):
        self.lock.release()

    def _is_owned(self):
        return self.lock._is_owned()

    @classmethod
    def let_all_go(cls):
        """Those that this thread kept: others wait for them."""
        while cls.made:
            with suppress(RuntimeError):  # it is free
                while True:
                    cls.made[-1].lock.release()
            cls.made.pop()


def test_planted_fault_a_lock_that_an_interrupt_keeps_is_caught(monkeypatch):
    monkeypatch.setattr("gtensor.memory.arena.arena.RLock", CarelessLock)
    try:
        with pytest.raises(AssertionError, match="was not let go"):
            test_an_interrupt_at_any_point_of_a_hit_loses_no_byte(
                [4, 1], False, monkeypatch, patience=1)
    finally:
        CarelessLock.let_all_go()


def test_planted_fault_a_chunk_that_an_interrupt_loses_is_caught(monkeypatch):
    real = BlockPool.take

    def take(pool, size, breaking=False):
        chunk = real(pool, size, breaking)
        len("an interrupt may come behind this call")
        return chunk

    monkeypatch.setattr(BlockPool, "take", take)
    with pytest.raises((AssertionError, AttributeError)):
        test_an_interrupt_at_any_point_of_a_hit_loses_no_byte([4], False, monkeypatch)

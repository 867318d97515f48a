"""Frees and allocations that arrive in the middle of another: collections, finalizers, threads."""

from __future__ import annotations

import gc
import itertools
import random
import sys
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

from gtensor.memory import (
    Arena,
    Block,
    HostSegments,
    OutOfMemoryError,
    Resource,
    SimulatedSegments,
    Timeline,
    VirtualSegments,
)
from gtensor.memory.blocks import BlockPool

from .interrupts import interrupt_after
from .invariants import check, check_pool
from .loops import planned_loop
from .upstreams import HostPages

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
        assert go_on.wait(10)

    source.disturb = disturb
    thread = threading.Thread(target=lambda: blocks.append(arena.allocate(100 * MIB)))
    thread.start()
    assert inside.wait(10)
    del blocks[0]  # would wait for ever here
    assert len(arena._pending) == 1
    go_on.set()
    thread.join()
    assert not arena._pending
    check(arena, blocks)


class LastMoment:
    """A lock that runs something just before it is let go at the end of a `with` block."""

    def __init__(self, lock, action):
        self.acquire, self.release = lock.acquire, lock.release
        self.action = action

    def __enter__(self):
        return self.acquire()

    def __exit__(self, *exception):
        self.action()
        self.release()


@pytest.mark.parametrize("call", [lambda arena: arena.allocate(MIB), Arena.stats])
def test_a_free_just_before_the_lock_is_let_go_is_not_forgotten(call):
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
    assert waiting == [1]
    assert not arena._pending, "the holder of the lock left a free behind"
    arena._lock.action = lambda: None
    check(arena, [result] if isinstance(result, Block) else [])


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
        thread.join(10)
        assert not thread.is_alive(), "the lock was not let go"
        for pool in arena._pools.values():
            check_pool(pool, 512)
        assert arena.allocated <= 2 * MIB  # at worst the interrupted block is lost
        del held
    assert interrupts > 5


def hammer(resource: Resource, threads: int, rounds: int,
           beside: Callable[[], object] | None = None) -> None:
    """Threads that allocate, fill, verify and free, some in cycles, with collections in between.

    One more thread runs `beside`.
    """
    errors = []

    def work(seed):
        rng = random.Random(seed)
        mine = []
        try:
            for i in range(rounds):
                if mine and rng.random() < 0.5:
                    array, value = mine.pop(rng.randrange(len(mine)))
                    assert (array == value).all(), "somebody else wrote into this block"
                    if rng.random() < 0.3:
                        Cycle(array)
                    del array
                else:
                    array = as_array(resource.allocate(rng.randrange(1, 20_000), seed % 2, "work"))
                    array[:] = value = rng.randrange(256)
                    mine.append((array, value))
                    del array
                if i % 200 == seed:
                    gc.collect(0)
        except BaseException as error:
            errors.append(error)

    def also():
        try:
            beside()
        except BaseException as error:
            errors.append(error)

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(threads)]
    if beside is not None:
        workers.append(threading.Thread(target=also))
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    finally:
        sys.setswitchinterval(interval)
    if errors:
        raise errors[0]
    gc.collect()


def as_array(block: Block) -> np.ndarray:
    block.__array_interface__ = {
        "version": 3, "data": (block.ptr, False), "shape": (block.nbytes,), "typestr": "|u1"}
    return np.asarray(block)


def on_pages() -> Arena:
    return Arena(VirtualSegments(HostPages(64 * MIB)))


@pytest.mark.parametrize("make, rounds", [(lambda: Arena(HostSegments()), 1000), (on_pages, 500)],
                         ids=["host", "virtual"])
def test_eight_threads_allocate_free_and_collect(make, rounds):
    arena = make()
    hammer(arena, threads=8, rounds=rounds)
    assert not arena._pending, "a free was left behind"
    check(arena, [])
    assert arena.stats().hits + arena.stats().misses > 3 * rounds


def test_eight_threads_while_pages_come_and_go():
    arena = on_pages()

    def empty():
        for _ in range(100):
            arena.empty_cache()
            time.sleep(1e-4)

    hammer(arena, 8, 300, empty)
    check(arena, [])
    arena.empty_cache()
    pages = arena.source.pages
    assert pages.used == pages.reserved == 0 and pages.unmapped > 20


@pytest.mark.parametrize("make", [lambda: Arena(HostSegments()), on_pages], ids=["host", "virtual"])
def test_eight_threads_under_a_timeline(make):
    arena = make()
    timeline = Timeline(arena)
    hammer(timeline, threads=8, rounds=300)
    timeline.close()
    assert timeline.allocated == 0 and not timeline._live
    events = timeline.events
    assert sum(event.delta for event in events) == 0 and len(events) == timeline.recorded > 1000
    check(arena, [])


@pytest.mark.parametrize("over", [lambda planned: planned, Timeline], ids=["", "timeline"])
@pytest.mark.parametrize("source", [HostSegments, lambda: on_pages().source],
                         ids=["host", "virtual"])
def test_eight_threads_beside_planned_steps(source, over):
    """The steps' blocks are filled, verified, and left to the collector, which any thread runs."""
    planned, _, arena = planned_loop(source())
    resource = over(planned)

    def steps():
        for number in range(60):
            planned.begin()
            for nbytes in (3 * MIB, 5 * MIB, 2 * MIB, 3 * MIB):
                array = as_array(resource.allocate(nbytes, 0, "step"))
                array[::4096] = number
                assert (array[::4096] == number).all(), "somebody else wrote into this block"
                if number % 10 == 0:
                    Cycle(array)
                del array
            planned.end()
            if number % 10 == 1:
                gc.collect()

    hammer(resource, 7, 300, steps)
    if over is Timeline:
        resource.close()
    assert planned.counts.served > 120, "hardly a block had its planned place"
    assert planned.allocated == resource.allocated == 0
    check(arena, [region.reserved for region in planned._regions.values()])


def test_planted_fault_memory_that_others_may_write_is_caught(monkeypatch):
    """A page that is given back while a block lies in it loses what it held."""
    arena = on_pages()
    real = BlockPool.give

    def give(pool, chunk):
        pages = arena.source.pages
        start = chunk.ptr // pages.page * pages.page
        pages.unmap(start, pages.page)
        pages.map(start, pages.page)
        real(pool, chunk)

    monkeypatch.setattr(BlockPool, "give", give)
    with pytest.raises(AssertionError, match="somebody else wrote"):
        hammer(arena, 2, 300)


def test_planted_fault_a_timeline_that_misses_frees_is_caught(monkeypatch):
    real = Timeline._freed
    monkeypatch.setattr(Timeline, "_freed", lambda timeline, block: (
        None if block.serial % 100 == 0 else real(timeline, block)))
    with pytest.raises(AssertionError):
        test_eight_threads_under_a_timeline(lambda: Arena(HostSegments()))


def test_planted_fault_a_free_that_nobody_settles_is_caught(monkeypatch):
    monkeypatch.setattr(Arena, "_settle", lambda arena: None)
    with pytest.raises(AssertionError, match="left a free behind"):
        test_a_free_just_before_the_lock_is_let_go_is_not_forgotten(lambda arena: arena.allocate(1))

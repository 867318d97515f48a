"""Eight threads that allocate, fill, verify, free and collect garbage at once, over any stack."""

from __future__ import annotations

import gc
import os
import random
import subprocess
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
    Resource,
    Timeline,
    VirtualSegments,
)
from gtensor.memory.arena.free_lists import BlockPool

from ..invariants import check
from ..loops import planned_loop
from ..upstreams import HostPages
from .test_reentrancy import Cycle

MIB = 1 << 20


def hammer(resource: Resource, threads: int, rounds: int,
           beside: Callable[[], object] | None = None, sizes: range = range(1, 20_000)) -> None:
    """Threads that allocate, fill, verify and free, some in cycles, with collections in between.

    One more thread runs `beside`. `sizes` are in bytes.
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
                    array = as_array(resource.allocate(rng.choice(sizes), seed % 2, "work"))
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


@pytest.mark.thorough
@pytest.mark.parametrize("make, rounds", [(lambda: Arena(HostSegments()), 1000), (on_pages, 500)],
                         ids=["host", "virtual"])
def test_eight_threads_allocate_free_and_collect(make, rounds):
    arena = make()
    hammer(arena, threads=8, rounds=rounds)
    check(arena, [])
    assert arena.stats().hits + arena.stats().misses > 3 * rounds


def test_freed_blocks_of_one_size_are_handed_on_once() -> None:
    """Without the lock: two threads that see one free at the head of the queue share no block."""
    arena = Arena(HostSegments())
    hammer(arena, threads=4, rounds=4000, sizes=range(512, 513))
    check(arena, [])


PLANT = """
import importlib, os, sys, time
from gtensor.memory.arena.streams import Streams

def count(streams):
    time.sleep(0)  # another thread runs, however busy the machine is
    return 0

Streams.count = property(count, lambda *_: None)
found = importlib.import_module(sys.argv[1])
try:
    for _ in range(100):
        found.test_freed_blocks_of_one_size_are_handed_on_once()
except (AssertionError, IndexError, AttributeError):
    os._exit(3)  # broken blocks stay in this process
"""


def test_planted_fault_a_call_between_the_check_and_the_stores_of_a_hit_is_caught():
    path = os.pathsep.join(filter(None, sys.path))
    ended = subprocess.run([sys.executable, "-c", PLANT, __name__], text=True, capture_output=True,
                           env={**os.environ, "PYTHONPATH": path})
    assert ended.returncode == 3, ended.stderr


def test_eight_threads_while_pages_come_and_go():
    arena, released = on_pages(), []

    def empty():
        for _ in range(100):
            released.append(arena.empty_cache())
            time.sleep(1e-4)

    hammer(arena, 8, 300, empty)
    assert any(released), "no page went in between"
    check(arena, [])
    arena.empty_cache()
    pages = arena.source.pages
    assert pages.used == pages.reserved == 0 and pages.unmapped


@pytest.mark.parametrize("make", [lambda: Arena(HostSegments()), on_pages], ids=["host", "virtual"])
def test_eight_threads_under_a_timeline(make):
    arena = make()
    timeline = Timeline(arena)
    try:
        hammer(timeline, threads=8, rounds=300)
    finally:
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
    monkeypatch.setattr(Timeline, "_freed", lambda timeline, key: (
        None if timeline.recorded % 100 == 0 else real(timeline, key)))
    with pytest.raises(AssertionError):
        test_eight_threads_under_a_timeline(lambda: Arena(HostSegments()))

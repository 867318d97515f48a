"""What an upstream may do to those above it: refuse, fail to take back, and answer late."""

from __future__ import annotations

import random
import threading
import time
from contextlib import closing, suppress

import pytest
from simulated import CappedSegments
from together import in_threads

from gtensor.memory import Arena, Failing, HostSegments, OutOfMemoryError, Planned, Timeline

from .arena.test_threads import as_array
from .invariants import check, check_apart
from .loops import MIB, planned_loop, step
from .resources import SOURCES
from .upstreams import Unreliable

pytestmark = pytest.mark.usefixtures("cheap_collections")
WHOLE = ["simulated", "host", "called", "capped"]  # sources whose segments go back as they came


def unreliable(name: str) -> tuple[Arena, Unreliable]:
    source = Unreliable(SOURCES[name]())
    return Arena(source), source


# -- it fails to take memory back ------------------------------------------------------------------


@pytest.mark.parametrize("call", [1, 2, 3])
@pytest.mark.parametrize("name", WHOLE)
def test_what_the_source_does_not_take_back_stays_with_the_arena(name, call):
    arena, source = unreliable(name)
    blocks = [arena.allocate(20 * MIB, stream) for stream in range(3)]
    blocks.clear()
    source.failing = lambda number: number == call
    with pytest.raises(RuntimeError, match=f"release {call} was told to fail"):
        arena.empty_cache()
    check(arena, [])
    assert arena.stats().reserved == source.used == (4 - call) * 20 * MIB
    blocks = [arena.allocate(20 * MIB, stream) for stream in range(3)]
    assert source.asked == 3 + (call - 1), "what came back was not used again"
    check(arena, blocks)
    blocks.clear()
    assert arena.empty_cache() == 60 * MIB and source.used == 0


@pytest.mark.parametrize("name", WHOLE)
def test_a_release_that_fails_in_the_middle_of_an_allocation(name):
    arena, source = unreliable(name)
    arena.set_limit(50 * MIB)
    held, free = arena.allocate(10 * MIB), arena.allocate(30 * MIB)
    del free
    source.failing = lambda number: True
    with pytest.raises(RuntimeError, match="told to fail"):
        arena.allocate(40 * MIB)
    check(arena, [held])
    again = arena.allocate(30 * MIB)  # the segment is still there
    check(arena, [held, again])
    del again
    source.failing = lambda number: False
    check(arena, [held, arena.allocate(40 * MIB)])


# -- it answers late -------------------------------------------------------------------------------


class Stuck:
    """A source that delays one call until the test continues it, while other threads allocate."""

    def __init__(self, source: Unreliable) -> None:
        self.inside, self.go_on = threading.Event(), threading.Event()
        self.source = source
        source.late = self.wait

    def wait(self) -> None:
        self.source.late = lambda: None
        self.inside.set()
        assert self.go_on.wait(60)


def others_allocate_while_a_source_is_late() -> None:
    arena, source = unreliable("simulated")
    blocks = [arena.allocate(20 * MIB)]
    stuck = Stuck(source)

    def ask(nbytes: int, stream: int) -> None:
        blocks.append(arena.allocate(nbytes, stream))

    threads = [threading.Thread(target=ask, args=arguments)
               for arguments in [(100 * MIB, 0), (100 * MIB, 0), (MIB, 0), (MIB, 1)]]
    threads[0].start()
    assert stuck.inside.wait(60)
    for thread in threads[1:]:
        thread.start()
    del blocks[0]
    threads[1].join(0.02)
    waiting = [thread.is_alive() for thread in threads]
    stuck.go_on.set()
    for thread in threads:
        thread.join(60)
    assert len(blocks) == 4 and not arena._pending
    check(arena, blocks)
    assert all(waiting), "somebody had memory of pools that were being changed"


def test_a_request_during_a_slow_source_waits_for_it():
    others_allocate_while_a_source_is_late()


def test_planted_fault_an_arena_without_a_lock_is_caught(monkeypatch):
    class NoLock:
        def acquire(self, blocking=True):
            return True

        def release(self):
            pass

        __enter__ = acquire

        def __exit__(self, *exception):
            pass

        def _is_owned(self):
            return False

    monkeypatch.setattr("gtensor.memory.arena.arena.RLock", NoLock)
    with pytest.raises(AssertionError):
        others_allocate_while_a_source_is_late()


def a_step_runs_while_a_source_is_late(patience: float) -> None:
    source = Unreliable(SOURCES["simulated"]())
    planned, loop, _ = planned_loop(source)
    for _ in range(2):  # the second gives back what unplanned steps left
        step(planned, loop)
    stuck = Stuck(source)
    made = []
    outside = threading.Thread(target=lambda: made.append(planned.allocate(100 * MIB)))
    outside.start()
    assert stuck.inside.wait(60)
    served = planned.counts.served
    inside = threading.Thread(target=step, args=(planned, loop))
    inside.start()
    inside.join(patience)
    finished = not inside.is_alive()
    stuck.go_on.set()
    inside.join(60)
    outside.join(60)
    assert finished, "a planned step waited for the upstream, of which it wanted nothing"
    assert planned.counts.served == served + 4 and not planned.counts.first
    assert planned.allocated == (2 + 100) * MIB


def test_a_planned_step_does_not_wait_for_what_others_ask_of_the_source():
    a_step_runs_while_a_source_is_late(patience=10)


def test_planted_fault_a_plan_that_asks_the_upstream_under_its_lock_is_caught(monkeypatch):
    real = Planned.allocate

    def allocate(planned, nbytes, stream=0, label=""):
        with planned._lock:
            return real(planned, nbytes, stream, label)

    monkeypatch.setattr(Planned, "allocate", allocate)
    with pytest.raises(AssertionError, match="waited for the upstream"):
        a_step_runs_while_a_source_is_late(patience=0.2)


def test_threads_over_a_source_that_is_late_refuses_and_fails():
    """Each block is written by its holder; errors are raised, and break nothing."""
    source = Unreliable(CappedSegments(HostSegments(), 24 * MIB))
    arena = Arena(source)
    dice = random.Random(0)
    source.late = lambda: time.sleep(dice.random() * 1e-4)
    source.refused = lambda call: dice.random() < 0.3
    source.failing = lambda call: dice.random() < 0.3
    refused = []

    def work(seed: int) -> None:
        rng = random.Random(seed)
        mine = []
        for _ in range(120):
            if mine and rng.random() < 0.5:
                array, value = mine.pop(rng.randrange(len(mine)))
                assert (array == value).all(), "somebody else wrote into this block"
                del array
                continue
            try:
                array = as_array(arena.allocate(rng.randrange(1, 2 * MIB), seed % 2))
            except (OutOfMemoryError, RuntimeError) as error:
                refused.append(type(error))
                mine.clear()
                with suppress(RuntimeError):
                    arena.empty_cache()
                continue
            array[:] = value = rng.randrange(256)
            mine.append((array, value))
            del array

    in_threads(work, range(6))
    assert len(refused) > 3 and source.released > 3  # how many depends on the threads
    source.failing = lambda call: False
    arena.empty_cache()
    check(arena, [])
    assert arena.stats().reserved == source.used == 0


# -- a resource that refuses at random -------------------------------------------------------------


def random_work_over_a_resource_that_refuses(seed: int) -> None:
    """A recorded, planned stack over it: what is live, what it holds, and where it lies."""
    rng = random.Random(seed)
    planned, _, arena = planned_loop()
    planned.upstream = Failing(arena, *rng.sample(range(1, 200), 60))
    refused, blocks = 0, []
    with closing(Timeline(planned)) as resource:
        for number in range(200):
            if number % 10 == 0:
                if planned.stepping:
                    planned.end(whole=False)
                planned.begin()
            if blocks and rng.random() < 0.4:
                del blocks[rng.randrange(len(blocks))]
            else:
                wanted = rng.choice([3 * MIB, 5 * MIB, 2 * MIB, 4096])
                try:
                    blocks.append(resource.allocate(wanted, 0, "op"))
                except OutOfMemoryError:
                    refused += 1
            live = sum(block.size for block in blocks)
            assert resource.allocated == resource.stats().allocated == live
            check_apart(arena.source, blocks)
    assert refused > 5 and planned.counts.served > 5
    made = sum(event.delta > 0 for event in resource.events)
    assert made - (len(resource.events) - made) == len(blocks)
    blocks.clear()
    check(arena, [region.reserved for region in planned._regions.values()])


@pytest.mark.parametrize("seed", range(5))
def test_refusals_leave_a_stack_of_adaptors_whole(seed):
    random_work_over_a_resource_that_refuses(seed)


def test_planted_fault_a_plan_that_counts_what_it_did_not_get_is_caught(monkeypatch):
    real = Planned.allocate

    def allocate(planned, nbytes, stream=0, label=""):
        planned._live += 512
        block = real(planned, nbytes, stream, label)
        planned._live -= 512
        return block

    monkeypatch.setattr(Planned, "allocate", allocate)
    with pytest.raises(AssertionError):
        random_work_over_a_resource_that_refuses(0)


def test_planted_fault_memory_that_is_gone_although_the_release_failed_is_caught(monkeypatch):
    real = Unreliable.release

    def release(source, ptr, nbytes):
        failing, source.failing = source.failing, lambda call: False
        real(source, ptr, nbytes)
        source.failing = failing
        if failing(source.released):
            raise RuntimeError(f"release {source.released} was told to fail")

    monkeypatch.setattr(Unreliable, "release", release)
    with pytest.raises(AssertionError):
        test_what_the_source_does_not_take_back_stays_with_the_arena("simulated", 2)

"""Planned steps that are disturbed: by other threads, finalizers, interrupts."""

from __future__ import annotations

import gc
import itertools
import threading
from itertools import pairwise

import pytest

from gtensor.memory import Arena, HostSegments, Planned, Recording, Timeline

from ..arena.test_reentrancy import Cycle
from ..interrupts import interrupt_after
from ..invariants import check
from ..loops import MIB, planned_loop, step
from ..resources import SOURCES


def disturb_once(source, action) -> None:
    """Run something in the middle of the source's next call for memory."""
    target, name = (source.pages, "map") if hasattr(source, "pages") else (source, "acquire")
    real = getattr(target, name)

    def disturbed(*arguments):
        setattr(target, name, real)
        action()
        return real(*arguments)

    setattr(target, name, disturbed)


def planned_below(source):
    planned, _, arena = planned_loop(source)
    planned.begin()
    return planned, arena


def timeline_between(source):
    """As where a step is planned within a timeline."""
    planned, arena = planned_below(source)
    planned.upstream = Timeline(arena)
    return planned, arena


def arena_alone(source):
    arena = Arena(source)
    return arena, arena


STACKS = {
    "arena": arena_alone,
    "planned": planned_below,
    "timeline between": timeline_between,
}


@pytest.mark.parametrize("recorded", [False, True], ids=["", "in a timeline"])
@pytest.mark.parametrize("stack", list(STACKS))
@pytest.mark.parametrize("name", ["simulated", "virtual", "small pages"])
def test_frees_and_requests_of_finalizers_in_the_middle_of_an_allocation(name, stack, recorded):
    source = SOURCES[name]()
    below, arena = STACKS[stack](source)
    resource = Timeline(below) if recorded else below
    made, seen = [], []

    def finalizer() -> None:
        made.append(resource.allocate(MIB, 0, "aside"))
        resource.allocate(2 * MIB, 5, "aside, dropped at once")

    def collect() -> None:
        gc.collect()
        seen.append(arena._busy)

    gc.collect()
    gc.disable()
    try:
        held = [resource.allocate(3 * MIB, 0, "linear"), resource.allocate(7 * MIB)]
        kept = resource.allocate(6 * MIB)
        Cycle(held.pop(), finalizer)
        Cycle(held.pop())
        disturb_once(source, collect)
        big = resource.allocate(100 * MIB)
    finally:
        gc.enable()
    assert seen == [True], "the collection did not fall into the allocation"
    assert [block.label for block in made] == ["aside"]
    live = [kept, big, *made]
    assert resource.allocated == resource.stats().allocated == sum(block.size for block in live)
    reserved = [region.reserved for region in getattr(below, "_regions", {}).values()]
    check(arena, [*live, *reserved])
    if isinstance(below, Planned):
        assert below.counts.served == 1
        assert not any(region.starts for region in below._regions.values()), "a place is lost"
    for timeline in (resource, getattr(below, "upstream", None)):
        if isinstance(timeline, Timeline):
            timeline.close()


def test_planted_fault_a_plan_that_settles_no_free_is_caught(monkeypatch):
    monkeypatch.setattr(Planned, "_drain", lambda planned: planned._freed.clear())
    with pytest.raises(AssertionError):
        test_frees_and_requests_of_finalizers_in_the_middle_of_an_allocation(
            "simulated", "planned", False)


def test_other_threads_and_finalizers_are_served_by_the_upstream():
    planned, loop, _ = planned_loop()
    made = []

    class Finalizer:
        def __del__(self) -> None:
            made.append(planned.allocate(3 * MIB, 0, "linear"))

    class Disturbing(list):
        """Stands for a collection in the middle of an allocation."""

        def __setitem__(self, at, starts):
            Finalizer()
            super().__setitem__(at, starts)

    def work() -> None:
        thread = threading.Thread(
            target=lambda: made.append(planned.allocate(3 * MIB, 0, "linear")))
        thread.start()
        thread.join()
        planned._regions[0].starts = Disturbing(planned._regions[0].starts)
        loop()

    step(planned, work)
    assert planned.counts.served == 4 and planned.counts.first == ""
    assert len(made) == 5
    blocks = sorted(made, key=lambda block: block.ptr)
    assert all(a.ptr + a.size <= b.ptr for a, b in pairwise(blocks))


def test_threads_that_free_while_a_step_allocates():
    arena = Arena(HostSegments())
    recording = Recording(arena)

    def run(resource, drop) -> None:
        for i in range(60):
            drop.append(resource.allocate(10_000 + 64 * i, 0, "work"))
            if i >= 20:
                drop[i - 20] = None

    with_step = []
    run(recording, with_step)
    recording.close()
    with_step.clear()
    planned = Planned(arena, recording.plan())
    errors = []

    def elsewhere(mine) -> None:
        try:
            for _ in range(300):
                mine.append(planned.allocate(4096))
                gc.collect(0)
                del mine[:-3]
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=elsewhere, args=([],)) for _ in range(7)]
    for thread in threads:
        thread.start()
    for _ in range(40):
        held = []
        planned.begin()
        run(planned, held)
        planned.end()
        live = sorted((b for b in held if b), key=lambda block: block.ptr)
        assert all(a.ptr + a.size <= b.ptr for a, b in pairwise(live))
        cleaner = threading.Thread(target=held.clear)
        del live
        cleaner.start()
        cleaner.join()
    for thread in threads:
        thread.join()
    assert not errors
    assert planned.counts.served == 40 * 40  # 20 of the 60 outlived the recording
    assert planned.allocated == 0


@pytest.mark.parametrize("freed", [False, True], ids=["", "behind a free"])
def test_an_interrupt_at_any_point_of_an_allocation_leaves_the_plan_usable(freed):
    interrupts = 0
    for place in itertools.count(1):
        planned, loop, _ = planned_loop()
        planned.begin()
        first = planned.allocate(3 * MIB, 0, "linear")
        if freed:
            del first
        interrupted = interrupt_after(
            place, lambda planned=planned: planned.allocate(5 * MIB, 0, "relu"))
        first = None
        planned.end(whole=False)
        assert not planned._busy
        assert planned.allocated == 0, "a place was lost"
        region = planned._regions[0]
        for _ in range(3):
            step(planned, loop)
            assert all(region.ends[a] <= b for a, b in pairwise(region.starts))
        assert planned.allocated == 2 * MIB and planned.counts.carried == 0
        if not interrupted:
            break
        interrupts += 1
    assert interrupts > 5

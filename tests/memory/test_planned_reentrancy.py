"""Planned steps that are disturbed: by other threads, finalizers, interrupts."""

from __future__ import annotations

import gc
import itertools
import threading
from itertools import pairwise

from gtensor.memory import Arena, HostSegments, Planned, Recording

from .interrupts import interrupt_after
from .loops import MIB, planned_loop, step


def test_other_threads_and_finalizers_are_served_by_the_upstream():
    planned, loop, _ = planned_loop()
    made = []

    class Finalizer:
        def __del__(self) -> None:
            made.append(planned.allocate(3 * MIB, 0, "linear"))

    class Disturbing(list):
        """Stands for a collection in the middle of an allocation."""

        def insert(self, at, start):
            Finalizer()
            super().insert(at, start)

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


def test_an_interrupt_at_any_point_of_an_allocation_leaves_the_plan_usable():
    interrupts = 0
    for place in itertools.count(1):
        planned, loop, _ = planned_loop()
        planned.begin()
        first = planned.allocate(3 * MIB, 0, "linear")
        interrupted = interrupt_after(
            place, lambda planned=planned: planned.allocate(5 * MIB, 0, "relu"))
        del first
        planned.end(whole=False)
        assert not planned._busy
        region = planned._regions[0]
        for _ in range(3):
            step(planned, loop)
            assert all(region.ends[a] <= b for a, b in pairwise(region.starts))
        assert planned.allocated <= (2 + 5) * MIB  # at worst the interrupted block is lost
        if not interrupted:
            break
        interrupts += 1
    assert interrupts > 5

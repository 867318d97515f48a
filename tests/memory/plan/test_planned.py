"""Planned steps: they run inside their reservation, or fall back without harm."""

from __future__ import annotations

import pytest
from simulated import SimulatedSegments

from gtensor.backend.streams import SimulatedStream
from gtensor.memory import Arena, Failing, OutOfMemoryError, Planned, Recording, Timeline
from gtensor.memory.plan.plan import Lifetime, make_plan

from ..invariants import check
from ..loops import MIB, planned_loop, step


def test_steps_run_inside_the_reservation():
    planned, loop, arena = planned_loop()
    reserved = arena.stats()
    for _ in range(7):
        step(planned, loop)
        assert planned.allocated == planned.stats().allocated == 2 * MIB
    after = arena.stats()
    assert (after.misses, after.reserved, after.hits) == (
        reserved.misses, reserved.reserved, reserved.hits)
    counts = planned.counts
    assert (counts.steps, counts.served, counts.first) == (7, 28, "")
    assert counts.kept == counts.carried == counts.deviating == 0
    assert planned.stats().peak_allocated == loop.plan.peak_live
    assert "100.0%" in loop.plan.report() and "28 blocks" in loop.plan.report()
    planned.reset_peak()
    assert planned.stats().peak_allocated == 2 * MIB
    loop.loss = None
    assert planned.allocated == 0


def test_a_step_that_asks_for_more_falls_back_and_finds_the_way_again():
    planned, loop, _ = planned_loop()
    step(planned, loop, extra=7000)
    counts = planned.counts
    assert (counts.served, counts.deviating) == (4, 1)
    assert counts.first == ("allocation 2 of step 1: expected 5 MiB by relu on stream 0, got "
                            "6.836 KiB by surprise on stream 0")
    assert "surprise" in loop.plan.report()


def test_a_step_that_leaves_something_out_finds_the_way_again():
    planned, loop, _ = planned_loop()
    step(planned, loop, skip=True)
    assert (planned.counts.served, planned.counts.deviating) == (3, 0)
    assert "expected 5 MiB by relu on stream 0, got 2 MiB by mean" in planned.counts.first


def test_a_step_that_ends_early_is_noted():
    planned, _, _ = planned_loop()
    step(planned, lambda: planned.allocate(3 * MIB, 0, "linear"))
    assert planned.counts.first == "step 1 ended after 1 of the 4 planned allocations"


def test_another_size_or_stream_comes_from_the_upstream():
    planned, loop, arena = planned_loop()
    inside = range(planned._regions[0].reserved.ptr,
                   planned._regions[0].reserved.ptr + loop.plan.reservation)
    step(planned, loop, scale=2)
    assert loop.seen[0] not in inside and loop.seen[1] in inside
    planned.begin()
    other = planned.allocate(3 * MIB, 5, "linear")
    planned.end()
    assert other.ptr not in inside and other.stream == 5
    assert planned.counts.deviating == 2
    del arena


def test_a_block_that_outlives_its_step_keeps_its_bytes():
    planned, loop, arena = planned_loop()
    planned.begin()
    kept = planned.allocate(3 * MIB, 0, "linear")
    planned.end()
    for _ in range(4):
        step(planned, loop)
        for ptr, size in zip(loop.seen, (3 * MIB, 5 * MIB), strict=True):
            assert ptr + size <= kept.ptr or kept.ptr + kept.size <= ptr
    assert planned.counts.carried >= 4
    carried = planned.counts.carried
    del kept
    step(planned, loop)
    step(planned, loop)
    assert planned.counts.carried == carried
    del arena


def test_planted_fault_a_place_that_is_given_twice_is_caught(monkeypatch):
    take = Planned._take

    class Empty(list):
        """No block is live."""

        def __setitem__(self, at, starts):
            pass

        def __delitem__(self, at):
            pass

    def careless(planned, block):
        planned._regions[0].starts = Empty()
        return take(planned, block)

    monkeypatch.setattr(Planned, "_take", careless)
    with pytest.raises(AssertionError):
        test_a_block_that_outlives_its_step_keeps_its_bytes()


def test_an_iteration_that_raises_half_way():
    planned, loop, arena = planned_loop()

    def broken() -> None:
        held = planned.allocate(3 * MIB, 0, "linear")
        raise KeyError(held.size)

    for _ in range(3):
        with pytest.raises(KeyError):
            step(planned, broken)
        assert planned.allocated == 0 and not planned.stepping
    assert planned.counts.first == ""
    step(planned, loop)
    assert planned.counts.served == 3 + 4
    loop.loss = None
    check(arena, [planned._regions[0].reserved])


def test_an_upstream_that_fails_leaves_the_step_whole():
    planned, loop, arena = planned_loop()
    planned.upstream = Failing(arena, 1)
    with pytest.raises(OutOfMemoryError, match="told to fail"):
        step(planned, loop, extra=MIB)
    assert planned.allocated == 0
    step(planned, loop, extra=MIB)
    assert planned.allocated == 3 * MIB


def test_a_reservation_that_does_not_fit_is_refused():
    planned, loop, arena = planned_loop()
    plan = loop.plan
    del planned
    loop.resource = loop.loss = None
    small = Arena(SimulatedSegments(4 * MIB))
    with pytest.raises(OutOfMemoryError, match="10 MiB"):
        Planned(small, plan)
    assert small.allocated == 0 and arena.allocated == 0


@pytest.mark.parametrize("between", [None, Timeline])
def test_a_place_that_another_stream_used_waits_for_it(between):
    home, other = SimulatedStream(), SimulatedStream()
    arena = Arena(SimulatedSegments(1 << 30), stream_of={home.id: home, other.id: other}.get)
    recording = Recording(arena)
    recording.allocate(MIB, home.id, "x")
    recording.close()
    planned = Planned(arena, recording.plan())
    if between is not None:
        planned.upstream = between(arena)  # as `gt.memory.planned` does within a timeline
    planned.begin()
    block = planned.allocate(MIB, home.id, "x")
    planned.record_use(block.ptr + 5, other.id)
    other.launch()
    at = block.ptr
    del block
    planned.end()
    planned.begin()
    again = planned.allocate(MIB, home.id, "x")
    planned.end()
    assert again.ptr == at
    home.launch()
    assert not home.step(), "the place was handed out before the other stream's work"
    other.step()
    assert home.step()
    with pytest.raises(ValueError, match="does not know"):
        planned.record_use(again, 10**6)
    if between is not None:
        planned.upstream.close()


def test_a_wait_that_fails_costs_no_place(monkeypatch):
    home, other = SimulatedStream(), SimulatedStream()
    arena = Arena(SimulatedSegments(1 << 30), stream_of={home.id: home, other.id: other}.get)

    def step(resource):
        for block in [resource.allocate(MIB, home.id, "x") for _ in range(5)]:
            resource.record_use(block, other.id)

    recording = Recording(arena)
    step(recording)
    recording.close()
    plan = recording.plan()
    planned = Planned(arena, plan)
    for number in range(4):
        planned.begin()
        if number == 2:
            with monkeypatch.context() as patch:
                patch.delattr(SimulatedStream, "wait")
                with pytest.raises(AttributeError, match="wait"):
                    step(planned)
        step(planned)
        planned.end()
    assert (plan.counts.served, plan.counts.carried) == (20, 0)


def test_places_that_a_stream_used_which_is_gone_are_free_again():
    home = SimulatedStream()
    arena = Arena(SimulatedSegments(1 << 30))
    arena.streams[home.id] = home
    recording = Recording(arena)
    [recording.allocate(MIB, home.id, "x") for _ in range(4)]
    recording.close()
    plan = recording.plan()
    planned = Planned(arena, plan)
    for _ in range(5):
        side = SimulatedStream()
        arena.streams[side.id] = side
        planned.begin()
        blocks = [planned.allocate(MIB, home.id, "x") for _ in range(4)]
        for block in blocks:
            planned.record_use(block, side.id)
        side.launch()
        del block
        blocks.clear()
        planned.end()
        arena.forget_stream(side.id)
        del side
    assert (plan.counts.served, plan.counts.carried) == (20, 0)
    assert home._waits, "who comes next does not wait for the stream that is gone"


def a_place_on_each_of_two_streams():
    """A planned step under way on them, their ids, and that of a third one."""
    streams = [SimulatedStream() for _ in range(3)]
    arena = Arena(SimulatedSegments(1 << 30))
    arena.streams.update({stream.id: stream for stream in streams})
    home, second, user = (stream.id for stream in streams)
    planned = Planned(arena, make_plan(
        [Lifetime(MIB, MIB, home, "", 0, 1), Lifetime(MIB, MIB, second, "", 2, 3)], 4))
    planned.begin()
    return planned, arena, home, second, user


def test_a_block_of_a_stream_that_is_gone_may_be_used_on_others():
    planned, arena, home, _, user = a_place_on_each_of_two_streams()
    block = planned.allocate(MIB, home)
    arena.forget_stream(home)
    planned.record_use(block, user)
    del block
    assert planned.allocated == 0


def test_a_shared_place_of_an_ended_stream_does_no_harm():
    planned, arena, home, second, user = a_place_on_each_of_two_streams()
    block = planned.allocate(MIB, home)
    planned.record_use(block, user)
    del block
    arena.forget_stream(home)
    kept = planned.allocate(MIB, second)
    assert planned.counts.served == 2 and planned.allocated == kept.size

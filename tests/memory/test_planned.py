"""Planned steps: they run inside their reservation, or fall back without harm."""

from __future__ import annotations

import contextlib
import gc
import sys
import warnings
import weakref
from itertools import pairwise

import numpy as np
import pytest

import gtensor as gt
from gtensor import memory
from gtensor.backend.streams import SimulatedStream
from gtensor.memory import (
    Arena,
    Failing,
    OutOfMemoryError,
    Plan,
    Planned,
    Recording,
    SimulatedSegments,
    Timeline,
)
from gtensor.memory.reading import read_snapshot

from .invariants import check
from .loops import MIB, planned_loop, step

planned_steps = sys.modules[Planned.__module__]  # `memory.planned` is the function


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

    def careless(planned, nbytes, stream, label):
        planned._regions[0].starts.clear()  # nobody lives anywhere
        return take(planned, nbytes, stream, label)

    monkeypatch.setattr(Planned, "_take", careless)
    monkeypatch.setattr(planned_steps, "_vacate", lambda place: None)
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


# -- on a device -----------------------------------------------------------------------------------


@pytest.fixture
def small_arrays():
    with gt.settings.override(arena_min_bytes=0):
        yield
    gc.collect()


def training():
    """A step of a small network; answers its loss."""
    rng = np.random.default_rng(0)
    x = gt.tensor(rng.standard_normal((32, 16)).astype(np.float32), device="cpu")
    model = gt.nn.Sequential(gt.nn.Linear(16, 64), gt.nn.ReLU(), gt.nn.Linear(64, 1))
    optimizer = gt.optim.SGD(model.parameters(), lr=0.1)

    def run() -> float:
        loss = (model(x) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return run


def recorded_plan(run) -> Plan:
    run()
    with memory.record("cpu") as recording:
        run()
        recording.mark()
        run()
    return recording.plan()


def test_training_gives_the_same_numbers_inside_a_plan(small_arrays):
    gt.manual_seed(3)
    run = training()
    plan = recorded_plan(run)
    losses = []
    for _ in range(5):
        with memory.planned(plan, "cpu"), memory.timeline(device="cpu") as timeline:
            losses.append(run())
    gt.manual_seed(3)
    run = training()
    assert losses == [run() for _ in range(8)][3:]
    assert plan.counts.served == 5 * len(plan.lifetimes) and plan.counts.first == ""
    made = [event.label for event in timeline.events if event.delta > 0]
    assert made == [lifetime.label for lifetime in plan.lifetimes]
    assert gt.device("cpu").resource is memory.arena_of("cpu")


def test_counters_within_a_step_are_those_of_its_blocks(small_arrays):
    def step():
        x = gt.zeros((1 << 20,), device="cpu")
        return [x + 1, x]

    gc.collect()
    with memory.record("cpu") as recording:
        step()
    plan = recording.plan()
    before = memory.stats("cpu").allocated
    with memory.planned(plan, "cpu"):
        arrays = step()
        inside = memory.stats("cpu").allocated - before
        lines = memory.summary("cpu").splitlines()
        memory.reset_peak("cpu")
        peak = memory.stats("cpu").peak_allocated - before
        del arrays
        assert memory.stats("cpu").allocated == before
    assert inside == peak == 8 << 20
    assert sum(line.split()[:2] == ["planned", "steps"] for line in lines) == 1
    assert any(line.split()[:2] == ["planned", "steps"] and line.endswith("8 MiB  2 blocks")
               for line in lines)
    assert memory.stats("cpu").allocated == before + plan.reservation


def test_a_released_plan_reserves_anew(small_arrays):
    run = training()
    plan = recorded_plan(run)
    for _ in range(2):
        with memory.planned(plan, "cpu"):
            run()
        assert isinstance(plan.resource, Planned)
        plan.release()
        assert plan.resource is None
    assert plan.counts.served == 2 * len(plan.lifetimes)


def test_dropping_the_plan_gives_its_reservation_back(small_arrays):
    run = training()
    plan = recorded_plan(run)
    with memory.planned(plan, "cpu"):
        run()
    del run
    gc.collect()
    gc.disable()
    try:
        before, reservation = memory.stats("cpu").allocated, plan.reservation
        del plan  # no cycle holds it
        assert memory.stats("cpu").allocated == before - reservation
    finally:
        gc.enable()


def test_a_timeline_may_span_steps(small_arrays):
    run = training()
    plan = recorded_plan(run)
    timelines = contextlib.ExitStack()
    with memory.planned(plan, "cpu"):
        timelines.enter_context(memory.timeline(device="cpu"))
        run()
    for _ in range(2):
        with memory.planned(plan, "cpu"):
            run()
    timelines.close()
    with memory.timeline(device="cpu"), memory.planned(plan, "cpu"):
        run()
    assert plan.counts.served == 4 * len(plan.lifetimes) and plan.counts.first == ""
    with memory.planned(plan, "cpu"):
        run()
    assert gt.device("cpu").resource is memory.arena_of("cpu")


def live_now(plan: Plan) -> int:
    """Bytes in which arrays live on the CPU, by the counters of the arena and of the plan."""
    return memory.arena_of("cpu").allocated + (plan.resource.surplus if plan.resource else 0)


def tells_the_truth(recording: memory.Timeline, plan: Plan) -> None:
    history = recording.history()
    history.check()
    assert history.totals()[-1] == live_now(plan)
    for event in (-1, history.peak(), len(history.times) - 1):  # nothing is there twice
        lives = sorted((life.address, life.size) for life in history.live_at(event))
        assert all(at + size <= after for (at, size), (after, _) in pairwise(lives))


@pytest.mark.parametrize("reserved_before", [True, False])
def test_timelines_tell_of_planned_steps(small_arrays, tmp_path, reserved_before):
    run = training()
    plan = recorded_plan(run)
    if reserved_before:
        with memory.planned(plan, "cpu"):
            run()
    with memory.timeline(device="cpu") as around:
        tells_the_truth(around, plan)
        for _ in range(2):
            with memory.planned(plan, "cpu"):
                start = live_now(plan)
                with memory.timeline(device="cpu") as within:
                    tells_the_truth(within, plan)
                    assert within.history().totals()[0] == start
                    run()
                tells_the_truth(within, plan)
                tells_the_truth(around, plan)
        tells_the_truth(around, plan)
        made = [event.label for event in around.events if event.delta > 0]
        assert made == 2 * [lifetime.label for lifetime in plan.lifetimes]
    history = around.history()
    assert "planned steps" not in {life.op for life in history.lives}
    pieces = [piece for segment in history.segments for piece in segment.pieces]
    assert sum(piece.size for piece in pieces if piece.state == "live") == live_now(plan)
    for name in ("run.pickle", "run.json"):
        around.save(tmp_path / name)
        assert read_snapshot(tmp_path / name).totals() == history.totals()
    assert gt.device("cpu").resource is memory.arena_of("cpu")


def test_a_snapshot_between_steps_tells_what_lies_in_the_reservation(small_arrays, tmp_path):
    run = training()
    plan = recorded_plan(run)
    with memory.planned(plan, "cpu"):
        run()
    for name in ("run.pickle", "run.json"):
        memory.snapshot(tmp_path / name, "cpu")
        found = read_snapshot(tmp_path / name)
        assert found.totals() == [live_now(plan)]
        assert "planned steps" not in {life.op for life in found.lives}
        gradients = [life for life in found.lives if life.category == "gradients"]
        assert 0 < sum(life.size for life in gradients) < plan.reservation


def test_planted_fault_a_reservation_that_nobody_names(small_arrays, tmp_path, monkeypatch):
    monkeypatch.setattr(Planned, "held", lambda planned: [])
    with pytest.raises(AssertionError):
        test_timelines_tell_of_planned_steps(None, tmp_path, True)


def test_blocks_made_before_a_timeline_keep_nothing_of_it(small_arrays):
    old = gt.device("cpu").empty((1000,), np.uint8, "old").base
    with memory.record("cpu") as below:
        for _ in range(3):  # nor a chain of those that came before
            with memory.timeline(device="cpu") as recording:
                pass
    gone = weakref.ref(below), weakref.ref(recording)
    del below, recording
    gc.collect()
    assert [reference() for reference in gone] == [None, None]
    assert old.owner.upstream is memory.arena_of("cpu")


def test_one_warning_says_what_differs(small_arrays):
    plan = recorded_plan(training())
    with (pytest.warns(UserWarning, match="allocation 1 of step 1: expected .*, got 12 B by "),
          memory.planned(plan, "cpu")):
        gt.ones(3, device="cpu")
    with warnings.catch_warnings(), memory.planned(plan, "cpu"):
        warnings.simplefilter("error")
        gt.ones(3, device="cpu")
    with pytest.raises(ZeroDivisionError), memory.planned(plan, "cpu"):
        gt.ones(1 // 0)


def test_planned_steps_are_one_at_a_time_and_want_the_arena(small_arrays):
    plan, other = recorded_plan(training()), recorded_plan(training())
    with (pytest.raises(RuntimeError, match="within another"), memory.planned(plan, "cpu"),
          memory.planned(other, "cpu")):
        pass
    for start in (lambda: memory.planned(plan, "cpu"), lambda: memory.record("cpu")):
        with memory.use_arena(False), pytest.raises(RuntimeError, match="switched off"), start():
            pass
    assert gt.device("cpu").resource is memory.arena_of("cpu")

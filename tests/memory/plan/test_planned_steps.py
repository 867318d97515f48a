"""`gt.memory.planned` on a device: training, counters, timelines and snapshots around its steps."""

from __future__ import annotations

import contextlib
import gc
import warnings
import weakref
from itertools import pairwise

import numpy as np
import pytest

import gtensor as gt
from gtensor import memory
from gtensor.memory import Plan, Planned
from gtensor.memory.trace.reading import read_snapshot


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


def test_within_a_timeline_a_released_plan_gives_its_reservation_back(small_arrays):
    def step():
        return [gt.zeros((1 << 10,), device="cpu") + 1]

    gc.collect()
    with memory.record("cpu") as recording:
        step()
    plan = recording.plan()
    with memory.timeline(device="cpu") as timeline:
        with memory.planned(plan, "cpu"):
            step()
        before = memory.stats("cpu").allocated
        plan.release()
        assert memory.stats("cpu").allocated == before - plan.reservation
        kept = step()
    del kept
    assert [event.delta > 0 for event in timeline.events].count(True) == 4


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


def test_a_snapshot_between_steps_shows_the_blocks_of_the_reservation(small_arrays, tmp_path):
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


def test_planted_fault_a_reservation_without_a_name_is_caught(small_arrays, tmp_path, monkeypatch):
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
    assert len(old.__del__.listeners) == 1


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

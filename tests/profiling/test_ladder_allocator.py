"""The recorded traces and what is measured on them: repeatable, and it notices waste."""

from __future__ import annotations

from pathlib import Path

import ladder_allocator
import pytest
import traces

from gtensor.memory import Arena, Recording
from gtensor.memory.arena.stitched import Stitcher


@pytest.mark.parametrize("name", traces.TRACES)
def test_a_trace_frees_what_it_made_and_nothing_twice(name: str) -> None:
    trace = traces.load(name)
    assert len(trace.parts) == traces.ITERATIONS
    alive = set()
    for part in trace.parts:
        for event in part:
            if event >= 0:
                assert event not in alive
                alive.add(event)
            else:
                alive.remove(~event)
    assert 0 < trace.peak <= sum(nbytes for nbytes, _ in trace.requests)


@pytest.mark.parametrize("name", traces.TRACES)
def test_the_last_iteration_repeats_itself(name: str) -> None:
    trace = traces.load(name)
    recording = Recording(Arena(ladder_allocator.cudamalloc()))
    run = ladder_allocator.Replay(trace)
    for _ in range(len(trace.parts) - 1):
        recording.mark()
        run.iteration(recording)
    found = []
    for _ in range(3):
        recording.mark()
        run.iteration(recording)
        found.append(recording.lifetimes())
    assert found[0] == found[1] == found[2]
    assert all(life.death is not None for life in found[0][0])


def test_the_random_trace_is_what_its_seed_says(tmp_path: Path) -> None:
    made = traces.random()
    made.save(tmp_path)
    assert made == traces.load("random", tmp_path) == traces.load("random")


def test_a_program_is_recorded_with_all_its_arrays() -> None:
    trace = traces.recorded("transformer", lambda: traces.transformer(1, 16, 4))
    assert {"linear", "attention"} <= {label for _, label in trace.requests}
    assert len({len(part) for part in trace.parts[1:]}) == 1


def by_name(figures) -> dict:
    return {figure.name: figure for figure in figures}


def planned(name: str) -> dict:
    return by_name(ladder_allocator.by_plan(
        "planned", Arena(ladder_allocator.virtual()), traces.load(name)))


def online(name: str) -> dict:
    return by_name(ladder_allocator.online(
        "online", Arena(ladder_allocator.virtual()), traces.load(name)))


def test_targets_of_the_transformer_are_met_by_its_plan() -> None:
    figures = planned("transformer")
    found = figures["planned, reserved / peak live"].json()
    assert found["met"] and "5390 of 5390" in found["note"]
    assert figures["planned, segments taken after the first iteration"].measured == 0
    assert figures["planned, whole process, reserved / peak live"].measured <= 1.02


def test_planted_fault_waste_misses_the_target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gtensor.memory.plan.plan._best_fit",
                        lambda order, sizes, births, deaths, period: (
                            sizes.cumsum() - sizes, int(sizes.sum())))
    assert not planned("transformer")["planned, reserved / peak live"].json()["met"]


@pytest.mark.parametrize("name", traces.TRACES)
def test_little_more_is_reserved_than_is_live(name: str) -> None:
    figures = online(name)
    assert figures["online, reserved / peak live"].json()["met"]
    assert figures["online, pages joined by then, in one more iteration"].measured <= 4


def test_planted_fault_memory_that_is_never_joined_misses_the_target(
        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Stitcher, "compose", lambda stitcher, pool, size, capture: None)
    assert not online("random")["online, reserved / peak live"].json()["met"]


def test_an_unknown_trace_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert traces.main(["nothing"]) == 64
    assert "no trace nothing; there are digits" in capsys.readouterr().err

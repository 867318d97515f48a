"""The recorded traces and what is measured on them: repeatable, and it notices waste."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

PROFILING = Path(__file__).resolve().parents[2] / "profiling"
sys.path.insert(0, str(PROFILING))

import ladder_allocator  # noqa: E402
import traces  # noqa: E402

from gtensor.memory import Arena, Recording  # noqa: E402


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
    recording = Recording(Arena(ladder_allocator.virtual()))
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


def test_targets_of_the_transformer_are_met_by_its_plan() -> None:
    figures = {figure.name: figure for figure in ladder_allocator.replayed("transformer")}
    for source in ("virtual", "cudamalloc"):
        planned = figures[f"transformer, planned, {source}, reserved / peak live"].json()
        assert planned["met"] and re.search(r"; (\d+) of \1 blocks", planned["note"])
        assert not figures[f"transformer, planned, {source}, segments taken after the first "
                           "iteration"].measured


def test_planted_fault_waste_misses_the_target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gtensor.memory.plan._best_fit",
                        lambda order, sizes, births, deaths, period: (
                            sizes.cumsum() - sizes, int(sizes.sum())))
    figures = {figure.name: figure for figure in ladder_allocator.replayed("transformer")}
    assert not figures["transformer, planned, virtual, reserved / peak live"].json()["met"]


def test_an_unknown_trace_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert traces.main(["nothing"]) == 64
    assert "no trace nothing; there are digits" in capsys.readouterr().err

"""What users run against PyTorch: each part computes what PyTorch does, and is judged.

Their times are not looked at here.
"""

from __future__ import annotations

import json
from pathlib import Path

import ladder_users
import pytest
from ladder import Ladder
from ladder_command import Options, main

GOALS = sorted([
    *ladder_users.STEP_GOALS.values(), *(op.goal for op in ladder_users.OPERATIONS.values()),
    *[ladder_users.TRANSFORM_GOAL] * 3, ladder_users.ADAMW_GOAL, ladder_users.CHAIN_GOAL,
    ladder_users.MLP_GOAL, ladder_users.COLLECTOR_GOAL])


def test_every_part_runs_and_is_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    climb = Ladder.climb
    monkeypatch.setattr(Ladder, "_calls", lambda self, clock, rung: 1)
    monkeypatch.setattr(Ladder, "climb", lambda self, rounds, *more: climb(self, 1, *more))
    monkeypatch.setattr("gc.collect", lambda: 0)  # between samples it takes longer than all else
    arguments = ["--quick", "--out", str(tmp_path)]
    assert main("", ladder_users.build, "users", arguments, clock="cpu") == 0
    found = json.loads((tmp_path / "users.json").read_text())["ladders"]
    ratios = [ratio for ladder in found for ratio in ladder["ratios"]]
    judged = [ratio for ratio in ratios if ratio["target"]]
    assert sorted(ratio["target"] for ratio in judged) == GOALS
    assert {ratio["rung"] for ratio in judged} == {"gtensor"}
    assert all(rung["error"] is not None for ladder in found for rung in ladder["rungs"])


def test_the_updates_are_measured_at_both_sizes() -> None:
    parts = [name for name, _ in ladder_users.build(Options("cpu", 25, False, 0))]
    assert {"adamw 50", "adamw 1000"} <= set(parts) and len(parts) == len(set(parts))
    assert not list(ladder_users.build(Options("cuda", 25, False, 0)))


def test_two_threads_are_measured_by_the_wall(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gc.collect", lambda: 0)
    monkeypatch.setattr(Ladder, "_calls", lambda self, clock, rung: 1)
    arguments = ["--quick", "--only", "threads", "--clock", "wall", "--out", str(tmp_path)]
    assert main("", ladder_users.build, "users", arguments, clock="cpu") == 0
    found = json.loads((tmp_path / "users-threads.json").read_text())["ladders"]
    goals = [1 / ratio["target"] for ladder in found for ratio in ladder["ratios"]]
    assert goals == pytest.approx([*ladder_users.THREADS_GOALS.values()])


def test_an_op_that_is_wrong_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gelu = ladder_users.OPERATIONS["gelu"].op
    wrong = ladder_users.Operation(
        1.0, lambda lib, x: gelu(lib, x) * (1.001 if lib.is_own else 1), ((4, 3),), ((4, 3),))
    monkeypatch.setitem(ladder_users.OPERATIONS, "gelu", wrong)
    arguments = ["--quick", "--only", "op gelu", "--out", str(tmp_path)]
    assert main("", ladder_users.build, "users", arguments, clock="cpu") == 1
    assert "rung 'gtensor' is" in capsys.readouterr().err

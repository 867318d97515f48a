"""Every ladder program runs to its end on a host device, where its times mean nothing."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import ladder_command
import pytest
from ladder import Ladder

PROFILING = Path(__file__).resolve().parents[2] / "profiling"
# On a GPU they are steps of gpu_check.sh.
pytestmark = [pytest.mark.host_cuda, pytest.mark.slow]
SMALL = {  # program -> how it is kept small
    "ladder": (), "ladder_abn": ("--depth", "2", "--width", "4", "--size", "8", "--batch", "2"),
    "ladder_allocator": (), "ladder_arena": (), "ladder_attention": (), "ladder_autodiff": (),
    "ladder_blocks": (),
    "ladder_bn_act": ("--only", "on chip"),
    "ladder_checkpoint": (), "ladder_matmul": (), "ladder_ops": (), "ladder_overhead": (),
    "ladder_profiler": (), "ladder_snapshot": (), "ladder_steps": (),
}


def test_all_programs_are_here() -> None:
    assert {path.stem for path in PROFILING.glob("ladder*.py")} - {
        "ladder_command", "ladder_distributed", "ladder_users"} == set(SMALL)  # these are for CPUs


@pytest.mark.parametrize("name", SMALL)
def test_it_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = importlib.import_module("ceilings" if name == "ladder" else name)
    if name in ("ladder_ops", "ladder_overhead"):
        monkeypatch.setattr(program, "SIZES", (1_000,))
    climb = Ladder.climb
    monkeypatch.setattr(Ladder, "_calls", lambda self, clock, rung: 1)
    monkeypatch.setattr(Ladder, "climb", lambda self, rounds, *more: climb(self, 1, *more))
    more = {"more": program.add_options} if hasattr(program, "add_options") else {}
    assert ladder_command.main(
        "", program.build, name,
        ["--device", "cuda", "--quick", "--out", str(tmp_path), *SMALL[name]], **more) == 0
    file, = tmp_path.glob("*.json")
    found = json.loads(file.read_text())
    assert found["ladders"] or found["figures"]
    for ladder in found["ladders"]:
        assert all(rung["floor"] or rung["error"] is not None for rung in ladder["rungs"])

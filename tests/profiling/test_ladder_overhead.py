"""The parts that judge one thread's time against PyTorch's: they compute what they should.

Their times are not looked at here.
"""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import ladder_overhead
import pytest
from ladder import Ladder
from ladder_command import main


@pytest.mark.parametrize(("part", "ladders"), [
    ("chain", 2), ("saves", 2), ("own", 1), ("small", 3), ("calls", 5),
    pytest.param("large", 2 * len(ladder_overhead.LARGE_OPS), marks=pytest.mark.slow),
])
def test_a_part_runs_and_judges(
    part: str, ladders: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    climb = Ladder.climb
    monkeypatch.setattr(ladder_overhead, "LARGE_SHAPES", ((3, 40),))
    monkeypatch.setattr(Ladder, "_calls", lambda self, clock, rung: 1)
    monkeypatch.setattr(Ladder, "climb", lambda self, rounds, *more: climb(self, 1, *more))
    some = {name: ladder_overhead.SMALL_CALLS[name] for name in ("x[3]", "zeros", "linear")}
    monkeypatch.setattr(ladder_overhead, "SMALL_CALLS", some)
    arguments = ["--only", part, "--out", str(tmp_path)]
    assert main("", ladder_overhead.build, "overhead", arguments, clock="cpu") == 0
    found = json.loads((tmp_path / f"overhead-{part}.json").read_text())
    assert len(found["ladders"]) == ladders
    for ladder in found["ladders"]:
        assert ladder["clock"] == "thread_time"
        assert all(rung["floor"] or rung["error"] is not None for rung in ladder["rungs"])
    judged = [r for ladder in found["ladders"] for r in ladder["ratios"] if r["target"]]
    assert {(r["rung"], r["peer"]) for r in judged} >= {("gtensor", "pytorch")}
    peers = [p for p in ("autograd", "mygrad") if find_spec(p)]  # the latter of the extra "bench"
    assert len(judged) >= (1 + len(peers) if part == "chain" else ladders)


def test_the_time_of_one_thread_is_not_taken_for_that_of_several(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        main("", ladder_overhead.build, "overhead", ["--threads", "2"], clock="cpu")
    assert "--threads 2 given with --clock cpu" in capsys.readouterr().err

"""The protocol: wrong rungs are refused, a planted slow rung shows its ratio, the JSON."""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import ladder_command
import numpy as np
import pytest
from ladder import CLOCKS, HostClock, Ladder, Spread, WrongRung, distance
from ladder_command import Figure, Options, left_out, main

PROFILING = Path(__file__).resolve().parents[2] / "profiling"


class Hours:
    """A clock of our own: time passes where a rung says so, so a busy machine changes nothing."""

    now = 0.0


@pytest.fixture(autouse=True)
def own_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ladders' clock on the wall is ours; work that does not say how long it takes, takes
    a microsecond."""

    def timer() -> float:
        Hours.now += 1e-6
        return Hours.now

    monkeypatch.setitem(CLOCKS, "wall", lambda: HostClock(timer))


def busy(seconds: float, answer: Any = 1.0) -> Any:
    """A rung that takes so long."""

    def run() -> Any:
        Hours.now += seconds
        return answer

    return run


def small(name: str = "sum", **options: Any) -> Ladder:
    return Ladder(name, lambda: 1.0, min_sample=1e-4, **options)


# -- correctness before timing ---------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [
    1.001, float("nan"), np.ones(2), [1.0, 1.0], np.inf,
])
def test_a_wrong_rung_is_refused_before_anything_is_timed(wrong: Any) -> None:
    calls: list[str] = []
    ladder = small(tolerance=1e-4)
    ladder.rung("right", lambda: calls.append("right") or 1.0)
    ladder.rung("wrong", lambda: calls.append("wrong") or wrong)
    with pytest.raises(WrongRung, match="'sum': rung 'wrong'"):
        ladder.climb(3)
    assert calls == ["right", "wrong"]  # once each, for the check
    assert all(not rung.samples for rung in ladder.rungs)


def test_rungs_without_a_reference_are_refused() -> None:
    ladder = Ladder("nothing to compare with")
    ladder.rung("a", lambda: 1.0)
    with pytest.raises(WrongRung, match="nothing says what a must compute"):
        ladder.climb(1)


def test_a_floor_need_not_compute_the_same() -> None:
    ladder = small()
    ladder.rung("right", lambda: 1.0)
    ladder.floor("less", lambda: None)
    ladder.climb(2)
    assert [rung.error for rung in ladder.rungs] == [0.0, None]


def test_distance_is_relative_and_by_the_worst_array() -> None:
    ones = np.ones(4)
    assert distance([ones, 2.2 * ones], [ones, 2 * ones]) == pytest.approx(0.1)
    assert np.isnan(distance([ones * np.nan, ones], [ones, ones]))


# -- ratios ----------------------------------------------------------------------------------------


def test_a_planted_slow_rung_shows_its_ratio() -> None:
    ladder = small(per=10, unit="op")
    ladder.rung("slow", busy(3e-3))
    ladder.rung("fast", busy(1e-3))
    ladder.target("fast", "slow", 0.5)
    ladder.compare("slow", "fast")
    ladder.climb(7)
    assert ladder.ratio("slow", "fast").median == pytest.approx(3, rel=0.15)
    assert ladder.times("fast").median >= 1e-4  # per unit
    first, second = ladder.json()["ratios"]
    assert (first["target"], first["met"]) == (0.5, True)
    assert (second["target"], second["met"]) == (None, None)


def test_rounds_go_back_and_forth_and_ratios_are_formed_within_them() -> None:
    order: list[str] = []
    ladder = small()
    for name in "abc":
        work = busy(1e-3)
        ladder.rung(name, lambda name=name, work=work: order.append(name) or work())
    ladder.climb(2)
    for rung in ladder.rungs:
        rung.samples[:] = []
    found = [name for i, name in enumerate(order) if i == 0 or order[i - 1] != name]
    assert "".join(found[-5:]) == "abcba"
    for samples, name in (([1.0, 10.0, 100.0], "a"), ([2.0, 20.0, 200.0], "b")):
        ladder._find(name).samples[:] = samples  # a machine that becomes slower and slower
    assert ladder.ratio("b", "a") == Spread(2.0, 2.0, 2.0)


def test_floors_give_the_least_time_of_a_rung() -> None:
    ladder = small()
    ladder.rung("rung", busy(2e-3), moved=1000, flops=10)
    ladder.floor("copy", busy(1e-3), moved=1000)  # 1 us per byte, so at least 1 ms
    ladder.floor("product", busy(1e-3), flops=1000)  # 1 us per operation: 10 us
    ladder.climb(5)
    above = ladder.above_floor(ladder.rungs[0])
    assert above is not None and above.median == pytest.approx(2, rel=0.15)
    assert ladder.above_floor(ladder.rungs[1]) is None


def test_short_work_is_sampled_in_many_calls() -> None:
    ladder = small()
    ladder.rung("short", busy(1e-7))
    ladder.climb(2)
    rung = ladder.rungs[0]
    assert rung.calls > 100
    assert ladder.times("short").median * rung.calls > 0.3e-4


def test_the_processor_clock_leaves_out_waiting() -> None:
    assert CLOCKS["cpu"]().seconds(lambda: time.sleep(0.02), 1) < 0.01
    assert HostClock().seconds(lambda: time.sleep(0.02), 1) >= 0.02


@pytest.mark.parametrize("call", [
    lambda ladder: ladder.rung("a", lambda: 1.0),
    lambda ladder: ladder.target("a", "b", 1.0),
    lambda ladder: ladder.compare("c", "a"),
])
def test_names_are_checked_when_a_ladder_is_made(call: Any) -> None:
    ladder = small()
    ladder.rung("a", lambda: 1.0)
    with pytest.raises((ValueError, KeyError), match="'sum'"):
        call(ladder)


# -- the program -----------------------------------------------------------------------------------


def build(most: float, wrong: bool = False) -> Any:
    def parts(options: Options) -> Any:
        def first() -> Any:
            ladder = small("first part")
            ladder.rung("gtensor", busy(2e-4, 2.0 if wrong else 1.0), moved=100)
            ladder.rung("peer", busy(2e-4))
            ladder.floor("copy", busy(1e-4), moved=100)
            ladder.target("gtensor", "peer", most)
            ladder.note("something is missing")
            yield ladder

        def second() -> Any:
            yield Figure("peak", 90, 100, "bytes", "counted")

        yield "first", first
        yield "second", second

    return parts


def test_the_result_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main("text", build(5.0), "ladder_test", ["--rounds", "3", "--out", str(tmp_path)]) == 0
    text = (tmp_path / "ladder_test.json").read_text()
    found = json.loads(text)
    assert found["schema"] == ladder_command.SCHEMA
    assert set(found) == {"schema", "program", "date", "command", "machine", "versions", "device",
                          "rounds", "blas_threads", "ladders", "figures"}
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", found["date"])
    assert {"slug", "processor", "cores", "memory_bytes"} <= set(found["machine"])
    assert {"python", "numpy", "gtensor"} <= set(found["versions"])
    ladder, = found["ladders"]
    assert set(ladder) == {"name", "per", "unit", "clock", "tolerance", "rungs", "ratios", "notes"}
    for rung in ladder["rungs"]:
        assert len(rung["samples"]) == found["rounds"] == 3
        assert rung["seconds"]["low"] <= rung["seconds"]["median"] <= rung["seconds"]["high"]
    assert ladder["ratios"][0]["met"] is True
    assert found["figures"][0]["met"] is True
    # Nothing says whose machine it was.
    for private in (os.uname().nodename, str(tmp_path), str(PROFILING), str(Path.home())):
        assert private == "/" or private not in text
    shown = capsys.readouterr().out
    assert "gtensor / peer" in shown and "peak: 90 bytes, target 100 bytes: 0.900x, met" in shown
    assert "note: something is missing" in shown


def test_a_missed_target_fails_only_if_asked_to(tmp_path: Path) -> None:
    arguments = ["--rounds", "2", "--out", str(tmp_path)]
    assert main("", build(0.1), "missing", arguments) == 0
    assert main("", build(0.1), "missing", [*arguments, "--strict"]) == 1


def test_a_wrong_rung_ends_the_program_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main("", build(5.0, wrong=True), "wrong", ["--out", str(tmp_path)]) == 1
    assert list(tmp_path.iterdir()) == []
    assert "refused: ladder 'first part': rung 'gtensor'" in capsys.readouterr().err


def test_a_part_has_a_file_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main("", build(5.0), "part", ["--only", "second", "--out", str(tmp_path)]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["part-second.json"]
    assert main("", build(5.0), "part", ["--list"]) == 0
    assert capsys.readouterr().out.endswith("first\nsecond\n")


@pytest.mark.parametrize("program", sorted(path.name for path in PROFILING.glob("ladder*.py")
                                           if path.name != "ladder_command.py"))
def test_every_program_teaches_and_refuses_a_missing_gpu(
    program: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def call(*arguments: str) -> tuple[Any, str, str]:
        monkeypatch.setattr(sys, "argv", [program, *arguments])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(PROFILING / program), run_name="__main__")
        return ended.value.code, *capsys.readouterr()

    code, taught, _ = call("--help")
    assert code == 0 and "--rounds" in taught
    assert len(taught.split("options:")[0].splitlines()) > 6
    monkeypatch.setattr(ladder_command, "_has_gpu", lambda: False)
    code, _, refused = call("--device", "cuda")
    assert code == 2 and refused == "no CUDA device on this machine; nothing was measured\n"


def test_a_program_finds_no_gpu_that_is_hidden_from_its_process() -> None:
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1", "PYTHONPATH": str(PROFILING.parent)}
    refused = subprocess.run([sys.executable, str(PROFILING / "ladder.py"), "--device", "cuda"],
                             env=environment, text=True, capture_output=True, timeout=900)
    assert refused.returncode == 2
    assert refused.stderr == "no CUDA device on this machine; nothing was measured\n"


def test_a_peer_that_is_missing_or_cannot_use_the_device_is_left_out(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    assert left_out("numpy", "cuda") is None and left_out("torch", "cpu") is None
    assert left_out("no_such_module", "cpu") == "left out: no_such_module is not installed"
    for found in (True, False):
        monkeypatch.setattr(torch.cuda, "is_available", lambda found=found: found)
        assert (left_out("torch", "cuda") is None) == found

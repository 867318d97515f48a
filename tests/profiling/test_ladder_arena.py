"""The arena's ladder: patterns are what they say, a replay keeps to them, the figures count."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ladder_arena
import pytest
from ladder import Ladder
from ladder_arena import Pattern, Peer, build, patterns, replay
from ladder_command import Figure, main

import gtensor as gt

PATTERNS = {pattern.name: pattern for pattern in patterns(quick=True)}
SMALL = Pattern("small", ((0, 100), (1, 50), (0, 0), (2, 200), (1, 70), (2, 0), (1, 0)))


class Memory:
    """Arrays that count what is live."""

    def __init__(self) -> None:
        self.live = self.most = self.made = 0

    def empty(self, nbytes: int) -> Any:
        memory = self

        class Array:
            def __init__(self) -> None:
                self.nbytes = nbytes
                memory.made += 1
                memory.live += nbytes
                memory.most = max(memory.most, memory.live)

            def __del__(self) -> None:
                memory.live -= nbytes

        return Array()


@pytest.mark.parametrize("pattern", [SMALL, *PATTERNS.values()], ids=lambda p: p.name)
def test_a_replay_makes_and_frees_what_the_pattern_says(pattern: Pattern) -> None:
    memory = Memory()
    assert replay(pattern, memory.empty) == pattern.total
    assert (memory.made, memory.most, memory.live) == (pattern.allocations, pattern.peak, 0)


def test_the_numbers_of_a_small_pattern() -> None:
    assert (SMALL.slots, SMALL.allocations, SMALL.total, SMALL.peak) == (3, 4, 420, 270)


def test_patterns_are_the_same_every_time() -> None:
    assert patterns(quick=True) == list(PATTERNS.values())


def test_the_step_of_an_mlp_is_the_arenas_own() -> None:
    pattern = PATTERNS["mlp step"]
    with gt.settings.override(arena_min_bytes=0):
        step = ladder_arena.Mlp("cpu").gtensor()
        step()
        before = gt.memory.stats("cpu")
        gt.memory.reset_peak("cpu")
        step()
        after = gt.memory.stats("cpu")
    assert pattern.allocations == after.hits + after.misses - before.hits - before.misses > 10
    # The step begins with the gradients of the one before, which the pattern leaves out.
    assert 0 <= pattern.peak - (after.peak_allocated - before.allocated) <= before.allocated


def test_the_program_on_the_cpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--quick", "--only", "growing", "--rounds", "2", "--out", str(tmp_path)]
    assert main("", build, "ladder_arena", arguments) == 0
    found = json.loads((tmp_path / "ladder_arena-growing.json").read_text())
    assert [la["name"] for la in found["ladders"]] == [
        "growing steps", "growing steps, a write per page"]
    figure, = found["figures"]
    assert 1 <= figure["measured"] < 4
    assert "reserved / peak live" in capsys.readouterr().out


def test_what_is_measured_on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """The flow of it, with the CPU's arena and one peer that reserves twice what it needs."""
    own = ladder_arena.arena_empty("cpu")
    monkeypatch.setattr(ladder_arena, "arena_empty", lambda device: own)
    # not measured: other tests' arrays may keep segments in which these fit
    monkeypatch.setattr(ladder_arena, "arena_peak",
                        lambda device, run: (run(), 3 * PATTERNS["hot size"].peak)[1])
    monkeypatch.setattr(ladder_arena, "cuda_peers", lambda: [
        Peer("cupy pool", lambda p: replay(p, own), lambda p: 2 * p.peak)])
    ladder, ours, theirs = ladder_arena.on_cuda(PATTERNS["hot size"])
    assert isinstance(ladder, Ladder) and isinstance(theirs, Figure)
    ladder.climb(2)
    assert [t.peer for t in ladder.targets] == ["cupy pool"]
    assert theirs.measured == 2 and "hot size, reserved / peak live, cupy pool" in theirs.name
    assert ours.measured == 3

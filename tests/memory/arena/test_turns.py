"""Two sizes in turn exchange two chunks, which are neither joined nor cut."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from simulated import SimulatedSegments

from gtensor.memory import Arena
from gtensor.memory.arena.free_lists import BlockPool

from ..invariants import check

MIB = 1 << 20


def arena_of(size: int) -> Arena:
    """An empty arena that has one free segment."""
    arena = Arena(SimulatedSegments(64 * MIB))
    arena.allocate(size)
    return arena


def counted(calls: Counter[str], name: str) -> Callable[..., Any]:
    """The method, whose calls are counted."""
    real = getattr(BlockPool, name)

    def call(*given: Any) -> Any:
        calls[name] += 1
        return real(*given)

    return call


def test_after_the_third_turn_no_list_is_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    arena, calls = arena_of(10 * MIB), Counter[str]()
    for name in ("take", "give"):
        monkeypatch.setattr(BlockPool, name, counted(calls, name))
    places = [arena.allocate(size).ptr for size in (4 * MIB, 2 * MIB) * 2]
    calls.clear()
    assert [arena.allocate(size).ptr for size in (4 * MIB, 2 * MIB) * 20] == places[2:] * 20
    assert not calls
    arena.allocate(3 * MIB)
    assert calls == {"give": 2, "take": 1}  # the spare's, and that of the chunk freed last
    check(arena, [])
    stats = arena.stats()
    assert stats.peak_allocated == 10 * MIB and arena.empty_cache() == stats.reserved


def test_a_watermark_is_passed_at_each_turn_that_passes_it() -> None:
    arena, seen = arena_of(10 * MIB), []
    arena.on_watermark(3 * MIB, seen.append)
    for size in (4 * MIB, 2 * MIB) * 5:
        arena.allocate(size)
    assert seen == [4 * MIB] * 5


def test_the_spare_is_free_memory_for_another_request() -> None:
    arena = arena_of(8 * MIB)
    for size in (4 * MIB, 2 * MIB) * 3:
        arena.allocate(size)
    block = arena.allocate(8 * MIB)  # all of the segment, the spare included
    check(arena, [block])
    assert arena.stats().misses == 1

"""The ends of recordings: whatever the program is in the middle of, and in whatever order."""

from __future__ import annotations

import sys
import threading
from contextlib import nullcontext

import pytest
from simulated import SimulatedSegments

import gtensor as gt
from gtensor import memory, nn, optim
from gtensor.backend import get_device
from gtensor.memory import (
    Arena,
    Plan,
    Planned,
    Timeline,
)
from gtensor.memory.contract import adaptors
from gtensor.memory.plan.plan import Lifetime, make_plan
from gtensor.memory.trace import timelines
from gtensor.system.bus import bus

from ..simulated_cuda import SimulatedCuda, connect

MIB = 1 << 20


@pytest.fixture
def cpu():
    """The CPU device, which must have its arena at the end as at the start."""
    device, listening = get_device("cpu"), len(bus.listeners)
    with gt.settings.override(arena_min_bytes=0):
        yield device
    assert device.resource is memory.arena_of("cpu") and len(bus.listeners) == listening


class Unfinished(nn.Module):
    def __init__(self) -> None:
        raise ValueError("no module")


class Late(nn.Module):
    def __init__(self) -> None:
        self.part = nn.Linear(2, 2)


class Around(nn.Module):
    """A module with a part that was never set up."""

    def __init__(self) -> None:
        super().__init__()
        self.part = Unfinished.__new__(Unfinished)
        raise ValueError("no module around")


def too_large_a_plan() -> Planned:
    plan: Plan = make_plan([Lifetime(MIB, MIB, 0, "op", 0, 1)], 2)
    return Planned(Arena(SimulatedSegments(0)), plan)


@pytest.mark.parametrize("make, kind", [
    (lambda: optim.SGD([]), ValueError), (Unfinished, ValueError), (Late, AttributeError),
    (Around, ValueError), (lambda: gt.nn.Parameter(object()), TypeError),
    (too_large_a_plan, MemoryError)])
def test_what_is_half_made_does_no_harm(make, kind, cpu, tmp_path):
    with pytest.raises(kind) as caught, memory.timeline(device=cpu) as first:
        x = gt.zeros(10, device=cpu)
        make()
    assert first.events[0].label == "empty"
    with memory.timeline(device=cpu) as second:  # while the error keeps the half of it
        x = gt.ones(10, device=cpu)
    assert [event.delta > 0 for event in second.events] == [True]
    memory.snapshot(tmp_path / "now.json", cpu)
    assert x.numpy().sum() == 10 and caught.value


def test_a_finder_that_fails_leaves_no_timeline(cpu, monkeypatch):
    def fails(*found):
        raise RuntimeError("the finder fails")

    with (pytest.raises(RuntimeError, match="the finder fails"),
          memory.timeline(device=cpu) as timeline):
        monkeypatch.setattr(timelines, "uses", fails)
    gt.zeros(10, device=cpu)
    assert isinstance(timeline, Timeline) and not timeline.events


def test_a_block_may_go_while_a_timeline_begins(monkeypatch):
    arena = Arena(SimulatedSegments(64 * MIB))
    blocks = [arena.allocate(MIB), arena.allocate(MIB)]
    real = Timeline._find

    def find(timeline, objects):
        real(timeline, objects)
        objects.clear()
        del blocks[0]

    with monkeypatch.context() as patch:
        patch.setattr(Timeline, "_find", find)
        timeline = Timeline(arena)
    blocks.append(timeline.allocate(2 * MIB))
    timeline.close()
    assert arena.allocated == 3 * MIB == timeline.events[-1].allocated


@pytest.mark.parametrize("begin", [memory.timeline, memory.record])
def test_recordings_may_end_in_any_order(begin, cpu):
    arena = memory.arena_of(cpu)
    first, second, third = (begin(device=cpu) for _ in range(3))
    (a, b, c) = (context.__enter__() for context in (first, second, third))
    second.__exit__(None, None, None)
    assert cpu.resource is c and c.upstream is a and a.upstream is arena
    first.__exit__(None, None, None)
    assert cpu.resource is c and c.upstream is arena
    gt.zeros(10, device=cpu)
    third.__exit__(None, None, None)
    assert cpu.resource is arena and b.upstream is not c


def record_in_threads(device) -> list[BaseException]:
    """What went wrong in four threads that all record what they make themselves."""
    errors: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(500):
                with memory.record(device) as recording:
                    gt.zeros(10, device=device)
                assert len(recording.requests) == 1
        except BaseException as error:
            errors.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.setswitchinterval(interval)
    return errors


def test_threads_record_at_the_same_time(cpu):
    assert not record_in_threads(cpu) and cpu.resource is memory.arena_of(cpu)


def test_planted_fault_ends_without_the_lock_are_caught(cpu, monkeypatch):
    monkeypatch.setattr(adaptors, "_chains", nullcontext())
    try:
        assert any(record_in_threads(cpu) or cpu.resource is not memory.arena_of(cpu)
                   for _ in range(100))
    finally:
        cpu.resource = memory.arena_of(cpu)


def test_a_timeline_may_outlive_the_capture_it_was_begun_in(monkeypatch):
    device = connect(SimulatedCuda(), monkeypatch)
    timeline = memory.timeline(device=device)
    graph = gt.Graph(device)
    with graph.capture():
        recording = timeline.__enter__()
        device.full(1.0)
    assert device.resource is recording and recording.upstream is device.arena
    timeline.__exit__(None, None, None)
    assert device.resource is device.arena and len(recording.events) == 2

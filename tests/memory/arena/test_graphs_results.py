"""Results of graphs that another stream still reads when a replay writes their bytes again."""

from __future__ import annotations

import pytest

from gtensor.memory.arena.streams import Streams

from ..simulated_cuda import SimulatedCuda, connect
from .test_graphs import captured, doubled, value


@pytest.fixture
def device(monkeypatch):
    return connect(SimulatedCuda(), monkeypatch)


def read_beside(device, x, replay, side, result):
    """What `side` sees of a result if the replay of new values runs as early as it may."""
    with side:
        seen = device.copy(result.pop())
    device.fill(x, 2.0)
    replay()
    while device.current_stream().step():
        pass
    side.synchronize()
    return value(device, seen)


@pytest.mark.parametrize("dropped", [False, True])
def test_a_replay_waits_for_readers_of_its_last_result(device, dropped):
    x = device.full(1.0)
    graph, y = captured(device, x)
    side = device.new_stream()
    graph.replay()
    result = [y]
    if dropped:
        del y
    assert read_beside(device, x, graph.replay, side, result) == 4.0


@pytest.mark.parametrize("over", [False, True])
def test_a_replay_waits_for_readers_of_another_graphs_result(device, over):
    """`over`: the second was captured into the bytes of the first one's result."""
    x = device.full(1.0)
    first, y = captured(device, x)
    if over:
        del y
        device.finish()
        device.full(0.0)  # polls: the bytes are free in the pool
    second, z = captured(device, x, lambda device, x: device.add(doubled(device, x), x),
                         pool=first.pool)
    side = device.new_stream()
    ran, then, result, wanted = (second, first, [z], 5.0) if over else (first, second, [y], 4.0)
    ran.replay()
    assert read_beside(device, x, then.replay, side, result) == wanted


def test_planted_fault_a_replay_unordered_with_dropped_results_is_caught(device, monkeypatch):
    monkeypatch.setattr(Streams, "order_retired", lambda streams, waiter, pool: None)
    with pytest.raises(AssertionError):
        test_a_replay_waits_for_readers_of_its_last_result(device, True)


def test_planted_fault_a_replay_unordered_with_other_graphs_is_caught(device, monkeypatch):
    monkeypatch.setattr("gtensor.memory.arena.graphs.WeakSet.update", lambda blocks, more: None)
    with pytest.raises(AssertionError):
        test_a_replay_waits_for_readers_of_another_graphs_result(device, True)

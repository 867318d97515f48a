"""`gt.Graph` on a simulated device: what replays compute, and which streams wait."""

from __future__ import annotations

import gc
import threading
from weakref import ref

import pytest

import gtensor as gt
from gtensor import memory
from gtensor.backend.ordering import Ordering
from gtensor.memory.arena.graphs import GraphPool

from ..invariants import check
from ..simulated_cuda import Array, SimulatedCuda, connect, numbers

MIB = 1 << 20


@pytest.fixture
def device(monkeypatch):
    return connect(SimulatedCuda(), monkeypatch)


def doubled(device, x):
    """y = 2 x + 2 x, by way of a temporary."""
    half = device.add(x, x)
    return device.add(half, half)


def captured(device, x, work=doubled, **more):
    graph = gt.Graph(device, **more)
    with graph.capture():
        y = work(device, x)
    return graph, y


def value(device, array) -> float:
    device.finish()
    assert len(set(numbers(array))) == 1
    return numbers(array)[0]


def blocks(*arrays: Array):
    return [array.data.mem for array in arrays]


def test_a_replay_computes_with_new_values_at_the_same_addresses(device):
    x = device.full(1.0)
    launched = device.current_stream().launched
    graph, y = captured(device, x)
    assert device.current_stream().launched == launched, "something ran in the capture"
    at = y.ptr
    for number in (1.0, 5.0, -3.0):
        device.fill(x, number)
        graph.replay()
        assert value(device, y) == 4 * number and y.ptr == at
    check(device.arena, blocks(x, y))


def test_temporaries_of_a_capture_share_bytes_that_no_other_block_has(device):
    def chain(device, x):
        for _ in range(20):
            x = device.add(x, x)
        return x

    graph, y = captured(device, device.full(1.0), chain)
    assert device.arena.stats().private == device.arena.stats().reserved // 2
    others = [device.full(-1.0) for _ in range(40)]
    graph.replay()
    assert value(device, y) == 2.0 ** 20
    assert all(value(device, other) == -1.0 for other in others)


def test_inputs_stay_alive_and_in_place_writes_are_captured(device):
    x, total = device.full(3.0), device.full(0.0)
    graph = gt.Graph(device)
    with graph.capture():
        device.fill(total, 7.0)
        y = device.add(x, total)
    gone = ref(x.data.mem)
    del x
    noise = [device.full(-1.0) for _ in range(10)]
    graph.replay()
    assert value(device, y) == 10.0 and value(device, total) == 7.0 and noise
    del graph
    assert gone() is None, "a graph that is gone keeps its inputs"


def test_graphs_of_one_pool_replay_one_after_another_on_any_streams(device):
    x = device.full(1.0)
    first, y = captured(device, x)
    second, z = captured(device, x, lambda device, x: device.add(doubled(device, x), x),
                         pool=first.pool)
    assert device.arena.stats().private == 8 * MIB, "they do not share"
    side = device.new_stream()
    for number in (1.0, 2.0, 3.0):
        device.fill(x, number)
        first.replay()
        with side:
            second.replay()
            seen = device.copy(z)
        side.synchronize()  # with all that it waits for
        assert value(device, seen) == 5 * number and value(device, y) == 4 * number


def test_a_replay_waits_for_readers_of_its_results_and_readers_for_the_replay(device):
    x = device.full(1.0)
    graph, y = captured(device, x)
    side, third = device.new_stream(), device.new_stream()
    graph.replay()
    with side:
        seen = device.copy(y)
    device.fill(x, 2.0)
    graph.replay()  # over what `side` has not read yet
    with third:
        later = device.copy(y)
    while device.current_stream().step():
        pass
    third.synchronize()
    assert value(device, seen) == 4.0 and value(device, later) == 8.0
    with side:
        device.fill(y, 0.5)  # another op writes a result
    device.fill(x, 3.0)
    graph.replay()
    with third:
        assert value(device, device.copy(y)) == 12.0


def test_a_replay_waits_for_the_writers_of_its_inputs(device):
    x = device.full(1.0)
    graph, y = captured(device, x)
    with device.new_stream() as side:
        device.fill(x, 6.0)
    graph.replay()
    device.current_stream().synchronize()
    assert side.completed == 1 and numbers(y)[0] == 24.0


def test_memory_of_a_graph_that_is_gone_serves_others_behind_its_last_replay(device):
    home = device.current_stream()
    x = device.full(1.0)
    graph, y = captured(device, x)
    graph.replay()
    spot, pool = y.ptr, ref(graph.pool)
    kept = device.copy(y)
    del graph
    gc.collect()
    assert pool() is None and device.arena.stats().private == 0
    assert home.completed < home.launched, "somebody waited"
    with device.new_stream() as side:
        other = device.full(-1.0)
        others = [device.full(-1.0) for _ in range(30)]
    side.synchronize()
    assert y.ptr == spot and value(device, y) == 4.0 == value(device, kept)
    assert device.arena.stats().segments == 2, "it asked for more"
    check(device.arena, blocks(x, y, kept, other, *others))
    del y, kept, other, others, x
    device.finish()
    device.arena.empty_cache()
    assert device.arena.stats().reserved == 0


def test_captures_have_the_memory_of_graphs_that_are_gone(device):
    """Nothing is waited for on the host: results are made and read elsewhere, at the end."""
    home, side, third = (device.new_stream() for _ in range(3))
    seen = []
    x = device.full(1.0)
    for turn in range(20):
        with home:
            graph, y = captured(device, x, doubled if turn % 2 else lambda device, x: device.add(
                device.add(x, x), x))
        with side:
            graph.replay()
        with third:
            seen.append(device.copy(y))
        del graph, y
    assert device.arena.stats().reserved == 24 * MIB, "not x's, the copies' and one graph's"
    assert not side.completed and len(device.arena._segments.pools.orphans) < 3
    assert [value(device, each) for each in seen] == [3.0, 4.0] * 10


def test_records_of_a_capture_do_not_keep_its_stream(device):
    """A backward pass over them must run on its caller's stream, not on the capture's."""
    graph = gt.Graph(device)
    with graph.capture():
        stream = ref(device.current_stream())
        y = device.full(1.0)
    assert stream() is None and y.data.mem.written == (device.current_stream().id, 0)


def test_other_threads_are_served_during_a_capture(device):
    old = device.full(2.0)
    graph = gt.Graph(device)
    made = []

    def work():
        made.append(device.arena.allocate(100, 77))
        made.append(device.resource.allocate(100, 78))

    with graph.capture():
        y = device.add(old, old)
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        own = device.arena.stats().private
    assert own == 8 * MIB and len(made) == 2
    check(device.arena, [*blocks(old, y), *made])


def test_timelines_see_captures_and_reports_name_the_pools(device):
    x = device.full(1.0)
    with memory.timeline(device=device) as timeline:
        graph, y = captured(device, x)
        with (gt.Graph(device, pool=graph.pool).capture(),
              memory.timeline(device=device) as inner):
            device.add(x, y)
    assert [event.label for event in timeline.events] == ["add"] * 5
    assert len(inner.events) == 2 and device.resource is device.arena
    stats = memory.stats(device)
    assert stats.private == 8 * MIB
    assert "8 MiB of the reserved belong to graphs" in memory.summary(device)
    layout = device.arena.layout()
    assert [segment.stream for segment in layout if segment.stream < 0] == [graph.pool.number]
    pools = {segment["stream"]: segment["segment_pool_id"] for segment in torch_segments(device)}
    assert pools == {device.current_stream().id: (0, 0), -2: (0, 1)}


def torch_segments(device):
    from gtensor.memory.trace.owners import standing
    from gtensor.memory.trace.snapshots import torch_document

    return torch_document(standing(device.arena))["segments"]


# -- planted faults: the device shows them as wrong values -----------------------------------------


def test_planted_fault_a_replay_that_waits_for_no_stream_is_caught(device, monkeypatch):
    monkeypatch.setattr(Ordering, "_wait", lambda ordering, waiter, producer, number: 0)
    with pytest.raises(AssertionError):
        test_a_replay_waits_for_readers_of_its_results_and_readers_for_the_replay(device)


def test_planted_fault_graphs_of_one_pool_that_do_not_wait_are_caught(device, monkeypatch):
    def replaying(pool, stream):
        pool._replays.clear()
        return real(pool, stream)

    real = GraphPool.replaying
    monkeypatch.setattr(GraphPool, "replaying", replaying)
    with pytest.raises(AssertionError):
        two_graphs_at_once(device)


def two_graphs_at_once(device):
    """The second, on another stream, writes the temporary of the first."""
    first, y = captured(device, device.full(1.0))
    second = captured(device, device.full(-1.0), pool=first.pool)[0]
    first.pool.blocks.clear()  # a result that is held would be waited for anyway
    home, side = device.current_stream(), device.new_stream()
    with side:
        second.replay()  # what it reads is known there now
    device.finish()
    first.replay()
    home.step()  # its temporary is made
    with side:
        second.replay()
        while side.step():
            pass
    assert value(device, y) == 4.0


def test_graphs_of_one_pool_do_wait(device):
    two_graphs_at_once(device)

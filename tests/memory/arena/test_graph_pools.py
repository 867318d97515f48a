"""Pools of graphs, case by case: what they take, keep and leave, and which streams wait."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from gtensor.memory.arena.streams import Streams

from ..invariants import check
from .model_streams import Refused
from .test_streams import KIB, MIB, World


def test_a_stream_with_memory_of_its_own_is_not_captured():
    world = World()
    a, b = world.streams
    block = world.allocate(KIB, a)
    pool = world.arena.graph_pool()
    with pytest.raises(ValueError, match="it has memory already"), pool.capturing(a.id):
        pass
    assert world.arena._orders.capturing == 0
    with pool.capturing(b.id):
        pass
    check(world.arena, [block])


def test_graphs_take_nothing_from_others_and_grow_by_what_they_have():
    world = World(1)
    (a,) = world.streams
    world.allocate(1000 * MIB, a)
    c, pool = world.stream(), world.arena.graph_pool()
    with pool.capturing(c.id):
        block = world.arena.allocate(KIB, c.id)
    stats = world.arena.stats()
    assert stats.private == 8 * MIB and stats.reserved == 1008 * MIB, "not by what others have"
    assert pool.number == world.arena.layout()[-1].stream == -2
    assert world.arena.empty_cache() == 1000 * MIB
    check(world.arena, [block])


def test_blocks_freed_in_a_capture_serve_it_and_later_captures_of_the_pool():
    world = World(2)
    pool = world.arena.graph_pool()
    places = set()
    for stream in world.streams:
        with pool.capturing(stream.id):
            for _ in range(5):
                places.add(world.arena.allocate(20 * MIB, stream.id).ptr)
    assert len(places) == 1 and world.source.acquired == 1


def test_foreign_use_of_a_result_is_waited_for_and_stays_in_the_pool():
    world = World()
    a, c = world.streams
    pool = world.arena.graph_pool()
    with pool.capturing(c.id):
        result = world.arena.allocate(20 * MIB, c.id)
    at = result.ptr
    world.use(result, a)
    del result
    assert world.arena.stats().pending == 20 * MIB
    other = world.allocate(20 * MIB, a)
    assert other.ptr != at, "a stream that waited has a graph's memory"
    a.synchronize()
    world.arena.empty_cache()
    assert world.arena.stats().pending == 0 and world.arena.stats().private == 20 * MIB
    d = world.stream()
    with pool.capturing(d.id):
        assert world.arena.allocate(20 * MIB, d.id).ptr == at


@pytest.mark.parametrize("hindrance", ["another capture", "a stream that records no event"])
def test_a_replay_waits_for_readers_whose_events_are_not_recorded_yet(hindrance):
    world = World(4)
    a, b, c, d = world.streams
    pool = world.arena.graph_pool()
    with pool.capturing(c.id):
        result = world.arena.allocate(20 * MIB, c.id)
    world.use(result, b)
    if hindrance == "another capture":
        busy = world.arena.graph_pool().capturing(d.id)
    else:
        busy = nullcontext()
        world.calls.refuse(1, 2)
    with busy:
        del result
        with pool.replaying(a):
            a.launch()
        assert a.clock[b.id] == b.launched


def test_a_capture_has_the_memory_of_streams_and_graphs_that_are_gone():
    """The stream that it was begun on, and so each replay, comes after all work on that memory."""
    world = World(6)
    a, b, c, d, e, gone = world.streams
    world.allocate(20 * MIB, gone)
    world.arena.forget_stream(gone.id)
    pool = world.arena.graph_pool()
    with pool.capturing(c.id):
        read, result = (world.arena.allocate(20 * MIB, c.id) for _ in range(2))
    with pool.replaying(b):
        b.touch(result)
    world.use(read, d)
    del read, result, pool
    pool = world.arena.graph_pool()
    with pool.capturing(e.id, a):
        asked = world.calls.count
        blocks = [world.arena.allocate(20 * MIB, e.id) for _ in range(3)]
        assert world.calls.count == asked and world.arena.stats().private == 60 * MIB
    with pool.replaying(b):
        pass
    for stream in (a, b):
        for block in blocks:
            world.model.handed_out(block, stream)
    assert world.model.seen and world.arena.stats().pending == 0
    check(world.arena, blocks)


def test_a_capture_without_memory_of_others_waits_for_no_stream():
    world = World()
    a, c = world.streams
    pool = world.arena.graph_pool()
    with pool.capturing(c.id, a):
        world.arena.allocate(KIB, c.id)
    assert world.calls.count == 1  # the segment


def test_a_pool_that_ends_serves_others_behind_its_last_replay():
    world = World(3)
    a, b, c = world.streams
    pool = world.arena.graph_pool()
    with pool.capturing(c.id):
        kept, gone = (world.arena.allocate(20 * MIB, c.id) for _ in range(2))
    at = gone.ptr
    for stream in (a, b):
        with pool.replaying(stream):
            stream.touch(gone)
    assert b.clock[a.id] == a.launched
    del gone, pool
    assert world.arena.stats().private == 0
    again = world.allocate(20 * MIB, a)
    assert again.ptr == at and a.clock[b.id] == b.launched
    check(world.arena, [kept, again])


def test_a_pool_without_replays_ends_without_waits():
    world = World()
    a, c = world.streams
    pool = world.arena.graph_pool()
    with pool.capturing(c.id):
        world.arena.allocate(20 * MIB, c.id)
    del pool
    world.allocate(20 * MIB, a)
    assert not a.clock and world.source.acquired == 1


def test_a_pool_may_end_in_the_middle_of_another_capture():
    world = World(3)
    a, c, d = world.streams
    ending, other = world.arena.graph_pool(), world.arena.graph_pool()
    with ending.capturing(c.id):
        world.arena.allocate(20 * MIB, c.id)
    for pool in (ending, world.arena.graph_pool()):
        with pool.replaying(a):
            a.launch()
    del pool
    with other.capturing(d.id, a):
        asked = world.calls.count
        del ending
        mine = world.arena.allocate(20 * MIB, d.id)
        theirs = world.arena.allocate(20 * MIB, a.id)
        assert world.calls.count == asked + 2, "more than two segments were asked for"
    assert world.source.acquired == 3
    check(world.arena, [mine, theirs])


def test_a_replay_that_cannot_be_noted_is_waited_for():
    world = World()
    a, c = world.streams
    pool = world.arena.graph_pool()
    with pool.capturing(c.id):
        block = world.arena.allocate(20 * MIB, c.id)
    world.calls.refuse(1)
    with pytest.raises(Refused), pool.replaying(a):
        a.touch(block)
    assert a.completed == a.launched


def test_what_no_pool_has_room_for_comes_from_the_pool_for_other_sizes():
    world = World(1, capacity=20 * MIB, small=64 * KIB)
    (c,) = world.streams
    pool = world.arena.graph_pool()
    with pool.capturing(c.id):
        large = world.arena.allocate(19 * MIB, c.id)
        del large
        small = world.arena.allocate(KIB, c.id)
    assert world.source.acquired >= 1 and world.arena.stats().private == world.source.used
    check(world.arena, [small])


def test_planted_fault_polling_for_ended_streams_in_a_capture_is_caught(monkeypatch):
    real = Streams.forget

    def forget(streams, stream, last):
        before, streams.capturing = streams.capturing, 0
        real(streams, stream, last)
        streams.capturing = before

    monkeypatch.setattr(Streams, "forget", forget)
    with pytest.raises(AssertionError):
        test_a_pool_may_end_in_the_middle_of_another_capture()

"""Pools of graphs: random captures, replays and ends among ordinary work, and what catches faults.

The machine is that of `test_streams_random.py` with graphs. A replay is work on every byte that the
capture ever had, so memory that is given away too early is seen by the model.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule, run_state_machine_as_test

from gtensor.memory import OutOfMemoryError
from gtensor.memory.graphs import GraphPool
from gtensor.memory.reserve import Reserve
from gtensor.memory.streams import Streams

from .invariants import check, physical
from .model_streams import Refused, bytes_of
from .test_streams import KIB, MIB, World
from .test_streams_random import SIZES, STREAMS, PagedStreamMachine, StreamMachine

pytestmark = pytest.mark.usefixtures("cheap_collections")

STEPS = st.lists(st.one_of(
    st.tuples(st.just("allocate"), SIZES), st.tuples(st.just("free"), st.integers(0, 20)),
    st.tuples(st.just("free another's"), st.integers(0, 20)),
    st.tuples(st.just("another thread"), SIZES), st.tuples(st.just("empty_cache"), st.just(0)),
    st.tuples(st.just("fail"), st.just(0))), min_size=1, max_size=8)


class Stop(Exception):
    """An error in a captured block."""


class Graph:
    """A pool, and the blocks that its replays touch: address, size, the device's bytes behind them.

    `replayed` are the replays of all graphs of the pool.
    """

    def __init__(self, pool, places, replayed) -> None:
        self.pool = pool
        self.places = places
        self.replayed = replayed


class GraphMachine(StreamMachine):
    """Graphs beside the rest."""

    @initialize()
    def start_graphs(self):
        self.graphs: list[Graph] = []
        self.private = set()  # serial numbers of blocks that captures made

    @rule(steps=STEPS, keep=st.integers(0, 3), share=st.one_of(st.none(), st.integers(0, 5)))
    def capture_graph(self, steps, keep, share):
        """Capture some steps on a stream of its own, maybe into the pool of another graph."""
        if share is not None and self.graphs:
            other = self.graphs[share % len(self.graphs)]
            pool, replayed = other.pool, other.replayed
        else:
            pool, replayed = self.arena.graph_pool(), []
        stream = self.new_stream()
        mine, places = [], []
        asked, returned = self.calls.count, self.returned()
        try:
            with pool.capturing(stream.id):
                self.run(steps, stream, mine, places)
        except Stop:
            places = None
        assert self.calls.count == asked and self.returned() == returned, (
            "streams or the source were asked in the middle of a capture")
        self.calls.refuse()
        self.arena.forget_stream(stream.id)
        self.by_id.pop(stream.id)
        self.private.update(block.serial for block in mine[:keep])
        self.blocks += mine[:keep]
        if places is not None:
            self.graphs.append(Graph(pool, places, replayed))

    def returned(self):
        """How often the device got bytes back."""
        return self.device.released

    def run(self, steps, stream, mine, places):
        for what, amount in steps:
            try:
                if what == "allocate":
                    mine.append(self.arena.allocate(amount, stream.id, "captured"))
                    assert mine[-1].stream == stream.id
                    places.append((mine[-1].ptr, mine[-1].size, bytes_of(mine[-1])))
                elif what == "another thread":
                    self.allocate(amount, 0, True)
            except OutOfMemoryError as error:
                assert "while a graph is captured" in str(error)
            except Refused:  # by the source
                pass
            if what == "free" and mine:
                del mine[amount % len(mine)]
            elif what == "free another's" and self.blocks:
                del self.blocks[amount % len(self.blocks)]
            elif what == "empty_cache":
                assert self.arena.empty_cache() == 0
            elif what == "fail":
                raise Stop

    @rule(which=st.integers(0, 20), on=STREAMS)
    def replay(self, which, on):
        if not self.graphs:
            return
        graph, stream = self.graphs[which % len(self.graphs)], self.streams[on]
        try:
            with graph.pool.replaying(stream):
                for _, _, touched in graph.places:
                    for other, position in graph.replayed:
                        self.model.broken = (
                            other is not stream and other.completed < position
                            and stream.clock.get(other.id, 0) < position)
                        assert not self.model.broken, "two graphs of a pool replay at once"
                    stream.launch()
                    stream.work.append((stream.launched, touched))
                graph.replayed.append((stream, stream.launched))
        except Refused:
            return

    @rule(which=st.integers(0, 20))
    def drop(self, which):
        """Its pool goes as well if no other graph has it."""
        if self.graphs:
            del self.graphs[which % len(self.graphs)]

    @rule(nbytes=SIZES, on=STREAMS)
    def use_a_result(self, nbytes, on):
        """A result is used on a stream and dropped; the stream then asks for as many bytes."""
        self.capture_graph([("allocate", nbytes)], 1, None)
        self.use(len(self.blocks) - 1, on, False)
        self.free(len(self.blocks) - 1)
        self.allocate(nbytes, on, True)

    @rule(nbytes=SIZES, on=STREAMS, other=STREAMS)
    def replay_twice_and_drop(self, nbytes, on, other):
        """On one stream, then on another; the first asks for the bytes when the graph is gone."""
        self.capture_graph([("allocate", nbytes)], 0, None)
        self.replay(len(self.graphs) - 1, on)
        self.replay(len(self.graphs) - 1, other)
        self.drop(len(self.graphs) - 1)
        self.allocate(nbytes, on, True)

    @invariant()
    def graphs_have_their_memory(self):
        if not hasattr(self, "graphs"):
            return
        pools = self.arena._reserve.private
        source = self.arena.source
        inside = {number: [part for pool in pair for segment in pool.segments.values()
                           for part in physical(source, segment.ptr, segment.size)]
                  for number, pair in pools.items()}
        self.model.broken = inside.keys() != {graph.pool.number for graph in self.graphs}
        assert not self.model.broken, "pools of graphs that are gone, or none of one that is there"
        for graph in self.graphs:
            for ptr, size, touched in graph.places:
                try:
                    self.model.broken = physical(source, ptr, size) != touched or not all(
                        any(start <= low and high <= end
                            for start, end in inside[graph.pool.number]) for low, high in touched)
                except ValueError:  # nothing is mapped there
                    self.model.broken = True
                assert not self.model.broken, "a graph that may still replay lost memory"
        for block in self.blocks:
            if block.serial not in self.private:
                self.model.broken = any(low < end and start < high for low, high in bytes_of(block)
                                        for bounds in inside.values() for start, end in bounds)
                assert not self.model.broken, f"{block} has memory of a graph"

    def teardown(self):
        if hasattr(self, "graphs"):
            self.graphs.clear()
        super().teardown()


class PagedGraphMachine(GraphMachine, PagedStreamMachine):
    """The same over virtual memory, where a graph may have blocks that were joined."""

    def returned(self):
        return self.device.unmapped


MACHINES = [GraphMachine, PagedGraphMachine]
for machine in MACHINES:
    machine.TestCase.settings = settings(
        max_examples=20, stateful_step_count=40, deadline=None, report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck))
TestGraphs = GraphMachine.TestCase
TestGraphsOnPages = PagedGraphMachine.TestCase


@pytest.fixture(params=MACHINES)
def machine(request):
    return request.param


def must_be_caught(machine, match):
    """Run the machine, which has to find the fault that is planted now."""
    with pytest.raises(AssertionError, match=match):
        run_state_machine_as_test(machine, settings=settings(
            max_examples=100, stateful_step_count=40, deadline=None, database=None,
            phases=[Phase.generate], derandomize=True, report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck)))


def test_planted_fault_private_memory_that_goes_back_is_caught(machine, monkeypatch):
    monkeypatch.setattr(Reserve, "release", lambda reserve: reserve._release([
        segment for pool in reserve.all_pools() for segment in pool.free_segments()]))
    must_be_caught(machine, "lost memory|may still touch")


def test_planted_fault_private_memory_that_is_claimed_is_caught(machine, monkeypatch):
    real = Streams.claim
    monkeypatch.setattr(Streams, "claim",
                        lambda streams, size, stream, private: real(streams, size, stream))
    must_be_caught(machine, "has memory of a graph")


def test_planted_fault_private_memory_that_is_borrowed_is_caught(machine, monkeypatch):
    def others(reserve, stream, size):
        return [pool for pool in reserve.all_pools() if pool.stream != stream]

    monkeypatch.setattr(Reserve, "_others", others)
    must_be_caught(machine, "has memory of a graph|lost memory")


def test_planted_fault_a_capture_served_by_the_streams_own_pools_is_caught(machine, monkeypatch):
    monkeypatch.setattr(GraphPool, "capturing", lambda pool, stream: pool.arena.capturing())
    must_be_caught(machine, "lost memory|may still touch")


def test_planted_fault_an_end_without_the_last_replay_is_caught(machine, monkeypatch):
    monkeypatch.setattr(GraphPool, "__del__", lambda pool: pool.arena.forget_stream(pool.number))
    must_be_caught(machine, "may still touch")


def test_planted_fault_replays_that_do_not_wait_are_caught(machine, monkeypatch):
    real = GraphPool.replaying

    def replaying(pool, stream):
        pool._last = None
        return real(pool, stream)

    monkeypatch.setattr(GraphPool, "replaying", replaying)
    must_be_caught(machine, "replay at once")


def test_planted_fault_polling_in_a_capture_is_caught(machine, monkeypatch):
    real = Streams.poll

    def poll(streams):
        before, streams.capturing = streams.capturing, 0
        real(streams)
        streams.capturing = before

    monkeypatch.setattr(Streams, "poll", poll)
    must_be_caught(machine, "in the middle of a capture|assert")


def test_planted_fault_asking_who_has_ended_in_a_capture_is_caught(monkeypatch):
    real = Streams.forget

    def forget(streams, stream, last):
        before, streams.capturing = streams.capturing, 0
        real(streams, stream, last)
        streams.capturing = before

    monkeypatch.setattr(Streams, "forget", forget)
    with pytest.raises(AssertionError):
        test_a_pool_may_end_in_the_middle_of_another_capture()


@pytest.mark.slow
def test_many_more_sequences(machine):
    run_state_machine_as_test(machine, settings=settings(
        max_examples=200, stateful_step_count=60, deadline=None, report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck)))


# -- single cases ----------------------------------------------------------------------------------


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
    asked = world.calls.count
    with other.capturing(d.id):
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

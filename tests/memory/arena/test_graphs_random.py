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
from gtensor.memory.arena.graphs import GraphPool
from gtensor.memory.arena.pools import Pools
from gtensor.memory.arena.segments import Segments
from gtensor.memory.arena.streams import Streams

from ..invariants import physical
from .model_streams import Refused, bytes_of
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
    """A pool, and the blocks that its replays touch: address, size, the bytes behind them."""

    def __init__(self, pool, places) -> None:
        self.pool = pool
        self.places = places


class GraphMachine(StreamMachine):
    """Graphs beside the rest."""

    @initialize()
    def start_graphs(self):
        self.graphs: list[Graph] = []
        self.private = set()  # serial numbers of blocks that captures made

    @rule(steps=STEPS, keep=st.integers(0, 3), share=st.one_of(st.none(), st.integers(0, 5)),
          home=STREAMS)
    def capture_graph(self, steps, keep, share, home):
        """Capture some steps on a stream of its own, maybe into the pool of another graph."""
        if share is not None and self.graphs:
            other = self.graphs[share % len(self.graphs)]
            pool = other.pool
        else:
            pool = self.arena.graph_pool()
        stream = self.new_stream()
        mine, places = [], []
        try:
            with pool.capturing(stream.id, self.streams[home]):
                asked, returned = self.calls.count, self.returned()
                self.run(steps, stream, mine, places)
        except (Stop, Refused):
            places = None
        else:
            assert self.calls.count == asked and self.returned() == returned, (
                "streams or the source were asked in the middle of a capture")
        self.calls.refuse()
        self.arena.forget_stream(stream.id)
        self.by_id.pop(stream.id)
        self.private.update(block.serial for block in mine[:keep])
        self.blocks += mine[:keep]
        if places is not None:
            self.graphs.append(Graph(pool, places))

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
                    self.behind_all_others(stream, touched)
                for _, _, touched in graph.places:
                    stream.launch()
                    stream.work.append((stream.launched, touched))
        except Refused:
            return

    def behind_all_others(self, stream, touched):
        """Of blocks that are held the device's ordering takes care."""
        held = {part for block in self.blocks for part in bytes_of(block)}
        free = {(low, high) for low, high in touched
                if not any(low < end and start < high for start, end in held)}
        for other in self.model.streams:
            for position in other.unfinished(free):
                self.model.broken = (
                    other is not stream and stream.clock.get(other.id, 0) < position)
                assert not self.model.broken, f"a replay writes what {other.id} may still touch"

    @rule(which=st.integers(0, 20))
    def drop(self, which):
        """Its pool goes as well if no other graph has it."""
        if self.graphs:
            del self.graphs[which % len(self.graphs)]

    @rule(nbytes=SIZES, on=STREAMS)
    def use_a_result(self, nbytes, on):
        """A result is used on a stream and dropped; the stream then asks for as many bytes."""
        self.capture_graph([("allocate", nbytes)], 1, None, 0)
        self.use(len(self.blocks) - 1, on, False)
        self.free(len(self.blocks) - 1)
        self.allocate(nbytes, on, True)

    @rule(nbytes=SIZES, on=STREAMS, other=STREAMS)
    def replay_twice_and_drop(self, nbytes, on, other):
        """On one stream, then on another; the first asks for the bytes when the graph is gone."""
        self.capture_graph([("allocate", nbytes)], 0, None, 0)
        self.replay(len(self.graphs) - 1, on)
        self.replay(len(self.graphs) - 1, other)
        self.drop(len(self.graphs) - 1)
        self.allocate(nbytes, on, True)

    @rule(nbytes=SIZES, on=STREAMS, other=STREAMS, home=STREAMS, kept=st.booleans())
    def replay_and_capture_again(self, nbytes, on, other, home, kept):
        """A graph of as many bytes follows when one is gone, whose result was used elsewhere if it
        was kept."""
        self.capture_graph([("allocate", nbytes)], int(kept), None, home)
        self.replay(len(self.graphs) - 1, on)
        if kept:
            self.use(len(self.blocks) - 1, other, False)
            self.free(len(self.blocks) - 1)
        self.drop(len(self.graphs) - 1)
        self.capture_graph([("allocate", nbytes)], 0, None, home)
        self.replay(len(self.graphs) - 1, other)

    @invariant()
    def graphs_have_their_memory(self):
        if not hasattr(self, "graphs"):
            return
        pools = self.arena._segments.pools.private
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
    monkeypatch.setattr(Segments, "release", lambda segments: segments._release([
        segment for pool in segments.pools.all() for segment in pool.free_segments()]))
    must_be_caught(machine, "lost memory|may still touch|keeps bytes back")


def test_planted_fault_private_memory_that_is_claimed_is_caught(machine, monkeypatch):
    real = Streams.claim
    monkeypatch.setattr(Streams, "claim",
                        lambda streams, size, stream, private: real(streams, size, stream))
    must_be_caught(machine, "has memory of a graph")


def test_planted_fault_private_memory_that_is_borrowed_is_caught(machine, monkeypatch):
    def others(pools, stream, size):
        return [pool for pool in pools.all() if pool.stream != stream]

    monkeypatch.setattr(Pools, "others", others)
    must_be_caught(machine, "has memory of a graph|lost memory")


def test_planted_fault_a_capture_served_by_the_streams_own_pools_is_caught(machine, monkeypatch):
    monkeypatch.setattr(GraphPool, "capturing", lambda pool, *streams: pool.arena.capturing())
    must_be_caught(machine, "lost memory|may still touch|keeps bytes back")


def test_planted_fault_an_end_without_the_last_replay_is_caught(machine, monkeypatch):
    monkeypatch.setattr(GraphPool, "__del__", lambda pool: (
        pool._replays.clear(), pool.arena.forget_stream(pool.number)))
    must_be_caught(machine, "may still touch")


def test_planted_fault_replays_that_do_not_wait_are_caught(machine, monkeypatch):
    real = GraphPool.replaying

    def replaying(pool, stream):
        pool._replays.clear()
        return real(pool, stream)

    monkeypatch.setattr(GraphPool, "replaying", replaying)
    must_be_caught(machine, "a replay writes what")


def test_planted_fault_memory_of_graphs_that_are_gone_reused_without_waiting_is_caught(
        machine, monkeypatch):
    monkeypatch.setattr(Segments, "settle_orphans", lambda segments, home: (
        segments.pools.orphans, False))
    must_be_caught(machine, "a replay writes what")


def test_planted_fault_replays_that_do_not_wait_for_the_captures_stream_are_caught(
        machine, monkeypatch):
    real = Segments.settle_orphans
    monkeypatch.setattr(Segments, "settle_orphans", lambda segments, home: (
        real(segments, home)[0], False))
    must_be_caught(machine, "a replay writes what")


def test_planted_fault_polling_in_a_capture_is_caught(machine, monkeypatch):
    real = Streams.poll

    def poll(streams):
        before, streams.capturing = streams.capturing, 0
        real(streams)
        streams.capturing = before

    monkeypatch.setattr(Streams, "poll", poll)
    must_be_caught(machine, "in the middle of a capture|assert")


@pytest.mark.slow
def test_many_more_sequences(machine):
    run_state_machine_as_test(machine, settings=settings(
        max_examples=200, stateful_step_count=60, deadline=None, report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck)))

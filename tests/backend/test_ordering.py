"""Which stream waits for which when several read and write one block, on simulated streams."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

import gtensor as gt
from gtensor.backend.ordering import Ordering
from gtensor.backend.streams import HostEvent, SimulatedStream


class Counted(SimulatedStream):
    """A stream that counts its events and waits."""

    def __init__(self) -> None:
        super().__init__()
        self.recorded = self.waited = 0

    def record(self):
        self.recorded += 1
        return super().record()

    def wait(self, event):
        self.waited += 1
        super().wait(event)


class Note:
    """A resource that lists the calls of `record_use`."""

    def __init__(self) -> None:
        self.told = []

    def record_use(self, block, stream):
        self.told.append(stream)


class StandIn:
    """As much of a block as ordering needs."""

    def __init__(self, stream) -> None:
        self.stream = stream.id
        self.owner = Note()


@pytest.fixture
def world():
    streams = [Counted() for _ in range(3)]
    return Ordering({s.id: s for s in streams}.get), streams


def runs_after(stream, other) -> bool:
    """Whether work queued now on `stream` must wait for what `other` has queued."""
    stream.launch()
    while stream.step():
        pass
    return stream.completed < stream.launched and other.completed < other.launched


def test_a_reader_waits_for_the_writer(world):
    ordering, (a, b, _) = world
    block = StandIn(a)
    a.launch()
    ordering.read(b, block)
    assert block.owner.told == [b.id]
    assert runs_after(b, a)


def test_one_event_serves_all_that_was_written_before(world):
    ordering, (a, b, c) = world
    first, second = StandIn(a), StandIn(a)
    a.launch()
    ordering.read(b, first)
    ordering.read(b, first)
    assert (a.recorded, b.waited) == (1, 1)
    ordering.read(c, first)  # the event of b's read serves c
    assert (a.recorded, c.waited) == (1, 1)
    a.launch()  # maybe the write of the second
    ordering.read(b, second)
    assert (a.recorded, b.waited) == (2, 2)
    ordering.read(c, second)
    ordering.read(c, first)
    assert (a.recorded, c.waited) == (2, 2)


def test_readers_do_not_wait_for_readers(world):
    ordering, (a, b, c) = world
    block = StandIn(a)
    ordering.read(b, block)
    b.launch()
    ordering.read(c, block)
    ordering.read(a, block)
    assert not runs_after(c, b) and not runs_after(a, b)


def test_a_writer_waits_for_readers_and_readers_after_it_for_the_writer(world):
    ordering, (a, b, c) = world
    block = StandIn(a)
    ordering.read(b, block)
    b.launch()
    ordering.write(c, block)
    assert runs_after(c, b)
    b.synchronize()
    assert block.owner.told == [b.id, c.id]
    ordering.read(b, block)
    assert runs_after(b, c)
    ordering.read(a, block)  # also the stream that it was allocated on
    assert runs_after(a, c)


def test_a_write_on_the_blocks_own_stream_outdates_an_old_event(world):
    ordering, (a, b, _) = world
    block = StandIn(a)
    ordering.read(b, block)
    ordering.write(a, block)
    a.launch()
    ordering.read(b, block)
    assert runs_after(b, a)


def test_a_stream_that_is_gone_is_waited_for_by_its_last_event(world):
    ordering, (a, b, _) = world
    block = StandIn(a)
    a.launch()
    ordering.forget(a.id, a.record())
    ordering._stream_of = {b.id: b}.get
    ordering.read(b, block)
    assert runs_after(b, a)


def test_a_stream_may_end_while_another_ends(world):
    """As when asking an event makes an object, and a collection finds streams to end."""
    ordering, _ = world

    class Meddling(HostEvent):
        def done(self):
            for number in range(10, 40):
                ordering.forget(number, HostEvent())
            return True

    ordering.forget(1, Meddling())
    assert not ordering._ended and not ordering._latest


def test_random_reads_and_writes_are_in_order(world):
    """A read sees the last write; a write runs after all reads of the old value."""
    rng = np.random.default_rng()
    for _ in range(200):
        streams = [Counted() for _ in range(3)]
        ordering = Ordering({s.id: s for s in streams}.get)
        blocks = [StandIn(streams[i]) for i in rng.integers(0, 3, 3)]
        done = {}  # (stream, position) -> order of completion
        history = {id(block): [("write", block.stream, 0)] for block in blocks}
        by_id = {s.id: s for s in streams}
        for _ in range(25):
            stream, block = streams[rng.integers(3)], blocks[rng.integers(3)]
            kind = "write" if rng.random() < 0.4 else "read"
            getattr(ordering, kind)(stream, block)
            stream.launch()
            history[id(block)].append((kind, stream.id, stream.launched))
        while any(s.completed < s.launched for s in by_id.values()):
            stream = streams[rng.integers(3)]
            if stream.step():
                done[stream.id, stream.completed] = len(done)
        for entries in history.values():
            for i, (kind, *later) in enumerate(entries[1:], 1):
                for before, *earlier in entries[1:i]:
                    if "write" in (kind, before):
                        assert done[tuple(earlier)] < done[tuple(later)]


def test_planted_fault_an_ordering_that_never_waits_is_caught(world, monkeypatch):
    monkeypatch.setattr(Ordering, "_wait", lambda ordering, waiter, producer, number: number)
    with pytest.raises(AssertionError):
        test_random_reads_and_writes_are_in_order(world)


def test_streams_and_events_on_the_cpu_do_nothing_and_look_alike():
    x = gt.asarray(np.ones(3, "float32")).requires_grad_()
    with gt.stream() as side:
        y = (x * 2).sum()
        event = gt.Event().record()
    y.backward()
    assert (x.grad.numpy() == 2).all()
    assert event.done() and side.id == 0
    event.wait()
    event.wait(side)
    event.synchronize()
    side.wait(side.record())
    side.synchronize()
    assert gt.Event("cpu").done()
    ids = [gt.stream("cpu").id for _ in range(2)]
    assert all(first == second for first, second in pairwise(ids))
    gt.memory.record_stream(x, side)

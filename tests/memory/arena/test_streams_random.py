"""Random work on several streams, compared with a model of each byte's remaining users.

Over segments that are taken and given back whole, and over virtual memory whose pages come and go.
"""

from __future__ import annotations

import gc
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from simulated import SimulatedSegments

from gtensor.memory import Arena, OutOfMemoryError
from gtensor.memory.arena.segments import Segments
from gtensor.memory.arena.streams import Streams

from .. import invariants
from ..invariants import check, check_apart
from .model_streams import (
    Calls,
    Model,
    ModelEvent,
    ModelPages,
    ModelSegments,
    ModelStream,
    ModelVirtual,
    Refused,
)

KIB, MIB = 1 << 10, 1 << 20
SIZES = st.one_of(st.integers(0, 8 * KIB), st.sampled_from([64 * KIB, MIB, 2 * MIB, 3 * MIB]),
                  st.integers(0, 5 * MIB))
STREAMS = st.integers(0, 2)


pytestmark = pytest.mark.usefixtures("cheap_collections")


class StreamMachine(RuleBasedStateMachine):
    """An arena, three streams that run on request, and the blocks that are alive.

    `calls` are those of the streams, `upstream` those of the device that the source stands on.
    """

    page = 64 * KIB

    @initialize(capacity=st.sampled_from([8 * MIB, 16 * MIB, 64 * MIB]),
                small=st.sampled_from([0, 64 * KIB]), steps=st.sampled_from([0, 4]),
                asked=st.booleans())
    def start(self, capacity, small, steps, asked):
        gc.freeze()  # what the examples before left: out-of-memory collects garbage all the time
        self.model = Model()
        self.calls = Calls()
        self.upstream = Calls()
        source = self.make_source(capacity)
        by_id = {}
        self.by_id = by_id
        self.arena = Arena(source, small=small, steps=steps,
                           stream_of=by_id.get if asked else None)
        self.streams = [self.new_stream() for _ in range(3)]
        self.blocks = []

    def make_source(self, capacity):
        self.device = ModelSegments(self.model, capacity, self.upstream, page=self.page)
        return self.device

    def new_stream(self):
        stream = ModelStream(self.calls)
        self.model.streams.append(stream)
        self.by_id[stream.id] = stream
        if self.arena._orders._stream_of is None:
            self.arena.streams[stream.id] = stream
        return stream

    @rule(nbytes=SIZES, on=STREAMS, launches=st.booleans())
    def allocate(self, nbytes, on, launches):
        stream = self.streams[on]
        try:
            block = self.arena.allocate(nbytes, stream.id, "op")
        except (OutOfMemoryError, Refused):
            return
        assert block.stream == stream.id
        self.model.handed_out(block, stream)
        self.blocks.append(block)
        if launches:
            stream.touch(block)

    @rule(which=st.integers(0, 20))
    def launch(self, which):
        if self.blocks:
            block = self.blocks[which % len(self.blocks)]
            stream = next(s for s in self.model.streams if s.id == block.stream)
            if stream in self.streams:
                stream.touch(block)

    @rule(which=st.integers(0, 20), on=STREAMS, by_address=st.booleans())
    def use(self, which, on, by_address):
        if self.blocks:
            block, stream = self.blocks[which % len(self.blocks)], self.streams[on]
            self.arena.record_use(block.ptr if by_address else block, stream.id)
            stream.touch(block)

    @rule(which=st.integers(0, 20))
    def free(self, which):
        if self.blocks:
            del self.blocks[which % len(self.blocks)]

    @rule(step=st.integers(1, 3))
    def free_many(self, step):
        del self.blocks[::step]

    @rule(nbytes=SIZES, on=STREAMS, other=STREAMS)
    def relay(self, nbytes, on, other):
        """One stream makes, another uses; the bytes are wanted again at once."""
        self.allocate(nbytes, on, True)
        self.use(len(self.blocks) - 1, other, False)
        self.free(len(self.blocks) - 1)
        self.allocate(nbytes, on, True)

    @rule(nbytes=SIZES, on=STREAMS, other=STREAMS)
    def borrow(self, nbytes, on, other):
        """The bytes go from one stream to another and back."""
        for stream in (on, other, on):
            self.allocate(nbytes, stream, True)
            self.free(len(self.blocks) - 1)
        self.allocate(nbytes, on, True)

    @rule(on=STREAMS, units=st.integers(1, 3))
    def complete(self, on, units):
        for _ in range(units):
            self.streams[on].step()

    @rule()
    def complete_all(self):
        self.model.finish()

    @rule(on=STREAMS)
    def end_stream(self, on):
        """A stream goes while its work is still running; another takes its place."""
        old = self.streams[on]
        self.calls.refuse()
        self.arena.forget_stream(old.id)
        del self.by_id[old.id]
        self.streams[on] = self.new_stream()

    @rule(on=STREAMS, nbytes=SIZES)
    def capture(self, on, nbytes):
        """Allocations and frees during a capture ask no event anything."""
        before = self.calls.count
        with self.arena.capturing():
            self.allocate(nbytes, on, True)
            self.free(0)
        assert self.calls.count == before

    @rule()
    def empty_cache(self):
        with suppress(Refused):
            self.arena.empty_cache()

    @rule(limit=st.one_of(st.none(), st.integers(0, 32 * MIB)))
    def set_limit(self, limit):
        with suppress(Refused):
            self.arena.set_limit(limit)

    @rule(calls=st.lists(st.integers(1, 4), max_size=3))
    def out_of_room(self, calls):
        self.device.fail_at(*calls)

    @rule(calls=st.lists(st.integers(1, 4), max_size=3), streams=st.booleans())
    def refuse(self, calls, streams):
        (self.calls if streams else self.upstream).refuse(*calls)

    @invariant()
    def whole(self):
        if hasattr(self, "arena"):
            check(self.arena, self.blocks)
            assert self.arena.stats().reserved == self.device.used, "arena and device disagree"

    def teardown(self):
        if not hasattr(self, "arena") or self.model.broken:
            return
        self.calls.refuse()
        self.upstream.refuse()
        self.arena.set_limit(None)
        self.device.fail_at()
        self.device.capacity = 1 << 40
        self.blocks.clear()
        self.model.finish()
        self.arena.empty_cache()
        assert self.arena.stats().pending == 0, "finished work keeps bytes back"
        check(self.arena, [])
        assert self.device.used == self.arena.stats().segments == 0


class PagedStreamMachine(StreamMachine):
    """The same over virtual memory, where pages leave segments that are partly in use."""

    page = 512 * KIB

    def make_source(self, capacity):
        self.device = ModelPages(capacity, self.page, self.upstream)
        return ModelVirtual(self.model, self.device)

    @invariant()
    def pages_are_conserved(self):
        if hasattr(self, "arena"):
            device = self.device
            assert device.used == (device.mapped - device.unmapped) * device.page
            assert device.used <= max(device.capacity, self.arena.limit or 0)

    def teardown(self):
        super().teardown()
        if hasattr(self, "arena") and not self.model.broken:
            assert self.device.reserved == 0, "addresses were lost"


MACHINES = [StreamMachine, PagedStreamMachine]
for machine in MACHINES:
    machine.TestCase.settings = settings(
        max_examples=80, stateful_step_count=60, deadline=None, report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck))
TestStreams = StreamMachine.TestCase
TestStreamsOnPages = pytest.mark.thorough(PagedStreamMachine.TestCase)


@pytest.fixture(params=MACHINES)
def machine(request):
    return request.param


def must_be_caught(machine, match):
    """Run the machine, which has to find the fault that is planted now."""
    with pytest.raises((AssertionError, ValueError), match=match):
        run_state_machine_as_test(machine, settings=settings(
            max_examples=300, stateful_step_count=40, deadline=None, database=None,
            phases=[Phase.generate], derandomize=True, report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck)))


def test_planted_fault_an_arena_that_ignores_record_use_is_caught(machine, monkeypatch):
    monkeypatch.setattr(Arena, "record_use", lambda arena, block, stream: None)
    must_be_caught(machine, "may still touch")


def test_planted_fault_stealing_without_waiting_is_caught(machine, monkeypatch):
    monkeypatch.setattr(Streams, "order", lambda streams, waiter, on: None)
    must_be_caught(machine, "handed out while")


def test_planted_fault_a_claim_without_waiting_is_caught(machine, monkeypatch):
    monkeypatch.setattr(Streams, "_wait", lambda streams, waiter, event: None)
    must_be_caught(machine, "handed out while")


def test_planted_fault_events_that_are_not_polled_are_caught(machine, monkeypatch):
    monkeypatch.setattr(Streams, "poll", lambda streams: None)
    must_be_caught(machine, "finished work keeps bytes back")


def test_planted_fault_polling_without_asking_is_caught(machine, monkeypatch):
    def poll(streams):
        streams.record_retired()
        for line in streams._lines.values():
            for entry in line:
                if entry.chunk is not None:
                    streams._settle(entry)
        streams._lines.clear()

    monkeypatch.setattr(Streams, "poll", poll)
    must_be_caught(machine, "may still touch")


def test_planted_fault_a_borrowed_chunk_that_is_returned_at_once_is_caught(machine, monkeypatch):
    real = Segments._from_others

    def from_others(reserve, pool, size, others):
        chunk = real(reserve, pool, size, others)
        if chunk is not None:
            chunk.uses = None
        return chunk

    monkeypatch.setattr(Segments, "_from_others", from_others)
    must_be_caught(machine, "may still touch")


def test_planted_fault_an_heir_that_does_not_wait_is_caught(machine, monkeypatch):
    monkeypatch.setattr(Streams, "forget", lambda streams, stream, last: streams.known.pop(
        stream, None))
    must_be_caught(machine, "may still touch")


def test_planted_fault_memory_that_goes_back_before_its_work_is_done_is_caught(
        machine, monkeypatch):
    monkeypatch.setattr(ModelEvent, "synchronize", lambda event: None)
    must_be_caught(machine, "were returned while")


def test_planted_fault_a_release_that_fails_half_way_is_caught(machine, monkeypatch):
    """The device has the bytes again, and the arena is told that it has not."""
    kind = ModelPages if machine is PagedStreamMachine else ModelSegments
    name = "unmap" if machine is PagedStreamMachine else "release"
    real = getattr(kind, name)

    def half(device, address, nbytes):
        real(device, address, nbytes)
        if device.calls.count % 3 == 0:
            raise Refused("after it was done")

    monkeypatch.setattr(kind, name, half)
    must_be_caught(machine, "disagree|mapped|given out")


def test_planted_fault_growth_without_pages_is_caught(monkeypatch):
    monkeypatch.setattr(ModelVirtual, "grow", lambda source, ptr, old, new: True)
    must_be_caught(PagedStreamMachine, "mapped|Failing test case")


def test_planted_fault_addresses_that_are_kept_are_caught(monkeypatch):
    monkeypatch.setattr(ModelPages, "release", lambda pages, address, nbytes: None)
    must_be_caught(PagedStreamMachine, "addresses were lost")


def test_planted_fault_pages_behind_two_addresses_are_seen(monkeypatch):
    """Two blocks apart by their addresses, whose bytes are the same."""
    arena = Arena(SimulatedSegments(64 * MIB))
    blocks = [arena.allocate(MIB), arena.allocate(MIB)]
    check_apart(arena.source, blocks)
    monkeypatch.setattr(invariants, "physical", lambda source, ptr, nbytes: {(0, nbytes)})
    with pytest.raises(AssertionError, match="overlap"):
        check_apart(arena.source, blocks)


@pytest.mark.slow
def test_many_more_sequences(machine):
    run_state_machine_as_test(machine, settings=settings(
        max_examples=3000, stateful_step_count=100, deadline=None, report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck)))

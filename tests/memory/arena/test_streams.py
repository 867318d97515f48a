"""Blocks used on several streams: when their bytes are free, and which streams wait for them."""

from __future__ import annotations

import gc
import random

import pytest
from together import in_threads

from gtensor.backend.streams import HostStream
from gtensor.memory import Arena, HostSegments, OutOfMemoryError
from gtensor.memory.arena.segments import MOST_TAKEN

from ..invariants import check
from .model_streams import Calls, Model, ModelSegments, ModelStream, Refused
from .test_threads import as_array

KIB, MIB = 1 << 10, 1 << 20


class World:
    """An arena with as many streams as wanted, and the model that judges it."""

    def __init__(self, streams: int = 2, capacity: int = 1 << 30, **more) -> None:
        self.model = Model()
        self.calls = Calls()
        self.source = ModelSegments(self.model, capacity, self.calls)
        self.arena = Arena(self.source, **more)
        self.streams = [self.stream() for _ in range(streams)]

    def stream(self) -> ModelStream:
        stream = ModelStream(self.calls)
        self.model.streams.append(stream)
        self.arena.streams[stream.id] = stream
        return stream

    def allocate(self, nbytes: int, stream: ModelStream, touch: bool = True):
        block = self.arena.allocate(nbytes, stream.id)
        self.model.handed_out(block, stream)
        if touch:
            stream.touch(block)
        return block

    def use(self, block, stream: ModelStream) -> None:
        self.arena.record_use(block, stream.id)
        stream.touch(block)


def test_one_stream_asks_nothing_of_it():
    world = World(1)
    (a,) = world.streams
    for _ in range(10):
        block = world.allocate(MIB, a)
        del block
    assert world.calls.count == 1  # the segment


def test_bytes_used_elsewhere_come_back_when_that_work_is_done():
    world = World()
    a, b = world.streams
    block = world.allocate(20 * MIB, a)
    at = block.ptr
    world.use(block, b)
    world.use(block, b)
    before = world.calls.count
    del block
    assert world.calls.count == before + 1, "one event per foreign stream"
    assert world.arena.stats().pending == 20 * MIB and world.arena.allocated == 0
    small = world.allocate(KIB, a)  # nothing of this size was wanted of what is pending
    assert not at <= small.ptr < at + 20 * MIB
    b.synchronize()
    again = world.allocate(20 * MIB, a)
    assert again.ptr == at and world.arena.stats().pending == 0
    check(world.arena, [small, again])


def test_a_stream_that_waits_has_them_at_once():
    world = World(3)
    a, b, c = world.streams
    block = world.allocate(20 * MIB, a)
    at = block.ptr
    world.use(block, b)
    world.use(block, c)
    del block
    again = world.allocate(20 * MIB, a)
    assert again.ptr == at and a.clock == {b.id: b.launched, c.id: c.launched}
    check(world.arena, [again])


def test_the_stream_that_used_a_borrowed_block_last_has_it_back_without_waiting():
    world = World()
    a, b = world.streams
    keep = world.allocate(MIB, a)
    whole = world.allocate(4 * MIB, a)
    del whole
    lent = world.allocate(4 * MIB, b)
    assert world.arena.stats().borrowed == 1 and world.source.acquired == 1
    at = lent.ptr
    del lent
    waits = dict(b.clock)
    a.touch(keep)
    again = world.allocate(4 * MIB, b)
    assert again.ptr == at and b.clock == waits
    check(world.arena, [keep, again])


def test_a_free_segment_moves_for_good():
    world = World()
    a, b = world.streams
    world.allocate(20 * MIB, a)
    for _ in range(3):
        block = world.allocate(20 * MIB, b)
        del block
    assert world.source.acquired == 1 and world.arena.stats().borrowed == 0
    assert b.clock == {a.id: a.launched} and len(world.arena._large[b.id].segments) == 1


def test_a_large_free_segment_does_not_move_for_little():
    world = World()
    a, b = world.streams
    world.allocate(200 * MIB, a)
    small = world.allocate(KIB, b)
    assert world.arena.stats().borrowed == 1 and not world.arena._large[b.id].segments
    check(world.arena, [small])


def test_a_stream_that_borrows_repeatedly_gets_a_segment_of_its_own():
    world = World()
    a, b = world.streams
    keep = [world.allocate(MIB, a)]
    taken = [world.allocate(64 * KIB, b) for _ in range(MOST_TAKEN)]
    assert world.source.acquired == 1
    taken.append(world.allocate(64 * KIB, b))
    assert world.source.acquired == 2
    check(world.arena, keep + taken)


def test_unless_there_is_no_room_for_it():
    world = World(capacity=8 * MIB)
    a, b = world.streams
    keep = [world.allocate(MIB, a)]
    taken = [world.allocate(64 * KIB, b) for _ in range(2 * MOST_TAKEN)]
    assert world.source.acquired > 1, "it did not try"
    assert world.arena.stats().segments == 1
    check(world.arena, keep + taken)


def test_a_stream_that_ends_hands_its_memory_on():
    world = World()
    a, b = world.streams
    live, free = world.allocate(2 * MIB, a), world.allocate(5 * MIB, a)
    at = free.ptr
    del free
    world.arena.forget_stream(a.id)
    assert a.id not in world.arena.streams
    block = world.allocate(5 * MIB, b)
    assert block.ptr == at and b.clock == {a.id: a.launched} and world.source.acquired == 1
    where = live.ptr
    del live  # of the stream that is gone: free for its heir
    assert world.allocate(2 * MIB, b).ptr == where
    check(world.arena, [block])


class OnHost:
    """An event behind all work of a stream that no stream can wait for, as `IdleEvent`."""

    def __init__(self, stream: ModelStream) -> None:
        self.recorded = stream.record()
        self.clock = self.recorded.clock
        self.waited = False

    @property
    def blocks(self) -> bool:
        return not self.waited

    @property
    def event(self):
        """What a stream waits for once the host has waited."""
        self.synchronize()
        return self.recorded.event

    def done(self) -> bool:
        return self.waited

    def synchronize(self) -> None:
        self.recorded.synchronize()
        self.waited = True


def test_an_allocation_does_not_wait_on_the_host_for_a_stream_that_ended():
    """Neither for the memory of its pools, nor for a block of another pool that it used."""
    world = World()
    a, b = world.streams
    world.allocate(5 * MIB, a)
    used = world.allocate(7 * MIB, b)
    world.use(used, a)
    places, last = {used.ptr}, OnHost(a)
    world.arena.forget_stream(a.id, last)
    del used  # it is b's, and a may use it still
    blocks = [world.allocate(size * MIB, b) for size in (5, 7)]
    assert not last.waited and places.isdisjoint(block.ptr for block in blocks)
    acquired = world.source.acquired
    last.synchronize()
    blocks += [world.allocate(size * MIB, b) for size in (7, 5)]
    assert world.source.acquired == acquired, "the memory of both is reused"
    check(world.arena, blocks)


def test_a_capture_begins_without_a_wait_on_the_host():
    """Of a pool whose stream has ended, and of which a stream that only the host knows used a part.
    """
    world = World(streams=3)
    a, b, home = world.streams
    used = world.allocate(7 * MIB, b)
    world.use(used, a)
    last = OnHost(a)
    world.arena.forget_stream(a.id, last)
    del used
    world.arena.forget_stream(b.id, b.record())
    assert world.arena._segments.settle_orphans(home) == ([], False) and not last.waited
    last.synchronize()
    (orphan,), _ = world.arena._segments.settle_orphans(home)
    assert orphan.pool.stream == b.id


def test_the_host_waits_for_a_stream_that_ended_before_memory_is_out():
    world = World(capacity=32 * MIB)
    a, b = world.streams
    whole = world.allocate(24 * MIB, a)
    del whole
    free, kept = world.allocate(18 * MIB, a), world.allocate(5 * MIB, a)
    assert world.source.acquired == 1
    del free
    last = OnHost(a)
    world.arena.forget_stream(a.id, last)
    block = world.allocate(18 * MIB, b)
    assert last.waited and world.arena.stats().segments == 1
    check(world.arena, [kept, block])


def test_the_end_of_a_stream_may_be_announced_by_a_finalizer():
    world = World()
    a, b = world.streams
    world.allocate(MIB, a)
    with world.arena._lock:
        world.arena._busy = True  # as in the middle of an allocation of this thread
        world.arena.forget_stream(a.id)
        world.arena._busy = False
    block = world.allocate(MIB, b)
    assert not world.arena._pending and a.id not in world.arena.streams
    check(world.arena, [block])


def test_streams_may_be_asked_for():
    stream = ModelStream()
    arena = Arena(ModelSegments(Model(), 1 << 30), stream_of={stream.id: stream}.get)
    block = arena.allocate(MIB, stream.id + 1)
    arena.record_use(block, stream.id)
    with pytest.raises(ValueError, match="does not know this stream"):
        arena.record_use(block, stream.id + 2)
    del block
    assert arena.stats().pending == MIB
    arena.empty_cache()
    assert arena.stats().pending == arena.stats().reserved == 0


def test_use_of_what_is_free_is_refused():
    world = World()
    a, b = world.streams
    block = world.allocate(MIB, a)
    at = block.ptr
    world.arena.record_use(at + 5, b.id)
    del block
    with pytest.raises(ValueError, match="no live block is there"):
        world.arena.record_use(at, b.id)


def test_a_capture_asks_no_event_anything():
    world = World()
    a, b = world.streams
    block, other = world.allocate(MIB, a), world.allocate(MIB, a)
    world.use(block, b)
    world.use(other, b)
    del other
    before = world.calls.count
    with world.arena.capturing():
        del block
        kept = world.allocate(2 * KIB, a)
        assert world.calls.count == before
    assert world.arena.stats().pending == 2 * MIB
    b.synchronize()
    world.allocate(KIB, a)
    assert world.arena.stats().pending == 0
    check(world.arena, [kept])


def test_pending_work_is_waited_for_before_memory_is_out():
    world = World(capacity=32 * MIB)
    a, b = world.streams
    block = world.allocate(30 * MIB, a)
    world.use(block, b)
    del block
    assert world.allocate(16 * MIB, a).nbytes and b.completed == b.launched
    assert world.arena.stats().reserved <= 32 * MIB


def test_as_few_segments_go_back_as_are_needed():
    world = World(1)
    (a,) = world.streams
    world.arena.set_limit(100 * MIB)
    blocks = [world.allocate(size * MIB, a) for size in (20, 40, 30)]
    blocks.clear()
    with_limit = world.arena.allocate(25 * MIB, a.id)  # fits the free 30
    assert world.source.released == 0
    third = world.arena.allocate(41 * MIB, a.id)
    assert world.source.released == 1 and world.arena.stats().reserved == (20 + 30 + 42) * MIB
    check(world.arena, [with_limit, third])


def test_events_of_several_streams_may_complete_in_any_order():
    world = World(3)
    a, b, c = world.streams
    first, second, both = (world.allocate(20 * MIB, a) for _ in range(3))
    world.use(first, b)
    world.use(second, c)
    world.use(both, b)
    world.use(both, c)
    of_second = second.ptr
    del first, both, second
    assert world.arena.stats().pending == 60 * MIB
    c.synchronize()  # the work of the one that was freed last is done first
    again = world.allocate(20 * MIB, a)
    assert again.ptr == of_second and world.arena.stats().pending == 40 * MIB
    assert not a.clock, "it waited for a stream that has nothing to do with these bytes"
    b.synchronize()
    world.allocate(KIB, a)
    assert world.arena.stats().pending == 0
    check(world.arena, [again])


def test_an_event_that_cannot_be_recorded_keeps_the_bytes_back_until_it_can():
    world = World()
    a, b = world.streams
    block = world.allocate(20 * MIB, a)
    at = block.ptr
    world.use(block, b)
    world.calls.refuse(1, 2)
    del block  # a free says nothing
    assert world.arena.stats().pending == 20 * MIB and world.arena.allocated == 0
    world.allocate(KIB, a)  # nor does a request that has a fit
    assert world.arena.stats().pending == 20 * MIB
    check(world.arena, [])
    other = world.allocate(20 * MIB, a)
    assert other.ptr == at and a.clock == {b.id: b.launched}
    check(world.arena, [other])


def step(world: World) -> None:
    """A scripted step that comes by every upstream call there is."""
    a, b = world.streams[:2]
    kept = [world.allocate(3 * MIB, a), world.allocate(10 * MIB, b)]
    world.use(kept[0], b)
    world.use(kept[1], a)
    kept.pop(0)
    kept.append(world.allocate(3 * MIB, a))
    kept.pop(0)
    b.synchronize()
    kept.append(world.allocate(KIB, b))
    c = world.stream()
    kept.append(world.allocate(5 * MIB, c))
    world.use(kept[-1], a)
    world.arena.forget_stream(c.id)
    del kept[-1]
    kept.append(world.allocate(20 * MIB, a))
    world.use(kept[-1], b)
    del kept[-1]
    kept.append(world.allocate(24 * MIB, a))  # only after cached segments went back
    world.arena.empty_cache()


def test_a_failure_of_any_upstream_call_leaves_the_state_whole():
    gc.collect()
    gc.freeze()
    names = set()
    for place in range(1, 1000):
        world = World(capacity=36 * MIB)
        world.calls.refuse(place)
        failed = False
        try:
            step(world)
        except (Refused, OutOfMemoryError) as error:
            failed = True
            names.add(str(error).split("of ")[-1].split(",")[0])
            error.__traceback__ = None
        happened = world.calls.count >= place
        world.calls.refuse()
        check(world.arena, [])
        world.source.capacity = 1 << 30
        step(world)  # everything works after it
        world.model.finish()
        world.arena.empty_cache()
        assert world.source.used == 0 and world.arena.stats().pending == 0, "bytes leaked"
        if not happened:
            assert not failed
            break
    gc.unfreeze()
    assert place > 20 and {"acquire", "release", "record", "wait"} <= names


def test_eight_threads_use_each_others_streams():
    """The streams here complete at once, so the holder of a block may write it at once."""
    arena = Arena(HostSegments())
    streams = [HostStream() for _ in range(3)]
    for number, stream in enumerate(streams):
        arena.streams[number] = stream

    def work(seed):
        rng = random.Random(seed)
        mine = []
        for i in range(600):
            if mine and rng.random() < 0.5:
                array, value = mine.pop(rng.randrange(len(mine)))
                assert (array == value).all(), "somebody else wrote into this block"
                del array
            else:
                block = arena.allocate(rng.randrange(1, 20_000), rng.randrange(3), "work")
                if rng.random() < 0.5:
                    arena.record_use(block, rng.randrange(3))
                array = as_array(block)
                array[:] = value = rng.randrange(256)
                mine.append((array, value))
                del array, block
            if i % 200 == seed:
                gc.collect(0)
                arena.empty_cache()

    in_threads(work, range(8))
    arena.empty_cache()
    check(arena, [])
    assert arena.stats().pending == arena.stats().reserved == 0

"""An interrupt at any point of what an arena does beyond a hit, and what it must not keep."""

from __future__ import annotations

import itertools
import threading
from itertools import product

import pytest
from simulated import SimulatedPages, SimulatedSegments

from gtensor.backend.streams import SimulatedStream
from gtensor.memory import Arena, OutOfMemoryError, VirtualSegments
from gtensor.memory.arena.chunks import IN_USE
from gtensor.memory.arena.free_lists import BlockPool

from ..interrupts import Interrupt, interrupt_after
from ..invariants import check, check_pool

MIB = 1 << 20


def world(paged: bool) -> tuple[Arena, list[SimulatedStream]]:
    streams = [SimulatedStream() for _ in range(3)]
    arena = Arena(VirtualSegments(SimulatedPages(1 << 30)) if paged
                  else SimulatedSegments(1 << 30))
    arena.streams.update({stream.id: stream for stream in streams})
    for stream in streams:  # the bins for such sizes are made one by one: a thousand points
        arena.allocate(100 * MIB, stream.id)
        arena.empty_cache()
    return arena, streams


def retired(arena, streams):
    block = arena.allocate(2 * MIB, streams[0].id)
    arena.record_use(block, streams[1].id)
    streams[1].launch()


def miss(arena, streams, kept):
    return lambda: arena.allocate(20 * MIB, streams[0].id)


def growth(arena, streams, kept):
    kept.append(arena.allocate(3 * MIB, streams[0].id))
    return lambda: arena.allocate(20 * MIB, streams[0].id)


def move(arena, streams, kept):
    arena.allocate(20 * MIB, streams[0].id)
    return lambda: arena.allocate(20 * MIB, streams[1].id)


def borrow(arena, streams, kept):
    kept.append(arena.allocate(MIB, streams[0].id))
    return lambda: arena.allocate(MIB, streams[1].id)


def polled(arena, streams, kept):
    retired(arena, streams)
    assert arena.stats().pending
    streams[1].synchronize()
    return lambda: arena.allocate(MIB, streams[0].id)


def claim(arena, streams, kept):
    retired(arena, streams)
    return lambda: arena.allocate(2 * MIB, streams[0].id)


def retire(arena, streams, kept):
    block = arena.allocate(2 * MIB, streams[0].id)
    arena.record_use(block, streams[1].id)
    chunk = block.node
    del block.__del__
    arena._pending.append(chunk)
    return arena.stats


def turns(arena, streams, kept):
    kept.append(arena.allocate(MIB, streams[0].id))
    for size in (4, 2):
        arena.allocate(size * MIB, streams[0].id)

    def act():
        for size in (4, 2, 3):  # the spare is made, exchanged, and given back
            arena.allocate(size * MIB, streams[0].id)

    return act


def inherit(arena, streams, kept):
    gone = arena.allocate(2 * MIB, streams[0].id)
    kept.append(arena.allocate(MIB, streams[0].id))
    del gone
    arena.forget_stream(streams[0].id)
    return lambda: arena.allocate(2 * MIB, streams[1].id)


def forget(arena, streams, kept):
    kept.append(arena.allocate(2 * MIB, streams[0].id))
    return lambda: arena.forget_stream(streams[0].id)


def empty(arena, streams, kept):
    gone = arena.allocate(20 * MIB, streams[0].id)
    kept.append(arena.allocate(MIB, streams[0].id))
    also = arena.allocate(30 * MIB, streams[0].id)
    del gone, also
    return arena.empty_cache


SCENES = growth, move, borrow, polled, claim, retire, inherit, forget, empty


@pytest.mark.thorough
@pytest.mark.parametrize("scene, paged", [
    *product(SCENES, (False, True)), (miss, True), (turns, False)])
def test_an_interrupt_at_any_point_leaves_the_arena_whole(scene, paged):
    for place in itertools.count(1):
        arena, streams = world(paged)
        kept, raised = [], []

        act = scene(arena, streams, kept)

        def run(act=act, raised=raised):
            try:
                act()
            except Interrupt as caught:
                raised.append(caught)  # as `sys.last_traceback` does
                raise

        hit = interrupt_after(place, run)
        assert not arena._busy
        thread = threading.Thread(target=arena.stats, daemon=True)  # waits for the lock
        thread.start()
        thread.join(60)
        assert not thread.is_alive(), "the lock was not let go"
        for error in raised:
            error.__traceback__ = None
        del run, act, raised
        whole(arena, kept)
        for stream in streams:
            stream.synchronize()
        for stream in streams[1:]:
            for size in (MIB, 20 * MIB, 2 * MIB):
                arena.allocate(size, stream.id)
        whole(arena, kept)
        arena.empty_cache()
        whole(arena, kept)
        if not hit:
            check(arena, kept)
            break
    assert place > 5


def test_an_interrupt_while_the_arena_grows():
    test_an_interrupt_at_any_point_leaves_the_arena_whole(miss, False)


def whole(arena: Arena, kept: list) -> None:
    """The lists, rings, counters and reports are, and no byte is lost."""
    check(arena, kept)
    stats = arena.stats()
    pools = arena._segments.pools.all()
    assert len({id(pool) for pool in pools}) == len(pools)
    live = [chunk for pool in pools for chunk in check_pool(pool, 512)]
    segments = [segment for pool in pools for segment in pool.segments.values()]
    assert sum(segment.size for segment in segments) == stats.reserved
    assert {block.node for block in kept} <= set(live)
    assert all(chunk.bin == IN_USE for chunk in live)
    assert stats.active <= sum(chunk.size for chunk in live)
    assert stats.pending == sum(chunk.size for segment in segments for chunk in segment
                                if chunk.bin < IN_USE)
    assert len(arena.holdings()) == len(live)
    assert arena.layout() and arena.holdings() is not None if segments else True


@pytest.mark.parametrize("done", [False, True], ids=["before", "behind"])
def test_an_interrupt_of_the_source_that_takes_a_segment_back_leaves_none(done):
    class Interrupted(SimulatedSegments):
        left = 1

        def release(self, ptr, nbytes):
            left, self.left = self.left, 0
            if done or not left:
                super().release(ptr, nbytes)
            if left:
                raise Interrupt

    source = Interrupted(1 << 30)
    arena = Arena(source)
    kept = [arena.allocate(20 * MIB), arena.allocate(20 * MIB)][1:]
    with pytest.raises(Interrupt):
        arena.empty_cache()
    check(arena, kept)
    assert source.used == arena.stats().reserved == kept[0].size


def test_a_chunk_that_was_lost_does_not_break_the_reports():
    arena = Arena(SimulatedSegments(10 * MIB))
    kept = arena.allocate(MIB)
    assert kept.node.pool.take(2 * MIB) is not None  # as if an interrupt had lost it
    assert arena.holdings() is not None and len(arena.layout()[0].pieces) == 3
    with pytest.raises(OutOfMemoryError, match="wanted"):
        arena.allocate(20 * MIB)


def test_planted_fault_a_segment_that_moves_in_steps_is_caught(monkeypatch):
    monkeypatch.setattr(BlockPool, "hand_over", BlockPool._hand_over)
    with pytest.raises(AssertionError):
        test_an_interrupt_at_any_point_leaves_the_arena_whole(move, False)


# -- streams that fail, and what a traceback keeps -------------------------------------------------


class Dead(SimulatedStream):
    """A stream whose handle its owner destroyed, once `dead` is set."""

    dead = False

    def record(self):
        if self.dead:
            raise RuntimeError("cudaErrorInvalidResourceHandle")
        return super().record()


def test_a_stream_that_can_record_nothing_keeps_its_own_chunks_only():
    arena, (a, b, _) = world(False)
    dead = Dead()
    arena.streams[dead.id] = dead
    blocks = [arena.allocate(MIB, a.id) for _ in range(3)]
    for block, users in zip(blocks, ([dead], [dead, b], [b]), strict=True):
        for user in users:
            arena.record_use(block, user.id)
    dead.dead = True
    del block
    blocks.clear()
    b.synchronize()
    assert arena.allocate(512, a.id).size == 512
    assert arena.stats().pending == 2 * MIB, "the chunk that b alone used is free"
    arena.empty_cache()
    arena.forget_stream(b.id)
    check(arena, [])
    arena.forget_stream(dead.id, a.record())
    arena.empty_cache(), arena.empty_cache()
    check(arena, [])
    assert arena.stats().pending == 0


def test_a_request_looks_at_a_bounded_number_of_retired_chunks(monkeypatch):
    arena, (a, b, _) = world(False)
    blocks = [arena.allocate(MIB, a.id) for _ in range(600)]
    b.launch()
    for block in blocks:
        arena.record_use(block, b.id)
    del block
    blocks.clear()
    looked = []
    private = type("Private", (), {"__contains__": lambda _, stream: looked.append(stream)})()
    arena.stats()
    arena._orders.claim(MIB, a.id, private)
    assert 0 < len(looked) <= 256


def test_the_error_of_a_watermark_keeps_no_block():
    arena = Arena(SimulatedSegments(64 * MIB))

    def stop(live):
        raise RuntimeError("too much")

    arena.on_watermark(10 * MIB, stop)
    with pytest.raises(RuntimeError, match="too much") as kept:
        arena.allocate(20 * MIB)
    assert kept.value.__traceback__ is not None and arena.allocated == 0

"""Random sequences of everything an arena can be asked, checked against a model after each step."""

from __future__ import annotations

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
from gtensor.memory.arena.chunks import Segment
from gtensor.memory.arena.free_lists import BlockPool

from ..invariants import check

MIB = 1 << 20
SIZES = st.one_of(
    st.integers(0, 4096), st.integers(0, 10 * MIB),
    st.sampled_from([64, 512, 100 * 1024, MIB, 3 * MIB, 4 * MIB, 8 * MIB]))


pytestmark = pytest.mark.usefixtures("cheap_collections")


class ArenaMachine(RuleBasedStateMachine):
    """An arena on a simulated device, and a list of the blocks that should be alive."""

    @initialize(granularity=st.sampled_from([64, 512]), page=st.sampled_from([4096, 2 * MIB]),
                min_remainder=st.sampled_from([0, 512, 4096, 65536]),
                capacity=st.sampled_from([16 * MIB, 64 * MIB]))
    def start(self, granularity, page, min_remainder, capacity):
        self.source = SimulatedSegments(capacity, granularity, page)
        self.arena = Arena(self.source, min_remainder=min_remainder)
        self.blocks = []
        self.peak = self.served = 0

    @rule(nbytes=SIZES, stream=st.integers(0, 1), label=st.sampled_from(["", "relu", "matmul"]))
    def allocate(self, nbytes, stream, label):
        try:
            block = self.arena.allocate(nbytes, stream, label)
        except OutOfMemoryError:
            # Cached segments went back, and still there was no room for one more.
            limit = self.source.capacity
            if self.arena.limit is not None:
                limit = min(limit, self.arena.limit)
            segment = -(-max(nbytes, 1) // self.source.page) * self.source.page
            assert self.source.used + segment > limit or self.source._refused
            return
        self.blocks.append(block)
        self.served += 1
        self.peak = max(self.peak, sum(block.size for block in self.blocks))

    @rule(nbytes=SIZES, count=st.integers(2, 6))
    def allocate_several(self, nbytes, count):
        for _ in range(count):
            self.allocate(nbytes, 0, "add")

    @rule(data=st.data())
    def free(self, data):
        if self.blocks:
            del self.blocks[data.draw(st.integers(0, len(self.blocks) - 1))]

    @rule(step=st.integers(1, 3))
    def free_many(self, step):
        del self.blocks[::step]

    @rule(count=st.integers(1, 3), nbytes=st.none() | SIZES, stream=st.integers(0, 1))
    def exchange(self, count, nbytes, stream):
        """A request right behind frees; without `nbytes` as many as the first of them had."""
        if self.blocks:
            freed = self.blocks[0].nbytes
            del self.blocks[:count]
            self.allocate(freed if nbytes is None else nbytes, stream, "exchange")

    @rule(sizes=st.tuples(SIZES, SIZES), turns=st.integers(3, 7), stream=st.integers(0, 1))
    def take_turns(self, sizes, turns, stream):
        """Two sizes in turn, each freed before the next; the last one stays."""
        for turn in range(turns):
            before = len(self.blocks)
            self.allocate(sizes[turn % 2], stream, "turn")
            if turn < turns - 1:
                del self.blocks[before:]

    @rule()
    def empty_cache(self):
        self.arena.empty_cache()

    @rule(limit=st.one_of(st.none(), st.integers(0, 64 * MIB)))
    def set_limit(self, limit):
        self.arena.set_limit(limit)

    @rule(calls=st.lists(st.integers(1, 4), max_size=3))
    def refuse(self, calls):
        self.source.fail_at(*calls)

    @rule()
    def reset_peak(self):
        self.arena.reset_peak()
        self.peak = sum(block.size for block in self.blocks)

    @invariant()
    def whole(self):
        if not hasattr(self, "arena"):
            return
        check(self.arena, self.blocks)
        stats = self.arena.stats()
        assert stats.reserved == self.source.used
        assert stats.peak_allocated == self.peak
        assert stats.hits + stats.misses == self.served

    def teardown(self):
        if hasattr(self, "arena"):
            self.blocks.clear()
            check(self.arena, [])
            self.arena.empty_cache()
            assert self.source.used == 0


ArenaMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None,
    suppress_health_check=list(HealthCheck))
TestArena = ArenaMachine.TestCase


def must_be_caught():
    """Run the machine, which has to find the fault that is planted now."""
    with pytest.raises(AssertionError):
        run_state_machine_as_test(ArenaMachine, settings=settings(
            max_examples=100, stateful_step_count=30, deadline=None, database=None,
            phases=[Phase.generate], derandomize=True, report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck)))


def test_planted_fault_a_block_handed_out_twice_is_caught(monkeypatch):
    real = BlockPool.take

    def take(pool, size, breaking=False):
        chunk = real(pool, size, breaking)
        if chunk is None:
            return None
        handed_out = Segment(pool, chunk.ptr, chunk.size).right  # in no ring, so harmless to free
        pool.give(chunk)  # still free for the next request
        return handed_out

    monkeypatch.setattr(BlockPool, "take", take)
    must_be_caught()


@pytest.mark.parametrize("side", ["left", "right"])
def test_planted_fault_a_missed_join_is_caught(monkeypatch, side):
    real = BlockPool.give

    def give(pool, chunk):
        neighbour = getattr(chunk, side)
        place, neighbour.bin = neighbour.bin, -1
        real(pool, chunk)
        neighbour.bin = place

    monkeypatch.setattr(BlockPool, "give", give)
    must_be_caught()


def test_planted_fault_a_lost_byte_count_is_caught(monkeypatch):
    real = Arena._hold

    def hold(arena, *args):
        risen = real(arena, *args)
        arena._allocated -= 64
        return risen

    monkeypatch.setattr(Arena, "_hold", hold)
    must_be_caught()


def test_planted_fault_a_spare_that_is_kept_and_given_is_caught(monkeypatch):
    monkeypatch.setattr(Arena, "_give_spare", lambda arena: arena._spare.pool.give(arena._spare))
    must_be_caught()


def test_planted_fault_a_spare_that_stays_counted_is_caught(monkeypatch):
    real = Arena._in_turn

    def in_turn(arena, pool, size):
        allocated, chunk = arena._allocated, real(arena, pool, size)
        arena._allocated = allocated
        return chunk

    monkeypatch.setattr(Arena, "_in_turn", in_turn)
    must_be_caught()


def test_planted_fault_a_block_shorter_than_it_says_is_caught(monkeypatch):
    real = BlockPool.take
    monkeypatch.setattr(BlockPool, "take", lambda pool, size, breaking=False: real(
        pool, max(size - 512, 512), breaking))
    must_be_caught()

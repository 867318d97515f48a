"""One suite for every resource over every source: what any of them owes its users.

`RESOURCES` are made anew for each test. A planned step that repeats what was recorded is another
matter: there each test is run twice, once to record what it asks for (`REPEATABLE`).
"""

from __future__ import annotations

import gc
import threading
from itertools import pairwise

import pytest
from cupy_policy import CupyPool
from simulated import SimulatedSegments

from gtensor.memory import Arena, OutOfMemoryError, Planned, Recording
from gtensor.memory.contract.adaptors import Adaptor

from .resources import GIB, RESOURCES, SOURCES, close_timelines

MIB = 1 << 20


@pytest.fixture(params=list(RESOURCES))
def resource(request):
    made = RESOURCES[request.param]()
    yield made
    close_timelines(made)


def test_a_block_says_what_it_is(resource):
    block = resource.allocate(1000, 7, "relu")
    assert (block.nbytes, block.stream, block.label) == (1000, 7, "relu")
    assert block.size >= 1000 and block.ptr % 64 == 0 and block.size % 64 == 0
    assert "1000 bytes" in repr(block) and "relu" in repr(block)
    assert resource.allocate(10).serial != block.serial


def test_blocks_do_not_overlap(resource):
    blocks = [resource.allocate(n, stream) for n in (1, 100, 5 * MIB, 4096, 64, 3 * MIB)
              for stream in (0, 1)]
    blocks.sort(key=lambda block: block.ptr)
    for low, high in pairwise(blocks):
        assert low.ptr + low.size <= high.ptr


def test_a_block_of_no_bytes_is_a_block(resource):
    first, second = resource.allocate(0), resource.allocate(0)
    assert first.nbytes == 0 and first.ptr != second.ptr


def test_negative_sizes_are_refused(resource):
    with pytest.raises(ValueError, match="-1 bytes was asked for; wanted 0 or more"):
        resource.allocate(-1)


def test_dropping_the_last_reference_is_the_free(resource):
    gc.disable()
    try:
        block = resource.allocate(MIB)
        alias = block
        del block
        assert resource.allocated == resource.stats().allocated == MIB
        del alias
        assert resource.allocated == resource.stats().allocated == 0
    finally:
        gc.enable()


def test_a_freed_block_is_reused_without_a_new_segment(resource):
    block = resource.allocate(7 * MIB)
    at = block.ptr
    del block
    before = resource.stats()
    block = resource.allocate(7 * MIB)
    after = resource.stats()
    assert block.ptr == at
    assert (after.hits, after.misses, after.segments) == (
        before.hits + 1, before.misses, before.segments)


def test_a_block_serves_only_its_own_stream_again(resource):
    block = resource.allocate(3 * MIB, 1)
    at = block.ptr
    del block
    other = resource.allocate(3 * MIB, 2)
    assert other.ptr != at
    assert resource.allocate(3 * MIB, 1).ptr == at


def test_peaks_are_exact_under_interleaved_frees(resource):
    blocks = [resource.allocate(MIB) for _ in range(4)]
    del blocks[1:3]
    blocks += [resource.allocate(MIB)]
    assert resource.stats().peak_allocated == 4 * MIB
    assert resource.stats().allocated == 3 * MIB
    resource.reset_peak()
    assert resource.stats().peak_allocated == 3 * MIB
    blocks += [resource.allocate(2 * MIB)]
    blocks.clear()
    assert resource.stats().peak_allocated == 5 * MIB
    resource.reset_peak()
    assert resource.stats().peak_allocated == 0
    assert resource.stats().peak_reserved == resource.stats().reserved > 0


def test_empty_cache_returns_segments_without_live_blocks(resource):
    idle = resource.stats()
    held, loose = resource.allocate(20 * MIB), resource.allocate(30 * MIB)
    assert resource.empty_cache() == 0
    del loose
    assert resource.empty_cache() == 30 * MIB
    assert resource.stats().reserved == idle.reserved + 20 * MIB
    del held
    assert resource.empty_cache() == 20 * MIB
    stats = resource.stats()
    assert (stats.reserved, stats.segments, stats.fragmentation) == (
        idle.reserved, idle.segments, 0)
    assert resource.allocate(MIB).nbytes == MIB


def test_a_limit_holds_and_can_be_lifted(resource):
    idle = resource.stats().reserved
    resource.set_limit(idle + 10 * MIB)
    held = resource.allocate(6 * MIB, label="conv2d")
    with pytest.raises(OutOfMemoryError, match=f"the limit is {(idle >> 20) + 10} MiB") as caught:
        resource.allocate(5 * MIB, label="matmul")
    assert "conv2d" in str(caught.value) and caught.value.requested == 5 * MIB
    assert isinstance(caught.value, MemoryError)
    assert resource.stats().reserved <= idle + 10 * MIB
    small = resource.allocate(4 * MIB)
    resource.set_limit(None)
    large = resource.allocate(50 * MIB)
    assert resource.allocated == held.size + small.size + large.size
    with pytest.raises(ValueError, match="a limit of -1 bytes"):
        resource.set_limit(-1)


def test_a_new_limit_returns_cached_memory(resource):
    idle = resource.stats().reserved
    held = resource.allocate(6 * MIB)
    del held
    resource.set_limit(idle + 2 * MIB)
    assert resource.stats().reserved == idle
    assert resource.allocate(MIB).size == MIB
    resource.set_limit(0)
    with pytest.raises(OutOfMemoryError):
        resource.allocate(1)


def test_another_thread_may_free(resource):
    blocks = [resource.allocate(MIB) for _ in range(8)]
    thread = threading.Thread(target=blocks.clear)
    thread.start()
    thread.join()
    assert resource.allocated == 0


def test_use_on_the_blocks_own_stream_needs_no_stream_to_be_known(resource):
    block = resource.allocate(MIB, 3)
    resource.record_use(block, 3)
    with pytest.raises(ValueError, match="does not know this stream"):
        resource.record_use(block, 4)
    del block
    assert (resource.allocated, resource.stats().pending) == (0, 0)


def test_a_failed_request_leaves_nothing_behind(resource):
    held = resource.allocate(MIB)
    before = resource.stats()
    resource.set_limit(before.reserved)
    with pytest.raises(OutOfMemoryError):
        resource.allocate(GIB, 1, "too much")
    after = resource.stats()
    assert (resource.allocated, after.allocated, after.active, after.pending) == (
        held.size, before.allocated, before.active, 0)
    resource.set_limit(None)
    assert resource.allocate(GIB, 1).nbytes == GIB


# -- planned steps that repeat what was recorded ---------------------------------------------------

# What a test says of segments and limits does not hold inside a reservation.
REPEATABLE = [
    test_a_block_says_what_it_is,
    test_blocks_do_not_overlap,
    test_a_block_of_no_bytes_is_a_block,
    test_negative_sizes_are_refused,
    test_dropping_the_last_reference_is_the_free,
    test_a_freed_block_is_reused_without_a_new_segment,
    test_a_block_serves_only_its_own_stream_again,
    test_another_thread_may_free,
    test_use_on_the_blocks_own_stream_needs_no_stream_to_be_known,
]


def run_as_recorded(test, source: str) -> Planned:
    """Record what a test asks for, then run it by the plan of that; the resource of the plan."""
    arena = Arena(SOURCES[source]())
    recording = Recording(arena)
    keep = recording.allocate(MIB), recording.allocate(MIB, 1)  # so that no test asks for nothing
    del keep
    test(recording)
    recording.close()
    resource = Planned(arena, recording.plan())
    resource.begin()
    keep = resource.allocate(MIB), resource.allocate(MIB, 1)
    del keep
    test(resource)
    resource.end()
    return resource


@pytest.mark.parametrize("source", ["host", "small pages"])
@pytest.mark.parametrize("test", REPEATABLE, ids=lambda test: test.__name__)
def test_a_planned_step_keeps_the_contract(test, source):
    counts = run_as_recorded(test, source).counts
    assert counts.served >= 2 and counts.deviating <= 1 and counts.carried == counts.kept == 0


# -- the policy to compare with --------------------------------------------------------------------

UNLIKE_CUPY = [  # which looks at a limit only when it wants more, and has no streams
    test_a_new_limit_returns_cached_memory,
    test_use_on_the_blocks_own_stream_needs_no_stream_to_be_known,
]
OF_SEGMENTS = [
    test_peaks_are_exact_under_interleaved_frees,
    test_empty_cache_returns_segments_without_live_blocks,
    test_a_limit_holds_and_can_be_lifted,
    test_a_failed_request_leaves_nothing_behind,
]


@pytest.mark.parametrize("source", ["host", "simulated", "called"])
@pytest.mark.parametrize("test", [test for test in REPEATABLE + OF_SEGMENTS
                                  if test not in UNLIKE_CUPY], ids=lambda test: test.__name__)
def test_the_policy_of_cupys_pool_keeps_the_contract(test, source):
    test(CupyPool(SOURCES[source]()))


@pytest.mark.parametrize("test", UNLIKE_CUPY, ids=lambda test: test.__name__)
def test_but_for_what_cupys_pool_does_not_do(test):
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        test(CupyPool(SOURCES["simulated"]()))


# -- planted faults --------------------------------------------------------------------------------

class Faulty(Adaptor):
    """An adaptor that may be wrong in one way."""

    def __init__(self) -> None:
        super().__init__(Arena(SimulatedSegments(4 * GIB)))


class KeepsBytes(Faulty):
    def allocate(self, nbytes, stream=0, label=""):
        block = super().allocate(nbytes, stream, label)
        del block.__del__
        return block


class GivesTwice(Faulty):
    def allocate(self, nbytes, stream=0, label=""):
        block = super().allocate(nbytes, stream, label)
        block.ptr = self.__dict__.setdefault("first", block.ptr)
        return block


class MixesStreams(Faulty):
    def allocate(self, nbytes, stream=0, label=""):
        block = super().allocate(nbytes, 0, label)
        block.stream = stream
        return block


class HasNoLimit(Faulty):
    def set_limit(self, nbytes):
        super().set_limit(None)


class LosesARefusal(Faulty):
    def allocate(self, nbytes, stream=0, label=""):
        try:
            return super().allocate(nbytes, stream, label)
        except OutOfMemoryError:
            self.lost = self.upstream.allocate(64)
            raise


@pytest.mark.parametrize("fault, test", [
    (KeepsBytes, test_dropping_the_last_reference_is_the_free),
    (KeepsBytes, test_another_thread_may_free),
    (GivesTwice, test_blocks_do_not_overlap),
    (MixesStreams, test_a_block_serves_only_its_own_stream_again),
    (HasNoLimit, test_a_limit_holds_and_can_be_lifted),
    (HasNoLimit, test_a_new_limit_returns_cached_memory),
    (LosesARefusal, test_a_failed_request_leaves_nothing_behind),
])
def test_planted_faults_in_a_resource_are_caught(fault, test):
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        test(fault())
    test(Faulty())


def test_planted_fault_a_place_that_is_never_vacant_again_is_caught(monkeypatch):
    monkeypatch.setattr(Planned, "_drain", lambda planned: planned._freed.clear())
    with pytest.raises(AssertionError):
        test_a_planned_step_keeps_the_contract(
            test_a_freed_block_is_reused_without_a_new_segment, "host")


def test_planted_fault_a_plan_that_is_never_followed_is_caught(monkeypatch):
    monkeypatch.setattr(Planned, "begin", lambda planned: None)
    with pytest.raises(AssertionError):
        test_a_planned_step_keeps_the_contract(test_blocks_do_not_overlap, "host")

"""One suite for every resource: what any of them owes its users."""

from __future__ import annotations

import gc
import threading
from itertools import pairwise

import pytest

from gtensor.memory import (
    Arena,
    CudaSegments,
    Failing,
    HostSegments,
    OutOfMemoryError,
    SimulatedPages,
    SimulatedSegments,
    Timeline,
    VirtualSegments,
)

MIB = 1 << 20
GIB = 1 << 30


def cuda_segments() -> CudaSegments:
    """The CUDA source over stand-ins for cudaMalloc and cudaFree."""
    device = SimulatedSegments(4 * GIB)
    sizes = {}

    def malloc(nbytes):
        ptr = device.acquire(nbytes)
        sizes[ptr] = nbytes
        return ptr

    def free(ptr):
        device.release(ptr, sizes.pop(ptr))

    return CudaSegments(malloc, free)


RESOURCES = {
    "simulated": lambda: Arena(SimulatedSegments(4 * GIB)),
    "host": lambda: Arena(HostSegments()),
    "cuda": lambda: Arena(cuda_segments()),
    "virtual": lambda: Arena(VirtualSegments(SimulatedPages(4 * GIB, 1 << 16))),
    "small apart": lambda: Arena(SimulatedSegments(4 * GIB), small=100 * 1024),
    "always split": lambda: Arena(SimulatedSegments(4 * GIB), min_remainder=0),
    "timeline of virtual": lambda: Timeline(
        Arena(VirtualSegments(SimulatedPages(4 * GIB, 1 << 16)))),
    "timeline": lambda: Timeline(Arena(HostSegments())),
    "failing": lambda: Failing(Arena(SimulatedSegments(4 * GIB)), 10**9),
    "timeline of failing": lambda: Timeline(Failing(Arena(HostSegments()), 10**9)),
}


@pytest.fixture(params=list(RESOURCES))
def resource(request):
    made = RESOURCES[request.param]()
    yield made
    if isinstance(made, Timeline):
        made.close()


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
    block = resource.allocate(3 * MIB)
    at = block.ptr
    del block
    before = resource.stats()
    block = resource.allocate(3 * MIB)
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


def test_empty_cache_returns_what_no_block_lives_in(resource):
    held, loose = resource.allocate(20 * MIB), resource.allocate(30 * MIB)
    assert resource.empty_cache() == 0
    del loose
    assert resource.empty_cache() == 30 * MIB
    assert resource.stats().reserved == 20 * MIB
    del held
    assert resource.empty_cache() == 20 * MIB
    stats = resource.stats()
    assert (stats.reserved, stats.segments, stats.fragmentation) == (0, 0, 0)
    assert resource.allocate(MIB).nbytes == MIB


def test_a_limit_holds_and_can_be_lifted(resource):
    resource.set_limit(10 * MIB)
    held = resource.allocate(6 * MIB, label="conv2d")
    with pytest.raises(OutOfMemoryError, match="the limit is 10 MiB") as caught:
        resource.allocate(5 * MIB, label="matmul")
    assert "conv2d" in str(caught.value) and caught.value.requested == 5 * MIB
    assert isinstance(caught.value, MemoryError)
    assert resource.stats().reserved <= 10 * MIB
    small = resource.allocate(4 * MIB)
    resource.set_limit(None)
    large = resource.allocate(50 * MIB)
    assert resource.allocated == held.size + small.size + large.size
    with pytest.raises(ValueError, match="a limit of -1 bytes"):
        resource.set_limit(-1)


def test_a_new_limit_returns_cached_memory(resource):
    held = resource.allocate(6 * MIB)
    del held
    resource.set_limit(MIB)
    assert resource.stats().reserved == 0
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


def test_giving_a_block_back_by_hand_frees_it_once(resource):
    block = resource.allocate(MIB)
    block.owner.deallocate(block)
    other = resource.allocate(MIB)
    del block
    assert resource.allocated == other.size

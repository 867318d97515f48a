"""Sources of segments: pages that come and go, growth in place, and what an arena makes of it."""

from __future__ import annotations

import ctypes
import mmap
import random
from pathlib import Path

import pytest
from simulated import SimulatedPages, SimulatedSegments

from gtensor.memory import Arena, HostSegments, OutOfMemoryError, VirtualSegments
from gtensor.memory.sources import PagedSource

from ..invariants import check

MIB = 1 << 20
PAGE = 2 * MIB


def virtual(capacity: int, **options) -> tuple[SimulatedPages, Arena]:
    pages = SimulatedPages(capacity, **options)
    return pages, Arena(VirtualSegments(pages))


# -- pages -----------------------------------------------------------------------------------------


def test_simulated_pages_refuse_what_a_device_would_fail_on():
    pages = SimulatedPages(8 * MIB)
    start = pages.reserve(16 * MIB)
    pages.map(start, 4 * MIB)
    with pytest.raises(ValueError, match="mapped twice"):
        pages.map(start + PAGE, PAGE)
    with pytest.raises(ValueError, match="is not mapped"):
        pages.unmap(start + PAGE, 4 * MIB)
    with pytest.raises(ValueError, match="still mapped"):
        pages.release(start, 16 * MIB)
    with pytest.raises(ValueError, match="whole pages of 2097152"):
        pages.map(start + 4 * MIB, 100)
    with pytest.raises(ValueError, match="lie in no range"):
        pages.map(start + 16 * MIB, PAGE)
    with pytest.raises(ValueError, match="no range of"):
        pages.release(start, 8 * MIB)
    with pytest.raises(MemoryError, match="4 MiB left of 8 MiB"):
        pages.map(start + 4 * MIB, 6 * MIB)
    pages.touch(start + 5, 4 * MIB - 5)
    with pytest.raises(ValueError, match="is not mapped"):
        pages.touch(start, 4 * MIB + 1)
    pages.unmap(start, 4 * MIB)
    pages.release(start, 16 * MIB)
    assert (pages.used, pages.reserved, pages.mapped, pages.unmapped) == (0, 0, 2, 2)


def test_a_range_is_at_least_as_large_as_what_is_asked():
    pages = SimulatedPages(64 * MIB, span=4 * MIB)
    source = VirtualSegments(pages)
    at = source.acquire(10 * MIB)
    assert pages.reserved == 10 * MIB
    assert not source.grow(at, 10 * MIB, 12 * MIB)
    source.release(at, 10 * MIB)
    assert pages.reserved == 0


# -- the source ------------------------------------------------------------------------------------


def test_only_virtual_memory_is_paged():
    assert isinstance(VirtualSegments(SimulatedPages(PAGE)), PagedSource)
    assert not isinstance(SimulatedSegments(PAGE), PagedSource)


def test_a_segment_grows_in_place_until_its_addresses_end():
    source = VirtualSegments(SimulatedPages(16 * MIB, span=8 * MIB))
    at = source.acquire(PAGE)
    assert source.grow(at, PAGE, 8 * MIB)
    assert not source.grow(at, PAGE, 4 * MIB)  # the addresses behind its lower part are in use
    source.pages.touch(at, 8 * MIB)
    assert not source.grow(at, 8 * MIB, 10 * MIB)
    assert source.pages.used == 8 * MIB


def test_pages_leave_from_the_middle_and_the_lower_end_grows_back():
    source = VirtualSegments(SimulatedPages(16 * MIB))
    at = source.acquire(12 * MIB)
    source.release(at + 4 * MIB, 4 * MIB)
    assert source.pages.used == 8 * MIB
    assert not source.grow(at, 4 * MIB, 10 * MIB)  # the upper end is there
    assert source.grow(at, 4 * MIB, 6 * MIB)
    source.release(at, 6 * MIB)
    source.release(at + 8 * MIB, 4 * MIB)
    assert (source.pages.used, source.pages.reserved) == (0, 0)
    with pytest.raises(ValueError, match="lie in no segment"):
        source.release(at, PAGE)


def test_a_refused_growth_changes_nothing():
    source = VirtualSegments(SimulatedPages(8 * MIB, span=64 * MIB))
    at = source.acquire(4 * MIB)
    with pytest.raises(MemoryError):
        source.grow(at, 4 * MIB, 10 * MIB)
    with pytest.raises(MemoryError):
        source.acquire(6 * MIB)
    assert (source.pages.used, source.pages.reserved) == (4 * MIB, 64 * MIB)
    assert source.grow(at, 4 * MIB, 8 * MIB)


# -- the arena over it -----------------------------------------------------------------------------


def test_a_growing_tensor_costs_only_what_it_grows_by():
    pages, arena = virtual(64 * MIB)
    held = [arena.allocate(10 * MIB)]
    for size in (12, 16, 24, 40):
        held.clear()
        held.append(arena.allocate(size * MIB))
        assert arena.stats().reserved == pages.used == size * MIB
    assert arena.stats().segments == 1


def test_free_pages_of_a_segment_in_use_serve_another_stream():
    pages, arena = virtual(16 * MIB)
    blocks = [arena.allocate(4 * MIB) for _ in range(4)]
    kept = blocks[0::2]
    blocks.clear()
    assert pages.used == 16 * MIB
    large = arena.allocate(8 * MIB, 1)  # the two free pieces, of 4 MiB each, far apart
    pages.touch(large.ptr, large.size)
    assert arena.stats().reserved == pages.used == 16 * MIB
    check(arena, [*kept, large])


def test_emptying_the_cache_gives_whole_free_pages_back():
    pages, arena = virtual(64 * MIB)
    low, gone, high = (arena.allocate(size) for size in (3 * MIB, 9 * MIB, 4 * MIB))
    del gone  # from 3 to 12 MiB: the page from 2 to 4 is partly in use
    assert arena.empty_cache() == pages.mapped * PAGE - 8 * MIB
    assert arena.stats().reserved == pages.used == 8 * MIB
    check(arena, [low, high])
    again = arena.allocate(8 * MIB)
    check(arena, [low, again, high])
    for block in (low, again, high):
        pages.touch(block.ptr, block.size)


def test_free_pieces_of_the_host_go_back_alone():
    arena = Arena(HostSegments())
    blocks = [arena.allocate(4 * MIB + 4096) for _ in range(16)]
    for number, block in enumerate(blocks):
        ctypes.memset(block.ptr, number + 1, block.size)
    kept, before = blocks[::2], resident()
    del blocks, block
    live, reserved = sum(block.size for block in kept), arena.stats().reserved
    assert reserved > 1.9 * live  # the cache
    released = arena.empty_cache()
    assert arena.stats().reserved == reserved - released <= 1.3 * live
    assert before - resident() > live // 2
    check(arena, kept)
    for number, block in enumerate(kept):
        assert ctypes.string_at(block.ptr, block.size) == bytes([2 * number + 1]) * block.size
    again = [arena.allocate(4 * MIB) for _ in range(4)]
    for block in again:
        ctypes.memset(block.ptr, 255, block.size)
    check(arena, [*kept, *again])
    assert all(ctypes.string_at(block.ptr, 1) != b"\xff" for block in kept)
    kept.clear(), again.clear()
    del block
    arena.empty_cache()
    assert arena.stats().reserved == 0 and not arena.source._ranges


def resident() -> int:
    """Bytes of this process that lie in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


def test_the_host_takes_no_memory_back_twice():
    source = HostSegments()
    ptr = source.acquire(8 * MIB)
    source.release(ptr + 2 * MIB, 4 * MIB)
    for start, nbytes in ((2, 4), (0, 4), (4, 4), (6, 4), (-1, 1)):
        with pytest.raises(ValueError):
            source.release(ptr + start * MIB, nbytes * MIB)
    source.release(ptr + 6 * MIB, 2 * MIB)
    source.release(ptr, 2 * MIB)
    assert not source._ranges


def test_a_limit_counts_pages():
    _, arena = virtual(64 * MIB)
    arena.set_limit(12 * MIB)
    first, second, third = (arena.allocate(4 * MIB) for _ in range(3))
    with pytest.raises(OutOfMemoryError, match="the limit is 12 MiB"):
        arena.allocate(PAGE)
    del first, third
    assert arena.allocate(8 * MIB).size == 8 * MIB
    assert arena.stats().reserved <= 12 * MIB and second.size == 4 * MIB


def test_a_page_that_is_not_given_back_leaves_a_whole_arena():
    pages, arena = virtual(16 * MIB)
    low, gone, high = (arena.allocate(4 * MIB) for _ in range(3))
    del gone
    unmap, pages.unmap = pages.unmap, None
    with pytest.raises(TypeError):
        arena.empty_cache()
    pages.unmap = unmap
    check(arena, [low, high])
    assert arena.stats().reserved == pages.used
    spare = pages.used - low.size - high.size
    assert arena.empty_cache() == spare > 0
    check(arena, [low, high])


class Stubborn(SimulatedPages):
    """Its driver refuses to take a page away, or addresses, while `refused` says so."""

    refused = ""

    def unmap(self, address, nbytes):
        stuck = []
        for page in range(address, address + nbytes, self.page):
            if self.refused == "unmap" and page == (1 << 40) + 2 * self.page:
                stuck.append(page)
            else:
                super().unmap(page, self.page)
        if len(stuck) * self.page == nbytes:
            raise RuntimeError("cuMemUnmap answered CUDA_ERROR_UNKNOWN")
        return stuck

    def release(self, address, nbytes):
        if self.refused == "release":
            raise RuntimeError("cuMemAddressFree answered CUDA_ERROR_UNKNOWN")
        super().release(address, nbytes)


@pytest.mark.parametrize("refused", ["unmap", "release"])
def test_memory_that_the_driver_does_not_take_back_is_never_reused(refused):
    pages = Stubborn(64 * MIB)
    arena = Arena(VirtualSegments(pages))
    arena.allocate(20 * MIB)
    pages.refused = refused
    assert arena.empty_cache() == 20 * MIB
    assert pages.used == (pages.page if refused == "unmap" else 0)
    block = arena.allocate(20 * MIB)
    pages.touch(block.ptr, block.size)
    check(arena, [block])
    pages.refused = ""
    del block
    arena.empty_cache()
    assert (pages.used, pages.reserved) == (0, 0), "it was not tried again"


def test_what_happens_while_a_segment_grows_is_settled_after_it():
    pages, arena = virtual(64 * MIB)
    blocks = [arena.allocate(size * MIB) for size in (8, 6, 2)]
    seen = []
    map_pages = pages.map

    def disturbed(address, nbytes):
        pages.map = map_pages
        del blocks[1]  # the lock's holder is this thread: the free has to wait
        seen.append((len(arena._pending), address - blocks[0].ptr))
        blocks.append(arena.allocate(3 * MIB, 0, "in the middle"))
        map_pages(address, nbytes)

    pages.map = disturbed
    large = arena.allocate(20 * MIB)
    assert seen == [(1, 16 * MIB)]
    live = [*blocks, large]
    check(arena, live)
    for block in live:
        pages.touch(block.ptr, block.size)
    assert arena.stats().reserved == pages.used


def test_during_a_capture_nothing_is_given_back():
    pages, arena = virtual(64 * MIB)
    low, gone, high = (arena.allocate(8 * MIB) for _ in range(3))
    del gone
    with arena.capturing():
        assert arena.empty_cache() == 0
        assert arena.stats().segments == 1
    assert arena.empty_cache() == 8 * MIB
    check(arena, [low, high])
    assert pages.used == 16 * MIB


def churn(pages: SimulatedPages, arena: Arena, rng: random.Random, steps: int = 150) -> None:
    """A random run; after each step every live byte is touched and all records are compared."""
    live = []
    for _ in range(steps):
        choice = rng.random()
        if choice < 0.55:
            try:
                live.append(arena.allocate(int(2 ** rng.uniform(0, 24)), rng.randrange(2)))
            except OutOfMemoryError:
                assert arena.stats().reserved <= pages.capacity
        elif choice < 0.95 and live:
            live.pop(rng.randrange(len(live)))
        else:
            arena.empty_cache()
        assert arena.stats().reserved == pages.used
        for block in live:
            pages.touch(block.ptr, block.size)
        check(arena, live)
        block = None
    live.clear()
    arena.empty_cache()
    assert (pages.used, pages.reserved, arena.stats().segments) == (0, 0, 0)


@pytest.mark.thorough
@pytest.mark.parametrize("span", [None, 4 * MIB, 16 * MIB])
@pytest.mark.parametrize("small", [0, 100 * 1024])
def test_random_runs_touch_only_mapped_pages(span, small):
    for seed in range(4):
        pages = SimulatedPages(64 * MIB, 1 << 16, span)
        churn(pages, Arena(VirtualSegments(pages), small=small), random.Random(seed))


# -- planted faults --------------------------------------------------------------------------------


class MapsTwice(VirtualSegments):
    """Maps the last page of a segment again when it grows."""

    def grow(self, ptr, old, new):
        self.pages.map(ptr + old - self.page, self.page)
        return super().grow(ptr, old, new)


class ForgetsToUnmap(VirtualSegments):
    """Notes that pages are gone, but keeps them."""

    def release(self, ptr, nbytes):
        unmap, self.pages.unmap = self.pages.unmap, lambda address, nbytes: None
        try:
            super().release(ptr, nbytes)
        finally:
            self.pages.unmap = unmap


class UnmapsTooMuch(VirtualSegments):
    """Takes one page more than is given back."""

    def release(self, ptr, nbytes):
        super().release(ptr, nbytes)
        if self.pages.used:
            self.pages.unmap(ptr + nbytes, self.page)


@pytest.mark.parametrize("fault", [MapsTwice, ForgetsToUnmap, UnmapsTooMuch])
def test_a_source_that_cheats_is_found(fault):
    with pytest.raises((ValueError, AssertionError)):
        for seed in range(4):
            pages = SimulatedPages(64 * MIB, 1 << 16)
            churn(pages, Arena(fault(pages)), random.Random(seed))


# -- on a device -----------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.whole_device
def test_pages_of_a_device_hold_what_is_written_to_them():
    import cupy

    from gtensor.backend.cuda_pages import CudaPages

    pages = CudaPages(0, cupy.cuda.Device(0))
    source = VirtualSegments(pages)
    at = source.acquire(2 * pages.page)
    assert source.grow(at, 2 * pages.page, 4 * pages.page)

    def array(number: int, start: int = at) -> cupy.ndarray:
        memory = cupy.cuda.UnownedMemory(start + number * pages.page, pages.page, source, 0)
        return cupy.ndarray((pages.page // 4,), "float32", cupy.cuda.MemoryPointer(memory, 0))

    for number in range(4):
        array(number)[...] = number
    joined = source.join([(at + 3 * pages.page, pages.page), (at, pages.page)])
    assert [float(array(number, joined)[5]) for number in range(2)] == [3, 0]
    array(0, joined)[...] = 8  # a kernel writes through one address, the next reads the other
    assert float(array(3).sum()) == 8 * pages.page / 4
    array(3)[...] = 3
    source.part({joined})
    assert float(array(0, joined).sum()) == 3 * pages.page / 4
    source.part(())
    assert not source._joined
    source.release(at + pages.page, pages.page)
    assert source.grow(at, pages.page, 2 * pages.page)
    array(1)[...] = 7
    assert [float(array(number).sum()) for number in range(4)] == [
        value * pages.page / 4 for value in (0, 7, 2, 3)]
    for part in (at, at + 2 * pages.page):
        source.release(part, 2 * pages.page)
    with pytest.raises(MemoryError):
        source.acquire(pages.span)


@pytest.mark.gpu
@pytest.mark.whole_device
def test_training_on_joined_memory_of_a_device_computes_the_same():
    import numpy as np

    import gtensor as gt

    def losses() -> list[float]:
        gt.manual_seed(0)
        model = gt.nn.Sequential(  # few launches, and activations of some pages each
            gt.nn.Linear(64, 2048), gt.nn.Tanh(), gt.nn.Linear(2048, 64),
            gt.nn.Linear(64, 2048), gt.nn.Tanh(), gt.nn.Linear(2048, 10)).to("cuda")
        optimizer = gt.optim.AdamW(model.parameters())
        rng = np.random.default_rng(0)
        found = []
        for batch in (512, 300, 700, 512, 300):  # sizes that leave holes of each other's
            x = gt.tensor(rng.random((batch, 64), np.float32), device="cuda")
            y = gt.tensor(rng.integers(0, 10, batch), device="cuda")
            loss = gt.nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        return found

    expected = losses()
    gt.memory.configure("virtual", "cuda")
    try:
        assert losses() == expected
        assert gt.memory.arena_of("cuda").source._joined, "nothing was joined: no proof"
    finally:
        gt.memory.configure("cudamalloc", "cuda")

"""Switching allocators and sources: what lives stays, what is not there is refused in words."""

from __future__ import annotations

import ctypes
import gc
import importlib.util
import mmap
from types import SimpleNamespace

import numpy as np
import pytest
from simulated import SimulatedSegments

import gtensor as gt
from gtensor import memory
from gtensor.backend import cuda_memory, get_device
from gtensor.backend.cuda_memory import library_malloc
from gtensor.memory import Arena, allocators
from gtensor.memory.contract.report import size_text
from gtensor.settings import settings

from .simulated_cuda import SimulatedCuda, connect

MIB = 1 << 20


@pytest.fixture
def cpu():
    gc.collect()
    with settings.override(arena_min_bytes=0):
        yield get_device("cpu")
    memory.configure("host", "cpu")
    memory.set_limit(None, "cpu")


@pytest.fixture
def device(monkeypatch):
    monkeypatch.setattr(allocators, "CudaDevice", SimulatedCuda)
    monkeypatch.setattr(allocators, "_replaced", {})
    return connect(SimulatedCuda(), monkeypatch)


def test_a_new_source_means_a_new_arena_and_live_blocks_stay(cpu):
    memory.set_limit("3GiB", "cpu")
    before = memory.arena_of("cpu")
    array = cpu.empty((MIB,), np.float32)
    array[...] = 7
    memory.configure("host", "cpu")
    after = memory.arena_of("cpu")
    assert after is not before and cpu.resource is after
    assert after.limit == 3 << 30
    held = before.allocated
    assert held >= 4 * MIB and memory.stats("cpu").allocated == 0
    other = cpu.empty((MIB,), np.float32)
    other[...] = 8
    assert (array == 7).all() and memory.stats("cpu").allocated == 4 * MIB
    del array
    assert before.allocated == held - 4 * MIB


def test_the_arena_can_be_switched_on_for_a_block(cpu):
    with memory.use_arena(False):
        with memory.use("arena", "cpu"):
            assert cpu.resource is memory.arena_of("cpu")
        assert cpu.resource is None
    assert cpu.resource is memory.arena_of("cpu")


def test_cached_memory_of_the_arena_before_goes_back(cpu):
    before = memory.arena_of("cpu")
    cpu.empty((16 * MIB,), np.float32)
    memory.empty_cache("cpu")
    reserved = before.stats().reserved
    cpu.empty((16 * MIB,), np.float32)
    assert before.stats().reserved > reserved
    memory.configure("host", "cpu")
    assert before.stats().reserved == reserved


@pytest.mark.parametrize("look", [memory.stats, memory.summary, memory.empty_cache])
def test_memory_of_the_arena_before_is_shown_and_goes_back_when_it_is_free(cpu, look):
    before, others = memory.arena_of("cpu"), memory.stats("cpu").replaced
    arrays = [cpu.empty((64 * MIB,), np.uint8) for _ in range(2)]
    memory.configure("host", "cpu")
    held = memory.stats("cpu").replaced
    assert held - others == before.stats().reserved >= 128 * MIB
    assert memory.stats("cpu").reserved == 0
    assert f"{size_text(held)} beside it in arenas of other sources" in memory.summary("cpu")
    del arrays[0]
    look("cpu")
    assert before.stats().reserved == memory.stats("cpu").replaced - others
    assert memory.stats("cpu").replaced <= held - 64 * MIB
    del arrays
    look("cpu")
    left = before.stats().reserved
    assert left <= held - others - 128 * MIB and memory.stats("cpu").replaced == left + others


def test_an_arena_that_was_replaced_leaves_its_device_when_it_is_empty(device):
    x = device.full(1.0)
    old = device.arena
    new = Arena(SimulatedSegments(1 << 30), "simulated")
    device.on_stream_end = [new.forget_stream, old.forget_stream]
    allocators._replaced[device] = [old]
    allocators._arenas[device] = device.resource = new
    assert memory.stats(device).replaced == old.stats().reserved > 0
    assert allocators._replaced[device] == [old]
    graph = gt.Graph(device)
    with graph.capture():
        del x
        assert memory.stats(device).replaced > 0, "bytes went back in the middle of a capture"
    assert memory.stats(device).replaced == 0 == old.stats().reserved
    assert allocators._replaced[device] == []
    assert device.on_stream_end == [new.forget_stream]


@pytest.mark.parametrize("switch", [
    lambda: memory.use("arena", "cpu"), lambda: memory.use_arena(True)])
def test_a_source_that_is_given_within_a_switch_stays(cpu, switch):
    with switch():
        memory.configure("host", "cpu")
    assert cpu.resource is memory.arena_of("cpu")
    with switch(), memory.timeline(device=cpu):
        pass
    assert cpu.resource is memory.arena_of("cpu")


def test_a_source_is_given_below_a_recording_that_is_switched_off(cpu):
    with memory.timeline(device=cpu) as timeline:
        with memory.use_arena(False), memory.use_arena(True):
            memory.configure("host", "cpu")
        assert cpu.resource is timeline and timeline.upstream is memory.arena_of("cpu")
    assert cpu.resource is memory.arena_of("cpu")


@pytest.mark.parametrize("source", ["cudamalloc", "virtual", "async", "shared"])
def test_a_source_that_the_cpu_has_not_is_refused(source, cpu):
    before = memory.arena_of("cpu")
    with pytest.raises(ValueError, match=f"source '{source}' was given for cpu; wanted one of "
                                         "'host', 'pinned'"):
        memory.configure(source, "cpu")
    assert memory.arena_of("cpu") is before


def test_no_source_changes_while_another_allocator_is_in_use(cpu):
    before = memory.arena_of("cpu")
    for block in (lambda: memory.timeline(device="cpu"), lambda: memory.use_arena(False)):
        with block(), pytest.raises(RuntimeError, match="switched off, or recorded, planned"):
            memory.configure("host", "cpu")
        assert memory.arena_of("cpu") is cpu.resource is before


def test_pinned_memory_needs_a_device(cpu, monkeypatch):
    monkeypatch.setattr(allocators, "cuda_device_count", lambda: 0)
    with pytest.raises(ValueError, match="this machine has no CUDA device; wanted 'host'"):
        memory.configure("pinned", "cpu")


def test_arrays_lie_in_pinned_memory(cpu, monkeypatch):
    areas = {}

    def malloc(nbytes):
        area = mmap.mmap(-1, nbytes)
        address = ctypes.addressof(ctypes.c_char.from_buffer(area))
        areas[address] = area
        return address

    monkeypatch.setattr(allocators, "cuda_device_count", lambda: 1)
    monkeypatch.setattr(allocators, "pinned_malloc", malloc)
    monkeypatch.setattr(allocators, "pinned_free", lambda address: areas.pop(address).close())
    memory.configure("pinned", "cpu")
    array = gt.ones((1000, 1000), device="cpu").numpy()
    assert any(at <= array.ctypes.data < at + len(area) for at, area in areas.items())
    assert array.sum() == 1e6
    del array
    memory.configure("host", "cpu")
    assert not areas


class FakeCuda:
    """A CUDA device as far as its arena asks for it."""

    resource = None

    def __init__(self) -> None:
        self.streams: dict[int, object] = {}
        self.on_stream_end: list[object] = []


@pytest.mark.parametrize("source", list(allocators._CUDA))
def test_a_setting_says_where_a_new_device_gets_its_segments(source, monkeypatch):
    made = {name: SimulatedSegments(1 << 30) for name in allocators._CUDA}
    monkeypatch.setattr(allocators, "CudaDevice", FakeCuda)
    monkeypatch.setattr(allocators, "_CUDA", {
        name: lambda device, name=name: made[name] for name in made})
    monkeypatch.setattr(allocators, "_arenas", {})
    device = FakeCuda()
    with settings.override(cuda_source=source):
        allocators._watch(device)
    assert device.resource.source is made[source]


@pytest.mark.parametrize("name", ["cupy", "async", "rmm"])
def test_the_cpu_has_only_the_arena(name, cpu):
    with pytest.raises(ValueError, match=f"allocator '{name}' was given for cpu; wanted 'arena', "
                                         "or a CUDA device"):
        memory.use(name, "cpu")
    with pytest.raises(ValueError, match="allocator 'malloc' was given for cpu; wanted 'arena'$"):
        memory.use("malloc", "cpu")


def test_a_library_that_is_not_installed_is_named(monkeypatch):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr("gtensor.backend.cuda_memory.import_module", missing)
    with pytest.raises(ImportError, match="RMM was asked for.*it is not installed"):
        library_malloc("rmm", 0)


class FakeRuntime:
    """The calls of CUDA's runtime that its pools need: thresholds by pool."""

    cudaMemPoolAttrReleaseThreshold = 4

    def __init__(self) -> None:
        self.kept = {70: 1000}

    def deviceGetMemPool(self, index):
        return 70 + index

    def memPoolGetAttribute(self, pool, attribute):
        return self.kept[pool]

    def memPoolSetAttribute(self, pool, attribute, value):
        self.kept[pool] = value


def test_cudas_pool_keeps_as_much_as_before_when_the_block_ends(device, monkeypatch):
    runtime = FakeRuntime()
    pool = SimpleNamespace(malloc=lambda nbytes: ("from the pool", nbytes))
    cuda = SimpleNamespace(runtime=runtime, MemoryAsyncPool=lambda: pool)
    monkeypatch.setattr(cuda_memory, "cupy", lambda: SimpleNamespace(cuda=cuda))

    def use_library(name):
        device.library = None if name is None else library_malloc(name, 0)

    device.library, device.use_library = None, use_library
    with memory.use("async", device):
        assert runtime.kept[70] == 2**64 - 1
        assert device.library(5) == ("from the pool", 5)
        with memory.use("async", device):
            assert runtime.kept[70] == 2**64 - 1
        with memory.use("arena", device):
            assert device.resource is device.arena
        assert runtime.kept[70] == 2**64 - 1 and device.resource is None
    assert runtime.kept[70] == 1000 and device.library is None
    assert device.resource is device.arena


# -- on a device -----------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("source", ["virtual", "async", "cudamalloc"])
def test_arrays_are_right_on_every_source_of_a_device(source):
    memory.configure(source, "cuda")
    try:
        before = gt.full((1 << 20,), 2.0, device="cuda")
        for size in (1 << 10, 1 << 20, 1 << 22, 3 << 21):
            x = gt.full((size,), 3.0, device="cuda")
            assert float((x * 2 + 1).sum().numpy()) == 7 * size
        del x
        assert memory.empty_cache("cuda") > 0
        assert float(before.sum().numpy()) == 2 << 20
    finally:
        memory.configure("cudamalloc", "cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["cupy", "async", "rmm"])
def test_every_allocator_computes_the_same(name):
    if name == "rmm" and importlib.util.find_spec("rmm") is None:
        with pytest.raises(ImportError, match="not installed"):
            memory.use(name, "cuda")
        return
    kept = gt.full((1 << 20,), 2.0, device="cuda")
    with memory.use(name, "cuda"):
        held = memory.stats("cuda").allocated
        x = gt.full((1 << 20,), 3.0, device="cuda") + kept
        assert memory.stats("cuda").allocated == held
        assert float(x.sum().numpy()) == 5 << 20
    assert get_device("cuda").resource is memory.arena_of("cuda")
    assert float((x + kept).sum().numpy()) == 7 << 20


@pytest.mark.gpu
def test_pinned_arrays_go_to_a_device_and_back():
    memory.configure("pinned", "cpu")
    try:
        x = gt.ones((1 << 20,), device="cpu")
        assert float(x.to("cuda").to("cpu").sum().numpy()) == 1 << 20
    finally:
        memory.configure("host", "cpu")

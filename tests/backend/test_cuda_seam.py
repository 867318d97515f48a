"""The CUDA device as far as it goes without a driver: CuPy's classes, a driver of Python."""

from __future__ import annotations

import ctypes

import cupy
import pytest

from gtensor.backend import cuda
from gtensor.memory import Arena, SimulatedSegments


class _Driver:
    """Answers cuStreamGetId like the driver, with the handle plus a hundred."""

    status = 0

    def cuStreamGetId(self, handle, result):
        ctypes.cast(result, ctypes.POINTER(ctypes.c_ulonglong)).contents.value = (
            (handle.value or 0) + 100)
        return self.status


class _Device:
    def __init__(self, resource):
        self.resource = resource


@pytest.fixture
def allocator(monkeypatch):
    """The function that is installed into CuPy, over an arena of simulated segments."""
    installed = []
    arena = Arena(SimulatedSegments(1 << 30))
    monkeypatch.setattr(cupy.cuda, "set_allocator", installed.append)
    monkeypatch.setattr(cupy.cuda.memory, "MemoryPool", lambda: None)
    monkeypatch.setattr(cupy.cuda.runtime, "getDevice", lambda: 0)
    monkeypatch.setattr(cupy.cuda, "get_current_stream", lambda: type("Stream", (), {"ptr": 5}))
    monkeypatch.setattr(cuda, "_driver", _Driver)
    monkeypatch.setattr(cuda, "get_device", lambda name: _Device(arena))
    cuda._install_allocator.__wrapped__()
    return installed[0], arena


def test_streams_are_known_by_the_drivers_id(monkeypatch):
    driver = _Driver()
    monkeypatch.setattr(cuda, "_driver", lambda: driver)
    assert cuda.stream_id(0) == 100 and cuda.stream_id(7) == 107
    driver.status = 400
    with pytest.raises(RuntimeError, match="400"):
        cuda.stream_id(7)


def test_cupy_memory_comes_from_the_arena_and_goes_back(allocator):
    allocate, arena = allocator
    pointer = allocate(1000)
    assert arena.allocated == 1024 and pointer.ptr % 512 == 0 and pointer.mem.size == 1024
    array = cupy.ndarray((250,), "float32", memptr=pointer)
    del pointer
    view = array[10:20]
    del array
    assert arena.allocated == 1024  # the view holds it
    del view
    assert arena.allocated == 0


def test_blocks_know_their_stream_and_op(allocator):
    allocate, _ = allocator
    cuda._label.name = "tanh"
    try:
        pointer = allocate(10)
    finally:
        cuda._label.name = ""
    assert pointer.mem.block.stream == 105 and pointer.mem.block.label == "tanh"


def test_an_allocation_of_no_bytes_has_an_address(allocator):
    allocate, arena = allocator
    pointer = allocate(0)
    assert pointer.ptr != 0
    del pointer
    assert arena.allocated == 0

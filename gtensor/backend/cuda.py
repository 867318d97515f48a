"""CUDA devices: CuPy arrays, on blocks of the installed resource.

CuPy is imported when the first CUDA device is made, never before.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from gtensor.backend.devices import Device, get_device


@cache
def cupy() -> Any:
    """The CuPy module."""
    import cupy as module

    return module


class CudaEvent:
    """An event of CuPy's, without timing."""

    def __init__(self, event: Any) -> None:
        self.event = event

    def done(self) -> bool:
        return bool(self.event.done)

    def synchronize(self) -> None:
        self.event.synchronize()


class CudaStream:
    """A stream of CuPy's, known by the driver's stream id: handles are recycled, ids are not."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    @property
    def id(self) -> int:
        return stream_id(self.stream.ptr)

    def record(self) -> CudaEvent:
        event = cupy().cuda.Event(disable_timing=True)
        event.record(self.stream)
        return CudaEvent(event)

    def wait(self, event: Any) -> None:
        self.stream.wait_event(event.event)

    def synchronize(self) -> None:
        self.stream.synchronize()


def stream_id(handle: int) -> int:
    """The driver's id of a stream handle (CUDA driver API, cuStreamGetId)."""
    number = ctypes.c_ulonglong(0)
    status = _driver().cuStreamGetId(ctypes.c_void_p(handle), ctypes.byref(number))
    if status != 0:
        raise RuntimeError(f"cuStreamGetId answered {status} for the stream handle {handle:#x}")
    return number.value


@cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


class _Label(threading.local):
    """The op that this thread runs, for the labels of the blocks that CuPy allocates within it."""

    name = ""


_label = _Label()


class CudaDevice(Device):
    """One NVIDIA GPU through CuPy."""

    type = "cuda"

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self._cupy_device = cupy().cuda.Device(index)
        self.array_type = cupy().ndarray
        self._paths: dict[Callable[..., Any], Callable[..., Any]] = {}
        _install_allocator()

    @property
    def xp(self) -> Any:
        return cupy()

    def empty(self, shape: tuple[int, ...], dtype: Any, label: str = "") -> Any:
        with self._cupy_device:
            before, _label.name = _label.name, label or _label.name
            try:
                return cupy().empty(shape, dtype)
            finally:
                _label.name = before

    def copy(self, array: Any, dtype: Any = None, label: str = "copy") -> Any:
        with self._cupy_device:
            return super().copy(array, dtype, label)

    def fill(self, array: Any, value: complex) -> Any:
        with self._cupy_device:
            return super().fill(array, value)

    def to_numpy(self, array: Any) -> np.ndarray:
        return cupy().asnumpy(array)

    def from_numpy(self, array: np.ndarray) -> Any:
        with self._cupy_device:
            return cupy().asarray(array)

    def current_stream(self) -> CudaStream:
        with self._cupy_device:
            return CudaStream(cupy().cuda.get_current_stream())

    def describe(self) -> tuple[str, int]:
        """The GPU's name and its memory in bytes."""
        found = cupy().cuda.runtime.getDeviceProperties(self.index)
        return found["name"].decode(), int(found["totalGlobalMem"])

    def malloc(self, nbytes: int) -> int:
        """cudaMalloc on this device: the address. Raises MemoryError when there is no room."""
        runtime = cupy().cuda.runtime
        with self._cupy_device:
            try:
                return int(runtime.malloc(nbytes))
            except runtime.CUDARuntimeError as error:
                raise MemoryError(f"cudaMalloc of {nbytes} bytes on {self}: {error}") from error

    def free(self, address: int) -> None:
        """cudaFree; it waits for the device, so a cached segment is only freed on request."""
        with self._cupy_device:
            cupy().cuda.runtime.free(address)

    def path(self, name: str, path: Callable[..., Any]) -> Callable[..., Any]:
        """`path` run with this device current, its allocations labelled `name`."""
        guarded = self._paths.get(path)
        if guarded is None:
            guarded = self._paths[path] = self._guard(name, path)
        return guarded

    def _guard(self, name: str, path: Callable[..., Any]) -> Callable[..., Any]:
        current = self._cupy_device

        def run(*arrays: Any, **params: Any) -> Any:
            before, _label.name = _label.name, name
            try:
                with current:
                    return path(*arrays, **params)
            finally:
                _label.name = before

        return run


@cache
def _install_allocator() -> None:
    """Route every allocation of CuPy's to the device's resource, once per process."""
    memory = cupy().cuda.memory
    runtime = cupy().cuda.runtime
    pool = memory.MemoryPool()

    class ArenaMemory(memory.BaseMemory):  # type: ignore[name-defined]
        """A block as CuPy sees it; CuPy drops it with the last array, which frees the block."""

        def __init__(self, block: Any, device_id: int) -> None:
            self.block = block
            self.ptr = block.ptr
            self.size = block.size
            self.device_id = device_id

    def allocate(nbytes: int) -> Any:
        index = runtime.getDevice()
        resource = get_device(f"cuda:{index}").resource
        if resource is None:
            return pool.malloc(nbytes)
        stream = stream_id(cupy().cuda.get_current_stream().ptr)
        block = resource.allocate(max(nbytes, 1), stream, _label.name)
        return memory.MemoryPointer(ArenaMemory(block, index), 0)

    cupy().cuda.set_allocator(allocate)


def gemm_into(a: Any, b: Any, out: Any) -> Any:
    """out += a @ b: by cuBLAS itself for float32 and float64 matrices, else through a product."""
    if out.ndim == 2 and out.dtype.char in "fd" and a.dtype == b.dtype == out.dtype:
        from cupy import cublas

        return cublas.gemm("N", "N", a, b, out=out, alpha=1.0, beta=1.0)
    out += cupy().matmul(a, b)
    return out

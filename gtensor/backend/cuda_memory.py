"""Other ways to memory beside cudaMalloc: pinned host memory, CUDA's own pool, whole allocators."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib import import_module
from typing import Any

import numpy as np

from gtensor.backend.cuda_streams import cupy

LIBRARIES = ("cupy", "async", "rmm")
_NO_ROOM = 2  # cudaErrorMemoryAllocation; every other error says that something else went wrong
_NEVER = 2**64 - 1  # the release threshold with which a pool keeps what it has


@contextmanager
def no_room_for(what: str) -> Iterator[None]:
    """Raises MemoryError, naming `what`, where CUDA says that memory is out."""
    try:
        yield
    except cupy().cuda.runtime.CUDARuntimeError as error:
        if error.status != _NO_ROOM:
            raise
        raise MemoryError(f"{what}: {error}") from error


def pinned_malloc(nbytes: int) -> int:
    """Host memory that devices copy from and to directly (cudaHostAlloc, for all devices)."""
    runtime = cupy().cuda.runtime
    with no_room_for(f"cudaHostAlloc of {nbytes} bytes"):
        return int(runtime.hostAlloc(nbytes, runtime.hostAllocPortable))


def pinned_free(address: int) -> None:
    """Give pinned memory back."""
    cupy().cuda.runtime.freeHost(address)


def is_pinned(array: np.ndarray) -> bool:
    """Whether an array lies in page-locked memory, of any allocator."""
    runtime = cupy().cuda.runtime
    return bool(runtime.pointerGetAttributes(array.ctypes.data).type == runtime.memoryTypeHost)


class AsyncMemory:
    """Memory of a device's own pool (cudaMallocAsync), in the order of a stream of its own.

    Nothing else is queued there, so waiting for an allocation waits for no work; then every stream
    may use it.
    """

    def __init__(self, current: AbstractContextManager[Any]) -> None:
        self._current = current
        with current:
            self._stream = cupy().cuda.Stream(non_blocking=True)

    def malloc(self, nbytes: int) -> int:
        """The address of memory that is there; raises MemoryError when there is no room."""
        runtime = cupy().cuda.runtime
        with self._current, no_room_for(f"cudaMallocAsync of {nbytes} bytes"):
            address = int(runtime.mallocAsync(nbytes, self._stream.ptr))
            self._stream.synchronize()
            return address

    def free(self, address: int) -> None:
        """Give memory back that no stream uses any more."""
        with self._current:
            cupy().cuda.runtime.freeAsync(address, self._stream.ptr)


class KeepingPool:
    """The allocator of CUDA's pool of a device, which is told to keep what is freed."""

    def __init__(self, index: int) -> None:
        runtime = cupy().cuda.runtime
        self._threshold = runtime.cudaMemPoolAttrReleaseThreshold
        self._pool = runtime.deviceGetMemPool(index)
        self._before = runtime.memPoolGetAttribute(self._pool, self._threshold)
        runtime.memPoolSetAttribute(self._pool, self._threshold, _NEVER)
        self._malloc = cupy().cuda.MemoryAsyncPool().malloc

    def __call__(self, nbytes: int) -> Any:
        return self._malloc(nbytes)

    def restore(self) -> None:
        """Let the pool keep as much as before."""
        cupy().cuda.runtime.memPoolSetAttribute(self._pool, self._threshold, self._before)


def library_malloc(name: str, index: int) -> Callable[[int], Any]:
    """The allocator of another library, as CuPy takes it: "cupy", "async" or "rmm".

    "cupy" is a new pool of CuPy's. "async" is CUDA's pool, which keeps what is freed, whoever uses
    it, until `restore()` of what is returned. "rmm" is the memory resource that RMM has for the
    device (`rmm.mr.set_current_device_resource`); ImportError if it is not installed.
    """
    cuda = cupy().cuda
    if name == "cupy":
        return cuda.MemoryPool().malloc
    if name == "async":
        return KeepingPool(index)
    try:
        return import_module("rmm.allocators.cupy").rmm_cupy_allocator
    except ImportError as error:
        raise ImportError("RMM was asked for as allocator, but it is not installed "
                          "(pip install rmm-cu13, or rmm-cu12)") from error

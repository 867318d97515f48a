"""Memory beside cudaMalloc: pinned host memory, CUDA's own pool, allocators of other libraries."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from gtensor.backend.cuda_streams import cupy
from gtensor.backend.ordering import BLOCK_FIELDS

if TYPE_CHECKING:
    from gtensor.backend.devices import Device

LIBRARIES = ("cupy", "async", "rmm")
_NO_ROOM = 2  # cudaErrorMemoryAllocation
_NEVER = 2**64 - 1  # the release threshold with which a pool keeps all freed memory


@cache
def block_type() -> type[Any]:
    """The class of blocks on CUDA: CuPy's memory object, which CuPy drops with the last array.

    `ptr`, `size` and `device_id` are CuPy's.
    """
    return type("Block", (cupy().cuda.memory.BaseMemory,), {
        "__slots__": BLOCK_FIELDS, "__module__": __name__})


@contextmanager
def no_room_for(call: str, nbytes: int, device: Device | None = None) -> Iterator[None]:
    """Turn CUDA's out-of-memory error into a MemoryError that names the call and its size."""
    try:
        yield
    except cupy().cuda.runtime.CUDARuntimeError as error:
        if error.status != _NO_ROOM:
            raise
        where = "" if device is None else f" on {device}"
        raise MemoryError(f"{call} of {nbytes} bytes{where}: {error}") from error


def pinned_malloc(nbytes: int) -> int:
    """Host memory that devices copy from and to directly (cudaHostAlloc, for all devices)."""
    runtime = cupy().cuda.runtime
    with no_room_for("cudaHostAlloc", nbytes):
        return int(runtime.hostAlloc(nbytes, runtime.hostAllocPortable))


def pinned_free(address: int) -> None:
    """Free pinned memory."""
    cupy().cuda.runtime.freeHost(address)


def is_pinned(array: np.ndarray) -> bool:
    """Whether an array lies in page-locked memory, of any allocator."""
    runtime = cupy().cuda.runtime
    return bool(runtime.pointerGetAttributes(array.ctypes.data).type == runtime.memoryTypeHost)


class AsyncMemory:
    """Memory of CUDA's pool of a device (cudaMallocAsync), allocated on a stream of its own.

    No other work is queued there, so the wait after an allocation is short, and makes the memory
    valid on every stream.
    """

    def __init__(self, current: AbstractContextManager[object]) -> None:
        self._current = current
        with current:
            self._stream = cupy().cuda.Stream(non_blocking=True)

    def malloc(self, nbytes: int) -> int:
        """The address of the memory; raises MemoryError without room."""
        runtime = cupy().cuda.runtime
        with self._current, no_room_for("cudaMallocAsync", nbytes):
            address = int(runtime.mallocAsync(nbytes, self._stream.ptr))
            self._stream.synchronize()
            return address

    def free(self, address: int) -> None:
        """Free memory that no stream uses any more."""
        with self._current:
            cupy().cuda.runtime.freeAsync(address, self._stream.ptr)


class KeepingPool:
    """The allocator of CUDA's pool of a device, set to keep freed memory."""

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
        """Restore the pool's release threshold."""
        cupy().cuda.runtime.memPoolSetAttribute(self._pool, self._threshold, self._before)


def library_malloc(name: str, index: int) -> Callable[[int], Any]:
    """The allocator of another library for CuPy: "cupy", "async" or "rmm".

    "cupy" is a new pool of CuPy. "async" is CUDA's pool, set for all its users to keep freed memory
    until `restore()` of the result. "rmm" is the memory resource that RMM has for the device
    (`rmm.mr.set_current_device_resource`); ImportError if it is not installed.
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

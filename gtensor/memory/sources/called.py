"""Segments by a pair of functions, as the drivers of devices offer them."""

from __future__ import annotations

from collections.abc import Callable


class CudaSegments:
    """Device memory by two functions of the backend: `malloc(nbytes)`, an address, and `free`.

    `malloc` raises MemoryError when the device has no room. `free` may wait for the device.
    """

    granularity = 512
    page = 512

    def __init__(self, malloc: Callable[[int], int], free: Callable[[int], None]) -> None:
        self._malloc = malloc
        self._free = free

    def acquire(self, nbytes: int) -> int:
        return self._malloc(nbytes)

    def release(self, ptr: int, nbytes: int) -> None:
        self._free(ptr)

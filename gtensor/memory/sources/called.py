"""Segments by a pair of functions, as the drivers of devices offer them."""

from __future__ import annotations

from collections.abc import Callable


class CudaSegments:
    """Device memory by two functions of the backend: `malloc(nbytes)`, an address, and `free`.

    `malloc` raises MemoryError when the device has no room. `free` may wait for the device; it is
    called once for each address, so an interrupt within it may cost a segment, and never frees
    memory that another library was given since.
    """

    granularity = 512
    page = 512

    def __init__(self, malloc: Callable[[int], int], free: Callable[[int], None]) -> None:
        self._malloc = malloc
        self._free = free
        self._live: dict[int, int] = {}

    def acquire(self, nbytes: int) -> int:
        ptr = self._malloc(nbytes)
        self._live[ptr] = nbytes
        return ptr

    def release(self, ptr: int, nbytes: int) -> None:
        del self._live[ptr]
        try:
            self._free(ptr)
        except Exception:
            self._live[ptr] = nbytes
            raise

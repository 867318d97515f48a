"""Segments from a pair of functions, malloc and free."""

from __future__ import annotations

from collections.abc import Callable


class CudaSegments:
    """Device memory by two functions of the backend: `malloc(nbytes)`, an address, and `free`.

    `malloc` raises MemoryError when the device has no room. `free` may wait for the device. It is
    called once for each address: an interrupt within it may leak a segment, but never frees memory
    that another library has allocated since.
    """

    granularity = 512
    page = 512

    def __init__(self, malloc: Callable[[int], int], free: Callable[[int], None]) -> None:
        self._malloc = malloc
        self._free = free
        self._live: dict[int, int] = {}

    def acquire(self, nbytes: int) -> int:
        """The address of `nbytes` bytes of new memory."""
        ptr = self._malloc(nbytes)
        self._live[ptr] = nbytes
        return ptr

    def release(self, ptr: int, nbytes: int) -> None:
        """Give memory back to the system."""
        del self._live[ptr]
        try:
            self._free(ptr)
        except Exception:
            self._live[ptr] = nbytes
            raise

"""Where bytes come from: large pieces of memory, which the arena cuts into blocks."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

MIB = 1 << 20
HUGE_PAGE = 2 * MIB


class SegmentSource(Protocol):
    """Gives segments out and takes them back.

    `granularity` divides every address it gives, `page` every size it is asked for: powers of two,
    in bytes, `page` a multiple of `granularity`.
    """

    granularity: int
    page: int

    def acquire(self, nbytes: int) -> int:
        """The address of `nbytes` new bytes; raises MemoryError if there is no room."""

    def release(self, ptr: int, nbytes: int) -> None:
        """Give back what `acquire(nbytes)` answered."""


class HostSegments:
    """Anonymous memory of the operating system, aligned to 2 MiB, on huge pages where it has them.

    First use of a huge page costs one page fault in place of 512.
    """

    granularity = 64
    page = mmap.PAGESIZE

    def __init__(self) -> None:
        self._maps: dict[int, mmap.mmap] = {}

    def acquire(self, nbytes: int) -> int:
        try:
            # Alignment takes up to one huge page more of address space, which is never touched.
            # Private: a forked child gets its own copy, and huge pages apply.
            area = mmap.mmap(-1, nbytes + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, OverflowError, ValueError) as error:
            raise MemoryError(f"the system refused {nbytes} bytes of memory: {error}") from error
        start = ctypes.addressof(ctypes.c_char.from_buffer(area))
        offset = -start % HUGE_PAGE
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with suppress(OSError):  # a kernel without huge pages: small ones serve, only slower
                area.madvise(mmap.MADV_HUGEPAGE, offset, nbytes)
        self._maps[start + offset] = area
        return start + offset

    def release(self, ptr: int, nbytes: int) -> None:
        self._maps.pop(ptr).close()


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


class SimulatedSegments:
    """A device of `capacity` bytes that exists only as numbers: addresses that nobody may touch.

    `acquired` and `released` count calls. Addresses are never given twice.
    """

    def __init__(self, capacity: int, granularity: int = 512, page: int = 512) -> None:
        self.capacity = capacity
        self.granularity = granularity
        self.page = page
        self.acquired = 0
        self.released = 0
        self.used = 0
        self._refused: set[int] = set()
        self._next = 1 << 40
        self._sizes: dict[int, int] = {}

    def fail_at(self, *calls: int) -> None:
        """Let these calls of `acquire` find no room, counted from now (1 is the next)."""
        self._refused = {self.acquired + call for call in calls}

    def acquire(self, nbytes: int) -> int:
        self.acquired += 1
        if self.acquired in self._refused:
            raise MemoryError(f"the simulated device was told to refuse {nbytes} bytes")
        if self.used + nbytes > self.capacity:
            raise MemoryError(f"the simulated device has {self.capacity - self.used} bytes left "
                              f"of {self.capacity}")
        ptr = self._next
        self._next += -(-nbytes // HUGE_PAGE) * HUGE_PAGE
        self.used += nbytes
        self._sizes[ptr] = nbytes
        return ptr

    def release(self, ptr: int, nbytes: int) -> None:
        if self._sizes.pop(ptr, None) != nbytes:
            raise ValueError(f"no segment of {nbytes} bytes at {ptr:#x} was given out")
        self.released += 1
        self.used -= nbytes


def segment_sizes(nbytes: int, reserved: int, page: int) -> list[int]:
    """The segment sizes to try for a request of `nbytes`, most wanted first.

    A small request opens a segment that later ones share: 8 MiB at first, then a quarter of what
    is reserved, 64 MiB at most, so that an unused rest stays a small part of the whole. A large one
    gets a segment of its own, in whole huge pages. The last size is the least that serves, for when
    there is hardly room.
    """
    shared = min(max(_round_up(reserved // 4, HUGE_PAGE), 8 * MIB), 64 * MIB)
    sizes = [shared] if nbytes <= shared // 2 else []
    for unit in (HUGE_PAGE, page):
        size = _round_up(nbytes, unit)
        if size not in sizes:
            sizes.append(size)
    return sizes


def _round_up(nbytes: int, unit: int) -> int:
    return (nbytes + unit - 1) & -unit

"""Segments of host memory."""

from __future__ import annotations

import ctypes
import mmap
from contextlib import suppress

from gtensor.memory.sources.base import HUGE_PAGE


class HostSegments:
    """Anonymous mappings aligned to 2 MiB, on huge pages where the system has them.

    First use of a huge page costs one page fault in place of 512.
    """

    granularity = 64
    page = mmap.PAGESIZE

    def __init__(self) -> None:
        self._maps: dict[int, mmap.mmap] = {}

    def acquire(self, nbytes: int) -> int:
        """The address of `nbytes` bytes of new memory."""
        try:
            # Alignment takes up to one huge page more of address space, which is never touched.
            # Private: a forked child gets its own copy, and huge pages apply.
            area = mmap.mmap(-1, nbytes + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, OverflowError, ValueError) as error:
            raise MemoryError(f"the system refused {nbytes} bytes of memory: {error}") from error
        start = ctypes.addressof(ctypes.c_char.from_buffer(area))
        offset = -start % HUGE_PAGE
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with suppress(OSError):  # a kernel without huge pages uses small ones
                area.madvise(mmap.MADV_HUGEPAGE, offset, nbytes)
        self._maps[start + offset] = area
        return start + offset

    def release(self, ptr: int, nbytes: int) -> None:
        """Give memory back to the system."""
        self._maps.pop(ptr).close()

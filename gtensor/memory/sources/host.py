"""Segments of host memory."""

from __future__ import annotations

import ctypes
import mmap
from contextlib import suppress
from typing import NamedTuple

from gtensor.memory.sources.base import HUGE_PAGE


class _Range(NamedTuple):
    """Addresses up to `end` of a mapping, which begins at `first` and lives as long as a range."""

    end: int
    mapping: mmap.mmap
    first: int


class HostSegments:
    """Anonymous mappings aligned to 2 MiB, on huge pages where the system has them.

    First use of a huge page costs one page fault in place of 512. Parts of a segment, in multiples
    of `part` bytes, can be released alone: the system takes the memory back, and the addresses with
    the rest.
    """

    granularity = 64
    page = mmap.PAGESIZE
    part = HUGE_PAGE // 8

    def __init__(self) -> None:
        self._ranges: dict[int, _Range] = {}  # those that were not released, by their start

    def acquire(self, nbytes: int) -> int:
        """The address of `nbytes` bytes of new memory."""
        try:
            # Alignment takes up to one huge page more of address space, which is never touched.
            # Private: a forked child gets its own copy, and huge pages apply.
            area = mmap.mmap(-1, nbytes + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, OverflowError, ValueError) as error:
            raise MemoryError(f"the system refused {nbytes} bytes of memory: {error}") from error
        first = ctypes.addressof(ctypes.c_char.from_buffer(area))
        start = first + -first % HUGE_PAGE
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with suppress(OSError):  # a kernel without huge pages uses small ones
                area.madvise(mmap.MADV_HUGEPAGE, start - first, nbytes)
        self._ranges[start] = _Range(start + nbytes, area, first)
        return start

    def release(self, ptr: int, nbytes: int) -> None:
        """Give memory back to the system."""
        start = max((start for start in self._ranges if start <= ptr), default=-1)
        whole, end = self._ranges.get(start), ptr + nbytes
        if whole is None or end > whole.end:
            raise ValueError(f"{nbytes} bytes at {ptr:#x} given back; wanted some that are held")
        left = {low: whole._replace(end=high)
                for low, high in ((start, ptr), (end, whole.end)) if low < high}
        ranges = {low: held for low, held in self._ranges.items() if low != start} | left
        if hasattr(mmap, "MADV_DONTNEED"):
            whole.mapping.madvise(mmap.MADV_DONTNEED, ptr - whole.first, nbytes)
        self._ranges = ranges  # the last range of a mapping ends it

"""Virtual memory: reserved address ranges, into which pages are mapped on demand.

A device's memory comes in pages (2 MiB on CUDA) that can be mapped at any addresses. So a range of
addresses as large as the device is reserved for each segment, which costs no memory, and only the
pages in use are mapped. That gives the arena three things that `cudaMalloc` lacks:

- **A segment grows in place**, by pages that are mapped behind it. So a tensor that grows step by
  step leaves no series of segments that are each a little too small.
- **Free pages leave a segment that is partly in use**, and can then serve any request on any
  stream. They are first made a segment of their own, as are the two ends (`BlockPool.cut`). So
  segments have no holes, chunks always tile them, and an error in between leaves a valid arena.
  (PyTorch's expandable segments keep unmapped blocks in their lists instead.)
- **Scattered free memory can be joined** (`memory/arena/stitched.py`), as a page can be mapped at
  several addresses at a time. Blocks that share a page share no cache line, since they are whole
  granules of 512 bytes. One block's bytes are used through only one of the addresses at a time, in
  stream order, as CUDA requires of aliases (CUDA C++ Programming Guide, "Virtual Aliasing
  Support").
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Container, Sequence
from contextlib import suppress
from typing import Protocol

from gtensor.memory.sources.base import round_up

MOST_JOINED = 1 << 17  # joined pages at a time: each costs the driver some host memory


class Pages(Protocol):
    """Addresses and pages of one device.

    `page` is the size of a page in bytes, a power of two; `span` is the size of an address range,
    in whole pages.
    """

    page: int
    span: int

    def reserve(self, nbytes: int) -> int:
        """Addresses without memory, at a multiple of `page`; MemoryError if there are none."""

    def map(self, address: int, nbytes: int) -> None:
        """Map new pages at reserved addresses; MemoryError, with nothing mapped, without room."""

    def alias(self, address: int, pages: Sequence[int]) -> None:
        """Map the pages at the addresses `pages` a second time, from `address` on."""

    def unmap(self, address: int, nbytes: int) -> Sequence[int] | None:
        """Unmap addresses. A page that is mapped nowhere else is freed.

        Raises if no page was unmapped. Once one was, it continues with the others and returns the
        addresses of those that failed.
        """

    def release(self, address: int, nbytes: int) -> None:
        """Release what `reserve(nbytes)` returned; nothing is mapped there any more."""


class _Range:
    """Reserved addresses and their mapped parts in address order, each of one segment or more."""

    __slots__ = ("ends", "nbytes", "start", "starts")

    def __init__(self, start: int, nbytes: int, first: int) -> None:
        self.start = start
        self.nbytes = nbytes
        self.starts = [start]
        self.ends = [start + first]

    def find(self, ptr: int, nbytes: int) -> int:
        """The index of the part with these bytes, -1 for none."""
        number = bisect_right(self.starts, ptr) - 1
        return number if number >= 0 and ptr + nbytes <= self.ends[number] else -1


class VirtualSegments:
    """A `PagedSource` over pages."""

    granularity = 512

    def __init__(self, pages: Pages) -> None:
        self.pages = pages
        self.page = pages.page
        self._ranges: dict[int, _Range] = {}
        # the joined address of pages, by their runs of addresses in order
        self._joined: dict[tuple[tuple[int, int], ...], int] = {}
        self._pages_joined = 0
        self._stuck: list[int] = []  # released pages whose unmapping failed
        self._spare: list[tuple[int, int]] = []  # address ranges that are still to be released

    def acquire(self, nbytes: int) -> int:
        """The address of `nbytes` bytes of mapped pages, with free addresses behind them."""
        size = max(nbytes, self.pages.span)
        start = self.pages.reserve(size)
        try:
            self.pages.map(start, nbytes)
        except Exception:  # not after an interrupt: what is mapped is unknown then
            self._spare.append((start, size))
            self._release_spare()
            raise
        self._ranges[start] = _Range(start, size, nbytes)
        return start

    def grow(self, ptr: int, old: int, new: int) -> bool:
        """Map more pages behind a segment; whether its addresses had room for them."""
        found, number = self._find(ptr, old)
        later = found.starts[number + 1:number + 2]
        if found.ends[number] != ptr + old or ptr + new > (
                later[0] if later else found.start + found.nbytes):
            return False
        self.pages.map(ptr + old, new - old)
        found.ends[number] = ptr + new
        return True

    def join(self, parts: Sequence[tuple[int, int]]) -> int:
        """The address at which the pages of these parts lie one behind the other."""
        runs = tuple((ptr & -self.page, round_up(ptr + nbytes, self.page))
                     for ptr, nbytes in parts)
        start = self._joined.get(runs)
        if start is None:
            pages = [page for run in runs for page in range(*run, self.page)]
            if self._pages_joined + len(pages) > MOST_JOINED:
                raise MemoryError(f"{self._pages_joined} pages are joined already")
            start = self.pages.reserve(len(pages) * self.page)
            try:
                self.pages.alias(start, pages)
            except Exception:  # as in `acquire`
                self._spare.append((start, len(pages) * self.page))
                self._release_spare()
                raise
            self._joined[runs] = start
            self._pages_joined += len(pages)
        return start + parts[0][0] % self.page

    def part(self, kept: Container[int]) -> None:
        """Unmap all joined addresses but those that are kept."""
        for runs, start in tuple(self._joined.items()):
            if start not in kept:
                self._part(runs)

    def _part(self, runs: tuple[tuple[int, int], ...]) -> None:
        start, nbytes = self._joined[runs], sum(high - low for low, high in runs)
        found = _Range(start, nbytes, nbytes)
        self._take_away(found, 0, start, nbytes)
        del self._joined[runs]
        self._pages_joined -= nbytes // self.page

    def release(self, ptr: int, nbytes: int) -> None:
        """Release whole pages. Raises if none was unmapped; other failures are retried later."""
        self._take_away(*self._find(ptr, nbytes), ptr, nbytes)
        for page in tuple(self._stuck):
            with suppress(Exception):
                self._take_away(*self._find(page, self.page), page, self.page)
                self._stuck.remove(page)

    def _take_away(self, found: _Range, number: int, ptr: int, nbytes: int) -> None:
        """Unmap pages of a range's part. A page that fails becomes a part of its own."""
        stuck = self.pages.unmap(ptr, nbytes) or ()
        start, end = found.starts[number], found.ends[number]
        rest = [(first, last) for first, last in (
            (start, ptr), *((page, page + self.page) for page in stuck), (ptr + nbytes, end))
            if first < last]
        found.starts[number:number + 1] = [first for first, _ in rest]
        found.ends[number:number + 1] = [last for _, last in rest]
        self._stuck.extend(stuck)
        if found.starts:
            self._ranges[found.start] = found
        else:
            self._ranges.pop(found.start, None)
            self._spare.append((found.start, found.nbytes))
        self._release_spare()

    def _release_spare(self) -> None:
        """Release spare address ranges. A failure is retried next time and raises nothing."""
        for spare in tuple(self._spare):
            with suppress(Exception):
                self.pages.release(*spare)
                self._spare.remove(spare)

    def _find(self, ptr: int, nbytes: int) -> tuple[_Range, int]:
        for found in tuple(self._ranges.values()):
            if found.start <= ptr < found.start + found.nbytes:
                number = found.find(ptr, nbytes)
                if number >= 0:
                    return found, number
        raise ValueError(f"{nbytes} bytes at {ptr:#x} lie in no segment that was given out")

"""Virtual memory: addresses first, pages behind them when they are needed.

A device's memory comes in pages (2 MiB on CUDA) that can be put behind any addresses. So a range of
addresses as large as the device is reserved for each segment, which costs nothing, and only the
pages in use are mapped. That gives the arena three things that `cudaMalloc` has not:

- **A segment grows in place.** Where no free chunk fits, pages for what is missing are mapped
  behind the segment; a free chunk at its end becomes part of the larger one. A tensor that grows
  step by step leaves no trail of segments that are each a little too small.
- **Free pages leave a segment that is partly in use**, from its middle as well. When memory is
  short, or the cache is emptied, every whole page that lies in a free chunk is unmapped, and then
  serves a request of any size, of any stream. Only parts of a page at a chunk's ends stay behind.
- **Free memory that lies apart can be joined.** A page can be behind several addresses at a time.
  So scattered pages are put behind consecutive addresses as well, and a block lies there, while
  the pages stay where they are for the arena's books (`memory/spans.py`). The parts of a page that
  belong to different blocks share no cache line, since blocks are whole granules of 512 bytes; and
  one block's bytes are only ever used through one of the addresses at a time, in stream order, as
  CUDA wants it of aliases (CUDA C++ Programming Guide, "Virtual Aliasing Support").

The arena knows no holes. Free pages in the middle of a segment are first made a segment of their
own, as are its two ends (`BlockPool.cut`), and released like any free segment. So chunks always
tile segments, `reserved` is what is mapped, and an error in between leaves a valid arena. The lower
end may then grow into the addresses that became free. (PyTorch's expandable segments keep unmapped
blocks in their lists in place of that.) Growing comes before a new segment, so each pool mostly
has one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Container, Sequence
from contextlib import suppress
from typing import Protocol

from gtensor.memory.sources.base import round_up

MOST_JOINED = 1 << 17  # pages that are kept joined: each costs the driver some host memory


class Pages(Protocol):
    """Addresses and pages of one device. `page` is a page's size, a power of two, in bytes, and
    `span` how many addresses one range should have, in whole pages."""

    page: int
    span: int

    def reserve(self, nbytes: int) -> int:
        """Addresses without memory, at a multiple of `page`; MemoryError if there are none."""

    def map(self, address: int, nbytes: int) -> None:
        """Put new pages behind reserved addresses; MemoryError, and no page more, if there is no
        room."""

    def alias(self, address: int, pages: Sequence[int]) -> None:
        """Put the pages that are at the addresses `pages` behind `address` and on, as well."""

    def unmap(self, address: int, nbytes: int) -> Sequence[int] | None:
        """Take the pages away again, however they were mapped; others can have those that are
        mapped nowhere else now.

        Raises if none was taken away. Once one was, it goes on with the others, and answers the
        addresses of those that could not be.
        """

    def release(self, address: int, nbytes: int) -> None:
        """Give back what `reserve(nbytes)` answered; nothing is mapped there any more."""


class _Range:
    """Reserved addresses, and the mapped parts in them by address: one segment or more each."""

    __slots__ = ("ends", "nbytes", "start", "starts")

    def __init__(self, start: int, nbytes: int, first: int) -> None:
        self.start = start
        self.nbytes = nbytes
        self.starts = [start]
        self.ends = [start + first]

    def find(self, ptr: int, nbytes: int) -> int:
        """The number of the part in which these bytes lie, -1 for none."""
        number = bisect_right(self.starts, ptr) - 1
        return number if number >= 0 and ptr + nbytes <= self.ends[number] else -1


class VirtualSegments:
    """A `PagedSource` over pages."""

    granularity = 512

    def __init__(self, pages: Pages) -> None:
        self.pages = pages
        self.page = pages.page
        self._ranges: dict[int, _Range] = {}
        # by the pages in their order, as runs of addresses: where they are joined
        self._joined: dict[tuple[tuple[int, int], ...], int] = {}
        self._pages_joined = 0
        self._stuck: list[int] = []  # pages that could not be taken away: nobody has them any more
        self._spare: list[tuple[int, int]] = []  # addresses that are still to give back

    def acquire(self, nbytes: int) -> int:
        size = max(nbytes, self.pages.span)
        start = self.pages.reserve(size)
        try:
            self.pages.map(start, nbytes)
        except Exception:  # after an interrupt nobody knows what is mapped: it stays
            self._spare.append((start, size))
            self._release_spare()
            raise
        self._ranges[start] = _Range(start, size, nbytes)
        return start

    def grow(self, ptr: int, old: int, new: int) -> bool:
        found, number = self._find(ptr, old)
        later = found.starts[number + 1:number + 2]
        if found.ends[number] != ptr + old or ptr + new > (
                later[0] if later else found.start + found.nbytes):
            return False
        self.pages.map(ptr + old, new - old)
        found.ends[number] = ptr + new
        return True

    def join(self, parts: Sequence[tuple[int, int]]) -> int:
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
            except Exception:  # after an interrupt nobody knows what is mapped: it stays
                self._spare.append((start, len(pages) * self.page))
                self._release_spare()
                raise
            self._joined[runs] = start
            self._pages_joined += len(pages)
        return start + parts[0][0] % self.page

    def part(self, kept: Container[int]) -> None:
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
        """Give back whole pages. Raises if none went; what fails later is tried again next time."""
        self._take_away(*self._find(ptr, nbytes), ptr, nbytes)
        for page in tuple(self._stuck):
            with suppress(Exception):
                self._take_away(*self._find(page, self.page), page, self.page)
                self._stuck.remove(page)

    def _take_away(self, found: _Range, number: int, ptr: int, nbytes: int) -> None:
        """Unmap pages of a range's part. A page that stays is a part of its own from then on."""
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
        """Give spare addresses back. What fails is tried again next time: it hides no error."""
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

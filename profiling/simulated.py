"""Simulated devices, for tests and profiling: no memory behind addresses, or less than there is."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence

from gtensor.memory.contract.report import size_text
from gtensor.memory.sources import HUGE_PAGE, SegmentSource


class SimulatedSegments:
    """A device of `capacity` bytes, whose addresses have no memory behind them.

    `acquired` and `released` count calls. No address is returned twice.
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
        """Let these calls of `acquire` raise MemoryError, counted from now (1 is the next)."""
        self._refused = {self.acquired + call for call in calls}

    def acquire(self, nbytes: int) -> int:
        self.acquired += 1
        if self.acquired in self._refused:
            raise MemoryError(f"the simulated device was told to refuse {nbytes} bytes")
        if self.used + nbytes > self.capacity:
            raise _full(self.capacity - self.used, self.capacity)
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


class SimulatedPages:
    """Pages (`virtual.Pages`) of a device of `capacity` bytes, with checks of their use.

    ValueError is raised for mapping an address twice, for unmapping or aliasing an address without
    a page, and for releasing addresses with a page mapped. `used` counts the bytes of all mapped
    pages; `mapped`, `unmapped` and `aliased` count operations on pages; `reserved` counts bytes of
    addresses. `touch` simulates an access by a kernel.
    """

    def __init__(self, capacity: int, page: int = HUGE_PAGE, span: int | None = None) -> None:
        self.capacity = capacity
        self.page = page
        self.span = -(-(capacity if span is None else span) // page) * page
        self.used = 0
        self.mapped = 0
        self.unmapped = 0
        self.aliased = 0
        self.reserved = 0
        self._next = 1 << 40
        self._ranges: dict[int, int] = {}
        self._numbers = itertools.count()
        self._pages: dict[int, int] = {}  # address -> the number of the page behind it
        self._mappings: Counter[int] = Counter()  # number -> addresses that it is behind

    def reserve(self, nbytes: int) -> int:
        start = self._next
        self._next += nbytes + self.page  # a page between ranges, to detect overruns
        self._ranges[start] = nbytes
        self.reserved += nbytes
        return start

    def map(self, address: int, nbytes: int) -> None:
        addresses = self._whole_pages(address, nbytes)
        self._check_free(addresses)
        if self.used + nbytes > self.capacity:
            raise _full(self.capacity - self.used, self.capacity)
        self._put(addresses, itertools.islice(self._numbers, len(addresses)))
        self.mapped += len(addresses)
        self.used += nbytes

    def alias(self, address: int, pages: Sequence[int]) -> None:
        addresses = self._whole_pages(address, len(pages) * self.page)
        self._check_free(addresses)
        self._put(addresses, [self._number(page) for page in pages])
        self.aliased += len(pages)

    def unmap(self, address: int, nbytes: int) -> None:
        addresses = self._whole_pages(address, nbytes)
        numbers = [self._number(page) for page in addresses]
        for page, number in zip(addresses, numbers, strict=True):
            del self._pages[page]
            self._mappings[number] -= 1
            if not self._mappings[number]:
                del self._mappings[number]
                self.unmapped += 1
                self.used -= self.page

    def release(self, address: int, nbytes: int) -> None:
        if self._ranges.get(address) != nbytes:
            raise ValueError(f"no range of {nbytes} bytes at {address:#x} was reserved")
        if any(page in self._pages for page in range(address, address + nbytes, self.page)):
            raise ValueError(f"a page in the range at {address:#x} is still mapped")
        del self._ranges[address]
        self.reserved -= nbytes

    def touch(self, address: int, nbytes: int) -> None:
        """Raise ValueError unless every byte is mapped."""
        self.behind(address, nbytes)

    def behind(self, address: int, nbytes: int) -> list[tuple[int, int]]:
        """The ranges of the device's bytes behind addresses, in order.

        Two blocks share memory if their ranges overlap.
        """
        found = []
        for page in range(address & -self.page, address + nbytes, self.page):
            place = self._number(page) * self.page - page
            found.append((place + max(page, address),
                          place + min(page + self.page, address + nbytes)))
        return found

    def _number(self, page: int) -> int:
        if page not in self._pages:
            raise ValueError(f"the page at {page:#x} was used, but is not mapped")
        return self._pages[page]

    def _put(self, addresses: Iterable[int], numbers: Iterable[int]) -> None:
        placed = dict(zip(addresses, numbers, strict=True))
        self._mappings.update(placed.values())
        self._pages.update(placed)  # one call: an interrupt finds all of them mapped or none

    def _check_free(self, addresses: range) -> None:
        if not self._pages.keys().isdisjoint(addresses):
            raise ValueError(f"a page from {addresses[0]:#x} on was mapped twice")

    def _whole_pages(self, address: int, nbytes: int) -> range:
        if nbytes <= 0 or address % self.page or nbytes % self.page:
            raise ValueError(f"{nbytes} bytes at {address:#x} given; wanted whole pages of "
                             f"{self.page} bytes")
        if not any(start <= address and address + nbytes <= start + size
                   for start, size in self._ranges.items()):
            raise ValueError(f"{nbytes} bytes at {address:#x} lie in no range that was reserved")
        return range(address, address + nbytes, self.page)


class CappedSegments:
    """At most `capacity` bytes of another source, as a smaller device would have."""

    def __init__(self, upstream: SegmentSource, capacity: int) -> None:
        self.upstream = upstream
        self.capacity = capacity
        self.used = 0
        self.granularity = upstream.granularity
        self.page = upstream.page

    def acquire(self, nbytes: int) -> int:
        if self.used + nbytes > self.capacity:
            raise MemoryError(f"{size_text(self.capacity - self.used)} are left of "
                              f"{size_text(self.capacity)}")
        ptr = self.upstream.acquire(nbytes)
        self.used += nbytes
        return ptr

    def release(self, ptr: int, nbytes: int) -> None:
        self.upstream.release(ptr, nbytes)
        self.used -= nbytes


def _full(left: int, capacity: int) -> MemoryError:
    return MemoryError(f"the simulated device has {size_text(left)} left of {size_text(capacity)}")

"""A device for tests and for trying out, which exists only as numbers."""

from __future__ import annotations

from gtensor.memory.sources.base import HUGE_PAGE


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


class SimulatedPages:
    """Pages (`virtual.Pages`) of a device of `capacity` bytes, and a check of who uses them.

    Mapping a page that is mapped, unmapping one that is not, and releasing addresses under which
    something is mapped raise ValueError. `used` counts mapped bytes, `mapped` and `unmapped` pages,
    `reserved` bytes of addresses. `touch` is what a kernel would do.
    """

    def __init__(self, capacity: int, page: int = HUGE_PAGE, span: int | None = None) -> None:
        self.capacity = capacity
        self.page = page
        self.span = -(-(capacity if span is None else span) // page) * page
        self.used = 0
        self.mapped = 0
        self.unmapped = 0
        self.reserved = 0
        self._next = 1 << 40
        self._ranges: dict[int, int] = {}
        self._pages: set[int] = set()

    def reserve(self, nbytes: int) -> int:
        start = self._next
        self._next += nbytes + self.page  # a page between ranges: running over is seen
        self._ranges[start] = nbytes
        self.reserved += nbytes
        return start

    def map(self, address: int, nbytes: int) -> None:
        pages = self._whole_pages(address, nbytes)
        if not self._pages.isdisjoint(pages):
            raise ValueError(f"a page in {nbytes} bytes at {address:#x} was mapped twice")
        if self.used + nbytes > self.capacity:
            raise MemoryError(f"the simulated device has {self.capacity - self.used} bytes left "
                              f"of {self.capacity}")
        self._pages.update(pages)
        self.mapped += len(pages)
        self.used += nbytes

    def unmap(self, address: int, nbytes: int) -> None:
        pages = self._whole_pages(address, nbytes)
        if not self._pages.issuperset(pages):
            raise ValueError(f"a page in {nbytes} bytes at {address:#x} was not mapped")
        self._pages.difference_update(pages)
        self.unmapped += len(pages)
        self.used -= nbytes

    def release(self, address: int, nbytes: int) -> None:
        if self._ranges.get(address) != nbytes:
            raise ValueError(f"no range of {nbytes} bytes at {address:#x} was reserved")
        if any(page in self._pages for page in range(address, address + nbytes, self.page)):
            raise ValueError(f"a page in the range at {address:#x} is still mapped")
        del self._ranges[address]
        self.reserved -= nbytes

    def touch(self, address: int, nbytes: int) -> None:
        """Raise ValueError unless every byte is mapped, as a device would stop with an error."""
        first = address // self.page * self.page
        for page in range(first, address + nbytes, self.page):
            if page not in self._pages:
                raise ValueError(f"{nbytes} bytes at {address:#x} were touched, but the page at "
                                 f"{page:#x} is not mapped")

    def _whole_pages(self, address: int, nbytes: int) -> range:
        if nbytes <= 0 or address % self.page or nbytes % self.page:
            raise ValueError(f"{nbytes} bytes at {address:#x} given; wanted whole pages of "
                             f"{self.page} bytes")
        if not any(start <= address and address + nbytes <= start + size
                   for start, size in self._ranges.items()):
            raise ValueError(f"{nbytes} bytes at {address:#x} lie in no range that was reserved")
        return range(address, address + nbytes, self.page)

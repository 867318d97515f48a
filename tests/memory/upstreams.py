"""Upstreams that misbehave: they count their calls, refuse, fail and answer late."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from ctypes import addressof, c_char

from gtensor.memory import SegmentSource, SimulatedPages


class Unreliable:
    """A source before another, which decides about each call of it, the first being 1.

    `refused` says which calls of `acquire` find no room, `failing` which of `release` raise; `late`
    is called before either does anything.
    """

    def __init__(self, upstream: SegmentSource) -> None:
        self.upstream = upstream
        self.granularity = upstream.granularity
        self.page = upstream.page
        self.asked = 0
        self.released = 0
        self.used = 0
        self.refused: Callable[[int], bool] = lambda call: False
        self.failing: Callable[[int], bool] = lambda call: False
        self.late: Callable[[], object] = lambda: None

    def acquire(self, nbytes: int) -> int:
        self.asked += 1
        call = self.asked
        self.late()
        if self.refused(call):
            raise MemoryError(f"call {call} for {nbytes} bytes was told to find no room")
        ptr = self.upstream.acquire(nbytes)
        self.used += nbytes
        return ptr

    def release(self, ptr: int, nbytes: int) -> None:
        self.released += 1
        call = self.released
        self.late()
        if self.failing(call):
            raise RuntimeError(f"release {call} was told to fail")
        self.upstream.release(ptr, nbytes)
        self.used -= nbytes


class HostPages(SimulatedPages):
    """Simulated pages with the machine's memory behind them; unmapped ones lose what they held.

    `refused` says which calls of `map` find no room, the first being 1.
    """

    def __init__(self, capacity: int, page: int = 1 << 16, span: int | None = None) -> None:
        super().__init__(capacity, page, span)
        self.asked = 0
        self.refused: Callable[[int], bool] = lambda call: False
        self._maps: dict[int, mmap.mmap] = {}

    def reserve(self, nbytes: int) -> int:
        area = mmap.mmap(-1, nbytes + self.page, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        start = addressof(c_char.from_buffer(area))
        self._next = start + -start % self.page
        address = super().reserve(nbytes)
        self._maps[address] = area
        return address

    def map(self, address: int, nbytes: int) -> None:
        self.asked += 1
        if self.refused(self.asked):
            raise MemoryError(f"call {self.asked} for {nbytes} bytes was told to find no room")
        super().map(address, nbytes)

    def unmap(self, address: int, nbytes: int) -> None:
        super().unmap(address, nbytes)
        start = max(start for start in self._maps if start <= address)
        begin = address - addressof(c_char.from_buffer(self._maps[start]))
        self._maps[start].madvise(mmap.MADV_DONTNEED, begin, nbytes)

    def release(self, address: int, nbytes: int) -> None:
        super().release(address, nbytes)
        del self._maps[address]

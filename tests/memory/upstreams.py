"""Upstreams that misbehave: they count their calls, refuse, fail and answer late."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Callable, Iterable

from simulated import SimulatedPages

from gtensor.memory import SegmentSource


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
    """Simulated pages with the machine's memory behind them, a file's, each behind any addresses.

    A page that is behind none any more loses what it held. `refused` says which calls of `map` find
    no room, the first being 1. For tests only: a forked child would share the memory.
    """

    def __init__(self, capacity: int, page: int = 1 << 16, span: int | None = None) -> None:
        super().__init__(capacity, page, span)
        self.asked = 0
        self.refused: Callable[[int], bool] = lambda call: False
        self._areas: dict[int, tuple[int, int]] = {}
        self._file = os.memfd_create("pages")
        os.ftruncate(self._file, 1 << 40)  # it takes room for what is written only

    def reserve(self, nbytes: int) -> int:
        area = _mmap(None, nbytes + self.page, _NO_ACCESS, _NOTHING)
        self._next = (area + self.page - 1) & -self.page
        address = super().reserve(nbytes)
        self._areas[address] = area, nbytes + self.page
        return address

    def map(self, address: int, nbytes: int) -> None:
        self.asked += 1
        if self.refused(self.asked):
            raise MemoryError(f"call {self.asked} for {nbytes} bytes was told to find no room")
        super().map(address, nbytes)

    def unmap(self, address: int, nbytes: int) -> None:
        pages = range(address, address + nbytes, self.page)
        last = [page for page in pages if self._mappings[self._number(page)] == 1]
        super().unmap(address, nbytes)
        for page in last:
            _check(_libc.madvise(page, self.page, _REMOVE))
        _mmap(address, nbytes, _NO_ACCESS, _NOTHING | _FIXED)

    def release(self, address: int, nbytes: int) -> None:
        super().release(address, nbytes)
        _check(_libc.munmap(*self._areas.pop(address)))

    def _put(self, addresses: Iterable[int], numbers: Iterable[int]) -> None:
        addresses = tuple(addresses)
        super()._put(addresses, numbers)
        for page in addresses:
            _mmap(page, self.page, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED | _FIXED,
                  self._file, self._pages[page] * self.page)

    def __del__(self) -> None:
        for area in self._areas.values():
            _libc.munmap(*area)
        os.close(self._file)


_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int,
                       ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_NO_ACCESS, _FIXED, _REMOVE = 0, 0x10, 9
_NOTHING = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS


def _mmap(address: int | None, nbytes: int, access: int, flags: int, file: int = -1,
          offset: int = 0) -> int:
    found = _libc.mmap(address, nbytes, access, flags, file, offset)
    _check(-1 if found == ctypes.c_void_p(-1).value else 0)
    return found


def _check(status: int) -> None:
    if status:
        raise OSError(ctypes.get_errno(), "the pages of a test")

"""Pages of real memory that can stand behind several addresses, as a GPU's can: a file in memory.

What the arena over virtual memory does to addresses can so be seen in bytes. Not for use: a forked
child would share them.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Sequence

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int,
                       ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_FIXED = 0x10
_NO_ACCESS = 0
_NOTHING = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS


class HostPages:
    """`gtensor.memory.sources.Pages` of at most `capacity` bytes."""

    def __init__(self, capacity: int, page: int = 1 << 16, span: int | None = None) -> None:
        self.page = page
        self.span = capacity if span is None else span
        self.aliased = 0
        self._file = os.memfd_create("pages")
        os.ftruncate(self._file, capacity)
        self._free = list(range(0, capacity, page))[::-1]
        self._behind: dict[int, int] = {}  # address -> where in the file
        self._uses: dict[int, int] = {}
        self._areas: dict[int, tuple[int, int]] = {}

    def reserve(self, nbytes: int) -> int:
        whole = nbytes + self.page
        area = _map(None, whole, _NO_ACCESS, _NOTHING)
        start = (area + self.page - 1) & -self.page
        self._areas[start] = area, whole
        return start

    def map(self, address: int, nbytes: int) -> None:
        count = nbytes // self.page
        if count > len(self._free):
            raise MemoryError(f"{len(self._free)} pages are left")
        self._put(address, [self._free.pop() for _ in range(count)])

    def alias(self, address: int, pages: Sequence[int]) -> None:
        self._put(address, [self._behind[page] for page in pages])
        self.aliased += len(pages)

    def unmap(self, address: int, nbytes: int) -> None:
        _map(address, nbytes, _NO_ACCESS, _NOTHING | _FIXED)
        for page in range(address, address + nbytes, self.page):
            place = self._behind.pop(page)
            self._uses[place] -= 1
            if not self._uses[place]:
                self._free.append(place)

    def release(self, address: int, nbytes: int) -> None:
        assert not any(address <= page < address + nbytes for page in self._behind)
        _libc.munmap(*self._areas.pop(address))

    def behind(self, address: int, nbytes: int) -> list[tuple[int, int]]:
        """The bytes of the file behind addresses, from and to, in their order."""
        found = []
        for page in range(address & -self.page, address + nbytes, self.page):
            place = self._behind[page] - page
            found.append((place + max(page, address),
                          place + min(page + self.page, address + nbytes)))
        return found

    def close(self) -> None:
        for area in self._areas.values():
            _libc.munmap(*area)
        os.close(self._file)

    def _put(self, address: int, places: list[int]) -> None:
        for number, place in enumerate(places):
            page = address + number * self.page
            assert page not in self._behind
            _map(page, self.page, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED | _FIXED,
                 self._file, place)
            self._behind[page] = place
            self._uses[place] = self._uses.get(place, 0) + 1


def _map(address: int | None, nbytes: int, access: int, flags: int, file: int = -1,
         offset: int = 0) -> int:
    found = _libc.mmap(address, nbytes, access, flags, file, offset)
    if found == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), f"mmap of {nbytes} bytes")
    return found

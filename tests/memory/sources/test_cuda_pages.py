"""The calls that pages of a CUDA device make, on a driver that only keeps books."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from gtensor.backend import cuda_pages
from gtensor.backend.cuda_pages import CudaPages
from gtensor.memory import Arena, OutOfMemoryError, VirtualSegments

MIB = 1 << 20
PAGE = 2 * MIB
TOTAL = 64 * MIB


class Driver:
    """The driver's virtual memory with its rules; types and codes are those of cuda-bindings."""

    def __init__(self) -> None:
        self.real = cuda_pages.bindings()
        self.ranges: dict[int, int] = {}
        self.handles: dict[int, int] = {}  # page -> how many hold it
        self.mapped: dict[int, int] = {}  # address -> page
        self.usable: set[int] = set()
        self.refuse: set[str] = set()
        self.made = 0

    def __getattr__(self, name):
        if name.startswith("cu"):
            raise AssertionError(f"{name} was not expected")
        return getattr(self.real, name)

    def answer(self, name, *values):
        codes = self.real.CUresult
        return (codes.CUDA_ERROR_INVALID_VALUE if name in self.refuse else codes.CUDA_SUCCESS,
                *values)

    def cuDeviceGet(self, index):
        return self.answer("cuDeviceGet", index)

    def cuDeviceTotalMem(self, device):
        return self.answer("cuDeviceTotalMem", TOTAL)

    def cuMemGetAllocationGranularity(self, kind, option):
        return self.answer("cuMemGetAllocationGranularity", 4096)

    def cuCtxSynchronize(self):
        return self.answer("cuCtxSynchronize")

    def cuMemAddressReserve(self, nbytes, alignment, address, flags):
        start = (1 << 40) + len(self.ranges) * (1 << 32)
        self.ranges[start] = nbytes
        return self.answer("cuMemAddressReserve", self.real.CUdeviceptr(start))

    def cuMemCreate(self, nbytes, kind, flags):
        assert nbytes == PAGE and kind.location.id == 0
        if len(self.handles) * PAGE >= TOTAL:
            return self.real.CUresult.CUDA_ERROR_OUT_OF_MEMORY, None
        self.made += 1
        self.handles[self.made] = 1
        return self.answer("cuMemCreate", self.made)

    def cuMemMap(self, address, nbytes, offset, page, flags):
        found = self.answer("cuMemMap")
        if "cuMemMap" not in self.refuse:
            assert address not in self.mapped and (nbytes, offset) == (PAGE, 0)
            self.mapped[address] = page
            self.handles[page] += 1
        return found

    def cuMemRetainAllocationHandle(self, address):
        page = self.mapped[address]
        self.handles[page] += 1
        return self.answer("cuMemRetainAllocationHandle", page)

    def cuMemSetAccess(self, address, nbytes, access, count):
        assert count == len(access) == 1
        if "cuMemSetAccess" not in self.refuse:
            self.usable.update(range(address, address + nbytes, PAGE))
        return self.answer("cuMemSetAccess")

    def cuMemUnmap(self, address, nbytes):
        assert nbytes == PAGE
        self.usable.discard(address)
        self._drop(self.mapped.pop(address))
        return self.answer("cuMemUnmap")

    def cuMemRelease(self, page):
        self._drop(page)
        return self.answer("cuMemRelease")

    def cuMemAddressFree(self, address, nbytes):
        assert self.ranges[address] == nbytes
        assert not any(address <= at < address + nbytes for at in self.mapped)
        self.ranges[address] = 0
        return self.answer("cuMemAddressFree")

    def _drop(self, page):
        self.handles[page] -= 1
        if not self.handles[page]:
            del self.handles[page]


@pytest.fixture
def driver(monkeypatch):
    made = Driver()
    monkeypatch.setattr(cuda_pages, "bindings", lambda: made)
    return made


def test_an_arena_over_it_gives_every_page_back(driver):
    pages = CudaPages(0, nullcontext())
    assert (pages.page, pages.span) == (PAGE, TOTAL + TOTAL // 8)
    arena = Arena(VirtualSegments(pages))
    low, gone, high = (arena.allocate(20 * MIB) for _ in range(3))
    del gone
    large = arena.allocate(22 * MIB)  # what is left and what was free, side by side
    assert len(driver.handles) * PAGE == arena.stats().reserved <= TOTAL
    assert driver.usable == set(driver.mapped)
    with pytest.raises(OutOfMemoryError, match="cuMemCreate answered CUDA_ERROR_OUT_OF_MEMORY"):
        arena.allocate(20 * MIB)
    assert len(driver.handles) * PAGE == arena.stats().reserved
    del low, high, large
    arena.empty_cache()
    assert not driver.handles and not driver.mapped and not any(driver.ranges.values())


@pytest.mark.parametrize("name", ["cuMemMap", "cuMemSetAccess"])
def test_an_error_in_the_middle_leaves_no_page(driver, name):
    source = VirtualSegments(CudaPages(0, nullcontext()))
    driver.refuse = {name}
    with pytest.raises(RuntimeError, match=f"{name} answered CUDA_ERROR_INVALID_VALUE"):
        source.acquire(8 * MIB)
    assert not driver.handles and not driver.mapped and not any(driver.ranges.values())


@pytest.mark.parametrize("refused", [{"cuMemUnmap"}, {"cuMemAddressFree"}])
def test_what_fails_while_clearing_up_does_not_hide_that_memory_is_out(driver, refused):
    arena = Arena(VirtualSegments(CudaPages(0, nullcontext())))
    kept = arena.allocate(60 * MIB)
    driver.refuse = refused
    with pytest.raises(OutOfMemoryError, match="cuMemCreate answered CUDA_ERROR_OUT_OF_MEMORY"):
        arena.allocate(20 * MIB, stream=1)
    driver.refuse = set()
    del kept
    arena.empty_cache()
    if refused == {"cuMemAddressFree"}:
        assert not any(driver.ranges.values()), "addresses were not tried again"


def test_without_bindings_the_error_says_what_to_install(monkeypatch):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(cuda_pages, "import_module", missing)
    with pytest.raises(ImportError, match="pip install cuda-bindings"):
        cuda_pages.bindings.__wrapped__()

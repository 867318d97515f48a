"""Addresses and pages of a CUDA device, by the driver's virtual memory management.

The driver is called through cuda-bindings, which is imported at the first use of pages. CUDA
driver API, "Virtual Memory Management": cuMemAddressReserve, cuMemCreate, cuMemMap, cuMemSetAccess,
cuMemRetainAllocationHandle, cuMemUnmap, cuMemRelease, cuMemAddressFree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from functools import cache, partial
from importlib import import_module
from typing import Any

from gtensor.backend.cuda_losses import noted

_PAGE = 2 << 20


@cache
def bindings() -> Any:
    """The module of the driver's functions; raises ImportError if it is missing."""
    try:
        return import_module("cuda.bindings.driver")
    except ImportError as error:
        raise ImportError("virtual memory needs cuda-bindings, which is not installed "
                          "(pip install cuda-bindings)") from error


class CudaPages:
    """`gtensor.memory.sources.Pages` of one device, which the context manager `current` selects.

    `page` is 2 MiB or the device's minimum, if that is larger; a range spans 9/8 of the device's
    memory, as PyTorch's expandable segments do.
    """

    def __init__(self, index: int, current: AbstractContextManager[object]) -> None:
        driver = self._driver = bindings()
        self._current = current
        with current:
            location = driver.CUmemLocation()
            location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
            location.id = index
            self._kind = driver.CUmemAllocationProp()
            self._kind.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
            self._kind.location = location
            self._access = driver.CUmemAccessDesc()
            self._access.location = location
            self._access.flags = (
                driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
            least = self._ask(driver.cuMemGetAllocationGranularity, self._kind,
                              driver.CUmemAllocationGranularity_flags
                              .CU_MEM_ALLOC_GRANULARITY_MINIMUM)
            self.page = max(_PAGE, int(least))
            whole = int(self._ask(driver.cuDeviceTotalMem,
                                  self._ask(driver.cuDeviceGet, index)))
        self.span = -(-(whole + whole // 8) // self.page) * self.page

    def reserve(self, nbytes: int) -> int:
        with self._current:
            return int(self._ask(self._driver.cuMemAddressReserve, nbytes, self.page, 0, 0))

    def map(self, address: int, nbytes: int) -> None:
        """Map new pages at the addresses; on any error those mapped so far are unmapped."""
        create = self._driver.cuMemCreate
        self._put(address, (partial(self._ask, create, self.page, self._kind, 0)
                            for _ in range(nbytes // self.page)))

    def alias(self, address: int, pages: Sequence[int]) -> None:
        """Map pages that are already mapped elsewhere; on any error none is mapped here."""
        retain = self._driver.cuMemRetainAllocationHandle
        self._put(address, (partial(self._ask, retain, page) for page in pages))

    def _put(self, address: int, pages: Iterable[Callable[[], object]]) -> None:
        """Map the pages that these functions return, and give the device access."""
        driver = self._driver
        done = 0
        with self._current:
            try:
                for hold in pages:
                    page = hold()
                    try:
                        self._ask(driver.cuMemMap, address + done, self.page, 0, page, 0)
                    except BaseException:  # undone
                        with suppress(Exception):  # the first error is the cause
                            self._ask(driver.cuMemRelease, page)
                        raise
                    self._ask(driver.cuMemRelease, page)  # the mapping keeps it
                    done += self.page
                self._ask(driver.cuMemSetAccess, address, done, [self._access], 1)
            except BaseException:  # undone
                with suppress(Exception):  # likewise
                    if done:
                        self._unmap(address, done)
                raise

    def unmap(self, address: int, nbytes: int) -> list[int]:
        """Wait for the device, which may still use the pages, and unmap them.

        Raises if no page was unmapped; else returns those that failed.
        """
        with self._current:
            self._ask(self._driver.cuCtxSynchronize)
            return self._unmap(address, nbytes)

    def _unmap(self, address: int, nbytes: int) -> list[int]:
        stuck = []
        for page in range(address, address + nbytes, self.page):  # each page was mapped separately
            try:
                self._ask(self._driver.cuMemUnmap, page, self.page)
            except RuntimeError:
                stuck.append(page)
                if len(stuck) * self.page == nbytes:
                    raise
        return stuck

    def release(self, address: int, nbytes: int) -> None:
        with self._current:
            self._ask(self._driver.cuMemAddressFree, address, nbytes)

    def _ask(self, function: Any, *arguments: object) -> Any:
        """The result of a driver function; raises MemoryError without room, else RuntimeError."""
        status, *answer = function(*arguments)
        if status != self._driver.CUresult.CUDA_SUCCESS:
            kind = (MemoryError if status == self._driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY
                    else RuntimeError)
            raise noted(kind(f"{function.__name__} answered {status.name}"), int(status))
        return answer[0] if answer else None

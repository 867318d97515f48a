"""A source with a limit, which simulates a smaller device."""

from __future__ import annotations

from gtensor.memory.contract.report import size_text
from gtensor.memory.sources.base import SegmentSource


class CappedSegments:
    """At most `capacity` bytes of another source."""

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

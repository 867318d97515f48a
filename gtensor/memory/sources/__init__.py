"""Sources of segments: large pieces of memory, which the arena cuts into blocks."""

from __future__ import annotations

from gtensor.memory.sources.base import (
    HUGE_PAGE,
    MIB,
    PagedSource,
    SegmentSource,
    round_up,
    segment_sizes,
)
from gtensor.memory.sources.called import CudaSegments
from gtensor.memory.sources.host import HostSegments
from gtensor.memory.sources.virtual import Pages, VirtualSegments

__all__ = [
    "HUGE_PAGE", "MIB", "CudaSegments", "HostSegments", "PagedSource", "Pages", "SegmentSource",
    "VirtualSegments", "round_up", "segment_sizes",
]

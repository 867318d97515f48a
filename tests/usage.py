"""What a function takes of the arena, and what NumPy makes behind its back.

The sizes are those of the tests of memory: arrays one *unit* large (1 MiB, sixteen tiles).
"""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable
from typing import NamedTuple

import gtensor as gt

SIDE = 512
UNIT = SIDE * SIDE * 4
TILE_ELEMENTS = 16384
TILE = TILE_ELEMENTS * 4
PYTHON = 64 * 1024  # records, handles, slots, per-channel numbers, in tracemalloc's count


class Usage(NamedTuple):
    """What a function took at its peak, and what of it was left, above what was there before."""

    peak: int  # bytes of the arena
    left: int
    behind: int  # bytes at the peak of tracemalloc: what did not come from the arena

    @property
    def units(self) -> float:
        return self.peak / UNIT


def measure(function: Callable[[], object]) -> Usage:
    gc.collect()
    gt.memory.reset_peak()
    before = gt.memory.stats().allocated
    tracemalloc.start()
    try:
        start = tracemalloc.get_traced_memory()[0]
        function()
        behind = tracemalloc.get_traced_memory()[1] - start
    finally:
        tracemalloc.stop()
    stats = gt.memory.stats()
    return Usage(stats.peak_allocated - before, stats.allocated - before, behind)

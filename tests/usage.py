"""What a function takes of the arena, and what NumPy makes behind its back.

The sizes are those of the tests of memory: arrays one *unit* large (1 MiB, sixteen tiles).
"""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import gtensor as gt
import gtensor.backend.blas  # loaded now: its text is no memory of a function
from gtensor.engine.tape.op import registry

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


Reading = tuple[tuple[int, int], tuple[int, int]]


@contextmanager
def traced() -> Iterator[Callable[[], Reading]]:
    """Bytes now and at the peak, above those at the start: the arena's, and tracemalloc's."""
    for op in registry.values():
        _ = op.call  # written now: the text is not the function's memory
    gc.collect()
    gt.memory.reset_peak()
    before = gt.memory.stats().allocated
    tracemalloc.start()
    try:
        start = tracemalloc.get_traced_memory()[0]

        def read() -> Reading:
            now, peak = tracemalloc.get_traced_memory()
            stats = gt.memory.stats()
            return ((stats.allocated - before, stats.peak_allocated - before),
                    (now - start, peak - start))

        yield read
    finally:
        tracemalloc.stop()


def measure(function: Callable[[], object]) -> Usage:
    with traced() as read:
        function()
        (left, peak), (_, behind) = read()
    return Usage(peak, left, behind)

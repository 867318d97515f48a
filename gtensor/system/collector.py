"""Python's cyclic garbage collector, out of the way of code that makes many objects and keeps them.

Records of ops form no cycles: their last reference frees them. But the collector counts objects as
they are made, and goes through all young ones again and again while a long graph is recorded.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from gtensor.system.interrupts import Undone


def _stay() -> None:
    """The collector was switched off before."""


@contextmanager
def collector_paused() -> Iterator[None]:
    """Within the block no garbage collection starts by itself; then it goes on as before.

    Cycles that are dropped within the block are found by the next collection after it.
    """
    with Undone(gc.enable if gc.isenabled() else _stay):
        gc.disable()
        yield

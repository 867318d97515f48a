"""Listeners of the event bus: a profile, ranges for Nsight Systems, a line per op.

    with gt.profiler.profile() as p:
        train_step()
    print(p)                             # by op; p.table(group_by="module"), group_by="line"
    p.html("profile.html")               # or chrome_trace, roofline, flame, save

    with gt.profiler.nvtx_ranges():      # under nsys: one range per module, op and phase
        train()

    with gt.listen(gt.profiler.Printer()):
        train()                          # as GTENSOR_DEBUG=2 for the whole program
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gtensor.backend import nvtx
from gtensor.profiler.compare import compare as compare
from gtensor.profiler.listeners import Printer as Printer
from gtensor.profiler.listeners import Ranges as Ranges
from gtensor.profiler.profiles import Profile as Profile
from gtensor.profiler.recorder import recorder
from gtensor.profiler.spans import ProfileError as ProfileError
from gtensor.profiler.spans import Span as Span
from gtensor.system.bus import listen


@contextmanager
def profile() -> Iterator[Profile]:
    """Measure every op in the block, in all threads; read the profile after it.

    Nothing in the block waits for a GPU. A profile can be taken within another one.
    """
    with listen(recorder()) as found:
        yield Profile(found.recorded)
        found.close()


@contextmanager
def nvtx_ranges() -> Iterator[None]:
    """NVTX ranges in the block: one per op, e.g. "Net.first matmul forward", phase and batch.

    Where `backend.nvtx` is not enabled at the begin of the block, nothing listens.
    """
    if not nvtx.enabled():
        yield
        return
    ranges = Ranges()
    try:
        with listen(ranges):
            yield
    finally:
        ranges.close()

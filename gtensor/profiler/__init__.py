"""Listeners of the event bus: a profile, ranges for Nsight Systems, a line per op.

Each is a block:

    with gt.profiler.profile() as p:
        train_step()
    print(p)                             # by op; p.table(group_by="module"), group_by="line"
    p.html("profile.html")               # or chrome_trace, roofline, flame, save

    with gt.profiler.nvtx_ranges():      # under nsys; GTENSOR_NVTX=1 for the whole program
        train()

    with gt.profiler.range("augment"):   # shown by both; @gt.profiler.ranged for a function
        augment()

    with gt.listen(gt.profiler.Printer()):
        train()                          # as GTENSOR_DEBUG=2 for the whole program
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from gtensor.profiler.comparison import compare as compare
from gtensor.profiler.listeners import Printer as Printer
from gtensor.profiler.profiles import Profile as Profile
from gtensor.profiler.ranges import nvtx_ranges as nvtx_ranges
from gtensor.profiler.recorder import new_recorder
from gtensor.profiler.spans import ProfileError as ProfileError
from gtensor.profiler.spans import Span as Span
from gtensor.profiler.steps import Steps
from gtensor.system.bus import listen
from gtensor.system.late_imports import late as _late
from gtensor.system.ranges import range as range
from gtensor.system.ranges import ranged as ranged
from gtensor.system.written_code import enter as _enter

if not TYPE_CHECKING:
    __getattr__, __dir__ = _late(__name__)

__all__ = [
    "Printer", "Profile", "ProfileError", "Span", "compare", "nvtx_ranges", "profile", "range",
    "ranged",
]


@contextmanager
def profile(steps: tuple[int, int] | None = None) -> Iterator[Profile]:
    """Measure every op in the block, in all threads; read the profile after it.

    Nothing in the block waits for a GPU. A profile can be taken within another one.

    Args:
        steps: (first, count): only `count` steps, after the `first` ones, which compile kernels and
            fill the arena. A step ends with the update of an optimizer. A block of no more than
            `first` steps gives an empty profile. None measures the whole block.

    Raises ValueError unless `first` is an integer of at least 0 and `count` of at least 1. The
    profile raises ProfileError if it is read within the block.
    """
    found = new_recorder()
    profiled = Profile(found.recorded)
    with found.block():
        if steps is None:
            with found.measuring():
                yield profiled
            return
        with ExitStack() as window, listen(Steps(
                steps, lambda: window.enter_context(found.measuring()), window.close)):
            yield profiled


_enter(globals(), check=True, leave=("range",))  # which checks where there is a listener

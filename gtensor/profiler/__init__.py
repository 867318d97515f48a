"""Users of the profiling hook: time per op, and ranges for Nsight Systems.

    with gt.profiler.profile() as found:
        loss.backward()
    print(found.table())

    with gt.profiler.nvtx_ranges():      # under nsys: one range per op and phase
        train()
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import TYPE_CHECKING, Any

from gtensor.backend import nvtx
from gtensor.engine.context import observe

if TYPE_CHECKING:
    from gtensor.backend.typing import Path


class Profile:
    """Calls and host seconds by op and phase: on a GPU the time to launch, not to compute."""

    def __init__(self) -> None:
        self.calls: dict[tuple[str, str], int] = {}
        self.seconds: dict[tuple[str, str], float] = {}

    def __call__(
        self, name: str, phase: str, function: Path, args: Sequence[object],
        kwargs: Mapping[str, object]
    ) -> Any:
        start = perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            key = name, phase
            self.calls[key] = self.calls.get(key, 0) + 1
            self.seconds[key] = self.seconds.get(key, 0.0) + perf_counter() - start

    def table(self) -> str:
        """Ops by time, longest first."""
        rows = sorted(self.seconds.items(), key=lambda row: -row[1])
        lines = [f"{'op':28} {'phase':9} {'calls':>7} {'ms':>10} {'us/call':>9}"]
        for (name, phase), seconds in rows:
            calls = self.calls[name, phase]
            lines.append(f"{name:28} {phase:9} {calls:7} {1e3 * seconds:10.3f} "
                         f"{1e6 * seconds / calls:9.1f}")
        return "\n".join(lines)


@contextmanager
def profile() -> Iterator[Profile]:
    """Measure every op in the block."""
    found = Profile()
    with observe(found):
        yield found


@contextmanager
def nvtx_ranges() -> Iterator[None]:
    """One NVTX range per op and phase in the block, where `backend.nvtx` is enabled."""
    with observe(_ranged):
        yield


def _ranged(
    name: str, phase: str, function: Path, args: Sequence[object], kwargs: Mapping[str, object]
) -> Any:
    nvtx.push(f"{name} {phase}")
    try:
        return function(*args, **kwargs)
    finally:
        nvtx.pop()

"""What explaining memory costs: recording an event, and writing what was recorded.

    python profiling/ladder_snapshot.py
    python profiling/ladder_snapshot.py --only write

`record`: an allocation with its free from the arena's free list, without a recording and within
one (its two events), with and without the user's line; and the check that a module's call and an
op's record make while nothing is recorded. `write`: 100,000 events of a network's
training on a simulated device, as every file that `Timeline.save` writes. Nothing of it depends on
the device. Times are of this thread's processor, since the machine may be busy; the least of the
rounds.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from time import thread_time

from ladder_command import Figure, Options, Part, main
from simulated import SimulatedSegments

from gtensor.memory import Arena, Timeline
from gtensor.system.bus import bus, here, phase

EVENTS = 100_000
EVENT_TARGET = 3.0  # us
SNAPSHOT_TARGET = 1.0  # s


def least(run: Callable[[], object], rounds: int) -> float:
    """Processor seconds of the fastest of some calls."""
    found = []
    for _ in range(rounds):
        start = thread_time()
        run()
        found.append(thread_time() - start)
    return min(found)


# -- recording -------------------------------------------------------------------------------------


def hits(resource: Arena | Timeline, times: int) -> Callable[[], None]:
    """Allocations with their frees, all from the free list, called from under three frames."""

    def one() -> None:
        resource.allocate(4096, 0, "add")

    def outer() -> None:
        for _ in range(times):
            one()

    return outer


def looking(times: int) -> Callable[[], None]:
    """What a hot path does for recordings while there is none."""

    def look() -> None:
        for _ in range(times):
            if bus.listeners:
                raise AssertionError("somebody records")

    return look


def record(options: Options) -> Iterator[Part]:
    """Microseconds per event, and per check."""
    times = 2_000 if options.quick else 20_000
    arena = Arena(SimulatedSegments(1 << 30))
    plain = least(hits(arena, times), options.rounds)
    yield Figure("allocate + free, not recorded", plain / times * 1e6, unit="us")
    for name, stacks in (("", False), (", with the user's line", True)):
        timeline = Timeline(arena, stacks=stacks)
        recorded = least(hits(timeline, times), options.rounds)
        timeline.close()
        yield Figure("an event" + name, (recorded - plain) / (2 * times) * 1e6, EVENT_TARGET, "us")
    empty = least(lambda: [None for _ in range(times)], options.rounds)
    yield Figure("the check while nothing is recorded",
                 (least(looking(times), options.rounds) - empty) / times * 1e6, 0.05, "us")


# -- writing ---------------------------------------------------------------------------------------


def training(events: int) -> Timeline:
    """A closed recording of forward and backward passes through twelve layers."""
    random = Random(0)
    timeline = Timeline(Arena(SimulatedSegments(1 << 40), "cuda:0"))

    def block(op: str) -> object:
        return timeline.allocate(int(2 ** random.uniform(12, 24)), 0, op)

    while timeline.recorded < events:
        saved = []
        for layer in range(12):
            here.module = f"Net.layers.{layer}"
            for op in ("conv2d", "batch_norm", "relu", "matmul", "softmax", "add"):
                saved.append(block(op))
                block("workspace" if op == "relu" else op)
        here.module = ""
        with phase("backward"):
            while saved:
                saved.pop()
                block("matmul")
    timeline.close()
    return timeline


def write(options: Options) -> Iterator[Part]:
    """Seconds per file."""
    timeline = training(EVENTS // 10 if options.quick else EVENTS)
    with tempfile.TemporaryDirectory() as folder:
        for suffix, target in ((".pickle", SNAPSHOT_TARGET), (".json", SNAPSHOT_TARGET),
                               (".html", None), (".png", None)):
            path = Path(folder) / f"run{suffix}"
            seconds = least(lambda path=path: timeline.save(path), min(options.rounds, 5))
            yield Figure(f"{timeline.recorded:,} events as {suffix}", seconds, target, "s",
                         f"{path.stat().st_size / 2**20:.1f} MiB")


def build(options: Options) -> Iterator[tuple[str, Callable[[], Iterator[Part]]]]:
    """Two parts."""
    yield "record", lambda: record(options)
    yield "write", lambda: write(options)


if __name__ == "__main__":
    sys.exit(main(__doc__, build, "ladder_snapshot"))

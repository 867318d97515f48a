"""The one protocol by which everything here is measured.

A ladder is a few ways to do one thing, its rungs: gtensor's, those of its peers, and floors, which
do only what is unavoidable (a copy for what is bound by memory, a matrix product for arithmetic).

    ladder = Ladder("relu", reference=lambda: np.maximum(x, 0), per=1)
    ladder.rung("gtensor", lambda: gt.nn.functional.relu(t), result=lambda y: y.numpy())
    ladder.rung("numpy", lambda: np.maximum(x, 0))
    ladder.target("gtensor", "numpy", 1.05)
    ladder.climb(rounds=25).table()

1. Correct first. Every rung's result is compared with the reference; a wrong rung is refused and
   nothing is timed. Only a floor may compute something else.
2. Warm-up, which also finds how many calls make one sample long enough for the clock.
3. Interleaved rounds in one process: A B C, C B A, A B C, ... A neighbour's noise, a slower clock
   or a full cache meets all rungs alike; going back and forth cancels a steady drift. Before each
   sample stands one call that is not timed, so that no rung pays for the caches of another.
4. A ratio is formed within each round, from samples taken close together, then the median over the
   rounds with its quartiles is reported. On a shared machine trust the ratios, not the times.
5. The result goes to a JSON file with all samples, versions, machine, date and command.

Clocks: `perf_counter` on the CPU; CUDA events around the calls on a GPU, after a synchronization.
`cpu` counts the processor time of this thread instead (`time.thread_time`): for work of one thread
on a machine that others use, it leaves out the waiting for a core (not the caches and bandwidth
that others take).

Run as a program, this file measures the ceilings of a machine: memory and arithmetic; of a GPU also
the start of a kernel and the link to the host. `cost.py --measured` takes its JSON.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from statistics import quantiles
from typing import Any

import numpy as np

MIN_SAMPLE = 2e-3  # seconds: samples are made of so many calls that they take at least this long
WARM_UP = 0.05  # seconds of calls before the first round
CLOCK_CALLS = 1_000_000  # at most so many calls in one sample


class WrongRung(AssertionError):
    """A rung computes something else than the reference."""


@dataclass(frozen=True)
class Spread:
    """The median of some samples and the quartiles around it."""

    median: float
    low: float  # first quartile
    high: float  # third quartile

    @classmethod
    def of(cls, samples: Sequence[float]) -> Spread:
        """Of at least one sample."""
        if len(samples) == 1:
            return cls(samples[0], samples[0], samples[0])
        low, middle, high = quantiles(samples, n=4, method="inclusive")
        return cls(middle, low, high)

    def json(self) -> dict[str, float]:
        return {"median": self.median, "low": self.low, "high": self.high}


@dataclass
class Rung:
    """One way to do it. `moved` and `flops` are per call of `run`; it is called in `within()`."""

    name: str
    run: Callable[[], Any]
    result: Callable[[Any], Any]
    moved: int | None = None  # bytes read and written, each input and output once
    flops: int | None = None
    floor: bool = False
    within: Callable[[], AbstractContextManager[object]] = nullcontext
    error: float | None = None  # relative distance from the reference, None for a floor
    calls: int = 1  # per sample
    samples: list[float] = field(default_factory=list)  # seconds per call, one per round


@dataclass(frozen=True)
class Target:
    """`rung` should take at most `most` times the time of `peer`, and `beside` seconds more."""

    rung: str
    peer: str
    most: float
    beside: float = 0.0  # per call


class HostClock:
    """Seconds by a timer of Python's, for work that is done when the call returns."""

    def __init__(self, timer: Callable[[], float] = time.perf_counter) -> None:
        self.timer = timer
        self.name = timer.__name__

    def seconds(self, run: Callable[[], Any], calls: int) -> float:
        """The time of so many calls."""
        timer, loop = self.timer, range(calls)
        start = timer()
        for _ in loop:
            run()
        return timer() - start


class CudaClock:
    """Seconds by CUDA events on the current stream, which all rungs must use."""

    name = "cuda events"

    def __init__(self) -> None:
        from cupy import cuda

        self.cuda = cuda
        self.start, self.end = cuda.Event(), cuda.Event()

    def seconds(self, run: Callable[[], Any], calls: int) -> float:
        """The time of so many calls, from the first's start to the last's end on the device."""
        self.cuda.runtime.deviceSynchronize()
        self.start.record()
        for _ in range(calls):
            run()
        self.end.record()
        self.end.synchronize()
        return self.cuda.get_elapsed_time(self.start, self.end) * 1e-3


CLOCKS: dict[str, Callable[[], Any]] = {
    "wall": HostClock, "cpu": lambda: HostClock(time.thread_time), "cuda": CudaClock}


class Ladder:
    """Rungs over one reference. See the text at the top of this file.

    Args:
        name: what is done; also its name in the JSON file.
        reference: makes what every rung must compute: an array, a number, or a list of them.
        tolerance: largest `norm(result - reference) / norm(reference)`.
        per: units of work in one call; times are shown per unit.
        unit: what one unit is called.
        device: "cpu" or "cuda"; it decides the clock.
    """

    def __init__(
        self, name: str, reference: Callable[[], Any] | None = None, *, tolerance: float = 1e-5,
        per: int = 1, unit: str = "call", device: str = "cpu", min_sample: float = MIN_SAMPLE,
    ) -> None:
        self.name = name
        self.reference = reference
        self.tolerance = tolerance
        self.per = per
        self.unit = unit
        self.device = device
        self.min_sample = min_sample
        self.rungs: list[Rung] = []
        self.targets: list[Target] = []
        self.notes: list[str] = []
        self.ratios: list[tuple[str, str]] = []

    def rung(
        self, name: str, run: Callable[[], Any], *, result: Callable[[Any], Any] = lambda out: out,
        moved: int | None = None, flops: int | None = None,
        within: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        """Add a rung: `run` is timed, `result` makes of its answer what the reference has.

        A sample's calls are made in the context `within()`, whose entry and exit are not timed.
        """
        self._add(Rung(name, run, result, moved, flops, within=within))

    def floor(
        self, name: str, run: Callable[[], Any], *, moved: int | None = None,
        flops: int | None = None,
    ) -> None:
        """Add a floor: it is timed beside the rungs but need not compute what they do.

        One with `moved` (bytes) or `flops` also measures a rate, from which the least time of every
        rung that says its own bytes or operations follows.
        """
        self._add(Rung(name, run, lambda out: out, moved, flops, floor=True))

    def target(self, rung: str, peer: str, most: float, beside: float = 0.0) -> None:
        """`rung` should take at most `most` times the time of `peer`, and `beside` s per call more.

        Both must have been added.
        """
        self._find(rung), self._find(peer)
        self.targets.append(Target(rung, peer, most, beside))
        self.ratios.append((rung, peer))

    def compare(self, rung: str, *peers: str) -> None:
        """Report the ratio of `rung` to each of these peers, for information."""
        for peer in peers:
            self._find(rung), self._find(peer)
            self.ratios.append((rung, peer))

    def note(self, text: str) -> None:
        """A line under the table: what is missing, what is unusual."""
        self.notes.append(text)

    def check(self) -> None:
        """Compare every rung with the reference. Raises WrongRung naming the first that differs."""
        if self.reference is None:
            unchecked = [r.name for r in self.rungs if not r.floor]
            if unchecked:
                raise WrongRung(f"ladder {self.name!r}: nothing says what {', '.join(unchecked)} "
                                "must compute; give a reference")
            return
        wanted = _arrays(self.reference())
        for rung in self.rungs:
            if rung.floor:
                continue
            try:
                rung.error = distance(_arrays(rung.result(rung.run())), wanted)
            except ValueError as error:
                raise WrongRung(f"ladder {self.name!r}: rung {rung.name!r} {error}") from None
            if not rung.error <= self.tolerance:  # NaN is wrong, too
                raise WrongRung(f"ladder {self.name!r}: rung {rung.name!r} is {rung.error:.2g} "
                                f"away from the reference, the tolerance is {self.tolerance:.2g}")

    def climb(
        self, rounds: int, progress: Callable[[str], None] = lambda text: None,
        clock_name: str = "wall",
    ) -> Ladder:
        """Check, warm up, measure. Returns the ladder, its rungs full of samples."""
        progress(f"{self.name}: checking")
        self.check()
        clock = CLOCKS["cuda" if self.device == "cuda" else clock_name]()
        self.clock = clock.name
        for rung in self.rungs:
            progress(f"{self.name}: warming up {rung.name}")
            rung.samples.clear()
            with rung.within():
                rung.calls = self._calls(clock, rung)
        gc.collect()
        gc.freeze()  # so that the collections between samples are short
        try:
            for turn in range(rounds):
                progress(f"{self.name}: round {turn + 1} of {rounds}")
                for rung in self.rungs[::-1] if turn % 2 else self.rungs:
                    gc.collect()  # no rung pays for another's garbage
                    with rung.within():
                        rung.run()
                        rung.samples.append(clock.seconds(rung.run, rung.calls) / rung.calls)
        finally:
            gc.unfreeze()
        return self

    def times(self, name: str) -> Spread:
        """Seconds per unit of work."""
        return Spread.of([s / self.per for s in self._find(name).samples])

    def ratio(self, rung: str, peer: str) -> Spread:
        """How many times the peer's time a rung takes, formed within each round."""
        pairs = zip(self._find(rung).samples, self._find(peer).samples, strict=True)
        return Spread.of([a / b for a, b in pairs])

    def met(self, target: Target) -> bool:
        """Whether the target is kept, by the median over the rounds."""
        pairs = zip(self._find(target.rung).samples, self._find(target.peer).samples, strict=True)
        return Spread.of([(a - target.beside) / b for a, b in pairs]).median <= target.most

    def above_floor(self, rung: Rung) -> Spread | None:
        """How many times the least time a rung takes, by the rates that the floors reach."""
        least: list[float] = []
        for kind in ("moved", "flops"):
            work = getattr(rung, kind)
            floors = [f for f in self.rungs if f.floor and getattr(f, kind)]
            if work and floors:
                for turn in range(len(rung.samples)):
                    cost = min(f.samples[turn] / getattr(f, kind) for f in floors)
                    bound = work * cost
                    if turn < len(least):
                        least[turn] = max(least[turn], bound)
                    else:
                        least.append(bound)
        if not least or rung.floor:
            return None
        return Spread.of([s / bound for s, bound in zip(rung.samples, least, strict=True)])

    def json(self) -> dict[str, Any]:
        """The ladder as it stands in a result file."""
        rungs = []
        for rung in self.rungs:
            above = self.above_floor(rung)
            rungs.append({
                "name": rung.name, "floor": rung.floor, "error": rung.error, "calls": rung.calls,
                "seconds": self.times(rung.name).json(), "moved": rung.moved, "flops": rung.flops,
                "above_floor": above.json() if above else None, "samples": rung.samples,
            })
        targets = {(t.rung, t.peer): t for t in self.targets}
        ratios = []
        for rung_name, peer in self.ratios:
            spread = self.ratio(rung_name, peer)
            target = targets.get((rung_name, peer))
            ratios.append({"rung": rung_name, "peer": peer, **spread.json(),
                           "target": target.most if target else None,
                           "beside": target.beside if target else None,
                           "met": self.met(target) if target else None})
        return {"name": self.name, "per": self.per, "unit": self.unit, "clock": self.clock,
                "tolerance": self.tolerance, "rungs": rungs, "ratios": ratios, "notes": self.notes}

    def _add(self, rung: Rung) -> None:
        if any(other.name == rung.name for other in self.rungs):
            raise ValueError(f"ladder {self.name!r} has a rung {rung.name!r} already; choose "
                             "another name")
        self.rungs.append(rung)

    def _find(self, name: str) -> Rung:
        for rung in self.rungs:
            if rung.name == name:
                return rung
        raise KeyError(f"ladder {self.name!r} has no rung {name!r}; it has "
                       f"{', '.join(r.name for r in self.rungs)}")

    def _calls(self, clock: Any, rung: Rung) -> int:
        """Warm the rung up; how many of its calls make a sample of at least `min_sample`."""
        calls, spent = 1, 0.0
        while True:
            taken = clock.seconds(rung.run, calls)
            spent += taken
            if taken >= self.min_sample and spent >= WARM_UP or calls >= CLOCK_CALLS:
                return calls
            if not taken and calls > 10:  # a device that computes nothing: its clock stands still
                return calls
            if taken < self.min_sample:
                grow = self.min_sample / max(taken, 1e-9)
                calls = min(CLOCK_CALLS, max(calls + 1, int(calls * min(grow * 1.2, 10))))


def distance(given: list[np.ndarray], wanted: list[np.ndarray]) -> float:
    """The largest relative distance of the arrays from the wanted ones, NaN if there is a NaN."""
    if len(given) != len(wanted):
        raise ValueError(f"gives {len(given)} arrays, the reference {len(wanted)}")
    worst = 0.0
    for a, b in zip(given, wanted, strict=True):
        if a.shape != b.shape:
            raise ValueError(f"gives shape {a.shape}, the reference {b.shape}")
        norm = float(np.linalg.norm(b))
        apart = float(np.linalg.norm(a - b)) / (norm or 1.0)
        worst = max(worst, apart) if apart == apart else apart
        if worst != worst:
            return worst
    return worst


def _arrays(values: Any) -> list[np.ndarray]:
    """Values of a rung as flat float64 arrays on the CPU."""
    if not isinstance(values, (list, tuple)):
        values = [values]
    moved = [value.get() if hasattr(value, "get") else value for value in values]
    return [np.array(value, dtype=np.float64) for value in moved]


if __name__ == "__main__":
    from ceilings import build
    from ladder_command import main

    sys.exit(main(__doc__, build, "ladder"))

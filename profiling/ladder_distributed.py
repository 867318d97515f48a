"""Data parallel training over MPI: weak efficiency, overlap, memory, and what the walk pays for it.

    python profiling/ladder_distributed.py                  # all parts; several processes
    python profiling/ladder_distributed.py --only digits    # the digits network, up to 4 ranks
    python profiling/ladder_distributed.py --only dense     # dense layers over a link of 1 GB/s
    python profiling/ladder_distributed.py --only walk      # announcing complete gradients
    python profiling/ladder_distributed.py --only memory    # gradients, buckets, optimizer state

Weak efficiency is the time of a step of one rank, while the others are idle, over that of a step of
all ranks with as many examples each. "No exchange" is a step of all ranks, each for itself: what it
loses is the machine's. A link is emulated: a collective is done no sooner than it would be with
that bandwidth. Steps run in real processes, in turns; a step is as slow as its slowest rank.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from distributed_steps import network
from ladder import Ladder
from ladder_command import Figure, Options, Part, main

import gtensor as gt
from gtensor.distributed import Communicator, DataParallel
from gtensor.distributed.alone import Alone
from gtensor.engine.handle.node import Node
from gtensor.nn import functional as F

STEPS = Path(__file__).with_name("distributed_steps.py")
EFFICIENCY_TARGET = 0.85  # of two ranks on two cores, overlapped
OVERLAP_TARGET = 1.15  # x the step without, over the emulated link of 1 GB/s
ANNOUNCING_TARGET = 1.05  # x a plain walk
FIRST_TARGET = 0.25  # of the walk


def build(options: Options) -> Iterator[tuple[str, Callable[[], Iterator[Part]]]]:
    """The parts, by name."""
    if options.device != "cpu":
        return
    yield "walk", lambda: walk()
    yield "first bucket", lambda: first_bucket()
    if find_spec("mpi4py") is None:
        print("mpi4py is not installed: no steps of several ranks; pip install 'gtensor[mpi]'",
              file=sys.stderr)
        return
    for ranks in (2,) if options.quick else (2, 4):
        yield f"digits, {ranks} ranks", lambda ranks=ranks: steps(options, "digits", ranks)
    yield "dense, 2 ranks", lambda: steps(options, "dense", 2)
    yield "memory", lambda: memory(options)


# -- within one process ----------------------------------------------------------------------------


class Idle:
    """A collector that is told of complete gradients and does nothing."""

    def begin(self, leaves: Iterable[Node]) -> None:
        pass

    def place(self, leaf: Node) -> None:
        return None

    def complete(self, leaf: Node, array: Any) -> None:
        pass

    def finish(self) -> dict[Node, gt.Tensor]:
        return {}

    def cancel(self) -> None:
        pass


def walks(collector: Idle | None) -> Callable[[], float]:
    """The walk of a digits step, again and again."""
    model, x, y = network("digits")
    loss = F.cross_entropy(model(x), y)
    if collector is not None:
        for parameter in model.parameters():
            parameter._node.collector = collector

    def run() -> float:
        for parameter in model.parameters():
            parameter.grad = None
        loss.backward(retain_graph=True)
        return float(abs(next(iter(model.parameters())).grad).sum())

    return run


def walk() -> Iterator[Part]:
    """A walk with collectors against one without."""
    ladder = Ladder("a walk of the digits network", walks(None), tolerance=1e-4)
    ladder.rung("announced", walks(Idle()))
    ladder.rung("plain", walks(None))
    ladder.target("announced", "plain", ANNOUNCING_TARGET)
    yield ladder


class Clocked(Alone):
    """One rank that notes when its buckets are exchanged."""

    def __init__(self) -> None:
        self.calls: list[float] = []

    def all_reduce(self, array: Any, op: str) -> Any:
        self.calls.append(time.perf_counter())
        return super().all_reduce(array, op)


def first_bucket() -> Iterator[Part]:
    """When buckets are exchanged, as shares of the walk; the median of several."""
    engine, shares = Clocked(), []
    model, x, y = network("digits")
    parallel = DataParallel(model, Communicator(engine))
    for _ in range(15):
        parallel.zero_grad()
        loss = F.cross_entropy(parallel(x), y)
        engine.calls.clear()
        start = time.perf_counter()
        loss.backward()
        end = time.perf_counter()
        shares.append([(call - start) / (end - start) for call in engine.calls])
    medians = [statistics.median(each) for each in zip(*shares, strict=True)]
    yield Figure("first bucket exchanged at this share of the walk", medians[0], FIRST_TARGET,
                 note="all: " + ", ".join(f"{share:.2f}" for share in medians))


# -- several processes -----------------------------------------------------------------------------


def measured(options: Options, name: str, ranks: int) -> dict[str, Any]:
    """What the ranks print."""
    mpiexec = Path(sys.executable).with_name("mpiexec")
    command = [str(mpiexec) if mpiexec.exists() else "mpiexec", "-n", str(ranks), sys.executable,
               str(STEPS), name, str(options.rounds)]
    done = subprocess.run(command, capture_output=True, text=True, check=True,
                          stdin=subprocess.DEVNULL, timeout=540,
                          env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"})
    return json.loads(done.stdout.splitlines()[-1])


def steps(options: Options, name: str, ranks: int) -> Iterator[Part]:
    """Ratios of medians of each way's steps."""
    seconds = measured(options, name, ranks)["seconds"]
    median = {way: statistics.median(found) for way, found in seconds.items()}
    best = {way: min(found) for way, found in seconds.items()}
    whole, part = median["one rank"], f"{name}, {ranks} ranks"
    print("  ".join(f"{way} {value * 1e3:.1f} ms" for way, value in median.items()))
    for way in ("no exchange", "overlapped", "after the walk"):
        if way in median:
            judged = way == "overlapped" and ranks == 2
            # A Figure's target is a most; so the share that is lost is judged.
            yield Figure(f"{part}: weak efficiency lost, {way}", 1 - whole / median[way],
                         round(1 - EFFICIENCY_TARGET, 2) if judged else None,
                         note=f"efficiency {whole / median[way]:.0%}, of the quickest steps "
                              f"{best['one rank'] / best[way]:.0%}")
    links = [way.removeprefix("overlapped ") for way in median if way.startswith("overlapped ")]
    for label in links:
        gain = median[f"after the walk {label}"] / median[f"overlapped {label}"]
        judged = label == "1 GB/s"
        yield Figure(f"{part}, link of {label}: overlapped over after the walk", 1 / gain,
                     round(1 / OVERLAP_TARGET, 4) if judged else None, "x", f"{gain:.2f}x quicker")


def memory(options: Options) -> Iterator[Part]:
    """Of two ranks."""
    found = measured(Options("cpu", 1, True, 1), "digits", 2)
    yield Figure("gradients and buckets over the gradients", found["gradients"], 1.001, "x")
    yield Figure("a rank's optimizer state over the whole, 2 ranks", found["state"], 1.05 / 2, "x")


if __name__ == "__main__":
    sys.exit(main(__doc__, build, "ladder_distributed"))

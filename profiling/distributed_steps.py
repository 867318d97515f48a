"""The ranks of `ladder_distributed.py`: steps of data parallel training, timed side by side.

    mpiexec -n 2 python profiling/distributed_steps.py digits ROUNDS

Every round runs each way to take a step, in turns. The first rank prints a line of JSON: the
seconds of all steps of each way, the slowest rank's, and figures of memory.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import gtensor as gt
from gtensor import nn
from gtensor.backend import owner
from gtensor.distributed import (
    Communicator,
    DataParallel,
    ZeroOptimizer,
    convert_sync,
    init,
)
from gtensor.distributed.communicator import Engine
from gtensor.nn import functional as F
from gtensor.optim import AdamW
from gtensor.train import digits

STEPS = 8  # of one way in a round
LATENCY = 50e-6  # seconds of an emulated link


class Link:
    """An engine whose collectives are done no sooner than a link of that bandwidth would.

    Args:
        bytes_per_second: 0 for the engine's own speed.
        early: whether a collective begins when it is called; else when it is waited for, which is
            behind the walk.
    """

    def __init__(self, engine: Engine, bytes_per_second: float, early: bool) -> None:
        self.engine, self.speed, self.early = engine, bytes_per_second, early
        self.name, self.rank, self.size = engine.name, engine.rank, engine.size
        self.free = 0.0  # when the link is free again
        self.exchange, self.abort = engine.exchange, engine.abort
        self.gather = engine.gather
        self.all_gather, self.broadcast = engine.all_gather, engine.broadcast

    def all_reduce(self, array: Any, op: str) -> Sent:
        return Sent(self, lambda: self.engine.all_reduce(array, op), array.nbytes)

    def split(self, color: int, key: int) -> Link:
        return Link(self.engine.split(color, key), self.speed, self.early)

    def due(self, nbytes: int) -> float:
        """When so many bytes that are sent now are there."""
        if not self.speed:
            return 0.0
        share = 2 * (self.size - 1) / self.size  # of a ring's steps
        self.free = max(self.free, time.perf_counter()) + LATENCY + share * nbytes / self.speed
        return self.free


class Sent:
    """A collective over a link."""

    def __init__(self, link: Link, start: Callable[[], Any], nbytes: int) -> None:
        self.link, self.start, self.nbytes = link, start, nbytes
        self.pending: Any = None
        if link.early:
            self._begin()

    def _begin(self) -> None:
        self.pending = self.start()
        self.due = self.link.due(self.nbytes)

    def leave(self) -> None:
        if self.pending is not None:
            self.pending.leave()

    def watch(self, seconds: float, late: Callable[[], Exception]) -> None:
        """Nothing: each wait has its deadline."""

    def done(self) -> bool:
        return self.pending is not None and self.pending.done() and (
            time.perf_counter() >= self.due)

    def wait(self, seconds: float) -> bool:
        if self.pending is None:
            self._begin()
        ended = self.pending.wait(seconds)
        time.sleep(max(0.0, self.due - time.perf_counter()))
        return ended


def network(name: str) -> tuple[nn.Module, gt.Tensor, gt.Tensor]:
    """A network and a batch of a rank: the digits', or dense layers of which 34 MB are exchanged.
    """
    gt.manual_seed(0)
    rng = np.random.default_rng(0)
    if name == "digits":
        data = digits.data()
        return digits.model(), gt.tensor(data.train[:64]), gt.tensor(data.train_labels[:64])
    layers = [layer for _ in range(8) for layer in (nn.Linear(1024, 1024), nn.ReLU())]
    return (nn.Sequential(*layers, nn.Linear(1024, 10)),
            gt.tensor(rng.standard_normal((32, 1024)).astype(np.float32)),
            gt.tensor(rng.integers(0, 10, 32)))


def step(name: str, comm: Communicator | None) -> Callable[[], None]:
    """Forward, backward and update; over the ranks of a communicator, or of this rank alone."""
    model, x, y = network(name)
    if comm is not None:
        model = DataParallel(convert_sync(model, comm), comm)
    optimizer = AdamW(model.parameters(), lr=1e-3)

    def run() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()

    return run


def over(comm: Communicator, bytes_per_second: float, early: bool) -> Communicator:
    """The ranks, over a link."""
    return Communicator(Link(comm._engine, bytes_per_second, early), comm.timeout)


def timed(comm: Communicator, runs: dict[str, Callable[[], None]], rounds: int
          ) -> dict[str, list[float]]:
    """Seconds of a step of each way, the slowest rank's; "one rank" is that of the first alone."""
    found: dict[str, list[float]] = {way: [] for way in runs}
    for number in range(rounds + 1):  # the first warms up
        for way, run in runs.items():
            comm.barrier()
            start = time.perf_counter()
            if way != "one rank" or comm.rank == 0:
                for _ in range(STEPS):
                    run()
            taken = np.array([(time.perf_counter() - start) / STEPS])
            comm.all_reduce(taken, "max")
            if number:
                found[way].append(float(taken[0]))
    return found


def exchanges(comm: Communicator, rounds: int) -> list[list[float]]:
    """Bytes, and the median seconds of a sum of so many over the ranks."""
    found = []
    for elements in (1, 1 << 8, 1 << 12, 1 << 16, 1 << 19, 1 << 21):
        array, seconds = np.ones(elements, np.float32), []
        for _ in range(rounds + 2):
            comm.barrier()
            start = time.perf_counter()
            comm.all_reduce(array)
            seconds.append(time.perf_counter() - start)
        found.append([array.nbytes, float(np.median(seconds[2:]))])
    return found


def memory(comm: Communicator) -> dict[str, float]:
    """Bytes of gradients and buckets over those of the gradients; state of a rank over the whole.
    """
    model, x, y = network("digits")
    parallel = DataParallel(model, comm)
    F.cross_entropy(parallel(x), y).backward()
    gradients = [p.grad for p in parallel.parameters()]
    held = {id(owner(g._array)): owner(g._array).nbytes for g in gradients}
    for bucket in parallel._reducer.buckets:
        held[id(owner(bucket.flat))] = owner(bucket.flat).nbytes
    optimizer = ZeroOptimizer(parallel.parameters(), AdamW, comm)
    own = sum(a.nbytes for slots in optimizer._slots for slot in slots for a in slot.state)
    whole = 2 * sum(g.nbytes for g in gradients)
    return {"gradients": sum(held.values()) / sum(g.nbytes for g in gradients),
            "state": float(comm.all_reduce(np.array([own / whole]), "max").wait()[0])}


def main(name: str, rounds: int) -> None:
    comm = init("mpi")
    fast, ways = name == "digits", {"one rank": step(name, None)}
    ways["no exchange"] = ways["one rank"]  # all ranks compute at once
    for label, speed in ({"": 0.0, " 10 MB/s": 1e7} if fast else {" 1 GB/s": 1e9}).items():
        ways["overlapped" + label] = step(name, over(comm, speed, True))
        ways["after the walk" + label] = step(name, over(comm, speed, False))
    result: dict[str, Any] = {"seconds": timed(comm, ways, rounds), **memory(comm),
                              "exchanges": exchanges(comm, rounds)}
    if comm.rank == 0:
        print(json.dumps(result))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))

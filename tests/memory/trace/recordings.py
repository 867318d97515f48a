"""Recordings for tests: random work on a simulated device, and a step of a small network."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache

from simulated import SimulatedSegments

import gtensor as gt
from gtensor.memory import Arena, History, OutOfMemoryError, Timeline, category
from gtensor.system.bus import here, phase

MIB = 1 << 20


def random_work(seed: int, events: int = 400, most: int = 1_000_000) -> Timeline:
    """A closed recording of allocations and frees, some blocks older and some younger than it.

    Segments come and go, a request fails, and blocks are made in modules, phases and categories.
    """
    rng = random.Random(seed)
    arena = Arena(SimulatedSegments(256 * MIB), "cuda:1")
    live = [arena.allocate(rng.randrange(1, MIB), 0, "old") for _ in range(20)]
    recording = Timeline(arena, most)
    while recording.recorded < events:
        here.module = f"Net.layer{rng.randrange(3)}"
        if rng.random() < 0.05:
            with phase("backward"):
                live += [recording.allocate(rng.randrange(1, MIB), 0, "matmul") for _ in range(3)]
        if rng.random() < 0.03:
            live.clear()
            recording.empty_cache()
        if live and rng.random() < 0.5:
            live.pop(rng.randrange(len(live)))
        else:
            with category(rng.choice(("", "", "data", "mine"))):
                live.append(recording.allocate(rng.randrange(0, MIB), 0, rng.choice(
                    ("add", "workspace", "conv2d", ""))))
    here.module = ""
    try:
        recording.allocate(1 << 40, 0, "huge")
    except OutOfMemoryError:
        recording.close()
    return recording


@cache
def random_history(seed: int, events: int = 400, most: int = 1_000_000) -> History:
    """That of `random_work`, made once."""
    return random_work(seed, events, most).history()


class Net(gt.nn.Module):
    """Two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = gt.nn.Linear(32, 64)
        self.rest = gt.nn.ModuleList([gt.nn.Linear(64, 8)])

    def forward(self, x: gt.Tensor) -> gt.Tensor:
        return self.rest[0](self.first(x).relu())


def training() -> Callable[[], None]:
    """A step of training to be called again and again; run it with every array in the arena."""
    net = Net()
    optimizer = gt.optim.AdamW(net.parameters(), lr=1e-3)
    x = gt.random.normal((16, 32))

    def step() -> None:
        optimizer.zero_grad()
        (net(x) ** 2).mean().backward()
        optimizer.step()

    return step

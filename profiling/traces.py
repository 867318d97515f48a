"""Traces: the allocations and frees of a few training steps, recorded once, replayed at will.

    python profiling/traces.py                      # record all into profiling/traces/
    python profiling/traces.py digits               # one

`digits` trains the digits recipe's network, `transformer` four nn.TransformerEncoderLayer; both
with AdamW, from the first parameter on, recorded on the CPU with every array in the arena, as on a
GPU. `random` is sizes from 1 KiB to 16 MiB with random lifetimes, the same in each iteration.

A trace is JSON: `requests` are [bytes, label] by number; `events` are a list per iteration, of k
for the k-th request and ~k for its free. The first iteration has the setup in it and makes what
stays.
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

import gtensor as gt

FOLDER = Path(__file__).resolve().parent / "traces"
ITERATIONS = 4  # the first with the setup


@dataclass(frozen=True)
class Trace:
    """What a program asked for: bytes and label by request, and the events of each part."""

    name: str
    requests: tuple[tuple[int, str], ...]
    parts: tuple[tuple[int, ...], ...]

    @property
    def peak(self) -> int:
        """Most bytes alive at a time, as requested."""
        live = most = 0
        for part in self.parts:
            for event in part:
                live += self.requests[event][0] if event >= 0 else -self.requests[~event][0]
                most = max(most, live)
        return most

    def save(self, folder: Path) -> Path:
        """Write the trace, a part per line."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.name}.json"
        parts = ",\n  ".join(json.dumps(part, separators=(",", ":")) for part in self.parts)
        requests = json.dumps(self.requests, separators=(",", ":"))
        path.write_text(f'{{"name": "{self.name}",\n "requests": {requests},\n'
                        f' "events": [\n  {parts}]}}\n')
        return path


def load(name: str, folder: Path = FOLDER) -> Trace:
    """A recorded trace."""
    found = json.loads((folder / f"{name}.json").read_text())
    return Trace(found["name"], tuple((nbytes, label) for nbytes, label in found["requests"]),
                 tuple(map(tuple, found["events"])))


def recorded(name: str, steps: Callable[[], Iterator[None]]) -> Trace:
    """The trace of a program that yields after each iteration."""
    gc.collect()
    with gt.settings.override(arena_min_bytes=0), gt.memory.record("cpu") as recording:
        running = steps()
        for iteration in range(ITERATIONS):
            if iteration:
                recording.mark()
            next(running)
        cuts = [*recording.marks, len(recording.events)]
        running.close()
    parts = tuple(tuple(recording.events[a:b]) for a, b in pairwise(cuts))
    return Trace(name, tuple((r.nbytes, r.label) for r in recording.requests), parts)


# -- workloads -------------------------------------------------------------------------------------


def digits() -> Iterator[None]:
    """Steps of the digits recipe's network on noise: 512 pictures of 8 x 8."""
    from gtensor.train import digits as recipe

    rng = np.random.default_rng(0)
    gt.manual_seed(0)
    model = recipe.model()
    yield from training(model, lambda: (
        gt.tensor(rng.random((512, 1, 8, 8), np.float32)), gt.tensor(rng.integers(0, 10, 512))),
        gt.nn.functional.cross_entropy)


def transformer(layers: int = 4, width: int = 256, length: int = 128) -> Iterator[None]:
    """Steps of an encoder stack on noise: 8 sequences of 128 vectors of 256, 8 heads."""
    rng = np.random.default_rng(0)
    gt.manual_seed(0)
    model = gt.nn.Sequential(*(
        gt.nn.TransformerEncoderLayer(width, 8, 4 * width, batch_first=True)
        for _ in range(layers)), gt.nn.Linear(width, width))
    yield from training(model, lambda: (
        gt.tensor(rng.standard_normal((8, length, width), np.float32)),
        gt.tensor(rng.standard_normal((8, length, width), np.float32))),
        gt.nn.functional.mse_loss)


def training(model: gt.nn.Module, batch: Callable[[], tuple[gt.Tensor, gt.Tensor]],
             criterion: Callable[[gt.Tensor, gt.Tensor], gt.Tensor]) -> Iterator[None]:
    """Forward, backward, update, in the usual order."""
    optimizer = gt.optim.AdamW(model.parameters())
    while True:
        inputs, target = batch()
        loss = criterion(model(inputs), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield


def random(requests: int = 1000, seed: int = 0) -> Trace:
    """Sizes uniform in their logarithm; lifetimes as well, from 1 to 500 further events."""
    rng = np.random.default_rng(seed)
    sizes = np.exp2(rng.uniform(10, 24, requests)).astype(int)
    births = np.arange(requests) + rng.uniform(0, 1, requests)
    deaths = births + np.exp2(rng.uniform(0, 9, requests))
    moments = sorted([(float(t), k) for k, t in enumerate(births)]
                     + [(float(t), ~k) for k, t in enumerate(deaths)])
    part = [event for _, event in moments]
    again = [[event + i * requests if event >= 0 else event - i * requests for event in part]
             for i in range(ITERATIONS)]
    asked = tuple((int(size), f"op{k % 17}") for k, size in enumerate(sizes)) * ITERATIONS
    return Trace("random", asked, tuple(map(tuple, again)))


TRACES: dict[str, Callable[[], Trace]] = {
    "digits": lambda: recorded("digits", digits),
    "transformer": lambda: recorded("transformer", transformer),
    "random": random,
}


def main(names: list[str]) -> int:
    """Record the named traces, all without a name. Exit status 64 for a name there is not."""
    unknown = [name for name in names if name not in TRACES]
    if unknown:
        print(f"no trace {', '.join(unknown)}; there are {', '.join(TRACES)}", file=sys.stderr)
        return 64
    gt.set_default_device("cpu")
    for name in names or TRACES:
        trace = TRACES[name]()
        path = trace.save(FOLDER)
        print(f"{path.name}: {len(trace.requests)} allocations in {len(trace.parts)} iterations, "
              f"at most {trace.peak:,} bytes alive, {path.stat().st_size:,} bytes of JSON")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

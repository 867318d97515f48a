"""Race tests of gtensor: programs on several streams, in random orders that CUDA allows.

With gtensor's ordering no seed may give a wrong result; with one of its parts taken away most seeds
must, or the programs prove nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

import gtensor as gt
from gtensor import hostcuda
from gtensor.backend.ordering import Ordering

pytestmark = pytest.mark.host_cuda
SEEDS = range(12)
MOST = 0.7  # of the seeds


def chain() -> bool:
    """Two streams take turns, each reading what the other wrote last."""
    x, wanted = gt.ones(64, device="cuda"), np.ones(64, np.float32)
    streams = [gt.stream("cuda"), gt.stream("cuda")]
    for turn in range(8):
        with streams[turn % 2]:
            x = x * 2.0 + float(turn)
        wanted = wanted * 2 + turn
    return np.array_equal(x.numpy(), wanted)


def reuse() -> bool:
    """A block is freed and written again by its stream while another still has to read it."""
    own, other = gt.stream("cuda"), gt.stream("cuda")
    sums = []
    for turn in range(6):
        with own:
            x = gt.ones(64, device="cuda") * float(turn)
        with other:
            sums.append(x + 1.0)
        del x
        with own:
            gt.ones(64, device="cuda") * 100.0
    return all((each.numpy() == turn + 1).all() for turn, each in enumerate(sums))


def in_place() -> bool:
    """What one stream reads, another then writes in place."""
    own, other = gt.stream("cuda"), gt.stream("cuda")
    x, seen = gt.zeros(64, device="cuda"), []
    for _ in range(6):
        with own:
            x += 1.0
        with other:
            seen.append(x * 1.0)
    return all((each.numpy() == turn + 1).all() for turn, each in enumerate(seen))


def backward() -> bool:
    """A gradient is computed on another stream than the forward pass, and read on a third."""
    own, other = gt.stream("cuda"), gt.stream("cuda")
    with own:
        x = gt.tensor(np.full(64, 3, np.float32), device="cuda", requires_grad=True)
        y = (x * x * x).sum()
    with other:
        y.backward()
    return (x.grad.numpy() == 27).all()


def graph() -> bool:
    """A graph is replayed on one stream, its input written and its output read on others."""
    own, writer, reader = (gt.stream("cuda") for _ in range(3))
    x, seen = gt.zeros(64, device="cuda"), []
    with gt.no_grad():
        captured = gt.Graph("cuda")
        with captured.capture():
            y = x * 2.0 + 1.0
        for _ in range(4):
            with writer:
                x += 1.0
            with own:
                captured.replay()
            with reader:
                seen.append(y * 1.0)
    return all((each.numpy() == 2 * turn + 3).all() for turn, each in enumerate(seen))


def training() -> bool:
    """Steps of training whose batches come in on another stream."""
    gt.manual_seed(0)
    loading = gt.stream("cuda")
    model = gt.nn.Linear(4, 2, device="cuda")
    optimizer = gt.optim.SGD(model.parameters(), lr=0.1)
    weight, bias = model.weight.numpy().copy(), model.bias.numpy().copy()
    for turn in range(4):
        batch = np.arange(12, dtype=np.float32).reshape(3, 4) / 10 + turn
        with loading:
            x = (gt.tensor(batch, device="cuda") * 2.0 - 1.0) / 2.0 + 0.5
        (model(x) ** 2).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        g = 2 * (batch @ weight.T + bias)
        weight, bias = weight - 0.1 * g.T @ batch, bias - 0.1 * g.sum(0)
    return np.allclose(model.weight.numpy(), weight, rtol=1e-4)


PROGRAMS = [graph, training, chain, reuse, in_place, backward]


def nothing(*_: Any) -> None:
    """Takes the place of a part of the ordering."""


def without(*names: str) -> AbstractContextManager[Any]:
    stack = ExitStack()
    for name in names:
        stack.enter_context(patch.object(Ordering, name, nothing))
    return stack


def right(program: Callable[[], bool]) -> float:
    """The share of seeds with the right result."""
    count = 0
    for seed in SEEDS:
        hostcuda.configure("deferred", seed)
        count += bool(program())
    return count / len(SEEDS)


@pytest.mark.parametrize("program", PROGRAMS)
def test_no_seed_gives_a_wrong_result(program):
    assert right(program) == 1


@pytest.mark.parametrize(("program", "parts"), [
    (chain, ("read", "write", "behind_all")),
    (chain, ("read",)),
    (reuse, ("_note",)),
    (in_place, ("write",)),
    (graph, ("read", "write")),
    (training, ("read", "write", "behind_all")),
    (backward, ("read", "write", "behind_all")),
])
def test_without_a_part_of_the_ordering_most_do(program, parts):
    with without(*parts):
        assert right(program) <= 1 - MOST

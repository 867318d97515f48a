"""Captured steps of several ranks: bit for bit those of ranks that do not capture."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gtensor as gt
from distributed.ranks import in_threads, run_ranks
from distributed.test_data_parallel import Branches, make
from gtensor import nn, optim
from gtensor.distributed import Communicator, DataParallel, ZeroOptimizer, convert_sync
from gtensor.nn import functional as F

CALLS = 6
PARTS = {1: [5], 2: [4, 3], 3: [3, 0, 4]}


def batches(comm: Communicator, shape: tuple[int, ...], seed: int = 0
            ) -> list[tuple[gt.Tensor, gt.Tensor]]:
    """This rank's parts, which nobody else has."""
    rng = np.random.default_rng((seed, comm.rank))
    n = PARTS[comm.size][comm.rank]
    return [(gt.tensor(rng.standard_normal((n, *shape))), gt.tensor(rng.standard_normal((n, 3))))
            for _ in range(CALLS)]


def stepping(comm: Communicator, name: str, kind: str = "plain", **options: Any) -> Any:
    """A step of a network, its parameters, and its batches."""
    net, shape = make(name, comm.rank)
    parameters = list(net.parameters())
    model = DataParallel(convert_sync(net, comm), comm, **options)
    optimizer: Any = (ZeroOptimizer(parameters, optim.AdamW, comm, lr=0.01) if kind == "zero"
                      else optim.AdamW(parameters, lr=0.01))
    schedule = optim.lr_scheduler.StepLR(optimizer, 2, 0.5)

    def loss_of(x: gt.Tensor, y: gt.Tensor) -> gt.Tensor:
        found = model(x)
        return F.mse_loss(found.sum(1) if found.ndim == 3 else found, y)

    def step(x: gt.Tensor, y: gt.Tensor) -> Any:
        optimizer.zero_grad()
        if kind == "accumulated":
            with model.no_sync():
                loss_of(x * 2, y).backward()
        loss = loss_of(x, y)
        loss.backward()
        norm = (optimizer if kind == "zero" else nn.utils).clip_grad_norm_(
            *(() if kind == "zero" else (parameters,)), 0.5)
        optimizer.step()
        schedule.step()
        return loss.detach(), norm

    return step, parameters, batches(comm, shape)


def trained(comm: Communicator, captured: bool, name: str, kind: str = "plain",
            options: dict[str, Any] | None = None, **of_capture: Any) -> list[bytes]:
    step, parameters, given = stepping(comm, name, kind, **options or {})
    if captured:
        step = gt.capture(step, **of_capture)
    found = []
    with np.errstate(all="ignore"):  # of an empty part
        for batch in given:
            found += [x.numpy().tobytes() for x in step(*batch)]
            found += [p.grad.numpy().tobytes() for p in parameters]
    if captured:
        assert len(step.programs) == 1, step.report()
    return [*found, *(p.numpy().tobytes() for p in parameters)]


@pytest.mark.parametrize("name", ["mlp", "transformer", "convolutions"])
@pytest.mark.parametrize("size", PARTS)
def test_training_is_the_same(name: str, size: int) -> None:
    assert in_threads(size, trained, True, name) == in_threads(size, trained, False, name)


@pytest.mark.parametrize("options", [
    {"options": {"bucket_cap_mb": 1e-4}}, {"options": {"gradient_as_bucket_view": False}},
    {"fuse": False}, {"kind": "accumulated"}, {"kind": "zero"}, {"check": 2}])
def test_options(options: dict[str, Any]) -> None:
    def run(comm: Communicator, captured: bool) -> list[bytes]:
        given = options if captured else {k: v for k, v in options.items()
                                          if k not in ("fuse", "check")}
        return trained(comm, captured, "mlp", **given)

    assert in_threads(2, run, True) == in_threads(2, run, False)


@pytest.mark.parametrize("kind", ["plain", "zero"])
def test_processes(kind: str) -> None:
    assert run_ranks(3, trained, True, "mlp", kind) == run_ranks(3, trained, False, "mlp", kind)

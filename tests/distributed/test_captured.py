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
from gtensor.engine.handle.context import EXCHANGES
from gtensor.execution.steps import flow, fusing, passes
from gtensor.execution.steps.comparing import values_of
from gtensor.execution.steps.recorder import Call
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


# -- collectives by themselves ---------------------------------------------------------------------

Collectives = Callable[[Communicator], Callable[[gt.Tensor], Any]]


def in_place(comm: Communicator) -> Callable[[gt.Tensor], Any]:
    def step(x: gt.Tensor) -> Any:
        y = x * 2
        comm.all_reduce(y)
        z = y + 1
        comm.broadcast(z, root=comm.size - 1)
        factor = x.sum().requires_grad_()
        (slope,) = gt.grad([factor * 2.0], [factor])  # which depends on no argument
        comm.all_reduce(slope)
        comm.barrier()
        return (z * slope - y,)

    return step


def under_way(comm: Communicator) -> Callable[[gt.Tensor], Any]:
    """Two at once; meanwhile other work, which may not move into what is under way."""
    kept = gt.zeros(5)

    def step(x: gt.Tensor) -> Any:
        a, b = x * 2, x + 1
        first = comm.all_reduce(a, "mean", async_op=True)
        second = comm.all_gather(b, async_op=True)
        c = x * 3 + 1
        kept[...] = first.wait()
        return second.wait().sum(0) * c + a * 2, kept * 1, b + a

    return step


def into_given(comm: Communicator) -> Callable[[gt.Tensor], Any]:
    rows, part = gt.zeros((comm.size, 5)), gt.zeros(5)

    def step(x: gt.Tensor) -> Any:
        comm.all_gather(x * 2, rows)
        comm.reduce_scatter(rows * (comm.rank + 1.0), out=part, op="max")
        comm.all_reduce(x)  # an argument
        wide = gt.stack([x, x * 3], -1)
        comm.all_reduce(wide[:, 1])  # strided
        return rows.sum(0) + part, wide

    return step


def with_gradients(comm: Communicator) -> Callable[[gt.Tensor], Any]:
    from gtensor.distributed import all_gather, all_reduce, reduce_scatter

    w = gt.full((5,), 1.0 + comm.rank, requires_grad=True)

    def step(x: gt.Tensor) -> Any:
        w.grad = None
        y = all_reduce(x * w, comm)
        z = all_gather(y * y, comm)
        loss = (reduce_scatter(z * w, comm) * x).sum()
        loss.backward()
        return loss.detach(), w.grad.clone()

    return step


def crossed(comm: Communicator) -> Callable[[gt.Tensor], Any]:
    """What the first one needs would be fused with what needs the second one, if they moved."""
    def step(x: gt.Tensor) -> Any:
        y = gt.stack([x, x])
        a = x * 2
        comm.all_reduce(a)
        comm.all_reduce(y)
        return a, y[0] * x

    return step


COLLECTIVES = (in_place, under_way, into_given, with_gradients, crossed)


def called(comm: Communicator, captured: bool, which: int, anew: int | None = None) -> Any:
    """Results of a step with collectives, and the shapes of what was exchanged in each call.

    Rank `anew` forgets its programs before every third call.
    """
    engine, calls = comm._engine, []
    for name in ("all_reduce", "broadcast", "all_gather", "reduce_scatter"):
        def noted(array: Any, *given: Any, _run: Any = getattr(engine, name), _name: str = name,
                  **options: Any) -> Any:
            calls.append((_name, array.shape))
            return _run(array, *given, **options)

        setattr(engine, name, noted)
    step: Any = COLLECTIVES[which](comm)
    if captured:
        step = gt.capture(step)
    results, exchanges = [], []
    for i in range(CALLS):
        if captured and comm.rank == anew and i % 3 == 2:
            step.clear()
        x = gt.tensor(np.random.default_rng((i, comm.rank)).random(5, "float32"))
        results.append([y.numpy().tobytes() for y in (*step(x), x)])
        exchanges.append([*calls])
        calls.clear()
    if captured and anew is None:
        assert "4 replays" in step.report() and len(step.programs) == 1
    return results, exchanges


@pytest.mark.parametrize("which", range(len(COLLECTIVES)), ids=lambda n: COLLECTIVES[n].__name__)
def test_collectives(which: int) -> None:
    """The same results, by the same exchanges in the same order."""
    assert in_threads(3, called, True, which) == in_threads(3, called, False, which)


def test_collectives_of_processes() -> None:
    assert run_ranks(2, all_called, True) == run_ranks(2, all_called, False)


def all_called(comm: Communicator, captured: bool) -> Any:
    return [called(comm.duplicate(), captured, which, 1 if captured else None)
            for which in range(len(COLLECTIVES))]


def dropping(listing: Any) -> None:
    """Leaves out the first collective."""
    del listing.calls[first(listing)]


def doubling(listing: Any) -> None:
    listing.calls.insert(first(listing), listing.calls[first(listing)])


def first(listing: Any) -> int:
    return next(i for i, call in enumerate(listing.calls) if getattr(call, "kind", "") == EXCHANGES)


@pytest.mark.parametrize(("name", "fault", "which"), [
    ("passes.drop_nothings", dropping, into_given),
    ("passes.drop_nothings", doubling, into_given),
    ("flow.is_effect", lambda call: not isinstance(call, Call) or call.host, crossed),
    ("flow.values_written", lambda call: [
        n for n in call.made if n is not None and n in values_of(call.args)], in_place),
])
def test_a_pass_that_moves_or_drops_a_collective_is_found(
    name: str, fault: Any, which: Collectives, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test of collectives fails with each of these faults, planted on all ranks."""
    for room in (flow, passes, fusing):
        if hasattr(room, name.partition(".")[2]):
            monkeypatch.setattr(room, name.partition(".")[2], fault)
    with pytest.raises((AssertionError, ValueError)):
        test_collectives(COLLECTIVES.index(which))

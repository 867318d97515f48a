"""Captured steps of several ranks: bit for bit those of ranks that do not capture."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gtensor as gt
from distributed.ranks import in_threads, past_first, run_ranks, start
from distributed.test_data_parallel import Branches, make
from gtensor import distributed, nn, optim
from gtensor.distributed import (
    CollectiveTimeout,
    Communicator,
    DataParallel,
    DistributedError,
    ZeroOptimizer,
    convert_sync,
)
from gtensor.nn import functional as F

CALLS = 6
PARTS = {1: [5], 2: [4, 3], 3: [3, 0, 4]}


def batches(comm: Communicator, shape: tuple[int, ...], seed: int = 0
            ) -> list[tuple[gt.Tensor, gt.Tensor]]:
    """Parts of this rank alone."""
    rng = np.random.default_rng((seed, comm.rank))
    n = PARTS[comm.size][comm.rank]
    return [(gt.tensor(rng.standard_normal((n, *shape))), gt.tensor(rng.standard_normal((n, 3))))
            for _ in range(CALLS)]


def stepping(comm: Communicator, name: str, kind: str = "plain", **options: Any) -> Any:
    """A step of a network, its parameters, and its batches."""
    net, shape = make(name, comm.rank)
    parameters = list(net.parameters())
    model: Any = net  # of "divided" the optimizer averages the gradients
    if kind != "divided":
        model = DataParallel(convert_sync(net, comm), comm, **options)
    optimizer: Any = (ZeroOptimizer(parameters, optim.AdamW, comm, lr=0.01)
                      if kind in ("zero", "divided") else optim.AdamW(parameters, lr=0.01))
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
        if kind == "scaled":
            for parameter in parameters:
                parameter.grad *= 0.5
        norm = (optimizer.clip_grad_norm_(0.5) if kind in ("zero", "divided")
                else nn.utils.clip_grad_norm_(parameters, 0.5))
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
    {"fuse": False}, {"kind": "accumulated"}, {"kind": "scaled"}, {"kind": "zero"},
    {"kind": "divided"}, {"check": 2}])
def test_options(options: dict[str, Any]) -> None:
    def run(comm: Communicator, captured: bool) -> list[bytes]:
        given = options if captured else {k: v for k, v in options.items()
                                          if k not in ("fuse", "check")}
        return trained(comm, captured, "mlp", **given)

    assert in_threads(2, run, True) == in_threads(2, run, False)


def test_numbers_are_live_where_gradients_are_exchanged() -> None:
    """Each rank has another one."""
    def run(comm: Communicator, captured: bool) -> list[bytes]:
        net, _ = make("mlp", comm.rank)
        model, (first, *_) = DataParallel(net, comm), net.parameters()
        optimizer = optim.SGD(net.parameters(), lr=0.1)

        def step(x: gt.Tensor, y: gt.Tensor, scale: float, factor: float) -> Any:
            optimizer.zero_grad()
            loss = ((model(x) * scale - y) ** 2).mean() * factor
            loss.backward()
            gradient = first.grad
            gradient /= factor
            total = loss.detach() * scale
            comm.all_reduce(total)
            optimizer.step()
            return total, loss.detach()

        replayed = gt.capture(step) if captured else step
        found = []
        for i, batch in enumerate(batches(comm, make("mlp", comm.rank)[1])):
            found += [x.numpy().tobytes() for x in replayed(*batch, 0.1 * i + comm.rank, 1.5 + i)]
        if captured:
            assert f"{CALLS - 2} replays" in replayed.report()
        return [*found, *(p.numpy().tobytes() for p in net.parameters())]

    assert in_threads(2, run, True) == in_threads(2, run, False)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["mlp", "convolutions"])
def test_on_cuda(name: str, recwarn: pytest.WarningsRecorder) -> None:
    """Call by call, of which no warning tells; the engine copies to the host, as MPI's does."""
    def run(comm: Communicator, captured: bool) -> list[bytes]:
        with gt.device("cuda"):
            return trained(comm, captured, name)

    assert in_threads(2, run, True) == in_threads(2, run, False)
    assert not [each for each in recwarn if issubclass(each.category, UserWarning)]


@pytest.mark.parametrize("kind", ["plain", "zero"])
def test_processes(kind: str) -> None:
    assert run_ranks(3, trained, True, "mlp", kind) == run_ranks(3, trained, False, "mlp", kind)


def mixed(comm: Communicator, capturing: list[int], clearing: int | None = None) -> list[bytes]:
    """Some ranks capture; one of them forgets its programs in between, and so records anew."""
    step, parameters, given = stepping(comm, "convolutions", "plain", bucket_cap_mb=1e-4)
    step = gt.capture(step)
    for i, batch in enumerate(given * 3):
        if comm.rank == clearing and i in (3, 10):
            step.clear()
        if comm.rank in capturing:
            step(*batch)
        else:
            with step.eager():
                step(*batch)
    replays = 3 * CALLS - (2 if clearing != comm.rank else 6)
    assert comm.rank not in capturing or clearing is not None or f"{replays} replays" in (
        step.report())
    return [p.numpy().tobytes() for p in parameters]


@pytest.mark.parametrize(("capturing", "clearing"), [([1], None), ([0, 1, 2], 1), ([0, 2], 2)])
def test_a_rank_may_record_while_others_replay(capturing: list[int], clearing: int | None) -> None:
    """More than 64 collectives, so that both those that ranks compare and others are mixed."""
    assert in_threads(3, mixed, capturing, clearing) == in_threads(3, mixed, [])


def test_processes_may_record_while_others_replay() -> None:
    assert run_ranks(3, mixed, [0, 1, 2], 1) == run_ranks(3, mixed, [])


# -- parameters that not all ranks use -------------------------------------------------------------


class Chosen(Branches):
    """Whose rank uses which part may change."""

    def forward(self, x: gt.Tensor, part: int) -> gt.Tensor:  # type: ignore[override]
        parts: Any = self.parts
        return parts[2](x) + parts[part](x)


def branched(comm: Communicator, captured: bool, changes: bool, kept: bool = False) -> Any:
    model = DataParallel(Chosen(comm.rank), comm, bucket_cap_mb=1e-4)
    rng = np.random.default_rng(7)
    with gt.no_grad():
        for parameter in model.parameters():
            parameter[...] = gt.tensor(rng.standard_normal(parameter.shape))
    optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(x: gt.Tensor, part: int) -> gt.Tensor:
        optimizer.zero_grad()
        if kept:  # which another backward has given a gradient on one rank
            with model.no_sync():
                model(x, 1 if comm.rank else 2).sum().backward()
        loss = model(x, part).sum()
        loss.backward()
        optimizer.step()
        return loss.detach()

    run = gt.capture(step) if captured else step
    found = []
    for i in range(CALLS):
        x = gt.tensor(np.random.default_rng((i, comm.rank)).random((2 + comm.rank, 3)))
        found.append(run(x, comm.rank if i < CALLS - 1 or not changes else 0).numpy().tobytes())
    return [*found, *(None if p.grad is None else p.grad.numpy().tobytes()
                      for p in model.parameters())]


@pytest.mark.parametrize("kept", [False, True])
def test_parameters_that_some_ranks_do_not_use(kept: bool) -> None:
    found = in_threads(2, branched, True, False, kept)
    assert found == in_threads(2, branched, False, False, kept)
    assert found[0][-2:] == [None, None] and None not in found[0][:-2]


def test_ranks_that_use_other_parameters_than_before_end_the_replays_of_others() -> None:
    with pytest.raises(DistributedError, match="found that other ranks use other parameters "):
        in_threads(2, branched, True, True)


# -- refused, and errors ---------------------------------------------------------------------------


def twice(comm: Communicator) -> None:
    model = DataParallel(nn.Linear(3, 2).double(), comm)

    def step(x: gt.Tensor) -> None:
        for parameter in model.parameters():
            parameter.grad = None
        for _ in range(2):
            model(x).sum().backward()

    captured = gt.capture(step)
    with pytest.raises(gt.CaptureError, match=r"exchanged; call zero_grad\(\) within the step"):
        captured(gt.ones((2, 3), dtype="float64"))
    eager = [p.grad.numpy().tobytes() for p in model.parameters()]
    step(gt.ones((2, 3), dtype="float64"))
    assert eager == [p.grad.numpy().tobytes() for p in model.parameters()]


def test_a_second_exchange_of_the_same_gradients_is_refused() -> None:
    in_threads(2, twice)


def continued(comm: Communicator, captured: bool, as_views: bool) -> list[bytes]:
    """After replays `backward()` outside adds to the gradients that they have stored."""
    step, parameters, given = stepping(comm, "mlp", gradient_as_bucket_view=as_views)
    found = []
    run = gt.capture(step) if captured else step
    for batch in given:
        run(*batch)
    model = step.__closure__[[*step.__code__.co_freevars].index("model")].cell_contents
    for x, _ in given[:2]:
        model(x).sum().backward()
        found += [p.grad.numpy().tobytes() for p in parameters]
    run(*given[0])
    return [*found, *(p.grad.numpy().tobytes() for p in parameters)]


@pytest.mark.parametrize("as_views", [True, False])
def test_steps_outside_continue_where_replays_have_ended(as_views: bool) -> None:
    assert in_threads(2, continued, True, as_views) == in_threads(2, continued, False, as_views)


def test_a_rank_that_does_not_come_ends_a_replay_and_the_module() -> None:
    def run(comm: Communicator) -> None:
        model = DataParallel(nn.Linear(3, 2), comm)
        past_first(model.comm)

        def step(x: gt.Tensor) -> gt.Tensor:
            for parameter in model.parameters():
                parameter.grad = None
            loss = model(x).sum()
            loss.backward()
            return loss.detach()

        captured, x = gt.capture(step), gt.ones((1, 3))
        for _ in range(3):
            captured(x)
        model.comm.timeout = 0.2
        if comm.rank == 0:
            with pytest.raises(CollectiveTimeout, match="within 0.2 s") as caught:
                captured(x)
            assert "a captured step ended at " in caught.value.__notes__[0]
            for run in (captured, step):
                with pytest.raises(DistributedError, match="end the program, and go on from a"):
                    run(x)
        comm.barrier()

    in_threads(2, run)


FAILING = """
import numpy as np, gtensor as gt
from gtensor.distributed import DataParallel
from gtensor.nn import functional as F
comm = gt.distributed.init()
net = gt.nn.Linear(3, 2)
model = DataParallel(net, comm)
optimizer = gt.optim.SGD(net.parameters(), lr=0.1)
@gt.capture
def step(x, y):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return loss
for i in range(9):
    step(gt.ones((2, 3)), gt.tensor([0, 9 if comm.rank == 1 and i == 5 else 1]))
    assert i < 2 or f"{i - 1} replays" in step.report()
"""


def test_an_error_of_one_rank_in_a_replay_ends_all_and_is_told_once(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(FAILING)
    done = start([sys.executable, "-m", "gtensor", "launch", "-n", "2", "--", sys.executable,
                  str(script)], 300)
    assert done.returncode
    assert done.stderr.startswith("rank 1 of 2: Traceback") and done.stderr.count("Traceback") == 1
    assert "target" in done.stderr and "a captured step ended at check_range" in done.stderr


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
    w = gt.full((5,), 1.0 + comm.rank, requires_grad=True)

    def step(x: gt.Tensor) -> Any:
        w.grad = None
        y = distributed.all_reduce(x * w, comm)
        z = distributed.all_gather(y * y, comm)
        loss = (distributed.reduce_scatter(z * w, comm) * x).sum()
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


def called(comm: Communicator, captured: bool, make: Collectives, anew: int | None = None) -> Any:
    """Results of a step with collectives, and the shapes of what was exchanged in each call.

    Rank `anew` forgets its programs before every third call.
    """
    engine, calls = comm._engine, []
    for name in ("all_reduce", "broadcast", "all_gather", "reduce_scatter"):
        setattr(engine, name, noting(calls, name, getattr(engine, name)))
    step: Any = make(comm)
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


def noting(calls: list[Any], name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    def noted(array: Any, *given: Any, **options: Any) -> Any:
        calls.append((name, array.shape))
        return method(array, *given, **options)

    return noted


@pytest.mark.parametrize("make", COLLECTIVES)
def test_collectives(make: Collectives) -> None:
    """The same results, by the same exchanges in the same order."""
    assert in_threads(3, called, True, make) == in_threads(3, called, False, make)


def test_collectives_of_processes() -> None:
    assert run_ranks(2, all_called, True) == run_ranks(2, all_called, False)


def all_called(comm: Communicator, captured: bool) -> Any:
    return [called(comm.duplicate(), captured, each, 1 if captured else None)
            for each in COLLECTIVES]


# -- random programs -------------------------------------------------------------------------------


def poisoned(comm: Communicator) -> None:
    """What is reduced is not a number until it was waited for, and must not be written meanwhile.
    """
    engine: Any = comm._engine
    right = engine.all_reduce

    def all_reduce(array: np.ndarray, op: str) -> Any:
        met = right(array, op)
        put = met.finish
        array[...] = np.nan

        def finish(found: list[np.ndarray]) -> None:
            assert np.isnan(array).all(), "written while it was under way"
            put(found)

        met.finish = finish
        return met

    engine.all_reduce = all_reduce


def random_step(comm: Communicator, seed: int, width: int) -> Callable[[gt.Tensor], Any]:
    """Elementwise ops, writes in place and collectives, some of them under way, in random order."""
    kept = gt.zeros((3, width))
    w = gt.tensor(np.random.default_rng(seed).random((3, width), "float32"), requires_grad=True)

    def step(x: gt.Tensor) -> Any:
        rng = np.random.default_rng(seed)
        w.grad = None
        values, begun = [x, x * 1.0, w.detach() * 0.5], []

        def some() -> gt.Tensor:
            return values[rng.integers(len(values))]

        for _ in range(25):
            kind = rng.integers(8)
            if kind < 2:
                values.append(some() * some().tanh() + 0.5)
            elif kind == 2:
                y = some() * 0.3
                y += some()
                comm.all_reduce(y, ("sum", "mean", "max")[rng.integers(3)])
                values.append(y)
            elif kind == 3:
                begun.append(comm.all_reduce(some() * 0.3, "mean", async_op=True))
            elif kind == 4:
                begun.append(comm.all_gather(some() + 1.0, async_op=True))
            elif kind == 5 and begun:
                found = begun.pop(rng.integers(len(begun))).wait()
                values.append(found if found.ndim == 2 else found[0] - found.sum(0))
            elif kind == 6:
                kept[...] = some()
                values.append(kept * 1.0)
            elif kind == 7:
                values.append(distributed.all_reduce(some() * 0.2, comm))
        for work in begun:
            work.wait()
        loss = (distributed.all_reduce(values[-1] * w, comm) * values[-2]).mean()
        loss.backward()
        return loss.detach(), values[-1] * 1.0, values[len(values) // 2] * 1.0, w.grad * 1.0, kept

    return step


@pytest.mark.parametrize("seed", range(10))
def test_random_programs_have_the_same_bits(seed: int) -> None:
    def run(comm: Communicator, captured: bool) -> list[bytes]:
        poisoned(comm)
        step = random_step(comm, seed, (5, 7000)[seed % 2])  # of a tile, and of several ones
        if captured:
            step = gt.capture(step)
        rng = np.random.default_rng((seed, comm.rank))
        return [y.numpy().tobytes() for _ in range(4)
                for y in step(gt.tensor(rng.random((3, (5, 7000)[seed % 2]), "float32")))]

    assert in_threads(2, run, True) == in_threads(2, run, False)

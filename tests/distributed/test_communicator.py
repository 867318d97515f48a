"""Collectives: values, arrays of all kinds, deadlines, and calls that do not fit together."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import gtensor as gt
from distributed.ranks import in_threads, past_first, run_ranks, until
from gtensor import distributed
from gtensor.distributed import CollectiveTimeout, Communicator, DistributedError
from gtensor.distributed.alone import Alone
from gtensor.distributed.communicator import EVERY, FIRST
from gtensor.settings import settings

DTYPES = ("float16", "bfloat16", "float32", "float64", "int32", "int64", "complex64", "complex128")


def values(rank: int, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    found = np.random.default_rng(rank).integers(-4, 5, shape)
    return found.astype(getattr(ml_dtypes, dtype, dtype))


def collectives(comm: Communicator, shape: list[int], dtype: str) -> list[Any]:
    """Each collective on arrays of a rank, at once and later, contiguous and strided."""
    rank, size = comm.rank, comm.size
    shape = tuple(shape)
    found: list[Any] = []
    for async_op in (False, True):
        a = values(rank, shape, dtype)
        assert comm.all_reduce(a, async_op=async_op).wait() is a
        wide = np.zeros((*shape, 2), a.dtype)
        wide[..., 1] = values(rank, shape, dtype)
        comm.all_reduce(wide[..., 1], "sum", async_op).wait()
        assert not wide[..., 0].any() and np.array_equal(wide[..., 1], a)
        b = values(rank, shape, dtype)
        comm.broadcast(b, size - 1, async_op).wait()
        gathered = comm.all_gather(values(rank, shape, dtype), async_op=async_op).wait()
        out = np.empty((*shape, size, 2), a.dtype)[..., 0]
        out = np.moveaxis(out, -1, 0)
        assert comm.all_gather(values(rank, shape, dtype), out, async_op).wait() is out
        assert np.array_equal(out, gathered)
        parts = values(rank, (size, *shape), dtype)
        kept = parts.copy()
        mine = comm.reduce_scatter(parts, async_op=async_op).wait()
        assert np.array_equal(parts, kept)
        own = np.zeros((size, *shape), a.dtype)
        own[rank] = values(rank, shape, dtype)
        comm.all_gather(own[rank:rank + 1][0], own, async_op).wait()
        assert np.array_equal(own, gathered)
        found += [a, b, gathered, mine]
    return [x.astype(complex) for x in found]


def expected(rank: int, size: int, shape: tuple[int, ...], dtype: str) -> list[np.ndarray]:
    every = [values(r, shape, dtype).astype(complex) for r in range(size)]
    parts = [values(r, (size, *shape), dtype).astype(complex) for r in range(size)]
    return 2 * [sum(every), every[-1], np.stack(every), sum(parts)[rank]]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (3, 5), (0, 2)])
def test_values_in_threads(dtype: str, shape: tuple[int, ...]) -> None:
    for size in (1, 3):
        for rank, found in enumerate(in_threads(size, collectives, shape, dtype)):
            for got, wanted in zip(found, expected(rank, size, shape, dtype), strict=True):
                np.testing.assert_array_equal(got, wanted)


def over_mpi(comm: Communicator) -> list[Any]:
    return [collectives(comm, shape, dtype) for dtype in DTYPES for shape in ([], [3, 5], [0, 2])]


@pytest.mark.parametrize("size", [1, 2, 4])
def test_values_over_mpi(size: int) -> None:
    cases = [(shape, dtype) for dtype in DTYPES for shape in ((), (3, 5), (0, 2))]
    for rank, found in enumerate(run_ranks(size, over_mpi)):
        for (shape, dtype), got in zip(cases, found, strict=True):
            for one, wanted in zip(got, expected(rank, size, shape, dtype), strict=True):
                np.testing.assert_array_equal(one, wanted)


def groups(comm: Communicator) -> list[Any]:
    odd = comm.split(comm.rank % 2, -comm.rank)
    total = odd.all_reduce(np.array([comm.rank])).wait()
    other = comm.duplicate()
    late = comm.all_reduce(np.array([1.0]), "mean", async_op=True)
    assert other.all_gather_object({"rank": comm.rank})[-1] == {"rank": comm.size - 1}
    comm.barrier()
    largest = comm.all_reduce(np.array([comm.rank, -comm.rank]), "max").wait()
    return [odd.rank, odd.size, int(total[0]), float(late.wait()[0]), largest.tolist()]


@pytest.mark.parametrize("run", [in_threads, run_ranks])
def test_groups_have_an_order_of_their_own(run: Any) -> None:
    assert run(3, groups) == [[1, 2, 2, 1.0, [2, 0]], [0, 1, 1, 1.0, [2, 0]],
                              [0, 2, 2, 1.0, [2, 0]]]


def test_a_tensors_write_is_counted() -> None:
    comm = Communicator(Alone())
    x, w = gt.tensor([1.0, 2.0]), gt.tensor([3.0, 4.0], requires_grad=True)
    y = (w * x).sum()
    assert comm.broadcast(x).wait() is x
    with pytest.raises(gt.GradientError, match="overwritten"):
        y.backward()
    with pytest.raises(gt.GradientError, match=r"in-place all_reduce on .* requires a"):
        comm.all_reduce(w)
    with gt.no_grad():
        comm.all_reduce(w)
    y = (w * 2).sum()
    y.backward()
    assert w.grad.tolist() == [2.0, 2.0]


def differentiated(comm: Communicator) -> list[Any]:
    """The gradient of the sum of all ranks' losses."""
    rng = np.random.default_rng(comm.rank)
    x = gt.tensor(rng.standard_normal((comm.size, 3)), requires_grad=True)
    summed = distributed.all_reduce(x, comm)
    gathered = distributed.all_gather(x, comm)
    part = distributed.reduce_scatter(x, comm)
    weights = [gt.tensor(rng.standard_normal(y.shape)) for y in (summed, gathered, part)]
    loss = sum(((y**2 * w).sum() for y, w in zip((summed, gathered, part), weights, strict=True)),
               start=gt.tensor(0.0, dtype="float64"))
    (grad,) = gt.grad(loss, [x], create_graph=True)
    grad.sum().backward()
    return [x.numpy(), [w.numpy() for w in weights], loss.item(), grad.numpy(), x.grad.numpy()]


def test_gradients_are_those_of_the_sum_of_all_losses() -> None:
    size = 3
    found = in_threads(size, differentiated)
    xs = [gt.tensor(one[0], requires_grad=True) for one in found]
    summed, gathered = sum(xs[1:], start=xs[0]), gt.stack(xs)
    losses = []
    for rank, one in enumerate(found):
        ys, ws = (summed, gathered, summed[rank]), map(gt.tensor, one[1])
        losses.append(sum(((y**2 * w).sum() for y, w in zip(ys, ws, strict=True)),
                          start=gt.tensor(0.0, dtype="float64")))
        assert losses[-1].item() == pytest.approx(one[2], rel=1e-13)
    grads = gt.grad(sum(losses[1:], start=losses[0]), xs, create_graph=True)
    sum((g.sum() for g in grads), start=gt.tensor(0.0, dtype="float64")).backward()
    for x, grad, one in zip(xs, grads, found, strict=True):
        np.testing.assert_allclose(one[3], grad.numpy(), rtol=1e-12)
        np.testing.assert_allclose(one[4], x.grad.numpy(), rtol=1e-12)


def alone_for_a_while(comm: Communicator, folder: str) -> str:
    told = Path(folder, "told")
    past_first(comm)
    if comm.rank:
        until(told.exists)
        comm.all_reduce(np.ones((2, 3), np.float32))
        return ""
    work = comm.all_reduce(np.ones((2, 3), np.float32), async_op=True)
    with pytest.raises(CollectiveTimeout) as error:
        work.wait(0.2)
    with pytest.raises(DistributedError, match="cannot be used any more"):
        comm.barrier()
    told.touch()
    until(work.done)  # MPI can end only what has ended
    return str(error.value)


@pytest.mark.parametrize("run", [in_threads, run_ranks])
def test_a_rank_that_does_not_come_is_told_at_the_deadline(run: Any, tmp_path: Path) -> None:
    told = run(2, alone_for_a_while, str(tmp_path))[0]
    assert "rank 0 of 2: all_reduce of shape (2, 3) and dtype float32 (" in told
    assert "test_communicator.py:" in told and "did not end within 0.2 s" in told


DIFFERENT: dict[str, Any] = {  # what rank 0 calls, and what the others call
    "shape": (lambda c, a, b, later: c.all_reduce(a, async_op=later),
              lambda c, a, b, later: c.all_reduce(b[:2], async_op=later)),
    "dtype": (lambda c, a, b, later: c.all_reduce(a, async_op=later),
              lambda c, a, b, later: c.all_reduce(a.view("f4"), async_op=later)),
    "op": (lambda c, a, b, later: c.all_reduce(a, "sum", later),
           lambda c, a, b, later: c.all_reduce(a, "max", later)),
    "root": (lambda c, a, b, later: c.broadcast(a, 0, later),
             lambda c, a, b, later: c.broadcast(a, 1, later)),
    "name": (lambda c, a, b, later: c.all_gather(a, b, later),
             lambda c, a, b, later: c.reduce_scatter(b, a, "sum", later)),
    "barrier": (lambda c, a, b, later: c.barrier(),
                lambda c, a, b, later: c.broadcast(a, 0, later)),
}


def different(comm: Communicator, kind: str, later: bool, calls: int) -> list[Any]:
    """The error after so many calls that are alike, and what was written."""
    for _ in range(calls):
        comm.barrier()
    a, b = np.full(2, 1.0 + comm.rank), np.full((comm.size, 2), 7.0)
    try:
        work = DIFFERENT[kind][comm.rank > 0](comm, a, b, later)
        if work is not None:
            work.wait()
        return ["no error"]
    except DistributedError as error:
        return [str(error), a.tolist() == [1.0 + comm.rank] * 2 and bool((b == 7.0).all())]


@pytest.mark.parametrize("later", [False, True], ids=["at once", "later"])
@pytest.mark.parametrize("kind", DIFFERENT)
def test_calls_that_differ_between_ranks_are_named_and_not_made(kind: str, later: bool) -> None:
    for told, unwritten in in_threads(3, different, kind, later, 0):
        assert told.startswith("the ranks make different calls: rank 0 of 3: ")
        assert "; rank 1 of 3: " in told and told.count("test_communicator.py:") == 2
        assert unwritten


def different_at(comm: Communicator) -> list[Any]:
    """In groups of their own: at the first call, the last of the first ones, and at the 100th."""
    return [different(comm.duplicate(), kind, later, calls)
            for kind in DIFFERENT for later in (False, True) for calls in (0, FIRST - 1, EVERY - 1)]


def test_calls_that_differ_are_compared_over_mpi() -> None:
    for found in run_ranks(2, different_at):
        for told, unwritten in found:
            assert told.startswith("the ranks make different calls: rank 0 of 2: ")
            assert "; rank 1 of 2: " in told and unwritten


def other_order(comm: Communicator) -> list[float]:
    """Collectives that go on wait for no other rank at their call, also while they are compared."""
    other, found = comm.duplicate(), []
    for _ in range(3):
        a, b = np.array([1.0]), np.array([2.0 + comm.rank])
        if comm.rank:
            work = comm.all_reduce(a, async_op=True)
            again = comm.broadcast(np.array([0.0]), 1, async_op=True)
            other.all_reduce(b)
        else:
            other.all_reduce(b)
            work = comm.all_reduce(a, async_op=True)
            again = comm.broadcast(np.array([5.0]), 1, async_op=True)
        found += [float(again.wait()[0]), float(work.wait()[0]), float(b[0])]
    return found


@pytest.mark.parametrize("run", [in_threads, run_ranks])
def test_two_communicators_may_be_called_in_different_orders(run: Any) -> None:
    assert run(2, other_order) == [[0.0, 2.0, 5.0] * 3] * 2


def many_groups(comm: Communicator) -> int:
    """More than MPI has at one time; one rank keeps the first for a while."""
    kept, total = comm.duplicate(), 0
    if comm.rank:
        del kept
    for number in range(1100):
        total += int(comm.duplicate().all_reduce(np.array([number]), async_op=True).wait()[0])
    return total


def test_groups_that_were_dropped_are_freed() -> None:
    assert run_ranks(2, many_groups) == [1100 * 1099] * 2


def dropped(comm: Communicator) -> list[float]:
    """Rank 1 forgets what it gives, and its memory is used again, before rank 0 comes."""
    past_first(comm)
    found = []
    for _ in range(20):
        comm.barrier()
        if comm.rank == 0:
            time.sleep(0.01)
        a = np.full(3, 1.0 + comm.rank)
        work = comm.all_reduce(a, async_op=True)
        if comm.rank == 0:
            found += work.wait().tolist()
        del a, work
        others = [np.full(3, 9.0) for _ in range(100)]
        del others
    return found


def test_a_collective_that_nobody_waits_for_keeps_its_array() -> None:
    assert run_ranks(2, dropped)[0] == [3.0] * 60


def test_debug_compares_all_calls_and_names_the_operation() -> None:
    with settings.override(debug=1):  # of the process
        found = in_threads(2, different, "op", False, FIRST)
    for told, _ in found:
        assert told.endswith(") with op='max'") and ") with op='sum'; rank 1 of 2" in told


@pytest.mark.parametrize(("call", "error", "message"), [
    (lambda c: c.all_reduce([1.0]), TypeError, "given list; wanted an array or a Tensor"),
    (lambda c: c.all_reduce(np.ones(2), "prod"), ValueError, "op='prod'; wanted one of sum, mean"),
    (lambda c: c.all_reduce(np.ones(2, int), "mean"), TypeError, "dtype int64 with op='mean'"),
    (lambda c: c.all_reduce(np.ones(2, complex), "max"), TypeError, "complex128 with op='max'"),
    (lambda c: c.all_reduce(np.broadcast_to(1.0, 3)), ValueError, "all_reduce on a broadcast view"),
    (lambda c: c.split("a"), TypeError, "color='a' and key=None; wanted integers"),
    (lambda c: c.broadcast(np.ones(2), 1), ValueError, "root=1; wanted a rank below 1"),
    (lambda c: c.reduce_scatter(np.ones(2)), ValueError, r"shape \(2,\); wanted \(1, ...\)"),
    (lambda c: c.all_gather(np.ones(2), np.ones(2)), ValueError, r"wanted \(1, 2\), float64 on"),
    (lambda c: Communicator(Alone(), 0), ValueError, "timeout=0 given; wanted a positive"),
    (lambda c: Communicator(Alone(), 1e10), ValueError, "timeout=10000000000.0 given; wanted"),
    (lambda c: distributed.init("alone", 1e300), ValueError, r"timeout=1e\+300 given; wanted"),
    (lambda c: distributed.init("gloo"), ValueError, "backend='gloo' given; wanted one of nccl"),
])
def test_mistakes_are_one_sentence(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call(Communicator(Alone()))


def test_listeners_are_told_of_collectives_with_their_bytes() -> None:
    class Told:
        def __init__(self) -> None:
            self.ranges: list[tuple[str, str, float | None]] = []

        def range_begins(self, event: Any) -> None:
            self.ranges.append((event.name, event.category, event.payload))

    comm, a = Communicator(Alone()), gt.ones((1, 3))
    with gt.listen(Told()) as told:
        comm.all_reduce(a)
        comm.broadcast(a.numpy(), 0)
        comm.all_gather(a)
        comm.reduce_scatter(a)
        comm.all_gather_object("x")
    waits = [("wait for ranks", "communication", None)]
    assert [one for one in told.ranges if one not in waits] == [
        *((name, "communication", 12) for name in (
            "all_reduce", "broadcast", "all_gather", "reduce_scatter")),
        ("all_gather_object", "communication", None)]

"""Data parallel training: the joint batch's gradients on every rank, whatever its part is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gtensor as gt
from distributed.ranks import in_threads, run_ranks
from gtensor import nn, optim
from gtensor.backend import owner
from gtensor.distributed import Communicator, DataParallel, DistributedError, convert_sync
from gtensor.distributed.alone import Alone
from gtensor.distributed.buckets import divided
from gtensor.nn import functional as F

STEPS = 20
PARTS = {1: [12], 2: [7, 5], 4: [5, 0, 4, 3]}  # examples of each rank


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 5), nn.Tanh(), nn.Linear(5, 3))


def transformer() -> nn.Module:
    layer = nn.TransformerEncoderLayer(6, 2, 10, 0.0, batch_first=True)
    return nn.Sequential(layer, nn.Linear(6, 3))


def convolutions() -> nn.Module:
    """Without the biases that a norm takes away: Adam would magnify their rounding errors."""
    return nn.Sequential(nn.Conv2d(2, 4, 3, bias=False), nn.InPlaceABN(4),
                         nn.Conv2d(4, 4, 1, bias=False), nn.BatchNorm2d(4), nn.Flatten(),
                         nn.Linear(16, 3))


MODELS = {"mlp": (mlp, (6,)), "transformer": (transformer, (5, 6)),
          "convolutions": (convolutions, (2, 4, 4))}


def make(name: str, seed: int = 0) -> tuple[nn.Module, tuple[int, ...]]:
    build, shape = MODELS[name]
    rng = np.random.default_rng(seed)
    model = build().double()
    with gt.no_grad():
        for parameter in model.parameters():
            parameter[...] = gt.tensor(rng.standard_normal(parameter.shape) * 0.3)
    return model, shape


def batches(shape: tuple[int, ...]) -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(9)
    return [(rng.standard_normal((12, *shape)), rng.standard_normal((12, 3)))
            for _ in range(STEPS)]


def loss_of(model: Any, x: np.ndarray, y: np.ndarray) -> gt.Tensor:
    found = model(gt.tensor(x))
    if found.ndim == 3:
        found = found.sum(1)
    return F.mse_loss(found, gt.tensor(y))


def trained(comm: Communicator, name: str, **options: Any) -> list[Any]:
    """The weighed losses of a rank, and its parameters."""
    model, shape = make(name, comm.rank)  # only rank 0 begins with the right ones
    model = DataParallel(convert_sync(model, comm), comm, **options)
    optimizer = optim.AdamW(model.parameters(), lr=0.01)
    sizes = PARTS[comm.size]
    start = sum(sizes[:comm.rank])
    part = slice(start, start + sizes[comm.rank])
    losses = []
    for x, y in batches(shape):
        optimizer.zero_grad()
        with np.errstate(all="ignore"):
            loss = loss_of(model, x[part], y[part])
            loss.backward()
        optimizer.step()
        share = sizes[comm.rank] / sum(sizes)
        losses.append(share * loss.item() if share else 0.0)
    return [losses, [p.numpy() for p in model.parameters()]]


def alone(name: str) -> tuple[list[float], list[np.ndarray]]:
    model, shape = make(name)
    optimizer = optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for x, y in batches(shape):
        optimizer.zero_grad()
        loss = loss_of(model, x, y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, [p.numpy() for p in model.parameters()]


def check(found: list[Any], name: str) -> None:
    losses, parameters = alone(name)
    np.testing.assert_allclose(np.sum([one[0] for one in found], axis=0), losses, rtol=1e-12)
    for _, mine in found:
        for value, first, wanted in zip(mine, found[0][1], parameters, strict=True):
            assert value.tobytes() == first.tobytes()
            np.testing.assert_allclose(value, wanted, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("size", PARTS)
def test_training_is_that_of_the_joint_batch(name: str, size: int) -> None:
    check(in_threads(size, trained, name), name)


def test_training_over_mpi() -> None:
    check(run_ranks(4, trained, "mlp"), "mlp")


def test_buckets_may_be_copies() -> None:
    check(in_threads(2, lambda comm: trained(comm, "mlp", gradient_as_bucket_view=False)), "mlp")


def micro_steps(comm: Communicator) -> list[Any]:
    """Two parts of a batch, the first within no_sync; then a step without zero_grad()."""
    model, shape = make("mlp")
    model = DataParallel(model, comm)
    (x, y), (x2, y2), (x3, y3) = batches(shape)[:3]
    own = slice(0, 5) if comm.rank == 0 else slice(5, 12)
    with model.no_sync():
        loss_of(model, x[own], y[own]).backward()
        alone = [p.grad.numpy() for p in model.parameters()]
    loss_of(model, x2[own], y2[own]).backward()
    summed = [p.grad.numpy().copy() for p in model.parameters()]
    loss_of(model, x3[own], y3[own]).backward()
    return [alone, summed, [p.grad.numpy() for p in model.parameters()]]


def test_gradients_add_up_within_no_sync_and_without_zero_grad() -> None:
    first, second = in_threads(2, micro_steps)
    model, shape = make("mlp")
    totals = []
    for x, y in batches(shape)[:3]:
        loss_of(model, x, y).backward()
        totals.append([p.grad.numpy().copy() for p in model.parameters()])
    for a, b in zip(first[0], second[0], strict=True):
        assert not np.allclose(a, b)  # each rank's own
    for found in (first, second):
        for mine, wanted in zip(found[1:], totals[1:], strict=True):
            for got, value in zip(mine, wanted, strict=True):
                np.testing.assert_allclose(got, value, rtol=1e-11, atol=1e-13)


class Branches(nn.Module):
    """Which of its parts is used depends on the rank; one is used by nobody."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.rank = rank
        self.parts = nn.ModuleList([nn.Linear(3, 2) for _ in range(3)]).double()
        self.idle = nn.Linear(3, 2).double()

    def forward(self, x: gt.Tensor) -> gt.Tensor:
        parts: Any = self.parts
        return parts[2](x) + parts[self.rank](x)


def branched(comm: Communicator) -> list[Any]:
    gt.manual_seed(comm.rank)
    model = DataParallel(Branches(comm.rank), comm, bucket_cap_mb=1e-4)
    model(gt.ones((2 + comm.rank, 3), dtype="float64")).sum().backward()
    return [None if p.grad is None else p.grad.numpy() for p in model.parameters()]


def test_parameters_that_some_ranks_do_not_use() -> None:
    first, second = in_threads(2, branched)
    for mine, other in zip(first[:6], second[:6], strict=True):
        assert mine.any() and mine.tobytes() == other.tobytes()
    assert first[6:] == second[6:] == [None, None]


def half_used(comm: Communicator) -> list[Any]:
    """A part that one rank uses, within no_sync() only."""
    model = DataParallel(Branches(0), comm)
    x = gt.ones((2, 3), dtype="float64")
    with model.no_sync():
        y = model(x)
        (model.module.idle(x).sum() if comm.rank else y.sum()).backward()
    model(x).sum().backward()
    return [None if p.grad is None else p.grad.numpy() for p in model.parameters()]


def test_gradients_that_one_rank_has_kept_reach_all() -> None:
    first, second = in_threads(2, half_used)
    for mine, other in zip(first, second, strict=True):
        assert (mine is None) == (other is None) and (mine is None or np.array_equal(mine, other))
    assert first[-1] is not None and first[-1].any()


def counted(comm: Communicator) -> list[int]:
    """Bytes of gradients and buckets in a step, and where the gradients lie."""
    model = DataParallel(nn.Sequential(nn.Linear(64, 64, bias=False), nn.Linear(64, 64)), comm)
    x = gt.ones((2, 64))
    model(x).sum().backward()
    reducer = model._reducer
    owned = [owner(p.grad._array) for p in model.parameters()]
    flats = [owner(bucket.flat) for bucket in reducer.buckets]
    return [sum(each.nbytes for each in {id(a): a for a in owned}.values()),
            sum(p.nbytes for p in model.parameters()),
            sum(any(a is flat for flat in flats) for a in owned)]


def test_gradients_and_buckets_take_the_memory_of_the_gradients_once() -> None:
    for gradients, parameters, in_buckets in in_threads(2, counted):
        assert gradients == parameters + 3 * 4 and in_buckets == 3  # a number for each parameter


def test_hooks_run_before_the_exchange_and_after_the_walk() -> None:
    def run(comm: Communicator) -> list[float]:
        model = DataParallel(nn.Linear(1, 1, bias=False).double(), comm)
        (weight,) = model.parameters()
        weight.register_hook(lambda g: g * (10 if comm.rank else 1))
        stored: list[float] = []
        handle = weight.register_post_accumulate_grad_hook(lambda p: stored.append(p.grad.item()))
        model(gt.ones((1, 1), dtype="float64")).sum().backward()
        handle.remove()
        model(gt.ones((1, 1), dtype="float64")).sum().backward()
        return stored

    assert in_threads(2, run) == [[5.5], [5.5]]


def test_an_error_in_backward_stores_no_gradient_and_ends_the_exchange() -> None:
    def run(comm: Communicator) -> list[Any]:
        model = DataParallel(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), comm)
        y = model(gt.ones((1, 2))).sum()

        def fail(g: gt.Tensor) -> None:
            raise ZeroDivisionError

        next(iter(model.parameters())).register_hook(fail)
        with pytest.raises(ZeroDivisionError):
            y.backward()
        assert all(p.grad is None for p in model.parameters())
        with pytest.raises(DistributedError, match="end the program, and go on from a checkpoint"):
            model(gt.ones((1, 2)))
        return []

    in_threads(2, run)


def test_clipping_is_equal_on_all_ranks() -> None:
    def run(comm: Communicator) -> list[float]:
        model = DataParallel(nn.Linear(3, 2).double(), comm)
        model(gt.full((1, 3), 1.0 + comm.rank, dtype="float64")).sum().backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5).item()
        return [norm, *[p.grad.numpy().tobytes() for p in model.parameters()]]

    first, second = in_threads(2, run)
    assert first == second and first[0] == pytest.approx(np.sqrt(6 * 1.5**2 + 2))


def test_a_checkpoint_does_not_depend_on_the_ranks() -> None:
    model = DataParallel(nn.Linear(3, 2), Communicator(Alone()))
    assert [*model.state_dict()] == ["weight", "bias"]
    plain = nn.Linear(3, 2)
    plain.load_state_dict(model.state_dict())
    model.load_state_dict(plain.state_dict())


def test_buckets_follow_the_walk_and_the_first_is_small() -> None:
    leaves = [p._node for p in nn.Sequential(*[nn.Linear(32, 32) for _ in range(16)]).parameters()]
    buckets = divided(leaves, 25 << 20)
    assert [leaf for bucket in buckets for leaf in bucket] == leaves[::-1]
    total = sum(map(_elements, buckets))
    assert _elements(buckets[0]) <= total / 6 and max(map(_elements, buckets)) <= total / 3
    assert len(divided(leaves, 1)) == len(leaves)


def _elements(bucket: list[Any]) -> int:
    return sum(int(np.prod(leaf.shape)) for leaf in bucket)


def called(comm: Communicator, module: nn.Module) -> Any:
    return DataParallel(module, comm)(gt.ones((1, 2)))


@pytest.mark.parametrize(("call", "error", "message"), [
    (lambda c: DataParallel(3, c), TypeError, "given module=3; wanted a Module"),
    (lambda c: DataParallel(nn.ReLU(), c), ValueError, "ReLU without parameters that require"),
    (lambda c: DataParallel(nn.Linear(2, 2), c, 0), ValueError, "bucket_cap_mb=0 given"),
    (lambda c: DataParallel(DataParallel(nn.Linear(2, 2), c), c), DistributedError,
     "parameter module.weight of DataParallel is in a DataParallel already"),
    (lambda c: DataParallel(nn.Linear(2, 2 + c.rank), c), DistributedError,
     r"rank 1 has a parameter weight of shape \(3, 2\) and dtype float32; rank 0 has shape"),
    (lambda c: DataParallel(nn.Linear(2, 2, bias=not c.rank), c), DistributedError,
     "rank 1 has no parameter bias, which rank 0 has; wanted the same module"),
    (lambda c: called(c, nn.Linear(2, 2)).sum().backward(create_graph=True), gt.GradientError,
     r"backward\(create_graph=True\) reaches parameters whose gradients are exchanged"),
    (lambda c: moved(c), DistributedError, "parameter weight was moved, converted or made"),
    (lambda c: uncalled(c), gt.GradientError, "call the DataParallel object, not its module"),
    (lambda c: DataParallel(nn.Linear(2, 2), c)(gt.tensor(1.0)), TypeError, "give examples="),
])
def test_mistakes_are_one_sentence_on_every_rank(
    call: Any, error: type[Exception], message: str
) -> None:
    def run(comm: Communicator) -> None:
        with pytest.raises(error, match=message):
            call(comm)

    in_threads(2, run)


def moved(comm: Communicator) -> None:
    model = DataParallel(nn.Linear(2, 2), comm)
    model.double()
    model(gt.ones((1, 2), dtype="float64"))


def uncalled(comm: Communicator) -> None:
    model = nn.Linear(2, 2)
    DataParallel(model, comm)
    model(gt.ones((1, 2))).sum().backward()

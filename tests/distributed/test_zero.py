"""ZeroOptimizer: the plain optimizer's steps, with a part of its state on each rank."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gtensor as gt
from distributed.ranks import in_threads, run_ranks
from gtensor import nn, optim
from gtensor.distributed import Communicator, DataParallel, DistributedError, ZeroOptimizer
from gtensor.distributed.alone import Alone
from gtensor.nn import functional as F
from gtensor.optim.lr_scheduler import ExponentialLR

STEPS = 20
CLASSES: dict[str, tuple[Any, dict[str, Any]]] = {
    "sgd": (optim.SGD, {"lr": 0.05, "momentum": 0.9}),
    "plain sgd": (optim.SGD, {"lr": 0.05}),
    "adamw": (optim.AdamW, {"lr": 0.01}),
    "amsgrad": (optim.Adam, {"lr": 0.01, "amsgrad": True}),
    "lion": (optim.Lion, {"lr": 0.01}),
    "rmsprop": (optim.RMSprop, {"lr": 0.01, "momentum": 0.9}),
    "adagrad": (optim.Adagrad, {"lr": 0.1, "lr_decay": 0.1}),
}


class Net(nn.Module):
    """Odd sizes; a part that only even steps use."""

    def __init__(self) -> None:
        super().__init__()
        rng = np.random.default_rng(0)
        self.first, self.second = nn.Linear(5, 7).double(), nn.Linear(7, 3).double()
        self.rare = nn.Linear(5, 3).double()
        with gt.no_grad():
            for parameter in self.parameters():
                parameter[...] = gt.tensor(rng.standard_normal(parameter.shape) * 0.4)

    def forward(self, x: gt.Tensor, step: int) -> gt.Tensor:
        y = self.second(F.tanh(self.first(x)))
        return y + self.rare(x) if step % 2 == 0 else y


def groups_of(net: nn.Module) -> list[dict[str, Any]]:
    parameters = [*net.parameters()]
    return [{"params": parameters[:3]}, {"params": parameters[3:], "weight_decay": 0.1}]


def batch(step: int, part: slice = slice(None)) -> tuple[gt.Tensor, gt.Tensor]:
    rng = np.random.default_rng(step)
    x, y = rng.standard_normal((8, 5)), rng.standard_normal((8, 3))
    return gt.tensor(x[part]), gt.tensor(y[part])


def run(net: Any, optimizer: optim.Optimizer, steps: range, part: slice = slice(None),
        clip: Any = None) -> None:
    schedule = ExponentialLR(optimizer, 0.97)
    for step in steps:
        x, y = batch(step, part)
        optimizer.zero_grad()
        F.mse_loss(net(x, step), y).backward()
        if clip is not None:
            clip(optimizer, net)
        optimizer.step()
        schedule.step()


def values(net: nn.Module) -> list[np.ndarray]:
    return [parameter.numpy().copy() for parameter in net.parameters()]


def plain(kind: str, steps: range = range(STEPS), clip: Any = None
          ) -> tuple[Net, optim.Optimizer]:
    cls, options = CLASSES[kind]
    net = Net()
    optimizer = cls(groups_of(net), **options)
    run(net, optimizer, steps, clip=clip)
    return net, optimizer


def sharded(comm: Communicator, kind: str, alone: bool, clip: Any = None) -> list[Any]:
    cls, options = CLASSES[kind]
    net: Any = Net()
    if not alone:
        net = DataParallel(net, comm)
    optimizer = ZeroOptimizer(groups_of(net), cls, comm, **options)
    share = 8 // comm.size
    run(net, optimizer, range(STEPS), slice(comm.rank * share, (comm.rank + 1) * share), clip)
    return [values(net), optimizer.consolidate()]


@pytest.mark.parametrize("alone", [False, True], ids=["data parallel", "alone"])
@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize("size", [1, 2, 4])
def test_steps_are_those_of_the_plain_optimizer(size: int, kind: str, alone: bool) -> None:
    net, optimizer = plain(kind)
    wanted = optimizer.state_dict()
    for mine, state in in_threads(size, sharded, kind, alone):
        for got, first, value in zip(mine, mine, values(net), strict=True):
            assert got.tobytes() == first.tobytes()
            np.testing.assert_allclose(got, value, rtol=1e-12, atol=1e-13)
        assert state["param_groups"] == wanted["param_groups"]
        assert state["state"].keys() == wanted["state"].keys()
        for number, each in wanted["state"].items():
            assert state["state"][number]["step"] == each["step"]
            for name in each.keys() - {"step"}:
                np.testing.assert_allclose(state["state"][number][name].numpy(),
                                           each[name].numpy(), rtol=1e-11, atol=1e-14)


def over_mpi(comm: Communicator) -> list[Any]:
    return sharded(comm, "adamw", False)[0]


def test_processes() -> None:
    net, _ = plain("adamw")
    for mine in run_ranks(2, over_mpi):
        for got, value in zip(mine, values(net), strict=True):
            np.testing.assert_allclose(got, value, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("alone", [False, True], ids=["data parallel", "alone"])
def test_clipping_is_by_the_norm_of_all(alone: bool) -> None:
    net, _ = plain("adamw", clip=lambda o, n: nn.utils.clip_grad_norm_(n.parameters(), 0.1))
    for mine, _ in in_threads(2, sharded, "adamw", alone,
                              lambda optimizer, net: optimizer.clip_grad_norm_(0.1)):
        for got, value in zip(mine, values(net), strict=True):
            np.testing.assert_allclose(got, value, rtol=1e-11, atol=1e-13)


def saved(comm: Communicator, kind: str, path: str) -> None:
    cls, options = CLASSES[kind]
    net = DataParallel(Net(), comm)
    optimizer = ZeroOptimizer(groups_of(net), cls, comm, **options)
    share = 8 // comm.size
    run(net, optimizer, range(7), slice(comm.rank * share, (comm.rank + 1) * share))
    with pytest.raises(RuntimeError, match="call that on every rank first"):
        optimizer.state_dict()
    optimizer.consolidate()
    if comm.rank == 0:
        gt.checkpoint.save(path, model=net, optimizer=optimizer)


def resumed(comm: Communicator, kind: str, path: str) -> list[np.ndarray]:
    cls, options = CLASSES[kind]
    net = DataParallel(Net(), comm)
    optimizer = ZeroOptimizer(groups_of(net), cls, comm, **options)
    gt.checkpoint.load(path, model=net, optimizer=optimizer, random=False)
    assert optimizer.lr == pytest.approx(options["lr"] * 0.97**7)
    for group in optimizer.param_groups:
        group["lr"] = group["initial_lr"] = options["lr"]
    share = 8 // comm.size
    run(net, optimizer, range(7, 12), slice(comm.rank * share, (comm.rank + 1) * share))
    return values(net)


@pytest.mark.parametrize("kind", ["adamw", "sgd"])
def test_a_checkpoint_goes_on_at_any_number_of_ranks(kind: str, tmp_path: Path) -> None:
    path = str(tmp_path / "run.safetensors")
    in_threads(4, saved, kind, path)
    found = [in_threads(size, resumed, kind, path)[0] for size in (1, 2, 4)]
    cls, options = CLASSES[kind]
    net = Net()
    optimizer = cls(groups_of(net), **options)
    gt.checkpoint.load(path, model=net, optimizer=optimizer, random=False)  # a plain one, too
    for group in optimizer.param_groups:
        group["lr"] = group["initial_lr"] = options["lr"]
    run(net, optimizer, range(7, 12))
    for mine in found:
        for got, value in zip(mine, values(net), strict=True):
            np.testing.assert_allclose(got, value, rtol=1e-12, atol=1e-13)


def state_bytes(comm: Communicator) -> int:
    net = nn.Sequential(nn.Linear(100, 50), nn.Linear(50, 33))
    optimizer = ZeroOptimizer(net.parameters(), optim.AdamW, comm)
    return sum(array.nbytes for slots in optimizer._slots for slot in slots for array in slot.state)


@pytest.mark.parametrize("size", [2, 4])
def test_a_rank_keeps_its_share_of_the_state(size: int) -> None:
    whole = 2 * 4 * sum(p.size for p in nn.Sequential(nn.Linear(100, 50), nn.Linear(50, 33))
                        .parameters())
    found = in_threads(size, state_bytes)
    assert sum(found) == whole and max(found) <= 1.05 / size * whole


def half_net() -> nn.Module:
    net = nn.Linear(6, 5)
    with gt.no_grad():
        for parameter in net.parameters():
            parameter[...] = gt.arange(1, parameter.size + 1).reshape(parameter.shape) / 10
    return net.to("bfloat16")


def halves(comm: Communicator) -> list[Any]:
    net = half_net()
    optimizer = ZeroOptimizer(net.parameters(), optim.SGD, comm, lr=1e-4)
    for _ in range(50):
        for parameter in net.parameters():
            parameter.grad = gt.ones(parameter.shape, dtype="bfloat16")
        optimizer.step()
    state = optimizer.consolidate()
    again = ZeroOptimizer(net.parameters(), optim.SGD, comm, lr=1e-4)
    again.load_state_dict(state)
    return [value.numpy() for value in (*state["master"].values(),
                                        *again.consolidate()["master"].values())]


def test_small_updates_of_half_types_add_up_in_master_weights() -> None:
    start = [p.to("float32").numpy() for p in half_net().parameters()]
    for found in in_threads(2, halves):
        for value, before, loaded in zip(found[:2], start, found[2:], strict=True):
            np.testing.assert_allclose(value, before - 50e-4, rtol=1e-4, atol=1e-6)
            assert np.array_equal(value, loaded)


def test_more_ranks_than_elements() -> None:
    def train(comm: Communicator) -> float:
        net = nn.Linear(1, 1, bias=False).double()
        optimizer = ZeroOptimizer(net.parameters(), optim.AdamW, comm, lr=0.1, weight_decay=0.0)
        for _ in range(3):
            optimizer.zero_grad()
            net(gt.ones((1, 1), dtype="float64")).sum().backward()
            before = net.weight.item()
            optimizer.step()
        assert len(optimizer.consolidate()["state"]) == 1
        return before - net.weight.item()

    assert in_threads(3, train) == pytest.approx([0.1] * 3, rel=1e-6)


@pytest.mark.parametrize(("call", "error", "message"), [
    (lambda c: ZeroOptimizer(Net().parameters(), optim.Optimizer, c), TypeError,
     "given 'Optimizer'; wanted one of SGD, Adam, AdamW, Lion, RMSprop, Adagrad"),
    (lambda c: ZeroOptimizer([], optim.SGD, c), ValueError, "given no parameters"),
    (lambda c: ZeroOptimizer(nn.Linear(2, 2 + c.rank).parameters(), optim.SGD, c),
     DistributedError, "rank 1 has a parameter 0 of group 0 of shape"),
    (lambda c: ZeroOptimizer(Net().parameters(), optim.SGD, c, lr=-1.0), ValueError, "lr"),
    (lambda c: ZeroOptimizer([gt.ones(3)], optim.SGD, c), ValueError, "is no leaf with"),
    (lambda c: ZeroOptimizer(Net().parameters(), optim.SGD, c).add_param_group({}), TypeError,
     "add_param_group was called on a ZeroOptimizer"),
    (lambda c: ZeroOptimizer([*nn.Linear(2, 2).parameters()] * 2, optim.SGD, c), ValueError,
     "given a parameter twice"),
    (lambda c: converted(c), DistributedError, "moved or converted after ZeroOptimizer"),
    (lambda c: wrong_state(c), ValueError, "'exp_avg' of parameter 0 is of shape"),
])
def test_mistakes_are_one_sentence_on_every_rank(
    call: Any, error: type[Exception], message: str
) -> None:
    def attempt(comm: Communicator) -> None:
        with pytest.raises(error, match=message):
            call(comm)

    in_threads(2, attempt)


def converted(comm: Communicator) -> None:
    net = nn.Linear(2, 2)
    optimizer = ZeroOptimizer(net.parameters(), optim.SGD, comm)
    net.double()
    optimizer.step()


def wrong_state(comm: Communicator) -> None:
    net = nn.Linear(2, 2)
    optimizer = ZeroOptimizer(net.parameters(), optim.Adam, comm)
    net(gt.ones((1, 2))).sum().backward()
    optimizer.step()
    state = optimizer.consolidate()
    state["state"][0]["exp_avg"] = gt.ones(3)
    optimizer.load_state_dict(state)


def test_a_world_of_one_is_the_plain_optimizer() -> None:
    net, reference = Net(), Net()
    optimizer = ZeroOptimizer(net.parameters(), optim.AdamW, Communicator(Alone()), lr=0.01)
    run(net, optimizer, range(3))
    run(reference, optim.AdamW(reference.parameters(), lr=0.01), range(3))
    for got, value in zip(values(net), values(reference), strict=True):
        np.testing.assert_allclose(got, value, rtol=1e-14)

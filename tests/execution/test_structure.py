"""The structure epoch: what moves it, what does not, and what it says of the changes."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator

import pytest

import gtensor as gt
from gtensor import nn
from gtensor.backend import devices
from gtensor.engine.tape.op import registry
from gtensor.nn.functional import cross_entropy
from gtensor.system import structure


class Part(nn.Module):
    """A user's module with an attribute of each kind."""

    scale = 2.0

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.norm = nn.BatchNorm1d(3)
        self.drop = nn.Dropout(0.5)
        self.list = nn.ModuleList([nn.Linear(3, 3)])
        self.named = nn.ModuleDict({"a": nn.Linear(3, 3)})
        self.free = nn.ParameterDict({"w": gt.ones(3)})
        self.register_buffer("table", gt.ones(3))
        self.shape = (3, 0.0)
        self.count = 0

    def forward(self, x: gt.Tensor) -> gt.Tensor:
        return self.drop(self.norm(self.linear(x))) * self.scale


class World:
    """What a recorded step may have read, alive before it was recorded."""

    def __init__(self) -> None:
        self.net = Part()
        self.net.linear.register_forward_hook(lambda *_: None)
        self.leaf = gt.ones(3, requires_grad=True)
        self.constant = gt.ones(3)
        self.optimizer = gt.optim.AdamW(self.net.parameters(), lr=0.1)
        self.handle = self.net.linear.weight.register_hook(lambda _: None)
        self.step()
        self.epoch = structure.settle()

    def step(self) -> None:
        """A step of training."""
        loss = cross_entropy(self.net(gt.ones((2, 3))), gt.tensor([0, 1]))
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def option(self, name: str, value: object) -> None:
        """Another option of the optimizer, which it reads in a step."""
        self.optimizer.param_groups[0][name] = value
        self.step()

    def moved(self) -> bool:
        """Whether the epoch is another since."""
        return structure.epoch != self.epoch


@pytest.fixture
def world() -> Iterator[World]:
    dtype, device = gt.get_default_dtype(), gt.default_device()
    yield World()
    gt.set_default_dtype(dtype)
    gt.set_default_device(device)


def _other_dtype(w: World) -> None:
    gt.set_default_dtype("float64")


def _override(w: World) -> None:
    with gt.settings.override(tf32=1):
        w.epoch = structure.epoch  # its end restores


def _first_device(w: World) -> None:
    devices._default = None  # nothing has asked for it
    gt.set_default_device("cpu")


def _path(w: World) -> None:
    op = registry["tanh"]
    w.constant.tanh()
    op.cpu = op.cpu


CHANGES: dict[str, Callable[[World], object]] = {
    "eval": lambda w: w.net.eval(),
    "a plain number": lambda w: setattr(w.net.drop, "p", 0.3),
    "an equal number of another type": lambda w: setattr(w.net, "count", 0.0),
    "the sign of a zero": lambda w: setattr(w.net, "shape", (3, -0.0)),
    "an attribute of the class": lambda w: setattr(w.net, "scale", 2.0),
    "a forward": lambda w: setattr(w.net, "forward", abs),
    "a parameter": lambda w: setattr(w.net.linear, "weight", nn.Parameter(gt.ones((3, 3)))),
    "a parameter of None": lambda w: setattr(w.net.linear, "bias", None),
    "a module": lambda w: setattr(w.net, "drop", nn.Dropout(0.5)),
    "a module of None": lambda w: setattr(w.net, "drop", None),
    "a buffer": lambda w: setattr(w.net, "table", gt.ones(3)),
    "a new buffer": lambda w: w.net.register_buffer("more", None),
    "deleted": lambda w: delattr(w.net, "drop"),
    "deleted, plain": lambda w: delattr(w.net, "count"),
    "append": lambda w: w.net.list.append(nn.Linear(3, 3)),
    "insert": lambda w: w.net.list.insert(0, nn.Linear(3, 3)),
    "a key": lambda w: w.net.named.update({"a": nn.Linear(3, 3)}),
    "a key gone": lambda w: w.net.named.__delitem__("a"),
    "a parameter by key": lambda w: w.net.free.__setitem__("w", gt.zeros(3)),
    "a forward hook": lambda w: w.net.register_forward_hook(lambda *_: None),
    "a forward pre-hook": lambda w: w.net.register_forward_pre_hook(lambda *_: None),
    "weight norm": lambda w: nn.utils.weight_norm(w.net.linear),
    "a hook": lambda w: w.leaf.register_hook(lambda _: None),
    "a hook removed": lambda w: w.handle.remove(),
    "a hook behind": lambda w: w.leaf.register_post_accumulate_grad_hook(lambda _: None),
    "retain_grad": lambda w: (w.leaf * 2).retain_grad(),
    "frozen": lambda w: w.net.linear.requires_grad_(False),
    "a leaf": lambda w: w.constant.requires_grad_(),
    "converted": lambda w: w.net.double(),
    "an option that is no number": lambda w: w.option("maximize", True),
    "a group": lambda w: w.optimizer.add_param_group({"params": [w.leaf]}),
    "settings": lambda w: setattr(gt.settings, "tf32", 1),
    "settings of a block": _override,
    "the default dtype": _other_dtype,
    "the default device": _first_device,
    "the path of an op": _path,
}


@pytest.mark.parametrize("change", CHANGES)
def test_the_epoch_moves(world: World, change: str) -> None:
    before = gt.settings.tf32
    try:
        CHANGES[change](world)
    finally:
        gt.settings.tf32 = before
    assert world.moved()
    assert structure.since(world.epoch)


def _same(w: World) -> None:
    w.net.drop.p, w.net.shape, w.net.training, w.net.table = 0.5, (3, 0.0), True, w.net.table
    w.net.linear.weight, w.net.drop = w.net.linear.weight, w.net.drop
    w.net.train().requires_grad_()
    w.leaf.requires_grad_()
    gt.settings.tf32 = gt.settings.tf32
    gt.set_default_dtype(gt.get_default_dtype())
    gt.set_default_device(gt.default_device())
    w.net.to("cpu").float()


def _numbers(w: World) -> None:
    w.optimizer.lr = 0.01
    w.option("weight_decay", 0.5)
    w.option("betas", (0.5, 0.5))


def _loaded(w: World) -> None:
    w.net.load_state_dict(copy.deepcopy(w.net.state_dict()))
    w.optimizer.load_state_dict(copy.deepcopy(w.optimizer.state_dict()))
    w.constant.data = gt.zeros(3)


def _made(w: World) -> None:
    """What a step may make anew each time."""
    loss = nn.CrossEntropyLoss(label_smoothing=0.1)
    loss(w.net(gt.ones((2, 3))), gt.tensor([0, 1]))
    net = Part().eval()
    net.drop.p = 0.1
    net.list.append(nn.Linear(3, 3))
    del net.count
    gt.randn(3, requires_grad=True)
    gt.grad(lambda x: (x * x).sum())(w.constant)
    gt.optim.SGD(net.parameters(), lr=0.1)
    copy.deepcopy(w.net)
    pickle.loads(pickle.dumps(w.net.norm))


STEADY: dict[str, Callable[[World], object]] = {
    "a step": World.step, "the same values": _same, "numbers of an optimizer": _numbers,
    "loaded values": _loaded, "what is made": _made,
    "a replaced parameter of a call": lambda w: gt.func.functional_call(
        w.net, {"table": gt.zeros(3)}, gt.ones((2, 3))),
    "the running module's statistics": lambda w: [w.net(gt.ones((2, 3))) for _ in range(3)],
}


@pytest.mark.parametrize("change", STEADY)
def test_the_epoch_stays(world: World, change: str) -> None:
    STEADY[change](world)
    assert structure.since(world.epoch) == []
    assert not world.moved()


def test_modules_are_counted_once_a_step_that_may_have_read_them_was_recorded() -> None:
    net, others = Part(), [copy.copy(Part()), copy.deepcopy(Part()), pickle.loads(
        pickle.dumps(Part()))]
    before = structure.epoch
    net.eval()
    assert structure.epoch == before
    assert structure.settle() == before
    net.train()
    assert structure.epoch != before
    for other in others:
        before = structure.settle()
        other.count = 7
        assert structure.epoch != before


def test_an_insert_that_is_refused_moves_nothing(world: World) -> None:
    for wrong in (lambda: world.net.register_module("linear.x", None),
                  lambda: setattr(world.net, "table", 3),
                  lambda: setattr(gt.settings, "tf32", "yes"),
                  lambda: gt.set_default_dtype("int32")):
        with pytest.raises((TypeError, ValueError)):
            wrong()
    assert not world.moved()


def test_changes_are_named_in_their_order_each_once(world: World) -> None:
    world.net.drop.p = 0.1
    world.net.drop.p = 0.2
    del world.net.free
    gt.settings.tf32 = gt.settings.tf32 ^ 1
    gt.settings.tf32 = gt.settings.tf32 ^ 1
    assert structure.since(world.epoch) == [
        "Dropout.p was set", "Part.free was deleted", "settings.tf32 was set"]
    assert structure.since(structure.epoch) == []


def test_only_the_latest_changes_are_kept(world: World) -> None:
    for count in range(100):
        world.net.count = count
        world.net.drop.p = count / 100
    assert len(structure._changes) <= structure._KEPT

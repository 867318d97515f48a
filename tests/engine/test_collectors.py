"""Collectors: who takes the gradients of leaves during a walk, and in which memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

import gtensor as gt
from gtensor import nn
from gtensor.engine.handle.node import Node
from gtensor.engine.handle.tensor import wrap
from gtensor.engine.walk.slots import PLACED, RawStep
from gtensor.nn import functional as F


class Shelf:
    """A collector that gives each of its leaves memory, and notes what it is told."""

    def __init__(self, *tensors: gt.Tensor) -> None:
        self.leaves = [tensor._node for tensor in tensors]
        self.memory = {leaf: np.full(leaf.shape, np.nan, leaf.dtype) for leaf in self.leaves}
        self.told: list[Any] = []
        for leaf in self.leaves:
            leaf.collector = self

    def begin(self, leaves: Iterable[Node]) -> None:
        self.told.append("begin")

    def place(self, leaf: Node) -> Any:
        return self.memory[leaf]

    def complete(self, leaf: Node, array: Any) -> None:
        assert array is self.memory[leaf]
        self.told.append(self.leaves.index(leaf))

    def finish(self) -> dict[Node, gt.Tensor]:
        self.told.append("finish")
        return {leaf: wrap(array, leaf.device) for leaf, array in self.memory.items()}

    def cancel(self) -> None:
        self.told.append("cancel")


def parameters(*shapes: tuple[int, ...]) -> list[gt.Tensor]:
    rng = np.random.default_rng(0)
    return [gt.tensor(rng.standard_normal(shape), requires_grad=True) for shape in shapes]


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> list[Node]:
    """The leaves whose gradient was made elsewhere and copied to its place."""
    found: list[Node] = []
    original = RawStep.settled

    def settled(self: RawStep, node: Node) -> Any:
        if self.slots[node][1] is not PLACED:
            found.append(node)
        return original(self, node)

    monkeypatch.setattr(RawStep, "settled", settled)
    return found


def test_gradients_are_gathered_in_their_place_in_the_order_of_the_walk() -> None:
    a, b, c = parameters((3, 4), (4, 5), (5,))
    x = gt.tensor(np.random.default_rng(1).standard_normal((2, 3)))

    def loss() -> gt.Tensor:
        return ((x @ a) @ b * c + (x @ a).sum() * c).sum()

    wanted = gt.grad(loss(), [a, b, c])
    shelf = Shelf(a, b, c)
    loss().backward()
    assert shelf.told == ["begin", 2, 1, 0, "finish"]
    for tensor, grad in zip((a, b, c), wanted, strict=True):
        assert tensor.grad._array is shelf.memory[tensor._node]
        np.testing.assert_allclose(tensor.grad.numpy(), grad.numpy(), rtol=1e-13)


def test_products_write_there_and_sums_are_copied(copied: list[Node]) -> None:
    layers = nn.ModuleList([nn.Conv2d(2, 3, 3), nn.Linear(12, 4), nn.LayerNorm(4)])
    conv, linear, norm = layers
    (factor,) = parameters((4, 2))
    factor = factor.to("float32").detach().requires_grad_()
    table = nn.Embedding(5, 4)
    tensors = [*layers.parameters(), factor, *table.parameters()]
    shelf = Shelf(*tensors)
    h = norm(linear(conv(gt.ones((1, 2, 4, 4))).reshape((1, -1)))) + table(gt.tensor([[1]]))
    (h @ factor).sum().backward()
    direct = [conv.weight, linear.weight, factor, table.weight]
    assert {t._node for t in tensors} - {*copied} == {t._node for t in direct}
    assert len(shelf.told) == 2 + len(tensors)


def test_a_leaf_used_several_times_is_told_once() -> None:
    (w,) = parameters((3, 3))
    x = gt.tensor(np.eye(3))
    shelf = Shelf(w)
    (x @ w @ w + w).sum().backward()
    assert shelf.told == ["begin", 0, "finish"]
    np.testing.assert_allclose(w.grad.numpy(), gt.grad(((x @ w @ w + w).sum()), [w])[0].numpy())


def test_hooks_change_what_is_gathered() -> None:
    (w,) = parameters((3,))
    w.register_hook(lambda g: g * 3)
    Shelf(w)
    w.sum().backward()
    assert w.grad.tolist() == [3.0] * 3
    w.grad = None
    with gt.no_grad():
        w[...] = 1
    w[0].backward()
    assert w.grad.tolist() == [3.0, 0.0, 0.0]


def test_a_leaf_that_is_the_root_is_complete() -> None:
    w = gt.tensor(2.0, requires_grad=True)
    shelf = Shelf(w)
    w.backward()
    assert w.grad.item() == 1.0 and shelf.told == ["begin", 0, "finish"]


@pytest.mark.parametrize("where", ["walk", "complete", "finish"])
def test_an_error_stores_nothing(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = parameters((2, 2), (2, 2))
    shelf = Shelf(a)

    def fail(*given: Any) -> None:
        raise ZeroDivisionError

    if where == "walk":
        b.register_hook(fail)
    else:
        monkeypatch.setattr(shelf, where, fail)
    with pytest.raises(ZeroDivisionError):
        (a @ b).sum().backward()
    assert a.grad is None and b.grad is None and shelf.told[-1] == "cancel"


def test_what_is_no_plain_backward_is_refused_or_leaves_them_alone() -> None:
    (w,) = parameters((3,))
    shelf = Shelf(w)
    with pytest.raises(gt.GradientError, match=r"backward\(create_graph=True\) reaches param"):
        (w * w).sum().backward(create_graph=True)
    with pytest.raises(gt.GradientError, match=r"backward\(batched=True\) reaches parameters"):
        (w * w).backward(gt.ones((2, 3), dtype="float64"), batched=True)
    (grad,) = gt.grad((w * w).sum(), [w], create_graph=True)
    assert shelf.told == [] and grad.tolist() == (2 * w).tolist()


def test_retained_graphs_are_walked_again() -> None:
    (w,) = parameters((3, 3))
    Shelf(w)
    y = F.relu(w @ w).sum()
    y.backward(retain_graph=True)
    first = w.grad.numpy().copy()
    y.backward()
    assert np.array_equal(w.grad.numpy(), first)  # the collector says what is stored


# -- hooks behind the walk -------------------------------------------------------------------------


def test_hooks_run_when_all_gradients_are_stored() -> None:
    a, b, idle = parameters((2,), (2,), (2,))
    seen: list[Any] = []
    for tensor in (a, b, idle):
        tensor.register_post_accumulate_grad_hook(
            lambda t: seen.append((t is a, a.grad.tolist(), b.grad.tolist())))
    handle = a.register_post_accumulate_grad_hook(lambda t: seen.append("second"))
    (a * 2 + b).sum().backward()
    assert seen.count("second") == 1 and len(seen) == 3
    assert (True, [2.0, 2.0], [1.0, 1.0]) in seen
    handle.remove()
    seen.clear()
    (a * 2).sum().backward()
    assert seen == [(True, [4.0, 4.0], [1.0, 1.0])]
    gt.grad((a * 2).sum(), [a])
    assert len(seen) == 1


@pytest.mark.parametrize(("call", "error", "message"), [
    (lambda w: (w * 2).register_post_accumulate_grad_hook(print), gt.GradientError, "output of an"),
    (lambda w: w.detach().register_post_accumulate_grad_hook(print), gt.GradientError, "requires_"),
    (lambda w: w.register_post_accumulate_grad_hook(3), TypeError, "a hook was given as int"),
])
def test_mistakes_are_named(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call(parameters((2,))[0])

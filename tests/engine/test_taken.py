"""The gradient of cross entropy over the logits: only where nothing else reads them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import gtensor as gt
import gtensor.nn.functional as F
from gtensor.engine.handle.arrays import layout
from gtensor.nn.utils import checkpoint

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
SHAPE = (6, 5)


class Logits:
    """Logits behind a leaf, and how backward() leaves both."""

    def __init__(self, device: str = "cpu", dtype: str = "float32", seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.values = (2 * rng.standard_normal(SHAPE)).astype(getattr(gt, dtype))
        self.targets = rng.integers(0, SHAPE[1], SHAPE[0])
        self.x = gt.tensor(self.values, device=device, requires_grad=True)
        self.target = gt.tensor(self.targets, device=device)
        self.logits: Any = self.x * 1.0
        self.at = layout(self.logits._array)[0]
        self.gradients: list[gt.Tensor] = []
        self.logits.register_hook(self.gradients.append)

    def loss(self, **options: Any) -> gt.Tensor:
        return F.cross_entropy(self.logits, self.target, **options)

    def taken(self) -> bool:
        """Whether the last walk wrote the gradient over the logits."""
        return layout(self.gradients[-1]._array)[0] == self.at

    def check(self, times: int = 1, **options: Any) -> None:
        """The gradient is PyTorch's."""
        x = torch.tensor(self.values.astype(np.float64), requires_grad=True)
        torch.nn.functional.cross_entropy(x, torch.tensor(self.targets), **options).backward()
        low = self.values.dtype.itemsize == 2
        np.testing.assert_allclose(
            self.x.grad.numpy().astype(np.float64), times * x.grad.numpy(),
            **{"rtol": 1e-2, "atol": 1e-3} if low else {"rtol": 1e-5, "atol": 1e-6})


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("tile", [65536, 7])
@pytest.mark.parametrize("options", [{}, {"label_smoothing": 0.2}, {"reduction": "sum"}])
def test_the_gradient_of_dropped_logits_lies_over_them(
    options: dict[str, Any], tile: int, dtype: str, device: str
) -> None:
    with gt.settings.override(tile_elements=tile):
        case = Logits(device, dtype)
        loss = case.loss(**options)
        del case.logits
        loss.backward()
    assert case.taken()
    case.check(**options)


def _view(logits: gt.Tensor) -> gt.Tensor:
    return logits.reshape((-1,))


READERS: dict[str, Callable[[gt.Tensor], object]] = {
    "the tensor": lambda logits: logits,
    "a view": _view,
    "a detached tensor": lambda logits: logits.detach(),
    "a part": lambda logits: logits[1:3],
    "an array": lambda logits: logits.array,
    "another record": lambda logits: logits * logits,
}


def _numbers(kept: Any) -> np.ndarray:
    return kept if isinstance(kept, np.ndarray) else (
        kept.numpy() if isinstance(kept, gt.Tensor) else kept.get())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("reader", READERS)
def test_logits_that_are_still_read_are_not_written(reader: str, device: str) -> None:
    case = Logits(device)
    loss = case.loss()
    kept: Any = READERS[reader](case.logits)
    copied = _numbers(kept).copy()
    del case.logits
    loss.backward()
    assert not case.taken()
    case.check()
    np.testing.assert_array_equal(_numbers(kept), copied)


def test_a_kept_graph_keeps_its_logits() -> None:
    """The last of three walks may write them."""
    case = Logits()
    loss = case.loss()
    del case.logits
    taken = []
    for keep in (True, True, False):
        loss.backward(retain_graph=keep)
        taken.append(case.taken())
    assert taken == [False, False, True]
    case.check(times=3)


def test_two_losses_of_the_same_logits() -> None:
    case = Logits()
    first, second = case.loss(), case.loss()
    del case.logits
    (first + second).backward()
    assert not case.taken()
    case.check(times=2)


def test_logits_that_are_their_own_targets() -> None:
    """They are saved twice, and each gradient reads them."""
    rng = np.random.default_rng(0)
    values = rng.uniform(0.1, 1, SHAPE).astype(np.float32)
    x, other = gt.tensor(values, requires_grad=True), torch.tensor(values, requires_grad=True)
    logits = x * 1.0
    loss = F.cross_entropy(logits, logits)
    del logits
    loss.backward()
    torch.nn.functional.cross_entropy(other * 1, other * 1).backward()
    np.testing.assert_allclose(x.grad.numpy(), other.grad.numpy(), rtol=1e-4, atol=1e-6)


def test_probabilities_as_targets() -> None:
    case = Logits()
    rows = gt.tensor(np.eye(SHAPE[1], dtype=np.float32)[case.targets])
    loss = F.cross_entropy(case.logits, rows)
    del case.logits
    loss.backward()
    assert case.taken()
    case.check()


def test_a_leaf_and_data_are_not_written() -> None:
    case = Logits()
    F.cross_entropy(case.x, case.target).backward()
    np.testing.assert_array_equal(case.x.numpy(), case.values)
    case.check()


def test_logits_of_a_checkpointed_function_are_computed_again() -> None:
    case = Logits()
    x, target = case.x, case.target
    del case.logits
    checkpoint(lambda x: F.cross_entropy(x * 1.0, target), x).backward()
    case.check()


def test_a_recorded_walk_takes_nothing() -> None:
    case = Logits()
    loss = case.loss()
    del case.logits
    (g,) = gt.grad(loss, case.x, create_graph=True)
    (g * g).sum().backward(retain_graph=True)
    case.x.grad = None
    loss.backward()
    assert case.taken()
    case.check()


def test_a_walk_for_several_gradients_takes_nothing() -> None:
    """It consumes the graph, and needs the logits for each of them."""
    case = Logits()
    logits = case.x * 1.0
    loss = F.cross_entropy(logits, case.target)
    del logits
    loss.backward(gt.tensor([1.0, 2.0, -1.0]), batched=True)
    first, *others = case.x.grad.numpy()
    np.testing.assert_allclose(others, [2 * first, -first], rtol=1e-6)


def test_an_op_takes_what_it_saves() -> None:
    from gtensor.engine.tape.op import Op

    with pytest.raises(TypeError, match=r"given takes='b'; wanted an input that it saves"):
        Op("careless", inputs="a b", saves={"a": "a"}, takes="b", cpu=lambda *xs, out=None: xs[0],
           gpu=None, backward=None, tangent=None, samples=None)


@pytest.mark.gpu
@pytest.mark.parametrize("after", [False, True])
def test_logits_that_a_captured_graph_reads_are_not_written(after: bool) -> None:
    """Its replays read them again, whether it was captured before the loss or after it."""
    case = Logits("cuda")
    case.loss().backward(retain_graph=True)  # the first calls of the ops, outside of the capture
    loss = case.loss() if after else None
    graph = gt.Graph()
    with graph.capture():
        doubled = case.logits.detach() * 2.0
    graph.replay()
    before = doubled.numpy().copy()
    loss = case.loss() if loss is None else loss
    del case.logits
    loss.backward()
    assert not case.taken()
    graph.replay()
    np.testing.assert_array_equal(doubled.numpy(), before)

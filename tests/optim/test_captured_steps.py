"""Steps of training captured into a CUDA graph: replays are the next steps, or it is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gtensor as gt
from gtensor.backend.cuda import CudaDevice

pytestmark = pytest.mark.gpu

STEPS = 5
SAME_EACH_STEP: dict[str, Any] = {
    "SGD": lambda params: gt.optim.SGD(params, lr=0.1, weight_decay=0.01),
    "momentum": lambda params: gt.optim.SGD(params, lr=0.1, momentum=0.9, nesterov=True),
    "Lion": lambda params: gt.optim.Lion(params, lr=0.01, weight_decay=0.1),
}
NUMBERED: dict[str, Any] = {
    "Adam": lambda params: gt.optim.Adam(params, lr=0.02),
    "AdamW": lambda params: gt.optim.AdamW(params, lr=0.02),
    "AMSGrad": lambda params: gt.optim.Adam(params, lr=0.02, amsgrad=True),
}


class Training:
    """A network, its optimizer, and a step of both on the batch that lies in `x`."""

    def __init__(self, make: Any) -> None:
        gt.manual_seed(0)
        self.net = gt.nn.Sequential(gt.nn.Linear(6, 8), gt.nn.Tanh(), gt.nn.Linear(8, 1)).to("cuda")
        self.optimizer = make(self.net.parameters())
        self.x = gt.zeros((4, 6), device="cuda")

    def gradients(self) -> None:
        self.optimizer.zero_grad()
        (self.net(self.x) ** 2).mean().backward()

    def step(self) -> None:
        self.gradients()
        self.optimizer.step()

    def run(self, step: Any) -> list[np.ndarray]:
        """The weights after some steps, each on a batch of its own."""
        for turn in range(STEPS):
            batch = np.random.default_rng(turn).normal(size=(4, 6)).astype(np.float32)
            self.x[...] = gt.tensor(batch, device="cuda")
            step()
        return [p.numpy() for p in self.net.parameters()]


def eager(make: Any) -> list[np.ndarray]:
    training = Training(make)
    training.step()
    return training.run(training.step)


def captured(work: Any) -> gt.Graph:
    graph = gt.Graph("cuda")
    with graph.capture():
        work()
    return graph


def same(a: list[np.ndarray], b: list[np.ndarray]) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("make", SAME_EACH_STEP.values(), ids=SAME_EACH_STEP)
def test_a_captured_step_equals_the_eager_one(make):
    training = Training(make)
    training.step()
    assert same(training.run(captured(training.step).replay), eager(make))


@pytest.mark.parametrize("make", NUMBERED.values(), ids=NUMBERED)
def test_a_step_that_depends_on_its_number_is_refused_in_a_capture(make):
    training = Training(make)
    training.step()
    before = [p.numpy() for p in training.net.parameters()]
    with pytest.raises(RuntimeError, match=r"step 2 of Adam\w? was to be captured into a graph, "
                       "each replay of which would be step 2 again; wanted .* after each replay$"):
        captured(training.step)
    assert same(before, [p.numpy() for p in training.net.parameters()])
    assert same(training.run(training.step), eager(make)), "the capture counted as a step"


@pytest.mark.parametrize("make", NUMBERED.values(), ids=NUMBERED)
def test_gradients_are_captured_and_the_step_is_not(make):
    training = Training(make)
    training.step()
    graph = captured(training.gradients)

    def step() -> None:
        graph.replay()
        training.optimizer.step()

    assert same(training.run(step), eager(make))


def test_only_the_first_step_of_momentum_has_a_number():
    training = Training(SAME_EACH_STEP["momentum"])
    with pytest.raises(RuntimeError, match="step 1 of SGD .* or a first one before it$"):
        captured(training.step)


def test_averages_that_depend_on_their_number_are_refused_in_a_capture():
    net = Training(SAME_EACH_STEP["SGD"]).net
    plain, warm = gt.optim.EMA(net, 0.9), gt.optim.EMA(net, 0.9, warmup=True)
    with pytest.raises(RuntimeError, match="update 0 of EMA.* or a first one before it$"):
        captured(plain.update)
    for ema in (plain, warm):
        ema.update()
    with pytest.raises(RuntimeError, match="update 1 of EMA.* after each replay$"):
        captured(warm.update)
    graph = captured(plain.update)
    weight = next(iter(net.parameters()))
    kept = weight.numpy()
    with gt.no_grad():
        weight += 1.0
    for _ in range(2):
        graph.replay()
    with plain.swapped():
        np.testing.assert_allclose(weight.numpy(), kept + 0.19, atol=1e-6)


@pytest.mark.parametrize("work", [
    lambda x: gt.nn.functional.dropout(x, 0.5),
    lambda x: gt.nn.functional.scaled_dot_product_attention(x, x, x, dropout_p=0.5)],
    ids=["dropout", "attention"])
def test_a_mask_that_each_replay_would_use_again_is_refused(work):
    x = gt.ones((4, 6), device="cuda")
    with pytest.raises(RuntimeError, match="was to draw a mask while a graph is captured"):
        captured(lambda: work(x))
    captured(lambda: gt.nn.functional.dropout(x, 0.5, seed=3)).replay()


def test_planted_fault_a_capture_that_nothing_notices_is_caught(monkeypatch):
    monkeypatch.setattr(CudaDevice, "capturing", lambda device: False)
    training = Training(NUMBERED["Adam"])
    training.step()
    assert not same(training.run(captured(training.step).replay), eager(NUMBERED["Adam"]))

"""Steps of training captured into a CUDA graph: each replay is the next step, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

import gtensor as gt
from gtensor.backend.cuda import CudaDevice
from gtensor.creation.generators import repetition
from gtensor.engine.run import casting as casting_module
from gtensor.execution import graphs as graphs_module
from gtensor.ops.activations import dropout as dropout_module
from gtensor.optim import optimizer as optimizer_module

pytestmark = pytest.mark.gpu

STEPS = 5
MAKERS: dict[str, Any] = {
    "SGD": lambda params: gt.optim.SGD(params, lr=0.1, weight_decay=0.01),
    "momentum": lambda params: gt.optim.SGD(params, lr=0.1, momentum=0.9, dampening=0.5),
    "Lion": lambda params: gt.optim.Lion(params, lr=0.01, weight_decay=0.1),
    "Adam": lambda params: gt.optim.Adam(params, lr=0.02),
    "AdamW": lambda params: gt.optim.AdamW(params, lr=0.02),
    "AMSGrad": lambda params: gt.optim.Adam(params, lr=0.02, amsgrad=True),
    "RMSprop": lambda params: gt.optim.RMSprop(params, lr=0.02, centered=True, eps=0.1),
    "Adagrad": lambda params: gt.optim.Adagrad(params, lr=0.1, lr_decay=0.1),
}
ADAMW = MAKERS["AdamW"]


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


def eager(make: Any, change: Callable[[Training], object] | None = None) -> list[np.ndarray]:
    training = Training(make)
    training.step()
    return training.run(changing(training, training.step, change))


def changing(training: Training, step: Any, change: Any) -> Any:
    """The step, after a change of the optimizer's options."""
    if change is None:
        return step

    def changed() -> None:
        change(training)
        step()

    return changed


def captured(work: Any) -> gt.Graph:
    graph = gt.Graph("cuda")
    with graph.capture():
        work()
    return graph


def same(a: list[np.ndarray], b: list[np.ndarray]) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


def replayed(make: Any, change: Any = None) -> list[np.ndarray]:
    training = Training(make)
    training.step()
    graph = captured(training.step)
    return training.run(changing(training, graph.replay, change))


def halve_the_rate(training: Training) -> None:
    for group in training.optimizer.param_groups:
        group["lr"] *= 0.5


def decay(training: Training) -> None:
    training.optimizer.param_groups[0]["weight_decay"] += 0.1


@pytest.mark.parametrize("change", [None, halve_the_rate, decay])
@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_replays_equal_eager_steps(make, change):
    assert same(replayed(make, change), eager(make, change))


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_a_first_step_may_be_captured(make):
    """The gradients' kernels are compiled before; the optimizer has not stepped."""
    training, other = Training(make), Training(make)
    training.gradients()
    assert same(training.run(captured(training.step).replay), other.run(other.step))


def test_a_schedule_steps_between_replays():
    def steps(capture: bool) -> list[np.ndarray]:
        training = Training(ADAMW)
        schedule = gt.optim.lr_scheduler.ExponentialLR(training.optimizer, 0.5)
        training.step()
        step = captured(training.step).replay if capture else training.step

        def scheduled() -> None:
            step()
            schedule.step()

        return training.run(scheduled)

    assert same(steps(True), steps(False))


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_replays_count_as_steps_and_resume_from_their_state(make):
    training, other = Training(make), Training(make)
    training.step()
    graph = captured(training.step)
    training.run(graph.replay)
    state = training.optimizer.state_dict()
    assert {entry["step"] for entry in state["state"].values()} == {STEPS + 1}
    other.net.load_state_dict(training.net.state_dict())
    other.optimizer.load_state_dict(state)
    assert same(training.run(graph.replay), other.run(other.step))
    assert other.optimizer.state_dict()["state"][0]["step"] == 2 * STEPS + 1


def test_parameters_that_got_no_gradient_at_times_have_their_own_numbers():
    def steps(capture: bool) -> tuple[list[np.ndarray], list[int]]:
        training = Training(ADAMW)
        first = next(iter(training.net.parameters()))
        for _ in range(3):
            training.gradients()
            first.grad = None
            training.optimizer.step()
        training.step()
        found = training.run(captured(training.step).replay if capture else training.step)
        state = training.optimizer.state_dict()["state"]
        return found, [entry["step"] for entry in state.values()]

    values, counts = steps(True)
    wanted, wanted_counts = steps(False)
    assert same(values, wanted)
    assert counts == wanted_counts == [STEPS + 1, *[STEPS + 4] * 3]


def test_gradients_are_captured_and_the_step_is_not():
    training = Training(ADAMW)
    training.step()
    graph = captured(training.gradients)

    def step() -> None:
        graph.replay()
        training.optimizer.step()

    assert same(training.run(step), eager(ADAMW))


def test_an_option_that_is_no_number_is_refused_in_a_replay():
    training = Training(ADAMW)
    training.step()
    graph = captured(training.step)
    before = [p.numpy() for p in training.net.parameters()]
    group = training.optimizer.param_groups[0]
    group["maximize"] = True
    with pytest.raises(RuntimeError, match="captured with .*'maximize': False.* only numbers may"):
        graph.replay()
    group.update(maximize=False, lr=-1.0)
    with pytest.raises(ValueError, match="lr=-1"):
        graph.replay()
    assert same(before, [p.numpy() for p in training.net.parameters()])


def test_averages_take_the_number_of_the_replay():
    def steps(warmup: bool, capture: bool) -> tuple[list[np.ndarray], int]:
        training = Training(MAKERS["SGD"])
        ema = gt.optim.EMA(training.net, 0.9, warmup=warmup)

        def step() -> None:
            training.step()
            ema.update()

        step()
        training.run(captured(step).replay if capture else step)
        with ema.swapped():
            return [p.numpy() for p in training.net.parameters()], ema.n_averaged

    for warmup in (False, True):
        (values, count), (wanted, wanted_count) = steps(warmup, True), steps(warmup, False)
        assert same(values, wanted)
        assert count == wanted_count == STEPS + 1


def test_the_first_average_is_refused_in_a_capture():
    ema = gt.optim.EMA(Training(ADAMW).net, 0.9)
    with pytest.raises(RuntimeError, match="first update of EMA.* wanted a first one before it$"):
        captured(ema.update)


class Noisy(Training):
    """A network with dropouts of both kinds, one of them run twice by a checkpoint."""

    def __init__(self, make: Any) -> None:
        super().__init__(make)
        functional = gt.nn.functional

        def noisy(x: gt.Tensor) -> gt.Tensor:
            return functional.dropout(x, 0.4)

        def forward(x: gt.Tensor) -> gt.Tensor:
            x = gt.nn.utils.checkpoint(noisy, x + 0.0 * self.net[0].bias[:6])
            y = functional.dropout(self.net[1](self.net[0](x)), 0.3)
            y = functional.scaled_dot_product_attention(y, y, y, dropout_p=0.5)
            return self.net[2](y)

        self.forward = forward

    def gradients(self) -> None:
        self.optimizer.zero_grad()
        (self.forward(self.x) ** 2).mean().backward()


def noisy_steps(capture: bool) -> tuple[list[np.ndarray], int]:
    training = Noisy(ADAMW)
    training.step()
    gt.manual_seed(7)
    found = training.run(captured(training.step).replay if capture else training.step)
    return found, int(gt.random.integers(0, 2**40, ()).item())


def test_replays_draw_the_masks_of_eager_steps():
    (values, drawn), (wanted, next_drawn) = noisy_steps(True), noisy_steps(False)
    assert same(values, wanted)
    assert drawn == next_drawn, "the generator is not where eager steps leave it"


def test_a_seed_that_is_given_stays():
    x = gt.ones((4, 6), device="cuda")
    graph = gt.Graph("cuda")
    with graph.capture():
        y = gt.nn.functional.dropout(x, 0.5, seed=3)
        z = gt.nn.functional.dropout(x, 0.5)
    graph.replay()
    first, other = y.numpy(), z.numpy()
    graph.replay()
    assert np.array_equal(first, y.numpy()) and not np.array_equal(other, z.numpy())


def test_a_captured_step_with_a_scaler_leaves_out_infinite_ones():
    def steps(capture: bool) -> tuple[list[np.ndarray], dict[str, Any], Any]:
        training = Training(ADAMW)
        scaler = gt.optim.GradScaler(init_scale=8.0, growth_interval=2)
        factor = gt.ones((), device="cuda")

        def step() -> None:
            training.optimizer.zero_grad()
            scaler.scale((training.net(training.x) ** 2).mean() * factor).backward()
            scaler.unscale_(training.optimizer)
            gt.optim.clip_grad_norm_(training.net.parameters(), 1.0)
            scaler.step(training.optimizer)
            scaler.update()

        step()
        run = captured(step).replay if capture else step
        for turn in range(5):
            factor[...] = np.inf if turn == 2 else 1.0
            training.x[...] = float(turn)
            run()
        return ([p.numpy() for p in training.net.parameters()], scaler.state_dict(),
                training.optimizer.state_dict()["state"][0]["step"])

    values, state, count = steps(True)
    wanted, wanted_state, wanted_count = steps(False)
    assert same(values, wanted) and state == wanted_state
    assert count == wanted_count == 5


# -- mixed precision -------------------------------------------------------------------------------


def test_a_replay_casts_the_weights_that_the_last_one_wrote():
    """Within a block that cast them before the capture, and where replays write them later."""
    training, other = Training(ADAMW), Training(ADAMW)
    with gt.autocast("bfloat16"):
        training.step()
        training.net(training.x)
        graph = captured(training.step)
        training.net(training.x)
        replayed = training.run(graph.replay)
        after = training.net(training.x)
    with gt.autocast("bfloat16", cache_enabled=False):
        other.step()
        wanted = other.run(other.step)
        assert same([after.numpy()], [other.net(other.x).numpy()])
    assert after.dtype == gt.bfloat16 and same(replayed, wanted)


@pytest.mark.parametrize(("room", "name", "fault"), [
    (graphs_module, "around_captures", [lambda: repetition()()]),
    (casting_module, "replayed", lambda *_: ())])
def test_planted_fault_casts_that_replays_leave_are_seen(room: Any, name: str, fault: Any):
    with patch.object(room, name, fault), pytest.raises((AssertionError, RuntimeError)):
        test_a_replay_casts_the_weights_that_the_last_one_wrote()


# -- planted faults --------------------------------------------------------------------------------


def test_planted_fault_numbers_that_are_not_copied_are_seen():
    refresh = optimizer_module._Refresh
    right = refresh.__call__

    def once(self: Any) -> None:
        if not hasattr(self, "called"):
            self.called = True
            right(self)

    with patch.object(refresh, "__call__", once):
        assert same(replayed(ADAMW), eager(ADAMW))
        assert not same(replayed(ADAMW, halve_the_rate), eager(ADAMW, halve_the_rate))


def test_planted_fault_a_count_that_replays_leave_is_seen():
    """What a capture on the host's numbers would do."""
    right = gt.optim.Optimizer._counted

    def uncounted(self: Any, *given: Any) -> Any:
        found = right(self, *given)
        return {**found, "steps": [(array.copy(), place) for array, place in found["steps"]]}

    training, other = Training(ADAMW), Training(ADAMW)
    training.step()
    other.step()
    with patch.object(gt.optim.Optimizer, "_counted", uncounted):
        graph = captured(training.step)
    assert not same(training.run(graph.replay), other.run(other.step))


def test_planted_fault_seeds_of_the_capture_are_seen():
    right = dropout_module._Seeds.__call__

    def once(self: Any) -> None:
        if not hasattr(self, "called"):
            self.called = True
            right(self)

    with patch.object(dropout_module._Seeds, "__call__", once):
        assert not same(noisy_steps(True)[0], noisy_steps(False)[0])


def test_planted_fault_a_capture_that_nothing_notices_is_caught():
    with patch.object(CudaDevice, "replays", lambda device: None):
        assert not same(replayed(ADAMW, halve_the_rate), eager(ADAMW, halve_the_rate))


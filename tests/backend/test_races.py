"""Programs on several streams, looked through for races: one stream uses what another writes."""

from __future__ import annotations

import random

import numpy as np
import pytest

import gtensor as gt
from gtensor.backend import cuda_guards
from gtensor.backend.ordering import Ordering, Replays, Touched
from gtensor.engine.walk.slots import RawStep
from gtensor.optim import SGD, Adam, Lion

from .racing_cuda import RacingCuda, racing


@pytest.fixture
def device(monkeypatch):
    return racing(monkeypatch)


def random_program(device: RacingCuda, rng: random.Random) -> None:
    """Two steps of training on whatever graph, each op on one of three streams."""
    streams = [device.current_stream(), device.new_stream(), device.new_stream()]

    def somewhere(function):
        with rng.choice(streams):
            return function()

    leaves = [device.tensor([[1.0, 2.0], [3.0, 4.0]]).requires_grad_() for _ in range(2)]
    optimizer = rng.choice([lambda: SGD(leaves, lr=0.1, momentum=0.9), lambda: Adam(leaves),
                            lambda: Lion(leaves)])()
    for _ in range(2):
        optimizer.zero_grad(set_to_none=rng.random() < 0.5)
        values = list(leaves)
        for _ in range(rng.randrange(3, 9)):
            x, y = rng.choice(values), rng.choice(values)
            values.append(somewhere(rng.choice([
                lambda x=x, y=y: x * y, lambda x=x, y=y: x - y, lambda x=x: x * 2.0,
                lambda x=x: gt.tanh(x), lambda x=x, y=y: x @ y,
                lambda x=x: gt.nn.functional.softmax(x, -1), lambda x=x, y=y: x[0:1].sum() * y,
                lambda x=x, y=y: x.reshape((4,)).sum() + y])))
        loss = somewhere(lambda values=values: (values[-1] * values[-2]).sum())
        somewhere(loss.item)
        somewhere(loss.backward)
        somewhere(optimizer.step)
        if rng.random() < 0.3:
            somewhere(lambda: leaves[0].detach().__iadd__(1.0))
        for state in optimizer.state_dict()["state"].values():
            somewhere(state[optimizer.state_names[0]].numpy)


def races_of(monkeypatch, programs: int, seed: int = 0, foreign: bool = False) -> set[str]:
    found: set[str] = set()
    for number in range(seed, seed + programs):
        with monkeypatch.context() as patch:
            device = racing(patch)
            device.foreign = None if foreign else set()
            with np.errstate(all="ignore"):  # only who reads what when matters
                random_program(device, random.Random(number))
            found.update(device.races)
    return found


def test_random_programs_have_no_race(monkeypatch):
    assert races_of(monkeypatch, 60, random.randrange(1 << 30)) == set()


def test_random_programs_on_other_memory_than_the_arenas_have_no_race(monkeypatch):
    assert races_of(monkeypatch, 20, random.randrange(1 << 30), foreign=True) == set()


def test_planted_fault_memory_with_unknown_users_that_waits_for_no_stream_is_caught(monkeypatch):
    monkeypatch.setattr(Ordering, "behind_all", lambda ordering, stream, known: None)
    assert races_of(monkeypatch, 20, foreign=True)


def test_memory_of_another_library_is_used_behind_all_streams(device):
    """Within the same op what is the arena's stays ordered by its notes."""
    imported = device.tensor([1.0, 2.0])
    device.foreign.add(id(imported._array))
    with device.new_stream():
        imported += 1.0
    with device.new_stream():
        imported *= 2.0
    assert (imported * device.tensor([1.0, 1.0])).tolist() == [4.0, 6.0]
    assert device.races == []


def test_a_capture_waits_for_no_stream_and_no_stream_for_it(device):
    side, captured = device.new_stream(), device.new_stream()
    side.launch()
    device._ordering.captures[captured.id] = Touched(Replays(device.empty))
    device._ordering.behind_all(captured, device.streams.ids())
    device._ordering.behind_all(device.current_stream(), device.streams.ids())
    assert captured.clock == {} and captured.id not in device.current_stream().clock
    assert device.current_stream().clock[side.id] == 1


def test_other_memory_waits_for_a_stream_that_is_gone(device):
    side = device.new_stream()
    side.launch()
    last = side.record()
    del device._by_id[side.id]
    device._ordering.forget(side.id, last)
    device._ordering.behind_all(device.current_stream(), device.streams.ids())
    assert device.current_stream().clock[side.id] == 1


def test_planted_fault_values_read_without_order_are_caught(monkeypatch):
    monkeypatch.setattr(RacingCuda, "to_numpy", lambda device, array: (
        device.logged("to_numpy", np.array)(array)))
    assert any(race.startswith("to_numpy reads") for race in races_of(monkeypatch, 5))


def test_planted_fault_a_gradient_written_over_without_order_is_caught(monkeypatch):
    ordered = RawStep.reuse

    def unordered(step, g):
        direct, step.direct = step.direct, True
        try:
            return ordered(step, g)
        finally:
            step.direct = direct

    monkeypatch.setattr(RawStep, "reuse", unordered)
    assert any("multiply" in race for race in races_of(monkeypatch, 40))


def test_planted_fault_state_that_counts_as_read_is_caught(monkeypatch):
    monkeypatch.setattr(cuda_guards, "_WRITTEN", ("out",))
    assert any(race.startswith("to_numpy reads") for race in races_of(monkeypatch, 40))


def test_a_gradient_is_overwritten_only_after_its_readers(device):
    """(a + b) * 1.5 lends one gradient to both, which multiply it on two streams."""
    x, y = (device.tensor([1.0, 2.0]).requires_grad_() for _ in range(2))
    seed = device.tensor([1.0, 1.0])
    with device.new_stream():
        a = x * 2.0
    with device.new_stream():
        b = y * 3.0
    ((a + b) * 1.5).backward(seed)
    assert device.races == []
    assert (x.grad.numpy() == 3.0).all() and (y.grad.numpy() == 4.5).all()


@pytest.mark.parametrize("optimizer", [
    lambda p: SGD(p, lr=0.1, momentum=0.9), Adam, Lion], ids=["sgd", "adam", "lion"])
def test_state_of_an_optimizer_is_read_behind_the_stream_that_steps(device, optimizer):
    parameter = device.tensor([1.0, 2.0]).requires_grad_()
    made = optimizer([parameter])
    side = device.new_stream()
    for _ in range(2):
        with side:
            (parameter * parameter).sum().backward()
            made.step()
    state = made.state_dict()["state"][0][made.state_names[0]]
    state.numpy()
    with device.new_stream():
        state.numpy()
    assert device.races == []


def test_a_derivative_of_zero_is_written_by_the_device(device, monkeypatch):
    filled = []
    fill = RacingCuda.fill
    monkeypatch.setattr(RacingCuda, "fill", lambda device, array, value: (
        filled.append(value), fill(device, array, value))[1])
    x, other = device.tensor([1.0, 2.0]), device.tensor([3.0])
    found = gt.grad(lambda x: other.sum(), allow_unused=True)(x)
    assert filled == [0] and (found.numpy() == 0.0).all() and device.races == []

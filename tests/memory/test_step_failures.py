"""A training step whose upstream refuses, at every call there is: an error, and nothing broken.

What a step that ran out of memory leaves: parameters and optimizer state as they were, since an
optimizer makes its buffers before it writes; gradients as before `backward`, or all of them; the
statistics of norms that already ran, which the forward pass updates as it goes.
"""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from simulated import CappedSegments

import gtensor as gt
from gtensor import nn, optim
from gtensor.backend import get_device
from gtensor.engine.walk.slots import RawStep
from gtensor.memory import Arena, Failing, HostSegments, OutOfMemoryError, VirtualSegments
from gtensor.nn import functional as F
from gtensor.ops.define import updates
from gtensor.settings import settings

from .invariants import check_pool
from .upstreams import HostPages, Unreliable

pytestmark = pytest.mark.thorough
MIB = 1 << 20
State = dict[str, np.ndarray]


@pytest.fixture(autouse=True)
def every_array_is_a_block() -> Iterator[None]:
    """And no collector runs: what a failed step leaves in a cycle would stay."""
    device = get_device("cpu")
    before = device.resource
    gc.collect()
    gc.freeze()  # so that the collections before memory is out are cheap
    gc.disable()
    with settings.override(arena_min_bytes=0):
        yield
    device.resource = before
    gc.enable()
    gc.unfreeze()


class Training:
    """A small net with a convolution, both kinds of norms, a linear layer and AdamW."""

    def __init__(self, arena: Arena, warm: int = 2) -> None:
        self.arena = arena
        self.device = get_device("cpu")
        self.device.resource = arena
        gt.manual_seed(0)
        rng = np.random.default_rng(0)
        self.net = nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1), nn.InPlaceABN(4), nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6),
            nn.ReLU(), nn.Flatten(), nn.Linear(6 * 16, 5))
        self.optimizer = optim.AdamW(self.net.parameters(), lr=1e-2)
        self.images = gt.tensor(rng.standard_normal((4, 3, 6, 6)).astype("f4"))
        self.labels = gt.tensor(np.array([0, 1, 2, 3]))
        for _ in range(warm):
            self.step()

    def step(self) -> float:
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.net(self.images), self.labels)
        loss.backward()
        self.optimizer.step()
        return float(loss.item())

    def weights(self) -> State:
        """What an error must leave as it was: bits of the parameters and of the optimizer."""
        state = self.optimizer.state_dict()["state"]
        found = {f"{number} {name}": np.asarray(getattr(value, "_array", value)).copy()
                 for number, values in state.items() for name, value in values.items()}
        return found | {name: p._array.copy() for name, p in self.net.named_parameters()}

    def gradients(self) -> State:
        return {name: p.grad._array.copy() for name, p in self.net.named_parameters()
                if p.grad is not None}

    def buffers(self) -> State:
        return {name: b._array.copy() for name, b in self.net.named_buffers()}

    def live(self) -> tuple[int, list[str]]:
        """Live bytes, and which ops made them, once the gradients are dropped."""
        self.optimizer.zero_grad()
        return self.arena.allocated, sorted(h.label for h in self.arena.holdings())


def bits(state: State) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in state.items()}


class Outcome:
    """What a clean step makes of a training that is as it was before."""

    def __init__(self, training: Training) -> None:
        self.loss = training.step()
        self.weights, self.buffers = bits(training.weights()), bits(training.buffers())
        self.gradients = bits(training.gradients())


def refuse_one_step(training: Training, clean: Outcome, steps: list[RawStep]) -> bool:
    """Run a step with an upstream that refuses; whether it came to an error. All must be whole."""
    before, buffers, live = bits(training.weights()), bits(training.buffers()), training.live()
    steps.clear()
    refused, kept = False, None
    try:
        training.step()
    except OutOfMemoryError as error:
        refused, kept = True, error  # with its traceback, as a debugger does
    assert not any(step.slots or step.remade for step in steps), "a slot was not emptied"
    steps.clear()
    if kept is not None:
        kept.__traceback__ = kept = None
    gradients = bits(training.gradients())
    if refused:
        assert bits(training.weights()) == before, "an error left weights half updated"
        assert gradients in ({}, clean.gradients), "some gradients were committed, others not"
        for name, value in bits(training.buffers()).items():
            assert value in (buffers[name], clean.buffers[name])
    else:
        assert bits(training.weights()) == clean.weights and gradients == clean.gradients
    assert training.live() == live, "a failed step left blocks alive"
    for pool in training.arena._segments.pools.all():
        check_pool(pool, training.arena.source.granularity)
    return refused


def then_a_clean_step_is_as_ever(training: Training, clean: Outcome) -> None:
    loss = training.step()
    assert loss == clean.loss and bits(training.weights()) == clean.weights
    assert bits(training.gradients()) == clean.gradients


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[RawStep]:
    """The steps of all walks, for a look at their slots."""
    made: list[RawStep] = []
    real = RawStep.__init__

    def init(step: RawStep, wanted: object) -> None:
        real(step, wanted)
        made.append(step)

    monkeypatch.setattr(RawStep, "__init__", init)
    return made


# -- allocations -----------------------------------------------------------------------------------


def fail_at_every_allocation(steps: list[RawStep]) -> int:
    """Refuse each allocation of a step in turn; how many there are."""
    clean = Outcome(Training(Arena(HostSegments())))
    for call in itertools.count(1):
        training = Training(Arena(HostSegments()))
        training.device.resource = Failing(training.arena, call)
        refused = refuse_one_step(training, clean, steps)
        training.device.resource = training.arena
        if not refused:
            return call - 1
        then_a_clean_step_is_as_ever(training, clean)
    raise AssertionError


@pytest.mark.parametrize(("in_c", "least"), [(0, 40), (1, 25)])  # kernels in C need less memory
def test_a_refusal_of_any_allocation_of_a_step_leaves_it_whole(in_c, least, steps):
    with settings.override(compiled=in_c):
        assert fail_at_every_allocation(steps) > least


def test_planted_fault_a_walk_that_keeps_its_slots_is_caught(steps, monkeypatch):
    class Keeps(dict):
        def clear(self):
            pass

    real = RawStep.__init__  # of the fixture

    def init(step, wanted):
        real(step, wanted)
        step.slots = Keeps()

    monkeypatch.setattr(RawStep, "__init__", init)
    with pytest.raises(AssertionError, match="a slot was not emptied"):
        fail_at_every_allocation(steps)


def test_planted_fault_an_optimizer_that_makes_buffers_between_writes_is_caught(
        steps, monkeypatch):
    for name in ("write", "by_kernel"):
        real = getattr(updates._Chosen, name)

        def late(chosen, *given, real=real):
            get_device("cpu").empty((64,), np.float32, "late")
            real(chosen, *given)

        monkeypatch.setattr(updates._Chosen, name, late)
    with pytest.raises(AssertionError, match="left weights half updated"):
        fail_at_every_allocation(steps)


def test_planted_fault_a_step_that_keeps_a_block_is_caught(steps, monkeypatch):
    kept = []
    real = Training.step

    def step(training):
        kept.append(training.device.empty((64,), np.float32, "kept"))
        return real(training)

    monkeypatch.setattr(Training, "step", step)
    with pytest.raises(AssertionError, match="left blocks alive"):
        fail_at_every_allocation(steps)


# -- segments and pages ----------------------------------------------------------------------------


def capped() -> tuple[Arena, Unreliable]:
    """Room for a step, but not for segments that small requests share: many calls."""
    source = Unreliable(CappedSegments(HostSegments(), 2 * MIB - 4096))
    return Arena(source), source


def paged() -> tuple[Arena, HostPages]:
    """Pages of 4 KiB, a few at a time."""
    pages = HostPages(2 * MIB - 4096, 4096)
    return Arena(VirtualSegments(pages)), pages


def fail_at_every_call(make: Callable, steps: list[RawStep], lasting: bool) -> tuple[int, int]:
    """Refuse each request to the source, and all after it if `lasting`: (requests, errors)."""
    clean = Outcome(Training(make()[0], warm=0))
    errors = 0
    for call in itertools.count(1):
        arena, source = make()
        training = Training(arena, warm=0)
        arena.empty_cache()
        first = source.asked + call
        source.refused = lambda asked, first=first: asked == first or lasting and asked > first
        refused = refuse_one_step(training, clean, steps)
        if source.asked < first:
            return call - 1, errors
        source.refused = lambda asked: False
        if refused:
            errors += 1
            then_a_clean_step_is_as_ever(training, clean)
    raise AssertionError


@pytest.mark.parametrize("lasting", [False, True])
@pytest.mark.parametrize("make", [capped, paged])
def test_a_refusal_of_any_segment_of_a_step_leaves_it_whole(make, lasting, steps):
    calls, errors = fail_at_every_call(make, steps, lasting)
    assert calls >= 7
    assert errors == (calls if lasting else 0), "one refusal alone is no reason to give up"

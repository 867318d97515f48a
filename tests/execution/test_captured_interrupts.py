"""An interrupt in a recording or a replay leaves nothing behind: the next calls are the step's."""

from __future__ import annotations

import itertools
import threading

import numpy as np
import pytest
from memory.interrupts import interrupt_after

import gtensor as gt
from gtensor import nn
from gtensor.engine.handle.context import current_casts, innermost
from gtensor.system.bus import bus, here


class Training:
    """A network with dropout; `reset` makes everything as it was."""

    def __init__(self) -> None:
        gt.random.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Dropout(0.3), nn.Linear(4, 3))
        self.optimizer = gt.optim.Adam(self.net.parameters(), lr=0.1)
        self.batch = gt.random.normal((6, 5)), gt.random.integers(0, 3, (6,))
        self.step(*self.batch)
        self.start = [np.array(a) for a in self.arrays()]

    def step(self, x: gt.Tensor, y: gt.Tensor) -> gt.Tensor:
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.net(x), y)
        loss.backward()
        self.optimizer.step()
        return loss

    def arrays(self) -> list[np.ndarray]:
        state = [a for group in self.optimizer._slots for slot in group for a in slot.state]
        return [p._array for p in self.net.parameters()] + state

    def reset(self) -> None:
        for array, value in zip(self.arrays(), self.start, strict=True):
            array[...] = value
        for slot in itertools.chain(*self.optimizer._slots):
            slot.step = 1
        self.optimizer.zero_grad()
        gt.random.manual_seed(3)

    def losses(self, step) -> list[float]:
        self.reset()
        return [step(*self.batch).item() for _ in range(4)]


def interrupted(earlier: int, stride: int) -> None:
    """Interrupt the call after so many earlier ones, at every `stride`-th point."""
    training = Training()
    expected = training.losses(training.step)
    for place in itertools.count(3, stride):
        step = gt.capture(training.step)
        training.reset()
        for _ in range(earlier):
            step(*training.batch)

        def call(step=step):
            try:
                step(*training.batch)
            except gt.CaptureError as error:  # what injects interrupts keeps frames, with arrays
                assert "is kept outside" in str(error)

        before = innermost()  # an earlier test may have left a block
        there = interrupt_after(place, call, sample=stride > 1)
        assert not bus.listeners and here.recorder is None, place
        assert gt.is_grad_enabled() and current_casts() is None and innermost() is before, place
        free: list[bool] = []

        def other(step=step, free=free):
            if step._lock.acquire(timeout=60):
                step._lock.release()
                free.append(True)

        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        assert free, f"another thread waits for ever, after point {place}"
        assert training.losses(step) == expected, place
        if not there:
            return


@pytest.mark.parametrize("earlier", [0, 1, 2, 3])
def test_an_interrupt_in_a_call_leaves_nothing_behind(earlier):
    interrupted(earlier, 719 if earlier < 2 else 97)


@pytest.mark.slow
@pytest.mark.parametrize("earlier", [0, 1, 2, 3])
def test_an_interrupt_at_many_points_of_a_call_leaves_nothing_behind(earlier):
    interrupted(earlier, 29 if earlier < 2 else 1)

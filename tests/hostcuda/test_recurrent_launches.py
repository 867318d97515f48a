"""What recurrent layers launch on CUDA: two for a step forward and two backward, and a few once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

import gtensor as gt
from gtensor import nn
from gtensor.backend.kernels import Launcher
from gtensor.hostcuda import Counters, configure, counters, reset_counters

pytestmark = [pytest.mark.host_cuda, pytest.mark.usefixtures("dry_cuda")]

KINDS = ["LSTM", "GRU"]
# Beside the steps, forward and backward. The inputs' product with its bias, states that are copied
# to their places and results that are stacked; then the gradient of a slice, which is copied into
# zeros, and three products. A GRU also rolls its weight and bias, and their gradients.
ONCE = {"LSTM": (7, 8), "GRU": (9, 13)}


def counted(work: Callable[[], Any]) -> Counters:
    """Of the second call."""
    for _ in range(2):
        reset_counters()
        kept = work()  # until the counters are read: to free it is no launch
    found = counters()
    del kept
    return found


def passes(kind: str, steps: int, **options: Any) -> tuple[Counters, Counters]:
    """What forward and backward of a layer with given states cost."""
    network, x = getattr(nn, kind)(3, 4, **options), gt.ones((steps, 2, 3), requires_grad=True)
    states = [gt.ones((1, 2, 4), requires_grad=True) for _ in range(2 if kind == "LSTM" else 1)]
    state: Any = tuple(states) if len(states) > 1 else states[0]
    upstream = gt.ones((steps, 2, 4))

    def both() -> Counters:
        y, _ = network(x, state)
        reset_counters()
        y.backward(upstream)
        for leaf in (x, *states, *network.parameters()):
            leaf.grad = None
        return y

    return counted(lambda: network(x, state)), counted(both)


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_is_two_launches(kind):
    """A product and a cell each way; everything else is launched once for all steps."""
    short, long = passes(kind, 3), passes(kind, 8)
    name = f"{kind.lower()}_cell_"
    for few, many, cell in zip(short, long, ("forward<float>", "backward<float>"), strict=True):
        assert many.launches - few.launches == 2 * 5
        assert (few.kernels[name + cell], many.kernels[name + cell]) == (3, 8)
        assert sum(many.library.values()) - sum(few.library.values()) == 5
        assert few.memsets == many.memsets and not many.other, "no synchronization"
    assert tuple(each.launches - 2 * 8 for each in long) == ONCE[kind]


def test_planted_fault_a_third_launch_of_a_step_is_counted():
    launch = Launcher.__call__

    def twice(self: Launcher, *args: Any) -> None:
        launch(self, *args)
        launch(self, *args)

    with patch.object(Launcher, "__call__", twice), pytest.raises(AssertionError):
        test_a_step_is_two_launches("LSTM")


@pytest.mark.parametrize("kind", KINDS)
def test_values_on_a_host_device_are_those_of_the_cpu(kind):
    configure("eager", dry=False)
    rng = np.random.default_rng(0)
    on_cpu = getattr(nn, kind)(3, 4, num_layers=2, bidirectional=True, device="cpu")
    on_cuda = getattr(nn, kind)(3, 4, num_layers=2, bidirectional=True)
    on_cuda.load_state_dict(on_cpu.state_dict())
    x, found = rng.standard_normal((5, 2, 3)).astype(np.float32), []
    for network, device in ((on_cpu, "cpu"), (on_cuda, "cuda")):
        y, state = network(gt.tensor(x, device=device))
        (y * y).sum().backward()
        found.append([gt.asarray(t, device="cpu").numpy() for t in (
            y, *(state if kind == "LSTM" else [state]),
            *[p.grad for p in network.parameters()])])
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)

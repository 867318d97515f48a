"""What a record saved, and a replay of a CUDA graph writes since, is not taken for what it was."""

from __future__ import annotations

import numpy as np
import pytest

import gtensor as gt
from gtensor.backend.cuda import CudaDevice
from gtensor.core.consume import apply_keeping
from gtensor.core.op import registry

pytestmark = pytest.mark.gpu


def result():
    """A graph, and its result."""
    x = gt.ones(4, device="cuda")
    graph = gt.Graph("cuda")
    with gt.no_grad(), graph.capture():
        y = x * 2.0
    return graph, y


def target():
    """A graph, and a tensor from before that it writes in place."""
    x = gt.full((4,), 2.0, device="cuda")
    graph = gt.Graph("cuda")
    with gt.no_grad(), graph.capture():
        x += 0.0
    return graph, x


def remade():
    """A graph, and a result with the recipe to make it of other memory of the graph."""
    w = gt.ones(4, device="cuda", requires_grad=True)
    graph = gt.Graph("cuda")
    with graph.capture():
        y = apply_keeping(registry["square"], (w * 2.0,), {})
    return graph, y


@pytest.mark.parametrize("written", [result, target, remade])
def test_a_backward_after_a_replay_names_the_op_that_saved(written):
    graph, y = written()
    graph.replay()
    w = gt.ones(4, device="cuda", requires_grad=True)
    loss = (w * y).sum()
    graph.replay()
    with pytest.raises(gt.GradientError, match="multiply .* overwritten in place since; clone"):
        loss.backward()


@pytest.mark.parametrize("written", [result, target])
def test_what_was_saved_since_the_last_replay_or_cloned_has_its_gradient(written):
    graph, y = written()
    w = gt.ones(4, device="cuda", requires_grad=True)
    for _ in range(3):
        graph.replay()
        (w * y).sum().backward()
    np.testing.assert_array_equal(w.grad.numpy(), np.full(4, 6.0))
    loss = (w * y.clone()).sum()
    graph.replay()
    loss.backward()
    np.testing.assert_array_equal(w.grad.numpy(), np.full(4, 8.0))


def test_graphs_of_one_pool_write_their_own_results_only():
    graph, y = result()
    other = gt.Graph("cuda", pool=graph.pool)
    with gt.no_grad(), other.capture():
        z = y * 3.0
    graph.replay()
    w = gt.ones(4, device="cuda", requires_grad=True)
    loss = (w * y).sum()
    other.replay()
    loss.backward()
    assert w.grad.numpy()[0] == 2.0 and z.numpy()[0] == 6.0


def test_planted_fault_replays_that_do_not_count_are_caught(monkeypatch):
    monkeypatch.setattr(CudaDevice, "stamp", lambda device, array: None)
    with pytest.raises(pytest.fail.Exception):
        test_a_backward_after_a_replay_names_the_op_that_saved(result)

"""What a record saved, and a replay of a CUDA graph writes since, is not taken for what it was."""

from __future__ import annotations

import numpy as np
import pytest

import gtensor as gt
from gtensor.backend.cuda import CudaDevice
from gtensor.backend.cuda_graphs import Capture
from gtensor.engine.run.take_over import apply_keeping
from gtensor.engine.tape.op import registry

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
    with pytest.raises(gt.GradientError, match="multiply .* a graph's replays write"):
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


def test_a_replay_writes_no_result_that_its_capture_found_in_the_pool():
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


def test_a_backward_after_a_replay_names_the_op_that_saved_a_result_in_a_temporarys_place():
    x = gt.ones(1 << 20, device="cuda")
    graph = gt.Graph("cuda")
    with gt.no_grad(), graph.capture():
        temporary = x * 3.0
        y = temporary * 2.0
        del temporary
    other = gt.Graph("cuda", pool=graph.pool)
    with gt.no_grad(), other.capture():
        z = x * 5.0
    other.replay()
    w = gt.ones(1 << 20, device="cuda", requires_grad=True)
    loss = (w * z).sum()
    graph.replay()
    assert z[0].item() == 3.0 and y[0].item() == 6.0  # else the test shows nothing
    with pytest.raises(gt.GradientError, match="multiply .* a graph's replays write"):
        loss.backward()


@pytest.mark.parametrize("replays", range(3))
@pytest.mark.parametrize("saved", ["result", "target"])
def test_what_is_recorded_in_a_capture_is_refused_outside(saved, replays):
    w, x = gt.ones(4, device="cuda", requires_grad=True), gt.ones(4, device="cuda")
    graph = gt.Graph("cuda")
    with graph.capture():
        if saved == "target":
            x += 1.0
        loss = (w * (x if saved == "target" else x * 2.0)).sum()
    for _ in range(replays):
        graph.replay()
    with pytest.raises(gt.GradientError, match="multiply .* a graph's replays write"):
        loss.backward()


def test_a_capture_may_walk_what_it_recorded_and_uses_recipes():
    w = gt.ones(4, device="cuda", requires_grad=True)
    graph = gt.Graph("cuda")
    with graph.capture():
        y = apply_keeping(registry["square"], (w * 2.0,), {})
        (w * y).sum().backward()
        assert not y._storage.saved
    graph.replay()
    np.testing.assert_array_equal(w.grad.numpy(), np.full(4, 12.0))


def test_saves_look_for_replays_only_while_a_graph_lives():
    device = gt.device("cuda")
    before = len(device.graphs)
    graph, _ = result()
    assert len(device.graphs) == before + 1
    del graph
    assert len(device.graphs) == before


def test_planted_fault_a_replay_that_counts_for_its_own_results_only_is_caught(monkeypatch):
    launch = Capture.launch
    monkeypatch.setattr(Capture, "launch", lambda capture, stream, outputs: launch(
        capture, stream, [block for block in outputs if block.serial == capture._first]))
    with pytest.raises(pytest.fail.Exception):
        test_a_backward_after_a_replay_names_the_op_that_saved_a_result_in_a_temporarys_place()


def test_planted_fault_replays_that_do_not_count_are_caught(monkeypatch):
    monkeypatch.setattr(CudaDevice, "stamp", lambda device, array: None)
    with pytest.raises(pytest.fail.Exception):
        test_a_backward_after_a_replay_names_the_op_that_saved(result)

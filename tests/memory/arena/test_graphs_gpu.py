"""CUDA graphs on a real device: the same addresses, the right numbers, memory that comes back."""

from __future__ import annotations

import gc
import re
from pathlib import Path

import numpy as np
import pytest

import gtensor as gt
from gtensor import memory, settings

pytestmark = pytest.mark.gpu

SIZE = 1 << 20
GUIDE = Path(__file__).parents[3] / "docs" / "concepts" / "streams_and_graphs.md"


@pytest.fixture
def cupy():
    import cupy

    gt.zeros(1, device="cuda")
    gc.collect()
    cupy.cuda.Device().synchronize()
    memory.empty_cache("cuda")
    return cupy


def chain(x):
    return ((x * 2.0).exp() + x).tanh()


def captured(f, *inputs, **more):
    """A graph of f, which has run before, and what f answered in the capture."""
    f(*inputs)
    graph = gt.Graph("cuda", **more)
    with graph.capture():
        y = f(*inputs)
    return graph, y


def address(tensor) -> int:
    return tensor.array.data.ptr


def numbers(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=SIZE).astype(np.float32)


def expected(x: np.ndarray) -> np.ndarray:
    return np.tanh(np.exp(2 * x) + x)


def test_a_chain_of_ops_replays_with_new_values_at_the_same_addresses(cupy):
    x = gt.tensor(numbers(0), device="cuda")
    with gt.no_grad():
        graph, y = captured(chain, x)
        at = address(y)
        for seed in range(5):
            values = numbers(seed)
            x[...] = gt.tensor(values, device="cuda")
            graph.replay()
            np.testing.assert_allclose(y.numpy(), expected(values), rtol=1e-5, atol=1e-6)
            assert address(y) == at
    assert memory.stats("cuda").private > 0


def test_raw_allocations_and_ops_in_between_disturb_nothing(cupy):
    x = gt.tensor(numbers(0), device="cuda")
    with gt.no_grad():
        graph, y = captured(chain, x)
        noise = []
        for seed in range(3):
            noise.append(cupy.full(SIZE, -1, np.float32))
            gt.full((SIZE,), -2.0, device="cuda")
            graph.replay()
            noise.append(cupy.full(SIZE + seed, -1, np.float32))
            np.testing.assert_allclose(y.numpy(), expected(numbers(0)), rtol=1e-5, atol=1e-6)
    assert all(bool((array == -1).all()) for array in noise)


def test_two_graphs_of_one_pool_replay_alternately_on_two_streams(cupy):
    x = gt.tensor(numbers(0), device="cuda")
    with gt.no_grad():
        first, y = captured(chain, x)
        second, z = captured(lambda x: chain(chain(x)), x, pool=first.pool)
        side = gt.stream("cuda")
        for seed in range(5):
            values = numbers(seed)
            x[...] = gt.tensor(values, device="cuda")
            first.replay()
            with side:
                second.replay()
            np.testing.assert_allclose(y.numpy(), expected(values), rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(z.numpy(), expected(expected(values)), rtol=1e-5, atol=1e-6)


def test_a_training_step_is_captured_whole(cupy):
    def losses(replays: bool) -> list[float]:
        gt.manual_seed(0)
        model = gt.nn.Sequential(gt.nn.Linear(64, 128), gt.nn.Tanh(), gt.nn.Linear(128, 1))
        model.to("cuda")
        x = gt.tensor(numbers(0)[:64 * 32].reshape(32, 64), device="cuda")

        def step():
            loss = (model(x) ** 2).mean()
            for p, g in zip(model.parameters(), gt.grad(loss, list(model.parameters())),
                            strict=True):
                with gt.no_grad():
                    p -= 0.01 * g
            return loss

        found = [step().item()]
        if replays:
            graph = gt.Graph("cuda")
            with graph.capture():
                loss = step()
        for _ in range(5):
            if replays:
                graph.replay()
            else:
                loss = step()
            found.append(loss.item())
        return found

    np.testing.assert_allclose(losses(True), losses(False), rtol=1e-5)


def test_memory_of_a_graph_that_is_gone_serves_others(cupy):
    x = gt.tensor(numbers(0), device="cuda")
    with gt.no_grad():
        graph, y = captured(chain, x)
    graph.replay()
    del graph
    gc.collect()
    stats = memory.stats("cuda")
    assert stats.private == 0
    others = [gt.full((SIZE,), -1.0, device="cuda") for _ in range(3)]
    np.testing.assert_allclose(y.numpy(), expected(numbers(0)), rtol=1e-5, atol=1e-6)
    assert memory.stats("cuda").reserved == stats.reserved, "it asked the device for more"
    del others, y


def test_a_graph_dropped_in_a_cycle_leaves_memory_that_another_stream_waits_for(cupy):
    x = gt.ones((SIZE,), device="cuda")
    with gt.no_grad(), gt.stream("cuda"):
        graph, y = captured(chain, x)
        graph.replay()
    cycle = [graph, y]
    cycle.append(cycle)
    del graph, y, cycle
    gc.collect()  # finds the pool and what only it refers to together
    before = memory.stats("cuda").reserved
    z = gt.full((SIZE,), 2.0, device="cuda")
    assert memory.stats("cuda").reserved == before  # the graph's memory
    assert bool((z.array == 2).all())


@pytest.mark.parametrize("source", ["cudamalloc", "virtual"])
def test_captures_in_a_loop_ask_the_device_for_no_more(cupy, source):
    """The workspace of each one's products included; results are read on the host at the end."""
    memory.configure(source, "cuda")
    try:
        x = gt.tensor(numbers(0)[:4096].reshape(64, 64) / 100, device="cuda")
        seen, reserved = [], []
        with gt.no_grad():
            for turn in range(20):
                graph, y = captured(lambda turn=turn: chain(x @ x + turn / 10))
                with gt.stream("cuda"):
                    graph.replay()
                with gt.stream("cuda"):
                    seen.append(y[0] * 1.0)
                del graph, y
                reserved.append(memory.stats("cuda").reserved)
        assert len({*reserved[2:]}) == 1, reserved
        for turn, found in enumerate(seen):
            wanted = expected(x.numpy() @ x.numpy() + np.float32(turn / 10))[0]
            np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-3, atol=1e-4)
    finally:
        memory.configure(settings.cuda_source, "cuda")


def test_the_pool_may_grow_in_the_middle_of_a_capture(cupy):
    """cudaMalloc and, on virtual memory, mapping of pages are legal there: the mode is relaxed."""
    x = gt.full((SIZE,), 0.5, device="cuda")
    with gt.no_grad():
        graph, kept = captured(lambda x: [x + float(k) for k in range(40)], x)
    graph.replay()
    assert [float(y[0].item()) for y in kept] == [0.5 + k for k in range(40)]


def test_what_needs_the_host_ends_the_capture_and_nothing_else(cupy):
    x = gt.full((SIZE,), 0.5, device="cuda")
    graph = gt.Graph("cuda")
    with pytest.raises(Exception, match="(?i)captur"), graph.capture():
        (x + 1.0).sum().item()
    gc.collect()
    assert float((x + 1.0)[0].item()) == 1.5
    with graph.capture():
        y = x + 1.0
    graph.replay()
    assert float(y[0].item()) == 1.5


def test_the_guides_example_runs(cupy):
    (block,) = re.findall(r"^```py\n(.*?)^```$", GUIDE.read_text(encoding="utf-8"), re.S | re.M)
    exec(compile(block, GUIDE.name, "exec"), {"__name__": "__main__"})

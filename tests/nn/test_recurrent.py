"""Recurrent layers: equal to PyTorch's; LSTM and GRU make one record a direction, none a step."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch

import gtensor as gt
from gtensor import nn
from gtensor.backend import Scratch, host
from gtensor.engine.tape.record import Record
from gtensor.nn.utils import checkpoint
from gtensor.ops.recurrent import gru, lstm
from gtensor.testing import gradcheck

KINDS = ["LSTM", "GRU"]
ALL = [*KINDS, "RNN"]  # which is made of ops of their own


def pair(kind: str, *sizes: int, **options: Any) -> tuple[Any, Any]:
    """Both modules in float64 with PyTorch's values."""
    torch.manual_seed(0)
    theirs = getattr(torch.nn, kind)(*sizes, **options).double()
    mine = getattr(nn, kind)(*sizes, **options, dtype=gt.float64)
    assert [(n, p.shape) for n, p in mine.named_parameters()] == [
        (n, tuple(p.shape)) for n, p in theirs.named_parameters()]
    mine.load_state_dict(theirs.state_dict())
    return mine, theirs


def states_of(kind: str, shape: tuple[int, ...], rng: np.random.Generator) -> list[np.ndarray]:
    return [rng.standard_normal(shape) for _ in range(2 if kind.startswith("LSTM") else 1)]


def packed(states: list[Any]) -> Any:
    """A state as the modules take it."""
    return tuple(states) if len(states) > 1 else states[0]


def flat(result: Any) -> list[Any]:
    """The tensors of a result, outputs first."""
    if not isinstance(result, tuple):
        return [result]
    return [x for part in result for x in flat(part)]


def compare(mine: Any, theirs: Any, x: np.ndarray, states: list[np.ndarray] | None) -> None:
    """Values, and gradients of a loss of all results, of the inputs and of all parameters."""
    arrays = [x, *(states or [])]
    ours = [gt.tensor(a, requires_grad=True) for a in arrays]
    others = [torch.tensor(a, requires_grad=True) for a in arrays]
    found = flat(mine(ours[0], packed(ours[1:])) if states else mine(ours[0]))
    wanted = flat(theirs(others[0], packed(others[1:])) if states else theirs(others[0]))
    for y, z in zip(found, wanted, strict=True):
        np.testing.assert_allclose(y.numpy(), z.detach().numpy(), rtol=1e-10, atol=1e-12)
    sum((i + 1) * (y * y).sum() for i, y in enumerate(found)).backward()
    sum((i + 1) * (z * z).sum() for i, z in enumerate(wanted)).backward()
    for a, b in zip([*ours, *mine.parameters()], [*others, *theirs.parameters()], strict=True):
        np.testing.assert_allclose(a.grad.numpy(), b.grad.numpy(), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("options", [
    {}, {"bidirectional": True, "num_layers": 2}, {"batch_first": True, "bias": False},
    {"num_layers": 3, "batch_first": True, "bidirectional": True}], ids=str)
@pytest.mark.parametrize("given", [True, False], ids=["states", "zeros"])
def test_values_and_gradients_are_pytorchs(kind, options, given):
    rng = np.random.default_rng(1)
    mine, theirs = pair(kind, 3, 4, **options)
    layers = options.get("num_layers", 1) * (1 + options.get("bidirectional", False))
    shape = (2, 5, 3) if options.get("batch_first") else (5, 2, 3)
    compare(mine, theirs, rng.standard_normal(shape),
            states_of(kind, (layers, 2, 4), rng) if given else None)


@pytest.mark.parametrize("kind", ALL)
def test_without_a_batch(kind):
    rng = np.random.default_rng(2)
    mine, theirs = pair(kind, 3, 4, bidirectional=True)
    compare(mine, theirs, rng.standard_normal((5, 3)), states_of(kind, (2, 4), rng))


@pytest.mark.parametrize("kind", ALL)
def test_an_empty_batch_gives_gradients_of_zero(kind):
    mine, _ = pair(kind, 3, 4)
    y, state = mine(gt.zeros((5, 0, 3), gt.float64))
    assert y.shape == (5, 0, 4) and all(s.shape == (1, 0, 4) for s in flat(state))
    y.sum().backward()
    assert all(not p.grad.numpy().any() for p in mine.parameters())


@pytest.mark.parametrize("kind", ["LSTMCell", "GRUCell", "RNNCell"])
@pytest.mark.parametrize("bias", [True, False])
def test_cells_are_pytorchs(kind, bias):
    rng = np.random.default_rng(3)
    mine, theirs = pair(kind, 3, 4, bias=bias)
    compare(mine, theirs, rng.standard_normal((2, 3)), states_of(kind, (2, 4), rng))
    compare(*pair(kind, 3, 4, bias=bias), rng.standard_normal(3), None)


def test_a_plain_layer_has_two_nonlinearities():
    rng = np.random.default_rng(3)
    for kind, shape in (("RNN", (5, 2, 3)), ("RNNCell", (2, 3))):
        compare(*pair(kind, 3, 4, nonlinearity="relu"), rng.standard_normal(shape), None)
        with pytest.raises(ValueError, match="nonlinearity='gelu' given; wanted 'tanh' or 'relu'"):
            getattr(nn, kind)(3, 4, nonlinearity="gelu")
    assert repr(nn.RNN(3, 4, nonlinearity="relu")) == "RNN(3, 4, nonlinearity='relu')"


@pytest.mark.parametrize("kind", ALL)
def test_pytorch_loads_the_state_and_the_initial_values_are_within_its_bound(kind):
    mine = getattr(nn, kind)(3, 4, num_layers=2, bidirectional=True)
    theirs = getattr(torch.nn, kind)(3, 4, num_layers=2, bidirectional=True)
    state = {name: torch.tensor(value.numpy()) for name, value in mine.state_dict().items()}
    theirs.load_state_dict(state)
    x = np.random.default_rng(4).standard_normal((5, 2, 3)).astype(np.float32)
    np.testing.assert_allclose(mine(gt.tensor(x))[0].numpy(),
                               theirs(torch.tensor(x))[0].detach().numpy(), atol=1e-6)
    values = np.concatenate([p.numpy().ravel() for p in mine.parameters()])
    assert 0.45 < np.abs(values).max() <= 0.5 and abs(values.mean()) < 0.05


def test_mistakes_are_named_before_anything_is_computed():
    one, other, cell = nn.LSTM(3, 4), nn.GRU(3, 4, batch_first=True), nn.LSTMCell(3, 4)
    x, wide, empty, row = (gt.ones(s) for s in ((5, 2, 3), (5, 2, 4), (0, 2, 3), (3,)))
    double, state = x.astype(gt.float64), gt.ones((1, 2, 4))
    wrong: list[tuple[Callable[[], object], type[Exception], str]] = [
        (lambda: nn.LSTM(3, 4, proj_size=2), ValueError, "proj_size=2; wanted 0"),
        (lambda: nn.GRU(3, 0), ValueError, "hidden_size=0 given to GRU"),
        (lambda: nn.GRU(3, 4, dropout=1.5), ValueError, "GRU was given dropout=1.5"),
        (lambda: one(wide), ValueError, r"\(5, 2, 4\); wanted \(T, N, 3\)"),
        (lambda: other(row), ValueError, r"shape \(3,\); wanted \(N, T, 3\)"),
        (lambda: one(empty), ValueError, "wanted a step at least"),
        (lambda: one(double), TypeError, "float64.*one floating-point dtype"),
        (lambda: one(x.numpy()), TypeError, "input of type ndarray"),
        (lambda: one(x, state), ValueError, "given 1 state tensors; wanted 2"),
        (lambda: other(x, state), ValueError, r"\(1, 2, 4\).*wanted \(1, 5, 4\)"),
        (lambda: cell(x), ValueError, r"wanted \(N, 3\) or \(3,\)"),
    ]
    with patch.object(host(), "empty", side_effect=AssertionError("something was computed")):
        for call, error, message in wrong:
            with pytest.raises(error, match=message):
                call()


@pytest.mark.parametrize(("change", "message"), [
    ({"w_ih": (12, 3)}, r"w_ih of shape \(12, 3\); wanted \(16, 3\)"),
    ({"b_hh": (12,)}, r"b_hh of shape \(12,\); wanted \(16,\)"),
    ({"c0": (3, 4)}, r"c0 of shape \(3, 4\); wanted \(2, 4\)"),
    ({"b_hh": None}, "given one bias"), ({"input": (2, 3)}, r"wanted \(T, N, I\)")])
def test_mistakes_of_a_layer_are_named(change, message):
    shapes = {"input": (5, 2, 3), "h0": (2, 4), "c0": (2, 4), "w_ih": (16, 3), "w_hh": (16, 4),
              "b_ih": (16,), "b_hh": (16,)} | change
    with pytest.raises(ValueError, match=message):
        lstm.lstm_layer(**{n: s if s is None else gt.ones(s) for n, s in shapes.items()})


@pytest.mark.parametrize("kind", KINDS)
def test_dropout_acts_between_layers_in_training_only(kind):
    gt.manual_seed(0)
    x = gt.ones((4, 3, 2))
    network = getattr(nn, kind)(2, 8, num_layers=2, dropout=0.5)
    first, other = (network(x) for _ in range(2))
    assert not np.allclose(first[0].numpy(), other[0].numpy())
    one, two = (flat(result)[1].numpy() for result in (first, other))
    assert np.array_equal(one[0], two[0]), "the first layer drops nothing"
    network.eval()
    assert np.array_equal(network(x)[0].numpy(), network(x)[0].numpy())
    alone = getattr(nn, kind)(2, 8, dropout=0.5)
    assert np.array_equal(alone(x)[0].numpy(), alone(x)[0].numpy()), "nothing behind the last"


# -- records, memory, transforms -------------------------------------------------------------------


def records(*ends: gt.Tensor) -> list[str]:
    """The names of the ops that a result depends on, each record once."""
    found: dict[Record, str] = {}
    stack = [end._node for end in ends]
    while stack:
        node = stack.pop()
        if isinstance(node, Record) and node not in found:
            found[node] = node.op.name
            stack += node.parents
    return sorted(found.values())


@pytest.mark.parametrize("kind", KINDS)
def test_a_layer_is_one_record_in_each_direction(kind):
    """However long the sequence; slices are views of its one output."""
    network = getattr(nn, kind)(3, 4, num_layers=2, bidirectional=True)
    found = records(network(gt.ones((9, 2, 3)))[0])
    assert [name for name in found if name != "slice"] == ["concat"] * 2 + [kind.lower()] * 4


def trained(kind: str, steps: int, rows: int = 2, width: int = 4) -> Callable[[], None]:
    network, x = getattr(nn, kind)(width, width), gt.ones((steps, rows, width))

    def run() -> None:
        y, _ = network(x)
        y.backward(gt.ones(y.shape))

    return run


@pytest.mark.parametrize("kind", KINDS)
def test_buffers_are_made_before_the_steps(kind):
    """As many for 60 steps as for 20, forward and backward together."""
    counts = []
    for steps in (20, 60):
        run = trained(kind, steps)
        run()
        with patch.object(host(), "empty", side_effect=host().empty) as empty:
            run()
        counts.append(empty.call_count)
    assert counts[0] == counts[1]


ROWS, WIDTH = 256, 256
STATE = ROWS * WIDTH * 4  # bytes, more than twice NumPy's own buffers


def most_in_a_loop(kind: str) -> int:
    """The most bytes that are new in the CPU's loops over the steps, beside their work buffers."""
    module, most = {"LSTM": lstm, "GRU": gru}[kind], []
    spare = np.empty((3, 4 * ROWS * WIDTH), np.float32)

    def workspace(elements: int, dtype: np.dtype, count: int = 1) -> Scratch:
        return Scratch(spare[:count, :elements])

    def traced(function: Callable[..., None], *args: Any) -> None:
        tracemalloc.start()
        try:
            function(*args)
            most.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()

    with ExitStack() as stack:
        for name in ("_steps_cpu", "_steps_back_cpu"):
            stack.enter_context(patch.object(
                module, name, partial(traced, getattr(module, name))))
        stack.enter_context(patch.object(host(), "workspace", workspace))
        trained(kind, 3, ROWS, WIDTH)()
    assert len(most) == 2
    return max(most)


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_makes_no_array(kind):
    assert most_in_a_loop(kind) < STATE / 2


def test_planted_fault_a_temporary_in_a_step_is_seen():
    def multiply(x1: np.ndarray, x2: np.ndarray, out: np.ndarray) -> np.ndarray:
        out[...] = x1 * x2
        return out

    with patch.object(lstm, "np", SimpleNamespace(**vars(np) | {"multiply": multiply})):
        assert most_in_a_loop("LSTM") >= STATE


@pytest.mark.parametrize("kind", KINDS)
def test_in_a_checkpointed_region(kind):
    network = getattr(nn, kind)(3, 4, num_layers=2, dtype=gt.float64)
    x = gt.tensor(np.random.default_rng(5).standard_normal((5, 2, 3)), requires_grad=True)
    found = []
    for run in (network, lambda x: checkpoint(network, x)):
        network.zero_grad()
        x.grad = None
        (run(x)[0] ** 2).sum().backward()
        found.append([t.grad.numpy().copy() for t in (x, *network.parameters())])
    for a, b in zip(*found, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
def test_derivatives_of_the_whole_network(kind):
    network = getattr(nn, kind)(2, 2, num_layers=2, bidirectional=True, dtype=gt.float64)
    x = gt.tensor(np.random.default_rng(6).standard_normal((3, 1, 2)), requires_grad=True)
    gradcheck(lambda x, *_: network(x)[0], (x, *network.parameters()))


@pytest.mark.parametrize("kind", KINDS)
def test_examples_by_vmap_with_parameters_of_their_own(kind):
    rng = np.random.default_rng(7)
    network = getattr(nn, kind)(3, 4, dtype=gt.float64)
    names = [name for name, _ in network.named_parameters()]
    x = gt.tensor(rng.standard_normal((6, 5, 2, 3)))
    stacks = [gt.tensor(rng.standard_normal((6, *p.shape))) for p in network.parameters()]

    def loss(x: gt.Tensor, *values: gt.Tensor) -> gt.Tensor:
        y, _ = gt.func.functional_call(network, dict(zip(names, values, strict=True)), (x,))
        return (y * y).sum()

    gradient = gt.func.grad(loss, argnums=tuple(range(len(stacks) + 1)))
    found = gt.func.vmap(gradient)(x, *stacks)
    for k in range(6):
        alone = gradient(x[k], *[s[k] for s in stacks])
        for a, b in zip(found, alone, strict=True):
            np.testing.assert_allclose(a[k].numpy(), b.numpy(), rtol=1e-10, atol=1e-12)

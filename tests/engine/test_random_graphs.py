"""Random graphs of linear and bilinear ops: gradients against PyTorch, in both modes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gtensor as gt

ROW, MATRIX, SQUARE = (4,), (3, 4), (4, 4)

# Each op: the shapes that it reads, the shape that it makes, and itself in both libraries. Factors
# keep the numbers near 1, so that errors are not hidden by huge terms.
Shape = tuple[int, ...]
Both = Callable[[Any, Any], Any]  # (library, operands)
OPS: dict[str, tuple[tuple[Shape, ...], Shape, Both]] = {}


def define(name: str, reads: tuple[Shape, ...], makes: Shape, both: Both) -> None:
    OPS[name] = reads, makes, both


for tag, shape in (("row", ROW), ("matrix", MATRIX), ("square", SQUARE)):
    define(f"add {tag}", (shape, shape), shape, lambda xp, v: v[0] + v[1])
    define(f"subtract {tag}", (shape, shape), shape, lambda xp, v: v[0] - v[1])
    define(f"multiply {tag}", (shape, shape), shape, lambda xp, v: v[0] * v[1] * 0.25)
    define(f"negative {tag}", (shape,), shape, lambda xp, v: -v[0])
    define(f"double {tag}", (shape,), shape, lambda xp, v: v[0] + v[0])
    define(f"square {tag}", (shape,), shape, lambda xp, v: v[0] * v[0] * 0.25)
    define(f"scale {tag}", (shape,), shape, lambda xp, v: 1.5 * v[0] - 1.0)
    define(f"tanh {tag}", (shape,), shape, lambda xp, v: xp.tanh(v[0]))
    define(f"copy {tag}", (shape,), shape, lambda xp, v: v[0].clone())
define("sum rows", (MATRIX,), ROW, lambda xp, v: v[0].sum(0) * 0.5)
define("mean of square", (SQUARE,), ROW, lambda xp, v: v[0].mean(1))
define("add row to matrix", (MATRIX, ROW), MATRIX, lambda xp, v: v[0] + v[1])
define("multiply row into square", (ROW, SQUARE), SQUARE, lambda xp, v: v[0] * v[1] * 0.5)
define("broadcast", (ROW,), MATRIX, lambda xp, v: xp.broadcast_to(v[0], MATRIX))
define("transpose", (SQUARE,), SQUARE, lambda xp, v: v[0].T)
define("plus own transpose", (SQUARE,), SQUARE, lambda xp, v: (v[0] + v[0].T) * 0.5)
define("matmul", (MATRIX, SQUARE), MATRIX, lambda xp, v: (v[0] @ v[1]) * 0.25)
define("gram", (SQUARE,), SQUARE, lambda xp, v: (v[0] @ v[0].T) * 0.25)
define("outer", (ROW, ROW), SQUARE, lambda xp, v: v[0].reshape(4, 1) * v[1].reshape(1, 4) * 0.5)
define("slice row", (MATRIX,), ROW, lambda xp, v: v[0][1])
define("slice column", (SQUARE,), ROW, lambda xp, v: v[0][:, 2])
define("slice part", (SQUARE,), MATRIX, lambda xp, v: v[0][1:])
define("reshape twice", (MATRIX,), MATRIX, lambda xp, v: v[0].reshape(12).reshape(3, 4))
define("join", (MATRIX, ROW), SQUARE, lambda xp, v: xp.concat([v[0], v[1].reshape(1, 4)], 0))
define("in-place add", (MATRIX, MATRIX), MATRIX, lambda xp, v: v[0].clone().__iadd__(v[1]))
define("in-place square", (SQUARE,), SQUARE, lambda xp, v: (v[0] * 0.5).__imul__(v[0]))

Graph = list[tuple[str, list[int]]]
LEAVES = [ROW, MATRIX, SQUARE]


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Ops in order, each with the numbers of the values that it reads; recent values more often."""
    shapes = list(LEAVES)
    graph: Graph = []
    for _ in range(draw(st.integers(1, 14))):
        name = draw(st.sampled_from(sorted(OPS)))
        reads, makes, _ = OPS[name]
        operands = []
        for shape in reads:
            fitting = [k for k, s in enumerate(shapes) if s == shape]
            operands.append(draw(st.sampled_from([*fitting, *fitting[-2:], *fitting[-1:]])))
        graph.append((name, operands))
        shapes.append(makes)
    return graph


def values(xp: Any, graph: Graph, leaves: list[Any]) -> list[Any]:
    found = list(leaves)
    for name, operands in graph:
        found.append(OPS[name][2](xp, [found[k] for k in operands]))
    return found


def loss(found: list[Any], weights: np.ndarray, wrap: Callable[[np.ndarray], Any]) -> Any:
    """A weighted sum of the last value and of one in the middle: gradients differ by element."""
    last, middle = found[-1], found[len(found) // 2]
    weight = weights[0] if last.ndim == 1 else weights[:last.shape[0]]
    return (last * wrap(weight)).sum() + (middle * 0.5).sum()


def numbers() -> tuple[list[np.ndarray], np.ndarray]:
    rng = np.random.default_rng(5)
    return [rng.standard_normal(s) for s in LEAVES], rng.standard_normal((4, 4))


def of_torch(graph: Graph) -> list[np.ndarray]:
    arrays, weights = numbers()
    leaves = [torch.tensor(a, requires_grad=True) for a in arrays]
    loss(values(torch, graph, leaves), weights, torch.tensor).backward()
    return [np.zeros(a.shape) if t.grad is None else t.grad.numpy()
            for a, t in zip(arrays, leaves, strict=True)]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(graphs())
def test_gradients_equal_pytorch(graph: Graph) -> None:
    arrays, weights = numbers()
    expected = of_torch(graph)
    for create_graph in (False, True):
        leaves = [gt.tensor(a, requires_grad=True) for a in arrays]
        result = loss(values(gt, graph, leaves), weights, gt.tensor)
        if create_graph:
            found = gt.grad(result, leaves, create_graph=True, allow_unused=True)
        else:
            result.backward()
            found = tuple(leaf.grad for leaf in leaves)
        for leaf, array, gradient, wanted in zip(leaves, arrays, found, expected, strict=True):
            got = np.zeros(array.shape) if gradient is None else gradient.numpy()
            np.testing.assert_allclose(got, wanted, rtol=1e-9, atol=1e-12)
            assert np.array_equal(leaf.numpy(), array)


@pytest.mark.parametrize("name", sorted(OPS))
def test_every_op_on_its_own(name: str) -> None:
    """Each op of the random graphs once, so that a failure there is not the op's."""
    reads = OPS[name][0]
    graph: Graph = [(name, [LEAVES.index(shape) for shape in reads])]
    arrays, weights = numbers()
    leaves = [gt.tensor(a, requires_grad=True) for a in arrays]
    loss(values(gt, graph, leaves), weights, gt.tensor).backward()
    for leaf, wanted in zip(leaves, of_torch(graph), strict=True):
        got = np.zeros(wanted.shape) if leaf.grad is None else leaf.grad.numpy()
        np.testing.assert_allclose(got, wanted, rtol=1e-12, atol=1e-14)

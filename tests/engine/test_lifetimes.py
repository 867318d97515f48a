"""Dropping the outputs frees the graph, without recursion and without the garbage collector."""

from __future__ import annotations

import contextlib
import gc
import sys
import weakref
from collections.abc import Iterator

import numpy as np
import pytest

import gtensor as gt
from gtensor.engine.handle.storage import Storage
from gtensor.engine.handle.tensor import Tensor
from gtensor.engine.tape.op import Op
from gtensor.engine.tape.record import Record

LONG = 100_000


def alive() -> dict[str, int]:
    """How many objects of the engine live; the collector's list knows them without collecting."""
    counts = {"Record": 0, "Tensor": 0, "Storage": 0}
    for thing in gc.get_objects():
        for kind in (Record, Tensor, Storage):
            if type(thing) is kind:
                counts[kind.__name__] += 1
    return counts


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """The test, run with the collector switched off, leaves no object of the engine behind."""
    gc.collect()
    gc.disable()
    try:
        before = alive()
        yield
        assert alive() == before
    finally:
        gc.enable()


def mlp(x: gt.Tensor, weights: list[gt.Tensor]) -> gt.Tensor:
    for w in weights:
        x = gt.tanh(x @ w + 1.0)
    return (x * x).sum()


def leaves() -> tuple[gt.Tensor, list[gt.Tensor]]:
    rng = np.random.default_rng(0)
    return (gt.tensor(rng.standard_normal((4, 8))),
            [gt.tensor(rng.standard_normal((8, 8)), requires_grad=True) for _ in range(2)])


@pytest.mark.usefixtures("nothing_left")
def test_forwards_without_backward_leave_nothing() -> None:
    x, weights = leaves()
    mlp(x, weights)  # from now on x has facts of its own
    held = alive()
    for _ in range(1000):
        mlp(x, weights)
    assert alive() == held


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("body", [
    lambda x, w: mlp(x, w).backward(),
    lambda x, w: mlp(x, w).backward(retain_graph=True),
    lambda x, w: gt.grad(mlp(x, w), w),
    lambda x, w: gt.grad(mlp(x, w), w, create_graph=True),
    lambda x, w: sum((g * g).sum() for g in gt.grad(mlp(x, w), w, create_graph=True)).backward(),
    lambda x, w: gt.grad(lambda v: mlp(x, [v, w[1]]))(w[0]),
    lambda x, w: (w[0] * 2.0).__iadd__(w[1]).sum().backward(),
    lambda x, w: (w[0] * 1.0)[1:].T.reshape((-1,)),
], ids=["backward", "retained", "grad", "create_graph", "second order", "function", "in place",
        "views"])
def test_every_kind_of_step_leaves_nothing(body) -> None:
    x, weights = leaves()
    for _ in range(3):
        body(x, weights)
        for w in weights:
            w.grad = None
    held = alive()
    for _ in range(20):
        body(x, weights)
        for w in weights:
            w.grad = None
    assert alive() == held


@pytest.mark.usefixtures("nothing_left")
def test_an_error_in_a_walk_leaves_nothing() -> None:
    def rule(ns, step, g):
        step.lend(0, g)
        raise ValueError("on purpose")

    failing = Op("failing", inputs="a", cpu=lambda a, out=None: np.array(a), gpu=None,
                 backward=rule, tangent=None, samples=None, saves={"a": "a"})
    x, weights = leaves()
    mlp(x, weights)
    held = alive()
    bytes_held = gt.memory.stats().allocated
    with gt.settings.override(arena_min_bytes=0):
        for _ in range(20):
            with contextlib.suppress(ValueError):
                (failing(x @ weights[0]) * 2.0).sum().backward()
    assert alive() == held
    assert gt.memory.stats().allocated == bytes_held


def test_a_tensor_and_its_arrays_die_with_their_last_handle() -> None:
    gc.disable()
    try:
        x = gt.tensor([1.0, 2.0], requires_grad=True)
        y = gt.exp(x)
        loss = (y * y).sum()
        handle, array, node = weakref.ref(y), weakref.ref(y._array), weakref.ref(y._node)
        del y
        assert handle() is None and array() is not None  # the graph saved the array, not the handle
        loss.backward()
        assert array() is None and node() is None  # saved arrays die as the walk passes them
        del x, loss
    finally:
        gc.enable()


def test_create_graph_in_backward_makes_the_cycle_that_the_docs_name() -> None:
    """`.grad` with a history leads back to its leaf; gt.grad has no such cycle (tested above)."""
    x = gt.tensor([1.0, 2.0], requires_grad=True)
    (x * x).sum().backward(create_graph=True)
    node = weakref.ref(x._node)
    del x
    gc.collect()
    assert node() is None


def chain(length: int) -> tuple[gt.Tensor, gt.Tensor]:
    x = gt.tensor([0.5, 1.5], dtype=gt.float64, requires_grad=True)
    y = x
    for _ in range(length):
        y = y * 0.99999
    return x, y


@pytest.mark.usefixtures("nothing_left")
def test_a_graph_of_100000_ops_is_walked_without_recursion() -> None:
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(_depth() + 100)
    try:
        x, y = chain(LONG)
        y.backward(gt.ones(2, dtype=gt.float64))
    finally:
        sys.setrecursionlimit(limit)
    np.testing.assert_allclose(x.grad.numpy(), 0.99999 ** LONG, rtol=1e-9)


@pytest.mark.thorough
@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("after", ["forward", "retained", "create_graph"])
def test_dropping_a_graph_of_100000_ops_does_not_recurse(after: str) -> None:
    x, y = chain(LONG)
    one = gt.ones(2, dtype=gt.float64)
    if after == "retained":
        y.backward(one, retain_graph=True)
    elif after == "create_graph":
        gradient = gt.grad(y, x, one, create_graph=True)[0]
        del gradient
    held = alive()["Record"]
    assert held >= LONG
    del y
    assert alive()["Record"] == held - LONG


@pytest.mark.usefixtures("nothing_left")
def test_a_deep_graph_that_forks_and_joins() -> None:
    """The walk visits each record once, not once per path (there are 2 ** 1000 of them)."""
    x = gt.tensor([1.0], dtype=gt.float64, requires_grad=True)
    y = x
    for _ in range(1000):
        y = (y + y) * 0.5
    y.backward(gt.ones(1, dtype=gt.float64))
    assert x.grad.item() == 1


def _depth() -> int:
    """How many frames there are."""
    depth, frame = 0, sys._getframe()
    while frame is not None:
        depth, frame = depth + 1, frame.f_back
    return depth

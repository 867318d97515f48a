"""Byte budgets of the tape as equalities, by the arena's count and by tracemalloc.

Arrays here are one *unit* large (1 MiB, sixteen tiles). The arena counts every array that gtensor
makes; tracemalloc sees what NumPy makes behind its back: never a full-size temporary, at
most some tiles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
from usage import PYTHON, SIDE, TILE, TILE_ELEMENTS, UNIT, measure

import gtensor as gt
from gtensor.nn import functional as F

Op = Callable[[gt.Tensor], gt.Tensor]
GRANULARITY = 64


@pytest.fixture(autouse=True)
def _small_tiles() -> Iterator[None]:
    with gt.settings.override(tile_elements=TILE_ELEMENTS):
        yield


@pytest.fixture(autouse=True, scope="module")
def _written_texts() -> None:
    """The first call of a view, or of a write in place, compiles its text: memory taken once."""
    x, y = gt.ones((2, 2), requires_grad=True), gt.zeros((2, 2))
    x.reshape((4, 1)).T.reshape((2, 2))[:, 0].sum().backward()
    y += x.detach()
    y *= y
    y -= 1.0


def leaf(requires_grad: bool = True) -> gt.Tensor:
    rng = np.random.default_rng(1)
    return gt.tensor(rng.uniform(0.5, 1.5, (SIDE, SIDE)).astype(np.float32),
                     requires_grad=requires_grad)


def test_the_measure_sees_what_it_should() -> None:
    """A hidden temporary shows in tracemalloc, an array of gtensor's in the arena."""
    x = leaf()
    assert measure(lambda: gt.exp(x)).units == 1
    assert measure(lambda: gt.exp(x)).behind < PYTHON
    assert measure(lambda: np.exp(x.detach().numpy())).behind > UNIT
    assert measure(lambda: np.exp(x.detach().numpy())).peak == 0


# -- chains ---------------------------------------------------------------------------------------

FORMULA = 2 * TILE  # temporaries of a gradient's formula, which is evaluated tile by tile

def run_chain(x: gt.Tensor, op: Op, length: int) -> None:
    y = x
    for _ in range(length):
        y = op(y)
    loss = y.sum()
    del y
    loss.backward()


@pytest.mark.parametrize("length", [1, 4, 8])
@pytest.mark.parametrize("op, tiles", [(gt.tanh, 2), (gt.sqrt, 2), (F.sigmoid, 4), (F.relu, 2)],
                         ids=["tanh", "sqrt", "sigmoid", "relu"])
def test_a_chain_that_saves_its_outputs(op: Op, tiles: int, length: int) -> None:
    """L + 1 buffers: the L outputs, and one gradient that is written over all the way down."""
    x = leaf()
    usage = measure(lambda: run_chain(x, op, length))
    assert usage.peak == (length + 1) * UNIT
    assert usage.left == UNIT  # x.grad
    assert usage.behind < tiles * TILE + PYTHON


def test_a_chain_of_exponentials() -> None:
    x, length = leaf(), 5

    def run() -> None:
        y = x
        for _ in range(length):
            y = gt.exp(y * -0.5)  # the product saves its factor only
        loss = y.sum()
        del y
        loss.backward()

    run()  # the first call writes the texts of the ops and their rules
    x.grad = None
    usage = measure(run)
    assert usage.peak == (length + 1) * UNIT
    assert usage.behind < PYTHON  # multiply writes straight into the gradient


@pytest.mark.parametrize("length", [1, 4, 8])
@pytest.mark.parametrize("op", [gt.sin, gt.cos], ids=["sin", "cos"])
def test_a_chain_that_saves_its_inputs(op: Op, length: int) -> None:
    """L buffers: the first input is borrowed from the leaf, and no record saves the last output."""
    x = leaf()
    usage = measure(lambda: run_chain(x, op, length))
    assert usage.peak == length * UNIT
    assert usage.behind < FORMULA + PYTHON


@pytest.mark.parametrize("length", [1, 2, 8])
def test_a_chain_that_saves_nothing(length: int) -> None:
    """Two buffers forward (the old output and the new), one backward, whatever the length."""
    x = leaf()
    usage = measure(lambda: run_chain(x, lambda y: -y, length))
    assert usage.peak == min(length, 2) * UNIT
    assert usage.behind < PYTHON


def test_the_callers_gradient_costs_one_buffer_more_at_the_end() -> None:
    """It may not be written, so the first rule needs a fresh buffer; all others write over that."""
    x, dz, length = leaf(), leaf(requires_grad=False), 4

    def run() -> None:
        y = x
        for _ in range(length):
            y = gt.tanh(y)
        y.backward(dz)

    assert measure(run).peak == (length + 1) * UNIT


def test_a_kept_graph_keeps_its_saves() -> None:
    """With retain_graph nothing saved dies on the way, and nothing saved is written."""
    x, length = leaf(), 4
    y = x
    for _ in range(length):
        y = gt.tanh(y)
    loss = y.sum()
    assert measure(lambda: loss.backward(retain_graph=True)).peak == UNIT
    x.grad = None
    assert measure(lambda: loss.backward(retain_graph=True)).peak == UNIT
    assert measure(lambda: loss.backward(retain_graph=True)).peak == UNIT  # added to .grad
    assert measure(loss.backward).peak == UNIT
    np.testing.assert_allclose(x.grad.numpy()[0, 0], 3 * chain_slope(x, length), rtol=1e-4)


def chain_slope(x: gt.Tensor, length: int) -> float:
    value, slope = float(x.numpy()[0, 0]), 1.0
    for _ in range(length):
        value = np.tanh(value)
        slope *= 1 - value * value
    return slope


def test_views_cost_nothing() -> None:
    """Reshapes, transposes, slices and broadcasts share memory, and so do their gradients."""
    x = leaf()

    def run() -> None:
        y = x.reshape((SIDE // 2, SIDE * 2)).T.reshape((SIDE * 2, 2, SIDE // 4))[:, 0]
        gt.broadcast_to(y.sum(), (SIDE, SIDE))

    usage = measure(run)
    assert usage.peak == 0
    assert usage.behind < PYTHON
    usage = measure(lambda: x.reshape((SIDE // 2, SIDE * 2)).T.sum().backward())
    assert usage.peak == UNIT  # x.grad: a broadcast view until the end
    assert usage.behind < PYTHON


# -- forks and joins ------------------------------------------------------------------------------


def fan_out(x: gt.Tensor, consumers: int, op: Callable[[gt.Tensor, int], gt.Tensor]) -> gt.Tensor:
    """The sum of several functions of one tensor that is no leaf."""
    y = x * 1.0
    total = op(y, 0)
    for k in range(1, consumers):
        total = total + op(y, k)
    return total.sum()


@pytest.mark.parametrize("consumers", [2, 3, 8])
def test_a_gradient_that_fans_out(consumers: int) -> None:
    """Two extra buffers: what has arrived so far, and the next arrival."""
    x = leaf()
    loss = fan_out(x, consumers, lambda y, k: y * (k + 1.0))
    usage = measure(loss.backward)
    assert usage.peak == 2 * UNIT
    assert usage.behind < PYTHON
    np.testing.assert_allclose(x.grad.numpy(), consumers * (consumers + 1) / 2)


@pytest.mark.parametrize("consumers", [2, 4])
def test_a_gradient_that_fans_out_to_products(consumers: int) -> None:
    """One extra buffer: a matrix product accumulates into what has arrived (one tile, where NumPy
    cannot add)."""
    x, w = leaf(), leaf(requires_grad=False)
    loss = fan_out(x, consumers, lambda y, k: y @ w)  # each gets a broadcast view
    usage = measure(loss.backward)
    assert usage.peak == UNIT
    assert usage.behind < TILE + PYTHON
    expected = consumers * w.numpy().sum(axis=1)
    np.testing.assert_allclose(x.grad.numpy(), np.broadcast_to(expected, (SIDE, SIDE)), rtol=1e-4)


@pytest.mark.parametrize("consumers", [2, 8])
def test_a_gradient_that_fans_out_and_is_only_passed_on(consumers: int) -> None:
    """k x: every arrival is the same broadcast gradient, so that one sum is all there is."""
    x = leaf()
    loss = fan_out(x, consumers, lambda y, k: y)
    assert measure(loss.backward).peak == UNIT
    assert x.grad.numpy()[3, 3] == consumers


def test_an_input_used_twice_by_one_op() -> None:
    x = leaf()
    assert measure(lambda: (x + x).sum().backward()).peak == UNIT
    assert measure(lambda: gt.grad((x * x).sum(), [x])).peak == 2 * UNIT  # both products, one sum
    np.testing.assert_array_equal(x.grad.numpy(), 2)


@pytest.mark.parametrize("length", [2, 4, 8])
def test_a_residual_chain(length: int) -> None:
    """y = y + tanh(y): L saved outputs, and forward the old and the new y: L + 2.

    Backward the gradient of y is shared by both branches, so tanh cannot write over it: it makes
    one more, into which the shared one is added. One saved output is gone by then: L + 1.
    """
    x = leaf()

    def forward() -> gt.Tensor:
        y = x
        for _ in range(length):
            y = y + gt.tanh(y)
        return y.sum()

    losses = []
    assert measure(lambda: losses.append(forward())).peak == (length + 2) * UNIT
    usage = measure(losses.pop().backward)
    assert usage.peak == UNIT  # beside the L that are saved
    assert usage.behind < FORMULA + PYTHON


# -- in place, and transposes ---------------------------------------------------------------------


def test_in_place_needs_no_buffer() -> None:
    x, y = leaf(), gt.zeros((SIDE, SIDE))

    def add() -> None:
        nonlocal y
        y += x.detach()
        y *= y
        y -= 1.0

    usage = measure(add)
    assert usage.peak == 0
    assert usage.behind < PYTHON


def test_own_transpose_in_place_needs_tiles_only() -> None:
    y = leaf(requires_grad=False)
    expected = y.numpy() + y.numpy().T

    def add() -> None:
        nonlocal y
        y += y.T

    usage = measure(add)
    assert usage.peak == 0
    assert usage.behind < 2 * TILE + PYTHON  # one kept, and one that NumPy makes of the overlap
    np.testing.assert_array_equal(y.numpy(), expected)


def test_in_place_under_the_tape_keeps_one_copy_of_what_it_destroys() -> None:
    x = leaf()
    y = x * 1.0

    def square() -> None:
        nonlocal y
        y *= y

    usage = measure(square)
    assert usage.peak == UNIT  # both saved operands are the same copy
    assert usage.behind < PYTHON
    np.testing.assert_allclose(gt.grad(y.sum(), x)[0].numpy(), 2 * x.numpy())


def test_a_sum_with_the_own_transpose() -> None:
    """Forward the result alone, backward g plus its transpose: nothing hidden in either."""
    x = leaf()
    losses = []
    usage = measure(lambda: losses.append(x + x.T))
    assert usage.peak == UNIT and usage.behind < PYTHON
    g = leaf(requires_grad=False)
    usage = measure(lambda: losses.pop().backward(g))
    assert usage.peak == UNIT and usage.behind < PYTHON
    np.testing.assert_array_equal(x.grad.numpy(), g.numpy() + g.numpy().T)


def test_adding_to_grad_makes_no_third_buffer() -> None:
    x = leaf()
    (x * 2.0).sum().backward()
    loss = (x * 3.0).sum()
    usage = measure(loss.backward)
    assert usage.peak == UNIT and usage.left == 0  # the new gradient, which replaces the old one
    assert usage.behind < PYTHON
    assert x.grad.numpy()[0, 0] == 5


# -- a training step ------------------------------------------------------------------------------

BATCH, FEATURES, HIDDEN, CLASSES = 128, 256, 512, 10
ACTIVATION = BATCH * HIDDEN * 4


def rounded(*tensors: gt.Tensor) -> int:
    return sum(-(-t.nbytes // GRANULARITY) * GRANULARITY for t in tensors)


class Perceptron:
    """128 x 256 - 512 - 512 - 10 with relu and cross entropy."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.x = gt.tensor(rng.standard_normal((BATCH, FEATURES)).astype(np.float32))
        self.labels = gt.tensor(rng.integers(0, CLASSES, BATCH))
        sizes = [(HIDDEN, FEATURES), (HIDDEN, HIDDEN), (CLASSES, HIDDEN)]
        self.parameters = []
        for rows, columns in sizes:
            weight = 0.05 * rng.standard_normal((rows, columns)).astype(np.float32)
            self.parameters += [gt.tensor(weight, requires_grad=True),
                                gt.zeros(rows, requires_grad=True)]

    def loss(self) -> gt.Tensor:
        w1, b1, w2, b2, w3, b3 = self.parameters
        h = F.relu(F.linear(self.x, w1, b1))
        h = F.relu(F.linear(h, w2, b2))
        return F.cross_entropy(F.linear(h, w3, b3), self.labels)


def test_a_training_step() -> None:
    """Peak = parameters + gradients + saved activations + 2 x the largest activation, and less.

    The saved activations die while the gradients come, so that the step's real peak is lower: when
    the first layer's weight gradient is made, all gradients and one activation's are there.
    """
    with gt.settings.override(arena_min_bytes=0):
        model = Perceptron()
        gradients = rounded(*model.parameters)
        for step in range(3):
            for p in model.parameters:
                p.grad = None
            losses = []
            forward = measure(lambda losses=losses, model=model: losses.append(model.loss()))
            logits = rounded(gt.zeros((BATCH, CLASSES)))
            saved = forward.left
            assert 2 * ACTIVATION + logits <= saved < 2 * ACTIVATION + 1.25 * logits
            assert forward.peak == 3 * ACTIVATION  # the second layer's input, product and output
            misses = gt.memory.stats().misses
            backward = measure(lambda losses=losses: losses.pop().backward())
            peak = saved + backward.peak
            assert peak == gradients + ACTIVATION
            assert peak <= gradients + saved + 2 * ACTIVATION
            assert backward.left + saved == gradients  # nothing else outlives the step
            assert forward.behind < TILE + PYTHON and backward.behind < FORMULA + PYTHON
            assert step == 0 or gt.memory.stats().misses == misses  # no new segment after the first


def test_the_first_layer_borrows_its_input() -> None:
    model = Perceptron()
    y = F.linear(model.x, *model.parameters[:2])
    borrowed = [a for a in y._node.saved if a is not None]
    assert any(a is model.x._array for a in borrowed)
    assert all(a is not b._array for a in borrowed for b in model.parameters)  # x needs no gradient
    z = model.x @ model.parameters[0].T
    assert any(a is model.x._array for a in z._node.saved)

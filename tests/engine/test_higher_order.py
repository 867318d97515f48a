"""Second and higher derivatives: create_graph, nested `gt.grad`, gradient penalties."""

from __future__ import annotations

import copy
import pickle
from unittest.mock import patch

import numpy as np
import pytest
import torch

import gtensor as gt
from gtensor import nn
from gtensor.engine.handle import context


def scalar(value: float) -> gt.Tensor:
    return gt.tensor(value, dtype=gt.float64, requires_grad=True)


FUNCTIONS = {
    "power": (lambda x: x ** 5, [lambda v: v ** 5, lambda v: 5 * v ** 4, lambda v: 20 * v ** 3,
                                 lambda v: 60 * v ** 2]),
    "exp": (lambda x: gt.exp(x * 2.0), [lambda v, k=k: 2 ** k * np.exp(2 * v) for k in range(4)]),
    "sin": (gt.sin, [np.sin, np.cos, lambda v: -np.sin(v), lambda v: -np.cos(v)]),
    "log": (gt.log, [np.log, lambda v: 1 / v, lambda v: -1 / v ** 2, lambda v: 2 / v ** 3]),
    "sqrt": (gt.sqrt, [np.sqrt, lambda v: 0.5 * v ** -0.5, lambda v: -0.25 * v ** -1.5,
                       lambda v: 0.375 * v ** -2.5]),
    "reciprocal": (lambda x: 1.0 / x, [lambda v: 1 / v, lambda v: -v ** -2.0,
                                       lambda v: 2 * v ** -3.0, lambda v: -6 * v ** -4.0]),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_grad_of_a_function_nests(name):
    function, derivatives = FUNCTIONS[name]
    for value in (0.7, 1.3):
        derivative = function
        for order, expected in enumerate(derivatives):
            for argument in (scalar(value), scalar(value).detach()):
                np.testing.assert_allclose(derivative(argument).item(), expected(value), rtol=1e-10,
                                           err_msg=f"order {order}")
            derivative = gt.grad(derivative)


def test_grad_of_a_function_with_several_arguments():
    def f(x, y):
        return x * x * y + y

    x, y = scalar(3.0), scalar(5.0)
    assert [g.item() for g in gt.grad(f, (0, 1))(x, y)] == [30, 10]
    mixed = gt.grad(lambda x, y: gt.grad(f, 0)(x, y), 1)
    assert mixed(x, y).item() == 6
    assert x.grad is None and y.grad is None


def test_an_inner_derivative_keeps_apart_from_the_outer_variable():
    """d/dx [x * d/dy (x + y) at y = x] is 1, not 2 (the classic confusion of perturbations)."""
    def outer(x):
        return x * gt.grad(lambda y: x + y)(x)

    assert gt.grad(outer)(scalar(2.0)).item() == 1
    assert gt.grad(outer)(scalar(2.0).detach()).item() == 1


def test_grad_functions_refuse_what_is_no_tensor_and_what_is_not_there():
    with pytest.raises(TypeError, match="argument 0 of a gradient function is float; wanted"):
        gt.grad(lambda x: x * x)(2.0)
    for position in (1, -2):
        with pytest.raises(ValueError, match=f"argument {position} was called with 1 positional"):
            gt.grad(lambda x: x * x, position)(scalar(2.0))


def test_the_result_has_a_history_only_if_a_gradient_can_use_it():
    x = scalar(2.0)
    assert not gt.grad(lambda v: v * v)(x.detach()).requires_grad
    assert gt.grad(lambda v: v * v)(x).requires_grad
    with gt.no_grad():
        assert not gt.grad(lambda v: v * v)(x).requires_grad
    y = scalar(3.0)
    assert gt.grad(lambda v: v * v * y)(x.detach()).requires_grad  # through y


def test_create_graph_accumulates_a_differentiable_grad():
    x = scalar(3.0)
    (x ** 3).backward(create_graph=True)
    first = x.grad
    assert first.item() == 27 and first.requires_grad
    x.grad = None
    first.backward()
    assert x.grad.item() == 18 and not x.grad.requires_grad


def test_gradients_of_leaves_never_share_memory():
    x, y = scalar(1.0), scalar(2.0)
    (x + y).backward(create_graph=True)
    assert x.grad is not y.grad
    with gt.no_grad():
        x.grad *= 5.0
    assert y.grad.item() == 1


def test_second_backward_with_create_graph_adds():
    x = scalar(3.0)
    for _ in range(2):
        (x * x).backward(create_graph=True)
    assert x.grad.item() == 12
    assert gt.grad(x.grad, x)[0].item() == 4


def test_create_graph_keeps_the_graph():
    x = scalar(3.0)
    y = gt.exp(x)
    first = gt.grad(y, x, create_graph=True)[0]  # the output of exp is part of its derivative
    np.testing.assert_allclose(gt.grad(y, x)[0].item(), np.exp(3))  # again, and now consumed
    for root in (y, first):
        with pytest.raises(gt.GradientError, match=r"exp .*test_higher_order.py.* was consumed"):
            gt.grad(root, x)


def test_grad_of_a_function_works_under_no_grad():
    x = scalar(3.0)
    with gt.no_grad():
        assert gt.grad(lambda v: v * v)(x).item() == 6
        assert gt.grad(gt.grad(lambda v: v ** 3))(x).item() == 18


def test_hessian_vector_product_equals_pytorch():
    rng = np.random.default_rng(0)
    point, direction = rng.standard_normal((4, 3)), rng.standard_normal((4, 3))

    def energy(xp, x):
        h = xp.tanh(x @ x.T)
        return (h * h * x.sum(1)).sum() + xp.exp(x * 0.5).mean()

    found = []
    for xp, wrap, grad in ((gt, gt.tensor, gt.grad), (torch, torch.tensor, torch.autograd.grad)):
        x = wrap(point, requires_grad=True)
        first = grad(energy(xp, x), [x], create_graph=True)[0]
        found.append(grad((first * wrap(direction)).sum(), [x])[0].numpy())
    np.testing.assert_allclose(found[0], found[1], rtol=1e-10, atol=1e-12)


# -- the gradient penalty of a Wasserstein GAN's critic -------------------------------------------


def critic(xp, x, parameters, activation):
    first, bias, second, last = parameters
    h = activation(xp, x @ first + bias)
    h = activation(xp, h @ second)
    return h @ last


def relu_and_tanh(xp, h):
    zero = xp.zeros_like(h)
    return xp.maximum(h, zero) + 0.1 * xp.tanh(h)


ACTIVATIONS = {"tanh": lambda xp, h: xp.tanh(h),
               "relu": lambda xp, h: xp.maximum(h, xp.zeros_like(h)),
               "both": relu_and_tanh}


def penalty_step(xp, wrap, grad, activation, repeats=1):
    """One critic step of WGAN-GP: the loss, the parameters' gradients, and the input's."""
    rng = np.random.default_rng(3)
    shapes = [(6, 16), (16,), (16, 16), (16, 1)]
    parameters = [wrap(rng.standard_normal(s) * 0.4, requires_grad=True) for s in shapes]
    real, fake = rng.standard_normal((8, 6)), rng.standard_normal((8, 6))
    mix = rng.uniform(size=(8, 1))
    for _ in range(repeats):
        between = wrap(mix * real + (1 - mix) * fake, requires_grad=True)
        score = critic(xp, between, parameters, activation).sum()
        slope = grad(score, [between], create_graph=True)[0]
        norm = xp.sqrt((slope * slope).sum(1))
        loss = (critic(xp, wrap(fake), parameters, activation).mean()
                - critic(xp, wrap(real), parameters, activation).mean()
                + 10.0 * ((norm - 1.0) ** 2).mean())
        loss.backward()
    return [loss.item(), *[None if p.grad is None else p.grad.numpy()
                           for p in [*parameters, between]]]


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("repeats", [1, 3])
def test_gradient_penalty_equals_pytorch(name, repeats):
    ours = penalty_step(gt, gt.tensor, gt.grad, ACTIVATIONS[name], repeats)
    theirs = penalty_step(torch, torch.tensor, torch.autograd.grad, ACTIVATIONS[name], repeats)
    for a, b in zip(ours, theirs, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


def test_gradient_penalty_writes_no_input():
    x = gt.tensor(np.ones((2, 2)), requires_grad=True)
    w = gt.tensor(np.full((2, 2), 0.5), requires_grad=True)
    before = [x.numpy().copy(), w.numpy().copy()]
    slope = gt.grad(gt.tanh(x @ w).sum(), [x], create_graph=True)[0]
    (slope * slope).sum().backward()
    assert np.array_equal(x.numpy(), before[0]) and np.array_equal(w.numpy(), before[1])
    assert slope.numpy().shape == (2, 2) and w.grad is not None


@pytest.mark.parametrize("function", [
    gt.abs, lambda v: gt.maximum(v, 0.5), lambda v: gt.minimum(v, 3.0)],
    ids=["abs", "maximum", "minimum"])
def test_second_derivatives_beside_a_kink(function):
    """All three are v at 2, so f(v) * v is v * v there."""
    assert gt.grad(gt.grad(lambda v: function(v) * v))(scalar(2.0)).item() == 2


def test_what_grad_of_a_function_refuses():
    x = gt.tensor(2.0, requires_grad=True)
    with pytest.raises(TypeError, match=r"returned float; wanted a Tensor"):
        gt.grad(lambda x: 1.0)(x)
    with pytest.raises(TypeError, match=r"returned a tensor of dtype bool; wanted a floating"):
        gt.grad(lambda x: (x > 0).all())(x)
    a, b = gt.grad(lambda x, y: x * y, [0, 1])(x, gt.tensor(3.0))
    assert (a.item(), b.item()) == (3.0, 2.0)


# -- functions that would cut their graph ---------------------------------------------------------


def _into_a_module(v):
    module = nn.Linear(2, 1, bias=False, dtype=gt.float64)
    module.load_state_dict({"weight": v.reshape(1, 2)})


CUTS = {  # how the values of a tensor leave the tape as an array, or become those of another leaf
    "numpy": lambda v: v.numpy(), "array": lambda v: v.array, "np.asarray": np.asarray,
    "np.array": lambda v: np.array([v, v]), "DLPack": np.from_dlpack,
    "a buffer": lambda v: v.__buffer__(0), "deepcopy": copy.deepcopy, "pickle": pickle.dumps,
    "Parameter": nn.Parameter, "load_state_dict": _into_a_module,
    "a leaf": lambda v: gt.tensor(v, requires_grad=True), "lists": lambda v: gt.tensor([v, [1, 2]]),
    "asarray of lists": lambda v: gt.asarray([v[0], v[1]]), "full": lambda v: gt.full((2,), v[0]),
    "batch": lambda v: gt.data.default_collate([v, v]),
    "rows": lambda v: next(iter(gt.data.DataLoader(gt.data.ArrayDataset(v), batch_size=2))),
}


@pytest.mark.parametrize("cut", CUTS)
def test_a_function_that_grad_differentiates_cannot_cut_its_graph_unseen(cut):
    """Of an argument (a leaf of the call's own, or an alias), and of what is computed from it."""
    before = gt.tensor([1.0, 2.0], dtype=gt.float64)
    for x in (before, before.clone().requires_grad_(), scalar(1.0) * before):
        for function in (lambda v: v, lambda v: v * 2.0):
            def total(v, function=function):
                CUTS[cut](function(v))
                return (v * v).sum()

            with pytest.raises(gt.GradientError, match=r"(would cut|would be lost|output of).*"
                                                       r"detach\(\)"):
                gt.grad(total)(x)
            detached = gt.grad(lambda v, f=function: (CUTS[cut](f(v).detach()), (v * v).sum())[1])
            assert detached(x).tolist() == [2.0, 4.0]


def test_a_frozen_argument_would_be_a_cut():
    def freeze(v):
        squares = v * v
        v.requires_grad = False
        return (squares + v).sum()

    for x in (gt.ones(2), gt.ones(2, requires_grad=True)):
        with pytest.raises(gt.GradientError, match=r"detach\(\)"):
            gt.grad(freeze)(x)


@pytest.mark.parametrize("copied", [
    gt.tensor, gt.asarray, lambda v: gt.tensor(v, dtype=gt.float32),
    lambda v: gt.asarray(v, copy=True), lambda v: gt.asarray(v, dtype=gt.float32, copy=True),
    lambda v: gt.tensor(v, device="cpu"), lambda v: gt.stack([v[0], v[1]])],
    ids=["tensor", "asarray", "tensor cast", "asarray copied", "asarray cast", "device", "stack"])
def test_copies_of_a_tensor_carry_its_gradient(copied):
    x = gt.tensor([1.0, 2.0], dtype=gt.float64, requires_grad=True)
    assert gt.grad(lambda v: (copied(v * 3.0) * v).sum())(x).tolist() == [6.0, 12.0]
    (copied(x) * 5.0).sum().backward()
    assert x.grad.tolist() == [5.0, 5.0]
    with gt.no_grad():
        assert not np.may_share_memory(gt.tensor(x).numpy(), x.numpy())
        assert gt.tensor(x, requires_grad=True).is_leaf  # no history is asked for, so none is lost


def test_numbers_and_what_others_made_are_constants_in_a_function():
    w, seen = scalar(3.0), []

    def total(v):
        y = (v * v).sum()
        seen.append((y.item(), float(y), y.tolist(), bool(y > 0), w.numpy(), (w * w).array))
        loss = w * y.detach()
        loss.backward()  # a graph of its own
        return y * float(y)

    x = gt.tensor([1.0, 2.0])
    assert gt.grad(total)(x).tolist() == [10.0, 20.0]
    assert len(seen) == 1
    with pytest.raises(ZeroDivisionError):
        gt.grad(lambda v: 1 / 0)(x)
    (x.requires_grad_() * 2.0).numpy()  # outside of a function it is the user's own decision


def test_arrays_of_outer_variables_are_refused_in_inner_functions():
    def outer(v):
        return v * gt.grad(lambda u: u * float(v.numpy()))(v)

    with pytest.raises(gt.GradientError, match=r"\.numpy\(\) of a value that gt\.grad\(\)"):
        gt.grad(outer)(scalar(2.0))
    with pytest.raises(gt.GradientError, match=r"\.numpy\(\) of a value that gt\.grad\(\)"):
        gt.grad(lambda v: v * gt.grad(lambda u: u * u)(v).numpy().item())(scalar(2.0))


def test_an_array_of_what_an_inner_walk_consumed_is_refused():
    """The walk dropped what led to y, so nothing says that y is a constant."""
    def walked(v):
        y = v * 2.0
        gt.grad(y * y, [v])
        return v * y.numpy().item()

    def apart(v):
        y = scalar(3.0) * 2.0
        y.backward()
        return v * y.numpy().item()

    for function in (walked, apart):
        with pytest.raises(gt.GradientError, match=r"\.numpy\(\) of a value that may depend on .* "
                                                   r"consumed its graph; call \.detach\(\) first"):
            gt.grad(function)(scalar(2.0))


def test_reading_a_recurrence_in_a_function_walks_each_record_once():
    def read_all(v):
        y = w = scalar(0.5)
        for _ in range(30):
            y = y * w
            y.numpy()
        return v * y.detach()

    asked = []

    class Counted(frozenset):
        def __contains__(self, node):
            asked.append(node)
            return super().__contains__(node)

    with patch.object(context.STATE, "differentiated", Counted()), \
            patch.object(Counted, "union", lambda _, nodes: Counted(nodes)):
        gt.grad(read_all)(scalar(2.0))
    assert 30 <= len(asked) <= 100


def test_a_result_must_depend_on_the_arguments():
    x, y = gt.tensor([1.0, 2.0]), scalar(3.0)
    for constant in (lambda v: y, lambda v: gt.tensor(1.0), lambda v: v.detach().sum()):
        for argument in (x, x.clone().requires_grad_()):
            with pytest.raises(gt.GradientError, match=r"not depend on its argument 0; "):
                gt.grad(constant)(argument)
            assert gt.grad(constant, allow_unused=True)(argument).tolist() == [0, 0]
    with gt.no_grad(), pytest.raises(gt.GradientError, match="does not depend"):
        gt.grad(lambda v: gt.ones(()))(x)

    def part(a, b, c):
        return (a * a).sum() + c * 2.0

    with pytest.raises(gt.GradientError, match=r"not depend on its argument 1; allow_unused"):
        gt.grad(part, (0, 1, 2))(x, y, y)
    a, b, c = gt.grad(part, (0, 1, 2), allow_unused=True)(x, y, y)
    assert (a.tolist(), b.item(), c.item()) == ([2, 4], 0, 2) and b.dtype == gt.float64
    assert [g.tolist() for g in gt.grad(part, (0, 2))(x, y, y)] == [[2, 4], 2]


def test_second_derivatives_of_what_is_linear_almost_everywhere_are_0():
    """The inner derivative depends on its argument, though no op leads from one to the other."""
    y = gt.tensor([3.0, 4.0], requires_grad=True)
    for function in (gt.sum, lambda v: v.relu().sum(), lambda v: (v.relu() * y).sum()):
        curve = gt.grad(lambda v: gt.grad(function)(v).sum())  # noqa: B023
        for x in (gt.tensor([1.0, -2.0]), gt.tensor([1.0, -2.0], requires_grad=True)):
            assert curve(x).tolist() == [0, 0]
    mixed = gt.grad(lambda v, w: gt.grad(lambda u: (u.relu() * w).sum())(v).sum(), (0, 1))
    assert [g.tolist() for g in mixed(gt.tensor([1.0, -2.0]), y)] == [[0, 0], [1, 0]]


@pytest.mark.parametrize("values", [  # no tensors: at collection a GPU may be the default device
    np.array([3.0, 4.0]), np.array([5.0, 6.0, 7.0], "float32"), np.array(8.0, "float32"),
    np.ones((0, 2), "float32")], ids=str)
def test_blocks_of_a_hessian_beside_the_diagonal_may_be_0(values):
    other = gt.asarray(values)

    def separate(u, v):
        return (u * u).sum() + gt.abs(v * v).sum()

    x = gt.tensor([1.0, 2.0], dtype=gt.float64)
    for inner in (lambda u, v: gt.grad(separate, 0)(u, v).sum(),
                  lambda u, v: gt.grad(separate, 0)(u, v=v).sum(),
                  lambda u, v: gt.grad(separate, 0)(u, gt.astype(v, gt.complex64)).sum(),
                  lambda u, v: gt.grad(separate, (0, 1))(u, v)[0].sum()):
        for y in (other, other.clone().requires_grad_()):
            first, second = gt.grad(inner, (0, 1))(x, y)
            assert first.tolist() == [2, 2] and first.dtype == x.dtype
            assert (second == 0).all().item()
            assert (second.shape, second.dtype) == (y.shape, y.dtype)
            assert gt.grad(inner, 1)(x, y).shape == y.shape
    assert not gt.grad(separate, 0)(x, other).requires_grad
    with gt.no_grad():
        assert not gt.grad(separate, 0)(x, other.clone().requires_grad_()).requires_grad


def test_a_function_may_write_its_argument():
    """The gradient is with respect to the argument as it was given."""
    def square_doubled(v):
        v *= 2
        return (v * v).sum()

    assert gt.grad(square_doubled)(scalar(3.0) * 1.0).item() == 24.0

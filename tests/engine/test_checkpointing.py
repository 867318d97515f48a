"""Checkpointed regions: the gradients of a plain run, from the memory of their inputs."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from together import in_threads
from torch.utils.checkpoint import checkpoint as torch_checkpoint

import gtensor as gt
from gtensor.nn import functional as F
from gtensor.nn.utils import checkpoint

from .regions import Function, assert_same, check, draw, gradients, loss_of

# -- values and gradients -------------------------------------------------------------------------


class Pair(NamedTuple):
    first: Any
    second: Any


def spread(x: gt.Tensor) -> dict[str, Any]:
    y = x.tanh()
    return {"a": y, "b": [y.exp() * x, (y[1:] * 2.0, 3)], "c": Pair(y.sum(), None)}


def in_place(x: gt.Tensor) -> gt.Tensor:
    y = x * x
    y += x
    y *= x.exp()
    return y.tanh()


def with_constants(x: gt.Tensor) -> gt.Tensor:
    mask = gt.asarray(np.arange(15.0).reshape(3, 5) % 2)
    return gt.where(x > 0, x * mask, x.exp() * np.full((3, 5), 1.5)) * x.detach().tanh()


ONE = {
    "a chain": lambda x: gt.sin(x.tanh().exp()), "a sum of uses": lambda x: x * x + x.exp() * x,
    "views": lambda x: (x.T @ x).reshape(-1)[3:].exp(), "many outputs": spread,
    "in place": in_place, "constants": with_constants, "one op": gt.exp, "nothing": lambda x: x,
    "nothing saved": lambda x: -x + 1.0, "scalars": lambda x: (x * 2.0).exp().sum().tanh(),
    "softmax": lambda x: F.softmax(x, 1) @ x.T, "halves": lambda x: x.astype("float16").exp(),
    "inner gradient": lambda x: gt.grad(lambda z: (z.exp() * z).sum())(x) * x,
    "many axes": lambda x: gt.concat([x.tanh(), x.exp()], axis=0).sum(axis=1),
}


@pytest.mark.parametrize("of_a_leaf", (True, False))
@pytest.mark.parametrize("name", ONE)
def test_a_function_of_one_tensor(name: str, of_a_leaf: bool) -> None:
    x = draw(3, 5)
    function = ONE[name]
    if of_a_leaf:
        check(function, [x], x)
    else:
        wanted = gradients(lambda: function(x * 3.0), [x])
        assert_same(gradients(lambda: checkpoint(function, x * 3.0), [x]), wanted)


def test_what_a_function_closes_over_gets_its_gradient() -> None:
    x, w, b, data = draw(4, 5), draw(5, 6), draw(6), draw(4, 5, requires_grad=False)
    inner = w * 2.0

    def function(x: gt.Tensor) -> gt.Tensor:
        return ((x * data) @ inner + b).tanh() @ w.T

    check(lambda x: ((x * data) @ w + b).tanh() @ w.T, [x, w, b], x)
    x.grad = w.grad = b.grad = None
    loss = loss_of(function(x)) + inner.exp().sum()
    loss.backward(retain_graph=True)
    wanted = [leaf.grad.numpy().copy() for leaf in (x, w, b)]
    x.grad = w.grad = b.grad = None
    (loss_of(checkpoint(function, x)) + inner.exp().sum()).backward()
    assert_same([leaf.grad.numpy() for leaf in (x, w, b)], wanted)


def test_only_closures_require_a_gradient() -> None:
    x, w = draw(4, 5, requires_grad=False), draw(5, 3)
    check(lambda x: ((x @ w).tanh() @ w.T).exp(), [w], x)


def test_inputs_in_containers_and_keywords() -> None:
    x, y, z, n = draw(3, 4), draw(3, 4), draw(3, 4), draw(3, 4, requires_grad=False)

    def function(pair: Pair, many: list[Any], *, scale: float, named: dict[str, Any]) -> Any:
        return pair.first.exp() * many[1][0] * scale, (named["z"] * named["n"]).tanh(), many[0]

    def run(call: Function) -> Any:
        return call(function, Pair(x * 1.0, 2), ["text", (y * 2.0,)], scale=2.5,
                    named={"z": z, "n": n})

    assert_same(gradients(lambda: run(checkpoint), [x, y, z]),
                gradients(lambda: run(lambda f, *args, **named: f(*args, **named)), [x, y, z]))


def test_the_same_tensor_twice() -> None:
    x = draw(3, 4)
    check(lambda a, b: (a * b).exp() + a.tanh(), [x], x, x)


def test_regions_in_regions() -> None:
    x, w = draw(3, 4), draw(4, 4)
    runs = []

    def inner(x: gt.Tensor) -> gt.Tensor:
        runs.append("inner")
        return (x @ w).tanh().exp()

    def outer(run: Function) -> Function:
        return lambda x: run(inner, gt.sin(run(inner, x))).tanh()

    plain = outer(lambda f, x: f(x))
    wanted = gradients(lambda: plain(x), [x, w])
    runs.clear()
    assert_same(gradients(lambda: checkpoint(outer(checkpoint), x), [x, w]), wanted)
    assert len(runs) == 6  # forward, the outer region's second run, each inner region's own


def test_a_chain_of_regions() -> None:
    x, w = draw(3, 4), draw(4, 4)

    def chain(run: Function) -> gt.Tensor:
        y = x
        for _ in range(4):
            y = run(lambda y: (y @ w).tanh() + y, y)
        return y

    assert_same(gradients(lambda: chain(checkpoint), [x, w]),
                gradients(lambda: chain(lambda f, y: f(y)), [x, w]))


def test_hooks_and_kept_gradients_inside_see_one_gradient() -> None:
    x, seen, held = draw(3, 4), [], []

    def function(x: gt.Tensor) -> gt.Tensor:
        y = x.exp()
        y.register_hook(lambda g: seen.append(g.numpy().copy()))
        y.retain_grad()
        held.append(y)
        return y.tanh()

    loss_of(checkpoint(function, x)).backward()
    assert len(seen) == 1
    assert_same([held[0].grad.numpy()], seen)


def test_without_gradients_it_calls_the_function() -> None:
    x, runs = draw(3, 4), []
    with gt.no_grad():
        y = checkpoint(lambda x: runs.append(x) or x.exp(), x)
    assert not y.requires_grad
    assert not x._storage.saved
    assert runs == [x]
    z = checkpoint(gt.exp, x.detach())
    assert not z.requires_grad


def test_what_is_given_is_checked() -> None:
    with pytest.raises(TypeError, match="checkpoint was given function=3; wanted a function"):
        checkpoint(3, draw(2))
    with pytest.raises(ValueError, match="use_reentrant=True"):
        checkpoint(gt.exp, draw(2), use_reentrant=True)
    x = draw(2)
    np.testing.assert_array_equal(checkpoint(gt.exp, x, use_reentrant=False).detach().numpy(),
                                  np.exp(x.detach().numpy()))


# -- several walks --------------------------------------------------------------------------------


def test_a_kept_graph_is_walked_twice() -> None:
    x, w, runs = draw(3, 4), draw(4, 4), []

    def function(x: gt.Tensor) -> gt.Tensor:
        runs.append(1)
        return (x @ w).tanh().exp()

    (wanted_x, wanted_w) = gradients(lambda: function(x), [x, w])[1:]
    x.grad = w.grad = None
    runs.clear()
    loss = loss_of(checkpoint(function, x))
    loss.backward(retain_graph=True)
    loss.backward()
    assert len(runs) == 3
    assert_same([x.grad.numpy(), w.grad.numpy()], [2 * wanted_x, 2 * wanted_w])
    with pytest.raises(gt.GradientError, match="consumed by an earlier backward"):
        loss.backward()


def test_gradients_as_values_and_of_some_outputs() -> None:
    x, w = draw(3, 4), draw(4, 4)
    a, b = checkpoint(lambda x: ((x @ w).tanh(), gt.sin(x.exp())), x)
    (ga,) = gt.grad(loss_of(a), [w])
    (gb,) = gt.grad(loss_of(b), [x])
    np.testing.assert_array_equal(ga.numpy(), gt.grad(loss_of((x @ w).tanh()), [w])[0].numpy())
    np.testing.assert_array_equal(gb.numpy(), gt.grad(loss_of(gt.sin(x.exp())), [x])[0].numpy())
    assert w.grad is None


def test_second_order() -> None:
    x, w = draw(3, 4), draw(4, 4)

    def penalty(run: Function) -> gt.Tensor:
        y = run(lambda x: (x @ w).tanh().exp() * x, x)
        (g,) = gt.grad(loss_of(y), [x], create_graph=True)
        return (g * g).sum() + y.sum()

    plain = gradients(lambda: penalty(lambda f, x: f(x)), [x, w])
    assert_same(gradients(lambda: penalty(checkpoint), [x, w]), plain)
    assert_same(gradients(lambda: checkpoint(lambda x: gt.sin(x.exp()), x), [x], create_graph=True),
                gradients(lambda: gt.sin(x.exp()), [x], create_graph=True))


def test_two_threads_walk_two_outputs() -> None:
    x, w = draw(200, 200), draw(200, 200)

    def function(x: gt.Tensor, w: gt.Tensor) -> Any:
        return (F.dropout(x.tanh(), 0.5).exp(), F.dropout(gt.sin(w), 0.5).exp())

    wanted = gradients(lambda: function(x, w), [x, w])[2:]
    x.grad = w.grad = None
    gt.manual_seed(3)
    outputs = checkpoint(function, x, w)
    in_threads(gt.Tensor.backward, [loss_of(y) for y in outputs])
    assert_same([x.grad.numpy(), w.grad.numpy()], wanted)


# -- PyTorch --------------------------------------------------------------------------------------


def test_against_pytorch() -> None:
    weights = [np.random.standard_normal(s) for s in ((8, 5), (8,), (8, 8), (8,), (3, 8))]
    x = np.random.standard_normal((6, 5))

    def network(lib: Any, run: Any, x: Any, w1: Any, b1: Any, w2: Any, b2: Any, w3: Any) -> Any:
        def block(h: Any) -> Any:
            return lib.tanh(run(lambda h: lib.sigmoid(h @ w2.T + b2), h) * h)

        return run(block, lib.tanh(x @ w1.T + b1)) @ w3.T

    ours = [gt.tensor(a, requires_grad=True) for a in (x, *weights)]
    theirs = [torch.tensor(a, requires_grad=True) for a in (x, *weights)]
    network(_Ours, checkpoint, *ours).sum().backward()
    network(torch, lambda f, h: torch_checkpoint(f, h, use_reentrant=False),
            *theirs).sum().backward()
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a.grad.numpy(), b.grad.numpy(), rtol=1e-10, atol=1e-12)


class _Ours:
    tanh, sigmoid = staticmethod(gt.tanh), staticmethod(F.sigmoid)


# -- inputs that are written ----------------------------------------------------------------------


def test_an_input_written_since_is_an_error() -> None:
    x = draw(3, 4)
    h = x * 2.0
    y = checkpoint(lambda h: (h + 1.0).tanh(), h)  # the record of the sum saves nothing
    with gt.no_grad():
        h += 1.0
    with pytest.raises(gt.GradientError, match="overwritten in place"):
        y.sum().backward()
    assert x.grad is None


def test_an_input_that_the_function_writes_is_an_error() -> None:
    x = draw(3, 4)

    def function(h: gt.Tensor) -> gt.Tensor:
        h += 1.0
        return h.exp()

    y = checkpoint(function, x * 2.0)
    with pytest.raises(gt.GradientError, match="overwritten in place"):
        y.sum().backward()


def test_a_saved_parameter_written_since_is_an_error() -> None:
    x, w = draw(3, 4), draw(4, 4)
    y = checkpoint(lambda x: (x @ w).tanh(), x)
    with gt.no_grad():
        w -= 0.1
    with pytest.raises(gt.GradientError, match="overwritten in place"):
        y.sum().backward()


def test_a_consumed_input_is_an_error() -> None:
    with gt.no_grad():
        x = draw(4, 3, 2) + 1.0
        F.inplace_abn(x)
    with pytest.raises(RuntimeError, match="taken over by inplace_abn"):
        checkpoint(gt.exp, x)

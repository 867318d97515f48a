"""`jvp`, `vmap` and `grad` in every order, against PyTorch; handles that leave their transform."""

from __future__ import annotations

import gc
import threading
import weakref

import numpy as np
import pytest
import torch
from torch.func import grad as torch_grad
from torch.func import jvp as torch_jvp
from torch.func import vmap as torch_vmap

import gtensor as gt
from gtensor.engine.handle.context import STATE
from gtensor.engine.tape.op import registry
from gtensor.engine.transforms import dual
from gtensor.func import batching
from gtensor.nn.utils import checkpoint

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
RNG = np.random.default_rng()


def pair(*shape: int) -> tuple[gt.Tensor, torch.Tensor]:
    values = RNG.uniform(0.5, 1.5, shape)
    return gt.asarray(values), torch.tensor(values)


def close(ours: gt.Tensor, theirs: torch.Tensor) -> None:
    assert ours.shape == tuple(theirs.shape)
    np.testing.assert_allclose(ours.detach().numpy(), theirs.detach().numpy(), rtol=1e-10)


# A dozen ops and more, each as a function of x (3, 4); `ns` is gtensor or torch.
FUNCTIONS = {
    "chain": lambda ns, x: ns.sin(x) * x + ns.exp(-x) / (1 + x * x),
    "powers": lambda ns, x: ns.sqrt(x) * x ** 3 - ns.log(x),
    "where": lambda ns, x: ns.where(x > 1, ns.tanh(x), x * x),
    "matmul": lambda ns, x: x @ x.mT,
    "sum": lambda ns, x: (x * x).sum(0) * x,
    "mean": lambda ns, x: x * (x - x.mean(-1, keepdims=True)),
    "reshape": lambda ns, x: x.reshape(2, 6) ** 2,
    "order": lambda ns, x: (ns.permute_dims if ns is gt else torch.permute)(x * x, (1, 0)),
    "broadcast": lambda ns, x: ns.broadcast_to(x * x, (2, 3, 4)),
    "maximum": lambda ns, x: ns.maximum(x, x.mean()) * x,
    "slice": lambda ns, x: x[..., 1:3] * x[..., :1],
    "flip": lambda ns, x: ns.flip(x * x, (0,) if ns is torch else 0) * x,
    "softmax": lambda ns, x: (gt.nn.functional if ns is gt else torch).softmax(x, -1) * x,
}
functions = pytest.mark.parametrize("name", FUNCTIONS)


@functions
def test_a_jvp_is_pytorchs(name: str) -> None:
    (x, tx), (t, tt) = pair(3, 4), pair(3, 4)
    f = FUNCTIONS[name]
    ours = gt.jvp(lambda x: f(gt, x), (x,), (t,))
    theirs = torch_jvp(lambda x: f(torch, x), (tx,), (tt,))
    for a, b in zip(ours, theirs, strict=True):
        close(a, b)


@functions
def test_a_vmap_is_pytorchs(name: str) -> None:
    x, tx = pair(3, 5, 4)
    f = FUNCTIONS[name]
    close(gt.vmap(lambda x: f(gt, x), in_axes=1)(x), torch_vmap(lambda x: f(torch, x), 1)(tx))


ORDERS = {  # of three transforms of a scalar function of x (3, 4); v is a direction
    "jvp of grad": lambda grad, jvp, vmap, f, x, v: jvp(grad(f), (x,), (v,))[1],
    "grad of jvp": lambda grad, jvp, vmap, f, x, v: grad(lambda x: jvp(f, (x,), (v,))[1])(x),
    "jvp of jvp": lambda grad, jvp, vmap, f, x, v: jvp(
        lambda x: jvp(f, (x,), (v,))[1], (x,), (v,))[1],
    "grad of grad": lambda grad, jvp, vmap, f, x, v: grad(lambda x: (grad(f)(x) * v).sum())(x),
    "vmap of grad": lambda grad, jvp, vmap, f, x, v: vmap(grad(f))(x),
    "grad of vmap": lambda grad, jvp, vmap, f, x, v: grad(lambda x: vmap(f)(x).sum())(x),
    "vmap of jvp of grad": lambda grad, jvp, vmap, f, x, v: vmap(
        lambda x, v: jvp(grad(f), (x,), (v,))[1])(x, v),
    "jvp of vmap of grad": lambda grad, jvp, vmap, f, x, v: jvp(vmap(grad(f)), (x,), (v,))[1],
    "vmap of vmap": lambda grad, jvp, vmap, f, x, v: vmap(lambda a: vmap(lambda b: f(a * b))(v))(x),
    "grad of vmap of grad": lambda grad, jvp, vmap, f, x, v: grad(
        lambda x: (vmap(grad(f))(x) * v).sum())(x),
}


@functions
@pytest.mark.parametrize("order", ORDERS)
def test_transforms_nest_in_every_order(order: str, name: str) -> None:
    along_rows = "vmap" in order  # then f is a function of one row
    if along_rows and name in ("matmul", "reshape", "order", "broadcast"):
        pytest.skip("a function of matrices only")
    (x, tx), (v, tv) = pair(3, 4), pair(3, 4)
    f = FUNCTIONS[name]
    ours = ORDERS[order](gt.grad, gt.jvp, gt.vmap, lambda x: f(gt, x).sum(), x, v)
    theirs = ORDERS[order](
        torch_grad, torch_jvp, torch_vmap, lambda x: f(torch, x).sum(), tx, tv)
    close(ours, theirs)


def test_gradients_per_example_of_a_closure_and_of_shared_weights() -> None:
    """Arguments without an axis are lifted: their gradients are per example, too."""
    (w, tw), (x, tx) = pair(4, 2), pair(3, 5, 4)

    def loss(ns, w, x):
        return ns.tanh(x @ w).sum()

    ours = gt.vmap(lambda x: gt.grad(lambda w: loss(gt, w, x))(w))(x)
    theirs = torch_vmap(torch_grad(lambda w, x: loss(torch, w, x)), (None, 0))(tw, tx)
    close(ours, theirs)


def test_a_walk_within_a_transform_keeps_the_tapes_below() -> None:
    """w is recorded on the tape below while the inner gradient is taken, without a graph."""
    (w, tw), (x, tx) = pair(4), pair(3, 4)
    w.requires_grad_()
    tw.requires_grad_()
    ours = gt.vmap(lambda x: gt.grad(lambda y: (gt.sin(y * w) * y).sum())(x))(x)
    ours.sum().backward()
    theirs = torch_vmap(lambda x: torch_grad(lambda y: (torch.sin(y * tw) * y).sum())(x))(tx)
    theirs.sum().backward()
    close(w.grad, tw.grad)


def test_backward_and_a_leaf_within_a_transform() -> None:
    x, v = pair(4)[0], pair(4)[0]
    found = []

    def f(x: gt.Tensor) -> gt.Tensor:
        leaf = x.detach().requires_grad_()
        (leaf * leaf * x).sum().backward()
        found.append(leaf.grad.shape)
        return leaf.grad

    # the gradient is 2 leaf x, in which the leaf is a constant
    np.testing.assert_allclose(gt.jvp(f, (x,), (v,))[1].numpy(), (2 * x * v).numpy())
    assert found == [(4,)]


def test_constants_have_zero_tangents_and_shared_results_are_repeated() -> None:
    x, v = pair(4)[0], pair(4)[0]
    value, tangent = gt.jvp(lambda x: gt.floor(x) + 1, (x,), (v,))
    assert value.tolist() == (np.floor(x.numpy()) + 1).tolist() and not tangent.numpy().any()
    value, tangent = gt.jvp(lambda x: v * 2, (x,), (v,))
    assert value.tolist() == (v * 2).tolist() and not tangent.numpy().any()
    rows = gt.vmap(lambda x: v * 2, out_axes=1)(gt.ones((3, 2), dtype=gt.float64))
    assert rows.shape == (4, 3) and rows[:, 2].tolist() == (v * 2).tolist()


def test_axes_in_and_out_and_several_results() -> None:
    x, y = pair(2, 3, 4)[0], pair(4)[0]
    total, scaled = gt.vmap(lambda a, b: (a.sum(), a * b), in_axes=(2, 0), out_axes=-1)(x, y)
    np.testing.assert_allclose(total.numpy(), x.numpy().sum((0, 1)))
    np.testing.assert_allclose(scaled.numpy(), x.numpy() * y.numpy())


def test_no_grad_within_a_transform_stops_the_tape_and_not_the_tangent() -> None:
    x, v = pair(4)[0], pair(4)[0]

    def f(x: gt.Tensor) -> gt.Tensor:
        with gt.no_grad():
            y = x * x
        return (y * x).sum()

    gradient, moved = gt.jvp(gt.grad(f), (x,), (v,))
    np.testing.assert_allclose(gradient.numpy(), (x * x).numpy())
    np.testing.assert_allclose(moved.numpy(), (2 * x * v).numpy())


def test_linear_with_a_weight_of_each_example() -> None:
    (w, tw), (b, tb), (x, tx) = pair(3, 2, 4), pair(3, 2), pair(3, 5, 4)
    row, trow = pair(3, 4)

    def loss(linear, w, b, x):
        return (linear(x, w, b) ** 2).sum()

    ours, theirs = gt.nn.functional.linear, torch.nn.functional.linear
    for axes, given, wanted in (
            ((0, 0, 0), (w, b, x), (tw, tb, tx)), ((None, 0, 0), (w[0], b, x), (tw[0], tb, tx)),
            ((0, None, None), (w, b[0], x[0]), (tw, tb[0], tx[0])),
            ((None, None, 0), (w[0], b[0], x), (tw[0], tb[0], tx)),
            ((0, 0, 0), (w, b, row), (tw, tb, trow))):
        for argument in range(3):
            close(gt.vmap(gt.grad(lambda *a: loss(ours, *a), argument), axes)(*given),
                  torch_vmap(torch_grad(lambda *a: loss(theirs, *a), argument), axes)(*wanted))


@pytest.mark.parametrize("name", ["var", "logsumexp", "layer_norm", "cross_entropy"])
def test_a_hessian_vector_product_of_ops_with_extra_results(name: str) -> None:
    (x, tx), (v, tv) = pair(3, 4), pair(3, 4)
    functions = {
        "var": (lambda x: (gt.var(x, -1) ** 2).sum(),
                lambda x: (torch.var(x, -1, correction=0) ** 2).sum()),
        "logsumexp": (lambda x: (gt.logsumexp(x, 0) ** 2).sum(),
                      lambda x: (torch.logsumexp(x, 0) ** 2).sum()),
        "layer_norm": (lambda x: (gt.nn.functional.layer_norm(x, (4,)) ** 3).sum(),
                       lambda x: (torch.nn.functional.layer_norm(x, (4,)) ** 3).sum()),
        "cross_entropy": (
            lambda x: gt.nn.functional.cross_entropy(x, gt.tensor([0, 3, 1])) ** 2,
            lambda x: torch.nn.functional.cross_entropy(x, torch.tensor([0, 3, 1])) ** 2),
    }
    f, tf = functions[name]
    close(gt.jvp(gt.grad(f), (x,), (v,))[1], torch_jvp(torch_grad(tf), (tx,), (tv,))[1])


def test_arrays_and_lists_beside_examples_are_shared_by_all() -> None:
    rows, more = pair(3, 4)[0], RNG.standard_normal((3, 4))
    for shared in (more, more.tolist(), gt.asarray(more)):
        found = gt.vmap(lambda r, shared=shared: r + shared)(rows)
        np.testing.assert_allclose(
            found.numpy(), rows.numpy()[:, None] + more, rtol=1e-5, atol=1e-6)


def test_detach_makes_a_constant_of_every_transform() -> None:
    (x, tx), (v, tv) = pair(4), pair(4)
    rounded = gt.jvp(lambda x: x + (gt.round(x) - x).detach(), (x,), (v,))[1]
    close(rounded, tv)
    close(gt.jvp(lambda x: x * x.detach(), (x,), (v,))[1],
          torch_jvp(lambda x: x * x.detach(), (tx,), (tv,))[1])


# -- bad input -------------------------------------------------------------------------------------


def test_handles_that_left_their_transform_are_refused() -> None:
    x = pair(3, 4)[0]
    left: list[gt.Tensor] = []
    gt.vmap(lambda x: left.append(x) or x * 2)(x)
    for use in (lambda: left[0] + 1, lambda: 1 + left[0], lambda: x * left[0],
                lambda: left[0].sum(), lambda: gt.jvp(lambda y: y * left[0], (x[0],), (x[0],))):
        with pytest.raises(gt.LevelError, match=r"from within vmap\(\) after that had ended"):
            use()
    for use in (lambda: gt.jvp(lambda y: y, (left[0],), (left[0],)), lambda: gt.vmap(abs)(left[0]),
                lambda: gt.vmap(lambda x: left[0])(x)):
        with pytest.raises(gt.LevelError, match=r"from within vmap\(\) after that had ended"):
            use()
    assert STATE.levels == ()


@pytest.mark.parametrize("use", [
    lambda x: x.numpy(), lambda x: x.array, lambda x: x.tolist(), lambda x: x.sum().item(),
    lambda x: float(x.sum()), lambda x: bool(x.sum() > 0), lambda x: np.asarray(x),
    lambda x: x.__dlpack__(), lambda x: memoryview(x.numpy())])
@pytest.mark.parametrize("transform", ["vmap", "jvp"])
def test_memory_is_refused_within_a_transform(transform: str, use) -> None:
    x = pair(3, 4)[0]
    with pytest.raises(gt.LevelError, match="within a transform"):
        gt.vmap(use)(x) if transform == "vmap" else gt.jvp(use, (x,), (x,))
    assert STATE.levels == ()


@pytest.mark.parametrize("write", [
    lambda x: x.__iadd__(1), lambda x: x.__setitem__(0, 1.0), lambda x: x.__imul__(x)],
    ids=["+=", "[]=", "*="])
def test_writes_are_refused_within_a_transform(write) -> None:
    x = pair(3, 4)[0]
    before = x.tolist()
    for run in (lambda: gt.vmap(write)(x), lambda: gt.jvp(write, (x,), (x,))):
        with pytest.raises(gt.LevelError, match="would overwrite a value within"):
            run()
    assert x.tolist() == before


def test_an_argument_that_is_written_before_the_walk_is_noticed() -> None:
    x, v = pair(4)[0], pair(4)[0]

    def f(y: gt.Tensor) -> gt.Tensor:
        z = (y * y * x).sum()
        x[...] = 0.0
        return z

    with pytest.raises(gt.GradientError, match="was overwritten in place"):
        gt.jvp(gt.grad(f), (v,), (v,))


@pytest.mark.parametrize("order", [*ORDERS, "jacrev", "hessian"])
def test_a_checkpointed_function_is_the_function(order: str) -> None:
    x, v = pair(3, 4)[0], pair(3, 4)[0]
    f, kept = (lambda x: (gt.sin(x) * x).sum()), lambda x: checkpoint(f, x)
    with_both = [getattr(gt, order)(g)(x) if order not in ORDERS else ORDERS[order](
        gt.grad, gt.jvp, gt.vmap, g, x, v) for g in (kept, f)]
    np.testing.assert_array_equal(*(y.numpy() for y in with_both))


def test_wrong_arguments_are_named() -> None:
    x = pair(3, 4)[0]
    for call, error, words in (
            (lambda: gt.jvp(gt.sin, (x,), ()), ValueError, "1 primals and 0 tangents"),
            (lambda: gt.jvp(gt.sin, (x,), (x[0],)), ValueError, r"of argument 0 of shape \(4,\)"),
            (lambda: gt.jvp(gt.sin, x, x), TypeError, "primals of type Tensor"),
            (lambda: gt.jvp(lambda x: 3, (x,), (x,)), TypeError, "returned int"),
            (lambda: gt.vmap(gt.sin, 2)(x), ValueError, r"axis 2 for argument 0 of shape \(3, 4\)"),
            (lambda: gt.vmap(gt.add)(x, x.mT), ValueError, "3 in argument 0, 4 in argument 1"),
            (lambda: gt.vmap(gt.add, (0,))(x, x), ValueError, "in_axes for 1 arguments"),
            (lambda: gt.vmap(gt.add, None)(x, x), ValueError, "no mapped argument"),
            (lambda: gt.vmap(lambda x: 3)(x), TypeError, "returned int"),
            (lambda: gt.vmap(gt.sin)(3), TypeError, "argument 0 of type int")):
        with pytest.raises(error, match=words):
            call()


def test_an_op_without_a_rule_is_named() -> None:
    rule_less = gt.op("rule_less", cpu=lambda x, out=None: x + 0, gpu=None, tangent=None,
                      backward=lambda ns, step, g: step.give(0, g), samples=None)
    x = pair(3, 4)[0]
    try:
        with pytest.raises(gt.LevelError, match="rule_less has no batch rule"):
            gt.vmap(rule_less)(x)
        with pytest.raises(gt.LevelError, match="rule_less has no tangent rule"):
            gt.jvp(rule_less, (x,), (x,))
    finally:
        del registry["rule_less"]


# -- what is left behind ---------------------------------------------------------------------------


def test_levels_are_of_one_thread() -> None:
    seen = []

    def f(x: gt.Tensor) -> gt.Tensor:
        thread = threading.Thread(target=lambda: seen.append(STATE.levels))
        thread.start()
        thread.join()
        return x * 2

    gt.vmap(f)(pair(3)[0])
    assert seen == [()]


def test_a_transform_leaves_no_cycle() -> None:
    x = pair(3, 4)[0]
    refs = []

    def f(x: gt.Tensor) -> gt.Tensor:
        y = gt.grad(lambda x: (gt.sin(x) * x).sum())(x)
        refs.append(weakref.ref(y))
        return y

    gc.collect()
    gc.disable()
    try:
        gt.jvp(gt.vmap(f), (x,), (x,))
        assert refs and all(ref() is None for ref in refs)
    finally:
        gc.enable()


def test_planted_faults_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tangent of half its size, and a batch axis that is not lined up."""
    run = dual.Directional.run

    def halved(self, op, inputs, params, keep):
        out, extras = run(self, op, inputs, params, keep)
        if out.tangent is not None:
            out.tangent = out.tangent * 0.5
        return out, extras

    with monkeypatch.context() as plant:
        plant.setattr(dual.Directional, "run", halved)
        with pytest.raises(AssertionError):
            test_a_jvp_is_pytorchs("chain")
    with monkeypatch.context() as plant:
        plant.setattr(batching, "_first", lambda path, x, axis: x)
        with pytest.raises((AssertionError, ValueError)):
            test_a_vmap_is_pytorchs("chain")

"""Every transform of gt.func on random programs, against torch.func in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import func as tf

import gtensor as gt
from gtensor.engine.transforms import batched, dual
from gtensor.func import gradients

from .programs import ARGUMENTS, OPS, Program, function, programs

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
RELAXED = {"deadline": None, "database": None, "suppress_health_check": list(HealthCheck)}
COUNTS = (1, 7)  # of shadows, cotangents and examples; none at all: test_func.py


class Side:
    """One library: a program's function, its arguments, and directions, all from one seed."""

    def __init__(self, xp: Any, program: Program, seed: int) -> None:
        self.xp, self.fn = xp, gt.func if xp is gt else tf
        self.f = function(program, xp)
        self.rng = np.random.default_rng(seed)
        self.args = tuple(self.random(*shape) for shape in ARGUMENTS)

    def random(self, *shape: int) -> Any:
        values = self.rng.uniform(-1, 1, shape)
        return gt.asarray(values) if self.xp is gt else torch.tensor(values)

    def scalar(self, *args: Any) -> Any:
        return (self.f(*args) ** 2).sum()

    def directions(self, *lead: int) -> tuple[Any, ...]:
        return tuple(self.random(*lead, *shape) for shape in ARGUMENTS)


def batched_jvp(side: Side, n: int) -> Any:
    """w has a list of shadows, x one array, b none."""
    dx, dw, _ = side.directions(n)
    x, w, b = side.args
    if side.xp is gt:
        return gt.jvp_batched(side.f, side.args, (dx, [dw[k] for k in range(n)], None))[1]
    return tf.vmap(lambda dx, dw: tf.jvp(lambda x, w: side.f(x, w, b), (x, w), (dx, dw))[1])(dx, dw)


def concat_jvp(side: Side, n: int) -> Any:
    """b has one array of n times its length."""
    (db,) = [side.random(n, 4)]
    x, w, b = side.args
    if side.xp is gt:
        return gt.jvp_batched(side.f, side.args, (None, None, db.reshape(n * 4)), "concat")
    value = side.f(*side.args)
    return value, tf.vmap(lambda db: tf.jvp(lambda b: side.f(x, w, b), (b,), (db,))[1])(db)


def batched_pullback(side: Side, n: int) -> Any:
    value, pullback = side.fn.vjp(side.f, *side.args)
    given = side.random(n, *value.shape)
    return pullback(given, batched=True) if side.xp is gt else tf.vmap(pullback)(given)


def linear(side: Side, n: int) -> Any:
    if side.xp is gt:
        return gt.linearize(side.f, *side.args)[1](*side.directions())
    return tf.jvp(side.f, side.args, side.directions())[1]


def product(side: Side, n: int) -> Any:
    if side.xp is gt:
        return gt.hvp(side.scalar, side.args, side.directions())
    return tf.jvp(tf.grad(side.scalar, (0, 1, 2)), side.args, side.directions())[1]


def per_example(side: Side, n: int) -> Any:
    _, w, b = side.args
    rows = side.random(n, 3, 4)
    params = {"w": w, "more": [b]}

    def loss(params: Any, x: Any) -> Any:
        return side.scalar(x, params["w"], params["more"][0])

    if side.xp is gt:
        return gt.per_example_grad(loss, params, rows, chunk_size=3 if n > 3 else None)
    return tf.vmap(tf.grad(loss), (None, 0))(params, rows)


# (side, n) -> a tree of results; grad of gtensor refuses a result that hangs on no argument, but
# every program's result hangs on all.
TRANSFORMS: dict[str, Callable[[Side, int], Any]] = {
    "jvp": lambda s, n: s.fn.jvp(s.f, s.args, s.directions()),
    "jvp_batched": batched_jvp,
    "jvp_batched, concat": concat_jvp,
    "vjp, batched": batched_pullback,
    "vjp": lambda s, n: s.fn.vjp(s.f, *s.args)[1](s.f(*s.args)),
    "vmap": lambda s, n: s.fn.vmap(s.f, (1, None, 0))(
        s.random(3, n, 4), s.args[1], s.random(n, 4)),
    "vmap, out": lambda s, n: s.fn.vmap(lambda w: s.f(s.args[0], w, s.args[2]), 2, -1)(
        s.random(4, 4, n)),
    "vmap of vmap": lambda s, n: s.fn.vmap(s.fn.vmap(s.f, (0, None, None)), (None, 0, None))(
        s.random(n, 3, 4), s.random(2, 4, 4), s.args[2]),
    "grad": lambda s, n: s.fn.grad(s.scalar, (0, 2))(*s.args),
    "value": lambda s, n: (s.fn.value_and_grad(s.scalar)(*s.args) if s.xp is gt
                           else tf.grad_and_value(s.scalar)(*s.args)[::-1]),
    "grad of vmap": lambda s, n: s.fn.grad(lambda w, rows: (s.fn.vmap(
        s.f, (0, None, None))(rows, w, s.args[2]) ** 2).sum(), (0, 1))(
            s.args[1], s.random(n, 3, 4)),
    "per_example_grad": per_example,
    "jacfwd": lambda s, n: s.fn.jacfwd(s.f, (0, 2))(*s.args),
    "jacrev": lambda s, n: s.fn.jacrev(s.f, (2, 1))(*s.args),
    "jacobian": lambda s, n: (s.fn.jacobian if s.xp is gt else tf.jacrev)(s.f, 2)(*s.args),
    "hessian": lambda s, n: s.fn.hessian(s.scalar, 2)(*s.args),
    "hvp": product,
    "linearize": linear,
    "jvp of grad of vmap": lambda s, n: s.fn.jvp(s.fn.grad(lambda b: (s.fn.vmap(
        s.f, (0, None, None))(s.rows, s.args[1], b) ** 2).sum()), (s.args[2],), (s.random(4),)),
    "vmap of hvp": lambda s, n: s.fn.vmap(lambda x, d: s.fn.jvp(s.fn.grad(
        lambda x: s.scalar(x, *s.args[1:])), (x,), (d,))[1])(
            s.random(n, 3, 4), s.random(n, 3, 4)),
}


def flat(tree: Any) -> list[Any]:
    if isinstance(tree, dict):
        return [leaf for key in tree for leaf in flat(tree[key])]
    return [leaf for part in tree for leaf in flat(part)] if isinstance(tree, (tuple, list)) else [
        tree]


def compare(program: Program, name: str, n: int, seed: int) -> None:
    """One transform of one program in both libraries."""
    found = []
    for xp in (gt, torch):
        side = Side(xp, program, seed)
        side.rows = side.random(n, 3, 4)
        found.append(flat(TRANSFORMS[name](side, n)))
    assert len(found[0]) == len(found[1])
    for ours, theirs in zip(*found, strict=True):
        assert ours.shape == tuple(theirs.shape)
        wanted = theirs.detach().numpy()
        np.testing.assert_allclose(ours.numpy(), wanted, rtol=1e-10,
                                   atol=1e-10 * np.abs(wanted).max(initial=1.0))


given_programs = given(
    program=programs(), name=st.sampled_from(sorted(TRANSFORMS)), n=st.sampled_from(COUNTS),
    seed=st.integers(0, 2**32))


@pytest.mark.thorough
@settings(max_examples=500, **RELAXED)
@given_programs
def test_transforms_of_programs_are_pytorchs(
    program: Program, name: str, n: int, seed: int
) -> None:
    compare(program, name, n, seed)


@pytest.mark.slow
@settings(max_examples=10_000, **RELAXED)
@given_programs
def test_transforms_of_many_programs_are_pytorchs(
    program: Program, name: str, n: int, seed: int
) -> None:
    compare(program, name, n, seed)


def with_all_ops() -> Program:
    """A program with all ops, so that none depends on chance."""
    places = {shape: i for i, shape in enumerate(ARGUMENTS)}
    program: Program = [("mean row", [2])]
    places[()] = 3
    for op in sorted(OPS):
        program.append((op, [places[shape] for shape in OPS[op][0]]))
    return program


@pytest.mark.parametrize("name", TRANSFORMS)
def test_every_transform_runs_every_op(name: str) -> None:
    compare(with_all_ops(), name, 2, 0)


@pytest.mark.gpu
@pytest.mark.parametrize("name", TRANSFORMS)
def test_every_transform_runs_every_op_on_a_gpu(name: str) -> None:
    assert gt.asarray(1.0).device.type == "cuda"
    compare(with_all_ops(), name, 2, 0)


# -- the comparison notices faults -----------------------------------------------------------------


def one_percent_more(right: Callable[..., Any]) -> Callable[..., Any]:
    def run(self: Any, op: Any, inputs: Any, params: Any, keep: bool) -> Any:
        out, extras = right(self, op, inputs, params, keep)
        if op.name == "tanh" and getattr(out, "tangent", None) is not None:
            out.tangent = out.tangent * 1.01
        if op.name == "tanh" and getattr(out, "mapped", False):
            out.values = out.values + 1e-6
        return out, extras
    return run


PROGRAM: Program = [("tanh matrix", [0]), ("matmul", [3, 1]), ("row beside matrix", [4, 2])]


@pytest.mark.parametrize("name", ["jvp", "jvp_batched", "jacfwd", "hvp"])
def test_a_wrong_tangent_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dual.Directional, "run", one_percent_more(dual.Directional.run))
    with pytest.raises(AssertionError):
        compare(PROGRAM, name, 2, 0)


@pytest.mark.parametrize("name", ["vmap", "vmap of vmap", "per_example_grad"])
def test_wrong_examples_are_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batched.Vectorized, "run", one_percent_more(batched.Vectorized.run))
    with pytest.raises(AssertionError):
        compare(PROGRAM, name, 2, 0)


@pytest.mark.parametrize("name", ["vjp", "vjp, batched", "jacrev", "hessian", "linearize"])
def test_a_wrong_pullback_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    walk = gradients.Run.walk
    monkeypatch.setattr(gradients.Run, "walk", lambda *args: [
        None if g is None else g * 1.01 for g in walk(*args)])
    with pytest.raises(AssertionError):
        compare(PROGRAM, name, 2, 0)

"""Checkpointed functions that differentiate, map or draw, whose walk runs within transforms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gtensor as gt
import gtensor.nn.functional as F
from gtensor.nn.utils import checkpoint

Function = Callable[[Any], Any]
FUNCTIONS: dict[str, Function] = {
    "grad": lambda x: gt.grad(lambda z: (z**3).sum())(x) * x,
    "grad of grad": lambda x: gt.grad(lambda y: gt.grad(lambda z: (z**4).sum())(y).sum())(x),
    "jvp": lambda x: gt.jvp(lambda z: gt.tanh(z) * z, (x,), (x * x,))[1],
    "vmap": lambda x: gt.vmap(lambda z: gt.exp(z) * z)(x) * x,
    "vmap of grad": lambda x: gt.vmap(gt.grad(lambda z: gt.sin(z) * z))(x),
    "hvp": lambda x: gt.hvp(lambda z: (z**4).sum(), (x,), (x,))[0],
    "vjp": lambda x: gt.vjp(gt.tanh, x)[1](x)[0],
    "dropout": lambda x: F.dropout(x * x, 0.5) * x,
    "a batch norm": lambda x: F.inplace_abn(x.reshape(1, 1, 3) * 2, training=True) * x,
}
DIRECTIONS = np.random.default_rng(0).standard_normal((4, 3))


def stacked(pullback: Any, like: Any) -> Any:
    rows = gt.asarray(DIRECTIONS).reshape(4, *like.shape)
    return pullback(rows, batched=True)[0]


WALKS: dict[str, Callable[[Any, Any], Any]] = {
    "batched": stacked,
    "vmap": lambda pullback, like: gt.vmap(lambda c: pullback(c)[0])(
        gt.asarray(DIRECTIONS).reshape(4, *like.shape)),
    "jvp": lambda pullback, like: gt.jvp(lambda c: pullback(c)[0], (like * 2,), (like * 3,))[1],
    "grad": lambda pullback, like: gt.grad(lambda c: (pullback(c)[0] ** 2).sum())(like * 2),
    "plain": lambda pullback, like: pullback(like * 2)[0],
}


def results(function: Function, walk: Callable[[Any, Any], Any], outside: bool) -> list[Any]:
    """The pullback's results, and what backward() through them gives."""
    gt.random.manual_seed(0)
    w = gt.tensor([0.5, -1.0, 1.5], dtype=gt.float64).requires_grad_(outside)
    x = gt.tensor([0.3, 0.7, -0.4], dtype=gt.float64)
    value, pullback = gt.vjp(lambda x: function(x * w), x)
    found = walk(pullback, value.detach())
    if outside:
        (found**2).sum().backward()
        return [found.detach(), w.grad]
    return [found]


@pytest.mark.parametrize("outside", [False, True])
@pytest.mark.parametrize("walk", WALKS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_second_run_is_outside_of_the_walks_transforms(
    name: str, walk: str, outside: bool
) -> None:
    function = FUNCTIONS[name]
    wanted = results(function, WALKS[walk], outside)
    found = results(lambda x: checkpoint(function, x), WALKS[walk], outside)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-10, atol=1e-12)

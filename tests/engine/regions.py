"""What the tests of checkpointed regions share: gradients of a run, with a region and without."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import gtensor as gt
from gtensor.nn.utils import checkpoint

Function = Callable[..., Any]


def draw(*shape: int, requires_grad: bool = True) -> gt.Tensor:
    return gt.tensor(np.random.standard_normal(shape), requires_grad=requires_grad)


def tensors_of(value: Any) -> list[gt.Tensor]:
    if isinstance(value, gt.Tensor):
        return [value]
    items = value.values() if isinstance(value, dict) else value if isinstance(
        value, (tuple, list)) else ()
    return [x for item in items for x in tensors_of(item)]


def loss_of(outputs: Any) -> gt.Tensor:
    """Every output, with a gradient that is not uniform."""
    terms = [(y * gt.asarray(np.cos(np.arange(y.size)).reshape(y.shape).astype(y.dtype))).sum()
             for y in tensors_of(outputs)]
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


def gradients(run: Callable[[], Any], leaves: list[gt.Tensor], **options: Any) -> list[np.ndarray]:
    """The outputs of a run and the gradients of its leaves, from one seed."""
    gt.manual_seed(3)
    for leaf in leaves:
        leaf.grad = None
    outputs = run()
    values = [y.detach().numpy().copy() for y in tensors_of(outputs)]
    loss_of(outputs).backward(**options)
    return values + [leaf.grad.detach().numpy().copy() for leaf in leaves]


def assert_same(ours: list[np.ndarray], wanted: list[np.ndarray]) -> None:
    for a, b in zip(ours, wanted, strict=True):
        np.testing.assert_array_equal(a, b)


def check(function: Function, leaves: list[gt.Tensor], *inputs: Any, **kwargs: Any) -> None:
    """Values and gradients to the last bit: with a checkpoint and without."""
    wanted = gradients(lambda: function(*inputs, **kwargs), leaves)
    assert_same(gradients(lambda: checkpoint(function, *inputs, **kwargs), leaves), wanted)

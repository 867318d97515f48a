"""`backward(batched=True)`: N gradients in one walk are those of N walks, and move as theirs do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from usage import measure

import gtensor as gt
from gtensor.engine.walk.slots import RawStep
from gtensor.engine.walk.stacked import Stack, StackedStep
from gtensor.nn import functional as F

RNG = np.random.default_rng()


def leaf(*shape: int, dtype: Any = np.float64) -> gt.Tensor:
    return gt.tensor(RNG.uniform(0.5, 1.5, shape).astype(dtype), requires_grad=True)


# Each of x (4, 3) and w (3,); a rule lends, gives, accumulates, broadcasts or overwrites.
PROGRAMS: dict[str, Callable[[gt.Tensor, gt.Tensor], gt.Tensor]] = {
    "a product with itself": lambda x, w: x * x,
    "broadcasting": lambda x, w: (x * w + w) / (w - 3),
    "a sum of shared parts": lambda x, w: (lambda h: h + gt.sin(h) * h)(gt.tanh(x * w)),
    "matmul, used twice": lambda x, w: (lambda y: y @ y)(x.T @ x) * w,
    "linear": lambda x, w: F.linear(x, x, w.sum() * gt.ones((4,), dtype=gt.float64)),
    "slices": lambda x, w: x[1:] * x[:-1] + x[:1, ::-1],
    "shapes": lambda x, w: gt.permute_dims(x.reshape(2, 6), (1, 0)).sum(0, keepdims=True) * x[0, 0],
    "reductions": lambda x, w: x.mean(0) * w.sum() - x.sum(),
    "a gradient that is the same for all": lambda x, w: x + w,
    "a selection": lambda x, w: gt.where(x > 1, x * w, w),
    "kinds of dtype": lambda x, w: x.astype(gt.float32) * 2 + w.astype(gt.float32),
}


def gradients(y: gt.Tensor, leaves: list[gt.Tensor], upstream: gt.Tensor, batched: bool) -> Any:
    for x in leaves:
        x.grad = None
    y.backward(upstream, retain_graph=True, batched=batched)
    return [None if x.grad is None else x.grad.numpy() for x in leaves]


def copies(step: StackedStep, i: int, a: Any) -> None:
    """Ownership switched off: what a rule gives or lends is copied."""
    RawStep.give(step, i, step._whole(i, Stack(a.array.copy()) if type(a) is Stack else a))


@pytest.mark.parametrize("n", (0, 1, 7))
@pytest.mark.parametrize("name", PROGRAMS)
def test_n_gradients_are_those_of_n_walks(name: str, n: int) -> None:
    leaves = [leaf(4, 3), leaf(3)]
    y = PROGRAMS[name](*leaves)
    upstream = gt.asarray(RNG.standard_normal((n, *y.shape)).astype(y.dtype))
    found = gradients(y, leaves, upstream, True)
    for i in range(n):
        for all_, one in zip(found, gradients(y, leaves, upstream[i], False), strict=True):
            assert (all_ is None) == (one is None)
            if one is not None:
                np.testing.assert_allclose(all_[i], one, rtol=1e-12, atol=1e-14)
    with patch.multiple(StackedStep, give=copies, lend=copies, reuse=lambda step, g: None,
                        into=lambda step, i, **how: (None, 0.0)):
        for moved, copied in zip(found, gradients(y, leaves, upstream, True), strict=True):
            np.testing.assert_array_equal(moved, copied)  # bit for bit
    for x, a in zip(leaves, found, strict=True):
        assert a is None or a.shape == (n, *x.shape)


def test_a_rule_that_overwrites_what_it_lent_is_caught() -> None:
    leaves = [leaf(4, 3), leaf(3)]
    y = PROGRAMS["a sum of shared parts"](*leaves)
    upstream = gt.asarray(RNG.standard_normal((7, 4, 3)))
    right = gradients(y, leaves, upstream, True)
    with patch.object(StackedStep, "reuse", lambda step, g: g):  # whoever else holds it
        wrong = gradients(y, leaves, upstream, True)
    assert any(np.abs(a - b).max() > 1e-6 for a, b in zip(right, wrong, strict=True))


def test_gradients_accumulate_and_others_are_refused() -> None:
    x = leaf(3)
    y, upstream = x * x, gt.asarray(RNG.standard_normal((5, 3)))
    for _ in range(2):
        y.backward(upstream, retain_graph=True, batched=True)
    assert x.grad is not None
    np.testing.assert_allclose(x.grad.numpy(), 4 * x.detach().numpy() * upstream.numpy())
    before = x.grad.numpy().copy()
    with pytest.raises(gt.GradientError, match=r"a leaf of shape \(3,\) has a gradient of shape "
                       r"\(5, 3\), to which 2 gradients would be added"):
        y.backward(upstream[:2], batched=True)
    np.testing.assert_array_equal(x.grad.numpy(), before)
    y.backward(upstream, batched=True)  # the graph was left whole


@pytest.mark.parametrize(("upstream", "error", "message"), [
    (None, TypeError, r"given NoneType as gradients; wanted a Tensor of shape \(N, ...\)"),
    (gt.ones(()), TypeError, r"given one of shape \(\) as gradients"),
    (gt.ones((5, 4)), ValueError, r"a stack of gradients of shape \(5, 4\) .* of shape \(5, 3\)"),
    (gt.ones((5, 3), dtype=gt.float64), TypeError, "a stack of gradients of dtype float64"),
])
def test_stacks_that_do_not_fit_are_refused(upstream: Any, error: type, message: str) -> None:
    x = leaf(3, dtype=np.float32)
    with pytest.raises(error, match=message):
        (x * x).backward(upstream, batched=True)
    assert x.grad is None


def test_hooks_graphs_of_gradients_and_rules_that_read_are_refused() -> None:
    x, upstream = leaf(3), gt.ones((5, 3), dtype=gt.float64)
    with pytest.raises(gt.GradientError, match="given create_graph=True"):
        (x * x).backward(upstream, batched=True, create_graph=True)
    y = x * x
    y.register_hook(lambda g: None)
    with pytest.raises(gt.GradientError, match="a tensor with a hook, which takes one"):
        (y * x).backward(upstream, batched=True)
    with pytest.raises(gt.LevelError, match="'sum' of a gradient was asked for"):
        Stack(np.ones((5, 3))).sum()
    with pytest.raises(TypeError):
        np.negative(Stack(np.ones((5, 3))))
    assert x.grad is None


def test_the_walk_holds_three_buffers_of_all_gradients() -> None:
    """g is written over all the way down; the seed and one product are beside it."""
    n, size = 16, 65_536
    x = leaf(size, dtype=np.float32)
    y = gt.tanh(gt.sin(x) * x + x)
    upstream = gt.ones((n, size))
    y.backward(upstream, retain_graph=True, batched=True)  # writes the rules' text
    x.grad = None
    usage = measure(lambda: y.backward(upstream, retain_graph=True, batched=True))
    assert usage.peak <= 3 * upstream.nbytes
    assert usage.behind < upstream.nbytes // 4

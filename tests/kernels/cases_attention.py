"""Cases of attention: lengths around its tiles, head sizes, layouts, shared heads, masks."""

from __future__ import annotations

from math import e, log2
from typing import Any

import numpy as np
import torch
from kernel_cases import Case, assert_close, exact, normal, unwritten

from gtensor.ops.attention import fused

HALVES = ("float16", "bfloat16")


def _laid(array: np.ndarray, layout: str) -> np.ndarray:
    """The same values in memory of another layout, whose gaps are NaN."""
    if layout == "contiguous":
        return array
    *lead, heads, length, features = array.shape
    if layout == "side by side":  # a row has all heads, and as much again that is not read
        memory = np.full((*lead, length, 2 * heads, features), np.nan, array.dtype)
        view = memory[..., :heads, :].swapaxes(-2, -3)
    else:  # the last row comes first
        memory = np.full(array.shape, np.nan, array.dtype)
        view = memory[..., ::-1, :]
    view[...] = array
    return view


def memory_of(view: np.ndarray) -> tuple[np.ndarray, int]:
    """The whole memory of a view, and the bytes at which it begins."""
    whole = view
    while isinstance(whole.base, np.ndarray):
        whole = whole.base
    return whole, view.__array_interface__["data"][0] - whole.__array_interface__["data"][0]


def _memories(*views: np.ndarray) -> list[np.ndarray]:
    """The memory of views that begin where it does."""
    found = [memory_of(x) for x in views]
    assert not any(begin for _, begin in found)
    return [whole for whole, _ in found]


def _scores(q: torch.Tensor, k: torch.Tensor, scale: float, causal: bool) -> torch.Tensor:
    scores = q @ k.mT * scale
    if not causal:
        return scores
    return scores.masked_fill(~torch.ones(scores.shape[-2:]).bool().tril(), -torch.inf)


def attention(
    name: str, lead: tuple[int, ...], length: int, keys: int, features: int,
    value_features: int | None = None, *, causal: bool = False, layout: str = "contiguous",
    key_lead: tuple[int, ...] | None = None, scale: float = 0.25, totals: bool = True,
) -> Case:
    """A case whose arrays begin where their memory does."""
    value_features = value_features or features

    def check(executor: Any, dtype: np.dtype, rng: np.random.Generator) -> None:
        shared = lead if key_lead is None else key_lead
        q, k, v = (
            _laid(normal(rng, shape, dtype), layout) for shape in (
                (*lead, length, features), (*shared, keys, features),
                (*shared, keys, value_features)))
        out = _laid(unwritten((*lead, length, value_features), dtype), layout)
        found = fused.plan(*((x.shape, x.strides) for x in (q, k, v, out)), causal)
        assert found is not None
        kept = unwritten((2, *lead, length), np.dtype(np.float32))
        arrays = _memories(q, k, v, out)
        executor.raw("attention.cu", f"attention_forward_{found.size}", dtype, found.grid, (256,), [
            *arrays, kept[0], kept[1] if totals else 0, found.space, scale * log2(e)],
            found.shared_bytes)
        scores = _scores(exact(q), exact(k), scale, causal)
        assert_close(out, scores.softmax(-1) @ exact(v), dtype)
        assert_close(kept[0], scores.logsumexp(-1), np.dtype(np.float32))
        assert (kept[1] == (1 if totals else 77)).all()

    return Case(f"attention-{name}", check, HALVES)


def gradients(
    name: str, lead: tuple[int, ...], length: int, keys: int, features: int,
    value_features: int | None = None, *, causal: bool = False, layout: str = "contiguous",
    key_lead: tuple[int, ...] | None = None, wanted: str = "qkv", scale: float = 0.25,
) -> Case:
    """As `attention`, backward, of what forward would have kept; those of `wanted` are written."""
    value_features = value_features or features

    def check(executor: Any, dtype: np.dtype, rng: np.random.Generator) -> None:
        shared = lead if key_lead is None else key_lead
        shapes = ((*lead, length, features), (*shared, keys, features),
                  (*shared, keys, value_features))
        q, k, v, g = (_laid(normal(rng, shape, dtype), layout)
                      for shape in (*shapes, (*lead, length, value_features)))
        leaves = [exact(x).requires_grad_() for x in (q, k, v)]
        scores = _scores(*leaves[:2], scale, causal)
        attended = scores.softmax(-1) @ leaves[2]
        exact_gradients = torch.autograd.grad(attended, leaves, exact(g))
        largest = scores.detach().amax(-1, keepdim=True)
        totals = (scores.detach() - largest).exp().sum(-1, keepdim=True)
        out = _laid(attended.detach().numpy().astype(dtype), layout)
        kept = [x.numpy().astype(np.float32) for x in (largest, totals)]
        made = {which: _laid(unwritten(shape, dtype), layout)
                for which, shape in zip("qkv", shapes, strict=True) if which in wanted}
        found = fused.gradient_plan(
            *((x.shape, x.strides) for x in (q, k, v, out, g, kept[0])),
            *((made[x].shape, made[x].strides) if x in made else None for x in "qkv"), causal)
        assert found is not None
        numbers = unwritten(found.numbers, np.dtype(np.float32))
        memories = _memories(q, k, v, out, g)
        dq, dk, dv = (_memories(made[x])[0] if x in made else 0 for x in "qkv")
        for which, grid, args in (
                ("queries", found.query_grid, [*memories, *kept, numbers, dq]),
                ("keys", found.key_grid, [*memories[:3], memories[4], numbers, dk, dv])):
            executor.raw(
                "attention_backward.cu", f"attention_backward_{which}_{found.size}", dtype, grid,
                (found.threads,), [*args, found.space, scale * log2(e)], found.shared_bytes)
        for which, wanted_gradient in zip("qkv", exact_gradients, strict=True):
            if which in made:
                assert_close(made[which], wanted_gradient, dtype)

    return Case(f"attention-backward-{name}", check, HALVES)


CASES = [
    attention("one-key", (), 1, 1, 8),
    attention("one-query", (2,), 1, 130, 64),
    attention("tiles", (1,), 128, 64, 64),
    attention("tails", (2,), 131, 67, 64, causal=False),
    attention("causal", (1,), 200, 200, 64, causal=True),
    attention("causal-more-keys", (1,), 70, 200, 64, causal=True),
    attention("causal-more-queries", (1,), 150, 40, 32, causal=True),
    attention("few-features", (1,), 20, 70, 24, 40),
    attention("large-heads", (1,), 140, 150, 128, causal=True, totals=False),
    attention("large-heads-few-features", (1,), 30, 70, 104, 72),
    attention("side-by-side", (2, 3), 40, 40, 32, causal=True, layout="side by side"),
    attention("shared-heads", (2, 2, 3), 20, 30, 16, key_lead=(2, 2, 1)),
    gradients("one-key", (), 1, 1, 8),
    gradients("large-scores", (), 40, 1, 8, scale=30.0),
    gradients("one-query", (2,), 1, 130, 64),
    gradients("tiles", (1,), 128, 128, 64),
    gradients("tails", (2,), 131, 67, 64),
    gradients("causal", (1,), 200, 200, 64, causal=True),
    gradients("causal-more-keys", (1,), 70, 200, 64, causal=True),
    gradients("causal-more-queries", (1,), 150, 40, 32, causal=True),
    gradients("few-features", (1,), 20, 70, 24, 40),
    gradients("large-heads", (1,), 140, 150, 128, causal=True),
    gradients("large-heads-few-features", (1,), 30, 70, 104, 72, wanted="kv"),
    gradients("side-by-side", (2, 3), 40, 40, 32, causal=True, layout="side by side"),
    gradients("shared-heads", (2, 2, 3), 40, 30, 16, key_lead=(2, 2, 1), causal=True),
    gradients("shared-matrices", (2, 3), 20, 30, 16, key_lead=(1, 3), layout="side by side"),
    gradients("of-keys-alone", (2,), 20, 30, 16, wanted="k"),
    gradients("of-values-alone", (2,), 20, 30, 16, wanted="v"),
]

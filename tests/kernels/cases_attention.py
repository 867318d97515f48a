"""Cases of attention.cu: lengths around its tiles, head sizes, layouts, shared heads, masks."""

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
        arrays = [memory_of(x)[0] for x in (q, k, v, out)]
        assert all(memory_of(x)[1] == 0 for x in (q, k, v, out))
        executor.raw("attention.cu", f"attention_forward_{found.size}", dtype, found.grid, (256,), [
            *arrays, kept[0], kept[1] if totals else 0, found.space, scale * log2(e)],
            found.shared_bytes)
        scores = exact(q) @ exact(k).mT * scale
        if causal:
            scores = scores.masked_fill(~torch.ones(length, keys).bool().tril(), -torch.inf)
        assert_close(out, scores.softmax(-1) @ exact(v), dtype)
        assert_close(kept[0], scores.logsumexp(-1), np.dtype(np.float32))
        assert (kept[1] == (1 if totals else 77)).all()

    return Case(f"attention-{name}", check, HALVES)


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
]

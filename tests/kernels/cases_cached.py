"""Cases of attention_cached.cu: lengths around its splits and teams, sizes, groups, few queries."""

from __future__ import annotations

from math import e, log2
from typing import Any

import numpy as np
import torch
from kernel_cases import Case, assert_close, exact, normal, unwritten

from gtensor.ops.attention import cached

DTYPES = ("float16", "bfloat16", "float32")


def attend(
    name: str, batch: int, kv_heads: int, group: int, length: int, start: int, features: int,
    capacity: int | None = None, aligned: bool = True,
) -> Case:
    """Queries against a cache that is filled to their positions; what lies beyond is NaN."""

    def check(executor: Any, dtype: np.dtype, rng: np.random.Generator) -> None:
        keys = start + length
        shape = batch, kv_heads, capacity or keys + 3, features
        packed = normal(rng, (batch, length, (group + 2) * kv_heads, features), dtype)
        k, v = (np.full(shape, np.nan, dtype) for _ in range(2))
        for cache in (k, v):
            cache[:, :, :keys] = normal(rng, (batch, kv_heads, keys, features), dtype)
        found = cached.plan(packed.shape, shape, start, aligned, dtype.itemsize)
        assert found is not None
        heads = group * kv_heads
        q = exact(packed[:, :, :heads]).reshape(batch, length, kv_heads, group, features)
        scores = torch.einsum("blhgf,bhkf->bhglk", q, exact(k)[:, :, :keys]) * 0.25
        seen = torch.arange(keys) <= start + torch.arange(length)[:, None]
        weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
        wanted = torch.einsum("bhglk,bhkf->blhgf", weights, exact(v)[:, :, :keys])
        others = packed[:, :, heads:].copy()
        parts = unwritten(found.parts, np.dtype(np.float32))
        executor.raw("attention_cached.cu", f"attention_cached_{found.size}", dtype, found.grid,
                     (128,), [packed, k, v, parts, found.space, 0.25 * log2(e)])
        executor.raw("attention_cached.cu", "attention_cached_combine", dtype, (found.rows,),
                     (128,), [parts, packed, found.space])
        assert_close(packed[:, :, :heads], wanted.reshape(batch, length, heads, features), dtype)
        np.testing.assert_array_equal(packed[:, :, heads:], others)

    return Case(f"attention-cached-{name}", check, DTYPES)


CASES = [
    attend("first", 1, 1, 1, 1, 0, 8),
    attend("one-query", 2, 2, 1, 1, 150, 64),
    attend("groups", 1, 2, 6, 1, 130, 32),
    attend("few-queries", 2, 1, 2, 5, 125, 40),
    attend("large-heads", 1, 2, 1, 1, 200, 128),
    attend("larger-heads", 1, 1, 3, 2, 70, 256),
    attend("odd-heads", 1, 2, 1, 1, 70, 67),
    attend("not-aligned", 1, 2, 2, 1, 70, 16, aligned=False),
    attend("many-heads", 90, 3, 1, 1, 140, 8),  # a split has more keys than the teams at once
]

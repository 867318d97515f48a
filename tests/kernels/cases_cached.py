"""Cases of attention_cached.cu: lengths around its splits and teams, sizes, groups, few queries."""

from __future__ import annotations

from math import e, log2
from typing import Any

import numpy as np
import torch
from kernel_cases import Case, assert_close, exact, normal, unwritten

from gtensor.backend.kernels import NULL
from gtensor.ops.attention import cached

DTYPES = ("float16", "bfloat16", "float32")


def attend(
    name: str, batch: int, kv_heads: int, group: int, length: int, start: int, features: int,
    capacity: int | None = None, aligned: bool = True, in_memory: bool = False,
) -> Case:
    """Queries against a cache that is filled to their positions; what lies beyond is NaN.

    `in_memory`: the kernels find the first position there, as in a graph.
    """

    def check(executor: Any, dtype: np.dtype, rng: np.random.Generator) -> None:
        keys = start + length
        shape = batch, kv_heads, capacity or keys + 3, features
        packed = normal(rng, (batch, length, (group + 2) * kv_heads, features), dtype)
        k, v = (np.full(shape, np.nan, dtype) for _ in range(2))
        for cache in (k, v):
            cache[:, :, :keys] = normal(rng, (batch, kv_heads, keys, features), dtype)
        found = cached.plan(packed.shape, shape, aligned, dtype.itemsize)
        heads = group * kv_heads
        q = exact(packed[:, :, :heads]).reshape(batch, length, kv_heads, group, features)
        scores = torch.einsum("blhgf,bhkf->bhglk", q, exact(k)[:, :, :keys]) * 0.25
        seen = torch.arange(keys) <= start + torch.arange(length)[:, None]
        weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
        wanted = torch.einsum("bhglk,bhkf->blhgf", weights, exact(v)[:, :, :keys])
        others = packed[:, :, heads:].copy()
        parts = unwritten(found.parts, np.dtype(np.float32))
        first = _first(start, in_memory)
        executor.raw("attention_cached.cu", f"attention_cached_{found.size}", dtype, found.grid,
                     (128,), [packed, k, v, parts, *first, found.space, 0.25 * log2(e)])
        executor.raw("attention_cached.cu", "attention_cached_combine", dtype, (found.rows,),
                     (128,), [parts, packed, *first, found.space])
        assert_close(packed[:, :, :heads], wanted.reshape(batch, length, heads, features), dtype)
        np.testing.assert_array_equal(packed[:, :, heads:], others)

    return Case(f"attention-cached-{name}", check, DTYPES)


def store(
    name: str, batch: int, kv_heads: int, group: int, length: int, start: int, features: int,
    rotary: bool = True, in_memory: bool = True,
) -> Case:
    """New positions are turned and written into caches, in which nothing else changes."""

    def check(executor: Any, dtype: np.dtype, rng: np.random.Generator) -> None:
        heads, capacity, half = group * kv_heads, start + length + 2, -(-features // 2)
        packed = normal(rng, (batch, length, heads + 2 * kv_heads, features), dtype)
        k, v = (normal(rng, (batch, kv_heads, capacity, features), dtype) for _ in range(2))
        table = normal(rng, (2, capacity + 1, half), np.dtype(np.float32))
        wanted = exact(packed).clone()
        if rotary:
            a, b = wanted[:, :, :-kv_heads].split(half, -1)
            c, s = exact(table)[:, start:start + length, None]
            wanted[:, :, :-kv_heads] = torch.cat([a * c - b * s, b * c + a * s], -1)
        caches = [exact(x).clone() for x in (k, v)]
        for cache, new in zip(caches, wanted[:, :, heads:].split(kv_heads, 2), strict=True):
            cache[:, :, start:start + length] = new.swapaxes(1, 2)
        space = cached.plan(packed.shape, k.shape, True, dtype.itemsize).space
        executor.raw(
            "attention_cached.cu", "attention_cached_store", dtype, (3,), (128,),
            [packed, k, v, table if rotary else NULL, capacity + 1, *_first(start, in_memory),
             space, batch * length])
        assert_close(packed[:, :, :heads], wanted[:, :, :heads], dtype)
        assert_close(k, caches[0], dtype)
        assert_close(v, caches[1], dtype)

    return Case(f"attention-cached-store-{name}", check, DTYPES)


def _first(start: int, in_memory: bool) -> tuple[Any, int]:
    """The first position as kernels are given it, in memory beside another number, or itself."""
    return (np.array(start, np.int64), start + 5) if in_memory else (NULL, start)


CASES = [
    attend("first", 1, 1, 1, 1, 0, 8),
    attend("short-of-capacity", 1, 2, 2, 2, 70, 24, capacity=1000, in_memory=True),
    attend("one-query", 2, 2, 1, 1, 150, 64),
    attend("groups", 1, 2, 6, 1, 130, 32),
    attend("few-queries", 2, 1, 2, 5, 125, 40),
    attend("large-heads", 1, 2, 1, 1, 200, 128),
    attend("larger-heads", 1, 1, 3, 2, 70, 256),
    attend("odd-heads", 1, 2, 1, 1, 70, 67),
    attend("not-aligned", 1, 2, 2, 1, 70, 16, aligned=False),
    attend("many-heads", 90, 3, 1, 1, 140, 8),  # a split has more keys than the teams at once
    store("rotary", 2, 2, 3, 2, 7, 40),
    store("plain", 2, 2, 1, 3, 4, 33, rotary=False),
    store("number", 1, 1, 2, 1, 5, 16, in_memory=False),
]

"""Attention with a cache of keys and values: what a new position does at inference, as one op.

On a GPU few queries of float32 and halves are two launches (kernels/attention_cached.cu): keys are
split over blocks, so that many work on one head; then each query's splits are combined. Head sizes
to 256 and caches that are contiguous; others, and more queries, take the paths of attention.
"""

from __future__ import annotations

from functools import lru_cache
from math import e, log2
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gtensor.backend import Device
from gtensor.backend.kernels import MULTIPROCESSORS, raw
from gtensor.engine.handle.tensor import Tensor
from gtensor.engine.run.grouped_writes import Write, write_all
from gtensor.engine.tape.op import Op
from gtensor.ops.arrange.shape import reshape
from gtensor.ops.attention.blocks import attention_path
from gtensor.ops.attention.rotary import turn
from gtensor.ops.define.path_builders import placed

if TYPE_CHECKING:
    from gtensor.backend.typing import Array

_THREADS, _ROWS = 128, 4  # of a block; `GT_CACHED_THREADS`, `GT_CACHED_ROWS` of the kernels
_BLOCKS = 4 * MULTIPROCESSORS  # that are enough
_LEAST_KEYS, _STEP = 64, 16  # keys of a split: at least, a multiple of
_MOST_ROWS = 16  # queries that share a head of keys: beyond, tensor cores are worth their tiles
_DTYPES = ("float16", "bfloat16", "float32")
_SIZES = (64, 128, 256)  # features, at most
_PARTS = {size: raw("attention_cached.cu", f"attention_cached_{size}") for size in _SIZES}
_COMBINE = raw("attention_cached.cu", "attention_cached_combine")
_SPACE = np.dtype([(name, np.int64) for name in (
    "kv_heads", "group", "length", "start", "capacity", "features", "splits", "keys", "wide")])


class Plan(NamedTuple):
    """How the kernels are launched."""

    size: int  # features, at most
    grid: tuple[int, int, int]
    rows: int  # queries of all heads: blocks of the second launch
    parts: int  # float32 for what the first one leaves the second one; as many for all positions
    space: np.void  # gt_cached


@lru_cache(1024)
def plan(
    packed: tuple[int, ...], cache: tuple[int, ...], start: int, aligned: bool, itemsize: int
) -> Plan | None:
    """The launches for contiguous arrays; None if there are none.

    Args:
        packed: the shape (batch, length, heads + 2 * kv_heads, features).
        cache: that of keys (batch, kv_heads, capacity, features).
        aligned: all arrays begin at multiples of 16 bytes.
    """
    (batch, kv_heads, capacity, features), length = cache, packed[1]
    group, keys = packed[2] // kv_heads - 2, start + length
    rows = length * group
    size = next((size for size in _SIZES if features <= size), 0)
    if not (size and features > 0 and 0 < rows <= _MOST_ROWS and batch > 0):
        return None
    heads, chunks = batch * kv_heads, -(-rows // _ROWS)
    at_most = max(1, _BLOCKS // (heads * chunks))
    each = -(-keys // min(-(-keys // _LEAST_KEYS), at_most))
    each += -each % _STEP
    splits = -(-keys // each)
    space: Any = np.zeros((), _SPACE)
    wide = aligned and features * itemsize % 16 == 0
    for name, number in zip(_SPACE.fields or (), (
            kv_heads, group, length, start, capacity, features, splits, each, wide), strict=True):
        space[name] = number
    reserved = min(-(-capacity // _LEAST_KEYS), at_most)  # splits: so that no position needs more
    return Plan(size, (heads, splits, chunks), heads * rows,
                heads * rows * reserved * (features + 2), space[()])


def _attend_split(
    device: Device, packed: Array, keys: Array, values: Array, start: int, scale: float
) -> bool:
    """Write over the queries what they attend to; False, nothing written, if no kernel serves."""
    arrays: tuple[Any, ...] = packed, keys, values
    if device.type == "cpu" or packed.dtype.name not in _DTYPES or not all(
            x.flags.c_contiguous for x in arrays):
        return False
    launch = plan(packed.shape, keys.shape, start, not any(x.data.ptr % 16 for x in arrays),
                  packed.itemsize)
    if launch is None:
        return False
    parts = device.empty((launch.parts,), np.float32, "attention")
    _PARTS[launch.size][packed.dtype](
        launch.grid, (_THREADS,), (*arrays, parts, launch.space, scale * log2(e)))
    _COMBINE[packed.dtype]((launch.rows,), (_THREADS,), (parts, packed, launch.space))
    return True


def _cached_attention_path(
    device: Device, keys: Array, values: Array, packed: Array, cos: Array | None = None,
    sin: Array | None = None, *, start: int, scale: float, out: Array | None = None,
) -> None:
    """Write keys, values and, over the queries, what they attend to."""
    kv_heads = keys.shape[1]
    heads, length = packed.shape[2] - 2 * kv_heads, packed.shape[1]
    if cos is not None and sin is not None:
        turn(device, packed, cos, sin, heads + kv_heads)
    stop = start + length
    by_head = packed.swapaxes(1, 2)  # (batch, heads of queries, keys and values, T, features)
    keys[:, :, start:stop] = by_head[:, heads:heads + kv_heads]
    values[:, :, start:stop] = by_head[:, heads + kv_heads:]
    if _attend_split(device, packed, keys, values, start, scale):
        return
    seen = keys[:, :, :stop], values[:, :, :stop]
    if length == 1 and packed.itemsize > 2:
        _attend_one(device, packed[:, 0, :heads], *seen, scale)
    else:
        _attend_many(device, by_head[:, :heads], *seen, start, scale)


def _attend_one(device: Device, queries: Array, keys: Array, values: Array, scale: float) -> None:
    """One query (batch, heads, features) a head, over itself: all scores are one small product."""
    xp = device.xp
    groups = (*keys.shape[:2], queries.shape[1] // keys.shape[1], keys.shape[3])
    weights = device.matmul(queries.reshape(groups), keys.swapaxes(-1, -2), alpha=scale,
                            label="attention")  # (batch, kv_heads, group, positions)
    weights -= weights.max(-1, keepdims=True)
    xp.exp(weights, out=weights)
    mixed = device.matmul(weights, values, label="attention")
    mixed /= weights.sum(-1, keepdims=True)
    queries[...] = mixed.reshape(queries.shape)


def _attend_many(
    device: Device, queries: Array, keys: Array, values: Array, start: int, scale: float
) -> None:
    """Queries (batch, heads, T, features) over themselves; each sees the positions up to its own.
    """
    batch, heads, length, features = queries.shape
    kv_heads, stop = keys.shape[1], keys.shape[2]
    grouped = queries.reshape((batch, kv_heads, heads // kv_heads, length, features))
    mask = None
    if start:
        places = device.xp.arange(stop)
        mask = places <= places[start:, None]
    mixed, *_ = attention_path(
        device, grouped, keys[:, :, None], values[:, :, None], mask, scale=scale,
        is_causal=not start, dropout_p=0.0, seed=0)
    queries[...] = mixed.reshape(queries.shape)


cached_attention_op = Op(
    "cached_attention", **placed(_cached_attention_path),
    backward=None, tangent=None, samples=None,
    doc="Attention of new positions to those in a cache and to each other, at inference.",
)


def cached_attention(
    packed: Tensor, keys: Tensor, values: Tensor, start: int, cos: Tensor | None = None,
    sin: Tensor | None = None,
) -> Tensor:
    """What new positions attend to (batch, T, heads * features), causally; nothing is recorded.

    Their keys and values are written into the cache, and the result over the queries.

    Args:
        packed: (batch, T, heads + 2 * kv_heads, features), contiguous: queries, keys and values of
            T new positions. Its memory is written.
        keys, values: (batch, kv_heads, capacity, features), the first `start` positions filled.
        start: the place of the first new position.
        cos, sin: of the new positions, for `rotary_embedding` of queries and keys; or None.

    The caller has checked shapes, dtypes and that the cache has room.
    """
    batch, length, _, features = packed.shape
    heads = packed.shape[2] - 2 * keys.shape[1]
    tables = () if cos is None or sin is None else (cos, sin)
    write_all([Write(cached_attention_op, (keys, values, packed), tables,
                     {"start": start, "scale": features**-0.5})])
    return reshape(packed[:, :, :heads], (batch, length, heads * features))

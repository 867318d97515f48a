"""Attention with a cache of keys and values: what a new position does at inference, as one op.

The first new position is an array: Python's number, or, in a captured step, what a replay finds
there. On a GPU one launch turns and stores what is new, of float32 and halves, and few queries are
two more (kernels/attention_cached.cu): keys are split over blocks, so that many work on one head;
then each query's splits are combined. None of them needs the position on the host. Head sizes to
256 and caches that are contiguous; others, and more queries, take the paths of attention.
"""

from __future__ import annotations

from functools import lru_cache
from math import e, log2
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gtensor.backend import Device
from gtensor.backend.kernels import MULTIPROCESSORS, NULL, flat_launch, raw
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
_LEAST_KEYS = 64  # of a split; `GT_CACHED_LEAST`
_MOST_ROWS = 16  # queries that share a head of keys: beyond, tensor cores are worth their tiles
_DTYPES = ("float16", "bfloat16", "float32")
_SIZES = (64, 128, 256)  # features, at most
_PARTS = {size: raw("attention_cached.cu", f"attention_cached_{size}") for size in _SIZES}
_COMBINE = raw("attention_cached.cu", "attention_cached_combine")
_STORE = raw("attention_cached.cu", "attention_cached_store")
_SPACE = np.dtype([(name, np.int64) for name in (
    "kv_heads", "group", "length", "capacity", "features", "most", "wide")])


class Plan(NamedTuple):
    """How the kernels are launched, whatever is in the cache."""

    size: int  # features, at most; 0 where queries take the paths of attention
    grid: tuple[int, int, int]
    rows: int  # queries of all heads: blocks of the second launch
    parts: int  # float32 for what the first one leaves the second one
    space: np.void  # gt_cached


@lru_cache(1024)
def plan(packed: tuple[int, ...], cache: tuple[int, ...], aligned: bool, itemsize: int) -> Plan:
    """The launches for contiguous arrays.

    Args:
        packed: the shape (batch, length, heads + 2 * kv_heads, features).
        cache: that of keys (batch, kv_heads, capacity, features).
        aligned: all arrays begin at multiples of 16 bytes.
    """
    (batch, kv_heads, capacity, features), length = cache, packed[1]
    group = packed[2] // kv_heads - 2
    rows = length * group
    size = next((size for size in _SIZES if features <= size), 0)
    if not (features > 0 and 0 < rows <= _MOST_ROWS and batch > 0):
        size = 0
    heads, chunks = batch * kv_heads, -(-rows // _ROWS)
    most = min(-(-capacity // _LEAST_KEYS), max(1, _BLOCKS // max(1, heads * chunks)))
    wide = aligned and features * itemsize % 16 == 0
    space: Any = np.zeros((), _SPACE)
    for name, number in zip(_SPACE.fields or (), (
            kv_heads, group, length, capacity, features, most, wide), strict=True):
        space[name] = number
    return Plan(size, (heads, most, chunks), heads * rows, heads * rows * most * (features + 2),
                space[()])


def _attend_split(
    device: Device, launch: Plan, arrays: tuple[Array, ...],
    position: tuple[Array | int, int], scale: float,
) -> None:
    """Write over the queries of `arrays` (packed, keys, values) what they attend to."""
    packed = arrays[0]
    parts = device.empty((launch.parts,), np.float32, "attention")
    _PARTS[launch.size][packed.dtype](
        launch.grid, (_THREADS,),
        (*arrays, parts, *position, launch.space, scale * log2(e)))
    _COMBINE[packed.dtype](
        (launch.rows,), (_THREADS,), (parts, packed, *position, launch.space))


def _cached_attention_path(
    device: Device, keys: Array, values: Array, packed: Array, first: Array,
    table: Array | None = None, *, scale: float, out: Array | None = None,
) -> None:
    """Write keys, values and, over the queries, what they attend to."""
    batch, length, all_heads, features = packed.shape
    kv_heads = keys.shape[1]
    heads = all_heads - 2 * kv_heads
    arrays: tuple[Any, ...] = packed, keys, values
    by_kernels = device.type != "cpu" and packed.dtype.name in _DTYPES and all(
        x.flags.c_contiguous for x in (*arrays, keys if table is None else table))
    if by_kernels:
        launch = plan(packed.shape, keys.shape, not any(x.data.ptr % 16 for x in arrays),
                      packed.itemsize)
        position = (NULL, int(first)) if isinstance(first, np.ndarray) else (first, 0)
        _STORE[packed.dtype](
            flat_launch(batch * length * all_heads * -(-features // 2))[0], (_THREADS,),
            (*arrays, *((NULL, 0) if table is None else (table, table.shape[1])),
             *position, launch.space, batch * length))
        if launch.size:
            _attend_split(device, launch, arrays, position, scale)
            return
    start = int(first)  # of a captured step on a GPU this waits, so that it cannot be a graph
    stop = start + length
    by_head = packed.swapaxes(1, 2)  # (batch, heads of queries, keys and values, T, features)
    if not by_kernels:
        if table is not None:
            turn(device, packed, table[0, start:stop], table[1, start:stop], heads + kv_heads)
        keys[:, :, start:stop] = by_head[:, heads:heads + kv_heads]
        values[:, :, start:stop] = by_head[:, heads + kv_heads:]
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
    packed: Tensor, keys: Tensor, values: Tensor, first: Tensor, table: Tensor | None = None
) -> Tensor:
    """What new positions attend to (batch, T, heads * features), causally; nothing is recorded.

    Their keys and values are written into the cache, and the result over the queries.

    Args:
        packed: (batch, T, heads + 2 * kv_heads, features), contiguous: queries, keys and values of
            T new positions. Its memory is written.
        keys, values: (batch, kv_heads, capacity, features), filled up to the new positions.
        first: the first new position: an integer of 64 bits without axes, on the CPU, or, where a
            graph is to read it, on the device (`CacheLength.adding` makes it).
        table: cosines and sines (2, positions, features / 2) of all that there is room for, or
            more, by which queries and keys are turned; or None.

    The caller has checked shapes, dtypes and that the cache has room.
    """
    batch, length, _, features = packed.shape
    heads = packed.shape[2] - 2 * keys.shape[1]
    given = (first,) if table is None else (first, table)
    write_all([Write(cached_attention_op, (keys, values, packed), given,
                     {"scale": features**-0.5})])
    return reshape(packed[:, :, :heads], (batch, length, heads * features))

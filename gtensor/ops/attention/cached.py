"""Attention with a cache of keys and values: what a new position does at inference, as one op."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gtensor.backend import Device
from gtensor.engine.handle.tensor import Tensor
from gtensor.engine.run.grouped_writes import Write, write_all
from gtensor.engine.tape.op import Op
from gtensor.ops.arrange.shape import reshape
from gtensor.ops.attention.blocks import attention_path
from gtensor.ops.attention.rotary import turn
from gtensor.ops.define.path_builders import placed

if TYPE_CHECKING:
    from gtensor.backend.typing import Array


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

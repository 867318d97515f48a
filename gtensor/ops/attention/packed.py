"""Attention of one projection: queries, keys and values are views of it, and so are the gradients.

The heads of queries come first, then those of keys, then as many of values. The output has its
heads side by side in a row, as the projection behind it reads them.
"""

from __future__ import annotations

from math import sqrt
from typing import TYPE_CHECKING, Any

from gtensor.backend import Device
from gtensor.engine.handle.namespaces import recorded
from gtensor.engine.handle.tensor import Tensor
from gtensor.engine.tape.levels import vectorizing
from gtensor.engine.tape.op import op
from gtensor.engine.tape.samples import Sample
from gtensor.engine.walk.slots import sum_to
from gtensor.ops.activations.dropout import check_probability, fresh_seed
from gtensor.ops.attention.attention import (
    attention_grad_in_ops,
    attention_in_ops,
    attention_reference,
    attention_tangent,
    once_for_all,
    scaled_dot_product_attention,
)
from gtensor.ops.attention.blocks import attention_path, write_gradients
from gtensor.ops.define.arguments import same_dtype
from gtensor.ops.define.batching import Inputs, Mapped, batch_size, spread
from gtensor.ops.define.flops import of_packed_attention
from gtensor.ops.define.path_builders import placed

if TYPE_CHECKING:
    from gtensor.backend.typing import Array, Params, Path
    from gtensor.engine.handle.namespaces import Namespace
    from gtensor.engine.walk.typing import Step, Values

__all__: list[str] = []  # nn.blocks calls the function

# -- paths -----------------------------------------------------------------------------------------


def _rows_by_head(x: Any, kv_heads: int) -> Any:
    """(..., T, heads, D) -> (..., heads, T, D), or (..., kv_heads, group, T, D): a view."""
    by_head = x.swapaxes(-2, -3)
    *lead, heads, length, features = by_head.shape
    if heads == kv_heads:
        return by_head
    return by_head.reshape((*lead, kv_heads, heads // kv_heads, length, features))


def _parts(packed: Any, kv_heads: int) -> tuple[Any, Any, Any]:
    """Queries, keys and values by head: views. Groups of queries share a head of the others."""
    heads = packed.shape[-2] - 2 * kv_heads
    queries = _rows_by_head(packed[..., :heads, :], kv_heads)
    keys, values = (packed[..., start:start + kv_heads, :].swapaxes(-2, -3)
                    for start in (heads, heads + kv_heads))
    if heads > kv_heads:
        keys, values = keys[..., None, :, :], values[..., None, :, :]
    return queries, keys, values


def _forward_path(
    device: Device, packed: Array, *, kv_heads: int, out: Array | None = None, **options: Any
) -> tuple[Array, Array, Array]:
    *lead, heads, features = packed.shape
    if out is None:
        out = device.empty((*lead, heads - 2 * kv_heads, features), packed.dtype, "attention")
    _, largest, total = attention_path(
        device, *_parts(packed, kv_heads), None, out=_rows_by_head(out, kv_heads), **options)
    return out, largest, total


def _grad_path(
    device: Device, g: Array, packed: Array, attended: Array, largest: Array, total: Array, *,
    kv_heads: int, out: Array | None = None, **options: Any
) -> Array:
    if out is None:
        out = device.empty(packed.shape, packed.dtype, "attention_grad")
    arrived, attended = (_rows_by_head(x, kv_heads) for x in (g, attended))
    write_gradients(device, arrived, *_parts(packed, kv_heads), None, attended, largest, total,
                    (*_parts(out, kv_heads), None), **options)
    return out


# -- rules -----------------------------------------------------------------------------------------


def _turned(ns: Namespace, x: Any) -> Any:
    """(..., T, heads, D) -> (..., heads, T, D), and the other way round."""
    return ns.permute_dims(x, axes=(*range(-x.ndim, -3), -2, -3, -1))


def _by_head_in_ops(ns: Namespace, x: Any, kv_heads: int) -> Any:
    """As `_rows_by_head`."""
    x = _turned(ns, x)
    *lead, heads, length, features = x.shape
    if heads == kv_heads:
        return x
    return ns.reshape(x, shape=(*lead, kv_heads, heads // kv_heads, length, features))


def _parts_in_ops(ns: Namespace, packed: Any, kv_heads: int) -> tuple[Any, Any, Any]:
    """As `_parts`."""
    heads = packed.shape[-2] - 2 * kv_heads
    group = (None,) * (heads > kv_heads)
    queries, *others = (
        ns.slice(packed, key=(..., slice(start, stop), slice(None))) for start, stop in (
            (0, heads), (heads, heads + kv_heads), (heads + kv_heads, heads + 2 * kv_heads)))
    keys, values = (ns.slice(_turned(ns, x), key=(..., *group, slice(None), slice(None)))
                    for x in others)
    return _by_head_in_ops(ns, queries, kv_heads), keys, values


def _rows_in_ops(ns: Namespace, y: Any, shape: tuple[int, ...]) -> Any:
    """(..., heads, T, D), with or without groups, -> `shape`, (..., T, heads, D)."""
    *lead, length, heads, features = shape
    return _turned(ns, ns.reshape(y, shape=(*lead, heads, length, features)))


def _composed(packed: Any, *, kv_heads: int, **options: Any) -> Tensor:
    ns = recorded
    y = attention_in_ops(*_parts_in_ops(ns, packed, kv_heads), None, **options)
    *lead, heads, features = packed.shape
    return _rows_in_ops(ns, y, (*lead, heads - 2 * kv_heads, features))


def _grad_composed(
    g: Tensor, packed: Tensor, attended: Tensor, largest: Tensor, total: Tensor, *, kv_heads: int,
    **options: Any,
) -> Tensor:
    ns, heads = recorded, g.shape[-2]
    arrived, attended = (_by_head_in_ops(ns, x, kv_heads) for x in (g, attended))
    parts = _parts_in_ops(ns, packed, kv_heads)
    grads: Any = attention_grad_in_ops(arrived, *parts, None, attended, largest, total,
                                       wanted=(True, True, True, False), **options)
    *lead, _, features = packed.shape
    sizes = heads, kv_heads, kv_heads
    rows = [_rows_in_ops(ns, sum_to(ns, d, part.shape), (*lead, size, features))
            for d, part, size in zip(grads, parts, sizes, strict=False)]
    return ns.concat(*rows, axis=-2, sizes=sizes)


def _backward(ns: Namespace, step: Step, g: Array) -> None:
    step.give(0, ns.packed_attention_grad(g, *step.saved, **step.params))


def _tangent(ns: Namespace, primals: Values, tangents: Values, out: Any, params: Params) -> Any:
    options = {**params}
    kv_heads = options.pop("kv_heads")
    parts, changes = (_parts_in_ops(ns, x, kv_heads) for x in (primals[0], tangents[0]))
    change = attention_tangent(ns, (*parts, None), (*changes, None), out, options)
    return _rows_in_ops(ns, change, out.shape)


def _batch(ns: Namespace, run: Path, inputs: Inputs, mapped: Mapped, params: Params) -> Any:
    """The batch axis is one more of the leading axes. All examples have one dropout."""
    return run(*inputs, **once_for_all(params))


def _grad_batch(ns: Namespace, run: Path, inputs: Inputs, mapped: Mapped, params: Params) -> Any:
    size = batch_size(inputs, mapped)
    whole = [spread(ns, x, m, size) for x, m in zip(inputs, mapped, strict=True)]
    made = _grad_composed if ns is recorded else run
    return made(*whole, **once_for_all(params))


# -- definitions -----------------------------------------------------------------------------------


def _reference(torch: Any, packed: Any, *, kv_heads: int, **options: Any) -> Any:
    heads = packed.shape[-2] - 2 * kv_heads
    q, k, v = packed.movedim(-2, -3).split((heads, kv_heads, kv_heads), -3)
    k, v = (x.repeat_interleave(heads // kv_heads, -3) for x in (k, v))
    return attention_reference(torch, q, k, v, None, **options).movedim(-2, -3)


def _sample(shape: tuple[int, ...], kv_heads: int, **params: Any) -> Sample:
    options = {"scale": 0.6, "is_causal": True, "dropout_p": 0.0, "seed": 0}
    return Sample((shape,), params={"kv_heads": kv_heads, **options, **params})


packed_attention_grad = op(
    "packed_attention_grad", **placed(_grad_path), backward=None, tangent=None,
    composed=_grad_composed, batch=_grad_batch,
    samples=None,  # its inputs depend on each other: tested through packed_attention
    doc="The gradient of packed_attention from its input, its output, its largest scores and sums.",
)

packed_attention_op = op(
    "packed_attention", flops=of_packed_attention,
    autocast="low", **placed(_forward_path), extras="largest total",
    saves={"packed": "packed out largest total"}, backward=_backward, tangent=_tangent,
    composed=_composed, batch=_batch,
    samples=[_sample((4, 3, 2), 1), _sample((2, 3, 6, 2), 2), _sample((2, 4, 6, 3), 1),
             _sample((3, 3, 2), 1, is_causal=False, dropout_p=0.4, seed=5), _sample((0, 3, 2), 1)],
    reference=_reference,
    doc="attention of queries, keys and values (..., T, heads + 2 * kv_heads, D): (..., T, heads, "
        "D). Parameters as attention, and kv_heads.",
)


def packed_attention(
    packed: Tensor, kv_heads: int, dropout_p: float = 0.0, is_causal: bool = True
) -> Tensor:
    """Attention (..., T, heads, D) of a projection (..., T, heads + 2 * kv_heads, D).

    Its gradient is written where it belongs in the projection's, which is one array. Groups of
    heads / kv_heads heads of queries share one of keys and values.

    Raises ValueError for a number of heads that kv_heads does not divide.
    """
    same_dtype("packed_attention", packed=packed)
    check_probability("packed_attention", "dropout_p", dropout_p)
    if packed.ndim < 3 or kv_heads < 1 or packed.shape[-2] < 3 * kv_heads or (
            packed.shape[-2] % kv_heads):
        raise ValueError(f"packed_attention was given a projection of shape {packed.shape} and "
                         f"kv_heads={kv_heads}; wanted (..., T, heads + 2 * kv_heads, D), heads a "
                         "multiple of kv_heads")
    scale = 1 / sqrt(max(1, packed.shape[-1]))
    if dropout_p and vectorizing():  # whose `randomness` dropout follows
        parts = _parts_in_ops(recorded, packed, kv_heads)
        y = scaled_dot_product_attention(*parts, dropout_p=dropout_p, is_causal=is_causal)
        shape = *packed.shape[:-2], packed.shape[-2] - 2 * kv_heads, packed.shape[-1]
        return _rows_in_ops(recorded, y, shape)
    return packed_attention_op(
        packed, kv_heads=kv_heads, is_causal=is_causal, dropout_p=float(dropout_p), scale=scale,
        seed=fresh_seed(packed.device) if dropout_p else 0)

"""Attention in bounded memory: the (L, S) weights exist one block at a time, never whole.

Forward keeps a running maximum and a running sum per query (online softmax) and saves its inputs,
its output and two numbers per query: the largest score, and the sum of the exponentials relative to
it. (Of halves, where forward is one launch, fused.py, without a mask or dropout they are the
logarithm of the sum of exponentials, and 1.) Backward recomputes every block of weights from those,
there in two launches, and the gradient of a mask in a third. Source: Dao et al., "FlashAttention",
2022; Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from math import sqrt
from typing import TYPE_CHECKING, Any

import numpy as np

from gtensor.engine.handle.namespaces import recorded
from gtensor.engine.handle.tensor import Tensor, wrap
from gtensor.engine.tape.levels import vectorizing
from gtensor.engine.tape.op import op
from gtensor.engine.tape.samples import Sample, boolean, normal
from gtensor.ops.activations.dropout import check_probability, dropout, dropout_op, fresh_seed
from gtensor.ops.arrange.shape import reshape
from gtensor.ops.attention.blocks import attention_grad_path, attention_path
from gtensor.ops.define.arguments import same_dtype, takes_arrays
from gtensor.ops.define.batching import Inputs, Mapped, aligned, batch_size, behind, spread
from gtensor.ops.define.flops import of_attention
from gtensor.ops.define.path_builders import placed
from gtensor.ops.linalg.matrix_products import swapped

if TYPE_CHECKING:
    from gtensor.backend.typing import Array, Params, Path
    from gtensor.engine.handle.namespaces import Namespace
    from gtensor.engine.walk.typing import Step, Values

# -- in other ops: derivatives of derivatives, tangents, the weights themselves --------------------


def attention_weights(
    ns: Namespace, q: Tensor, k: Tensor, mask: Tensor | None, *, scale: float, is_causal: bool
) -> Tensor:
    """softmax(q @ k.mT * scale + mask), whole; 0 for a query that sees no key."""
    scores = ns.matmul(ns.multiply(q, scale), swapped(ns, k))
    if is_causal:
        mask = _causal_mask(q, k)
    if mask is None:
        return ns.softmax(scores, axis=-1)
    if mask.dtype.kind != "b":
        scores = ns.add(scores, mask)
        mask = ns.greater(mask, -np.inf)
    some = ns.max(mask, axis=(-1,), keepdims=True) if mask.shape[-1] else mask
    scores = ns.where(mask, scores, -np.inf)
    return ns.where(some, ns.softmax(ns.where(some, scores, 0.0), axis=-1), 0.0)


def _causal_mask(q: Tensor, k: Tensor) -> Tensor:
    """(L, S): True where the key's position is not after the query's."""
    xp = q.device.xp
    return wrap(xp.arange(k.shape[-2]) <= xp.arange(q.shape[-2])[:, None], q.device)


def _weights(
    ns: Namespace, primals: Values, *, dropout_p: float, seed: int, shared: int = 0, **options: Any
) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """The weights in the shape of all leading axes, and a function that applies their dropout."""
    q, k, v, mask = primals
    weights = attention_weights(ns, q, k, mask, **options)
    shape = np.broadcast_shapes(weights.shape[:-2], v.shape[:-2]) + weights.shape[-2:]
    if weights.shape != shape:
        weights = ns.broadcast_to(weights, shape=shape)

    def dropped(x: Tensor) -> Tensor:
        return ns.dropout(x, p=dropout_p, seed=seed, shared=shared) if dropout_p else x

    return weights, dropped


def _softmax_change(ns: Namespace, weights: Tensor, change: Tensor) -> Tensor:
    """The derivative of the softmax applied to a change of the scores; it is symmetric."""
    mean = ns.sum(ns.multiply(weights, change), axis=(-1,), keepdims=True)
    return ns.multiply(weights, ns.subtract(change, mean))


def attention_in_ops(*primals: Tensor | None, **params: Any) -> Tensor:
    weights, dropped = _weights(recorded, primals, **params)
    return recorded.matmul(dropped(weights), primals[2])


def attention_grad_in_ops(
    g: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, attended: Tensor,
    largest: Tensor, total: Tensor, *, wanted: tuple[bool, ...], **params: Any,
) -> tuple[Tensor | None, ...]:
    ns = recorded
    weights, dropped = _weights(ns, (q, k, v, mask), **params)
    change = _softmax_change(ns, weights, dropped(ns.matmul(g, swapped(ns, v))))
    scaled = ns.multiply(change, params["scale"])
    return (ns.matmul(scaled, k) if wanted[0] else None,
            ns.matmul(swapped(ns, scaled), q) if wanted[1] else None,
            ns.matmul(swapped(ns, dropped(weights)), g) if wanted[2] else None,
            change if wanted[3] else None)


def _attention_backward(ns: Namespace, step: Step, g: Array) -> None:
    wanted = tuple(step.needs(i) for i in range(4))
    grads = ns.attention_grad(g, *step.saved, wanted=wanted, **step.params)
    for i, want in enumerate(wanted):
        if want:
            step.give(i, grads[i])


def attention_tangent(
    ns: Namespace, primals: Values, tangents: Values, out: Array, params: Params
) -> Any:
    (q, k, v, _), (dq, dk, dv, dmask), scale = primals, tangents, params["scale"]
    weights, dropped = _weights(ns, primals, **params)
    terms = [] if dv is None else [ns.matmul(dropped(weights), dv)]
    changes = [] if dmask is None else [dmask]
    if dq is not None:
        changes.append(ns.matmul(ns.multiply(dq, scale), swapped(ns, k)))
    if dk is not None:
        changes.append(ns.matmul(ns.multiply(q, scale), swapped(ns, dk)))
    for change in changes:
        terms.append(ns.matmul(dropped(_softmax_change(ns, weights, change)), v))
    return functools.reduce(ns.add, terms)


# -- examples --------------------------------------------------------------------------------------


def _attention_batch(
    ns: Namespace, run: Path, inputs: Inputs, mapped: Mapped, params: Params
) -> Any:
    """The batch axis is one more of the leading axes, which broadcast. All have one dropout."""
    (q, *rest), first = inputs, mapped[0]
    if not any(mapped[:3]):  # the mask alone has no say in the shape
        q, first = spread(ns, q, False, batch_size(inputs, mapped)), True
    given = aligned(ns, (q, *rest), (first, *mapped[1:]))
    return run(*given, **once_for_all(params))


def _attention_grad_batch(
    ns: Namespace, run: Path, inputs: Inputs, mapped: Mapped, params: Params
) -> Any:
    ndim, size = inputs[0].ndim - mapped[0], batch_size(inputs, mapped)
    whole = [spread(ns, x, m, size) for x, m in zip(inputs, mapped, strict=True)]
    given: Any = [x if x is None else behind(ns, x, True, ndim) for x in whole]
    if ns is recorded:
        return attention_grad_in_ops(*given, **once_for_all(params))
    grads = run(*given, **once_for_all(params))
    return tuple([None if d is None else ns.reshape(d, shape=x.shape)
                  for d, x in zip(grads, whole[1:5], strict=True)])


def once_for_all(params: Params) -> Params:
    """The parameters of a dropout that all examples share."""
    return {**params, "shared": params.get("shared", 0) + 1}


# -- definitions -----------------------------------------------------------------------------------


def attention_reference(
    torch: Any, q: Any, k: Any, v: Any, mask: Any, *, scale: float, is_causal: bool,
    dropout_p: float, seed: int, shared: int = 0,
) -> Any:
    scores = q @ k.mT * scale
    if is_causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    if mask is not None:
        boolean = mask.dtype == torch.bool
        scores = scores.masked_fill(~mask, -torch.inf) if boolean else scores + mask
    lost = (scores == -torch.inf).all(-1, keepdim=True)
    weights = scores.masked_fill(lost, 0).softmax(-1).masked_fill(lost, 0)
    if dropout_p:
        ones = np.ones(np.broadcast_shapes(weights.shape[:-2], v.shape[:-2]) + weights.shape[-2:])
        weights = weights * torch.from_numpy(
            dropout_op.cpu(ones, p=dropout_p, seed=seed, shared=shared))
    return weights @ v


def _sample(*shapes: tuple[int, ...] | None, masks: Any = boolean, **params: Any) -> Sample:
    options = {"scale": 0.6, "is_causal": False, "dropout_p": 0.0, "seed": 0}
    return Sample((*shapes, None)[:4], (normal, normal, normal, masks), {**options, **params})


_SAMPLES = [
    _sample((4, 3), (5, 3), (5, 2)),
    _sample((2, 4, 3), (2, 5, 3), (2, 5, 2), is_causal=True),
    _sample((2, 2, 4, 3), (2, 1, 5, 3), (1, 5, 2), (4, 5)),
    _sample((2, 4, 3), (5, 3), (5, 2), (2, 1, 5), masks=normal),
    _sample((1, 3), (4, 3), (2, 4, 1), (1, 1), masks=normal, dropout_p=0.4, seed=5),
    _sample((2, 6, 2), (2, 3, 2), (2, 3, 2), is_causal=True, dropout_p=0.5, seed=6),
    _sample((0, 3), (4, 3), (4, 2)), _sample((2, 3), (0, 3), (0, 2)),
    _sample((2, 6, 2), (3, 2), (2, 3, 2), dropout_p=0.5, seed=6, shared=1),
]

attention_grad = op(
    "attention_grad", **placed(attention_grad_path),
    backward=None, tangent=None, composed=attention_grad_in_ops, batch=_attention_grad_batch,
    samples=None,  # its inputs depend on each other: tested through attention
    doc="The gradients of attention from its inputs, its output, its largest scores and its sums.",
)

_NEEDED = "q k v mask out largest total"

attention = op(
    "attention", flops=of_attention,
    autocast="low", **placed(attention_path), extras="largest total",
    saves=dict.fromkeys(("q", "k", "v", "mask"), _NEEDED),
    backward=_attention_backward, tangent=attention_tangent, composed=attention_in_ops,
    batch=_attention_batch,
    samples=_SAMPLES, reference=attention_reference,
    doc="softmax(q @ k.mT * scale + mask) @ v, by blocks of weights; dropout follows from `seed`.",
)


# -- the public function ---------------------------------------------------------------------------


@takes_arrays
def scaled_dot_product_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None,
    dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """softmax(query @ key.mT * scale + mask) @ value, of shape (..., L, E_v).

    The (..., L, S) weights are never whole in memory: they are computed in blocks, and recomputed
    for the gradient from the inputs, the output and two numbers per query. Gradients of gradients
    (`create_graph`) do compute them whole. A query that sees no key gives 0.

    Args:
        query: (..., L, E).
        key: (..., S, E); leading axes broadcast.
        value: (..., S, E_v).
        attn_mask: broadcastable to (..., L, S): boolean (True takes part), or added to the scores.
        dropout_p: the probability with which a weight is dropped; dropout always acts.
        is_causal: position i sees positions up to i; excludes attn_mask.
        scale: 1 / sqrt(E) by default.
        enable_gqa: axis -3 of key and value may be a divisor of query's: groups of query heads
            share a head of keys and values.

    Source: Vaswani et al., "Attention is all you need", 2017.

    Raises ValueError for attn_mask beside is_causal, and for shapes that do not fit.
    """
    name = "scaled_dot_product_attention"
    added = None if attn_mask is None or attn_mask.dtype.kind == "b" else attn_mask
    same_dtype(name, query=query, key=key, value=value, attn_mask=added)
    check_probability(name, "dropout_p", dropout_p)
    if is_causal and attn_mask is not None:
        raise ValueError(f"{name} was given attn_mask and is_causal=True; wanted one of them")
    _check_shapes(query, key, value)
    if attn_mask is not None and attn_mask.ndim < 2:
        attn_mask = reshape(attn_mask, (1,) * (2 - attn_mask.ndim) + attn_mask.shape)
    heads = query.shape[:-2]
    if enable_gqa:
        query, key, value, attn_mask = _grouped(query, key, value, attn_mask)
    lead = _common_lead(query, key, value, attn_mask)
    scale = 1 / sqrt(max(1, query.shape[-1])) if scale is None else float(scale)
    if dropout_p and vectorizing():  # whose `randomness` dropout follows
        weights, _ = _weights(recorded, (query, key, value, attn_mask), scale=scale,
                              is_causal=is_causal, dropout_p=0.0, seed=0)
        y = recorded.matmul(dropout(weights, dropout_p), value)
    else:
        y = attention(
            query, key, value, attn_mask, is_causal=is_causal, dropout_p=float(dropout_p),
            scale=scale, seed=fresh_seed(query.device) if dropout_p else 0)
    return reshape(y, (*heads, *y.shape[-2:])) if enable_gqa and len(lead) > len(heads) else y


def _check_shapes(query: Tensor, key: Tensor, value: Tensor) -> None:
    if min(query.ndim, key.ndim, value.ndim) < 2 or (
            query.shape[-1] != key.shape[-1] or key.shape[-2] != value.shape[-2]):
        raise ValueError(
            f"scaled_dot_product_attention was given a query of shape {query.shape}, a key of "
            f"shape {key.shape} and a value of shape {value.shape}; wanted (..., L, E), "
            "(..., S, E), (..., S, E_v)")


def _common_lead(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None
) -> tuple[int, ...]:
    """The leading axes of all; raises ValueError where they, or the mask, do not broadcast."""
    try:
        lead = np.broadcast_shapes(query.shape[:-2], key.shape[:-2], value.shape[:-2])
    except ValueError:
        raise ValueError(
            f"scaled_dot_product_attention was given a query of shape {query.shape}, a key of "
            f"shape {key.shape} and a value of shape {value.shape}; wanted leading axes that "
            "broadcast") from None
    whole = (*lead, query.shape[-2], key.shape[-2])
    if mask is not None:
        try:
            fits = np.broadcast_shapes(mask.shape, whole) == whole
        except ValueError:
            fits = False
        if not fits:
            raise ValueError(f"scaled_dot_product_attention was given attn_mask of shape "
                             f"{mask.shape}; wanted one that broadcasts to {whole}")
    return lead


def _grouped(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Heads (H) as groups (H_kv, H / H_kv) beside keys and values (H_kv, 1): views, no copies."""
    counts = [x.shape[-3] if x.ndim > 2 else 0 for x in (query, key, value)]
    heads, shared = counts[0], counts[1]
    if 0 in counts or counts[2] != shared or heads % shared:
        raise ValueError(
            f"scaled_dot_product_attention with enable_gqa=True was given {counts[0]} heads of "
            f"queries, {counts[1]} of keys and {counts[2]} of values; wanted as many of keys as of "
            "values, a divisor of those of queries")

    def split(x: Tensor, groups: int, each: int) -> Tensor:
        return reshape(x, (*x.shape[:-3], groups, each, *x.shape[-2:]))

    if mask is not None and mask.ndim > 2:
        mask = split(mask, 1, 1) if mask.shape[-3] == 1 else split(
            mask, shared, mask.shape[-3] // shared)
    return (split(query, shared, heads // shared), split(key, shared, 1), split(value, shared, 1),
            mask)

"""Elementwise losses and their sums; a reduced loss makes no array of the inputs' size on the CPU.

Every loss is two ops over one formula: elementwise, and `scale` times its sum, whose CPU path adds
up tile by tile (a GPU makes the losses first, those of halves in float32). Both share the fused
gradients, which take `scale` as a parameter, so that the mean of many half-precision numbers does
not round it to 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gtensor.backend.cuda import cupy
from gtensor.backend.kernels import elementwise
from gtensor.core.namespaces import recorded
from gtensor.core.op import Op, op
from gtensor.core.samples import Sample, alike
from gtensor.core.tensor import Tensor
from gtensor.ops.fused import fused
from gtensor.ops.linear import same_dtype
from gtensor.ops.loss import check_reduction
from gtensor.ops.paths import tiled, tiles
from gtensor.ops.pointwise import d, pointwise
from gtensor.ops.scratch import Scratch, computed_in, tile_size
from gtensor.ops.special import extended
from gtensor.ops.wide_kernels import wide_kernel
from gtensor.settings import settings

Formula = Callable[..., Any]


# -- the builder -----------------------------------------------------------------------------------


def _sum_cpu(formula: Formula) -> Any:
    def path(*arrays: Any, scale: float, out: Any = None, **params: Any) -> Any:
        model = arrays[0]
        wide = computed_in(model.dtype)
        spread = [None if a is None else np.broadcast_to(a, model.shape) for a in arrays]
        total = 0.0
        for tile in tiles(model.shape, settings.tile_elements):
            parts = [None if a is None else np.asarray(a[tile], wide) for a in spread]
            total += float(np.sum(formula(np, *parts, **params)))
        if out is None:
            out = np.empty((), model.dtype)
        out[...] = scale * total
        return out

    return path


def _sum_gpu(each: Any) -> Any:
    def path(*arrays: Any, scale: float, out: Any = None, **params: Any) -> Any:
        dtype = arrays[0].dtype
        losses = each(*[None if a is None else _wide(a) for a in arrays], **params)
        total = losses.sum() * scale
        if out is None:
            return total.astype(dtype)
        out[...] = total
        return out

    return path


def _wide(a: Any) -> Any:
    """In the dtype that is computed in: a loss of halves may be no half number."""
    return a.astype(computed_in(a.dtype), copy=False)


def loss_records(
    name: str, inputs: str, formula: Formula, gpu: Any, partials: Sequence[Formula], *,
    samples: list[Sample], reference: Formula, doc: str,
) -> tuple[Op, Op]:
    """The elementwise loss and `scale` times its sum.

    `partials[i](ns, g, *inputs, out=, scale=, **params)` is g times scale times the derivative with
    respect to input i.
    """

    def rule(partial: Formula) -> Any:
        return d(inputs, lambda ns, g, *given, out, **params: partial(
            ns, g, *given, out=out, scale=1.0, **params))

    def backward(ns: Any, step: Any, g: Any) -> None:
        for i, partial in enumerate(partials):
            if step.needs(i):
                step.give(i, partial(ns, g, *step.saved, out=None, **step.params))

    def tangent(ns: Any, primals: Any, tangents: Any, out: Any, params: dict[str, Any]) -> Any:
        total = None
        for partial, t in zip(partials, tangents, strict=True):
            if t is not None:
                term = partial(ns, t, *primals, out=None, **params)
                term = ns.sum(term, axis=tuple(range(len(term.shape))))
                total = term if total is None else ns.add(total, term)
        return total

    each = op(name, inputs=inputs, cpu=tiled(name, formula), gpu=gpu,
              backward=pointwise(*map(rule, partials)), samples=samples, reference=reference,
              doc=f"{doc}, elementwise.")
    total = op(
        f"{name}_sum", inputs=inputs, cpu=_sum_cpu(formula), gpu=_sum_gpu(gpu),
        saves=dict.fromkeys(inputs.split(), inputs), backward=backward, tangent=tangent,
        samples=[Sample(s.shapes, s.draws, {**s.params, "scale": 0.25}) for s in samples],
        reference=lambda torch, *tensors, scale, **params: scale * reference(
            torch, *tensors, **params).sum(),
        doc=f"scale * sum({doc}), without a temporary of that size on the CPU.")
    return each, total


def reduced(
    records: tuple[Op, Op], inputs: tuple[Tensor | None, ...], reduction: str, **params: Any
) -> Tensor:
    """The loss of each element ("none"), or their mean or sum."""
    each, total = records
    if reduction == "none":
        return each(*inputs, **params)
    first = inputs[0]
    assert first is not None
    scale = 1.0 if reduction == "sum" else 1 / first.size if first.size else float("nan")
    return total(*inputs, scale=scale, **params)


def check_pair(name: str, reduction: str, input: Tensor, target: Tensor) -> None:
    check_reduction(name, reduction)
    if input.shape != target.shape:
        raise ValueError(f"{name} was given an input of shape {input.shape} and a target of "
                         f"shape {target.shape}; wanted one shape")
    same_dtype(name, input=input, target=target)


# -- absolute error, and Huber's -------------------------------------------------------------------


def _flipped(partial: Formula) -> Formula:
    """The derivative with respect to b of a function of a - b that is even."""
    return lambda ns, g, a, b, **params: partial(ns, g, b, a, **params)


absolute_error_grad = fused(
    "absolute_error_grad", extended(lambda ns, g, a, b, *, scale: g * (scale * ns.sign(a - b))),
    gpu=wide_kernel("g a b", "a > b ? g * F(scale) : a < b ? g * F(-scale) : F(0) * (a - b)",
                    name="absolute_error_grad", parameters="scale"),
    samples=alike(3, scale=0.25),
    reference=lambda torch, g, a, b, scale: g * scale * torch.sign(a - b),
    doc="The gradient of scale * |a - b| with respect to a; 0 where a = b.",
)


def _absolute_error_partial(ns: Any, g: Any, a: Any, b: Any, *, out: Any, scale: float) -> Any:
    return ns.absolute_error_grad(g, a, b, scale=scale, out=out)


absolute_error, absolute_error_sum = loss_records(
    "absolute_error", "a b", lambda ns, a, b: ns.abs(a - b),
    wide_kernel("a b", "a > b ? a - b : b - a", name="absolute_error"),
    (_absolute_error_partial, _flipped(_absolute_error_partial)),
    samples=alike(2), reference=lambda torch, a, b: (a - b).abs(), doc="|a - b|",
)


def _huber_formula(ns: Any, a: Any, b: Any, *, delta: float, factor: float) -> Any:
    """With m = min(|a - b|, delta): factor m (|a - b| - m / 2)."""
    size = ns.abs(a - b)
    inner = ns.minimum(size, delta)
    return factor * inner * (size - 0.5 * inner)


huber_grad = fused(
    "huber_grad",
    lambda ns, g, a, b, *, delta, factor, scale: g * (
        scale * (factor * ns.maximum(ns.minimum(a - b, delta), -delta))),
    gpu=wide_kernel(
        "g a b",
        "g * F(scale) * (F(factor) * (e > F(delta) ? F(delta) : e < F(-delta) ? F(-delta) : e))",
        name="huber_grad", parameters="delta factor scale", before="const F e = a - b; "),
    samples=alike(3, delta=0.7, factor=1.5, scale=0.25),
    reference=lambda torch, g, a, b, delta, factor, scale: (
        g * scale * factor * (a - b).clamp(-delta, delta)),
    doc="The gradient of scale * huber(a, b) with respect to a.",
)


def _huber_partial(
    ns: Any, g: Any, a: Any, b: Any, *, out: Any, delta: float, factor: float, scale: float
) -> Any:
    return ns.huber_grad(g, a, b, delta=delta, factor=factor, scale=scale, out=out)


huber, huber_sum = loss_records(
    "huber", "a b", _huber_formula,
    wide_kernel("a b", "F(factor) * m * (e - F(0.5) * m)", name="huber", parameters="delta factor",
                before="const F e = a > b ? a - b : b - a, m = e < F(delta) ? e : F(delta); "),
    (_huber_partial, _flipped(_huber_partial)),
    samples=alike(2, delta=0.7, factor=1.5),
    reference=lambda torch, a, b, delta, factor: factor * torch.nn.functional.huber_loss(
        a, b, reduction="none", delta=delta),
    doc="factor times (a - b)^2 / 2 where |a - b| < delta, else delta (|a - b| - delta / 2)",
)


def l1_loss(input: Tensor, target: Tensor, *, reduction: str = "mean") -> Tensor:
    """|input - target|, averaged ("mean"), added up ("sum") or elementwise ("none").

    Both have one shape. Reduced, it makes no temporary of that shape on the CPU. The gradient at 0
    is 0.
    """
    check_pair("l1_loss", reduction, input, target)
    return reduced((absolute_error, absolute_error_sum), (input, target), reduction)


def huber_loss(
    input: Tensor, target: Tensor, reduction: str = "mean", delta: float = 1.0
) -> Tensor:
    """(input - target)^2 / 2 within delta, delta (|input - target| - delta / 2) beyond; reduced.

    Both have one shape. Reduced, it makes no temporary of that shape on the CPU.

    Source: Huber, "Robust estimation of a location parameter", 1964.
    """
    check_pair("huber_loss", reduction, input, target)
    if not delta > 0:
        raise ValueError(f"huber_loss was given delta={delta}; wanted a positive number")
    return reduced((huber, huber_sum), (input, target), reduction, delta=float(delta), factor=1.0)


def smooth_l1_loss(
    input: Tensor, target: Tensor, *, reduction: str = "mean", beta: float = 1.0
) -> Tensor:
    """(input - target)^2 / (2 beta) within beta, |input - target| - beta / 2 beyond; reduced.

    It is huber_loss with delta = beta, over beta; with beta=0, or too small for a normal number of
    the dtype that is computed in, it is l1_loss.
    """
    check_pair("smooth_l1_loss", reduction, input, target)
    if not beta >= 0:
        raise ValueError(f"smooth_l1_loss was given beta={beta}; wanted 0 or more")
    if beta < np.finfo(computed_in(input.dtype)).tiny:
        return l1_loss(input, target, reduction=reduction)
    return reduced((huber, huber_sum), (input, target), reduction, delta=float(beta),
                   factor=1 / beta)


# -- squared error -------------------------------------------------------------------------------


def _squared_error_cpu(a: Any, b: Any, *, scale: float, out: Any = None) -> Any:
    work = computed_in(a.dtype)
    scratch = Scratch(1, tile_size(a.shape), work)
    total = 0.0
    for tile in tiles(a.shape, settings.tile_elements):
        part = np.asarray(a[tile])
        difference = np.subtract(part, b[tile], out=scratch(0, part.shape), dtype=work).ravel()
        total += float(np.dot(difference, difference))
    if out is None:
        out = np.empty((), a.dtype)
    out[...] = scale * total
    return out


def _squared_error_gpu(a: Any, b: Any, *, scale: float, out: Any = None) -> Any:
    difference = _difference(_wide(a), _wide(b))
    total = cupy().vdot(difference, difference)
    if out is None:
        return (total * scale).astype(a.dtype)
    out[...] = total * scale
    return out


_difference = elementwise("T a, T b", "T y", "y = a - b")


def _squared_error_backward(ns: Any, step: Any, g: Any) -> None:
    a, b = step.saved
    if step.needs(0):
        step.give(0, ns.squared_error_grad(g, a, b, **step.params))
    if step.needs(1):
        step.give(1, ns.squared_error_grad(g, b, a, **step.params))


def _squared_error_tangent(
    ns: Any, primals: Any, tangents: Any, out: Any, params: dict[str, Any]
) -> Any:
    (a, b), (da, db) = primals, tangents
    change = da if db is None else ns.negative(db) if da is None else ns.subtract(da, db)
    product = ns.multiply(ns.subtract(a, b), change)
    return ns.multiply(ns.sum(product, axis=tuple(range(len(a.shape)))), 2 * params["scale"])


squared_error_grad = fused(
    "squared_error_grad", lambda ns, g, a, b, *, scale: g * (2 * scale) * (a - b),
    gpu=wide_kernel("g a b", "g * F(2 * scale) * (a - b)", name="squared_error_grad",
                    parameters="scale"),
    samples=alike(3, scale=0.25), reference=lambda torch, g, a, b, scale: g * 2 * scale * (a - b),
    doc="The gradient of scale * sum((a - b)^2) with respect to a.",
)

squared_error = op(
    "squared_error", cpu=_squared_error_cpu, gpu=_squared_error_gpu,
    saves={"a": "a b", "b": "a b"},
    backward=_squared_error_backward, tangent=_squared_error_tangent,
    samples=alike(2, scale=0.5), reference=lambda torch, a, b, scale: scale * ((a - b) ** 2).sum(),
    doc="scale * sum((a - b)^2) of two arrays of one shape, on the CPU without a temporary of that "
        "shape.",
)


def mse_loss(input: Tensor, target: Tensor, *, reduction: str = "mean") -> Tensor:
    """(input - target)^2, averaged ("mean"), added up ("sum") or elementwise ("none").

    Both have one shape. Reduced, it makes no temporary of that shape on the CPU.
    """
    check_pair("mse_loss", reduction, input, target)
    if reduction == "none":
        return recorded.square(input - target)
    mean = 1 / input.size if input.size else float("nan")
    return squared_error(input, target, scale=mean if reduction == "mean" else 1.0)

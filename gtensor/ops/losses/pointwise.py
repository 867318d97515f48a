"""Elementwise losses and their sums; a reduced loss makes no array of the inputs' size on the CPU.

Every loss is two ops over one formula: elementwise, and `scale` times its sum, whose CPU path adds
up tile by tile (a GPU makes the losses first, those of halves in float32). Both share the fused
gradients, which take `scale` as a parameter, so that the mean of many half-precision numbers does
not round it to 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gtensor.backend import host
from gtensor.backend.cuda import cupy
from gtensor.backend.kernels import elementwise
from gtensor.creation.new_tensors import full_like
from gtensor.engine.handle.namespaces import recorded
from gtensor.engine.handle.tensor import Tensor
from gtensor.engine.tape.op import Op, op
from gtensor.engine.tape.samples import Sample, alike
from gtensor.ops.define import formula as data
from gtensor.ops.define.arguments import autocast, check_reduction, same_dtype, takes_arrays
from gtensor.ops.define.cpu_tiles import computed_in, tile_size
from gtensor.ops.define.flops import of_input
from gtensor.ops.define.fused import fused, paths
from gtensor.ops.define.path_builders import tiles
from gtensor.ops.define.pointwise import partial, pointwise
from gtensor.ops.losses import batching
from gtensor.settings import settings

if TYPE_CHECKING:
    from gtensor.backend.typing import Array, Params, Path
    from gtensor.engine.handle.namespaces import Namespace
    from gtensor.engine.walk.typing import Step, Values

Formula = Callable[..., Any]


# -- the builder -----------------------------------------------------------------------------------


def _sum_cpu(each: Path) -> Path:
    def path(*arrays: Array, scale: float, out: Array | None = None, **params: Any) -> Array:
        model = arrays[0]
        wide = computed_in(model.dtype)
        spread = [None if a is None else np.broadcast_to(a, model.shape) for a in arrays]
        total = 0.0
        for tile in tiles(model.shape, settings.tile_elements):
            parts = [None if a is None else np.asarray(a[tile], wide) for a in spread]
            total += float(np.sum(each(*parts, **params)))
        if out is None:
            out = np.empty((), model.dtype)
        out[...] = scale * total
        return out

    return path


def _sum_gpu(each: Path) -> Path:
    def path(*arrays: Array, scale: float, out: Array | None = None, **params: Any) -> Array:
        dtype = arrays[0].dtype
        losses = each(*[None if a is None else _wide(a) for a in arrays], **params)
        total = losses.sum() * scale
        if out is None:
            return total.astype(dtype)
        out[...] = total
        return out

    return path


def _wide(a: Array) -> Array:
    """In the dtype that is computed in: a loss of halves may be no half number."""
    return a.astype(computed_in(a.dtype), copy=False)


def loss_gradient(name: str, formula: Formula, **more: Any) -> None:
    """The fused op of `formula(ns, g, *inputs, scale=, **params)`."""
    fused(name, formula, by_ops=True, **more)


def _partial(inputs: list[str], partial: str | Formula) -> Formula:
    if not isinstance(partial, str):
        return partial
    name, *needed = partial.split()
    places = [inputs.index(n) for n in needed]
    return lambda ns, g, *given, out, **params: getattr(ns, name)(
        g, *[given[i] for i in places], out=out, **params)


def _sum_rules(partials: Sequence[Formula]) -> dict[str, Any]:
    """The rules of a sum of losses: backward and tangent."""

    def backward(ns: Namespace, step: Step, g: Array) -> None:
        for i, times in enumerate(partials):
            if step.needs(i):
                step.give(i, times(ns, g, *step.saved, out=None, **step.params))

    def tangent(
        ns: Namespace, primals: Values, tangents: Values, out: Array, params: Params
    ) -> Array | None:
        total = None
        for times, t in zip(partials, tangents, strict=True):
            if t is not None:
                term = times(ns, t, *primals, out=None, **params)
                term = ns.sum(term, axis=tuple(range(-len(term.shape), 0)))
                total = term if total is None else ns.add(total, term)
        return total

    return {"backward": backward, "tangent": tangent}


def loss_ops(
    name: str, formula: Formula, partials: Sequence[str | Formula], *,
    samples: Sequence[Sample], reference: Formula, doc: str,
) -> tuple[Op, Op]:
    """The elementwise loss `formula(ns, *inputs, **params)` and `scale` times its sum.

    `partials` are of each input g times scale times the derivative: an op and the inputs that it
    takes after g, as "kl_div_grad t", or a function of (ns, g, *inputs, out=, scale=, **params).
    """
    shared = paths(data.Formula(name, formula))
    inputs = shared["inputs"]
    names = inputs.split()
    due = [_partial(names, partial) for partial in partials]

    def rule(times: Formula) -> Any:
        return partial(inputs, lambda ns, g, *given, out, **params: times(
            ns, g, *given, out=out, scale=1.0, **params))

    each = op(name, **shared, autocast="float32", backward=pointwise(*map(rule, due)),
              samples=samples, reference=reference, doc=f"{doc}, elementwise.")
    total = op(
        f"{name}_sum", autocast="float32", flops=of_input,
        inputs=inputs, cpu=_sum_cpu(shared["cpu"]), gpu=_sum_gpu(shared["gpu"]),
        saves=dict.fromkeys(names, inputs), **_sum_rules(due), batch=batching.summed(name),
        samples=[Sample(s.shapes, s.draws, {**s.params, "scale": 0.25}) for s in samples],
        reference=lambda torch, *tensors, scale, **params: scale * reference(
            torch, *tensors, **params).sum(),
        doc=f"scale * sum({doc}), without a temporary of that size on the CPU.")
    return each, total


def reduced(
    ops: tuple[Op, Op], inputs: tuple[Tensor | None, ...], reduction: str, **params: Any
) -> Tensor:
    """The loss of each element ("none"), or their mean or sum."""
    each, total = ops
    if reduction == "none":
        return each(*inputs, **params)
    first = inputs[0]
    assert first is not None
    scale = 1.0 if reduction == "sum" else 1 / first.size if first.size else float("nan")
    return total(*inputs, scale=scale, **params)


def checked_target(name: str, reduction: str, input: Tensor, target: Tensor | float) -> Tensor:
    """The target, a number repeated to the input's shape."""
    check_reduction(name, reduction)
    if not isinstance(target, Tensor):
        target = full_like(input, target)
    if input.shape != target.shape:
        raise ValueError(f"{name} was given an input of shape {input.shape} and a target of "
                         f"shape {target.shape}; wanted one shape")
    same_dtype(name, input=input, target=target)
    return target


# -- absolute error, and Huber's -------------------------------------------------------------------


loss_gradient(
    "absolute_error_grad", lambda ns, g, a, b, *, scale: g * (scale * ns.sign(a - b)),
    samples=alike(3, scale=0.25),
    reference=lambda torch, g, a, b, scale: g * scale * torch.sign(a - b),
    doc="The gradient of scale * |a - b| with respect to a; 0 where a = b.",
)

absolute_error, absolute_error_sum = loss_ops(
    "absolute_error", lambda ns, a, b: ns.abs(a - b),
    ("absolute_error_grad a b", "absolute_error_grad b a"),
    samples=alike(2), reference=lambda torch, a, b: (a - b).abs(), doc="|a - b|",
)


def _huber_formula(ns: Namespace, a: Array, b: Array, *, delta: float, factor: float) -> Array:
    """With m = min(|a - b|, delta): factor m (|a - b| - m / 2)."""
    size = ns.abs(a - b)
    inner = ns.minimum(size, delta)
    return factor * inner * (size - 0.5 * inner)


loss_gradient(
    "huber_grad",
    lambda ns, g, a, b, *, delta, factor, scale: g * (
        scale * (factor * ns.maximum(ns.minimum(a - b, delta), -delta))),
    samples=alike(3, delta=0.7, factor=1.5, scale=0.25),
    reference=lambda torch, g, a, b, delta, factor, scale: (
        g * scale * factor * (a - b).clamp(-delta, delta)),
    doc="The gradient of scale * huber(a, b) with respect to a.",
)

huber, huber_sum = loss_ops(
    "huber", _huber_formula,
    ("huber_grad a b", "huber_grad b a"),
    samples=alike(2, delta=0.7, factor=1.5),
    reference=lambda torch, a, b, delta, factor: factor * torch.nn.functional.huber_loss(
        a, b, reduction="none", delta=delta),
    doc="factor times (a - b)^2 / 2 where |a - b| < delta, else delta (|a - b| - delta / 2)",
)


@takes_arrays
def l1_loss(input: Tensor, target: Tensor | float, *, reduction: str = "mean") -> Tensor:
    """|input - target|, averaged ("mean"), added up ("sum") or elementwise ("none").

    Both have one shape, or the target is a number; PyTorch broadcasts. Reduced, it makes no
    temporary of that shape on the CPU. The gradient at 0 is 0.
    """
    target = checked_target("l1_loss", reduction, input, target)
    return reduced((absolute_error, absolute_error_sum), (input, target), reduction)


@takes_arrays
def huber_loss(
    input: Tensor, target: Tensor | float, reduction: str = "mean", delta: float = 1.0
) -> Tensor:
    """(input - target)^2 / 2 within delta, delta (|input - target| - delta / 2) beyond; reduced.

    Both have one shape, or the target is a number; PyTorch broadcasts. Reduced, it makes no
    temporary of that shape on the CPU.

    Source: Huber, "Robust estimation of a location parameter", 1964.

    Raises ValueError for a delta that is not positive, and for shapes that differ.
    """
    target = checked_target("huber_loss", reduction, input, target)
    if not delta > 0:
        raise ValueError(f"huber_loss was given delta={delta}; wanted a positive number")
    return reduced((huber, huber_sum), (input, target), reduction, delta=float(delta), factor=1.0)


@takes_arrays
def smooth_l1_loss(
    input: Tensor, target: Tensor | float, *, reduction: str = "mean", beta: float = 1.0
) -> Tensor:
    """(input - target)^2 / (2 beta) within beta, |input - target| - beta / 2 beyond; reduced.

    It is huber_loss with delta = beta, over beta; with beta=0, or too small for a normal number of
    the dtype that is computed in, it is l1_loss.

    Raises ValueError for a negative beta, and for shapes that differ, which PyTorch broadcasts.
    """
    target = checked_target("smooth_l1_loss", reduction, input, target)
    if not beta >= 0:
        raise ValueError(f"smooth_l1_loss was given beta={beta}; wanted 0 or more")
    if beta < np.finfo(computed_in(input.dtype)).tiny:
        return l1_loss(input, target, reduction=reduction)
    return reduced((huber, huber_sum), (input, target), reduction, delta=float(beta),
                   factor=1 / beta)


# -- squared error -------------------------------------------------------------------------------


def _squared_error_cpu(a: Array, b: Array, *, scale: float, out: Array | None = None) -> Array:
    work = computed_in(a.dtype)
    scratch = host().workspace(tile_size(a.shape), work)
    total = 0.0
    for tile in tiles(a.shape, settings.tile_elements):
        part = np.asarray(a[tile])
        difference = np.subtract(part, b[tile], out=scratch(0, part.shape), dtype=work).ravel()
        total += float(np.dot(difference, difference))
    if out is None:
        out = np.empty((), a.dtype)
    out[...] = scale * total
    return out


def _squared_error_gpu(a: Array, b: Array, *, scale: float, out: Array | None = None) -> Array:
    difference = _difference(_wide(a), _wide(b))
    total = cupy().vdot(difference, difference)
    if out is None:
        return (total * scale).astype(a.dtype)
    out[...] = total * scale
    return out


_difference = elementwise("T a, T b", "T y", "y = a - b")


loss_gradient(
    "squared_error_grad", lambda ns, g, a, b, *, scale: g * (2 * scale) * (a - b),
    samples=alike(3, scale=0.25), reference=lambda torch, g, a, b, scale: g * 2 * scale * (a - b),
    doc="The gradient of scale * sum((a - b)^2) with respect to a.",
)

squared_error = op(
    "squared_error", flops=of_input,
    autocast="float32", cpu=_squared_error_cpu, gpu=_squared_error_gpu,
    saves={"a": "a b", "b": "a b"},
    **_sum_rules([_partial(["a", "b"], f"squared_error_grad {ab}") for ab in ("a b", "b a")]),
    batch=batching.squares,
    samples=alike(2, scale=0.5), reference=lambda torch, a, b, scale: scale * ((a - b) ** 2).sum(),
    doc="scale * sum((a - b)^2) of two arrays of one shape, on the CPU without a temporary of that "
        "shape.",
)


@takes_arrays
def mse_loss(input: Tensor, target: Tensor | float, *, reduction: str = "mean") -> Tensor:
    """(input - target)^2, averaged ("mean"), added up ("sum") or elementwise ("none").

    Both have one shape, or the target is a number; PyTorch broadcasts. Reduced, it makes no
    temporary of that shape on the CPU.
    """
    target = checked_target("mse_loss", reduction, input, target)
    if reduction == "none":
        input, target = autocast("float32", input, target)
        return recorded.square(input - target)
    mean = 1 / input.size if input.size else float("nan")
    return squared_error(input, target, scale=mean if reduction == "mean" else 1.0)

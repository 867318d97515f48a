"""Losses, fused: cross entropy keeps the logits and one number per row, never the probabilities."""

from __future__ import annotations

from typing import Any

import numpy as np

from gtensor.backend import host
from gtensor.backend.cuda import cupy
from gtensor.backend.kernels import NULL, elementwise, flat_launch, raw, row_launch
from gtensor.core.namespaces import recorded
from gtensor.core.op import op
from gtensor.core.samples import Sample, alike, below, normal
from gtensor.core.tensor import Tensor
from gtensor.ops.classes import check_targets, class_axis, pick_class
from gtensor.ops.fused import fused
from gtensor.ops.linear import same_dtype
from gtensor.ops.paths import tiles
from gtensor.ops.scratch import Scratch, computed_in, row_tile_size, row_tiles, tile_size
from gtensor.settings import settings

REDUCTIONS = ("none", "mean", "sum")


def check_reduction(name: str, reduction: str) -> None:
    """Raise ValueError for an unknown reduction."""
    if reduction not in REDUCTIONS:
        raise ValueError(f"{name} was given reduction={reduction!r}; wanted one of "
                         f"{', '.join(map(repr, REDUCTIONS))}")


# -- cross entropy: CPU --------------------------------------------------------------------------


def _classes_last(x: np.ndarray) -> np.ndarray:
    """A view with the classes along the last axis."""
    return x if x.ndim <= 2 else np.moveaxis(x, 1, -1)


def _at(places: np.ndarray) -> tuple[np.ndarray, ...]:
    """The key of each row's class in an array of rows."""
    if places.ndim == 1:
        return np.arange(places.size), places
    return (*np.indices(places.shape, sparse=True), places)


def _places(target: Any, ignore_index: int) -> tuple[Any, Any, int]:
    """Classes that can be used everywhere, where they count, and how many do."""
    counts = target != ignore_index
    count = int(np.count_nonzero(counts))
    return (target if count == target.size else target * counts), counts, count


def _row_losses(part: Any, places: Any, smoothing: float, wide: Any) -> tuple[Any, Any]:
    """Log-sum-exp and loss of each row; `wide` is a work array of the part's shape."""
    largest = np.maximum.reduce(part, axis=-1, keepdims=True)
    np.subtract(part, largest, out=wide, dtype=wide.dtype)
    chosen = wide[_at(places)]
    if smoothing:
        chosen = (1 - smoothing) * chosen + smoothing * wide.mean(axis=-1)
    total = np.log(np.add.reduce(np.exp(wide, out=wide), axis=-1))
    return total + largest[..., 0], total - chosen


def _cross_entropy_cpu(
    logits: Any, target: Any, *, reduction: str, ignore_index: int, label_smoothing: float,
    out: Any = None,
) -> Any:
    rows = _classes_last(logits)
    work = computed_in(logits.dtype)
    places, counts, count = _places(target, ignore_index)
    with np.errstate(invalid="ignore"):  # rows of -infinity, and no rows: NaN, as in PyTorch
        if rows.size <= settings.tile_elements:
            lse, loss = _row_losses(rows, places, label_smoothing, np.empty(rows.shape, work))
        else:
            loss = host().empty(target.shape, work, "cross_entropy")
            lse = host().empty(target.shape, work, "cross_entropy")
            scratch = Scratch(1, row_tile_size(rows.shape), work)
            for tile in row_tiles(rows.shape):
                part = rows[tile]
                lse[tile], loss[tile] = _row_losses(
                    part, places[tile], label_smoothing, scratch(0, part.shape))
        if count < target.size:
            loss = np.where(counts, loss, 0)
        if reduction != "none":
            loss = loss.sum()
        if reduction == "mean":
            loss = loss / work.type(count)
    if out is None:
        return np.asarray(loss, logits.dtype), np.asarray(lse), np.asarray(count, work)
    out[...] = loss
    return out, lse, np.asarray(count, work)


def _row_gradients(
    part: Any, lse: Any, places: Any, share: Any, smoothing: float, wide: Any
) -> None:
    """wide = (softmax - target probabilities) of each row, times the row's share of g."""
    np.subtract(part, lse[..., None], out=wide)
    np.exp(wide, out=wide)
    if smoothing:
        wide -= smoothing / wide.shape[-1]
    wide[_at(places)] -= 1 - smoothing
    wide *= share[..., None]


def _cross_entropy_grad_cpu(
    g: Any, logits: Any, target: Any, lse: Any, count: Any, *,
    reduction: str, ignore_index: int, label_smoothing: float, out: Any = None,
) -> Any:
    if out is None:
        out = host().empty(logits.shape, logits.dtype, "cross_entropy_grad")
    rows, result = _classes_last(logits), _classes_last(out)
    places, counts, _ = _places(target, ignore_index)
    share = _share(g, count, counts, reduction)
    work = computed_in(logits.dtype)
    if rows.size <= settings.tile_elements and result.dtype == work:
        _row_gradients(rows, lse, places, share, label_smoothing, result)
        return out
    scratch = Scratch(1, row_tile_size(rows.shape), work)
    for tile in row_tiles(rows.shape):
        part = rows[tile]
        wide = scratch(0, part.shape)
        _row_gradients(part, lse[tile], places[tile], share[tile], label_smoothing, wide)
        result[tile] = wide
    return out


def _share(g: Any, count: Any, counts: Any, reduction: str) -> Any:
    """What each row's gradient is multiplied by; an array of the target's shape."""
    if reduction == "mean":
        g = g / count.clip(1)  # no rows: no share either
    return g * counts.astype(count.dtype)


# -- cross entropy: GPU --------------------------------------------------------------------------

_FORWARD = raw("cross_entropy.cu", "cross_entropy_forward")
_REDUCE = raw("cross_entropy.cu", "cross_entropy_reduce")
_BACKWARD = raw("cross_entropy.cu", "cross_entropy_backward")


def _gpu_rows(logits: Any, target: Any) -> tuple[Any, Any, int]:
    """Contiguous rows of classes, int64 targets, the number of rows."""
    xp = cupy()
    rows = xp.ascontiguousarray(xp.moveaxis(logits, class_axis(logits.ndim), -1))
    return rows, xp.ascontiguousarray(target, dtype=np.int64), target.size


def _cross_entropy_gpu(
    logits: Any, target: Any, *, reduction: str, ignore_index: int, label_smoothing: float,
    out: Any = None,
) -> Any:
    xp = cupy()
    rows, targets, n = _gpu_rows(logits, target)
    classes, work = rows.shape[-1], computed_in(logits.dtype)
    loss, lse = xp.empty(target.shape, work), xp.empty(target.shape, work)
    grid, block = row_launch(n)
    _FORWARD[logits.dtype](grid, block, (rows, targets, loss, lse, n, classes, ignore_index))
    if label_smoothing:
        uniform = lse - rows.mean(axis=-1, dtype=work)
        loss = (1 - label_smoothing) * loss + label_smoothing * uniform * (targets != ignore_index)
    total, count = xp.empty((), logits.dtype), xp.empty((), work)
    grid, block = row_launch(1)
    mean = int(reduction == "mean")
    _REDUCE[logits.dtype](grid, block, (loss, targets, total, count, n, ignore_index, mean))
    if reduction == "none":
        total = loss.astype(logits.dtype, copy=False)
    if out is None:
        return total, lse, count
    out[...] = total
    return out, lse, count


def _cross_entropy_grad_gpu(
    g: Any, logits: Any, target: Any, lse: Any, count: Any, *,
    reduction: str, ignore_index: int, label_smoothing: float, out: Any = None,
) -> Any:
    xp = cupy()
    rows, targets, n = _gpu_rows(logits, target)
    classes = rows.shape[-1]
    result = xp.empty(rows.shape, logits.dtype)
    grid, block = flat_launch(rows.size)
    g = xp.ascontiguousarray(g, dtype=logits.dtype)
    _BACKWARD[logits.dtype](grid, block, (
        rows, targets, lse, g, count if reduction == "mean" else NULL, result, n, classes,
        ignore_index, int(reduction == "none")))
    if label_smoothing:
        share = _share(g, count, targets != ignore_index, reduction)[..., None]
        hot = (targets[..., None] == xp.arange(classes)).astype(share.dtype)
        result += (label_smoothing * share * (hot - 1 / classes)).astype(result.dtype)
    moved = xp.moveaxis(result, -1, class_axis(logits.ndim))
    if out is None:
        return xp.ascontiguousarray(moved)
    out[...] = moved
    return out


# -- cross entropy: the records ------------------------------------------------------------------


def _excess(ns: Any, logits: Any, target: Any, ignore_index: int, label_smoothing: float) -> Any:
    """softmax(logits) - target probabilities."""
    axis = class_axis(len(logits.shape))
    q = ns.class_targets(target, classes=logits.shape[axis], ignore_index=ignore_index,
                         smoothing=label_smoothing, dtype=logits.dtype)
    return ns.subtract(ns.softmax(logits, axis=axis), q)


def _cross_entropy_grad(
    g: Any, logits: Any, target: Any, lse: Any, count: Any, *,
    reduction: str, ignore_index: int, label_smoothing: float,
) -> Any:
    ns, axis = recorded, class_axis(len(logits.shape))
    counts = ns.astype(ns.not_equal(target, ignore_index), dtype=logits.dtype)
    share = (g / ns.maximum(count, 1) if reduction == "mean" else g) * counts
    kept = (*target.shape[:axis], 1, *target.shape[axis:])
    excess = _excess(ns, logits, target, ignore_index, label_smoothing)
    return excess * ns.reshape(share, shape=kept)


def _cross_entropy_backward(ns: Any, step: Any, g: Any) -> None:
    step.give(0, ns.cross_entropy_grad(g, *step.saved, **step.params))


def _cross_entropy_tangent(
    ns: Any, primals: Any, tangents: Any, out: Any, params: dict[str, Any]
) -> Any:
    (logits, target), ignored = primals, params["ignore_index"]
    excess = _excess(ns, logits, target, ignored, params["label_smoothing"])
    axis = class_axis(len(logits.shape))
    counts = ns.astype(ns.not_equal(target, ignored), dtype=logits.dtype)
    rows = ns.multiply(ns.sum(ns.multiply(excess, tangents[0]), axis=(axis,)), counts)
    everything = tuple(range(len(rows.shape)))
    if params["reduction"] == "none":
        return rows
    total = ns.sum(rows, axis=everything)
    if params["reduction"] == "mean":
        total = ns.divide(total, ns.maximum(ns.sum(counts, axis=everything), 1))
    return total


def _options(reduction: str, smoothing: float = 0.0) -> dict[str, Any]:
    return {"reduction": reduction, "ignore_index": -100, "label_smoothing": smoothing}


cross_entropy_grad = op(
    "cross_entropy_grad", cpu=_cross_entropy_grad_cpu, gpu=_cross_entropy_grad_gpu,
    backward=None, tangent=None, composed=_cross_entropy_grad,
    samples=None,  # lse and count are functions of the logits: tested through cross_entropy
    doc="The gradient of cross_entropy from its logits, targets, log-sum-exps and count.",
)

cross_entropy_op = op(
    "cross_entropy", cpu=_cross_entropy_cpu, gpu=_cross_entropy_gpu, extras="lse count",
    saves={"logits": "logits target lse count"},
    backward=_cross_entropy_backward, tangent=_cross_entropy_tangent,
    samples=[Sample((shape, shape[:1] + shape[2:]), (normal, below(3)), options)
             for shape in ((5, 3), (2, 3, 4))
             for options in (_options("mean"), _options("sum"), _options("none", 0.2))],
    reference=lambda torch, x, target, **options: torch.nn.functional.cross_entropy(
        x, target.long(), **options),
    doc="logsumexp(logits) - logits[target] by rows (N, C, ...), reduced; ignored rows count 0.",
)


def cross_entropy(
    input: Tensor, target: Tensor, *, ignore_index: int = -100, reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """Cross entropy of logits and class indices. Saves the logits and one number per row.

    Args:
        input: logits (N, C), (N, C, d1, ...) or (C,).
        target: integers (N,), (N, d1, ...) or (), in [0, C) or ignore_index. On a GPU the range is
            not checked (that would wait): the loss is NaN.
        ignore_index: rows with this target count nothing, in the mean either.
        reduction: "mean" and "sum" give a scalar, "none" the target's shape.
        label_smoothing: the share of probability that is spread over all classes, 0 to 1.
    """
    check_reduction("cross_entropy", reduction)
    if not 0.0 <= label_smoothing <= 1.0:
        raise ValueError(f"cross_entropy was given label_smoothing={label_smoothing}; wanted a "
                         "number from 0 to 1")
    same_dtype("cross_entropy", input=input)
    check_targets("cross_entropy", input, target, ignore_index)
    return cross_entropy_op(input, target, reduction=reduction, ignore_index=ignore_index,
                            label_smoothing=label_smoothing)


def nll_loss(
    input: Tensor, target: Tensor, *, ignore_index: int = -100, reduction: str = "mean"
) -> Tensor:
    """Minus the log-probabilities at the class indices; arguments as for cross_entropy."""
    check_reduction("nll_loss", reduction)
    same_dtype("nll_loss", input=input)
    check_targets("nll_loss", input, target, ignore_index)
    classes = input.shape[class_axis(input.ndim)]
    picked = pick_class(input, target, ignore_index=ignore_index, classes=classes)
    if reduction == "none":
        return -picked
    total = -picked.sum()
    if reduction == "sum":
        return total
    count = (target != ignore_index).sum().astype(computed_in(input.dtype))
    return (total / count).to(input.dtype)


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
    xp = cupy()
    difference = _difference(a, b)
    total = xp.vdot(difference, difference) if difference.dtype.itemsize > 2 else xp.sum(
        difference * difference, dtype=np.float32)
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
    gpu=elementwise("T g, T a, T b, float64 scale", "T dx", "dx = g * T(2 * scale) * (a - b)"),
    samples=alike(3, scale=0.25), reference=lambda torch, g, a, b, scale: g * 2 * scale * (a - b),
    doc="The gradient of scale * sum((a - b)^2) with respect to a.",
)

squared_error = op(
    "squared_error", cpu=_squared_error_cpu, gpu=_squared_error_gpu,
    saves={"a": "a b", "b": "a b"},
    backward=_squared_error_backward, tangent=_squared_error_tangent,
    samples=alike(2, scale=0.5), reference=lambda torch, a, b, scale: scale * ((a - b) ** 2).sum(),
    doc="scale * sum((a - b)^2) of two arrays of one shape, without a temporary of that shape.",
)


def mse_loss(input: Tensor, target: Tensor, *, reduction: str = "mean") -> Tensor:
    """(input - target)^2, averaged ("mean"), added up ("sum") or elementwise ("none").

    Both have one shape. Reduced, it makes no temporary of that shape.
    """
    check_reduction("mse_loss", reduction)
    if input.shape != target.shape:
        raise ValueError(f"mse_loss was given an input of shape {input.shape} and a target of "
                         f"shape {target.shape}; wanted one shape")
    same_dtype("mse_loss", input=input, target=target)
    if reduction == "none":
        return recorded.square(input - target)
    mean = 1 / input.size if input.size else float("nan")
    return squared_error(input, target, scale=mean if reduction == "mean" else 1.0)

"""Batch rules of losses: losses by rows with the batch axis beside them, reduced per example.

Scores (N, B, C, ...) stand as (B, C, N, ...), rows (N, B, ...) as (B, N, ...): views, in which what
all examples share is repeated and not copied. Scores (N, C) are N rows as they stand.
"""

from __future__ import annotations

from math import nan, prod
from typing import TYPE_CHECKING, Any

from gtensor.ops.arrange.class_indices import first_of_scores, rows_beside, scores_beside
from gtensor.ops.define.batching import (
    Inputs,
    Mapped,
    aligned,
    batch_axis_first,
    batch_size,
    in_dtype,
)
from gtensor.ops.define.cpu_tiles import computed_in

if TYPE_CHECKING:
    from gtensor.backend.typing import Params, Path
    from gtensor.engine.handle.namespaces import Namespace


# -- sums of elementwise losses --------------------------------------------------------------------


def summed(name: str) -> Path:
    """Of `scale` times the sum of the losses that the op of that name gives for each element."""

    def batch(ns: Namespace, run: Path, inputs: Inputs, mapped: Mapped, params: Params) -> Any:
        options = {key: value for key, value in params.items() if key != "scale"}
        dtype, ndim = inputs[0].dtype, inputs[0].ndim - mapped[0]
        wide = [in_dtype(ns, x, computed_in(dtype)) for x in inputs]
        total = getattr(ns, name)(*aligned(ns, wide, mapped), **options)
        if ndim:
            total = ns.sum(total, axis=tuple(range(-ndim, 0)))
        return in_dtype(ns, ns.multiply(total, params["scale"]), dtype)

    return batch


def squares(ns: Namespace, run: Path, inputs: Inputs, mapped: Mapped, params: Params) -> Any:
    """Of `scale` times the sum of squared differences: a product of each example's with itself."""
    dtype = inputs[0].dtype
    a, b = (in_dtype(ns, x, computed_in(dtype)) for x in inputs)
    difference = ns.subtract(a, b)
    n, *shape = difference.shape
    difference = ns.reshape(difference, shape=(n, prod(shape)))
    return in_dtype(ns, ns.multiply(ns.vecdot(difference, difference), params["scale"]), dtype)


# -- cross entropy ---------------------------------------------------------------------------------


class _Beside:
    """One call's scores and rows with the batch axis beside them. `ndim` is that of an example."""

    def __init__(self, ns: Namespace, ndim: int, size: int) -> None:
        self.ns, self.ndim, self.size = ns, ndim, size

    def scores(self, x: Any, mapped: bool) -> Any:
        return scores_beside(self.ns, x, mapped, self.size)

    def rows(self, x: Any, mapped: bool) -> Any:
        return rows_beside(self.ns, x, mapped, self.size, self.ndim)

    def first(self, rows: Any) -> Any:
        """Rows with the batch axis first."""
        return batch_axis_first(self.ns, rows, min(1, self.ndim - 1))

    def over_rows(self, x: Any) -> Any:
        """The sums (N) of rows over those of each example."""
        axes = (-x.ndim, *range(2 - x.ndim, 0)) if self.ndim > 1 else ()
        return self.ns.sum(x, axis=axes) if axes else x

    def factors(self, weight: Any, mapped: bool) -> Any:
        """Weights of classes, (C) or (N, C), to multiply scores by."""
        if self.ndim == 1:
            return weight
        if mapped:
            weight = self.ns.permute_dims(weight, axes=(-1, -2))
        return self.ns.reshape(weight, shape=(
            *weight.shape, *(1,) * (self.ndim - 1 - mapped)))

    def reduced(self, losses: Any, count: Any, reduction: str) -> Any:
        """The losses of all examples, (N) or by rows; `count` is what a mean divides by."""
        if reduction == "none":
            return self.first(losses)
        ns, dtype = self.ns, losses.dtype
        total = self.over_rows(in_dtype(ns, losses, computed_in(dtype)))
        if reduction == "mean" and isinstance(count, int):
            total = ns.multiply(total, 1 / count if count else nan)
        elif reduction == "mean":  # no rows: NaN, without a warning
            total = ns.divide(total, ns.where(ns.equal(count, 0), nan, count))
        return in_dtype(ns, total, dtype)

    def share(self, g: Any, mapped: bool, count: Any, reduction: str, like: Any) -> Any:
        """The factor of each row's gradient, for g of the reduced loss; `like` has all rows."""
        ns = self.ns
        if reduction == "none":
            return self.rows(g, mapped)
        g = in_dtype(ns, g, like.dtype)
        if reduction == "mean" and isinstance(count, int):
            g = ns.multiply(g, 1 / max(1, count))
        elif reduction == "mean":  # a NaN for ignored rows is not selected
            g = ns.divide(g, ns.where(ns.equal(count, 0), nan, count))
        if g.ndim:
            g = ns.reshape(g, shape=(*g.shape, *(1,) * max(0, self.ndim - 2)))
        return ns.broadcast_to(g, shape=like.shape)


def _masses(b: _Beside, scores: Any, target: Any, factors: Any, ignored: int) -> Any:
    """What the mean of each example divides by: (N), the number or the weights of its rows."""
    ns, work = b.ns, computed_in(scores.dtype)
    if factors is None:
        return b.over_rows(ns.astype(ns.not_equal(target, ignored), dtype=work))
    heavy = ns.broadcast_to(in_dtype(ns, factors, work), shape=scores.shape)
    classes = scores.shape[min(1, scores.ndim - 1)]
    return b.over_rows(ns.pick_class(heavy, target, ignore_index=ignored, classes=classes))


def _weighted_targets(
    b: _Beside, scores: Any, target: Any, factors: Any, params: Params
) -> Any:
    classes = scores.shape[min(1, scores.ndim - 1)]
    q = b.ns.class_targets(target, classes=classes, ignore_index=params["ignore_index"],
                           smoothing=params["label_smoothing"], dtype=scores.dtype)
    return b.ns.multiply(q, factors)


def cross_entropy(ns: Namespace, run: Path, inputs: Inputs, mapped: Mapped, params: Params) -> Any:
    """Of logits, class indices and weights of classes."""
    logits, target, weight = inputs
    b = _Beside(ns, logits.ndim - mapped[0], batch_size(inputs, mapped))
    x, t = b.scores(logits, mapped[0]), b.rows(target, mapped[1])
    factors = None if weight is None else b.factors(weight, mapped[2])
    if mapped[2]:
        x = in_dtype(ns, x, params.get("dtype") or x.dtype)
        losses, *sums = _losses(b, x, _weighted_targets(b, x, t, factors, params))
    else:
        losses, *sums = run(x, t, weight, **{**params, "reduction": "none"})
    count = _masses(b, x, t, factors, params["ignore_index"])
    y = b.reduced(losses, count, params["reduction"])
    return y, *[b.first(s) for s in sums[:2]], count


def _losses(b: _Beside, x: Any, q: Any) -> tuple[Any, Any, Any]:
    """-sum(q log_softmax(x)) by rows, the largest of each row, and the sum of its exponentials."""
    ns, axis = b.ns, -x.ndim + min(1, x.ndim - 1)
    log = ns.log_softmax(x, axis=axis)
    terms = ns.where(ns.equal(q, 0), 0.0, ns.multiply(q, log))
    largest = ns.max(x, axis=(axis,), keepdims=True)
    total = ns.sum(ns.exp(ns.subtract(x, largest)), axis=(axis,))
    return (ns.negative(ns.sum(terms, axis=(axis,))), ns.reshape(largest, shape=total.shape),
            total)


def cross_entropy_grad(
    ns: Namespace, run: Path, inputs: Inputs, mapped: Mapped, params: Params
) -> Any:
    """Of g, logits, class indices, weights and what cross_entropy keeps."""
    g, logits, target, weight, largest, total, count = inputs
    mg, mx, mt, mw, ml, ms, _ = mapped
    b = _Beside(ns, logits.ndim - mx, batch_size(inputs, mapped))
    x, t = b.scores(logits, mx), b.rows(target, mt)
    sums = b.rows(largest, ml), b.rows(total, ms)
    share = b.share(g, mg, count, params["reduction"], sums[1])
    if not mw:
        found = run(share, x, t, weight, *sums, count, **{**params, "reduction": "none"})
        return first_of_scores(ns, found)
    axis, given = -x.ndim + min(1, x.ndim - 1), x.dtype
    x = in_dtype(ns, x, params.get("dtype") or given)
    q = _weighted_targets(b, x, t, b.factors(weight, True), params)
    mass = ns.sum(q, axis=(axis,), keepdims=True)
    excess = ns.subtract(ns.multiply(ns.softmax(x, axis=axis), mass), q)
    share = ns.where(ns.not_equal(t, params["ignore_index"]), share, 0.0)
    found = ns.multiply(excess, ns.reshape(share, shape=mass.shape))
    return first_of_scores(ns, in_dtype(ns, found, given))


def soft_cross_entropy(
    ns: Namespace, run: Path, inputs: Inputs, mapped: Mapped, params: Params
) -> Any:
    """Of logits, probabilities and weights of classes."""
    logits, target, weight = inputs
    b = _Beside(ns, logits.ndim - mapped[0], batch_size(inputs, mapped))
    x, t = b.scores(logits, mapped[0]), b.scores(target, mapped[1])
    t, weight, options = _mixed(b, t, weight, mapped[2], params)
    losses, *sums = run(x, t, weight, **options)
    y = b.reduced(losses, prod(losses.shape) // max(1, b.size), params["reduction"])
    return y, *[b.first(s) for s in sums]


def _mixed(
    b: _Beside, target: Any, weight: Any, mapped: bool, params: Params
) -> tuple[Any, Any, Params]:
    """Targets, weights and parameters by rows; weights of each example go into the targets."""
    options = {**params, "reduction": "none"}
    if not mapped:
        return target, weight, options
    ns, smoothing = b.ns, params["label_smoothing"]
    classes = target.shape[min(1, target.ndim - 1)]
    mixed = ns.add(ns.multiply(target, 1 - smoothing), smoothing / classes)
    return ns.multiply(mixed, b.factors(weight, True)), None, {**options, "label_smoothing": 0.0}


def soft_cross_entropy_dx(
    ns: Namespace, run: Path, inputs: Inputs, mapped: Mapped, params: Params
) -> Any:
    """Of g, logits, probabilities, weights and what soft_cross_entropy keeps."""
    g, logits, target, weight, largest, total = inputs
    mg, mx, mt, mw, ml, ms = mapped
    b = _Beside(ns, logits.ndim - mx, batch_size(inputs, mapped))
    sums = b.rows(largest, ml), b.rows(total, ms)
    share = b.share(g, mg, prod(total.shape[ms:]), params["reduction"], sums[1])
    t, weight, options = _mixed(b, b.scores(target, mt), weight, mw, params)
    return first_of_scores(ns, run(share, b.scores(logits, mx), t, weight, *sums, **options))


def soft_cross_entropy_dtarget(
    ns: Namespace, run: Path, inputs: Inputs, mapped: Mapped, params: Params
) -> Any:
    """Of g, logits, weights and what soft_cross_entropy keeps."""
    g, logits, weight, largest, total = inputs
    mg, mx, mw, ml, ms = mapped
    b = _Beside(ns, logits.ndim - mx, batch_size(inputs, mapped))
    sums = b.rows(largest, ml), b.rows(total, ms)
    share = b.share(g, mg, prod(total.shape[ms:]), params["reduction"], sums[1])
    found = run(share, b.scores(logits, mx), None if mw else weight, *sums,
                **{**params, "reduction": "none"})
    if mw:
        found = ns.multiply(found, b.factors(weight, True))
    return first_of_scores(ns, found)

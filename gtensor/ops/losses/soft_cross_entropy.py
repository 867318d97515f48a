"""Cross entropy with probabilities as targets, fused: the logits, targets and two numbers per row.

The numbers are those of `cross_entropy`, which finds the axis of classes and their weights here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from gtensor.engine.handle.namespaces import recorded
from gtensor.engine.handle.tensor import Tensor
from gtensor.engine.tape.op import op
from gtensor.engine.tape.samples import Sample, normal, positive
from gtensor.ops.arrange.class_indices import class_axis
from gtensor.ops.arrange.shape import from_end, resized
from gtensor.ops.define.cpu_tiles import computed_in, row_tiles
from gtensor.ops.define.flops import of_input
from gtensor.ops.define.path_builders import placed
from gtensor.ops.losses import batching

if TYPE_CHECKING:
    from gtensor.backend import Device
    from gtensor.backend.typing import Array, Params
    from gtensor.engine.handle.namespaces import Namespace
    from gtensor.engine.handle.tensor import Tensor
    from gtensor.engine.walk.typing import Step, Values


# -- paths -----------------------------------------------------------------------------------------
#
# CPU paths work in tiles of whole rows; on a GPU a tile is everything.


def classes_last(x: Array) -> Array:
    """A view with the classes along the last axis."""
    return x if x.ndim <= 2 else x.transpose(0, *range(2, x.ndim), 1)


def _tiles(rows: Array) -> Iterator[tuple[Any, ...]]:
    return row_tiles(rows.shape) if isinstance(rows, np.ndarray) else iter(((...,),))


def _mixture(target: Array, smoothing: float, weight: Array | None) -> Array:
    """What the logarithms of the probabilities are multiplied by: a new array, classes last."""
    mixed = target * (1 - smoothing)
    if smoothing:
        mixed += smoothing / target.shape[-1]
    if weight is not None:
        mixed *= weight
    return mixed


def two(sums: Array) -> tuple[Array, Array]:
    """The arrays along a first axis of two, also where they are 0-d."""
    return sums[0, ...], sums[1, ...]


def _forward_path(
    device: Device, logits: Array, target: Array, weight: Array | None, *, reduction: str,
    label_smoothing: float, out: Array | None = None
) -> tuple[Array, Array, Array]:
    work = computed_in(logits.dtype)
    xp = device.xp
    weight = None if weight is None else weight.astype(work, copy=False)
    rows, targets = classes_last(logits), classes_last(target)
    loss = device.empty(rows.shape[:-1], work, "cross_entropy")
    largest, total = two(device.empty((2, *rows.shape[:-1]), work, "cross_entropy"))
    # rows of -infinity, and no rows: NaN
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        for tile in _tiles(rows):
            part = rows[tile].astype(work)
            largest[tile] = part.max(axis=-1)
            part -= largest[tile][..., None]
            mixed = _mixture(targets[tile].astype(work, copy=False), label_smoothing, weight)
            mass = mixed.sum(axis=-1)
            mixed *= part
            total[tile] = xp.exp(part, out=part).sum(axis=-1)
            loss[tile] = mass * xp.log(total[tile]) - mixed.sum(axis=-1)
        if reduction != "none":
            loss = loss.sum()
        if reduction == "mean":
            loss = loss / xp.asarray(total.size, work)
    if out is None:
        return xp.asarray(loss, logits.dtype), largest, total
    out[...] = loss
    return out, largest, total


def _shared(g: Array, total: Array, reduction: str) -> Array:
    """The factor of each row's gradient."""
    return (g / max(1, total.size) if reduction == "mean" else g) + 0 * total


def _dx_path(
    device: Device, g: Array, logits: Array, target: Array, weight: Array | None, largest: Array,
    total: Array, *, reduction: str, label_smoothing: float, out: Array | None = None
) -> Array:
    work = computed_in(logits.dtype)
    weight = None if weight is None else weight.astype(work, copy=False)
    if out is None:
        out = device.empty(logits.shape, logits.dtype, "cross_entropy_grad")
    rows, targets, result = (classes_last(a) for a in (logits, target, out))
    share = _shared(g.astype(work), total, reduction)[..., None]
    for tile in _tiles(rows):
        mixed = _mixture(targets[tile].astype(work, copy=False), label_smoothing, weight)
        part = rows[tile].astype(work)
        with np.errstate(invalid="ignore", over="ignore"):
            part -= largest[tile][..., None]
        device.xp.exp(part, out=part)
        part *= (mixed.sum(axis=-1) / total[tile])[..., None]
        part -= mixed
        part *= share[tile]
        result[tile] = part
    return out


def _dtarget_path(
    device: Device, g: Array, logits: Array, weight: Array | None, largest: Array, total: Array, *,
    reduction: str, label_smoothing: float, out: Array | None = None,
) -> Array:
    work = computed_in(logits.dtype)
    if out is None:
        out = device.empty(logits.shape, logits.dtype, "cross_entropy_grad")
    rows, result = classes_last(logits), classes_last(out)
    share = _shared(g.astype(work), total, reduction)[..., None] * (1 - label_smoothing)
    for tile in _tiles(rows):
        with np.errstate(invalid="ignore", over="ignore"):
            part = largest[tile][..., None] - rows[tile]
        part += device.xp.log(total[tile])[..., None]
        part *= share[tile]
        if weight is not None:
            part *= weight.astype(work, copy=False)
        result[tile] = part
    return out


# -- in other ops ----------------------------------------------------------------------------------


def axis_of_classes(x: Array) -> int:
    """The axis of the classes of scores, from the end."""
    ndim: int = len(x.shape)
    return from_end(class_axis(ndim), ndim)


def weighted(ns: Namespace, logits: Array, weight: Array | None, x: Array) -> Array:
    """x in the logits' shape times the weights of its classes."""
    if weight is None:
        return x
    last = (1,) * (-axis_of_classes(logits) - 1)
    return ns.multiply(x, ns.reshape(weight, shape=(*weight.shape, *last)))


def _row_share(ns: Namespace, g: Array, logits: Array, reduction: str) -> Array:
    """The share of each row, shaped to broadcast against the logits."""
    rows = resized(logits.shape, axis_of_classes(logits), 1)
    if reduction == "none":
        return ns.reshape(g, shape=rows)
    return ns.multiply(g, 1 / max(1, int(np.prod(rows)))) if reduction == "mean" else g


def excess(ns: Namespace, logits: Array, q: Array) -> Array:
    """The gradient of each row's loss: softmax(logits) times the row's sum of q, minus q."""
    axis = axis_of_classes(logits)
    mass = ns.sum(q, axis=(axis,), keepdims=True)
    return ns.subtract(ns.multiply(ns.softmax(logits, axis=axis), mass), q)


def _recorded_mixture(
    ns: Namespace, logits: Array, target: Array, smoothing: float, weight: Array | None
) -> Array:
    """`_mixture` in the logits' shape."""
    classes = logits.shape[axis_of_classes(logits)]
    mixed = ns.add(ns.multiply(target, 1 - smoothing), smoothing / classes)
    return weighted(ns, logits, weight, mixed)


def _surprise(ns: Namespace, logits: Array, smoothing: float, weight: Array | None) -> Array:
    """The gradient of each row's loss with respect to its targets."""
    log = ns.log_softmax(logits, axis=axis_of_classes(logits))
    return weighted(ns, logits, weight, ns.multiply(log, smoothing - 1))


def _dx_composed(
    g: Array, logits: Array, target: Array, weight: Array | None, largest: Array, total: Array, *,
    reduction: str, label_smoothing: float,
) -> Tensor:
    ns = recorded
    mixed = _recorded_mixture(ns, logits, target, label_smoothing, weight)
    return ns.multiply(excess(ns, logits, mixed), _row_share(ns, g, logits, reduction))


def _dtarget_composed(
    g: Array, logits: Array, weight: Array | None, largest: Array, total: Array, *,
    reduction: str, label_smoothing: float,
) -> Tensor:
    ns = recorded
    return ns.multiply(_surprise(ns, logits, label_smoothing, weight),
                       _row_share(ns, g, logits, reduction))


def _backward(ns: Namespace, step: Step, g: Array) -> None:
    logits, target, weight, *sums = step.saved
    if step.needs(1):
        step.give(1, ns.soft_cross_entropy_dtarget(g, logits, weight, *sums, **step.params))
    if step.needs(0):
        step.give(0, ns.soft_cross_entropy_dx(
            g, logits, target, weight, *sums, out=step.take(logits), **step.params))


def _tangent(ns: Namespace, primals: Values, tangents: Values, out: Array, params: Params) -> Array:
    (logits, target, weight), (dlogits, dtarget, _) = primals, tangents
    smoothing = params["label_smoothing"]
    axis = axis_of_classes(logits)
    rows = None
    if dlogits is not None:
        mixed = _recorded_mixture(ns, logits, target, smoothing, weight)
        rows = ns.multiply(excess(ns, logits, mixed), dlogits)
    if dtarget is not None:
        term = ns.multiply(_surprise(ns, logits, smoothing, weight), dtarget)
        rows = term if rows is None else ns.add(rows, term)
    losses = ns.sum(rows, axis=(axis,))
    if params["reduction"] == "none":
        return losses
    reduce = ns.sum if params["reduction"] == "sum" else ns.mean
    return reduce(losses, axis=tuple(range(-len(losses.shape), 0)))


def torchs_cross_entropy(torch: Any, x: Any, target: Any, weight: Any, **options: Any) -> Any:
    """PyTorch's, of class indices or probabilities."""
    target = target if target.is_floating_point() else target.long()
    return torch.nn.functional.cross_entropy(
        x, target, weight, **options)


def three_weights(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Of three classes; numbers that every dtype holds."""
    return np.array([0.5, 2.0, 1.25])

soft_cross_entropy_dx = op(
    "soft_cross_entropy_dx", **placed(_dx_path), backward=None, tangent=None,
    composed=_dx_composed, batch=batching.soft_cross_entropy_dx,
    samples=None,  # its inputs depend on each other: tested through soft_cross_entropy
    doc="The gradient of soft_cross_entropy with respect to the logits.",
)

soft_cross_entropy_dtarget = op(
    "soft_cross_entropy_dtarget", **placed(_dtarget_path), backward=None,
    tangent=None, composed=_dtarget_composed, batch=batching.soft_cross_entropy_dtarget,
    samples=None,  # likewise
    doc="The gradient of soft_cross_entropy with respect to the target.",
)

soft_cross_entropy = op(
    "soft_cross_entropy", flops=of_input,
    autocast="float32", **placed(_forward_path), extras="largest total",
    constants="weight", takes="logits",
    saves={"logits": "logits target weight largest total",
           "target": "logits weight largest total"},
    backward=_backward, tangent=_tangent, batch=batching.soft_cross_entropy,
    samples=[Sample((shape, shape, weight), (normal, positive, three_weights), {
        "reduction": reduction, "label_smoothing": smoothing})
        for shape in ((5, 3), (2, 3, 4), (3,))
        for reduction, smoothing, weight in (
            ("mean", 0.0, None), ("sum", 0.2, (3,)), ("none", 0.3, None))],
    reference=torchs_cross_entropy,
    doc="-sum(target * weight * log_softmax(logits)) by rows (N, C, ...), reduced.",
)

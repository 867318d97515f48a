"""Cross entropy with class indices as targets, fused: it keeps logits and two numbers per row.

They are the row's largest logit and the sum of the exponentials relative to it, never the
probabilities. One logarithm for both numbers would be rounded like a large logit: at 1e7 in float32
the logarithm of the sum is lost.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from gtensor.backend import host
from gtensor.backend.cuda import cupy
from gtensor.backend.kernels import BLOCK, NULL, packed_launch, raw, row_launch
from gtensor.engine.handle.context import current_casts
from gtensor.engine.handle.namespaces import recorded
from gtensor.engine.handle.tensor import Tensor
from gtensor.engine.run.bind import FLOAT32
from gtensor.engine.tape.op import op
from gtensor.engine.tape.samples import Sample, below, normal
from gtensor.ops.arrange.class_indices import check_targets, class_axis, class_weights, pick_class
from gtensor.ops.arrange.shape import resized
from gtensor.ops.define.arguments import (
    autocast,
    check_reduction,
    of_half,
    same_dtype,
    takes_arrays,
)
from gtensor.ops.define.batching import in_dtype
from gtensor.ops.define.cpu_tiles import computed_in, row_tile_size, row_tiles
from gtensor.ops.define.flops import of_input
from gtensor.ops.define.path_builders import settled
from gtensor.ops.losses import batching
from gtensor.ops.losses.soft_cross_entropy import (
    axis_of_classes,
    classes_last,
    excess,
    soft_cross_entropy,
    three_weights,
    torchs_cross_entropy,
    two,
    weighted,
)
from gtensor.settings import settings

if TYPE_CHECKING:
    from gtensor.backend.typing import Array, Params, Path
    from gtensor.engine.handle.namespaces import Namespace
    from gtensor.engine.handle.tensor import Tensor
    from gtensor.engine.walk.typing import Step, Values


# -- CPU -------------------------------------------------------------------------------------------


def _at(places: np.ndarray) -> tuple[np.ndarray, ...]:
    """The key of each row's class in an array of rows."""
    if places.ndim == 1:
        return np.arange(places.size), places
    return (*np.indices(places.shape, sparse=True), places)


def _places(target: Array, ignore_index: int) -> tuple[Array, Array, int]:
    """Classes that can be used everywhere, where they count, and how many do."""
    counts = target != ignore_index
    count = int(np.count_nonzero(counts))
    return (target if count == target.size else target * counts), counts, count


def _row_losses(
    part: Array, places: Array, weight: Array | None, smoothing: float, wide: Array
) -> tuple[Array, Array, Array]:
    """Maximum, sum of exponentials and loss of each row; `wide` is a work array of its shape."""
    largest = np.maximum.reduce(part, axis=-1, keepdims=True).astype(wide.dtype, copy=False)
    np.subtract(part, largest, out=wide)
    chosen, mass = wide[_at(places)], None
    if weight is not None:
        mass = (1 - smoothing) * weight[places]
        chosen = mass * chosen
        if smoothing:
            chosen += wide @ weight * (smoothing / weight.size)
            mass += weight.sum() * (smoothing / weight.size)
    elif smoothing:
        chosen = (1 - smoothing) * chosen + smoothing * wide.mean(axis=-1)
    total = np.add.reduce(np.exp(wide, out=wide), axis=-1)
    log = np.log(total)
    return largest[..., 0], total, (log if mass is None else mass * log) - chosen


def _cross_entropy_cpu(
    logits: Array, target: Array, weight: Array | None, *, reduction: str, ignore_index: int,
    label_smoothing: float, dtype: np.dtype | None = None, out: Array | None = None,
) -> tuple[Array, Array, Array, Array]:
    rows = classes_last(logits)
    work = computed_in(logits.dtype)
    places, counts, count = _places(target, ignore_index)
    weight = None if weight is None else weight.astype(work, copy=False)
    mass = count if weight is None else (weight[places] * counts).sum()
    # rows of -infinity, and no rows: NaN, as in PyTorch
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        if rows.size <= settings.tile_elements:
            largest, total, loss = _row_losses(
                rows, places, weight, label_smoothing, np.empty(rows.shape, work))
        else:
            loss = host().empty(target.shape, work, "cross_entropy")
            largest, total = two(host().empty((2, *target.shape), work, "cross_entropy"))
            scratch = host().workspace(row_tile_size(rows.shape), work)
            for tile in row_tiles(rows.shape):
                part = rows[tile]
                largest[tile], total[tile], loss[tile] = _row_losses(
                    part, places[tile], weight, label_smoothing, scratch(0, part.shape))
        if count < target.size:
            loss = np.where(counts, loss, 0)
        if reduction != "none":
            loss = loss.sum()
        if reduction == "mean":
            loss = loss / work.type(mass or np.nan)
    if out is None:
        out = np.asarray(loss, dtype or logits.dtype)
    else:
        out[...] = loss
    return out, np.asarray(largest), np.asarray(total), np.asarray(mass, work)


def _prepared(
    logits: Any, target: Any, weight: Any, *, reduction: str, ignore_index: int,
    label_smoothing: float, dtype: np.dtype | None = None, out: Any = None,
) -> Path | None:
    """`_cross_entropy_cpu` of a mean over few plain rows, if none of them is ignored."""
    if not _is_plain(logits, target, weight, reduction, label_smoothing) or out is not None or (
            dtype not in (None, logits.dtype)):
        return None
    n, work = target.shape[0], logits.dtype.type
    rows, count = np.arange(n), np.asarray(n, logits.dtype)
    share = work(n)

    def path(logits: Array, target: Array, weight: None, **params: Any) -> tuple[Array, ...]:
        if np.equal(target, ignore_index).any():
            return _cross_entropy_cpu(logits, target, weight, **params)
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            largest = np.maximum.reduce(logits, axis=1, keepdims=True)
            wide = np.subtract(logits, largest)
            chosen = wide[rows, target]
            total = np.add.reduce(np.exp(wide, wide), axis=1)
            loss = np.subtract(np.log(total), chosen).sum() / share
        return np.asarray(loss), largest[:, 0], total, count

    return path


def _is_plain(logits: Any, target: Any, weight: Any, reduction: str, smoothing: float) -> bool:
    """Whether the facts are those of contiguous rows of one tile, and nothing is asked but a mean.
    """
    return (weight is None and not smoothing and reduction == "mean" and len(logits.shape) == 2
            and logits.dtype.char in "fd" and logits.contiguous
            and 0 < prod(logits.shape) <= settings.tile_elements and target.dtype.kind in "iu")


_cross_entropy_cpu.prepare = _prepared  # type: ignore[attr-defined]


def _row_gradients(
    part: Array, largest: Array, scale: Array, places: Array, chosen: Array, spread: Array, *,
    each: Array | float | None, wide: Array,
) -> None:
    """wide = exp(part - largest) * scale - spread * each, less what is `chosen` at the places."""
    np.subtract(part, largest[..., None], out=wide)
    np.exp(wide, out=wide)
    wide *= scale[..., None]
    if each is not None:
        wide -= spread[..., None] * each
    wide[_at(places)] -= chosen


def _cross_entropy_grad_cpu(
    g: Array, logits: Array, target: Array, weight: Array | None, largest: Array, total: Array,
    count: Array, *, reduction: str, ignore_index: int, label_smoothing: float,
    dtype: np.dtype | None = None, out: Array | None = None,
) -> Array:
    if out is None:
        out = host().empty(logits.shape, logits.dtype, "cross_entropy_grad")
    rows, result = classes_last(logits), classes_last(out)
    places, counts, _ = _places(target, ignore_index)
    share = _share(g, count, counts, reduction)
    work = computed_in(logits.dtype)
    chosen, each = share * work.type(1 - label_smoothing), label_smoothing / rows.shape[-1]
    scale = share / total
    if weight is not None:
        weight = weight.astype(work, copy=False)
        chosen, each = chosen * weight[places], each * weight
        scale = scale * (weight[places] * (1 - label_smoothing) + each.sum())
    known = largest, scale, places, chosen, share
    each = each if label_smoothing else None
    with np.errstate(invalid="ignore", over="ignore"):
        if rows.size <= settings.tile_elements and result.dtype == work:
            _row_gradients(rows, *known, each=each, wide=result)
            return out
        scratch = host().workspace(row_tile_size(rows.shape), work)
        for tile in row_tiles(rows.shape):
            part = rows[tile]
            wide = scratch(0, part.shape)
            _row_gradients(part, *[a[tile] for a in known], each=each, wide=wide)
            result[tile] = wide
    return out


def _prepared_gradient(
    g: Any, logits: Any, target: Any, weight: Any, largest: Any, total: Any, count: Any, *,
    reduction: str, ignore_index: int, label_smoothing: float, dtype: np.dtype | None = None,
    out: Any = None,
) -> Path | None:
    """`_cross_entropy_grad_cpu` of what `_prepared` serves."""
    if not _is_plain(logits, target, weight, reduction, label_smoothing):
        return None
    shape, kind, rows = logits.shape, logits.dtype, np.arange(target.shape[0])

    def path(
        g: Array, logits: Array, target: Array, weight: None, largest: Array, total: Array,
        count: Array, *, out: Array | None = None, **params: Any
    ) -> Array:
        if np.equal(target, ignore_index).any():
            return _cross_entropy_grad_cpu(
                g, logits, target, weight, largest, total, count, out=out, **params)
        wide = np.empty(shape, kind) if out is None else out
        share = g / count
        with np.errstate(invalid="ignore", over="ignore"):
            np.subtract(logits, largest[:, None], wide)
            np.exp(wide, wide)
            np.multiply(wide, (share / total)[:, None], wide)
            wide[rows, target] -= share
        return wide

    return path


_cross_entropy_grad_cpu.prepare = _prepared_gradient  # type: ignore[attr-defined]


def _share(g: Array, count: Array, counts: Array, reduction: str) -> Array:
    """The factor of each row's gradient: 0 for an ignored row, NaN where a mean divides by 0."""
    if reduction == "mean":
        g = g / np.where(count == 0, count.dtype.type(np.nan), count)
    return np.where(counts, g, count.dtype.type(0))


# -- GPU -------------------------------------------------------------------------------------------

_FORWARD = raw("cross_entropy.cu", "cross_entropy_forward")
_REDUCE = raw("cross_entropy.cu", "cross_entropy_reduce")
_FEW_ROWS = raw("cross_entropy.cu", "cross_entropy_few_rows")
_BACKWARD = raw("cross_entropy.cu", "cross_entropy_backward")


def _gpu_rows(logits: Array, target: Array) -> tuple[Any, Any, int]:
    """Contiguous rows of classes, int64 targets, the number of rows."""
    xp = cupy()
    rows = xp.ascontiguousarray(xp.moveaxis(logits, class_axis(logits.ndim), -1))
    return rows, xp.ascontiguousarray(target, dtype=np.int64), target.size


_MOST_STEPS = 32  # of a warp, each of 32 classes, where one block takes all rows


def _few(rows: int, classes: int) -> bool:
    return -(-rows // (BLOCK // 32)) * -(-classes // 32) <= _MOST_STEPS


def _heavy(weight: Array | None, work: np.dtype) -> Any:
    """The weights of classes as the kernels read them."""
    return NULL if weight is None else cupy().ascontiguousarray(weight, dtype=work)


def _cross_entropy_gpu(
    logits: Array, target: Array, weight: Array | None, *, reduction: str, ignore_index: int,
    label_smoothing: float, dtype: np.dtype | None = None, out: Array | None = None,
) -> tuple[Array, Array, Array, Array]:
    xp = cupy()
    rows, targets, n = _gpu_rows(logits, target)
    classes, work = rows.shape[-1], computed_in(logits.dtype)
    heavy, smoothing, mean = _heavy(weight, work), float(label_smoothing), int(reduction == "mean")
    loss = xp.empty(target.shape, work)
    largest, total = two(xp.empty((2, *target.shape), work))
    result, count = xp.empty((), work), xp.empty((), work)
    if _few(n, classes):
        _FEW_ROWS[logits.dtype]((1,), (32, BLOCK // 32), (
            rows, targets, heavy, loss, largest, total, result, count, n, classes, ignore_index,
            mean, smoothing))
    else:
        _FORWARD[logits.dtype](*packed_launch(n, classes, logits.itemsize), (
            rows, targets, heavy, loss, largest, total, n, classes, ignore_index, smoothing))
        _REDUCE[logits.dtype](*row_launch(1), (
            loss, targets, heavy, result, count, n, classes, ignore_index, mean))
    if reduction == "none":
        result = loss
    result = result.astype(dtype or logits.dtype, copy=False)
    return settled(result, out), largest, total, count


def _cross_entropy_grad_gpu(
    g: Array, logits: Array, target: Array, weight: Array | None, largest: Array, total: Array,
    count: Array, *, reduction: str, ignore_index: int, label_smoothing: float,
    dtype: np.dtype | None = None, out: Array | None = None,
) -> Array:
    xp = cupy()
    rows, targets, n = _gpu_rows(logits, target)
    classes, work = rows.shape[-1], computed_in(logits.dtype)
    direct = out is not None and logits.ndim <= 2 and out.flags.c_contiguous
    result: Any = out if direct else xp.empty(rows.shape, logits.dtype)
    heavy = _heavy(weight, work)
    mass = heavy.sum() if weight is not None and label_smoothing else NULL
    g = xp.ascontiguousarray(g, dtype=work)  # a share of it may be no half number
    _BACKWARD[logits.dtype](*packed_launch(n, classes, logits.itemsize), (
        rows, targets, heavy, mass, largest, total, g, count if reduction == "mean" else NULL,
        result, n, classes, ignore_index, int(reduction == "none"), float(label_smoothing)))
    if direct:
        return result
    moved = xp.moveaxis(result, -1, class_axis(logits.ndim))
    if out is None:
        return xp.ascontiguousarray(moved)
    out[...] = moved
    return out


# -- definitions -----------------------------------------------------------------------------------


def _targets(
    ns: Namespace, logits: Array, target: Array, ignore_index: int, label_smoothing: float,
    weight: Array | None
) -> Array:
    """The factors of the logarithms of probabilities, in the logits' shape."""
    axis = axis_of_classes(logits)
    q = ns.class_targets(target, classes=logits.shape[axis], ignore_index=ignore_index,
                         smoothing=label_smoothing, dtype=logits.dtype)
    return weighted(ns, logits, weight, q)


def _cross_entropy_grad(
    g: Array, logits: Array, target: Array, weight: Array | None, largest: Array, total: Array,
    count: Array, *, reduction: str, ignore_index: int, label_smoothing: float,
    dtype: np.dtype | None = None,
) -> Array | Tensor:
    ns = recorded
    given, logits = logits, in_dtype(ns, logits, dtype or logits.dtype)
    share: Any = g
    if reduction == "mean":
        share = _share_of_mean(ns, g, logits, target, count, ignore_index)
    elif reduction == "none":
        share = ns.reshape(share, shape=resized(logits.shape, axis_of_classes(logits), 1))
    q = _targets(ns, logits, target, ignore_index, label_smoothing, weight)
    return in_dtype(ns, excess(ns, logits, q) * share, given.dtype)


def _share_of_mean(
    ns: Namespace, g: Any, logits: Array, target: Array, mass: Array, ignore_index: int
) -> Any:
    """`_share` of a mean, shaped to broadcast against the logits."""
    share = ns.divide(g, ns.where(ns.equal(mass, 0), float("nan"), mass))
    shares = ns.where(ns.not_equal(target, ignore_index), share, 0.0)
    return ns.reshape(shares, shape=resized(logits.shape, axis_of_classes(logits), 1))


def _cross_entropy_backward(ns: Namespace, step: Step, g: Array) -> None:
    saved = step.saved
    step.give(0, ns.cross_entropy_grad(g, *saved, out=step.take(saved[0]), **step.params))


def _cross_entropy_tangent(
    ns: Namespace, primals: Values, tangents: Values, out: Array, params: Params
) -> Array:
    (logits, target, weight), ignored = primals, params["ignore_index"]
    logits = in_dtype(ns, logits, params.get("dtype") or logits.dtype)
    q = _targets(ns, logits, target, ignored, params["label_smoothing"], weight)
    axis = axis_of_classes(logits)
    moved = ns.multiply(excess(ns, logits, q), tangents[0])
    if params["reduction"] == "none":
        return ns.sum(moved, axis=(axis,))
    every = tuple(range(-len(logits.shape), 0))
    if params["reduction"] == "mean":
        mass = ns.sum(_targets(ns, logits, target, ignored, 0.0, weight), axis=every)
        moved = ns.multiply(moved, _share_of_mean(ns, 1.0, logits, target, mass, ignored))
    return ns.sum(moved, axis=every)


def _options(reduction: str, smoothing: float = 0.0) -> Params:
    return {"reduction": reduction, "ignore_index": -100, "label_smoothing": smoothing}


cross_entropy_grad = op(
    "cross_entropy_grad", cpu=_cross_entropy_grad_cpu, gpu=_cross_entropy_grad_gpu,
    backward=None, tangent=None, composed=_cross_entropy_grad, batch=batching.cross_entropy_grad,
    samples=None,  # its inputs depend on each other: tested through cross_entropy
    doc="The gradient of cross_entropy from its logits, targets, maxima, sums and count.",
)

cross_entropy_op = op(
    "cross_entropy", flops=of_input, autocast="float32",
    cpu=_cross_entropy_cpu, gpu=_cross_entropy_gpu, extras="largest total count",
    constants="weight", takes="logits",
    saves={"logits": "logits target weight largest total count"},
    backward=_cross_entropy_backward, tangent=_cross_entropy_tangent,
    batch=batching.cross_entropy,
    samples=[Sample((shape, shape[:1] + shape[2:], weight), (normal, below(3), three_weights),
                    options)
             for shape in ((5, 3), (2, 3, 4))
             for options, weight in (
                 (_options("mean"), None), (_options("sum"), None), (_options("none", 0.2), None),
                 (_options("mean", 0.3), (3,)), (_options("none", 0.0), (3,)))],
    reference=torchs_cross_entropy,
    doc="logsumexp(logits) - logits[target] by rows (N, C, ...), reduced; ignored rows count 0. "
        "Parameters: those of the function, and dtype: that of the loss, None for the logits'.",
)


@takes_arrays
def cross_entropy(
    input: Tensor, target: Tensor, weight: Tensor | None = None, *, ignore_index: int = -100,
    reduction: str = "mean", label_smoothing: float = 0.0,
) -> Tensor:
    """Cross entropy of logits and class indices, or probabilities; no probabilities are kept.

    Args:
        input: logits (N, C), (N, C, d1, ...) or (C,). They are saved, with two numbers per row; if
            nothing else reads them by then, `backward()` writes their gradient over them.
        target: integers (N,), (N, d1, ...) or (), in [0, C) or ignore_index (on a GPU the range is
            not checked, since that would wait, and the loss is NaN; GTENSOR_DEBUG=1 checks it); or
            probabilities of the input's shape, which are saved, too, and have a gradient.
        weight: of the classes, (C,); a constant. With indices the mean is over the sum of the
            rows' weights, with probabilities over the number of rows, as in PyTorch.
        ignore_index: rows with this target count nothing, in the mean either.
        reduction: "mean" and "sum" give a scalar, "none" one loss per row.
        label_smoothing: the share of probability that is spread over all classes, 0 to 1.

    Raises ValueError for a label_smoothing outside of 0 to 1, an ignore_index beside probabilities,
    no classes, and shapes that do not fit; TypeError for a target of another dtype.
    """
    check_reduction("cross_entropy", reduction)
    if not 0.0 <= label_smoothing <= 1.0:
        raise ValueError(f"cross_entropy was given label_smoothing={label_smoothing}; wanted a "
                         "number from 0 to 1")
    same_dtype("cross_entropy", input=input)
    constant = class_weights("cross_entropy", input, weight)
    shape = input._array.shape
    if shape and not shape[class_axis(len(shape))]:
        raise ValueError(f"cross_entropy was given an input of shape {shape}; wanted at least one "
                         "class")
    if shape and target._array.dtype.kind in "fV" and target._array.shape == shape:
        if ignore_index >= 0:
            raise ValueError(f"cross_entropy was given ignore_index={ignore_index} and a target of "
                             "probabilities; wanted class indices")
        same_dtype("cross_entropy", input=input, target=target)
        return soft_cross_entropy(
            input, target, constant, reduction=reduction, label_smoothing=label_smoothing)
    check_targets("cross_entropy", input, target, ignore_index)
    options: Params = {"reduction": reduction, "ignore_index": ignore_index,
                       "label_smoothing": label_smoothing}
    if of_half(input) and current_casts():
        options["dtype"] = FLOAT32  # of the loss: halves are read as they are
    return cross_entropy_op(input, target, constant, **options)


@takes_arrays
def nll_loss(
    input: Tensor, target: Tensor, weight: Tensor | None = None, *, ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:
    """Minus the log-probabilities at the class indices; arguments as for cross_entropy.

    input is (N, C, ...), target (N, ...). Raises ValueError for other shapes, and for a class index
    out of range. On a GPU the range is not checked, since that would wait, and such an index
    selects any class; GTENSOR_DEBUG=1 checks it.
    """
    check_reduction("nll_loss", reduction)
    same_dtype("nll_loss", input=input)
    check_targets("nll_loss", input, target, ignore_index)
    input, constant = autocast("float32", input, class_weights("nll_loss", input, weight))
    classes = input.shape[class_axis(input.ndim)]
    losses = -pick_class(input, target, ignore_index=ignore_index, classes=classes)
    counts = (target != ignore_index).astype(computed_in(input.dtype))
    if constant is not None:
        beside = (*constant.shape, *(1,) * (input.ndim - 1 - class_axis(input.ndim)))
        wide = recorded.broadcast_to(recorded.reshape(constant, shape=beside), shape=input.shape)
        heavy = pick_class(wide, target, ignore_index=ignore_index, classes=classes)
        losses, counts = losses * heavy, counts * heavy
    if reduction == "none":
        return losses
    total, mass = losses.sum(), counts.sum()
    if reduction == "sum":
        return total
    mass = recorded.where(recorded.equal(mass, 0), float("nan"), mass)  # no rows: NaN, unwarned
    return (total / mass).to(input.dtype)

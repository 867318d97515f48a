"""Class indices: checks, picking the entry of a class, one-hot targets.

The axis of the classes is axis 1 of (N, C, d1, ...), or the only axis of (C,).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gtensor.backend import device_of
from gtensor.engine.handle.namespaces import raw
from gtensor.engine.handle.tensor import Tensor, wrap
from gtensor.engine.tape.execute import run_noted
from gtensor.engine.tape.levels import Traced, underlying
from gtensor.engine.tape.op import op
from gtensor.engine.tape.samples import Sample, below, normal
from gtensor.ops.arrange.index_keys import are_checked
from gtensor.ops.arrange.shape import first_tangent, reshape
from gtensor.ops.define.arguments import same_dtype, takes_arrays
from gtensor.ops.define.batching import (
    Inputs,
    Mapped,
    batch_axis_at,
    batch_axis_first,
    batch_size,
    spread,
)
from gtensor.ops.define.path_builders import placed, settled
from gtensor.ops.define.pointwise import zero_tangent
from gtensor.system.bus import bus, here

if TYPE_CHECKING:
    from types import ModuleType

    from gtensor.backend import Device
    from gtensor.backend.typing import Array, DTypeLike, Params, Path
    from gtensor.engine.handle.namespaces import Namespace

__all__: list[str] = []  # one_hot is public in gtensor.nn.functional


def class_axis(ndim: int) -> int:
    """Where the classes are, in scores of `ndim` axes."""
    return min(1, ndim - 1)


def check_targets(name: str, scores: Tensor, target: Tensor, ignore_index: int) -> None:
    """Raise unless `target` holds class indices for scores (N, C, d1, ...) or (C,).

    ValueError for shapes and for indices out of range, TypeError for the dtype. See `check_range`.
    """
    shape, given = scores._array.shape, target._array
    if not shape:
        raise ValueError(f"{name} was given scores of shape (); wanted (C,) or (N, C, ...)")
    axis = class_axis(len(shape))
    wanted = shape[:axis] + shape[axis + 1:]
    if given.shape != wanted:
        raise ValueError(f"{name} was given targets of shape {given.shape} for scores of shape "
                         f"{shape}; wanted shape {wanted}")
    if given.dtype.kind not in "iu":
        raise TypeError(f"{name} was given targets of dtype {given.dtype}; wanted integer class "
                        "indices")
    check_range(name, "target", target, shape[axis], ignore_index)


def check_range(
    name: str, what: str, indices: Tensor, limit: int, ignored: int | None = None
) -> None:
    """Raise ValueError for indices outside 0..limit-1 (except `ignored`).

    On a GPU, where reading the values would wait, with GTENSOR_DEBUG=1 only, or if the limit is 0.
    """
    device = indices._device
    if not are_checked(device):
        if not limit and indices.size:  # which needs no values
            raise ValueError(f"{name} was given {indices.size} indices, each a {what}, and nothing "
                             "that they can choose from; wanted at least one")
        return
    given = underlying(indices)._array, name, what, limit, ignored
    if bus.listeners and here.recorder is not None:
        run_noted("check_range", device, _refuse_outside, *given)
    else:
        _refuse_outside(*given)


def _refuse_outside(
    values: Array, name: str, what: str, limit: int, ignored: int | None
) -> None:
    if not isinstance(values, np.ndarray):
        values = device_of(values).to_numpy(values)
    if not values.size:
        return
    lowest, highest = int(values.min()), int(values.max())
    if lowest >= 0 and highest < limit:
        return
    bad = (values < 0) | (values >= limit)
    if ignored is not None:
        bad &= values != ignored
    if bad.any():
        also = "" if ignored is None else f", or {ignored} to ignore it"
        raise ValueError(f"{name} was given the {what} {int(values[bad][0])}; wanted 0 to "
                         f"{limit - 1}{also}")


def valid(target: Array, ignore_index: int) -> tuple[Array, Array]:
    """Indices with ignored ones replaced by 0, and the mask of those that count."""
    counts = target != ignore_index
    return (target * counts).astype(np.int64), counts


# -- picking the entry of a class, and its adjoint -----------------------------------------------


def _pick_path(
    device: Device, x: Array, target: Array, *, ignore_index: int, classes: int,
    out: Array | None = None
) -> Array:
    axis = class_axis(x.ndim)
    places, counts = valid(device.xp.expand_dims(target, axis), ignore_index)
    picked = device.xp.take_along_axis(x, places, axis=axis)
    return settled(raw[device.type].where(counts, picked, 0).squeeze(axis), out)


def _place_path(
    device: Device, g: Array, target: Array, *, ignore_index: int, classes: int,
    out: Array | None = None
) -> Array:
    axis = class_axis(g.ndim + 1)
    if out is None:
        out = device.empty((*g.shape[:axis], classes, *g.shape[axis:]), g.dtype, "place_class")
    out[...] = 0
    places, counts = valid(device.xp.expand_dims(target, axis), ignore_index)
    # selected, not multiplied: what arrives at an ignored row may be infinite
    where = raw[device.type].where
    values = where(counts, device.xp.expand_dims(g, axis), 0)
    if device.type == "cpu":
        np.put_along_axis(out, places, values, axis=axis)
    else:
        hit = places == _all_classes(device.xp, classes, out.ndim - axis)
        out[...] = where(hit, values, 0)
    return out


def _all_classes(xp: ModuleType, classes: int, ndim: int) -> Array:
    """0 to classes - 1 along the first of `ndim` axes."""
    return xp.arange(classes).reshape((classes,) + (1,) * (ndim - 1))


def _pick_samples(adjoint: bool) -> list[Sample]:
    cases = (((4, 3), (4,)), ((2, 3, 5), (2, 5)), ((3,), ()), ((0, 3), (0,)))
    return [Sample((rest if adjoint else full, rest), (normal, below(3)),
                   {"ignore_index": 1, "classes": 3}) for full, rest in cases]


def _pick_reference(torch: Any, x: Any, target: Any, ignore_index: int, classes: int) -> Any:
    return -torch.nn.functional.nll_loss(
        x, target.long(), ignore_index=ignore_index, reduction="none")


# -- examples: beside each other, so that what they share is repeated as a view --------------------


def scores_beside(ns: Namespace, x: Any, mapped: bool, size: int) -> Any:
    """Scores (N, B, C, ...) as a view (B, C, N, ...); (N, C) as they stand."""
    x = spread(ns, x, mapped, size)
    return batch_axis_at(ns, x, 2 if x.ndim > 2 else 0)


def first_of_scores(ns: Namespace, x: Any) -> Any:
    """The inverse of `scores_beside`."""
    return batch_axis_first(ns, x, 2 if x.ndim > 2 else 0)


def rows_beside(ns: Namespace, x: Any, mapped: bool, size: int, ndim: int) -> Any:
    """Rows (N, B, ...) of scores with `ndim` axes in an example as a view (B, N, ...)."""
    return batch_axis_at(ns, spread(ns, x, mapped, size), min(1, ndim - 1))


def _pick_batch(
    ns: Namespace, run: Path, inputs: Inputs, mapped: Mapped, params: Params
) -> Any:
    (x, target), size = inputs, batch_size(inputs, mapped)
    ndim = x.ndim - mapped[0]
    picked = run(scores_beside(ns, x, mapped[0], size),
                 rows_beside(ns, target, mapped[1], size, ndim), **params)
    return batch_axis_first(ns, picked, min(1, ndim - 1))


def _place_batch(
    ns: Namespace, run: Path, inputs: Inputs, mapped: Mapped, params: Params
) -> Any:
    size, ndim = batch_size(inputs, mapped), inputs[0].ndim - mapped[0] + 1
    rows = [rows_beside(ns, x, m, size, ndim) for x, m in zip(inputs, mapped, strict=True)]
    return first_of_scores(ns, run(*rows, **params))


pick_class = op(
    "pick_class", flops=0, **placed(_pick_path), saves={"x": "target"},
    backward=lambda ns, step, g: step.give(0, ns.place_class(g, step.saved[0], **step.params)),
    tangent=first_tangent("pick_class"), batch=_pick_batch,
    samples=_pick_samples(adjoint=False), reference=_pick_reference,
    doc="The entries of x (N, C, ...) at the classes in target (N, ...); 0 where it is ignored.",
)

place_class = op(
    "place_class", flops=0, **placed(_place_path), saves={"g": "target"},
    backward=lambda ns, step, g: step.give(0, ns.pick_class(g, step.saved[0], **step.params)),
    tangent=first_tangent("place_class"), batch=_place_batch,
    samples=_pick_samples(adjoint=True),
    doc="Zeros (N, C, ...) with g (N, ...) at the classes in target: the adjoint of pick_class.",
)


# -- one-hot -------------------------------------------------------------------------------------


def _class_targets_path(
    device: Device, target: Array, *, classes: int, ignore_index: int, smoothing: float,
    dtype: DTypeLike, out: Array | None = None
) -> Array:
    axis = class_axis(target.ndim + 1)
    if out is None:
        shape = (*target.shape[:axis], classes, *target.shape[axis:])
        out = device.empty(shape, dtype, "class_targets")
    places, counts = valid(device.xp.expand_dims(target, axis), ignore_index)
    if device.type == "cpu":
        out[...] = smoothing / classes if smoothing else 0
        top = 1 - smoothing + smoothing / classes if smoothing else 1
        np.put_along_axis(out, places, np.asarray(top, dtype), axis=axis)
    else:
        out[...] = places == _all_classes(device.xp, classes, out.ndim - axis)
        if smoothing:
            out *= 1 - smoothing
            out += smoothing / classes
    out *= counts.astype(dtype)
    return out


class_targets = op(
    "class_targets", flops=0, **placed(_class_targets_path), backward=None,
    tangent=zero_tangent, batch=_place_batch,
    samples=[Sample((shape,), below(3), {
        "classes": 3, "ignore_index": -100, "smoothing": 0.0, "dtype": np.dtype(np.float64)})
        for shape in ((4,), (2, 5), (), (0,))],
    doc="Probabilities (N, C, ...) of the classes in target (N, ...), smoothed; 0 where ignored.",
)


def class_weights(name: str, scores: Tensor, weight: Tensor | None) -> Tensor | None:
    """A copy of the weights: a loss may be differentiated after they changed."""
    if weight is None:
        return None
    classes = scores.shape[class_axis(scores.ndim)] if scores.ndim else 0
    if weight.shape != (classes,):
        raise ValueError(f"{name} was given a weight of shape {weight.shape} for {classes} "
                         f"classes; wanted ({classes},)")
    if weight._current_node(name) is not None:
        raise ValueError(f"{name} was given a weight that requires a gradient; it is a constant: "
                         "detach() it first")
    same_dtype(name, input=scores, weight=weight)
    if isinstance(weight, Traced):
        return weight.detach()
    return wrap(run_noted("copy", weight.device, weight.device.copy, weight._array), weight.device)


@takes_arrays
def one_hot(tensor: Tensor, num_classes: int = -1) -> Tensor:
    """Integers (...) in [0, num_classes) as int64 rows (..., num_classes) with one 1 each.

    num_classes=-1 means the largest index + 1; on a GPU this waits for it.

    Raises TypeError for a tensor that is not of integers, ValueError for an index out of range and
    for no classes. On a GPU the range is not checked, since that would wait, and such an index has
    a row of zeros; GTENSOR_DEBUG=1 checks it.
    """
    if tensor.dtype.kind not in "iu":
        raise TypeError(f"one_hot was given a tensor of dtype {tensor.dtype}; wanted integers")
    if num_classes == -1:
        if not tensor.size:
            raise ValueError("one_hot was given no indices and num_classes=-1; wanted one of both")
        num_classes = int(tensor.max().item()) + 1
    if num_classes < 1:
        raise ValueError(f"one_hot was given num_classes={num_classes}; wanted 1 or more")
    check_range("one_hot", "index", tensor, num_classes)
    rows = class_targets(reshape(tensor, -1), classes=num_classes, ignore_index=-1, smoothing=0.0,
                         dtype=np.dtype(np.int64))
    return reshape(rows, (*tensor.shape, num_classes))

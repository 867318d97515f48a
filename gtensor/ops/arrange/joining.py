"""Joining, splitting and repeating: concat and stack copy, unstack gives views."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from gtensor.backend import refuse_mask
from gtensor.engine.handle.tensor import Tensor, wrap
from gtensor.engine.tape.op import op
from gtensor.engine.tape.samples import Sample, normal
from gtensor.ops.arrange.index import get_item, take
from gtensor.ops.arrange.shape import (
    along,
    axis_index,
    broadcast_to,
    expand_dims,
    flatten,
    integers,
    linear_tangent,
    reshape,
    resized,
)
from gtensor.ops.define.arguments import all_tensors, given_axis, takes_arrays
from gtensor.ops.define.batching import trailing, unchanged
from gtensor.ops.define.path_builders import placed
from gtensor.system.bus import bus, here

if TYPE_CHECKING:
    from gtensor.backend import Device
    from gtensor.backend.typing import Array, Params
    from gtensor.engine.handle.namespaces import Namespace
    from gtensor.engine.walk.typing import Step, Values

__all__ = ["concat", "repeat", "stack", "tile", "unstack"]

METHODS = ("repeat",)
_COPIES = 16  # repetitions up to which each is a copy of its own


# -- concat ----------------------------------------------------------------------------------------


def _concat_path(
    device: Device, *arrays: Array, axis: int, sizes: tuple[int, ...], out: Array | None = None
) -> Array:
    if out is None:
        shape = resized(arrays[0].shape, axis, sum(sizes))
        dtype = np.result_type(*[a.dtype for a in arrays])
        out = device.empty(shape, dtype, "concat")
    start = 0
    for a, size in zip(arrays, sizes, strict=True):
        out[along(axis, start, start + size)] = a
        start += size
    return out


def _concat_backward(ns: Namespace, step: Step, g: Array) -> None:
    """Every input gets a view of its part of g: no new memory."""
    axis, sizes, start = step.params["axis"], step.params["sizes"], 0
    last = max(i for i in range(len(sizes)) if step.needs(i))
    for i, size in enumerate(sizes):
        if step.needs(i):
            part = ns.slice(g, key=along(axis, start, start + size))
            (step.give if i == last else step.lend)(i, part)
        start += size


def _concat_tangent(
    ns: Namespace, primals: Values, tangents: Values, out: Array, params: Params
) -> Array:
    parts = [ns.zero_gradient(p) if t is None else t
             for p, t in zip(primals, tangents, strict=True)]
    return ns.concat(*parts, **params)


_concat_op = op(
    "concat", flops=0, inputs="", variadic=True, **placed(_concat_path), complex=True,
    backward=_concat_backward, tangent=_concat_tangent, batch=trailing,
    samples=[Sample(((2, 3), (4, 3)), normal, {"axis": -2, "sizes": (2, 4)}),
             Sample(((2, 3), (2, 0), (2, 1)), normal, {"axis": -1, "sizes": (3, 0, 1)})],
    reference=lambda torch, *xs, axis, sizes: torch.cat(xs, dim=axis),
    doc="The inputs joined along an axis: a copy in their common dtype.",
)


def concat(arrays: Sequence[Tensor], /, axis: int | None = 0, *, dim: int | None = None) -> Tensor:
    """The tensors joined along `axis`, which alone may differ; flattened first for axis=None.

    The result has their common dtype. Raises ValueError if the shapes do not fit.
    """
    if dim is not None:
        axis = given_axis("concat", axis, dim, 0)
    tensors = _tensors("concat", arrays)
    if axis is None:
        tensors, axis = [flatten(t) for t in tensors], 0
    first = tensors[0]
    axis = axis_index(axis, first.ndim, "concat")
    for t in tensors[1:]:
        if t.ndim != first.ndim or any(
                n != m for i, (n, m) in enumerate(zip(t.shape, first.shape, strict=True))
                if i != axis):
            raise ValueError(f"concat along axis {axis} of shapes {first.shape} and {t.shape}; "
                             "wanted shapes that differ in that axis only")
    return _concat_op(*tensors, axis=axis - first.ndim,
                      sizes=tuple(t.shape[axis] for t in tensors))


def stack(arrays: Sequence[Tensor], /, axis: int = 0, *, dim: int | None = None) -> Tensor:
    """The tensors, of one shape, joined along a new axis at `axis` of the result.

    Raises ValueError if the shapes differ.
    """
    if dim is not None:
        axis = given_axis("stack", axis, dim, 0)
    tensors = _tensors("stack", arrays)
    first = tensors[0]
    place = axis_index(axis, first.ndim + 1, "stack")
    for t in tensors[1:]:
        if t.shape != first.shape:
            raise ValueError(f"stack of shapes {first.shape} and {t.shape}; wanted equal shapes")
    return concat([expand_dims(t, place) for t in tensors], place)


def _tensors(name: str, arrays: Sequence[Tensor]) -> list[Tensor]:
    """The arguments of a function that joins, at least one of them."""
    tensors = all_tensors(name, "arrays", arrays)
    if not tensors:
        raise ValueError(f"{name} of no tensors; wanted at least one")
    return tensors


@takes_arrays
def unstack(x: Tensor, /, axis: int = 0, *, dim: int | None = None) -> tuple[Tensor, ...]:
    """The slices of x along `axis`, without that axis: views.

    A tuple of as many tensors as the axis is long. Raises AxisError for an axis that there is not.
    """
    if dim is not None:
        axis = given_axis("unstack", axis, dim, 0)
    place = axis_index(axis, x.ndim, "unstack")
    return tuple(get_item(x, (slice(None),) * place + (i,)) for i in range(x.shape[place]))


# -- repetition: views that share memory, then one copy --------------------------------------------


@takes_arrays
def tile(x: Tensor, repetitions: Sequence[int], /) -> Tensor:
    """x as a tile, laid `repetitions` times along each axis (of more axes than x has, or fewer).

    Raises ValueError for a negative number of repetitions.
    """
    counts = integers(repetitions)
    if any(n < 0 for n in counts):
        raise ValueError(f"tile with repetitions {counts}; wanted 0 or more of each axis")
    ndim = max(len(counts), x.ndim)
    counts = (1,) * (ndim - len(counts)) + counts
    sizes = (1,) * (ndim - x.ndim) + x.shape
    apart = reshape(x, tuple(n for size in sizes for n in (1, size)))
    pairs = list(zip(counts, sizes, strict=True))
    laid = broadcast_to(apart, tuple(n for pair in pairs for n in pair))
    return reshape(laid, tuple(c * n for c, n in pairs), copy=True)


def _repeat_path(
    device: Device, x: Array, *, count: int, axis: int, out: Array | None = None
) -> Array:
    if out is None:
        whole = resized(x.shape, axis, x.shape[axis] * count)
        out = device.empty(whole, x.dtype, "repeat")
    apart = out.reshape(_apart(x.shape, axis, count))  # a view: an axis is split
    behind: tuple[slice | int | None, ...] = (slice(None),) * (-axis - 1)
    if count > _COPIES:
        apart[...] = x[(..., None, *behind)]
    else:  # NumPy is slow at many short runs
        for k in range(count):
            apart[(..., k, *behind)] = x
    return out


def _apart(shape: tuple[int, ...], axis: int, count: int) -> tuple[int, ...]:
    """The shape with the repetitions as an axis of their own, behind `axis`."""
    return (*shape[:axis], shape[axis], count, *shape[axis:][1:])


def _repeat_backward(ns: Namespace, step: Step, g: Array) -> None:
    axis, count = step.params["axis"], step.params["count"]
    parts = ns.reshape(g, shape=_apart(step.shape(0), axis, count))
    step.give(0, ns.sum(parts, axis=(axis,), keepdims=False))


_repeat_op = op(
    "repeat", flops=0, **placed(_repeat_path), complex=True,
    backward=_repeat_backward, tangent=linear_tangent("repeat"), batch=unchanged,
    samples=[Sample((s,), normal, {"axis": a, "count": n})
             for s, a, n in (((5,), -1, 3), ((2, 3), -1, 20), ((2, 3, 2), -2, 2), ((2, 0), -2, 2),
                             ((3,), -1, 0))],
    reference=lambda torch, x, axis, count: torch.repeat_interleave(x, count, axis),
    doc="Each slice along an axis `count` times, one after the other: a copy.",
)


@takes_arrays
def repeat(
    x: Tensor, repeats: int | Tensor, /, axis: int | None = None, *, dim: int | None = None
) -> Tensor:
    """Each element of x (flattened for axis=None), or each slice along `axis`, `repeats` times.

    So it is in NumPy; PyTorch's `x.repeat` is `tile`, its `repeat_interleave` is this one.

    A tensor of repeats has one count for all, or one for each; on a GPU it is waited for, since the
    result's shape depends on it. Raises ValueError for negative or misfitting counts.

    With a count for each, a GPU sums up the gradient by atomics; GTENSOR_REPEATABLE=1 makes its
    bits repeat.
    """
    if dim is not None:
        axis = given_axis("repeat", axis, dim)
    if axis is None:
        x, axis = flatten(x), 0
    place = axis_index(axis, x.ndim, "repeat")
    counts = _counts(repeats)
    size = x.shape[place]
    if counts.size != 1:
        if counts.shape != (size,):
            raise ValueError(f"repeat with repeats of shape {counts.shape} along an axis of size "
                             f"{size}; wanted one count, or one for each")
        indices = x.device.from_numpy(np.repeat(np.arange(size), counts))
        if bus.listeners and here.recorder is not None:
            here.recorder.literal(repeats, x.device, indices)
        return take(x, wrap(indices, x.device), axis=place)
    return _repeat_op(x, count=int(counts.item()), axis=place - x.ndim)


def _counts(repeats: int | Tensor) -> np.ndarray:
    """The numbers of repetitions on the host, checked."""
    on_host: object = repeats
    if isinstance(repeats, Tensor):
        repeats._note_read("the counts of repeat")
        on_host = repeats.device.to_numpy(repeats._array)
    refuse_mask(on_host, "repeat")
    counts = np.asarray(on_host)
    if counts.dtype.kind not in "iu" and counts.size:
        raise TypeError(f"repeat with repeats of dtype {counts.dtype}; wanted integers")
    if counts.size and counts.min() < 0:
        raise ValueError(f"repeat with repeats of {counts.min()}; wanted 0 or more")
    return counts.astype(np.int64)

"""Joining, splitting and repeating: concat and stack copy, unstack gives views."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gtensor.backend import refuse_mask
from gtensor.engine.handle.tensor import Tensor, wrap
from gtensor.engine.run.call_text import short_join
from gtensor.engine.tape.op import op
from gtensor.engine.tape.samples import Sample, normal
from gtensor.ops.arrange.index import get_item, take
from gtensor.ops.arrange.shape import (
    along,
    axis_index,
    broadcast_to,
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
from gtensor.system.written_code import entrance

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
        first, *rest = arrays
        dtype = first.dtype
        shape = resized(first.shape, axis, sum(sizes))
        for a in rest:
            if a.dtype is not dtype:
                dtype = np.result_type(*[a.dtype for a in arrays])
                break
        else:
            if device.type == "cpu":  # in its own order NumPy would keep that of the inputs
                return np.concatenate(arrays, axis, device.empty(shape, dtype, "concat"))
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
    return ns.concat(*_filled(ns, primals, tangents), **params)


def _filled(ns: Namespace, primals: Values, tangents: Values) -> list[Array]:
    """The tangents, zeros where there is none."""
    return [ns.zero_gradient(p) if t is None else t
            for p, t in zip(primals, tangents, strict=True)]


_concat_op = op(
    "concat", flops=0, inputs="", variadic=True, **placed(_concat_path), complex=True,
    backward=_concat_backward, tangent=_concat_tangent, batch=trailing,
    samples=[Sample(((2, 3), (4, 3)), normal, {"axis": -2, "sizes": (2, 4)}),
             Sample(((2, 3), (2, 0), (2, 1)), normal, {"axis": -1, "sizes": (3, 0, 1)})],
    reference=lambda torch, *xs, axis, sizes: torch.cat(xs, dim=axis),
    doc="The inputs joined along an axis: a copy in their common dtype.",
)


# -- stack -----------------------------------------------------------------------------------------


def _stack_path(
    device: Device, *arrays: Array, axis: int, out: Array | None = None
) -> Array:
    shape = arrays[0].shape
    place = len(shape) + 1 + axis
    if out is None:
        dtype = arrays[0].dtype
        for a in arrays:
            if a.dtype is not dtype:
                dtype = np.result_type(*[a.dtype for a in arrays])
                break
        out = device.empty((*shape[:place], len(arrays), *shape[place:]), dtype, "stack")
        if device.type == "cpu" and axis < -1 and arrays[0].dtype is dtype:
            # the new axis and the one after it are one, along which NumPy joins
            merged = (*shape[:place], len(arrays) * shape[place], *shape[place + 1:])
            np.concatenate(arrays, place, out.reshape(merged))
            return out
    rest: Any = (slice(None),) * (-axis - 1)
    for i, a in enumerate(arrays):
        out[(..., i, *rest)] = a
    return out


def _stack_backward(ns: Namespace, step: Step, g: Array) -> None:
    """Every input gets a view of its part of g: no new memory."""
    rest: tuple[slice, ...] = (slice(None),) * (-step.params["axis"] - 1)
    wanted = [i for i in range(len(step.parents)) if step.needs(i)]
    for i in wanted:
        part = ns.slice(g, key=(..., i, *rest))
        (step.give if i == wanted[-1] else step.lend)(i, part)


def _stack_tangent(
    ns: Namespace, primals: Values, tangents: Values, out: Array, params: Params
) -> Array:
    return ns.stack(*_filled(ns, primals, tangents), **params)


_stack_op = op(
    "stack", flops=0, inputs="", variadic=True, **placed(_stack_path), complex=True,
    backward=_stack_backward, tangent=_stack_tangent, batch=trailing,
    samples=[Sample(((2, 3), (2, 3)), normal, {"axis": -3}),
             Sample(((2, 3),) * 3, normal, {"axis": -1}),
             Sample(((2, 0), (2, 0)), normal, {"axis": -2}),
             Sample(((), ()), normal, {"axis": -1})],
    reference=lambda torch, *xs, axis: torch.stack(xs, dim=axis),
    doc="The inputs, of one shape, joined along a new axis: a copy in their common dtype.",
)


# -- public ----------------------------------------------------------------------------------------


_SHORT_CONCAT = """
shape, place = a1.shape, axis if axis >= 0 else axis + a1.ndim
if dim is None and type(axis) is int and 0 <= place < len(shape):
    sizes = [a.shape[place] for a in made]
    joined = empty((*shape[:place], sum(sizes), *shape[place + 1:]), dtype)
    out = concatenate(made, place, joined)  # NumPy's own would keep the order of the inputs
"""
_SHORT_STACK = """
shape, place = a1.shape, axis if axis >= 0 else axis + a1.ndim + 1
if dim is None and type(axis) is int and 0 <= place < len(shape):
    for a in made:
        if a.shape != shape:
            break
    else:  # the new axis and the one after it are one, along which NumPy joins
        before, after = shape[:place], shape[place:]
        out = empty((*before, len(made), *after), dtype)
        concatenate(made, place, out.reshape((*before, len(made) * shape[place], *after[1:])))
"""
_NUMPY = {"empty": np.empty, "concatenate": np.concatenate}


@short_join(_concat_op, _SHORT_CONCAT, "{'axis': place - len(shape), 'sizes': tuple(sizes)}",
            **_NUMPY)
@entrance
def concat(arrays: Sequence[Tensor], /, axis: int | None = 0, *, dim: int | None = None) -> Tensor:
    """The tensors joined along `axis`, which alone may differ; flattened first for axis=None.

    The result has their common dtype. Raises ValueError if the shapes do not fit.
    """
    if dim is not None:
        axis = given_axis("concat", axis, dim, 0)
    tensors = _tensors("concat", arrays)
    if axis is None:
        tensors, axis = [flatten(t) for t in tensors], 0
    shape = tensors[0]._array.shape
    axis = axis_index(axis, len(shape), "concat")
    sizes = []
    for t in tensors:
        other = t._array.shape
        if other != shape and (len(other) != len(shape) or other[:axis] != shape[:axis]
                               or other[axis + 1:] != shape[axis + 1:]):
            raise ValueError(f"concat along axis {axis} of shapes {shape} and {other}; "
                             "wanted shapes that differ in that axis only")
        sizes.append(other[axis])
    return _concat_op(*tensors, axis=axis - len(shape), sizes=tuple(sizes))


@short_join(_stack_op, _SHORT_STACK, "{'axis': place - len(shape) - 1}", **_NUMPY)
@entrance
def stack(arrays: Sequence[Tensor], /, axis: int = 0, *, dim: int | None = None) -> Tensor:
    """The tensors, of one shape, joined along a new axis at `axis` of the result.

    Raises ValueError if the shapes differ.
    """
    if dim is not None:
        axis = given_axis("stack", axis, dim, 0)
    tensors = _tensors("stack", arrays)
    shape = tensors[0]._array.shape
    place = axis_index(axis, len(shape) + 1, "stack")
    for t in tensors:
        if t._array.shape != shape:
            raise ValueError(f"stack of shapes {shape} and {t.shape}; wanted equal shapes")
    return _stack_op(*tensors, axis=place - len(shape) - 1)


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

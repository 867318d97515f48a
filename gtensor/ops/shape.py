"""Shape: views where memory allows, copies where it does not."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from gtensor.backend import Device, device_of, get_device
from gtensor.core.op import op
from gtensor.core.samples import Sample, normal, unary
from gtensor.core.tensor import Tensor

__all__ = [
    "astype", "broadcast_to", "clone", "concat", "expand_dims", "flatten", "matrix_transpose",
    "permute_dims", "reshape", "squeeze", "stack",
]

Shape = int | Sequence[int]


METHODS = ("reshape", "permute_dims", "flatten", "squeeze", "transpose", "matrix_transpose",
           "astype", "clone", "to_device")


def linear_tangent(name: str) -> Any:
    """The tangent of a linear op is the op, applied to the tangents."""

    def tangent(ns: Any, primals: Any, tangents: Any, out: Any, params: dict[str, Any]) -> Any:
        return getattr(ns, name)(*tangents, **params)

    return tangent


# -- reshape ---------------------------------------------------------------------------------------


def _reshape(x: Any, *, shape: tuple[int, ...], out: Any = None) -> Any:
    if out is None:
        return x.reshape(shape)
    out[...] = x.reshape(shape)
    return out


def _reshape_backward(ns: Any, step: Any, g: Any) -> None:
    step.give(0, ns.reshape(g, shape=step.shape(0)))


_reshape_op = op(
    "reshape", cpu=_reshape, gpu=_reshape, view=True,
    backward=_reshape_backward, tangent=linear_tangent("reshape"),
    samples=[Sample(((2, 6),), normal, {"shape": (3, 4)}),
             Sample(((0, 3),), normal, {"shape": (3, 0)}),
             Sample(((),), normal, {"shape": (1, 1)}), Sample(((4,),), normal, {"shape": (2, 2)})],
    reference=lambda torch, x, shape: x.reshape(shape),
)


def reshape(x: Tensor, shape: Shape) -> Tensor:
    """`x` in another shape of as many elements; one entry may be -1. A view if x is contiguous.

    Raises ValueError if the number of elements differs.
    """
    wanted = (shape,) if isinstance(shape, int) else tuple(int(n) for n in shape)
    if wanted.count(-1) == 1:
        known = prod(n for n in wanted if n != -1)
        if known and x.size % known == 0:
            wanted = tuple(x.size // known if n == -1 else n for n in wanted)
    if any(n < 0 for n in wanted) or prod(wanted) != x.size:
        raise ValueError(f"reshape of a tensor of shape {x.shape} ({x.size} elements) to {shape}; "
                         "wanted a shape of as many elements, with at most one -1")
    return _reshape_op(x, shape=wanted)


def flatten(x: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    """Axes start_dim to end_dim as one. A view where memory allows."""
    if not x.ndim:
        return reshape(x, (1,))
    first, last = start_dim % x.ndim, end_dim % x.ndim
    if not (-x.ndim <= start_dim < x.ndim and -x.ndim <= end_dim < x.ndim) or first > last:
        raise ValueError(
            f"flatten of axes {start_dim} to {end_dim} of a tensor of {x.ndim} dimensions")
    return reshape(x, (*x.shape[:first], prod(x.shape[first:last + 1]), *x.shape[last + 1:]))


def squeeze(x: Tensor, axis: int | tuple[int, ...]) -> Tensor:
    """Without the axes given, which must have size 1."""
    axes = (axis,) if isinstance(axis, int) else axis
    if any(not -x.ndim <= a < x.ndim or x.shape[a] != 1 for a in axes):
        raise ValueError(f"squeeze of axis {axis} of a tensor of shape {x.shape}; "
                         "wanted axes of size 1")
    gone = {a % x.ndim for a in axes}
    return reshape(x, tuple(n for i, n in enumerate(x.shape) if i not in gone))


def expand_dims(x: Tensor, axis: int = 0) -> Tensor:
    """With a new axis of size 1 at `axis`."""
    if not -x.ndim - 1 <= axis <= x.ndim:
        raise ValueError(f"expand_dims at axis {axis} of a tensor of {x.ndim} dimensions")
    place = axis % (x.ndim + 1)
    return reshape(x, (*x.shape[:place], 1, *x.shape[place:]))


# -- permute_dims ----------------------------------------------------------------------------------


def _permute(x: Any, *, axes: tuple[int, ...], out: Any = None) -> Any:
    if out is None:
        return x.transpose(axes)
    out[...] = x.transpose(axes)
    return out


def _permute_backward(ns: Any, step: Any, g: Any) -> None:
    axes = step.params["axes"]
    step.give(0, ns.permute_dims(g, axes=tuple(axes.index(i) for i in range(len(axes)))))


_permute_op = op(
    "permute_dims", cpu=_permute, gpu=_permute, view=True,
    backward=_permute_backward, tangent=linear_tangent("permute_dims"),
    samples=[Sample(((2, 3),), normal, {"axes": (1, 0)}),
             Sample(((2, 3, 4),), normal, {"axes": (2, 0, 1)}),
             Sample(((0, 3),), normal, {"axes": (1, 0)}), Sample(((),), normal, {"axes": ()})],
    reference=lambda torch, x, axes: x.permute(axes),
)


def permute_dims(x: Tensor, axes: Sequence[int]) -> Tensor:
    """The axes in another order: a view. Raises ValueError unless `axes` names each axis once."""
    wanted = tuple(a % x.ndim if -x.ndim <= a < x.ndim else a for a in axes)
    if sorted(wanted) != list(range(x.ndim)):
        raise ValueError(f"permute_dims with axes {tuple(axes)} of a tensor of {x.ndim} "
                         "dimensions; wanted each axis once")
    return _permute_op(x, axes=wanted)


def matrix_transpose(x: Tensor) -> Tensor:
    """The last two axes swapped: a view."""
    if x.ndim < 2:
        raise ValueError(f"matrix_transpose of a tensor of shape {x.shape}; "
                         "wanted two axes or more")
    return _permute_op(x, axes=(*range(x.ndim - 2), x.ndim - 1, x.ndim - 2))


def transpose(x: Tensor) -> Tensor:
    """The transpose of a matrix: a view."""
    if x.ndim != 2:
        raise ValueError(f".T of a tensor of shape {x.shape}; wanted two axes: "
                         "use .mT or permute_dims")
    return _permute_op(x, axes=(1, 0))


# -- broadcast_to ----------------------------------------------------------------------------------


def _broadcast(x: Any, *, shape: tuple[int, ...], out: Any = None) -> Any:
    if out is None and 0 in shape:
        return device_of(x).empty(shape, x.dtype, "broadcast_to")  # NumPy's would be read-only
    if out is None and x.size == prod(shape):
        return x.reshape(shape)  # only axes of size 1 are new: an ordinary, writable view
    if out is None:
        return device_of(x).xp.broadcast_to(x, shape)
    out[...] = x
    return out


def _broadcast_backward(ns: Any, step: Any, g: Any) -> None:
    step.give(0, g)  # the step sums it to the input's shape


_broadcast_op = op(
    "broadcast_to", cpu=_broadcast, gpu=_broadcast, view=True,
    backward=_broadcast_backward, tangent=linear_tangent("broadcast_to"),
    samples=[Sample(((3,),), normal, {"shape": (2, 3)}),
             Sample(((2, 1),), normal, {"shape": (2, 4)}),
             Sample(((),), normal, {"shape": (3,)}), Sample(((1, 0),), normal, {"shape": (2, 0)})],
    reference=lambda torch, x, shape: x.expand(shape),
)


def broadcast_to(x: Tensor, shape: Shape) -> Tensor:
    """x repeated to `shape` without a copy: a view whose elements share memory."""
    wanted = (shape,) if isinstance(shape, int) else tuple(shape)
    try:
        fits = np.broadcast_shapes(x.shape, wanted) == wanted
    except ValueError:
        fits = False
    if not fits:
        raise ValueError(f"broadcast_to of a tensor of shape {x.shape} to {wanted}; each axis must "
                         "agree or be 1, counted from the last")
    return _broadcast_op(x, shape=wanted)


# -- concat ----------------------------------------------------------------------------------------


def _concat_path(*arrays: Any, axis: int, sizes: tuple[int, ...], out: Any = None) -> Any:
    if out is None:
        shape = list(arrays[0].shape)
        shape[axis] = sum(sizes)
        dtype = np.result_type(*[a.dtype for a in arrays])
        out = device_of(arrays[0]).empty(tuple(shape), dtype, "concat")
    start = 0
    for a, size in zip(arrays, sizes, strict=True):
        out[_along(axis, start, start + size)] = a
        start += size
    return out


def _along(axis: int, start: int, stop: int) -> tuple[slice, ...]:
    return (slice(None),) * axis + (slice(start, stop),)


def _concat_backward(ns: Any, step: Any, g: Any) -> None:
    """Every input gets a view of its part of g: no new memory."""
    axis, sizes, start = step.params["axis"], step.params["sizes"], 0
    last = max(i for i in range(len(sizes)) if step.needs(i))
    for i, size in enumerate(sizes):
        if step.needs(i):
            part = ns.slice(g, key=_along(axis, start, start + size))
            (step.give if i == last else step.lend)(i, part)
        start += size


def _concat_tangent(ns: Any, primals: Any, tangents: Any, out: Any, params: dict[str, Any]) -> Any:
    parts = [ns.multiply(p, 0) if t is None else t for p, t in zip(primals, tangents, strict=True)]
    return ns.concat(*parts, **params)


_concat_op = op(
    "concat", inputs="", variadic=True, cpu=_concat_path, gpu=_concat_path,
    backward=_concat_backward, tangent=_concat_tangent,
    samples=[Sample(((2, 3), (4, 3)), normal, {"axis": 0, "sizes": (2, 4)}),
             Sample(((2, 3), (2, 0), (2, 1)), normal, {"axis": 1, "sizes": (3, 0, 1)})],
    reference=lambda torch, *xs, axis, sizes: torch.cat(xs, dim=axis),
)


def concat(arrays: Sequence[Tensor], axis: int | None = 0) -> Tensor:
    """The tensors joined along `axis`, which alone may differ; flattened first for None."""
    tensors = list(arrays)
    if not tensors:
        raise ValueError("concat of no tensors; wanted at least one")
    if axis is None:
        tensors, axis = [flatten(t) for t in tensors], 0
    first = tensors[0]
    if not -first.ndim <= axis < first.ndim:
        raise ValueError(f"concat along axis {axis} of tensors of {first.ndim} dimensions")
    axis %= first.ndim
    for t in tensors[1:]:
        if t.ndim != first.ndim or any(
                n != m for i, (n, m) in enumerate(zip(t.shape, first.shape, strict=True))
                if i != axis):
            raise ValueError(f"concat along axis {axis} of shapes {first.shape} and {t.shape}; "
                             "wanted shapes that differ in that axis only")
    return _concat_op(*tensors, axis=axis, sizes=tuple(t.shape[axis] for t in tensors))


def stack(arrays: Sequence[Tensor], axis: int = 0) -> Tensor:
    """The tensors, of one shape, joined along a new axis."""
    return concat([expand_dims(t, axis) for t in arrays], axis)


# -- copies ----------------------------------------------------------------------------------------


def _astype_path(x: Any, *, dtype: Any, out: Any = None) -> Any:
    if out is None:
        return device_of(x).copy(x, dtype=dtype, label="astype")
    out[...] = x
    return out


_astype_op = op(
    "astype", cpu=_astype_path, gpu=_astype_path,
    backward=lambda ns, step, g: step.give(0, g),  # the step casts it to the input's dtype
    tangent=linear_tangent("astype"),
    samples=[Sample((s,), normal, {"dtype": np.dtype("float32")})
             for s in ((7,), (2, 3), (0,), ())],
    reference=lambda torch, x, dtype: x.to(torch.float32),
)


def astype(x: Tensor, dtype: Any) -> Tensor:
    """x in another dtype: a copy, or x itself if it has that dtype."""
    wanted = np.dtype(dtype)
    return x if x.dtype == wanted else _astype_op(x, dtype=wanted)


def _clone_path(x: Any, out: Any = None) -> Any:
    if out is None:
        return device_of(x).copy(x, label="clone")
    out[...] = x
    return out


clone = op(
    "clone", cpu=_clone_path, gpu=_clone_path,
    backward=lambda ns, step, g: step.give(0, g), tangent=linear_tangent("clone"),
    samples=unary(), reference=lambda torch, x: x.clone(),
    doc="A copy in memory of its own; gradients flow through it.",
)


def _to_device_path(x: Any, *, device: Device, out: Any = None) -> Any:
    source = device_of(x)
    moved = device.copy(x) if device is source else device.from_numpy(source.to_numpy(x))
    if out is None:
        return moved
    out[...] = moved
    return out


to_device = op(
    "to_device", cpu=_to_device_path, gpu=_to_device_path,
    backward=lambda ns, step, g: step.give(0, ns.to_device(g, device=step.parents[0].device)),
    tangent=linear_tangent("to_device"),
    samples=[Sample((s,), normal, {"device": get_device("cpu")}) for s in ((3,), (2, 0), ())],
    reference=lambda torch, x, device: x.clone(),
    doc="A copy on another device; its gradient comes back to this one.",
)

"""Shape: views where memory allows, copies where it does not."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from math import prod
from types import EllipsisType
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from gtensor.backend import Device, element_type, get_device
from gtensor.engine.handle.tensor import Tensor
from gtensor.engine.run.call_text import short_view
from gtensor.engine.tape.execute import name_shapes
from gtensor.engine.tape.op import op
from gtensor.engine.tape.samples import Sample, normal, unary
from gtensor.ops.define.arguments import all_tensors, given_axis, takes_arrays
from gtensor.ops.define.batching import broadcast_shape, in_order, to_shape, unchanged
from gtensor.ops.define.path_builders import placed, settled

if TYPE_CHECKING:
    from gtensor.backend.typing import Array, DTypeLike, Params, Path
    from gtensor.engine.handle.namespaces import Namespace
    from gtensor.engine.walk.typing import Step, Values

__all__ = [
    "astype", "broadcast_arrays", "broadcast_to", "clone", "expand_dims", "flatten",
    "matrix_transpose", "moveaxis", "permute_dims", "reshape", "squeeze",
]

Shape = int | Sequence[int]
Axes = int | Sequence[int]
F = TypeVar("F", bound=Callable[..., Any])

METHODS = ("reshape", "permute_dims", "flatten", "squeeze", "transpose", "matrix_transpose",
           "astype", "clone", "to_device")


def linear_tangent(name: str) -> Path:
    """The tangent of a linear op is the op, applied to the tangents."""

    def tangent(
        ns: Namespace, primals: Values, tangents: Values, out: Array, params: Params
    ) -> Array:
        return getattr(ns, name)(*tangents, **params)

    return tangent


def first_tangent(name: str) -> Path:
    """The tangent of an op that is linear in its first input, the others being indices."""

    def tangent(
        ns: Namespace, primals: Values, tangents: Values, out: Array, params: Params
    ) -> Array:
        return getattr(ns, name)(tangents[0], *primals[1:], **params)

    return tangent


_NO_SEQUENCES = (str, bytes, set, dict)  # though one can iterate over them


def integers(value: Axes) -> tuple[int, ...]:
    """One integer or several as a tuple. Raises TypeError for what is no integer, or unordered."""
    if isinstance(value, _NO_SEQUENCES):
        raise TypeError(f"{type(value).__name__} is no sequence of integers")  # the entrance tells
    return tuple(map(operator.index, value if isinstance(value, Iterable) else (value,)))


def axis_index(axis: int, ndim: int, op_name: str) -> int:
    """The axis counted from 0. Raises AxisError (a ValueError and an IndexError) if not there."""
    found = operator.index(axis)
    if -ndim <= found < ndim:
        return found % ndim
    wanted = f"{-ndim} to {ndim - 1}" if ndim else "at least one dimension"
    raise np.exceptions.AxisError(
        f"{op_name} along axis {axis} of a tensor of {ndim} dimensions; wanted {wanted}")


def lone(axis: Axes | None, ndim: int) -> bool:
    """Whether axis 0 or -1 is meant of a 0-d tensor: it counts as one element along it.

    So it does in what reduces, normalizes, sorts or accumulates along an axis, as in PyTorch;
    elsewhere a 0-d tensor has no axis.
    """
    return ndim == 0 and axis in (0, -1, (0,), (-1,))


def along_one(function: Callable[..., Tensor], x: Tensor, axis: int, name: str) -> Tensor:
    """`function(x, axis=)` by the axis from the end; `lone` ones are made, and left out after."""
    if lone(axis, x.ndim):
        return reshape(function(reshape(x, (1,)), axis=-1), ())
    return function(x, axis=from_end(axis_index(axis, x.ndim, name), x.ndim))


def from_end(axis: int, ndim: int) -> int:
    """An axis that is there, counted from the end, as in the parameters of ops.

    So a rule for fewer axes holds with further ones in front.
    """
    return axis - ndim if axis >= 0 else axis


def trailing_axes(axes: Axes, ndim: int, op_name: str) -> tuple[int, ...]:
    """`axis_indices`, counted from the end."""
    return tuple(a - ndim for a in axis_indices(axes, ndim, op_name))


def axis_indices(axes: Axes, ndim: int, op_name: str) -> tuple[int, ...]:
    """One axis or several as a tuple, counted from 0. Raises as `axis_index`, and for one twice."""
    found = tuple(axis_index(a, ndim, op_name) for a in integers(axes))
    if len(set(found)) != len(found):
        raise ValueError(f"{op_name} with axes {axes} of a tensor of {ndim} dimensions; wanted "
                         "each at most once")
    return found


def along(
    axis: int, start: int | None, stop: int | None, step: int | None = None
) -> tuple[slice | EllipsisType, ...]:
    """The key of start:stop:step along an axis from the end, all of the others."""
    return (..., slice(start, stop, step), *(slice(None),) * (-axis - 1))


def resized(shape: Sequence[int], axis: int, size: int) -> tuple[int, ...]:
    """The shape with another size of one axis, counted from the end."""
    return (*shape[:axis], size, *shape[axis:][1:])


# -- reshape ---------------------------------------------------------------------------------------


def _reshape(
    device: Device, x: Array, *, shape: tuple[int, ...], out: Array | None = None
) -> Array:
    if out is not None:
        out[...] = x.reshape(shape)
        return out
    view = _reshaped_view(device, x, shape)
    return device.copy(x, label="reshape").reshape(shape) if view is None else view


def _reshaped_view(device: Device, x: Array, shape: tuple[int, ...]) -> Array | None:
    """A view of x in the shape, or None if its elements lie so that only a copy can have it."""
    if x.flags.c_contiguous:
        return x.reshape(shape)
    try:
        return device.xp.reshape(x, shape, copy=False)
    except ValueError:
        return None


def _reshape_backward(ns: Namespace, step: Step, g: Array) -> None:
    step.give(0, ns.reshape(g, shape=step.shape(0)))


_reshape_op = op(
    "reshape", flops=0, **placed(_reshape), view=True, complex=True,
    backward=_reshape_backward, tangent=linear_tangent("reshape"), batch=to_shape,
    samples=[Sample(((2, 6),), normal, {"shape": (3, 4)}),
             Sample(((0, 3),), normal, {"shape": (3, 0)}),
             Sample(((),), normal, {"shape": (1, 1)}), Sample(((4,),), normal, {"shape": (2, 2)})],
    reference=lambda torch, x, shape: x.reshape(shape),
)


_OWN_SHAPE = "{'shape': out.shape}"
_SHORT_SHAPE = """
if len(shape) == 1 and type(shape[0]) is tuple:
    shape, = shape
if a1.flags.c_contiguous:
    view = a1.reshape(shape)
    if view.shape == shape or min(shape) == -1:  # NumPy takes other negative numbers for -1
        out = view
"""
_SHORT_RESHAPE = """
if copy is None and a1.flags.c_contiguous:
    view = a1.reshape(shape)
    if view.shape == shape or type(shape) is tuple and min(shape) == -1:
        out = view
"""


@short_view(_reshape_op, _SHORT_RESHAPE, _OWN_SHAPE)
@takes_arrays
def reshape(x: Tensor, /, shape: Shape, *, copy: bool | None = None) -> Tensor:
    """`x` in another shape of as many elements; one entry may be -1.

    copy=None copies only if the elements lie so that no view can have that shape; True always
    copies; False never does. Raises ValueError if the number of elements differs, or if copy=False
    and a copy is needed.
    """
    wanted, size = integers(shape), x._array.size
    if wanted.count(-1) == 1:
        known = prod(n for n in wanted if n != -1)
        if known and size % known == 0:
            wanted = tuple(size // known if n == -1 else n for n in wanted)
    if any(n < 0 for n in wanted) or prod(wanted) != size:
        raise ValueError(f"reshape of a tensor of shape {x.shape} ({size} elements) to {shape}; "
                         "wanted a shape of as many elements, with at most one -1")
    if copy:
        x = clone(x)
    elif copy is False and _reshaped_view(x._device, x._array, wanted) is None:
        raise ValueError(f"reshape of a tensor of shape {x.shape} to {wanted} with copy=False, "
                         "but its elements lie so that this needs a copy")
    return _reshape_op(x, shape=wanted)


_SHORT_FLATTEN = """
if type(start_dim) is type(end_dim) is int and start_dim == 0 and end_dim == -1 and (
        a1.flags.c_contiguous):
    out = a1.reshape(-1)
"""


@short_view(_reshape_op, _SHORT_FLATTEN, _OWN_SHAPE)
@takes_arrays
def flatten(x: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    """Axes start_dim to end_dim as one. A view where memory allows.

    Raises ValueError for axes that are out of range or in the wrong order.
    """
    ndim = max(1, x.ndim)  # a 0-d tensor is one element along axis 0
    start, end = integers((start_dim, end_dim))
    first, last = start % ndim, end % ndim
    if not (-ndim <= start < ndim and -ndim <= end < ndim) or first > last:
        raise ValueError(f"flatten of axes {start_dim} to {end_dim} of a tensor of {x.ndim} "
                         "dimensions; wanted two of its axes, in order")
    return reshape(x, (*x.shape[:first], prod(x.shape[first:last + 1]), *x.shape[last + 1:]))


_SHORT_SQUEEZE = """
if dim is None and (axis is None or type(axis) is int):
    out = a1.squeeze(axis)
"""


@short_view(_reshape_op, _SHORT_SQUEEZE, _OWN_SHAPE)
@takes_arrays
def squeeze(x: Tensor, /, axis: Axes | None = None, *, dim: Axes | None = None) -> Tensor:
    """Without the given axes, which must have size 1 (else ValueError), or all of them: a view.

    PyTorch leaves an axis of another size as it is.

    `axis` is an integer or several; without it all axes of size 1 go.
    """
    if dim is not None:
        axis = given_axis("squeeze", axis, dim)
    if axis is None:
        gone: Sequence[int] = [i for i, n in enumerate(x.shape) if n == 1]
    else:
        gone = () if lone(axis, x.ndim) else axis_indices(axis, x.ndim, "squeeze")
    if any(x.shape[a] != 1 for a in gone):
        raise ValueError(f"squeeze of axis {axis} of a tensor of shape {x.shape}; "
                         "wanted axes of size 1")
    return reshape(x, tuple(n for i, n in enumerate(x.shape) if i not in gone))


_SHORT_EXPAND = """
if dim is None and type(axis) is int and a1.flags.c_contiguous:
    shape, place = a1.shape, axis + a1.ndim + 1 if axis < 0 else axis
    if 0 <= place <= len(shape):
        out = a1.reshape((*shape[:place], 1, *shape[place:]))
"""


@short_view(_reshape_op, _SHORT_EXPAND, _OWN_SHAPE)
@takes_arrays
def expand_dims(x: Tensor, /, axis: Axes = 0, *, dim: Axes | None = None) -> Tensor:
    """With a new axis of size 1 at `axis` of the result, or at several: a view.

    Raises AxisError for an axis that the result does not have, ValueError for one that is given
    twice.
    """
    if dim is not None:
        axis = given_axis("expand_dims", axis, dim, 0)
    count = len(integers(axis))
    new = axis_indices(axis, x.ndim + count, "expand_dims")
    sizes = iter(x.shape)
    return reshape(x, tuple(1 if i in new else next(sizes) for i in range(x.ndim + count)))


# -- permute_dims ----------------------------------------------------------------------------------


def _permute(x: Array, *, axes: tuple[int, ...], out: Array | None = None) -> Array:
    if len(axes) < x.ndim:  # axes in front stay there
        axes = (*range(x.ndim - len(axes)), *axes)
    if out is None:
        return x.transpose(axes)
    out[...] = x.transpose(axes)
    return out


def _permute_backward(ns: Namespace, step: Step, g: Array) -> None:
    axes = step.params["axes"]
    n = len(axes)
    step.give(0, ns.permute_dims(g, axes=tuple(axes.index(i) - n for i in range(-n, 0))))


_permute_op = op(
    "permute_dims", flops=0, cpu=_permute, gpu=_permute, view=True, complex=True,
    backward=_permute_backward, tangent=linear_tangent("permute_dims"), batch=in_order,
    samples=[Sample(((2, 3),), normal, {"axes": (-1, -2)}),
             Sample(((2, 3, 4),), normal, {"axes": (-1, -3, -2)}),
             Sample(((0, 3),), normal, {"axes": (-1, -2)}), Sample(((),), normal, {"axes": ()})],
    reference=lambda torch, x, axes: x.permute(axes),
)


_SHORT_PERMUTE = """
if len(axes) == a1.ndim and None not in axes:
    out = a1.transpose(axes)
"""
_FROM_END = "{'axes': tuple([int(a) - out.ndim if a >= 0 else int(a) for a in axes])}"


@short_view(_permute_op, _SHORT_PERMUTE, _FROM_END)
@takes_arrays
def permute_dims(x: Tensor, /, axes: Sequence[int]) -> Tensor:
    """The axes in another order: a view. Raises ValueError unless `axes` names each axis once."""
    wanted = trailing_axes(axes, x.ndim, "permute_dims")
    if len(wanted) != x.ndim:
        raise ValueError(f"permute_dims with axes {tuple(axes)} of a tensor of {x.ndim} "
                         "dimensions; wanted each axis once")
    return _permute_op(x, axes=wanted)


def short_permute(given: str) -> Callable[[F], F]:
    """Of a method whose axes, one after the other or a tuple, are its parameter `given`."""
    steps = f"axes = {given}[0] if len({given}) == 1 and type({given}[0]) is tuple else {given}"
    return short_view(_permute_op, steps + _SHORT_PERMUTE, _FROM_END)


@takes_arrays
def moveaxis(x: Tensor, source: Axes, destination: Axes, /) -> Tensor:
    """The axes `source` moved to the places `destination`, the others in their order: a view.

    Raises ValueError unless there are as many destinations as sources.
    """
    origins = axis_indices(source, x.ndim, "moveaxis")
    places = axis_indices(destination, x.ndim, "moveaxis")
    if len(origins) != len(places):
        raise ValueError(f"moveaxis from axes {source} to {destination}; wanted as many "
                         "destinations as sources")
    order = moved_axes(origins, places, x.ndim)
    return _permute_op(x, axes=tuple(a - x.ndim for a in order))


def moved_axes(origins: Sequence[int], places: Sequence[int], ndim: int) -> tuple[int, ...]:
    """For each axis of the result of moving `origins` to `places`, where it comes from."""
    at = dict(zip(places, origins, strict=True))
    others = (i for i in range(ndim) if i not in origins)
    return tuple(at[i] if i in at else next(others) for i in range(ndim))


@takes_arrays
def matrix_transpose(x: Tensor, /) -> Tensor:
    """The last two axes swapped: a view. Raises ValueError for fewer than two axes."""
    if x.ndim < 2:
        raise ValueError(f"matrix_transpose of a tensor of shape {x.shape}; "
                         "wanted two axes or more")
    return _permute_op(x, axes=(*range(-x.ndim, -2), -1, -2))


def transpose(x: Tensor) -> Tensor:
    """The transpose of a matrix: a view."""
    if x.ndim != 2:
        raise ValueError(f".T of a tensor of shape {x.shape}; wanted two axes: "
                         "use .mT or permute_dims")
    return _permute_op(x, axes=(-1, -2))


_SWAPPED = "{'axes': (*range(-out.ndim, -2), -1, -2)}"
SHORT = {  # methods and properties of Tensor
    "reshape": short_view(_reshape_op, _SHORT_SHAPE, _OWN_SHAPE),
    "permute_dims": short_permute("axes"),
    "T": short_view(_permute_op, "if a1.ndim == 2:\n    out = a1.T", _SWAPPED),
    "mT": short_view(_permute_op, "out = a1.swapaxes(-1, -2)", _SWAPPED),
}


# -- broadcast_to ----------------------------------------------------------------------------------


def _broadcast(
    device: Device, x: Array, *, shape: tuple[int, ...], out: Array | None = None
) -> Array:
    if out is None and 0 in shape:
        return device.empty(shape, x.dtype, "broadcast_to")  # NumPy's would be read-only
    if out is None and x.size == prod(shape):
        return x.reshape(shape)  # only axes of size 1 are new: an ordinary, writable view
    if out is None and isinstance(x, np.ndarray) and x.dtype.kind != "V" and (
            x.flags.c_contiguous and len(shape) >= x.ndim):
        return _read_everywhere(x, shape)
    if out is None:
        return device.xp.broadcast_to(x, shape)
    out[...] = x
    return out


def _read_everywhere(x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """NumPy's `broadcast_to`, of contiguous elements, which takes longer to iterate over both."""
    new = len(shape) - x.ndim
    strides = [0] * new
    for size, wanted, step in zip(x.shape, shape[new:], x.strides, strict=True):
        if size != wanted and size != 1:
            raise ValueError(f"shape mismatch: objects cannot be broadcast to {shape}")
        strides.append(step if size == wanted else 0)
    view = np.ndarray(shape, x.dtype, x, 0, strides)
    view.flags.writeable = False
    return view


def _broadcast_backward(ns: Namespace, step: Step, g: Array) -> None:
    step.give(0, g)  # the step sums it to the input's shape


_broadcast_op = op(
    "broadcast_to", flops=0, **placed(_broadcast), view=True, complex=True,
    backward=_broadcast_backward, tangent=linear_tangent("broadcast_to"), batch=broadcast_shape,
    samples=[Sample(((3,),), normal, {"shape": (2, 3)}),
             Sample(((2, 1),), normal, {"shape": (2, 4)}),
             Sample(((),), normal, {"shape": (3,)}), Sample(((1, 0),), normal, {"shape": (2, 0)})],
    reference=lambda torch, x, shape: x.expand(shape),
)


def _broadcasts(shape: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    """Whether an array of `shape` broadcasts to the wanted one."""
    new = len(wanted) - len(shape)
    if new < 0 or wanted and min(wanted) < 0:
        return False
    for n, m in zip(shape, wanted[new:], strict=True):  # noqa: SIM110  a generator costs more
        if n not in (1, m):
            return False
    return True


@takes_arrays
def broadcast_to(x: Tensor, /, shape: Shape) -> Tensor:
    """x repeated to `shape` without a copy: a view whose elements share memory.

    It is not written, as PyTorch's may be: `clone()` it first.

    Raises ValueError where an axis, counted from the last, is neither 1 nor of that length.
    """
    wanted = integers(shape)
    if not _broadcasts(x._array.shape, wanted):
        raise ValueError(f"broadcast_to of a tensor of shape {x.shape} to {wanted}; wanted axes "
                         "that agree or are 1, counted from the last")
    return _broadcast_op(x, shape=wanted)


def broadcast_arrays(*arrays: Tensor) -> list[Tensor]:
    """The tensors repeated to their common shape: views. Raises ValueError if there is none."""
    tensors = all_tensors("broadcast_arrays", "arrays", arrays)
    try:
        shape = np.broadcast_shapes(*(a.shape for a in tensors))
    except ValueError as error:
        name_shapes("broadcast_arrays", error, tensors)
        raise
    return [broadcast_to(a, shape) for a in tensors]


# -- copies ----------------------------------------------------------------------------------------


def _astype_path(device: Device, x: Array, *, dtype: np.dtype, out: Array | None = None) -> Array:
    if x.dtype.kind == "c" and dtype.kind != "c":
        raise TypeError(f"astype of {x.dtype} to {dtype} would drop the imaginary part; take "
                        "real(x), imag(x) or abs(x) first")
    if out is None:
        return device.copy(x, dtype=dtype, label="astype")
    out[...] = x
    return out


_astype_op = op(
    "astype", flops=0, **placed(_astype_path), complex=True,
    backward=lambda ns, step, g: step.give(0, g),  # the step casts it to the input's dtype
    tangent=linear_tangent("astype"), batch=unchanged,
    samples=[Sample((s,), normal, {"dtype": np.dtype("float32")})
             for s in ((7,), (2, 3), (0,), ())],
    reference=lambda torch, x, dtype: x.to(torch.float32),
    doc="x in another dtype: a copy. A complex gradient reaches a real x by its real part.",
)


@takes_arrays
def astype(
    x: Tensor, dtype: DTypeLike, /, *, copy: bool = True, device: Device | str | None = None
) -> Tensor:
    """x in another dtype, and on `device` if one is given; of x's own kind only if copy=True.

    Integers and booleans carry no gradient, so the result in such a dtype has no history. Raises
    TypeError from a complex to a real dtype.
    """
    wanted, place = element_type(dtype), x.device if device is None else get_device(device)
    moved = x if place is x.device else to_device(x, device=place)
    if moved.dtype == wanted:
        return clone(moved) if copy and moved is x else moved
    return _astype_op(moved if wanted.kind in "fVc" else moved.detach(), dtype=wanted)


def _clone_path(device: Device, x: Array, out: Array | None = None) -> Array:
    if out is None:
        return device.copy(x, label="clone")
    out[...] = x
    return out


clone = op(
    "clone", flops=0, **placed(_clone_path), complex=True,
    backward=lambda ns, step, g: step.give(0, g), tangent=linear_tangent("clone"), batch=unchanged,
    samples=unary(), reference=lambda torch, x: x.clone(),
    doc="A copy in memory of its own; gradients flow through it.",
)


def _to_device_path(
    source: Device, x: Array, *, device: Device, out: Array | None = None
) -> Array:
    moved = device.copy(x) if device is source else device.from_numpy(source.to_numpy(x))
    return settled(moved, out)


to_device = op(
    "to_device", flops=0, **placed(_to_device_path), complex=True, moves=True,
    backward=lambda ns, step, g: step.give(0, ns.to_device(g, device=step.parents[0].device)),
    tangent=linear_tangent("to_device"), batch=unchanged,
    samples=[Sample((s,), normal, {"device": get_device("cpu")}) for s in ((3,), (2, 0), ())],
    reference=lambda torch, x, device: x.clone(),
    doc="A copy on another device; its gradient comes back to this one.",
)


@takes_arrays
def unflatten(x: Tensor, dim: int, sizes: Sequence[int]) -> Tensor:
    """The axis `dim` as several of these sizes, one of which may be -1: a view, as PyTorch's.

    Raises ValueError for sizes that do not make it up.
    """
    axis = axis_index(dim, x.ndim, "unflatten")
    known = prod(n for n in sizes if n != -1)
    found = [x.shape[axis] // known if n == -1 and known else n for n in sizes]
    if prod(found) != x.shape[axis] or any(n < 0 for n in found):
        raise ValueError(f"unflatten was given axis {dim} of shape {x.shape} and the sizes "
                         f"{tuple(sizes)}; wanted sizes whose product is {x.shape[axis]}")
    return reshape(x, (*x.shape[:axis], *found, *x.shape[axis + 1:]))

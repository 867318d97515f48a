"""Elements moved along axes: flip is a view, roll a copy."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import TYPE_CHECKING, Any

from gtensor.engine.handle.tensor import Tensor
from gtensor.engine.tape.op import op
from gtensor.engine.tape.samples import Sample, normal
from gtensor.ops.arrange.shape import (
    Axes,
    axis_index,
    flatten,
    integers,
    linear_tangent,
    reshape,
    trailing_axes,
)
from gtensor.ops.define.arguments import given_axis, takes_arrays
from gtensor.ops.define.batching import unchanged
from gtensor.ops.define.path_builders import placed, settled

if TYPE_CHECKING:
    from gtensor.backend import Device
    from gtensor.backend.typing import Array
    from gtensor.engine.handle.namespaces import Namespace
    from gtensor.engine.walk.typing import Step

__all__ = ["flip", "roll"]

METHODS = ("flip",)


def _flip(x: Array, *, axes: tuple[int, ...], out: Array | None = None) -> Array:
    steps = (-1 if i in axes else 1 for i in range(-x.ndim, 0))
    key: tuple[Any, ...] = tuple(slice(None, None, step) for step in steps)
    view = x[(..., *key)]  # the ellipsis: so that a 0-d array stays one
    return settled(view, out)


_flip_op = op(
    "flip", flops=0, cpu=_flip, gpu=_flip, view=True, complex=True,
    backward=lambda ns, step, g: step.give(0, ns.flip(g, axes=step.params["axes"])),
    tangent=linear_tangent("flip"), batch=unchanged,
    samples=[Sample((s,), normal, {"axes": a})
             for s, a in (((5,), (-1,)), ((3, 4), (-1,)), ((2, 3, 4), (-3, -1)), ((0, 2), (-2,)),
                          ((), ()))],
    reference=lambda torch, x, axes: torch.flip(x, axes),
    doc="The elements in the opposite order along some axes: a view.",
)


@takes_arrays
def flip(x: Tensor, /, axis: Axes | None = None, *, dims: Axes | None = None) -> Tensor:
    """The elements in the opposite order along `axis`, or several (all for None): a view.

    `dims` is PyTorch's word for `axis`.

    PyTorch's is a copy: `clone()` it before a write.

    Raises AxisError for an axis that there is not.
    """
    if dims is not None:
        axis = given_axis("flip", axis, dims, word="dims")
    axes = tuple(range(-x.ndim, 0)) if axis is None else trailing_axes(axis, x.ndim, "flip")
    return _flip_op(x, axes=axes)


def _roll(device: Device, x: Array, *, shifts: tuple[int, ...], out: Array | None = None) -> Array:
    """Each axis is cut in two, and each combination of the parts is copied to its new place.

    The shifts are of the last axes.
    """
    if out is None:
        out = device.empty(x.shape, x.dtype, "roll")
    target: Any  # tuples of slices, which NumPy's overloads refuse beside an ellipsis
    source: Any
    sizes = x.shape[x.ndim - len(shifts):]
    for parts in product(*map(_parts, sizes, shifts)):
        target, source = (tuple(part[side] for part in parts) for side in (0, 1))
        out[(..., *target)] = x[(..., *source)]
    return out


def _parts(size: int, shift: int) -> Iterator[tuple[slice, slice]]:
    """(destination, source) of the one or two parts of an axis."""
    shift %= max(1, size)
    yield slice(shift, None), slice(None, size - shift)
    if shift:
        yield slice(None, shift), slice(size - shift, None)


def _roll_backward(ns: Namespace, step: Step, g: Array) -> None:
    step.give(0, ns.roll(g, shifts=tuple(-n for n in step.params["shifts"])))


_roll_op = op(
    "roll", flops=0, **placed(_roll), complex=True,
    backward=_roll_backward, tangent=linear_tangent("roll"), batch=unchanged,
    samples=[Sample((s,), normal, {"shifts": n})
             for s, n in (((5,), (2,)), ((3, 4), (-1, 9)), ((2, 3, 4), (0, 1, -2)),
                          ((0, 2), (1, 1)), ((), ()))],
    reference=lambda torch, x, shifts: (
        torch.roll(x, shifts, tuple(range(x.ndim))) if shifts else x.clone()),
    doc="The elements moved by `shifts` places along the last axes, those pushed out coming back "
        "in.",
)


@takes_arrays
def roll(
    x: Tensor, /, shift: Axes | None = None, axis: Axes | None = None, *,
    shifts: Axes | None = None, dims: Axes | None = None,
) -> Tensor:
    """The elements moved by `shift` places along `axis`; those pushed out at an end come in again.

    For axis=None the tensor is rolled as if flattened. One shift serves several axes; shifts along
    an axis named twice add up. `shifts` and `dims` are PyTorch's words for `shift` and `axis`.

    Raises ValueError if there are as many shifts as axes neither way, TypeError for not one of two
    words.
    """
    moves = shift if shifts is None else shifts
    if moves is None or shift is not None and shifts is not None:
        raise TypeError(f"roll was given shift={shift} and shifts={shifts}; wanted one of them")
    if dims is not None:
        axis = given_axis("roll", axis, dims, word="dims")
    shifts = integers(moves)
    if axis is None:
        if len(shifts) != 1:
            raise ValueError(f"roll by {shifts} without axes; wanted one shift, or as many axes")
        return reshape(_roll_op(flatten(x), shifts=shifts), x.shape)
    axes = tuple(axis_index(a, x.ndim, "roll") for a in integers(axis))
    if len(shifts) == 1:
        shifts *= len(axes)
    if len(shifts) != len(axes):
        raise ValueError(f"roll by {len(shifts)} shifts along {len(axes)} axes; wanted as many")
    total = [0] * x.ndim
    for a, n in zip(axes, shifts, strict=True):
        total[a] += n
    return _roll_op(x, shifts=tuple(total))

"""Products of vectors and tensors: vecdot, cross, outer, tensordot."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from operator import index
from typing import TYPE_CHECKING, Any

import numpy as np

from gtensor.backend import host
from gtensor.backend.cuda import cupy
from gtensor.creation.new_tensors import asarray
from gtensor.engine.handle.tensor import Tensor
from gtensor.engine.tape.op import op
from gtensor.engine.tape.samples import Sample
from gtensor.ops.arrange.shape import axis_index, permute_dims, reshape
from gtensor.ops.define.batching import broadcasting
from gtensor.ops.define.cpu_tiles import computed_in, row_tiles, whole_tiles
from gtensor.ops.define.flops import of_vecdot
from gtensor.ops.define.path_builders import placed, settled
from gtensor.ops.elementwise.arithmetic import multiply
from gtensor.ops.linalg.gemm import matmul
from gtensor.ops.linalg.matrix_products import conjugated, is_half
from gtensor.settings import settings

if TYPE_CHECKING:
    from gtensor.backend import Device
    from gtensor.backend.typing import Array, Params, Path
    from gtensor.engine.handle.namespaces import Namespace
    from gtensor.engine.walk.typing import Step, Values

__all__ = ["tensordot", "vecdot"]


# -- vecdot ----------------------------------------------------------------------------------------


def _vecdot_cpu(x1: Array, x2: Array, out: Array | None = None) -> Array:
    if not is_half(x1.dtype) and not is_half(x2.dtype):
        return settled(np.vecdot(x1, x2), out)
    if out is None:
        shape = np.broadcast_shapes(x1.shape, x2.shape)[:-1]
        out = host().empty(shape, np.result_type(x1, x2), "vecdot")
    _vecdot_half(x1, x2, out)
    return out


def _vecdot_half(x1: Array, x2: Array, out: Array) -> None:
    """Products summed in float32 (or a wider dtype), by tiles, also within a long row."""
    work, step = computed_in(out.dtype), settings.tile_elements
    x1, x2 = np.broadcast_arrays(x1, x2)
    for tile in row_tiles(x1.shape):
        total: Any = 0
        for start in range(0, x1.shape[-1], step):
            total = total + np.vecdot(*(x[tile][..., start:start + step].astype(work)
                                        for x in (x1, x2)))
        out[tile] = total


def _vecdot_gpu(x1: Array, x2: Array, out: Array | None = None) -> Array:
    dtype = np.result_type(x1, x2)
    xp = cupy()
    product = (xp.conj(x1) if dtype.kind == "c" else x1) * x2
    value = xp.sum(product, axis=-1, dtype=np.float32 if is_half(dtype) else dtype)
    if out is None:
        return value.astype(dtype, copy=False)
    out[...] = value
    return out


def _vecdot_backward(ns: Namespace, step: Step, g: Array) -> None:
    x1, x2 = step.saved
    g = ns.reshape(g, shape=(*g.shape, 1))
    if step.needs(0):
        step.give(0, ns.multiply(conjugated(ns, g), x2))
    if step.needs(1):
        step.give(1, ns.multiply(g, x1))


def _bilinear(name: str) -> Path:
    """The tangent of an op that is linear in each of two inputs."""

    def tangent(
        ns: Namespace, primals: Values, tangents: Values, out: Array, params: Params
    ) -> Array:
        (x1, x2), (d1, d2) = primals, tangents
        terms = [] if d1 is None else [getattr(ns, name)(d1, x2, **params)]
        if d2 is not None:
            terms.append(getattr(ns, name)(x1, d2, **params))
        return terms[0] if len(terms) == 1 else ns.add(*terms)

    return tangent


vecdot_op = op(
    "vecdot", flops=of_vecdot, autocast="low",
    cpu=_vecdot_cpu, gpu=_vecdot_gpu, complex=True, saves={"x2": "x1", "x1": "x2"},
    backward=_vecdot_backward, tangent=_bilinear("vecdot"), batch=broadcasting,
    samples=[Sample(((5,), (5,))), Sample(((3, 4), (3, 4))), Sample(((2, 1, 3), (4, 3))),
             Sample(((0, 3), (3,))), Sample(((2, 0), (2, 0)))],
    reference=lambda torch, a, b: torch.linalg.vecdot(*torch.broadcast_tensors(a, b)),
    doc="The sum of conj(x1) * x2 over the last axis.",
)


def vecdot(x1: Tensor, x2: Tensor, /, axis: int = -1) -> Tensor:
    """The sum of conj(x1) * x2 along `axis` (counted from the last, as -1), broadcast elsewhere.

    Raises ValueError for vectors of different lengths, and for an axis counted from the first where
    the numbers of axes differ.
    """
    x1, x2 = asarray(x1), asarray(x2)
    for x in (x1, x2):
        axis_index(axis, x.ndim, "vecdot")
    if axis >= 0 and x1.ndim != x2.ndim:
        raise ValueError(f"vecdot along axis {axis} of shapes {x1.shape} and {x2.shape}; wanted as "
                         "many dimensions, or an axis below 0, counted from the last")
    if x1.shape[axis] != x2.shape[axis]:
        raise ValueError(f"vecdot along axis {axis} of shapes {x1.shape} and {x2.shape}; wanted "
                         "vectors of one length")
    return vecdot_op(_last(x1, axis), _last(x2, axis))


def _last(x: Tensor, axis: int) -> Tensor:
    """x with the axis moved to the end: a view."""
    place = axis % x.ndim
    if place == x.ndim - 1:
        return x
    return permute_dims(x, [*(i for i in range(x.ndim) if i != place), place])


# -- cross -----------------------------------------------------------------------------------------


def _cross_path(device: Device, x1: Array, x2: Array, out: Array | None = None) -> Array:
    """Component by component, in tiles: only the second product needs memory beside `out`."""
    shape = np.broadcast_shapes(x1.shape, x2.shape)
    if out is None:
        out = device.empty(shape, np.result_type(x1, x2), "cross")
    a, b = (device.xp.broadcast_to(x, shape) for x in (x1, x2))
    for i, j, k in ((0, 1, 2), (1, 2, 0), (2, 0, 1)):
        for tile in whole_tiles(shape[:-1]):
            part = out[..., i][tile]
            device.xp.multiply(a[..., j][tile], b[..., k][tile], out=part)
            part -= a[..., k][tile] * b[..., j][tile]
    return out


def _cross_backward(ns: Namespace, step: Step, g: Array) -> None:
    x1, x2 = step.saved
    if step.needs(0):
        step.give(0, ns.cross(conjugated(ns, x2), g))
    if step.needs(1):
        step.give(1, ns.cross(g, conjugated(ns, x1)))


cross_op = op(
    "cross", **placed(_cross_path), complex=True, saves={"x2": "x1", "x1": "x2"},
    backward=_cross_backward, tangent=_bilinear("cross"), batch=broadcasting,
    samples=[Sample(((3,), (3,))), Sample(((2, 3), (2, 3))), Sample(((4, 1, 3), (2, 3))),
             Sample(((0, 3), (3,)))],
    reference=lambda torch, a, b: torch.linalg.cross(*torch.broadcast_tensors(a, b)),
    doc="The cross product of vectors of three in the last axis.",
)


def cross(x1: Tensor, x2: Tensor, /, axis: int = -1) -> Tensor:
    """The cross product of vectors of three elements along `axis`, broadcast over the others.

    Raises ValueError for vectors of another length, and for an axis counted from the first where
    the numbers of axes differ.
    """
    x1, x2 = asarray(x1), asarray(x2)
    for x in (x1, x2):
        if x.shape[axis_index(axis, x.ndim, "cross")] != 3:
            raise ValueError(f"cross along axis {axis} of shapes {x1.shape} and {x2.shape}; wanted "
                             "vectors of 3 elements")
    if axis >= 0 and x1.ndim != x2.ndim:
        raise ValueError(f"cross along axis {axis} of shapes {x1.shape} and {x2.shape}; wanted as "
                         "many dimensions, or an axis below 0, counted from the last")
    product = cross_op(_last(x1, axis), _last(x2, axis))
    place = axis % product.ndim
    order = list(range(product.ndim - 1))
    order.insert(place, product.ndim - 1)
    return product if place == product.ndim - 1 else permute_dims(product, order)


# -- outer and tensordot ---------------------------------------------------------------------------


def outer(x1: Tensor, x2: Tensor, /) -> Tensor:
    """All products of an element of x1 (n,) and one of x2 (m,): (n, m).

    Raises ValueError for what is no vector.
    """
    x1, x2 = asarray(x1), asarray(x2)
    if x1.ndim != 1 or x2.ndim != 1:
        raise ValueError(f"outer of shapes {x1.shape} and {x2.shape}; wanted two vectors")
    return multiply(reshape(x1, (x1.size, 1)), x2)


def tensordot(
    x1: Tensor, x2: Tensor, /, *, axes: int | tuple[Sequence[int], Sequence[int]] = 2
) -> Tensor:
    """The sum of products over pairs of axes: a single matrix product.

    `axes` is a number (the last of x1 with the first of x2), or the axes of x1 and those of x2, in
    pairs. The result has the other axes of x1, then those of x2.
    """
    x1, x2 = asarray(x1), asarray(x2)
    first, second = _paired(x1, x2, axes)
    rest1 = [i for i in range(x1.ndim) if i not in first]
    rest2 = [i for i in range(x2.ndim) if i not in second]
    shape1, shape2 = [x1.shape[i] for i in rest1], [x2.shape[i] for i in rest2]
    inner = prod(x1.shape[i] for i in first)
    left = reshape(permute_dims(x1, [*rest1, *first]), (prod(shape1), inner))
    right = reshape(permute_dims(x2, [*second, *rest2]), (inner, prod(shape2)))
    return reshape(matmul(left, right), (*shape1, *shape2))


def _paired(x1: Tensor, x2: Tensor, axes: Any) -> tuple[list[int], list[int]]:
    """The axes of each that are summed over, counted from 0."""
    if not np.iterable(axes):
        count = index(axes)
        if not 0 <= count <= min(x1.ndim, x2.ndim):
            raise ValueError(f"tensordot over {count} axes of shapes {x1.shape} and {x2.shape}; "
                             f"wanted 0 to {min(x1.ndim, x2.ndim)}")
        axes = range(x1.ndim - count, x1.ndim), range(count)
    named = [list(one) if np.iterable(one) else [one] for one in axes]
    if len(named) != 2:
        raise ValueError(f"tensordot was given axes {axes}; wanted a number, or the axes of each "
                         "of two tensors")
    first, second = ([axis_index(a, x.ndim, "tensordot") % x.ndim for a in given]
                     for given, x in zip(named, (x1, x2), strict=True))
    if [x1.shape[i] for i in first] != [x2.shape[j] for j in second] or (
            len(set(first)) < len(first) or len(set(second)) < len(second)):
        raise ValueError(f"tensordot over axes {first} of shape {x1.shape} and {second} of shape "
                         f"{x2.shape}; wanted different axes, of equal sizes pair by pair")
    return first, second

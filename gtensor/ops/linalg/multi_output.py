"""Several arrays as one output, and functions for the rules of matrix decompositions.

An op has one output, and a decomposition has several arrays. So a decomposition is one op whose
output holds its parts end to end, flattened, along the last axis; the public function cuts
views out of it. That keeps one LAPACK call, one backward rule that sees the gradients of all parts
at once (absent ones are zeros), and higher orders: the rule differentiates through the packed
output, of which every part is a slice.
"""

from __future__ import annotations

import builtins
from math import prod
from typing import TYPE_CHECKING, Any

from gtensor.engine.handle.namespaces import recorded
from gtensor.engine.handle.tensor import Tensor
from gtensor.engine.tape.op import op
from gtensor.engine.tape.samples import Sample, normal
from gtensor.ops.arrange.shape import linear_tangent
from gtensor.ops.define.batching import unchanged
from gtensor.ops.linalg.matrix_products import matrix_paths, swapped

if TYPE_CHECKING:
    from types import ModuleType

    from gtensor.backend.typing import Array
    from gtensor.engine.handle.namespaces import Namespace
    from gtensor.engine.walk.typing import Step

__all__: list[str] = []

Shape = tuple[int, ...]


# -- several parts in one output -------------------------------------------------------------------


def pack(xp: ModuleType, *parts: tuple[Array, Shape]) -> Array:
    """The parts flattened end to end along a last axis, each with the shape of one of its items."""
    whole = [array.reshape(*array.shape[:array.ndim - len(item)], prod(item))
             for array, item in parts]
    return xp.concatenate(whole, axis=-1)


def packed_in(ns: Namespace, *parts: tuple[Array, Shape]) -> Array:
    """`pack` in ops of a namespace."""
    whole = [ns.reshape(array, shape=(*array.shape[:len(array.shape) - len(item)], prod(item)))
             for array, item in parts]
    sizes = tuple(prod(item) for _, item in parts)
    return ns.concat(*whole, axis=-1, sizes=sizes)


def parts_of(ns: Namespace, packed: Array | Tensor, *items: Shape) -> list[Any]:
    """Views of the parts of a packed output, whose items have these shapes."""
    found, start = [], 0
    for item in items:
        stop = start + prod(item)
        part = ns.slice(packed, key=(..., builtins.slice(start, stop)))
        found.append(ns.reshape(part, shape=(*packed.shape[:-1], *item)))
        start = stop
    return found


def real_part(x: Tensor) -> Tensor:
    """Parts that are real by definition, from a packed output that is complex."""
    return recorded.real(x) if x.dtype.kind == "c" else x


# -- what the rules share --------------------------------------------------------------------------


def column(ns: Namespace, x: Array) -> Array:
    return ns.reshape(x, shape=(*x.shape, 1))


def row(ns: Namespace, x: Array) -> Array:
    return ns.reshape(x, shape=(*x.shape[:-1], 1, x.shape[-1]))


def skew(ns: Namespace, x: Array) -> Array:
    return ns.subtract(x, swapped(ns, x))


def symmetric(ns: Namespace, x: Array) -> Array:
    return ns.multiply(ns.add(x, swapped(ns, x)), 0.5)


def ratio(ns: Namespace, numerator: Array, denominator: Array) -> Array:
    """numerator / denominator, but 0 / 0 = 0, for ties without a gradient."""
    neither = ns.bitwise_and(ns.equal(numerator, 0), ns.equal(denominator, 0))
    return ns.divide(numerator, ns.where(neither, 1.0, denominator))


def _triangles_path(
    xp: ModuleType, x: Array, *, below: float, diagonal: float, above: float
) -> Array:
    rows, columns = x.shape[-2:]
    under = xp.tri(rows, columns, -1, dtype=bool)
    over = ~xp.tri(rows, columns, 0, dtype=bool)
    weights = xp.where(under, below, xp.where(over, above, diagonal))
    return x * weights.astype(x.dtype)


def _triangles_backward(ns: Namespace, step: Step, g: Array) -> None:
    step.give(0, ns.scaled_triangles(g, **step.params))


LOWER = {"below": 1.0, "diagonal": 0.5, "above": 0.0}  # with half the diagonal: Giles' Phi
UPPER = {"below": 0.0, "diagonal": 0.5, "above": 1.0}

scaled_triangles = op(
    "scaled_triangles", **matrix_paths("scaled_triangles", _triangles_path),
    backward=_triangles_backward, tangent=linear_tangent("scaled_triangles"), batch=unchanged,
    samples=[Sample(((3, 3),), normal, LOWER), Sample(((2, 3, 4),), normal, UPPER),
             Sample(((0, 2),), normal, LOWER)],
    reference=lambda torch, x, below, diagonal, above: (
        below * x.tril(-1) + above * x.triu(1) + diagonal * (x.tril() - x.tril(-1))),
    doc="Matrices with what is below, on and above the diagonal multiplied by a number each.",
)

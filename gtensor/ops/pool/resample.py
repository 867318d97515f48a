"""Linear maps along one axis by sparse matrices, for interpolation and uneven windows.

A matrix is cut into terms: the first entry of every row, the second of every row that has two, and
so on. A term writes no element twice, so it is one indexed multiply and add; the adjoint is the
same op on the transpose.
"""

from __future__ import annotations

from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gtensor.backend import host
from gtensor.backend.cuda import cupy
from gtensor.engine.op import op
from gtensor.engine.samples import Sample, normal
from gtensor.ops.arrange.shape import linear_tangent
from gtensor.ops.build.cpu_tiles import computed_in
from gtensor.ops.build.path_builders import tiles
from gtensor.settings import settings

if TYPE_CHECKING:
    from types import ModuleType

    from gtensor.backend.typing import Array
    from gtensor.engine.typing import Namespace, Step
    from gtensor.ops.build.cpu_tiles import Tile

Places = slice | np.ndarray


class Term(NamedTuple):
    """out[to] += weight * x[of], no place twice in `to`. A weight of None is 1."""

    to: Places
    of: Places
    weight: np.ndarray | None


class Mixing:
    """A sparse matrix (rows, columns): weight[e] at (row[e], column[e]), no place twice."""

    def __init__(
        self, rows: int, columns: int, row: np.ndarray, column: np.ndarray, weight: np.ndarray
    ) -> None:
        self.rows = rows
        self.columns = columns
        self.row = row
        self.column = column
        self.weight = weight

    @cached_property
    def T(self) -> Mixing:
        """The transpose."""
        return Mixing(self.columns, self.rows, self.column, self.row, self.weight)

    @cached_property
    def terms(self) -> tuple[Term, ...]:
        """The k-th entries of the rows that have one, for each k."""
        order = np.argsort(self.row, kind="stable")
        row, column, weight = self.row[order], self.column[order], self.weight[order]
        turn = np.arange(len(row)) - np.searchsorted(row, row)
        found = []
        for k in range(int(turn.max(initial=-1)) + 1):
            now = turn == k
            factors = None if (weight[now] == 1).all() else weight[now]
            found.append(Term(_regular(row[now]), _regular(column[now]), factors))
        return tuple(found)

    def dense(self) -> np.ndarray:
        """The matrix itself."""
        matrix = np.zeros((self.rows, self.columns))
        matrix[self.row, self.column] = self.weight
        return matrix


def mixing(index: np.ndarray, weight: np.ndarray, columns: int) -> Mixing:
    """The matrix with `weight[i, k]` added at (i, index[i, k]); both arrays are (rows, taps)."""
    rows = len(index)
    flat = (np.arange(rows)[:, None] * columns + index).reshape(-1)
    places, inverse = np.unique(flat, return_inverse=True)
    weights = np.bincount(inverse, weight.reshape(-1))
    there = weights != 0
    row, column = np.divmod(places[there], columns)
    return Mixing(rows, columns, row, column, weights[there])


def _regular(places: np.ndarray) -> Places:
    """The places as a slice, where they are evenly spaced."""
    first, last = int(places[0]), int(places[-1])
    if len(places) == 1:
        return slice(first, first + 1)
    step = int(places[1]) - first
    even = step > 0 and (np.diff(places) == step).all()
    return slice(first, last + 1, step) if even else places


def _add_terms(xp: ModuleType, matrix: Mixing, axis: int, x: Array, total: Array) -> None:
    """total += the matrix times x, along a negative axis."""
    after = (slice(None),) * (-axis - 1)
    for term in matrix.terms:
        if isinstance(term.of, slice):
            key: Tile = (..., term.of, *after)
            part = x[key]
        else:
            part = xp.take(x, xp.asarray(term.of), axis=axis)
        if term.weight is not None:
            weight = term.weight.astype(total.dtype).reshape(-1, *(1,) * len(after))
            part = part * xp.asarray(weight)
        to = term.to if isinstance(term.to, slice) else xp.asarray(term.to)
        total[(..., to, *after)] += part


def _shape(x: Array, axis: int, rows: int) -> tuple[int, ...]:
    shape = list(x.shape)
    shape[axis] = rows
    return tuple(shape)


def _resample_cpu(
    x: Array, *, axis: int, matrix: Mixing, out: Array | None = None, beta: float = 0.0
) -> Array:
    if out is None:
        out, beta = host().empty(_shape(x, axis, matrix.rows), x.dtype, "resample"), 0.0
    lead, trail = x.shape[:axis], prod(x.shape[axis:][1:])
    work = computed_in(x.dtype)
    limit = max(1, settings.tile_elements // max(1, trail * max(matrix.rows, matrix.columns)))
    size = min(prod(lead), limit) * matrix.rows * trail
    wide = host().workspace(size, work) if work != x.dtype else None
    for tile in tiles(lead, limit):
        key = (*tile, ...)
        result = out[key]
        total = result if wide is None else wide(0, result.shape)
        if not beta:
            total[...] = 0
        elif wide is not None:
            total[...] = result
        _add_terms(np, matrix, axis, x[key], total)
        if wide is not None:
            out[key] = total
    return out


def _resample_gpu(
    x: Array, *, axis: int, matrix: Mixing, out: Array | None = None, beta: float = 0.0
) -> Array:
    xp, work = cupy(), computed_in(x.dtype)
    if out is not None and beta and work == x.dtype:
        _add_terms(xp, matrix, axis, x, out)
        return out
    total = xp.zeros(_shape(x, axis, matrix.rows), work)
    _add_terms(xp, matrix, axis, x, total)
    if out is None:
        return total.astype(x.dtype, copy=False)
    out[...] = out + total if beta else total
    return out


def _backward(ns: Namespace, step: Step, g: Array) -> None:
    buffer, beta = step.into(0)
    step.give(0, ns.resample(g, axis=step.params["axis"], matrix=step.params["matrix"].T,
                             out=buffer, beta=beta))


def _reference(torch: Any, x: Any, axis: int, matrix: Mixing) -> Any:
    moved = torch.movedim(x, axis, -1) @ torch.tensor(matrix.dense(), dtype=x.dtype).T
    return torch.movedim(moved, -1, axis)


_MATRIX = mixing(np.array([[0, 0], [0, 1], [2, 1], [2, 1], [2, 2]]),
                 np.array([[1, 0], [0.5, 0.25], [0.5, -1], [0.3, 0], [0.5, 0.5]]), 3)
_SAMPLES = [Sample((shape,), normal, {"axis": axis, "matrix": matrix}) for shape, axis, matrix in (
    ((2, 3), -1, _MATRIX), ((2, 3, 4), -2, _MATRIX), ((2, 5), -1, _MATRIX.T), ((3,), -1, _MATRIX),
    ((0, 3, 2), -2, _MATRIX))]

resample = op(
    "resample", inputs="x", cpu=_resample_cpu, gpu=_resample_gpu, backward=_backward,
    tangent=linear_tangent("resample"),
    samples=_SAMPLES, reference=_reference,
    doc="A sparse matrix times x along one axis. Parameters: axis (negative), matrix (a Mixing).",
)

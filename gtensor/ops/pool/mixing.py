"""Sparse matrices by which elements along an axis are mixed, for interpolation and uneven windows.

An op's parameters hold no arrays, so a matrix is named there by what it is made from: the name of a
maker, then numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, lru_cache
from typing import NamedTuple, TypeAlias

import numpy as np

Made: TypeAlias = "tuple[str | float | None, ...]"  # see `matrix`
Places = slice | np.ndarray

_MANY_TAPS = 7  # entries of a row from which a product of blocks costs less than terms


class Term(NamedTuple):
    """out[to] += weight * x[of], no place twice in `to`. A weight of None is 1."""

    to: Places
    of: Places
    weight: np.ndarray | None


class Mixing:
    """A sparse matrix (rows, columns): weight[e] at (row[e], column[e]), no place twice.

    It is cut into terms: the first entry of every row, the second of every row that has two, and so
    on. A term writes no element twice, so it is one indexed multiply and add.
    """

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

    @cached_property
    def compressed(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Where the entries of each row start, and the end; their columns; their weights."""
        order = np.lexsort((self.column, self.row))
        starts = np.searchsorted(self.row[order], np.arange(self.rows + 1))
        return starts, self.column[order], self.weight[order]

    @cached_property
    def blocks(self) -> tuple[tuple[slice, slice, np.ndarray], ...]:
        """Rows, the columns that they read, and that part of the matrix, dense.

        Empty for a few entries a row, where terms cost less.
        """
        taps = len(self.row) // max(1, self.rows)
        if taps < _MANY_TAPS:
            return ()
        starts, columns, weights = self.compressed
        found = []
        for first in range(0, self.rows, max(16, taps)):
            rows = slice(first, min(first + max(16, taps), self.rows))
            own = slice(starts[rows.start], starts[rows.stop])
            low = int(columns[own].min(initial=self.columns))
            high = max(low, int(columns[own].max(initial=-1)) + 1)
            part = np.zeros((rows.stop - first, high - low))
            row = np.repeat(np.arange(part.shape[0]), np.diff(starts[first:rows.stop + 1]))
            part[row, columns[own] - low] = weights[own]
            found.append((rows, slice(low, high), part))
        return tuple(found)

    def row_sums(self) -> np.ndarray:
        """The sum of each row."""
        return np.bincount(self.row, self.weight, self.rows)

    def dense(self) -> np.ndarray:
        """The matrix itself."""
        matrix = np.zeros((self.rows, self.columns))
        matrix[self.row, self.column] = self.weight
        return matrix


def _mixing(index: np.ndarray, weight: np.ndarray, columns: int) -> Mixing:
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


# -- makers ----------------------------------------------------------------------------------------


def _nearest(old: int, new: int, factor: float | None) -> Mixing:
    """Row i takes the element at i / factor, rounded down; in float32 steps, as PyTorch does."""
    step = np.float32(old / new if factor is None else 1 / factor)
    index = np.minimum(np.floor(np.arange(new, dtype=np.float32) * step).astype(int), old - 1)
    return _mixing(index[:, None], np.ones((new, 1)), old)


def _linear(old: int, new: int, factor: float | None, align_corners: bool) -> Mixing:
    """Row i mixes the two elements around its position; an axis that keeps its size is copied."""
    i = np.arange(new)
    if align_corners:
        position = i * ((old - 1) / (new - 1) if new > 1 else 0.0)
    else:
        step = old / new if factor is None or new == old else 1 / factor
        position = np.maximum((i + 0.5) * step - 0.5, 0)
    left = np.minimum(position.astype(int), old - 1)
    share = np.minimum(position - left, 1)
    index = np.stack([left, np.minimum(left + 1, old - 1)], axis=1)
    return _mixing(index, np.stack([1 - share, share], axis=1), old)


def window_bounds(size: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """First and one past the last element of each window, as even as whole elements allow."""
    i = np.arange(count)
    return i * size // count, -((i + 1) * size // -count)


def _window_means(size: int, count: int) -> Mixing:
    """The mixing that averages `count` windows of `size` elements."""
    first, end = window_bounds(size, count)
    place = first[:, None] + np.arange((end - first).max())
    weight = np.where(place < end[:, None], 1 / (end - first)[:, None], 0)
    return _mixing(np.minimum(place, size - 1), weight, size)


def _spline_zoom(
    old: int, new: int, order: int, mode: str, grid_mode: bool, padded: int
) -> Mixing:
    """Row i mixes the splines around its place, of `old` elements with so many more at each end.

    Places beyond the edges of a "constant" axis have no entries.
    """
    from gtensor.ops.pool.spline_sampling import taps_of  # few programs use it

    i = np.arange(new)
    if grid_mode:
        place = (i + 0.5) * (old / new) - 0.5
    else:
        place = np.minimum(i * ((old - 1) / (new - 1)) if new > 1 else i * 0.0, old - 1)
    whole = old + 2 * padded
    index, weight, outside = taps_of(place + padded, whole, 1, order, mode, 0)
    if outside is not None:
        weight = [np.where(outside, 0, w) for w in weight]
    return _mixing(np.stack(index, axis=1), np.stack(weight, axis=1), whole)


def _correlation(size: int, mode: str, *weights: float) -> Mixing:
    """Row i mixes the elements from i - len(weights) // 2 on by these weights."""
    from gtensor.ops.pool.spline_sampling import continued  # few programs use it

    i = np.arange(size)[:, None] + np.arange(len(weights)) - len(weights) // 2
    each = np.broadcast_to(np.array(weights), i.shape)
    if mode == "constant":
        each = np.where((i >= 0) & (i < size), each, 0)
    return _mixing(continued(i, size, mode), each, size)


_MAKERS: dict[str, Callable[..., Mixing]] = {
    "nearest": _nearest, "linear": _linear, "window means": _window_means,
    "spline zoom": _spline_zoom, "correlation": _correlation}


@lru_cache(maxsize=64)
def matrix(made: Made, transposed: bool) -> Mixing:
    """The matrix made by ("nearest", old, new, factor), ("linear", old, new, factor, align_corners)
    or ("window means", size, count), ("spline zoom", old, new, order, mode, grid_mode, padded), or
    ("correlation", size, mode, *weights), or its transpose.
    """
    name, *numbers = made
    if transposed:
        return matrix(made, False).T
    return _MAKERS[str(name)](*numbers)

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


_MAKERS: dict[str, Callable[..., Mixing]] = {
    "nearest": _nearest, "linear": _linear, "window means": _window_means}


@lru_cache(maxsize=64)
def matrix(made: Made, transposed: bool) -> Mixing:
    """The matrix made by ("nearest", old, new, factor), ("linear", old, new, factor, align_corners)
    or ("window means", size, count), or its transpose.
    """
    name, *numbers = made
    if transposed:
        return matrix(made, False).T
    return _MAKERS[str(name)](*numbers)

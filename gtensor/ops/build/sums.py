"""Sums on the CPU whose rounding errors do not grow with the number of terms.

NumPy adds pairwise along the axis that lies densely in memory, and one after the other along all
others; BLAS adds in a few running totals. Here at most 64 terms are added like that, and then their
sums: so for any number of terms the error is below 4 eps times the sum of the absolute values.
`profiling/ladder_ops.py` and `tests/ops/reduce/test_sums.py` measure time and error.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import gcd, prod
from typing import Any, NamedTuple

import numpy as np

from gtensor.ops.build.cpu_tiles import SMALL

_FEW = 16  # terms that may be added one after the other
_TERMS = {"f": 64, "d": 32}  # of a product with ones, which BLAS adds in several totals
_LONG = 256  # terms of a part of a row, in float32
_VECTOR = 16  # numbers
_WIDE = 4096  # numbers side by side, of which a product of 64 rows wakes no thread of BLAS
_WIDER = {"f": np.float64, "F": np.complex128}
_REAL = {"F": "f", "D": "d"}
_ONES = {char: np.ones((4096, 1), char) for char in "fd"}


def _ones(dtype: np.dtype, count: int) -> np.ndarray:
    return _ONES[dtype.char][:count, 0]


# -- sums over axes that do not lie densely --------------------------------------------------------


class _Plan(NamedTuple):
    """How an array of one shape and layout is summed."""

    middle: tuple[int, int, int] | None  # the shape for `middle_sums`, if that does it all
    order: tuple[int, ...]  # the axes as they lie in memory
    groups: list[tuple[bool, int]]  # see `_groups`
    axes: list[int]  # the places of the summed axes in that order
    turned: tuple[int, ...] | None  # the axes that are left, as they were in x
    shape: tuple[int, ...]  # of the axes that are left, as they lie in memory


def sum_over(
    x: np.ndarray, axis: tuple[int, ...], work: np.dtype, out: np.ndarray | None,
    shape: tuple[int, ...]
) -> np.ndarray | None:
    """x summed over `axis` in dtype `work`, of this shape; None where `np.add.reduce` does as well.

    x is floating or complex. `out`, of any dtype, is written.
    """
    plan = _plan(x.shape, x.strides, axis)
    if plan is None:
        return None
    if x.size < SMALL and work.char in _WIDER:
        total = np.add.reduce(x, axis, _WIDER[work.char]).astype(work)
    elif plan.middle is not None and (rows := _rows(x, plan.middle)) is not None:
        total = middle_sums(rows, work)
    else:
        y = x.transpose(plan.order)
        if y.flags.c_contiguous:
            total = _of_groups(y.reshape([size for _, size in plan.groups]), plan.groups, work)
        else:
            total = _of_strided(y, plan.axes, work)
        total = total.reshape(plan.shape)
        total = total if plan.turned is None else total.transpose(plan.turned)
    total = total.reshape(shape)
    if out is None:
        return total
    out[...] = total
    return out


@lru_cache(4096)
def _plan(
    shape: tuple[int, ...], strides: tuple[int, ...], axis: tuple[int, ...]
) -> _Plan | None:
    gone = {a % len(shape) for a in axis}
    if 0 in shape:
        return None
    order = sorted(range(len(shape)), key=lambda a: -abs(strides[a]))  # stable, so 0 stays last
    groups = _groups(order, shape, gone)
    if not any(summed and size > 2 * _FEW for summed, size in groups[:-1]):
        return None
    middle = None
    if order == sorted(order) and [summed for summed, _ in groups] in ([True, False], [
            False, True, False]):
        middle = groups[0][1] if len(groups) == 3 else 1, groups[-2][1], groups[-1][1]
    kept = [a for a in order if a not in gone]
    turned = None if kept == sorted(kept) else tuple(sorted(range(len(kept)), key=kept.__getitem__))
    axes = [i for i, a in enumerate(order) if a in gone]
    return _Plan(middle, tuple(order), groups, axes, turned, tuple([shape[a] for a in kept]))


def _groups(
    order: Sequence[int], shape: tuple[int, ...], gone: set[int]
) -> list[tuple[bool, int]]:
    """(whether they are summed, their size) of neighbouring axes of one kind; no sizes of 1."""
    found: list[tuple[bool, int]] = []
    for a in order:
        if shape[a] == 1:
            continue
        summed, size = a in gone, shape[a]
        if found and found[-1][0] is summed:
            size *= found.pop()[1]
        found.append((summed, size))
    return found or [(True, 1)]


def _of_groups(x: np.ndarray, groups: list[tuple[bool, int]], work: np.dtype) -> np.ndarray:
    """x, with an axis for each group, summed over those that say so; the innermost first."""
    left = groups.copy()
    while any(summed for summed, _ in left):
        place = max(i for i, (summed, _) in enumerate(left) if summed)
        sizes = [size for _, size in left]
        if place == len(left) - 1:
            x = np.add.reduce(x, axis=-1, dtype=work)
        else:
            lead, width = prod(sizes[:place]), prod(sizes[place + 1:])
            x = middle_sums(x.reshape(lead, sizes[place], width), work)
        del left[place]
        while place and place < len(left) and left[place - 1][0] is left[place][0]:
            summed, size = left.pop(place)  # both are kept
            left[place - 1] = summed, left[place - 1][1] * size
        x = x.reshape([size for _, size in left])
    return x


def _rows(x: np.ndarray, shape: tuple[int, int, int]) -> np.ndarray | None:
    """A view of that shape whose rows are dense, None if there is none."""
    if x.flags.c_contiguous:
        return x.reshape(shape)
    try:
        rows = x.reshape(shape, copy=False)
    except ValueError:
        return None
    _, step, size = rows.strides
    return rows if size == x.itemsize and step >= shape[2] * size else None


def middle_sums(x: np.ndarray, work: np.dtype) -> np.ndarray:
    """The sums (a, c) in dtype `work` of x (a, n, c), whose rows (c) are dense."""
    if x.dtype.char in _REAL and work == x.dtype:
        real = x.view(_REAL[x.dtype.char])
        return middle_sums(real, real.dtype).view(work)
    by_product = x.dtype == work and work.char in "fd"
    rest = []
    while True:
        lead, terms, width = x.shape
        by_blas = by_product and width <= _WIDE
        if terms <= _FEW:
            break
        if x.strides[1] == width * x.itemsize:
            most, beside = _side_by_side(terms, width, _TERMS[work.char] if by_blas else 0)
        else:  # gaps between the rows
            whole = by_blas and not width % _VECTOR and terms >= _TERMS[work.char]
            most, beside = _TERMS[work.char] if whole else _FEW, 1
        blocks = terms // (most * beside)
        stop = blocks * most * beside
        if stop < terms:
            rest.append(middle_sums(x[:, stop:], work))
        parts = x[:, :stop].reshape(lead, blocks, most, beside * width)
        parts = (np.matmul(_ones(work, most), parts) if by_blas
                 else np.add.reduce(parts, axis=2, dtype=work))
        x, by_product = parts.reshape(lead, blocks * beside, width), work.char in "fd"
    total: np.ndarray = (x[:, 0] if terms == 1 and x.dtype == work else
                         np.matmul(_ones(work, terms), x) if by_blas else
                         np.add.reduce(x, axis=1, dtype=work))
    for part in rest:
        total += part
    return total


def _side_by_side(terms: int, width: int, most: int) -> tuple[int, int]:
    """How many terms are added at once, and how many rows of that width lie beside each other.

    `most`: of a product; 0 for none. BLAS has several totals for whole vectors of numbers alone.
    """
    room = max(1, _WIDE // width)
    beside = min(room, terms // most) if most else 0
    if beside < 8:  # else the numbers behind the last vector are few
        beside -= beside % (_VECTOR // gcd(_VECTOR, width))
    if beside:
        return most, beside
    return _FEW, max(1, min(room, terms // _FEW))


def _of_strided(x: np.ndarray, axes: list[int], work: np.dtype) -> np.ndarray:
    """x summed over axes, whose order is that in memory, with gaps between."""
    for axis in sorted(axes, reverse=True):
        dense = axis == x.ndim - 1
        rest = []
        while not dense and x.shape[axis] > _FEW:
            blocks = x.shape[axis] // _FEW
            before, behind = (slice(None),) * axis, x.shape[axis + 1:]
            if blocks * _FEW < x.shape[axis]:
                rest.append(np.add.reduce(x[(*before, slice(blocks * _FEW, None))], axis, work))
            parts = x[(*before, slice(blocks * _FEW))].reshape(
                *x.shape[:axis], blocks, _FEW, *behind)
            x = np.add.reduce(parts, axis + 1, work)
        x = np.add.reduce(x, axis, work)
        for part in rest:
            x += part
    return x


# -- sums of rows ----------------------------------------------------------------------------------


def row_sums(rows: np.ndarray) -> np.ndarray:
    """The sums of rows (..., columns) as a column."""
    if rows.size < SMALL or rows.shape[-1] > SMALL:
        total: np.ndarray = np.add.reduce(rows, axis=-1, keepdims=True)
        return total
    return _row_totals(rows).astype(rows.dtype, copy=False)


def row_means(rows: np.ndarray) -> np.ndarray:
    """The means of rows (rows, columns) as a column: of equal numbers they are this number.

    The difference to it would be divided by a deviation of 0.
    """
    columns = rows.shape[-1]
    if rows.size < SMALL or columns > SMALL:
        total: Any = np.add.reduce(rows, axis=-1, keepdims=True, dtype=np.float64)
    else:
        total = _row_totals(rows)
    total /= total.dtype.type(columns)
    found: np.ndarray = total.astype(rows.dtype, copy=False)
    return found


def _row_totals(rows: np.ndarray) -> np.ndarray:
    """The sums of rows as a column, of parts of few terms; from several parts in float64.

    A product with ones takes a third of the time of `np.add.reduce`.
    """
    columns = rows.shape[-1]
    part = _part(columns)
    if part == columns:
        return rows @ _ONES[rows.dtype.char][:columns]
    if not rows.flags.c_contiguous or not part and rows.dtype.char == "d":
        total: np.ndarray = np.add.reduce(rows, axis=-1, keepdims=True)
        return total
    if part:
        parts = rows.reshape(-1, part) @ _ones(rows.dtype, part)
        parts = parts.astype(np.float64, copy=False).reshape(*rows.shape[:-1], columns // part)
        return parts @ _ONES["d"][:columns // part]
    flat = rows.reshape(-1, columns)
    stop = len(flat) - len(flat) % 4  # BLAS takes four rows together, and others in fewer totals
    total = np.zeros((len(flat), 1))
    np.add.reduce(flat[stop:], axis=-1, keepdims=True, out=total[stop:])
    for start in range(0, columns, _LONG):
        some = flat[:stop, start:start + _LONG]
        total[:stop] += some @ _ONES[rows.dtype.char][:some.shape[-1]]
    return total.reshape(*rows.shape[:-1], 1)


@lru_cache(1024)
def _part(columns: int) -> int:
    """How many of the columns are added at once: a divisor, 0 if there is none that fits.

    Up to 32 equal numbers are added without an error.
    """
    if columns <= 64:
        return columns
    return next((n for n in (*range(32, 15, -1), *range(64, 32, -1)) if columns % n == 0), 0)

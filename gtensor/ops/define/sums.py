"""Sums on the CPU whose rounding errors do not grow with the number of terms.

NumPy adds pairwise along the axis that lies densely in memory, and one after the other along all
others; BLAS adds in a few running totals. Here few terms are added like that, and then their sums,
in levels. To first order a level of n terms adds at most (n - 1) / 2 eps times the sum of the
absolute values, and its remainder 1 / 2. n is up to 16; up to 32 where NumPy does it all; up to 64
in products (32 in float64). That many eps need terms whose sums all round in one direction. For
constant, alternating and random rows the error is below 5 eps: `tests/ops/reduce/test_sums.py`.
`profiling/ladder_ops.py` measures the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import gcd, isqrt, prod
from typing import Any, NamedTuple

import numpy as np

from gtensor.ops.define.cpu_tiles import SMALL

_FEW = 16  # terms that may be added one after the other
_TERMS = {"f": 64, "d": 32}  # of a product with ones, which BLAS adds in several totals
_DENSE = {"f": 1024, "d": 512}  # terms of a dot product, which BLAS adds in 32 or more totals
_VECTOR = 16  # numbers
_BUFFER = 8192  # numbers that NumPy casts at a time, by default
_WIDE = 4096  # numbers side by side, of which a product of 64 rows wakes no thread of BLAS
_WIDER = {"f": np.float64, "F": np.complex128}
_reduce: Any = np.add.reduce  # its overloads take no keepdims that is a variable
_REAL = {"F": "f", "D": "d"}
_NEAR = {"f": 2.0 ** -15, "d": 2.0 ** -44}  # 256 eps; see `recentre`
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
    results: tuple[tuple[int, ...], tuple[int, ...]]  # result shapes, without and with keepdims


def sum_over(
    x: np.ndarray, axis: tuple[int, ...], work: np.dtype, out: np.ndarray | None, keepdims: bool
) -> np.ndarray | None:
    """x summed over `axis` in dtype `work`; None where `np.add.reduce` does as well.

    x is floating or complex. `out`, of any dtype, is written.
    """
    total = _total(x, axis, work, keepdims)
    if out is None or total is None:
        return total
    out[...] = total
    return out


def _total(
    x: np.ndarray, axis: tuple[int, ...], work: np.dtype, keepdims: bool
) -> np.ndarray | None:
    small = x.size < SMALL
    if small and axis == (-2,) and x.ndim == 2 and x.dtype == work and work.char in "fd" and (
            len(x) < len(_SIDES) and (sides := _SIDES[len(x)]) and x.flags.c_contiguous):
        total = _small_matrix(x, *sides)
        return total[None] if keepdims else total
    if 0 in x.strides:
        first, count = _repeated(x.shape, x.strides, axis)
        if count > 1:
            return _multiple(x[first], axis, work, keepdims, count)
    plan = _plan(x.shape, x.strides, axis)
    if plan is None:
        return None
    if small and work.char in _WIDER:
        wide: np.ndarray = _reduce(x, axis, _WIDER[work.char], None, keepdims)
        return wide.astype(work)
    if plan.middle is not None and (rows := _rows(x, plan.middle)) is not None:
        total = middle_sums(rows, work)
    else:
        y = x.transpose(plan.order)
        if y.flags.c_contiguous:
            total = _of_groups(y.reshape([size for _, size in plan.groups]), plan.groups, work)
        else:
            total = _of_strided(y, plan.axes, work)
        total = total.reshape(plan.shape)
        total = total if plan.turned is None else total.transpose(plan.turned)
    return total.reshape(plan.results[keepdims])


def _small_matrix(x: np.ndarray, side: int, most: int) -> np.ndarray:
    """The sums over the rows of x in two steps; there may be a row more than side * most.

    Two small products take less time than one `np.add.reduce`.
    """
    rows, width = x.shape
    ones = _ONES[x.dtype.char][:, 0]
    whole = side * most
    main = x if whole == rows else x[:whole]
    parts = ones[:most].dot(main.reshape(most, side * width))
    total: np.ndarray = ones[:side].dot(parts.reshape(side, width))
    if whole < rows:
        total += x[whole]
    return total


def _sides(rows: int) -> tuple[int, int] | None:
    """Two numbers up to 16 whose product is `rows` or one less."""
    for product in (rows, rows - 1):
        for side in range(max(1, isqrt(product)), _FEW + 1):
            if product % side == 0 and product // side <= _FEW:
                return side, product // side
    return None


_SIDES = [_sides(rows) for rows in range(_FEW * _FEW + 2)]


@lru_cache(1024)
def _repeated(
    shape: tuple[int, ...], strides: tuple[int, ...], axis: tuple[int, ...]
) -> tuple[tuple[slice, ...], int]:
    """A key that selects each number once along summed axes of stride 0, and how often each stands
    in the sum."""
    gone = {a % len(shape) for a in axis}
    once = [a in gone and not stride and size > 1
            for a, (size, stride) in enumerate(zip(shape, strides, strict=True))]
    key = tuple([slice(1) if repeats else slice(None) for repeats in once])
    return key, prod([size for size, repeats in zip(shape, once, strict=True) if repeats])


def _multiple(
    x: np.ndarray, axis: tuple[int, ...], work: np.dtype, keepdims: bool, count: int
) -> np.ndarray:
    """`count` times the sum of x."""
    total = _total(x, axis, work, keepdims)
    if total is None:
        total = np.asarray(_reduce(x, axis, work, None, keepdims))
    parts = (total,) if work.kind == "f" else (total.real, total.imag)  # infinity * 0j is NaN
    for part in parts:
        part *= part.dtype.type(count)
    return total


@lru_cache(4096)
def _plan(
    shape: tuple[int, ...], strides: tuple[int, ...], axis: tuple[int, ...]
) -> _Plan | None:
    gone = {a % len(shape) for a in axis}
    if 0 in shape:
        return None
    order = sorted(range(len(shape)), key=lambda a: -abs(strides[a]))  # stable, so 0 stays last
    groups = _groups(order, shape, gone)
    if prod([size for summed, size in groups[:-1] if summed]) <= 2 * _FEW:
        return None  # NumPy adds the sums along the last one after the other
    middle = None
    if order == sorted(order) and [summed for summed, _ in groups] in ([True, False], [
            False, True, False]):
        middle = groups[0][1] if len(groups) == 3 else 1, groups[-2][1], groups[-1][1]
    kept = [a for a in order if a not in gone]
    turned = None if kept == sorted(kept) else tuple(sorted(range(len(kept)), key=kept.__getitem__))
    axes = [i for i, a in enumerate(order) if a in gone]
    results = (tuple([shape[a] for a in sorted(kept)]),
               tuple([1 if a in gone else size for a, size in enumerate(shape)]))
    return _Plan(middle, tuple(order), groups, axes, turned, tuple([shape[a] for a in kept]),
                 results)


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
    """The means of rows (rows, columns) as a column; see `recentre` for those of equal numbers."""
    columns = rows.shape[-1]
    if columns > SMALL:
        with np.errstate():  # the caller's buffer may be of 16 numbers: `broadcast_directly`
            np.setbufsize(_BUFFER)
            total: Any = np.add.reduce(rows, axis=-1, keepdims=True, dtype=np.float64)
    elif rows.size < SMALL:
        total = np.add.reduce(rows, axis=-1, keepdims=True, dtype=np.float64)
    else:
        total = _row_totals(rows)
    total /= total.dtype.type(columns)
    found: np.ndarray = total.astype(rows.dtype, copy=False)
    return found


def recentre(centred: np.ndarray, means: np.ndarray, squares: np.ndarray) -> None:
    """Subtract the means of rows again where they were rounded by much of the rows' deviation.

    `centred` (rows, columns) are numbers minus `means`, and `squares` the means of their squares,
    as columns; all are corrected. The mean of equal numbers then is this number: its distance from
    the rounded mean is a few units in the last place, whose sums and mean are exact.
    """
    columns = centred.shape[-1]
    if centred.dtype.char == "f" and (centred.size < SMALL or columns > SMALL):
        return  # these means were rounded once, from float64
    near = np.sqrt(squares) < np.abs(means) * _NEAR[centred.dtype.char]
    if np.count_nonzero(near):
        which = np.flatnonzero(near)
        some = centred[which]
        step = row_means(some)
        some -= step
        means[which] += step
        centred[which] = some
        squares[which] = np.vecdot(some, some)[:, None] / columns


def _row_totals(rows: np.ndarray) -> np.ndarray:
    """The sums of rows as a column, in float64 where they are cut unevenly.

    Products with ones take a third of the time of `np.add.reduce`.
    """
    columns, char = rows.shape[-1], rows.dtype.char
    if columns <= 64:
        return rows @ _ONES[char][:columns]
    if not rows.flags.c_contiguous or char == "d" and columns % 32:  # a long tail in one total
        total: np.ndarray = np.add.reduce(rows, axis=-1, keepdims=True)
        return total
    most = _DENSE[char]
    if columns <= most:
        return np.vecdot(rows, _ones(rows.dtype, columns))[..., None]
    if columns % most == 0:
        parts = np.vecdot(rows.reshape(-1, most), _ones(rows.dtype, most))
        return parts.reshape(*rows.shape[:-1], columns // most) @ _ONES[char][:columns // most]
    sums = np.zeros(rows.shape[:-1])
    for start in range(0, columns, most):
        some = rows[..., start:start + most]
        sums += np.vecdot(some, _ones(rows.dtype, some.shape[-1]))
    return sums[..., None]

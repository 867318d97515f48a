"""Counts of elements between edges."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from math import isfinite, nan, prod
from typing import Any, NamedTuple

import numpy as np

from gtensor.creation.dtypes import float32, float64, int64
from gtensor.creation.new_tensors import arange, asarray, linspace, ones
from gtensor.engine.handle.namespaces import recorded
from gtensor.engine.handle.tensor import Tensor
from gtensor.ops import concat, diff, flatten, flip, max, min, reshape, searchsorted, sum, where
from gtensor.ops.define.arguments import of_half, takes_arrays
from gtensor.system.written_code import enter

__all__ = ["digitize", "histogram", "histogramdd"]


class Histogram(NamedTuple):
    """The counts, and the edges that they lie between."""

    hist: Tensor
    bin_edges: Tensor


class HistogramDD(NamedTuple):
    """The counts, an axis for each coordinate, and the edges along each."""

    hist: Tensor
    bin_edges: tuple[Tensor, ...]


@takes_arrays
def histogram(
    x: Tensor, /, bins: int | Sequence[float] | Tensor = 10,
    range: Sequence[float] | None = None, *, weights: Tensor | None = None, density: bool = False,
) -> Histogram:
    """How many elements of x lie in each bin, and the edges of the bins: NumPy's `histogram`.

    A bin has its left edge, the last bin both. int64 counts. Waits for no GPU.

    Args:
        x: real numbers of any shape. Integers are compared as float64, which the
            edges then are; half types as float32.
        bins: how many bins of equal width, or their edges, ascending.
        range: (first, last) of `bins` equal ones; by default the extremes of x. Where these are not
            finite (NumPy raises), the edges are NaN and no element is counted.
        weights: as many as elements, of any shape: their sums are the result, in their dtype.
            Gradients reach the weights, and nothing else.
        density: divide by the total and by the widths, so that the integral is 1.

    Raises ValueError for fewer bins than one, edges or a range that descend, and weights that do
    not fit.

        counts, edges = gt.histogram(gt.tensor([1.0, 2.0, 1.0]), bins=[0, 1, 2, 3])    # [0, 2, 1]
    """
    given, x = x, _compared("histogram", flatten(x))
    edges = _edges("histogram", x, bins, range)
    total = _sums("histogram", _bin(x, edges), edges.size - 1, weights, x)
    return Histogram(_density(total, (edges,), given) if density else total, _in_half(edges, given))


@takes_arrays
def histogramdd(
    x: Tensor, /, bins: int | Sequence[int | Sequence[float] | Tensor] = 10,
    range: Sequence[Sequence[float] | None] | None = None, *, weights: Tensor | None = None,
    density: bool = False,
) -> HistogramDD:
    """How many points x (points, coordinates) lie in each cell of a grid, and its edges.

    NumPy's `histogramdd` with int64 counts. Arguments as of `histogram`: `bins` is one number for
    all coordinates, or a number or edges for each; `range` has a pair, or None, for each. The
    counts have an axis for each coordinate. Raises ValueError as `histogram`, and unless x has two
    axes.

        counts, edges = gt.histogramdd(gt.random.uniform((100, 2)), bins=(4, 5))     # (4, 5) counts
    """
    if x.ndim != 2 or not x.shape[1]:
        raise ValueError(f"histogramdd of a tensor of shape {x.shape}; wanted (points, "
                         "coordinates)")
    points, given = x.shape[1], x
    x = _compared("histogramdd", x)
    each: Any = [bins] * points if isinstance(bins, (int, np.integer)) else bins
    ranges: Any = [None] * points if range is None else range
    if len(each) != points or len(ranges) != points:
        raise ValueError(f"histogramdd was given {len(each)} bins and {len(ranges)} ranges for "
                         f"{points} coordinates; wanted one for each")
    edges = tuple(_edges("histogramdd", x[:, i], each[i], ranges[i])
                  for i in builtins.range(points))
    sizes = tuple(e.size - 1 for e in edges)
    cell: Any = 0
    within: Any = True
    for i, (edge, size) in enumerate(zip(edges, sizes, strict=True)):
        place = _bin(x[:, i], edge)
        cell, within = cell * size + place, (place < size) & within
    found = _sums("histogramdd", where(within, cell, prod(sizes)), prod(sizes), weights, x[:, 0])
    found = reshape(found, sizes)
    return HistogramDD(_density(found, edges, given) if density else found,
                       tuple(_in_half(edge, given) for edge in edges))


def _compared(name: str, x: Tensor) -> Tensor:
    """x in a dtype that edges have, without a gradient."""
    if x.dtype.kind == "c":
        raise TypeError(f"{name} of a tensor of dtype {x.dtype}; wanted real numbers")
    x = x.detach()
    return x.astype(float32 if of_half(x) else x.dtype if x.dtype.kind == "f" else float64)


def _edges(name: str, x: Tensor, bins: Any, range: Any) -> Tensor:
    """The edges of the bins of a 1-d x."""
    if getattr(bins, "ndim", 0) or isinstance(bins, (list, tuple)):
        edges = asarray(bins, device=x.device).detach()
        if edges.ndim != 1 or edges.size < 2:
            raise ValueError(f"{name} was given edges of shape {edges.shape}; wanted two or more")
        if isinstance(bins, (list, tuple)) and any(
                not a <= b for a, b in zip(bins, bins[1:], strict=False)):
            raise ValueError(f"{name} was given bins={bins}; wanted edges that ascend")
        return edges.astype(x.dtype, copy=False)
    if not isinstance(bins, (int, np.integer)):
        raise TypeError(f"{name} was given bins={bins!r}; wanted a whole number, or edges")
    bins = int(bins)
    if bins < 1:
        raise ValueError(f"{name} was given bins={bins}; wanted 1 or more")
    if range is not None:
        first, last = map(float, range)
        if not (isfinite(first) and isfinite(last) and first <= last):
            raise ValueError(f"{name} was given range=({first}, {last}); wanted finite numbers "
                             "that ascend")
        if first == last:
            first, last = first - 0.5, last + 0.5
        return linspace(first, last, bins + 1, dtype=x.dtype, device=x.device)
    if not x.size:
        return linspace(0.0, 1.0, bins + 1, dtype=x.dtype, device=x.device)
    low, high = min(x), max(x)
    alike = low == high
    low, high = where(alike, low - 0.5, low), where(alike, high + 0.5, high)
    steps = arange(bins, dtype=x.dtype, device=x.device)
    return concat([low + steps * ((high - low) / bins), reshape(high, (1,))])


def _bin(x: Tensor, edges: Tensor) -> Tensor:
    """The bin of each element, the number of bins where it lies in none; int64."""
    size = edges.size - 1
    last = edges[-1]
    place = where(x == last, size - 1, searchsorted(edges, x, side="right") - 1)
    return where((x >= edges[0]) & (x <= last), place, size).astype(int64)


def _sums(
    name: str, place: Tensor, size: int, weights: Tensor | None, x: Tensor
) -> Tensor:
    """The sum of the weights, or the count, at each of the places 0 to size - 1."""
    if weights is None:
        weights = ones(x.shape, dtype=int64, device=x.device)
    elif weights.size != x.size:
        raise ValueError(f"{name} was given weights of shape {weights.shape} for {x.size} "
                         "elements; wanted one for each")
    return recorded.scatter_along_axis(flatten(weights), place, axis=-1, shape=(size + 1,))[:size]


def _density(total: Tensor, edges: tuple[Tensor, ...], x: Tensor) -> Tensor:
    """The total over its sum and over the volume of each cell; NaN where there is none."""
    if total.dtype.kind in "iub":
        total = total.astype(edges[0].dtype)
    whole = sum(total)
    found = total / where(whole == 0, nan, whole)
    for i, edge in enumerate(edges):
        found = found / reshape(diff(edge), (-1, *(1,) * (len(edges) - i - 1)))
    return _in_half(found, x)


def _in_half(found: Tensor, x: Tensor) -> Tensor:
    """A result in the dtype of x, if that is a half type."""
    return found.astype(x.dtype) if of_half(x) else found


@takes_arrays
def digitize(x: Tensor, bins: Tensor, /, right: bool = False) -> Tensor:
    """The place of each element among the edges of bins, NumPy's; int64, of x's shape.

    i where bins[i - 1] <= x < bins[i], or bins[i - 1] < x <= bins[i] if `right`; where the edges
    descend with the comparisons turned. 0 and len(bins) are beyond the edges. NaN is len(bins), or
    0 where the edges descend. The order of edges is not checked (a GPU would have to be waited
    for). Raises ValueError unless they are 1-d.

        gt.digitize(gt.tensor([0.5, 2.0, 3.0]), gt.tensor([1.0, 2.0]))         # [0, 2, 2]
    """
    if bins.ndim != 1:
        raise ValueError(f"digitize was given bins of shape {bins.shape}; wanted one dimension")
    side = "left" if right else "right"
    ascending = searchsorted(bins, x, side=side)
    if bins.size < 2:
        return ascending
    descending = bins.size - searchsorted(flip(bins), x, side=side)
    return where(bins[0] > bins[-1], descending, ascending)


enter(globals())

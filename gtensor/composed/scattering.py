"""Writing, adding and extremes at indices: x is not changed, the result is a new tensor.

On a GPU the range of indices is not checked, since that would wait, and one out of range reaches
any element; GTENSOR_DEBUG=1 checks it. Sums there are made by atomics, in any order, unless
`gt.settings.repeatable` is 1: then values are sorted by place first, and the bits repeat. Extremes
and the last of several writes repeat in any case.
"""

from __future__ import annotations

from math import inf
from operator import index as integer
from typing import TYPE_CHECKING, Any

import numpy as np

from gtensor.composed.shapes import booleans
from gtensor.creation.dtypes import float32, iinfo, int64
from gtensor.creation.new_tensors import arange, asarray, full, ones
from gtensor.engine.handle.tensor import Tensor
from gtensor.ops import (
    add,
    broadcast_to,
    clip,
    cumulative_sum,
    divide,
    max,
    maximum,
    minimum,
    multiply,
    negative,
    reshape,
    take,
    where,
)
from gtensor.ops.arrange.index import scatter_add as add_at
from gtensor.ops.arrange.index_keys import ARRAY, Key, described, filled, normalized, selected_shape
from gtensor.ops.arrange.scatter import extreme_at
from gtensor.ops.arrange.shape import axis_index
from gtensor.ops.arrange.writing import fitted, set_item_op, taken
from gtensor.ops.define.arguments import given_axis, of_half, takes_arrays
from gtensor.system.written_code import enter

if TYPE_CHECKING:
    from gtensor.engine.handle.tensor import Operand

__all__ = ["index_add", "masked_scatter", "put_along_axis", "scatter", "scatter_add",
           "scatter_reduce", "segment_max", "segment_min", "segment_sum"]

# -- x.at[key] -------------------------------------------------------------------------------------


class Places:
    """Places of a tensor, `x.at[key]`: its methods give a new tensor that differs from x there.

    Keys are those of `x[key]`, and values broadcast to what it selects; they take x's dtype. All
    are recorded, and run within transforms, where `x[key] = value` is refused. Raises IndexError
    for a key, ValueError for a value's shape, TypeError for its dtype.

        x = gt.zeros(3)
        x.at[[0, 2, 2]].add(1.0)         # 1, 0, 2; x is as it was
    """

    def __init__(self, x: Tensor, key: object) -> None:
        self._x = x
        self._given = key
        self._key, self._indices = normalized(x, key, x.requires_grad)

    def get(self) -> Tensor:
        """x[key]."""
        return self._x[self._given]

    def set(self, value: Operand) -> Tensor:
        """x with the value at key, the last one where the key repeats a place."""
        x = self._x
        return set_item_op(x, self._value("set", value), *self._indices, key=self._key)

    def add(self, value: Operand) -> Tensor:
        """x with the value added at key, as often as the key repeats a place."""
        x, values = self._x, self._value("add", value)
        if not self._indices:
            return set_item_op(x, add(x[self._given], values), key=self._key)
        return add(x, add_at(values, *self._indices, key=self._key, shape=x.shape))

    def subtract(self, value: Operand) -> Tensor:
        """x with the value subtracted at key, as often as the key repeats a place."""
        return self.add(negative(self._value("subtract", value)))

    def max(self, value: Operand) -> Tensor:
        """x with the largest of it and the values at key; NaN if one is. Equal ones share the
        gradient."""
        return self._extreme("max", value)

    def min(self, value: Operand) -> Tensor:
        """x with the smallest of it and the values at key; NaN if one is. Equal ones share the
        gradient."""
        return self._extreme("min", value)

    def _extreme(self, method: str, value: Operand) -> Tensor:
        x, values = self._x, self._value(method, value)
        if not self._indices:
            function = maximum if method == "max" else minimum
            return set_item_op(x, function(x[self._given], values), key=self._key)
        return extreme_at(x, values, *self._indices, key=self._key, function=f"{method}imum")

    def _value(self, method: str, value: Any) -> Tensor:
        """The value in x's dtype, of the shape that the key selects."""
        x, what = self._x, f"x.at[key].{method}"
        given = taken(x, value if isinstance(value, (Tensor, int, float)) else asarray(
            value, device=x.device), what)
        if not isinstance(given, Tensor):
            given = asarray(given, dtype=x.dtype, device=x.device)
        if not self._indices:
            shape = x[self._given].shape
        else:
            try:
                shape = selected_shape(
                    filled(self._key, tuple(i._array for i in self._indices)), x.shape)
            except IndexError as error:
                raise IndexError(f"{described(self._given, x.shape)}: {error}") from None
        return broadcast_to(fitted(given, shape, what).astype(x.dtype, copy=False), shape)


class _At:
    """`x.at`: `x.at[key]` are the `Places` of x."""

    def __init__(self, x: Tensor) -> None:
        self._x = x

    def __getitem__(self, key: object) -> Places:
        return Places(self._x, key)


at = property(_At, doc="`x.at[key].add(v)`, `.set(v)`, `.max(v)`: a new tensor, as JAX's.")


# -- along an axis ---------------------------------------------------------------------------------


def _along(
    name: str, x: Tensor, dim: int, index: Tensor, src: Any
) -> tuple[Tensor, Key, tuple[Tensor, ...]]:
    """The values of src that an index of PyTorch's names, in x's dtype, and their key in x."""
    axis = axis_index(dim, x.ndim, name)
    _integers(name, index)
    given = taken(x, src, name)
    if not isinstance(given, Tensor):
        given = broadcast_to(asarray(given, dtype=x.dtype, device=x.device), index.shape)
    if index.ndim != x.ndim or given.ndim != x.ndim or any(
            n > m or n > k and i != axis for i, (n, m, k) in enumerate(
                zip(index.shape, given.shape, x.shape, strict=True))):
        raise ValueError(f"{name} along dim {dim} of shape {x.shape} by an index of shape "
                         f"{index.shape} and values of shape {given.shape}; wanted as many axes, "
                         "the index none longer than the values', and none but dim longer than x's")
    if given.shape != index.shape:
        given = given[tuple(slice(n) for n in index.shape)]
    return given.astype(x.dtype, copy=False), *_key_along(x, axis, index)


def _key_along(x: Tensor, axis: int, index: Tensor) -> tuple[Key, tuple[Tensor, ...]]:
    """The key of the elements at an index along an axis, and its arrays."""
    arrays = tuple(index if i == axis else reshape(
        arange(n, device=x.device), (n, *(1,) * (x.ndim - i - 1)))
        for i, n in enumerate(index.shape))
    return (ARRAY,) * x.ndim, arrays


def _integers(name: str, index: Tensor) -> None:
    if index.dtype.kind not in "iu":
        raise TypeError(f"{name} was given an index of dtype {index.dtype}; wanted integers")


@takes_arrays
def scatter(x: Tensor, dim: int, index: Tensor, src: Operand) -> Tensor:
    """x with src written at indices along `dim`, the last one where they repeat, as PyTorch's.

    y[index[i, j], j] = src[i, j] for dim=0 and two axes. `src` is a number, or a tensor of x's
    number of axes, none shorter than index's; no axis of index but dim is longer than x's. Negative
    indices count from the end. Raises ValueError for the shapes, TypeError for an index that is not
    of integers or a src that x's dtype cannot hold, IndexError for one out of range.

        gt.scatter(gt.zeros(4), 0, [1, 3], gt.tensor([5.0, 7.0]))      # 0, 5, 0, 7
    """
    values, key, indices = _along("scatter", x, dim, index, src)
    return set_item_op(x, values, *indices, key=key)


@takes_arrays
def scatter_add(x: Tensor, dim: int, index: Tensor, src: Operand) -> Tensor:
    """x with src added at indices along `dim`, repeated ones summed, as PyTorch's.

    y[index[i, j], j] += src[i, j] for dim=0 and two axes. Shapes and errors are those of `scatter`.

        gt.scatter_add(gt.zeros(3), 0, [2, 0, 2], gt.ones(3))          # 1, 0, 2
    """
    values, key, indices = _along("scatter_add", x, dim, index, src)
    return add(x, add_at(values, *indices, key=key, shape=x.shape))


_EXTREMES = {"amax": "maximum", "amin": "minimum"}


@takes_arrays
def scatter_reduce(
    x: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    """x with the "sum", "mean", "amax" or "amin" of src at indices along `dim`, as PyTorch's.

    x's own elements take part if `include_self`; without, they stay where no index points. Equal
    extremes share the gradient. A mean of integers is rounded down. Shapes and errors are those of
    `scatter`; raises ValueError for another `reduce`.
    """
    if reduce not in ("sum", "mean", "amax", "amin"):
        raise ValueError(f"scatter_reduce was given reduce={reduce!r}; wanted 'sum', 'mean', "
                         "'amax' or 'amin'")
    values, key, indices = _along("scatter_reduce", x, dim, index, src)
    if not include_self:
        start = 0 if reduce in ("sum", "mean") else _identity(reduce, x.dtype)
        x = set_item_op(x, asarray(start, dtype=x.dtype, device=x.device), *indices, key=key)
    if reduce in _EXTREMES:
        return extreme_at(x, values, *indices, key=key, function=_EXTREMES[reduce])
    if reduce == "sum":
        return add(x, add_at(values, *indices, key=key, shape=x.shape))
    whole = x.dtype.kind in "iu"
    work = x.dtype if x.dtype.itemsize == 8 else int64 if whole else (
        float32 if of_half(x) else x.dtype)  # in which sums and counts do not overflow
    total = add(x.astype(work, copy=False), add_at(
        values.astype(work, copy=False), *indices, key=key, shape=x.shape))
    count = add_at(ones(values.shape, int64, x.device), *indices, key=key, shape=x.shape)
    count = (add(count, 1) if include_self else maximum(count, 1)).astype(work)
    return (total // count if whole else divide(total, count)).astype(x.dtype, copy=False)


@takes_arrays
def put_along_axis(
    x: Tensor, indices: Operand, values: Operand, /, axis: int = -1, *, dim: int | None = None
) -> Tensor:
    """x with values at integer `indices` along `axis`, the last one where they repeat.

    What `take_along_axis` reads: indices have as many axes as x, which broadcast but for `axis`,
    and values broadcast to the result of that. NumPy's writes into x. Raises ValueError for the
    shapes, TypeError for the dtypes, IndexError for an index out of range.
    """
    if dim is not None:
        axis = given_axis("put_along_axis", axis, dim, -1)
    place = axis_index(axis, x.ndim, "put_along_axis")
    where_ = indices if isinstance(indices, Tensor) else asarray(indices, device=x.device)
    _integers("put_along_axis", where_)
    if where_.ndim != x.ndim or any(
            n not in (1, m) for i, (n, m) in enumerate(zip(where_.shape, x.shape, strict=False))
            if i != place):
        raise ValueError(f"put_along_axis into a tensor of shape {x.shape} with indices of shape "
                         f"{where_.shape}; wanted as many axes, broadcasting but for axis {place}")
    given = taken(x, values, "put_along_axis")
    if not isinstance(given, Tensor):
        given = asarray(given, dtype=x.dtype, device=x.device)
    shape = tuple(n if i == place else m
                  for i, (n, m) in enumerate(zip(where_.shape, x.shape, strict=True)))
    given = fitted(given, shape, "put_along_axis")
    key, arrays = _key_along(x, place, broadcast_to(where_, shape))
    return set_item_op(x, given, *arrays, key=key)


@takes_arrays
def index_add(
    x: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: float = 1
) -> Tensor:
    """x with alpha times the slices of source added at indices along `dim`, as PyTorch's.

    index is 1-d, source of x's shape but for `dim`, which is index's length. Repeated indices are
    summed. Raises ValueError for the shapes, TypeError for the dtypes, IndexError for an index out
    of range.

        gt.index_add(gt.zeros((3, 2)), 0, [2, 2], gt.ones((2, 2)))     # rows: 0, 0, 2
    """
    axis = axis_index(dim, x.ndim, "index_add")
    _integers("index_add", index)
    given = taken(x, source, "index_add")
    if index.ndim != 1 or given.shape != (*x.shape[:axis], index.size, *x.shape[axis + 1:]):
        raise ValueError(f"index_add along dim {dim} of shape {x.shape} by an index of shape "
                         f"{index.shape} and a source of shape {source.shape}; wanted a 1-d index, "
                         "and a source of x's shape but for dim, which has the index's length")
    given = given.astype(x.dtype, copy=False)
    if alpha != 1:
        if x.dtype.kind in "iu" and alpha != int(alpha):
            raise TypeError(f"index_add of a tensor of dtype {x.dtype} was given alpha={alpha}; "
                            "wanted a whole number")
        given = multiply(given, taken(x, alpha, "index_add"))
    key = (*(slice(None),) * axis, ARRAY)
    return add(x, add_at(given, index, key=key, shape=x.shape))


# -- segments --------------------------------------------------------------------------------------


def _segments(
    name: str, data: Tensor, segment_ids: Tensor, num_segments: int | None
) -> tuple[int, ...]:
    """The shape of a result with a row for each segment."""
    _integers(name, segment_ids)
    if segment_ids.ndim != 1 or not data.ndim or data.shape[0] != segment_ids.size:
        raise ValueError(f"{name} of data of shape {data.shape} by segment_ids of shape "
                         f"{segment_ids.shape}; wanted data (N, ...) and segment_ids (N,)")
    if num_segments is None:
        num_segments = int(max(segment_ids)) + 1 if segment_ids.size else 0
    if num_segments < 0:
        raise ValueError(f"{name} was given num_segments={num_segments}; wanted 0 or more")
    return (integer(num_segments), *data.shape[1:])


@takes_arrays
def segment_sum(data: Tensor, segment_ids: Tensor, num_segments: int | None = None) -> Tensor:
    """The sums of data (N, ...) by segment, (num_segments, ...), as JAX's; 0 for an empty one.

    segment_ids (N,) need not be sorted; negative ones count from the end. Half types are summed in
    float32. Without `num_segments` it is the largest id and 1, which waits for a GPU. Raises
    ValueError for the shapes, TypeError for ids that are not integers, IndexError for one out of
    range (JAX drops it).

        gt.segment_sum(gt.tensor([1.0, 2.0, 4.0]), [0, 1, 0])          # 5, 2
    """
    shape = _segments("segment_sum", data, segment_ids, num_segments)
    return add_at(data, segment_ids, key=(ARRAY,), shape=shape)


@takes_arrays
def segment_max(data: Tensor, segment_ids: Tensor, num_segments: int | None = None) -> Tensor:
    """The largest of data (N, ...) by segment, (num_segments, ...), as JAX's; NaN if one is.

    An empty segment has -inf, or the smallest integer. Equal ones share the gradient. Shapes and
    errors are those of `segment_sum`.
    """
    return _extreme_of("segment_max", "amax", data, segment_ids, num_segments)


@takes_arrays
def segment_min(data: Tensor, segment_ids: Tensor, num_segments: int | None = None) -> Tensor:
    """The smallest of data (N, ...) by segment, (num_segments, ...), as JAX's; NaN if one is.

    An empty segment has inf, or the largest integer. Equal ones share the gradient. Shapes and
    errors are those of `segment_sum`.
    """
    return _extreme_of("segment_min", "amin", data, segment_ids, num_segments)


def _extreme_of(
    name: str, reduce: str, data: Tensor, segment_ids: Tensor, num_segments: int | None
) -> Tensor:
    shape = _segments(name, data, segment_ids, num_segments)
    start = full(shape, _identity(reduce, data.dtype), dtype=data.dtype, device=data.device)
    return extreme_at(start, data, segment_ids, key=(ARRAY,), function=_EXTREMES[reduce])


def _identity(reduce: str, dtype: np.dtype) -> float:
    """What is no larger ("amax"), or no smaller ("amin"), than any value of a dtype."""
    if dtype.kind in "fV":
        return -inf if reduce == "amax" else inf
    if dtype.kind == "b":
        return reduce == "amin"
    if dtype.kind == "c":
        raise TypeError(f"an extreme of values of dtype {dtype}; wanted real numbers, which have "
                        "an order")
    limits = iinfo(dtype)
    return int(limits.min if reduce == "amax" else limits.max)


# -- masks -----------------------------------------------------------------------------------------


@takes_arrays
def masked_scatter(x: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """x with the first elements of source where the mask is true, in their order, as PyTorch's.

    The mask broadcasts to x. Raises TypeError for a mask that is not of booleans or a source of
    another dtype, ValueError if source has too few elements, which on a GPU is not checked.

        gt.masked_scatter(gt.zeros(3), [True, False, True], gt.tensor([5.0, 7.0]))   # 5, 0, 7
    """
    mask = broadcast_to(booleans("masked_scatter", mask), x.shape)
    given = reshape(taken(x, source, "masked_scatter"), (-1,)).astype(x.dtype, copy=False)
    if not x.size:
        return x.clone()
    places = reshape(cumulative_sum(reshape(mask, (-1,)), dtype=int64), x.shape)
    if isinstance(places._array, np.ndarray):
        count = int(places._array[(-1,) * x.ndim])
        if count > given.size:
            raise ValueError(f"masked_scatter was given a source of {given.size} elements for "
                             f"{count} places; wanted as many or more")
    if not given.size:
        return x.clone()
    return where(mask, take(given, clip(places - 1, 0, given.size - 1)), x)


enter(globals())

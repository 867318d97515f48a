"""Shapes, parts and selections, in the words of NumPy and PyTorch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import index
from typing import TYPE_CHECKING, Any, SupportsIndex

from gtensor.creation.new_tensors import asarray
from gtensor.engine.handle.tensor import Tensor
from gtensor.ops import (
    broadcast_arrays,
    concat,
    nonzero,
    permute_dims,
    reshape,
    stack,
    take,
    take_along_axis,
    unique_all,
    where,
)
from gtensor.ops.arrange.shape import axis_index, integers
from gtensor.ops.define.arguments import all_tensors, takes_arrays
from gtensor.system.written_code import enter

if TYPE_CHECKING:
    from gtensor.engine.handle.tensor import Operand

__all__ = ["argwhere", "hstack", "swapaxes", "unique", "vstack"]


@takes_arrays
def swapaxes(x: Tensor, axis1: int, axis2: int, /) -> Tensor:
    """Two axes in each other's place: a view. Raises AxisError for one that there is not."""
    order = list(range(x.ndim))
    first, second = (axis_index(a, x.ndim, "swapaxes") for a in (axis1, axis2))
    order[first], order[second] = second, first
    return permute_dims(x, order)


@takes_arrays
def transpose(x: Tensor, *axes: Any) -> Tensor:
    """All axes in reverse order; two axes of any tensor swapped; or the axes in an order: a view.

    `transpose(x, 0, 1)` swaps two axes, as PyTorch's does. A tuple, or another number of axes, is
    the new order, as NumPy's.
    """
    if not axes or axes == (None,):
        return permute_dims(x, range(x.ndim)[::-1])
    if len(axes) == 2:
        return swapaxes(x, *axes)
    return permute_dims(x, axes[0] if len(axes) == 1 else axes)


def vstack(arrays: Sequence[Tensor], /) -> Tensor:
    """The tensors one below the other: joined along the first axis; vectors become rows."""
    return concat([reshape(x, (1, -1)) if x.ndim < 2 else x
                   for x in all_tensors("vstack", "arrays", arrays)])


def hstack(arrays: Sequence[Tensor], /) -> Tensor:
    """The tensors side by side: joined along the second axis, vectors along their only one."""
    rows = [reshape(x, (1,)) if x.ndim == 0 else x
            for x in all_tensors("hstack", "arrays", arrays)]
    return concat(rows, 0 if rows and rows[0].ndim == 1 else 1)


@takes_arrays
def argwhere(x: Tensor, /) -> Tensor:
    """The indices of the elements that are not zero, a row for each: (count, x.ndim), int64."""
    return stack(nonzero(x), axis=1)


@takes_arrays
def unique(
    x: Tensor, /, *, return_index: bool = False, return_inverse: bool = False,
    return_counts: bool = False
) -> Tensor | tuple[Tensor, ...]:
    """The distinct elements in ascending order; where each is first, x by them, counts, if asked.

    As NumPy's and PyTorch's in that order. Has no derivative.
    """
    found = unique_all(x)
    asked = [part for part, wanted in ((found.indices, return_index),
                                       (found.inverse_indices, return_inverse),
                                       (found.counts, return_counts)) if wanted]
    return (found.values, *asked) if asked else found.values


@takes_arrays
def chunk(x: Tensor, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    """x in `chunks` parts along `dim` at most, of equal sizes but the last: views, as PyTorch's.

    Of an axis of 5 elements 4 chunks are 3 parts, of 2, 2 and 1. Raises ValueError for fewer than
    one.
    """
    if chunks < 1:
        raise ValueError(f"chunk was given chunks={chunks}; wanted 1 or more")
    size = x.shape[axis_index(dim, x.ndim, "chunk")]
    return split_by_size(x, -(-size // chunks) if size else [0] * chunks, dim)


@takes_arrays
def split_by_size(
    x: Tensor, split_size: int | Sequence[int], dim: int = 0
) -> tuple[Tensor, ...]:
    """x in parts of `split_size` along `dim` (the last may be smaller), or of these sizes: views.

    As PyTorch's `split`. Raises ValueError for sizes that do not add up to the axis, or are < 0.
    """
    axis = axis_index(dim, x.ndim, "split")
    length = x.shape[axis]
    if isinstance(split_size, SupportsIndex):  # NumPy's integers, too
        split_size = index(split_size)
        if split_size < 1:
            raise ValueError(f"split was given the size {split_size}; wanted 1 or more")
        sizes: Sequence[int] = [min(split_size, length - start)
                                for start in range(0, length, split_size)] or [0]
    else:
        sizes = integers(split_size)
    if sum(sizes) != length or any(size < 0 for size in sizes):
        raise ValueError(f"split of an axis of size {length} into parts of {tuple(sizes)}; wanted "
                         f"sizes that add up to {length}")
    return tuple(_parts(x, sizes, axis))


def _parts(x: Tensor, sizes: Sequence[int], axis: int) -> Iterator[Tensor]:
    start = 0
    for size in sizes:
        yield narrow(x, axis, start, size)
        start += size


@takes_arrays
def narrow(x: Tensor, dim: int, start: int, length: int) -> Tensor:
    """`length` elements from `start` on along `dim`: a view, as PyTorch's.

    A negative start counts from the end. Raises ValueError for elements that there are not.
    """
    axis = axis_index(dim, x.ndim, "narrow")
    size = x.shape[axis]
    first = start + size if start < 0 else start
    if length < 0 or not 0 <= first <= size - length:
        raise ValueError(f"narrow was given start={start} and length={length} for an axis of size "
                         f"{size}; wanted elements within it")
    return x[(slice(None),) * axis + (slice(first, first + length),)]


@takes_arrays
def select(x: Tensor, dim: int, index: int) -> Tensor:
    """The slice at `index` along `dim`, without that axis: a view, as PyTorch's."""
    return x[(slice(None),) * axis_index(dim, x.ndim, "select") + (index,)]


@takes_arrays
def index_select(x: Tensor, dim: int, index: Tensor) -> Tensor:
    """The slices at the indices along `dim`, as PyTorch's; `take` with axis=.

    One index (0-d) keeps the axis, of size 1. Raises ValueError for indices of more axes.
    """
    if index.ndim > 1:
        raise ValueError(f"index_select was given an index of shape {index.shape}; wanted one axis "
                         "(gt.take takes more)")
    return take(x, reshape(index, (-1,)), axis=dim)


@takes_arrays
def masked_select(x: Tensor, mask: Tensor) -> Tensor:
    """The elements where the mask is true, 1-d; both broadcast, unlike `x[mask]`.

    Raises TypeError for a mask that is not of booleans.
    """
    x, mask = broadcast_arrays(x, booleans("masked_select", mask))
    return x[mask]


@takes_arrays
def masked_fill(x: Tensor, mask: Tensor, value: Operand) -> Tensor:
    """`value` where the mask is true, else x, in the dtype of x; both broadcast.

    Raises TypeError for a mask that is not of booleans.
    """
    if isinstance(value, Tensor):
        value = value.astype(x.dtype, copy=False)
    elif x.dtype.kind in "iub":
        value = asarray(value, dtype=x.dtype, device=x.device)
    return where(booleans("masked_fill", mask), value, x)


def booleans(name: str, mask: Tensor) -> Tensor:
    """The mask. Raises TypeError for another dtype, of which `x[mask]` would make indices."""
    if mask.dtype.kind != "b":
        raise TypeError(f"{name} was given a mask of dtype {mask.dtype}; wanted bool, such as "
                        "mask != 0")
    return mask


@takes_arrays
def gather(x: Tensor, dim: int, index: Tensor) -> Tensor:
    """The elements of x at indices along `dim`, of index's shape, as PyTorch's.

    Raises ValueError unless index has as many axes, none but `dim` longer than x's.
    """
    axis = axis_index(dim, x.ndim, "gather")
    if index.ndim != x.ndim or any(
            n > m for i, (n, m) in enumerate(zip(index.shape, x.shape, strict=True)) if i != axis):
        raise ValueError(f"gather along dim {dim} of shape {x.shape} by an index of shape "
                         f"{index.shape}; wanted as many axes, none but dim longer than x's")
    part = x[tuple(slice(None) if i == axis else slice(n) for i, n in enumerate(index.shape))]
    return take_along_axis(part, index, axis=axis)


@takes_arrays
def atleast_1d(x: Tensor, /) -> Tensor:
    """x with at least one axis: a view."""
    return x if x.ndim else reshape(x, (1,))


@takes_arrays
def atleast_2d(x: Tensor, /) -> Tensor:
    """x with at least two axes: a view; a vector is a row."""
    return x if x.ndim > 1 else reshape(x, (1, -1))


def column_stack(arrays: Sequence[Tensor], /) -> Tensor:
    """Numbers and vectors as the columns of a matrix, beside matrices."""
    return concat([reshape(x, (-1, 1)) if x.ndim < 2 else x
                   for x in all_tensors("column_stack", "arrays", arrays)], 1)


enter(globals())

"""Statistics of the elements that are not NaN."""

from __future__ import annotations

from collections.abc import Sequence
from math import nan
from typing import TYPE_CHECKING

from gtensor.composed.statistics import numbers_of, rows_over
from gtensor.creation.dtypes import float32, float64, int64
from gtensor.ops import (
    clip,
    count_nonzero,
    floor,
    isnan,
    minimum,
    reshape,
    sort,
    stack,
    sum,
    take_along_axis,
    where,
)
from gtensor.ops.define.arguments import floats, of_half, takes_arrays, torch_words
from gtensor.system.written_code import enter

if TYPE_CHECKING:
    from gtensor.backend.typing import DTypeLike
    from gtensor.engine.handle.tensor import Tensor
    from gtensor.ops.reduce.reductions import Axis

__all__ = ["nanmean", "nanmedian", "nanquantile", "nansum"]


@takes_arrays
def nansum(
    x: Tensor, /, axis: Axis = None, *, dtype: DTypeLike | None = None, keepdims: bool = False,
    dim: Axis = None, keepdim: bool | None = None,
) -> Tensor:
    """`sum` over `axis` (all by default) of the elements that are not NaN, 0 if there is none.

    NaN gets no gradient.

        gt.nansum(gt.tensor([1.0, gt.nan, 2.0]))                       # 3
    """
    axis, keepdims = torch_words("nansum", axis, dim, keepdims, keepdim)
    return sum(where(isnan(x), 0, x), axis, dtype=dtype, keepdims=keepdims)


@takes_arrays
def nanmean(
    x: Tensor, /, axis: Axis = None, *, keepdims: bool = False, dim: Axis = None,
    keepdim: bool | None = None,
) -> Tensor:
    """`mean` over `axis` (all by default) of the elements that are not NaN; NaN if there is none.

    NaN gets no gradient. Integers become the default dtype first.

        gt.nanmean(gt.tensor([1.0, gt.nan, 2.0]))                      # 1.5
    """
    axis, keepdims = torch_words("nanmean", axis, dim, keepdims, keepdim)
    x = floats(x)
    unknown, work = isnan(x), float32 if of_half(x) else x.dtype
    total = sum(where(unknown, 0, x), axis, dtype=work, keepdims=keepdims)
    count = count_nonzero(~unknown, axis, keepdims=keepdims)
    return (total / where(count == 0, nan, count).astype(work)).astype(x.dtype, copy=False)


@takes_arrays
def nanquantile(
    x: Tensor, q: float | Sequence[float] | Tensor, /, axis: Axis = None, *,
    keepdims: bool = False, dim: Axis = None, keepdim: bool | None = None,
) -> Tensor:
    """`quantile` of the elements that are not NaN; NaN if there is none. Errors as there.

        gt.nanquantile(gt.tensor([1.0, gt.nan, 2.0]), 0.25)            # 1.25
    """
    axis, keepdims = torch_words("nanquantile", axis, dim, keepdims, keepdim)
    return _quantile("nanquantile", x, q, axis, keepdims)


@takes_arrays
def nanmedian(
    x: Tensor, /, axis: Axis = None, *, keepdims: bool = False, dim: Axis = None
) -> Tensor:
    """`median` of the elements that are not NaN; NaN if there is none.

    Raises TypeError for `dim`, as `median`.

        gt.nanmedian(gt.tensor([1.0, gt.nan, 2.0, 9.0]))               # 2
    """
    if dim is not None:
        raise TypeError(f"nanmedian was given dim={dim}, where PyTorch gives the lower middle "
                        f"element and its place; wanted nanmedian(x, axis={dim}), the mean of both")
    return _quantile("nanmedian", x, 0.5, axis, keepdims)


def _quantile(
    name: str, x: Tensor, q: float | Sequence[float] | Tensor, axis: Axis, keepdims: bool
) -> Tensor:
    shares, several = numbers_of(name, q, 1)
    rows, shape = rows_over(name, x, axis, keepdims)
    ordered = sort(rows)  # NaN come last
    last = clip(count_nonzero(~isnan(rows), axis=-1) - 1, 0, None)
    found = []
    for share in shares:
        place = share * last.astype(float64)
        low = floor(place)
        lower, upper = (take_along_axis(ordered, reshape(n, (*n.shape, 1)), -1)[..., 0]
                        for n in (low.astype(int64), minimum(low.astype(int64) + 1, last)))
        between = (place - low).astype(rows.dtype)
        found.append(reshape(where(between == 0, lower, lower + (upper - lower) * between), shape))
    return stack(found) if several else found[0]


enter(globals())

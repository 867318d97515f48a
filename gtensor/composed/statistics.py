"""Order statistics, covariance, counts."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from math import floor, nan
from numbers import Real
from operator import index
from typing import TYPE_CHECKING, Any

from gtensor.creation.dtypes import int64
from gtensor.creation.new_tensors import ones
from gtensor.engine.handle.tensor import Tensor
from gtensor.ops import (
    clip,
    conj,
    isnan,
    max,
    mean,
    min,
    moveaxis,
    real,
    reshape,
    sort,
    sqrt,
    stack,
    where,
)
from gtensor.ops.arrange.index import scatter_add as add_at
from gtensor.ops.arrange.index_keys import ARRAY
from gtensor.ops.define.arguments import floats, takes_arrays, torch_words
from gtensor.ops.linalg.norms import diagonal
from gtensor.ops.reduce.reductions import kept_shape, normalize_axis, reduced
from gtensor.system.written_code import enter

if TYPE_CHECKING:
    from gtensor.ops.reduce.reductions import Axis

__all__ = ["bincount", "corrcoef", "cov", "median", "percentile", "quantile"]


@takes_arrays
def quantile(
    x: Tensor, q: float | Sequence[float] | Tensor, /, axis: Axis = None, *,
    keepdims: bool = False, dim: Axis = None, keepdim: bool | None = None,
) -> Tensor:
    """The q-quantile over `axis` (all by default), between two elements by linear interpolation.

    Several q, in one dimension, are the first axis of the result. NaN if there is one. The
    gradient goes to the one or two elements by their weights. Integers become the default dtype.

    Raises ValueError for a q outside 0 to 1, and over no elements, TypeError for complex numbers.
    """
    axis, keepdims = torch_words("quantile", axis, dim, keepdims, keepdim)
    places, several = numbers_of("quantile", q, 1)
    rows, shape = rows_over("quantile", x, axis, keepdims)
    ordered = sort(rows)
    unknown = isnan(ordered[..., -1])  # where the last is NaN one of them is
    found = [reshape(where(unknown, nan, _between(ordered, p)), shape) for p in places]
    return stack(found) if several else found[0]


def rows_over(
    name: str, x: Tensor, axis: Axis, keepdims: bool
) -> tuple[Tensor, tuple[int, ...]]:
    """x with the elements over `axis` as its last axis, and the shape of a result for each row.

    Raises TypeError for complex numbers, ValueError for rows of no elements.
    """
    if x.dtype.kind == "c":
        raise TypeError(f"{name} of a tensor of dtype {x.dtype}; wanted real numbers, which have "
                        "an order")
    axes = normalize_axis(axis, x.ndim, name)
    rows = reshape(moveaxis(floats(x), axes, range(-len(axes), 0)),
                   (*kept_shape(x.shape, axes, False), reduced(x.shape, axes)))
    if not rows.shape[-1]:
        raise ValueError(f"{name} over axis {axis} of a tensor of shape {x.shape}; wanted at "
                         "least one element")
    return rows, kept_shape(x.shape, axes, keepdims)


def numbers_of(
    name: str, q: float | Sequence[float] | Tensor, most: int
) -> tuple[list[float], bool]:
    """The numbers as a list, and whether they were several. ValueError outside 0 to `most`."""
    given: Any = q.tolist() if isinstance(q, Tensor) else q
    several = isinstance(given, (list, tuple))
    numbers = list(given) if several else [given]
    if not builtins.all(isinstance(n, Real) for n in numbers):
        raise TypeError(f"{name} was given q={q!r}; wanted a number from 0 to {most}, or several")
    if not builtins.all(0 <= n <= most for n in numbers):
        raise ValueError(f"{name} was given q={q}; wanted numbers from 0 to {most}")
    return numbers, several


def _between(ordered: Tensor, q: float) -> Tensor:
    """The element of sorted rows at q, counted from 0 (the first) to 1 (the last)."""
    place = q * (ordered.shape[-1] - 1)
    low = floor(place)
    first = ordered[..., low]
    return first if low == place else first + (ordered[..., low + 1] - first) * (place - low)


@takes_arrays
def percentile(
    x: Tensor, q: float | Sequence[float], /, axis: Axis = None, *, keepdims: bool = False
) -> Tensor:
    """`quantile` of q / 100. Raises ValueError for a q outside 0 to 100."""
    places, several = numbers_of("percentile", q, 100)
    shares = [p / 100 for p in places]
    return quantile(x, shares if several else shares[0], axis, keepdims=keepdims)


@takes_arrays
def median(
    x: Tensor, /, axis: Axis = None, *, keepdims: bool = False, dim: Axis = None
) -> Tensor:
    """The middle element over `axis` (all by default), of two the mean, as NumPy's; NaN if any is.

    PyTorch's is the lower of the two, with its place where `dim` is given: raises TypeError for
    `dim`.
    """
    if dim is not None:
        raise TypeError(f"median was given dim={dim}, where PyTorch gives the lower middle element "
                        f"and its place; wanted median(x, axis={dim}), the mean of both, or "
                        f"gt.sort(x, axis={dim}) and the place (n - 1) // 2")
    return quantile(x, 0.5, axis, keepdims=keepdims)


@takes_arrays
def cov(x: Tensor, /, *, correction: float = 1.0) -> Tensor:
    """The covariance of variables, the rows of x (variables, observations), over n - correction.

    The result of one variable is its variance, 0-d. Integers become the default dtype first. Raises
    ValueError for more axes.
    """
    if x.ndim > 2:
        raise ValueError(f"cov of a tensor of shape {x.shape}; wanted (variables, observations)")
    rows = floats(x)
    rows = reshape(rows, (1, -1)) if x.ndim < 2 else rows
    away = rows - mean(rows, axis=-1, keepdims=True)
    found = away @ conj(away).mT / builtins.max(0.0, rows.shape[-1] - correction)
    return reshape(found, ()) if found.size == 1 else found


@takes_arrays
def corrcoef(x: Tensor, /) -> Tensor:
    """The correlation of variables, the rows of x (variables, observations): from -1 to 1.

    Raises ValueError for more axes than two.
    """
    found = cov(x)
    if not found.ndim:
        return found / found
    size = sqrt(real(diagonal(found)))
    found = found / (reshape(size, (-1, 1)) * size)
    return found if found.dtype.kind == "c" else clip(found, -1, 1)


@takes_arrays
def bincount(x: Tensor, /, weights: Tensor | None = None, *, minlength: int = 0) -> Tensor:
    """How often 0, 1, ... occur in a 1-d x of integers; int64, at least `minlength` numbers.

    With weights, of x's shape, their sums, in their dtype; gradients reach them. Waits for a GPU.
    Raises TypeError for another dtype, ValueError for negative ones, more axes, or other weights.
    """
    if x.dtype.kind not in "iu":
        raise TypeError(f"bincount of a tensor of dtype {x.dtype}; wanted integers")
    if x.ndim != 1:
        raise ValueError(f"bincount of a tensor of shape {x.shape}; wanted one dimension")
    if weights is not None and weights.shape != x.shape:
        raise ValueError(f"bincount of a tensor of shape {x.shape} with weights of shape "
                         f"{weights.shape}; wanted one shape")
    if x.size and x.dtype.kind == "i" and int(min(x)) < 0:
        raise ValueError(f"bincount of a tensor with {int(min(x))}; wanted 0 or more")
    most = int(max(x)) + 1 if x.size else 0
    each = ones(x.shape, int64, x.device) if weights is None else weights
    return add_at(each, x, key=(ARRAY,), shape=(builtins.max(most, index(minlength)),))


enter(globals())

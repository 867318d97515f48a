"""Where CPU paths over rows are compiled: the one place that chooses, by dtype, layout and size.

A path asks the function of its kernel, which does the work and says so, or leaves it to NumPy.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from gtensor.backend import compiled, host
from gtensor.settings import settings

if TYPE_CHECKING:
    from gtensor.backend.typing import Array

_FEW = 1024  # numbers of an array that kernels always take: NumPy's calls take longer
_COLUMNS = 8  # of a row, from which on a kernel is quicker than NumPy's loops, and for softmax,
_SOFTMAX = 48  # whose maximum and sum take as long as its exponentials where rows are short
_TILE = 8  # rows that row_norm_grad takes at a time
_DTYPES = (np.dtype(np.float32), np.dtype(np.float64))  # not in another byte order
_PARTS = 16  # at most, whose sums for the parameters are added at the end


def fits(size: int, columns: int, dtype: np.dtype, least: int = _COLUMNS) -> bool:
    """Whether kernels take dense arrays of that size, of rows of so many numbers."""
    if not size or not settings.compiled or dtype not in _DTYPES or not _FOUND:
        return False
    return columns >= least or size <= _FEW or settings.compiled > 1


def _serves(columns: int, *arrays: Array | None, least: int = _COLUMNS) -> bool:
    """Whether kernels take rows of so many numbers of these arrays."""
    first: Any = arrays[0]
    return fits(first.size, columns, first.dtype, least) and all(
        a is None or a.dtype == first.dtype and (
            a.flags.c_contiguous and a.flags.aligned) for a in arrays)


def _run(
    name: str, arrays: tuple[Any, ...], sizes: tuple[int, ...], numbers: tuple[float, ...],
    items: int, quiet: int = 0
) -> None:
    compiled.run(_FOUND[name, arrays[0].dtype.char], arrays, sizes, numbers, items, quiet)


_FOUND: dict[tuple[str, str], int] = {
    (name, char): number
    for name in ("softmax", "softmax_grad", "log_softmax", "log_softmax_grad", "attention",
                 "attention_grad", "row_norm", "row_norm_grad", "group_norm", "group_norm_grad",
                 "batch_norm", "batch_norm_grad", "cumulative_sum", "embedding_grad")
    for char in "fd" if (number := compiled.kernel(f"rows_{name}_{char}")) is not None}


def _number(a: Array | None, dtype: np.dtype) -> Array | None:
    """A parameter as kernels read it."""
    return None if a is None else np.ascontiguousarray(a, dtype)


def softmax(kernel: str, result: Array, *inputs: Array, quiet: bool = False) -> bool:
    """Write `result` by one of the four kernels of softmax, over the last axis."""
    columns = result.shape[-1]
    if not _serves(columns, result, *inputs, least=_SOFTMAX if kernel == "softmax" else _COLUMNS):
        return False
    _run(kernel, (*inputs, result), (columns,), (), result.size // columns,
         compiled.INFINITE if quiet else 0)
    return True


def of_attention(dtype: np.dtype) -> bool:
    """Whether `attention` and `attention_grad` take scores of a dtype."""
    return bool(settings.compiled and dtype in _DTYPES and _FOUND)


def attention(
    scores: Array, first: int | None, before: Array | None = None
) -> tuple[Array, Array]:
    """Replace scores (..., L, S) by exp(score - largest); largest (..., L, 1) and the sums.

    Query i sees keys up to i + `first` only, all where it is None; the others become 0. Largest is
    at least `before`.
    """
    *lead, columns = scores.shape
    largest, total = host().empty((2, *lead, 1), scores.dtype, "attention")
    _run("attention", (scores, _number(before, scores.dtype), largest, total),
         (columns, lead[-1], int(first is not None), first or 0), (), largest.size,
         compiled.INFINITE)
    return largest, total


def attention_grad(
    scores: Array, largest: Array, first: int | None, change: Array | None = None,
    shift: Array | None = None
) -> None:
    """The same of known largest scores; and change = (change - shift) * result, where it is given.
    """
    *lead, columns = scores.shape
    _run("attention_grad",
         (scores, _number(largest, scores.dtype), change, _number(shift, scores.dtype)),
         (columns, lead[-1], int(first is not None), first or 0), (), prod(lead),
         compiled.INFINITE)


def cumulative_sum(x: Array, result: Array, reverse: bool) -> bool:
    """Write the running sums along the last axis, from the end if `reverse`."""
    columns = x.shape[-1]
    few = x.size <= _FEW and settings.compiled < 2  # NumPy's one call takes less time
    if few or not _serves(columns, x, result):
        return False
    _run("cumulative_sum", (x, result), (columns, int(reverse)), (), x.size // columns)
    return True


def embedding_grad(
    g: Array, indices: Array, table: Array, padding: int | None, add: bool
) -> bool:
    """Write to the table (rows, columns), or add, the sums of the rows of g of each index."""
    rows, columns = table.shape
    if not _serves(columns, table, g):
        return False
    seen = host().empty((rows,), np.dtype(np.int8), "workspace")
    _run("embedding_grad", (g, np.ascontiguousarray(indices, np.int64), table, seen),
         (indices.size, columns, -1 if padding is None else padding, int(add)), (), rows)
    return True


def row_norm(
    x: Array, weight: Array | None, bias: Array | None, y: Array, dims: int, eps: float,
    centred: bool
) -> tuple[Array | None, Array] | None:
    """Write layer norm, or RMS norm; mean (None unless centred) and rstd."""
    lead, columns = x.shape[:x.ndim - dims], prod(x.shape[x.ndim - dims:])
    if not _serves(columns, x, y):
        return None
    mean = host().empty(lead, x.dtype, "row_norm") if centred else None
    rstd = host().empty(lead, x.dtype, "row_norm")
    _run("row_norm", (x, _number(weight, x.dtype), _number(bias, x.dtype), y, mean, rstd),
        (columns,), (float(eps),), rstd.size)
    return mean, rstd


def row_norm_grads(
    g: Array, x: Array, weight: Array | None, mean: Array | None, rstd: Array, dx: Array | None,
    add: bool, dims: int, sums: bool
) -> tuple[bool, Array | None]:
    """Write or add to dx; whether that was done, and with `sums` those of g * xhat and of g."""
    columns, rows = prod(x.shape[x.ndim - dims:]), rstd.size
    if not _serves(columns, x, g, dx) or (
            sums and columns > settings.tile_elements):
        return False, None
    room = max(1, settings.tile_elements // columns)
    chunk = -(-rows // min(_PARTS, room))
    chunk = -(-chunk // _TILE) * _TILE
    parts = -(-rows // chunk)
    totals = host().workspace(parts * 2 * columns, np.dtype(np.float64))(
        0, (parts, 2, columns)) if sums else None
    _run("row_norm_grad", (g, x, _number(weight, x.dtype), _number(mean, x.dtype),
                          _number(rstd, x.dtype), dx, totals),
        (int(add), rows, columns, chunk), (), parts)
    return True, None if totals is None else totals.sum(axis=0)


def group_norm(
    x: Array, weight: Array | None, bias: Array | None, y: Array, groups: int, eps: float
) -> tuple[Array, Array] | None:
    """Write group norm; mean and variance of each group."""
    n, channels = x.shape[:2]
    plane = prod(x.shape[2:])
    if not _serves(plane, x, y):
        return None
    mean, var = (host().empty((n, groups), x.dtype, "group_norm") for _ in range(2))
    _run("group_norm", (x, _number(weight, x.dtype), _number(bias, x.dtype), y, mean, var),
        (groups, channels // groups, plane), (float(eps),), n * groups)
    return mean, var


def group_norm_grads(
    g: Array, x: Array, weight: Array | None, mean: Array, var: Array, dx: Array | None,
    sums: Array | None, groups: int, eps: float
) -> bool:
    """Write dx, and sums (2, N, C): those of g and of g * xhat over planes."""
    n, channels = x.shape[:2]
    plane = prod(x.shape[2:])
    if not _serves(plane, x, g, dx, sums):
        return False
    _run("group_norm_grad", (g, x, _number(weight, x.dtype), _number(mean, x.dtype),
                            _number(var, x.dtype), dx, sums),
        (n, groups, channels // groups, plane), (float(eps),), n * groups)
    return True


# -- batch norm, also in place ---------------------------------------------------------------------

_KINDS = {"identity": 0, "relu": 1, "leaky_relu": 2}


def takes(x: Array, activation: str) -> bool:
    """Whether kernels compute batch norm of an array like x."""
    return activation in _KINDS and x.flags.c_contiguous and fits(
        x.size, prod(x.shape[2:]), x.dtype)


def batch_norm(
    x: Array, weight: Array | None, bias: Array | None, y: Array | None, mean: Array, var: Array,
    given: bool, eps: float, activation: str, parameter: float
) -> bool:
    """Write y, and mean and variance unless they are given. y may be x."""
    n, channels = x.shape[:2]
    plane = prod(x.shape[2:])
    if activation not in _KINDS or not _serves(plane, x, y):
        return False
    _run("batch_norm", (x, _number(weight, x.dtype), _number(bias, x.dtype), y,
                       _number(mean, x.dtype), _number(var, x.dtype)),
        (_KINDS[activation], int(given), n, channels, plane), (float(eps), float(parameter)),
        channels, compiled.ALL if y is x else 0)  # over x an overflow must not raise: x is lost
    return True


def batch_norm_grads(
    g: Array, x: Array, dx: Array | None, sums: Array, center: Array, inverse: Array,
    scale: Array, weight: Array | None = None, bias: Array | None = None, *, activation: str,
    parameter: float, training: bool, count: float, known: bool = False, inverted: bool = False
) -> bool:
    """Write dx, which may be g, and unless they are known sums (C, 2) of dy and of dy * xhat.

    xhat is (x - center) * inverse, and dy the gradient before the activation of xhat * weight +
    bias; dx is scale * (dy - (their sums, xhat times the second one) / count), in evaluation
    scale * dy. `inverted`: x is the output, from which the activation is inverted.
    """
    n, channels = x.shape[:2]
    plane = prod(x.shape[2:])
    if activation not in _KINDS or not _serves(plane, x, g, dx):
        return False
    back = 1 / parameter if inverted and activation == "leaky_relu" else 1.0
    _run("batch_norm_grad",
        (g, x, *[_number(a, x.dtype) for a in (center, inverse, weight, bias, scale)], dx, sums),
        (_KINDS[activation], int(inverted), int(known), int(training), n, channels, plane),
        (float(count), float(parameter), back), channels)
    return True

"""Matrix products by the library's own kernel: what cuBLAS cannot read or write.

    matmul_into(a, b, out, alpha=2.0, beta=1.0)   # out += 2 * (a @ b)

The kernel (kernels/matmul_into.cu) reads and writes arrays of any strides, so nothing is copied: a
product is one launch, whatever its batch axes are. Each axis of the index space (batch axes, rows,
columns, the inner axis) has a step for each array, 0 where the array repeats. Axes that one step
covers are merged: many matrices times one matrix are a single product of all their rows.
"""

from __future__ import annotations

from functools import lru_cache
from math import inf, prod
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import ml_dtypes
import numpy as np

from gtensor.backend.kernels import NULL, Raw, raw
from gtensor.backend.layouts import Axis, merged

if TYPE_CHECKING:
    from gtensor.backend.typing import CudaArray

BATCH_AXES = 6
"""Batch axes that a launch may have after merging (`GT_BATCH_AXES` in matmul_into.cuh)."""

_HALVES = np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)
_SINGLE, _DOUBLE = np.dtype(np.float32), np.dtype(np.float64)
_PARTS: dict[np.dtype, np.dtype] = {
    np.dtype(np.complex64): _SINGLE, np.dtype(np.complex128): _DOUBLE}
_DTYPES = (*_HALVES, _SINGLE, _DOUBLE, *_PARTS)

_LARGEST_GRID = 2**31 - 1
_FEW = 128  # fewer tiles leave multiprocessors of a GPU without work


class TooManyAxesError(ValueError):
    """More batch axes that do not merge than a launch takes."""


class Tiling(NamedTuple):
    """A block of side x side threads, each of which sums up micro x micro elements of out."""

    side: int
    most: int  # the largest micro

    def extent(self, dtype: np.dtype) -> int:
        """Rows and columns of a tile; a line of a thread's sums has at most 32 bytes."""
        return self.side * min(self.most, 32 // max(4, dtype.itemsize))

    def tiles(self, rows: int, columns: int, dtype: np.dtype) -> int:
        extent = self.extent(dtype)
        return -(-rows // extent) * -(-columns // extent)


LARGE, SMALL = Tiling(16, 8), Tiling(8, 4)

_KERNELS = {
    (tiling, is_complex): raw(f"matmul_into{kind}.cu", f"matmul_into{kind}{size}")
    for tiling, size in ((LARGE, ""), (SMALL, "_small"))
    for is_complex, kind in ((False, ""), (True, "_complex"))
}


# -- plans -----------------------------------------------------------------------------------------


At: TypeAlias = tuple[tuple[int, ...], tuple[int, ...], np.dtype]
"""The shape of an array, its strides in bytes, and its dtype."""


class Plan(NamedTuple):
    """How a kernel goes through the arrays."""

    exchanged: bool  # a is b.T and b is a.T, since neighbours in out's columns are the closer ones
    kernel: Raw
    dtype: np.dtype  # of the kernel: that of the inputs, or of their parts
    grid: tuple[int, int]
    block: tuple[int]
    tiles: int
    axes: np.void  # gt_product
    wide: bool  # out is float32, the inputs are not
    wide_bias: bool


@lru_cache(1024)
def plan(a: At, b: At, out: At, bias: At | None, tiling: Tiling | None = None) -> Plan | None:
    """The plan for these arrays; None for an empty out. Raises what `matmul_into` does.

    `tiling` is LARGE or SMALL, by default what suits the sizes.
    """
    _check_dtypes(a, b, out, bias)
    _check_shapes(a, b, out, bias)
    if 0 in out[0]:
        return None
    space, dtype = _space(a, b, out, bias), a[2]
    matrices = prod(axis.length for axis in space.batch)
    large, small = (matrices * of.tiles(space.rows.length, space.columns.length, dtype)
                    for of in (LARGE, SMALL))
    if tiling is None:
        empty = large * LARGE.extent(dtype)**2 > 2 * small * SMALL.extent(dtype)**2
        tiling = SMALL if large < _FEW or empty else LARGE
    tiles = large if tiling is LARGE else small
    grid = min(tiles, _LARGEST_GRID), -(-tiles // _LARGEST_GRID)
    return Plan(space.exchanged, _KERNELS[tiling, dtype in _PARTS], _PARTS.get(dtype, dtype), grid,
                (tiling.side**2,), tiles, space.structure(), out[2] != dtype,
                bias is not None and bias[2] != dtype)


class _Space(NamedTuple):
    """The index space of a product."""

    exchanged: bool
    rows: Axis
    columns: Axis
    inner: Axis
    batch: list[Axis]  # outermost first

    def structure(self) -> np.void:
        """The kernel's structure gt_product."""
        spare = [Axis(1, (0,) * 4)] * (BATCH_AXES - len(self.batch))
        axes = self.rows, self.columns, self.inner, *reversed(self.batch), *spare
        return _structure([number for axis in axes for number in (axis.length, *axis.steps)])


def _space(a: At, b: At, out: At, bias: At | None) -> _Space:
    """With few axes, and columns that are as close together in out as the rows, or closer."""
    (*lead, m, n), k = out[0], a[0][-1]
    left, right = _steps(a, (*lead, m, k)), _steps(b, (*lead, k, n))
    others = [_steps(x, (*lead, m, n)) for x in (out, bias)]
    rows = Axis(m, (left[-2], 0, *(steps[-2] for steps in others)))
    columns = Axis(n, (0, right[-1], *(steps[-1] for steps in others)))
    inner = Axis(k, (left[-1], right[-2], 0, 0))
    batch = [Axis(length, tuple(steps[place] for steps in (left, right, *others)))
             for place, length in enumerate(lead)]
    exchanged = _distance(rows) < _distance(columns)
    if exchanged:
        columns, rows, inner, *batch = (
            _exchanged(axis) for axis in (rows, columns, inner, *batch))
    batch = merged(batch)
    if batch and rows.length == 1 and not batch[-1].steps[1]:  # a row of each matrix, one b
        rows = batch.pop()
    elif batch and batch[-1].steps == rows.all_steps():
        rows = Axis(batch.pop().length * rows.length, rows.steps)
    if len(batch) > BATCH_AXES:
        raise TooManyAxesError
    return _Space(exchanged, rows, columns, inner, batch)


def _steps(at: At | None, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Elements from one index to the next along each axis of `shape`; 0 where the array repeats."""
    if at is None:
        return (0,) * len(shape)
    given, strides, size = at[0], at[1], at[2].itemsize
    if any(stride % size for stride in strides):
        raise ValueError(f"a product was given an array of strides {strides} with elements of "
                         f"{size} bytes; wanted whole elements from one to the next")
    steps = [0 if n == 1 else stride // size for n, stride in zip(given, strides, strict=True)]
    return (0,) * (len(shape) - len(steps)) + tuple(steps)


def _distance(axis: Axis) -> float:
    """From each element of out to the next along an axis; infinite if there is no next one."""
    return abs(axis.steps[2]) if axis.length > 1 else inf


def _exchanged(axis: Axis) -> Axis:
    """The axis for out.T = b.T @ a.T; its steps are those of a, b, out and bias."""
    a, b, *others = axis.steps
    return Axis(axis.length, (b, a, *others))


def _structure(numbers: list[int | float]) -> np.void:
    """Numbers of 8 bytes each, which CuPy passes to a kernel as one structure."""
    kinds = [np.float64 if isinstance(number, float) else np.int64 for number in numbers]
    dtype = np.dtype([(f"f{place}", kind) for place, kind in enumerate(kinds)])
    structure: Any = np.array(tuple(numbers), dtype)
    return structure[()]


@lru_cache(1024)
def kernel_settings(alpha: complex, beta: complex, wide: bool, wide_bias: bool) -> np.void:
    """The kernel's structure gt_settings."""
    alpha, beta = complex(alpha), complex(beta)
    return _structure([alpha.real, alpha.imag, beta.real, beta.imag, int(wide), int(wide_bias)])


# -- products --------------------------------------------------------------------------------------


def matmul_into(
    a: CudaArray, b: CudaArray, out: CudaArray, *, alpha: complex = 1.0, beta: complex = 0.0,
    bias: CudaArray | None = None,
) -> None:
    """out = alpha * a @ b + bias + beta * out, in one launch.

    Of more than `BATCH_AXES` batch axes that do not merge, each index of the first is a launch.

    Half precision is computed with in float32, all else in its own dtype.

    Args:
        a: (..., m, k), of float16, bfloat16, float32, float64, complex64 or complex128.
        b: (..., k, n), of the same dtype. Batch axes broadcast; all strides are legal.
        out: (..., m, n), of the same dtype, or float32 for half precision. It must not overlap a or
            b, which is not checked. It is not read if beta is 0.
        alpha, beta: numbers, complex ones for complex dtypes.
        bias: (n,), of the dtype of the inputs or of out.

    Raises:
        TypeError: for other dtypes.
        ValueError: for other shapes, and strides that are not whole elements.
    """
    try:
        found = plan(_at(a), _at(b), _at(out), None if bias is None else _at(bias))
    except TooManyAxesError:
        for index in range(len(out)):
            parts = [x if x.ndim < out.ndim else x[index if len(x) > 1 else 0]
                     for x in (a, b, out)]
            matmul_into(*parts, alpha=alpha, beta=beta, bias=bias)
        return
    _check_factors(a.dtype, alpha, beta)
    if found is None:
        return
    if not a.shape[-1]:
        alpha = 0.0  # it may be infinite
    how = kernel_settings(alpha, beta, found.wide, found.wide_bias)
    inputs = (b, a) if found.exchanged else (a, b)
    found.kernel[found.dtype](found.grid, found.block, (
        *inputs, out, NULL if bias is None else bias, found.axes, how, found.tiles))


def _at(x: CudaArray) -> At:
    return x.shape, x.strides, x.dtype


def _check_dtypes(a: At, b: At, out: At, bias: At | None) -> None:
    dtype, into = a[2], out[2]
    wide = dtype in _HALVES and into == _SINGLE
    if dtype not in _DTYPES or b[2] != dtype or not (into == dtype or wide):
        raise TypeError(f"a product of {dtype} and {b[2]} into {into}; wanted one floating-point "
                        "or complex dtype")
    wanted = {into, dtype}
    if bias is not None and bias[2] not in wanted:
        raise TypeError(f"a product of {dtype} into {into} was given a bias of {bias[2]}; "
                        f"wanted {' or '.join(sorted(map(str, wanted)))}")


def _check_shapes(a: At, b: At, out: At, bias: At | None) -> None:
    left, right, into = a[0], b[0], out[0]
    lead = _broadcast(left[:-2], right[:-2])
    if len(left) < 2 or len(right) < 2 or left[-1] != right[-2] or lead is None:
        raise ValueError(f"a product of shapes {left} and {right}; wanted (..., m, k) and "
                         "(..., k, n)")
    shape = (*lead, left[-2], right[-1])
    if into != shape:
        raise ValueError(f"a product of shapes {left} and {right} was given an out of shape "
                         f"{into}; wanted {shape}")
    if bias is not None and bias[0] != shape[-1:]:
        raise ValueError(f"a product into shape {shape} was given a bias of shape {bias[0]}; "
                         f"wanted {shape[-1:]}")


def _broadcast(*shapes: tuple[int, ...]) -> tuple[int, ...] | None:
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        return None


def _check_factors(dtype: np.dtype, alpha: complex, beta: complex) -> None:
    if dtype not in _PARTS and (isinstance(alpha, complex) or isinstance(beta, complex)):
        raise TypeError(f"a product of {dtype} was given alpha {alpha} and beta {beta}; wanted "
                        "real numbers")

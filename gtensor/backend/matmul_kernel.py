"""Matrix products by the library's own kernel: what cuBLAS cannot read, write or do on the way.

    matmul_into(x, c, out, alpha=scale, residual=x)   # out = x + scale * (x @ c)

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

from gtensor.backend.kernels import ACTIVATIONS, NULL, Raw, raw
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
def plan(
    a: At, b: At, out: At, residual: At | None, bias: At | None, tiling: Tiling | None = None
) -> Plan | None:
    """The plan for these arrays; None for an empty out. Raises what `matmul_into` does.

    `tiling` is LARGE or SMALL, by default what suits the sizes.
    """
    _check_dtypes(a, b, out, residual, bias)
    _check_shapes(a, b, out, residual, bias)
    if 0 in out[0]:
        return None
    space, dtype = _space(a, b, out, residual, bias), a[2]
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
        spare = [Axis(1, (0,) * 5)] * (BATCH_AXES - len(self.batch))
        axes = self.rows, self.columns, self.inner, *reversed(self.batch), *spare
        return _structure([number for axis in axes for number in (axis.length, *axis.steps)])


def _space(a: At, b: At, out: At, residual: At | None, bias: At | None) -> _Space:
    """With few axes, and columns that are as close together in out as the rows, or closer."""
    (*lead, m, n), k = out[0], a[0][-1]
    left, right = _steps(a, (*lead, m, k)), _steps(b, (*lead, k, n))
    others = [_steps(x, (*lead, m, n)) for x in (out, residual, bias)]
    rows = Axis(m, (left[-2], 0, *(steps[-2] for steps in others)))
    columns = Axis(n, (0, right[-1], *(steps[-1] for steps in others)))
    inner = Axis(k, (left[-1], right[-2], 0, 0, 0))
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
    """The axis for out.T = b.T @ a.T; its steps are those of a, b, out, residual and bias."""
    a, b, *others = axis.steps
    return Axis(axis.length, (b, a, *others))


def _structure(numbers: list[int | float]) -> np.void:
    """Numbers of 8 bytes each, which CuPy passes to a kernel as one structure."""
    kinds = [np.float64 if isinstance(number, float) else np.int64 for number in numbers]
    dtype = np.dtype([(f"f{place}", kind) for place, kind in enumerate(kinds)])
    structure: Any = np.array(tuple(numbers), dtype)
    return structure[()]


@lru_cache(1024)
def kernel_settings(
    alpha: complex, beta: complex, activation: str, parameter: float, clean: bool, wide: bool,
    wide_bias: bool, scale_is_double: bool,
) -> np.void:
    """The kernel's structure gt_settings."""
    alpha, beta = complex(alpha), complex(beta)
    flags = clean, wide, wide_bias, scale_is_double
    return _structure([alpha.real, alpha.imag, beta.real, beta.imag, float(parameter),
                       ACTIVATIONS[activation], *map(int, flags)])


# -- products --------------------------------------------------------------------------------------


def matmul_into(
    a: CudaArray, b: CudaArray, out: CudaArray, *, alpha: complex | CudaArray = 1.0,
    beta: complex = 0.0, residual: CudaArray | None = None, bias: CudaArray | None = None,
    activation: str = "identity", parameter: float = 0.01, clean: bool = False,
) -> None:
    """out = activation(alpha * a @ b + bias + residual + beta * out), in one launch.

    Of more than `BATCH_AXES` batch axes that do not merge, each index of the first is a launch.

    Half precision is computed with in float32, all else in its own dtype.

    Args:
        a: (..., m, k), of float16, bfloat16, float32, float64, complex64 or complex128.
        b: (..., k, n), of the same dtype. Batch axes broadcast; all strides are legal.
        out: (..., m, n), of the same dtype, or float32 for half precision. It must not overlap a or
            b, which is not checked. It is not read if beta is 0.
        alpha: a number, or an array of shape () and dtype float32 or float64 on the device.
        residual: of the shape, or broadcast to it, and the dtype of out. It may be out itself.
        bias: (n,), of the dtype of the inputs or of out.
        activation: a name of `kernels.ACTIVATIONS`; complex numbers have "identity" only.
        parameter: the slope, alpha or beta of the activation.
        clean: whether elements of a and b that are not finite count as 0.

    Raises:
        TypeError: for other dtypes.
        ValueError: for other shapes, strides that are not whole elements, and an unknown
            activation.
    """
    try:
        found = plan(_at(a), _at(b), _at(out), None if residual is None else _at(residual),
                     None if bias is None else _at(bias))
    except TooManyAxesError:
        for index in range(len(out)):
            parts = [x if x is None or x.ndim < out.ndim else x[index if len(x) > 1 else 0]
                     for x in (a, b, out, residual)]
            matmul_into(*parts[:3], alpha=alpha, beta=beta, residual=parts[3], bias=bias,
                        activation=activation, parameter=parameter, clean=clean)
        return
    number, scale = _factor(alpha)
    _check_settings(a.dtype, number, beta, activation)
    if found is None:
        return
    if not a.shape[-1]:
        number, scale = 0.0, None  # alpha may be infinite
    how = kernel_settings(number, beta, activation, parameter, clean, found.wide,
                   found.wide_bias, scale is not None and scale.dtype == _DOUBLE)
    inputs = (b, a) if found.exchanged else (a, b)
    more = (NULL if x is None else x for x in (residual, bias, scale))
    found.kernel[found.dtype](found.grid, found.block,
                              (*inputs, out, *more, found.axes, how, found.tiles))


def _at(x: CudaArray) -> At:
    return x.shape, x.strides, x.dtype


def _factor(alpha: Any) -> tuple[complex, CudaArray | None]:
    """The number, and the array on the device that holds one more factor."""
    if isinstance(alpha, (int, float, complex, np.number)):
        return alpha, None  # type: ignore[return-value]
    if alpha.shape != () or alpha.dtype not in (_SINGLE, _DOUBLE):
        raise TypeError(f"a product was given an alpha of shape {alpha.shape} and dtype "
                        f"{alpha.dtype}; wanted a number, or shape () and float32 or float64")
    return 1.0, alpha


def _check_dtypes(a: At, b: At, out: At, residual: At | None, bias: At | None) -> None:
    dtype, into = a[2], out[2]
    wide = dtype in _HALVES and into == _SINGLE
    if dtype not in _DTYPES or b[2] != dtype or not (into == dtype or wide):
        raise TypeError(f"a product of {dtype} and {b[2]} into {into}; wanted one floating-point "
                        "or complex dtype")
    for name, at, wanted in (("residual", residual, {into}), ("bias", bias, {into, dtype})):
        if at is not None and at[2] not in wanted:
            raise TypeError(f"a product of {dtype} into {into} was given a {name} of {at[2]}; "
                            f"wanted {' or '.join(sorted(map(str, wanted)))}")


def _check_shapes(a: At, b: At, out: At, residual: At | None, bias: At | None) -> None:
    left, right, into = a[0], b[0], out[0]
    lead = _broadcast(left[:-2], right[:-2])
    if len(left) < 2 or len(right) < 2 or left[-1] != right[-2] or lead is None:
        raise ValueError(f"a product of shapes {left} and {right}; wanted (..., m, k) and "
                         "(..., k, n)")
    shape = (*lead, left[-2], right[-1])
    if into != shape:
        raise ValueError(f"a product of shapes {left} and {right} was given an out of shape "
                         f"{into}; wanted {shape}")
    if residual is not None and _broadcast(residual[0], shape) != shape:
        raise ValueError(f"a product into shape {shape} was given a residual of shape "
                         f"{residual[0]}; wanted {shape}")
    if bias is not None and bias[0] != shape[-1:]:
        raise ValueError(f"a product into shape {shape} was given a bias of shape {bias[0]}; "
                         f"wanted {shape[-1:]}")


def _broadcast(*shapes: tuple[int, ...]) -> tuple[int, ...] | None:
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        return None


def _check_settings(dtype: np.dtype, alpha: complex, beta: complex, activation: str) -> None:
    is_complex = dtype in _PARTS
    if activation not in ACTIVATIONS or (is_complex and activation != "identity"):
        wanted = "identity" if is_complex else ", ".join(ACTIVATIONS)
        raise ValueError(f"a product of {dtype} was given the activation {activation!r}; wanted "
                         f"{wanted}")
    if not is_complex and (isinstance(alpha, complex) or isinstance(beta, complex)):
        raise TypeError(f"a product of {dtype} was given alpha {alpha} and beta {beta}; wanted "
                        "real numbers")

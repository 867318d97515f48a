"""Matrix products by the library's own kernel: what cuBLAS cannot read, write or do on the way.

    matmul_into(x, c, out, alpha=scale, residual=x)   # out = x + scale * (x @ c)

The kernel (kernels/matmul_into.cu) reads and writes arrays of any strides, so that nothing is
copied: one launch for a product, whatever its batch axes are. Each axis of the index space (batch
axes, rows, columns, the inner axis) has a step for each array, 0 where the array repeats. Axes
that one step covers are merged: a batch of matrices times one matrix is a single product of all
rows.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import ml_dtypes
import numpy as np

from gtensor.backend.kernels import ACTIVATIONS, NULL, flat_launch, raw

if TYPE_CHECKING:
    from gtensor.backend.typing import CudaArray

BATCH_AXES = 6
"""Batch axes that a launch may have after merging (`GT_BATCH_AXES` in matmul_into.cuh)."""

_NAIVE, _NAIVE_COMPLEX = (raw("matmul_into.cu", "matmul_into_naive"),
                          raw("matmul_into_complex.cu", "matmul_into_complex_naive"))
_HALVES = np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)
_SINGLE, _DOUBLE = np.dtype(np.float32), np.dtype(np.float64)
_REAL_OF = {np.dtype(np.complex64): _SINGLE, np.dtype(np.complex128): _DOUBLE}
_DTYPES = (*_HALVES, _SINGLE, _DOUBLE, *_REAL_OF)

At: TypeAlias = tuple[tuple[int, ...], tuple[int, ...], int]
"""The shape of an array, its strides in bytes, and the bytes of an element."""


class Axis(NamedTuple):
    """An axis of the index space: its length, and what a step adds to the place in each array."""

    length: int
    steps: tuple[int, ...]  # a, b, out, residual, bias

    def exchanged(self) -> Axis:
        """The axis for out.T = b.T @ a.T."""
        a, b, *others = self.steps
        return Axis(self.length, (b, a, *others))


class Layout(NamedTuple):
    """What a kernel is told of the arrays."""

    exchanged: bool  # a is b.T and b is a.T: the columns of out are closer together than its rows
    rows: int
    columns: int
    batch: int
    product: np.void  # gt_product


@lru_cache(1024)
def layout_of(a: At, b: At, out: At, residual: At | None, bias: At | None) -> Layout:
    """How to go through the arrays. Raises ValueError where that is not possible."""
    *lead, m, n = shape = out[0]
    k = a[0][-1]
    steps = (*(_steps(x, (*lead, *matrix)) for x, matrix in ((a, (m, k)), (b, (k, n)))),
             *(_steps(x, tuple(shape)) for x in (out, residual, bias)))
    outer = [Axis(length, tuple(s[axis] for s in steps)) for axis, length in enumerate(lead)]
    (a_row, a_inner), (b_inner, b_column) = steps[0][-2:], steps[1][-2:]
    rows = Axis(m, (a_row, 0, *(s[-2] for s in steps[2:])))
    columns = Axis(n, (0, b_column, *(s[-1] for s in steps[2:])))
    inner = Axis(k, (a_inner, b_inner, 0, 0, 0))
    batch = _merged([axis for axis in outer if axis.length != 1])
    exchanged = _distance(rows) < _distance(columns)
    if exchanged:
        rows, columns, inner = columns.exchanged(), rows.exchanged(), inner.exchanged()
        batch = [axis.exchanged() for axis in batch]
    *batch, rows = _merged([*batch, rows])
    if len(batch) > BATCH_AXES:
        raise ValueError(f"a product into shape {out[0]} was given batch axes that merge to "
                         f"{len(batch)}; wanted at most {BATCH_AXES}")
    spare = [Axis(1, (0,) * 5)] * (BATCH_AXES - len(batch))
    numbers = [(axis.length, *axis.steps)
               for axis in (rows, columns, inner, *reversed(batch), *spare)]
    product = np.array(numbers, np.int64)
    return Layout(exchanged, rows.length, columns.length, prod(axis.length for axis in batch),
                  product.reshape(-1).view(f"V{product.nbytes}")[0])


def _steps(at: At | None, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides in elements along each axis of `shape`, 0 along those that the array repeats over."""
    if at is None:
        return (0,) * len(shape)
    given, strides, size = at
    if any(stride % size for stride in strides):
        raise ValueError(f"a product was given an array of strides {strides} with elements of "
                         f"{size} bytes; wanted whole elements from one to the next")
    steps = [0 if n == 1 else stride // size for n, stride in zip(given, strides, strict=True)]
    return (0,) * (len(shape) - len(steps)) + tuple(steps)


def _merged(axes: list[Axis]) -> list[Axis]:
    """The axes, outermost first; neighbours become one where one step of each array covers both."""
    merged: list[Axis] = []
    for axis in axes:
        length, steps = axis
        if merged and merged[-1].steps == tuple(length * step for step in steps):
            merged[-1] = Axis(merged[-1].length * length, steps)
        else:
            merged.append(axis)
    return merged


def _distance(axis: Axis) -> float:
    """Between neighbours in out along an axis; infinite if there are none."""
    return abs(axis.steps[2]) if axis.length > 1 else float("inf")


def matmul_into(
    a: CudaArray, b: CudaArray, out: CudaArray, *, alpha: complex | CudaArray = 1.0,
    beta: complex = 0.0, residual: CudaArray | None = None, bias: CudaArray | None = None,
    activation: str = "identity", parameter: float = 0.01, clean: bool = False,
) -> None:
    """out = activation(alpha * a @ b + bias + residual + beta * out), in one launch.

    Sums and what follows are computed in float32 for half precision, else in the inputs' dtype.

    Args:
        a: (..., m, k), of float16, bfloat16, float32, float64, complex64 or complex128.
        b: (..., k, n), of the same dtype. Batch axes broadcast; all strides are legal.
        out: (..., m, n), of the same dtype, or float32 for half precision. It must not overlap a or
            b, which is not checked. It is not read if beta is 0.
        alpha: a number, or an array of shape () and dtype float32 or float64 on the device.
        residual: like out, or broadcast to its shape. It may be out itself.
        bias: (n,), of the dtype of a.
        activation: a name of `kernels.ACTIVATIONS`; complex numbers have "identity" only.
        parameter: the slope, alpha or beta of the activation.
        clean: whether elements of a and b that are not finite count as 0.

    Raises:
        TypeError: for dtypes other than these.
        ValueError: for shapes or strides that do not fit, or an unknown activation.
    """
    _check(a, b, out, residual, bias, activation)
    if not out.size:
        return
    layout = layout_of(_at(a), _at(b), _at(out), *(None if x is None else _at(x)
                                                   for x in (residual, bias)))
    if layout.exchanged:
        a, b = b, a
    scale, number = (NULL, alpha) if isinstance(alpha, (int, float, complex)) else (alpha, 1.0)
    double_scale = int(scale is not NULL and scale.dtype == _DOUBLE)
    arrays = (a, b, out, NULL if residual is None else residual, NULL if bias is None else bias)
    elements = layout.rows * layout.columns * layout.batch
    dtype, clean = a.dtype, int(clean)
    if dtype in _REAL_OF:
        number, beta = complex(number), complex(beta)
        _NAIVE_COMPLEX[_REAL_OF[dtype]](*flat_launch(elements), (
            *arrays, layout.product, elements, number.real, number.imag, scale, double_scale,
            beta.real, beta.imag, clean))
    else:
        _NAIVE[dtype](*flat_launch(elements), (
            *arrays, layout.product, elements, float(number), scale, double_scale, float(beta),
            ACTIVATIONS[activation], float(parameter), clean, int(out.dtype != dtype)))


def _at(x: CudaArray) -> At:
    return x.shape, x.strides, x.itemsize


def _check(
    a: CudaArray, b: CudaArray, out: CudaArray, residual: CudaArray | None, bias: CudaArray | None,
    activation: str,
) -> None:
    dtype = a.dtype
    if dtype not in _DTYPES or b.dtype != dtype or not (
            out.dtype == dtype or (dtype in _HALVES and out.dtype == _SINGLE)):
        raise TypeError(f"a product of {dtype} and {b.dtype} into {out.dtype}; wanted one "
                        "floating-point or complex dtype")
    for x, wanted, name in ((residual, out.dtype, "residual"), (bias, dtype, "bias")):
        if x is not None and x.dtype != wanted:
            raise TypeError(f"a product into {out.dtype} was given a {name} of {x.dtype}; wanted "
                            f"{wanted}")
    if activation not in ACTIVATIONS or (dtype in _REAL_OF and activation != "identity"):
        wanted = "identity" if dtype in _REAL_OF else ", ".join(ACTIVATIONS)
        raise ValueError(f"a product of {dtype} was given the activation {activation!r}; wanted "
                         f"{wanted}")
    shape = (*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1])
    if out.shape != shape or a.shape[-1] != b.shape[-2]:
        raise ValueError(f"a product of shapes {a.shape} and {b.shape} was given an out of shape "
                         f"{out.shape}; wanted {shape}")

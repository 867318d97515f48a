"""`matmul` and `gemm_into`: shapes, dtypes and buffers are checked before anything is written."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from gtensor.backend.layouts import check_apart
from gtensor.creation.new_tensors import asarray
from gtensor.engine.handle.context import grad_enabled
from gtensor.engine.handle.errors import GradientError
from gtensor.engine.handle.tensor import Tensor
from gtensor.engine.run.in_place import write
from gtensor.engine.tape.levels import Traced
from gtensor.ops.arrange.shape import astype, reshape
from gtensor.ops.linalg.matrix_products import (
    check_leading,
    gemm,
    is_half,
    matmul_op,
    scaled_matmul,
)

__all__ = ["matmul"]

_NUMBERS = (int, float, complex)


def matmul(
    x1: Tensor, x2: Tensor, *, out: Tensor | None = None, alpha: complex = 1, beta: complex = 0
) -> Tensor:
    """Matrix product of the last two axes, broadcast over the others; a vector is a row or column.

    A batch of matrices times one is a single GEMM. With `out`, `alpha` and `beta` it is
    `gtensor.linalg.gemm_into`: out = alpha * x1 @ x2 + beta * out.

    Raises ValueError if the inner sizes differ or leading axes do not broadcast, and for a beta
    without out.
    """
    if out is not None:
        return gemm_into(out, x1, x2, alpha, beta)
    if not (isinstance(x1, Tensor) and isinstance(x2, Tensor)):
        x1, x2 = asarray(x1), asarray(x2)
    elif type(alpha) is type(beta) is int and alpha == 1 and not beta:
        left, right = x1._array.shape, x2._array.shape
        if len(left) == len(right) == 2 and left[1] == right[0]:
            return matmul_op(x1, x2)
    if not isinstance(beta, _NUMBERS) or beta:
        raise ValueError(f"matmul was given beta={beta!r} without out; wanted the out to add to")
    left, right = x1.shape, x2.shape
    if not left or not right:
        raise ValueError(f"matmul of shapes {left} and {right}; wanted at least one axis each")
    inner = right[0] if len(right) == 1 else right[-2]
    if left[-1] != inner:
        raise ValueError(f"matmul of shapes {left} and {right}: the inner sizes {left[-1]} and "
                         f"{inner} differ; wanted equal ones")
    if len(left) == 1:
        product = matmul(reshape(x1, (1, -1)), x2, alpha=alpha)
        return reshape(product, product.shape[:-2] + product.shape[-1:] if len(right) > 1 else ())
    if len(right) == 1:
        product = matmul(x1, reshape(x2, (-1, 1)), alpha=alpha)
        return reshape(product, product.shape[:-1])
    if len(right) == 2 and len(left) > 2:
        rows = reshape(x1, (prod(left[:-1]), left[-1]))
        return reshape(matmul(rows, x2, alpha=alpha), (*left[:-1], right[-1]))
    if len(left) > 2:
        check_leading("matmul", left, right)
    if isinstance(alpha, _NUMBERS) and alpha == 1:
        return matmul_op(x1, x2)
    dtype = np.result_type(x1.dtype, x2.dtype)
    if dtype.kind in "biu":
        raise ValueError(f"matmul was given alpha={alpha} for {dtype}; wanted floating-point or "
                         "complex factors")
    x1, x2 = (x if x.dtype == dtype else astype(x, dtype) for x in (x1, x2))
    return scaled_matmul(x1, x2, alpha=_factor("alpha", alpha, dtype))


def gemm_into(
    out: Tensor, a: Tensor, b: Tensor, alpha: complex = 1, beta: complex = 0,
    transpose_a: bool = False, transpose_b: bool = False,
) -> Tensor:
    """out = alpha * op(a) @ op(b) + beta * out, written into out's memory; returns out.

    Transposed views, matrices in row or column order and slices of larger buffers are read and
    written where they lie, on CUDA by one product, on the CPU by BLAS. What BLAS cannot read (half
    precision, elements apart along both axes) is one kernel on CUDA, and copied in tiles on the
    CPU. No temporary is larger than a tile. With beta = 0 the old values are not read. On the tape
    the write is recorded; with another beta they get a gradient, too.

    Args:
        out: (..., m, n), or without the axis of a factor that is a vector. Half-precision factors
            may also be summed into float32.
        a: (..., m, k), with transpose_a (..., k, m), or (k,).
        b: (..., k, n), with transpose_b (..., n, k), or (k,). Leading axes broadcast.
        alpha, beta: numbers, complex ones for complex dtypes.

    Raises, before anything is written: ValueError for shapes or dtypes that do not fit, and for an
    out that overlaps itself or a factor; GradientError for an out that is a leaf which requires a
    gradient, or that a record saved (both may be written under `no_grad`).

    Source: gemm of BLAS level 3 (Dongarra et al., 1990).

    Raises TypeError for an `out` that is no Tensor.
    """
    if not isinstance(out, Tensor):
        raise TypeError(f"gemm_into was given an out of {type(out).__name__}; wanted a Tensor")
    a, b = asarray(a), asarray(b)
    alpha, beta = (_factor(name, value, out.dtype) for name, value in (("alpha", alpha),
                                                                      ("beta", beta)))
    _check_dtypes(out, a, b)
    if not (a.ndim and b.ndim):
        raise ValueError(f"gemm_into was given a of shape {a.shape} and b of shape {b.shape}; "
                         "wanted vectors or matrices")
    rows, columns = a.ndim > 1, b.ndim > 1
    a = a if rows else reshape(a, (1, -1))
    b = b if columns else reshape(b, (-1, 1))
    across, down = transpose_a and rows, transpose_b and columns
    shape = _written_shape(out, a, b, across, down, rows, columns)
    if not any(isinstance(x, Traced) for x in (out, a, b)):  # `write` refuses those
        check_apart(out._array, a._array, b._array)
    if grad_enabled() and out._storage.saved:
        raise GradientError("gemm_into was given an out that an op saved for its gradient; wanted "
                            "other memory, or the call under no_grad()")
    return write(gemm, out, a, {"alpha": alpha, "factor": beta, "transpose_a": across,
                                "transpose_b": down, "shape": shape}, (b,))


def _check_dtypes(out: Tensor, a: Tensor, b: Tensor) -> None:
    allowed = {a.dtype, np.dtype(np.float32)} if is_half(a.dtype) else {a.dtype}
    if a.dtype != b.dtype or out.dtype not in allowed or a.dtype.kind in "biu":
        raise ValueError(f"gemm_into was given factors of {a.dtype} and {b.dtype} and an out of "
                         f"{out.dtype}; wanted one floating-point or complex dtype")


def _written_shape(
    out: Tensor, a: Tensor, b: Tensor, across: bool, down: bool, rows: bool, columns: bool
) -> tuple[int, ...]:
    """The shape of the product, with the axes of vectors."""
    (m, k), (inner, n) = (a.shape[:-3:-1] if across else a.shape[-2:],
                          b.shape[:-3:-1] if down else b.shape[-2:])
    factors = (f"gemm_into was given a of shape {a.shape}{', transposed,' * across} and b of shape "
               f"{b.shape}{', transposed,' * down}")
    if k != inner:
        raise ValueError(f"{factors} with the inner sizes {k} and {inner}; wanted equal ones")
    try:
        lead = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    except ValueError:
        raise ValueError(f"{factors}; wanted leading axes that broadcast") from None
    wanted = (*lead, *(m,) * rows, *(n,) * columns)
    if out.shape != wanted:
        raise ValueError(f"{factors} and an out of shape {out.shape}; wanted {wanted}")
    return (*lead, m, n)


def _factor(name: str, value: object, dtype: np.dtype) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, (int, float, complex)):
        raise TypeError(f"{name} of {type(value).__name__} given; wanted a number")
    if isinstance(value, complex) and dtype.kind != "c":
        raise ValueError(f"{name}={value} given for {dtype}; wanted a real number")
    return value

"""Matrix products, into buffers of the caller's where there are some."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from gtensor.backend import host
from gtensor.backend.cuda import cupy, gemm_into
from gtensor.core.op import op
from gtensor.core.samples import Sample
from gtensor.core.tensor import Tensor
from gtensor.creation import asarray
from gtensor.ops.shape import reshape
from gtensor.settings import settings

__all__ = ["matmul"]



def swapped(ns: Any, x: Any) -> Any:
    """The last two axes swapped, in either namespace."""
    n = len(x.shape)
    return ns.permute_dims(x, axes=(*range(n - 2), n - 1, n - 2))


def _product_shape(a: Any, b: Any) -> tuple[int, ...]:
    if len(a.shape) == len(b.shape) == 2:
        return a.shape[0], b.shape[1]
    return (*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1])


def _matmul_cpu(x1: Any, x2: Any, *, out: Any = None, beta: float = 0.0) -> Any:
    """out = x1 @ x2 + beta * out; half precision is multiplied in float32."""
    if x1.dtype.itemsize == 2 or x2.dtype.itemsize == 2:
        return _matmul_half(x1, x2, out, beta)
    if beta:
        return _accumulate(x1, x2, out)
    if out is None:
        dtype = x1.dtype if x1.dtype == x2.dtype else np.result_type(x1, x2)
        out = host().empty(_product_shape(x1, x2), dtype, "matmul")
    return np.matmul(x1, x2, out)


def _accumulate(x1: Any, x2: Any, out: Any) -> Any:
    """out += x1 @ x2 by tiles of rows: NumPy's GEMM cannot add, and a tile is all it costs."""
    rows = max(16, settings.tile_elements // max(1, out.shape[-1]))
    for index in np.ndindex(out.shape[:-2]):
        a, b = np.broadcast_to(x1, out.shape[:-2] + x1.shape[-2:])[index], (
            np.broadcast_to(x2, out.shape[:-2] + x2.shape[-2:])[index])
        for start in range(0, out.shape[-2], rows):
            part = out[index][start:start + rows]
            part += a[start:start + rows] @ b
    return out


def _matmul_half(x1: Any, x2: Any, out: Any, beta: float) -> Any:
    wide1 = host().copy(x1, np.float32, "matmul")
    wide2 = host().copy(x2, np.float32, "matmul")
    product = _matmul_cpu(wide1, wide2)
    if out is None:
        return host().copy(product, np.result_type(x1, x2), "matmul")
    out[...] = product + out.astype(np.float32) if beta else product
    return out


def _matmul_gpu(x1: Any, x2: Any, *, out: Any = None, beta: float = 0.0) -> Any:
    if beta:
        return gemm_into(x1, x2, out)
    return cupy().matmul(x1, x2, out=out)


def _matmul_backward(ns: Any, step: Any, g: Any) -> None:
    """Each product accumulates straight into the gradient that is already there."""
    a, b = step.saved
    if step.needs(0):
        _product_into(ns, step, 0, g, swapped(ns, b))
    if step.needs(1):
        _product_into(ns, step, 1, swapped(ns, a), g)


def _product_into(ns: Any, step: Any, i: int, left: Any, right: Any) -> None:
    if _product_shape(left, right) != step.shape(i):  # broadcast batch axes: the step sums them
        step.give(i, ns.matmul(left, right))
        return
    buffer, beta = step.into(i)
    step.give(i, ns.matmul(left, right, out=buffer, beta=beta))


def _matmul_tangent(ns: Any, primals: Any, tangents: Any, out: Any, params: dict[str, Any]) -> Any:
    (a, b), (da, db) = primals, tangents
    terms = [ns.matmul(da, b)] * (da is not None) if da is not None else []
    if db is not None:
        terms.append(ns.matmul(a, db))
    return terms[0] if len(terms) == 1 else ns.add(*terms)


matmul_op = op(
    "matmul", cpu=_matmul_cpu, gpu=_matmul_gpu, saves={"x1": "x2", "x2": "x1"},
    backward=_matmul_backward, tangent=_matmul_tangent,
    samples=[Sample(((3, 4), (4, 5))), Sample(((1, 4), (4, 1))), Sample(((2, 3, 4), (2, 4, 2))),
             Sample(((2, 1, 3, 2), (4, 2, 3))), Sample(((0, 3), (3, 2))), Sample(((2, 0), (0, 3)))],
    reference=lambda torch, a, b: a @ b,
)


def matmul(x1: Tensor, x2: Tensor) -> Tensor:
    """Matrix product of the last two axes, broadcast over the others; a vector is a row or column.

    A batch of matrices times one is a single GEMM. Raises ValueError if the inner sizes differ.
    """
    x1, x2 = asarray(x1), asarray(x2)
    if not x1.ndim or not x2.ndim:
        raise ValueError(f"matmul of shapes {x1.shape} and {x2.shape}; "
                         "wanted at least one axis each")
    inner = x2.shape[0] if x2.ndim == 1 else x2.shape[-2]
    if x1.shape[-1] != inner:
        raise ValueError(f"matmul of shapes {x1.shape} and {x2.shape}: the inner sizes "
                         f"{x1.shape[-1]} and {inner} differ")
    if x1.ndim == 1:
        product = matmul(reshape(x1, (1, -1)), x2)
        return reshape(product, product.shape[:-2] + product.shape[-1:] if x2.ndim > 1 else ())
    if x2.ndim == 1:
        product = matmul(x1, reshape(x2, (-1, 1)))
        return reshape(product, product.shape[:-1])
    if x2.ndim == 2 and x1.ndim > 2:
        rows = reshape(x1, (prod(x1.shape[:-1]), x1.shape[-1]))
        return reshape(matmul_op(rows, x2), (*x1.shape[:-1], x2.shape[-1]))
    return matmul_op(x1, x2)

"""Matrix products, also into the caller's buffers; functions that matrix ops share."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from gtensor.array.creation import asarray
from gtensor.backend.cuda import cupy
from gtensor.engine.op import op
from gtensor.engine.samples import Sample
from gtensor.engine.tensor import Tensor
from gtensor.ops.arrange.shape import reshape
from gtensor.ops.build.batching import Inputs, Mapped, broadcasting
from gtensor.ops.build.path_builders import placed
from gtensor.settings import settings

if TYPE_CHECKING:
    from types import ModuleType

    from gtensor.backend import Device
    from gtensor.backend.typing import Array, Params, Path
    from gtensor.engine.typing import ArrayOrTensor, Namespace, Operand, Step, Values

__all__ = ["matmul"]


# -- what matrix ops share -------------------------------------------------------------------------


def swapped(ns: Namespace, x: ArrayOrTensor) -> ArrayOrTensor:
    """The last two axes swapped, in either namespace."""
    n: int = len(x.shape)
    return ns.permute_dims(x, axes=(*range(-n, -2), -1, -2))


def conjugated(ns: Namespace, x: ArrayOrTensor) -> ArrayOrTensor:
    """The complex conjugate; a real array is its own."""
    return ns.conj(x) if x.dtype.kind == "c" else x


def adjoint(ns: Namespace, x: ArrayOrTensor) -> ArrayOrTensor:
    """The conjugate transpose of the last two axes, in either namespace."""
    return swapped(ns, conjugated(ns, x))


def is_half(dtype: np.dtype) -> bool:
    """Whether the dtype is float16 or bfloat16, which are computed in float32."""
    return dtype.itemsize == 2 and dtype.kind in "fV"


def matrices(x: Operand, op_name: str, square: bool = False) -> Tensor:
    """`x` as a tensor of matrices in its last two axes.

    Raises ValueError for fewer than two axes; LinAlgError (a ValueError) where they must be square
    and are not.
    """
    found = asarray(x)
    if found.ndim < 2:
        raise ValueError(f"{op_name} of a tensor of shape {found.shape}; wanted matrices: two axes "
                         "or more")
    if square and found.shape[-1] != found.shape[-2]:
        raise np.linalg.LinAlgError(f"{op_name} of a tensor of shape {found.shape}; wanted square "
                                    "matrices in the last two axes")
    return found


def matrix_paths(name: str, function: Path) -> dict[str, Path]:
    """The two paths of an op on matrices: `function(xp, *arrays, *, params)` on NumPy and CuPy.

    Half types are computed in float32. LAPACK works on copies and returns new arrays, so `out` is
    filled by a copy. On the CPU its errors become a LinAlgError that names op and shape. On a GPU
    reading cuSOLVER's status would wait, so there a singular matrix gives infinities or NaN.
    """

    def on(library: Callable[[], ModuleType]) -> Path:
        def path(*arrays: Array, out: Array | None = None, **params: Any) -> Array:
            half = is_half(np.result_type(*[a.dtype for a in arrays]))
            wide = [a.astype(np.float32) if is_half(a.dtype) else a for a in arrays]
            try:
                value = function(library(), *wide, **params)
            except np.linalg.LinAlgError as error:
                shapes = " and ".join(str(a.shape) for a in arrays)
                raise np.linalg.LinAlgError(f"{name} of shape {shapes}: {error}") from None
            if out is None:
                return value.astype(arrays[0].dtype) if half else value
            out[...] = value
            return out

        path.formula = function  # type: ignore[attr-defined]  # whose arguments it takes
        return path

    return {"cpu": on(lambda: np), "gpu": on(cupy)}


# -- matmul ----------------------------------------------------------------------------------------


def _product_shape(a: Array, b: Array) -> tuple[int, ...]:
    if len(a.shape) == len(b.shape) == 2:
        return a.shape[0], b.shape[1]
    return (*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1])


def matmul_cpu(
    device: Device, x1: Array, x2: Array, *, out: Array | None = None, beta: float = 0.0
) -> Array:
    """out = x1 @ x2 + beta * out; half precision is multiplied in float32."""
    if (x1.itemsize == 2 or x2.itemsize == 2) and (is_half(x1.dtype) or is_half(x2.dtype)):
        return _matmul_half(device, x1, x2, out, beta)
    if beta:
        return _accumulate(x1, x2, out)
    if out is None:
        dtype = x1.dtype if x1.dtype == x2.dtype else np.result_type(x1, x2)
        out = device.empty(_product_shape(x1, x2), dtype, "matmul")
    return np.matmul(x1, x2, out)


def _accumulate(x1: Array, x2: Array, out: Any) -> Array:
    """out += x1 @ x2 by tiles of rows, as NumPy's GEMM cannot add; it needs memory for a tile."""
    rows = max(16, settings.tile_elements // max(1, out.shape[-1]))
    for index in np.ndindex(out.shape[:-2]):
        a, b = np.broadcast_to(x1, out.shape[:-2] + x1.shape[-2:])[index], (
            np.broadcast_to(x2, out.shape[:-2] + x2.shape[-2:])[index])
        for start in range(0, out.shape[-2], rows):
            part = out[index][start:start + rows]
            part += a[start:start + rows] @ b
    return out


def _matmul_half(
    device: Device, x1: Array, x2: Array, out: Array | None, beta: float
) -> Array:
    wide1, wide2 = (device.copy(x, np.float32, "matmul") if is_half(x.dtype) else x
                    for x in (x1, x2))
    product = matmul_cpu(device, wide1, wide2)
    if out is None:
        return device.copy(product, np.result_type(x1, x2), "matmul")
    out[...] = product + out.astype(np.float32) if beta else product
    return out


def matmul_gpu(
    device: Device, x1: Array, x2: Array, *, out: Array | None = None, beta: float = 0.0
) -> Array:
    """out = x1 @ x2 + beta * out; integers, which no gradient adds to, by a kernel of CuPy's."""
    dtype = x1.dtype if x1.dtype == x2.dtype else np.result_type(x1, x2)
    if dtype.kind in "biu":
        return cupy().matmul(x1, x2, out=out)
    x1, x2 = (x.astype(dtype, copy=False) for x in (x1, x2))
    return device.matmul(x1, x2, out, beta)


def _matmul_backward(ns: Namespace, step: Step, g: Array) -> None:
    """Each product accumulates straight into the gradient that is already there."""
    a, b = step.saved
    if step.needs(0):
        _product_into(ns, step, 0, g, adjoint(ns, b))
    if step.needs(1):
        _product_into(ns, step, 1, adjoint(ns, a), g)


def _product_into(ns: Namespace, step: Step, i: int, left: Array, right: Array) -> None:
    parent: Any = step.parents[i]  # there is one: it needs a gradient
    dtypes = {left.dtype, right.dtype, parent.dtype}
    if _product_shape(left, right) != step.shape(i) or len(dtypes) > 1:
        step.give(i, ns.matmul(left, right))  # the step undoes broadcasting and promotion
        return
    buffer, beta = step.into(i)
    step.give(i, ns.matmul(left, right, out=buffer, beta=beta))


def _matmul_tangent(
    ns: Namespace, primals: Values, tangents: Values, out: Array, params: Params
) -> Array:
    (a, b), (da, db) = primals, tangents
    terms = [ns.matmul(da, b)] * (da is not None) if da is not None else []
    if db is not None:
        terms.append(ns.matmul(a, db))
    return terms[0] if len(terms) == 1 else ns.add(*terms)


def matmul_batch(
    ns: Namespace, run: Path, inputs: Inputs, mapped: Mapped, params: Params
) -> Any:
    """One product of all rows with a matrix that all examples share, if it is on the right.

    On the left it is one of all columns where these are few; many would take as long to copy side
    by side as to multiply in place.
    """
    x1, x2 = inputs
    if params or mapped[0] and mapped[1]:  # with a buffer to write, into that
        return broadcasting(ns, run, inputs, mapped, params)
    if mapped[0] and x2.ndim == 2 and x1.ndim > 2:
        *lead, inner = x1.shape
        y = run(ns.reshape(x1, shape=(prod(lead), inner)), x2)
        return ns.reshape(y, shape=(*lead, x2.shape[1]))
    if mapped[1] and x1.ndim == 2 and x2.ndim > 2 and 4 * x2.shape[-1] <= x1.shape[0]:
        *lead, inner, columns = x2.shape
        rows = ns.reshape(swapped(ns, x2), shape=(prod(lead) * columns, inner))
        y = run(rows, swapped(ns, x1))
        return swapped(ns, ns.reshape(y, shape=(*lead, columns, x1.shape[0])))
    return broadcasting(ns, run, inputs, mapped, params)


matmul_batch.writes = True  # type: ignore[attr-defined]


matmul_op = op(
    "matmul", **placed(matmul_cpu, matmul_gpu), saves={"x1": "x2", "x2": "x1"}, complex=True,
    backward=_matmul_backward, tangent=_matmul_tangent, batch=matmul_batch,
    samples=[Sample(((3, 4), (4, 5))), Sample(((1, 4), (4, 1))), Sample(((2, 3, 4), (2, 4, 2))),
             Sample(((2, 1, 3, 2), (4, 2, 3))), Sample(((0, 3), (3, 2))), Sample(((2, 0), (0, 3)))],
    reference=lambda torch, a, b: a @ b,
)


def matmul(x1: Tensor, x2: Tensor) -> Tensor:
    """Matrix product of the last two axes, broadcast over the others; a vector is a row or column.

    A batch of matrices times one is a single GEMM. Raises ValueError if the inner sizes differ.
    """
    if not (isinstance(x1, Tensor) and isinstance(x2, Tensor)):
        x1, x2 = asarray(x1), asarray(x2)
    left, right = x1.shape, x2.shape
    if not left or not right:
        raise ValueError(f"matmul of shapes {left} and {right}; wanted at least one axis each")
    inner = right[0] if len(right) == 1 else right[-2]
    if left[-1] != inner:
        raise ValueError(f"matmul of shapes {left} and {right}: the inner sizes {left[-1]} and "
                         f"{inner} differ")
    if len(left) == 1:
        product = matmul(reshape(x1, (1, -1)), x2)
        return reshape(product, product.shape[:-2] + product.shape[-1:] if len(right) > 1 else ())
    if len(right) == 1:
        product = matmul(x1, reshape(x2, (-1, 1)))
        return reshape(product, product.shape[:-1])
    if len(right) == 2 and len(left) > 2:
        rows = reshape(x1, (prod(left[:-1]), left[-1]))
        return reshape(matmul_op(rows, x2), (*left[:-1], right[-1]))
    return matmul_op(x1, x2)

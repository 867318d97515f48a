"""Matrices made of others, and the places of triangles."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gtensor.backend import get_default_dtype
from gtensor.creation.new_tensors import linspace, ones
from gtensor.engine.handle.namespaces import recorded
from gtensor.ops import clone, matmul, moveaxis, nonzero, pow, reshape, tril, triu
from gtensor.ops.arrange.shape import axis_index
from gtensor.ops.define.arguments import takes_arrays
from gtensor.ops.linalg.contractions import cross as vector_product
from gtensor.ops.linalg.norms import diagonal, trace, vector_norm
from gtensor.system.written_code import enter

if TYPE_CHECKING:
    from gtensor.backend import Device
    from gtensor.backend.typing import DTypeLike
    from gtensor.engine.handle.tensor import Tensor
    from gtensor.ops.reduce.reductions import Axis

__all__ = ["diag", "diag_embed", "kron", "logspace", "tril_indices", "triu_indices"]


@takes_arrays
def diag(x: Tensor, /, k: int = 0) -> Tensor:
    """The matrix with a 1-d x on its k-th diagonal, else zeros; of a matrix that diagonal, copied.

    Raises ValueError for more axes than two.
    """
    if x.ndim == 1:
        n = x.size + abs(k)
        return recorded.undiagonal(x, offset=k, shape=(n, n))
    if x.ndim != 2:
        raise ValueError(f"diag of a tensor of shape {x.shape}; wanted one or two axes "
                         "(gt.linalg.diagonal takes batches of matrices)")
    return clone(diagonal(x, offset=k))


@takes_arrays
def diag_embed(x: Tensor, /, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """Matrices with the rows of x, its last axis, on a diagonal, else zeros. PyTorch's.

    The rows of the matrices are the axis `dim1` of the result, their columns `dim2`. Raises
    ValueError for a 0-d x and for one axis twice.

        gt.diag_embed(gt.ones((5, 3))).shape                           # (5, 3, 3)
    """
    if not x.ndim:
        raise ValueError("diag_embed of a 0-d tensor; wanted at least one dimension")
    rows, columns = (axis_index(dim, x.ndim + 1, "diag_embed") for dim in (dim1, dim2))
    if rows == columns:
        raise ValueError(f"diag_embed was given dim1={dim1} and dim2={dim2} for a result of "
                         f"{x.ndim + 1} dimensions; wanted two of them")
    n = x.shape[-1] + abs(offset)
    found = recorded.undiagonal(x, offset=offset, shape=(*x.shape[:-1], n, n))
    return moveaxis(found, (-2, -1), (rows, columns))


@takes_arrays
def kron(x1: Tensor, x2: Tensor, /) -> Tensor:
    """The Kronecker product: every element of x1 times all of x2, as blocks. Missing axes are 1."""
    ndim = max(x1.ndim, x2.ndim)
    first, second = ((1,) * (ndim - x.ndim) + x.shape for x in (x1, x2))
    blocks = (reshape(x1, tuple(n for size in first for n in (size, 1)))
              * reshape(x2, tuple(n for size in second for n in (1, size))))
    return reshape(blocks, tuple(n * m for n, m in zip(first, second, strict=True)))


def triu_indices(
    n_rows: int, n_cols: int | None = None, /, *, k: int = 0, device: Device | str | None = None
) -> tuple[Tensor, ...]:
    """(rows, columns) of the upper triangle of a matrix, from the k-th diagonal on; int64.

    The second number is PyTorch's, the columns; NumPy's is k.
    """
    return nonzero(triu(ones(_shape(n_rows, n_cols), device=device), k=k))


def tril_indices(
    n_rows: int, n_cols: int | None = None, /, *, k: int = 0, device: Device | str | None = None
) -> tuple[Tensor, ...]:
    """(rows, columns) of the lower triangle of a matrix, up to the k-th diagonal; int64.

    The second number is PyTorch's, the columns; NumPy's is k.
    """
    return nonzero(tril(ones(_shape(n_rows, n_cols), device=device), k=k))


def _shape(n_rows: int, n_cols: int | None) -> tuple[int, int]:
    return n_rows, n_rows if n_cols is None else n_cols


def logspace(
    start: float, stop: float, /, num: int = 50, *, base: float = 10.0,
    dtype: DTypeLike | None = None, device: Device | str | None = None,
) -> Tensor:
    """`num` numbers from base ** start to base ** stop, evenly spaced on a log scale.

    Of the default dtype unless another is given.
    """
    found = pow(float(base), linspace(start, stop, num, dtype="float64", device=device))
    return found.astype(get_default_dtype() if dtype is None else dtype)


@takes_arrays
def norm(
    x: Tensor, /, p: float | str | None = 2, dim: Axis = None, keepdim: bool = False
) -> Tensor:
    """The p-norm of the elements over `dim` (all by default), as PyTorch's `norm`.

    Raises ValueError for another name than "fro", which is the 2-norm.
    """
    if isinstance(p, str) and p != "fro":
        raise ValueError(f"norm was given p={p!r}; wanted a number or 'fro' (gt.linalg.norm has "
                         "the norms of matrices)")
    order = 2.0 if p in (None, "fro") else float(p)
    return vector_norm(x, dim, keepdims=keepdim, ord=order)


@takes_arrays
def dot(x1: Tensor, x2: Tensor, /) -> Tensor:
    """The product of vectors or matrices. Raises ValueError for more axes, where libraries differ.
    """
    if not 0 < x1.ndim < 3 or not 0 < x2.ndim < 3:
        raise ValueError(f"dot of shapes {x1.shape} and {x2.shape}; wanted vectors or matrices "
                         "(gt.matmul multiplies batches, gt.tensordot sums over axes)")
    return matmul(x1, x2)


@takes_arrays
def cross(x1: Tensor, x2: Tensor, /, dim: int | None = None) -> Tensor:
    """The vector product along `dim`, an axis of size 3: the last one by default.

    Raises ValueError without `dim` if another axis has size 3, of which PyTorch takes the first.
    """
    if dim is None and 3 in (*x1.shape[:-1], *x2.shape[:-1]):
        raise ValueError(f"cross of shapes {x1.shape} and {x2.shape} was given no dim; wanted one: "
                         "PyTorch takes the first axis of size 3, NumPy the last axis")
    return vector_product(x1, x2, axis=-1 if dim is None else dim)


@takes_arrays
def addmm(
    input: Tensor, mat1: Tensor, mat2: Tensor, /, *, beta: float = 1, alpha: float = 1
) -> Tensor:
    """beta * input + alpha * (mat1 @ mat2), as PyTorch's `addmm`."""
    product = matmul(mat1, mat2)
    product = product if alpha == 1 else product * alpha
    return product if beta == 0 else product + (input if beta == 1 else input * beta)


@takes_arrays
def matrix_diagonal(x: Tensor, /, offset: int = 0) -> Tensor:
    """A diagonal of a matrix: a view. Raises ValueError for more axes, where libraries differ."""
    _one_matrix("diagonal", x)
    return diagonal(x, offset=offset)


@takes_arrays
def matrix_trace(x: Tensor, /, offset: int = 0) -> Tensor:
    """The sum of a matrix's diagonal. Raises ValueError for more axes, where libraries differ."""
    _one_matrix("trace", x)
    return trace(x, offset=offset)


def _one_matrix(name: str, x: Tensor) -> None:
    if x.ndim != 2:
        raise ValueError(f"{name} of a tensor of shape {x.shape}; wanted a matrix "
                         f"(gt.linalg.{name} takes the last two axes, NumPy's the first two)")


enter(globals())

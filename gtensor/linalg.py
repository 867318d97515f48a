"""Linear algebra: the `linalg` extension of the Python array API standard 2024.12, and more.

    factor = gt.linalg.cholesky(covariance)
    values, vectors = gt.linalg.eigh(covariance)

Matrices are the last two axes, batches all others. Complex matrices have values; gradients are for
real ones (products, norms and traces have them for both). A singular matrix raises
`numpy.linalg.LinAlgError` on the CPU; on a GPU, which would have to be waited for, the result is
not finite. Half types are computed in float32.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gtensor.ops.arrange.shape import matrix_transpose
from gtensor.ops.linalg.contractions import cross, outer, tensordot, vecdot
from gtensor.ops.linalg.decompositions import cholesky, eigh, eigvalsh, qr
from gtensor.ops.linalg.gemm import gemm_into, matmul
from gtensor.ops.linalg.norms import diagonal, matrix_norm, norm, trace, vector_norm
from gtensor.ops.linalg.singular_values import svd, svdvals
from gtensor.ops.linalg.solving import (
    cholesky_solve,
    cond,
    det,
    inv,
    lstsq,
    matrix_power,
    matrix_rank,
    pinv,
    slogdet,
    solve,
    solve_triangular,
)
from gtensor.system.late_imports import late as _late
from gtensor.system.written_code import enter as _enter

if TYPE_CHECKING:  # names of other libraries
    from numpy.linalg import LinAlgError as LinAlgError

    from gtensor.ops.linalg.exponential import expm

    inverse = inv
    matrix_exp = expm
else:
    __getattr__, __dir__ = _late(__name__, {"expm": "gtensor.ops.linalg.exponential"})

__all__ = [
    "cholesky", "cholesky_solve", "cond", "cross", "det", "diagonal", "eigh", "eigvalsh", "expm",
    "gemm_into", "inv", "lstsq", "matmul", "matrix_norm", "matrix_power", "matrix_rank",
    "matrix_transpose", "norm", "outer", "pinv", "qr", "slogdet", "solve", "solve_triangular",
    "svd", "svdvals", "tensordot", "trace", "vecdot", "vector_norm",
]

_enter(globals())

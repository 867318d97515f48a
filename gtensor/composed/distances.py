"""Distances between rows, and rows of bounded norm."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gtensor.creation.dtypes import float32, result_type
from gtensor.ops import matmul, matrix_transpose, mean, reshape, sqrt, square, sum, where
from gtensor.ops.arrange.shape import axis_index
from gtensor.ops.define.arguments import floats, of_half, takes_arrays
from gtensor.ops.linalg.norms import vector_norm
from gtensor.system.written_code import enter

if TYPE_CHECKING:
    from gtensor.engine.handle.tensor import Tensor

__all__ = ["cdist", "renorm"]

_FEW = 25  # rows up to which PyTorch, too, takes differences
_IF_NECESSARY = "use_mm_for_euclid_dist_if_necessary"
_MODES = (_IF_NECESSARY, "use_mm_for_euclid_dist", "donot_use_mm_for_euclid_dist")


@takes_arrays
def cdist(
    x1: Tensor, x2: Tensor, /, p: float = 2.0,
    compute_mode: str | None = _IF_NECESSARY,
) -> Tensor:
    """The p-norms of the differences of rows, (..., P, R) of x1 (..., P, M) and x2 (..., R, M).

    As PyTorch's. For p=2 and more than 25 rows it is a matrix product, around the mean of x2:
    distances far below the spread of x2 then lose digits (to 1e-8 of it in float64, 3e-4 in
    float32). Else it needs memory for P * R * M differences. The gradient at a distance of 0 is 0.
    Half types are computed in float32.

    Args:
        x1, x2: real rows; what is before the last two axes broadcasts.
        p: 0 or more, inf included; 0 counts differences.
        compute_mode: PyTorch's "use_mm_for_euclid_dist_if_necessary", "use_mm_for_euclid_dist" or
            "donot_use_mm_for_euclid_dist"; None is the first.

    Raises ValueError for shapes that do not fit, another mode, and a negative p.

        gt.cdist(gt.zeros((3, 2)), gt.ones((4, 2)), p=1)               # (3, 4), all 2
    """
    mode = _IF_NECESSARY if compute_mode is None else compute_mode
    if mode not in _MODES:
        raise ValueError(f"cdist was given compute_mode={compute_mode!r}; wanted one of "
                         f"{', '.join(map(repr, _MODES))}")
    if not p >= 0:
        raise ValueError(f"cdist was given p={p}; wanted 0 or more")
    if x1.ndim < 2 or x2.ndim < 2 or x1.shape[-1] != x2.shape[-1]:
        raise ValueError(f"cdist of shapes {x1.shape} and {x2.shape}; wanted (..., P, M) and "
                         "(..., R, M)")
    x1, x2 = floats(x1), floats(x2)
    rows = max(x1.shape[-2], x2.shape[-2])
    if p == 2 and x1.shape[-1] and (mode == _MODES[1] or mode == _IF_NECESSARY and rows > _FEW):
        return _by_product(x1, x2)
    differences = (reshape(x1, (*x1.shape[:-1], 1, x1.shape[-1]))
                   - reshape(x2, (*x2.shape[:-2], 1, *x2.shape[-2:])))
    return vector_norm(differences, axis=-1, ord=p)


def _by_product(x1: Tensor, x2: Tensor) -> Tensor:
    dtype = result_type(x1, x2)
    if of_half(x1) or of_half(x2):
        x1, x2 = x1.astype(float32), x2.astype(float32)
    center = mean(x2.detach(), axis=-2, keepdims=True) if x2.shape[-2] else 0
    a, b = x1 - center, x2 - center
    squares = (sum(square(a), axis=-1, keepdims=True)
               + matrix_transpose(sum(square(b), axis=-1, keepdims=True))
               - 2 * matmul(a, matrix_transpose(b)))
    away = squares > 0
    found = where(away, sqrt(where(away, squares, 1.0)), 0.0)
    return found.astype(dtype, copy=False)


@takes_arrays
def renorm(x: Tensor, p: float, dim: int, maxnorm: float) -> Tensor:
    """x with each slice along `dim` whose p-norm is above `maxnorm` scaled down to it.

    As PyTorch's, which divides by the norm + 1e-7. Raises ValueError for fewer than two axes, and
    unless p is positive and `maxnorm` not negative.

        gt.renorm(gt.tensor([[3.0, 4.0], [0.1, 0.0]]), 2, 0, 1)        # [[0.6, 0.8], [0.1, 0]]
    """
    if x.ndim < 2:
        raise ValueError(f"renorm of a tensor of shape {x.shape}; wanted two or more dimensions")
    if not p > 0 or not maxnorm >= 0:
        raise ValueError(f"renorm was given p={p} and maxnorm={maxnorm}; wanted a positive p, and "
                         "0 or more")
    axis = axis_index(dim, x.ndim, "renorm")
    others = tuple(i for i in range(x.ndim) if i != axis)
    size = vector_norm(x, axis=others, keepdims=True, ord=p)
    above = size > maxnorm
    return x * where(above, maxnorm / (where(above, size, 1.0) + 1e-7), 1.0)


enter(globals())

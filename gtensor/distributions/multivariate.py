"""The multivariate normal distribution, and batches that are counted as events."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

from gtensor import random
from gtensor.creation.new_tensors import eye
from gtensor.distributions.distribution import (
    LOWER_CHOLESKY,
    REAL_VECTOR,
    SYMMETRIC,
    Constraint,
    Distribution,
    as_floats,
    with_event,
)
from gtensor.ops import broadcast_arrays, broadcast_to, flip, log, matmul, matrix_transpose, square
from gtensor.ops import sum as _sum
from gtensor.ops.linalg.decompositions import cholesky
from gtensor.ops.linalg.norms import diagonal
from gtensor.ops.linalg.solving import solve_triangular

if TYPE_CHECKING:
    from gtensor.engine.handle.tensor import Tensor
    from gtensor.random import Generator, Key, Shape

_LOG_2PI = math.log(2 * math.pi)


class MultivariateNormal(Distribution):
    """Normal vectors of mean `loc` (..., n) and one of the following (..., n, n).

    Args:
        loc: the mean.
        covariance_matrix: positive definite.
        precision_matrix: its inverse.
        scale_tril: the lower Cholesky factor of the covariance, which is the cheapest.
        validate_args: as of `Distribution`.

    Raises ValueError for none or several of the matrices, and for shapes that do not fit.
    """

    has_rsample = True
    arg_constraints: ClassVar = {
        "loc": REAL_VECTOR, "covariance_matrix": SYMMETRIC, "precision_matrix": SYMMETRIC,
        "scale_tril": LOWER_CHOLESKY}

    def __init__(
        self, loc: Tensor, covariance_matrix: Tensor | None = None,
        precision_matrix: Tensor | None = None, scale_tril: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        given = {label: x for label, x in (
            ("covariance_matrix", covariance_matrix), ("precision_matrix", precision_matrix),
            ("scale_tril", scale_tril)) if x is not None}
        if len(given) != 1:
            raise ValueError(f"MultivariateNormal was given {', '.join(given) or 'no matrix'}; "
                             "wanted one of covariance_matrix, precision_matrix and scale_tril")
        ((label, matrix),) = given.items()
        centre, matrix = as_floats("MultivariateNormal", loc=loc, **{label: matrix})
        n = centre.shape[-1] if centre.ndim else 0
        if matrix.ndim < 2 or matrix.shape[-2:] != (n, n) or not n:
            raise ValueError(f"MultivariateNormal was given loc of shape {centre.shape} and {label}"
                             f" of shape {matrix.shape}; wanted (..., n) and (..., n, n)")
        wide, _ = broadcast_arrays(centre, matrix[..., 0])
        self.loc = wide
        super().__init__(wide.shape[:-1], wide.shape[-1:], validate_args)
        self._check_parameters(**{"loc": centre, label: matrix})
        self._label, self._matrix = label, matrix
        self._factor = (matrix if label == "scale_tril" else cholesky(matrix)
                        if label == "covariance_matrix" else _factor_of_inverse(matrix))

    @property
    def scale_tril(self) -> Tensor:
        """The lower Cholesky factor of the covariance (*batch_shape, n, n)."""
        return self._whole(self._factor)

    def _whole(self, matrix: Tensor) -> Tensor:
        return broadcast_to(matrix, (*self.loc.shape, self.loc.shape[-1]))

    @property
    def covariance_matrix(self) -> Tensor:
        """The covariance (*batch_shape, n, n)."""
        if self._label == "covariance_matrix":
            return self._whole(self._matrix)
        factor = self.scale_tril
        return matmul(factor, matrix_transpose(factor))

    @property
    def precision_matrix(self) -> Tensor:
        """The inverse of the covariance (*batch_shape, n, n)."""
        if self._label == "precision_matrix":
            return self._whole(self._matrix)
        inverse = inverse_of_triangle(self._factor)
        return self._whole(matmul(matrix_transpose(inverse), inverse))

    @property
    def support(self) -> Constraint:
        return REAL_VECTOR

    @property
    def mean(self) -> Tensor:
        return self.loc

    @property
    def variance(self) -> Tensor:
        return _sum(square(self.scale_tril), axis=-1)

    def rsample(
        self, sample_shape: Shape = (), *, generator: Generator | Key | None = None
    ) -> Tensor:
        noise = random.normal(self._extended(sample_shape), dtype=self.loc.dtype,
                              device=self.loc.device, generator=generator)
        return self.loc + matmul(self._factor, noise[..., None])[..., 0]

    def log_prob(self, value: Tensor) -> Tensor:
        distance = squared_distance(self._factor, self._value(value) - self.loc)
        return -0.5 * (self.loc.shape[-1] * _LOG_2PI + distance) - log_determinant(self._factor)

    def entropy(self) -> Tensor:
        found = 0.5 * self.loc.shape[-1] * (1 + _LOG_2PI) + log_determinant(self._factor)
        return broadcast_to(found, self.batch_shape)


def _factor_of_inverse(precision: Tensor) -> Tensor:
    """The lower Cholesky factor of the inverse of a matrix."""
    turned = cholesky(flip(precision, axis=(-2, -1)))
    return inverse_of_triangle(matrix_transpose(flip(turned, axis=(-2, -1))))


def inverse_of_triangle(factor: Tensor) -> Tensor:
    """The inverses of lower triangular matrices."""
    one = eye(factor.shape[-1], dtype=factor.dtype, device=factor.device)
    return solve_triangular(factor, broadcast_to(one, factor.shape), upper=False)


def squared_distance(factor: Tensor, away: Tensor) -> Tensor:
    """|L^-1 x|^2 of vectors x (..., n) and lower triangular L (..., n, n)."""
    n = away.shape[-1]
    if factor.ndim == 2:  # all vectors at once
        solved = solve_triangular(factor, matrix_transpose(away.reshape((-1, n))), upper=False)
        return _sum(square(solved), axis=0).reshape(away.shape[:-1])
    wide = broadcast_to(factor, (*away.shape[:-1], n, n))
    return _sum(square(solve_triangular(wide, away[..., None], upper=False)), axis=(-2, -1))


def log_determinant(factor: Tensor) -> Tensor:
    """The logarithm of the determinant of triangular matrices."""
    return _sum(log(diagonal(factor)), axis=-1)


class Independent(Distribution):
    """A distribution whose last batch axes count as axes of the event.

    Args:
        base_distribution: the distribution.
        reinterpreted_batch_ndims: how many of them.
        validate_args: as of `Distribution`.

    Raises ValueError for more axes than there are.
    """

    def __init__(
        self, base_distribution: Distribution, reinterpreted_batch_ndims: int,
        validate_args: bool | None = None,
    ) -> None:
        shape, count = base_distribution.batch_shape, reinterpreted_batch_ndims
        if not isinstance(count, int) or not 0 <= count <= len(shape):
            raise ValueError(f"Independent was given reinterpreted_batch_ndims={count!r} for the "
                             f"batch shape {shape}; wanted 0 to {len(shape)}")
        self.base_dist = base_distribution
        self.reinterpreted_batch_ndims = count
        self.has_rsample = base_distribution.has_rsample
        cut = len(shape) - count
        super().__init__(shape[:cut], shape[cut:] + base_distribution.event_shape, validate_args)

    @property
    def support(self) -> Constraint:
        return with_event(self.base_dist.support, self.reinterpreted_batch_ndims)

    @property
    def mean(self) -> Tensor:
        return self.base_dist.mean

    @property
    def variance(self) -> Tensor:
        return self.base_dist.variance

    def rsample(
        self, sample_shape: Shape = (), *, generator: Generator | Key | None = None
    ) -> Tensor:
        return self.base_dist.rsample(sample_shape, generator=generator)

    def sample(
        self, sample_shape: Shape = (), *, generator: Generator | Key | None = None
    ) -> Tensor:
        return self.base_dist.sample(sample_shape, generator=generator)

    def log_prob(self, value: Tensor) -> Tensor:
        return sum_of_last(self.base_dist.log_prob(value), self.reinterpreted_batch_ndims)

    def entropy(self) -> Tensor:
        return sum_of_last(self.base_dist.entropy(), self.reinterpreted_batch_ndims)


def sum_of_last(x: Tensor, count: int) -> Tensor:
    """The sum over so many last axes."""
    return _sum(x, axis=tuple(range(-count, 0))) if count else x

"""Invertible functions, and distributions of what they make of another one's values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gtensor.distributions.distribution import (
    REAL,
    Constraint,
    Distribution,
    as_floats,
    inherit_docstrings,
)
from gtensor.distributions.multivariate import sum_of_last
from gtensor.engine.handle.context import no_grad
from gtensor.ops import abs, all, atanh, broadcast_to, exp, log, log1p, logaddexp, tanh
from gtensor.ops.activations.activation import sigmoid

if TYPE_CHECKING:
    from gtensor.engine.handle.tensor import Tensor
    from gtensor.random import Generator, Key, Shape


class Transform:
    """An invertible function of events with `event_dim` axes.

    `transform(x)` is its value, `transform.inv` the inverse, a Transform itself, and
    `log_abs_det_jacobian(x, y)` the logarithm of the volume's factor at x, where the value is y.
    Subclasses define `_call`, `_inverse` and `log_abs_det_jacobian`.
    """

    event_dim = 0

    def __init_subclass__(cls) -> None:
        inherit_docstrings(cls)

    def __call__(self, x: Tensor) -> Tensor:
        return self._call(x)

    def _call(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def _inverse(self, y: Tensor) -> Tensor:
        raise NotImplementedError

    @property
    def inv(self) -> Transform:
        """The inverse function."""
        return _Inverse(self)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """log |dy / dx|, summed over the axes of an event: (...)."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class _Inverse(Transform):
    def __init__(self, of: Transform) -> None:
        self._of = of
        self.event_dim = of.event_dim

    def _call(self, x: Tensor) -> Tensor:
        return self._of._inverse(x)

    def _inverse(self, y: Tensor) -> Tensor:
        return self._of._call(y)

    @property
    def inv(self) -> Transform:
        return self._of

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return -self._of.log_abs_det_jacobian(y, x)

    def __repr__(self) -> str:
        return f"{self._of!r}.inv"


class AffineTransform(Transform):
    """loc + scale * x, of events with `event_dim` axes; the scale is not 0."""

    def __init__(self, loc: Tensor | float, scale: Tensor | float, event_dim: int = 0) -> None:
        self.loc, self.scale = as_floats("AffineTransform", loc=loc, scale=scale)
        self.event_dim = event_dim

    def _call(self, x: Tensor) -> Tensor:
        return self.loc.astype(x.dtype) + self.scale.astype(x.dtype) * x

    def _inverse(self, y: Tensor) -> Tensor:
        return (y - self.loc.astype(y.dtype)) / self.scale.astype(y.dtype)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        found = log(abs(self.scale.astype(x.dtype)))
        return sum_of_last(broadcast_to(found, x.shape), self.event_dim)


class ExpTransform(Transform):
    """exp(x)."""

    def _call(self, x: Tensor) -> Tensor:
        return exp(x)

    def _inverse(self, y: Tensor) -> Tensor:
        return log(y)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return x


class SigmoidTransform(Transform):
    """1 / (1 + exp(-x))."""

    def _call(self, x: Tensor) -> Tensor:
        return sigmoid(x)

    def _inverse(self, y: Tensor) -> Tensor:
        return log(y) - log1p(-y)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return -logaddexp(-x, 0.0) - logaddexp(x, 0.0)


class TanhTransform(Transform):
    """tanh(x)."""

    def _call(self, x: Tensor) -> Tensor:
        return tanh(x)

    def _inverse(self, y: Tensor) -> Tensor:
        return atanh(y)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return 2 * (math.log(2) - x - logaddexp(-2 * x, 0.0))


class ComposeTransform(Transform):
    """The transforms one after another, the first one first."""

    def __init__(self, parts: Sequence[Transform]) -> None:
        self.parts = list(parts)
        self.event_dim = max((part.event_dim for part in self.parts), default=0)

    def _call(self, x: Tensor) -> Tensor:
        for part in self.parts:
            x = part(x)
        return x

    def _inverse(self, y: Tensor) -> Tensor:
        for part in reversed(self.parts):
            y = part._inverse(y)
        return y

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        total: Tensor | float = 0.0
        for part in self.parts:
            after = part(x)
            total = total + sum_of_last(part.log_abs_det_jacobian(x, after),
                                        self.event_dim - part.event_dim)
            x = after
        return total if not isinstance(total, float) else sum_of_last(0 * x, self.event_dim)


class TransformedDistribution(Distribution):
    """What transforms make of the values of a distribution.

    Args:
        base_distribution: the distribution.
        transforms: one, or several, the first one first.
        validate_args: as of `Distribution`.

    Raises ValueError for transforms of events that have more axes than the values.
    """

    def __init__(
        self, base_distribution: Distribution, transforms: Transform | Sequence[Transform],
        validate_args: bool | None = None,
    ) -> None:
        listed = [transforms] if isinstance(transforms, Transform) else list(transforms)
        self.base_dist, self.transforms = base_distribution, listed
        self.has_rsample = base_distribution.has_rsample
        whole = (*base_distribution.batch_shape, *base_distribution.event_shape)
        ndims = max([len(base_distribution.event_shape), *(t.event_dim for t in listed)])
        if ndims > len(whole):
            raise ValueError(f"TransformedDistribution was given transforms of events of {ndims} "
                             f"axes for a distribution of shape {whole}; wanted as many at least")
        cut = len(whole) - ndims
        super().__init__(whole[:cut], whole[cut:], validate_args)

    @property
    def support(self) -> Constraint:
        n = len(self.event_shape)
        return Constraint(REAL.wanted, lambda x: all(
            x == x, axis=tuple(range(-n, 0))) if n else x == x, n)

    def rsample(
        self, sample_shape: Shape = (), *, generator: Generator | Key | None = None
    ) -> Tensor:
        x = self.base_dist.rsample(sample_shape, generator=generator)
        for one in self.transforms:
            x = one(x)
        return x

    def sample(
        self, sample_shape: Shape = (), *, generator: Generator | Key | None = None
    ) -> Tensor:
        with no_grad():
            x = self.base_dist.sample(sample_shape, generator=generator)
            for one in self.transforms:
                x = one(x)
            return x.detach()

    def log_prob(self, value: Tensor) -> Tensor:
        y = self._value(value)
        ndims = len(self.event_shape)
        total: Tensor | float = 0.0
        for one in reversed(self.transforms):
            x = one._inverse(y)
            total = total - sum_of_last(one.log_abs_det_jacobian(x, y), ndims - one.event_dim)
            y = x
        base = self.base_dist.log_prob(y)
        return total + sum_of_last(base, ndims - len(self.base_dist.event_shape))

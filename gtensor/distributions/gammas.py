"""The gamma, beta and Dirichlet distributions: their values have implicit gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from gtensor import random
from gtensor.creation.dtypes import finfo
from gtensor.distributions.distribution import (
    POSITIVE,
    POSITIVE_VECTOR,
    SIMPLEX,
    UNIT_INTERVAL,
    Constraint,
    Distribution,
    as_floats,
    broadcast_parameters,
)
from gtensor.ops import broadcast_to, clip, log, square
from gtensor.ops import sum as _sum
from gtensor.special import digamma, gammaln, xlog1py, xlogy

if TYPE_CHECKING:
    from gtensor.engine.handle.tensor import Tensor
    from gtensor.random import Generator, Key, Shape


class Gamma(Distribution):
    """The gamma distribution of a `concentration` and a `rate`: its mean is their ratio."""

    has_rsample = True
    arg_constraints: ClassVar = {"concentration": POSITIVE, "rate": POSITIVE}

    def __init__(
        self, concentration: Tensor | float, rate: Tensor | float,
        validate_args: bool | None = None,
    ) -> None:
        self.concentration, self.rate = broadcast_parameters(
            "Gamma", concentration=concentration, rate=rate)
        super().__init__(self.concentration.shape, validate_args=validate_args)
        self._check_parameters(concentration=self.concentration, rate=self.rate)

    @property
    def support(self) -> Constraint:
        return POSITIVE

    @property
    def mean(self) -> Tensor:
        return self.concentration / self.rate

    @property
    def mode(self) -> Tensor:
        """The value of the largest density."""
        return clip(self.concentration - 1, 0.0) / self.rate

    @property
    def variance(self) -> Tensor:
        return self.concentration / square(self.rate)

    def rsample(
        self, sample_shape: Shape = (), *, generator: Generator | Key | None = None
    ) -> Tensor:
        found = random.gamma(self.concentration, size=self._extended(sample_shape),
                             generator=generator) / self.rate
        return clip(found, finfo(found.dtype).smallest_normal)

    def log_prob(self, value: Tensor) -> Tensor:
        x, c, rate = self._value(value), self.concentration, self.rate
        return xlogy(c, rate) + xlogy(c - 1, x) - rate * x - gammaln(c)

    def entropy(self) -> Tensor:
        c = self.concentration
        return c - log(self.rate) + gammaln(c) + (1 - c) * digamma(c)


class Beta(Distribution):
    """The beta distribution: its mean is concentration1 / (concentration1 + concentration0)."""

    has_rsample = True
    arg_constraints: ClassVar = {"concentration1": POSITIVE, "concentration0": POSITIVE}

    def __init__(
        self, concentration1: Tensor | float, concentration0: Tensor | float,
        validate_args: bool | None = None,
    ) -> None:
        self.concentration1, self.concentration0 = broadcast_parameters(
            "Beta", concentration1=concentration1, concentration0=concentration0)
        super().__init__(self.concentration1.shape, validate_args=validate_args)
        self._check_parameters(concentration1=self.concentration1,
                               concentration0=self.concentration0)

    @property
    def support(self) -> Constraint:
        return UNIT_INTERVAL

    @property
    def mean(self) -> Tensor:
        return self.concentration1 / (self.concentration1 + self.concentration0)

    @property
    def variance(self) -> Tensor:
        total = self.concentration1 + self.concentration0
        return self.concentration1 * self.concentration0 / (square(total) * (total + 1))

    def rsample(
        self, sample_shape: Shape = (), *, generator: Generator | Key | None = None
    ) -> Tensor:
        return random.beta(self.concentration1, self.concentration0, self._extended(sample_shape),
                           generator=generator)

    def log_prob(self, value: Tensor) -> Tensor:
        x, a, b = self._value(value), self.concentration1, self.concentration0
        return xlogy(a - 1, x) + xlog1py(b - 1, -x) - log_beta(a, b)

    def entropy(self) -> Tensor:
        a, b = self.concentration1, self.concentration0
        return (log_beta(a, b) - (a - 1) * digamma(a) - (b - 1) * digamma(b)
                + (a + b - 2) * digamma(a + b))


def log_beta(a: Tensor, b: Tensor) -> Tensor:
    """The logarithm of the beta function."""
    return gammaln(a) + gammaln(b) - gammaln(a + b)


class Dirichlet(Distribution):
    """Shares of n parts that add up to 1, by their `concentration` (..., n).

    Raises ValueError for a concentration of no parts, or that is not above 0.
    """

    has_rsample = True
    arg_constraints: ClassVar = {"concentration": POSITIVE_VECTOR}

    def __init__(self, concentration: Tensor, validate_args: bool | None = None) -> None:
        (self.concentration,) = as_floats("Dirichlet", concentration=concentration)
        shape = self.concentration.shape
        if not shape or not shape[-1]:
            raise ValueError(f"Dirichlet was given a concentration of shape {shape}; wanted "
                             "(..., n) of one part at least")
        super().__init__(shape[:-1], shape[-1:], validate_args)
        self._check_parameters(concentration=self.concentration)

    @property
    def support(self) -> Constraint:
        return SIMPLEX

    @property
    def mean(self) -> Tensor:
        return self.concentration / _sum(self.concentration, axis=-1, keepdims=True)

    @property
    def variance(self) -> Tensor:
        total = _sum(self.concentration, axis=-1, keepdims=True)
        return self.concentration * (total - self.concentration) / (square(total) * (total + 1))

    def rsample(
        self, sample_shape: Shape = (), *, generator: Generator | Key | None = None
    ) -> Tensor:
        wide = broadcast_to(self.concentration, self._extended(sample_shape))
        return random.dirichlet(wide, generator=generator)

    def log_prob(self, value: Tensor) -> Tensor:
        c = self.concentration
        return _sum(xlogy(c - 1, self._value(value)), axis=-1) - self.log_normalizer()

    def log_normalizer(self) -> Tensor:
        """The logarithm of the integral that the density is divided by, (*batch_shape)."""
        c = self.concentration
        return _sum(gammaln(c), axis=-1) - gammaln(_sum(c, axis=-1))

    def entropy(self) -> Tensor:
        c = self.concentration
        total = _sum(c, axis=-1)
        return (self.log_normalizer() + (total - c.shape[-1]) * digamma(total)
                - _sum((c - 1) * digamma(c), axis=-1))

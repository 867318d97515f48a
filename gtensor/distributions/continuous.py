"""Normal, Laplace, exponential and uniform distributions."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

from gtensor import random
from gtensor.distributions.distribution import (
    NONNEGATIVE,
    POSITIVE,
    REAL,
    Constraint,
    Distribution,
    between,
    broadcast_parameters,
)
from gtensor.ops import abs, log, where
from gtensor.ops import square as _square
from gtensor.special import ndtr

if TYPE_CHECKING:
    from gtensor.engine.handle.tensor import Tensor
    from gtensor.random import Generator, Key, Shape

_HALF_LOG_2PI = math.log(2 * math.pi) / 2


class Normal(Distribution):
    """The normal distribution of mean `loc` and standard deviation `scale`, which broadcast."""

    has_rsample = True
    arg_constraints: ClassVar = {"loc": REAL, "scale": POSITIVE}

    def __init__(
        self, loc: Tensor | float, scale: Tensor | float, validate_args: bool | None = None
    ) -> None:
        self.loc, self.scale = broadcast_parameters("Normal", loc=loc, scale=scale)
        super().__init__(self.loc.shape, validate_args=validate_args)
        self._check_parameters(loc=self.loc, scale=self.scale)

    @property
    def support(self) -> Constraint:
        return REAL

    @property
    def mean(self) -> Tensor:
        return self.loc

    @property
    def mode(self) -> Tensor:
        """The value of the largest density."""
        return self.loc

    @property
    def stddev(self) -> Tensor:
        return self.scale

    @property
    def variance(self) -> Tensor:
        return _square(self.scale)

    def rsample(
        self, sample_shape: Shape = (), *, generator: Generator | Key | None = None
    ) -> Tensor:
        noise = random.normal(self._extended(sample_shape), dtype=self.loc.dtype,
                              device=self.loc.device, generator=generator)
        return self.loc + self.scale * noise

    def log_prob(self, value: Tensor) -> Tensor:
        away = (self._value(value) - self.loc) / self.scale
        return -0.5 * _square(away) - log(self.scale) - _HALF_LOG_2PI

    def cdf(self, value: Tensor) -> Tensor:
        """The probability of values up to `value`."""
        away = (self._value(value) - self.loc) / self.scale
        return ndtr(away)

    def entropy(self) -> Tensor:
        return log(self.scale) + (0.5 + _HALF_LOG_2PI)


class Laplace(Distribution):
    """The Laplace distribution about `loc`: exponential of mean `scale` on both sides."""

    has_rsample = True
    arg_constraints: ClassVar = {"loc": REAL, "scale": POSITIVE}

    def __init__(
        self, loc: Tensor | float, scale: Tensor | float, validate_args: bool | None = None
    ) -> None:
        self.loc, self.scale = broadcast_parameters("Laplace", loc=loc, scale=scale)
        super().__init__(self.loc.shape, validate_args=validate_args)
        self._check_parameters(loc=self.loc, scale=self.scale)

    @property
    def support(self) -> Constraint:
        return REAL

    @property
    def mean(self) -> Tensor:
        return self.loc

    @property
    def stddev(self) -> Tensor:
        return math.sqrt(2) * self.scale

    @property
    def variance(self) -> Tensor:
        return 2 * _square(self.scale)

    def rsample(
        self, sample_shape: Shape = (), *, generator: Generator | Key | None = None
    ) -> Tensor:
        return random.laplace(self.loc, self.scale, self._extended(sample_shape),
                              generator=generator)

    def log_prob(self, value: Tensor) -> Tensor:
        return -log(2 * self.scale) - abs(self._value(value) - self.loc) / self.scale

    def entropy(self) -> Tensor:
        return 1 + log(2 * self.scale)


class Exponential(Distribution):
    """The exponential distribution of a `rate`: its mean is 1 / rate."""

    has_rsample = True
    arg_constraints: ClassVar = {"rate": POSITIVE}

    def __init__(self, rate: Tensor | float, validate_args: bool | None = None) -> None:
        (self.rate,) = broadcast_parameters("Exponential", rate=rate)
        super().__init__(self.rate.shape, validate_args=validate_args)
        self._check_parameters(rate=self.rate)

    @property
    def support(self) -> Constraint:
        return NONNEGATIVE

    @property
    def mean(self) -> Tensor:
        return 1 / self.rate

    @property
    def stddev(self) -> Tensor:
        return 1 / self.rate

    @property
    def variance(self) -> Tensor:
        return 1 / _square(self.rate)

    def rsample(
        self, sample_shape: Shape = (), *, generator: Generator | Key | None = None
    ) -> Tensor:
        return random.exponential(self._extended(sample_shape), dtype=self.rate.dtype,
                                  device=self.rate.device, generator=generator) / self.rate

    def log_prob(self, value: Tensor) -> Tensor:
        return log(self.rate) - self.rate * self._value(value)

    def entropy(self) -> Tensor:
        return 1 - log(self.rate)


class Uniform(Distribution):
    """The uniform distribution in [low, high)."""

    has_rsample = True
    arg_constraints: ClassVar = {"low": REAL, "high": REAL}

    def __init__(
        self, low: Tensor | float, high: Tensor | float, validate_args: bool | None = None
    ) -> None:
        self.low, self.high = broadcast_parameters("Uniform", low=low, high=high)
        super().__init__(self.low.shape, validate_args=validate_args)
        self._check_parameters(low=self.low, high=self.high)
        self._check("high - low", self.high - self.low, POSITIVE)

    @property
    def support(self) -> Constraint:
        return between(self.low, self.high)

    @property
    def mean(self) -> Tensor:
        return (self.low + self.high) / 2

    @property
    def stddev(self) -> Tensor:
        return (self.high - self.low) / math.sqrt(12)

    @property
    def variance(self) -> Tensor:
        return _square(self.high - self.low) / 12

    def rsample(
        self, sample_shape: Shape = (), *, generator: Generator | Key | None = None
    ) -> Tensor:
        share = random.uniform(self._extended(sample_shape), dtype=self.low.dtype,
                               device=self.low.device, generator=generator)
        return self.low + share * (self.high - self.low)

    def log_prob(self, value: Tensor) -> Tensor:
        x = self._value(value)
        inside = (x >= self.low) & (x < self.high)
        return where(inside, -log(self.high - self.low), -math.inf)

    def entropy(self) -> Tensor:
        return log(self.high - self.low)

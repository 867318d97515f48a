"""Bernoulli and categorical distributions."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

from gtensor import random
from gtensor.creation.dtypes import finfo
from gtensor.distributions.distribution import (
    BOOLEAN,
    REAL,
    REAL_VECTOR,
    UNIT_INTERVAL,
    WEIGHTS,
    Constraint,
    Distribution,
    as_floats,
    broadcast_parameters,
    integers_below,
)
from gtensor.engine.handle.context import no_grad
from gtensor.ops import (
    broadcast_arrays,
    broadcast_to,
    clip,
    log,
    log1p,
    logaddexp,
    maximum,
    sum,
    where,
)
from gtensor.ops import take_along_axis as _take
from gtensor.ops.activations.activation import sigmoid
from gtensor.ops.activations.softmax import log_softmax, softmax

if TYPE_CHECKING:
    from gtensor.engine.handle.tensor import Tensor
    from gtensor.random import Generator, Key, Shape


def _one_of(name: str, probs: object, logits: object) -> None:
    if (probs is None) == (logits is None):
        raise ValueError(f"{name} was given {'neither' if probs is None else 'both'} of probs and "
                         "logits; wanted one of them")


def _away_from_edges(x: Tensor) -> Tensor:
    """Probabilities whose logarithms are finite, as in PyTorch."""
    eps = finfo(x.dtype).eps
    return clip(x, eps, 1 - eps)


class Bernoulli(Distribution):
    """1 with probability `probs`, else 0; `logits` is log(probs / (1 - probs))."""

    arg_constraints: ClassVar = {"probs": UNIT_INTERVAL, "logits": REAL}

    def __init__(
        self, probs: Tensor | float | None = None, logits: Tensor | float | None = None,
        validate_args: bool | None = None,
    ) -> None:
        _one_of("Bernoulli", probs, logits)
        self._probs: Tensor | None = None
        if probs is not None:
            (self._probs,) = broadcast_parameters("Bernoulli", probs=probs)
            super().__init__(self._probs.shape, validate_args=validate_args)
            self._check_parameters(probs=self._probs)
        else:
            assert logits is not None
            (self._logits,) = broadcast_parameters("Bernoulli", logits=logits)
            super().__init__(self._logits.shape, validate_args=validate_args)
            self._check_parameters(logits=self._logits)

    @property
    def probs(self) -> Tensor:
        """The probability of 1."""
        return sigmoid(self._logits) if self._probs is None else self._probs

    @property
    def logits(self) -> Tensor:
        """log(probs / (1 - probs)), finite for probabilities of 0 and 1, too."""
        if self._probs is None:
            return self._logits
        kept = _away_from_edges(self._probs)
        return log(kept) - log1p(-kept)

    @property
    def support(self) -> Constraint:
        return BOOLEAN

    @property
    def mean(self) -> Tensor:
        return self.probs

    @property
    def variance(self) -> Tensor:
        probs = self.probs
        return probs * (1 - probs)

    def sample(
        self, sample_shape: Shape = (), *, generator: Generator | Key | None = None
    ) -> Tensor:
        with no_grad():
            wide = broadcast_to(self.probs.detach(), self._extended(sample_shape))
            return random.bernoulli(wide, generator=generator)

    def log_prob(self, value: Tensor) -> Tensor:
        x, logits = self._value(value).astype(self.probs.dtype), self.logits
        return x * logits - logaddexp(logits, 0.0)

    def entropy(self) -> Tensor:
        logits = self.logits
        return logaddexp(logits, 0.0) - self.probs * logits


class Categorical(Distribution):
    """Numbers of classes, drawn with the weights `probs` (..., n), or softmax(`logits`) (..., n).

    Weights need not add up to 1. Raises ValueError for none or both of them, for no classes, and
    for parameters outside of their constraints.
    """

    arg_constraints: ClassVar = {"probs": WEIGHTS, "logits": REAL_VECTOR}

    def __init__(
        self, probs: Tensor | None = None, logits: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        _one_of("Categorical", probs, logits)
        label = "logits" if probs is None else "probs"
        (x,) = as_floats("Categorical", **{label: logits if probs is None else probs})
        if not x.ndim or not x.shape[-1]:
            raise ValueError(f"Categorical was given {label} of shape {x.shape}; wanted (..., n) "
                             "of one class at least")
        super().__init__(x.shape[:-1], validate_args=validate_args)
        self._check_parameters(**{label: x})
        self._num_events = x.shape[-1]
        self._weighted = probs is not None
        self._given = x

    @property
    def probs(self) -> Tensor:
        """The probabilities (..., n), which add up to 1."""
        if self._weighted:
            return self._given / sum(self._given, axis=-1, keepdims=True)
        return softmax(self._given, -1)

    @property
    def logits(self) -> Tensor:
        """Their logarithms, finite for probabilities of 0, too, if `probs` were given."""
        if self._weighted:
            return log(_away_from_edges(self.probs))
        return log_softmax(self._given, -1)

    @property
    def support(self) -> Constraint:
        return integers_below(self._num_events)

    @property
    def mode(self) -> Tensor:
        """The class of the largest probability."""
        return self.probs.argmax(axis=-1)

    def sample(
        self, sample_shape: Shape = (), *, generator: Generator | Key | None = None
    ) -> Tensor:
        with no_grad():
            logits = self._given.detach()
            if self._weighted:  # a class of weight 0 is never drawn
                possible = logits > 0
                logits = where(possible, log(where(possible, logits, 1.0)), -math.inf)
            return random.categorical(logits, size=self._extended(sample_shape),
                                      generator=generator)

    def log_prob(self, value: Tensor) -> Tensor:
        x, logits = self._value(value).astype("int64"), self.logits
        x, _ = broadcast_arrays(x[..., None], logits[..., :1])
        wide = broadcast_to(logits, (*x.shape[:-1], self._num_events))
        return _take(wide, x, axis=-1)[..., 0]

    def entropy(self) -> Tensor:
        logits = self.logits
        return -sum(maximum(logits, float(finfo(logits.dtype).min)) * self.probs, axis=-1)

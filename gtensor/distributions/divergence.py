"""Kullback-Leibler divergences: a table of formulas by the two distributions' classes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

from gtensor.distributions.continuous import Exponential, Laplace, Normal, Uniform
from gtensor.distributions.discrete import Bernoulli, Categorical
from gtensor.distributions.distribution import Distribution
from gtensor.distributions.gammas import Beta, Dirichlet, Gamma, log_beta
from gtensor.distributions.multivariate import (
    Independent,
    MultivariateNormal,
    log_determinant,
    squared_distance,
    sum_of_last,
)
from gtensor.distributions.transforms import TransformedDistribution
from gtensor.engine.handle.tensor import Tensor
from gtensor.ops import abs, broadcast_to, exp, log, logaddexp, square, where
from gtensor.ops import sum as _sum
from gtensor.ops.linalg.solving import solve_triangular
from gtensor.special import digamma, gammaln

F = TypeVar("F", bound=Callable[..., Tensor])
_TABLE: dict[tuple[type, type], Callable[..., Tensor]] = {}


def register_kl(type_p: type, type_q: type) -> Callable[[F], F]:
    """A decorator that gives `kl_divergence` the function for two classes and their subclasses.

    Of several that fit, that of the nearest classes is called: nearest for p, then for q. Raises
    TypeError for classes that are no distributions.
    """
    for label, given in (("type_p", type_p), ("type_q", type_q)):
        if not (isinstance(given, type) and issubclass(given, Distribution)):
            told = getattr(given, "__name__", f"a {type(given).__name__}")
            raise TypeError(f"register_kl was given {told} as its {label}; wanted a subclass of "
                            "gt.distributions.Distribution")

    def register(function: F) -> F:
        _TABLE[type_p, type_q] = function
        return function

    return register


def kl_divergence(p: Distribution, q: Distribution) -> Tensor:
    """The Kullback-Leibler divergence of q from p, in nats: the mean of log(p / q) over p.

    Returns a tensor of the batch shape that both broadcast to. Raises NotImplementedError for
    classes without a formula: `register_kl` adds one.
    """
    for of_p in type(p).__mro__:
        for of_q in type(q).__mro__:
            if (found := _TABLE.get((of_p, of_q))) is not None:
                return found(p, q)
    raise NotImplementedError(f"kl_divergence was given {type(p).__name__} and {type(q).__name__}, "
                              "for which there is no formula; wanted classes of register_kl")


@register_kl(Normal, Normal)
def _normal(p: Normal, q: Normal) -> Tensor:
    ratio = p.scale / q.scale
    return 0.5 * (square(ratio) + square((p.loc - q.loc) / q.scale) - 1) - log(ratio)


@register_kl(Laplace, Laplace)
def _laplace(p: Laplace, q: Laplace) -> Tensor:
    away, ratio = abs(p.loc - q.loc), p.scale / q.scale
    return -log(ratio) + away / q.scale + ratio * exp(-away / p.scale) - 1


@register_kl(Exponential, Exponential)
def _exponential(p: Exponential, q: Exponential) -> Tensor:
    ratio = q.rate / p.rate
    return ratio - 1 - log(ratio)


@register_kl(Uniform, Uniform)
def _uniform(p: Uniform, q: Uniform) -> Tensor:
    found = log((q.high - q.low) / (p.high - p.low))
    return where((q.low > p.low) | (q.high < p.high), math.inf, found)


@register_kl(Bernoulli, Bernoulli)
def _bernoulli(p: Bernoulli, q: Bernoulli) -> Tensor:
    probs = p.probs
    yes = probs * (logaddexp(-q.logits, 0.0) - logaddexp(-p.logits, 0.0))
    no = (1 - probs) * (logaddexp(q.logits, 0.0) - logaddexp(p.logits, 0.0))
    yes = where((q.probs == 0) & (probs > 0), math.inf, yes)
    no = where((q.probs == 1) & (probs < 1), math.inf, no)
    return where(probs == 0, 0.0, yes) + where(probs == 1, 0.0, no)


@register_kl(Categorical, Categorical)
def _categorical(p: Categorical, q: Categorical) -> Tensor:
    away = p.probs * (p.logits - q.logits)
    away = where(q.probs == 0, math.inf, away)
    return _sum(where(p.probs == 0, 0.0, away), axis=-1)


@register_kl(Gamma, Gamma)
def _gamma(p: Gamma, q: Gamma) -> Tensor:
    c, d = p.concentration, q.concentration
    return (d * log(p.rate / q.rate) + gammaln(d) - gammaln(c) + (c - d) * digamma(c)
            + (q.rate - p.rate) * c / p.rate)


@register_kl(Beta, Beta)
def _beta(p: Beta, q: Beta) -> Tensor:
    a, b, c, d = p.concentration1, p.concentration0, q.concentration1, q.concentration0
    score = digamma(a + b)
    moved = (a - c) * (digamma(a) - score) + (b - d) * (digamma(b) - score)
    return moved + log_beta(c, d) - log_beta(a, b)


@register_kl(Dirichlet, Dirichlet)
def _dirichlet(p: Dirichlet, q: Dirichlet) -> Tensor:
    a, b = p.concentration, q.concentration
    score = digamma(a) - digamma(_sum(a, axis=-1, keepdims=True))
    return q.log_normalizer() - p.log_normalizer() + _sum((a - b) * score, axis=-1)


@register_kl(MultivariateNormal, MultivariateNormal)
def _multivariate(p: MultivariateNormal, q: MultivariateNormal) -> Tensor:
    if p.event_shape != q.event_shape:
        raise ValueError(f"kl_divergence was given vectors of {p.event_shape[0]} and of "
                         f"{q.event_shape[0]} elements; wanted the same")
    n = p.event_shape[0]
    away = q.loc - p.loc
    factors = [broadcast_to(x.scale_tril, (*away.shape, n)) for x in (p, q)]
    spread = _sum(square(solve_triangular(factors[1], factors[0], upper=False)), axis=(-2, -1))
    return 0.5 * (spread + squared_distance(factors[1], away) - n) + (
        log_determinant(factors[1]) - log_determinant(factors[0]))


@register_kl(Independent, Independent)
def _independent(p: Independent, q: Independent) -> Tensor:
    if p.reinterpreted_batch_ndims != q.reinterpreted_batch_ndims:
        raise NotImplementedError("kl_divergence was given Independent of "
                                  f"{p.reinterpreted_batch_ndims} and "
                                  f"{q.reinterpreted_batch_ndims} batch axes; wanted the same")
    return sum_of_last(kl_divergence(p.base_dist, q.base_dist), p.reinterpreted_batch_ndims)


@register_kl(TransformedDistribution, TransformedDistribution)
def _transformed(p: TransformedDistribution, q: TransformedDistribution) -> Tensor:
    if p.transforms != q.transforms or p.event_shape != q.event_shape:
        raise NotImplementedError("kl_divergence was given TransformedDistributions of other "
                                  "transforms; wanted the same Transform objects in both")
    found = kl_divergence(p.base_dist, q.base_dist)
    return sum_of_last(found, len(p.event_shape) - len(p.base_dist.event_shape))

"""Poisson and binomial draws: exact, by inversion for small means, else by rejection."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gtensor.engine.tape.samples import below, positive
from gtensor.ops.sampling.rejection import Bits, accepted, by_cases, sampler

_INVERTED = 10.0  # means below this are drawn by inversion
_LOG_FACTORIALS = np.cumsum(np.log(np.maximum(np.arange(10), 1)))


def _log_poisson(k: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """log(mean**k exp(-mean) / k!), without cancellation for large means (Loader, 2000)."""
    few = k < 10
    small = _LOG_FACTORIALS[np.where(few, np.maximum(k, 0), 0).astype(np.int64)]
    inverse = 1 / np.maximum(k, 1)
    square = inverse * inverse
    rest = inverse * (1 / 12 - square * (1 / 360 - square * (1 / 1260 - square * (
        1 / 1680 - square / 1188))))  # of Stirling's formula
    away = (mean - k) * inverse
    large = k * (np.log1p(away) - away) - rest + np.log(inverse / (2 * np.pi)) / 2
    return np.where(few, k * np.log(mean) - mean - small, large)


def _inverted(
    keys: np.ndarray, first: np.ndarray, ratio: Callable[..., np.ndarray], *parameters: np.ndarray
) -> np.ndarray:
    """Counts by inversion: P(0) is `first`, P(k) / P(k - 1) is ratio(k, *parameters)."""
    u = Bits(keys).uniform()
    values, left, k = np.zeros(keys.shape), np.arange(keys.size), 0.0
    share = first
    u = u - share
    while (above := (u > 0) & (share > 0)).any():
        left, u, share = left[above], u[above], share[above]
        parameters = tuple([p[above] for p in parameters])
        k += 1
        values[left] = k
        share = share * ratio(k, *parameters)
        u = u - share
    return values


def _poisson_attempt(bits: Bits, mean: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    b = 0.931 + 2.53 * np.sqrt(mean)
    a = -0.059 + 0.02483 * b
    u, v = bits.uniform() - 0.5, bits.uniform()
    us = 0.5 - np.abs(u)
    k = np.floor((2 * a / us + b) * u + mean + 0.43)
    inner = (us >= 0.07) & (v <= 0.9277 - 3.6224 / (b - 2))
    scale = v * (1.1239 + 1.1328 / (b - 3.4)) / (a / (us * us) + b)
    outer = (k >= 0) & ~((us < 0.013) & (v > us)) & (np.log(scale) <= _log_poisson(k, mean))
    return k, inner | outer


def _poisson(keys: np.ndarray, rate: np.ndarray) -> np.ndarray:
    return by_cases(keys, [rate], (
        ((rate >= 0) & (rate < _INVERTED), lambda keys, m: _inverted(
            keys, np.exp(-m), lambda k, m: m / k, m)),
        (rate == np.inf, lambda keys, m: m),
        (rate >= _INVERTED, lambda keys, m: accepted(Bits(keys), _poisson_attempt, m)),
    ))


poisson_op = sampler(
    "poisson_draw", _poisson, "rate",
    (lambda rng, shape: rng.uniform(0.5, 40.0, shape),),
    doc="Poisson distributed counts: by inversion, or PTRS (Hormann, \"The transformed rejection "
        "method for generating Poisson random variables\", 1993).")


def _binomial_attempt(
    bits: Bits, n: np.ndarray, p: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """For p of at most 1/2."""
    mean, rest = n * p, n * (1 - p)
    deviation = np.sqrt(mean * (1 - p))
    b = 1.15 + 2.53 * deviation
    a = -0.0873 + 0.0248 * b + 0.01 * p
    u, v = bits.uniform() - 0.5, bits.uniform()
    us = 0.5 - np.abs(u)
    k = np.floor((2 * a / us + b) * u + mean + 0.5)
    inner = (us >= 0.07) & (v <= 0.92 - 4.2 / b)
    inside = (k >= 0) & (k <= n)
    mode = np.floor((n + 1) * p)
    scale = v * (2.83 + 5.1 / b) * deviation / (a / (us * us) + b)
    found = np.where(inside, k, mode)
    share = (_log_poisson(found, mean) + _log_poisson(n - found, rest)) - (
        _log_poisson(mode, mean) + _log_poisson(n - mode, rest))
    return k, inner | (inside & (np.log(scale) <= share))


def _below_half(keys: np.ndarray, n: np.ndarray, p: np.ndarray) -> np.ndarray:
    small = n * p < _INVERTED
    return by_cases(keys, [n, p], (
        (small, lambda keys, n, p: _inverted(
            keys, np.exp(n * np.log1p(-p)), lambda k, n, odds: (n - (k - 1)) / k * odds,
            n, p / (1 - p))),
        (~small, lambda keys, n, p: accepted(Bits(keys), _binomial_attempt, n, p)),
    ))


def _binomial(keys: np.ndarray, n: np.ndarray, p: np.ndarray) -> np.ndarray:
    valid = (n >= 0) & (n < np.inf) & (n == np.floor(n)) & (p >= 0) & (p <= 1)
    return by_cases(keys, [n, p], (
        (valid & (p <= 0.5), _below_half),
        (valid, lambda keys, n, p: n - _below_half(keys, n, 1 - p)),
    ))


binomial_op = sampler(
    "binomial_draw", _binomial, "total_count probs", (
        lambda rng, shape: below(60)(rng, shape).astype(np.float64),
        lambda rng, shape: positive(rng, shape) / 2),
    doc="Binomially distributed counts: by inversion, or BTRS (Hormann, \"The generation of "
        "binomial random variates\", 1993).")

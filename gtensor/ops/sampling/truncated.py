"""Standard normal draws between two bounds, which may lie far out.

Source: Robert, "Simulation of truncated normal variables", 1995.
"""

from __future__ import annotations

import numpy as np

from gtensor.engine.tape.samples import positive
from gtensor.ops.sampling.rejection import Bits, accepted, by_cases, sampler


def _by_normal(
    bits: Bits, low: np.ndarray, high: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    x = bits.normal()
    return x, (x >= low) & (x <= high)


def _by_uniform(
    bits: Bits, low: np.ndarray, high: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Against the density at the bound next to 0, or at 0 itself."""
    x = low + (high - low) * bits.uniform()
    top = np.maximum(low, 0)
    return x, np.log(bits.uniform()) <= (top - x) * (top + x) / 2


def _by_exponential(
    bits: Bits, low: np.ndarray, high: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Of an interval above 0: an exponential tail, cut at the upper bound."""
    rate = low / 2 + np.hypot(low / 2, 1)
    share = -np.expm1(rate * (low - high))
    x = low - np.log1p(-share * bits.uniform()) / rate
    return x, (np.log(bits.uniform()) <= -(x - rate) ** 2 / 2) & (x <= high)


def _above(keys: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Of an interval whose middle is not below 0."""
    return by_cases(keys, [low, high], (
        (low == high, lambda keys, low, high: low),
        # the density falls over the interval by less than a factor of e
        ((high - low) * np.maximum(low + high, 0) / 2 + np.minimum(low, 0) ** 2 / 2 <= 1,
         lambda *given: accepted(Bits(given[0]), _by_uniform, *given[1:])),
        (low <= 0.5, lambda *given: accepted(Bits(given[0]), _by_normal, *given[1:])),
        (low > 0.5, lambda *given: accepted(Bits(given[0]), _by_exponential, *given[1:])),
    ))


def _truncated(keys: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    valid = (low <= high) & (low < np.inf) & (high > -np.inf)
    up = (low >= 0) | ((high > 0) & (-low <= high))
    return by_cases(keys, [low, high], (
        (valid & up, _above),
        (valid, lambda keys, low, high: -_above(keys, -high, -low)),
    ))


truncated_op = sampler(
    "truncated_draw", _truncated, "low high", (lambda rng, shape: positive(rng, shape) - 1.5,
                                               lambda rng, shape: positive(rng, shape) + 1),
    doc="Standard normal values between two bounds.")

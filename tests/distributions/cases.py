"""Distributions by name: the constructor's arguments, drawn in float64, and two sets of shapes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

RNG = np.random.default_rng(11)


def _positive(*shape: int) -> np.ndarray:
    return RNG.uniform(0.3, 3.0, shape)


def _real(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape)


def _covariance(*lead: int, n: int = 3) -> np.ndarray:
    root = RNG.standard_normal((*lead, n, n))
    return root @ root.swapaxes(-1, -2) + 0.5 * np.eye(n)


def _triangle(*lead: int) -> np.ndarray:
    return np.linalg.cholesky(_covariance(*lead))


Arguments = dict[str, np.ndarray]
CASES: dict[str, tuple[str, Callable[[], Arguments]]] = {
    "Normal": ("Normal", lambda: {"loc": _real(4, 1), "scale": _positive(3)}),
    "Laplace": ("Laplace", lambda: {"loc": _real(3), "scale": _positive(3)}),
    "Exponential": ("Exponential", lambda: {"rate": _positive(2, 3)}),
    "Uniform": ("Uniform", lambda: {"low": _real(3) - 4, "high": _real(3) + 4}),
    "Bernoulli of probs": ("Bernoulli", lambda: {"probs": RNG.uniform(0.05, 0.95, (2, 3))}),
    "Bernoulli of logits": ("Bernoulli", lambda: {"logits": _real(3) * 3}),
    "Categorical of probs": ("Categorical", lambda: {"probs": _positive(2, 3, 4)}),
    "Categorical of logits": ("Categorical", lambda: {"logits": _real(5)}),
    "Gamma": ("Gamma", lambda: {"concentration": _positive(2, 1), "rate": _positive(3)}),
    "Beta": ("Beta", lambda: {"concentration1": _positive(3), "concentration0": _positive(3)}),
    "Dirichlet": ("Dirichlet", lambda: {"concentration": _positive(2, 4)}),
    "MultivariateNormal of a covariance": ("MultivariateNormal", lambda: {
        "loc": _real(2, 3), "covariance_matrix": _covariance()}),
    "MultivariateNormal of a precision": ("MultivariateNormal", lambda: {
        "loc": _real(3), "precision_matrix": _covariance(2)}),
    "MultivariateNormal of a factor": ("MultivariateNormal", lambda: {
        "loc": _real(2, 3), "scale_tril": _triangle(2)}),
}

"""Distributions, with PyTorch's names and arguments: samples, densities, entropies, divergences.

    p = gt.distributions.Normal(mean, std)
    x = p.rsample((10,))                     # (10, *batch): gradients flow to mean and std
    loss = -p.log_prob(x).mean() + gt.distributions.kl_divergence(p, prior).sum()

Parameters are tensors or numbers, which broadcast. A value is (*sample_shape, *batch_shape,
*event_shape); `sample` and `rsample` take a Generator or a key of `gt.random`, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gtensor.distributions.continuous import Exponential, Laplace, Normal, Uniform
from gtensor.distributions.discrete import Bernoulli, Categorical
from gtensor.distributions.distribution import Distribution
from gtensor.distributions.divergence import kl_divergence, register_kl
from gtensor.distributions.gammas import Beta, Dirichlet, Gamma
from gtensor.distributions.multivariate import Independent, MultivariateNormal
from gtensor.distributions.transforms import (
    AffineTransform,
    ComposeTransform,
    ExpTransform,
    SigmoidTransform,
    TanhTransform,
    Transform,
    TransformedDistribution,
)
from gtensor.system.late_imports import late as _late
from gtensor.system.written_code import enter as _enter

if not TYPE_CHECKING:
    __getattr__, __dir__ = _late(__name__)

__all__ = [
    "AffineTransform", "Bernoulli", "Beta", "Categorical", "ComposeTransform", "Dirichlet",
    "Distribution", "ExpTransform", "Exponential", "Gamma", "Independent", "Laplace",
    "MultivariateNormal", "Normal", "SigmoidTransform", "TanhTransform", "Transform",
    "TransformedDistribution", "Uniform", "kl_divergence", "register_kl",
]

_enter(globals(), check=True)

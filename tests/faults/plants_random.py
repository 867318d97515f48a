"""Mutations of random numbers and their gradients; see `plants.py`."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

from gtensor import random
from gtensor.creation import generators
from gtensor.distributions import multivariate
from gtensor.ops.sampling import counts, gamma

from .plants import Context


def folded_as_split() -> Context:
    """the keys that `fold_in` makes are those of `split`"""
    return patch.object(generators, "_FOLDED", generators._SPLIT)


def proposals_all_accepted() -> Context:
    """every proposal of a gamma draw is accepted"""
    real = gamma._attempt

    def accepting(*given: Any) -> Any:
        values, good = real(*given)
        return values, good | (values == values)
    return patch.object(gamma, "_attempt", accepting)


def poisson_share_off() -> Context:
    """the logarithm of a Poisson share is 1 too large"""
    real = counts._log_poisson
    return patch.object(counts, "_log_poisson", lambda *given: real(*given) + 1)


def digamma_off() -> Context:
    """the digamma function in the slope of gamma draws is 1e-6 too large"""
    real = gamma._digamma
    return patch.object(gamma, "_digamma", lambda a: real(a) + 1e-6)


def events_not_added_up() -> Context:
    """the densities along the axes of an event are not added up, but averaged"""
    real = multivariate.sum_of_last
    return patch.object(multivariate, "sum_of_last", lambda x, count: (
        real(x, count) / (x.shape[-1] if count else 1)))


def draws_at_their_ends() -> Context:
    """draws of beta and Dirichlet distributions may be rounded to 0 and 1"""
    return patch.object(random, "_inside", lambda x: x)

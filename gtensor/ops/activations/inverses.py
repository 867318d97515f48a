"""Activations that can be inverted: the input, and the gradient, from the output alone.

Functions work on tiles of a compute dtype, with the caller's buffers. Their inputs lie inside the
activation's open range (`Inverse.inside`), where both the inverse and the gradient are finite.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING, NamedTuple

import ml_dtypes
import numpy as np

from gtensor.ops.activations.activation import THRESHOLD
from gtensor.ops.define.cpu_tiles import computed_in, masked
from gtensor.ops.define.formula import Formula, times
from gtensor.ops.define.path_builders import negative

if TYPE_CHECKING:
    from gtensor.backend.typing import Array, Path

Bounds = tuple[float, float]


class Inverse(NamedTuple):
    """The functions by which backward uses an activation z = act(y) from z alone.

    The parameter p is leaky_relu's slope, elu's alpha, softplus' beta. z and g are not written. The
    result is z, g or `out`. `work` is a buffer of the same shape; `out` of `gradient` may be g.
    """

    invert: Path  # (z, p, out, work) -> y
    gradient: Path  # (g, z, p, out, work) -> g * act'(y)
    inside: Callable[[np.dtype, float], Bounds]  # (dtype of storage, p) -> lowest and highest z


# -- bounds ----------------------------------------------------------------------------------------


def _above(value: float, dtype: np.dtype) -> float:
    """The smallest number of the dtype above `value`; above 0 the smallest normal number."""
    if value == 0:
        return _smallest(dtype)
    found = np.asarray(value, dtype)
    if float(found) <= value:
        found = np.nextafter(found, np.asarray(inf, dtype))
    return float(found)


def _smallest(dtype: np.dtype) -> float:
    """The smallest normal number: kernels may flush what is below it to 0."""
    return float(ml_dtypes.finfo(dtype).smallest_normal)


def _anything(dtype: np.dtype, p: float) -> Bounds:
    return -inf, inf


def _elu_inside(dtype: np.dtype, p: float) -> Bounds:
    alpha = float(computed_in(dtype).type(p))  # what z is divided by: it may be less than p
    return _above(-min(p, alpha), dtype), inf


def _tanh_inside(dtype: np.dtype, p: float) -> Bounds:
    lowest = _above(-1, dtype)
    return lowest, -lowest


def _sigmoid_inside(dtype: np.dtype, p: float) -> Bounds:
    return _above(0, dtype), -_above(-1, dtype)


def _softplus_inside(dtype: np.dtype, p: float) -> Bounds:
    """beta * z, whose logarithm is taken, is normal as well."""
    smallest = _smallest(computed_in(dtype)) / p if p < 1 else 0.0
    return max(_above(0, dtype), _above(smallest, dtype)), inf


# -- formulas, from which the device functions are made --------------------------------------------

_INVERSES: dict[str, Path] = {
    "leaky_relu": lambda ns, y, *, slope: ns.where(ns.greater(y, 0), y, y * (1 / slope)),
    # a quotient: times a reciprocal could be -1 already
    "elu": lambda ns, y, *, alpha: ns.where(ns.less_equal(y, 0), ns.log1p(y / alpha), y),
    "sigmoid": lambda ns, y: ns.log(y / (1 - y)),  # from 1/2 on 1 - y is exact
    # just above the threshold it is off by up to exp(-threshold) / factor
    "softplus": lambda ns, y, *, factor, threshold: ns.where(
        ns.greater(y * factor, threshold), y, ns.log(ns.expm1(y * factor)) / factor),
    "tanh": lambda ns, y: ns.atanh(y),
}
INVERSE_FORMULAS = {name: Formula(f"{name}_inverse", f) for name, f in _INVERSES.items()}
"""name -> the input from the output, which lies inside the open range; slope, alpha > 0."""

_SLOPES: dict[str, Path] = {
    "relu": lambda ns, y: ns.where(ns.less_equal(y, 0), 0, 1),
    "leaky_relu": lambda ns, y, *, slope: ns.where(ns.greater(y, 0), 1, slope),
    "elu": lambda ns, y, *, alpha: ns.where(ns.less_equal(y, 0), y + alpha, 1),
    "sigmoid": lambda ns, y: (1 - y) * y,
    # sigmoid(factor x) = 1 - exp(-factor y). Where x is just below the threshold y is above it:
    # there it is off by up to exp(-threshold).
    "softplus": lambda ns, y, *, factor, threshold: ns.where(
        ns.greater(y * factor, threshold), 1, -ns.expm1(-(y * factor))),
    "tanh": lambda ns, y: 1 - y * y,
}
BY_OUTPUT = {name: times(f"{name}_by_output", Formula(name, f)) for name, f in _SLOPES.items()}
"""name -> g times the derivative, from the output."""


# -- inverses and gradients ------------------------------------------------------------------------


# np.maximum of an array and a number takes the time of three sums, which stand for it in `_step`.


def _step(z: Array, low: float, work: Array) -> Array:
    """Exactly 1 where z > 0, else `low` within rounding, in `work`."""
    low = work.dtype.type(low)
    if low <= 1:
        np.greater(z, 0, out=work)
        work *= 1 - low
        work += low
    else:
        np.less_equal(z, 0, out=work)
        work *= low - 1
        work += 1
    return work


def _leaky_relu(z: Array, slope: float, out: Array, work: Array) -> Array:
    further = np.minimum if slope <= 1 else np.maximum
    return further(z, np.divide(z, slope, out=out), out=out)


def _leaky_relu_gradient(g: Array, z: Array, slope: float, out: Array, work: Array) -> Array:
    return np.multiply(g, _step(z, slope, work), out=out)


def _elu(z: Array, alpha: float, out: Array, work: Array) -> Array:
    """log1p(z / alpha) below 0, z above: one of the two terms is 0."""
    np.minimum(z, 0, out=out)
    np.subtract(z, out, out=work)
    out /= alpha
    np.log1p(out, out=out)
    out += work
    return out


def _elu_gradient(g: Array, z: Array, alpha: float, out: Array, work: Array) -> Array:
    """The derivative is z + alpha below 0, an exact sum near the bound; 1 above."""
    if alpha == 1:
        np.minimum(z, 0, out=work)
        work += 1
        return np.multiply(g, work, out=out)
    np.multiply(g, _step(z, alpha, work), out=out)
    np.minimum(z, 0, out=work)
    work += alpha
    work /= alpha
    out *= work
    return out


def _tanh(z: Array, p: float, out: Array, work: Array) -> Array:
    return np.arctanh(z, out=out)


def _tanh_gradient(g: Array, z: Array, p: float, out: Array, work: Array) -> Array:
    """g (1 - z) (1 + z): 1 - z is exact near 1, where 1 - z * z is not, and likewise at -1."""
    np.subtract(1, z, out=work)
    np.multiply(g, work, out=out)
    np.add(1, z, out=work)
    out *= work
    return out


def _sigmoid(z: Array, p: float, out: Array, work: Array) -> Array:
    negative(z, work)
    np.log1p(work, out=work)
    np.log(z, out=out)
    out -= work
    return out


def _sigmoid_gradient(g: Array, z: Array, p: float, out: Array, work: Array) -> Array:
    np.subtract(1, z, out=work)
    work *= z
    return np.multiply(g, work, out=out)


def _softplus(z: Array, beta: float, out: Array, work: Array) -> Array:
    """t + log(1 - exp(-t)) with t = beta * z, over beta; t alone above the threshold.

    In float32 the logarithm is lost in the sum long before the threshold.
    """
    np.multiply(z, beta, out=out)
    negative(out, work)
    np.expm1(work, out=work)
    negative(work, work)
    np.log(work, out=work)
    if work.dtype == np.float64:
        masked(work, out <= THRESHOLD, out=work)
    out += work
    out /= beta
    return out


def _softplus_gradient(g: Array, z: Array, beta: float, out: Array, work: Array) -> Array:
    """g (1 - exp(-beta z)), and g above the threshold, which float32 makes of that anyway."""
    np.multiply(z, -beta, out=work)
    if work.dtype == np.float64:
        np.copyto(work, -inf, where=work < -THRESHOLD)
    np.expm1(work, out=work)
    negative(work, work)
    return np.multiply(g, work, out=out)


def _itself(z: Array, p: float, out: Array, work: Array) -> Array:
    return z


def _unchanged(g: Array, z: Array, p: float, out: Array, work: Array) -> Array:
    return g


INVERSES: dict[str, Inverse] = {
    "identity": Inverse(_itself, _unchanged, _anything),
    "leaky_relu": Inverse(_leaky_relu, _leaky_relu_gradient, _anything),
    "elu": Inverse(_elu, _elu_gradient, _elu_inside),
    "tanh": Inverse(_tanh, _tanh_gradient, _tanh_inside),
    "sigmoid": Inverse(_sigmoid, _sigmoid_gradient, _sigmoid_inside),
    "softplus": Inverse(_softplus, _softplus_gradient, _softplus_inside),
}

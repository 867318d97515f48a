"""Gamma draws, and the derivative of their logarithms along quantiles."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from gtensor.backend import host
from gtensor.backend.kernels import elementwise
from gtensor.engine.tape.op import Op, op
from gtensor.engine.tape.samples import Sample, normal, positive
from gtensor.ops.define.batching import broadcasting
from gtensor.ops.define.cpu_tiles import whole_tiles
from gtensor.ops.define.path_builders import promoted
from gtensor.ops.define.pointwise import partial, pointwise
from gtensor.ops.sampling.rejection import Bits, accepted, by_cases, sampler

if TYPE_CHECKING:
    from gtensor.backend.typing import Array


def _attempt(bits: Bits, d: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The logarithm of a gamma draw over d, for a concentration of d + 1/3."""
    x = bits.normal()
    t = x / (3 * np.sqrt(d))
    scaled = np.log1p(t)  # NaN, which is not accepted, where the proposal is negative
    return 3 * scaled, np.log(bits.uniform()) < x * x / 2 + 3 * d * (
        scaled - t * (1 + t * (1 + t / 3)))


def _draw(keys: np.ndarray, concentration: np.ndarray, log: bool) -> np.ndarray:
    bits = Bits(keys)
    small = concentration < 1
    share = np.where(small, np.log(bits.uniform()) / concentration, 0)
    d = concentration + small - 1 / 3
    logarithm = accepted(bits, _attempt, d)
    if log:
        return logarithm + (np.log(d) + share)
    return d * np.exp(logarithm + share)


def _gamma(keys: np.ndarray, concentration: np.ndarray, log: bool) -> np.ndarray:
    return by_cases(keys, [concentration], (
        (concentration == 0, lambda keys, c: np.where(log, -np.inf, c)),
        (concentration == np.inf, lambda keys, c: c),
        (concentration > 0, lambda keys, c: _draw(keys, c, log)),
    ))


gamma_op = sampler(
    "gamma_draw", _gamma, "concentration", (positive,), params=({"log": False}, {"log": True}),
    doc="Gamma distributed values of scale 1, or their logarithms (Marsaglia and Tsang, \"A simple "
        "method for generating gamma variables\", 2000). Parameters: log.")


# -- derivatives along quantiles -------------------------------------------------------------------
# A draw moves with its concentration a so that its distribution function keeps its value (Figurnov,
# Mohamed, Mnih, "Implicit reparameterization gradients", 2018). Of l = log(x) the derivative is, as
# an integral of the score over the values below x, or above it, with psi the digamma function,
#     integral from 0 of exp(x (1 - exp(-u)) - a u) (u + psi(a) - l) du          (below)
#     integral from 0 of exp(a u - x (exp(u) - 1)) (u + l - psi(a)) du           (above)
# whose integrand has one sign on the side that is taken, but next to 0: nothing is cancelled.
# Gauss and Legendre's rule of some nodes is exact to the dtype's digits up to where exp(-40) is
# left, for float32 exp(-20). Of small draws the lower integral is a series.

_NODES = {8: 32, 4: 16}  # by the bytes of the dtype
_LEFT = {8: 40.0, 4: 20.0}
_FEW = 4.0  # draws up to this take the series, of so many terms
_TERMS = 36


@cache
def _rule(nodes: int) -> tuple[tuple[float, float], ...]:
    """Places in 0 to 1 and weights."""
    places, weights = np.polynomial.legendre.leggauss(nodes)
    return tuple(zip(((places + 1) / 2).tolist(), (weights / 2).tolist(), strict=True))


def _digamma(a: np.ndarray) -> np.ndarray:
    """Of positive numbers."""
    back = np.zeros_like(a)
    for k in range(10):
        back += 1 / (a + k)
    y = 1 / (a + 10)
    s = y * y
    return -np.log(y) - back - y / 2 - s * (1 / 12 - s * (1 / 120 - s * (1 / 252 - s * (
        1 / 240 - s / 132))))


def _series(a: np.ndarray, x: np.ndarray, score: np.ndarray) -> np.ndarray:
    """`score` is l - psi(a)."""
    term, total, harmonic, rest = np.ones_like(a), np.ones_like(a), np.zeros_like(a), 0 * a
    for n in range(1, _TERMS):
        term = term * x / (a + n)
        harmonic = harmonic + 1 / (a + n)
        total = total + term
        rest = rest + term * harmonic
    return (rest - total * (score - 1 / a)) / a


def _below(a: np.ndarray, x: np.ndarray, score: np.ndarray, *, itemsize: int) -> np.ndarray:
    left = _LEFT[itemsize]
    end = (left + np.sqrt(left * left + 8 * a * left)) / (2 * a)
    for _ in range(3):  # of Newton's steps, which end above
        end = end - (a * end + x * np.expm1(-end) - left) / (a - x * np.exp(-end))
    total = np.zeros_like(a)
    for place, weight in _rule(_NODES[itemsize]):
        u = end * place
        total += weight * np.exp(-(a * u + x * np.expm1(-u))) * (u - score)
    return total * end


def _above(a: np.ndarray, x: np.ndarray, score: np.ndarray, *, itemsize: int) -> np.ndarray:
    left = _LEFT[itemsize]
    end = np.minimum(np.sqrt(2 * left / x), np.maximum(1.3, np.log1p(2 * left / x)))
    for _ in range(3):
        end = end - (x * np.expm1(end) - a * end - left) / (x * np.exp(end) - a)
    total = np.zeros_like(a)
    for place, weight in _rule(_NODES[itemsize]):
        u = end * place
        total += weight * np.exp(a * u - x * np.expm1(u)) * (u + score)
    return total * end


def _slope(a: np.ndarray, logarithm: np.ndarray, *, itemsize: int) -> np.ndarray:
    x, score = np.exp(logarithm), logarithm - _digamma(a)
    valid = (a > 0) & (a < np.inf)
    return by_cases(a, [a, x, score], (
        (valid & (x <= _FEW), lambda keys, *given: _series(*given)),
        (valid & (x <= a), lambda keys, *given: _below(*given, itemsize=itemsize)),
        (valid & (x < np.inf), lambda keys, *given: _above(*given, itemsize=itemsize)),
    ))


def _slope_cpu(concentration: Array, logarithm: Array, *, out: Array | None = None) -> Array:
    a, logarithm = np.broadcast_arrays(concentration, logarithm)
    if out is None:
        out = host().empty(a.shape, np.result_type(a.dtype, logarithm.dtype), "gamma_slope")
    with np.errstate(all="ignore"):
        for tile in whole_tiles(a.shape):
            parts = [y[tile].astype(np.float64) for y in (a, logarithm)]
            found = _slope(*[y.reshape(-1) for y in parts], itemsize=max(4, out.itemsize))
            out[tile] = found.reshape(parts[0].shape)
    return out


_SLOPE = elementwise(
    "T a, T l", "T y", "y = T(gt_gamma_slope<(sizeof(T) > 4)>(double(gt_up(a)), double(gt_up(l))))",
    "gamma_slope.cuh", "gt_gamma_slope")


def _slope_gpu(concentration: Array, logarithm: Array, *, out: Array | None = None) -> Array:
    made: Array = _SLOPE(*promoted(concentration, logarithm), out=out)
    return made


op(
    "gamma_slope", inputs="concentration logarithm", cpu=_slope_cpu, gpu=_slope_gpu, backward=None,
    tangent=None, batch=broadcasting,
    samples=[Sample(shapes, (positive, normal)) for shapes in (
        ((9,), (9,)), ((2, 1, 3), (4, 1)), ((0, 3), (3,)), ((), ()))],
    doc="The derivative of the logarithm of a gamma draw by its concentration, at a fixed value of "
        "the distribution function.")


def _same(concentration: Array, draws: Array, *, out: Array | None = None) -> Array:
    if out is None:
        return draws.copy()
    out[...] = draws
    return out


def _path(name: str, times: Any) -> Op:
    """Draws, as a function of their concentrations: outside of the registry, because differences of
    its values are not its derivative."""
    rules = pointwise(partial("concentration out", times), None)
    backward, tangent, saves = rules.derivative(("concentration", "draws"))
    made = Op(name, inputs="concentration draws", cpu=_same, gpu=_same, backward=backward,
              tangent=tangent, saves=saves, samples=None, owns=True, batch=broadcasting)
    rules.bind(made)
    return made


log_gamma_path = _path("log_gamma_path", lambda ns, g, a, draws, out: ns.multiply(
    g, ns.gamma_slope(a, draws), out=out))
gamma_path = _path("gamma_path", lambda ns, g, a, draws, out: ns.multiply(
    g, ns.multiply(draws, ns.gamma_slope(a, ns.log(draws))), out=out))

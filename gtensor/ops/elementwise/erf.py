"""The error function, and the NumPy side of the functions that NumPy lacks.

Formulas of fused ops call functions of a namespace. On raw tiles that namespace is NumPy, which has
no erf and no sigmoid, and a slow where; `extended` passes a namespace with all of them.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from gtensor.backend.kernels import elementwise
from gtensor.engine.op import op
from gtensor.engine.samples import alike, unary
from gtensor.ops.build.cpu_tiles import select
from gtensor.ops.build.fused import fused
from gtensor.ops.build.path_builders import negative, tiled
from gtensor.ops.build.pointwise import partial, pointwise

if TYPE_CHECKING:
    from gtensor.backend.typing import Array, Path, Scalar
    from gtensor.engine.typing import Namespace

__all__: list[str] = []  # erf is public in gtensor.nn.functional

_TWO_OVER_ROOT_PI = 1.1283791670955126

# W. J. Cody, "Rational Chebyshev approximations for the error function", Math. Comp. 23 (1969),
# 631-637; coefficients as in his CALERF. Lowest power first. erf(x) = x P(x^2) / Q(x^2) for
# |x| <= 0.5, and erfc(x) = exp(-x^2) P(x) / Q(x) above; beyond 4, where that was not fitted,
# erfc < 2e-8 is off by less than erf(x) can show.
_CODY_SMALL = (
    (3.20937758913846947e03, 3.77485237685302021e02, 1.13864154151050156e02, 3.16112374387056560e00,
     1.85777706184603153e-01),
    (2.84423683343917062e03, 1.28261652607737228e03, 2.44024637934444173e02, 2.36012909523441209e01,
     1.0))
_CODY_LARGE = (
    (1.23033935479799725e03, 2.05107837782607147e03, 1.71204761263407058e03, 8.81952221241769090e02,
     2.98635138197400131e02, 6.61191906371416295e01, 8.88314979438837594e00,
     5.64188496988670089e-01, 2.15311535474403846e-08),
    (1.23033935480374942e03, 3.43936767414372164e03, 4.36261909014324716e03, 3.29079923573345963e03,
     1.62138957456669019e03, 5.37181101862009858e02, 1.17693950891312499e02, 1.57449261107098347e01,
     1.0))

# Single precision: erf(x) = tanh(x P(x^2)), P fitted for this file on |x| <= 4 (least squares,
# reweighted towards the largest error). tanh damps the polynomial's error, so degree 7 is enough,
# and one formula serves all x: no branch, no exponential. Lowest power first.
_SINGLE = (1.12837924718392, 0.10276986414354462, -0.00019528820080235072, -0.0006148382080810998,
           8.45965684426504e-05, -4.794601732465962e-06, 2.7575719685396113e-08,
           5.421617099774009e-09)
_SINGLE_END = 16.0  # x^2 from which on x P is clipped to a line: tanh of it rounds to 1


def _polynomial(x: np.ndarray, coefficients: Sequence[float]) -> np.ndarray:
    """Horner's rule, lowest power first, in one buffer."""
    value = x * coefficients[-1]
    for c in coefficients[-2:0:-1]:
        value += c
        value *= x
    value += coefficients[0]
    return value


def erf_values(x: Array) -> np.ndarray:
    """erf of a tile of float32 (within 3.5 units in the last place) or float64 (within 3.5)."""
    return _erf_single(x) if x.dtype == np.float32 else _erf_double(x)


def _erf_single(x: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        square = np.atleast_1d(x * x)
    np.minimum(square, _SINGLE_END, out=square)
    value = _polynomial(square, _SINGLE)
    value *= x
    return np.tanh(value, out=value).reshape(x.shape)


def _erf_double(x: np.ndarray) -> np.ndarray:
    shape, x = x.shape, np.atleast_1d(x)
    size = np.abs(x)
    edge, end = 0.5, 6.0
    is_small = size < edge
    square = np.minimum(size, edge)
    square *= square
    large = np.clip(size, edge, end, out=size)  # erf(end) rounds to 1; NaN stays NaN
    inner = _polynomial(square, _CODY_SMALL[0])
    inner /= _polynomial(square, _CODY_SMALL[1])
    tail = _polynomial(large, _CODY_LARGE[0])
    tail /= _polynomial(large, _CODY_LARGE[1])
    np.multiply(large, large, out=large)
    tail *= np.exp(negative(large, large), out=large)
    inner *= np.clip(x, -edge, edge, out=square)  # no infinity where it is not taken
    np.copysign(np.subtract(1, tail, out=tail), x, out=tail)
    return select(is_small, inner, tail).reshape(shape)


def sigmoid_values(x: Array) -> Array:
    """1 / (1 + exp(-x)) of a tile; where exp overflows to infinity that is 0."""
    value = np.negative(np.atleast_1d(x))
    with np.errstate(over="ignore"):
        np.exp(value, out=value)
    value += 1
    return np.divide(1, value, out=value).reshape(np.shape(x))


tile_functions = SimpleNamespace(
    erf=erf_values, sigmoid=sigmoid_values, where=select,
    **{name: getattr(np, name) for name in (
        "abs", "cos", "divide", "equal", "exp", "expm1", "greater", "greater_equal", "less",
        "less_equal", "log", "log1p", "maximum", "minimum", "multiply", "negative", "not_equal",
        "sign", "sin", "sqrt", "square", "subtract", "tanh")})
"""NumPy's functions by the names of ops, with those that NumPy lacks."""


def extended(formula: Path) -> Path:
    """The formula, given `tile_functions` where it would be given NumPy."""

    @functools.wraps(formula)
    def called(ns: Namespace, *inputs: Array | Scalar, **params: Any) -> Array:
        return formula(tile_functions if ns is np else ns, *inputs, **params)

    return called


erf_grad = fused(
    "erf_grad", lambda ns, g, x: g * (_TWO_OVER_ROOT_PI * ns.exp(-(x * x))),
    gpu=elementwise("T g, T x", "T dx",
                    "dx = gt_up(g) * (gt_float<T>(1.1283791670955126) * exp(-gt_up(x) * gt_up(x)))",
                    "number.cuh", "gt_erf_grad"),
    samples=alike(2), reference=lambda torch, g, x: g * _TWO_OVER_ROOT_PI * torch.exp(-x * x),
    doc="The gradient of erf(x).",
)

erf = op(
    "erf", inputs="x", cpu=tiled("erf", lambda ns, x: erf_values(x)), floating=True,
    gpu=elementwise("T x", "T y", "y = erf(gt_up(x))", "number.cuh", "gt_erf"),
    backward=pointwise(partial("x", lambda ns, g, x, out: ns.erf_grad(g, x, out=out))),
    samples=unary(), reference=lambda torch, x: torch.erf(x),
    doc="The error function, elementwise: 2 / sqrt(pi) times the integral of exp(-t^2), 0 to x.",
)

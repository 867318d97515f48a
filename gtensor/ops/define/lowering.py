"""Formulas for a dtype of the CPU: by primitives that have fast loops there, and few of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gtensor.ops.define.formula import Node, Trace, evaluate_all, in_order, special_rule
from gtensor.ops.define.primitives import DENSITY_AT_0, ROOT_HALF

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

# Single precision, lowest power first; the polynomials were fitted for this file (least squares,
# reweighted towards the largest error).
# erf(x) = tanh(x P(x^2)) for |x| <= 4: tanh damps the polynomial's error, so degree 7 is enough,
# and one formula serves all x.
_ERF = (1.12837924718392, 0.10276986414354462, -0.00019528820080235072, -0.0006148382080810998,
        8.45965684426504e-05, -4.794601732465962e-06, 2.7575719685396113e-08,
        5.421617099774009e-09)
_ERF_END = 16.0  # x^2 from which on x P is clipped to a line: tanh of it rounds to 1
# log1p(x) = s P(s^2) with s = x / (2 + x), for x from 0 to 1.
_ARTANH = (2.0000000079219986, 0.6666631466843957, 0.40024910789791673, 0.2796059582480056,
           0.2817836600155316)
# The normal distribution function is 1 / (1 + exp(x P(x^2))): to 7e-8, and from there on, where
# the leading coefficient keeps the exponent falling, below that.
_CDF = (-1.5957684323174453, -0.07266856685033715, 6.625987330945041e-05, 0.0001104803485021645,
        -7.938223061765542e-06, 2.6689307069602264e-07, -3.6112384887987403e-09)
# The derivative of x times it is 1/2 + x P(x^2) / Q(x^2), to 2e-7 with x clipped.
_SLOPE = (
    (89125.23245728601, -3462.289652761215, 1589.550495982107, 2.147036922298806,
     4.0163412132073955, 0.021550504997743716),
    (111701.80177142502, 32895.51896815228, 4577.564452374487, 393.5294105101043,
     21.45083173068162, 1.0))
_SLOPE_END = 5.89  # where it is 1 or 0 exactly, contracted or not: off by 7e-8, as it is beyond


def _polynomial(x: Node, coefficients: Sequence[float]) -> Any:
    """Horner's rule, lowest power first."""
    value: Any = coefficients[-1]
    for c in coefficients[-2::-1]:
        value = value * x + c
    return value


def _sigmoid(ns: Trace, x: Node) -> Node:
    return 1 / (1 + ns.exp(-x))  # exp may overflow to infinity, which gives 0


def _expm1_single(ns: Trace, x: Node) -> Node | None:
    """2 t / (1 - t) with t = tanh(x / 2), where it cannot cancel: NumPy's own is slow."""
    if not _not_positive(x):
        return None
    t = ns.tanh(0.5 * x)
    return 2 * t / (1 - t)


def _log1p_single(ns: Trace, x: Node) -> Node | None:
    """2 artanh(s) with s = x / (2 + x), for x from 0 to 1: NumPy's own is slow."""
    if not (x.op == "exp" and _not_positive(x.args[0])):
        return None
    s = x / (2 + x)
    return s * _polynomial(s * s, _ARTANH)


def _not_positive(x: Node) -> bool:
    if x.op == "minimum":
        return any(a.op == "constant" and a.args[0] <= 0 for a in x.args)
    return x.op == "negative" and x.args[0].op in ("abs", "square")


def _erf_single(ns: Trace, x: Node) -> Node:
    return ns.tanh(_polynomial(ns.minimum(x * x, _ERF_END), _ERF) * x)


def _cdf_single(ns: Trace, x: Node) -> Node:
    return 1 / (1 + ns.exp(_polynomial(x * x, _CDF) * x))


def _slope_single(ns: Trace, x: Node) -> Node:
    x = ns.maximum(ns.minimum(x, _SLOPE_END), -_SLOPE_END)
    square = x * x
    return _polynomial(square, _SLOPE[0]) / _polynomial(square, _SLOPE[1]) * x + 0.5


def _erf_double(ns: Trace, x: Node) -> Node:
    edge, end = 0.5, 6.0
    size = ns.abs(x)
    inner = ns.maximum(ns.minimum(x, edge), -edge)  # no infinity where it is not taken
    square = inner * inner
    small = inner * (_polynomial(square, _CODY_SMALL[0]) / _polynomial(square, _CODY_SMALL[1]))
    outer = ns.maximum(ns.minimum(size, end), edge)  # erf(end) rounds to 1
    tail = _polynomial(outer, _CODY_LARGE[0]) / _polynomial(outer, _CODY_LARGE[1])
    large = ns.copysign(1 - tail * ns.exp(-(outer * outer)), x)
    return ns.where(ns.less(size, edge), small, large)


def _cdf_double(ns: Trace, x: Node) -> Node:
    return 0.5 * (1 + ns.erf(ROOT_HALF * x))


def _slope_double(ns: Trace, x: Node) -> Node:
    return ns.normal_cdf(x) + x * (DENSITY_AT_0 * ns.exp(-0.5 * (x * x)))


_DOUBLE: dict[str, Callable[..., Node | None]] = {
    "sigmoid": _sigmoid, "erf": _erf_double, "normal_cdf": _cdf_double,
    "normal_slope": _slope_double,
}
_SINGLE = _DOUBLE | {
    "expm1": _expm1_single, "log1p": _log1p_single, "erf": _erf_single,
    "normal_cdf": _cdf_single, "normal_slope": _slope_single,
}


class _Lowering(Trace):
    """The namespace in which a formula is evaluated to be lowered for a dtype."""

    def __init__(self, dtype: np.dtype) -> None:
        super().__init__()
        self._rules = _SINGLE if dtype == np.float32 else _DOUBLE

    def call(self, op: str, *given: Any) -> Node:
        rule = self._rules.get(op) or special_rule(op)
        made = None if rule is None else rule(self, *given)
        return super().call(op, *given) if made is None else made


def lowered(roots: tuple[Node, ...], dtype: np.dtype) -> tuple[Node, ...]:
    trace = _Lowering(dtype)
    made = evaluate_all(roots, trace, {n.args[0]: trace.leaf(n.op, n.args[0])
                                       for n in in_order(*roots) if n.op in ("input", "param")})
    return tuple([m if isinstance(m, Node) else trace.leaf("constant", m) for m in made])


def uniform_operands(*roots: Node) -> list[Node]:
    """What is the same for all elements, depends on parameters and is an operand of what varies."""
    return list(dict.fromkeys(
        a for n in in_order(*roots) if n.children and not n.uniform
        for a in n.args if a.uniform and a.op != "constant"))

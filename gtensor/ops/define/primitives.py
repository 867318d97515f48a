"""The primitives of formulas: per function its NumPy name, its CUDA text and its derivatives.

A rule is linear in d, the change of one argument: `rule(ns, d, y, *arguments)` is the change of the
value y. Kinks (of abs, maximum, minimum with a number) take the slope from below, so that two kinks
of one formula that cancel do so in its derivative. A rule of None says that the derivative is 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

Rule = Callable[..., Any]


class Primitive(NamedTuple):
    """One elementwise function.

    Attributes:
        arity: its number of arguments.
        cuda: its text in CUDA C++ for arguments {0}, {1}, {2} of the compute type F. Without one it
            is a formula of others, of `special_functions`, on both devices.
        rules: one per argument.
        numpy: NumPy's name, if that differs.
        number: the function of Python numbers, with which constants are folded.
        boolean: whether its values are conditions.
        conditions: the arguments that are conditions.
        rank: how tight its CUDA text binds (see `formula_cuda`).
    """

    arity: int
    cuda: str
    rules: tuple[Rule | None, ...]
    numpy: str = ""
    number: Callable[..., float] | None = None
    boolean: bool = False
    conditions: tuple[int, ...] = ()
    rank: int = 9

    def takes_boolean(self, k: int) -> bool:
        return k in self.conditions


def _larger(ns: Any, d: Any, y: Any, a: Any, b: Any) -> Any:
    return _kept(ns, d, ns.less_equal(a, b) if b.uniform else ns.less(a, b), a, b)


def _smaller(ns: Any, d: Any, y: Any, a: Any, b: Any) -> Any:
    return _kept(ns, d, ns.greater(a, b), a, b)


def _kept(ns: Any, d: Any, other: Any, a: Any, b: Any) -> Any:
    """d where a was selected; half of it at a tie of two values that vary. NaN counts as a."""
    mine = d if a.uniform or b.uniform else ns.where(ns.equal(a, b), 0.5 * d, d)
    return ns.where(other, 0.0, mine)


def _swapped(rule: Rule) -> Rule:
    return lambda ns, d, y, a, b: rule(ns, d, y, b, a)


def _function(name: str, rule: Rule | None, numpy: str = "", cuda: str = "",
              number: Callable[..., float] | None = None) -> Primitive:
    return Primitive(1, f"{cuda or name}({{0}})", (rule,), numpy, number)


def by_smooth(ns: Any, d: Any, y: Any, *arguments: Any) -> Any:
    """In the place of a rule: the derivative is that of a formula, `special_functions.SMOOTH`."""
    raise NotImplementedError


def _special(*rules: Rule | None) -> Primitive:
    return Primitive(len(rules), "", rules)


def _comparison(sign: str) -> Primitive:
    return Primitive(2, f"{{0}} {sign} {{1}}", (None, None), boolean=True, rank=3)


def _one_minus_square(x: Any) -> Any:
    return (1 - x) * (1 + x)  # exact near 1 and -1


TWO_OVER_ROOT_PI = 1.1283791670955126
ROOT_HALF = 0.7071067811865476  # 1 / sqrt(2)
DENSITY_AT_0 = 0.3989422804014327  # 1 / sqrt(2 pi)

PRIMITIVES: dict[str, Primitive] = {
    "add": Primitive(2, "{0} + {1}", (lambda ns, d, y, a, b: d,) * 2,
                     number=lambda a, b: a + b, rank=4),
    "subtract": Primitive(
        2, "{0} - {1}", (lambda ns, d, y, a, b: d, lambda ns, d, y, a, b: -d),
        number=lambda a, b: a - b, rank=4),
    "multiply": Primitive(
        2, "{0} * {1}", (lambda ns, d, y, a, b: d * b, lambda ns, d, y, a, b: d * a),
        number=lambda a, b: a * b, rank=5),
    "divide": Primitive(
        2, "{0} / {1}", (lambda ns, d, y, a, b: d / b, lambda ns, d, y, a, b: -(d * (y / b))),
        number=lambda a, b: a / b if b else math.copysign(math.inf, a) if a else math.nan, rank=5),
    "negative": Primitive(1, "-{0}", (lambda ns, d, y, x: -d,), number=lambda a: -a, rank=6),
    "abs": _function("abs", lambda ns, d, y, x: ns.where(ns.less_equal(x, 0), -d, d), "absolute",
                     "fabs", abs),
    "square": Primitive(1, "{0} * {0}", (lambda ns, d, y, x: d * (2 * x),),
                        number=lambda a: a * a, rank=5),
    "sqrt": _function("sqrt", lambda ns, d, y, x: 0.5 * d / y, number=math.sqrt),
    "reciprocal": Primitive(1, "F(1) / {0}", (lambda ns, d, y, x: -(d * (y * y)),), rank=5),
    "exp": _function("exp", lambda ns, d, y, x: d * y),
    "expm1": _function("expm1", lambda ns, d, y, x: d * ns.exp(x)),  # y + 1 would lose digits
    "log": _function("log", lambda ns, d, y, x: d / x),
    "log1p": _function("log1p", lambda ns, d, y, x: d / (x + 1)),
    "sin": _function("sin", lambda ns, d, y, x: d * ns.cos(x)),
    "cos": _function("cos", lambda ns, d, y, x: -(d * ns.sin(x))),
    "tan": _function("tan", lambda ns, d, y, x: d * (1 + y * y)),
    "asin": _function("asin", lambda ns, d, y, x: d / ns.sqrt(_one_minus_square(x)), "arcsin"),
    "acos": _function("acos", lambda ns, d, y, x: -(d / ns.sqrt(_one_minus_square(x))), "arccos"),
    "atan": _function("atan", lambda ns, d, y, x: d / (1 + x * x), "arctan"),
    "sinh": _function("sinh", lambda ns, d, y, x: d * ns.cosh(x)),
    "cosh": _function("cosh", lambda ns, d, y, x: d * ns.sinh(x)),
    "tanh": _function("tanh", lambda ns, d, y, x: d * (1 - y * y)),
    "asinh": _function("asinh", lambda ns, d, y, x: d / ns.sqrt(1 + x * x), "arcsinh"),
    "acosh": _function("acosh", lambda ns, d, y, x: d / (ns.sqrt(x - 1) * ns.sqrt(x + 1)),
                       "arccosh"),
    "atanh": _function("atanh", lambda ns, d, y, x: d / _one_minus_square(x), "arctanh"),
    "sigmoid": Primitive(1, "F(1) / (F(1) + exp(-{0}))", (lambda ns, d, y, x: d * (y * (1 - y)),),
                         rank=5),
    "erf": _function("erf", lambda ns, d, y, x: d * (TWO_OVER_ROOT_PI * ns.exp(-(x * x)))),
    "normal_cdf": Primitive(
        1, f"F(0.5) * (F(1) + erf({{0}} * F({ROOT_HALF})))",
        (lambda ns, d, y, x: d * (DENSITY_AT_0 * ns.exp(-0.5 * (x * x))),), rank=5),
    "normal_slope": Primitive(  # of x * normal_cdf(x)
        1, f"F(0.5) * (F(1) + erf({{0}} * F({ROOT_HALF})))"
           f" + {{0}} * (F({DENSITY_AT_0}) * exp(F(-0.5) * {{0}} * {{0}}))",
        (lambda ns, d, y, x: d * ((2 - x * x) * (DENSITY_AT_0 * ns.exp(-0.5 * (x * x)))),), rank=4),
    "sign": Primitive(1, "{0} > F(0) ? F(1) : {0} < F(0) ? F(-1) : {0}", (None,), rank=1),
    "floor": _function("floor", None),
    "copysign": Primitive(2, "copysign({0}, {1})", (
        lambda ns, d, y, a, b: d * (ns.sign(a) * ns.copysign(1.0, b)), None)),
    "power": Primitive(2, "pow({0}, {1})", (  # of numbers; the exponent does not vary
        lambda ns, d, y, a, b: d * (b * ns.power(a, b - 1)), None),
        number=lambda a, b: a**b),
    "hypot": Primitive(2, "hypot({0}, {1})", (
        lambda ns, d, y, a, b: d * (a / y), lambda ns, d, y, a, b: d * (b / y))),
    # the way around in which NaN passes
    "maximum": Primitive(2, "{0} > {1} || {0} != {0} ? {0} : {1}", (_larger, _swapped(_larger)),
                         rank=1),
    "minimum": Primitive(2, "{0} < {1} || {0} != {0} ? {0} : {1}", (_smaller, _swapped(_smaller)),
                         rank=1),
    "where": Primitive(3, "{0} ? {1} : {2}", (
        None, lambda ns, d, y, c, a, b: ns.where(c, d, 0.0),
        lambda ns, d, y, c, a, b: ns.where(c, 0.0, d)), conditions=(0,), rank=1),
    "greater": _comparison(">"), "greater_equal": _comparison(">="),
    "less": _comparison("<"), "less_equal": _comparison("<="),
    "equal": _comparison("=="), "not_equal": _comparison("!="),
    "isfinite": Primitive(1, "{0} - {0} == F(0)", (None,), boolean=True, rank=3),
    "logical_and": Primitive(2, "{0} && {1}", (None, None), boolean=True, conditions=(0, 1),
                             rank=2),
    "logical_or": Primitive(2, "({0} || {1})", (None, None), boolean=True, conditions=(0, 1)),
    "logical_not": Primitive(1, "!{0}", (None,), boolean=True, conditions=(0,), rank=6),
    # special functions, which `special_functions` writes in others
    "erfc": _special(lambda ns, d, y, x: d * (-TWO_OVER_ROOT_PI * ns.exp(-(x * x)))),
    "erfcx": _special(lambda ns, d, y, x: d * (2 * x * y - TWO_OVER_ROOT_PI)),
    "erfinv": _special(lambda ns, d, y, x: d * (ns.exp(y * y) / TWO_OVER_ROOT_PI)),
    "ndtr": _special(lambda ns, d, y, x: d * (DENSITY_AT_0 * ns.exp(-0.5 * (x * x)))),
    "log_ndtr": _special(lambda ns, d, y, x: d * (
        2 * DENSITY_AT_0 / ns.erfcx(-ROOT_HALF * x))),
    "ndtri": _special(lambda ns, d, y, x: d * (ns.exp(0.5 * (y * y)) / DENSITY_AT_0)),
    "expit": _special(lambda ns, d, y, x: d * (y * ns.expit(-x))),
    "logit": _special(lambda ns, d, y, x: d / (x * (1 - x))),
    "xlogy": _special(lambda ns, d, y, a, b: d * ns.where(
        ns.logical_and(ns.equal(a, 0), ns.less_equal(b, 0)), 0.0, ns.log(b)),
        lambda ns, d, y, a, b: d * (a / b)),
    "xlog1py": _special(lambda ns, d, y, a, b: d * ns.where(
        ns.logical_and(ns.equal(a, 0), ns.less_equal(b, -1)), 0.0, ns.log1p(b)),
        lambda ns, d, y, a, b: d * (a / (1 + b))),
    "lgamma": _special(lambda ns, d, y, x: d * ns.digamma(x)),
    "digamma": _special(lambda ns, d, y, x: d * ns.polygamma(1, x)),
    "polygamma": _special(None, lambda ns, d, y, n, x: d * ns.polygamma(n + 1, x)),
    "zeta": _special(by_smooth, lambda ns, d, y, s, q: d * (-s * ns.zeta(s + 1, q))),
    "i1": _special(lambda ns, d, y, x: d * (ns.bessel(1, x) + x * (x * ns.bessel(2, x)))),
    "i1e": _special(lambda ns, d, y, x: d * (
        ns.bessel_scaled(1, x) + x * (x * ns.bessel_scaled(2, x)) - ns.sign(x) * y)),
    # I(n, x) / x^n, whose derivative is x times that of n + 1; and exp(-|x|) times it
    "bessel": _special(None, lambda ns, d, y, n, x: d * (x * ns.bessel(n + 1, x))),
    "bessel_scaled": _special(None, lambda ns, d, y, n, x: d * (
        x * ns.bessel_scaled(n + 1, x) - ns.sign(x) * y)),
}

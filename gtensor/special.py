"""Special functions: `gt.special`, by SciPy's names.

    gt.special.gammaln(gt.tensor(10.0))             # log(9!)
    gt.special.log_ndtr(gt.tensor(-40.0))           # -804.6, where ndtr is 0 in float32

Each is elementwise, with broadcasting, and one pass over memory; it computes in float64 and rounds
to the dtype of its inputs. Integers and booleans become the default dtype first, complex numbers
raise TypeError. Derivatives of every order are formulas of the same kind.
Against mpmath: float64 within 4 units in the last place, float32 within 1, but next to zeros of
gammaln and digamma below 0, where the absolute error is as small. NaN gives NaN, and values at
poles and at the ends are SciPy's, but for gammaln(-inf), which is inf.

The formulas are in `gtensor.ops.define.special_functions`, with their sources.
"""

from __future__ import annotations

import math
from functools import cache
from operator import index
from typing import TYPE_CHECKING, Any

from gtensor.creation.new_tensors import asarray
from gtensor.engine.handle.namespaces import recorded
from gtensor.engine.handle.tensor import Tensor
from gtensor.ops.define.arguments import floats, takes_arrays, want_number
from gtensor.ops.define.formula import Formula
from gtensor.ops.elementwise.selection import clip
from gtensor.system.late_imports import late as _late
from gtensor.system.written_code import enter as _enter

if TYPE_CHECKING:
    from gtensor.engine.handle.tensor import Operand

__all__ = [
    "digamma", "entr", "erfc", "erfcx", "erfinv", "expit", "gammaln", "i0", "i0e", "i1", "i1e",
    "log_ndtr", "logit", "ndtr", "ndtri", "polygamma", "sinc", "softplus_inverse", "xlog1py",
    "xlogy", "zeta",
]

_MOST_ORDER = 100  # of polygamma


def _of(name: str, formula: Formula, *inputs: Tensor) -> Tensor:
    """The formula of real floating tensors."""
    given = [floats(x) for x in inputs]
    for x in given:
        if x.dtype.kind == "c":
            raise TypeError(f"{name} of a tensor of dtype {x.dtype}; wanted real numbers")
    return recorded.formula(*given, formula=formula)


def _formula(name: str, function: Any) -> Formula:
    return Formula(name, function, wide=True)


# -- error functions and the normal distribution ---------------------------------------------------

_ERFC = _formula("erfc", lambda ns, x: ns.erfc(x))
_ERFCX = _formula("erfcx", lambda ns, x: ns.erfcx(x))
_ERFINV = _formula("erfinv", lambda ns, x: ns.erfinv(x))
_NDTR = _formula("ndtr", lambda ns, x: ns.ndtr(x))
_NDTRI = _formula("ndtri", lambda ns, x: ns.ndtri(x))
_LOG_NDTR = _formula("log_ndtr", lambda ns, x: ns.log_ndtr(x))


@takes_arrays
def erfc(x: Tensor, /) -> Tensor:
    """1 - erf(x), with all digits also where erf(x) is next to 1."""
    return _of("erfc", _ERFC, x)


@takes_arrays
def erfcx(x: Tensor, /) -> Tensor:
    """exp(x^2) erfc(x), which for large x falls as 1 / (sqrt(pi) x), where erfc(x) is 0."""
    return _of("erfcx", _ERFCX, x)


@takes_arrays
def erfinv(x: Tensor, /) -> Tensor:
    """The y with erf(y) = x, for x from -1 to 1, whose values are infinite; NaN beyond them."""
    return _of("erfinv", _ERFINV, x)


@takes_arrays
def ndtr(x: Tensor, /) -> Tensor:
    """The standard normal distribution function: the integral of its density up to x."""
    return _of("ndtr", _NDTR, x)


@takes_arrays
def log_ndtr(x: Tensor, /) -> Tensor:
    """log(ndtr(x)), with all digits also where ndtr(x) is 0 or next to 1."""
    return _of("log_ndtr", _LOG_NDTR, x)


@takes_arrays
def ndtri(x: Tensor, /) -> Tensor:
    """The y with ndtr(y) = x, a normal quantile: -inf at 0 and inf at 1, NaN beyond them."""
    return _of("ndtri", _NDTRI, x)


# -- logistic and logarithms -----------------------------------------------------------------------

_EXPIT = _formula("expit", lambda ns, x: ns.expit(x))
_LOGIT = _formula("logit", lambda ns, x: ns.logit(x))
_XLOGY = _formula("xlogy", lambda ns, x, y: ns.xlogy(x, y))
_XLOG1PY = _formula("xlog1py", lambda ns, x, y: ns.xlog1py(x, y))
_ENTR = _formula("entr", lambda ns, x: ns.where(ns.less(x, 0), -math.inf, 0.0 - ns.xlogy(x, x)))
_LN2, _LN2_REST = 0.6931471805599453, 2.3190468138462996e-17  # log(2) in two parts


def _softplus_inverse(ns: Any, x: Any) -> Any:
    small = ns.log(ns.expm1(x))
    middle = ns.log1p(2 * ns.expm1((x - _LN2) - _LN2_REST))  # whose zero is log(2)
    large = x + ns.log1p(-ns.exp(-x))
    return ns.where(ns.less(x, 0.35), small, ns.where(ns.less(x, 1.2), middle, large))


_SOFTPLUS_INVERSE = _formula("softplus_inverse", _softplus_inverse)


@takes_arrays
def expit(x: Tensor, /) -> Tensor:
    """1 / (1 + exp(-x)), also where it is subnormal, and its derivative where it is next to 1.

    `gtensor.nn.functional.sigmoid` computes in the dtype of x, which is faster.
    """
    return _of("expit", _EXPIT, x)


@takes_arrays
def logit(x: Tensor, /, eps: float | None = None) -> Tensor:
    """log(x / (1 - x)), the inverse of expit: -inf at 0 and inf at 1, NaN beyond them.

    With `eps`, PyTorch's, x is cut at eps and 1 - eps first.
    """
    want_number("logit", eps=0.0 if eps is None else eps)
    return _of("logit", _LOGIT, x if eps is None else clip(floats(x), eps, 1 - eps))


@takes_arrays
def xlogy(x: Operand, y: Operand, /) -> Tensor:
    """x log(y), and 0 where x is 0, unless y is NaN."""
    return _of("xlogy", _XLOGY, *_both(x, y))


@takes_arrays
def xlog1py(x: Operand, y: Operand, /) -> Tensor:
    """x log(1 + y), and 0 where x is 0, unless y is NaN."""
    return _of("xlog1py", _XLOG1PY, *_both(x, y))


def _both(x: Operand, y: Operand) -> tuple[Tensor, Tensor]:
    """Two tensors; a number takes the other's dtype, if that is a floating one."""
    tensors = [t for t in (x, y) if isinstance(t, Tensor)]
    like = tensors[0] if tensors and tensors[0].dtype.kind in "fV" else None
    a, b = (t if isinstance(t, Tensor) else asarray(
        t, dtype=None if like is None or isinstance(t, complex) else like.dtype,
        device=tensors[0].device if tensors else None) for t in (x, y))
    return a, b


@takes_arrays
def entr(x: Tensor, /) -> Tensor:
    """-x log(x), the elementwise entropy: 0 at 0, and -inf below."""
    return _of("entr", _ENTR, x)


@takes_arrays
def softplus_inverse(x: Tensor, /) -> Tensor:
    """log(exp(x) - 1), the y with softplus(y) = x: -inf at 0, NaN below."""
    return _of("softplus_inverse", _SOFTPLUS_INVERSE, x)


_SINC = [(-1) ** k * math.pi ** (2 * k) / math.factorial(2 * k + 1) for k in range(14)]


def _sinc(ns: Any, x: Any) -> Any:
    """A series near 0, so that derivatives are right there, too."""
    inner = ns.maximum(ns.minimum(x, 0.5), -0.5)
    square = inner * inner
    near: Any = _SINC[-1]
    for c in _SINC[-2::-1]:
        near = near * square + c
    whole = ns.floor(x + 0.5)
    odd = whole - 2 * ns.floor(0.5 * whole)
    outer = ns.where(ns.less(ns.abs(x), 0.5), 1.0, x)
    far = (1 - 2 * odd) * ns.sin(math.pi * (x - whole)) / (math.pi * outer)
    far = ns.where(ns.equal(ns.abs(x), math.inf), 0.0, far)
    return ns.where(ns.less(ns.abs(x), 0.5), near, far)


_SINC_OF = _formula("sinc", _sinc)


@takes_arrays
def sinc(x: Tensor, /) -> Tensor:
    """sin(pi x) / (pi x), and 1 at 0, with all digits next to the zeros at other integers.

    At infinity it is its limit, 0, where NumPy's is NaN.
    """
    return _of("sinc", _SINC_OF, x)


# -- the gamma function ----------------------------------------------------------------------------

_GAMMALN = _formula("gammaln", lambda ns, x: ns.lgamma(x))
_DIGAMMA = _formula("digamma", lambda ns, x: ns.digamma(x))
_ZETA = _formula("zeta", lambda ns, x, q: ns.zeta(x, q))


@cache
def _polygamma_of(n: int) -> Formula:
    return _formula(f"polygamma_{n}", lambda ns, x: ns.polygamma(n, x))


@takes_arrays
def gammaln(x: Tensor, /) -> Tensor:
    """log(|Gamma(x)|), for a natural n + 1 log(n!): inf at 0 and at negative integers.

    Its derivatives are digamma and polygamma.
    """
    return _of("gammaln", _GAMMALN, x)


@takes_arrays
def digamma(x: Tensor, /) -> Tensor:
    """The derivative of gammaln: -inf at 0, inf at -0.0, NaN at negative integers."""
    return _of("digamma", _DIGAMMA, x)


@takes_arrays
def polygamma(n: int, x: Tensor, /) -> Tensor:
    """The n-th derivative of digamma, for an order n from 0 to 100.

    At 0 and at negative integers it is inf, or -inf for an even order. Raises ValueError for
    another order.
    """
    order = index(n)
    if not 0 <= order <= _MOST_ORDER:
        raise ValueError(f"polygamma was given n={n}; wanted an order from 0 to {_MOST_ORDER}")
    return _of("polygamma", _polygamma_of(order) if order else _DIGAMMA, x)


@takes_arrays
def zeta(x: Operand, q: Operand = 1.0, /) -> Tensor:
    """Hurwitz' zeta function, the sum of (q + k)^-x over k = 0, 1, ...; Riemann's for q = 1.

    Of x above 1 and q above 0: inf where x is 1 or q is 0, NaN below.
    """
    return _of("zeta", _ZETA, *_both(x, q))


# -- modified Bessel functions ---------------------------------------------------------------------

_I0 = _formula("i0", lambda ns, x: ns.bessel(0, x))
_I1 = _formula("i1", lambda ns, x: ns.i1(x))
_I0E = _formula("i0e", lambda ns, x: ns.bessel_scaled(0, x))
_I1E = _formula("i1e", lambda ns, x: ns.i1e(x))


@takes_arrays
def i0(x: Tensor, /) -> Tensor:
    """The modified Bessel function of the first kind, of order 0."""
    return _of("i0", _I0, x)


@takes_arrays
def i0e(x: Tensor, /) -> Tensor:
    """exp(-|x|) i0(x), which does not overflow."""
    return _of("i0e", _I0E, x)


@takes_arrays
def i1(x: Tensor, /) -> Tensor:
    """The modified Bessel function of the first kind, of order 1."""
    return _of("i1", _I1, x)


@takes_arrays
def i1e(x: Tensor, /) -> Tensor:
    """exp(-|x|) i1(x), which does not overflow."""
    return _of("i1e", _I1E, x)


if TYPE_CHECKING:  # names of other libraries
    from gtensor.ops import expm1 as expm1
    from gtensor.ops import log1p as log1p
    from gtensor.ops import logsumexp as logsumexp

    lgamma, psi = gammaln, digamma
else:
    __getattr__, __dir__ = _late(__name__)

_enter(globals())

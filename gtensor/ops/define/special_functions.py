"""Special functions as formulas of simple primitives, for float64: `LOWERED` by their names.

Both devices compute them so: NumPy's path lowers them call by call, and the CUDA text has the same
steps in double. No branch that is not taken may raise; what it gives is dropped. Rational
approximations without a source were fitted for this file: interpolation at Chebyshev points in 60
digits, with coefficients of one sign, so that Horner's rule cancels nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from gtensor.ops.define.primitives import DENSITY_AT_0, ROOT_HALF

HALF_LOG_2PI = 0.9189385332046728
LOG_HALF = -0.6931471805599453
_LN2, _LN2_REST = 0.6931471805599453, 2.3190468138462996e-17


def _polynomial(x: Any, coefficients: Sequence[float]) -> Any:
    """Horner's rule, lowest power first."""
    value: Any = coefficients[-1]
    for c in coefficients[-2::-1]:
        value = value * x + c
    return value


def _ratio(x: Any, above: Sequence[float], below: Sequence[float]) -> Any:
    return _polynomial(x, above) / _polynomial(x, below)


def _whole(order: Any) -> int:
    """An order, which is a constant of the graph."""
    return int(order if isinstance(order, float) else order.args[0])


# -- error functions and the normal distribution ---------------------------------------------------

# erf(x) / x in x^2 for |x| <= 0.5, to 4e-20.
_ERF = (
    (1.1283791670955126, 0.13273781588831823, 0.04003497179909916, 0.001111947160008201,
     6.53146755682646e-05),
    (1.0, 0.4509691597993518, 0.08580312323455648, 0.008299086420556764, 0.00035166476084434685))
# exp(x^2) erfc(x) (1 + 2 x) - 1.1875, which is small, in x from 0.5 to 6, to 2e-17.
_ERFCX = (
    (-0.18749999996351438, 0.24794082350014582, 0.6774123169636004, 0.6363267067025759,
     0.3466890956402219, 0.12166998667169228, 0.02727440087702991, 0.003309128550943036,
     -6.565340925422263e-06, -6.52736720803439e-05, -7.606157047760303e-06),
    (1.0, 3.326293380466478, 5.14717845221199, 4.893128199815309, 3.1753162563129322,
     1.4758310489801618, 0.5001390808840505, 0.12286045544623793, 0.021135842059149458,
     0.0023318203574449544, 0.00012865442972120753))
# (1 / sqrt(pi) - x exp(x^2) erfc(x)) x^2 in 1 / x^2 from x = 6 on, to 2e-19.
_ERFCX_TAIL = (
    (0.28209479177387814, 7.70898692018072, 68.06611107708142, 223.01288076043653,
     220.76719847766407, 15.025362605320613),
    (1.0, 28.827647106509144, 280.77955204923734, 1116.75073003371, 1724.102485782873,
     759.0443942586587))
# exp(x^2 / 2) ndtr(-x) (1 + 1.5 x) - 0.640625 in x from 0.7 to 8.5, to 7e-18; and
# (1 / sqrt(2 pi) - exp(x^2 / 2) ndtr(-x) x) x^2 in 1 / x^2 above.
_MILLS = (
    (-0.1406249999810651, 0.020332010760898123, 0.11537380001706272, 0.08270975666645271,
     0.03126998259448779, 0.007086412757524872, 0.0008676905294329615, 5.219212653636419e-06,
     -1.7045741106692427e-05, -2.7424061508258582e-06, -1.6932176343105658e-07),
    (1.0, 2.3518272613615467, 2.573083703002482, 1.729437837525098, 0.793471579283422,
     0.260733799174643, 0.062467621080244326, 0.010848314983687251, 0.0013192582628398525,
     0.00010287861272420785, 4.011263396217432e-06))
_MILLS_TAIL = (
    (0.3989422804014327, 21.804307709352745, 385.0400696928084, 2523.102724442426,
     4995.391459427607, 679.9702904325744),
    (1.0, 57.65529421301829, 1123.1182081969494, 8934.00584026968, 27585.639772525967,
     24289.42061627708))
_ONE_OVER_ROOT_PI = 0.5641895835477563
_NEAR = 0.7071


def _erf_near_0(ns: Any, x: Any) -> Any:
    x = ns.maximum(ns.minimum(x, 0.5), -0.5)
    return x * _ratio(x * x, *_ERF)


def _scaled_erfc(ns: Any, x: Any) -> Any:
    """exp(x^2) erfc(x) for x of 0.5 or more."""
    middle = ns.minimum(x, 6.0)
    near = (1.1875 + _ratio(middle, *_ERFCX)) / (1 + 2 * middle)
    return ns.where(ns.less(x, 6.0), near, _falling(ns, x, 6.0, _ONE_OVER_ROOT_PI, _ERFCX_TAIL))


def _scaled_ndtr(ns: Any, x: Any) -> Any:
    """exp(x^2 / 2) ndtr(-x) for x of 0.7072 or more."""
    middle = ns.minimum(x, 8.5)
    near = (0.640625 + _ratio(middle, *_MILLS)) / (1 + 1.5 * middle)
    return ns.where(ns.less(x, 8.5), near, _falling(ns, x, 8.5, DENSITY_AT_0, _MILLS_TAIL))


def _falling(ns: Any, x: Any, edge: float, limit: float, tail: Any) -> Any:
    """What falls as limit / x."""
    x = ns.maximum(x, edge)
    inverse = 1 / x / x  # x * x may overflow
    return (limit - inverse * _ratio(inverse, *tail)) / x


def _square(ns: Any, x: Any) -> tuple[Any, Any]:
    """x * x, and what rounding took from it (Dekker, 1971), for x that are not huge."""
    high = x * 134217729.0
    high = high - (high - x)
    low = x - high
    square = ns.square(x)
    return square, low * low - ((square - high * high) - 2 * high * low)


def _gaussian(ns: Any, x: Any, factor: float) -> Any:
    """exp(-factor * x^2) for a factor of 1 or 1 / 2, to the digits of exp."""
    square, rest = _square(ns, ns.minimum(x, 40.0))
    return ns.exp(square * -factor) * (1 - rest * factor)


def _erfc(ns: Any, x: Any) -> Any:
    size = ns.abs(x)
    outer = ns.maximum(size, 0.5)
    tail = _gaussian(ns, outer, 1.0) * _scaled_erfc(ns, outer)
    far = ns.where(ns.less(x, 0), 2 - tail, tail)
    return ns.where(ns.less(size, 0.5), 1 - _erf_near_0(ns, x), far)


def _erfcx(ns: Any, x: Any) -> Any:
    size = ns.abs(x)
    outer = ns.maximum(size, 0.5)
    scaled = _scaled_erfc(ns, outer)
    square, rest = _square(ns, ns.minimum(outer, 40.0))
    grown = ns.exp(square) * (1 + rest)
    far = ns.where(ns.less(x, 0), 2 * grown - scaled, scaled)
    near = ns.maximum(ns.minimum(x, 0.5), -0.5)
    return ns.where(ns.less(size, 0.5), ns.exp(near * near) * (1 - _erf_near_0(ns, x)), far)


def _ndtr(ns: Any, x: Any) -> Any:
    size = ns.abs(x)
    tail = _gaussian(ns, size, 0.5) * _scaled_ndtr(ns, ns.maximum(size, _NEAR))
    far = ns.where(ns.less(x, 0), tail, 1 - tail)
    return ns.where(ns.less(size, _NEAR), 0.5 + 0.5 * _erf_near_0(ns, x * ROOT_HALF), far)


def _log_ndtr(ns: Any, x: Any) -> Any:
    low = ns.minimum(x, -1.0)
    far = ns.log(_scaled_ndtr(ns, -low)) - 0.5 * (low * low)
    near = ns.log(_ndtr(ns, ns.maximum(ns.minimum(x, 0.0), -1.0)))
    high = ns.log1p(-_ndtr(ns, -ns.maximum(x, 0.0)))
    return ns.where(ns.less(x, -1), far, ns.where(ns.less(x, 0), near, high))


# M. J. Wichura, "Algorithm AS 241: the percentage points of the normal distribution", Applied
# Statistics 37 (1988), 477-484, PPND16: in 0.180625 - q^2 for |q| <= 0.425, q = p - 1 / 2.
_QUANTILE = (
    (3.3871328727963666080e0, 1.3314166789178437745e2, 1.9715909503065514427e3,
     1.3731693765509461125e4, 4.5921953931549871457e4, 6.7265770927008700853e4,
     3.3430575583588128105e4, 2.5090809287301226727e3),
    (1.0, 4.2313330701600911252e1, 6.8718700749205790830e2, 5.3941960214247511077e3,
     2.1213794301586595867e4, 3.9307895800092710610e4, 2.8729085735721942674e4,
     5.2264952788528545610e3))
# 1.4140625 r minus the quantile, for r = sqrt(-log(p)): in r - 1.6 up to 5, in 1 / r above.
_QUANTILE_TAIL = (
    ((0.8390628892503165, 1.7357902545242914, 1.472762647195951, 0.6649294418440029,
      0.1716480819045973, 0.024875104647748798, 0.001820294047395506, 5.169702723986673e-05,
      1.598955838565543e-07, -2.6384883072573695e-09),
     (1.0, 2.4187417532640967, 2.455176191223699, 1.36361378798817, 0.4509616765681698,
      0.08980957484642571, 0.010270735028377442, 0.0005961297975784144, 1.3225023956752939e-05,
      3.318107341080965e-08)),
    ((-2.2386064009485294, -244.57581039854927, 58982.81915941886, 7291357.599459612,
      242741539.57074434, 3168065514.418976, 18531118738.772617, 52420392776.92037,
      64506014447.67403, 16248047826.198917),
     (1.0, 14241.00066956453, 1927473.5517570802, 77232723.61723363, 1234588807.5583303,
      8990858086.029911, 32504305466.39575, 57741909093.256386, 38303937225.105545,
      5234751605.44869)))
_SLOPE = 1.4140625


def _quantile(ns: Any, q: Any, tail: Any, factor: float, x: Any, near_factor: float) -> Any:
    """factor times the normal quantile of p = 1 / 2 + q; `tail` is the smaller of p and 1 - p.

    near_factor * x is factor * q, of which q may have lost bits.
    """
    inner = ns.maximum(ns.minimum(q, 0.425), -0.425)
    near = x * (near_factor * _ratio(0.180625 - inner * inner, *_QUANTILE))
    r = ns.minimum(ns.sqrt(-ns.log(tail)), 30.0)
    rest = ns.where(ns.less_equal(r, 5.0),
                    _ratio(ns.minimum(r, 5.0) - 1.6, *_QUANTILE_TAIL[0]),
                    _ratio(1 / ns.maximum(r, 5.0), *_QUANTILE_TAIL[1]))
    far = ns.copysign((_SLOPE * r - rest) * factor, q)
    edge = ns.where(ns.equal(tail, 0), ns.copysign(math.inf, q), far)
    edge = ns.where(ns.less(tail, 0), math.nan, edge)
    return ns.where(ns.less_equal(ns.abs(q), 0.425), near, edge)


def _ndtri(ns: Any, x: Any) -> Any:
    return _quantile(ns, x - 0.5, ns.minimum(x, 1 - x), 1.0, x - 0.5, 1.0)


def _erfinv(ns: Any, x: Any) -> Any:
    return _quantile(ns, 0.5 * x, 0.5 * (1 - ns.abs(x)), ROOT_HALF, x, 0.5 * ROOT_HALF)


# -- logistic and logarithms -----------------------------------------------------------------------


def _expit(ns: Any, x: Any) -> Any:
    small = ns.exp(-ns.abs(x))
    return ns.where(ns.less(x, 0), small, 1) / (1 + small)


def _logit(ns: Any, x: Any) -> Any:
    near = ns.log1p((2 * x - 1) / (1 - x))  # 2 x - 1 is exact from 1 / 4 on
    return ns.where(ns.logical_and(ns.greater(x, 0.3), ns.less(x, 0.65)), near,
                    ns.log(x / (1 - x)))


def _product_with_log(ns: Any, x: Any, y: Any, log: Any) -> Any:
    return ns.where(ns.logical_and(ns.equal(x, 0), ns.equal(y, y)), 0.0, x * log)


def _xlogy(ns: Any, x: Any, y: Any) -> Any:
    return _product_with_log(ns, x, y, ns.log(y))


def _xlog1py(ns: Any, x: Any, y: Any) -> Any:
    return _product_with_log(ns, x, y, ns.log1p(y))


# -- the gamma function ----------------------------------------------------------------------------

# lgamma(y) / ((y - 1) (y - 2)) - 0.4375 in y - 0.5 from 0 to 3.5, to 6e-18.
_LGAMMA = (
    (0.3256532572329334, 2.1861449899913303, 5.690612832963681, 6.904922011541644,
     2.9878292200467884, -1.7424192542973183, -2.7077107687678947, -1.3434010662751141,
     -0.3312143978849302, -0.04206393749188593, -0.0025836794135872983, -6.533632662588381e-05,
     -4.5815945070462134e-07),
    (1.0, 8.503163852643626, 30.49133085697777, 60.26020061033973, 72.1095988022418,
     54.1735651119552, 25.718860226793414, 7.60662492726572, 1.354886842194277,
     0.13710470779409178, 0.007151365068518948, 0.00016127114560778104, 1.0541027448370642e-06))
# Stirling's series: B(2k) / (2k (2k - 1)), for lgamma from 8 on.
_STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156,
             -3617 / 122400, 43867 / 244188)
# digamma(x) / (x - its zero) (x + 1.25) - 2.6875 in x from 1 to 8, to 2e-17; the zero in two parts.
_DIGAMMA = (
    (-974461348.7634108, -1147034415.8018432, 359788442.57760197, 705426080.6199731,
     204617463.49351445, 1365444.5457219582, -6307025.974947279, -806965.6753658172,
     -35150.526385808604, -516.772357322, -1.6892948685027511),
    (1.0, -1139443233.866793, -2573116440.682719, -2102318007.2458186, -816163405.7144549,
     -163805884.96313247, -17191159.099982273, -906382.1914961849, -21695.894722734618,
     -190.04831233625816, -0.34792912784495594))
_ZERO, _ZERO_REST = 1.4616321449683622, 9.549995429965697e-17
# B(2k) / (2k), for digamma from 8 on.
_DIGAMMA_SERIES = (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12,
                   -3617 / 8160, 43867 / 14364)


def _from_integer(ns: Any, x: Any) -> Any:
    """x minus the nearest integer, exactly."""
    return x - ns.floor(x + 0.5)


def _lgamma(ns: Any, x: Any) -> Any:
    reflected = ns.less(x, -0.5)
    a = ns.where(reflected, -x, x)
    # lgamma(y) of a y from 1 / 2 to 4, and what it differs by
    below, above, far_above = ns.less(a, 0.75), ns.greater_equal(a, 4), ns.greater_equal(a, 6)
    one = ns.where(below, a, ns.where(far_above, a - 5, ns.where(above, a - 3, a - 1)))
    two = ns.where(below, a - 1, ns.where(far_above, a - 6, ns.where(above, a - 4, a - 2)))
    pair = (a - 1) * (a - 2)
    shift = ns.log(ns.where(below, ns.abs(a), ns.where(
        far_above, pair * ((a - 3) * (a - 4)), ns.where(above, pair, 1.0))))
    inner = ns.minimum(one + 0.5, 3.5)
    near = one * two * (0.4375 + _ratio(inner, *_LGAMMA)) + ns.where(below, -shift, shift)
    big = ns.maximum(a, 8.0)
    inverse = 1 / big
    rest = inverse * _polynomial(inverse * inverse, _STIRLING)
    far = (big - 0.5) * (ns.log(big) - 1) + (rest + (HALF_LOG_2PI - 0.5))
    value = ns.where(ns.less(a, 8.0), near, far)
    sine = ns.abs(ns.sin(math.pi * _from_integer(ns, a)))
    mirrored = ns.where(ns.equal(sine, 0), math.inf, ns.log(math.pi / (a * sine)) - value)
    value = ns.where(reflected, mirrored, value)
    return ns.where(ns.equal(ns.abs(x), math.inf), math.inf, value)


def _digamma(ns: Any, x: Any) -> Any:
    negative = ns.less(x, 0)
    a = ns.abs(x)
    below = ns.less(a, 1)
    t = ns.minimum(ns.where(below, a + 1, a), 8.0)
    near = ((t - _ZERO) - _ZERO_REST) * ((2.6875 + _ratio(t, *_DIGAMMA)) / (t + 1.25))
    big = ns.maximum(a, 8.0)
    inverse = 1 / big
    square = inverse * inverse
    far = ns.log(big) - (0.5 * inverse + square * _polynomial(square, _DIGAMMA_SERIES))
    value = ns.where(ns.less(a, 8.0), near, far)
    mine = ns.where(below, value - 1 / x, value)
    angle = math.pi * _from_integer(ns, a)
    mirrored = math.pi * (ns.cos(angle) / ns.sin(angle)) + ns.where(below, value, value + 1 / a)
    mirrored = ns.where(ns.equal(angle, 0), math.nan, mirrored)
    return ns.where(negative, mirrored, mine)


# B(2k) / (2k)! of the Euler-Maclaurin formula.
_BERNOULLI = (1 / 12, -1 / 720, 1 / 30240, -1 / 1209600, 1 / 47900160, -691 / 1307674368000,
              1 / 74724249600, -3617 / 10670622842880000, 43867 / 5109094217170944000,
              -174611 / 802857662698291200000, 77683 / 14101100039391805440000,
              -236364091 / 1693824136731743669452800000)
_TERMS = 10  # of the sum, before its integral


def _polygamma(ns: Any, order: Any, x: Any) -> Any:
    """For an order that is a constant; up to 0 by reflection."""
    n = _whole(order)
    if n == 0:
        return ns.digamma(x)
    low = ns.less_equal(x, 0)
    value = _hurwitz(ns, n + 1, ns.where(low, 1 - x, x)) * float(math.factorial(n))
    # The n-th derivative of cot(pi x) is pi^n times a polynomial in cot(pi x).
    slope = [0.0, 1.0]
    for _ in range(n):
        step = [k * c for k, c in enumerate(slope)][1:]
        slope = [-(a + b) for a, b in zip([*step, 0.0, 0.0], [0.0, 0.0, *step], strict=True)]
    angle = math.pi * _from_integer(ns, x)
    turned = _polynomial(ns.cos(angle) / ns.sin(angle), slope) * math.pi ** (n + 1)
    mirrored = -turned - value  # (-1)^n psi(1 - x) is -value
    mirrored = ns.where(ns.equal(angle, 0), math.inf if n % 2 else -math.inf, mirrored)
    return ns.where(low, mirrored, value if n % 2 else -value)


def _hurwitz(ns: Any, s: int, q: Any) -> Any:
    """zeta(s, q) for an integer s of 2 or more and q above 0."""
    count = _TERMS + s // 3
    total: Any = 0.0
    for k in range(count - 1, -1, -1):
        # by squares it would lose digits where s is large
        total = total + (_power(1 / (q + k), s) if s < 4 else ns.power(q + k, float(-s)))
    near = ns.less(q, count + s)
    total = ns.where(near, total, 0.0)
    w = ns.where(near, q + count, q)
    inverse = 1 / w
    square = inverse * inverse
    factor = 1.0
    factors = []
    for k, b in enumerate(_BERNOULLI):
        factor *= s if k == 0 else (s + 2 * k - 1) * (s + 2 * k)
        factors.append(b * factor)
    series = _polynomial(square, factors) * inverse
    last = _power(inverse, s - 1) if s < 5 else ns.power(w, float(1 - s))
    return total + last * (1 / (s - 1) + (0.5 + series) * inverse)


def _power(x: Any, n: int) -> Any:
    """x to the power of n, by squares."""
    value: Any = None if n else 1.0
    while n:
        if n & 1:
            value = x if value is None else value * x
        n >>= 1
        x = x * x if n else x
    return value


def _smooth_zeta(ns: Any, s: Any, q: Any) -> Any:
    """zeta(s, q) of primitives that have derivatives by s, with fewer digits."""
    return _euler_maclaurin(ns, s, q, lambda x, y: ns.exp(y * ns.log(x)))


def _zeta(ns: Any, s: Any, q: Any) -> Any:
    value = _euler_maclaurin(ns, s, q, ns.power)
    value = ns.where(ns.less(q, 0), math.nan, ns.where(ns.equal(q, 0), math.inf, value))
    value = ns.where(ns.equal(s, math.inf), _at_infinity(ns, q), value)
    return ns.where(ns.equal(s, 1), math.inf, ns.where(ns.less(s, 1), math.nan, value))


def _euler_maclaurin(ns: Any, s: Any, q: Any, power: Any) -> Any:
    """The sum up to q + 10, and from there on, or from q where that is large, its integral."""
    total: Any = 0.0
    for k in range(_TERMS - 1, -1, -1):
        total = total + power(q + k, -s)
    near = ns.less(q, s + _TERMS)
    total = ns.where(near, total, 0.0)
    w = ns.where(near, q + _TERMS, q)
    last = power(w, -s)
    series: Any = 0.0
    inverse = 1 / w
    square = inverse * inverse
    for k in range(len(_BERNOULLI) - 1, -1, -1):
        series = _BERNOULLI[k] + series * ((s + (2 * k + 1)) * (s + (2 * k + 2)) * square)
    rest = last * (w / (s - 1) + (0.5 + s * inverse * series))
    return total + ns.where(ns.equal(last, 0), 0.0, rest)


def _at_infinity(ns: Any, q: Any) -> Any:
    small = ns.where(ns.less(q, 1), math.inf, math.nan)
    return ns.where(ns.greater(q, 1), 0.0, ns.where(ns.equal(q, 1), 1.0, small))


# -- modified Bessel functions ---------------------------------------------------------------------

# I(0, x) and I(1, x) / x in x^2 / 4 for x^2 / 4 up to 16, to 4e-19.
_BESSEL = (
    (1.0, 1.0, 0.2500000000000001, 0.027777777777777565, 0.0017361111111113758,
     6.944444444424399e-05, 1.9290123457790406e-06, 3.936759885673581e-08, 6.151187413177668e-10,
     7.594056846699174e-12, 7.594079950279469e-14, 6.275862820937522e-16, 4.3600362269175774e-18,
     2.5698743857514957e-20, 1.35095827969477e-22, 4.940670282542572e-25, 3.6454386812677436e-27),
    (0.5, 0.25, 0.04166666666666667, 0.0034722222222222164, 0.0001736111111111183,
     5.787037037031587e-06, 1.3778659612264924e-07, 2.460474929770153e-09, 3.417326316154766e-11,
     3.7970287838556324e-13, 3.451850596478968e-15, 2.61497440972266e-17, 1.6767521603667608e-19,
     9.185784328456186e-22, 4.481903304500602e-24, 1.5795348772797387e-26, 1.0451756649154198e-28))
# exp(-x) sqrt(x) I(n, x) in 16 / x - 1 from x = 8 on, to 5e-18.
_BESSEL_TAIL = (
    (0.4021765094450081, 0.0033605519836678944, 0.00013621607439186705, 1.1143033787545386e-05,
     1.4838475687894938e-06, 2.9735996224521226e-07, 8.872214307451732e-08, 3.932437699533459e-08,
     2.15488936175863e-08, 7.566352487698237e-09, -6.750552282740284e-09, -1.346629294837396e-08,
     -5.394456734259438e-09, 7.737147033780934e-09, 7.406235049001522e-09, -3.905230623712341e-09,
     -5.91556056510856e-09, 2.1053080134403423e-09, 3.5985362919394714e-09,
     -1.1448789558755036e-09, -1.5930354799216344e-09, 5.122212147228388e-10,
     4.4789181847911815e-10, -1.5066113686101474e-10, -5.905024573995148e-11,
     2.0820835852793106e-11),
    (0.38939845902587233, -0.009749577193235768, -0.00021923576383382282, -1.5038547197358572e-05,
     -1.8349101357991557e-06, -3.4838567401229716e-07, -1.0001282610189342e-07,
     -4.312778920167609e-08, -2.337446787242448e-08, -8.43880090582137e-09, 6.737493433374833e-09,
     1.408852075202545e-08, 5.963645798166707e-09, -7.816968266767898e-09, -7.863004697555056e-09,
     3.803814960536081e-09, 6.202984113000443e-09, -1.992076551203188e-09, -3.75344338735913e-09,
     1.0715528639398075e-09, 1.657764699456319e-09, -4.798751536934023e-10,
     -4.6561597954216946e-10, 1.417650842869536e-10, 6.135932778393812e-11,
     -1.9677083272584384e-11))
_BESSEL_END = 30.0  # from which on the asymptotic series serves all orders


def _bessel_parts(ns: Any, n: int, x: Any) -> tuple[Any, Any, Any, Any]:
    """I(n, x) / x^n of small x; exp(-x) sqrt(x) I(n, x) of large x; whether x is small; x if large.
    """
    size = ns.abs(x)
    if n < 2:
        edge = 8.0
        small = ns.minimum(size, edge)
        near = _polynomial(0.25 * (small * small), _BESSEL[n])
        large = ns.maximum(size, edge)
        far = _polynomial(16 / large - 1, _BESSEL_TAIL[n])
    else:
        edge = _BESSEL_END
        small = ns.minimum(size, edge)
        near = _polynomial(0.25 * (small * small), [
            0.5**n / (math.factorial(k) * math.factorial(n + k)) for k in range(72)])
        large = ns.maximum(size, edge)
        series = [DENSITY_AT_0]
        for k in range(1, 20):
            series.append(-series[-1] * (4.0 * n * n - (2 * k - 1) ** 2) / (8 * k))
        far = _polynomial(1 / large, series)
    return near, far, ns.less(size, edge), large


def _bessel(ns: Any, order: Any, x: Any) -> Any:
    near, far, is_small, large = _bessel_parts(ns, _whole(order), x)
    return ns.where(is_small, near, _grown(ns, far, large) / _power(large, _whole(order)))


def _grown(ns: Any, far: Any, large: Any) -> Any:
    half = ns.exp(0.5 * large)  # exp(large) may overflow where the value does not
    return (half * (far / ns.sqrt(large))) * half


def _bessel_scaled(ns: Any, order: Any, x: Any) -> Any:
    near, far, is_small, large = _bessel_parts(ns, _whole(order), x)
    far = far / ns.sqrt(large) / _power(large, _whole(order))
    return ns.where(is_small, near * ns.exp(-ns.abs(x)), far)


def _i1(ns: Any, x: Any) -> Any:
    near, far, is_small, large = _bessel_parts(ns, 1, x)
    return ns.where(is_small, x * near, ns.copysign(_grown(ns, far, large), x))


def _i1e(ns: Any, x: Any) -> Any:
    near, far, is_small, large = _bessel_parts(ns, 1, x)
    near = x * near * ns.exp(-ns.abs(x))
    return ns.where(is_small, near, ns.copysign(far / ns.sqrt(large), x))


LOWERED: dict[str, Callable[..., Any]] = {
    "erfc": _erfc, "erfcx": _erfcx, "erfinv": _erfinv, "ndtr": _ndtr, "log_ndtr": _log_ndtr,
    "ndtri": _ndtri, "expit": _expit, "logit": _logit, "xlogy": _xlogy, "xlog1py": _xlog1py,
    "lgamma": _lgamma, "digamma": _digamma, "polygamma": _polygamma, "zeta": _zeta,
    "i1": _i1, "i1e": _i1e, "bessel": _bessel, "bessel_scaled": _bessel_scaled,
}
"""The formula of each special primitive."""
SMOOTH: dict[str, Callable[..., Any]] = {"zeta": _smooth_zeta}
"""Formulas with fewer digits, of primitives that have derivatives where the others have none."""

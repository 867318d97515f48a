"""Special functions: digits against mpmath, ends and poles against SciPy, derivatives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mpmath as mp
import numpy as np
import pytest
import scipy.special

import gtensor as gt
from gtensor import special

Function = Callable[..., Any]


def _log(low: float, high: float) -> Function:
    return lambda rng, n: np.exp(rng.uniform(np.log(low), np.log(high), n))


def _flat(low: float, high: float) -> Function:
    return lambda rng, n: rng.uniform(low, high, n)


def _beside(center: float, far: float) -> Function:
    return lambda rng, n: center + rng.choice([-1, 1], n) * _log(1e-15, far)(rng, n)


def _quantile(p: Any) -> Any:
    """By Newton's method on the logarithm, from an asymptotic start."""
    q = min(p, 1 - p)
    if q > 0.2:
        return mp.sqrt(2) * mp.erfinv(2 * p - 1)
    t = mp.sqrt(-2 * mp.log(q))
    z = mp.log(t * mp.sqrt(2 * mp.pi)) / t - t
    for _ in range(40):
        z -= (mp.log(mp.ncdf(z)) - mp.log(q)) * mp.ncdf(z) / mp.npdf(z)
    return z if p < 0.5 else -z


DIGITS: dict[str, tuple[Function, tuple[Function, ...]]] = {  # the reference, and where
    "digamma": (mp.digamma, (_flat(0, 12), _log(1e-300, 1e300), _beside(1.4616321449683622, 0.1))),
    "entr": (lambda x: -x * mp.log(x), (_flat(0, 4), _log(1e-320, 1e300))),
    "erfc": (mp.erfc, (_flat(-6, 27), _flat(-0.7, 0.7), _log(1e-320, 1e-3))),
    "erfcx": (lambda x: mp.exp(x * x) * mp.erfc(x), (_flat(-26, 12), _log(0.1, 1e8))),
    "erfinv": (mp.erfinv, (_flat(-1, 1), _log(1e-320, 0.1), _beside(0, 0.9))),
    "expit": (lambda x: 1 / (1 + mp.exp(-x)), (_flat(-744, 40), _flat(-5, 5))),
    "gammaln": (lambda x: mp.log(mp.gamma(x)) if x < 200 else mp.loggamma(x), (
        _flat(0, 12), _log(1e-320, 1e300), _beside(1, 0.3), _beside(2, 0.3))),
    "i0": (lambda x: mp.besseli(0, x), (_flat(-20, 20), _flat(0, 713))),
    "i0e": (lambda x: mp.besseli(0, x) * mp.exp(-abs(x)), (_flat(-20, 20), _flat(0, 2000))),
    "i1": (lambda x: mp.besseli(1, x), (_flat(-20, 20), _flat(0, 713), _log(1e-300, 1e-3))),
    "i1e": (lambda x: mp.besseli(1, x) * mp.exp(-abs(x)), (_flat(-20, 20), _flat(0, 2000))),
    "log_ndtr": (lambda x: mp.log(mp.ncdf(x)) if x < 3 else mp.log1p(
        -mp.erfc(x / mp.sqrt(2)) / 2), (_flat(-60, 38), _flat(-2, 2))),
    "logit": (lambda x: mp.log(x / (1 - x)), (_flat(0, 1), _log(1e-320, 0.4), _beside(0.5, 0.1))),
    "ndtr": (mp.ncdf, (_flat(-38, 9), _flat(-1, 1))),
    "ndtri": (_quantile, (_flat(0, 1), _log(1e-320, 0.1))),
    "polygamma 1": (lambda x: mp.psi(1, x), (_flat(0, 30), _log(1e-150, 1e30), _flat(-4, 0))),
    "polygamma 6": (lambda x: mp.psi(6, x), (_flat(0, 30),)),
    "sinc": (mp.sincpi, (_flat(-9, 9), _beside(3, 0.1), _log(1e-300, 1e3))),
    "softplus_inverse": (lambda x: mp.log(mp.expm1(x)), (
        _flat(0, 40), _log(1e-320, 1), _beside(0.6931471805599453, 0.1))),
    "zeta": (mp.zeta, (_flat(1, 60), lambda rng, n: 1 + _log(1e-15, 0.1)(rng, n))),
}


def _hurwitz(s: Any, q: Any) -> Any:
    """mpmath's has few digits where q is large."""
    count = 60
    w = q + count
    factor = s * w ** (-s - 1)
    total = mp.fsum((q + k) ** -s for k in range(count)) + w ** (1 - s) / (s - 1) + w**-s / 2
    for k in range(1, 30):
        total += mp.bernoulli(2 * k) / mp.factorial(2 * k) * factor
        factor *= (s + 2 * k - 1) * (s + 2 * k) / w**2
    return total


def _function(name: str) -> Function:
    base, _, order = name.partition(" ")
    function: Function = getattr(special, base)
    return (lambda x: function(int(order), x)) if order else function


def ulps(found: np.ndarray, exact: list[Any]) -> np.ndarray:
    """The distances in units in the last place of the exact values."""
    wanted = np.array([float(e) for e in exact])
    with np.errstate(all="ignore"):
        unit = np.spacing(np.abs(wanted.astype(found.dtype))).astype(float)
        same = found == wanted.astype(found.dtype)  # also where both overflow
    return np.array([0.0 if s else float(abs(mp.mpf(float(f)) - e) / mp.mpf(u))
                     for f, e, u, s in zip(found, exact, unit, same, strict=True)])


def check_digits(name: str, device: str, rng: np.random.Generator, count: int) -> None:
    reference, places = DIGITS[name]
    x = np.concatenate([place(rng, count) for place in places])
    for dtype, most in ((np.float64, 4.0), (np.float32, 2.0)):
        with np.errstate(all="ignore"):
            given = np.unique(x.astype(dtype))
        if name == "zeta":
            given = given[given > 1]
        if name in ("logit", "ndtri", "erfinv"):
            given = given[(np.abs(given) < 1) & (given != 0)]
        given = given[np.isfinite(given) & (given != 0)][:: 1 if dtype is np.float64 else 3]
        with mp.workdps(40):
            exact = [reference(mp.mpf(float(v))) for v in given]
            found = _function(name)(gt.tensor(given, device=device)).numpy()
            off = ulps(found, exact)
        assert off.max() <= most, (given[off.argmax()], found[off.argmax()], off.max())


@pytest.mark.parametrize("name", DIGITS)
def test_digits_are_those_of_mpmath(name: str, rng: np.random.Generator) -> None:
    check_digits(name, "cpu", rng, 25)


@pytest.mark.gpu
@pytest.mark.parametrize("name", DIGITS)
def test_digits_on_cuda_are_those_of_mpmath(name: str, rng: np.random.Generator) -> None:
    check_digits(name, "cuda", rng, 12)


def test_digits_of_two_arguments(rng: np.random.Generator) -> None:
    x, y = _log(1e-3, 1e3)(rng, 40), np.r_[_log(1e-3, 1e3)(rng, 20), 1 + _log(1e-9, 0.1)(rng, 20)]
    s, q = rng.uniform(1.01, 40, 40), np.r_[rng.uniform(0.01, 30, 30), _log(1, 1e5)(rng, 10)]
    with mp.workdps(40):
        for name, a, b, reference in (
                ("xlogy", x, y, lambda u, v: u * mp.log(v)),
                ("xlog1py", x, y, lambda u, v: u * mp.log1p(v)), ("zeta", s, q, _hurwitz)):
            exact = [reference(mp.mpf(float(u)), mp.mpf(float(v)))
                     for u, v in zip(a, b, strict=True)]
            found = getattr(special, name)(gt.tensor(a), gt.tensor(b)).numpy()
            assert ulps(found, exact).max() <= 4, name


ENDS = np.array([0.0, -0.0, 1, -1, 0.5, -0.5, np.inf, -np.inf, np.nan, 5e-324, 1e308, -1e308, 30,
                 -30, 2, -2, -3, 700, -700, 720, 1e-300])


@pytest.mark.parametrize("name", [
    n for n in special.__all__ if n not in ("polygamma", "softplus_inverse", "sinc", "xlogy",
                                            "xlog1py", "zeta")])
def test_ends_and_poles_are_those_of_scipy(name: str) -> None:
    given = ENDS
    if name == "gammaln":  # SciPy's is inf at 5e-324 and -inf at -inf, C's and PyTorch's inf there
        given = ENDS[(ENDS != 5e-324) & (-np.inf != ENDS)]
    with np.errstate(all="ignore"):
        wanted = getattr(scipy.special, name)(given)
    found = getattr(special, name)(gt.tensor(given)).numpy()
    assert np.allclose(found, wanted, rtol=1e-12, atol=1e-323, equal_nan=True)
    infinite = np.isinf(wanted)
    assert np.array_equal(found[infinite], wanted[infinite])


def test_ends_of_several_arguments_are_those_of_scipy() -> None:
    a, b = (grid.ravel() for grid in np.meshgrid(ENDS, ENDS))
    for name in ("xlogy", "xlog1py"):
        with np.errstate(all="ignore"):
            wanted = getattr(scipy.special, name)(a, b)
        found = getattr(special, name)(gt.tensor(a), gt.tensor(b)).numpy()
        assert np.allclose(found, wanted, rtol=1e-12, equal_nan=True), name
    kept = ~(b < 0) & ~(a < 1) & ~(a > 1e300)  # where SciPy's is NaN
    with np.errstate(all="ignore"):
        wanted = scipy.special.zeta(a, b)[kept]
    found = special.zeta(gt.tensor(a), gt.tensor(b)).numpy()[kept]
    assert np.allclose(found, wanted, rtol=1e-12, equal_nan=True)
    for order in (1, 2):
        given = ENDS[np.isfinite(ENDS) | (ENDS > 0)]
        with np.errstate(all="ignore"):
            wanted = scipy.special.polygamma(order, given)
        found = special.polygamma(order, gt.tensor(given)).numpy()
        assert np.allclose(found, wanted, rtol=1e-12, equal_nan=True)
    assert special.softplus_inverse(gt.tensor([0.0, -1.0, np.inf])).tolist()[::2] == [
        -np.inf, np.inf]
    assert special.sinc(gt.tensor([0.0, 1.0, -3.0, np.inf])).tolist() == [1, 0, 0, 0]


_POSITIVE = np.array([0.3, 0.8, 1.7, 4.1, 9.3])
_REAL = np.array([-7.3, -1.2, -0.4, 0.2, 0.9, 3.3, 9.1])
INSIDE = dict.fromkeys(("erfinv", "logit", "ndtri"), _POSITIVE / 10) | {
    "digamma": np.r_[_POSITIVE, -1.3], "gammaln": np.r_[_POSITIVE, -1.3, -3.6], "entr": _POSITIVE,
    "softplus_inverse": _POSITIVE, "polygamma 1": np.r_[_POSITIVE, -1.3], "polygamma 4": _POSITIVE,
    "erfcx": _REAL / 4}


@pytest.mark.parametrize("name", [*INSIDE, *(
    n for n in special.__all__ if n not in INSIDE and n not in ("polygamma", "xlogy", "xlog1py",
                                                               "zeta"))])
def test_derivatives_of_both_orders(name: str) -> None:
    x = gt.tensor(INSIDE.get(name, _REAL), requires_grad=True)
    gt.testing.check_derivatives(_function(name), x)


def test_derivatives_by_two_arguments() -> None:
    a, b = (gt.tensor(v, requires_grad=True) for v in (_POSITIVE, _POSITIVE[::-1] + 1.1))
    for function in (special.xlogy, special.xlog1py):
        gt.testing.check_derivatives(function, a, b)
    gt.testing.check_derivatives(lambda s, q: special.zeta(s, q), b, a)
    zero = gt.tensor([0.0, 0.0], requires_grad=True)
    special.xlogy(zero, gt.tensor([3.0, 0.0])).sum().backward()
    assert np.allclose(zero.grad.numpy(), [np.log(3), 0])  # as PyTorch's


def test_further_orders_are_formulas_too() -> None:
    """A derivative of an approximation would have lost its digits by the third order."""
    def third(function: Function, at: float) -> float:
        for _ in range(3):
            function = gt.grad(function)
        return float(function(gt.tensor(at, dtype="float64")))

    for function, at, wanted in (
            (special.gammaln, 3.7, scipy.special.polygamma(2, 3.7)),
            (special.i1, 0.0, 3 / 8), (special.sinc, 0.25, 4.52127228855079),
            (special.ndtr, 1.0, 0.0),
            (special.erfc, 0.5, -2 / np.sqrt(np.pi) * np.exp(-0.25) * (1 - 2))):
        assert np.isclose(third(function, at), wanted, rtol=1e-6, atol=1e-12), function
    second = gt.grad(gt.grad(special.sinc))(gt.tensor(0.0, dtype="float64"))
    assert np.isclose(float(second), -np.pi**2 / 3, rtol=1e-13)


def test_a_captured_step_computes_them_in_float64_as_well(rng: np.random.Generator) -> None:
    x = gt.tensor(rng.uniform(3, 9, 50).astype("f"))

    @gt.capture
    def step(x: gt.Tensor) -> gt.Tensor:
        return 2 * special.erfc(x * 0.5) + special.gammaln(x) - 1

    found = [step(x).numpy() for _ in range(4)]
    assert all(np.array_equal(f, found[0]) for f in found)


def test_bad_input_is_named() -> None:
    with pytest.raises(TypeError, match="gammaln of a tensor of dtype complex64; wanted real"):
        special.gammaln(gt.tensor([1j]))
    with pytest.raises(ValueError, match="polygamma was given n=-1; wanted an order from 0 to 100"):
        special.polygamma(-1, gt.ones(2))
    assert special.gammaln(gt.tensor([5, 6])).dtype == gt.float32
    assert special.xlogy(2, gt.ones(1, "float16")).dtype == gt.float16

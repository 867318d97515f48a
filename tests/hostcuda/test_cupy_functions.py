"""CuPy's own functions against NumPy, on the host device: a small sample, and all of it (slow)."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from gtensor import hostcuda

from .cupy_functions import GROUPS, Case, cases, sampled

pytestmark = pytest.mark.host_cuda
SHARE = 4  # of the functions, one in so many in the small sample
TOLERANCE = {2: 4e-3, 4: 5e-5, 8: 1e-11}  # bytes of a real number -> relative to the largest value


def to_cupy(cupy: Any, x: np.ndarray) -> Any:
    """The same values with the same strides."""
    base = x if x.base is None else x.base
    whole = cupy.asarray(base)
    offset = x.__array_interface__["data"][0] - base.__array_interface__["data"][0]
    return cupy.ndarray(x.shape, x.dtype, whole.data + offset, x.strides)


def answer(xp: Any, case: Case, arrays: list[Any]) -> Any:
    """What the function returns as arrays, or the error that it raises."""
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            out = case.function.call(xp, *arrays)
    except (ValueError, TypeError, IndexError, ZeroDivisionError, np.linalg.LinAlgError) as error:
        return error
    return list(out) if isinstance(out, (tuple, list)) else [out]


def check(cupy: Any, case: Case) -> None:
    arrays = case.arrays()
    wanted = answer(np, case, arrays)
    found = answer(cupy, case, [to_cupy(cupy, x) for x in arrays])
    if isinstance(wanted, Exception):
        assert isinstance(found, Exception), f"no error, where NumPy raises {wanted!r}"
        return
    assert not isinstance(found, Exception), found
    assert len(found) == len(wanted)
    for mine, right in zip(found, wanted, strict=True):
        close(case, cupy.asnumpy(mine), np.asarray(right))
    assert not hostcuda.missing(), hostcuda.missing()


def close(case: Case, found: np.ndarray, wanted: np.ndarray) -> None:
    assert found.shape == wanted.shape and found.dtype == wanted.dtype, (
        f"{found.dtype}{found.shape}, wanted {wanted.dtype}{wanted.shape}")
    if wanted.dtype.kind in "biu":
        np.testing.assert_array_equal(found, wanted)
        return
    sizes = [np.dtype(case.dtype), wanted.dtype]
    bound = max(TOLERANCE[max(2, d.itemsize // (2 if d.kind == "c" else 1))] for d in sizes
                if d.kind in "fc")
    finite = np.abs(wanted[np.isfinite(wanted)]).astype(float)
    scale = max(1.0, finite.max(initial=0))
    np.testing.assert_allclose(found.astype(complex), wanted.astype(complex), rtol=bound,
                               atol=bound * scale)


@pytest.mark.parametrize("case", [case for group in GROUPS for case in sampled(group, SHARE)],
                         ids=lambda case: case.name)
def test_a_sample(cupy, case):
    check(cupy, case)


@pytest.mark.slow
@pytest.mark.parametrize("group", GROUPS)
def test_all_of_it(cupy, group):
    wrong = {}
    for case in cases(group):
        try:
            check(cupy, case)
        except Exception as error:
            wrong[case.name] = f"{type(error).__name__}: {error}".strip()[:300]
    assert not wrong, "\n".join(f"{len(wrong)} wrong:" if not place else f"{name}: {text}"
                                for place, (name, text) in enumerate([("", ""), *wrong.items()]))


# name -> arguments, mean, standard deviation
DISTRIBUTIONS = {
    "uniform": ((-1, 3), 1, 4 / 12**0.5), "normal": ((2, 3), 2, 3),
    "lognormal": ((0, 0.5), np.exp(0.125), ((np.exp(0.25) - 1) * np.exp(0.25)) ** 0.5),
    "exponential": ((2,), 2, 2), "gamma": ((3, 2), 6, 12**0.5),
    "beta": ((2, 3), 0.4, 0.2), "chisquare": ((4,), 4, 8**0.5), "poisson": ((5,), 5, 5**0.5),
    "binomial": ((20, 0.3), 6, 4.2**0.5), "geometric": ((0.25,), 4, 12**0.5),
    "logistic": ((1, 2), 1, 2 * np.pi / 3**0.5), "gumbel": ((0, 1), 0.5772157, np.pi / 6**0.5),
    "laplace": ((1, 2), 1, 8**0.5), "rayleigh": ((2,), 2 * (np.pi / 2) ** 0.5,
                                              2 * (2 - np.pi / 2) ** 0.5),
    "weibull": ((1,), 1, 1), "power": ((2,), 2 / 3, 18**-0.5),
    "triangular": ((0, 1, 2), 1, 6**-0.5), "integers": ((0, 10), 4.5, 8.25**0.5),
    "random": ((), 0.5, 12**-0.5), "standard_normal": ((), 0, 1), "hypergeometric":
    ((10, 10, 5), 2.5, (5 * 0.25 * 15 / 19) ** 0.5), "logseries": ((0.5,), 1 / np.log(2), None),
}  # fmt: skip
OLD_NAMES = {"integers": "randint", "random": "random_sample"}  # of RandomState
DRAWN = 4_000


@pytest.mark.parametrize("bits", ["XORWOW", "Philox4x3210", "MRG32k3a", "legacy"])
def test_random_numbers_have_their_moments(cupy, bits):
    """The mean within five of its standard errors, the spread within a tenth, repeated by seed."""
    wrong, found = [], 0
    for name, (arguments, mean, spread) in DISTRIBUTIONS.items():
        draws = []
        for seed in (1, 1, 2):
            source = (cupy.random.RandomState(seed) if bits == "legacy" else
                      cupy.random.Generator(getattr(cupy.random, bits)(seed)))
            called = OLD_NAMES.get(name, name) if bits == "legacy" else name
            if hasattr(source, called):
                draws.append(getattr(source, called)(*arguments, size=DRAWN).get().astype(float))
        if not draws:  # CuPy's generators do not have it
            continue
        found += 1
        first, again, other = draws
        if not (first == again).all() or (first == other).all():
            wrong.append(f"{name}: its seed does not decide it")
        error = (spread or first.std()) / DRAWN**0.5
        if abs(first.mean() - mean) > 5 * error:
            wrong.append(f"{name}: mean {first.mean():.4f}, wanted {mean:.4f}")
        if spread and abs(first.std() / spread - 1) > 0.1:
            wrong.append(f"{name}: spread {first.std():.4f}, wanted {spread:.4f}")
    assert not wrong and not hostcuda.missing(), "\n".join(wrong)
    assert found == (len(DISTRIBUTIONS) if bits == "legacy" else 14), found

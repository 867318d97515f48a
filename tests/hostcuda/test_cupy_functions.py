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
        assert isinstance(found, type(wanted).__mro__[-4:-1]), (wanted, found)
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

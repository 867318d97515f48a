"""Counts, sets and statistics without NaN: values of NumPy and SciPy, special values, errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from against_torch import compare
from scipy import integrate

import gtensor as gt
from gtensor.testing import gradcheck


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(np.random.randint(2**31))


def same(ours: Any, theirs: Any) -> None:
    np.testing.assert_allclose(ours.numpy(), theirs, rtol=1e-11, atol=1e-12)


BINS: tuple[Any, ...] = (5, [0, 0.5, 1, 1], np.array([-1.0, 0, 2]), 1)


@pytest.mark.filterwarnings("ignore:invalid value|divide by zero")  # NumPy's and ours
@pytest.mark.parametrize("bins", BINS, ids=str)
@pytest.mark.parametrize("range", [None, (-1, 2), (0.5, 0.5)], ids=str)
def test_histograms_are_numpys(bins: Any, range: Any, rng: np.random.Generator) -> None:
    x, weights = rng.standard_normal((4, 7)), rng.random((4, 7))
    for values in (x, np.array([0.5, 1, 1, 2, -1]), np.array([3.0, 3.0]), np.array([])):
        found, wanted = gt.histogram(gt.tensor(values), bins, range), np.histogram(
            values, bins, range)
        assert found.hist.dtype == gt.int64 and found.hist.tolist() == wanted[0].tolist()
        same(found.bin_edges, wanted[1])
    for density in (False, True):
        found = gt.histogram(gt.tensor(x), bins, range, weights=weights, density=density)
        same(found.hist, np.histogram(x, bins, range, weights=weights, density=density)[0])


def test_histograms_of_integers_halves_and_of_what_is_not_finite(rng: np.random.Generator) -> None:
    for dtype in ("int64", "uint8", "bool"):
        x = rng.integers(0, 9, 50).astype(dtype)
        for bins in (3, 8, 9):
            found, wanted = gt.histogram(gt.tensor(x), bins), np.histogram(x.astype("f8"), bins)
            assert found.hist.tolist() == wanted[0].tolist() and found.bin_edges.dtype == "f8"
    many = gt.histogram(gt.ones(70000, "bfloat16"), 2, (0, 2))  # no half type counts so far
    assert many.hist.tolist() == [0, 70000] and many.bin_edges.dtype == gt.bfloat16
    odd = gt.histogram(gt.tensor([1.0, gt.nan, gt.inf]), 3)
    assert odd.hist.tolist() == [0, 0, 0] and bool(gt.isnan(odd.bin_edges[1]))
    assert gt.histogram(gt.tensor([1.0, gt.nan, gt.inf]), 1, (0, 2)).hist.tolist() == [1]


def test_the_gradient_of_a_histogram_is_that_of_the_weights(rng: np.random.Generator) -> None:
    x = gt.tensor(rng.standard_normal(9))
    gradcheck(lambda w: gt.histogram(x, 4, weights=w).hist,
              [gt.tensor(rng.random(9), requires_grad=True)])


@pytest.mark.parametrize("bins", [4, (3, 4, 5), (2, [-1, 0, 1], 3)], ids=str)
def test_histograms_of_points_are_numpys(bins: Any, rng: np.random.Generator) -> None:
    x, weights = rng.standard_normal((60, 3)), rng.random(60)
    for options in ({}, {"density": True}, {"weights": weights},
                    {"range": ((-1, 1), None, (0, 2)), "density": True}):
        found, wanted = gt.histogramdd(gt.tensor(x), bins, **options), np.histogramdd(
            x, bins, **options)
        same(found.hist, wanted[0])
        for ours, theirs in zip(found.bin_edges, wanted[1], strict=True):
            same(ours, theirs)


def test_places_among_edges_and_sets_are_numpys(rng: np.random.Generator) -> None:
    x, edges = np.append(rng.standard_normal((3, 4)), [[0.5, -1, 2, np.nan]], 0), [-1, 0, 0.5, 2]
    for bins in (edges, edges[::-1], edges[:1], [0.5, 0.5]):
        for right in (False, True):
            found = gt.digitize(gt.tensor(x), gt.tensor(bins, "float64"), right)
            assert found.tolist() == np.digitize(x, bins, right).tolist()
    for a, b in ((x, [0.5, np.nan, 2]), (np.arange(6), [1, 9, 4]), (np.arange(3), [0.5, 1.0]),
                 (np.array(2), [[2], [3]]), (np.arange(3), np.array([], int)),
                 (np.array([True, False]), [True]), (np.array([], "f4"), [1.0])):
        for invert in (False, True):
            found = gt.isin(gt.tensor(a), gt.tensor(b), invert=invert)
            assert found.tolist() == np.isin(a, b, invert=invert).tolist()


@pytest.mark.filterwarnings("ignore:All-NaN|Mean of empty")
@pytest.mark.parametrize("axis", [None, 0, -1, (0, 1)], ids=str)
def test_statistics_without_nan_are_numpys(axis: Any, rng: np.random.Generator) -> None:
    x = rng.standard_normal((5, 4))
    x[0], x[1, 2], x[2, :3] = np.nan, np.nan, np.nan
    for name in ("nansum", "nanmean", "nanmedian"):
        same(getattr(gt, name)(gt.tensor(x), axis, keepdims=True),
             getattr(np, name)(x, axis, keepdims=True))
    shares = [0.2, 0.77, 1]
    same(gt.nanquantile(gt.tensor(x), shares, axis), np.nanquantile(x, shares, axis))
    compare(lambda x: gt.nanmean(x[1:], dim=0) * gt.nansum(x[1:], axis=0),
            lambda x: torch.nanmean(x[1:], dim=0) * torch.nansum(x[1:], dim=0), [x])
    t = gt.tensor(x[2], requires_grad=True)
    gt.nanquantile(t, 0.3).backward()
    assert t.grad.tolist() == [0, 0, 0, 1]
    assert gt.nanmean(gt.full(70000, 2.0, dtype="float16")).item() == 2
    assert gt.nansum(gt.tensor([1, 2])).item() == 3
    assert gt.nanmedian(gt.tensor([1, 4])).item() == 2.5


@pytest.mark.parametrize("mode", ["full", "same", "valid"])
def test_correlations_are_numpys(mode: str, rng: np.random.Generator) -> None:
    for sizes in ((7, 3), (2, 6), (4, 4), (3, 8), (8, 4), (3, 7)):
        a, b = (rng.standard_normal(n) for n in sizes)
        same(gt.correlate(gt.tensor(a), gt.tensor(b), mode), np.correlate(a, b, mode))


def test_areas_so_far_are_scipys(rng: np.random.Generator) -> None:
    y, x = rng.standard_normal((3, 5)), np.sort(rng.standard_normal(5))
    same(gt.cumulative_trapezoid(gt.tensor(y), gt.tensor(x), initial=0),
         integrate.cumulative_trapezoid(y, x, initial=0))
    same(gt.cumulative_trapezoid(gt.tensor(y), dx=0.5, axis=0),
         integrate.cumulative_trapezoid(y, dx=0.5, axis=0))
    assert gt.cumulative_trapezoid(gt.ones((2, 1)), initial=0).shape == (2, 1)


def test_running_extremes_and_sums_of_special_values() -> None:
    for values in ([1, gt.nan, 3, gt.nan, 5, 5], [2, 2, -gt.inf, 3], [gt.inf, gt.inf]):
        for name in ("cummax", "cummin"):
            ours = getattr(gt, name)(gt.tensor(values, "float64"), 0)
            theirs = getattr(torch, name)(torch.tensor(values, dtype=torch.float64), 0)
            np.testing.assert_array_equal(ours.values.numpy(), theirs.values)
            assert ours.indices.tolist() == theirs.indices.tolist()
    x = gt.tensor([-gt.inf, -gt.inf, 1, 800, -gt.inf, -800], "float64", requires_grad=True)
    found = gt.logcumsumexp(x, 0)
    assert found.tolist() == torch.logcumsumexp(torch.tensor(x.tolist()).double(), 0).tolist()
    found.sum().backward()  # PyTorch's is NaN where nothing has been added
    assert x.grad.tolist() == pytest.approx([0, 0, 1, 3, 0, 0])
    assert gt.cummax(gt.tensor([3, 1, 4], "uint8"), 0).values.tolist() == [3, 3, 4]
    assert gt.cummin(gt.tensor(3.0), 0).values.shape == gt.logcumsumexp(gt.tensor(3), 0).shape == ()


def test_the_slope_of_a_distance_of_nothing_is_zero() -> None:
    for rows in (2, 30):
        x = gt.ones((rows, 3), "float64", requires_grad=True)
        gt.cdist(x, x).sum().backward()
        assert not x.grad.any()


WRONG: dict[str, Any] = {
    r"histogram was given bins=0; wanted 1 or more": lambda x: gt.histogram(x, 0),
    r"histogram was given bins=\[1, 0\]; wanted edges that ascend": lambda x: gt.histogram(
        x, [1, 0]),
    r"range=\(2\.0, 1\.0\); wanted finite numbers": lambda x: gt.histogram(x, 3, (2, 1)),
    r"weights of shape \(2,\) for 12 elements": lambda x: gt.histogram(x, weights=gt.ones(2)),
    r"histogramdd was given 2 bins and 4 ranges for 4 c": lambda x: gt.histogramdd(x, (2, 2)),
    r"cdist of shapes \(3, 4\) and \(3, 2\); wanted": lambda x: gt.cdist(x, x[:, :2]),
    r"cdist was given p=-1; wanted 0 or more": lambda x: gt.cdist(x, x, -1),
    r"compute_mode='mm'; wanted one of": lambda x: gt.cdist(x, x, compute_mode="mm"),
    r"renorm was given p=0 and maxnorm=1": lambda x: gt.renorm(x, 0, 0, 1),
    r"dim1=1 and dim2=-2 for a result of 3": lambda x: gt.diag_embed(x, 0, 1, -2),
    r"digitize was given bins of shape \(3, 4\)": lambda x: gt.digitize(x, x),
    r"correlate was given mode='all'": lambda x: gt.correlate(x[0], x[0], "all"),
    r"nanquantile was given q=2; wanted": lambda x: gt.nanquantile(x, 2),
}


@pytest.mark.parametrize("message", WRONG)
def test_wrong_arguments_are_named(message: str) -> None:
    with pytest.raises(ValueError, match=message):
        WRONG[message](gt.ones((3, 4)))


def test_complex_numbers_are_refused_where_they_have_no_order() -> None:
    for call in (lambda z: gt.histogram(z), lambda z: gt.isin(z, z), lambda z: gt.cummax(z, 0),
                 lambda z: gt.nanmedian(z), lambda z: gt.logcumsumexp(z, 0)):
        with pytest.raises(TypeError, match="of dtypes? complex.*; wanted real numbers"):
            call(gt.ones(3, "complex64"))

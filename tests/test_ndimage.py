"""Images: SciPy's values, derivatives of samples, and what differs from SciPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.ndimage as nd

import gtensor as gt
from gtensor.testing import check_derivatives

MODES = ("constant", "grid-constant", "grid-mirror", "grid-wrap", "mirror", "nearest", "reflect",
         "wrap")
SHAPES = ((31,), (27, 26), (24, 1, 25))  # SciPy's filter of "reflect" is not exact on short axes


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(np.random.randint(2**31))


def same(ours: Any, theirs: Any, tolerance: float = 1e-9) -> None:
    np.testing.assert_allclose(ours.numpy(), theirs, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("order", range(6))
def test_samples_are_scipys(order: int, mode: str, rng: np.random.Generator) -> None:
    near = 1e-3 if mode == "grid-constant" and order > 1 else 1e-9  # SciPy's border has 12 elements
    for shape in SHAPES:
        x = rng.standard_normal(shape)
        t, sizes, axes = gt.tensor(x), np.array(shape)[:, None], len(shape)
        places = rng.uniform(-1.5, 2.4, (axes, 60)) * sizes
        places[:, :9] = np.round(places[:, :9])  # on elements and edges, too
        options = {"order": order, "mode": mode, "cval": 0.7}
        for prefilter in (True, False):
            found = gt.ndimage.map_coordinates(t, places.reshape(axes, 6, 10), **options,
                                               prefilter=prefilter)
            same(found, nd.map_coordinates(x, places, **options, prefilter=prefilter).reshape(
                6, 10), near)
        matrix = np.eye(axes) + 0.2 * rng.standard_normal((axes, axes))
        offset = rng.standard_normal(axes)
        whole = np.column_stack([matrix, offset])
        wanted = nd.affine_transform(x, matrix, offset, **options)
        same(gt.ndimage.affine_transform(t, matrix, offset, **options), wanted, near)
        same(gt.ndimage.affine_transform(t, whole, **options), wanted, near)
        same(gt.ndimage.affine_transform(t, matrix.diagonal(), 0.5, **options),
             nd.affine_transform(x, matrix.diagonal(), 0.5, **options), near)


@pytest.mark.filterwarnings("ignore:It is recommended")  # SciPy's, of modes for grid_mode
@pytest.mark.parametrize("mode", MODES)
def test_zooms_are_scipys(mode: str, rng: np.random.Generator) -> None:
    for shape in SHAPES:
        x = rng.standard_normal(shape)
        for order in (1, 3):  # of 0 a place in the middle of two is one by rounding
            for grid_mode in (False, True):
                for factor in (1.7, 0.6, [2.0, 1, 0.5][:len(shape)]):
                    options = {"order": order, "mode": mode, "cval": 0.7, "grid_mode": grid_mode}
                    same(gt.ndimage.zoom(gt.tensor(x), factor, **options),
                         nd.zoom(x, factor, **options), 1e-6)


@pytest.mark.parametrize("mode", MODES)
def test_gaussian_filters_are_scipys(mode: str, rng: np.random.Generator) -> None:
    for shape in ((9,), (7, 40), (4, 1, 5)):
        x = rng.standard_normal(shape)
        for options in ({"sigma": 1.3}, {"sigma": 0.7, "order": 1}, {"sigma": 2, "order": 2},
                        {"sigma": 3, "radius": 4}, {"sigma": 1, "truncate": 2.5, "order": 3},
                        {"sigma": [2.0, 0], "axes": (0, -1)} if x.ndim > 1 else {"sigma": 0}):
            same(gt.ndimage.gaussian_filter(gt.tensor(x), mode=mode, cval=0.7, **options),
                 nd.gaussian_filter(x, mode=mode, cval=0.7, **options))


@pytest.mark.parametrize("order", [2, 3, 4, 5])
def test_coefficients_give_the_image_again(order: int, rng: np.random.Generator) -> None:
    """Also on short axes, where SciPy's filter of "reflect" is not exact."""
    for mode in ("mirror", "reflect", "grid-wrap"):
        x = rng.standard_normal((3, 40))
        filtered = gt.ndimage.spline_filter(gt.tensor(x), order, mode=mode)
        if mode != "reflect":
            same(filtered, nd.spline_filter(x, order, mode=mode))
        places = np.indices(x.shape).astype(float)
        same(gt.ndimage.map_coordinates(filtered, places, order=order, mode=mode, prefilter=False),
             x)


def _inner(rng: np.random.Generator, *shape: int) -> Any:
    """Places between elements, some beyond the edges."""
    return gt.tensor(rng.integers(-2, 5, shape) + rng.uniform(0.2, 0.8, shape), requires_grad=True)


@pytest.mark.parametrize("mode", ["constant", "mirror", "nearest", "reflect", "wrap", "grid-wrap"])
def test_derivatives_of_samples(mode: str, rng: np.random.Generator) -> None:
    x = gt.tensor(rng.standard_normal((4, 5)), requires_grad=True)
    check_derivatives(lambda x, c: gt.ndimage.map_coordinates(x, c, order=3, mode=mode),
                      x, _inner(rng, 2, 4))
    check_derivatives(lambda x, c: gt.ndimage.map_coordinates(x, c, order=1, mode=mode),
                      x, _inner(rng, 2, 4))


def test_derivatives_of_maps_by_matrix_and_offset(rng: np.random.Generator) -> None:
    x, matrix, offset = (gt.tensor(a, requires_grad=True) for a in (
        rng.standard_normal((4, 3)), np.eye(2) + 0.1 * rng.standard_normal((2, 2)),
        rng.uniform(0.2, 0.4, 2)))
    check_derivatives(lambda *given: gt.ndimage.affine_transform(*given, mode="reflect"),
                      x, matrix, offset)


def test_a_shift_is_found_again(rng: np.random.Generator) -> None:
    """Registration by Newton's steps, whose matrix needs second derivatives."""
    image = gt.tensor(nd.gaussian_filter(rng.standard_normal((30, 30)), 3))
    wanted = np.array([0.6, -0.4])
    target = gt.ndimage.affine_transform(image, gt.eye(2, dtype="float64"), wanted, mode="reflect")

    def loss(offset: gt.Tensor) -> gt.Tensor:
        moved = gt.ndimage.affine_transform(image, gt.eye(2, dtype="float64"), offset,
                                            mode="reflect")
        return ((moved - target) ** 2)[5:-5, 5:-5].sum() * 1e3

    offset = gt.zeros(2, dtype="float64")
    for _ in range(8):
        offset = offset - gt.linalg.solve(gt.hessian(loss)(offset), gt.grad(loss)(offset))
    np.testing.assert_allclose(offset.numpy(), wanted, atol=1e-8)


def test_dtypes_and_special_places() -> None:
    x = gt.arange(5, dtype="int64")
    assert gt.ndimage.zoom(x, 2, order=1).dtype == gt.float32
    for dtype in ("float16", "bfloat16", "float32"):
        image = gt.ones((4, 4), dtype)
        for found in (gt.ndimage.gaussian_filter(image, 1), gt.ndimage.zoom(image, 1.5),
                      gt.ndimage.spline_filter(image), gt.ndimage.map_coordinates(
                          image, gt.ones((2, 3), "float64"))):
            assert found.dtype == image.dtype and bool(gt.allclose(found.astype("f4"), 1.0, 1e-2))
    for mode in MODES:  # SciPy reads any element at NaN
        found = gt.ndimage.map_coordinates(gt.arange(5.0), gt.tensor([[gt.nan, 1.0]]), mode=mode)
        assert bool(gt.isnan(found[0])) and abs(found[1].item() - 1) < 1e-5
    assert gt.ndimage.map_coordinates(x, gt.ones((1, 0))).shape == (0,)
    assert gt.ndimage.zoom(gt.ones(3), 0).shape == (0,)
    copied = gt.ndimage.gaussian_filter(image, 0)
    copied[...] = 7
    assert image.max().item() == 1


WRONG: dict[str, Any] = {
    r"coordinates of shape \(3, 2\) for an input of shape \(3, 4\); wanted \(2, ...\)":
        lambda x: gt.ndimage.map_coordinates(x, gt.ones((3, 2))),
    r"map_coordinates was given order=6; wanted 0 to 5":
        lambda x: gt.ndimage.map_coordinates(x, gt.ones((2, 2)), order=6),
    r"mode='edge'; wanted one of 'constant'": lambda x: gt.ndimage.zoom(x, 2, mode="edge"),
    r"zoom was given zoom=\[1, 2, 3\] for 2 axes": lambda x: gt.ndimage.zoom(x, [1, 2, 3]),
    r"a matrix of shape \(3,\) for an input": lambda x: gt.ndimage.affine_transform(x, gt.ones(3)),
    r"an offset of shape \(3,\); wanted one number, or \(2,\)":
        lambda x: gt.ndimage.affine_transform(x, gt.eye(2), gt.ones(3)),
    r"sigma=\[1, 2, 3\] for 2 axes": lambda x: gt.ndimage.gaussian_filter(x, [1, 2, 3]),
    r"given sigma=-1": lambda x: gt.ndimage.gaussian_filter(x, -1),
    r"spline_filter of a tensor of shape \(0,\)": lambda x: gt.ndimage.spline_filter(gt.zeros(0)),
}


@pytest.mark.parametrize("message", WRONG)
def test_wrong_arguments_are_named(message: str) -> None:
    with pytest.raises(ValueError, match=message):
        WRONG[message](gt.ones((3, 4)))


def test_complex_images_are_refused() -> None:
    with pytest.raises(TypeError, match=r"zoom of a tensor of dtype complex64; wanted real"):
        gt.ndimage.zoom(gt.ones(3, "complex64"), 2)

"""Sorting, searching and sets against NumPy and PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import gtensor as gt
from gtensor.engine.handle.errors import GradientError
from gtensor.testing import gradcheck

SHAPES_AND_AXES: list[tuple[tuple[int, ...], int]] = [
    ((9,), -1), ((4, 7), -1), ((4, 7), 0), ((2, 5, 3), 1), ((0,), 0), ((3, 0), 1), ((3, 0), 0)]
DTYPES = ["bool", "int8", "uint32", "int64", "float16", "float32", "float64"]


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(np.random.randint(2**31))


# -- sorting ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("shape, axis", SHAPES_AND_AXES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_sort_and_argsort_equal_pytorchs(
    dtype: str, shape: tuple[int, ...], axis: int, descending: bool, rng: np.random.Generator
) -> None:
    x = rng.integers(0, 4, shape).astype(dtype)
    kept = x.copy()
    like = torch.from_numpy(x.astype(np.int64) if x.dtype.kind == "u" else x)
    values, order = torch.sort(like, dim=axis, descending=descending, stable=True)
    t = gt.tensor(x)
    given = gt.argsort(t, axis=axis, descending=descending)
    np.testing.assert_array_equal(given.numpy(), order.numpy(), strict=True)
    for stable in (True, False):
        ordered = gt.sort(t, axis=axis, descending=descending, stable=stable)
        assert ordered.dtype == x.dtype and ordered.numpy().flags.c_contiguous
        np.testing.assert_array_equal(ordered.numpy(), values.numpy())
        places = gt.argsort(t, axis=axis, descending=descending, stable=stable)
        np.testing.assert_array_equal(np.take_along_axis(x, places.numpy(), axis), values.numpy())
    np.testing.assert_array_equal(t.numpy(), kept)


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("shape, axis", SHAPES_AND_AXES)
@pytest.mark.parametrize("dtype", [gt.float16, gt.bfloat16])
def test_halves_with_nan_are_sorted(
    dtype: Any, shape: tuple[int, ...], axis: int, descending: bool, rng: np.random.Generator
) -> None:
    x = rng.choice([3.0, np.nan, -1.0, 2.0, -np.inf], shape)
    wanted = torch.sort(torch.from_numpy(x), dim=axis, descending=descending).values
    for tile in (4, 1 << 15):
        with gt.settings.override(tile_elements=tile):
            given = gt.sort(gt.tensor(x, dtype), axis=axis, descending=descending)
        assert given.dtype == dtype
        np.testing.assert_array_equal(given.numpy().astype(np.float64), wanted.numpy())


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("descending", [False, True])
def test_orders_and_what_they_take_are_in_the_arena(
    axis: int, descending: bool, rng: np.random.Generator
) -> None:
    x = gt.tensor(rng.standard_normal((60, 50)))
    with gt.settings.override(arena_min_bytes=0, tile_elements=200):
        before = gt.memory.stats("cpu").allocated
        order = gt.argsort(x, axis=axis, descending=descending)
        taken = gt.topk(x, 20, dim=axis, largest=descending)
        held = gt.memory.stats("cpu").allocated - before
    assert held >= sum(t.size * t.dtype.itemsize for t in (order, *taken))
    wanted = torch.sort(torch.from_numpy(x.numpy()), dim=axis, descending=descending)
    np.testing.assert_array_equal(order.numpy(), wanted.indices.numpy())
    np.testing.assert_array_equal(taken.values.numpy(),
                                  np.take(wanted.values.numpy(), range(20), axis))


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dtype", [gt.float32, gt.bfloat16])
def test_a_stable_sort_keeps_the_order_of_both_zeros(
    dtype: Any, descending: bool, rng: np.random.Generator
) -> None:
    x = rng.choice([0.0, -0.0, 1.0, -1.0], (3, 200)).astype(dtype)
    for tile in (16, 1 << 15):
        with gt.settings.override(tile_elements=tile):
            given = gt.sort(gt.tensor(x), descending=descending).numpy()
        for row, ordered in zip(x, given, strict=True):
            wanted = np.signbit(row[row == 0])
            np.testing.assert_array_equal(np.signbit(ordered[ordered == 0]), wanted)


def test_nan_sorts_as_the_largest() -> None:
    x = np.array([2.0, np.nan, -np.inf, np.inf, 0.0])
    for descending in (False, True):
        wanted = torch.sort(torch.from_numpy(x), descending=descending, stable=True)
        given = gt.sort(gt.tensor(x), descending=descending)
        np.testing.assert_array_equal(given.numpy(), wanted.values.numpy())
        np.testing.assert_array_equal(gt.argsort(gt.tensor(x), descending=descending).numpy(),
                                      wanted.indices.numpy())
    assert np.isnan(gt.topk(gt.tensor(x), 2).values.numpy()[0])


@pytest.mark.parametrize("axis", [0, -1])
@pytest.mark.parametrize("descending", [False, True])
def test_gradients_of_sort(axis: int, descending: bool, rng: np.random.Generator) -> None:
    x = gt.tensor(rng.permutation(15).reshape(3, 5) * 0.3, requires_grad=True)
    gradcheck(lambda x: gt.square(gt.sort(x, axis=axis, descending=descending)), x, order=2)


@pytest.mark.parametrize("name", ["sort", "argsort"])
def test_sorting_refuses_an_axis_not_there(name: str) -> None:
    for shape, axis in (((), 1), ((3,), 1)):
        with pytest.raises(ValueError, match=f"{name} along axis {axis} of a tensor of"):
            getattr(gt, name)(gt.zeros(shape), axis=axis)


@pytest.mark.parametrize("dim, k", [(-1, 3), (0, 2), (1, 6), (-1, 0), (0, 4)])
@pytest.mark.parametrize("largest", [True, False])
def test_topk_equals_pytorchs(
    dim: int, k: int, largest: bool, rng: np.random.Generator
) -> None:
    x = rng.permutation(24).reshape(4, 6) * 0.5
    wanted = torch.topk(torch.from_numpy(x), k, dim, largest)
    for tile in (4, 1 << 15):
        with gt.settings.override(tile_elements=tile):
            given = gt.topk(gt.tensor(x), k, dim, largest)
        np.testing.assert_array_equal(given.values.numpy(), wanted.values.numpy(), strict=True)
        np.testing.assert_array_equal(given.indices.numpy(), wanted.indices.numpy(), strict=True)
    values, indices = gt.topk(gt.tensor(x), k, dim, largest, sorted=False)
    np.testing.assert_array_equal(np.take_along_axis(x, indices.numpy(), dim), values.numpy())
    np.testing.assert_array_equal(np.sort(values.numpy(), dim),
                                  np.sort(wanted.values.numpy(), dim))


def test_gradient_of_topk_goes_to_the_elements_taken(rng: np.random.Generator) -> None:
    x = gt.tensor(rng.permutation(12).reshape(3, 4) * 0.3, requires_grad=True)
    gradcheck(lambda x: gt.square(gt.topk(x, 2, 0).values), x, order=2)
    assert not gt.topk(x, 2).indices.requires_grad


@pytest.mark.parametrize("k", [-1, 5])
def test_topk_refuses_a_k_out_of_range(k: int) -> None:
    with pytest.raises(ValueError, match=rf"topk was given k={k} .* wanted 0 to 4"):
        gt.topk(gt.zeros((3, 4)), k)


# -- searching -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["argmax", "argmin"])
@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("shape, axis", [((), None), ((7,), None), ((3, 5), None), ((3, 5), 0),
                                         ((2, 3, 4), -2), ((0, 3), 1)])
def test_the_first_extreme_is_found(
    name: str, shape: tuple[int, ...], axis: int | None, keepdims: bool, rng: np.random.Generator
) -> None:
    x = rng.integers(0, 3, shape)
    given = getattr(gt, name)(gt.tensor(x), axis=axis, keepdims=keepdims)
    wanted = getattr(np, name)(x, axis=axis, keepdims=keepdims)
    np.testing.assert_array_equal(given.numpy(), wanted)
    assert given.dtype == gt.int64 and given.shape == np.shape(wanted)


@pytest.mark.parametrize("shape", [(7,), (3, 5), (2, 0, 3), (2, 3, 4)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_nonzero_equals_numpys(
    shape: tuple[int, ...], dtype: str, rng: np.random.Generator
) -> None:
    x = rng.integers(0, 2, shape).astype(dtype)
    given = gt.nonzero(gt.tensor(x))
    assert isinstance(given, tuple)
    for place, wanted in zip(given, np.nonzero(x), strict=True):
        np.testing.assert_array_equal(place.numpy(), wanted, strict=True)


def test_nonzero_refuses_a_0d_tensor() -> None:
    with pytest.raises(ValueError, match="nonzero of a 0-d tensor"):
        gt.nonzero(gt.tensor(1.0))


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("dtype", ["int16", "float32", "float64"])
def test_searchsorted_equals_numpys(
    side: Any, dtype: str, rng: np.random.Generator
) -> None:
    x = rng.integers(0, 9, 11).astype(dtype)
    sorter = np.argsort(x, kind="stable")
    wanted = rng.integers(-1, 11, (3, 4)).astype(dtype)
    places = np.searchsorted(x, wanted, side, sorter)
    given = gt.searchsorted(gt.tensor(x), gt.tensor(wanted), side=side, sorter=gt.tensor(sorter))
    np.testing.assert_array_equal(given.numpy(), places, strict=True)
    given = gt.searchsorted(gt.tensor(x[sorter]), gt.tensor(wanted), side=side)
    np.testing.assert_array_equal(given.numpy(), places, strict=True)


def test_searchsorted_takes_a_number() -> None:
    assert gt.searchsorted(gt.arange(5), 2.5).item() == 3


def test_searchsorted_names_what_is_wrong() -> None:
    x = gt.arange(3)
    with pytest.raises(ValueError, match="side='middle'"):
        gt.searchsorted(x, x, side="middle")
    with pytest.raises(ValueError, match=r"in a tensor of shape \(1, 3\)"):
        gt.searchsorted(x.reshape(1, 3), x)
    with pytest.raises(ValueError, match=r"a sorter of shape \(2,\)"):
        gt.searchsorted(x, x, sorter=gt.arange(2))


# -- sets ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(), (9,), (3, 5), (0,), (2, 0)])
@pytest.mark.parametrize("dtype", [*DTYPES, "complex64"])
def test_sets_equal_numpys(
    shape: tuple[int, ...], dtype: str, rng: np.random.Generator
) -> None:
    x = rng.integers(0, 3, shape).astype(dtype)
    values, indices, inverse, counts = np.unique(
        x, return_index=True, return_inverse=True, return_counts=True)
    t = gt.tensor(x)
    found = gt.unique_all(t)
    assert found._fields == ("values", "indices", "inverse_indices", "counts")
    for given, wanted in zip(found, (values, indices, inverse.reshape(shape), counts), strict=True):
        np.testing.assert_array_equal(given.numpy(), wanted, strict=True)
    assert gt.unique_counts(t)._fields == ("values", "counts")
    np.testing.assert_array_equal(gt.unique_counts(t).counts.numpy(), counts)
    assert gt.unique_inverse(t)._fields == ("values", "inverse_indices")
    back = gt.unique_inverse(t)
    np.testing.assert_array_equal(back.values.numpy()[back.inverse_indices.numpy()], x)
    np.testing.assert_array_equal(gt.unique_values(t).numpy(), values, strict=True)


@pytest.mark.parametrize("dtype", [gt.float16, gt.bfloat16, gt.float32, gt.float64])
def test_every_nan_is_distinct(dtype: Any) -> None:
    x = gt.tensor(np.array([[np.nan, 1.0], [1.0, np.nan]]), dtype=dtype)
    found = gt.unique_all(x)
    assert found.values.dtype == dtype and found.values.shape == (3,)
    assert np.isnan(found.values.numpy()[1:].astype(np.float32)).all()
    assert found.counts.tolist() == [2, 1, 1]
    assert found.inverse_indices.tolist() == [[1, 0], [0, 2]]
    assert gt.unique_values(x).shape == (3,)


@pytest.mark.parametrize("name", ["unique_all", "unique_counts", "unique_inverse", "unique_values"])
def test_a_gradient_through_a_set_is_refused(name: str) -> None:
    x = gt.tensor([3.0, 1.0, 3.0], requires_grad=True)
    found = getattr(gt, name)(x)
    values = found if name == "unique_values" else found.values
    with pytest.raises(GradientError, match="unique_values.*has no derivative"):
        (values * 2).sum().backward()
    assert x.grad is None

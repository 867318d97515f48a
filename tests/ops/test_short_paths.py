"""Paths of the CPU that are chosen by size or layout give what NumPy's plain functions do."""

from __future__ import annotations

import numpy as np
import pytest

import gtensor as gt
from gtensor.backend import host
from gtensor.ops.define.cpu_tiles import SMALL


@pytest.mark.parametrize("tile", [1 << 16, 700])
def test_many_elements_along_the_last_axis(tile: int, rng: np.random.Generator) -> None:
    x = rng.standard_normal((3, 40, 50)).astype(np.float32)
    places = rng.integers(0, 50, (3, 40, 70))
    assert places.size > SMALL
    with gt.settings.override(tile_elements=tile):
        for given in (places, places - 50, places.astype(np.int32)):
            found = gt.take_along_axis(gt.asarray(x), gt.asarray(given))
            np.testing.assert_array_equal(found.numpy(), np.take_along_axis(x, places, -1))
    for wrong in (50, -51):
        places[1, 2, 3] = wrong
        with pytest.raises(IndexError, match=f"index {wrong} is out of bounds"):
            gt.take_along_axis(gt.asarray(x), gt.asarray(places))


@pytest.mark.parametrize("shape", [(64, 256), (300, 512), (70, 1024)])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bool", "bfloat16"])
def test_a_copy_of_a_transposed_matrix(
    shape: tuple[int, int], dtype: str, rng: np.random.Generator
) -> None:
    x = rng.integers(0, 2, shape)
    copy = gt.asarray(x).astype(dtype).T.clone()
    assert copy._array.flags.c_contiguous
    np.testing.assert_array_equal(copy.astype("int64").numpy(), x.T)
    wide = gt.asarray(x).astype(dtype).T.astype("int64")  # a copy in another dtype
    np.testing.assert_array_equal(wide.numpy(), x.T)


@pytest.mark.parametrize(("shape", "axis"), [((5, 300), 0), ((2, 7, 20, 15), 1), ((3, 1, 256), -2)])
@pytest.mark.parametrize("initial", [False, True])
def test_a_scan_of_long_slices(
    shape: tuple[int, ...], axis: int, initial: bool, rng: np.random.Generator
) -> None:
    x = rng.standard_normal(shape).astype(np.float32)
    found = gt.cumulative_sum(gt.asarray(x), axis=axis)
    np.testing.assert_array_equal(found.numpy(), np.cumsum(x, axis))
    product = gt.cumulative_prod(gt.asarray(x), axis=axis, include_initial=initial)
    wanted = np.cumprod(x, axis)
    if initial:
        wanted = np.concatenate([np.ones_like(wanted.take([0], axis)), wanted], axis)
    np.testing.assert_array_equal(product.numpy(), wanted)


def test_products_of_small_factors_that_repeat_or_add_up(rng: np.random.Generator) -> None:
    a, b = rng.standard_normal((9, 6)), rng.standard_normal((6, 8))
    repeated = np.broadcast_to(a[:1], a.shape)
    for left in (a, repeated, a[:, ::-1], np.broadcast_to(a[:1, :1], a.shape)):
        total = rng.standard_normal((9, 8))
        wanted = total + left @ b
        assert host().matmul(left, b, total, 1.0) is total
        np.testing.assert_allclose(total, wanted, rtol=1e-13)
        np.testing.assert_allclose(host().matmul(left, b), left @ b, rtol=1e-13)

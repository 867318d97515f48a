"""Rounding errors of sums of constant, alternating and random rows: at most 5 eps of the sum of the
absolute values, for any number of terms, layout and axes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import gtensor as gt
import gtensor.nn.functional as F
from gtensor.ops.define.sums import row_means, row_sums

BOUND = 5.0  # eps
COUNTS = [2, 3, 16, 17, 33, 63, 64, 65, 97, 100, 127, 129, 1000, 1365, 4096, 10_000, 65_537]
LONG = [100_003, 1_000_000]
MOST = 20_000_000  # numbers of a layout, of which `exact` makes a copy of 16 bytes each
CONSTANTS = [1000.1, 1 / 3, 7.7]
DTYPES = ["float32", "float64"]

# From (n, c) to what is summed, and its axes.
LAYOUTS: dict[str, tuple[Callable[[np.ndarray], np.ndarray], Any]] = {
    "the first axis": (lambda x: x, 0),
    "the last axis": (lambda x: np.ascontiguousarray(x.T), -1),
    "the last axis of a transposed view": (lambda x: x.T, -1),
    "an axis between": (lambda x: np.stack([x, x]), 1),
    "both ends": (lambda x: np.stack([x, x[::-1]], 1), (0, 2)),
    "all": (lambda x: x, None),
    "reversed": (lambda x: x[::-1], 0),
    "a part of the columns": (lambda x: np.concatenate([x, x, x], 1)[:, 1:-1], 0),
    "every second row": (lambda x: np.repeat(x, 2, 0)[::2], 0),
    "a repeated row": (lambda x: np.broadcast_to(x[:1], x.shape), 0),
    "repeated columns": (lambda x: np.broadcast_to(x[:, None, :1], (len(x), 41, 3)), (0, 1)),
    "permuted axes": (lambda x: np.stack([x] * 17)[..., ::-1].transpose(2, 0, 1), (1, 2)),
    "short axes apart": (lambda x: short_axes(x), (0, 2)),
}


def short_axes(x: np.ndarray) -> np.ndarray:
    """x's rows on the first and third axis of (17, columns, 9, 19), with gaps between."""
    rows = np.resize(x, (17, 10, 19, x.shape[1])).transpose(0, 3, 1, 2)
    return np.ascontiguousarray(rows)[:, :, :-1]


def terms(count: int, width: int, dtype: str) -> Iterator[np.ndarray]:
    """Constant, alternating and random rows."""
    for value in CONSTANTS:
        yield np.full((count, width), value, dtype)
    x = np.full((count, width), 1000.1, dtype)
    x[::2] *= -1
    yield x
    yield np.random.default_rng(count).standard_normal((count, width)).astype(dtype)


def exact(x: np.ndarray, axis: Any) -> np.ndarray:
    """The sums in a longer type, added pairwise."""
    axes = range(x.ndim) if axis is None else np.atleast_1d(axis)
    moved = np.moveaxis(x, [int(a) for a in axes], range(-len(axes), 0))
    moved = moved.astype(np.longdouble, order="C")  # NumPy adds pairwise along a dense axis alone
    return moved.reshape(*moved.shape[:x.ndim - len(axes)], -1).sum(-1)


def check(x: np.ndarray, axis: Any, what: str, device: str = "cpu") -> None:
    found = gt.sum(gt.asarray(x, device=device), axis=axis).to("cpu").numpy()
    error = np.abs(found - exact(x, axis))
    allowed = BOUND * np.finfo(x.dtype).eps * exact(np.abs(x), axis)
    worst = np.max(error / np.maximum(allowed, np.finfo(x.dtype).tiny)) * BOUND
    assert worst <= BOUND, f"{what} of {x.shape}, {x.dtype}: off by {float(worst):.1f} eps"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_error_does_not_grow_with_the_number_of_terms(layout: str, dtype: str) -> None:
    make, axis = LAYOUTS[layout]
    for count in COUNTS:
        for width in (1, 3, 50):
            if count * width <= 70_000:
                for x in terms(count, width, dtype):
                    check(make(x), axis, layout)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_error_of_long_sums(layout: str, dtype: str) -> None:
    make, axis = LAYOUTS[layout]
    for count, width in [(n, c) for n in LONG for c in (1, 2, 3, 16)] + [(5000, 1000), (300, 5000)]:
        if make(np.empty((count, width), dtype)).size > MOST:
            continue
        for x in terms(count, width, dtype):
            check(make(x), axis, layout)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", ["the first axis", "the last axis", "an axis between", "all"])
def test_the_error_on_a_gpu(layout: str, dtype: str) -> None:
    make, axis = LAYOUTS[layout]
    for count, width in ((100, 3), (4096, 1), (20_000, 3), (3000, 64)):
        for x in terms(count, width, dtype):
            check(make(x), axis, layout, "cuda")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_complex_and_half_types(layout: str) -> None:
    make, axis = LAYOUTS[layout]
    for count in (33, 1000, 20_000):
        x = make(np.full((count, 3), 1000.1 - 0.3j, np.complex64))
        found = gt.sum(gt.asarray(x), axis=axis).numpy()
        np.testing.assert_allclose(found, x.astype(complex).sum(axis), rtol=4e-7)
        x = make(np.full((count, 3), 0.3, np.float16))
        if 0.3 * x.size > float(np.finfo(x.dtype).max):
            continue
        found = gt.sum(gt.asarray(x), axis=axis).numpy()
        np.testing.assert_allclose(found, x.astype(float).sum(axis).astype(np.float16), rtol=1e-3)


@pytest.mark.parametrize("columns", [16, 64, 100, 127, 500, 768, 1009, 4095, 4096, 5000])
@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_and_means_of_rows(columns: int, dtype: str) -> None:
    for x in terms(columns, 2 + 9000 // columns, dtype):
        rows = np.ascontiguousarray(x.T)
        eps, size = np.finfo(x.dtype).eps, np.abs(rows).sum(-1, keepdims=True)
        wanted = exact(rows, -1)[:, None]
        assert np.all(np.abs(row_sums(rows) - wanted) <= BOUND * eps * size)
        assert np.all(np.abs(row_means(rows) - wanted / columns) <= BOUND * eps * size / columns)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("columns", [3, 7, 64, 100, 768, 1000, 1021, 4096, 5000])
def test_the_layer_norm_of_equal_numbers(columns: int, dtype: str) -> None:
    """Their deviation is 0 and their mean this number, alone and among rows that are none."""
    rng = np.random.default_rng(columns)
    for rows in (2, 10_000 // columns + 2, 40_000 // columns + 2):
        values = (rng.random((rows, 1)) * 1000 * rng.choice([-1, 1], (rows, 1))).astype(dtype)
        x = np.repeat(values, columns, 1)
        x[1::2] = rng.standard_normal((rows // 2, columns))
        x = gt.asarray(x).requires_grad_()
        upstream = rng.standard_normal((rows, columns)).astype(dtype)
        y = F.layer_norm(x, (columns,))
        y.backward(gt.asarray(upstream))
        np.testing.assert_array_equal(y.detach().numpy()[::2], 0)
        wanted = (upstream - upstream.mean(-1, keepdims=True, dtype=float)) / np.sqrt(1e-5)
        error = np.abs(x.grad.numpy() - wanted)[::2]
        assert error.max() <= 1e-4 * np.abs(wanted).max()
        others = x.detach().numpy()[1::2].astype(float)
        others -= others.mean(-1, keepdims=True)
        others /= np.sqrt((others ** 2).mean(-1, keepdims=True) + 1e-5)
        np.testing.assert_allclose(y.detach().numpy()[1::2], others, rtol=1e-5, atol=1e-5)


def test_the_gradient_of_a_bias() -> None:
    x, bias = gt.ones((50_000, 2), dtype="float32"), gt.zeros(3, dtype="float32")
    bias.requires_grad_()
    F.linear(x, gt.ones((3, 2), dtype="float32"), bias).backward(
        gt.full((50_000, 3), 1000.1, dtype="float32"))
    np.testing.assert_allclose(bias.grad.numpy(), 50_000 * float(np.float32(1000.1)), rtol=5e-7)


def test_sums_of_broadcast_infinities() -> None:
    x = np.broadcast_to(np.array([np.inf, 1, np.nan], np.complex64), (50, 3))
    found = gt.sum(gt.asarray(x), axis=0).numpy()
    assert found[0] == np.inf and found[1] == 50 and np.isnan(found[2])

"""Rounding errors of sums: at most 4 eps of the sum of the absolute values, for any number of
terms, layout and axes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import gtensor as gt
import gtensor.nn.functional as F
from gtensor.ops.build.sums import row_means, row_sums

BOUND = 4.0  # eps
COUNTS = [2, 3, 16, 17, 33, 63, 64, 65, 97, 100, 127, 129, 1000, 1365, 4096, 10_000, 65_537]
LONG = [100_003, 1_000_000]
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
}


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
    moved = np.moveaxis(x, [int(a) for a in axes], range(-len(axes), 0)).astype(np.longdouble)
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


@pytest.mark.parametrize("columns", [2048, 4096, 1000, 768])
def test_the_layer_norm_of_equal_numbers(columns: int) -> None:
    """Their deviation is 0, and that of their rounded mean is not."""
    x = gt.full((2, columns), 1000.1, dtype="float32").requires_grad_()
    upstream = np.random.default_rng(0).standard_normal((2, columns))
    y = F.layer_norm(x, (columns,))
    y.backward(gt.asarray(upstream.astype(np.float32)))
    assert np.abs(y.detach().numpy()).max() <= 0.02
    wanted = (upstream - upstream.mean(-1, keepdims=True)) / np.sqrt(1e-5)
    assert np.abs(x.grad.numpy() - wanted).max() <= 0.01 * np.abs(wanted).max()


def test_the_gradient_of_a_bias() -> None:
    x, bias = gt.ones((50_000, 2), dtype="float32"), gt.zeros(3, dtype="float32")
    bias.requires_grad_()
    F.linear(x, gt.ones((3, 2), dtype="float32"), bias).backward(
        gt.full((50_000, 3), 1000.1, dtype="float32"))
    np.testing.assert_allclose(bias.grad.numpy(), 50_000 * float(np.float32(1000.1)), rtol=5e-7)

"""Pooling against PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as TF
from against_torch import compare, compare_functional, leaves

import gtensor as gt
import gtensor.nn.functional as F
from gtensor.ops.pool import max_pool

WINDOWS: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "2x2": ((2, 3, 4, 6), {"kernel_size": 2}),
    "overlapping, padded": ((2, 2, 7, 6),
                            {"kernel_size": (3, 2), "stride": (2, 1), "padding": (1, 1)}),
    "ceiling": ((1, 2, 5, 5), {"kernel_size": 2, "ceil_mode": True}),
    "padded ceiling": ((1, 2, 7, 6),
                       {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True}),
    "ceiling whose last window would begin in the padding": (
        (1, 1, 4, 4), {"kernel_size": 1, "stride": 3, "ceil_mode": True}),
    "gaps": ((1, 2, 8, 9), {"kernel_size": 2, "stride": 4}),
    "one image": ((2, 5, 5), {"kernel_size": 3, "stride": 1}),
    "whole image": ((2, 1, 3, 3), {"kernel_size": 3}),
    "images left over": ((3, 1, 3, 3), {"kernel_size": 2, "stride": 1}),  # two to a tile of 20
}


@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.parametrize(("tile", "compiled"), [(65536, 0), (20, 0), (65536, 1)])
def test_max_pool(
    name: str, dilation: int, tile: int, compiled: int, rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(max_pool, "FEWEST_COLUMNS", 1)
    shape, options = WINDOWS[name]
    options = {**options, "dilation": dilation}
    values = rng.permutation(int(np.prod(shape))).reshape(shape) * 0.1 - 1
    if dilation == 2 and name == "whole image":
        options["padding"] = 1
    with gt.settings.override(tile_elements=tile, compiled=compiled):
        compare_functional(lambda f, x: f.max_pool2d(x, **options), [values])


@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.parametrize("count_include_pad", [True, False])
@pytest.mark.parametrize("tile", [65536, 20])
def test_avg_pool(name: str, count_include_pad: bool, tile: int, rng: np.random.Generator) -> None:
    shape, options = WINDOWS[name]
    options = {**options, "count_include_pad": count_include_pad}
    with gt.settings.override(tile_elements=tile):
        compare_functional(lambda f, x: f.avg_pool2d(x, **options), [rng.standard_normal(shape)])


SIGNALS: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "2": ((2, 3, 7), {"kernel_size": 2}),
    "overlapping, padded": ((2, 2, 8), {"kernel_size": 3, "stride": 2, "padding": 1}),
    "ceiling": ((2, 2, 8), {"kernel_size": (3,), "stride": (2,), "ceil_mode": True}),
    "one signal": ((2, 5), {"kernel_size": 3, "stride": 1}),
    "no signals": ((0, 2, 5), {"kernel_size": 3}),
}


@pytest.mark.parametrize("name", SIGNALS)
def test_pooling_of_signals(name: str, rng: np.random.Generator) -> None:
    shape, options = SIGNALS[name]
    x = rng.permutation(int(np.prod(shape))).reshape(shape) * 0.1 - 1
    compare_functional(lambda f, x: f.max_pool1d(x, **options, dilation=2 if shape[-1] > 7 else 1),
                       [x], second=False)
    for padded in (True, False):
        compare_functional(
            lambda f, x, padded=padded: f.avg_pool1d(x, **options, count_include_pad=padded), [x])


@pytest.mark.parametrize("size", [1, 3, (4,), 7, 10])
@pytest.mark.parametrize("shape", [(2, 3, 7), (3, 9), (0, 2, 5)])
def test_adaptive_pooling_of_signals(
    size: Any, shape: tuple[int, ...], rng: np.random.Generator
) -> None:
    compare_functional(lambda f, x: f.adaptive_avg_pool1d(x, size), [rng.standard_normal(shape)])


@pytest.mark.parametrize("size", [1, 2, (2, 3), (3, None), (None, 5), 6, (7, 9)])
@pytest.mark.parametrize("shape", [(2, 3, 6, 7), (3, 6, 6)])
def test_adaptive_max_pool(size: Any, shape: tuple[int, ...], rng: np.random.Generator) -> None:
    compare_functional(lambda f, x: f.adaptive_max_pool2d(x, size),
                       [rng.permutation(int(np.prod(shape))).reshape(shape) * 0.1])


def test_an_infinity_stays_in_its_windows() -> None:
    x = np.zeros((1, 1, 7, 5))
    x[0, 0, 3, 1] = np.inf
    ours = F.adaptive_avg_pool2d(gt.tensor(x, device="cpu"), (3, 2)).numpy()
    np.testing.assert_array_equal(ours, TF.adaptive_avg_pool2d(torch.tensor(x), (3, 2)).numpy())
    assert np.isfinite(ours).sum() == 5
    many = np.zeros((1, 60, 60))  # which is computed in blocks
    many[0, 30, 30] = np.inf
    assert np.isfinite(F.adaptive_avg_pool2d(gt.tensor(many, device="cpu"), 7).numpy()).sum() == 48


@pytest.mark.parametrize("size", [1, 2, (2, 3), (3, None), (None, 5), 6, (7, 9)])
@pytest.mark.parametrize("shape", [(2, 3, 6, 7), (3, 6, 6)])
def test_adaptive_avg_pool(size: Any, shape: tuple[int, ...], rng: np.random.Generator) -> None:
    compare_functional(lambda f, x: f.adaptive_avg_pool2d(x, size), [rng.standard_normal(shape)])


@pytest.mark.parametrize("compiled", [0, 1])
def test_ties_nan_and_infinity_are_as_in_torch(
    compiled: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(max_pool, "FEWEST_COLUMNS", 1)
    x = np.array(
        [
            [1.0, 1.0, np.nan, 0.0],
            [1.0, 1.0, np.nan, 5.0],
            [-np.inf, -np.inf, np.inf, 2.0],
            [-np.inf, -np.inf, np.inf, np.inf],
        ]
    )[None, None]
    for options in ({"kernel_size": 2}, {"kernel_size": 2, "padding": 1, "stride": 1}):
        (ours,), theirs = leaves([x]), torch.tensor(x, requires_grad=True)
        with gt.settings.override(compiled=compiled):
            y, wanted = F.max_pool2d(ours, **options), TF.max_pool2d(theirs, **options)
            np.testing.assert_array_equal(y.numpy(), wanted.detach().numpy())
            y.sum().backward()
        wanted.sum().backward()
        np.testing.assert_array_equal(ours.grad.numpy(), theirs.grad.numpy())


def test_kernels_serve_wide_rows_of_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    monkeypatch.setattr(max_pool, "_run", lambda name, *rest: called.append(name))
    monkeypatch.setattr(max_pool, "readable", lambda *arrays: True)
    for width in (15, 16):
        F.max_pool2d(gt.ones((1, 1, 2, width)), 2)
    assert called == ["max_pool"]


@pytest.mark.parametrize("function", ["max_pool2d", "avg_pool2d"])
def test_two_gradients_of_one_image_accumulate(function: str, rng: np.random.Generator) -> None:
    x = rng.permutation(32).reshape(1, 2, 4, 4) * 0.1
    ours, theirs = getattr(F, function), getattr(TF, function)
    compare(lambda x: ours(x, 2) + 3 * ours(x, 2), lambda x: 4 * theirs(x, 2), [x], second=False)


@pytest.mark.parametrize("function", ["max_pool2d", "avg_pool2d", "adaptive_avg_pool2d"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_types(function: str, dtype: str, rng: np.random.Generator) -> None:
    half = getattr(gt, dtype)
    side = 7 if function.startswith("adaptive") else 8
    x = rng.standard_normal((2, 3, side, side)).astype(half)
    (ours,), theirs = leaves([x]), torch.tensor(x.astype(np.float64), requires_grad=True)
    y, wanted = getattr(F, function)(ours, 4), getattr(TF, function)(theirs, 4)
    assert y.dtype == half
    y.backward(gt.ones(y.shape, half, "cpu"))
    wanted.sum().backward()
    rtol = {"float16": 2.0**-11, "bfloat16": 2.0**-8}[dtype] * 1.01
    np.testing.assert_allclose(y.numpy().astype(np.float64), wanted.detach().numpy(), rtol=2 * rtol,
                               atol=rtol)
    np.testing.assert_allclose(ours.grad.numpy().astype(np.float64), theirs.grad.numpy(),
                               rtol=2 * rtol)


def test_no_images() -> None:
    x = gt.zeros((0, 2, 4, 4), device="cpu", requires_grad=True)
    pooled = (F.max_pool2d(x, 2), F.avg_pool2d(x, 2), F.adaptive_avg_pool2d(x, 2))
    for y in (*pooled, F.adaptive_max_pool2d(x, 2)):
        assert y.shape == (0, 2, 2, 2)
        y.sum().backward()
        assert x.grad is not None and x.grad.shape == x.shape


def test_max_pool_saves_places_only() -> None:
    y = F.max_pool2d(gt.ones((1, 1, 4, 4), device="cpu", requires_grad=True), 2)
    (places,) = y._node.saved
    assert places.dtype == np.int32 and places.shape == (1, 1, 2, 2)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: F.max_pool2d(x[0, 0], 2), r"max_pool2d was given an input of shape \(4, 4\)"),
        (lambda x: F.max_pool2d(x, 0),
         "max_pool2d was given kernel_size=0; wanted an integer from 1 on"),
        (lambda x: F.avg_pool2d(x, 2, padding=2),
         "padding=2 for kernel_size=2; wanted at most half"),
        (lambda x: F.max_pool2d(x, 5), "max_pool2d of an input of shape .* kernel_size=5"),
        (lambda x: F.avg_pool2d(x, 2, stride=(1,)), r"avg_pool2d was given stride=\(1,\)"),
        (lambda x: F.adaptive_avg_pool2d(x, (2, 0)),
         r"adaptive_avg_pool2d was given output_size=\(2, 0\)"),
        (lambda x: F.max_pool1d(x, 2), r"\(1, 2, 4, 4\); wanted \(N, C, L\) or \(C, L\)"),
        (lambda x: F.avg_pool1d(x[0], (2, 2)), r"kernel_size=\(2, 2\); wanted an integer from 1"),
        (lambda x: F.max_pool1d(x[0], 5), r"have an output of \(0,\)"),
        (lambda x: F.adaptive_max_pool2d(x, (2, 2, 2)), r"adaptive_max_pool2d was given output_"),
        (lambda x: F.adaptive_avg_pool2d(x[:, :, :0], 1),
         "at least one element along each pooled axis"),
    ],
)
def test_messages(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(gt.zeros((1, 2, 4, 4), device="cpu"))

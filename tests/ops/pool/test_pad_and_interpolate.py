"""Padding and interpolation against PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as TF
from against_torch import compare_functional, leaves

import gtensor as gt
import gtensor.nn.functional as F

# -- pad -------------------------------------------------------------------------------------------

CONSTANT: dict[str, tuple[tuple[int, ...], tuple[int, ...], float | None]] = {
    "one axis": ((3, 4), (1, 2), None),
    "two axes": ((2, 3, 4), (1, 0, 2, 3), 1.5),
    "all axes": ((2, 3), (0, 1, 2, 0), -1.0),
    "cut": ((2, 5, 6), (-1, 2, 1, -3), 2.0),
    "all cut": ((2, 4), (-2, -2), None),
    "nothing": ((2, 4), (), None),
    "zeros": ((2, 4), (0, 0), 3.0),
    "an empty axis": ((2, 0), (1, 2), 1.0),
    "no images": ((0, 3, 4), (1, 1), 1.0),
}


@pytest.mark.parametrize("name", CONSTANT)
def test_constant(name: str, rng: np.random.Generator) -> None:
    shape, pad, value = CONSTANT[name]
    compare_functional(lambda f, x: f.pad(x, pad, value=value), [rng.standard_normal(shape)])


OWN = [
    ((2, 3, 5), (2, 1)),
    ((2, 3, 5), (4, 4)),
    ((2, 3, 5), (0, 3)),
    ((3, 1, 4, 5), (1, 2, 3, 0)),
    ((3, 2, 4, 5), (0, 0, 1, 1)),
    ((2, 3, 5), (-1, 2)),
    ((2, 3, 5), (3, -2)),
    ((2, 3, 5), (-2, -2)),
    ((2, 3, 4, 5), (1, -1, -1, 2)),
]
TAKEN = [("reflect", (-3, 2)), ("reflect", (-1, 4)), ("reflect", (-5, 1)), ("replicate", (5, -1))]


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
@pytest.mark.parametrize(("shape", "pad"), OWN)
def test_own_elements(
    mode: str, shape: tuple[int, ...], pad: tuple[int, ...], rng: np.random.Generator
) -> None:
    compare_functional(lambda f, x: f.pad(x, pad, mode=mode), [rng.standard_normal(shape)])


@pytest.mark.parametrize(("mode", "pad"), TAKEN)
def test_what_is_taken_away_is_mirrored_first(mode: str, pad: Any) -> None:
    test_own_elements(mode, (2, 3, 5), pad, np.random.default_rng(0))


@pytest.mark.parametrize("mode", ["constant", "reflect", "replicate", "circular"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "int64"])
def test_dtypes_stay(mode: str, dtype: str) -> None:
    x = np.arange(12).reshape(1, 3, 4).astype(getattr(gt, dtype))
    ours = F.pad(gt.tensor(x, device="cpu"), (1, 2), mode=mode)
    theirs = TF.pad(torch.tensor(x.astype(np.float64)), (1, 2), mode=mode)
    assert ours.dtype == x.dtype
    np.testing.assert_array_equal(ours.numpy().astype(np.float64), theirs.numpy())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pad": (1,)}, r"pad=\(1,\) for an input of shape \(2, 4\); wanted two integers"),
        ({"pad": (1, 1) * 3}, "wanted two integers for each padded axis"),
        ({"pad": (1, 1.5)}, "wanted two integers"),
        ({"pad": (1, 1), "mode": "mirror"}, "mode='mirror'; wanted one of constant, reflect"),
        ({"pad": (1, 1), "mode": "reflect", "value": 1.0}, "value=1.0 with mode='reflect'"),
        ({"pad": (4, 0), "mode": "reflect"}, r"\(4, 0\) with mode='reflect' .* 0 to 3"),
        ({"pad": (0, 5), "mode": "circular"}, "mode='circular' for an axis of 4 elements; .* 4"),
        ({"pad": (4, -1), "mode": "circular"}, "with mode='circular' for an axis of 3 elements"),
        ({"pad": (-3, -2), "mode": "replicate"}, r"take \(-3, -2\) from an axis of 4"),
        ({"pad": (-3, -2)}, r"take \(-3, -2\) from an axis of 4"),
    ],
)
def test_messages_of_pad(options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        F.pad(gt.zeros((2, 4), device="cpu"), **options)


# -- interpolate -----------------------------------------------------------------------------------

SIZES: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    ((2, 3, 4, 5), {"scale_factor": 2}),
    ((2, 3, 4, 5), {"scale_factor": (1.5, 0.7)}),
    ((1, 2, 7, 6), {"size": (3, 11)}),
    ((1, 2, 7, 6), {"size": 1}),
    ((1, 2, 1, 3), {"size": (4, 3)}),
    ((1, 1, 5, 5), {"scale_factor": 2.3, "recompute_scale_factor": True}),
    ((0, 2, 4, 4), {"size": 6}),
    ((1, 2, 5, 6), {"scale_factor": (1.1, 2.1)}),  # to the same size, and to twice it
    ((2, 3, 5), {"size": 9}),
    ((2, 3, 10), {"scale_factor": 0.35}),
    ((2, 3, 5), {"size": (5,)}),
]


@pytest.mark.parametrize(("shape", "options"), SIZES)
@pytest.mark.parametrize("mode", ["nearest", "area", "linear", "linear, corners"])
@pytest.mark.parametrize("tile", [65536, 7])
def test_interpolate(
    shape: tuple[int, ...], options: Any, mode: str, tile: int, rng: np.random.Generator
) -> None:
    options = {**options, "mode": mode}
    if mode.startswith("linear"):
        options["mode"] = "linear" if len(shape) == 3 else "bilinear"
        options["align_corners"] = mode == "linear, corners"
    with gt.settings.override(tile_elements=tile):
        compare_functional(lambda f, x: f.interpolate(x, **options), [rng.standard_normal(shape)],
                           second=tile > 7)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_nearest_element_is_pytorchs_at_every_size(dtype: Any) -> None:
    for old in (3, 7, 10, 49):
        x = np.arange(old, dtype=dtype).reshape(1, 1, old)
        for new in range(1, 120):
            ours = F.interpolate(gt.tensor(x, device="cpu"), new).numpy()
            assert np.array_equal(ours, TF.interpolate(torch.tensor(x), new).numpy()), (old, new)
        for factor in (0.4, 1.1, 1.7, 2.5, 3.3):
            ours = F.interpolate(gt.tensor(x, device="cpu"), scale_factor=factor).numpy()
            theirs = TF.interpolate(torch.tensor(x), scale_factor=factor).numpy()
            assert np.array_equal(ours, theirs), (old, factor)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
def test_half_types(dtype: str, mode: str, rng: np.random.Generator) -> None:
    half = getattr(gt, dtype)
    x = rng.standard_normal((2, 3, 5, 4)).astype(half)
    (ours,), theirs = leaves([x]), torch.tensor(x.astype(np.float64), requires_grad=True)
    y = F.interpolate(ours, (13, 7), mode=mode)
    wanted = TF.interpolate(theirs, (13, 7), mode=mode)
    g = rng.standard_normal(y.shape).astype(half)
    y.backward(gt.tensor(g, device="cpu"))
    wanted.backward(torch.tensor(g.astype(np.float64)))
    rtol = {"float16": 2.0**-11, "bfloat16": 2.0**-8}[dtype]
    for a, b in ((y, wanted.detach()), (ours.grad, theirs.grad)):
        assert a.dtype == half
        np.testing.assert_allclose(
            a.numpy().astype(np.float64), b.numpy(), rtol=4 * rtol, atol=8 * rtol
        )


def test_an_infinity_stays_where_it_is() -> None:
    x = np.zeros((1, 1, 6))
    x[..., 2] = np.inf
    y = F.interpolate(gt.tensor(x, device="cpu"), 12, mode="linear").numpy()
    assert np.isfinite(y[..., :3]).all() and np.isfinite(y[..., 7:]).all()
    assert not np.isnan(y).any()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"size": 3, "mode": "cubic"}, ValueError, r"mode='cubic' for .* \(1, 2, 4, 4\)"),
        ({"size": 3, "mode": "linear"}, ValueError, "'linear' for .* wanted 'nearest' or 'area'"),
        ({"size": 3, "align_corners": True}, ValueError, "align_corners=True with mode='nearest'"),
        ({}, ValueError, "size=None and scale_factor=None; wanted one of them"),
        ({"size": 3, "scale_factor": 2}, ValueError, "size=3 and scale_factor=2"),
        ({"size": (3, 3, 3)}, ValueError, r"\(3, 3, 3\) for an input .* wanted 2 numbers"),
        ({"size": 0}, ValueError, r"asked for the size \(0, 0\); wanted integers from 1 on"),
        ({"scale_factor": 0.1}, ValueError, r"asked for the size \(0, 0\)"),
    ],
)
def test_messages_of_interpolate(options: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=f"interpolate .*{message}"):
        F.interpolate(gt.zeros((1, 2, 4, 4), device="cpu"), **options)


def test_interpolate_refuses_what_it_cannot_mix() -> None:
    with pytest.raises(TypeError, match="interpolate was given input of dtype int64"):
        F.interpolate(gt.zeros((1, 2, 4), "int64", "cpu"), 3)
    with pytest.raises(ValueError, match="at least one element along each axis"):
        F.interpolate(gt.zeros((1, 2, 0), device="cpu"), 3)

"""Convolution against PyTorch; its products whole and in tiny workspaces, without kernels in C."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as TF
from against_torch import compare, compare_functional, leaves

import gtensor as gt
import gtensor.nn.functional as F
from gtensor.ops.conv import paths
from gtensor.testing.compare import close

CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "3x3": ((2, 3, 5, 4), (4, 3, 3, 3), {}),
    "1x1": ((2, 3, 4, 4), (5, 3, 1, 1), {}),
    "1x1 in groups": ((2, 4, 3, 3), (6, 2, 1, 1), {"groups": 2}),
    "1x1 with stride": ((2, 3, 5, 5), (2, 3, 1, 1), {"stride": 2}),
    "1x1 with padding": ((1, 3, 2, 2), (2, 3, 1, 1), {"padding": 1}),
    "all at once": ((3, 4, 9, 8), (6, 2, 3, 2),
                    {"stride": (2, 3), "padding": (1, 0), "dilation": (1, 2), "groups": 2}),
    "depthwise, same": ((2, 4, 6, 5), (4, 1, 3, 3), {"groups": 4, "padding": "same"}),
    "depthwise with stride": (
        (3, 3, 7, 6), (6, 1, 3, 2),
        {"groups": 3, "stride": (2, 1), "padding": (2, 1), "dilation": (1, 3)}),
    "two channels to a group": ((2, 6, 5, 6), (6, 2, 2, 3), {"groups": 3, "padding": 1}),
    "two channels to a group, with stride": ((2, 6, 5, 6), (6, 2, 2, 3),
                                             {"groups": 3, "stride": 2}),
    "depthwise, padding beyond the kernel": ((2, 2, 3, 3), (2, 1, 2, 2),
                                             {"groups": 2, "padding": 3}),
    "depthwise, no images": ((0, 3, 5, 5), (3, 1, 3, 3), {"groups": 3}),
    "same with an even kernel": ((1, 2, 6, 6), (3, 2, 2, 4),
                                 {"dilation": (2, 1), "padding": "same"}),
    "valid": ((1, 2, 4, 4), (3, 2, 2, 2), {"padding": "valid"}),
    "padding beyond the kernel": ((1, 2, 3, 3), (2, 2, 2, 2), {"padding": 4}),
    "stride beyond the kernel": ((2, 2, 9, 7), (2, 2, 2, 2), {"stride": (4, 3)}),
    "rows left over": ((1, 1, 8, 8), (1, 1, 3, 3), {"stride": 3}),
    "one image": ((3, 5, 5), (2, 3, 3, 3), {"padding": 1}),
    "no images": ((0, 3, 5, 5), (2, 3, 3, 3), {}),
    "no images, 1x1 in groups": ((0, 6, 5, 5), (6, 3, 1, 1), {"groups": 2}),
    "one element": ((1, 1, 1, 1), (1, 1, 1, 1), {}),
}


@pytest.mark.filterwarnings("ignore:Using padding='same' with even:UserWarning")  # PyTorch's
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("workspace", [paths.WORKSPACE_BYTES, 3000, 1])
def test_against_torch(
    name: str, workspace: int, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, weight, options = CASES[name]
    monkeypatch.setattr(paths, "WORKSPACE_BYTES", workspace)
    tile = min(workspace, gt.settings.tile_elements)
    arrays = [rng.standard_normal(shape) for shape in (x, weight, weight[:1])]
    with gt.settings.override(tile_elements=tile, compiled=0):
        compare_functional(lambda f, *t: f.conv2d(*t, **options), arrays, second=workspace > 1,
                           layouts=("contiguous", "strided", "transposed")[: 2 + (workspace == 1)])


SIGNALS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "plain": ((2, 3, 7), (4, 3, 3), {}),
    "all at once": ((2, 4, 11), (6, 2, 3), {"stride": 2, "padding": 2, "dilation": 2, "groups": 2}),
    "tuples": ((2, 2, 7), (2, 2, 2), {"stride": (2,), "padding": (1,), "dilation": (3,)}),
    "depthwise, same": ((2, 3, 6), (6, 1, 4), {"padding": "same", "groups": 3, "dilation": 2}),
    "one signal, valid": ((2, 5), (3, 2, 5), {"padding": "valid"}),
    "no signals": ((0, 2, 5), (3, 2, 5), {}),
}


@pytest.mark.filterwarnings("ignore:Using padding='same' with even:UserWarning")  # PyTorch's
@pytest.mark.parametrize("name", SIGNALS)
def test_conv1d(name: str, rng: np.random.Generator) -> None:
    x, weight, options = SIGNALS[name]
    compare_functional(lambda f, *t: f.conv1d(*t, **options),
                       [rng.standard_normal(shape) for shape in (x, weight, weight[:1])])


TRANSPOSED: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "plain": ((2, 3, 4, 5), (3, 2, 3, 2), {}),
    "stride": ((2, 3, 4, 5), (3, 2, 3, 2), {"stride": (2, 3), "padding": (1, 0)}),
    "more at the end": ((2, 2, 4, 3), (2, 3, 3, 3),
                        {"stride": (2, 3), "padding": 1, "output_padding": (1, 2)}),
    "more at the end, by dilation": (
        (2, 2, 4, 3), (2, 3, 3, 3),
        {"dilation": (3, 2), "output_padding": (2, 1), "padding": (1, 2)}),
    "all at once": (
        (3, 4, 3, 5), (4, 3, 2, 3),
        {"stride": 2, "padding": 1, "output_padding": 1, "groups": 2, "dilation": (2, 1)}),
    "depthwise": ((2, 3, 4, 4), (3, 1, 3, 3), {"groups": 3, "padding": 1}),
    "depthwise with stride": ((2, 3, 4, 4), (3, 2, 3, 3), {"groups": 3, "stride": 2}),
    "gaps": ((1, 2, 3, 3), (2, 2, 2, 2), {"stride": 4}),
    "padding beyond the kernel": ((1, 2, 5, 5), (2, 2, 2, 2), {"padding": 2, "stride": 2}),
    "one image": ((2, 3, 3), (2, 3, 2, 2), {}),
    "no images": ((0, 2, 3, 3), (2, 3, 2, 2), {}),
}


@pytest.mark.parametrize("name", TRANSPOSED)
@pytest.mark.parametrize("workspace", [paths.WORKSPACE_BYTES, 1])
def test_transposed(
    name: str, workspace: int, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, weight, options = TRANSPOSED[name]
    monkeypatch.setattr(paths, "WORKSPACE_BYTES", workspace)
    outputs = (weight[1] * options.get("groups", 1),)
    with gt.settings.override(compiled=0):
        compare_functional(lambda f, *t: f.conv_transpose2d(*t, **options),
                           [rng.standard_normal(shape) for shape in (x, weight, outputs)],
                           second=workspace > 1)


@pytest.mark.parametrize(
    "options",
    [{}, {"stride": 3, "padding": 1, "output_padding": (2,)}, {"dilation": 2, "output_padding": 1}])
def test_conv_transpose1d(options: Any, rng: np.random.Generator) -> None:
    for shape in ((2, 4, 5), (4, 5), (0, 4, 5)):
        arrays = [rng.standard_normal(s) for s in (shape, (4, 3, 3), (6,))]
        compare_functional(lambda f, *t: f.conv_transpose1d(*t, groups=2, **options), arrays)
        compare_functional(lambda f, *t: f.conv_transpose1d(*t, **options), arrays[:2],
                           second=False)


def test_without_bias(rng: np.random.Generator) -> None:
    compare(F.conv2d, TF.conv2d,
            [rng.standard_normal((2, 3, 5, 5)), rng.standard_normal((2, 3, 3, 3))])


@pytest.mark.parametrize("stride", [1, 2])
def test_gradients_accumulate_in_place(stride: int, rng: np.random.Generator) -> None:
    """Two convolutions of an image with a kernel: the second gradient is added to the first."""
    x, weight = rng.standard_normal((2, 2, 6, 6)), rng.standard_normal((2, 2, 3, 3))
    compare(lambda x, w: F.conv2d(x, w, stride=stride) + 2 * F.conv2d(x, w, stride=stride),
            lambda x, w: 3 * TF.conv2d(x, w, stride=stride), [x, weight], second=False)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("groups", [1, 64])
def test_half_types_are_added_up_in_float32(
    dtype: str, groups: int, rng: np.random.Generator
) -> None:
    half = getattr(gt, dtype)
    weight = (3, 64, 3, 3) if groups == 1 else (64, 1, 3, 3)
    arrays = [rng.standard_normal(shape).astype(half) for shape in ((2, 64, 6, 6), weight)]
    ours, theirs = (leaves(arrays),
                    [torch.tensor(a.astype(np.float64), requires_grad=True) for a in arrays])
    y, wanted = (f(*pair, stride=2, groups=groups) for f,
                 pair in ((F.conv2d, ours), (TF.conv2d, theirs)))
    g = np.asarray(rng.standard_normal(y.shape)).astype(half)
    y.backward(gt.tensor(g, device="cpu"))
    wanted.backward(torch.tensor(g.astype(np.float64)))
    rtol = {"float16": 2.0**-11, "bfloat16": 2.0**-8}[dtype] * 1.01
    for mine, their in ((y, wanted.detach()),
                        *((a.grad, b.grad) for a, b in zip(ours, theirs, strict=True))):
        assert mine.dtype == half
        np.testing.assert_allclose(mine.numpy().astype(np.float64), their.numpy(), rtol=4 * rtol,
                                   atol=4 * rtol)


def test_float32_agrees_over_many_channels(rng: np.random.Generator) -> None:
    x, weight = (
        rng.standard_normal(s).astype(np.float32) for s in ((4, 40, 12, 12), (24, 40, 3, 3)))
    close("float32", F.conv2d(*leaves([x, weight]), padding=1),
          TF.conv2d(torch.tensor(x), torch.tensor(weight), padding=1), 1e-5)


X, W = np.zeros((2, 3, 5, 5)), np.zeros((4, 3, 3, 3))


@pytest.mark.parametrize(
    ("x", "weight", "bias", "options", "error", "message"),
    [
        (X, W[:, :2], None, {}, ValueError,
         r"an input of shape \(2, 3, 5, 5\), a weight of shape \(4, 2"),
        (X, W, None, {"groups": 3}, ValueError, "groups=3; wanted .* O divisible by groups"),
        (X, W, None, {"groups": 0}, ValueError, "groups=0; wanted an integer from 1 on"),
        (X[0, 0], W, None, {}, ValueError, r"an input of shape \(5, 5\)"),
        (X, W, W[0, :, 0, 0], {}, ValueError, r"a bias of shape \(3,\) .* wanted \(4,\)"),
        (X, W, None, {"stride": 0}, ValueError, "stride=0; wanted an integer from 1 on, or two"),
        (X, W, None, {"dilation": (1, 2, 3)}, ValueError,
         r"dilation=\(1, 2, 3\); wanted an integer"),
        (X, W, None, {"padding": -1}, ValueError, "padding=-1; wanted an integer from 0 on"),
        (X, W, None, {"padding": "full"}, ValueError, "padding='full'; wanted 'same', 'valid'"),
        (X, W, None, {"padding": "same", "stride": 2}, ValueError, "padding='same' with stride"),
        (X[:, :, :2], W, None, {}, ValueError, "would have an output of"),
        (X, W.astype(np.float32), None, {}, TypeError,
         "input of dtype float64, weight of dtype float32"),
        (X.astype(int), W.astype(int), None, {}, TypeError, "wanted one floating-point dtype"),
    ],
)
def test_messages(x: Any, weight: Any, bias: Any, options: Any, error: Any, message: str) -> None:
    tensors = [None if a is None else gt.tensor(a, device="cpu") for a in (x, weight, bias)]
    with pytest.raises(error, match=f"conv2d .*{message}"):
        F.conv2d(*tensors, **options)


SIGNAL, KERNEL = np.zeros((2, 4, 5)), np.zeros((4, 2, 3))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("conv1d", {},
         r"a weight of shape \(4, 2, 3\) and groups=1; wanted \(N, C, L\) and \(O, C"),
        ("conv1d", {"groups": 2, "stride": (1, 1)}, r"stride=\(1, 1\); wanted an integer from 1"),
        ("conv1d", {"groups": 2, "padding": "same", "stride": 2},
         r"stride \(2,\); wanted stride 1"),
        ("conv1d", {"groups": 2, "dilation": 3}, r"would have an output of \(-1,\)"),
        ("conv_transpose1d", {"groups": 3},
         r"groups=3; wanted \(N, C, L\) and \(C, O / groups, K\)"),
        ("conv_transpose1d", {"output_padding": 1},
         "output_padding=1 with stride=1 and dilation=1"),
        ("conv_transpose1d", {"padding": 4}, r"would have an output of \(-1,\); wanted at least 1"),
        ("conv_transpose2d", {}, r"wanted \(N, C, H, W\) and \(C, O / groups, KH, KW\)"),
    ],
)
def test_messages_of_the_others(name: str, options: Any, message: str) -> None:
    x, weight = (gt.tensor(a, device="cpu") for a in (SIGNAL, KERNEL))
    with pytest.raises(ValueError, match=f"{name} .*{message}"):
        getattr(F, name)(x, weight, **options)
    with pytest.raises(ValueError, match=r"a bias of shape \(4,\) .* wanted \(2,\)"):
        F.conv_transpose1d(x, weight, x[0, :, 0])

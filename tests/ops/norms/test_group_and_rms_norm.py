"""RMS, layer and group norm against PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as TF
from against_torch import compare, leaves
from usage import measure

import gtensor as gt
import gtensor.nn.functional as F

ROWS = [((3, 5), (5,)), ((2, 3, 4), (3, 4)), ((6,), (6,)), ((2, 1), (1,)), ((2, 3, 4, 2), (2,)),
        ((0, 3), (3,))]
GROUPS = [((2, 4), 2), ((5, 6, 7), 3), ((3, 4, 3, 2), 1), ((2, 6, 2, 3), 6), ((0, 4, 3), 2)]
NORMS = [*[("rms_norm", shape, row, [row]) for shape, row in ROWS],
         *[("layer_norm", shape, row, [row, row]) for shape, row in ROWS],
         *[("group_norm", shape, groups, [shape[1:2]] * 2) for shape, groups in GROUPS]]


@pytest.mark.parametrize(("name", "shape", "over", "weights"), NORMS)
@pytest.mark.parametrize("tile", [65536, 5])
def test_norms_are_pytorchs(
    name: str, shape: Any, over: Any, weights: list[Any], tile: int, rng: np.random.Generator
) -> None:
    arrays = [2 * rng.standard_normal(shape) + 1, *map(rng.standard_normal, weights)]
    ours, theirs = getattr(F, name), getattr(TF, name)
    with gt.settings.override(tile_elements=tile):
        compare(lambda x, *w: ours(x, over, *w), lambda x, *w: theirs(x, over, *w), arrays,
                tolerance=1e-9)
        compare(lambda x: ours(x, over, eps=0.1), lambda x: theirs(x, over, eps=0.1), arrays[:1])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_the_default_eps_of_rms_norm_is_pytorchs(dtype: str) -> None:
    x = np.full(4, 1e-3)
    ours = F.rms_norm(gt.tensor(x.astype(getattr(gt, dtype)), device="cpu"), 4)
    theirs = TF.rms_norm(torch.tensor(x, dtype=getattr(torch, dtype)), (4,))
    np.testing.assert_allclose(ours.numpy().astype(float), theirs.double().numpy(), rtol=1e-2)


def test_group_norm_of_a_mean_far_larger_than_the_deviation(rng: np.random.Generator) -> None:
    x = (rng.standard_normal((3, 4, 50)) + 3e3).astype(np.float32)
    y = F.group_norm(gt.tensor(x, device="cpu"), 2)
    wanted = TF.group_norm(torch.tensor(x.astype(np.float64)), 2)
    np.testing.assert_allclose(y.numpy(), wanted.numpy(), atol=3e3 * np.finfo(np.float32).eps)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name, over, weights", [
    ("rms_norm", (40,), 1), ("layer_norm", (40,), 2), ("group_norm", 8, 2)])
def test_norms_of_half_types(
    dtype: str, name: str, over: Any, weights: int, rng: np.random.Generator
) -> None:
    half = getattr(gt, dtype)
    arrays = [(rng.standard_normal((300, 40)) + 3).astype(half),
              *(rng.standard_normal(40).astype(half) for _ in range(weights))]
    ours = leaves(arrays)
    theirs = [torch.tensor(a.astype(np.float64), requires_grad=True) for a in arrays]
    y = getattr(F, name)(ours[0], over, *ours[1:])
    wanted = getattr(TF, name)(theirs[0], over, *theirs[1:])
    g = rng.standard_normal(y.shape).astype(half)
    y.backward(gt.tensor(g, device="cpu"))
    wanted.backward(torch.tensor(g.astype(np.float64)))
    rtol = {"float16": 2.0**-11, "bfloat16": 2.0**-8}[dtype]
    for a, b in ((y, wanted.detach()),
                 *((a.grad, b.grad) for a, b in zip(ours, theirs, strict=True))):
        assert a.dtype == half
        np.testing.assert_allclose(a.numpy().astype(np.float64), b.numpy(), rtol=2 * rtol,
                                   atol=4 * rtol)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("name", ["rms_norm", "layer_norm"])
@pytest.mark.parametrize("weights", [0, 1, 2])
@pytest.mark.parametrize("columns", [40, 41, 3000])
def test_the_gradient_of_a_norm_beside_others(
    name: str, weights: int, columns: int, device: str, rng: np.random.Generator
) -> None:
    """It is added to what its input has, and never to the gradient that the caller gave."""
    if name == "rms_norm" and weights == 2:
        return
    arrays = [rng.standard_normal(shape) for shape in ((70, columns), *[(columns,)] * weights)]
    ours = [gt.tensor(a, device=device, requires_grad=True) for a in arrays]
    theirs = [torch.tensor(a, requires_grad=True) for a in arrays]
    g = rng.standard_normal((70, columns))
    given = gt.tensor(g, device=device)
    for module, (x, *parameters), upstream in ((F, ours, given), (TF, theirs, torch.tensor(g))):
        h = x * 2
        y = h + getattr(module, name)(h, (columns,), *parameters) * 3
        (h + getattr(module, name)(y, (columns,), *parameters)).backward(upstream)
    np.testing.assert_array_equal(given.numpy(), g)
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one.grad.numpy(), other.grad.numpy(), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("function", "buffers"),
    [
        (lambda x: F.rms_norm(x, 512), 0),
        (lambda x: F.group_norm(x.reshape(4, 16, 64, 128), 1), 1),
        (lambda x: F.group_norm(x.reshape(4, 16, 64, 128), 8), 1),
    ],
)
def test_no_norm_makes_more_than_its_output_and_tiles(function: Any, buffers: int) -> None:
    x = gt.tensor(np.ones((1024, 512), np.float32), device="cpu")
    with gt.settings.override(tile_elements=8192, arena_min_bytes=4096), gt.device("cpu"):
        function(x)  # a first call writes texts
        peak, _, behind = measure(lambda: function(x))
        assert peak <= x.nbytes + buffers * 8192 * 4 + 32768 and behind < 8192 * 4 * 4
        x.requires_grad_()
        y = function(x)
        g = gt.ones(y.shape)
        peak, _, behind = measure(lambda: y.backward(g))
        assert peak <= x.nbytes + 2 * 8192 * 4 + 65536 and behind < 8192 * 4 * 4


X = np.zeros((2, 3, 4), np.float32)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x, c: F.rms_norm(x, 3), r"rms_norm was given normalized_shape=\(3,\)"),
        (lambda x, c: F.group_norm(x, 2), r"num_groups=2 for .* a divisor of C"),
        (lambda x, c: F.group_norm(x, 0), "num_groups=0"),
        (lambda x, c: F.group_norm(c, 3), r"num_groups=3 for .* wanted \(N, C, ...\)"),
        (lambda x, c: F.group_norm(x, 3, c[:2]), r"a weight of shape \(2,\) .* \(3,\)"),
    ],
)
def test_messages(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(gt.tensor(X, device="cpu"), gt.ones(3, device="cpu"))


def test_integers_are_refused() -> None:
    x = gt.zeros((2, 4), "int64", "cpu")
    for call in (lambda: F.rms_norm(x, 4), lambda: F.group_norm(x, 2)):
        with pytest.raises(TypeError, match="input of dtype int64"):
            call()

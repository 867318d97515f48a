"""Attention by blocks: against PyTorch, against its own whole weights, and what it keeps."""

from __future__ import annotations

import gc
import math
import tracemalloc
from itertools import product
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
import torch.nn.functional as TF
from against_torch import compare, leaves

import gtensor as gt
import gtensor.nn.functional as F
from gtensor.engine.tape.op import registry
from gtensor.ops.attention import whole_matrices
from gtensor.ops.attention.attention import attention
from gtensor.testing.compare import close

TILES = (1, 4, 11, 1 << 15)


def reference(q: Any, k: Any, v: Any, **options: Any) -> Any:
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        return TF.scaled_dot_product_attention(q, k, v, **options)


def as_tensors(options: dict[str, Any], kind: Any) -> dict[str, Any]:
    return {name: kind(a) if isinstance(a, np.ndarray) else a for name, a in options.items()}


def masked(kind: str, rng: np.random.Generator, shape: tuple[int, ...]) -> dict[str, Any]:
    if kind == "causal":
        return {"is_causal": True}
    if kind == "boolean":
        mask = rng.random(shape) < 0.6
        mask[..., 1, :] = False  # a query that sees no key
        return {"attn_mask": mask}
    if kind == "added":
        mask = rng.standard_normal(shape)
        mask[..., 0, :2] = -np.inf
        mask[..., 2, :] = -np.inf
        return {"attn_mask": mask}
    return {}


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("kind", ["none", "causal", "boolean", "added"])
@pytest.mark.parametrize("lead", [(), (2,), (2, 3)])
def test_values_and_derivatives(
    kind: str, lead: tuple[int, ...], tile: int, rng: np.random.Generator
) -> None:
    arrays = [rng.standard_normal((*lead, *s)) for s in ((4, 3), (5, 3), (5, 2))]
    options = masked(kind, rng, (4, 5))
    ours = as_tensors(options, lambda a: gt.tensor(a, device="cpu"))
    theirs = as_tensors(options, torch.tensor)
    with gt.settings.override(tile_elements=tile):
        compare(
            lambda q, k, v: F.scaled_dot_product_attention(q, k, v, **ours),
            lambda q, k, v: reference(q, k, v, **theirs), arrays,
            second=tile == TILES[-1] and lead == (2,) and kind in ("none", "causal"),
            layouts=("contiguous", "strided", "transposed") if tile == TILES[-1] else ("strided",),
            tolerance=1e-9)


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("mask_shape", [None, (3, 4), (6, 3, 4), (2, 1, 3, 4), (1, 1)])
def test_grouped_heads(mask_shape: Any, tile: int, rng: np.random.Generator) -> None:
    """Six heads of queries share two of keys and values; gradients of a group add up."""
    arrays = [rng.standard_normal((2, *s)) for s in ((6, 3, 5), (2, 4, 5), (2, 4, 2))]
    options: dict[str, Any] = {"enable_gqa": True}
    if mask_shape is not None:
        options["attn_mask"] = rng.standard_normal(mask_shape)
    ours = as_tensors(options, lambda a: gt.tensor(a, device="cpu"))
    theirs = as_tensors(options, torch.tensor)
    with gt.settings.override(tile_elements=tile):
        compare(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, **ours),
                lambda q, k, v: reference(q, k, v, **theirs), arrays, second=False,
                layouts=("contiguous", "transposed"), tolerance=1e-9)


@pytest.mark.parametrize("tile", [3, 1 << 15])
def test_leading_axes_broadcast_and_the_mask_has_a_gradient(
    tile: int, rng: np.random.Generator
) -> None:
    shapes = ((2, 1, 4, 3), (3, 5, 3), (1, 5, 2), (2, 1, 1, 5))
    with gt.settings.override(tile_elements=tile):
        compare(F.scaled_dot_product_attention,
                lambda q, k, v, m: torch.softmax(q @ k.mT / math.sqrt(3) + m, -1) @ v,
                [rng.standard_normal(s) for s in shapes], second=tile > 3, layouts=("contiguous",),
                tolerance=1e-9)


@pytest.mark.parametrize("shapes", [
    ((0, 4, 3), (0, 5, 3), (0, 5, 2)), ((2, 0, 3), (2, 5, 3), (2, 5, 2)),
    ((2, 4, 3), (2, 0, 3), (2, 0, 2)), ((2, 4, 3), (2, 5, 3), (2, 5, 0)),
])
def test_empty(shapes: Any) -> None:
    q, k, v = leaves([np.ones(s) for s in shapes])
    y = F.scaled_dot_product_attention(q, k, v)
    assert y.shape == (*shapes[0][:2], shapes[2][2]) and not y.numpy().any()
    y.sum().backward()
    assert [t.grad.shape for t in (q, k, v)] == list(shapes)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_less_precision(dtype: str, rng: np.random.Generator) -> None:
    half = getattr(gt, dtype)
    arrays = [gt.tensor(rng.standard_normal((2, 40, 8)), device="cpu").astype(half)
              for _ in range(3)]
    wide = [torch.tensor(a.numpy().astype(np.float64), requires_grad=True) for a in arrays]
    ours = [a.detach().requires_grad_() for a in arrays]
    with gt.settings.override(tile_elements=64):
        y = F.scaled_dot_product_attention(*ours, is_causal=True)
        wanted = reference(*wide, is_causal=True)
        y.backward(gt.ones(y.shape, half, "cpu"))
    wanted.sum().backward()
    assert y.dtype == half
    tolerance = {"float16": 3e-3, "bfloat16": 3e-2, "float32": 1e-5}[dtype]
    close("value", y, wanted, tolerance)
    for a, b in zip(ours, wide, strict=True):
        assert a.grad is not None and a.grad.dtype == half
        close("gradient", a.grad, b.grad, 4 * tolerance)


def test_large_scores_do_not_overflow(rng: np.random.Generator) -> None:
    arrays = [1e3 * rng.standard_normal((6, 4)).astype(np.float32) for _ in range(3)]
    with gt.settings.override(tile_elements=4):
        y = F.scaled_dot_product_attention(*[gt.tensor(a, device="cpu") for a in arrays])
    close("value", y, reference(*map(torch.tensor, arrays)), 1e-5)


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("is_causal", [False, True])
def test_dropout_is_the_composed_forms(
    tile: int, is_causal: bool, rng: np.random.Generator
) -> None:
    """Whole weights dropped by `dropout` with the same seed: equal values and gradients."""
    arrays = [rng.standard_normal((3, 2, *s)) for s in ((5, 3), (7, 3), (7, 2))]
    params = {"scale": 0.5, "is_causal": is_causal, "dropout_p": 0.4, "seed": 9}
    results = []
    for form in (attention, attention.composed):
        inputs = leaves(arrays)
        with gt.settings.override(tile_elements=tile):
            y = form(*inputs, None, **params)
            y.backward(gt.tensor(np.cos(np.arange(y.size)).reshape(y.shape), device="cpu"))
        results.append([y, *[x.grad for x in inputs]])
    for a, b in zip(*results, strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-10, atol=1e-12)
    whole = attention(*leaves(arrays), None, **{**params, "dropout_p": 0.0})
    assert not np.allclose(results[0][0].numpy(), whole.numpy())


@pytest.mark.parametrize("shapes", [
    ((3, 5, 4, 8), (3, 5, 6, 8), (3, 5, 6, 2)), ((4, 8), (4, 8), (4, 3)),
    ((2, 3, 4, 4), (2, 1, 4, 4), (3, 4, 5)),  # which broadcast: gradients are added up
])
@pytest.mark.parametrize("dropout_p", [0.0, 0.4])
@pytest.mark.parametrize("turned", [False, True])
def test_whole_matrices_have_the_bits_of_blocks(
    shapes: Any, dropout_p: float, turned: bool, rng: np.random.Generator
) -> None:
    """Some at a time, of queries in any layout, whose scores are infinite in part, and with one
    mask for all examples."""
    arrays = [rng.standard_normal(shape).astype("f4") for shape in shapes]
    arrays[0][..., 1, 0] = np.inf
    if turned:
        arrays[0] = np.ascontiguousarray(arrays[0].swapaxes(-1, -2)).swapaxes(-1, -2)
    right, served = whole_matrices.serves, set()
    forward, gradient = registry["attention"].cpu, registry["attention_grad"].cpu
    g = rng.standard_normal(200).astype("f4")  # of which an output takes as many as it has
    for tile, is_causal, shared in product((30, 1 << 15), (False, True), (0, 1)):
        options = {"scale": 0.5, "is_causal": is_causal, "dropout_p": dropout_p, "seed": 1 << 40,
                   "shared": shared}
        found = []
        for allowed in (True, False):
            def serves(*given: Any, allowed: bool = allowed) -> bool:
                served.add(right(*given))
                return allowed and right(*given)

            with gt.settings.override(tile_elements=tile), patch.object(
                    whole_matrices, "serves", serves):
                out, *kept = forward(*arrays, None, **options)
                grads = gradient(g[:out.size].reshape(out.shape), *arrays, None, out, *kept,
                                 wanted=(True, True, True, False), **options)
            found.append([a.tobytes() for a in (out, *kept, *grads[:3])])
        assert found[0] == found[1]
    assert True in served


def test_dropout_of_everything_and_its_seed() -> None:
    q = gt.ones((4, 3), device="cpu", requires_grad=True)
    y = F.scaled_dot_product_attention(q, q, q, dropout_p=1.0)
    y.sum().backward()
    assert not y.numpy().any() and q.grad is not None and not q.grad.numpy().any()
    gt.manual_seed(3)
    one = F.scaled_dot_product_attention(q, q, q, dropout_p=0.5).numpy().copy()
    gt.manual_seed(3)
    assert np.array_equal(one, F.scaled_dot_product_attention(q, q, q, dropout_p=0.5).numpy())


def test_what_is_saved() -> None:
    q, k, v = (gt.ones((2, 4, 3), device="cpu", requires_grad=True) for _ in range(3))
    y = F.scaled_dot_product_attention(q, k, v)
    saved = y._node.saved
    assert [a is b._array for a, b in zip(saved[:3], (q, k, v), strict=True)] == [True] * 3
    assert saved[3] is None and saved[4] is y._array and saved[5].shape == (2, 4, 1)


@pytest.mark.parametrize("options", [{}, {"dropout_p": 0.1, "mask": True}])
def test_the_weights_are_never_whole(options: dict[str, Any]) -> None:
    """Beyond inputs, output and gradients: less than a tenth of the weights' bytes."""
    heads, length, width = 2, 2048, 8
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((heads, length, width)).astype(np.float32) for _ in range(3)]
    if "mask" in options:
        options = {"dropout_p": 0.1}
        options["attn_mask"] = gt.tensor(rng.random((length, length)) < 0.9, device="cpu")
    inputs = leaves(arrays)
    g = gt.ones((heads, length, width), gt.float32, "cpu")
    with gt.settings.override(arena_min_bytes=1 << 60):  # so that tracemalloc sees all of it
        gc.collect()
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            F.scaled_dot_product_attention(*inputs, **options).backward(g)
            peak = tracemalloc.get_traced_memory()[1] - before
        finally:
            tracemalloc.stop()
    results = 4 * g.nbytes  # the output and three gradients
    assert peak - results < 0.1 * heads * length * length * 4


@pytest.mark.parametrize("shape", [(), (5,)])
@pytest.mark.parametrize("kind", ["bool", "float64"])
def test_a_mask_of_fewer_axes(shape: tuple[int, ...], kind: str, rng: np.random.Generator) -> None:
    mask = np.asarray(rng.standard_normal(shape) if kind == "float64" else np.ones(shape, bool))
    ours, theirs = gt.tensor(mask, device="cpu"), torch.tensor(mask)
    compare(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, ours),
            lambda q, k, v: TF.scaled_dot_product_attention(q, k, v, theirs.expand(4, 5)),
            [rng.standard_normal(shape) for shape in ((2, 4, 3), (2, 5, 3), (2, 5, 2))])


@pytest.mark.parametrize(("call", "error", "message"), [
    (lambda x: F.scaled_dot_product_attention(x, x, x.T), ValueError, r"wanted .*, E_v"),
    (lambda x: F.scaled_dot_product_attention(x, x, x, x, is_causal=True), ValueError,
     "attn_mask and is_causal=True; wanted one of them"),
    (lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=2.0), ValueError,
     "dropout_p=2.0; wanted a probability"),
    (lambda x: F.scaled_dot_product_attention(x, x, x, x), ValueError,
     r"attn_mask of shape \(2, 3\); wanted one that broadcasts to \(2, 2\)"),
    (lambda x: F.scaled_dot_product_attention(x, x, x, x.astype("float64")), TypeError,
     "attn_mask of dtype float64; wanted one"),
    (lambda x: F.scaled_dot_product_attention(
        gt.ones((2, 2, 3)), gt.ones((3, 2, 3)), gt.ones((3, 2, 3))), ValueError,
     "wanted leading axes that broadcast"),
    (lambda x: F.scaled_dot_product_attention(
        gt.ones((4, 2, 3)), gt.ones((3, 2, 3)), gt.ones((3, 2, 3)), enable_gqa=True), ValueError,
     "given 4 heads of queries, 3 of keys"),
])
def test_messages(call: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        call(gt.ones((2, 3), device="cpu"))

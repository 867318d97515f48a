"""Attention in few launches: exact as PyTorch's, in all layouts that they serve, and no other.

The device is a GPU, or a host device (docs/testing.md). tests/kernels has the kernel alone.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as TF

import gtensor as gt
import gtensor.nn.functional as F
from gtensor.backend.kernels import C_TYPES
from gtensor.ops.attention import fused
from gtensor.ops.attention.attention import attention

SEEDS = range(10)
DTYPES = ("float16", "bfloat16", "float32")
WORST = 1.1  # times the error of PyTorch's own on the CPU
EXACT = {"bfloat16": 4e-3, "float32": 5e-7}


def error(found: Any, wanted: torch.Tensor) -> float:
    """Root mean square, relative."""
    difference = torch.as_tensor(np.asarray(found, np.float64)) - wanted
    return float((difference.norm() / wanted.norm()).item())


def errors(
    seed: int, dtype: str, causal: bool, heads: int, lengths: tuple[int, int], size: int,
    mask: str = "none",
) -> tuple[list[float], list[float]]:
    """Of the output and of gradients against float64, that of a sum too: ours, and PyTorch's."""
    rng = np.random.default_rng(seed)
    shapes = [(2, heads, lengths[0], size), *[(2, heads, lengths[1], size)] * 2]
    whole = [torch.from_numpy(rng.standard_normal(shape)).to(getattr(torch, dtype))
             for shape in (*shapes, shapes[0])]
    added = torch.from_numpy(rng.standard_normal((1, heads, *lengths))).to(getattr(torch, dtype))
    masked = {"none": None, "boolean": (added > -0.5)[:, :1], "sum": added}[mask]

    def theirs(kind: torch.dtype) -> list[torch.Tensor]:
        q, k, v = (x.to(kind).requires_grad_() for x in whole[:3])
        like = masked.to(kind) if mask == "sum" and masked is not None else masked
        y = TF.scaled_dot_product_attention(q, k, v, like, is_causal=causal)
        found = [y.detach(), *torch.autograd.grad(y, (q, k, v), whole[3].to(kind))]
        if mask == "sum" and like is not None:  # where it is learned, PyTorch takes another path
            z = TF.scaled_dot_product_attention(q, k, v, like.requires_grad_())
            found += torch.autograd.grad(z, like, whole[3].to(kind))
        return found

    ours = [gt.tensor(x.double().numpy(), dtype=getattr(gt, dtype), device="cuda")
            for x in whole]
    for x in ours[:3]:
        x.requires_grad_()
    laid = None if masked is None else gt.tensor(
        masked.double().numpy() > 0 if mask == "boolean" else masked.double().numpy(),
        dtype=gt.bool if mask == "boolean" else getattr(gt, dtype), device="cuda")
    learned = ours[:3]
    if mask == "sum" and laid is not None:
        learned = [*learned, laid.requires_grad_()]
    y = F.scaled_dot_product_attention(*ours[:3], laid, is_causal=causal)
    y.backward(ours[3])
    exact = theirs(torch.float64)
    found = [x.detach().numpy().astype(np.float64) for x in (y, *(x.grad for x in learned))]
    return ([error(x, wanted) for x, wanted in zip(found, exact, strict=True)],
            [error(x.double().numpy(), wanted)
             for x, wanted in zip(theirs(getattr(torch, dtype)), exact, strict=True)])


@pytest.mark.gpu
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("heads", "lengths", "size"), [
    (2, (130, 130), 64), (1, (70, 150), 64), (1, (140, 70), 128), (2, (64, 64), 40)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_values_and_gradients_are_as_exact_as_pytorchs(
    dtype: str, heads: int, lengths: tuple[int, int], size: int, causal: bool
) -> None:
    found = np.array([errors(seed, dtype, causal, heads, lengths, size) for seed in SEEDS])
    ours, theirs = found.mean(axis=0)
    assert (ours <= WORST * theirs).all(), (ours / theirs, ours)


@pytest.mark.gpu
@pytest.mark.parametrize("mask", ["boolean", "sum"])
@pytest.mark.parametrize(("heads", "lengths", "size"), [(2, (40, 70), 64), (1, (70, 40), 128)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_masked_attention_is_as_exact_as_pytorchs(
    dtype: str, heads: int, lengths: tuple[int, int], size: int, mask: str
) -> None:
    check_masked(dtype, heads, lengths, size, mask)


def check_masked(
    dtype: str, heads: int, lengths: tuple[int, int], size: int, mask: str, causal: bool = False
) -> None:
    found = np.array([errors(seed, dtype, causal, heads, lengths, size, mask) for seed in SEEDS])
    ours, theirs = found.mean(axis=0)
    assert (ours <= WORST * theirs).all(), (ours / theirs, ours)


@pytest.mark.gpu
@pytest.mark.parametrize(("group", "lengths", "size", "causal", "p"), [
    (1, (48, 72), 64, True, 0.0), (2, (72, 48), 128, False, 0.3)])
@pytest.mark.parametrize("dtype", DTYPES[:2])
def test_a_gradient_of_a_mask_is_rounded_once(
    dtype: str, group: int, lengths: tuple[int, int], size: int, causal: bool, p: float
) -> None:
    """With dropout, shared heads and a causal mask, for which PyTorch has no reference of its own.

    Its path of a learned mask is float32 throughout: the error is that of rounding the result.
    """
    found = []
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        q, k, v, g = (rng.standard_normal((2, heads, length, size)) for heads, length in (
            (group, lengths[0]), (1, lengths[1]), (1, lengths[1]), (group, lengths[0])))
        arrays = q, k, v, rng.standard_normal((group, *lengths))
        leaves = [gt.tensor(x, dtype=getattr(gt, dtype), device="cuda") for x in arrays]
        arrived = gt.tensor(g, dtype=getattr(gt, dtype), device="cuda")
        leaves[3].requires_grad_()
        params = {"scale": size**-0.5, "is_causal": causal, "dropout_p": p, "seed": seed}
        (ours,) = gt.grad([attention(*leaves, **params)], [leaves[3]], [arrived])
        wide = [gt.tensor(x.detach().numpy().astype(np.float64)) for x in (*leaves, arrived)]
        wide[3].requires_grad_()
        (exact,) = gt.grad([attention(*wide[:4], **params)], [wide[3]], [wide[4]])
        wanted = torch.from_numpy(exact.numpy())
        rounded = wanted.to(getattr(torch, dtype)).double().numpy()
        found.append((error(ours.numpy(), wanted), error(rounded, wanted)))
    ours, theirs = np.mean(found, axis=0)
    assert ours <= WORST * theirs, ours / theirs


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "size", "mask", "causal"), [
    ("bfloat16", 256, "none", True), ("float16", 192, "sum", False),
    *[pytest.param(*case, marks=pytest.mark.slow) for case in (
        ("bfloat16", 256, "none", False), ("bfloat16", 192, "sum", False),
        ("bfloat16", 136, "boolean", False), ("float16", 256, "none", True),
        ("float16", 256, "none", False), ("float16", 136, "boolean", False))]])
def test_the_largest_heads_are_as_exact_as_pytorchs(
    dtype: str, size: int, mask: str, causal: bool
) -> None:
    check_masked(dtype, 1, (70, 90), size, mask, causal)


@pytest.mark.gpu
@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"p": 0.5}])
def test_tf32_rounds_factors_to_ten_bits(
    options: dict[str, Any], rng: np.random.Generator
) -> None:
    """The setting holds for forward and for backward; the sums are float32's."""
    shape = (2, 80, 64)
    leaves = tensors(rng, shape, shape, shape, dtype="float32")
    (g,) = tensors(rng, shape, dtype="float32")
    for x in leaves:
        x.requires_grad_()
    params = {"scale": 0.125, "is_causal": options.get("is_causal", False), "seed": 5,
              "dropout_p": options.get("p", 0.0)}

    def run() -> list[np.ndarray]:
        y = attention(*leaves, None, **params)
        return [x.detach().numpy() for x in (y, *gt.grad([y], leaves, [g]))]

    exact = run()
    with gt.settings.override(tf32=1):
        rounded = run()
    for one, other in zip(rounded, exact, strict=True):
        assert 5e-5 < error(one, torch.from_numpy(other.astype(np.float64))) < 1e-3


# -- what it serves, and what not ------------------------------------------------------------------


def at(*shape: int, steps: tuple[int, ...] | None = None, itemsize: int = 2) -> fused.At:
    """The shape and strides of halves, or of float32; by default contiguous."""
    return shape, steps or tuple(itemsize * math.prod(shape[i + 1:]) for i in range(len(shape)))


def test_a_plan_says_how_the_kernel_is_launched() -> None:
    q, k = at(2, 3, 130, 64), at(2, 3, 70, 64)
    plan = fused.plan(q, k, k, q, True)
    assert plan is not None and plan.size == 64 and plan.grid == (2 * 3 * 2,)
    assert plan.threads == 256
    assert plan.shared_bytes == (128 + 4 * 64) * 64 * 2
    space = plan.space
    assert (space["matrices"], space["keys"], space["causal"]) == (6, 70, 1)
    assert space["lead"].tolist() == [(6, 130 * 64, 70 * 64, 70 * 64, 130 * 64),
                                      *[(1, 0, 0, 0, 0)] * 3]  # two axes are one
    assert space["rows"].tolist() == (130, 64, 64, 64, 64)
    wide = fused.plan(at(5, 72), at(9, 72), at(9, 128), at(5, 128), False)
    assert wide is not None and wide.size == 128 and wide.shared_bytes == 2 * plan.shared_bytes
    assert (wide.space["features"], wide.space["value_features"]) == (72, 128)
    largest = fused.plan(at(130, 256), at(9, 256), at(9, 136), at(130, 136), False)
    assert largest is not None and largest.size == 256 and largest.grid == (3,)  # half as many rows
    assert largest.threads == 128 and largest.shared_bytes == wide.shared_bytes


@pytest.mark.parametrize(("features", "size", "rows", "keys"), [
    (36, 64, 128, 32), (128, 128, 64, 32)])
def test_a_plan_of_float32_has_other_tiles(features: int, size: int, rows: int, keys: int) -> None:
    """In as much memory as halves have, of which a GPU lends a block 99 KiB."""
    q, k = at(2, 3, 130, features, itemsize=4), at(2, 3, 70, features, itemsize=4)
    plan = fused.plan(q, k, k, q, True, None, 4)
    assert plan is not None and plan.size == size and plan.grid == (2 * 3 * -(-130 // rows),)
    assert plan.threads == 128 and plan.shared_bytes == (rows + 4 * keys) * size * 4 <= 96 << 10
    assert plan.space["rows"].tolist() == (130, *[features] * 4)
    assert fused.plan(q, k, k, q, True) is None  # as halves
    saved = at(2, 3, 130, 1, itemsize=4)
    back = fused.gradient_plan(q, k, k, q, q, saved, q, k, k, True, None, 4)
    assert back is not None and back.query_threads == back.key_threads == 128
    assert (back.query_grid, back.key_grid) == (plan.grid, (2 * 3 * -(-70 // rows),))
    assert back.shared_bytes == 96 << 10 and back.numbers == plan.grid[0] * rows * 3


def test_a_plan_has_strides_of_views_and_of_shared_heads() -> None:
    """Queries, keys and values side by side in one projection; two heads share one of keys."""
    row = 3 * 4 * 16  # elements
    q = at(2, 2, 2, 10, 16, steps=tuple(2 * n for n in (10 * row, 32, 16, row, 1)))
    k = at(2, 2, 1, 10, 16, steps=tuple(2 * n for n in (10 * row, 16, 7, row, 1)))
    plan = fused.plan(q, k, k, at(2, 2, 2, 10, 16), False)
    assert plan is not None
    assert plan.space["lead"].tolist() == [
        (2, 16, 0, 0, 160), (2, 32, 16, 16, 320), (2, 10 * row, 10 * row, 10 * row, 640),
        (1, 0, 0, 0, 0)]
    assert plan.space["rows"].tolist() == (10, row, row, row, 16)


def test_a_plan_has_the_steps_of_a_mask_and_the_numbers_of_matrices() -> None:
    q, k = at(2, 3, 10, 16), at(2, 3, 24, 16)
    terms = fused.Terms(((3, 1, 24), (48, 48, 2)), 2, True, 1)
    plan = fused.plan(q, k, k, q, False, terms)
    assert plan is not None and plan.terms is not None
    assert plan.terms["lead"].tolist() == [(3, 24, 1), (2, 0, 0), *[(1, 0, 0)] * 2]
    assert plan.terms["rows"].tolist() == (10, 0, 0)
    assert plan.terms[["key_step", "keys", "itemsize"]].tolist() == (1, 24, 2)
    assert not plan.terms["wide"]  # it may begin anywhere
    alone = fused.plan(q, k, k, q, False, fused.Terms(((10, 24), (24, 1)), 1, False, 0, True))
    assert alone is not None and alone.terms is not None
    assert alone.terms["lead"][0].tolist() == (6, 0, 1)  # two axes are one
    assert alone.terms["rows"].tolist() == (10, 24, 0) and alone.terms["wide"]
    for strides in ((20, 1), (48, 2)):  # rows that are not aligned, keys that lie apart
        apart = fused.plan(q, k, k, q, False, fused.Terms(((10, 24), strides), 1, False, 0, True))
        assert apart is not None and apart.terms is not None and not apart.terms["wide"]


def test_no_plan_of_masks_and_dropout() -> None:
    q, k = at(10, 16), at(20, 16)
    assert fused.plan(q, k, k, q, False, fused.Terms(None, 0, True, 0)) is None  # not eight keys
    far = ((10, 20), (1 << 30, 2))
    assert fused.plan(q, k, k, q, False, fused.Terms(far, 2, False, 0)) is None


@pytest.mark.parametrize(("q", "k", "why"), [
    (at(5, 12), at(7, 12), "features that are no multiple of 8"),
    (at(5, 264), at(7, 264), "too many features"),
    (at(0, 16), at(7, 16), "no queries"), (at(5, 16), at(0, 16), "no keys"),
    (at(0, 5, 16), at(0, 7, 16), "no matrices"), (at(5, 0), at(7, 0), "no features"),
    (at(5, 16, steps=(2, 10)), at(7, 16), "features not side by side"),
    (at(5, 16, steps=(40, 2)), at(7, 16), "rows that begin between multiples of 16 bytes"),
    (at(2, 5, 16, steps=(168, 32, 2)), at(2, 7, 16), "matrices that do"),
    (at(2, 3, 2, 3, 2, 5, 16, steps=(1600, 16000, 800, 8000, 400, 32, 2)),
     at(2, 3, 2, 3, 2, 7, 16), "too many axes"),
    (at(1 << 31, 16), at(7, 16, steps=(32, 2)), "too many queries"),
])
def test_no_plan(q: fused.At, k: fused.At, why: str) -> None:
    assert fused.plan(q, k, k, at(*q[0]), False) is None, why


def gradient_plan(q: fused.At, k: fused.At, v: fused.At, lead: tuple[int, ...] = (),
                  is_causal: bool = False) -> fused.GradientPlan | None:
    """Of contiguous outputs and gradients, all of them wanted."""
    out = at(*lead, q[0][-2], v[0][-1])
    rows = out[0][:-1]
    saved = (*rows, 1), (*(2 * stride for stride in at(*rows)[1]), 4)
    return fused.gradient_plan(q, k, v, out, out, saved, at(*q[0]), at(*k[0]), at(*v[0]), is_causal)


def test_a_plan_of_gradients_says_how_the_kernels_are_launched() -> None:
    plan = gradient_plan(at(2, 3, 130, 64), at(2, 3, 300, 64), at(2, 3, 300, 40), (2, 3), True)
    assert plan is not None and plan.size == 64 and plan.query_threads == plan.key_threads == 128
    assert (plan.query_grid, plan.key_grid) == ((2 * 3 * 2,), (2 * 3 * 3,))
    assert plan.shared_bytes == (2 * 128 + 4 * 32) * 64 * 2
    assert plan.numbers == 2 * 3 * 256 * 2
    space = plan.space
    assert (space["matrices"], space["repeats"], space["keys"], space["causal"]) == (6, 1, 300, 1)
    assert (space["features"], space["value_features"]) == (64, 40)
    assert space["lead"][0].tolist() == (6, 130 * 64, 300 * 64, 300 * 40, 130 * 40, 130 * 40, 130,
                                         130 * 64, 300 * 64, 300 * 40)
    assert space["rows"].tolist() == (130, 64, 64, 40, 40, 40, 1, 64, 64, 40)


def test_axes_along_which_keys_and_values_repeat_are_the_innermost() -> None:
    plan = gradient_plan(at(2, 3, 10, 72), at(3, 20, 72), at(1, 3, 20, 72), (2, 3))
    assert plan is not None and plan.space["repeats"] == 2
    assert (plan.size, plan.query_threads, plan.key_threads) == (128, 256, 256)
    assert plan.key_grid == (3,)
    assert plan.space["lead"][:2].tolist() == [
        (2, 2160, 0, 0, 2160, 2160, 30, 2160, 0, 0),
        (3, 720, 1440, 1440, 720, 720, 10, 720, 1440, 1440)]


def test_of_the_largest_heads_blocks_make_one_gradient_of_two() -> None:
    q, k, g = at(130, 256), at(70, 256), at(130, 256)
    saved = at(130, 1, itemsize=4)
    grids = {}
    for wanted in ("kv", "k", "v"):
        dk, dv = (k if name in wanted else None for name in "kv")
        plan = fused.gradient_plan(q, k, k, q, g, saved, None, dk, dv, False)
        assert plan is not None and plan.query_grid == (3,)
        assert plan.query_threads == plan.key_threads == 128 and plan.shared_bytes == 96 << 10
        grids[wanted] = plan.key_grid
    assert grids == {"kv": (4,), "k": (2,), "v": (2,)}


@pytest.mark.parametrize(("q", "k", "v", "lead"), [
    (at(3, 1, 20, 32), at(3, 5, 20, 32), at(3, 5, 20, 32), (3, 5)),  # queries that repeat
    (at(3, 5, 20, 32), at(3, 1, 20, 32), at(5, 20, 32), (3, 5)),  # otherwise than values
    (at(5, 12), at(7, 12), at(7, 12), ()),
])
def test_no_plan_of_gradients(
    q: fused.At, k: fused.At, v: fused.At, lead: tuple[int, ...]
) -> None:
    assert gradient_plan(q, k, v, lead) is None


def launched(function: Any) -> dict[str, int]:
    """The kernels that a call launches on the host device."""
    from gtensor import hostcuda

    gt.device("cuda").synchronize()
    hostcuda.reset_counters()
    function()
    gt.device("cuda").synchronize()
    return dict(hostcuda.counters().kernels)


def tensors(rng: np.random.Generator, *shapes: tuple[int, ...], dtype: str = "bfloat16",
            ) -> list[gt.Tensor]:
    return [gt.tensor(rng.standard_normal(shape), dtype=getattr(gt, dtype), device="cuda")
            for shape in shapes]


def of_type(ctype: str) -> tuple[dict[str, int], ...]:
    """Forward, backward of queries, and of keys: once each."""
    return tuple({f"attention_{which}_64<{ctype}>": 1}
                 for which in ("forward", "backward_queries", "backward_keys"))


FORWARD, OF_QUERIES, OF_KEYS = of_type("__nv_bfloat16")


@pytest.mark.host_cuda
def test_forward_is_one_launch(rng: np.random.Generator) -> None:
    q, k, v = tensors(rng, *[(2, 3, 20, 32)] * 3)
    with gt.no_grad():
        assert launched(lambda: F.scaled_dot_product_attention(q, k, v)) == FORWARD
        assert launched(
            lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True)) == FORWARD
    q.requires_grad_()
    assert launched(lambda: F.scaled_dot_product_attention(q, k, v)) == FORWARD


@pytest.mark.host_cuda
def test_backward_is_two_launches(rng: np.random.Generator) -> None:
    """One for queries alone; a gradient that arrives in another layout is copied by a third one."""
    q, k, v, g = tensors(rng, *[(2, 3, 20, 32)] * 4)

    def backward(*leaves: gt.Tensor, arrived: gt.Tensor = g) -> dict[str, int]:
        for x in (q, k, v):
            x.requires_grad_(any(x is leaf for leaf in leaves))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return launched(lambda: gt.grad([y], leaves, [arrived]))

    assert backward(q, k, v) == OF_QUERIES | OF_KEYS
    assert backward(k, v) == backward(v) == OF_QUERIES | OF_KEYS
    assert backward(q) == OF_QUERIES
    repeated = gt.broadcast_to(g[:1, :1, :1, :1], g.shape)
    assert backward(q, k, v, arrived=repeated) == {
        **OF_QUERIES, **OF_KEYS, "cupy_copy__bfloat16_bfloat16": 1}
    q, k, v, g = tensors(rng, *[(2, 20, 136)] * 4)
    assert backward(q, k, v, arrived=g) == {
        name.replace("64", "256"): 1 for name in OF_QUERIES | OF_KEYS}


@pytest.mark.host_cuda
@pytest.mark.parametrize("tf32", [0, 1])
def test_float32_is_as_few_launches(tf32: int, rng: np.random.Generator) -> None:
    q, k, v, g = tensors(rng, *[(2, 3, 20, 20)] * 4, dtype="float32")
    forward, *backward = of_type("float")
    with gt.settings.override(tf32=tf32):
        for x in (q, k, v):
            x.requires_grad_()
        made: list[gt.Tensor] = []
        assert launched(lambda: made.append(F.scaled_dot_product_attention(q, k, v))) == forward
        assert launched(lambda: made[0].backward(g)) == backward[0] | backward[1]


@pytest.mark.host_cuda
@pytest.mark.parametrize("options", [{"p": 0.5}, {"mask": "boolean"}, {"mask": "sum", "p": 0.5}])
def test_masks_and_dropout_are_as_few_launches(
    options: dict[str, Any], rng: np.random.Generator
) -> None:
    q, k, v, g = tensors(rng, *[(2, 3, 24, 32)] * 4)
    (mask,) = tensors(rng, (2, 1, 24, 24))
    for x in (q, k, v):
        x.requires_grad_()
    if "mask" in options and options["mask"] == "boolean":
        mask = mask > 0

    def step() -> None:
        y = F.scaled_dot_product_attention(
            q, k, v, mask if "mask" in options else None, options.get("p", 0.0))
        y.backward(g)

    step()
    assert launched(step) == {
        "cupy_add__bfloat16_bfloat16_bfloat16": 3,  # to the gradients of the step before
        **{name.replace("attention_", "attention_terms_"): 1
           for name in FORWARD | OF_QUERIES | OF_KEYS}}


@pytest.mark.host_cuda
def test_shared_heads_are_two_launches_backward(rng: np.random.Generator) -> None:
    q, k, v, g = tensors(rng, (2, 6, 20, 32), *[(2, 2, 30, 32)] * 2, (2, 6, 20, 32))
    for x in (q, k, v):
        x.requires_grad_()
    y = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    assert launched(lambda: y.backward(g)) == OF_QUERIES | OF_KEYS


@pytest.mark.host_cuda
@pytest.mark.parametrize("dtype", EXACT)
def test_a_gradient_of_a_mask_is_one_launch_more(dtype: str, rng: np.random.Generator) -> None:
    q, k, v, g = tensors(rng, *[(2, 3, 24, 32)] * 4, dtype=dtype)
    (mask,) = tensors(rng, (3, 24, 24), dtype=dtype)
    mask.requires_grad_()
    ctype = C_TYPES[dtype]
    of_mask = {f"attention_mask_gradient_64<{ctype}>": 1}
    of_queries, of_keys = ({name.replace("attention_", "attention_terms_"): 1 for name in found}
                           for found in of_type(ctype)[1:])

    def backward(*leaves: gt.Tensor) -> dict[str, int]:
        for x in (q, k, v):
            x.requires_grad_(any(x is leaf for leaf in leaves))
        y = F.scaled_dot_product_attention(q, k, v, mask)
        return launched(lambda: gt.grad([y], leaves, [g]))

    assert backward(mask) == of_queries | of_mask  # the first launch makes numbers
    assert backward(q, k, v, mask) == of_queries | of_keys | of_mask


UNSERVED = {  # what the profiler says of it
    "gradient of a mask": "leading axes, or a mask whose gradient adds up too many weights",
    "dropout": "dropout of 20 keys, no multiple of 8",
    "scale": "bfloat16 with scale -0.3 on sm_90",
    "float64": "float64 with scale 0.176777 on sm_90",
    "features": "20 queries, 20 keys, heads of 20 and 32 features",
    "large heads": "heads of 136 features, of which float32 has at most 128",
    "alignment": "features lie apart, or rows begin at other places than multiples of 16 bytes",
    "architecture": "bfloat16 with scale 0.176777 on sm_75",
}


@pytest.mark.host_cuda
@pytest.mark.parametrize("why", UNSERVED)
def test_what_the_kernel_does_not_serve_takes_blocks(
    why: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    dtype = {"float64": "float64", "large heads": "float32"}.get(why, "bfloat16")
    q, k, v = tensors(rng, *[(2, 20, 136 if why == "large heads" else 32)] * 3, dtype=dtype)
    options: dict[str, Any] = {}
    if "mask" in why:  # forward is fused, backward is not
        (options["attn_mask"],) = tensors(rng, (20, 20), dtype=dtype)
        options["attn_mask"].requires_grad_()
        monkeypatch.setattr(fused, "_MOST_MASK_TILES", 1)  # of two matrices
        fused.mask_plan.cache_clear()
    elif why == "dropout":  # 20 keys are no multiple of 8
        options["dropout_p"] = 0.5
    elif why == "scale":
        options["scale"] = -0.3
    elif why == "features":
        q, k = q[..., :20], k[..., :20]
    elif why == "alignment":
        q, k = q[..., 1:25], k[..., 1:25]
        options["scale"] = 1.0
    elif why == "architecture":
        monkeypatch.setattr(q.device, "architecture", 75)
    q.requires_grad_()

    def step() -> None:
        F.scaled_dot_product_attention(q, k, v, **options).sum().backward()

    found = launched(step)
    fused.mask_plan.cache_clear()
    fused_forward = {"attention_terms_forward_64<__nv_bfloat16>"} if "mask" in why else set()
    assert found and {name for name in found if "attention_" in name} == fused_forward
    with gt.profiler.profile() as profile:
        step()
    fused.mask_plan.cache_clear()
    spans = profile.spans
    said = [span for span in spans if span.name.startswith("attention in blocks")]
    assert {span.name for span in said} == {f"attention in blocks: {UNSERVED[why]}"}
    around = [spans[span.parent] for span in said if span.parent is not None]
    assert [(op.kind, op.phase) for op in around] == [
        ("op", phase) for phase in ("forward", "backward")[len(fused_forward):]]


@pytest.mark.host_cuda
def test_profiles_say_nothing_of_few_launches_and_of_the_cpu(rng: np.random.Generator) -> None:
    q, k, v = tensors(rng, *[(2, 20, 32)] * 3)
    with gt.profiler.profile() as profile:
        F.scaled_dot_product_attention(q, k, v)
        F.scaled_dot_product_attention(*(x.to("cpu") for x in (q, k, v)))
    assert not [span for span in profile.spans if "in blocks" in span.name]


# -- values ----------------------------------------------------------------------------------------


def exact(q: gt.Tensor, k: gt.Tensor, v: gt.Tensor, **options: Any) -> torch.Tensor:
    wide = [torch.from_numpy(x.detach().numpy().astype(np.float64)) for x in (q, k, v)]
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        return TF.scaled_dot_product_attention(*wide, **options)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", EXACT)
@pytest.mark.parametrize("causal", [False, True])
def test_views_of_one_projection(causal: bool, dtype: str, rng: np.random.Generator) -> None:
    """(B, L, 3, H, E): heads and features lie side by side, and so does the output's memory."""
    (whole,) = tensors(rng, (2, 37, 3, 4, 16), dtype=dtype)
    whole.requires_grad_()
    q, k, v = (gt.permute_dims(whole[:, :, i], (0, 2, 1, 3)) for i in range(3))
    y = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    assert error(y.detach().numpy(), exact(q, k, v, is_causal=causal)) < EXACT[dtype]
    assert y.detach().array.swapaxes(1, 2).flags.c_contiguous
    g = gt.ones(y.shape, dtype=y.dtype, device="cuda")
    y.backward(g)
    wide = torch.from_numpy(whole.detach().numpy().astype(np.float64)).requires_grad_()
    parts = (wide[:, :, i].swapaxes(1, 2) for i in range(3))
    TF.scaled_dot_product_attention(*parts, is_causal=causal).sum().backward()
    assert whole.grad is not None and wide.grad is not None
    assert error(whole.grad.numpy(), wide.grad) < 1.5 * EXACT[dtype]


def check_with_gradients(
    rng: np.random.Generator, leaves: list[gt.Tensor], **options: Any
) -> None:
    """The value and the gradients of all inputs, against float64."""
    dtype = leaves[0].dtype.name
    for x in leaves:
        x.requires_grad_()
    y = F.scaled_dot_product_attention(*leaves, **options)
    (g,) = tensors(rng, y.shape, dtype=dtype)
    y.backward(g)
    wide = [torch.from_numpy(x.detach().numpy().astype(np.float64)).requires_grad_()
            for x in leaves]
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        z = TF.scaled_dot_product_attention(*wide, **options)
    z.backward(torch.from_numpy(g.numpy().astype(np.float64)))
    assert error(y.detach().numpy(), z.detach()) < EXACT[dtype]
    for x, w in zip(leaves, wide, strict=True):
        assert x.grad is not None and w.grad is not None and x.grad.shape == x.shape
        assert error(x.grad.numpy(), w.grad) < EXACT[dtype]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", EXACT)
@pytest.mark.parametrize(("shapes", "options"), [
    (((2, 6, 20, 32), (2, 2, 30, 32), (2, 2, 30, 24)), {"enable_gqa": True}),
    (((2, 4, 140, 32), (2, 2, 140, 32), (2, 2, 140, 72)), {"enable_gqa": True, "is_causal": True}),
    (((3, 2, 20, 32), (2, 30, 32), (1, 2, 30, 24)), {}),  # shared by batches
    (((3, 2, 20, 32), (30, 32), (30, 24)), {"is_causal": True}),  # by all
    (((3, 1, 20, 32), (2, 30, 32), (30, 24)), {}),  # each by others: in blocks
])
def test_grouped_heads_and_broadcast_axes(
    shapes: tuple[tuple[int, ...], ...], options: dict[str, Any], dtype: str,
    rng: np.random.Generator,
) -> None:
    check_with_gradients(rng, tensors(rng, *shapes, dtype=dtype), **options)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", EXACT)
@pytest.mark.parametrize(("length", "keys"), [(20, 400), (400, 20)])
def test_causal_attention_of_other_lengths(
    length: int, keys: int, dtype: str, rng: np.random.Generator
) -> None:
    """Keys that no query sees have gradients of 0."""
    leaves = tensors(rng, (2, length, 16), (2, keys, 16), (2, keys, 16), dtype=dtype)
    check_with_gradients(rng, leaves, is_causal=True)
    assert leaves[1].grad is not None and not leaves[1].grad.numpy()[:, length:].any()


@pytest.mark.gpu
@pytest.mark.parametrize("scale", [1e-3, 30.0])
def test_large_and_small_scores(scale: float, rng: np.random.Generator) -> None:
    q, k, v = tensors(rng, *[(2, 70, 32)] * 3)
    for x in (q, k, v):
        x.requires_grad_()
    y = F.scaled_dot_product_attention(q, k, v, scale=scale)
    assert error(y.detach().numpy(), exact(q, k, v, scale=scale)) < 6e-3
    y.sum().backward()
    for x in (q, k, v):
        assert x.grad is not None and np.isfinite(x.grad.numpy().astype(np.float64)).all()


@pytest.mark.gpu
@pytest.mark.parametrize(("shapes", "masked", "options"), [
    (((2, 3, 140, 32), (2, 3, 72, 32), (2, 3, 72, 24)), None, {}),
    (((2, 2, 3, 30, 16), (2, 2, 1, 40, 16), (2, 2, 1, 40, 16)), None, {"is_causal": True}),
    (((3, 2, 20, 72), (2, 40, 72), (1, 2, 40, 72)), (3, 1, 20, 40), {"shared": 1}),
])
@pytest.mark.parametrize("dtype", EXACT)
def test_dropout_drops_the_same_weights_on_every_path(
    shapes: tuple[tuple[int, ...], ...], masked: tuple[int, ...] | None, options: dict[str, Any],
    dtype: str, rng: np.random.Generator,
) -> None:
    """Against the CPU's path in float64."""
    params = {"scale": 0.3, "is_causal": False, "dropout_p": 0.4, "seed": 2**62 + 9, **options}
    ours = tensors(rng, *shapes, dtype=dtype)
    exact = [gt.tensor(x.numpy().astype(np.float64)) for x in ours]
    mask = None if masked is None else rng.random(masked) < 0.7
    found: list[list[np.ndarray]] = []
    grad = rng.standard_normal((*np.broadcast_shapes(*(x[:-2] for x in shapes)), shapes[0][-2],
                                shapes[2][-1]))
    for leaves in (ours, exact):
        for x in leaves:
            x.requires_grad_()
        device = leaves[0].device
        y = attention(*leaves, None if mask is None else gt.tensor(mask, device=device), **params)
        found.append([x.detach().numpy() for x in (y, *gt.grad(
            [y], leaves, [gt.tensor(grad, dtype=y.dtype, device=device)]))])
    for one, other in zip(*found, strict=True):
        assert error(one, torch.from_numpy(other)) < 1.5 * EXACT[dtype]


MASKS: dict[str, Any] = {  # of 40 queries and 72 keys; views of a larger array
    "contiguous": lambda x: x[:, :, :40, :72] + 0,
    "for all": lambda x: x[0, 0, :40, :72],
    "of heads": lambda x: x[:1, :, :40, :72],
    "of keys": lambda x: x[:, :1, :1, :72],
    "of queries": lambda x: x[:, :, :40, :1],
    "one number": lambda x: x[:1, :1, :1, :1],
    "not aligned": lambda x: x[:, :, :40, 1:73],
    "every other": lambda x: x[:, :, ::2, ::2][:, :, :40, :72],
    "turned": lambda x: x[:, :, :72, :40].mT,
    "expanded": lambda x: x[:, :1, :1, :72].broadcast_to((2, 3, 40, 72)),
}


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", EXACT)
@pytest.mark.parametrize("layout", MASKS)
def test_masks_of_any_layout_and_their_gradients(
    layout: str, dtype: str, rng: np.random.Generator
) -> None:
    """The gradient of a view's memory, in which a broadcast axis adds up."""
    leaves = tensors(rng, (2, 3, 40, 32), *[(2, 3, 72, 32)] * 2, dtype=dtype)
    (whole,) = tensors(rng, (2, 3, 160, 160), dtype=dtype)
    whole[0, 0, 0, 0] = 1.0
    for x in (*leaves, whole):
        x.requires_grad_()
    (g,) = tensors(rng, (2, 3, 40, 32), dtype=dtype)
    mask = MASKS[layout](whole)
    y = F.scaled_dot_product_attention(*leaves, mask)
    boolean = F.scaled_dot_product_attention(*leaves, mask.detach() > 0)
    y.backward(g)
    wide = [torch.from_numpy(x.detach().numpy().astype(np.float64)).requires_grad_()
            for x in (*leaves, whole)]
    added = MASKS[layout](wide[3])
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        z = TF.scaled_dot_product_attention(*wide[:3], added)
        seen = TF.scaled_dot_product_attention(*wide[:3], added > 0)
    z.backward(torch.from_numpy(g.numpy().astype(np.float64)))
    assert error(y.detach().numpy(), z.detach()) < EXACT[dtype]
    assert error(boolean.detach().numpy(), seen.detach()) < EXACT[dtype]
    for x, w in zip((*leaves, whole), wide, strict=True):
        assert x.grad is not None and w.grad is not None
        if x is whole and mask.shape[-1] == 1:  # it adds up to 0 over keys
            np.testing.assert_allclose(x.grad.numpy().astype(np.float64), w.grad, atol=0.3)
        else:
            assert error(x.grad.numpy(), w.grad) < 1.5 * EXACT[dtype]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", EXACT)
@pytest.mark.parametrize("kind", ["boolean", "infinite", "lowest"])
def test_a_query_that_sees_no_key(kind: str, dtype: str, rng: np.random.Generator) -> None:
    """It gives 0; where all keys have the lowest finite number added, it sees all alike."""
    leaves = tensors(rng, *[(2, 40, 32)] * 3, dtype=dtype)
    (added,) = tensors(rng, (40, 40), dtype=dtype)
    added[3] = -3.3e38 if kind == "lowest" else -np.inf
    mask = added > -np.inf if kind == "boolean" else added
    for x in leaves:
        x.requires_grad_()
    y = F.scaled_dot_product_attention(*leaves, mask)
    y.backward(gt.ones(y.shape, dtype=y.dtype, device="cuda"))
    q, v = leaves[0], leaves[2].detach().numpy().astype(np.float64)
    wanted = v.mean(axis=1) if kind == "lowest" else np.zeros((2, 32))
    np.testing.assert_allclose(y.detach().numpy()[:, 3].astype(np.float64), wanted, atol=4e-3)
    assert q.grad is not None and leaves[2].grad is not None
    if kind != "lowest":
        assert not q.grad.numpy()[:, 3].any()
    total = leaves[2].grad.numpy().astype(np.float64).sum(axis=1)  # each query that sees gives 1
    np.testing.assert_allclose(total, 40 if kind == "lowest" else 39, rtol=1e-2)


@pytest.mark.gpu
def test_what_is_not_finite_stays_in_its_rows(rng: np.random.Generator) -> None:
    """As in PyTorch, where a weight of 0 times an infinite value is NaN, too."""
    q, k, v = tensors(rng, *[(70, 16)] * 3)
    q[5, 3] = float("nan")
    v[60, 2] = float("inf")
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True).numpy().astype(np.float64)
    wanted = exact(q, k, v, is_causal=True).numpy()
    assert np.isnan(y[5]).all() and np.isfinite(np.delete(y, 5, axis=0)[:, 3:]).all()
    np.testing.assert_array_equal(np.isfinite(y), np.isfinite(wanted))


@pytest.mark.gpu
def test_second_derivatives_and_batches_of_examples(rng: np.random.Generator) -> None:
    q, k, v = tensors(rng, *[(3, 20, 16)] * 3)
    batched = gt.func.vmap(F.scaled_dot_product_attention)(q, k, v)
    assert error(batched.numpy(), exact(q, k, v)) < 4e-3
    q.requires_grad_()
    y = F.scaled_dot_product_attention(q, k, v)
    (first,) = gt.grad(y.sum(), [q], create_graph=True)
    (second,) = gt.grad((first * first).sum(), [q])
    wide = [torch.from_numpy(x.detach().numpy().astype(np.float64)) for x in (q, k, v)]
    wide[0].requires_grad_()
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        z = TF.scaled_dot_product_attention(*wide)
    (one,) = torch.autograd.grad(z.sum(), wide[0], create_graph=True)
    (two,) = torch.autograd.grad((one * one).sum(), wide[0])
    assert error(second.numpy(), two) < 5e-2


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", EXACT)
@pytest.mark.parametrize("options", [{"is_causal": True}, {"dropout_p": 0.3}, {"attn_mask": True}])
def test_ten_runs_are_equal_bit_for_bit(
    options: dict[str, Any], dtype: str, rng: np.random.Generator
) -> None:
    leaves = tensors(rng, (1, 4, 136, 64), (1, 2, 136, 64), (1, 2, 136, 64), dtype=dtype)
    g, mask = tensors(rng, (1, 4, 136, 64), (4, 136, 136), dtype=dtype)
    if "attn_mask" in options:
        options = {"attn_mask": mask}
        leaves.append(mask)
    for x in leaves:
        x.requires_grad_()

    def run() -> list[bytes]:
        gt.manual_seed(4)
        y = F.scaled_dot_product_attention(*leaves[:3], enable_gqa=True, **options)
        return [x.detach().numpy().tobytes() for x in (y, *gt.grad([y], leaves, [g]))]

    first = run()
    assert all(run() == first for _ in range(9))


@pytest.mark.gpu
def test_a_graph_replays_it(rng: np.random.Generator) -> None:
    q, k, v = tensors(rng, *[(2, 20, 32)] * 3)
    F.scaled_dot_product_attention(q, k, v)
    graph = gt.Graph()
    with graph.capture():
        y = F.scaled_dot_product_attention(q, k, v)
    q.array[...] = -q.array
    graph.replay()
    assert error(y.numpy(), exact(q, k, v)) < 4e-3


@pytest.mark.gpu
def test_a_graph_draws_dropout_anew(rng: np.random.Generator) -> None:
    """Each replay has the masks that a step without a graph would have."""
    q, k, v = tensors(rng, *[(2, 24, 32)] * 3)

    def step() -> gt.Tensor:
        return F.scaled_dot_product_attention(q, k, v, dropout_p=0.5)

    gt.manual_seed(3)
    wanted = [step().numpy() for _ in range(4)]
    gt.manual_seed(3)
    step()
    graph = gt.Graph()
    with graph.capture():
        y = step()
    for _ in range(2):
        graph.replay()
        found = y.numpy()
        assert any((found == other).all() for other in wanted[1:])

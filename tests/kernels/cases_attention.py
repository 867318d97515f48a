"""Cases of attention: lengths around its tiles, sizes, layouts, shared heads, masks, dropout."""

from __future__ import annotations

import math
from functools import partial
from math import e, log2
from typing import Any

import numpy as np
import torch
from kernel_cases import Case, assert_close, exact, normal, unwritten

from gtensor.backend import host
from gtensor.ops.activations.dropout import keep_factor, keep_factors, keep_threshold
from gtensor.ops.attention import fused

SEED = 77
KINDS = {  # of kernels: the dtypes, the file's name, tolerances in those of the dtype
    "halves": (("float16", "bfloat16"), "attention", 1.0),
    "float32": (("float32",), "attention_float", 1.0),
    "tf32": (("float32",), "attention_tf32", 200.0),  # as float16, of as many bits
}


def _laid(array: np.ndarray, layout: str) -> np.ndarray:
    """The same values in memory of another layout, whose gaps are NaN."""
    if layout == "contiguous":
        return array
    *lead, heads, length, features = array.shape
    if layout == "side by side":  # a row has all heads, and as much again that is not read
        memory = np.full((*lead, length, 2 * heads, features), np.nan, array.dtype)
        view = memory[..., :heads, :].swapaxes(-2, -3)
    else:  # the last row comes first
        memory = np.full(array.shape, np.nan, array.dtype)
        view = memory[..., ::-1, :]
    view[...] = array
    return view


def memory_of(view: np.ndarray) -> tuple[np.ndarray, int]:
    """The whole memory of a view, and the bytes at which it begins."""
    whole = view
    while isinstance(whole.base, np.ndarray):
        whole = whole.base
    return whole, view.__array_interface__["data"][0] - whole.__array_interface__["data"][0]


def _memories(*views: np.ndarray) -> list[np.ndarray]:
    """The memory of views that begin where it does."""
    found = [memory_of(x) for x in views]
    assert not any(begin for _, begin in found)
    return [whole for whole, _ in found]


def _scores(q: torch.Tensor, k: torch.Tensor, scale: float, causal: bool) -> torch.Tensor:
    scores = q @ k.mT * scale
    if not causal:
        return scores
    return scores.masked_fill(~torch.ones(scores.shape[-2:]).bool().tril(), -torch.inf)


def _laid_mask(mask: np.ndarray, layout: str) -> np.ndarray:
    """The same values; gaps of the memory are True, or NaN."""
    if layout == "contiguous":
        return mask
    if layout == "turned":  # queries lie side by side
        return np.ascontiguousarray(mask.swapaxes(-1, -2)).swapaxes(-1, -2)
    assert layout == "padded"  # rows of whole sixteens
    keys = mask.shape[-1]
    memory = np.full((*mask.shape[:-1], keys + -keys % 16), np.nan).astype(mask.dtype)
    memory[..., :keys] = mask
    return memory[..., :keys]


class Terms:
    """A mask of this shape (boolean, or a sum), dropout, and what they make of exact scores."""

    def __init__(
        self, rng: np.random.Generator, dtype: np.dtype, mask: tuple[int, ...] | None,
        boolean: bool, p: float, whole: tuple[int, ...], layout: str = "contiguous",
    ) -> None:
        self.mask: np.ndarray | None = None
        if mask is not None and boolean:
            made = rng.random(mask) < 0.6
            made[..., :1, :] &= mask[-2] == 1  # a query that sees no key
            self.mask = _laid_mask(made, layout)
            whole_memory = memory_of(self.mask)[0].view(np.uint8)
            whole_memory *= rng.choice([1, 2, 128, 255], whole_memory.shape).astype(np.uint8)
        elif mask is not None:
            made = normal(rng, mask, dtype)
            made[..., -1:, :] = -1024 if dtype == np.float16 else -3e38  # all keys alike
            self.mask = _laid_mask(made, layout)
        self.p = p
        self.factors = torch.ones(whole) if not p else torch.from_numpy(
            keep_factors(host(), whole, 0, p, SEED, np.float64))

    def at(self) -> fused.Terms | None:
        if self.mask is None and not self.p:
            return None
        laid = None if self.mask is None else (self.mask.shape, self.mask.strides)
        return fused.Terms(laid, 0 if laid is None else self.mask.itemsize, self.p > 0, 0, True)

    def scores(self, scores: torch.Tensor) -> torch.Tensor:
        if self.mask is None:
            return scores
        if self.mask.dtype == bool:
            return scores.masked_fill(torch.from_numpy(self.mask.view(np.uint8) == 0), -torch.inf)
        self.leaf = exact(self.mask).requires_grad_()
        return scores + self.leaf

    def last(self, found: Any, scale: float, kind: str) -> list[Any]:
        """The kernels' last arguments."""
        if found.terms is None:
            return [scale * log2(e) if kind == "halves" else scale]
        dropped = [keep_threshold(self.p), keep_factor(self.p)] if self.p else [0, 1.0]
        mask = 0 if self.mask is None else _memories(self.mask)[0]
        return [scale, mask, found.terms, 0, SEED, *dropped]


def _weights(scores: torch.Tensor) -> torch.Tensor:
    none = (scores == -torch.inf).all(-1, keepdim=True)
    return scores.masked_fill(none, 0).softmax(-1).masked_fill(none, 0)


def attention(
    name: str, lead: tuple[int, ...], length: int, keys: int, features: int,
    value_features: int | None = None, *, causal: bool = False, layout: str = "contiguous",
    key_lead: tuple[int, ...] | None = None, scale: float = 0.25, totals: bool = True,
    mask: tuple[int, ...] | None = None, boolean: bool = True, p: float = 0.0,
    mask_layout: str = "contiguous", kind: str = "halves",
) -> Case:
    """A case whose arrays begin where their memory does."""
    value_features = value_features or features
    dtypes, _, factor = KINDS[kind]

    def check(executor: Any, dtype: np.dtype, rng: np.random.Generator) -> None:
        shared = lead if key_lead is None else key_lead
        q, k, v = (
            _laid(normal(rng, shape, dtype), layout) for shape in (
                (*lead, length, features), (*shared, keys, features),
                (*shared, keys, value_features)))
        out = _laid(unwritten((*lead, length, value_features), dtype), layout)
        terms = Terms(rng, dtype, mask, boolean, p, (*lead, length, keys), mask_layout)
        found = fused.plan(*((x.shape, x.strides) for x in (q, k, v, out)), causal, terms.at(),
                           dtype.itemsize)
        assert found is not None
        kept = unwritten((2, *lead, length), np.dtype(np.float32))
        arrays = _memories(q, k, v, out)
        which = "" if found.terms is None else "terms_"
        executor.raw(
            _file(kind, found), f"attention_{which}forward_{found.size}", dtype, found.grid,
            (found.threads,), [*arrays, kept[0], kept[1] if totals else 0, found.space,
                               *terms.last(found, scale, kind)], found.shared_bytes)
        scores = terms.scores(_scores(exact(q), exact(k), scale, causal))
        assert_close(out, (_weights(scores) * terms.factors) @ exact(v), dtype, factor)
        if found.terms is None and kind == "halves":
            assert_close(kept[0], scores.logsumexp(-1), np.dtype(np.float32), factor)
            assert (kept[1] == (1 if totals else 77)).all()
        else:
            largest = scores.amax(-1).masked_fill((scores == -torch.inf).all(-1), 0)
            sums = (scores - largest[..., None]).exp().sum(-1)
            assert_close(kept[0], largest, np.dtype(np.float32), factor)
            # A score at -1024, as in the last row of a sum of halves, is rounded by up to 6e-5.
            assert_close(kept[1], sums.masked_fill(sums == 0, 1), np.dtype(np.float32),
                         6 if kind == "halves" else factor)

    return Case(_named(kind, name), check, dtypes)


def _file(kind: str, found: Any, suffix: str = "") -> str:
    """Of halves the kernels with a mask or dropout have files of their own."""
    terms = "_terms" if kind == "halves" and found.terms is not None else ""
    return f"{KINDS[kind][1]}{terms}{suffix}.cu"


def _named(kind: str, name: str) -> str:
    return f"attention-{name}" if kind == "halves" else f"attention-{kind}-{name}"


def gradients(
    name: str, lead: tuple[int, ...], length: int, keys: int, features: int,
    value_features: int | None = None, *, causal: bool = False, layout: str = "contiguous",
    key_lead: tuple[int, ...] | None = None, wanted: str = "qkv", scale: float = 0.25,
    mask: tuple[int, ...] | None = None, boolean: bool = True, p: float = 0.0,
    mask_layout: str = "contiguous", kind: str = "halves", offset: float = 0.0,
) -> Case:
    """As `attention`, backward, of what forward would have kept; those of `wanted` are written.

    That of a mask alone ("m") starts with the numbers that the first launch would have left.

    Args:
        offset: of all values, in whose output the differences between them are rounded away. The
            numbers are then those for a mask's gradient.
    """
    value_features = value_features or features
    dtypes, _, factor = KINDS[kind]

    def check(executor: Any, dtype: np.dtype, rng: np.random.Generator) -> None:
        shared = lead if key_lead is None else key_lead
        shapes = ((*lead, length, features), (*shared, keys, features),
                  (*shared, keys, value_features))
        q, k, v, g = (_laid(normal(rng, shape, dtype), layout)
                      for shape in (*shapes, (*lead, length, value_features)))
        v += np.asarray(offset, dtype)
        leaves = [exact(x).requires_grad_() for x in (q, k, v)]
        terms = Terms(rng, dtype, mask, boolean, p, (*lead, length, keys), mask_layout)
        scores = terms.scores(_scores(*leaves[:2], scale, causal))
        attended = (_weights(scores) * terms.factors) @ leaves[2]
        if "m" in wanted:
            leaves.append(terms.leaf)
            shapes = (*shapes, terms.leaf.shape)
        exact_gradients = torch.autograd.grad(attended, leaves, exact(g))
        largest = scores.detach().amax(-1, keepdim=True)
        largest = largest.masked_fill(largest == -torch.inf, 0)
        totals = (scores.detach() - largest).exp().sum(-1, keepdim=True)
        totals = totals.masked_fill(totals == 0, 1)
        out = _laid(attended.detach().numpy().astype(dtype), layout)
        kept = [x.numpy().astype(np.float32) for x in (largest, totals)]
        made = {which: _laid(unwritten(shape, dtype), "contiguous" if which == "m" else layout)
                for which, shape in zip("qkvm", shapes, strict=False) if which in wanted}
        found = fused.gradient_plan(
            *((x.shape, x.strides) for x in (q, k, v, out, g, kept[0])),
            *((made[x].shape, made[x].strides) if x in made else None for x in "qkv"), causal,
            terms.at(), dtype.itemsize, "m" in wanted or offset > 0)
        assert found is not None
        numbers = unwritten(found.numbers, np.dtype(np.float32))
        if wanted == "m":
            numbers[...] = 0
            delta = (attended.detach() * exact(g)).sum(-1, keepdim=True)
            sums = totals.log2() if kind == "halves" else 1 / totals
            known = torch.cat((sums, delta, largest), -1).numpy()
            repeated = (1,) * (len(lead) - len(shared)) + shared
            order = sorted(range(len(lead)), key=lambda i: repeated[i] < lead[i])
            numbers.reshape((math.prod(lead), -1, 3))[:, :length] = known.transpose(
                (*order, -2, -1)).reshape((-1, length, 3))
        memories = _memories(q, k, v, out, g)
        dq, dk, dv = (_memories(made[x])[0] if x in made else 0 for x in "qkv")
        which_terms = "" if found.terms is None else "terms_"
        for which, grid, threads, args in (
                ("queries", found.query_grid, found.query_threads,
                 [*memories, *kept, numbers, dq]),
                ("keys", found.key_grid, found.key_threads,
                 [*memories[:3], memories[4], numbers, dk, dv])):
            if wanted == "m":
                break
            executor.raw(
                _file(kind, found, "_backward"),
                f"attention_{which_terms}backward_{which}_{found.size}", dtype, grid, (threads,),
                [*args, found.space, *terms.last(found, scale, kind)], found.shared_bytes)
        if "m" in made:
            dmask = _laid_mask(made["m"], mask_layout)
            made["m"] = dmask
            found = fused.mask_plan(*((x.shape, x.strides) for x in (q, k, v, g, dmask)), causal,
                                    terms.at(), dtype.itemsize)
            assert found is not None
            executor.raw(
                f"{KINDS[kind][1]}_mask_gradient.cu", f"attention_mask_gradient_{found.size}",
                dtype, found.grid, (found.threads,),
                [*memories[:3], memories[4], numbers, _memories(dmask)[0], found.space,
                 *terms.last(found, scale, kind)], found.shared_bytes)
        for which, wanted_gradient in zip("qkvm", exact_gradients, strict=False):
            if which in made:
                assert_close(made[which], wanted_gradient, dtype, factor)

    return Case(_named(kind, f"backward-{name}"), check, dtypes)


def cases(kind: str) -> list[Case]:
    """The whole table for kernels of a kind."""
    forward, backward = partial(attention, kind=kind), partial(gradients, kind=kind)
    return [
        forward("one-key", (), 1, 1, 8),
        forward("one-query", (2,), 1, 130, 64),
        forward("tiles", (1,), 128, 64, 64),
        forward("tails", (2,), 131, 67, 64, causal=False),
        forward("causal", (1,), 200, 200, 64, causal=True),
        forward("causal-more-keys", (1,), 70, 200, 64, causal=True),
        forward("causal-more-queries", (1,), 150, 40, 32, causal=True),
        forward("few-features", (1,), 20, 70, 24, 40),
        forward("large-heads", (1,), 140, 150, 128, causal=True, totals=kind != "halves"),
        forward("large-heads-few-features", (1,), 30, 70, 104, 72),
        forward("side-by-side", (2, 3), 40, 40, 32, causal=True, layout="side by side"),
        forward("shared-heads", (2, 2, 3), 20, 30, 16, key_lead=(2, 2, 1)),
        forward("mask", (2,), 131, 67, 64, mask=(131, 67)),
        forward("mask-of-keys", (2, 2), 20, 70, 24, 40, mask=(2, 1, 1, 70)),
        forward("mask-of-queries", (2,), 140, 20, 72, mask=(2, 140, 1)),
        forward("sum", (2, 2), 70, 90, 32, mask=(2, 70, 90), boolean=False),
        forward("wide-mask", (2,), 20, 136, 16, mask=(2, 20, 136)),
        forward("wide-mask-with-a-tail", (2,), 70, 75, 40, mask=(70, 75), mask_layout="padded"),
        forward("turned-mask", (2,), 20, 70, 24, mask=(2, 20, 70), mask_layout="turned"),
        forward("wide-sum", (2,), 20, 136, 16, mask=(2, 20, 136), boolean=False),
        forward("wide-sum-with-a-tail", (2,), 70, 75, 72, mask=(70, 75), mask_layout="padded",
                boolean=False),
        forward("turned-sum", (2,), 20, 70, 24, mask=(20, 70), mask_layout="turned", boolean=False),
        forward("dropout", (2,), 131, 72, 64, p=0.4),
        forward("dropout-causal", (2,), 70, 80, 104, causal=True, p=0.4),
        forward("sum-and-dropout", (2, 2), 20, 24, 16, mask=(2, 1, 20, 24), boolean=False, p=0.4,
                key_lead=(2, 1), layout="side by side"),
        backward("one-key", (), 1, 1, 8),
        backward("large-scores", (), 40, 1, 8, scale=30.0 if kind == "halves" else 3.0),
        backward("one-query", (2,), 1, 130, 64),
        backward("tiles", (1,), 128, 128, 64),
        backward("tails", (2,), 131, 67, 64),
        backward("causal", (1,), 200, 200, 64, causal=True),
        backward("causal-more-keys", (1,), 70, 200, 64, causal=True),
        backward("causal-more-queries", (1,), 150, 40, 32, causal=True),
        backward("few-features", (1,), 20, 70, 24, 40),
        backward("large-heads", (1,), 140, 150, 128, causal=True),
        backward("large-heads-few-features", (1,), 30, 70, 104, 72, wanted="kv"),
        backward("side-by-side", (2, 3), 40, 40, 32, causal=True, layout="side by side"),
        backward("shared-heads", (2, 2, 3), 40, 30, 16, key_lead=(2, 2, 1), causal=True),
        backward("shared-matrices", (2, 3), 20, 30, 16, key_lead=(1, 3), layout="side by side"),
        backward("of-keys-alone", (2,), 20, 30, 16, wanted="k"),
        backward("of-values-alone", (2,), 20, 30, 16, wanted="v"),
        backward("mask", (2,), 131, 67, 64, mask=(131, 67)),
        backward("mask-of-keys", (2, 2), 20, 70, 24, 40, mask=(2, 1, 1, 70)),
        backward("mask-of-queries", (2,), 140, 20, 72, mask=(2, 140, 1)),
        backward("sum", (2, 2), 70, 90, 32, mask=(2, 70, 90), boolean=False),
        backward("wide-mask", (2,), 20, 136, 16, mask=(2, 20, 136)),
        backward("wide-mask-with-a-tail", (2,), 70, 75, 40, mask=(70, 75), mask_layout="padded"),
        backward("turned-mask", (2,), 20, 70, 24, mask=(2, 20, 70), mask_layout="turned"),
        backward("wide-sum", (2,), 20, 136, 16, mask=(2, 20, 136), boolean=False),
        backward("wide-sum-with-a-tail", (2,), 70, 75, 72, mask=(70, 75), mask_layout="padded",
                 boolean=False),
        backward("turned-sum", (2,), 20, 70, 24, mask=(20, 70), mask_layout="turned",
                 boolean=False),
        backward("dropout", (2,), 131, 136, 64, p=0.4),
        backward("dropout-causal", (2,), 70, 80, 104, causal=True, p=0.4),
        backward("sum-and-dropout", (2, 2), 20, 24, 16, mask=(2, 2, 20, 24), boolean=False, p=0.4,
                 key_lead=(1, 2)),
    ]


_TF32 = ("tails", "causal", "large-heads", "side-by-side", "dropout-causal", "sum-and-dropout",
         "wide-mask", "wide-sum")

CASES = [
    *cases("halves"), *cases("float32"),
    attention("odd-features", (2,), 37, 45, 12, 20, kind="float32"),
    attention("odd-large-features", (1,), 33, 41, 68, 100, kind="float32"),
    gradients("odd-features", (2,), 37, 45, 12, 20, kind="float32"),
    gradients("odd-large-features", (1,), 33, 81, 68, 100, causal=True, kind="float32"),
    *[case for case in cases("tf32") if case.name.endswith(_TF32)],
    gradients("of-a-sum", (2, 2), 70, 75, 32, mask=(2, 1, 70, 75), boolean=False, wanted="qkvm"),
    gradients("of-a-sum-for-all", (2, 2), 140, 130, 72, mask=(140, 130), boolean=False, wanted="m",
              mask_layout="padded"),
    gradients("of-a-sum-of-keys", (2, 3), 140, 75, 16, 24, mask=(2, 1, 1, 75), boolean=False,
              wanted="qkvm", key_lead=(1, 3), layout="side by side"),
    gradients("of-a-sum-of-queries", (2, 2), 70, 140, 16, mask=(2, 70, 1), boolean=False,
              wanted="m"),
    gradients("of-a-sum-far-values", (2, 2), 70, 140, 16, mask=(2, 70, 140), boolean=False,
              wanted="km", offset=64.0),
    gradients("of-a-number", (2,), 70, 70, 16, mask=(1, 1), boolean=False, wanted="m"),
    attention("largest-heads", (), 70, 75, 136, 256, causal=True),
    attention("largest-heads-sum-and-dropout", (2,), 20, 40, 200, mask=(2, 20, 40), boolean=False,
              p=0.4, key_lead=(1,)),
    gradients("largest-heads", (), 70, 75, 256, 136, causal=True),
    gradients("largest-heads-of-keys-alone", (2,), 20, 30, 136, wanted="k"),
    gradients("largest-heads-of-values-alone", (2,), 20, 30, 136, wanted="v"),
    gradients("largest-heads-sum-and-dropout", (2,), 20, 24, 200, mask=(1, 20, 24), boolean=False,
              p=0.4, wanted="qkvm", key_lead=(1,)),
    *[case for kind in KINDS for case in (
        gradients("of-a-sum-and-dropout", (2, 2), 20, 72, 16, mask=(2, 20, 72), boolean=False,
                  p=0.4, wanted="m", mask_layout="turned", kind=kind),
        gradients("of-a-causal-sum", (2,), 70, 75, 104, mask=(2, 70, 75), boolean=False,
                  causal=True, wanted="m", kind=kind))],
]

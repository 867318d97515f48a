"""Public functions under `vmap`: what they do before the op asks for no values of an example."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as TF

import gtensor as gt
import gtensor.nn.functional as F

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
RNG = np.random.default_rng(7)
X = RNG.standard_normal((3, 4, 5))
ROWS, COLUMNS = RNG.integers(0, 4, (3, 2)), RNG.integers(0, 5, (3, 2))
ALONG, LABELS = RNG.integers(0, 5, (3, 4, 2)), RNG.integers(0, 5, (3, 4))
SORTED, SOUGHT = np.sort(RNG.standard_normal((3, 6)), -1), RNG.standard_normal((3, 4))
IMAGES, TABLE = RNG.standard_normal((3, 2, 3, 7, 6)), RNG.standard_normal((7, 5))
PLACES, MASK = np.array([0, 2, 2]), RNG.random((4, 5)) < 0.5

# Each as a function of one example in gtensor, the same in PyTorch, and the examples.
CALLS: dict[str, tuple[Callable[..., Any], Callable[..., Any], tuple[np.ndarray, ...]]] = {
    "take": (lambda x, i: gt.take(x, i, axis=0), lambda x, i: x[i], (X, ROWS)),
    "take of a list": (lambda x: gt.take(x, [0, 2], axis=1), lambda x: x[:, [0, 2]], (X,)),
    "take_along_axis": (gt.take_along_axis, lambda x, i: torch.take_along_dim(x, i, -1),
                        (X, ALONG)),
    "x[list]": (lambda x: x[[0, 2, 2]], lambda x: x[[0, 2, 2]], (X,)),
    "x[:, array]": (lambda x: x[:, PLACES], lambda x: x[:, PLACES], (X,)),
    "x[mask]": (lambda x: x[gt.asarray(MASK)], lambda x: x.flatten()[np.flatnonzero(MASK)], (X,)),
    "x[i]": (lambda x, i: x[i], lambda x, i: x[i], (X, ROWS)),
    "x[i, j]": (lambda x, i, j: x[i, j], lambda x, i, j: x[i, j], (X, ROWS, COLUMNS)),
    "x[:, j]": (lambda x, j: x[:, j], lambda x, j: x[:, j], (X, COLUMNS)),
    "x[:, None, j, 1:]": (lambda x, i: x.mT[1:, None, i], lambda x, i: x.mT[1:, None, i],
                          (X, ROWS)),
    "x[i] of a 0-d i": (lambda x, i: x[i[0]], lambda x, i: x.index_select(0, i[:1])[0], (X, ROWS)),
    "table[i]": (lambda i: gt.asarray(TABLE)[i], lambda i: torch.tensor(TABLE)[i], (ROWS,)),
    "embedding": (F.embedding, TF.embedding, (ROWS, X)),
    "one_hot": (lambda i: F.one_hot(i, 5), lambda i: TF.one_hot(i, 5), (LABELS,)),
    "nll_loss": (F.nll_loss, TF.nll_loss, (X, LABELS)),
    "sort": (lambda x: gt.sort(x, axis=0, descending=True),
             lambda x: torch.sort(x, 0, descending=True).values, (X,)),
    "topk": (lambda x: gt.topk(x, 2).values, lambda x: torch.topk(x, 2).values, (X,)),
    "searchsorted": (gt.searchsorted, lambda v, q: (v[:, None] < q).sum(0), (SORTED, SOUGHT)),
    "argmax": (gt.argmax, torch.argmax, (X,)),
    "cumulative_sum": (lambda x: gt.cumulative_sum(x, axis=0), lambda x: torch.cumsum(x, 0), (X,)),
    "diff": (lambda x: gt.diff(x, axis=0), lambda x: torch.diff(x, dim=0), (X,)),
    "pad": (lambda x: F.pad(x, (1, -2), value=3.0), lambda x: TF.pad(x, (1, -2), value=3.0), (X,)),
    "pad, reflect": (lambda x: F.pad(x, (1, 2), mode="reflect"),
                     lambda x: TF.pad(x, (1, 2), mode="reflect"), (X,)),
    "concat": (lambda x: gt.concat([x, gt.asarray(TABLE)]),
               lambda x: torch.cat([x, torch.tensor(TABLE)]), (X,)),
    "stack": (lambda x: gt.stack([x, x * 2], axis=1), lambda x: torch.stack([x, x * 2], 1), (X,)),
    "unstack": (lambda x: gt.unstack(x, axis=1)[2], lambda x: torch.unbind(x, 1)[2], (X,)),
    "roll": (lambda x: gt.roll(x, 2), lambda x: torch.roll(x, 2), (X,)),
    "tile": (lambda x: gt.tile(x, (2, 3)), lambda x: torch.tile(x, (2, 3)), (X,)),
    "repeat": (lambda x: gt.repeat(x, gt.tensor([1, 0, 2, 1]), axis=0),
               lambda x: x[[0, 2, 2, 3]], (X,)),
    "einsum": (lambda x, q: gt.einsum("ij,i->j", x, q), lambda x, q: torch.einsum(
        "ij,i->j", x, q), (X, SOUGHT)),
    "rfft": (lambda x: gt.abs(gt.fft.rfft(x, n=4)), lambda x: torch.fft.rfft(x, n=4).abs(), (X,)),
    "adaptive_max_pool2d": (lambda x: F.adaptive_max_pool2d(x, 3),
                            lambda x: TF.adaptive_max_pool2d(x, 3), (IMAGES,)),
    "interpolate": (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
                    lambda x: TF.interpolate(x, scale_factor=2, mode="bilinear"), (IMAGES,)),
}
NO_RULE = ("adaptive_max_pool2d", "nll_loss")  # PyTorch's vmap has none: a loop in its place


@pytest.mark.parametrize("name", CALLS)
def test_a_function_under_vmap_is_pytorchs(name: str) -> None:
    ours, theirs, arrays = CALLS[name]
    given, tensors = [gt.asarray(a) for a in arrays], [torch.tensor(a) for a in arrays]
    found = gt.vmap(ours)(*given)
    wanted = (torch.stack([theirs(*one) for one in zip(*tensors, strict=True)])
              if name in NO_RULE else torch.func.vmap(theirs)(*tensors))
    np.testing.assert_allclose(found.numpy(), wanted.numpy(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("call, words", [
    (lambda i: F.embedding(i + 7, gt.asarray(TABLE)), "embedding was given the index"),
    (lambda i: F.one_hot(i, 2), "one_hot was given the index"),
    (lambda i: gt.asarray(TABLE)[i * 1.5], "an index of dtype float")])
def test_indices_of_all_examples_are_checked(call: Callable[..., Any], words: str) -> None:
    with pytest.raises((ValueError, IndexError), match=words):
        gt.vmap(call)(gt.asarray(LABELS))


def test_a_mask_that_differs_between_examples_is_refused() -> None:
    with pytest.raises(gt.LevelError, match="a boolean index that differs between the examples"):
        gt.vmap(lambda x: x[x > 0])(gt.asarray(X))

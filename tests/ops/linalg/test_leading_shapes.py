"""Products of all pairs of leading shapes, sizes 0 and 1 among them: values and gradients as
PyTorch's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

import gtensor as gt
import gtensor.nn.functional as F

Shape = tuple[int, ...]
LEADS: list[Shape] = [(), (1,), (2,), (0,), (1, 1), (1, 2), (2, 1), (3, 2), (19, 1), (1, 2, 1)]
BATCHES: list[Shape] = [(), (1,), (2,), (1, 1), (2, 1), (3, 2)]


def fitting(leads: list[Shape], count: int) -> Iterator[tuple[Shape, ...]]:
    """Leading shapes that broadcast against each other."""
    for shapes in product(leads, repeat=count):
        try:
            np.broadcast_shapes(*shapes)
        except ValueError:
            continue
        yield shapes


def compare(
    ours: Callable[..., Any], theirs: Callable[..., Any], shapes: list[Shape], rng: Any
) -> None:
    """Value, gradients, gradients added to others, and those of each input alone."""
    arrays = [rng.standard_normal(shape) for shape in shapes]
    tensors = [torch.tensor(a, requires_grad=True) for a in arrays]
    expected = theirs(*tensors)
    upstream = rng.standard_normal(tuple(expected.shape))
    wanted = torch.autograd.grad(expected, tensors, torch.tensor(upstream))
    for needed in (range(len(arrays)), *[[i] for i in range(len(arrays))]):
        given = [gt.tensor(a, requires_grad=i in needed) for i, a in enumerate(arrays)]
        y = ours(*given)
        assert y.shape == tuple(expected.shape), shapes
        np.testing.assert_allclose(y.numpy(), expected.detach().numpy(), atol=1e-12)
        for _ in range(2):
            ours(*given).backward(gt.asarray(upstream))
        for i in needed:
            np.testing.assert_allclose(given[i].grad.numpy(), 2 * wanted[i].numpy(), atol=1e-12,
                                       err_msg=f"input {i} of {shapes}")


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("columns", [1, 5])
def test_products_of_matrices(rows: int, columns: int) -> None:
    rng = np.random.default_rng(rows + columns)
    for a, b in fitting(LEADS, 2):
        compare(gt.matmul, torch.matmul, [(*a, rows, 4), (*b, 4, columns)], rng)


@pytest.mark.gpu
def test_products_of_matrices_on_a_gpu() -> None:
    assert gt.asarray(1.0).device.type == "cuda"
    test_products_of_matrices(3, 5)


def test_products_with_vectors() -> None:
    rng = np.random.default_rng(0)
    for a in LEADS:
        compare(gt.matmul, torch.matmul, [(*a, 3, 4), (4,)], rng)
        compare(gt.matmul, torch.matmul, [(4,), (*a, 4, 3)], rng)


@pytest.mark.parametrize("subscripts", ["...ij,...jk->...ik", "...ij,...kj->...ki", "...ij,...j",
                                        "...ij,...ij->..."])
def test_einsum(subscripts: str) -> None:
    rng = np.random.default_rng(1)
    ends = {"...ij,...jk->...ik": ((3, 4), (4, 2)), "...ij,...kj->...ki": ((3, 4), (2, 4)),
            "...ij,...j": ((3, 4), (4,)), "...ij,...ij->...": ((3, 4), (3, 4))}[subscripts]
    for a, b in fitting(LEADS, 2):
        compare(lambda x, y: gt.einsum(subscripts, x, y),
                lambda x, y: torch.einsum(subscripts, x, y),
                [(*a, *ends[0]), (*b, *ends[1])], rng)


def test_linear() -> None:
    rng = np.random.default_rng(2)
    for a, out in product([*LEADS, (4, 1, 3), (1, 3)], (1, 5)):
        compare(F.linear, torch.nn.functional.linear, [(*a, 4), (out, 4), (out,)], rng)


@pytest.mark.thorough
@pytest.mark.parametrize("causal", [False, True])
def test_attention(causal: bool) -> None:
    rng = np.random.default_rng(3)

    def theirs(q: Any, k: Any, v: Any) -> Any:  # PyTorch's own refuses leading axes of both kinds
        scores = q @ k.mT / 2
        if causal:
            scores = scores.masked_fill(torch.ones(3, 3).triu(1).bool(), -torch.inf)
        return scores.softmax(-1) @ v

    for a, b, c in fitting(BATCHES, 3):
        compare(lambda *x: F.scaled_dot_product_attention(*x, is_causal=causal), theirs,
                [(*a, 3, 4), (*b, 3, 4), (*c, 3, 2)], rng)


def test_one_example_and_a_last_chunk_of_one() -> None:
    """The products of `vmap` have a leading axis of length 1 then."""
    rng = np.random.default_rng(4)
    a, b = gt.asarray(rng.standard_normal((3, 4))), gt.asarray(rng.standard_normal((7, 4, 5)))
    loss = gt.grad(lambda x, y: ((x @ y) ** 2).sum(), (0, 1))
    for count, chunk in ((1, None), (7, 3), (7, 1)):
        found = gt.vmap(loss, (None, 0), chunk_size=chunk)(a, b[:count])
        for i in range(count):
            for one, wanted in zip(found, loss(a, b[i]), strict=True):
                np.testing.assert_allclose(one[i].numpy(), wanted.numpy(), rtol=1e-12)

        def total(x: gt.Tensor, count: int = count, chunk: int | None = chunk) -> gt.Tensor:
            return (gt.vmap(lambda y: x @ y, chunk_size=chunk)(b[:count]) ** 2).sum()

        each = sum(loss(a, b[i])[0].numpy() for i in range(count))
        np.testing.assert_allclose(gt.grad(total)(a).numpy(), each, rtol=1e-12)

"""Linear, embedding, one-hot, dropout."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as TF
from against_torch import compare, compare_functional

import gtensor as gt
import gtensor.nn.functional as F
from gtensor.ops.activations.dropout import dropout_op, keep_factors


@pytest.mark.parametrize("lead", [(4,), (2, 3), (), (0,), (2, 1, 3)])
@pytest.mark.parametrize("bias", [True, False])
def test_linear(lead: tuple[int, ...], bias: bool, rng: np.random.Generator) -> None:
    arrays = [rng.standard_normal((*lead, 5)), rng.standard_normal((3, 5)), rng.standard_normal(3)]
    compare(F.linear, TF.linear, arrays if bias else arrays[:2])


def test_linear_twice_accumulates_in_place(rng: np.random.Generator) -> None:
    x, w = rng.standard_normal((4, 3)), rng.standard_normal((3, 3))
    compare_functional(lambda f, x, w: f.linear(f.linear(x, w), w) + 2 * f.linear(x, w), [x, w],
                       second=False)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_linear_of_half_types_adds_up_in_float32(dtype: str) -> None:
    half = getattr(gt, dtype)
    x, w, b = (gt.ones(s, half, "cpu", requires_grad=True) for s in ((2, 5000), (3, 5000), (3,)))
    y = F.linear(x, w, b)
    assert y.dtype == half
    np.testing.assert_allclose(y.numpy().astype(float), 5001, rtol=4e-3)
    y.backward(gt.full(y.shape, 0.25, half, "cpu"))
    assert w.grad is not None and w.grad.dtype == half and w.grad.numpy()[0, 0] == 0.5
    assert x.grad is not None and x.grad.numpy()[1, 7] == 0.75


# -- embedding and one-hot -------------------------------------------------------------------------


@pytest.mark.parametrize("padding_idx", [None, 1, -1])
@pytest.mark.parametrize("shape", [(6,), (2, 3), (), (0,)])
@pytest.mark.parametrize("tile", [65536, 2])
def test_embedding(padding_idx: Any, shape: Any, tile: int, rng: np.random.Generator) -> None:
    indices = rng.integers(0, 4, shape)
    with gt.settings.override(tile_elements=tile):
        compare(lambda w: F.embedding(gt.tensor(indices, device="cpu"), w, padding_idx),
                lambda w: TF.embedding(torch.tensor(indices), w, padding_idx),
                [rng.standard_normal((4, 3))])


def test_two_gradients_of_one_table_accumulate(rng: np.random.Generator) -> None:
    indices = rng.integers(0, 4, 9)
    compare(
        lambda w: (
            F.embedding(gt.tensor(indices, device="cpu"), w) * 2
            + F.embedding(gt.tensor(indices[::-1].copy(), device="cpu"), w)
        ),
        lambda w: (
            TF.embedding(torch.tensor(indices), w) * 2
            + TF.embedding(torch.tensor(indices[::-1].copy()), w)
        ),
        [rng.standard_normal((4, 3))],
        second=False,
    )


def test_embedding_of_half_types_adds_up_in_float32() -> None:
    w = gt.ones((2, 3), gt.float16, "cpu", requires_grad=True)
    F.embedding(gt.zeros(4096, "int64", "cpu"), w).sum(axis=0).backward(
        gt.ones(3, gt.float16, "cpu"))
    assert w.grad is not None and w.grad.numpy()[0, 0] == 4096


@pytest.mark.parametrize("classes", [-1, 5])
def test_one_hot(classes: int) -> None:
    indices = np.array([[0, 2, 1], [3, 3, 0]])
    y = F.one_hot(gt.tensor(indices, device="cpu"), classes)
    assert y.dtype == gt.int64
    assert y.tolist() == TF.one_hot(torch.tensor(indices), classes).tolist()


# -- dropout ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_dropout_drops_and_scales(p: float) -> None:
    x = gt.ones((300, 500), device="cpu", requires_grad=True)
    y = F.dropout(x, p, seed=3)
    values = y.numpy().copy()
    kept = values != 0
    np.testing.assert_allclose(values[kept], 1 / (1 - p), rtol=1e-6)
    deviation = np.sqrt(p * (1 - p) / x.size)
    assert abs(1 - kept.mean() - p) < 4 * deviation
    y.sum().backward()
    assert x.grad is not None and np.array_equal(x.grad.numpy(), values), "the same mask backward"
    for a, b in ((0, 1), (1, 0)):  # neighbours are independent
        pairs = kept[a:, b:] & kept[: 300 - a, : 500 - b]
        assert abs(pairs.mean() - (1 - p) ** 2) < 0.01


def test_the_mask_of_dropout_follows_from_the_seed_alone() -> None:
    x = gt.ones(200_000, device="cpu")
    one = F.dropout(x, 0.5, seed=11).numpy()
    assert np.array_equal(one, F.dropout(x, 0.5, seed=11).numpy())
    assert not np.array_equal(one, F.dropout(x, 0.5, seed=12).numpy())
    assert np.array_equal(one[:70_001], F.dropout(x[:70_001], 0.5, seed=11).numpy())
    assert not np.array_equal(one[:65536], one[65536:131072]), "chunks repeat"
    with gt.settings.override(tile_elements=64):
        assert np.array_equal(one, F.dropout(x, 0.5, seed=11).numpy())
    assert np.array_equal(
        one, F.dropout(gt.ones((2, 200_000), device="cpu").T[:, 0], 0.5, seed=11).numpy())


@pytest.mark.parametrize("start", [0, 1, 7, 9, 65533, 65536, 131071])
def test_a_part_of_the_mask_of_dropout_is_that_part(start: int) -> None:
    whole = dropout_op.cpu(np.ones(200_000), p=0.25, seed=4)
    shape = (3, 22_900)
    part = keep_factors(gt.device("cpu"), shape, start, 0.25, 4, np.float64)
    assert np.array_equal(part.reshape(-1), whole[start:start + part.size])


def test_dropout_takes_its_output_and_a_chunk() -> None:
    """Also into a strided buffer; no mask is kept: the record saves nothing."""
    x = np.ones((1000, 1000), np.float32)
    out = np.empty((1000, 2000), np.float32)[:, ::2]
    tracemalloc.start()
    try:
        dropout_op.cpu(x, p=0.5, seed=1, out=out)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert np.array_equal(out, dropout_op.cpu(x, p=0.5, seed=1)) and peak < x.nbytes // 3
    y = F.dropout(gt.ones(5, device="cpu", requires_grad=True))
    assert y._node.saved == ()


def test_dropout_follows_manual_seed_and_draws_anew() -> None:
    x = gt.ones(1000, device="cpu")
    gt.manual_seed(5)
    first = [F.dropout(x).numpy() for _ in range(2)]
    gt.manual_seed(5)
    again = [F.dropout(x).numpy() for _ in range(2)]
    assert np.array_equal(first, again) and not np.array_equal(*first)


def test_dropout_at_its_ends() -> None:
    x = gt.tensor([1.0, np.inf, np.nan], device="cpu", requires_grad=True)
    masks = [F.dropout(gt.ones(50), 0.5, True, False).tolist() for _ in range(2)]
    assert masks[0] != masks[1]  # PyTorch's fourth is `inplace`, no seed
    assert F.dropout(x, 0.5, training=False) is x and F.dropout(x, 0.0) is x
    y = F.dropout(x, 1.0)
    assert y.tolist() == [0, 0, 0]
    y.sum().backward()
    assert x.grad is not None and x.grad.tolist() == [0, 0, 0]


def test_dropout_second_order(rng: np.random.Generator) -> None:
    x = gt.tensor(rng.standard_normal(50), device="cpu", requires_grad=True)
    mask = F.dropout(gt.ones(50, gt.float64, "cpu"), 0.4, seed=2)
    (g,) = gt.grad((F.dropout(x, 0.4, seed=2) ** 3).sum(), [x], create_graph=True)
    (h,) = gt.grad(g.sum(), [x])
    np.testing.assert_allclose(h.numpy(), (6 * x * mask * mask * mask).numpy(), rtol=1e-12)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x: F.linear(x, x.T), ValueError,
         r"linear was given an input of shape \(2, 3\) and a weight"),
        (lambda x: F.linear(x, x.T[:, :1] @ x[:1], x[:, 0]), ValueError, r"a bias of shape \(2,\)"),
        (lambda x: F.linear(x, x.astype("float64")[:1]), TypeError,
         "linear was given input of dtype float32"),
        (lambda x: F.embedding(x, x), TypeError, "indices of dtype float32; wanted integers"),
        (lambda x: F.embedding(gt.tensor([2], device="cpu"), x), ValueError,
         "the index 2; wanted 0 to 1"),
        (lambda x: F.embedding(gt.tensor([-1], device="cpu"), x), ValueError,
         "the index -1; wanted 0 to 1"),
        (lambda x: F.embedding(gt.tensor([0], device="cpu"), x, 2), ValueError,
         "padding_idx=2 for 2 rows"),
        (lambda x: F.embedding(gt.tensor([0], device="cpu"), x[0]), ValueError,
         r"a weight of shape \(3,\)"),
        (lambda x: F.one_hot(x), TypeError, "one_hot was given a tensor of dtype float32"),
        (lambda x: F.one_hot(gt.tensor([3], device="cpu"), 3), ValueError,
         "the index 3; wanted 0 to 2"),
        (lambda x: F.one_hot(gt.tensor([3], device="cpu"), 0), ValueError,
         "num_classes=0; wanted 1 or more"),
        (lambda x: F.one_hot(gt.zeros(0, "int64", "cpu")), ValueError,
         "no indices and num_classes=-1"),
        (lambda x: F.dropout(x, 1.5), ValueError, "p=1.5; wanted a probability"),
        (lambda x: F.dropout(x, seed=False), TypeError, "seed=False; wanted an integer or None"),
        (lambda x: F.dropout(x, seed=1.5), TypeError, "seed=1.5; wanted an integer or None"),
        (lambda x: F.dropout(x, seed=-1), ValueError, r"seed=-1; wanted 0 to 2\*\*64 - 1"),
        (lambda x: F.dropout(x, seed=2**64), ValueError, "seed=18446744073709551616; wanted 0 to"),
        (lambda x: F.dropout(x.astype("int64")), TypeError,
         "dropout was given an input of dtype int64"),
    ],
)
def test_messages(call: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        call(gt.ones((2, 3), device="cpu"))


@pytest.mark.parametrize("options", [{}, {"p": 1.0, "dim": -1}, {"p": 3.0, "dim": (0, 2)},
                                     {"p": float("inf"), "dim": 0}, {"eps": 2.5}])
def test_normalize(options: dict[str, Any], rng: np.random.Generator) -> None:
    compare_functional(lambda f, x: f.normalize(x, **options), [rng.standard_normal((3, 4, 2))])


def test_a_vector_of_zeros_has_no_direction() -> None:
    x = gt.zeros((2, 3), requires_grad=True)
    y = F.normalize(x)
    assert y.tolist() == [[0.0] * 3] * 2
    y.sum().backward()
    assert x.grad is not None and np.isfinite(x.grad.numpy()).all()


@pytest.mark.parametrize("shapes,dim", [
    (((4, 3), (4, 3)), 1), (((2, 3, 5), (3, 5)), 1), (((2, 1, 5), (1, 3, 5)), -1),
    (((4, 1), (4, 3)), 1), (((6,), (6,)), 0)])
def test_cosine_similarity(
    shapes: tuple[tuple[int, ...], ...], dim: int, rng: np.random.Generator
) -> None:
    compare_functional(lambda f, a, b: f.cosine_similarity(a, b, dim),
                       [rng.standard_normal(shape) for shape in shapes])

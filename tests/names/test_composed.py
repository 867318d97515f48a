"""Compositions under the names of NumPy and PyTorch: values, gradients and errors."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as TF
from against_torch import compare

import gtensor as gt

VECTOR, MATRIX, CUBE = (5,), (3, 4), (2, 3, 4)
Case = tuple[Callable[..., Any], Callable[..., Any], tuple[tuple[int, ...], ...]]



def _distances(a: torch.Tensor, b: torch.Tensor, p: float) -> torch.Tensor:
    """torch.cdist, whose gradient PyTorch cannot differentiate."""
    return torch.linalg.vector_norm(a[..., :, None, :] - b[..., None, :, :], p, dim=-1)


LIKE_TORCH: dict[str, Case] = {  # gtensor's function, PyTorch's, shapes of the inputs
    "kron": (gt.kron, torch.kron, (MATRIX, (2, 3))),
    "kron, axes": (gt.kron, torch.kron, (VECTOR, CUBE)),
    "diag of a vector": (lambda x: gt.diag(x, 1), lambda x: torch.diag(x, 1), (VECTOR,)),
    "diag of a matrix": (lambda x: gt.diag(x, -1), lambda x: torch.diag(x, -1), (MATRIX,)),
    "diagonal": (gt.diagonal, torch.diagonal, (MATRIX,)),
    "trace": (gt.trace, torch.trace, (MATRIX,)),
    "cov": (gt.cov, torch.cov, (MATRIX,)),
    "cov of a matrix of one row": (gt.cov, torch.cov, ((1, 4),)),
    "cross along an axis": (lambda a, b: gt.cross(a, b, dim=0),
                            lambda a, b: torch.cross(a, b, dim=0), ((3, 3), (3, 3))),
    "norm, by words": (lambda x: x.norm(p=3, dim=1), lambda x: x.norm(p=3, dim=1), (MATRIX,)),
    "linalg norm, by words": (
        lambda x: gt.linalg.norm(x, dim=1, keepdim=True) + gt.linalg.vector_norm(x, dim=-1)[0],
        lambda x: (torch.linalg.norm(x, dim=1, keepdim=True)
                   + torch.linalg.vector_norm(x, dim=-1)[0]), (MATRIX,)),
    "cov of one variable": (gt.cov, torch.cov, (VECTOR,)),
    "corrcoef": (gt.corrcoef, torch.corrcoef, (MATRIX,)),
    "quantile": (lambda x: gt.quantile(x, 0.3), lambda x: torch.quantile(x, 0.3), (MATRIX,)),
    "quantiles": (lambda x: gt.quantile(x, [0.25, 0.9], axis=1), lambda x: torch.quantile(
        x, torch.tensor([0.25, 0.9], dtype=torch.float64), dim=1), (CUBE,)),
    "quantile, kept": (lambda x: gt.quantile(x, 0.5, dim=0, keepdim=True),
                       lambda x: torch.quantile(x, 0.5, dim=0, keepdim=True), (CUBE,)),
    "percentile": (lambda x: gt.percentile(x, 80), lambda x: torch.quantile(x, 0.8), (VECTOR,)),
    "trapezoid": (gt.trapezoid, torch.trapezoid, (MATRIX,)),
    "trapezoid at places": (gt.trapezoid, torch.trapezoid, (CUBE, (4,))),
    "trapezoid at places of fewer axes": (
        lambda y, x: gt.trapezoid(y, x, dim=1), lambda y, x: torch.trapezoid(y, x, dim=1),
        ((2, 3, 3), (3, 3))),
    "trapezoid along the first axis": (lambda y: gt.trapezoid(y, dx=0.5, axis=0),
                                       lambda y: torch.trapezoid(y, dx=0.5, dim=0), (MATRIX,)),
    "cumulative_trapezoid": (gt.cumulative_trapezoid, torch.cumulative_trapezoid, (MATRIX,)),
    "cumulative_trapezoid at places": (
        lambda y, x: gt.cumulative_trapezoid(y, x, dim=1),
        lambda y, x: torch.cumulative_trapezoid(y, x, dim=1), ((2, 3, 3), (3, 3))),
    "diag_embed": (gt.diag_embed, torch.diag_embed, (MATRIX,)),
    "diag_embed of axes": (lambda x: x.diag_embed(-1, 2, 0),
                           lambda x: x.diag_embed(-1, 2, 0), (MATRIX,)),
    "cdist": (gt.cdist, lambda a, b: _distances(a, b, 2), (CUBE, (5, 4))),
    "cdist by a product": (gt.cdist, lambda a, b: _distances(a, b, 2), ((27, 3), (4, 3))),
    "cdist of another norm": (lambda a, b: gt.cdist(a, b, 3), lambda a, b: _distances(a, b, 3),
                              (MATRIX, MATRIX)),
    "renorm": (lambda x: x.renorm(2, 0, 1.5), lambda x: x.renorm(2, 0, 1.5), (MATRIX,)),
    "renorm of another norm": (lambda x: gt.renorm(x, 1, -1, 2.0),
                               lambda x: torch.renorm(x, 1, -1, 2.0), (CUBE,)),
    "cummax": (lambda x: x.cummax(1)[0], lambda x: x.cummax(1)[0], (CUBE,)),
    "cummin": (lambda x: gt.cummin(x, -1).values, lambda x: torch.cummin(x, -1).values, (MATRIX,)),
    "logcumsumexp": (lambda x: gt.logcumsumexp(x, 0), lambda x: torch.logcumsumexp(x, 0),
                     (MATRIX,)),
    "gradient": (lambda x: gt.gradient(x, 2.0), lambda x: torch.gradient(x, spacing=2.0)[0],
                 (VECTOR,)),
    "gradient along an axis": (lambda x: gt.gradient(x, axis=1),
                               lambda x: torch.gradient(x, dim=1)[0], (CUBE,)),
    "convolve": (gt.convolve, lambda a, b: TF.conv1d(
        a[None, None], b.flip(0)[None, None], padding=2)[0, 0], ((7,), (3,))),
    "vstack": (lambda *x: gt.vstack(x), lambda *x: torch.vstack(x), (VECTOR, (2, 5))),
    "hstack": (lambda *x: gt.hstack(x), lambda *x: torch.hstack(x), (MATRIX, (3, 2))),
    "hstack of vectors": (lambda *x: gt.hstack(x), lambda *x: torch.hstack(x), (VECTOR, (2,))),
    "column_stack": (lambda *x: gt.column_stack(x), lambda *x: torch.column_stack(x),
                     ((3,), MATRIX)),
    "swapaxes": (lambda x: gt.swapaxes(x, 0, -1), lambda x: torch.swapaxes(x, 0, -1), (CUBE,)),
    "transpose of two": (lambda x: x.transpose(0, 2), lambda x: x.transpose(0, 2), (CUBE,)),
    "transpose of all": (lambda x: x.transpose(), lambda x: x.permute(2, 1, 0), (CUBE,)),
    "transpose to an order": (lambda x: gt.transpose(x, (1, 2, 0)), lambda x: x.permute(1, 2, 0),
                              (CUBE,)),
    "permute": (lambda x: x.permute(1, 2, 0), lambda x: x.permute(1, 2, 0), (CUBE,)),
    "t": (lambda x: x.t(), lambda x: x.t(), (MATRIX,)),
    "view": (lambda x: x.view(-1, 2), lambda x: x.reshape(-1, 2), (MATRIX,)),
    "expand": (lambda x: x.expand(2, -1, 4), lambda x: x.expand(2, -1, 4), ((3, 1),)),
    "chunk": (lambda x: gt.chunk(x, 3)[1], lambda x: torch.chunk(x, 3)[1], (VECTOR,)),
    "split": (lambda x: x.split(3, dim=1)[1], lambda x: x.split(3, dim=1)[1], (MATRIX,)),
    "split by sizes": (lambda x: x.split([1, 3], 1)[1], lambda x: x.split([1, 3], 1)[1], (MATRIX,)),
    "unbind": (lambda x: x.unbind(1)[2], lambda x: x.unbind(1)[2], (MATRIX,)),
    "narrow": (lambda x: x.narrow(1, 1, 2), lambda x: x.narrow(1, 1, 2), (MATRIX,)),
    "select": (lambda x: x.select(1, 1), lambda x: x.select(1, 1), (MATRIX,)),
    "unflatten": (lambda x: x.unflatten(1, (2, -1)), lambda x: x.unflatten(1, (2, -1)), (MATRIX,)),
    "tile": (lambda x: x.tile(2, 1), lambda x: x.tile(2, 1), (MATRIX,)),
    "norm": (gt.norm, torch.norm, (MATRIX,)),
    "norm over an axis": (lambda x: x.norm(1, dim=1, keepdim=True),
                          lambda x: x.norm(1, dim=1, keepdim=True), (MATRIX,)),
    "dot": (gt.dot, torch.dot, (VECTOR, VECTOR)),
    "addmm": (lambda *x: gt.addmm(*x, beta=0.5, alpha=2), lambda *x: torch.addmm(
        *x, beta=0.5, alpha=2), ((3, 2), MATRIX, (4, 2))),
    "addcmul": (lambda *x: gt.addcmul(*x, value=2), lambda *x: torch.addcmul(*x, value=2),
                (MATRIX, MATRIX, MATRIX)),
    "addcdiv": (lambda a, b, c: gt.addcdiv(a, b, 3 + c * c), lambda a, b, c: torch.addcdiv(
        a, b, 3 + c * c), (MATRIX, MATRIX, MATRIX)),
    "lerp": (gt.lerp, torch.lerp, (MATRIX, MATRIX, MATRIX)),
    "fmod": (lambda x, y: gt.fmod(5 * x, 0.3 + y * y), lambda x, y: torch.fmod(5 * x, 0.3 + y * y),
             (MATRIX, MATRIX)),
    "fmod by a number": (lambda x: gt.fmod(5 * x, -2), lambda x: torch.fmod(5 * x, -2), (MATRIX,)),
    "exp2": (gt.exp2, torch.exp2, (MATRIX,)),
    "rsqrt": (lambda x: (1 + x * x).rsqrt(), lambda x: (1 + x * x).rsqrt(), (MATRIX,)),
    "clamp_min": (lambda x: x.clamp_min(0.1), lambda x: x.clamp_min(0.1), (MATRIX,)),
    "clamp_max": (lambda x: x.clamp_max(0.1), lambda x: x.clamp_max(0.1), (MATRIX,)),
    "amax": (lambda x: x.amax(dim=1, keepdim=True), lambda x: x.amax(dim=1, keepdim=True),
             (MATRIX,)),
    "amin": (lambda x: x.amin(dim=1), lambda x: x.amin(dim=1), (MATRIX,)),
    "round": (lambda x: gt.round(x, 2) + x, lambda x: torch.round(x, decimals=2) + x, (MATRIX,)),
    "rounded to tens": (lambda x: round(100 * x, -1) + x,
                        lambda x: torch.round(100 * x, decimals=-1) + x, (MATRIX,)),
    "divmod": (lambda x: divmod(x, 0.3)[1], lambda x: torch.remainder(x, 0.3), (MATRIX,)),
}


@pytest.mark.parametrize("name", LIKE_TORCH)
def test_values_and_gradients_are_those_of_pytorch(name: str, rng: np.random.Generator) -> None:
    ours, theirs, shapes = LIKE_TORCH[name]
    compare(ours, theirs, [rng.standard_normal(shape) for shape in shapes], tolerance=1e-9)


def test_selections_are_those_of_pytorch(rng: np.random.Generator) -> None:
    index = rng.integers(0, 3, (2, 3))
    places, mask = gt.tensor(index), rng.random(MATRIX) > 0.5
    x = rng.standard_normal(MATRIX)
    compare(lambda x: x.gather(0, places), lambda x: x.gather(0, torch.tensor(index)), [x])
    compare(lambda x: gt.gather(x, 1, places), lambda x: x.gather(1, torch.tensor(index)), [x])
    compare(lambda x: x.index_select(1, places[0]),
            lambda x: x.index_select(1, torch.tensor(index[0])), [x])
    compare(lambda x: x.masked_fill(gt.tensor(mask), 2.0),
            lambda x: x.masked_fill(torch.tensor(mask), 2.0), [x])
    compare(lambda x: x.masked_select(gt.tensor(mask)),
            lambda x: x.masked_select(torch.tensor(mask)), [x], second=False)


def test_selections_broadcast_and_keep_dtypes_as_pytorchs(rng: np.random.Generator) -> None:
    x, mask = rng.standard_normal((3, 3)), np.array([True, False, True])
    compare(lambda x: x.masked_select(gt.tensor(mask)),
            lambda x: x.masked_select(torch.tensor(mask)), [x], second=False)  # of columns
    compare(lambda x: x.narrow(1, -2, 2), lambda x: x.narrow(1, -2, 2), [x])
    compare(lambda x: x.index_select(1, gt.tensor(1)),
            lambda x: x.index_select(1, torch.tensor(1)), [x])
    filled = gt.tensor([1, 2]).masked_fill(gt.tensor([True, False]), 7.0)
    assert filled.dtype == gt.int64 and filled.tolist() == [7, 2]
    assert gt.ones(2, dtype=gt.bool).masked_fill(gt.tensor([True, False]), 0).dtype == gt.bool
    assert gt.ones(2).masked_fill(gt.tensor([True, False]), gt.ones((), "float64")).dtype == "f4"
    parts = torch.chunk(torch.zeros(0), 3)
    assert [p.shape for p in gt.chunk(gt.zeros(0), 3)] == [tuple(p.shape) for p in parts]
    assert [part.size for part in gt.zeros(5).split(np.int64(2))] == [2, 2, 1]
    assert gt.zeros(0).split([]) == () and gt.ones((2, 3)).view(np.int64(6)).shape == (6,)
    assert gt.column_stack([gt.tensor(1.0), gt.tensor(2.0)]).tolist() == [[1, 2]]
    assert [part.shape for part in gt.triu_indices(3, 0)] == [(0,), (0,)]


def test_small_and_unsigned_integers_do_not_wrap() -> None:
    few = np.array([200, 100, 150], np.uint8)
    x = gt.tensor(few)
    assert gt.gradient(x).tolist() == np.gradient(few).tolist() == [-100, -25, 50]
    assert gt.trapezoid(x).tolist() == 275 and gt.trapezoid(x[:2], x[:2]).tolist() == -15000
    places = np.array([100, 200], np.uint8)
    assert gt.interp(x * 0, gt.tensor(places), gt.tensor([1.0, 2])).tolist() == [1, 1, 1]
    a, b = np.array([-128, -128, 5, -7], np.int8), np.array([-128, 3, -128, 3], np.int8)
    assert gt.fmod(gt.tensor(a), gt.tensor(b)).tolist() == np.fmod(a, b).tolist() == [0, -2, 5, -1]


def test_results_are_not_their_inputs_memory() -> None:
    """Where they are not in PyTorch: a write leaves the input as it was."""
    x, m = gt.tensor([1, 2]), gt.ones((2, 2))
    gt.nan_to_num(x)[...] = 9
    gt.diag(m)[...] = 9
    assert x.tolist() == [1, 2] and m.tolist() == [[1, 1], [1, 1]]


def test_ends_are_exact() -> None:
    far, near = gt.tensor([1e8]), gt.tensor([1.0])
    assert gt.lerp(far, near, 1.0).tolist() == gt.lerp(far, near, near).tolist() == [1.0]
    assert far.clone().lerp_(near, 1.0).tolist() == [1.0]
    twice = np.array([0.0, 1.0, 1.0]), np.array([1.0, 2.0, 3.0])
    found = gt.interp(gt.tensor([0.5, 1.0, 2.0]), *map(gt.tensor, twice))
    assert found.tolist() == np.interp([0.5, 1.0, 2.0], *twice).tolist() == [1.5, 3, 3]


def test_integers_become_the_default_dtype() -> None:
    x, before = gt.tensor([[1, 2]]), gt.get_default_dtype()
    gt.set_default_dtype(gt.float64)
    try:
        found = gt.logspace(0, 1, 3), gt.median(x), gt.cov(x), gt.trapezoid(x), gt.gradient(x[0])
        assert [y.dtype for y in found] == [gt.float64] * 5
    finally:
        gt.set_default_dtype(before)


def test_interpolation_is_numpys_and_its_gradient_that_of_its_formula(
    rng: np.random.Generator
) -> None:
    xp = np.sort(rng.standard_normal(6))
    x, fp = np.concatenate([rng.standard_normal(9) * 2, xp]), rng.standard_normal(6)
    wanted = np.interp(x, xp, fp)
    assert np.allclose(gt.interp(*map(gt.tensor, (x, xp, fp))).numpy(), wanted, rtol=1e-12)
    inner = gt.tensor((xp[1:] + xp[:-1]) / 2, requires_grad=True)
    gt.testing.gradcheck(gt.interp, [
        inner, gt.tensor(xp, requires_grad=True), gt.tensor(fp, requires_grad=True)])
    assert gt.interp(gt.tensor([0.5, 3]), gt.tensor([1.0]), gt.tensor([7.0])).tolist() == [7, 7]


def test_the_median_is_numpys(rng: np.random.Generator) -> None:
    x = rng.standard_normal((4, 6)).astype("f")
    t = gt.tensor(x, requires_grad=True)
    assert np.array_equal(gt.median(t, axis=1).detach().numpy(), np.median(x, axis=1))
    assert gt.median(gt.tensor([3, 1, 2])).item() == 2 and gt.median(t).dtype == gt.float32
    assert gt.tensor([1.0, np.inf, np.inf]).median().item() == np.inf
    assert np.isnan(gt.median(gt.tensor([1.0, np.nan, 2.0])).item())
    gt.median(t[0]).backward()
    assert sorted(t.grad.numpy()[0].tolist()) == [0, 0, 0, 0, 0.5, 0.5]


@pytest.mark.parametrize("mode", ["full", "same", "valid"])
@pytest.mark.parametrize("sizes", [(7, 3), (2, 6), (4, 4), (5, 1)])
def test_convolutions_are_numpys(
    mode: str, sizes: tuple[int, int], rng: np.random.Generator
) -> None:
    a, b = (rng.standard_normal(n) for n in sizes)
    found = gt.convolve(gt.tensor(a), gt.tensor(b), mode)
    assert np.allclose(found.numpy(), np.convolve(a, b, mode), rtol=1e-12)


def test_closeness_is_numpys() -> None:
    a = np.array([1.0, 1.0, np.nan, np.inf, np.inf, -np.inf, 0.0])
    b = np.array([1.0 + 1e-6, 1.1, np.nan, np.inf, 1.0, np.inf, 1e-9])
    for options in ({}, {"equal_nan": True}, {"rtol": 0.2}, {"atol": 1.0}):
        found = gt.isclose(gt.tensor(a), gt.tensor(b), **options)
        assert np.array_equal(found.numpy(), np.isclose(a, b, **options))
    assert gt.allclose(gt.tensor([1, 2]), [1, 2]) is True
    assert gt.ones(2).allclose(gt.zeros(2)) is False
    assert not gt.allclose(gt.tensor([1], "uint8"), gt.tensor([2], "uint8"))


def test_numbers_stand_for_what_is_not_finite(rng: np.random.Generator) -> None:
    x = np.array([np.nan, np.inf, -np.inf, 2.0])
    compare(gt.nan_to_num, torch.nan_to_num, [x], second=False, tolerance=1e-9)
    ours = gt.nan_to_num(gt.tensor(x), nan=1.0, posinf=3.0, neginf=-3.0)
    assert ours.tolist() == [1.0, 3.0, -3.0, 2.0]
    assert gt.nan_to_num(gt.tensor([1, 2])).tolist() == [1, 2]


def test_counts_places_and_sets_are_numpys(rng: np.random.Generator) -> None:
    x = rng.integers(0, 5, 20)
    t = gt.tensor(x)
    assert np.array_equal(gt.bincount(t).numpy(), np.bincount(x))
    assert np.array_equal(t.bincount(minlength=9).numpy(), np.bincount(x, minlength=9))
    assert gt.bincount(gt.tensor([], "int64")).tolist() == []
    for ours, theirs in zip(gt.unique(t, return_inverse=True, return_counts=True),
                            np.unique(x, return_inverse=True, return_counts=True), strict=True):
        assert np.array_equal(ours.numpy(), theirs)
    m = x.reshape(4, 5) > 2
    assert np.array_equal(gt.argwhere(gt.tensor(m)).numpy(), np.argwhere(m))
    for ours, theirs in zip(gt.where(gt.tensor(m)), np.where(m), strict=True):
        assert np.array_equal(ours.numpy(), theirs)
    for name in ("triu_indices", "tril_indices"):
        for given, options in (((3,), {}), ((3, 5), {"k": 1}), ((4, 2), {"k": -1})):
            n, m_ = given if len(given) == 2 else (*given, None)
            for ours, theirs in zip(getattr(gt, name)(*given, **options),
                                    getattr(np, name)(n, m=m_, **options), strict=True):
                assert np.array_equal(ours.numpy(), theirs)
    assert np.allclose(gt.logspace(0, 2, 4, dtype="float64").numpy(), np.logspace(0, 2, 4))
    for ours, theirs in zip(gt.gradient(gt.tensor(m * 1.0), 1.0, 2.0),
                            np.gradient(m * 1.0, 1.0, 2.0), strict=True):
        assert np.array_equal(ours.numpy(), theirs)


def test_dtypes_and_places_by_pytorchs_methods() -> None:
    x = gt.ones((2, 3))
    for name, dtype in (("half", gt.float16), ("bfloat16", gt.bfloat16), ("double", gt.float64),
                        ("short", gt.int16), ("int", gt.int32), ("long", gt.int64),
                        ("bool", gt.bool), ("cfloat", gt.complex64), ("cdouble", gt.complex128)):
        assert getattr(x, name)().dtype == dtype
    assert x.float() is x and x.cpu() is x and x.type(gt.float32) is x
    assert x.type_as(gt.ones(1, "int8")).dtype == gt.int8
    assert x.contiguous() is x and not x.T.is_contiguous() and x.T.contiguous().is_contiguous()
    assert (x.dim(), x.numel(), x.element_size(), x.itemsize, x.get_device()) == (2, 6, 4, 4, -1)
    assert (x.is_cuda, x.is_floating_point(), x.is_complex()) == (False, True, False)
    made = [x.double().new_zeros(2, 3), x.new_ones((2,), dtype="int8"), x.new_full((2,), 3),
            x.new_tensor([1, 2]), x.new_empty(2)]
    assert [m.dtype.name for m in made] == ["float64", "int8", "float32", "float32", "float32"]
    assert [m.shape for m in made] == [(2, 3), (2,), (2,), (2,), (2,)]
    like = gt.randn_like(x.double())
    assert like.dtype == gt.float64 and like.shape == (2, 3) and like.std().item() > 0
    assert 0 <= gt.rand_like(x).min().item() <= gt.rand_like(x).max().item() < 1
    assert gt.is_tensor(x) and not gt.is_tensor(3) and isinstance(x, gt.ndarray)


def test_size_is_a_number_that_may_be_called() -> None:
    x = gt.ones((2, 3))
    assert x.size == 6 and x.size() == (2, 3) and x.size(-1) == 3 and isinstance(x.size, int)
    assert {6: 1}[x.size] == 1 and type(pickle.loads(pickle.dumps(x.size))) is int
    with pytest.raises(IndexError):
        x.size(2)


def test_an_array_beside_a_size_keeps_its_dtype() -> None:
    """NumPy takes a number of another class than int for int64, and float32 would be float64."""
    x, array = gt.ones((2, 3)), np.ones(2, "f")
    for found in (x / x.size, x.size * x, 2 - x.size / x, x**x.size, gt.maximum(x, x.size),
                  gt.where(x > 0, x.size, x), gt.where(x > 0, x.size, 1.0), gt.clip(x, 0, x.size),
                  array / x.size, x.size * array, np.multiply(array, x.size), array + x.size):
        assert found.dtype == np.float32
    assert gt.result_type(gt.float32, x.size) == gt.float32 and (x.size > array).all()
    assert (gt.ones(2, gt.bfloat16) / x.size).dtype == gt.bfloat16
    assert (7 // x.size, x.size % 4, 2**x.size, -x.size) == (1, 2, 64, -6)
    assert divmod(x.size, 4) == (1, 2)


def test_data_is_the_same_memory_without_history() -> None:
    w = gt.ones(3, requires_grad=True)
    w.data.normal_(5, 0)
    w.data -= 1
    assert w.tolist() == [4, 4, 4] and w.requires_grad and not w.data.requires_grad
    w.data = gt.zeros(3)
    assert w.tolist() == [0, 0, 0] and w.requires_grad
    for shape in ((4,), (1,), ()):  # of which PyTorch's w would take the shape
        with pytest.raises(ValueError, match=r"of shape .* where x has shape \(3,\); wanted"):
            w.data = gt.ones(shape)
    assert w.tolist() == [0, 0, 0]


def test_data_is_not_assigned_within_a_transform() -> None:
    """There all arrays of a shape are one stand-in, which told nothing of the memory."""

    def function(x: gt.Tensor) -> gt.Tensor:
        y = x * 2.0
        y.data = y * 3.0
        return y

    with pytest.raises(gt.LevelError, match="would overwrite a value within vmap"):
        gt.vmap(function)(gt.ones((2, 3)))


def test_to_takes_a_device_and_a_dtype_in_every_form() -> None:
    x = gt.ones(2)
    assert x.to(dtype=gt.float64).dtype == x.to("cpu", gt.float64).dtype == gt.float64
    assert x.to(device="cpu", dtype="int8", non_blocking=True).dtype == gt.int8
    assert x.to("cpu", non_blocking=True) is x and x.to(gt.ones(1, "int8")).dtype == gt.int8
    assert x.to("cpu", copy=True) is not x and x.to(gt.float64, True).dtype == gt.float64
    for call in (lambda: x.to("cpu", device="cpu"), lambda: x.to(gt.float32, gt.float64)):
        with pytest.raises(TypeError, match=r"to\(\) was given .*; wanted one device and one dty"):
            call()


# -- PyTorch's words for arguments -----------------------------------------------------------------

WORDS = {  # by `axis`, and by `dim`
    "sum": {"keepdims": True}, "prod": {"keepdims": True}, "mean": {"keepdims": True},
    "any": {"keepdims": True}, "all": {"keepdims": True}, "argmax": {"keepdims": True},
    "argmin": {"keepdims": True}, "logsumexp": {"keepdims": True},
    "count_nonzero": {"keepdims": True}, "cumulative_sum": {}, "cumulative_prod": {}, "diff": {},
    "argsort": {}, "unstack": {}, "expand_dims": {}, "quantile": {"keepdims": True},
    "trapezoid": {},
}


@pytest.mark.parametrize("name", WORDS)
def test_dim_is_another_word_for_axis(name: str, rng: np.random.Generator) -> None:
    x = gt.tensor(rng.standard_normal(MATRIX))
    more = (0.5,) if name == "quantile" else ()
    function, kept = getattr(gt, name), WORDS[name]
    words = {"keepdim": True} if kept else {}
    ours, theirs = function(x, *more, axis=1, **kept), function(x, *more, dim=1, **words)
    assert all(np.array_equal(a.numpy(), b.numpy()) for a, b in zip(ours, theirs, strict=True))
    with pytest.raises(TypeError, match=f"{name} was given axis=1 and dim=1, two words for one"):
        function(x, *more, axis=1, dim=1)
    if kept:
        with pytest.raises(TypeError, match=f"{name} was given keepdims=True and keepdim=False, "):
            function(x, *more, keepdims=True, keepdim=False)


def test_dim_joins_and_takes_as_axis_does() -> None:
    x = gt.ones((2, 1, 3))
    assert gt.cat([x, x], dim=1).shape == (2, 2, 3) and gt.stack([x, x], dim=-1).shape[-1] == 2
    assert x.squeeze(dim=1).shape == (2, 3) and x.repeat_interleave(2, dim=0).shape == (4, 1, 3)
    assert gt.take_along_dim(x, gt.zeros((2, 1, 1), "int64"), dim=2).shape == (2, 1, 1)
    assert x.unsqueeze(dim=0).shape == (1, 2, 1, 3) and x.max(axis=1, keepdim=True).ndim == 3
    assert x.std(dim=0, correction=1).shape == (1, 3)


@pytest.mark.parametrize(("call", "message"), [
    (lambda x: x.max(dim=1), r"PyTorch gives the values and their places; wanted max\(x, axis=1\)"),
    (lambda x: x.min(dim=1), r"wanted min\(x, axis=1\), and argmin\(x, axis=1\) for the places"),
    (lambda x: gt.sort(x, dim=1), r"wanted sort\(x, axis=1\), and argsort\(x, axis=1\)"),
    (lambda x: gt.median(x, dim=1), r"the lower middle .*; wanted median\(x, axis=1\)"),
    (lambda x: x.std(dim=1), r"PyTorch divides by n - 1, .*wanted std\(x, axis=1, correction=1\)"),
    (lambda x: x.var(dim=1), r"wanted var\(x, axis=1, correction=1\)"),
    (lambda x: gt.where(x > 0, x), r"where was given two arguments; wanted where\(condition, x1"),
    (lambda x: x.type(), r"type\(\) was given no dtype; wanted one"),
    (lambda x: x.view(gt.int32), r"view was given dtype\('int32'\); wanted a shape"),
    (lambda x: x.masked_select((x > 0).astype("uint8")), "mask of dtype uint8; wanted bool, such"),
    (lambda x: x.masked_fill((x > 0).long(), 1), "masked_fill was given a mask of dtype int64"),
    (lambda x: x.masked_fill_((x > 0).long(), 1), "masked_fill_ was given a mask of dtype int64"),
    (lambda x: gt.median(x + 1j), "quantile of a tensor of dtype complex64; wanted real numbers"),
    (lambda x: gt.nan_to_num(x + 1j), "nan_to_num of a tensor of dtype complex64; wanted real"),
    (lambda x: gt.gradient(x, x[0]), "gradient was given a spacing that is no number; wanted"),
    (lambda x: gt.bincount(x), "bincount of a tensor of dtype float32; wanted integers"),
])
def test_a_call_that_means_something_else_is_answered_with_the_right_one(
    call: Callable[[gt.Tensor], object], message: str
) -> None:
    with pytest.raises(TypeError, match=message):
        call(gt.ones(MATRIX))


@pytest.mark.parametrize(("call", "message"), [
    (lambda x: gt.quantile(x, 1.5), "quantile was given q=1.5; wanted numbers from 0 to 1"),
    (lambda x: gt.percentile(x, 150), "percentile was given q=150; wanted numbers from 0 to 100"),
    (lambda x: gt.quantile(x[:0], 0.5), "quantile over axis None of .* wanted at least one el"),
    (lambda x: gt.cov(x[None]), r"cov of a tensor of shape \(1, 3, 4\); wanted \(variables"),
    (lambda x: gt.bincount(x.long()), r"bincount of a tensor of shape \(3, 4\); wanted one dim"),
    (lambda x: gt.bincount(-x.long()[0]), "bincount of a tensor with -1; wanted 0 or more"),
    (lambda x: gt.diag(x[None]), r"diag of a tensor of shape \(1, 3, 4\); wanted one or two"),
    (lambda x: gt.trace(x[None]), r"wanted a matrix \(gt.linalg.trace takes the last two axes"),
    (lambda x: gt.dot(x[None], x), r"dot of shapes \(1, 3, 4\) and \(3, 4\); wanted vectors or"),
    (lambda x: gt.chunk(x, 0), "chunk was given chunks=0; wanted 1 or more"),
    (lambda x: x.split(0), "split was given the size 0; wanted 1 or more"),
    (lambda x: x.split([1, 1]), r"into parts of \(1, 1\); wanted sizes that add up to 3"),
    (lambda x: gt.gather(x, 0, gt.zeros((2, 5), "int64")), "wanted as many axes, none but dim"),
    (lambda x: gt.unflatten(x, 1, (3, -1)), r"shape \(3, 4\) and the sizes \(3, -1\)"),
    (lambda x: x.narrow(1, 1, 5), "start=1 and length=5 for an axis of size 4; wanted elements wi"),
    (lambda x: x.narrow(0, -4, 1), "start=-4 and length=1 for an axis of size 3"),
    (lambda x: x.index_select(0, gt.zeros((1, 1), "int64")), r"shape \(1, 1\); wanted one"),
    (lambda x: gt.cross(x, x), r"cross of shapes .* was given no dim; wanted one: PyTorch"),
    (lambda x: x.norm("nuc"), r"norm was given p='nuc'; wanted a number or 'fro' \(gt.linalg.nor"),
    (lambda x: gt.interp(x, x, x), r"interp was given points .*wanted two 1-d .*: interp\(x, xp"),
    (lambda x: gt.convolve(x, x), r"convolve of shapes \(3, 4\) and \(3, 4\); wanted two 1-d"),
    (lambda x: gt.convolve(x[0], x[0], "half"), "mode='half'; wanted 'full', 'same' or 'valid'"),
    (lambda x: gt.gradient(x, 1.0, 1.0, 1.0), "was given 3 spacings for 2 axes; wanted one, or"),
    (lambda x: gt.gradient(x[:1]), r"gradient along axis 0 of .* wanted two elements or more"),
    (lambda x: gt.trapezoid(x, x[0, :2]), "wanted as many places as values"),
])
def test_bad_values_are_named(call: Callable[[gt.Tensor], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(gt.ones(MATRIX))


@pytest.mark.gpu
@pytest.mark.host_cuda
def test_tensors_go_to_a_gpu_and_back_by_pytorchs_names() -> None:
    assert gt.cuda.is_available() and gt.cuda.device_count() >= 1
    x = gt.randn(2, 3, device="cpu")
    y = x.cuda()
    assert y.is_cuda and y.cuda() is y and x.cuda(0).device is y.device and y.get_device() == 0
    assert np.array_equal(y.cpu().numpy(), x.numpy()) and np.array_equal(y.get(), x.numpy())
    assert y.to("cpu", gt.float64).dtype == gt.float64 and y.new_zeros(2).is_cuda
    assert y.zero_().add_(1).sum().item() == 6 and gt.randn_like(y).is_cuda
    assert (y.array / y.size).dtype == (y.size * y.array).dtype == np.float32
    assert (y.array < y.size).all() and (y / y.size).dtype == gt.float32
    gt.cuda.synchronize()
    gt.cuda.empty_cache()

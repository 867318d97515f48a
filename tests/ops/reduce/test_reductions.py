"""Statistical functions, products, scans and logic against NumPy and PyTorch."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from against_torch import compare

import gtensor as gt
from gtensor.testing import gradcheck

SHAPES_AND_AXES: list[tuple[tuple[int, ...], Any]] = [
    ((), None), ((), ()), ((7,), None), ((7,), 0), ((3, 5), None), ((3, 5), -1), ((3, 5), (1, 0)),
    ((2, 3, 4), (0, -1)), ((2, 3, 4), 1), ((2, 3, 4), ()), ((3, 0), 0), ((0, 4), 1),
]
NUMPY: dict[str, Callable[..., Any]] = {
    "sum": np.sum, "prod": np.prod, "max": np.max, "min": np.min, "any": np.any, "all": np.all,
    "mean": np.mean, "var": np.var, "std": np.std, "count_nonzero": np.count_nonzero,
}
SMALL = {"tile_elements": 4}


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(np.random.randint(2**31))


@pytest.mark.parametrize("name", NUMPY)
@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("shape, axis", SHAPES_AND_AXES)
def test_equals_numpy(
    name: str, shape: tuple[int, ...], axis: Any, keepdims: bool, rng: np.random.Generator
) -> None:
    x = np.asarray(np.round(rng.standard_normal(shape), 1))
    wanted = NUMPY[name](x, axis=axis, keepdims=keepdims)
    for tiles in (SMALL, {}):
        with gt.settings.override(**tiles):
            given = getattr(gt, name)(gt.tensor(x), axis=axis, keepdims=keepdims)
        assert given.dtype == wanted.dtype
        np.testing.assert_allclose(given.numpy(), wanted, rtol=1e-12, atol=1e-12, strict=True)


@pytest.mark.parametrize("name", ["sum", "prod", "cumulative_sum", "cumulative_prod"])
@pytest.mark.parametrize("dtype, wanted", [
    ("bool", "int64"), ("int8", "int64"), ("int32", "int64"), ("int64", "int64"),
    ("uint8", "uint64"), ("uint32", "uint64"), ("uint64", "uint64"), ("float16", "float16"),
    ("float32", "float32"), ("float64", "float64"), ("complex64", "complex64"),
])
def test_dtypes_of_sums_and_products(name: str, dtype: str, wanted: str) -> None:
    x = np.array([[1, 1, 1], [1, 1, 0]]).astype(dtype)
    function, axis = getattr(gt, name), {"axis": 1}
    given = function(gt.tensor(x), **axis)
    assert given.dtype == np.dtype(wanted)
    reference = {"sum": np.sum, "prod": np.prod, "cumulative_sum": np.cumsum,
                 "cumulative_prod": np.cumprod}[name]
    np.testing.assert_array_equal(given.numpy(), reference(x, **axis))
    wide = "complex128" if dtype.startswith("complex") else "float64"
    assert function(gt.tensor(x), dtype=wide, **axis).dtype == np.dtype(wide)


def test_a_wider_dtype_is_summed_in_it_and_its_gradient_comes_back_narrow() -> None:
    x = gt.tensor([1e8, 1.0, -1e8], requires_grad=True)
    for function, gradient in ((gt.sum, [1, 1, 1]), (gt.cumulative_sum, [3, 2, 1])):
        total = function(x, dtype=gt.float64)
        assert total.numpy().ravel()[-1] == 1.0
        (g,) = gt.grad([total], [x], [gt.ones(total.shape, dtype=gt.float64)])
        assert g.dtype == gt.float32
        np.testing.assert_array_equal(g.numpy(), gradient)
    half = gt.tensor(np.array([3.0, 5.0, 2.0], np.float16), requires_grad=True)
    for function in (gt.prod, gt.cumulative_prod):
        y = function(half, dtype=gt.float32)
        (g,) = gt.grad([y], [half], [gt.ones(y.shape)])
        assert y.dtype == gt.float32 and g.dtype == gt.float16
    np.testing.assert_array_equal(g.numpy(), [1 + 5 + 10, 3 + 6, 15])


def test_half_precision_is_summed_in_float32() -> None:
    x = np.full(5000, 0.1, np.float16)
    assert gt.sum(gt.tensor(x)).item() == np.float16(x.astype(np.float64).sum())
    assert gt.cumulative_sum(gt.tensor(x)).numpy()[-1] == np.float16(x.astype(np.float64).sum())
    assert gt.mean(gt.tensor(x)).item() == x[0]


def test_nan_and_nothing() -> None:
    x = gt.tensor([1.0, np.nan, 3.0])
    for name in ("sum", "prod", "max", "min", "mean", "var", "std", "logsumexp"):
        assert np.isnan(getattr(gt, name)(x).item()), name
    assert gt.any(gt.tensor([np.nan])).item() and gt.all(gt.tensor([np.nan])).item()
    nothing = gt.zeros((2, 0))
    for name in ("mean", "var", "std"):
        assert np.isnan(getattr(gt, name)(nothing, axis=1).numpy()).all(), name
    assert (gt.logsumexp(nothing, axis=1).numpy() == -np.inf).all()
    assert (gt.prod(nothing, axis=1).numpy() == 1).all()
    for name in ("max", "min", "argmax", "argmin"):
        with pytest.raises(ValueError, match=f"{name} over axis None of a tensor of shape"):
            getattr(gt, name)(nothing)
        assert getattr(gt, name)(nothing, axis=0).shape == (0,)


@pytest.mark.parametrize("name", [*NUMPY, "logsumexp"])
def test_a_wrong_axis_is_named(name: str) -> None:
    x = gt.zeros((2, 3))
    for axis in (2, -3, (0, 0), (1, -1)):
        with pytest.raises(ValueError, match=rf"{name} over axis .* of a tensor of 2 dimensions"):
            getattr(gt, name)(x, axis=axis)
    assert getattr(gt, name)(x, axis=np.int64(1)).shape == (2,)


@pytest.mark.parametrize("name", ["var", "std", "logsumexp"])
def test_complex_input_is_refused_where_nothing_is_defined(name: str) -> None:
    with pytest.raises(TypeError, match=f"{name} was given dtype complex64; wanted a real one"):
        getattr(gt, name)(gt.tensor(np.ones(3, np.complex64)))


@pytest.mark.parametrize("name, axes", [("sum", None), ("mean", None), ("prod", None),
                                        ("cumulative_sum", 1), ("cumulative_prod", 1)])
def test_complex_gradients_are_pytorchs(
    name: str, axes: int | None, rng: np.random.Generator
) -> None:
    options = {} if axes is None else {"axis": axes}
    theirs = {"cumulative_sum": torch.cumsum, "cumulative_prod": torch.cumprod}.get(
        name, getattr(torch, name, None))
    assert theirs is not None
    z = rng.standard_normal((3, 4)) + 1j * rng.standard_normal((3, 4))
    compare(partial(getattr(gt, name), **options), partial(theirs, **options), [z])


# -- variance --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["var", "std"])
@pytest.mark.parametrize("correction", [0, 1, 0.5, 3, 4])
def test_correction(name: str, correction: float, rng: np.random.Generator) -> None:
    x = rng.standard_normal((4, 3))
    with np.errstate(all="ignore"), torch.no_grad():
        given = getattr(gt, name)(gt.tensor(x), 1, correction=correction)
        wanted = x.var(1, ddof=0) * 3 / np.float64(max(0, 3 - correction))
    np.testing.assert_allclose(given.numpy(), wanted if name == "var" else np.sqrt(wanted),
                               rtol=1e-12)


def test_std_of_equal_elements_has_gradient_zero_as_pytorchs() -> None:
    values = np.array([[1.0, 1.0, 1.0], [1.0, 2.0, 4.0]])
    x = gt.tensor(values, requires_grad=True)
    t = torch.from_numpy(values.copy()).requires_grad_()
    (g,) = gt.grad([gt.sum(gt.std(x, 1))], [x])
    (wanted,) = torch.autograd.grad(t.std(1, correction=0).sum(), t)
    np.testing.assert_allclose(g.numpy(), wanted.numpy(), rtol=1e-12)
    assert (g.numpy()[0] == 0).all()


def test_variance_around_a_large_mean_keeps_its_digits(rng: np.random.Generator) -> None:
    x = (1e4 + rng.standard_normal((50, 40))).astype(np.float32)
    for axis in (None, 0, 1):
        with gt.settings.override(tile_elements=64):
            given = gt.var(gt.tensor(x), axis)
        np.testing.assert_allclose(given.numpy(), x.astype(np.float64).var(axis), rtol=1e-3)


@pytest.mark.parametrize("function, outputs", [
    (lambda x: gt.var(x), 0), (lambda x: gt.var(x, 0), 0), (lambda x: gt.std(x, 1), 0),
    (lambda x: gt.logsumexp(x), 0), (lambda x: gt.logsumexp(x, 0), 0),
    (lambda x: gt.count_nonzero(x, axis=0), 0), (lambda x: gt.mean(x, 1), 0),
    (lambda x: gt.prod(x, axis=0), 0), (lambda x: gt.cumulative_sum(x, axis=0), 1),
    (lambda x: gt.cumulative_prod(x, axis=1, include_initial=True), 1),
    (lambda x: gt.sort(x, axis=1, descending=True), 1),
])
def test_no_temporary_beyond_a_tile(
    function: Callable[..., Any], outputs: int, rng: np.random.Generator
) -> None:
    x = gt.tensor(rng.standard_normal((1 << 8, 1 << 8)))
    with gt.settings.override(tile_elements=1 << 10, arena_min_bytes=1 << 40):
        function(x)
        tracemalloc.start()
        result = function(x)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert result.size
    assert peak < outputs * x.nbytes + x.nbytes // 8


def test_logsumexp_of_the_largest_and_the_smallest() -> None:
    x = np.array([[1e4, 1e4], [-1e4, -1e4], [np.inf, 0.0], [-np.inf, -np.inf], [-np.inf, 0.0]])
    wanted = torch.logsumexp(torch.from_numpy(x), 1).numpy()
    np.testing.assert_array_equal(gt.logsumexp(gt.tensor(x), 1).numpy(), wanted)


# -- products --------------------------------------------------------------------------------------


@pytest.mark.parametrize("axis", [0, 1, None, (0, 2), (2, 0, 1)])
@pytest.mark.parametrize("zeros", [0, 1, 2, 5])
def test_gradient_of_a_product_with_zeros(
    axis: Any, zeros: int, rng: np.random.Generator
) -> None:
    values = rng.standard_normal((3, 4, 2))
    values.flat[rng.permutation(values.size)[:zeros]] = 0
    gradcheck(lambda x: gt.prod(x, axis=axis),
              gt.tensor(values, requires_grad=True), order=2)


@pytest.mark.parametrize("axis, include_initial", [(0, False), (1, True)])
@pytest.mark.parametrize("zeros", [0, 1, 4])
def test_gradient_of_a_cumulative_product_with_zeros(
    axis: int, include_initial: bool, zeros: int, rng: np.random.Generator
) -> None:
    values = rng.standard_normal((4, 5))
    values.flat[rng.permutation(values.size)[:zeros]] = 0
    gradcheck(lambda x: gt.cumulative_prod(x, axis=axis, include_initial=include_initial),
              gt.tensor(values, requires_grad=True), order=2)


def test_long_cumulative_products_against_pytorch(rng: np.random.Generator) -> None:
    values = rng.uniform(0.9, 1.1, 3001)
    x = gt.tensor(values, requires_grad=True)
    t = torch.from_numpy(values.copy()).requires_grad_()
    weights = rng.standard_normal(3001)
    (g,) = gt.grad([gt.cumulative_prod(x)], [x], [gt.tensor(weights)])
    (wanted,) = torch.autograd.grad(torch.cumprod(t, 0), t, torch.from_numpy(weights))
    np.testing.assert_allclose(g.numpy(), wanted.numpy(), rtol=1e-9, atol=1e-9)


# -- scans -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["cumulative_sum", "cumulative_prod"])
@pytest.mark.parametrize("include_initial", [False, True])
@pytest.mark.parametrize("shape, axis", [((7,), None), ((7,), 0), ((3, 5), -1), ((3, 5), 0),
                                         ((2, 3, 4), 1), ((0,), None), ((3, 0), 1), ((3, 0), 0)])
def test_scans_equal_numpys(
    name: str, include_initial: bool, shape: tuple[int, ...], axis: int | None,
    rng: np.random.Generator
) -> None:
    x = rng.standard_normal(shape)
    wanted = getattr(np, name)(x, axis=axis, include_initial=include_initial)
    given = getattr(gt, name)(gt.tensor(x), axis=axis, include_initial=include_initial)
    np.testing.assert_allclose(given.numpy(), wanted, rtol=1e-12, strict=True)


ALONG_ONE = {  # name -> PyTorch's function, of what takes axis 0 and -1 of a 0-d tensor
    **{name: getattr(torch, name) for name in ("all", "any", "argmax", "argmin", "argsort",
                                               "count_nonzero", "logsumexp", "mean", "prod",
                                               "squeeze", "sum")},
    "max": torch.amax, "min": torch.amin, "cumulative_sum": torch.cumsum,
    "cumulative_prod": torch.cumprod, "sort": lambda x, dim: torch.sort(x, dim).values,
    "topk": lambda x, dim: torch.topk(x, 1, dim).values,
    "softmax": torch.softmax, "log_softmax": torch.log_softmax,
    "normalize": lambda x, dim: torch.nn.functional.normalize(x, dim=dim),
    "vector_norm": lambda x, dim: torch.linalg.vector_norm(x, dim=dim),
    "var": lambda x, dim: torch.var(x, dim, correction=0),
}


@pytest.mark.parametrize("name", ALONG_ONE)
def test_a_0d_tensor_is_one_element_along_axis_0(name: str) -> None:
    def own(x: gt.Tensor, axis: int) -> gt.Tensor:
        if name == "topk":
            return gt.topk(x, 1, axis).values
        module: Any = next(m for m in (gt, gt.linalg, gt.nn.functional) if name in m.__all__)
        return getattr(module, name)(x, **{"dim" if module is gt.nn.functional else "axis": axis})

    for axis in (0, -1):
        x, t = gt.tensor(0.7, requires_grad=True), torch.tensor(0.7, requires_grad=True)
        y, wanted = own(x, axis), ALONG_ONE[name](t, dim=axis)
        np.testing.assert_array_equal(y.numpy(), wanted.detach().numpy(), strict=True)
        if wanted.requires_grad:
            y.backward()
            wanted.backward()
            np.testing.assert_allclose(x.grad.numpy(), t.grad.numpy())  # type: ignore[union-attr]
    with pytest.raises(np.exceptions.AxisError, match="axis 1 of a tensor of 0 dimensions; wanted"):
        own(gt.tensor(0.7), 1)


@pytest.mark.parametrize("name", ["concat", "flip", "roll", "diff", "unstack", "fft", "fftshift",
                                  "cumulative_sum"])
def test_where_an_axis_has_a_length_a_0d_tensor_has_none(name: str) -> None:
    x = gt.tensor(0.7)
    calls: dict[str, Callable[[], Any]] = {
        "concat": lambda: gt.concat([x, x]), "roll": lambda: gt.roll(x, 1, axis=0),
        "fft": lambda: gt.fft.fft(x), "fftshift": lambda: gt.fft.fftshift(x, axes=0),
        "cumulative_sum": lambda: gt.cumulative_sum(x, axis=0, include_initial=True)}
    with pytest.raises(np.exceptions.AxisError, match="dimensions; wanted at least one dimension"):
        calls.get(name, lambda: getattr(gt, name)(x, axis=0))()


@pytest.mark.parametrize("name", ["cumulative_sum", "cumulative_prod"])
def test_scans_refuse_what_is_not_one_axis(name: str) -> None:
    function = getattr(gt, name)
    for shape in ((), (2, 3)):
        with pytest.raises(ValueError, match=f"{name} of a tensor of {len(shape)} dimensions "
                                             "without an axis"):
            function(gt.zeros(shape))
    with pytest.raises(ValueError, match=f"{name} along axis 2 of a tensor of 2 dimensions"):
        function(gt.zeros((2, 3)), axis=2)


@pytest.mark.parametrize("n", [0, 1, 2, 6])
@pytest.mark.parametrize("axis", [-1, 0])
@pytest.mark.parametrize("ends", [{}, {"prepend": 1.5}, {"append": "column"},
                                  {"prepend": "column", "append": 0.0}])
def test_diff_equals_numpys(n: int, axis: int, ends: Any, rng: np.random.Generator) -> None:
    x = rng.standard_normal((4, 5))
    column = rng.standard_normal((4, 2) if axis == -1 else (2, 5))
    arrays = {k: column if v == "column" else v for k, v in ends.items()}
    tensors = {k: gt.tensor(column) if v == "column" else v for k, v in ends.items()}
    given = gt.diff(gt.tensor(x), axis=axis, n=n, **tensors)
    np.testing.assert_allclose(given.numpy(), np.diff(x, n=n, axis=axis, **arrays), rtol=1e-12,
                               atol=1e-14)


def test_diff_of_booleans_its_gradient_and_its_errors() -> None:
    flags = gt.tensor([True, True, False])
    assert gt.diff(flags).tolist() == [False, True]
    cube = gt.arange(24).reshape((2, 3, 4)) ** 2  # n before the axis, as in NumPy
    assert gt.diff(cube, 1).tolist() == np.diff(cube.numpy(), 1).tolist() == cube.diff(1).tolist()
    assert cube.diff(2, 1).tolist() == np.diff(cube.numpy(), 2, 1).tolist()
    x = gt.tensor([1.0, 4.0, 9.0], requires_grad=True)
    (g,) = gt.grad([gt.diff(x, n=2)], [x], [gt.tensor([1.0])])
    assert g.tolist() == [1.0, -2.0, 1.0]
    with pytest.raises(ValueError, match="diff was given n=-1"):
        gt.diff(x, n=-1)
    with pytest.raises(ValueError, match="diff along axis 0 of a tensor of 0 dimensions"):
        gt.diff(gt.tensor(1.0), axis=0)


# -- half precision --------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [gt.float16, gt.bfloat16])
@pytest.mark.parametrize("source", [gt.float16, gt.bfloat16, gt.float32, gt.float64, gt.int64])
@pytest.mark.parametrize("elements", [1 << 15, 100])
def test_a_half_dtype_is_only_that_of_the_result(dtype: Any, source: Any, elements: int) -> None:
    """Counting in it would stop at 256 or 2048."""
    with gt.settings.override(tile_elements=elements):
        total = gt.sum(gt.ones((4096, 2), source), axis=0, dtype=dtype)
        factors = gt.tensor([300, 200] if source == gt.int64 else [300.0, 300.0, 1 / 300], source)
        product = gt.prod(factors, dtype=dtype)
    assert total.dtype == product.dtype == dtype and (total.numpy() == 4096).all()
    exact = np.prod(factors.numpy().astype(np.float64))
    np.testing.assert_array_equal(product.numpy(), np.float32(exact).astype(dtype))
    assert gt.sum(gt.ones(3, gt.int8), dtype=gt.int16).dtype == gt.int16


@pytest.mark.parametrize("dtype", [gt.float16, gt.bfloat16])
@pytest.mark.parametrize("name", ["max", "min"])
def test_more_ties_than_a_half_can_count_share_the_gradient(name: str, dtype: Any) -> None:
    x = gt.ones(70000, dtype, requires_grad=True)
    (given,) = gt.grad([getattr(gt, name)(x)], [x])
    assert given.dtype == dtype
    np.testing.assert_array_equal(given.numpy(), np.float32(1 / 70000).astype(dtype))


# -- differences -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["int64", "int8", "float16", "float32", "bool"])
def test_numbers_beside_differences_have_their_common_dtype(dtype: str) -> None:
    x = np.array([1, 0, 4]).astype(dtype)
    cases: list[dict[str, Any]] = [{"prepend": 0.5}, {"append": 0.5, "prepend": 2.5},
                                   {"append": np.float32(0.25)}, {"prepend": [0.5, 1.5]}]
    for edges in cases:
        given = gt.diff(gt.tensor(x), **edges)
        strong = {k: np.asarray(v, "float32") for k, v in edges.items()}
        np.testing.assert_array_equal(given.numpy(), np.diff(x, **strong))
        if all(type(v) is float for v in edges.values()):
            assert given.dtype == (gt.tensor(x) + 0.5).dtype
    assert gt.diff(gt.tensor([1.0, 2.0], gt.bfloat16), prepend=0.5).dtype == gt.bfloat16
    with pytest.raises(OverflowError):
        gt.diff(gt.tensor([1], gt.int8), prepend=300)


def test_no_difference_is_a_copy() -> None:
    x = gt.tensor([1.0, 2.0])
    y = gt.diff(x, n=0)
    y += 1
    assert x.tolist() == [1, 2] and y.tolist() == [2, 3]


@pytest.mark.parametrize("axis", [(0,), (0, 1), (1, 0), (1,), (-2, -3), (0, 2)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sums_of_many_rows_are_rounded_little(axis, dtype, rng):
    x = rng.uniform(1, 2, (4000, 3, 20)).astype(dtype)
    for keepdims in (False, True):
        y = gt.sum(gt.tensor(x, device="cpu"), axis=axis, keepdims=keepdims)
        exact = x.astype(np.longdouble).sum(axis=axis, keepdims=keepdims)
        assert y.dtype == dtype
        few = 0 not in axis and -3 not in axis
        np.testing.assert_allclose(y.numpy(), exact.astype(np.float64),
                                   rtol=(2 if few else 60) * np.finfo(dtype).eps)


@pytest.mark.parametrize("name", ["var", "std"])
@pytest.mark.parametrize("unbiased", [False, True])
def test_unbiased_is_pytorchs_word_for_the_correction(name: str, unbiased: bool) -> None:
    x = np.arange(6.0).reshape(2, 3) ** 2
    found = getattr(gt.tensor(x), name)(dim=1, keepdim=True, unbiased=unbiased)
    expected = getattr(torch.tensor(x), name)(dim=1, keepdim=True, unbiased=unbiased)
    np.testing.assert_allclose(found.numpy(), expected.numpy())

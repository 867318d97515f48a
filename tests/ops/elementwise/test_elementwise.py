"""Elementwise functions of the array API standard: their values are NumPy's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gtensor as gt

from . import LARGE

FLOATS = ("float32", "float64")
COMPLEX = ("complex64", "complex128")
INTEGERS = ("int8", "int32", "int64", "uint8", "uint64")
NUMPY_NAMES = {"bitwise_left_shift": "left_shift", "bitwise_right_shift": "right_shift"}

ANYWHERE = ("abs", "asinh", "atan", "ceil", "conj", "cos", "cosh", "exp", "expm1", "floor",
            "isfinite", "isinf", "isnan", "negative", "positive", "round", "sign", "signbit", "sin",
            "sinh", "square", "tan", "tanh", "trunc")
ABOVE_ZERO = ("log", "log1p", "log2", "log10", "reciprocal", "sqrt")
INSIDE_ONE = ("acos", "asin", "atanh")
UNARY = (*ANYWHERE, *ABOVE_ZERO, *INSIDE_ONE, "acosh")
BINARY = ("add", "atan2", "copysign", "divide", "equal", "floor_divide", "greater", "greater_equal",
          "hypot", "less", "less_equal", "logaddexp", "maximum", "minimum", "multiply", "nextafter",
          "not_equal", "pow", "remainder", "subtract")
BITS = ("bitwise_and", "bitwise_left_shift", "bitwise_or", "bitwise_right_shift", "bitwise_xor")
LOGIC = ("logical_and", "logical_or", "logical_xor")
REST = ("bitwise_invert", "clip", "imag", "logical_not", "real", "where")

REAL_ONLY = {"ceil", "floor", "signbit", "trunc"}
EXACT = {"abs", "ceil", "conj", "floor", "negative", "positive", "round", "sign", "square", "trunc"}
COMPLEX_BINARY = ("add", "divide", "equal", "multiply", "not_equal", "pow", "subtract")

SHAPES = ((17,), (3, 5), (2, 0), ())
PAIRS = (((5,), (5,)), ((2, 1, 3), (4, 1)), ((0, 3), (3,)), ((), (2, 3)), ((), ()))


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(np.random.randint(2**31))


def numpy_of(name: str) -> Any:
    if name == "round":
        return np.round
    if name == "bitwise_invert":
        return np.bitwise_not
    return getattr(np, NUMPY_NAMES.get(name, name))


def draw(rng: np.random.Generator, shape: tuple[int, ...], dtype: str, name: str = "") -> Any:
    if np.dtype(dtype).kind in "iu":
        return rng.integers(1, 6, shape).astype(dtype)
    if name in INSIDE_ONE:
        values = rng.uniform(-0.9, 0.9, shape)
    elif name in ABOVE_ZERO or name in ("acosh", "pow"):
        values = rng.uniform(1.1, 3.0, shape)
    else:
        values = 2 * rng.standard_normal(shape)
    if np.dtype(dtype).kind == "c":
        values = values + 1j * rng.standard_normal(shape)
    return np.asarray(values).astype(dtype)


def assert_same(given: Any, wanted: Any, tolerance: float = 0.0) -> None:
    """Equal dtype, shape and values, the signs of zeros included."""
    a, b = given.numpy(), np.asarray(wanted)
    assert a.dtype == b.dtype, f"dtype {a.dtype}, wanted {b.dtype}"
    assert a.shape == b.shape
    np.testing.assert_allclose(a, b, rtol=tolerance, atol=0)
    if a.dtype.kind == "f":
        zero = b == 0
        np.testing.assert_array_equal(np.signbit(a)[zero], np.signbit(b)[zero])


def test_every_function_of_the_standard_is_there() -> None:
    names = {*UNARY, *BINARY, *BITS, *LOGIC, *REST}
    assert len(names) == 68 and names <= set(gt.__all__)


# -- values ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", UNARY)
def test_unary_values(name: str, rng: np.random.Generator) -> None:
    dtypes = FLOATS if name in REAL_ONLY else (*FLOATS, *COMPLEX)
    for dtype in (*dtypes, *(INTEGERS if name in EXACT else ())):
        for shape in SHAPES:
            x = draw(rng, shape, dtype, name)
            assert_same(getattr(gt, name)(gt.asarray(x)), numpy_of(name)(x))
            if x.ndim:
                half = x[..., ::2]
                assert_same(getattr(gt, name)(gt.asarray(half)), numpy_of(name)(half.copy()), 1e-6)


@pytest.mark.parametrize("name", [n for n in UNARY if n not in EXACT])
def test_integers_become_the_default_float(name: str, rng: np.random.Generator) -> None:
    x = np.ones((3,), "int64")
    with np.errstate(divide="ignore"):  # atanh(1)
        given, wanted = getattr(gt, name)(gt.asarray(x)), numpy_of(name)(x.astype("float32"))
    assert_same(given, wanted, 1e-6)


@pytest.mark.parametrize("name", BINARY)
def test_binary_values_promotion_and_numbers(name: str, rng: np.random.Generator) -> None:
    mine, numpys = getattr(gt, name), numpy_of(name)
    dtypes = (*FLOATS, *(COMPLEX if name in COMPLEX_BINARY else ()))
    for shapes in PAIRS:
        for first in dtypes:
            for second in dtypes:
                a, b = draw(rng, shapes[0], first, name), draw(rng, shapes[1], second, name)
                assert_same(mine(gt.asarray(a), gt.asarray(b)), numpys(a, b))
    for dtype in dtypes:
        a = draw(rng, (3, 4), dtype, name)
        for number in (2, 1.5):
            assert_same(mine(gt.asarray(a), number), numpys(a, number), 1e-6)
            assert_same(mine(number, gt.asarray(a)), numpys(number, a), 1e-6)
    if name in ("add", "floor_divide", "maximum", "minimum", "multiply", "pow", "remainder",
                "subtract", "equal", "less"):
        for dtype in INTEGERS:
            a, b = draw(rng, (5, 1), dtype), draw(rng, (5,), dtype)
            assert_same(mine(gt.asarray(a), gt.asarray(b)), numpys(a, b))
            assert_same(mine(gt.asarray(a), 3), numpys(a, 3))


@pytest.mark.parametrize("name", (*BITS, "bitwise_invert"))
def test_bits(name: str, rng: np.random.Generator) -> None:
    for dtype in INTEGERS:
        arrays = [draw(rng, (4, 1), dtype), draw(rng, (5,), dtype)][:2 - ("invert" in name)]
        assert_same(getattr(gt, name)(*map(gt.asarray, arrays)), numpy_of(name)(*arrays))
    if "shift" not in name:
        flags = [rng.random((4, 1)) < 0.5, rng.random(3) < 0.5][:2 - ("invert" in name)]
        assert_same(getattr(gt, name)(*map(gt.asarray, flags)), numpy_of(name)(*flags))


SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -3.0, 2.5, 1e308, -1e308, 5e-324, np.inf, -np.inf,
           np.nan]


@pytest.mark.parametrize("name", (*UNARY, *BINARY))
def test_special_values_are_numpys_to_the_sign_of_zero(name: str) -> None:
    x = np.array(SPECIAL)
    arrays = [x[:, None], x] if name in BINARY else [x]
    with np.errstate(all="ignore"):
        assert_same(getattr(gt, name)(*map(gt.asarray, arrays)), numpy_of(name)(*arrays))


INF, NAN, PI = np.inf, np.nan, np.pi
TABLES = [  # of the standard, those that implementations get wrong
    ("pow", (NAN, 0.0), 1.0), ("pow", (1.0, NAN), 1.0), ("pow", (-1.0, INF), 1.0),
    ("pow", (-0.0, 3.0), -0.0), ("pow", (-0.0, -3.0), -INF), ("pow", (-INF, 0.5), INF),
    ("atan2", (0.0, -0.0), PI), ("atan2", (-0.0, -0.0), -PI), ("atan2", (INF, -INF), 3 * PI / 4),
    ("hypot", (INF, NAN), INF), ("logaddexp", (-INF, -INF), -INF), ("copysign", (3.0, -0.0), -3.0),
    ("remainder", (5.0, -3.0), -1.0), ("remainder", (-0.0, 3.0), 0.0), ("sign", (-0.0,), 0.0),
    ("round", (2.5,), 2.0), ("round", (-0.5,), -0.0), ("ceil", (-0.5,), -0.0),
    ("log1p", (-1.0,), -INF), ("maximum", (NAN, INF), NAN), ("expm1", (-INF,), -1.0),
    ("sqrt", (-0.0,), -0.0), ("reciprocal", (-0.0,), -INF), ("trunc", (-0.3,), -0.0),
]


@pytest.mark.parametrize(("name", "arguments", "wanted"), TABLES)
def test_tables_of_the_standard(name: str, arguments: tuple[float, ...], wanted: float) -> None:
    with np.errstate(all="ignore"):
        given = getattr(gt, name)(*(gt.asarray(np.array([a])) for a in arguments)).item()
    assert given == pytest.approx(wanted, rel=1e-15, nan_ok=True)
    assert np.isnan(wanted) or np.copysign(1, given) == np.copysign(1, wanted) or name in (
        "sign", "remainder")


# -- selection -------------------------------------------------------------------------------------

@pytest.mark.parametrize("shape", [(5,), LARGE, (40_001,)])
@pytest.mark.parametrize("dtype", [*FLOATS, *COMPLEX, "int16", "bool"])
def test_where_values(dtype: str, shape: tuple[int, ...], rng: np.random.Generator) -> None:
    mask = rng.random(shape) < 0.5
    a, b = (np.asarray(10 * rng.standard_normal(shape)).astype(dtype) for _ in range(2))
    wide = a.astype("complex128" if dtype == "complex64" else np.result_type(dtype, "float64"))
    for x1, x2 in ((a, b), (a, b[..., :1]), (a[..., :1], b), (wide, b)):
        assert_same(gt.where(gt.asarray(mask), gt.asarray(x1), gt.asarray(x2)),
                    np.where(mask, x1, x2))
    assert_same(gt.where(gt.asarray(mask[..., :1]), gt.asarray(a), gt.asarray(b)),
                np.where(mask[..., :1], a, b))
    t = gt.asarray(mask[..., ::-1])
    assert_same(gt.where(t, gt.asarray(a[..., ::-1]), gt.asarray(b)),
                np.where(mask[..., ::-1], a[..., ::-1], b))
    for number in (0, 0.0, -0.0, 3, 0.5):
        kind = gt.result_type(gt.asarray(a), number)  # a float makes integers float32
        assert_same(gt.where(t, gt.asarray(a), number),
                    np.where(mask[..., ::-1], a, number).astype(kind))
        assert_same(gt.where(t, number, gt.asarray(a)),
                    np.where(mask[..., ::-1], number, a).astype(kind))


def test_where_of_numbers_of_infinities_and_of_what_is_no_condition() -> None:
    flags = gt.asarray(np.array([True, False]))
    assert gt.where(flags, 1.5, 0).dtype == gt.float32
    assert gt.where(flags, 1, 0).dtype == gt.int64
    big = gt.asarray(np.full(LARGE, np.inf))
    assert gt.where(gt.isnan(big), big, 0.0).numpy().max() == 0
    with pytest.raises(TypeError, match="where was given a condition of dtype int64; wanted bool"):
        gt.where(gt.asarray(np.array([1, 0])), big, 0.0)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_clip_of_integers_keeps_their_dtype(dtype: str, rng: np.random.Generator) -> None:
    for shape in ((9,), LARGE):
        x = rng.integers(0, 100, shape).astype(dtype)
        low = np.asarray(rng.integers(10, 40, shape[-1:])).astype(dtype)
        assert_same(gt.clip(gt.asarray(x), 20, 70), np.clip(x, 20, 70))
        assert_same(gt.clip(gt.asarray(x), gt.asarray(low), 70), np.clip(x, low, 70))
        assert_same(gt.clip(gt.asarray(x[..., ::2]), max=50), np.minimum(x[..., ::2], 50))


def test_parts_are_views_and_reals_have_no_imaginary_part() -> None:
    z = gt.asarray(np.array([1 + 2j, 3 - 4j]))
    real, imag = gt.real(z), gt.imag(z)
    real += 1.0
    imag *= 2.0
    np.testing.assert_array_equal(z.numpy(), [2 + 4j, 4 - 8j])
    with pytest.raises(TypeError, match="imag was given a tensor of dtype float64; wanted a compl"):
        gt.imag(gt.real(z))
    np.testing.assert_array_equal(gt.real(gt.real(z)).numpy(), [2, 4])


@pytest.mark.parametrize("name", ["floor", "ceil", "trunc", "round"])
@pytest.mark.parametrize("dtype", ["bool", "int8", "uint64"])
def test_what_is_whole_is_copied(name: str, dtype: str) -> None:
    x = gt.tensor([1, 0, 1], dtype)
    y = getattr(gt, name)(x)
    assert y.dtype == dtype and y.tolist() == x.tolist()
    assert not np.shares_memory(x.numpy(), y.numpy())


# -- on CUDA ---------------------------------------------------------------------------------------

@pytest.mark.gpu
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", (*UNARY, *BINARY))
def test_special_values_on_cuda_are_numpys_to_the_sign_of_zero(name: str, dtype: str) -> None:
    with np.errstate(all="ignore"):
        x = np.array([*SPECIAL, 0.1, -3.0, 7e8]).astype(dtype)
        arrays = [x[:, None], x] if name in BINARY else [x]
        wanted = numpy_of(name)(*arrays)
        if name in ("maximum", "minimum"):  # NumPy's zero is the second; a GPU's -0 is less than 0
            zeros = (arrays[0] == 0) & (arrays[1] == 0)
            first, second = np.broadcast_arrays(*(np.signbit(a) for a in arrays))
            negative = first & second if name == "maximum" else first | second
            wanted[zeros] = np.where(negative, -0.0, 0.0)[zeros]
        assert_same(getattr(gt, name)(*map(gt.asarray, arrays)), wanted,
                    1e-5 if dtype == "float32" else 1e-12)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("dtype", INTEGERS)
def test_shifts_by_any_number_of_places_are_numpys(device: str, dtype: str) -> None:
    limits = np.array([np.iinfo(dtype).max, np.iinfo(dtype).min], dtype)
    x = np.concatenate([limits, np.array([1, 0, 77, -3]).astype(dtype)])
    places = np.array([0, 1, 7, 8, 31, 32, 63, 64, 100, -1]).astype(dtype)
    for name in ("bitwise_left_shift", "bitwise_right_shift"):
        given = getattr(gt, name)(gt.asarray(x[:, None]), gt.asarray(places))
        assert_same(given, numpy_of(name)(x[:, None], places))
        assert_same(getattr(gt, name)(gt.asarray(x), 65), numpy_of(name)(x, 65))


@pytest.mark.gpu
@pytest.mark.parametrize("other", ["float16", "float64"])
def test_nextafter_of_two_dtypes_is_that_of_the_wider(other: str) -> None:
    """Float32 has a kernel of its own on CUDA, the other dtypes have CuPy's."""
    a, b = np.array([[1.0], [0.0]], np.float32), np.array([2.0, -1.0, 0.0], other)
    for x, y in ((a, b), (b, a)):
        assert_same(gt.nextafter(gt.asarray(x), gt.asarray(y)), np.nextafter(x, y))

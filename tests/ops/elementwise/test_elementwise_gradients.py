"""Gradients of the elementwise functions of the array API standard are PyTorch's."""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from against_torch import compare
from numpy.polynomial import Polynomial

import gtensor as gt

from . import LARGE


def against_torch(function: Any, arrays: list[np.ndarray], second: bool = True) -> None:
    """`function(module, *tensors)` of gtensor and of PyTorch."""
    compare(partial(function, gt), partial(function, torch), arrays, second=second)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(np.random.randint(2**31))


# -- selection -------------------------------------------------------------------------------------


BOUNDS = {
    "numbers": lambda rng, s: (-0.5, 0.5), "integers": lambda rng, s: (-1, 1),
    "lower": lambda rng, s: (-0.5, None), "upper": lambda rng, s: (None, 0.25),
    "arrays": lambda rng, s: (rng.uniform(-1, 0, s), rng.uniform(0, 1, s)),
    "broadcast": lambda rng, s: (rng.uniform(-1, 0, s[-1:]), rng.uniform(0, 1, (*s[:-1], 1))),
    "crossed": lambda rng, s: (rng.uniform(-1, 1, s), rng.uniform(-1, 1, s)),
    "array and number": lambda rng, s: (rng.uniform(-1, 0, s), 0.75),
}


@pytest.mark.parametrize("shape", [(9,), (4, 3), LARGE, (2, 0)])
@pytest.mark.parametrize("bounds", BOUNDS)
def test_clip(bounds: str, shape: tuple[int, ...], rng: np.random.Generator) -> None:
    low, high = BOUNDS[bounds](rng, shape)
    x = rng.standard_normal(shape)
    x[::2] = np.where(np.arange(x[::2].size).reshape(x[::2].shape) % 3, x[::2], 0.25)  # on a bound
    arrays = [b for b in (low, high) if isinstance(b, np.ndarray)]

    def clipped(m: Any, x: Any, *given: Any) -> Any:
        left = iter(given)
        ends = [next(left) if isinstance(b, np.ndarray) else b for b in (low, high)]
        if m is torch and arrays:  # PyTorch wants two tensors, or two numbers
            ends = [b if b is None or isinstance(b, torch.Tensor) else torch.full((), b).double()
                    for b in ends]
        return m.clip(x, *ends)

    against_torch(clipped, [x, *arrays], second=False)


def test_clip_without_bounds_by_name_and_of_nan() -> None:
    x = gt.asarray(np.array([1.0, np.nan, -np.inf])).detach().requires_grad_()
    y = gt.clip(x)
    assert not np.may_share_memory(y.numpy(), x.numpy())
    np.testing.assert_array_equal(gt.clip(x, max=0.0).numpy(), [0, np.nan, -np.inf])
    np.testing.assert_array_equal(gt.clip(x, min=0.0).numpy(), [1, np.nan, 0])
    y.sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), 1)


@pytest.mark.parametrize("shape", [(6,), LARGE])
@pytest.mark.parametrize("name", ["maximum", "minimum"])
def test_ties_and_nan_of_maximum_and_minimum(
    name: str, shape: tuple[int, ...], rng: np.random.Generator
) -> None:
    a, b = rng.integers(0, 3, (2, *shape)).astype(float)
    b[..., 0] = np.nan
    against_torch(lambda m, a, b: getattr(m, name)(a, b), [a, b], second=False)
    against_torch(lambda m, a, b: getattr(m, name)(a, b), [a, a[..., ::-1] + 1], second=False)


# -- complex values --------------------------------------------------------------------------------


ANALYTIC = ("acos", "acosh", "asin", "asinh", "atan", "atanh", "conj", "cos", "cosh", "exp", "log",
            "log10", "log1p", "log2", "negative", "positive", "reciprocal", "sin", "sinh",
            "sqrt", "square", "tan", "tanh")


@pytest.mark.parametrize("name", (*ANALYTIC, "abs", "imag", "real"))
def test_complex_gradients(name: str, rng: np.random.Generator) -> None:
    for shape in ((5,), (2, 3), (), (0,)):
        x = rng.uniform(0.2, 0.9, shape) + 1j * rng.uniform(0.2, 0.9, shape)
        against_torch(lambda m, x: getattr(m, name)(x), [np.asarray(x)])


def test_complex_gradient_of_expm1(rng: np.random.Generator) -> None:
    x = np.asarray(rng.standard_normal(5) + 1j * rng.standard_normal(5))
    against_torch(lambda m, x: m.expm1(x) if m is gt else torch.exp(x) - 1, [x])


@pytest.mark.parametrize("name", ["add", "subtract", "multiply", "divide", "pow"])
@pytest.mark.parametrize("kinds", ["cc", "cr", "rc"])
def test_complex_gradients_of_two(name: str, kinds: str, rng: np.random.Generator) -> None:
    for shapes in (((4,), (4,)), ((), ())):
        arrays = [np.asarray(rng.uniform(0.5, 2.0, s)
                             + (1j * rng.standard_normal(s) if kind == "c" else 0.0))
                  for kind, s in zip(kinds, shapes, strict=True)]
        against_torch(lambda m, a, b: getattr(m, name)(a, b), arrays)


def test_complex_gradients_of_products_with_numbers(rng: np.random.Generator) -> None:
    for x in (rng.standard_normal(4), rng.standard_normal(4) + 1j * rng.standard_normal(4)):
        against_torch(lambda m, x: x * (2 - 3j), [x])
        against_torch(lambda m, x: (1 + 1j) / (x + 3.0), [x])


def test_the_modulus_has_gradient_0_at_0() -> None:
    x = gt.asarray(np.array([0.0, 3.0])).detach().requires_grad_()
    gt.abs(x + np.array([0, 4j])).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), [0, 0.6])


def test_functions_of_reals_refuse_complex_gradients() -> None:
    x = gt.asarray(np.ones(1)).detach().requires_grad_()
    with pytest.raises(gt.GradientError, match="sign has no derivative for complex values"):
        gt.sign(x * 1j)


# -- steps, signs, powers --------------------------------------------------------------------------


CONSTANT = ("ceil", "floor", "round", "sign", "trunc")


@pytest.mark.parametrize("name", CONSTANT)
def test_steps_have_gradient_0_even_for_an_infinite_one(name: str) -> None:
    x = gt.asarray(np.array([0.3, -1.7, np.inf])).detach().requires_grad_()
    upstream = gt.asarray(np.array([np.inf, np.nan, 1.0]))
    y = getattr(gt, name)(x)
    first = gt.grad(y, x, upstream, create_graph=True)
    np.testing.assert_array_equal((first if isinstance(first, gt.Tensor) else first[0]).numpy(), 0)
    (y * x).sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), y.numpy())


def test_copysign_and_nextafter_gradients() -> None:
    arrays = [np.array([2.0, -3.0, 0.5, 1.0]), np.array([-1.0, -0.0, 2.0, 0.0])]
    against_torch(lambda m, a, b: m.copysign(a, b), arrays)
    arrays[0][:2] = 0  # where PyTorch's second derivative is 0 / 0
    against_torch(lambda m, a, b: m.copysign(a, b), arrays, second=False)
    x = gt.asarray(np.ones(2)).detach().requires_grad_()
    with pytest.raises(gt.GradientError, match="nextafter"):
        gt.nextafter(x, 2.0).sum().backward()


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_logaddexp_gives_an_infinity_all_of_the_gradient() -> None:
    arrays = [np.array([np.inf, 1.0, -np.inf, 800.0]), np.array([1.0, -np.inf, 2.0, -800.0])]
    against_torch(lambda m, a, b: m.logaddexp(a, b), arrays, second=False)


def test_logaddexp_keeps_the_digits_of_the_gradient_of_large_values() -> None:
    arrays = [np.array([1e8, -1e8, 1e300, 3.0]), np.array([1e8, 0.3 - 1e8, 1e300, 3.0])]
    against_torch(lambda m, a, b: m.logaddexp(a, b), arrays)


def test_the_gradient_of_atan2_at_the_origin_is_0() -> None:
    arrays = [np.array([0.0, 0.0, 1.0]), np.array([0.0, 2.0, 0.0])]
    against_torch(lambda m, a, b: m.atan2(a, b), arrays, second=False)


def test_powers_of_numbers_and_by_numbers(rng: np.random.Generator) -> None:
    x = rng.uniform(0.5, 2.0, 5)
    for number in (2.3, -1.5, 0.0, 0, 1, 2, 3, 0.5):
        against_torch(lambda m, x, n=number: x ** n, [x])
    for number in (2.3, 1.0, 3):
        against_torch(lambda m, x, n=number: n ** x, [x])
    against_torch(lambda m, x: (2.3 ** x).astype(gt.float64) if m is gt else 2.3 ** x, [x])
    assert gt.pow(gt.asarray(np.arange(3)), 2.0).dtype == gt.float32
    assert gt.pow(gt.asarray(np.arange(3)), 2).dtype == gt.int64


@np.errstate(all="ignore")
def test_powers_at_the_border_of_their_domain() -> None:
    base, exponent = (a.ravel() for a in np.meshgrid(
        [0.0, 2.0, -2.0, np.nan, np.inf], [0.0, 1.0, 2.0, 0.5, -1.0]))
    against_torch(lambda m, a, b: m.pow(a, b), [base, exponent], second=False)
    for number in (0, 0.0, 1, 2, 0.5, -1):
        against_torch(lambda m, a, n=number: m.pow(a, n), [base], second=False)
        against_torch(lambda m, b, n=number: m.pow(n, b), [exponent], second=False)
    whole = exponent[exponent == np.floor(exponent)].astype(np.int64)
    against_torch(lambda m, a: m.pow(a, m.asarray(whole)), [base[:whole.size]], second=False)


def _power_derivative(order: str, a: Any, b: Any) -> Any:
    """Of a ** b by "a" and "b" in turn: a sum of P(b) a ** (b - k) log(a) ** n."""
    terms = {(0, 0): Polynomial([1.0])}
    for by in order:
        further: dict[tuple[int, int], Polynomial] = {}
        for (k, n), factor in terms.items():
            parts = [((k + 1, n), factor * Polynomial([-k, 1.0])), ((k + 1, n - 1), factor * n)]
            if by == "b":
                parts = [((k, n), factor.deriv()), ((k, n + 1), factor)]
            for place, part in parts:
                further[place] = further.get(place, Polynomial([0.0])) + part
        terms = further
    found = 0.0
    for (k, n), factor in terms.items():
        weight = factor(b)
        if np.any(weight):  # what has no weight may be infinite
            found = found + np.where(weight == 0, 0.0, weight * a ** (b - k) * (
                np.log(a) ** n if n else 1.0))
    return np.broadcast_to(found, np.broadcast_shapes(np.shape(a), np.shape(b)))


@np.errstate(all="ignore")
@pytest.mark.parametrize("bases", ["positive", "any"])
def test_derivatives_of_powers_to_the_fourth_order(bases: str) -> None:
    """In both and mixed; of bases 0 and below 0 by the base, where powers are real."""
    orders = ["".join(p) for n in (1, 2, 3, 4) for p in product("ab", repeat=n)]
    a, b = np.array([[0.5], [2.0]]), np.array([0.0, 1.0, 2.0, 0.5, -1.0, 3.0])
    if bases == "any":
        orders, a, b = ["a", "aa", "aaa", "aaaa"], np.array([[0.0], [-2.0]]), b[[0, 1, 2, 4, 5]]
    for order in orders:
        wanted = _power_derivative(order, a, b)
        x = {k: gt.tensor(np.broadcast_to(v, wanted.shape), requires_grad=k in order)
             for k, v in (("a", a), ("b", b))}
        y = x["a"] ** x["b"]
        for by in order:
            (y,) = gt.grad([y.sum()], [x[by]], create_graph=True)
        np.testing.assert_allclose(y.numpy(), wanted, 1e-9, 1e-12, err_msg=order)
    for number in b.tolist():
        for scalar, by in (("b", "a"), ("a", "b"))[:1 if bases == "any" else 2]:
            values = np.broadcast_to(a if by == "a" else b, wanted.shape)
            x = {by: gt.tensor(values, requires_grad=True), scalar: number}
            if scalar == "a" and number <= 0:
                continue
            y = x["a"] ** x["b"]
            for n in range(1, 5):
                (y,) = gt.grad([y.sum()], [x[by]], create_graph=True) if y.requires_grad else (
                    gt.zeros_like(y),)
                given = [values, np.asarray(number)]
                wanted_n = _power_derivative(by * n, *(given if by == "a" else given[::-1]))
                np.testing.assert_allclose(y.numpy(), wanted_n, 1e-9, 1e-12)


@pytest.mark.parametrize("base", [-2.0, 2.0, -2.5 + 1j])
def test_a_complex_power_of_a_negative_number(base: complex, rng: np.random.Generator) -> None:
    z = rng.uniform(0.5, 2.0, 5) + 1j * rng.standard_normal(5)
    against_torch(lambda m, z: m.pow(base, z), [z], second=False)
    if not isinstance(base, complex):
        bases = np.array([base, -base, -1.0, 3.0, -0.25])
        against_torch(lambda m, z: m.pow(m.asarray(bases), z), [z], second=False)

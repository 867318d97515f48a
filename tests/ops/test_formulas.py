"""Formulas as data: derivatives, selection without NaN, both paths of random expressions."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gtensor as gt
from gtensor.engine.handle.namespaces import recorded
from gtensor.engine.tape.op import registry
from gtensor.ops.define.formula import Formula, FormulaError, derivative, partial_of
from gtensor.ops.define.formula_cuda import cuda_path
from gtensor.ops.define.formula_numpy import Program, Text, numpy_path, plain

F32, F64 = np.dtype(np.float32), np.dtype(np.float64)
Build = Callable[..., Any]

# -- random expressions ----------------------------------------------------------------------------

_UNARY: dict[str, Build] = {
    "sin": lambda ns, a: ns.sin(a), "tanh": lambda ns, a: ns.tanh(a),
    "exp": lambda ns, a: ns.exp(-ns.square(a)), "sigmoid": lambda ns, a: ns.sigmoid(a),
    "root": lambda ns, a: ns.sqrt(1 + a * a), "log": lambda ns, a: ns.log(2 + ns.sin(a)),
    "ratio": lambda ns, a: a / (1 + a * a), "scaled": lambda ns, a: 0.7 * a - 0.2,
}
_BINARY: dict[str, Build] = {
    "sum": lambda ns, a, b: a + b, "difference": lambda ns, a, b: a - b,
    "product": lambda ns, a, b: a * b, "quotient": lambda ns, a, b: a / (2 + ns.cos(b)),
}
_KINKED: dict[str, Build] = {
    "larger": lambda ns, a, b: ns.maximum(a, b), "smaller": lambda ns, a, b: ns.minimum(a, b),
    "selected": lambda ns, a, b: ns.where(ns.less(a, 0.1), a * b, b),
    "kept": lambda ns, a, b: ns.where(ns.greater(a, b), a, 0), "size": lambda ns, a, b: ns.abs(a),
}


def expressions(more: dict[str, Build]) -> st.SearchStrategy[Build]:
    """Functions (ns, x, y, *, rate), whose parts may occur several times."""
    binary = _BINARY | more

    @st.composite
    def build(draw: st.DrawFn) -> Build:
        steps = draw(st.lists(st.tuples(
            st.sampled_from([*_UNARY, *binary]), st.integers(0, 20), st.integers(0, 20)),
            min_size=1, max_size=8))

        def function(ns: Any, x: Any, y: Any, *, rate: float) -> Any:
            values = [x, y, x * rate]
            for name, i, j in steps:
                a, b = values[i % len(values)], values[j % len(values)]
                values.append(_UNARY[name](ns, a) if name in _UNARY else binary[name](ns, a, b))
            return values[-1] + 0.5 * values[-2]

        return function

    return build()


def _inputs(*shape: int) -> list[np.ndarray]:
    rng = np.random.default_rng(3)
    return [rng.standard_normal(shape) for _ in range(2)]


@settings(deadline=None, max_examples=60)
@given(expressions({}))
def test_derivatives_agree_with_a_complex_step(function: Build) -> None:
    """f(x + ih) = f(x) + i h f'(x): no difference is taken, so nothing cancels."""
    x, y = _inputs(5)
    g = np.linspace(0.5, 2, 5)
    formula = Formula("random", function)
    for i, name in enumerate(("x", "y")):
        shifted = [a + 1e-30j if k == i else a + 0j for k, a in enumerate((x, y))]
        wanted = g * function(plain, *shifted, rate=0.8).imag / 1e-30
        path = numpy_path(derivative(formula, name))
        np.testing.assert_allclose(path(g, x, y, rate=0.8), wanted, 1e-9, 1e-12)


@settings(deadline=None, max_examples=60)
@given(expressions(_KINKED), st.sampled_from(["whole", "tiles", "columns", "over an input"]))
def test_tiles_agree_with_numpy(function: Build, way: str) -> None:
    x, y = _inputs(6, 8)
    wanted = function(plain, x, y, rate=0.8)
    path = numpy_path(Formula("random", function))
    for dtype, tolerance in ((F64, 1e-12), (F32, 2e-4)):
        a, b = x.astype(dtype), y.astype(dtype)
        out = None
        if way == "columns":
            a, b = np.asfortranarray(a), np.repeat(b, 2, axis=1)[:, ::2]
            out = np.empty((6, 16), dtype)[:, ::2]
        elif way == "over an input":
            out = a
        with gt.settings.override(tile_elements=32768 if way == "whole" else 5):
            found = path(a, b, rate=0.8, out=out)
        assert out is None or found is out
        np.testing.assert_allclose(found, wanted, tolerance, tolerance)


@pytest.mark.parametrize("tile", [32768, 5])
def test_results_have_numpys_own_dtype_objects(tile: int) -> None:
    """By which later ops tell dtypes quickly; an unpickled array has another object."""
    path = numpy_path(Formula("random", lambda ns, x: ns.tanh(x) * x))
    other = pickle.loads(pickle.dumps(F32))
    assert other is not F32
    with gt.settings.override(tile_elements=tile):
        path(np.ones(9, other))
        assert path(np.ones(9, F32)).dtype is F32


@pytest.mark.gpu
@settings(deadline=None, max_examples=15)
@given(expressions(_KINKED))
def test_the_kernel_agrees_with_the_tiles(function: Build) -> None:
    """Of a function and of its derivative."""
    formula = Formula("random", function)
    x, y = _inputs(7)
    device = gt.device("cuda")
    for one, arrays in ((formula, [x, y]), (derivative(formula, "y"), [x + 2, x, y])):
        wanted = numpy_path(one)(*arrays, rate=0.8)
        found = cuda_path(one)(*map(device.from_numpy, arrays), rate=0.8)
        np.testing.assert_allclose(device.to_numpy(found), wanted, 1e-9, 1e-12)


# -- selection -------------------------------------------------------------------------------------

_BRANCHES: dict[str, tuple[Build, float]] = {  # a function, and where another branch is infinite
    "log": (lambda ns, x: ns.where(ns.greater(x, 0), ns.log(x), x * x), 0.0),
    "root": (lambda ns, x: ns.where(ns.greater(x, 0), ns.sqrt(x), x * x), 0.0),
    "of a selection": (lambda ns, x: ns.sqrt(ns.where(ns.greater(x, 0), x, 0)), -1.0),
    "product": (lambda ns, x: ns.where(ns.greater(x, 0), 1 / x, 0) * ns.log(ns.abs(x) + 1), 0.0),
    "overflow": (lambda ns, x: ns.where(ns.greater(x, 800), 2 * x, ns.exp(-x) * x), 1000.0),
    "other overflow": (lambda ns, x: ns.where(ns.less(x, 800), x * x, ns.exp(x) * ns.exp(x)), 5.0),
}


@pytest.mark.parametrize("name", _BRANCHES)
def test_the_branch_not_taken_gives_no_nan_in_any_order(name: str) -> None:
    function, point = _BRANCHES[name]
    formula: Formula | None = Formula("selected", function)
    x = gt.tensor([point, 0.5], dtype="float64", requires_grad=True)
    value = recorded.formula(x, formula=formula)
    arrays = [np.array([point, 0.5])]
    for _ in range(3):
        assert formula is not None
        formula = partial_of(formula, len(formula.inputs) - 1, (), ())
        if formula is None:
            break
        assert np.isfinite(numpy_path(formula)(*[np.ones(2)] * (len(formula.inputs) - 1),
                                               *arrays)).all()
        (value,) = gt.grad(value.sum(), [x], create_graph=True)
        assert np.isfinite(value.detach().numpy()).all()
        if value._node is None:
            break


# -- text ------------------------------------------------------------------------------------------


def _lines(function: Build, dtype: np.dtype = F64) -> list[str]:
    formula = Formula("text", function)
    source = Program(formula.graphs(), dtype, formula, (), ()).source
    return source.split("def tile")[1].splitlines()


def test_equal_parts_are_computed_once() -> None:
    lines = _lines(lambda ns, x: ns.exp(x) / (1 + ns.exp(x)) + ns.exp(x) * 1 + 0)
    assert sum("exp(" in line for line in lines) == 1
    assert not any("multiply" in line for line in lines)


def test_numbers_are_computed_once_and_before() -> None:
    lines = _lines(lambda ns, x, *, rate: x * rate * (2 + 1) * (rate + 1))
    assert sum("multiply" in line for line in lines) == 1


def test_a_chain_of_formulas_is_one_kernel() -> None:
    inner = Formula("affine", lambda ns, x, scale, shift: x * scale + shift)
    chain = Formula("chain", lambda ns, x, scale, shift: ns.tanh(inner(ns, x, scale, shift)))
    x, scale, shift = np.random.default_rng(0).standard_normal((3, 4))
    np.testing.assert_allclose(numpy_path(chain)(x, scale, shift), np.tanh(x * scale + shift))
    assert cuda_path(chain).kernel_of((), ()).body.count("result") == 1  # type: ignore


def test_a_buffer_that_is_reused_too_early_is_found() -> None:
    def early(self: Text, i: int, *values: Any) -> None:
        for a in values:
            if a in self.places and not a.boolean:
                self.free["b"].append(self.places[a])

    with patch.object(Text, "_release", early), pytest.raises(AssertionError):
        test_tiles_agree_with_numpy.hypothesis.inner_test(  # type: ignore[attr-defined]
            lambda ns, x, y, *, rate: (ns.sin(x) + y) * ns.cos(ns.sin(x)) / (2 + ns.sin(x)),
            "whole")


def test_a_derivative_that_multiplies_by_a_mask_is_found() -> None:
    with patch("gtensor.ops.define.formula.linear", lambda change, rule: rule(change)), \
            pytest.raises(AssertionError):
        test_the_branch_not_taken_gives_no_nan_in_any_order("of a selection")


# -- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(("function", "message"), [
    (lambda ns, x: ns.cumsum(x), "'wrong' calls ns.cumsum; wanted one of abs"),
    (lambda ns, x: x if x > 0 else -x, "'wrong' branches in Python on the value greater"),
    (lambda ns, x: x.reshape(3), "'wrong' reads 'reshape' of the value x"),
    (lambda ns, x: ns.exp(x, x), "'wrong' calls ns.exp with 2 values; wanted 1"),
    (lambda ns, x: x + ns.greater(x, 0), "'wrong' calls ns.add with greater.*wanted numbers"),
    (lambda ns, x: ns.where(x, x, 0), "'wrong' calls ns.where with x; wanted a condition"),
    (lambda ns, x: ns.exp("x"), "'wrong' calls ns.exp with 'x'; wanted numbers"),
    (lambda ns, x: 1 if x == 0 else x, "'wrong' branches in Python on the value equal"),
    (lambda ns, x: x ** -1.5, "'wrong' raises x to the power -1.5; wanted 0.5, or an integer"),
    (lambda ns, x: x % 2, "'wrong' uses the operator mod on x; wanted functions of ns"),
    (lambda ns, x: float(x), "'wrong' uses the operator float on x"),
])
def test_what_is_no_formula_is_refused(function: Build, message: str) -> None:
    with pytest.raises(FormulaError, match=message):
        Formula("wrong", function).graph()


def test_comparisons_and_powers_are_traced() -> None:
    path = numpy_path(Formula("any", lambda ns, x: ns.where(
        (x == 0) | ~(x != 2), x ** 3 + abs(x) ** 0.5, +x)))
    x = np.array([0.0, 1.0, 2.0, 4.0])
    np.testing.assert_allclose(path(x), [0, 1, 8 + 2 ** 0.5, 4])


def test_numbers_of_numpy_select_no_graph_of_their_own() -> None:
    formula = Formula("scaled", lambda ns, x, *, by: x * by)
    path, x = numpy_path(formula), np.ones(3)
    for by in (0.1, np.float64(0.1), np.float32(0.5), np.int64(3), 7):
        np.testing.assert_array_equal(path(x, by=by), np.full(3, float(by)))  # in full precision
    assert len(formula._graphs) == 1
    with pytest.raises(TypeError, match="scaled was given an array as its parameter 'by'; wanted"):
        path(x, by=np.ones(3))


def test_values_for_which_a_formula_has_no_functions_are_refused() -> None:
    with pytest.raises(TypeError, match="gelu was given values of dtype complex128; wanted real"):
        gt.nn.functional.gelu(gt.asarray(np.ones(3) + 1j))


def test_a_derivative_that_the_output_does_not_fix_is_refused() -> None:
    sine = Formula("sine", lambda ns, x: ns.sin(x))
    with pytest.raises(FormulaError, match="'sine_grad' has no derivative from its output alone"):
        derivative(sine, "x", out=True).graph()


def test_a_small_formula_takes_two_calls() -> None:
    """Its path, and its text. NumPy's `errstate` is not counted."""
    x = np.ones(4, np.float32)
    path, called = registry["gelu"].cpu, []
    path(x, approximate="none")
    before = sys.getprofile()
    sys.setprofile(lambda frame, event, _: called.append(frame.f_code.co_name)
                   if event == "call" and "/numpy/" not in frame.f_code.co_filename else None)
    try:
        path(x, approximate="none")
    finally:
        sys.setprofile(before)
    assert called == ["path", "whole"]

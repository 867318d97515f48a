"""`gradcheck` passes right derivatives to second order and says what is wrong with others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gtensor as gt
from gtensor.testing import CheckError, GradcheckError, gradcheck
from gtensor.testing.compare import close


def _leaf(*shape: int, low: float = 0.5, high: float = 2.0) -> gt.Tensor:
    return gt.random.uniform(shape, low=low, high=high, dtype=gt.float64, requires_grad=True)


def _through(rule: Any) -> Any:
    """The identity with another backward rule, as an op outside the registry."""
    from gtensor.engine.tape.op import Op

    return Op("probe", cpu=lambda x, out=None: np.array(x), gpu=None, backward=rule,  # type: ignore
              tangent=None, samples=None)


def _times(factor: float) -> Any:
    return lambda ns, step, g: step.give(0, ns.multiply(g, factor))


FUNCTIONS = {
    "product": (lambda x, y: x * y, 2),
    "power": (lambda x, y: x ** y, 2),
    "matmul and tanh": (lambda x, y: (x @ y.T).tanh(), 2),
    "reductions": (lambda x: (x.sum(axis=0) * x.mean(axis=0)).max(), 1),
    "views": (lambda x: x.reshape(3, 2).T[0] * x[1, 0], 1),
    "several results": (lambda x, y: (x.exp(), y.log() * x.sum()), 2),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("order", [1, 2])
def test_right_gradients_pass(name: str, order: int) -> None:
    function, count = FUNCTIONS[name]
    gradcheck(function, [_leaf(2, 3) for _ in range(count)], order=order)


@pytest.mark.parametrize("factor", [1.0005, 0.9995, 1.0001])
def test_a_slightly_wrong_rule_is_caught(factor: float) -> None:
    gradcheck(_through(_times(1.0)), _leaf(2, 3))
    with pytest.raises(GradcheckError):
        gradcheck(_through(_times(factor)), _leaf(2, 3))


def test_the_message_names_function_input_element_values_and_seed() -> None:
    wrong = np.zeros((2, 3))
    wrong[1, 2] = 0.5

    def rule(ns: Any, step: Any, g: Any) -> None:
        step.give(0, ns.multiply(g, 1 + wrong))

    def scaled(x: gt.Tensor, y: gt.Tensor) -> gt.Tensor:
        return _through(rule)(y) * x

    with pytest.raises(GradcheckError) as caught:
        gradcheck(scaled, [_leaf(2, 3), _leaf(2, 3)], seed=7)
    text = str(caught.value)
    assert "scaled" in text and "input 1" in text and "element (1, 2)" in text
    assert "analytic" in text and "numeric" in text and "1 of 6" in text and "seed 7" in text


def test_an_error_that_a_uniform_upstream_gradient_hides_is_caught() -> None:
    """The rule spreads the gradient evenly: right for sum(), wrong for anything else."""

    def rule(ns: Any, step: Any, g: Any) -> None:
        mean = ns.mean(g, axis=(0,), keepdims=True)
        step.give(0, ns.multiply(mean, np.ones(5)))

    with pytest.raises(GradcheckError):
        gradcheck(_through(rule), _leaf(5))


def test_a_missing_gradient_is_caught() -> None:
    with pytest.raises(GradcheckError, match=r"analytic 0, numeric"):
        gradcheck(lambda x: _through(lambda ns, step, g: None)(x) + 0.0, _leaf(3))


def test_second_order_sees_what_first_order_does_not() -> None:
    """The rule's factor is right, but a constant: its own derivative is lost."""

    def rule(ns: Any, step: Any, g: Any) -> None:
        x = step.saved[0]
        constant = x.detach() if isinstance(x, gt.Tensor) else x
        step.give(0, ns.multiply(g, ns.multiply(constant, 2.0)))

    from gtensor.engine.tape.op import Op

    square = Op("probe", cpu=lambda x, out=None: x * x, gpu=None, backward=rule,  # type: ignore
                tangent=None, saves={"x": "x"}, samples=None)
    gradcheck(square, _leaf(3))
    with pytest.raises(GradcheckError, match="second order"):
        gradcheck(square, _leaf(3), order=2)


def test_a_function_that_writes_its_input_is_caught() -> None:
    def writes(x: gt.Tensor) -> gt.Tensor:
        result = x * 2.0
        x._array[0] = 5.0
        return result

    with pytest.raises(GradcheckError, match="input 0 was written"):
        gradcheck(writes, _leaf(3))


def test_constants_and_several_inputs_of_other_types_may_be_given() -> None:
    labels = gt.tensor([0, 2])
    gradcheck(lambda x, index, scale: x[index] * scale, [_leaf(3), labels, 2.0], order=2)


@pytest.mark.parametrize("shape", [(), (0, 3), (1,)])
def test_empty_and_0d_inputs(shape: tuple[int, ...]) -> None:
    gradcheck(lambda x: x.exp() * x, gt.random.normal(shape, dtype=gt.float64, requires_grad=True))


def test_float32_no_gradient_and_unknown_order_are_refused() -> None:
    with pytest.raises(TypeError, match="input 0 of dtype float32; wanted float64"):
        gradcheck(lambda x: x * x, gt.ones(3, requires_grad=True))
    with pytest.raises(ValueError, match="no input that requires a gradient"):
        gradcheck(lambda x: x * x, gt.ones(3))
    with pytest.raises(ValueError, match="order 3"):
        gradcheck(lambda x: x * x, _leaf(3), order=3)
    with pytest.raises(GradcheckError, match="does not depend on an input"):
        gradcheck(lambda x: x.detach() * 2.0, _leaf(3))


def test_the_inputs_keep_their_gradients() -> None:
    x = _leaf(3)
    (x * x).sum().backward()
    before = x.grad
    gradcheck(lambda x: x * x, x, order=2)
    assert x.grad is before


# -- the comparison of values ----------------------------------------------------------------------


@pytest.mark.parametrize(("given", "wanted", "tolerance", "equal"), [
    ([1.0, np.nan, np.inf], [1 + 1e-9, np.nan, np.inf], 1e-8, True), (np.nan, 1.0, 1e9, False),
    (1.0, np.inf, 1e-3, False), (-np.inf, np.inf, (1e-3, 1.0), False), (np.inf, 1.0, 1e-3, False),
    ([1e-3, 100.0], [0.0, 100.0], 1e-5, True), ([1e-3, 100.0], [0.0, 100.0], (1e-5, 1e-5), False),
    ([1e-4, np.inf], [0.0, np.inf], 1e-5, False), ([[1.0]], [1.0], 1e-5, False),
    (1 + 1e-9j, 1.0, 1e-8, True), (1j, -1j, 1e-8, False)])
def test_values_are_compared(given: Any, wanted: Any, tolerance: Any, equal: bool) -> None:
    """An infinity is near nothing else, and does not widen what is allowed."""
    try:
        close("values", given, wanted, tolerance)
    except CheckError:
        assert not equal
    else:
        assert equal

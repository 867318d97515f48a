"""`check_derivatives` passes right functions; of wrong ones it names mode, argument, element."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

import gtensor as gt
from gtensor.engine.tape.op import registry
from gtensor.func import forward, gradients
from gtensor.testing import DerivativeError, check_derivatives, opcheck
from gtensor.testing import functions as checked

RNG = np.random.default_rng()


def random(*shape: int) -> gt.Tensor:
    return gt.asarray(RNG.uniform(0.5, 1.5, shape))


@pytest.mark.parametrize("function,shapes", [
    (lambda x, w: {"y": gt.tanh(x @ w), "z": [(x * x).sum(0)]}, [(3, 4), (4, 2)]),
    (lambda x: x[1:] / x.mean(), [(5, 7)]), (lambda x: gt.asarray(2.0, dtype=gt.float64), [(3,)]),
    (lambda x: x.sum(), [()]), (lambda x: x * 2, [(0, 3)])])
def test_right_functions_pass(function: Callable[..., Any], shapes: list[tuple[int, ...]]) -> None:
    check_derivatives(function, *(random(*shape) for shape in shapes))


def test_everything_but_floats_is_a_constant() -> None:
    check_derivatives(lambda t, n, i: (t["w"] * n)[i[0]] * i, {"w": random(3), "k": "text"}, 2,
                      gt.asarray(np.arange(3)))


@contextlib.contextmanager
def op_with(name: str, **rules: Any) -> Iterator[Any]:
    """x * x with rules of one's own."""
    right: dict[str, Any] = {
        "cpu": lambda x, out=None: np.multiply(x, x, out=out), "gpu": None, "inputs": "x",
        "saves": {"x": "x"}, "samples": [(3,), (2, 3)],
        "backward": lambda ns, step, g: step.give(
            0, ns.multiply(ns.multiply(g, step.saved[0]), 2.0)),
        "tangent": lambda ns, primals, tangents, out, params: ns.multiply(
            ns.multiply(primals[0], tangents[0]), 2.0),
        "batch": lambda ns, run, inputs, mapped, params: run(*inputs)}
    try:
        yield gt.op(name, **right | rules)
    finally:
        del registry[name]


def wrong_batch(ns: Any, run: Any, inputs: Any, mapped: Any, params: Any) -> Any:
    return run(ns.flip(*inputs, axes=(-inputs[0].ndim,)))


@pytest.mark.parametrize("rules,mode,order", [
    ({"tangent": lambda ns, primals, tangents, out, params: ns.multiply(
        ns.multiply(primals[0], tangents[0]), 2.001)}, "forward mode", 1),
    ({"backward": lambda ns, step, g: step.give(
        0, ns.multiply(ns.multiply(g, step.saved[0]), 2.001))}, "reverse mode", 1),
    ({"batch": wrong_batch}, "vmap", 1),
    ({"batch": None}, "vmap", 1)])
def test_the_report_names_mode_and_element(rules: Any, mode: str, order: int) -> None:
    with op_with("square_of_mine", **rules) as op, pytest.raises(DerivativeError) as caught:
        check_derivatives(op, random(2, 3))
    assert (caught.value.mode, caught.value.order) == (mode, order)
    said = str(caught.value)
    assert "\n" not in said and "square_of_mine" in said and mode in said
    if mode in ("forward mode", "reverse mode"):
        assert "argument 0, element (" in said and "central difference" in said
    if rules == {"batch": None}:
        assert "square_of_mine has no batch rule" in said


def test_the_second_order_is_checked() -> None:
    """The first derivative is right, but drops what it hangs on."""
    backward = {"backward": lambda ns, step, g: step.give(
        0, ns.multiply(g, 2.0 * (step.saved[0].detach() if isinstance(step.saved[0], gt.Tensor)
                                 else step.saved[0])))}
    with op_with("square_of_mine", **backward) as op:
        check_derivatives(op, random(3), order=1)
        with pytest.raises(DerivativeError, match="of order 2 of square_of_mine") as caught:
            check_derivatives(op, random(3))
    assert caught.value.order == 2


@pytest.mark.parametrize("module,name,mode", [
    (forward, "along_all", "batched forward mode"),
    (gradients, "_batched_pullback", "batched reverse mode")])
def test_batched_modes_are_compared_with_single_ones(module: Any, name: str, mode: str) -> None:
    right = getattr(module, name)

    def swapped(*args: Any) -> Any:
        found = right(*args)
        return ((found[0], tuple(gt.flip(y, axis=0) for y in found[1])) if name == "along_all"
                else [gt.flip(g, axis=0) for g in found])

    with patch.object(module, name, swapped), pytest.raises(DerivativeError) as caught:
        check_derivatives(lambda x: x * x * x, random(4))
    assert caught.value.mode == mode


def test_bad_input_is_refused() -> None:
    for call, error, words in (
            (lambda: check_derivatives(gt.sin, gt.ones(3)), TypeError, "0 of dtype float32"),
            (lambda: check_derivatives(gt.sin, 3), TypeError, "no floating-point tensor"),
            (lambda: check_derivatives(gt.sin, random(3), order=3), ValueError, "order 3"),
            (lambda: check_derivatives(lambda x: 3, random(3)), DerivativeError,
             "returned no floating-point tensor")):
        with pytest.raises(error, match=words):
            call()
    assert checked.check_derivatives is inspect.unwrap(gt.testing.check_derivatives)


def test_opcheck_covers_the_batch_rules_of_users_ops() -> None:
    with op_with("square_of_mine") as op:
        opcheck(op, dtypes=[np.float64])
    with op_with("square_of_mine", batch=wrong_batch) as op, pytest.raises(
            gt.testing.OpcheckError, match="under vmap") as caught:
        opcheck(op, dtypes=[np.float64])
    assert caught.value.check == "batch"

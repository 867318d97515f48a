"""Formulas with several values that overwrite inputs: the order of writes, types and tiles."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from ml_dtypes import bfloat16

import gtensor as gt
from gtensor.ops.build.formula import Formula, FormulaError
from gtensor.ops.build.formula_numpy import Program, Text, plain
from gtensor.ops.build.updates import Update
from gtensor.ops.updates import optimizer_kernels

_STEPS = {
    "add": lambda ns, a, b: a + b, "multiply": lambda ns, a, b: a * b,
    "larger": lambda ns, a, b: ns.maximum(a, b), "rate": lambda ns, a, b: a * 0.7,
    "kept": lambda ns, a, b: ns.where(ns.greater(a, b), a, b), "root": lambda ns, a, b:
    ns.sqrt(ns.abs(a)), "positive": lambda ns, a, b: ns.where(ns.greater(a, 0), b, 0)}


@st.composite
def updates(draw: st.DrawFn) -> Any:
    """Functions of a target, a gradient and two states, with three values that share parts."""
    steps = draw(st.lists(st.tuples(
        st.sampled_from(list(_STEPS)), st.integers(0, 20), st.integers(0, 20)),
        min_size=1, max_size=8))
    roots = draw(st.tuples(*[st.integers(0, 20)] * 3))

    def function(ns: Any, p: Any, g: Any, m: Any, v: Any, *, rate: float) -> Any:
        values = [p * rate, g, m - p, v]
        for name, i, j in steps:
            values.append(_STEPS[name](ns, values[i % len(values)], values[j % len(values)]))
        return tuple([values[k % len(values)] + 0.5 * g for k in roots])

    return function


@hypothesis_settings(deadline=None, max_examples=80)
@given(updates(), st.sampled_from(["whole", "tiles", "columns", "half states"]))
def test_values_overwrite_inputs_that_were_read(function: Any, way: str) -> None:
    given = [a.astype(np.float32) for a in np.random.default_rng(5).standard_normal((4, 6, 8))]
    if way == "columns":
        given = [np.asfortranarray(a) for a in given]
    if way == "half states":
        given[1:] = [given[1].astype(np.float16), *[a.astype(bfloat16) for a in given[2:]]]
    wanted = function(plain, *[a.astype(np.float32) for a in given], rate=0.8)
    p, g, *state = given
    before = g.copy()
    with gt.settings.override(tile_elements=5 if way == "tiles" else 32768):
        Update("random", function).cpu(p, g, out=p, state=tuple(state), rate=0.8)
    assert g.tobytes() == before.tobytes()
    for found, value in zip((p, *state), wanted, strict=True):
        np.testing.assert_allclose(found.astype(float), value,
                                   *((1e-2, 1e-2) if found.itemsize == 2 else (2e-4, 2e-4)))


def test_planted_fault_an_input_overwritten_before_it_is_read_is_found() -> None:
    right = Text._output

    def early(self: Text, i: int, node: Any) -> str | None:
        self.read = dict.fromkeys(self.read, -1)
        return right(self, i, node)

    def function(ns: Any, p: Any, g: Any, m: Any, v: Any, *, rate: float) -> Any:
        return p * g, p + m, m * v

    check = test_values_overwrite_inputs_that_were_read.hypothesis.inner_test  # type: ignore
    check(function, "whole")
    with patch.object(Text, "_output", early), pytest.raises(AssertionError):
        check(function, "whole")


@pytest.mark.parametrize(("function", "message"), [
    (lambda ns, p, g, m: (m, p), "returns its input m as p; wanted a value"),
    (lambda ns, p, g, sqrt: (p + sqrt, sqrt + g), "calls a value 'sqrt', like a function"),
])
def test_what_no_order_of_writes_serves_is_refused(function: Any, message: str) -> None:
    formula = Formula("wrong", function)
    with pytest.raises(FormulaError, match=message):
        Program(formula.graphs(), np.dtype(np.float32), formula, (), (),
                (formula.inputs[0], formula.inputs[2]))


def _adam(xp: Any, path: Any, dtypes: tuple[Any, ...]) -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    p, g, m, v = (xp(np.abs(rng.standard_normal(40)).astype(dtype)) for dtype in dtypes)
    path(p, g, out=p, state=(m, v), rate=0.1, beta1=0.9, beta2=0.99, eps=1e-8, weight_decay=0.1,
         decoupled=True, maximize=False, correction1=0.1, correction2=0.01)
    return [p, m, v]


_MIXED = (np.float32, np.float16, bfloat16, np.float32)


@pytest.mark.parametrize("place", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_arrays_of_different_types(place: str) -> None:
    """A float32 parameter, a float16 gradient, a bfloat16 mean: as computed in float32."""
    device = gt.device(place)
    op = optimizer_kernels.adam
    found = [device.to_numpy(a) for a in _adam(
        device.from_numpy, op.cpu if place == "cpu" else op.gpu, _MIXED)]
    rounded = [np.float32] * 4
    wanted = _adam(np.asarray, op.cpu, tuple(rounded))
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a.astype(float), b, 1e-2, 1e-3)
    assert [a.dtype for a in found] == [_MIXED[0], *_MIXED[2:]]

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
from gtensor.engine.run.grouped_writes import Write, write_all
from gtensor.ops.define.formula import Formula, FormulaError
from gtensor.ops.define.formula_numpy import Program, Text, plain
from gtensor.ops.define.updates import Update
from gtensor.ops.updates import optimizers

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
        Update("random", function).cpu(p, g, out=(p,), state=tuple(state), options=[{"rate": 0.8}],
                                       rows=[0])
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


_OPTIONS = {"rate": 0.1, "beta1": 0.9, "beta2": 0.99, "eps": 1e-8, "weight_decay": 0.1,
            "decoupled": True, "maximize": False}


def _stepped(
    device: Any, sizes: list[int], dtypes: tuple[Any, ...], rates: list[float], steps: list[int],
    place: Any = lambda device, values: device.from_numpy(values),
) -> list[list[np.ndarray]]:
    """AdamW of parameters of these sizes, rates and step numbers: per array, one for each."""
    rng = np.random.default_rng(1)
    arrays = [tuple([place(device, np.abs(rng.standard_normal(size)).astype(dtype))
                     for size in sizes]) for dtype in dtypes]
    targets, gradients, *states = arrays
    params: dict[str, Any] = {"options": [{**_OPTIONS, "rate": rate} for rate in rates],
                              "rows": [k % len(rates) for k in range(len(sizes))],
                              "state": sum(states, ()), "out": targets}
    op = optimizers.adam
    if device.type == "cpu":
        op.cpu(*targets, *gradients, **params, steps=steps)
    else:
        counter = device.from_numpy(np.array([*[step - 1 for step in steps], 0]))
        device.path(op.name, op.gpu)(
            *targets, *gradients, **params, steps=[(counter, k) for k in range(len(sizes))],
            ticket=(counter, len(sizes)), counts=[counter])
        assert device.to_numpy(counter).tolist() == [*steps, 0]
    return [[device.to_numpy(a) for a in some] for some in (targets, *states)]


def _compare(found: Any, wanted: Any, rtol: float, atol: float) -> None:
    for a, b in zip(sum(found, []), sum(wanted, []), strict=True):
        np.testing.assert_allclose(a.astype(float), b.astype(float), rtol, atol)


_MIXED = (np.float32, np.float16, bfloat16, np.float32)


@pytest.mark.parametrize("place", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_arrays_of_different_types(place: str) -> None:
    """A float32 parameter, a float16 gradient, a bfloat16 mean: as computed in float32."""
    found = _stepped(gt.device(place), [40], _MIXED, [0.1], [1])
    wanted = _stepped(gt.device("cpu"), [40], (np.float32,) * 4, [0.1], [1])
    _compare(found, wanted, 1e-2, 1e-3)
    assert [some[0].dtype for some in found] == [_MIXED[0], *_MIXED[2:]]


def _many(count: int, rows: int) -> tuple[list[int], list[float], list[int]]:
    rng = np.random.default_rng(count)
    sizes = [0, 1, 8192, 8193, 40000, 5, *rng.integers(0, 300, count).tolist()][:count]
    return sizes, [0.1 / (1 + k) for k in range(rows)], [1 + k % 3 for k in range(count)]


def _unaligned(device: Any, values: np.ndarray) -> Any:
    """Every second array begins behind one element more."""
    if len(values) % 2 == 0:
        return device.from_numpy(values)
    return device.from_numpy(np.concatenate([values[:1], values]))[1:]


def _strided(device: Any, values: np.ndarray) -> Any:
    return device.from_numpy(np.repeat(values, 2))[::2]


@pytest.mark.gpu
@pytest.mark.parametrize(("count", "rows"), [(1, 1), (6, 2), (40, 8), (41, 1), (12, 9), (400, 1),
                                             (150, 70)])
@pytest.mark.parametrize("place", [None, _unaligned, _strided])
def test_many_tensors_on_cuda_equal_the_cpu(count: int, rows: int, place: Any) -> None:
    sizes, rates, steps = _many(count, rows)
    given = (sizes, (np.float32,) * 4, rates, steps)
    more = () if place is None else (place,)
    _compare(_stepped(gt.device("cuda"), *given, *more), _stepped(gt.device("cpu"), *given),
             2e-5, 1e-6)


def test_planted_fault_an_option_of_another_row_is_found() -> None:
    given = ([9, 9], (np.float32,) * 4)
    right = _stepped(gt.device("cpu"), *given, [0.1, 0.2], [1, 1])
    with pytest.raises(AssertionError):
        _compare(_stepped(gt.device("cpu"), *given, [0.2, 0.1], [1, 1]), right, 2e-5, 1e-6)
    with pytest.raises(AssertionError):
        _compare(_stepped(gt.device("cpu"), *given, [0.1, 0.2], [2, 2]), right, 2e-5, 1e-6)


@pytest.mark.gpu
@pytest.mark.parametrize("case", ["gradient in the parameter", "gradient is the parameter",
                                  "parameters overlap"])
def test_arrays_that_overlap_are_updated_one_by_one(case: str) -> None:
    def updated(device: Any) -> np.ndarray:
        memory = device.from_numpy(np.arange(40, dtype=np.float32))
        targets, gradients = {
            "gradient in the parameter": ((memory[:30],), (memory[10:40],)),
            "gradient is the parameter": ((memory[:30],), (memory[:30],)),
            "parameters overlap": ((memory[:20], memory[10:30]), (memory[20:40], memory[5:25])),
        }[case]
        params = {"options": [{"rate": 0.5, "weight_decay": 0.0, "momentum": 0.0, "dampening": 0.0,
                               "nesterov": False, "maximize": False}], "rows": [0] * len(targets)}
        wrap = [gt.asarray(a, device=device) for a in (*targets, *gradients)]
        with gt.no_grad():
            write_all([Write(optimizers.sgd, wrap[:len(targets)], wrap[len(targets):], {
                **params, **({"steps": [1] * len(targets)} if device.type == "cpu" else {})})])
        return device.to_numpy(memory)

    if case != "parameters overlap":
        np.testing.assert_array_equal(updated(gt.device("cuda")), updated(gt.device("cpu")))
        return
    x = np.arange(40, dtype=np.float32)
    x[:20] -= 0.5 * x[20:40]
    x[10:30] -= 0.5 * x[5:25].copy()
    np.testing.assert_array_equal(updated(gt.device("cuda")), x)

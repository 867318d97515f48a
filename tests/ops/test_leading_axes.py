"""What lets an op's paths and rules run unedited with further axes in front of an example's own.

That they do, each op by its batch rule, is compared in `test_batch_rules`.

Axes in parameters count from the end, arrays are inputs and never parameters, and a backward rule
asks its gradient (and what was saved) for shape, dtype and ndim only: all else is done by functions
of its namespace and by the verbs of its step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

import gtensor as gt
import gtensor.nn.functional as F
from gtensor.backend import get_device
from gtensor.engine.handle.namespaces import raw, recorded
from gtensor.engine.tape.op import registry
from gtensor.func.gradients import grad
from gtensor.system.bus import OpEvent
from gtensor.testing.cases import Case, samples_of

from .test_definitions import NAMES, THROUGH

CPU = get_device("cpu")


def cases(name: str) -> Iterator[Case]:
    """Every sample of an op; of one without samples those of the op that makes its inputs."""
    definition = registry[THROUGH.get(name, name)]
    for sample in samples_of(definition):
        yield Case.of(definition, sample, CPU, 1, [], None)


def run(case: Case, orders: int = 2) -> None:
    """Forward, backward, and the backward of each recorded backward."""
    derived = case.op.backward is not None or case.op.composed is not None
    inputs: list[Any] = case.inputs(requires=case.floats if derived else ())
    leaves = [x for x in inputs if x is not None and x.requires_grad]
    for i, x in enumerate(inputs):
        if derived and x is not None and x.dtype.kind == "c":  # never a leaf
            leaves.append(gt.zeros(x.shape, dtype=gt.float64, requires_grad=True))
            inputs[i] = x + leaves[-1]
    ends = [case.call(inputs)]
    if not ends[0].requires_grad:
        return
    grad(ends, leaves, [case.upstream(ends[0])], retain_graph=True, allow_unused=True)
    for order in range(orders):
        upstreams = [case.upstream(y) for y in ends]
        leaves += [u.requires_grad_() for u in upstreams if u.dtype.kind in "fV"]
        found = grad(ends, leaves, upstreams, create_graph=order < orders - 1, allow_unused=True)
        ends = [g for g in found if g is not None and g.requires_grad]
        if not ends:
            return


# -- a gradient is asked for shape, dtype and ndim -------------------------------------------------


class Opaque:
    """An array of which only the shape, the dtype and the number of axes can be seen."""

    __slots__ = ("_hidden",)
    __array_ufunc__ = None  # NumPy's operators do not take it either

    def __init__(self, array: Any) -> None:
        self._hidden = array

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self._hidden.shape)

    @property
    def dtype(self) -> np.dtype:
        return self._hidden.dtype  # type: ignore[no-any-return]

    @property
    def ndim(self) -> int:
        return len(self._hidden.shape)

    def __array__(self, *args: object, **kwargs: object) -> None:
        raise TypeError("an opaque array is not NumPy's to read")


def hidden(value: Any) -> Any:
    """Arrays made opaque, also in a tuple."""
    if isinstance(value, tuple):
        return tuple(map(hidden, value))
    return Opaque(value) if isinstance(value, (np.ndarray, np.generic)) else value


def shown(value: Any) -> Any:
    return value._hidden if isinstance(value, Opaque) else value


class OpaqueNamespace:
    """The functions of a raw namespace, on opaque arrays."""

    def __init__(self, ns: Any) -> None:
        self._ns = ns

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function = getattr(self._ns, name)
        return lambda *args, **params: hidden(
            function(*map(shown, args), **{k: shown(v) for k, v in params.items()}))


class OpaqueStep:
    """A step whose verbs take opaque arrays, and give them."""

    def __init__(self, step: Any) -> None:
        self._step = step
        self.saved = tuple(map(hidden, step.saved))

    def give(self, i: int, a: Any) -> None:
        self._step.give(i, shown(a))

    def lend(self, i: int, a: Any) -> None:
        self._step.lend(i, shown(a))

    def into(self, i: int, wide: bool = False, dtype: Any = None) -> Any:
        return hidden(self._step.into(i, wide, dtype))

    def reuse(self, g: Any) -> Any:
        return hidden(self._step.reuse(shown(g)))

    def take(self, a: Any) -> Any:
        return hidden(self._step.take(shown(a)))

    def __getattr__(self, name: str) -> Any:
        if name in ("params", "needs", "shape", "mask", "parents", "record", "rebuilt"):
            return getattr(self._step, name)
        raise AttributeError(f"a rule asked its step for {name!r}")


def rule_asks_for_no_more_than_shape_and_dtype(name: str) -> None:
    """With opaque arrays for a raw pass; a recorded one has Tensors, as ever."""
    rule: Any = registry[name].backward
    ran = False

    def blindfolded(ns: Any, step: Any, g: Any) -> None:
        nonlocal ran
        if ns is recorded:
            rule(ns, step, g)
        else:
            ran = True
            rule(OpaqueNamespace(ns), OpaqueStep(step), Opaque(g))

    with patch.object(registry[name], "backward", blindfolded):
        for case in cases(name):
            run(case, 3 if name == "max_pool2d_pick" else 2)
    assert ran, "a check that ran no rule"


@pytest.mark.parametrize("name", sorted(n for n, op in registry.items() if op.backward is not None))
def test_a_rule_asks_for_no_more_than_shape_and_dtype(name: str) -> None:
    rule_asks_for_no_more_than_shape_and_dtype(name)


def _transposes(right: Any) -> Any:
    return lambda ns, step, g: step.give(0, ns.multiply(g.T.T, step.saved[0]))


def _operates(right: Any) -> Any:
    return lambda ns, step, g: step.give(0, ns.multiply(g * 2, 0.5))


def _indexes(right: Any) -> Any:
    return lambda ns, step, g: step.give(0, g[...])


def _operates_on_saved(right: Any) -> Any:
    return lambda ns, step, g: step.give(0, ns.multiply(g, 1 - step.saved[0]))


@pytest.mark.parametrize("wrap", [_transposes, _operates, _indexes, _operates_on_saved])
def test_a_rule_that_asks_for_more_fails(wrap: Callable[[Any], Any]) -> None:
    with patch.object(registry["tanh"], "backward", wrap(None)), pytest.raises(
            (AttributeError, TypeError)):
        rule_asks_for_no_more_than_shape_and_dtype("tanh")


# -- parameters: axes from the end, no arrays ------------------------------------------------------


class Calls:
    """Within the block, the name and the parameters of every op that runs, also in rules.

    For tests with the fixture `paths_listened_to`.
    """

    open: Calls | None = None  # the one whose block runs

    def __init__(self) -> None:
        self.seen: list[tuple[str, dict[str, Any]]] = []
        self._stack = ExitStack()

    def op_begins(self, event: OpEvent) -> None:
        """Also of the records of formulas, which no registry has."""
        if event.phase == "forward":
            self.seen.append((event.name, {k: v for k, v in event.params.items() if k != "out"}))

    def __enter__(self) -> Calls:
        self._stack.enter_context(gt.listen(self))
        self._stack.enter_context(patch.object(Calls, "open", self))
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()


def _listen(name: str, path: Any, *args: Any, **params: Any) -> Any:
    if Calls.open is not None:
        Calls.open.seen.append(
            (name, {k: v for k, v in params.items() if k not in ("out", "beta")}))
    return path(*args, **params)


@pytest.fixture(scope="module")
def paths_listened_to() -> Iterator[None]:
    """Every path tells `Calls` of its runs. Once for all tests: an op's text is written anew."""
    with ExitStack() as stack:
        for name, definition in registry.items():
            listening = partial(_listen, name, definition.cpu)
            stack.enter_context(patch.object(definition, "cpu", listening))
            stack.enter_context(patch.object(raw["cpu"], name, listening))
        yield


def arrays_in(value: Any) -> bool:
    """Whether a parameter is an array or a Tensor, or holds one."""
    if isinstance(value, (np.ndarray, gt.Tensor)):
        return True
    if isinstance(value, slice):
        return arrays_in((value.start, value.stop, value.step))
    if isinstance(value, dict):
        return any(map(arrays_in, value.values()))
    if isinstance(value, (tuple, list, set, frozenset)):
        return any(map(arrays_in, value))
    return type(value).__module__.startswith("gtensor.ops") and arrays_in(vars(value))


def calls_of(name: str) -> list[tuple[str, dict[str, Any]]]:
    with Calls() as calls:
        for case in cases(name):
            run(case)
    assert calls.seen, "a check that saw no op"
    return calls.seen


def parameters_are_numbers_and_axes_count_from_the_end(name: str) -> None:
    seen = calls_of(name)
    for op, params in seen:
        held = [k for k, v in params.items() if arrays_in(v)]
        assert not held, f"{op} has an array in its parameter {held[0]!r}"
    refuse_axes_from_the_front(seen)


def refuse_axes_from_the_front(seen: list[tuple[str, dict[str, Any]]]) -> None:
    for op, params in seen:
        for which in ("axis", "axes"):
            given = params.get(which)
            found = () if given is None else given if isinstance(given, tuple) else (given,)
            assert all(a < 0 for a in found), f"{op} was given {which}={given}"


@pytest.mark.usefixtures("paths_listened_to")
@pytest.mark.parametrize("name", NAMES)
def test_no_parameter_is_an_array_and_axes_count_from_the_end(name: str) -> None:
    parameters_are_numbers_and_axes_count_from_the_end(name)


REDUCE = ("sum", "mean", "max", "min", "any", "all", "prod", "var", "std", "logsumexp")
PUBLIC: dict[str, Callable[..., Any]] = {
    **{name: getattr(gt, name) for name in (*REDUCE, "cumulative_sum", "cumulative_prod", "diff")},
    "cumulative_sum_initial": partial(gt.cumulative_sum, include_initial=True),
    "softmax": lambda x, axis: F.softmax(x, axis), "glu": lambda x, axis: F.glu(x, axis),
    "log_softmax": lambda x, axis: F.log_softmax(x, axis), "fft": gt.fft.fft,
    "rfft": partial(gt.fft.rfft, n=3), "irfft": partial(gt.fft.irfft, n=9),
    "vector_norm": gt.linalg.vector_norm, "cross": lambda x, axis: gt.linalg.cross(x, x, axis=axis),
    "vecdot": lambda x, axis: gt.vecdot(x, x, axis=axis),
    **{name: getattr(gt, name) for name in ("argmax", "argmin", "argsort", "flip", "sort")},
    "concat": lambda x, axis: gt.concat([x, x], axis),
    "repeat": lambda x, axis: gt.repeat(x, 2, axis),
    "stack": lambda x, axis: gt.stack([x, x], axis if axis >= 0 else axis - 1),
    "topk": lambda x, axis: gt.topk(x, 2, axis).values,
    "take_along_axis": lambda x, axis: gt.take_along_axis(x, gt.argsort(x, axis), axis),
    "moveaxis": lambda x, axis: gt.moveaxis(x, axis, 1),
}


@pytest.mark.usefixtures("paths_listened_to")
@pytest.mark.parametrize("name", PUBLIC)
def test_public_functions_take_both_signs_and_pass_one(name: str) -> None:
    x = gt.tensor(np.random.default_rng(0).standard_normal((4, 3, 6)), requires_grad=True)
    for axis in [1] if name == "cross" else [0, 2]:
        with Calls() as calls:
            found = [PUBLIC[name](x, axis=a) for a in (axis, axis - 3)]
            ends = [y for y in found if y.requires_grad]
            grads = [gt.grad(gt.abs(y).sum(), [x])[0] for y in ends]
        for a, b in (found, grads)[:1 + bool(grads)]:
            np.testing.assert_array_equal(a.numpy(), b.numpy())
        refuse_axes_from_the_front(calls.seen)


@pytest.mark.usefixtures("paths_listened_to")
@pytest.mark.parametrize("name", REDUCE)
def test_all_axes_are_named(name: str) -> None:
    with Calls() as calls:
        getattr(gt, name)(gt.ones((2, 3)))
    assert calls.seen[0][1]["axis"] == (-2, -1)


def _counts_from_the_front(ns: Any, step: Any, g: Any) -> None:
    step.give(0, ns.flip(ns.flip(g, axes=(0,)), axes=(0,)))


def _passes_an_array(ns: Any, step: Any, g: Any) -> None:
    step.give(0, ns.reshape(g, shape=np.array(g.shape)))


@pytest.mark.usefixtures("paths_listened_to")
@pytest.mark.parametrize("rule, message", [
    (_counts_from_the_front, r"flip was given axes=\(0,\)"),
    (_passes_an_array, "reshape has an array in its parameter 'shape'")])
def test_a_call_that_breaks_this_fails(rule: Any, message: str) -> None:
    with patch.object(registry["tanh"], "backward", rule), pytest.raises(
            AssertionError, match=message):
        parameters_are_numbers_and_axes_count_from_the_end("tanh")


def test_arrays_are_found_where_parameters_hide_them() -> None:
    array = np.zeros(1)
    for value in (array, gt.zeros(1), (1, (array,)), [array], slice(array), {"a": array}):
        assert arrays_in(value)
    for value in (None, 1.5, "mean", (1, slice(1, 2), ...), np.dtype(np.float32), CPU):
        assert not arrays_in(value)

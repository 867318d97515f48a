"""Every op under `vmap` against a loop over the examples: values, and gradients per example."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from itertools import combinations
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

import gtensor as gt
from gtensor.backend import get_device
from gtensor.engine.handle.errors import SizeError
from gtensor.engine.handle.tensor import FLOATING
from gtensor.engine.tape.op import Op, registry
from gtensor.engine.tape.samples import Sample, below, normal, positive
from gtensor.engine.walk import stacked
from gtensor.ops.pool.windows import window_params
from gtensor.testing.cases import Case, samples_of
from gtensor.testing.compare import CheckError, close

from .test_definitions import NAMES, THROUGH

CPU = get_device("cpu")
EXAMPLES = 7  # as no axis of a sample: an axis taken for another shows
LOOPED = (0, 4, 6)  # of these: the first, the last, and one between
EQUAL = 1e-10  # of each element, and of the largest

# Ops whose rule refuses, by name: the size of their output depends on the values.
REFUSED = ("nonzero", "unique_table", "unique_values")
INDEXED = ("gather", "scatter_add", "set_item", "last_writes")  # boolean indices may not differ
# Ops without a rule that run by their composed form, in no rule of another op.
COMPOSED = {"inplace_abn"}


def has_rule(op: Op) -> bool:
    return op.batch is not None or op.composed is not None


class Batch:
    """Examples of one sample, of which the inputs at `mapped` differ; `LOOPED` run in the loop."""

    def __init__(self, op: Op, sample: Sample, mapped: Sequence[int]) -> None:
        self.mapped, self.sample = mapped, sample
        found = [Case.of(op, sample, CPU, seed, [], None) for seed in range(EXAMPLES)]
        self.case = found[0]
        self.examples = [[own if i in mapped else shared for i, (own, shared) in enumerate(
            zip(case.arrays, self.case.arrays, strict=True))] for case in found]
        self.whole: list[Any] = [
            np.stack(values) if i in mapped else values[0]
            for i, values in enumerate(zip(*self.examples, strict=True))]
        self.axes = tuple(0 if i in mapped else None for i in range(len(self.whole)))

    def _take(self, count: int) -> None:
        """Let the first `count` examples be those of the stacks."""
        self.count = count
        self.stacks = [a[:count] if i in self.mapped else a for i, a in enumerate(self.whole)]
        self.what = f"{self.sample}, {count} examples, with a batch axis in inputs " \
                    f"{list(self.mapped)}"

    def check(self, *counts: int) -> None:
        """Values and, where there are some, gradients, of the first so many examples."""
        looped = [self.examples[k] for k in LOOPED]
        wanted = [self.case.value(self.case.inputs(one)) for one in looped]
        upstreams = [self.case.upstream(wanted[0]).numpy() for _ in self.examples]
        derived = self._derived(wanted[0])
        gradients = [self._gradients(*self.case.inputs(one), gt.asarray(upstreams[k]))
                     for k, one in zip(LOOPED, looped, strict=True)] if derived else []
        for count in counts:
            self._take(count)
            self._compare("the value", wanted, gt.vmap(self.case.function, self.axes))
            if derived:
                for recorded in (False, True) if count else (False,):
                    self._compare_gradients(gradients, np.stack(upstreams)[:count], recorded)

    def _compare_gradients(
        self, gradients: list[Any], upstreams: np.ndarray, recorded: bool
    ) -> None:
        """Of a walk on raw stacks or, where something is `recorded` below, of recorded ops."""
        stack = gt.asarray(upstreams).requires_grad_(
            recorded and upstreams.dtype.kind != "c")
        inputs = self.case.inputs(self.stacks, requires=self.case.floats if recorded else ())
        found = gt.vmap(self._gradients, (*self.axes, 0))(*inputs, stack)
        for i, g, *wanted in zip(self.varied, found, *gradients, strict=True):
            self._compare(f"the gradient of input {i}{' (recorded)' * recorded}", wanted,
                          lambda *inputs, g=g: g.detach())

    def _derived(self, output: gt.Tensor) -> bool:
        """Whether gradients reach inputs, complex ones too: those at `varied`."""
        op = self.case.op
        self.varied = [i for i, a in enumerate(self.case.arrays) if a is not None
                       and a.dtype.kind in FLOATING + "c" and i not in op.constants]
        return bool(self.varied) and output.dtype.kind in FLOATING + "c" and (
            op.backward is not None or op.composed is not None)

    def _function(self, inputs: Sequence[Any]) -> tuple[Any, list[Any]]:
        """The op as a function of floats, and these: for a complex x zeros t of x + (1 + j) t."""
        starts = [inputs[i] if inputs[i].dtype.kind != "c" else
                  gt.zeros(inputs[i].shape, dtype=gt.float64) for i in self.varied]

        def function(*leaves: Any) -> Any:
            moved = list(inputs)
            for i, leaf in zip(self.varied, leaves, strict=True):
                moved[i] = leaf if inputs[i].dtype.kind != "c" else inputs[i] + leaf * (1 + 1j)
            return self.case.call(moved)

        return function, starts

    def _gradients(self, *given: Any) -> Any:
        """Of Re <upstream, output>."""
        *inputs, u = given
        function, starts = self._function(inputs)

        def loss(*leaves: Any) -> Any:
            y = function(*leaves)
            return gt.sum(y * u if y.dtype.kind != "c" else gt.real(y * gt.conj(u)))

        return gt.grad(loss, tuple(range(len(starts))), allow_unused=True)(*starts)

    def check_pullback(self, *counts: int) -> None:
        """A pullback of stacked cotangents, which all share the inputs; of real outputs."""
        inputs = self.case.inputs()
        y = self.case.value(inputs)
        if not self._derived(y) or y.dtype.kind == "c":
            return
        function, starts = self._function(inputs)
        pullback = gt.vjp(function, *starts)[1]
        upstreams = [self.case.upstream(y) for _ in self.examples]
        wanted = [pullback(upstreams[k]) for k in LOOPED]
        stack = np.stack([u.numpy() for u in upstreams])
        for count in counts:
            self._take(count)
            found = pullback(gt.asarray(stack[:count]), batched=True)
            for i, g, *each in zip(self.varied, found, *wanted, strict=True):
                self._compare(f"the pullback to input {i}", each, lambda *inputs, g=g: g)

    def _compare(self, what: str, wanted: Sequence[Any], run: Any) -> None:
        what = f"{what} of {self.what}"
        found = run(*self.case.inputs(self.stacks))
        if (found.shape, found.dtype) != ((self.count, *wanted[0].shape), wanted[0].dtype):
            raise CheckError(f"{what} has shape {found.shape}, dtype {found.dtype}; wanted "
                             f"{(self.count, *wanted[0].shape)}, {wanted[0].dtype}")
        for k, one in zip(LOOPED, wanted, strict=True):
            if k < self.count:
                close(f"{what}, example {k}", found[k], one.detach(), EQUAL,
                      ("under vmap", "by itself"))


def subsets(given: Sequence[int], rng: np.random.Generator) -> Iterator[tuple[int, ...]]:
    """Each input alone, all of them, and one more choice."""
    yield from ((i,) for i in given)
    if len(given) > 1:
        yield tuple(given)
    others = [c for n in range(2, len(given)) for c in combinations(given, n)]
    if others:
        yield others[rng.integers(len(others))]


def sample_is_boolean(sample: Sample, i: int) -> bool:
    return bool(sample.arrays(np.random.default_rng(0))[i].dtype == np.bool_)


def batched_is_the_loop(name: str) -> None:
    op, rng = registry[name], np.random.default_rng(zlib.crc32(name.encode()))
    with np.errstate(all="ignore"):
        for sample in samples_of(op):
            given = [i for i, shape in enumerate(sample.shapes) if shape is not None]
            for mapped in subsets(given, rng):
                masks = any(sample_is_boolean(sample, i) for i in mapped)
                batch = Batch(op, sample, mapped)
                with pytest.raises(SizeError) if masks and name in INDEXED else nullcontext():
                    batch.check(0, 1, EXAMPLES)
            Batch(op, sample, ()).check_pullback(0, EXAMPLES)


@pytest.mark.parametrize("name", [n for n in NAMES if has_rule(registry[n]) and n not in REFUSED])
def test_an_op_under_vmap_is_the_loop(name: str) -> None:
    batched_is_the_loop(name)


APART = {  # ops without samples of which no first gradient of another op takes examples
    "max_pool2d_pick": Sample(((2, 3, 4, 6), (2, 3, 2, 3)), (normal, below(24)),
                              {"size": (4, 6), **window_params()}),
    "inplace_abn_input": Sample(
        ((4, 3), (3,), (3,), (3,), (3,)), (normal, positive, normal, normal, positive),
        {"eps": 1e-5, "activation": "identity", "parameter": 1.0}),
}


@pytest.mark.parametrize("name", APART)
def test_an_op_apart_under_vmap_is_the_loop(name: str) -> None:
    sample = APART[name]
    with np.errstate(all="ignore"):
        for mapped in subsets(range(len(sample.shapes)), np.random.default_rng(0)):
            Batch(registry[name], sample, mapped).check(0, 1, EXAMPLES)


def test_every_op_has_a_rule() -> None:
    without = {n for n, op in registry.items() if op.batch is None}
    assert without == COMPOSED
    assert {n for n in without if registry[n].composed is not None} == COMPOSED


@pytest.mark.parametrize("name", REFUSED)
def test_an_op_sized_by_values_is_refused(name: str) -> None:
    op = registry[name]
    with pytest.raises(SizeError, match=f"{name} under vmap\\(\\) would give each example a size"):
        Batch(op, samples_of(op)[0], (0,)).check(2)


# -- the check itself ------------------------------------------------------------------------------


@pytest.fixture
def unwritten() -> Iterator[None]:
    """A namespace of stacks, which holds the rules that it has called, made anew."""
    with patch.dict(stacked._NAMESPACES, {"cpu": stacked.StackedNamespace(stacked.raw["cpu"])}):
        yield


@pytest.mark.usefixtures("unwritten")
@pytest.mark.parametrize(
    "name", sorted(n for n in registry if n not in NAMES and n not in APART))
def test_a_rule_of_an_op_without_samples_runs_in_the_check_of_another(name: str) -> None:
    def stopped(*args: Any) -> Any:
        raise RuntimeError("the rule ran")

    with patch.object(registry[name], "batch", stopped), pytest.raises(
            RuntimeError, match="the rule ran"):
        batched_is_the_loop(THROUGH[name])


def _mixes(rule: Any) -> Any:
    """The rule on examples in the opposite order."""
    return lambda ns, run, inputs, mapped, params: rule(
        ns, run, [x if not m else ns.flip(x, axes=(-x.ndim,))
                  for x, m in zip(inputs, mapped, strict=True)], mapped, params)


@pytest.mark.usefixtures("unwritten")
@pytest.mark.parametrize("name, through, what", [
    ("softmax", "softmax", "the value"), ("reshape", "reshape", "the value"),
    ("unslice", "slice", "the gradient")])
def test_a_rule_that_mixes_examples_fails(name: str, through: str, what: str) -> None:
    with patch.object(registry[name], "batch", _mixes(registry[name].batch)), pytest.raises(
            CheckError, match=what):
        batched_is_the_loop(through)

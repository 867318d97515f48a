"""Every op under nestings of grad, jvp and vmap, against the same nesting with a loop for vmap.

A word such as "jvg" names a nesting, outermost first: jvp of vmap of grad. Cotangents within a vmap
are those of one example, so they have no batch axis.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from itertools import product
from math import prod
from typing import Any

import numpy as np
import pytest

import gtensor as gt
from gtensor.backend import get_device
from gtensor.engine.handle.tensor import FLOATING
from gtensor.engine.tape.op import Op, registry
from gtensor.engine.tape.samples import Sample
from gtensor.testing.cases import Case, samples_of
from gtensor.testing.compare import close

from .test_batch_rules import REFUSED, has_rule
from .test_definitions import NAMES

CPU = get_device("cpu")
COUNTS = (2, 3, 1)  # examples of the innermost vmap, and of those around it
EQUAL = 1e-8  # of each element, and of the largest
PAIRS = {"".join(pair) for pair in product("gjv", repeat=2)}
WORDS = sorted("".join(w) for n in (2, 3) for w in product("gjv", repeat=n) if "v" in w)

Function = Callable[..., "tuple[gt.Tensor, ...]"]


def fixed(shape: tuple[int, ...], what: str) -> gt.Tensor:
    """Random numbers that are the same for each shape: a cotangent or a direction."""
    seed = zlib.crc32(f"{what} {shape}".encode())
    return gt.asarray(np.random.default_rng(seed).standard_normal(shape))


class Nest:
    """One op at one sample under one word; the inputs at `mapped[k]` differ in the k-th vmap.

    A complex input x is a constant beside a real input t = 0 of x + (1 + j) t.
    """

    def __init__(self, op: Op, sample: Sample, word: str, rng: np.random.Generator) -> None:
        self.word, self.what = word, f"{op.name} {sample} under {word!r}"
        counts = COUNTS[:word.count("v")][::-1]
        cases = [Case.of(op, sample, CPU, seed, [], None) for seed in range(prod(counts))]
        self.case = cases[0]
        self.present = [i for i, a in enumerate(self.case.arrays) if a is not None]
        arrays = [[c.arrays[i] for c in cases] for i in self.present]
        self.moved = {}
        for k, i in enumerate(self.present):
            if arrays[k][0].dtype.kind == "c" and i not in op.constants:
                self.moved[k] = len(arrays)
                arrays.append([np.zeros(a.shape) for a in arrays[k]])
        self.varied = [k for k, a in enumerate(arrays) if a[0].dtype.kind in FLOATING and not (
            k < len(self.present) and self.present[k] in op.constants)]
        self.mapped = [self._drawn([k for k, a in enumerate(arrays) if a[0].dtype.kind != "b"], rng)
                       for _ in counts]  # innermost first
        self.wrt = [self._drawn(self.varied, rng) for _ in word]
        self.inputs = []
        for k, values in enumerate(arrays):
            stack = np.stack(values).reshape((*counts, *values[0].shape))
            for axis in range(len(counts)):  # the outermost first
                if k not in self.mapped[len(counts) - 1 - axis]:
                    stack = stack.take([0], axis)
            keep = [n for axis, n in enumerate(counts) if k in self.mapped[len(counts) - 1 - axis]]
            self.inputs.append(gt.asarray(stack.reshape((*keep, *values[0].shape))))

    @staticmethod
    def _drawn(given: Sequence[int], rng: np.random.Generator) -> list[int]:
        """A choice of one at least."""
        if not given:
            return []
        first = rng.choice(given)
        return [k for k in given if k == first or rng.random() < 0.5]

    def op(self, *given: Any) -> tuple[gt.Tensor, ...]:
        """The op, as a function of real outputs."""
        inputs: list[Any] = [None] * len(self.case.arrays)
        for k, i in enumerate(self.present):
            t = self.moved.get(k)
            inputs[i] = given[k] if t is None else given[k] + given[t] * (1 + 1j)
        y = self.case.call(inputs)
        return (y,) if y.dtype.kind != "c" else (gt.real(y), gt.imag(y))

    def run(self, loops: bool) -> tuple[gt.Tensor, ...]:
        function, vmaps = self.op, 0
        for letter, wrt in zip(reversed(self.word), self.wrt, strict=True):
            if letter == "g":
                function = _grad(function, wrt)
            elif letter == "j":
                function = _jvp(function, wrt)
            else:
                axes = [0 if k in self.mapped[vmaps] else None for k in range(len(self.inputs))]
                function = (_loop if loops else _vmap)(function, axes, COUNTS[vmaps])
                vmaps += 1
        return function(*self.inputs)

    def check(self) -> None:
        found, wanted = self.run(False), self.run(True)
        for i, (one, other) in enumerate(zip(found, wanted, strict=True)):
            what = (f"result {i} of {self.what}, batch axes in {self.mapped}, derivatives of "
                    f"{self.wrt}, innermost first")
            close(what, one.detach(), other.detach(), EQUAL, ("under vmap", "in a loop"))


def _at(function: Function, given: Sequence[Any], wrt: Sequence[int]) -> Function:
    """A function of the inputs `wrt` alone."""
    def of_these(*these: Any) -> tuple[gt.Tensor, ...]:
        inputs = list(given)
        for k, x in zip(wrt, these, strict=True):
            inputs[k] = x
        return function(*inputs)
    return of_these


def _grad(function: Function, wrt: Sequence[int]) -> Function:
    def gradient(*given: Any) -> tuple[gt.Tensor, ...]:
        def loss(*these: Any) -> gt.Tensor:
            parts = _at(function, given, wrt)(*these)
            total = gt.sum(parts[0] * fixed(parts[0].shape, "cotangent"))
            for part in parts[1:]:
                total = total + gt.sum(part * fixed(part.shape, "cotangent"))
            return total
        found: tuple[gt.Tensor, ...] = gt.grad(loss, tuple(range(len(wrt))), allow_unused=True)(
            *[given[k] for k in wrt])
        return found
    return gradient


def _jvp(function: Function, wrt: Sequence[int]) -> Function:
    def tangent(*given: Any) -> tuple[gt.Tensor, ...]:
        these = tuple(given[k] for k in wrt)
        directions = tuple(fixed(x.shape, "direction") for x in these)
        found: tuple[gt.Tensor, ...] = gt.jvp(_at(function, given, wrt), these, directions)[1]
        return found
    return tangent


def _vmap(function: Function, axes: Sequence[int | None], count: int) -> Function:
    made: Function = gt.vmap(function, tuple(axes))
    return made


def _loop(function: Function, axes: Sequence[int | None], count: int) -> Function:
    def each(*given: Any) -> tuple[gt.Tensor, ...]:
        results = [function(*[x if axis is None else x[i] for x, axis in zip(
            given, axes, strict=True)]) for i in range(count)]
        return tuple(gt.stack(list(parts)) for parts in zip(*results, strict=True))
    return each


def derivable(name: str) -> bool:
    """Whether the op gives derivatives to floating or complex inputs of one sample at least."""
    op = registry[name]
    if not has_rule(op) or name in REFUSED or (op.backward is None and op.composed is None):
        return False
    return any(derivable_at(op, sample) for sample in samples_of(op))


def derivable_at(op: Op, sample: Sample) -> bool:
    case = Case.of(op, sample, CPU, 0, [], None)
    kinds = FLOATING + "c"
    return any(a is not None and a.dtype.kind in kinds and i not in op.constants
               for i, a in enumerate(case.arrays)) and case.value(
                   case.inputs()).dtype.kind in kinds


def drawn_words(rng: np.random.Generator) -> list[str]:
    """Words in which each transform stands directly around each."""
    missing, words = set(PAIRS), []
    order = list(rng.permutation([w for w in WORDS if len(w) == 3]))
    while missing:
        best = max(order, key=lambda w: len({w[:2], w[1:]} & missing))
        words.append(str(best))
        missing -= {best[:2], best[1:]}
    return words


def check_drawn(name: str) -> None:
    """Drawn words; of an op that saves extra results all samples in the words where it shows that
    a rule takes these for constants."""
    rng, op = np.random.default_rng(zlib.crc32(name.encode())), registry[name]
    with np.errstate(all="ignore"):
        samples = [sample for sample in samples_of(op) if derivable_at(op, sample)]
        for word in [*drawn_words(rng), "gvg", "jvg"]:
            Nest(op, samples[rng.integers(len(samples))], word, rng).check()
        for sample in samples if op.saves_extras else ():
            for word in ("gvg", "jvg"):
                Nest(op, sample, word, rng).check()


@pytest.mark.parametrize("name", [name for name in NAMES if derivable(name)])
def test_an_op_in_nested_transforms_is_the_loop(name: str) -> None:
    check_drawn(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NAMES if derivable(name)])
def test_an_op_in_all_nested_transforms_is_the_loop(name: str) -> None:
    rng, op = np.random.default_rng(0), registry[name]
    with np.errstate(all="ignore"):
        for sample in samples_of(op):
            if derivable_at(op, sample):
                for word in WORDS:
                    for _ in range(3):
                        Nest(op, sample, word, rng).check()

"""Random programs for the ownership rules: graphs whose backward rules are sequences of verbs.

A program is data. `Program.expected` computes its gradients the plain way, with a new array for
every sum; `Run` executes it on the engine and on the model of docs/ownership.md in lock step.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import strategies as st

import gtensor as gt
from gtensor.backend import get_device, owner
from gtensor.engine.handle.storage import UNREAD
from gtensor.engine.handle.tensor import wrap
from gtensor.engine.tape.op import Op
from gtensor.engine.walk.slots import PRESENT, RawStep, _sole

DOCUMENT = Path(__file__).parents[2] / "docs" / "ownership.md"
ROW, MATRIX = (4,), (3, 4)
TILE = 8  # elements


def load_model() -> SimpleNamespace:
    """The model, executed from the document."""
    blocks = re.findall(r"^```python\n(.*?)^```$", DOCUMENT.read_text(), re.M | re.S)
    assert len(blocks) == 1, "docs/ownership.md should hold one Python block, the model"
    names: dict[str, object] = {}
    exec(compile(blocks[0], str(DOCUMENT), "exec"), names)
    return SimpleNamespace(**names)


MODEL = load_model()

# What a rule may do for one input, by the shapes of its output and of the input. Those in LAST take
# g away, so they come last in a rule.
COMMON = ("nothing", "lend_saved", "into")
SAME = (*COMMON, "lend", "lend_flipped", "give_fresh", "give_fresh_flipped", "take")
KINDS = {
    (ROW, ROW): SAME,
    (MATRIX, MATRIX): SAME,
    (MATRIX, ROW): (*COMMON, "lend", "give", "lend_part", "lend_saved_wide", "give_fresh"),
    (ROW, MATRIX): (*COMMON, "lend_wide", "give_wide", "give_fresh_wide"),
}
LAST = {
    (ROW, ROW): ("give", "give_flipped", "reuse"),
    (MATRIX, MATRIX): ("give", "give_flipped", "reuse"),
    (MATRIX, ROW): ("give_part",),
    (ROW, MATRIX): (),
}
# What else reads the array that a record saved. A hold of all but the first two never ends.
READERS: dict[str, Callable[[gt.Tensor], object]] = {
    "nothing": lambda s: None,
    "a view that was dropped": lambda s: len(s.reshape((-1,))),
    "its tensor": lambda s: s,
    "a view": lambda s: s.reshape((-1,)),
    "a record": lambda s: s * gt.zeros(s.shape, dtype=s.dtype, requires_grad=True),
    "a record that was dropped": lambda s: READERS["a record"](s) is None,
    "another library": lambda s: s.numpy() is None,
    "a leaf": lambda s: s.detach().requires_grad_() is None,
}


@dataclass
class Step:
    """One verb of a rule: what is done for input number `i`; the factor is for new arrays."""

    kind: str
    i: int
    factor: float


@dataclass
class Rule:
    """A record: its output's shape, the nodes it reads, its backward rule, and what else reads the
    array of its shape that it saves."""

    shape: tuple[int, ...]
    inputs: list[int]
    steps: list[Step]
    retained: bool
    reader: str


@dataclass
class Program:
    """Leaves, then records, in the order of the tape; the walk starts at the last one."""

    leaves: list[tuple[int, ...]]
    rules: list[Rule]
    present: list[str]  # of each leaf: whether it has a `.grad` before, and it was "read"

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        return self.leaves + [rule.shape for rule in self.rules]

    def saved(self, shape: tuple[int, ...]) -> np.ndarray:
        """What a rule lends that is not its own: one array per shape, for the whole program."""
        return np.arange(1.0, 1 + np.prod(shape)).reshape(shape)

    def grad(self, leaf: int) -> np.ndarray:
        """What a leaf has as `.grad` before, if it has one."""
        return self.saved(self.leaves[leaf]) * 100

    def seed(self) -> np.ndarray:
        """The caller's gradient."""
        return np.arange(1.0, 1 + np.prod(self.shapes[-1])).reshape(self.shapes[-1]) ** 2

    def part(self, step: Step, g: np.ndarray) -> np.ndarray:
        """What a step adds to its input's gradient, before it is fitted to the input's shape."""
        wide = np.ones(MATRIX)
        return {
            "lend": g, "give": g,
            "lend_flipped": g[::-1], "give_flipped": g[::-1],
            "lend_part": g[1:2].reshape(-1), "give_part": g[1:2].reshape(-1),
            "lend_wide": g * wide, "give_wide": g * wide,
            "give_fresh": step.factor * g, "reuse": step.factor * g, "into": step.factor * g,
            "take": step.factor * g,
            "give_fresh_flipped": (step.factor * g)[::-1],
            "give_fresh_wide": step.factor * g * wide,
            "lend_saved_wide": self.saved(MATRIX),
        }[step.kind]

    def addition(self, step: Step, g: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        """The same, fitted."""
        value = self.saved(shape) if step.kind == "lend_saved" else self.part(step, g)
        if value.ndim < len(shape):
            return np.broadcast_to(value, shape)
        return value.sum(axis=0) if value.ndim > len(shape) else value

    def expected(self) -> dict[int, np.ndarray]:
        """Every node's gradient, by plain sums of new arrays."""
        grads = {len(self.shapes) - 1: self.seed()}
        for node in reversed(range(len(self.leaves), len(self.shapes))):
            if node not in grads:
                continue
            rule = self.rules[node - len(self.leaves)]
            for step in rule.steps:
                target = rule.inputs[step.i]
                if step.kind != "nothing":
                    part = self.addition(step, grads[node], self.shapes[target])
                    grads[target] = grads.get(target, 0) + part
        for leaf, present in enumerate(self.present):
            if present != "none":
                grads[leaf] = grads.get(leaf, 0) + self.grad(leaf)
        return grads


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Up to three leaves and eight records of two shapes, each reading up to three nodes."""
    shapes = st.sampled_from([ROW, MATRIX])
    leaves = draw(st.lists(shapes, min_size=1, max_size=3))
    known = list(leaves)
    rules = []
    for _ in range(draw(st.integers(2, 8))):
        shape = draw(shapes)
        inputs = draw(st.lists(st.integers(0, len(known) - 1), min_size=1, max_size=3))
        if rules and draw(st.integers(0, 3)):
            inputs[0] = len(known) - 1  # long chains, so that few records are out of reach
        steps: list[Step] = []
        for i in draw(st.permutations(range(len(inputs)))):
            pair = shape, known[inputs[i]]
            last = len(steps) == len(inputs) - 1
            kinds = KINDS[pair] + (LAST[pair] * 3 if last else ())
            factor = draw(st.sampled_from([1.0, -1.0, 2.0]))
            steps.append(Step(draw(st.sampled_from(kinds)), i, factor))
        reader = draw(st.sampled_from(["nothing", *READERS]))
        rules.append(Rule(shape, inputs, steps, draw(st.booleans()), reader))
        known.append(shape)
    present = [draw(st.sampled_from(["none", "unread", "read"])) for _ in leaves]
    return Program(leaves, rules, present)


class Counting:
    """A resource in front of another one that counts what is allocated."""

    def __init__(self, upstream: object) -> None:
        self.upstream = upstream
        self.count = 0

    def allocate(self, nbytes: int, stream: int = 0, label: str = "") -> object:
        self.count += 1
        return self.upstream.allocate(nbytes, stream, label)


class Run:
    """One program on the engine and on the model at once; every difference is an assertion."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.model = MODEL.Walk(program.shapes, TILE)
        self.numbers: dict[int, int] = {}  # id of a real buffer -> its number in the model
        self.alive: list[np.ndarray] = []  # the real buffers, so that no id is used twice
        self.before: dict[int, np.ndarray] = {}  # number -> contents when last looked at
        self.made_by_rules = 0
        self.readers: list[object] = []
        self.borrowed = [program.saved(ROW), program.saved(MATRIX), program.seed()]
        self.model_borrowed = [self.model.borrowed(a.copy()) for a in self.borrowed[:2]]
        self.tensors: list[gt.Tensor] = []
        for shape in program.leaves:
            self.tensors.append(gt.zeros(shape, dtype=gt.float64, requires_grad=True))
        for number, rule in enumerate(program.rules):
            self.tensors.append(self.record(number, rule))
        self.index = {t._node: k for k, t in enumerate(self.tensors)}
        self.read: dict[int, gt.Tensor] = {}
        for leaf, present in enumerate(program.present):
            if present != "none":
                real, modelled = self.fresh(program.grad(leaf))
                node = self.tensors[leaf]._node
                node.grad = wrap(real, node.device, UNREAD)
                if present == "unread":
                    self.model.present[leaf] = modelled
                else:
                    self.read[leaf] = self.tensors[leaf].grad

    def record(self, number: int, rule: Rule) -> gt.Tensor:
        """Apply an op with this rule; what it computes forward does not matter."""
        names = "abc"[:len(rule.inputs)]
        op = Op(f"op{number}", inputs=" ".join(names + "s"), saves=dict.fromkeys(names, "s"),
                takes="s", cpu=lambda *xs, out=None: np.zeros(rule.shape),
                gpu=None, backward=lambda ns, step, g: self.rule(number, step, g), tangent=None,
                samples=None)
        s = gt.zeros(rule.shape, dtype=gt.float64) + 1.0
        self.made_by_rules += 1
        modelled = self.model.saved[len(self.tensors)] = self.model.fresh(s._array)
        self.same_buffer(s._array, modelled)
        result = op(*[self.tensors[i] for i in rule.inputs], s)
        self.readers.append(READERS[rule.reader](s))
        modelled.buffer.holds += rule.reader not in [*READERS][:2]
        if rule.retained:
            result.retain_grad()
        return result

    # -- the comparison

    def same_buffer(self, real: np.ndarray, modelled: object) -> None:
        """A real array and a modelled one lie in the same buffer, the same as ever."""
        root, number = owner(real), modelled.buffer.number
        if number == 0:  # borrowed
            assert any(np.shares_memory(real, a) for a in self.borrowed)
            return
        if id(root) not in self.numbers and number not in self.numbers.values():
            self.numbers[id(root)] = number
            self.alive.append(root)
        assert self.numbers.get(id(root)) == number

    def compare(self, step: RawStep) -> None:
        """Every slot of the engine against the model's, and what was written since then."""
        slots = {self.index[node]: slot for node, slot in step.slots.items()
                 if slot is not PRESENT}
        assert slots.keys() == self.model.slots.keys()
        for node, (array, hold) in slots.items():
            modelled = self.model.slots[node]
            self.same_buffer(array, modelled.array)
            assert np.array_equal(array, modelled.array.data)
            assert _sole(hold) == modelled.sole()
        now = {self.numbers[id(a)]: a.copy() for a in self.alive}
        changed = {n for n, a in self.before.items() if not np.array_equal(a, now[n])}
        assert changed <= set(self.model.written)
        self.before, self.model.written = now, []

    # -- a rule, verb by verb

    def rule(self, number: int, step: RawStep, g: np.ndarray) -> None:
        rule = self.program.rules[number]
        node = len(self.program.leaves) + number
        modelled = self.model.enter(node, keep=rule.retained)
        self.same_buffer(g, modelled)
        assert np.array_equal(g, modelled.data)
        self.compare(step)
        (saved,) = step.saved
        for verb in rule.steps:
            if verb.kind == "take":
                self.take(verb, node, step, g, saved)
            else:
                self.verb(verb, rule.inputs[verb.i], step, g, modelled)
            self.compare(step)

    def fresh(self, real: np.ndarray) -> tuple[np.ndarray, object]:
        """A new buffer in both (NumPy gives the product of a broadcast view another layout)."""
        self.made_by_rules += 1
        real = np.array(real, order="C")
        modelled = self.model.fresh(real)
        self.same_buffer(real, modelled)
        return real, modelled

    def verb(self, verb: Step, target: int, step: RawStep, g: np.ndarray, modelled: object) -> None:
        kind, i, shape = verb.kind, verb.i, self.program.shapes[target]
        if kind == "nothing":
            return
        if kind in ("into", "reuse"):
            getattr(self, kind)(verb, target, step, g, modelled)
            return
        if kind in ("lend_saved", "lend_saved_wide"):
            wide = kind == "lend_saved_wide" or shape == MATRIX
            pair = self.borrowed[wide], self.model_borrowed[wide]
        elif kind.startswith("give_fresh"):
            pair = self.fresh(verb.factor * g)
        else:
            pair = g, modelled
        if kind.endswith("_flipped"):
            pair = pair[0][::-1], pair[1].view(lambda a: a[::-1])
        elif kind.endswith("_part"):
            pair = pair[0][1], pair[1].view(lambda a: a[1])
        elif kind.endswith("_wide") and kind != "lend_saved_wide":
            pair = (np.broadcast_to(pair[0], shape),
                    pair[1].view(lambda a: np.broadcast_to(a, shape)))
        name = kind.partition("_")[0]
        getattr(step, name)(i, pair[0])
        getattr(self.model, name)(target, pair[1])

    def into(self, verb: Step, target: int, step: RawStep, g: np.ndarray, modelled: object) -> None:
        part = self.program.addition(verb, g, self.program.shapes[target])
        buffer, beta = step.into(verb.i)
        modelled_buffer = self.model.into(target)
        assert (buffer is None) == (modelled_buffer is None)
        if buffer is None:
            assert beta == 0
            pair = self.fresh(part)
        else:
            assert beta == 1
            self.same_buffer(buffer, modelled_buffer)
            assert buffer.flags.c_contiguous
            self.compare(step)  # nothing is written yet
            buffer += part
            modelled_buffer.data[...] += part
            self.model.written.append(modelled_buffer.buffer.number)
            pair = buffer, modelled_buffer
        step.give(verb.i, pair[0])
        self.model.give(target, pair[1])

    def reuse(
        self, verb: Step, target: int, step: RawStep, g: np.ndarray, modelled: object
    ) -> None:
        buffer, modelled_buffer = step.reuse(g), self.model.reuse()
        assert (buffer is None) == (modelled_buffer is None)
        if buffer is None:
            pair = self.fresh(verb.factor * g)
        else:
            assert buffer is g
            buffer *= verb.factor
            modelled_buffer.data[...] *= verb.factor
            self.model.written.append(modelled_buffer.buffer.number)
            pair = buffer, modelled_buffer
        step.give(verb.i, pair[0])
        self.model.give(target, pair[1])

    def take(self, verb: Step, node: int, step: RawStep, g: np.ndarray, saved: np.ndarray) -> None:
        buffer, modelled_buffer = step.take(saved), self.model.take(node)
        assert (buffer is None) == (modelled_buffer is None)
        if buffer is None:
            pair = self.fresh(verb.factor * g)
        else:
            assert buffer is saved
            buffer[...] = modelled_buffer.data[...] = verb.factor * g
            self.model.written.append(modelled_buffer.buffer.number)
            pair = buffer, modelled_buffer
        step.give(verb.i, pair[0])
        self.model.give(self.program.rules[node - len(self.program.leaves)].inputs[verb.i], pair[1])

    # -- the whole walk

    def run(self) -> None:
        seed = gt.asarray(self.borrowed[2])
        unchanged = [a.copy() for a in self.borrowed]
        self.model.seed(len(self.tensors) - 1, self.borrowed[2].copy())
        engine_result = RawStep.result

        def result(step: RawStep, node: object, slot: object) -> gt.Tensor | None:
            """Both ends of the walk, in the order in which the engine comes to them."""
            self.model.leave()
            end = engine_result(step, node, slot)
            k = self.index[node]
            if end is None:
                assert k not in self.model.kept and k not in self.model.slots
                return None
            modelled = self.model.result(k)
            self.same_buffer(end._array, modelled)
            assert np.array_equal(end._array, modelled.data)
            assert end._array.flags.c_contiguous and end.nbytes == owner(end._array).nbytes
            return end

        device = get_device("cpu")
        counting = Counting(device.resource)
        with pytest.MonkeyPatch.context() as patch, gt.settings.override(
                arena_min_bytes=0, tile_elements=TILE):
            patch.setattr(RawStep, "result", result)
            patch.setattr(device, "resource", counting)
            self.tensors[-1].backward(seed)
        expected = self.program.expected()
        for k, tensor in enumerate(self.tensors):
            kept = tensor.is_leaf or self.program.rules[k - len(self.program.leaves)].retained
            if kept and k in expected:
                assert np.array_equal(tensor.grad.numpy(), expected[k])
            else:
                assert tensor.grad is None
        for leaf, grad in self.read.items():
            assert np.array_equal(grad.numpy(), self.program.grad(leaf))
        for a, b in zip(self.borrowed, unchanged, strict=True):
            assert np.array_equal(a, b)
        assert counting.count == self.model.made - self.made_by_rules

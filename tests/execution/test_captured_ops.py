"""Every op in a captured step: recorded with one set of values, replayed with another one."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

import gtensor as gt
from gtensor.backend import get_device
from gtensor.engine.tape.op import Op, registry
from gtensor.testing.cases import Case, samples_of
from gtensor.testing.compare import to_numpy

# whose shape, at some samples, depends on values
SHAPED = {"gather", "nonzero", "scatter_add", "set_item", "unique_table", "unique_values"}
REFUSED = dict.fromkeys(SHAPED, "depends on values")


def _has_samples(op: Op) -> bool:
    try:
        return bool(samples_of(op))
    except ValueError:
        return False


NAMES = sorted(name for name, op in registry.items() if _has_samples(op))


class Trial:
    """An op at one of its samples, as a step that returns its output and its gradients."""

    def __init__(self, name: str, number: int, dtype: str | None) -> None:
        op = registry[name]
        sample = samples_of(op)[number]
        self.cases = [Case.of(op, sample, get_device("cpu"), seed, [], None) for seed in (1, 2)]
        self.dtype = dtype
        self.floats = self.cases[0].floats if self.cases[0].differentiable else []
        params = self.cases[0].params()
        self.op = lambda xs: op(*xs, **params)
        out = self.op(self.inputs(0))
        self.g = self.cases[0].upstream(out) if out.requires_grad else None

    def inputs(self, case: int) -> list[gt.Tensor | None]:
        """New tensors with the values of a case."""
        made: list[gt.Tensor | None] = []
        for i, a in enumerate(self.cases[case].arrays):
            dtype = self.dtype if a is not None and a.dtype.kind == "f" else None
            made.append(None if a is None else gt.tensor(
                np.asarray(a), dtype=dtype, requires_grad=i in self.floats))
        return made

    def step(self, xs: list[gt.Tensor | None], g: gt.Tensor | None) -> object:
        out = self.op(xs)
        if g is None:
            return out
        return out.detach(), gt.grad([out], [xs[i] for i in self.floats], [g], allow_unused=True)

    def check(self, fuse: bool) -> None:
        """Compare a replay with the step, unless it is refused."""
        step = gt.capture(self.step, fuse=fuse)
        try:
            for _ in range(3):  # of which the last one is a replay
                step(self.inputs(0), self.g)
        except gt.CaptureError as error:
            assert REFUSED.get(self.cases[0].op.name, "nothing") in str(error)
            return
        given, expected = self.inputs(1), self.inputs(1)
        found = _told([step(given, self.g), given])
        assert "2 replays" in step.report()
        assert found == _told([self.step(expected, self.g), expected])


def _told(tree: object) -> list[object]:
    return [(x.dtype, x.shape, to_numpy(x).tobytes()) if isinstance(x, gt.Tensor) else x
            for _, x in gt.func.trees.leaves(tree)]


@pytest.mark.parametrize("name", NAMES)
def test_a_replay_with_other_values_is_the_op(name):
    """At one sample, which the name chooses, in float32 or float64, fused or not."""
    chosen = zlib.crc32(name.encode())
    count = len(samples_of(registry[name]))
    Trial(name, chosen % count, "float32" if chosen & 64 else None).check(bool(chosen & 128))


@pytest.mark.slow
@pytest.mark.parametrize("fuse", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_replays_of_all_samples_are_the_op(name, fuse):
    for number in range(len(samples_of(registry[name]))):
        for dtype in (None, "float32"):
            Trial(name, number, dtype).check(fuse)

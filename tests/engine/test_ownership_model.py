"""The ownership rules of docs/ownership.md against the engine, on random programs of verbs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings

import gtensor as gt
from gtensor.engine.handle import tensor
from gtensor.engine.tape.op import Op
from gtensor.engine.tape.taken import Takeable
from gtensor.engine.walk import slots
from gtensor.engine.walk.slots import RawStep, Storage

from .ownership_programs import DOCUMENT, MODEL, Program, Run, programs

RELAXED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


@settings(RELAXED, max_examples=400)
@given(programs())
def test_engine_follows_the_model(program: Program) -> None:
    Run(program).run()


@settings(RELAXED, max_examples=50)
@given(programs())
def test_a_kept_graph_gives_the_same_gradients_twice(program: Program) -> None:
    """retain_graph=True twice, then a last walk: three times the gradient."""
    run = Run(program)
    run.rule = (  # type: ignore[method-assign]
        lambda number, step, g: plain_rule(run, number, step, g))
    root = run.tensors[-1]
    for keep in (True, True, False):
        root.backward(gt.asarray(run.borrowed[2]), retain_graph=keep)
    for k, grad in program.expected().items():
        if run.tensors[k].is_leaf:
            present = program.grad(k) if program.present[k] != "none" else 0
            assert np.array_equal(run.tensors[k].grad.numpy(), 3 * (grad - present) + present)


def plain_rule(run: Run, number: int, step: RawStep, g: np.ndarray) -> None:
    """A program's rule on the engine alone."""
    rule = run.program.rules[number]
    for verb in rule.steps:
        if verb.kind != "nothing":
            shape = run.program.shapes[rule.inputs[verb.i]]
            step.give(verb.i, np.array(run.program.addition(verb, g, shape)))


def test_the_model_is_short_and_independent() -> None:
    text = DOCUMENT.read_text().split("```python")[1].split("```")[0]
    assert len(text.splitlines()) <= 175
    assert "gtensor" not in text
    assert text.count("import") == 1


# -- what the comparison must catch: the engine with one rule broken ------------------------------


def _never_held(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(slots, "_sole", lambda hold: True)


def _views_like_arrays(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(slots, "broadcast_view", lambda a: False)


def _hold_of_broadcast_ends(patch: pytest.MonkeyPatch) -> None:
    def give(step: RawStep, i: int, a: Any, engine: Any = RawStep.give) -> None:
        before = step.hold
        engine(step, i, a)
        if a is not step.g and not step.moved and step.hold is not None and 0 in a.strides:
            step.hold.holds -= 1
            step.hold = before

    patch.setattr(RawStep, "give", give)


def _leaving_releases_twice(patch: pytest.MonkeyPatch) -> None:
    def leave(step: RawStep, engine: Any = RawStep.leave) -> None:
        if step.hold is not None:
            step.hold.holds -= 1
        engine(step)

    patch.setattr(RawStep, "leave", leave)


def _leaving_keeps_the_hold(patch: pytest.MonkeyPatch) -> None:
    def leave(step: RawStep) -> None:
        step.g = step.hold = None

    patch.setattr(RawStep, "leave", leave)


def _lent_like_given(patch: pytest.MonkeyPatch) -> None:
    def lend(step: RawStep, i: int, a: Any) -> None:
        step._put(step.parents[i], step._fit(step.parents[i], a), None)

    patch.setattr(RawStep, "lend", lend)


def _reused_while_shared(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RawStep, "reuse", lambda step, g: g if 0 not in g.strides else None)


def _kept_without_a_hold(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RawStep, "share", lambda step, slot: slot)


def _added_to_what_was_read(patch: pytest.MonkeyPatch) -> None:
    """Reading `.grad` leaves it to the walks."""
    patch.setattr(tensor, "UNREAD", None)


def _always_a_new_buffer(patch: pytest.MonkeyPatch) -> None:
    """Right numbers, wasted memory."""
    engine = RawStep._put

    def put(step: RawStep, node: Any, a: Any, hold: Storage | None) -> None:
        engine(step, node, a if hold is slots.BORROWED else a.copy(), hold)

    patch.setattr(RawStep, "_put", put)


def _taken_while_read(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Takeable, "free", lambda saved, a: True)


def _never_taken(patch: pytest.MonkeyPatch) -> None:
    """Right numbers, wasted memory."""
    patch.setattr(RawStep, "take", lambda step, a: None)


FAULTS = [_never_held, _views_like_arrays, _hold_of_broadcast_ends, _leaving_releases_twice,
          _leaving_keeps_the_hold, _lent_like_given, _reused_while_shared, _kept_without_a_hold,
          _added_to_what_was_read, _always_a_new_buffer, _taken_while_read, _never_taken]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__.strip("_"))
def test_a_broken_engine_is_caught(fault: Callable[[pytest.MonkeyPatch], None]) -> None:
    @settings(RELAXED, max_examples=1000, derandomize=True, database=None,
              phases=[Phase.generate], report_multiple_bugs=False)
    @given(programs())
    def compare(program: Program) -> None:
        Run(program).run()

    with pytest.MonkeyPatch.context() as patch:
        fault(patch)
        with pytest.raises((AssertionError, ValueError)):  # broadcast views are read-only
            compare()


# -- what a rule must not do ----------------------------------------------------------------------


def run_rule(rule: Callable[..., None], inputs: int = 2) -> None:
    """Backward through one op with this rule, on leaves of shape (3,); its g is sole."""
    leaves = [gt.zeros(3, requires_grad=True) for _ in range(inputs)]
    op = Op("careless", inputs=" ".join("abc"[:inputs]),
            cpu=lambda *xs, out=None: np.zeros(3, "f4"), gpu=None, backward=rule, tangent=None,
            samples=None)
    (op(*leaves) * 2.0).sum().backward()


@pytest.mark.parametrize("first, second", [
    ("give", "give"), ("give", "lend"), ("give", "view"), ("view", "give"), ("give", "wide")])
def test_g_is_given_away_once(first: str, second: str) -> None:
    def rule(ns: Any, step: Any, g: Any) -> None:
        for i, verb in enumerate((first, second)):
            if verb == "view":
                step.give(i, g[::-1])
            elif verb == "wide":
                step.give(i, np.broadcast_to(g[:1], 3))
            else:
                getattr(step, verb)(i, g)

    with pytest.raises(gt.GradientError, match=r"careless \(.*_model\.py:\d+: .*lend it to all"):
        run_rule(rule)


def test_the_model_refuses_the_same() -> None:
    walk = MODEL.Walk([(3,), (3,)])
    walk.slots[1] = MODEL.Slot(walk.fresh(np.ones(3)))
    g = walk.enter(1)
    walk.give(0, g)
    with pytest.raises(RuntimeError, match="given away"):
        walk.give(0, g)
    with pytest.raises(RuntimeError, match="given away"):
        walk.lend(0, g)


def test_a_gradient_of_a_wrong_shape_names_the_op() -> None:
    with pytest.raises(gt.GradientError, match=r"careless .*shape \(2,\) for .*shape \(3,\)"):
        run_rule(lambda ns, step, g: step.give(0, g[:2]), inputs=1)

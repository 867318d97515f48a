"""Schedules against PyTorch's over whole runs, taken up midway, and what they refuse."""

from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
import pytest
import torch

import gtensor as gt
from gtensor.optim import lr_scheduler

STEPS = 60
CASES = [
    ("LambdaLR", {"lr_lambda": lambda step: 1 / (1 + step)}),
    ("LambdaLR", {"lr_lambda": [lambda step: 0.9**step, lambda step: 1 + step]}),
    ("StepLR", {"step_size": 7, "gamma": 0.3}),
    ("MultiStepLR", {"milestones": [30, 5, 5, 40], "gamma": 0.5}),
    ("ExponentialLR", {"gamma": 0.93}),
    ("ConstantLR", {"factor": 0.25, "total_iters": 9}),
    ("LinearLR", {"start_factor": 0.1, "end_factor": 0.8, "total_iters": 20}),
    ("LinearLR", {}),
    ("LinearLR", {"start_factor": 0.25, "total_iters": 0}),
    ("ConstantLR", {"factor": 0.25, "total_iters": 0}),
    ("CosineAnnealingLR", {"T_max": 50, "eta_min": 1e-3}),
    ("CosineAnnealingLR", {"T_max": 7}),  # up and down again
    ("CosineAnnealingWarmRestarts", {"T_0": 7}),
    ("CosineAnnealingWarmRestarts", {"T_0": 3, "T_mult": 2, "eta_min": 1e-3}),
    ("PolynomialLR", {}),
    ("PolynomialLR", {"total_iters": 40, "power": 0.7}),
    ("OneCycleLR", {"max_lr": 0.7, "total_steps": STEPS}),
    ("OneCycleLR", {"max_lr": [0.7, 0.1], "epochs": 6, "steps_per_epoch": 10,
                    "three_phase": True, "pct_start": 0.4}),
    ("OneCycleLR", {"max_lr": 0.7, "total_steps": STEPS, "anneal_strategy": "linear",
                    "base_momentum": [0.7, 0.6], "max_momentum": 0.9, "div_factor": 3.0,
                    "final_div_factor": 50.0}),
    ("OneCycleLR", {"max_lr": 0.7, "total_steps": STEPS, "cycle_momentum": False}),
]


def optimizers(kind="AdamW", **options):
    """One of each library, with two groups."""
    made = []
    for library, make in ((gt, gt.ones), (torch, torch.ones)):
        tensors = [make(2, requires_grad=True) for _ in range(2)]
        made.append(getattr(library.optim, kind)(
            [{"params": tensors[:1], "lr": 0.5}, {"params": tensors[1:]}], lr=0.02, **options))
    return made


def facts(optimizer):
    return [(group["lr"], *group.get("betas", ()), group.get("momentum", 0.0))
            for group in optimizer.param_groups]


def follow(mine, other, ours, theirs, steps=STEPS):
    for _ in range(steps):
        np.testing.assert_allclose(facts(mine), facts(other), rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(ours.get_last_lr(), theirs.get_last_lr(), rtol=1e-12, atol=1e-12)
        other.step()
        ours.step()
        theirs.step()
    np.testing.assert_allclose(facts(mine), facts(other), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name,options", CASES)
def test_rates_equal_pytorchs_over_a_whole_run(name, options):
    mine, other = optimizers()
    follow(mine, other, getattr(lr_scheduler, name)(mine, **options),
           getattr(torch.optim.lr_scheduler, name)(other, **options))


def test_one_cycle_moves_the_momentum_of_sgd():
    mine, other = optimizers("SGD", momentum=0.5)
    follow(mine, other, lr_scheduler.OneCycleLR(mine, 0.3, STEPS),
           torch.optim.lr_scheduler.OneCycleLR(other, 0.3, STEPS))


def sequence(library, optimizer):
    kinds = library.optim.lr_scheduler
    return kinds.SequentialLR(optimizer, [
        kinds.LinearLR(optimizer, 0.01, total_iters=10), kinds.ExponentialLR(optimizer, 0.9),
        kinds.CosineAnnealingLR(optimizer, 30, 1e-3)], [10, 25])


def test_a_sequence_equals_pytorchs():
    mine, other = optimizers()
    follow(mine, other, sequence(gt, mine), sequence(torch, other))


def test_warm_up_and_cosine():
    mine, _ = optimizers()
    schedule = lr_scheduler.warmup_cosine(mine, 4, 20, eta_min=1e-3)
    rates = []
    for _ in range(21):
        rates.append(schedule.get_last_lr()[0])
        schedule.step()
    np.testing.assert_allclose(rates[:5], 0.5 * np.arange(1, 6) / 5, rtol=1e-12)
    wanted = 1e-3 + (0.5 - 1e-3) * (1 + np.cos(np.pi * np.arange(17) / 16)) / 2
    np.testing.assert_allclose(rates[4:], wanted, rtol=1e-12, atol=1e-15)
    assert all(a > b for a, b in pairwise(rates[4:]))
    none = lr_scheduler.warmup_cosine(optimizers()[0], 0, 20)
    assert none.get_last_lr() == [0.5, 0.02]


@pytest.mark.parametrize("name,options", [*CASES, ("sequence", {})])
def test_taken_up_midway_goes_on_bit_for_bit(name, options):
    def make(optimizer):
        if name == "sequence":
            return sequence(gt, optimizer)
        return getattr(lr_scheduler, name)(optimizer, **options)

    def run(optimizer, schedule, steps):
        seen = []
        for _ in range(steps):
            schedule.step()
            seen.append(facts(optimizer))
        return seen

    first, second, third = (optimizers()[0] for _ in range(3))
    whole = make(first)
    run(first, whole, 23)
    saved = json.loads(json.dumps(
        [whole.state_dict(), {"groups": first.state_dict()["param_groups"]}]))
    after = run(first, whole, STEPS - 23)
    for optimizer, schedule_first in ((second, True), (third, False)):
        schedule = make(optimizer) if schedule_first else None
        optimizer.load_state_dict({"state": {}, "param_groups": saved[1]["groups"]})
        schedule = schedule or make(optimizer)
        schedule.load_state_dict(saved[0])
        assert schedule.get_last_lr() == saved[0]["_last_lr"]
        assert run(optimizer, schedule, STEPS - 23) == after


def test_pytorchs_state_is_taken_up():
    mine, other = optimizers()
    theirs = torch.optim.lr_scheduler.CosineAnnealingLR(other, 50)
    for _ in range(20):
        other.step()
        theirs.step()
    ours = lr_scheduler.CosineAnnealingLR(mine, 50)
    ours.load_state_dict(theirs.state_dict())
    follow(mine, other, ours, theirs, 20)


def test_a_later_start_needs_the_groups_first_rate():
    first, second = (optimizers()[0] for _ in range(2))
    with pytest.raises(ValueError, match="group 0 has no 'initial_lr'"):
        lr_scheduler.CosineAnnealingLR(first, 40, last_epoch=11)
    for group in first.param_groups:
        group["initial_lr"], group["lr"] = group["lr"], 7.0
    begun = lr_scheduler.CosineAnnealingLR(first, 40, last_epoch=11)
    whole = lr_scheduler.CosineAnnealingLR(second, 40)
    for _ in range(12):
        whole.step()
    assert begun.state_dict() == whole.state_dict() and begun.last_epoch == 12


def sgd():
    return gt.optim.SGD([gt.ones(2, requires_grad=True)], lr=0.1)


@pytest.mark.parametrize("make,message", [
    (lambda: lr_scheduler.StepLR(3, 4), "optimizer=3; wanted an Optimizer"),
    (lambda: lr_scheduler.StepLR(sgd(), 0), "step_size=0"),
    (lambda: lr_scheduler.CosineAnnealingLR(sgd(), 2.5), "T_max=2.5"),
    (lambda: lr_scheduler.LinearLR(sgd(), 1.5), "start_factor=1.5"),
    (lambda: lr_scheduler.LinearLR(sgd(), total_iters=-1), "total_iters=-1"),
    (lambda: lr_scheduler.ConstantLR(sgd(), total_iters=2.5), "total_iters=2.5"),
    (lambda: lr_scheduler.LambdaLR(sgd(), [abs, abs]), "lr_lambda of 2 values .* 1: one per"),
    (lambda: lr_scheduler.OneCycleLR(sgd(), 0.1), "neither total_steps nor both"),
    (lambda: lr_scheduler.OneCycleLR(sgd(), 0.1, 10), "without momentum"),
    (lambda: lr_scheduler.OneCycleLR(sgd(), 0.1, 10, pct_start=2.0), "pct_start=2.0"),
    (lambda: lr_scheduler.OneCycleLR(sgd(), 0.1, 10, anneal_strategy="poly"), "'poly'"),
    (lambda: lr_scheduler.SequentialLR(sgd(), [], []), "0 schedulers"),
    (lambda: lr_scheduler.SequentialLR(sgd(), [lr_scheduler.StepLR(sgd(), 2)], []),
     "another optimizer"),
    (lambda: lr_scheduler.warmup_cosine(sgd(), 5, 5), "warmup_steps=5 of total_steps=5"),
    (lambda: lr_scheduler.LRScheduler(sgd()), "abstract"),
])
def test_bad_arguments_are_named(make, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make()


def test_past_the_end_of_a_cycle_is_an_error_that_changes_nothing():
    optimizer = optimizers()[0]
    schedule = lr_scheduler.OneCycleLR(optimizer, 0.1, 3)
    for _ in range(3):
        schedule.step()
    before = facts(optimizer)
    with pytest.raises(ValueError, match="step 4 of a cycle of total_steps=3"):
        schedule.step()
    assert facts(optimizer) == before and schedule.last_epoch == 3
    standing = schedule.state_dict()
    with pytest.raises(ValueError, match="step 50 of a cycle"):
        schedule.load_state_dict({"last_epoch": 50, "base_lrs": [7.0, 8.0]})
    assert facts(optimizer) == before and schedule.state_dict() == standing


def test_a_sequence_that_fails_to_load_keeps_the_rates_of_its_parts():
    optimizer = optimizers()[0]
    schedule = lr_scheduler.SequentialLR(
        optimizer, [lr_scheduler.StepLR(optimizer, 2), lr_scheduler.OneCycleLR(optimizer, 1.0, 5)],
        [3])
    before = schedule.state_dict(), facts(optimizer)
    with pytest.raises(ValueError, match="step 6 of a cycle"):
        schedule.load_state_dict({"last_epoch": 9, "base_lrs": [7.0, 8.0], "_schedulers": [
            {"base_lrs": [5.0, 6.0]}, {}]})
    assert (schedule.state_dict(), facts(optimizer)) == before


def test_a_state_that_does_not_fit_changes_nothing():
    optimizer = optimizers()[0]
    schedule = sequence(gt, optimizer)
    schedule.step()
    before = schedule.state_dict(), facts(optimizer)
    for state in ({}, {"last_epoch": "3"}, {"last_epoch": 3, "base_lrs": [0.1]},
                  {"last_epoch": -7}, {"last_epoch": True},
                  {"last_epoch": 3, "_schedulers": [{}]}):
        with pytest.raises(ValueError, match="nothing was loaded"):
            schedule.load_state_dict(state)
        assert (schedule.state_dict(), facts(optimizer)) == before


def test_a_group_added_later_needs_a_new_schedule():
    optimizer = sgd()
    schedule = lr_scheduler.StepLR(optimizer, 2)
    optimizer.add_param_group({"params": gt.ones(1, requires_grad=True)})
    with pytest.raises(ValueError, match="made for 1 groups, but the optimizer has 2"):
        schedule.step()


def test_repr_shows_the_options_and_the_epoch():
    weight = gt.ones(2, requires_grad=True)
    schedule = lr_scheduler.StepLR(gt.optim.SGD([weight], lr=0.5), 2)
    schedule.step()
    for part in ("StepLR(step_size=2", "gamma=0.1", "last_epoch=1", "lr=[0.5]"):
        assert part in repr(schedule)
    warmup = lr_scheduler.warmup_cosine(gt.optim.SGD([weight], lr=0.5), 3, 10)
    assert repr(warmup).startswith(
        "SequentialLR([LinearLR, CosineAnnealingLR], milestones=[3], last_epoch=0, lr=[0.125])")


@pytest.mark.parametrize("rate", [np.array(0.5), gt.tensor(0.5), float("inf"), np.float16(0.5)])
def test_a_schedule_takes_its_own_state(rate):
    optimizer = gt.optim.SGD([gt.ones(2, requires_grad=True)])
    optimizer.param_groups[0]["lr"] = rate
    schedule = gt.optim.lr_scheduler.StepLR(optimizer, 2)
    state = schedule.state_dict()
    schedule.load_state_dict({**state, "base_lrs": tuple(state["base_lrs"])})
    assert schedule.base_lrs == [float(rate)]
    with pytest.raises(ValueError, match="'base_lrs' .* wanted a list of numbers"):
        schedule.load_state_dict({**state, "base_lrs": [float("nan")]})


PLATEAUS = [
    {"patience": 2}, {"mode": "max", "patience": 1, "cooldown": 3, "factor": 0.5},
    {"threshold": 0.3, "threshold_mode": "abs", "patience": 0, "min_lr": [1e-3, 1e-2]},
    {"mode": "max", "threshold": 0.1, "patience": 0, "eps": 1e-3, "factor": 0.0}]


@pytest.mark.parametrize("mode", ["min", "max"])
@pytest.mark.parametrize("threshold_mode", ["rel", "abs"])
@pytest.mark.parametrize("first", [np.inf, -np.inf, np.nan])
def test_a_plateau_after_a_value_that_is_not_finite(first, threshold_mode, mode):
    """A first loss that overflowed is no best one, that no finite loss would beat."""
    mine, other = optimizers()
    options = {"mode": mode, "threshold_mode": threshold_mode, "patience": 1}
    ours = lr_scheduler.ReduceLROnPlateau(mine, **options)
    theirs = torch.optim.lr_scheduler.ReduceLROnPlateau(other, **options)
    for step, value in enumerate([first, 3.0, 2.0, 1.0, 4.0, 5.0, 0.5]):
        ours.step(value)
        theirs.step(value)
        assert ours.num_bad_epochs == theirs.num_bad_epochs, step
        np.testing.assert_allclose(facts(mine), facts(other), rtol=1e-12)
        if step == 1:
            ours.load_state_dict(theirs.state_dict())


@pytest.mark.parametrize("options", PLATEAUS)
def test_a_plateau_lowers_the_rates_as_pytorchs(options):
    mine, other = optimizers()
    ours = lr_scheduler.ReduceLROnPlateau(mine, **options)
    theirs = torch.optim.lr_scheduler.ReduceLROnPlateau(other, **options)
    rng = np.random.default_rng(0)
    values = [*(5 + np.cumsum(rng.standard_normal(STEPS) - 0.05)), float("nan"), 3.0]
    for step, value in enumerate(values):
        ours.step(gt.tensor(value) if step % 2 else value)
        theirs.step(value)
        np.testing.assert_allclose(facts(mine), facts(other), rtol=1e-12)
        assert ours.num_bad_epochs == theirs.num_bad_epochs
        if step == 20:  # taken up again, from PyTorch's state and from our own as JSON
            ours = lr_scheduler.ReduceLROnPlateau(mine, **options)
            ours.load_state_dict(theirs.state_dict())
        if step == 30:
            state = json.loads(json.dumps(ours.state_dict()))
            ours = lr_scheduler.ReduceLROnPlateau(mine, **options)
            ours.load_state_dict(state)
            assert ours.state_dict() == state
    assert ours.get_last_lr() == [group["lr"] for group in mine.param_groups] != [0.5, 0.02]


def test_what_a_plateau_refuses():
    mine, other = optimizers()
    fresh = torch.optim.lr_scheduler.ReduceLROnPlateau(other).state_dict()
    ours = lr_scheduler.ReduceLROnPlateau(mine)
    ours.load_state_dict(fresh)  # whose best value is infinite
    assert ours.best is None and repr(ours).startswith("ReduceLROnPlateau(mode='min', factor=0.1")
    before = ours.state_dict()
    for key, bad in (("best", "low"), ("num_bad_epochs", -1), ("cooldown_counter", 0.5)):
        with pytest.raises(ValueError, match=f"{key}.*nothing was loaded"):
            ours.load_state_dict({**before, "best": 1.0, key: bad})
    with pytest.raises(ValueError, match="lacks 'last_epoch'"):
        ours.load_state_dict({k: v for k, v in before.items() if k != "last_epoch"})
    assert ours.state_dict() == before
    for options, sentence in (({"mode": "low"}, "mode='low'"), ({"factor": 1.0}, "factor=1.0"),
                              ({"threshold_mode": "a"}, "wanted 'min' or 'max', and 'rel'"),
                              ({"patience": -1}, "patience=-1 given"), (
                                  {"min_lr": [0.1]}, "min_lr of 1 values given")):
        with pytest.raises(ValueError, match=sentence):
            lr_scheduler.ReduceLROnPlateau(mine, **options)
    with pytest.raises(TypeError, match=r"optimizer=\[\]; wanted an Optimizer"):
        lr_scheduler.ReduceLROnPlateau([])

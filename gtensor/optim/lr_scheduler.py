"""Schedules of the learning rate by PyTorch's names: `gt.optim.lr_scheduler`.

    schedule = lr_scheduler.CosineAnnealingLR(optimizer, T_max=1000)
    for inputs, labels in loader:
        ...
        optimizer.step()
        schedule.step()

Every schedule but ReduceLROnPlateau is a pure function of its step number and the rates that the
groups had when it was made ("initial_lr" of the group). PyTorch's multiply the current rate by a
factor each step, which accumulates rounding; the values agree up to that (1e-12, relative). So a
schedule overrides rates set by hand between steps, two schedules on one optimizer do not multiply
(chain them with SequentialLR), and a schedule resumed from its state continues bit for bit.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from math import cos, inf, pi
from typing import TYPE_CHECKING, Any

from gtensor.engine.handle.context import again
from gtensor.optim.optimizer import INITIAL, Optimizer
from gtensor.system.documents import UNLOADED, Facts
from gtensor.system.late_imports import late as _late
from gtensor.system.written_code import enter as _enter

if TYPE_CHECKING:
    from gtensor.backend.typing import Params

if not TYPE_CHECKING:
    __getattr__, __dir__ = _late(__name__)

__all__ = [
    "ConstantLR", "CosineAnnealingLR", "CosineAnnealingWarmRestarts", "ExponentialLR",
    "LRScheduler", "LambdaLR", "LinearLR", "MultiStepLR", "OneCycleLR", "PolynomialLR",
    "ReduceLROnPlateau", "SequentialLR", "StepLR", "warmup_cosine",
]


class LRScheduler:
    """The base of schedules. A subclass computes the rate of a step in `rate`.

    Args:
        optimizer: its groups' options are set, now for the first step and at every `step()`.
        last_epoch: the number of the last step done, to resume a run by hand; -1: none.

    Raises TypeError if that is not an optimizer, ValueError for `last_epoch` of 0 or more with a
    group that never had a schedule (no "initial_lr").
    """

    def __init__(self, optimizer: Optimizer, last_epoch: int = -1) -> None:
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"{type(self).__name__} was given {type(optimizer).__name__}; wanted "
                            "an Optimizer")
        for number, group in enumerate(optimizer.param_groups):
            if last_epoch >= 0 and INITIAL not in group:
                raise ValueError(f"last_epoch={last_epoch} given, but group {number} has no "
                                 f"{INITIAL!r}; load the optimizer's state first")
            group.setdefault(INITIAL, group["lr"])
        self.optimizer = optimizer
        self.base_lrs = [group[INITIAL] for group in optimizer.param_groups]
        self._set(last_epoch + 1)

    def rate(self, base: float, step: int) -> float:
        """The learning rate at `step` = 0, 1, ... of a group whose own rate is `base`."""
        raise TypeError("LRScheduler is abstract; make one of its kinds")

    def options(self, index: int, step: int) -> Params:
        """The options that group `index` has at a step."""
        return {"lr": self.rate(self.base_lrs[index], step)}

    @partial(again, kind="python")
    def step(self) -> None:
        """Advance to the next step; call it after the optimizer's.

        Raises ValueError, with nothing changed, for a step that the schedule does not have.
        """
        self._set(self.last_epoch + 1)

    def get_last_lr(self) -> list[float]:
        """The rates that were set last, one per group."""
        return list(self._last_lr)

    def _set(self, step: int) -> None:
        """Set the current step, and the groups' options for it."""
        groups = self.optimizer.param_groups
        if len(groups) != len(self.base_lrs):
            raise ValueError(f"{type(self).__name__} was made for {len(self.base_lrs)} groups, but "
                             f"the optimizer has {len(groups)} now; make it after the last group")
        found = [self.options(index, step) for index in range(len(groups))]
        for group, options in zip(groups, found, strict=True):
            group.update(options)
        self.last_epoch = step
        self._last_lr: list[float] = [options["lr"] for options in found]

    def __repr__(self) -> str:
        told = {name: value for name, value in vars(self).items()
                if not name.startswith("_") and name != "optimizer"}
        listed = ", ".join(f"{name}={value!r}" for name, value in told.items())
        return f"{type(self).__name__}({listed}, lr={self.get_last_lr()})"

    def state_dict(self) -> dict[str, Any]:
        """The schedule's position as JSON, without its arguments."""
        return {"last_epoch": self.last_epoch, "base_lrs": list(self.base_lrs),
                "_last_lr": self.get_last_lr()}

    def load_state_dict(self, state_dict: Mapping[str, object]) -> None:
        """Resume from a `state_dict()` (or PyTorch's) and set the groups' options.

        Only "last_epoch" is needed. Raises ValueError, with nothing changed, if it is missing or
        not a step of this schedule, or if "base_lrs" have another number of groups.
        """
        facts = Facts("the schedule's state given", state_dict, UNLOADED)
        step, rates = facts.whole("last_epoch"), facts.rates("base_lrs", self.base_lrs)
        if len(rates) != len(self.base_lrs):
            raise ValueError(f"a state with 'base_lrs' of {len(rates)} groups given; wanted those "
                             f"of {len(self.base_lrs)} groups; nothing was loaded")
        before, self.base_lrs = self.base_lrs, rates
        try:
            self._set(step)
        except BaseException:  # undone
            self.base_lrs = before
            raise


class LambdaLR(LRScheduler):
    """base * lr_lambda(step); one function, or one per group. Functions are not in the state.

    Raises ValueError for another number of functions than groups.
    """

    def __init__(self, optimizer: Optimizer,
                 lr_lambda: Callable[[int], float] | Sequence[Callable[[int], float]],
                 last_epoch: int = -1) -> None:
        self.lr_lambdas = _per_group("lr_lambda", lr_lambda, optimizer)
        super().__init__(optimizer, last_epoch)

    def options(self, index: int, step: int) -> Params:
        return {"lr": self.base_lrs[index] * self.lr_lambdas[index](step)}


class StepLR(LRScheduler):
    """base * gamma ** (step // step_size).

    `step_size` is a number of steps. Raises ValueError for one below 1.
    """

    def __init__(self, optimizer: Optimizer, step_size: int, gamma: float = 0.1,
                 last_epoch: int = -1) -> None:
        self.step_size, self.gamma = _whole("step_size", step_size), gamma
        super().__init__(optimizer, last_epoch)

    def rate(self, base: float, step: int) -> float:
        return base * self.gamma ** (step // self.step_size)


class MultiStepLR(LRScheduler):
    """base * gamma for every milestone that the step has reached.

    `milestones` are numbers of steps, in any order.
    """

    def __init__(self, optimizer: Optimizer, milestones: Iterable[int], gamma: float = 0.1,
                 last_epoch: int = -1) -> None:
        self.milestones, self.gamma = sorted(milestones), gamma
        super().__init__(optimizer, last_epoch)

    def rate(self, base: float, step: int) -> float:
        return base * self.gamma ** bisect_right(self.milestones, step)


class ExponentialLR(LRScheduler):
    """base * gamma ** step.

    Args:
        optimizer: whose learning rates, `base` of each group, are changed.
        gamma: the factor of a step.
        last_epoch: the number of the last step; -1 before the first.
    """

    def __init__(self, optimizer: Optimizer, gamma: float, last_epoch: int = -1) -> None:
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def rate(self, base: float, step: int) -> float:
        return base * self.gamma ** step


class ConstantLR(LRScheduler):
    """base * factor before step total_iters, base from then on.

    With total_iters=0 it stays at base * factor, as PyTorch's does.
    """

    def __init__(self, optimizer: Optimizer, factor: float = 1 / 3, total_iters: int = 5,
                 last_epoch: int = -1) -> None:
        self.factor = _factor("factor", factor)
        self.total_iters = _whole("total_iters", total_iters, 0)
        super().__init__(optimizer, last_epoch)

    def rate(self, base: float, step: int) -> float:
        return base * self.factor if step < self.total_iters or not self.total_iters else base


class LinearLR(LRScheduler):
    """From base * start_factor linearly to base * end_factor at step total_iters.

    With total_iters=0 it stays at base * start_factor, as PyTorch's does.
    """

    def __init__(self, optimizer: Optimizer, start_factor: float = 1 / 3, end_factor: float = 1.0,
                 total_iters: int = 5, last_epoch: int = -1) -> None:
        self.start_factor = _factor("start_factor", start_factor)
        self.end_factor = _factor("end_factor", end_factor)
        self.total_iters = _whole("total_iters", total_iters, 0)
        super().__init__(optimizer, last_epoch)

    def rate(self, base: float, step: int) -> float:
        done = min(step, self.total_iters) / self.total_iters if self.total_iters else 0.0
        return base * (self.start_factor + (self.end_factor - self.start_factor) * done)


class CosineAnnealingLR(LRScheduler):
    """From base along half a cosine to eta_min at step T_max, and back up, and so on.

    Source: Loshchilov and Hutter, "SGDR", 2017, without its restarts.
    """

    def __init__(self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0,
                 last_epoch: int = -1) -> None:
        self.T_max, self.eta_min = _whole("T_max", T_max), eta_min
        super().__init__(optimizer, last_epoch)

    def rate(self, base: float, step: int) -> float:
        return self.eta_min + (base - self.eta_min) * (1 + cos(pi * step / self.T_max)) / 2


class CosineAnnealingWarmRestarts(LRScheduler):
    """From base along half a cosine to eta_min within T_0 steps, then from base again.

    Each cycle is T_mult times as long as the one before. Source: Loshchilov and Hutter, "SGDR",
    2017. Raises ValueError for a T_0 or a T_mult below 1.
    """

    def __init__(self, optimizer: Optimizer, T_0: int, T_mult: int = 1, eta_min: float = 0.0,
                 last_epoch: int = -1) -> None:
        self.T_0, self.T_mult = _whole("T_0", T_0), _whole("T_mult", T_mult)
        self.eta_min = eta_min
        super().__init__(optimizer, last_epoch)

    def rate(self, base: float, step: int) -> float:
        length = self.T_0
        if self.T_mult == 1:
            step %= length
        while step >= length:
            step, length = step - length, length * self.T_mult
        return self.eta_min + (base - self.eta_min) * (1 + cos(pi * step / length)) / 2


class PolynomialLR(LRScheduler):
    """base * (1 - step / total_iters) ** power, and 0 from step total_iters on.

    Raises ValueError for total_iters below 1.
    """

    def __init__(self, optimizer: Optimizer, total_iters: int = 5, power: float = 1.0,
                 last_epoch: int = -1) -> None:
        self.total_iters, self.power = _whole("total_iters", total_iters), power
        super().__init__(optimizer, last_epoch)

    def rate(self, base: float, step: int) -> float:
        return base * (1.0 - min(step, self.total_iters) / self.total_iters) ** self.power


class OneCycleLR(LRScheduler):
    """Up to max_lr, then down to far below the start, while momentum (or beta1) does the opposite.

    Args:
        max_lr, base_momentum, max_momentum: a number, or one per group.
        total_steps: the length of the cycle, or else epochs * steps_per_epoch.
        pct_start: the share of the steps on which the rate rises.
        anneal_strategy: "cos" or "linear".
        cycle_momentum: also set "momentum", or the first of "betas", from max_momentum to
            base_momentum and back.
        div_factor: the rate starts at max_lr / div_factor, which becomes the group's "initial_lr".
        final_div_factor: it ends at the start's rate / final_div_factor.
        three_phase: go down to the start's rate as fast as up, and in a third phase to the end.

    Raises ValueError past the end of the cycle, and for invalid options.
    Source: Smith and Topin, "Super-convergence", 2018.
    """

    def __init__(
        self, optimizer: Optimizer, max_lr: float | Sequence[float],
        total_steps: int | None = None, epochs: int | None = None,
        steps_per_epoch: int | None = None, pct_start: float = 0.3, anneal_strategy: str = "cos",
        cycle_momentum: bool = True, base_momentum: float | Sequence[float] = 0.85,
        max_momentum: float | Sequence[float] = 0.95, div_factor: float = 25.0,
        final_div_factor: float = 1e4, three_phase: bool = False, last_epoch: int = -1,
    ) -> None:
        if total_steps is None:
            if epochs is None or steps_per_epoch is None:
                raise ValueError("OneCycleLR was given neither total_steps nor both of epochs and "
                                 "steps_per_epoch; wanted one of the two")
            total_steps = _whole("epochs", epochs) * _whole("steps_per_epoch", steps_per_epoch)
        if not (div_factor > 0 and final_div_factor > 0):
            raise ValueError(f"div_factor={div_factor} and final_div_factor={final_div_factor} "
                             "given; wanted numbers above 0")
        if not 0 <= pct_start <= 1:
            raise ValueError(f"pct_start={pct_start} given; wanted a share from 0 to 1")
        if anneal_strategy not in ("cos", "linear"):
            raise ValueError(f"anneal_strategy={anneal_strategy!r} given; wanted 'cos' or 'linear'")
        self.total_steps = _whole("total_steps", total_steps)
        self.anneal_strategy = anneal_strategy
        last = float(total_steps - 1)
        rise = pct_start * total_steps - 1
        ends = (rise, 2 * rise, last) if three_phase else (rise, last)
        self._phases = list(zip((0.0, *ends), ends, strict=False))  # first and last step of each
        self._rates = [
            (m / div_factor, m, *[m / div_factor] * bool(three_phase),
             m / div_factor / final_div_factor)
            for m in _per_group("max_lr", max_lr, optimizer)]
        self._momenta = [
            (high, low, high, *[high] * bool(three_phase)) for low, high in zip(
                _per_group("base_momentum", base_momentum, optimizer),
                _per_group("max_momentum", max_momentum, optimizer), strict=True)]
        self._cycled = self._momentum_option(optimizer) if cycle_momentum else None
        if last_epoch < 0:
            for group, rates in zip(optimizer.param_groups, self._rates, strict=True):
                group[INITIAL] = rates[0]
        super().__init__(optimizer, last_epoch)

    def _momentum_option(self, optimizer: Optimizer) -> str:
        for name in ("betas", "momentum"):
            if name in optimizer.defaults:
                break
        else:
            raise ValueError(f"cycle_momentum with {type(optimizer).__name__}, which has neither "
                             "momentum nor betas; give cycle_momentum=False")
        if name == "momentum" and not all(group[name] for group in optimizer.param_groups):
            raise ValueError(f"cycle_momentum with {type(optimizer).__name__} made without momentum"
                             ", so that it keeps none; give it some, or cycle_momentum=False")
        return name

    def options(self, index: int, step: int) -> Params:
        if step > self.total_steps:
            raise ValueError(f"step {step} of a cycle of total_steps={self.total_steps}; wanted no "
                             "steps past its end")
        phase = next((i for i, (_, end) in enumerate(self._phases) if step <= end),
                     len(self._phases) - 1)
        first, last = self._phases[phase]
        done = (step - first) / (last - first)
        found: dict[str, Any] = {"lr": self._between(self._rates[index][phase:phase + 2], done)}
        if self._cycled is not None:
            momentum = self._between(self._momenta[index][phase:phase + 2], done)
            betas = self.optimizer.param_groups[index].get("betas", ())
            found[self._cycled] = (momentum, *betas[1:]) if betas else momentum
        return found

    def _between(self, ends: tuple[float, ...], done: float) -> float:
        start, end = ends
        if self.anneal_strategy == "linear":
            return (end - start) * done + start
        return end + (start - end) / 2 * (cos(pi * done) + 1)


class SequentialLR(LRScheduler):
    """One schedule after another: number i from step milestones[i - 1] on, counting from 0 again.

    Only this schedule steps them from then on.

    Raises ValueError unless there is one milestone fewer than schedulers, in rising order, and for
    schedulers of another optimizer.
    """

    def __init__(self, optimizer: Optimizer, schedulers: Sequence[LRScheduler],
                 milestones: Sequence[int], last_epoch: int = -1) -> None:
        self._schedulers, self._milestones = list(schedulers), list(milestones)
        if not schedulers or len(milestones) != len(schedulers) - 1:
            raise ValueError(f"{len(schedulers)} schedulers and {len(milestones)} milestones given;"
                             " wanted a milestone between any two schedulers")
        if self._milestones != sorted(self._milestones):
            raise ValueError(f"milestones={self._milestones} given; wanted rising step numbers")
        if any(scheduler.optimizer is not optimizer for scheduler in schedulers):
            raise ValueError("SequentialLR was given schedulers of another optimizer; wanted its "
                             "own")
        super().__init__(optimizer, last_epoch)

    def options(self, index: int, step: int) -> Params:
        number = bisect_right(self._milestones, step)
        start = self._milestones[number - 1] if number else 0
        return self._schedulers[number].options(index, step - start)

    def __repr__(self) -> str:
        parts = ", ".join(type(scheduler).__name__ for scheduler in self._schedulers)
        return (f"SequentialLR([{parts}], milestones={self._milestones}, "
                f"last_epoch={self.last_epoch}, lr={self.get_last_lr()})")

    def state_dict(self) -> dict[str, Any]:
        """With the states of the schedules, for their groups' own rates."""
        return {**super().state_dict(),
                "_schedulers": [scheduler.state_dict() for scheduler in self._schedulers]}

    def load_state_dict(self, state_dict: Mapping[str, object]) -> None:
        """As for other schedules; the parts' rates are restored if present."""
        facts = Facts("the schedule's state given", state_dict, UNLOADED)
        parts = facts.many("_schedulers", [{}] * len(self._schedulers))
        rates = [Facts("one of '_schedulers'", part, UNLOADED).rates("base_lrs", scheduler.base_lrs)
                 for part, scheduler in zip(parts, self._schedulers, strict=False)]
        if len(parts) != len(self._schedulers) or any(
                len(found) != len(self.base_lrs) for found in rates):
            raise ValueError(f"a state of {len(parts)} schedulers for groups of "
                             f"{[len(found) for found in rates]} given; wanted "
                             f"{len(self._schedulers)} for {len(self.base_lrs)} groups; nothing "
                             "was loaded")
        before = [scheduler.base_lrs for scheduler in self._schedulers]
        self._give(rates)
        try:
            super().load_state_dict(state_dict)
        except BaseException:  # undone
            self._give(before)
            raise

    def _give(self, rates: list[list[float]]) -> None:
        for scheduler, found in zip(self._schedulers, rates, strict=True):
            scheduler.base_lrs = found


class ReduceLROnPlateau:
    """Multiplies the rates by `factor` once a value has not improved for over `patience` steps.

    Args:
        optimizer: whose groups' rates are changed, from what they are then: it is no function of
            the step, so it is no `LRScheduler`, and rates set by hand between steps stay.
        mode: "min" for a value that is to fall, such as a loss, "max" for one that is to rise.
        factor: from 0 to below 1.
        patience: how many steps without an improvement are waited.
        threshold: by how much a value must beat the best one to count as an improvement.
        threshold_mode: "rel", as a share of the best one, or "abs".
        cooldown: how many steps after a change are not counted.
        min_lr: the smallest rate, one or one per group.
        eps: changes up to it are not made.

    Raises ValueError for an option out of its range, TypeError for what is no optimizer.
    """

    def __init__(self, optimizer: Optimizer, mode: str = "min", factor: float = 0.1,
                 patience: int = 10, threshold: float = 1e-4, threshold_mode: str = "rel",
                 cooldown: int = 0, min_lr: float | Sequence[float] = 0.0,
                 eps: float = 1e-8) -> None:
        if mode not in ("min", "max") or threshold_mode not in ("rel", "abs"):
            raise ValueError(f"mode={mode!r} and threshold_mode={threshold_mode!r} given; wanted "
                             "'min' or 'max', and 'rel' or 'abs'")
        if not 0 <= factor < 1:
            raise ValueError(f"factor={factor} given; wanted a factor from 0 to below 1")
        self.optimizer = optimizer
        self.mode, self.factor, self.eps = mode, factor, eps
        self.patience, self.cooldown = _whole("patience", patience, 0), _whole(
            "cooldown", cooldown, 0)
        self.threshold, self.threshold_mode = threshold, threshold_mode
        self.min_lrs = _per_group("min_lr", min_lr, optimizer)
        self.best: float | None = None
        self.num_bad_epochs = self.cooldown_counter = self.last_epoch = 0

    @partial(again, kind="python")
    def step(self, metrics: Any) -> None:
        """Take the value of this step, a number or a tensor of one element (it waits for a GPU)."""
        value = float(metrics)
        self.last_epoch += 1
        self.num_bad_epochs += 1
        if self._improves(value):
            self.best, self.num_bad_epochs = value, 0
        if self.cooldown_counter:
            self.cooldown_counter -= 1
            self.num_bad_epochs = 0
        if self.num_bad_epochs > self.patience:
            for group, least in zip(self.optimizer.param_groups, self.min_lrs, strict=True):
                lower = max(group["lr"] * self.factor, least)
                if group["lr"] - lower > self.eps:
                    group["lr"] = lower
            self.cooldown_counter, self.num_bad_epochs = self.cooldown, 0

    def _improves(self, value: float) -> bool:
        sign = 1 if self.mode == "max" else -1
        best = -sign * inf if self.best is None else self.best
        if self.threshold_mode == "rel":
            return sign * value > sign * (best * (1 + sign * self.threshold))
        return sign * value > sign * best + self.threshold

    def get_last_lr(self) -> list[float]:
        """The groups' rates."""
        return [group["lr"] for group in self.optimizer.param_groups]

    def __repr__(self) -> str:
        return (f"ReduceLROnPlateau(mode={self.mode!r}, factor={self.factor}, "
                f"patience={self.patience}, best={self.best}, lr={self.get_last_lr()})")

    def state_dict(self) -> dict[str, Any]:
        """The position as JSON, without arguments; the rates are the optimizer's state."""
        return {name: getattr(self, name) for name in (
            "best", "num_bad_epochs", "cooldown_counter", "last_epoch")}

    def load_state_dict(self, state_dict: Mapping[str, object]) -> None:
        """Resume from a `state_dict()` (or PyTorch's), with the optimizer's state loaded, too.

        Raises ValueError, with nothing changed, for a state that lacks something.
        """
        facts = Facts("the schedule's state given", state_dict, UNLOADED)
        counts = {name: facts.whole(name) for name in (
            "num_bad_epochs", "cooldown_counter", "last_epoch")}
        best = facts.like("best", 0.0) if facts.found.get("best", 0) is not None else None
        worst = inf if self.mode == "min" else -inf
        self.best = None if best == worst else best
        for name, count in counts.items():
            setattr(self, name, count)


def warmup_cosine(
    optimizer: Optimizer, warmup_steps: int, total_steps: int, eta_min: float = 0.0
) -> LRScheduler:
    """Linear up to the groups' rates, reached at step `warmup_steps`, then a cosine to `eta_min`.

    The first rate is 1 / (warmup_steps + 1) of a group's, the last (at step total_steps) eta_min.
    Raises ValueError unless 0 <= warmup_steps < total_steps.
    """
    if not 0 <= warmup_steps < total_steps:
        raise ValueError(f"warmup_steps={warmup_steps} of total_steps={total_steps} given; wanted "
                         "0 <= warmup_steps < total_steps")
    if not warmup_steps:
        return CosineAnnealingLR(optimizer, total_steps, eta_min)
    rise = LinearLR(optimizer, 1 / (warmup_steps + 1), total_iters=warmup_steps)
    fall = CosineAnnealingLR(optimizer, total_steps - warmup_steps, eta_min)
    return SequentialLR(optimizer, [rise, fall], [warmup_steps])


def _whole(name: str, value: int, least: int = 1) -> int:
    if type(value) is not int or value < least:
        raise ValueError(f"{name}={value} given; wanted an integer of {least} or more")
    return value


def _factor(name: str, value: float) -> float:
    if not 0 <= value <= 1:
        raise ValueError(f"{name}={value} given; wanted a factor from 0 to 1")
    return value


def _per_group(name: str, value: object, optimizer: Optimizer) -> list[Any]:
    """One value per group, from one or from a list of them."""
    count = len(optimizer.param_groups)
    if not isinstance(value, (list, tuple)):
        return [value] * count
    if len(value) != count:
        raise ValueError(f"{name} of {len(value)} values given; wanted one, or {count}: one per "
                         "group")
    return list(value)


_enter(globals(), check=True)

"""A recipe: the data, the model and the loss of one training job, its options and its pictures."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from math import isfinite
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeAlias, TypeVar

from gtensor import nn
from gtensor.engine.handle.tensor import Tensor
from gtensor.train.accounting import Account, account, memory_table
from gtensor.train.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from gtensor.data import Dataset

Trainer: TypeAlias = Any  # of train.trainer, which imports this


def option(default: Any, help: str, choices: tuple[str, ...] = (), least: float | None = None,
           positive: bool = False, many: bool = False, kept: bool = True) -> Any:
    """A field of Options, and an option of `gtensor train`.

    Args:
        default: its value; None for none.
        help: for `--help`, in a few words.
        choices: the texts that are allowed.
        least, positive: bounds of a number: 0 is allowed by `least=0`, not by `positive`.
        many: several texts may be given.
        kept: whether a run that is resumed must have the same.
    """
    return field(default=default, metadata={
        "help": help, "choices": choices, "least": least, "positive": positive, "many": many,
        "kept": kept})


@dataclass(frozen=True)
class Options:
    """The options that every recipe has."""

    epochs: int = option(1, "times through the training data", positive=True)
    batch_size: int = option(32, "examples per step", positive=True)
    lr: float = option(1e-3, "highest learning rate", positive=True)
    weight_decay: float = option(1e-2, "of AdamW", least=0)
    clip: float = option(0.0, "largest norm of the gradients; 0 for any", least=0)
    seed: int = option(0, "of weights and order: same seed, same losses", least=0)
    device: str | None = option(None, "cpu, cuda or cuda:1 (the first GPU if there is one)",
                                kept=False)

    def changed(self, **given: Any) -> Self:
        """The options with the given ones replaced (None: kept). Raises UserError if invalid."""
        values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value
                                  for name, value in given.items() if value is not None}
        made = replace(self, **values)
        for one in fields(made):
            value, about = getattr(made, one.name), one.metadata
            name = f"--{one.name.replace('_', '-')} {value} given; wanted"
            if isinstance(value, float) and not isfinite(value):
                raise UserError(f"{name} a finite number")
            if about["choices"] and value not in about["choices"]:
                raise UserError(f"{name} one of {', '.join(about['choices'])}")
            if about["positive"] and value is not None and value <= 0:
                raise UserError(f"{name} more than 0")
            if about["least"] is not None and value is not None and value < about["least"]:
                raise UserError(f"{name} {about['least']} or more")
        return made


OptionsT = TypeVar("OptionsT", bound=Options)


class Recipe(Generic[OptionsT]):
    """A training job; a subclass for each.

    `title` is a line about the data; `score_name` what `score` measures, `score_is_loss` whether it
    is the loss of held-out data; `loss_name` the axis of the losses' picture; `counted` what the
    progress bar counts, `each` how many of it an example has; `describing` names the options that
    describe the model: a checkpoint has them, and they are enough to make it anew.
    """

    title: ClassVar[str]
    score_name: ClassVar[str]
    score_is_loss: ClassVar[bool] = True
    loss_name: ClassVar[str]
    counted: ClassVar[str] = "examples"
    describing: ClassVar[tuple[str, ...]] = ()
    ema_decay: float | None = None  # of averaged weights, which are scored; None for none
    warmup: float = 0.1  # the share of steps in which the learning rate rises
    each: int = 1
    held_out: tuple[Tensor, ...] = ()  # on the device, where the recipe keeps it there

    def __init__(self, options: OptionsT) -> None:
        self.options = options

    def dataset(self) -> Dataset:
        """The examples to train on."""
        raise TypeError(f"{type(self).__name__} has no dataset(); write one")

    def place(self, device: Any) -> None:
        """Put the held-out data on the device; called once."""

    def model(self) -> nn.Module:
        """A new model, its weights drawn from `gt.random`."""
        raise TypeError(f"{type(self).__name__} has no model(); write one")

    def loss(self, model: nn.Module, *batch: Tensor) -> Tensor:
        """The loss of a batch, with its graph."""
        raise TypeError(f"{type(self).__name__} has no loss(); write one")

    def score(self, model: nn.Module) -> float:
        """What the held-out data says about the model, in evaluation mode, without gradients."""
        raise TypeError(f"{type(self).__name__} has no score(); write one")

    def shown(self, score: float) -> str:
        """A score as text."""
        return f"{score:.4f}"

    def after_epoch(self, trainer: Trainer, folder: Path) -> None:
        """Write pictures of the state after an epoch, if there are any."""

    def books(self, trainer: Trainer) -> dict[str, Account]:
        """Accounts of a step, that of the trained model first; of several ranks all call it."""
        return {"": account(trainer)}

    def finish(self, trainer: Trainer, folder: Path, books: dict[str, Account]) -> Iterable[Any]:
        """Write the last pictures; what is printed at the end, with the accounts of a step."""
        return [memory_table(trainer, books)]

    def fingerprint(self) -> str:
        """What tells the data from other data: a run is resumed with the same."""
        return f"{len(self.dataset())} examples"

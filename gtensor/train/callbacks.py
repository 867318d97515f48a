"""What a trainer calls during a run, and the stop of a run that gets no better."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

Trainer: TypeAlias = Any  # of train.trainer, which imports this


class Callback:
    """The methods that a trainer calls; a subclass overrides those that it needs.

    Of several ranks each calls them; `trainer.leads` is True on the one that writes files.
    """

    def after_step(self, trainer: Trainer) -> None:
        """Called after every step; gradients are those of the step."""

    def after_epoch(self, trainer: Trainer) -> None:
        """Called after every epoch, when it is scored and the checkpoint is written."""

    def after_run(self, trainer: Trainer) -> Iterable[Any]:
        """Called when `fit` has reached its end.

        Returns what is printed instead of the table of memory; nothing by default.
        """
        return ()


class EarlyStopping(Callback):
    """Ends a run whose score gets no better, and keeps the best state.

        trainer = gt.train.Trainer(..., callbacks=[gt.train.EarlyStopping(patience=5)])

    After each epoch that is better than all before it, the state is written to `best.safetensors`
    in the trainer's folder, if it has one. What is best follows from the scores, so a run that is
    resumed stops where the whole one would have stopped.

    Args:
        patience: epochs without a better score after which the run ends.
        higher: whether a higher score is better, as of an accuracy.
        least: by how much a score must be better.

    Raises ValueError unless `patience` is an integer of 1 or more and `least` is 0 or more.
    """

    def __init__(self, patience: int, higher: bool = False, least: float = 0.0) -> None:
        if type(patience) is not int or patience < 1:
            raise ValueError(f"patience={patience!r} given; wanted an integer of 1 or more")
        if not least >= 0:
            raise ValueError(f"least={least!r} given; wanted a number of 0 or more")
        self.patience = patience
        self.higher = higher
        self.least = least

    def best(self, scores: list[float]) -> int:
        """The number of the epoch with the best score, from 1; 0 without scores."""
        sign = 1 if self.higher else -1
        found = 0
        for epoch, score in enumerate(scores, 1):
            if not found or sign * (score - scores[found - 1]) > self.least:
                found = epoch
        return found

    def after_epoch(self, trainer: Trainer) -> None:
        """Keep the best state, and stop the run if the last scores were no better.

        Raises ValueError for a trainer without scores.
        """
        progress = trainer.progress
        if not progress.scores:
            raise ValueError("EarlyStopping was given to a trainer without scores; wanted one with "
                             "held_out= or score=")
        best = self.best(progress.scores)
        if best == progress.epoch and trainer.folder is not None:
            trainer.save(trainer.folder / "best.safetensors")
        if progress.epoch - best >= self.patience:
            captions = trainer.captions
            trainer.stop(f"No better {captions.score} in {self.patience} "
                         f"epoch{'' if self.patience == 1 else 's'}: the best was "
                         f"{captions.shown(progress.scores[best - 1])}, of epoch {best}")

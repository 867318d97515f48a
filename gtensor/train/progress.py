"""The progress of a run, and the words for what is measured in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields

from gtensor.system.documents import Facts


@dataclass
class Progress:
    """The progress of a run, as plain JSON for a checkpoint.

    Attributes:
        epoch: whole epochs done.
        batch: batches done of the next one.
        losses: of every step.
        gradient_norms: of every step, before clipping; empty without clipping.
        scores: after every epoch; empty where nothing is scored.
        held_out_losses: after every epoch, beside a score that is another number; else empty.
        weight_norms: after every epoch.
        ends: the steps that were done after every epoch.
    """

    epoch: int = 0
    batch: int = 0
    losses: list[float] = field(default_factory=list)
    gradient_norms: list[float] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    held_out_losses: list[float] = field(default_factory=list)
    weight_norms: list[float] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, facts: Facts, batches: int | None) -> Progress:
        """What a checkpoint says of a run with so many batches in an epoch (None: any).

        Raises ValueError for what is no number or list, or cannot be the progress of such a run.
        """
        made = cls(facts.whole("epoch"), facts.whole("batch"),
                   *(list(facts.many(one.name)) for one in fields(cls)[2:]))
        if not made._fits(batches):
            raise ValueError("its progress does not fit the data")
        return made

    def _fits(self, batches: int | None) -> bool:
        numbers = [*self.losses, *self.gradient_norms, *self.scores, *self.held_out_losses,
                   *self.weight_norms]
        starts = [0, *self.ends[:-1]]
        return (all(isinstance(number, float) for number in numbers)
                and all(type(end) is int for end in self.ends)
                and all(end > start if batches is None else end - start == batches
                        for start, end in zip(starts, self.ends, strict=False))
                and (batches is None or self.batch <= batches)
                and len(self.losses) == (self.ends[-1] if self.ends else 0) + self.batch
                and len(self.ends) == len(self.weight_norms) == self.epoch
                and {len(self.scores), len(self.held_out_losses)} <= {0, self.epoch}
                and len(self.gradient_norms) in (0, len(self.losses)))

    def steps_of(self, epoch: int) -> slice:
        """The places of an epoch's steps in `losses`; the first epoch is 0."""
        return slice(self.ends[epoch - 1] if epoch else 0, self.ends[epoch])


def _four_places(score: float) -> str:
    """A score with four places."""
    return f"{score:.4f}"


@dataclass(frozen=True)
class Captions:
    """The words for what a run measures, in its progress bar, its pictures and its last line.

    Attributes:
        title: a line about the run, over the picture of its losses.
        loss: the axis of the losses.
        score: what the score measures, such as "accuracy".
        score_is_loss: whether it is the loss of held-out data, drawn on the axis of the losses.
        shown: a score as text.
        counted: what the progress bar counts, such as "images".
        each: how many of these an example has.
    """

    title: str = ""
    loss: str = "loss"
    score: str = "loss"
    score_is_loss: bool = True
    shown: Callable[[float], str] = _four_places
    counted: str = "examples"
    each: int = 1

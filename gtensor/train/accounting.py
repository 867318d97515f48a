"""Where the memory of a training step goes, by category, from the arena's own record of it.

    parameters   the model's parameters and buffers
    optimizer    the optimizer's state
    data         held-out data and the batch
    saved        made in the forward pass, alive after it: what the backward pass needs
    gradients    made in the backward pass, alive after it
    workspace    work buffers of ops, labelled so
    temporary    all else: made and dropped within a pass
"""

from __future__ import annotations

from dataclasses import dataclass

from gtensor import memory
from gtensor.train.trainer import Trainer

CATEGORIES = ("parameters", "optimizer", "data", "saved", "gradients", "workspace", "temporary")


@dataclass
class Account:
    """Live bytes over one step: `times` in seconds, one row of `bytes` per category."""

    times: list[float]
    bytes: dict[str, list[int]]
    marks: dict[str, float]  # when forward, backward and update ended
    reuse: float  # the share of requests served from cached memory

    @property
    def totals(self) -> list[int]:
        """Live bytes of all categories together."""
        return [sum(row) for row in zip(*self.bytes.values(), strict=True)]

    @property
    def peak(self) -> int:
        """The most bytes that were live at once."""
        return max(self.totals)

    def most(self, category: str) -> int:
        """The most bytes of a category that were live at once."""
        return max(self.bytes[category])

    def at_peak(self, category: str) -> int:
        """The bytes of a category when most bytes were live."""
        totals = self.totals
        return self.bytes[category][totals.index(max(totals))]


def account(trainer: Trainer) -> Account:
    """Take one more step and account for it; the model and its optimizer move on by that step.

    Every array must come from the arena: run under `settings.override(arena_min_bytes=0)`.
    """
    trainer.optimizer.zero_grad()
    with memory.timeline(device=trainer.device) as timeline:
        inputs, labels = trainer.first_batch()
        loss = trainer.loss(inputs, labels)
        forward = timeline.recorded
        loss.backward()
        backward = timeline.recorded
        del loss, inputs, labels
        trainer.optimizer.step()
        update = timeline.recorded
        trainer.optimizer.zero_grad()
        events = timeline.events
    stats = memory.stats(trainer.device)
    ends = {event.serial: i for i, event in enumerate(events) if event.delta < 0}
    rows: dict[str, list[int]] = {name: [] for name in CATEGORIES}
    live, kinds = _standing_bytes(trainer), {}
    for i, event in enumerate(events):
        if event.delta > 0:
            end = ends.get(event.serial, len(events))
            kinds[event.serial] = _category(event, i, end, forward, backward)
        live[kinds[event.serial]] += event.delta
        for category in CATEGORIES:
            rows[category].append(live[category])
    times = [event.time for event in events]
    marks = {"forward": times[forward - 1], "backward": times[backward - 1],
             "update": times[update - 1]}
    return Account(times, rows, marks, stats.hits / max(1, stats.hits + stats.misses))


def _category(event: memory.Event, start: int, end: int, forward: int, backward: int) -> str:
    """Of a block that lives from event `start` to event `end`; the passes end at those counts."""
    if event.category == "data":
        return "data"
    if event.label == "workspace":
        return "workspace"
    if start < forward <= end:
        return "saved"
    return "gradients" if start < backward <= end else "temporary"


def _standing_bytes(trainer: Trainer) -> dict[str, int]:
    """What is there before the step."""
    live = dict.fromkeys(CATEGORIES, 0)
    live["parameters"] = sum(t.nbytes for t in trainer.model.state_dict().values())
    state = trainer.optimizer.state_dict()["state"].values()
    live["optimizer"] = sum(
        t.nbytes for entry in state for name, t in entry.items() if name != "step")
    live["data"] = sum(t.nbytes for t in trainer.held_out)
    return live

"""The training loop of a recipe, and its resumption from a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gtensor import memory, nn, random
from gtensor.array.creation import tensor
from gtensor.backend import get_device
from gtensor.data import ArrayDataset, DataLoader
from gtensor.engine.context import no_grad
from gtensor.engine.tensor import Tensor
from gtensor.nn import functional as F
from gtensor.optim import AdamW
from gtensor.optim.lr_scheduler import warmup_cosine
from gtensor.train import checkpoint
from gtensor.train.errors import UserError

NORMS = {"abn": nn.ABN, "inplace": nn.InPlaceABN}  # the same function, in two or one buffer


class Data(NamedTuple):
    """Training and held-out inputs and labels, as scikit-learn's split orders them."""

    train: np.ndarray
    held_out: np.ndarray
    train_labels: np.ndarray
    held_out_labels: np.ndarray


@dataclass(frozen=True)
class Options:
    """The options of a run."""

    epochs: int
    batch_size: int
    lr: float
    weight_decay: float
    seed: int = 0
    device: str | None = None
    norm: str = "inplace"  # less memory; the same losses up to rounding

    def changed(self, **given: Any) -> Options:
        """The options with the given ones replaced (None: kept). Raises UserError if invalid."""
        made = replace(self, **{k: v for k, v in given.items() if v is not None})
        for name in ("epochs", "batch_size", "lr"):
            if getattr(made, name) <= 0:
                raise UserError(f"--{name.replace('_', '-')} {getattr(made, name)} given; wanted "
                                "more than 0")
        if made.norm not in NORMS:
            raise UserError(f"--norm {made.norm} given; wanted one of {', '.join(NORMS)}")
        return made


@dataclass
class Progress:
    """The progress of a run, as plain JSON for a checkpoint."""

    epoch: int = 0
    batch: int = 0  # batches done in this epoch
    losses: list[float] = field(default_factory=list)  # of every step
    accuracies: list[float] = field(default_factory=list)  # held out, after every epoch


class Trainer:
    """A model, its optimizer and its position in the data, from which `run` continues."""

    def __init__(self, model: Callable[[], nn.Module], data: Data, options: Options) -> None:
        self.options = options
        self.device = get_device(options.device)
        with self.device:
            random.manual_seed(options.seed)
            with memory.category("parameters"):
                self.model = model()
            self.optimizer = AdamW(self.model.parameters(), options.lr,
                                   weight_decay=options.weight_decay)
        with memory.category("data"):
            self.held_out = (tensor(data.held_out, device=self.device),
                             tensor(data.held_out_labels, device=self.device))
        self.loader = DataLoader(
            ArrayDataset(data.train, data.train_labels), options.batch_size, shuffle=True,
            seed=options.seed, device=self.device)
        self.batches = len(self.loader)
        steps = self.batches * options.epochs
        self.schedule = warmup_cosine(self.optimizer, steps // 10, steps)
        self.progress = Progress()

    # -- one step ---------------------------------------------------------------------------------

    def first_batch(self) -> tuple[Tensor, Tensor]:
        """Inputs and labels of the first batch of all, beside the run."""
        with memory.category("data"):
            return self.loader.batch_of(self.loader.order(0)[:self.options.batch_size])

    def loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """The loss of a batch, with its graph."""
        return F.cross_entropy(self.model(inputs), labels)

    def step(self, inputs: Tensor, labels: Tensor) -> float:
        """Forward, backward, update; the loss."""
        loss = self.loss(inputs, labels)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.schedule.step()
        return loss.item()

    # -- the run ----------------------------------------------------------------------------------

    def run(
        self, after_step: Callable[[Trainer], bool], after_epoch: Callable[[Trainer], None]
    ) -> bool:
        """Train to the end, or until `after_step` returns True; whether the end was reached."""
        progress = self.progress
        with self.device:
            while progress.epoch < self.options.epochs:
                self.model.train()
                batches = iter(self.loader)
                while (batch := self._next(batches)) is not None:
                    progress.losses.append(self.step(*batch))
                    del batch  # before the next one is made
                    progress.batch += 1
                    if after_step(self):
                        return False
                progress.accuracies.append(self.accuracy())
                progress.epoch, progress.batch = progress.epoch + 1, 0
                after_epoch(self)
        return True

    @staticmethod
    def _next(batches: Iterator[Any]) -> Any:
        """The next batch, accounted for as data; None after the last."""
        with memory.category("data"):
            return next(batches, None)

    def accuracy(self) -> float:
        """The share of held-out data whose class is predicted right."""
        self.model.eval()
        inputs, labels = self.held_out
        with no_grad():
            right = (self.model(inputs).argmax(axis=1) == labels).sum().item()
        self.model.train()
        return right / labels.size

    # -- taking up again --------------------------------------------------------------------------

    def save(self, path: Path) -> None:
        """Write a checkpoint, atomically."""
        about = {"options": {**vars(self.options), "device": None}, **vars(self.progress)}
        checkpoint.save(path, self.model, self.optimizer, about)

    def resume(self, path: Path) -> None:
        """Resume from a checkpoint.

        Raises UserError, with nothing changed, if it is broken or of a run with other options.
        """
        def check(about: dict[str, Any]) -> None:
            Progress(**{name: about[name] for name in about if name != "options"})
            for name, value in about["options"].items():
                if name != "device" and value != getattr(self.options, name):
                    raise UserError(f"{path} was made with --{name.replace('_', '-')} {value}; "
                                    "resume with the same options")

        about = checkpoint.load(path, self.model, self.optimizer, check)
        del about["options"]
        self.progress = Progress(**about)
        self.loader.load_state_dict({**self.loader.state_dict(), "epoch": self.progress.epoch,
                                     "batch": self.progress.batch})
        self.schedule.load_state_dict({"last_epoch": len(self.progress.losses)})

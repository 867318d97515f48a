"""The training loop: what a recipe's model and data go through, and how it is taken up again."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gtensor import memory, nn, random
from gtensor.backend import get_device
from gtensor.core.modes import no_grad
from gtensor.core.tensor import Tensor
from gtensor.creation import tensor
from gtensor.nn import functional as F
from gtensor.optim import AdamW
from gtensor.train import checkpoint
from gtensor.train.errors import UserError


class Data(NamedTuple):
    """Training and held-out inputs and labels, as scikit-learn's split orders them."""

    train: np.ndarray
    held_out: np.ndarray
    train_labels: np.ndarray
    held_out_labels: np.ndarray


@dataclass(frozen=True)
class Options:
    """What a run can be told."""

    epochs: int
    batch_size: int
    lr: float
    weight_decay: float
    seed: int = 0
    device: str | None = None

    def changed(self, **given: Any) -> Options:
        """With the options that were given (None: left alone). Raises UserError for nonsense."""
        made = replace(self, **{k: v for k, v in given.items() if v is not None})
        for name in ("epochs", "batch_size", "lr"):
            if getattr(made, name) <= 0:
                raise UserError(f"--{name.replace('_', '-')} {getattr(made, name)} given; wanted "
                                "more than 0")
        return made


@dataclass
class Progress:
    """Where a run stands; plain JSON, so that a checkpoint can hold it."""

    epoch: int = 0
    batch: int = 0  # batches done in this epoch
    losses: list[float] = field(default_factory=list)  # of every step
    accuracies: list[float] = field(default_factory=list)  # held out, after every epoch


class Trainer:
    """A model, its optimizer and its place in the data. `run` goes on from there."""

    def __init__(self, model: Callable[[], nn.Module], data: Data, options: Options) -> None:
        self.options = options
        self.device = get_device(options.device)
        with self.device:
            random.manual_seed(options.seed)
            with memory.category("parameters"):
                self.model = model()
            self.optimizer = AdamW(self.model.parameters(), weight_decay=options.weight_decay)
        with memory.category("data"):
            self.held_out = self._on_device(data.held_out), self._on_device(data.held_out_labels)
        self.data = data
        self.batches = -(-len(data.train) // options.batch_size)
        self.progress = Progress()

    def _on_device(self, array: np.ndarray) -> Tensor:
        return tensor(array, device=self.device)

    # -- one step ---------------------------------------------------------------------------------

    def order(self, epoch: int) -> np.ndarray:
        """The epoch's order of the training data, from seed and epoch alone."""
        generator = np.random.Generator(np.random.Philox([self.options.seed, epoch]))
        return generator.permutation(len(self.data.train))

    def learning_rate(self, step: int) -> float:
        """Warm-up over the first tenth, then a cosine down to nothing."""
        done = (step + 1) / (self.batches * self.options.epochs)
        if done < 0.1:
            return self.options.lr * done / 0.1
        return self.options.lr * (0.5 + 0.5 * math.cos(math.pi * min(1.0, (done - 0.1) / 0.9)))

    def batch(self, order: np.ndarray, number: int) -> tuple[Tensor, Tensor]:
        """Inputs and labels of a batch."""
        size = self.options.batch_size
        chosen = order[number * size:(number + 1) * size]
        with memory.category("data"):
            return self._on_device(self.data.train[chosen]), self._on_device(
                self.data.train_labels[chosen])

    def loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """The loss of a batch, with its graph."""
        return F.cross_entropy(self.model(inputs), labels)

    def step(self, inputs: Tensor, labels: Tensor) -> float:
        """Forward, backward, update; the loss."""
        self.optimizer.lr = self.learning_rate(len(self.progress.losses))
        loss = self.loss(inputs, labels)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    # -- the run ----------------------------------------------------------------------------------

    def run(
        self, after_step: Callable[[Trainer], bool], after_epoch: Callable[[Trainer], None]
    ) -> bool:
        """Train to the end, or until `after_step` answers True; whether the end was reached."""
        progress = self.progress
        with self.device:
            while progress.epoch < self.options.epochs:
                order = self.order(progress.epoch)
                self.model.train()
                while progress.batch < self.batches:
                    progress.losses.append(self.step(*self.batch(order, progress.batch)))
                    progress.batch += 1
                    if after_step(self):
                        return False
                progress.accuracies.append(self.accuracy())
                progress.epoch, progress.batch = progress.epoch + 1, 0
                after_epoch(self)
        return True

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
        """Go on from a checkpoint.

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

"""The digits recipe: scikit-learn's 1,797 handwritten digits of 8 x 8 pixels, a small conv net."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gtensor import nn
from gtensor.creation.new_tensors import tensor
from gtensor.data import ArrayDataset
from gtensor.engine.handle.tensor import Tensor
from gtensor.nn import functional as F
from gtensor.train.accounting import account, memory_table, size
from gtensor.train.errors import require
from gtensor.train.progress import Captions
from gtensor.train.recipe import Options, Recipe, option
from gtensor.train.trainer import Trainer

NORMS = {"abn": nn.ABN, "inplace": nn.InPlaceABN}  # the same function, in two or one buffer


class Data(NamedTuple):
    """Training and held-out inputs and labels, in the order of the data set."""

    train: np.ndarray
    held_out: np.ndarray
    train_labels: np.ndarray
    held_out_labels: np.ndarray


@dataclass(frozen=True)
class DigitsOptions(Options):
    """Those of every recipe, and the norm."""

    epochs: int = option(12, "times through the training data", positive=True)
    batch_size: int = option(64, "images per step", positive=True)
    lr: float = option(4e-3, "highest learning rate", positive=True)
    norm: str = option(  # in place: less memory; the same losses up to rounding
        "inplace", "the network's batch norms: abn keeps their input and their output for "
        "backward, inplace writes one over the other", tuple(NORMS))


def data() -> Data:
    """1,437 training and 360 held-out images (N, 1, 8, 8) in [0, 1]: of each digit every fifth.

    Read from scikit-learn's file: importing scikit-learn takes longer than an epoch.
    """
    require("sklearn", "scikit-learn")
    spec = find_spec("sklearn")
    assert spec is not None and spec.submodule_search_locations is not None
    path = Path(spec.submodule_search_locations[0], "datasets", "data", "digits.csv.gz")
    found = np.loadtxt(path, np.float32, delimiter=",")  # (1797, 64 pixels up to 16 and a label)
    images, labels = found[:, :-1].reshape(-1, 1, 8, 8) / 16, found[:, -1].astype(np.int64)
    held_out = np.zeros(len(labels), bool)
    held_out[np.argsort(labels, kind="stable")[::5]] = True
    return Data(images[~held_out], images[held_out], labels[~held_out], labels[held_out])


def model(norm: str = "inplace") -> nn.Module:
    """Two conv blocks of 32 and 64 channels, pooled between and behind, and a linear layer."""
    activated_norm = NORMS[norm]
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1, bias=False), activated_norm(32),
        nn.Conv2d(32, 64, 3, padding=1, bias=False), activated_norm(64),
        nn.MaxPool2d(2),
        nn.Conv2d(64, 64, 3, padding=1, bias=False), activated_norm(64),
        nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64 * 2 * 2, 10),
    )


class Digits(Recipe[DigitsOptions]):
    """Digits by their class."""

    options_type = DigitsOptions
    captions = Captions(
        title="handwritten digits, 8 x 8 pixels (scikit-learn)",
        loss="cross entropy (nats, log scale)", score="accuracy", score_is_loss=False,
        shown="{:.2%}".format, counted="img")
    describing = ("norm",)
    small = True

    def __init__(self, options: DigitsOptions, parts: Data | None = None) -> None:
        super().__init__(options)
        self._data = data() if parts is None else parts

    def dataset(self) -> ArrayDataset:
        return ArrayDataset(self._data.train, self._data.train_labels)

    def held_out(self, device: Any) -> tuple[Tensor, ...]:
        self._placed = (tensor(self._data.held_out, device=device),
                        tensor(self._data.held_out_labels, device=device))
        return self._placed

    def model(self) -> nn.Module:
        return model(self.options.norm)

    def loss(self, model: nn.Module, *batch: Tensor) -> Tensor:
        inputs, labels = batch
        return F.cross_entropy(model(inputs), labels)

    def score(self, model: nn.Module) -> float:
        """The share of held-out images whose class is predicted right."""
        inputs, labels = self._placed
        return (model(inputs).argmax(axis=1) == labels).sum().item() / labels.size

    def after_run(self, trainer: Trainer) -> Iterable[Any]:
        """The memory of a step with the trained norm, and of the same model with each other one."""
        if trainer.account is None:
            return ()
        found = {self.options.norm: trainer.account}
        for norm in NORMS:
            if norm not in found:
                twin = Digits(replace(self.options, norm=norm), self._data).trainer(trainer.comm)
                twin.model.load_state_dict(trainer.model.state_dict())
                with twin.device:
                    twin.step(*twin.first_batch())  # from now on the optimizer has its state
                    found[norm] = account(twin)
        inside, outside = (found[norm].most("saved") for norm in ("inplace", "abn"))
        return [memory_table(
            trainer, found, f" (--norm {self.options.norm} was trained)",
            f"Kept for backward: {size(inside)} with norms in place, {size(outside)} without "
            f"({inside / outside:.2f}x)")]

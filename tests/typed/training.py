"""Points inside and outside of a ring, by a recipe and by a trainer of one's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_type

import numpy as np

import gtensor as gt
from gtensor.nn import functional as F
from gtensor.optim.lr_scheduler import CosineAnnealingLR
from gtensor.train import Callback, Captions, EarlyStopping, Options, Recipe, Trainer, option


@dataclass(frozen=True)
class RingOptions(Options):
    """Those of every recipe, and the width."""

    hidden: int = option(32, "hidden units", positive=True)


class Ring(Recipe[RingOptions]):
    """The recipe of a file, for `gtensor train`."""

    options_type = RingOptions
    captions = Captions(title="rings", counted="points")

    def dataset(self) -> gt.data.ArrayDataset:
        points = np.random.default_rng(0).normal(size=(200, 2)).astype(np.float32)
        return gt.data.ArrayDataset(points, ((points**2).sum(axis=1) < 1.4).astype(np.int64))

    def held_out(self, device: object) -> gt.data.ArrayDataset:
        return self.dataset()

    def model(self) -> gt.nn.Module:
        return gt.nn.Sequential(gt.nn.Linear(2, self.options.hidden), gt.nn.ReLU())

    def loss(self, model: gt.nn.Module, points: gt.Tensor, inside: gt.Tensor) -> gt.Tensor:
        return F.cross_entropy(model(points), inside)


class Told(Callback):
    """Notes the epochs."""

    def __init__(self) -> None:
        self.epochs: list[int] = []

    def after_epoch(self, trainer: Trainer) -> None:
        self.epochs.append(trainer.progress.epoch)


def accuracy(net: gt.nn.Module) -> float:
    """Of three points."""
    return float((net(gt.ones((3, 2))).argmax(axis=1) == 1).sum().item()) / 3


def run() -> None:
    """A trainer of one's own, and that of a recipe."""
    ring, told = Ring(RingOptions(epochs=2)), Told()
    net = ring.model()
    trainer = Trainer(
        net, gt.optim.SGD(net.parameters(), lr=0.1), ring.loss, ring.dataset(), batch_size=50,
        epochs=2, held_out=ring.dataset(), score=accuracy,
        callbacks=[told, EarlyStopping(3, higher=True), lambda trainer: None],
        schedule=lambda optimizer, steps: CosineAnnealingLR(optimizer, steps))
    assert assert_type(trainer.run(), bool) and told.epochs == [1, 2]
    assert len(assert_type(trainer.progress.scores, list[float])) == 2
    assert assert_type(ring.trainer(), Trainer).run()

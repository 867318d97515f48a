"""The picture of the losses: nothing written over the curves."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from gtensor.train import pictures
from gtensor.train.digits import Data, Digits, DigitsOptions
from gtensor.train.trainer import Progress


@pytest.fixture
def drawn(monkeypatch):
    """The figures that were saved, laid out."""
    figures = []

    def save(figure, path):
        figure.canvas.draw()
        figures.append(figure)

    monkeypatch.setattr(pictures, "_save", save)
    return figures


@pytest.mark.parametrize("epochs", [0, 1, 2, 20])
def test_the_legend_of_the_losses_lies_outside_the_curves(drawn, tmp_path, epochs):
    losses = [2.0 / (1 + i) for i in range(23 * max(1, epochs))]
    progress = Progress(losses=losses, scores=[0.9 + 0.001 * i for i in range(epochs)])
    recipe = Digits(DigitsOptions(), Data(*[None] * 4))
    pictures.loss_curve(tmp_path / "loss.png", SimpleNamespace(progress=progress, recipe=recipe))
    (figure,) = drawn
    legend = figure.legends[0].get_window_extent()
    assert not any(legend.overlaps(axes.get_window_extent()) for axes in figure.axes)
    assert len(figure.legends[0].get_texts()) == (3 if epochs else 1)

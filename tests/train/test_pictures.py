"""The pictures: nothing is written over the curves, and images lie under their names."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from gtensor.train import pictures
from gtensor.train.digits import Digits
from gtensor.train.progress import Captions, Progress


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
    progress = Progress(epochs, 0, losses, scores=[0.9 + 0.001 * i for i in range(epochs)],
                        ends=[23 * (i + 1) for i in range(epochs)], held_out_losses=losses[:epochs])
    pictures.loss_curve(tmp_path / "loss.png", SimpleNamespace(
        progress=progress, captions=Digits.captions))
    (figure,) = drawn
    legend = figure.legends[0].get_window_extent()
    assert not any(legend.overlaps(axes.get_window_extent()) for axes in figure.axes)
    assert len(figure.legends[0].get_texts()) == (4 if epochs else 1)
    assert len(figure.axes) == (2 if epochs else 1)  # an accuracy has a panel of its own
    if epochs:
        means, scores = figure.axes[0].lines[1], figure.axes[1].lines[0]
        assert means.get_xdata()[0] == 12 and scores.get_xdata()[0] == 23  # its middle, its end
        assert means.get_ydata()[0] == np.mean(losses[:23])
        held_out = figure.axes[0].lines[2]
        assert held_out.get_label() == "held-out loss" and (
            [*held_out.get_ydata()] == losses[:epochs])


def test_the_loss_of_held_out_data_shares_the_panel_of_the_losses(drawn, tmp_path):
    pictures.loss_curve(tmp_path / "loss.png", SimpleNamespace(
        progress=Progress(1, 0, [3.0, 1.0, 2.0], scores=[2.5], ends=[3]), captions=Captions()))
    (axes,) = drawn[0].axes
    assert [line.get_label() for line in axes.lines][-1] == "held-out loss"


def test_a_grid_has_its_images_in_place_and_a_name_over_each_column(drawn, tmp_path):
    images = np.linspace(0, 1, 2 * 3 * 8 * 8).reshape(2, 3, 8, 8)
    pictures.image_grid(tmp_path / "grid.png", images, ["a", "b", "c"], "title")
    (figure,) = drawn
    (axes,) = figure.axes
    shown = axes.images[0]
    assert (shown.get_array()[8:, 16:] == images[1, 2]).all()
    assert shown.norm(0.0) == 0 and shown.norm(1.0) == 1  # whatever is in the images
    assert shown.cmap(0.0)[:3] == (1, 1, 1) and shown.cmap(1.0)[:3] == (0, 0, 0)  # black ink
    picture = axes.get_window_extent()
    for place, label in enumerate(axes.get_xticklabels()):
        box = label.get_window_extent()
        assert label.get_text() == "abc"[place] and box.y0 >= picture.y1
        left = picture.x0 + place * picture.width / 3
        assert left <= box.x0 and box.x1 <= left + picture.width / 3

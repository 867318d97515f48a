"""The pictures: nothing written over the curves, nothing beyond the axes."""

from __future__ import annotations

import pytest

from gtensor.train import pictures
from gtensor.train.accounting import CATEGORIES, Account
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
    progress = Progress(losses=losses, accuracies=[0.9 + 0.001 * i for i in range(epochs)])
    pictures.loss_curve(tmp_path / "loss.png", progress, "digits")
    (figure,) = drawn
    legend = figure.legends[0].get_window_extent()
    assert not any(legend.overlaps(axes.get_window_extent()) for axes in figure.axes)
    assert len(figure.legends[0].get_texts()) == (3 if epochs else 1)


@pytest.mark.parametrize("marks", [(0.3, 0.97, 1.0), (0.5, 0.999, 1.0), (0.3, 0.6, 0.9)])
def test_the_labels_of_the_memory_lie_within_the_axes_and_off_the_lines(drawn, tmp_path, marks):
    times = [0.0, 0.4, 1.0]
    account = Account(times, {name: [2**20, 2**22, 2**20] for name in CATEGORIES},
                      dict(zip(("forward", "backward", "update"), marks, strict=True)), 1.0)
    pictures.memory_timeline(tmp_path / "memory.png", account, "memory")
    axes = drawn[0].axes[0]
    inside = axes.get_window_extent()
    boxes = [text.get_window_extent() for text in axes.texts]
    assert len(boxes) == 4
    for i, box in enumerate(boxes):
        assert inside.x0 < box.x0 and box.x1 < inside.x1 and box.y1 < inside.y1
        assert not any(box.overlaps(other) for other in boxes[:i])
    lines = [segment for drawn_lines in axes.collections if hasattr(drawn_lines, "get_segments")
             for segment in drawn_lines.get_segments()]
    assert len(lines) == 3
    for segment in lines:
        (x, _), (_, top) = axes.transData.transform(segment)
        assert not any(box.x0 < x < box.x1 and box.y0 < top for box in boxes)

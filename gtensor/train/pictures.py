"""The pictures of a run: the loss curve."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np

from gtensor.train.errors import require
from gtensor.train.files import write_atomically
from gtensor.train.trainer import Trainer


def loss_curve(path: Path, trainer: Trainer) -> None:
    """Training loss of every step and its mean by epoch; the held-out score on the right."""
    progress, recipe = trainer.progress, trainer.recipe
    figure, axes = _figure((8, 4.5))
    steps = np.arange(1, len(progress.losses) + 1)
    axes.plot(steps, progress.losses, color="#9fb8d9", linewidth=0.8,
              label="training loss, each step")
    epochs = len(progress.scores)
    if epochs:
        size = len(progress.losses) // epochs
        means = np.reshape(progress.losses[:size * epochs], (epochs, size)).mean(axis=1)
        places = size * np.arange(1, epochs + 1)
        axes.plot(places, means, color="#1f4e8c", marker="o", markersize=3,
                  label="training loss, mean of the epoch")
        right = axes.twinx()
        label = f"held-out {recipe.score_name}"
        right.plot(places, progress.scores, color="#c8553d", marker="s", markersize=3, label=label)
        right.set_ylabel(label + recipe.score_unit, color="#c8553d")
        right.yaxis.set_major_formatter(lambda value, place: recipe.shown(value))
        right.spines["top"].set_visible(False)
    figure.legend(*_handles(*figure.axes), loc="upper center", bbox_to_anchor=(0.5, 0.0), ncols=3,
                  frameon=False)  # below: curves lie anywhere within
    axes.set_yscale("log")
    axes.set_xlabel("step")
    axes.set_ylabel(recipe.loss_name)
    axes.set_title(recipe.title, loc="left")
    _save(figure, path)


def _handles(*many: Any) -> tuple[list[Any], list[str]]:
    """The entries of one legend for several axes."""
    found = [axes.get_legend_handles_labels() for axes in many]
    return sum((handles for handles, _ in found), []), sum((names for _, names in found), [])


def _figure(size: tuple[float, float]) -> tuple[Any, Any]:
    require("matplotlib", "matplotlib")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="tight")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.spines["top"].set_visible(False)
    axes.spines["right"].set_visible(False)
    return figure, axes


def _save(figure: Any, path: Path) -> None:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=130, bbox_inches="tight")
    write_atomically(path, buffer.getvalue())

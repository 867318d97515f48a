"""The pictures of a run: the loss curve, and grids of images."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from gtensor.train.errors import require
from gtensor.train.files import write_atomically

Trainer: TypeAlias = Any  # of train.trainer, which imports this


def loss_curve(path: Path, trainer: Trainer) -> None:
    """Training loss of every step, its mean by epoch at the epoch's middle; what is held out.

    A score that is no loss has a panel of its own below, so that a panel has one kind of axis.
    """
    progress, captions = trainer.progress, trainer.captions
    apart = bool(progress.scores) and not captions.score_is_loss
    figure, panels = _figure((8, 6.2 if apart else 4.5), (3, 2) if apart else (1,))
    axes = panels[0]
    steps = np.arange(1, len(progress.losses) + 1)
    axes.plot(steps, progress.losses, color="#9fb8d9", linewidth=0.8,
              label="training loss, each step")
    if progress.ends:
        spans = [progress.steps_of(i) for i in range(progress.epoch)]
        axes.plot([(span.start + 1 + span.stop) / 2 for span in spans],
                  [np.mean(progress.losses[span]) for span in spans], color="#1f4e8c", marker="o",
                  markersize=3, label="training loss, mean of the epoch")
    held_out = progress.held_out_losses if apart else progress.scores
    if held_out:
        axes.plot(progress.ends, held_out, color="#c8553d", marker="s", markersize=3,
                  label=f"held-out {'loss' if apart else captions.score}")
    if apart:
        panels[-1].plot(progress.ends, progress.scores, color="#3f9b6b", marker="D", markersize=3,
                        label=f"held-out {captions.score}")
        panels[-1].set_ylabel(captions.score)
        panels[-1].yaxis.set_major_formatter(lambda value, place: captions.shown(value))
        panels[-1].grid(axis="y", color="#ececef")
    figure.legend(*_handles(*panels), loc="upper center", bbox_to_anchor=(0.5, 0.0),
                  ncols=2 if apart else 3, frameon=False)  # below: curves lie anywhere within
    if min(*progress.losses, *held_out) > 0:
        axes.set_yscale("log")
        low, high = axes.get_ylim()
        for ticks in ("major", "minor") if high < 30 * low else ("major",):  # others have no room
            getattr(axes.yaxis, f"set_{ticks}_formatter")(  # 3 and not 3 * 10**0
                lambda value, place: f"{value:.3g}")
    panels[-1].set_xlabel("step")
    axes.set_ylabel(captions.loss)
    axes.set_title(captions.title, loc="left")
    _save(figure, path)


def image_grid(path: Path, images: np.ndarray, columns: Sequence[str], title: str) -> None:
    """Images (rows, columns, height, width) in [0, 1], 1 black, with a name over each column."""
    rows, count, height, width = images.shape
    figure, (axes,) = _figure((0.5 * count + 0.2, 0.5 * rows + 0.6))
    axes.imshow(images.transpose(0, 2, 1, 3).reshape(rows * height, count * width), cmap="gray_r",
                vmin=0, vmax=1, interpolation="nearest", extent=(0, count, rows, 0))
    axes.hlines(np.arange(rows + 1), 0, count, color="#c0c8d4", linewidth=1.5, clip_on=False)
    axes.vlines(np.arange(count + 1), 0, rows, color="#c0c8d4", linewidth=1.5, clip_on=False)
    axes.set_xticks(np.arange(count) + 0.5, columns)
    axes.xaxis.tick_top()
    axes.set_yticks([])
    axes.tick_params(length=0, labelsize=8, colors="#505868")
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.set_title(title, loc="left", fontsize=10)
    _save(figure, path)


def _handles(*many: Any) -> tuple[list[Any], list[str]]:
    """The entries of one legend for several axes."""
    found = [axes.get_legend_handles_labels() for axes in many]
    return sum((handles for handles, _ in found), []), sum((names for _, names in found), [])


def _figure(size: tuple[float, float], heights: Sequence[int] = (1,)) -> tuple[Any, list[Any]]:
    """A figure and its panels, one below the other, with these shares of the height."""
    require("matplotlib", "matplotlib")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="tight")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(heights), squeeze=False, sharex=True, height_ratios=heights)
    for axes in panels[:, 0]:
        axes.spines[["top", "right"]].set_visible(False)
    return figure, list(panels[:, 0])


def _save(figure: Any, path: Path) -> None:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=130, bbox_inches="tight")
    write_atomically(path, buffer.getvalue())

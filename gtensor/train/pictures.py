"""The pictures of a run: the loss curve, and where the memory of a step went."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np

from gtensor.train.accounting import CATEGORIES, Account
from gtensor.train.errors import require
from gtensor.train.files import write_atomically
from gtensor.train.trainer import Progress

_COLORS = dict(zip(CATEGORIES, (
    "#4c566a", "#8592ab", "#c3ccd9", "#2a9d8f", "#e9a23b", "#b5637a", "#e76f51"), strict=True))


def loss_curve(path: Path, progress: Progress, title: str) -> None:
    """Training loss of every step and its mean by epoch; held-out accuracy on the right."""
    figure, axes = _figure((8, 4.5))
    steps = np.arange(1, len(progress.losses) + 1)
    axes.plot(steps, progress.losses, color="#9fb8d9", linewidth=0.8,
              label="training loss, each step")
    epochs = len(progress.accuracies)
    if epochs:
        size = len(progress.losses) // epochs
        means = np.reshape(progress.losses[:size * epochs], (epochs, size)).mean(axis=1)
        places = size * np.arange(1, epochs + 1)
        axes.plot(places, means, color="#1f4e8c", marker="o", markersize=3,
                  label="training loss, mean of the epoch")
        right = axes.twinx()
        right.plot(places, 100 * np.array(progress.accuracies), color="#c8553d", marker="s",
                   markersize=3, label="held-out accuracy")
        right.set_ylabel("held-out accuracy (%)", color="#c8553d")
        right.set_ylim(max(0.0, 100 * min(progress.accuracies) - 2), 100.4)
        right.spines["top"].set_visible(False)
    figure.legend(*_handles(*figure.axes), loc="upper center", bbox_to_anchor=(0.5, 0.0), ncols=3,
                  frameon=False)  # below: curves lie anywhere within
    axes.set_yscale("log")
    axes.set_xlabel("step")
    axes.set_ylabel("cross entropy (nats, log scale)")
    axes.set_title(title, loc="left")
    _save(figure, path)


def _handles(*many: Any) -> tuple[list[Any], list[str]]:
    """The entries of one legend for several axes."""
    found = [axes.get_legend_handles_labels() for axes in many]
    return sum((handles for handles, _ in found), []), sum((names for _, names in found), [])


def memory_timeline(path: Path, account: Account, title: str) -> None:
    """Live bytes over one training step, stacked by category."""
    figure, axes = _figure((9, 4.8))
    scale, unit = (2**20, "MiB") if account.peak > 2**21 else (2**10, "KiB")
    times = 1e3 * np.array(account.times)
    rows = [np.array(account.bytes[name]) / scale for name in CATEGORIES]
    labels = [f"{name} ({account.most(name) / scale:.2f} {unit} at most)" for name in CATEGORIES]
    axes.stackplot(times, *rows, labels=labels, step="post",
                   colors=[_COLORS[name] for name in CATEGORIES], linewidth=0)
    peak = account.peak / scale
    axes.axhline(peak, color="#222222", linewidth=0.8, linestyle=":")
    axes.annotate(f"peak {peak:.2f} {unit}", (times[0], peak), (4, 2), textcoords="offset points",
                  fontsize=9, va="bottom")
    for number, (name, time) in enumerate(account.marks.items()):
        height = peak * (1.09 + 0.05 * number)  # rising, so that no line crosses a later label
        axes.vlines(1e3 * time, 0, height, color="#222222", linewidth=0.6)
        axes.annotate(f"{name} ends", (1e3 * time, height), (-4, 0), textcoords="offset points",
                      fontsize=8, ha="right", va="top")
    axes.set_xlim(times[0], times[-1])
    axes.set_ylim(0, peak * 1.21)
    axes.set_xlabel("time in the step (ms)")
    axes.set_ylabel(f"live memory ({unit})")
    axes.set_title(title, loc="left")
    handles, names = axes.get_legend_handles_labels()
    figure.legend(handles[::-1], names[::-1], loc="center left", bbox_to_anchor=(1.0, 0.5),
                  frameon=False, fontsize=9)
    _save(figure, path)


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

"""A recording as a picture: live bytes over time, stacked by category, and the peak's holders."""

from __future__ import annotations

import io
from os.path import basename
from typing import Any

import numpy as np

from gtensor.memory.contract.report import size_text
from gtensor.memory.trace.curves import Curves, colors, curves, envelope
from gtensor.memory.trace.lifetimes import OUT_OF_MEMORY, History, Life, cut, held_by

_FILE = 28  # letters of a file and line that fit
_COLUMNS = 1100  # the plot's width in pixels
_HOLDERS = 6
_NAME, _LINE = 58, 50  # letters of a holder's name that fit, and beside the line that made it
_INK = "#222222"

_Band = tuple[float, float, str]  # from, to, name


def png_file(history: History, title: str = "") -> bytes:
    """The bytes of a `.png` file; the title's default names the device. Needs matplotlib."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.text import Text

    figure = Figure(figsize=(10.5, 6.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes, below = figure.subplots(2, 1, height_ratios=(3.4, 1))
    whole = curves(history)
    peak = history.peak()
    _draw(axes, history, whole, peak, title or f"Live memory of {history.device}")
    _list_holders(below, history, peak)
    for text in figure.findobj(Text):
        text.set_parse_math(False)  # a name with dollars is no formula
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=130)
    return buffer.getvalue()


def _draw(axes: Any, history: History, whole: Curves, peak: int, title: str) -> None:
    drawn = envelope(whole, _COLUMNS)
    totals = whole.totals
    most = int(totals[peak + 1])
    scale, unit = _unit(most)
    span = float(whole.times[-1] - whole.times[0])
    factor, second = (1e3, "ms") if span < 2 else (1.0, "s")
    at_peak = {name: int(size) for name, size in
               zip(whole.categories, whole.rows[:, peak + 1], strict=True)}
    times, rows = drawn.times * factor, drawn.rows / scale
    # to the last mark, as memory may have run out after the last event; 1 without events
    end = max([times[-1], *(mark.time * factor for mark in history.marks)]) or 1.0
    times, rows = np.append(times, end), np.append(rows, rows[:, -1:], axis=1)
    if drawn.categories:
        axes.stackplot(
            times, rows, step="post", linewidth=0, colors=colors(drawn.categories),
            labels=[f"{name}  {size_text(at_peak[name])}" for name in drawn.categories])
    axes.set_ylim(0, most / scale * 1.22 or 1)
    axes.set_xlim(times[0], end)
    _mark_peak(axes, float(whole.times[peak + 1]) * factor, most / scale, size_text(most))
    _mark_phases(axes, history, factor)
    reserved = max((nbytes for _, nbytes in history.reserved()), default=0)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.set_xlabel(f"time ({second})")
    axes.set_ylabel(f"live memory ({unit})")
    title += f", {len(history.times):,} events"
    if reserved:
        title += f", at most {size_text(reserved)} reserved"
    axes.set_title(title, loc="left", fontsize=11)
    handles, names = axes.get_legend_handles_labels()
    axes.legend(handles[::-1], names[::-1], loc="upper left", bbox_to_anchor=(1.0, 1.0),
                frameon=False, fontsize=9, title="at the peak", alignment="left")


def _mark_peak(axes: Any, time: float, height: float, text: str) -> None:
    first, last = axes.get_xlim()
    right = time > first + 0.8 * (last - first)
    axes.plot([time], [height], marker="o", markersize=4, color=_INK, clip_on=False)
    axes.annotate(f"peak {text}", (time, height), (-6 if right else 6, 5),
                  textcoords="offset points", ha="right" if right else "left", fontsize=9,
                  color=_INK, fontweight="bold")


def _mark_phases(axes: Any, history: History, factor: float) -> None:
    """Bands for backward passes and updates, lines where memory ran out."""
    first, last = axes.get_xlim()
    top = axes.get_ylim()[1]
    begun: dict[str, float] = {}
    bands: list[_Band] = []
    for mark in history.marks:
        time = mark.time * factor
        if mark.name == OUT_OF_MEMORY:
            axes.axvline(time, color="#c1121f", linewidth=1)
            right = time > (first + last) / 2
            axes.annotate(f"out of memory: {size_text(mark.nbytes)} wanted", (time, top),
                          (-4 if right else 4, -15), textcoords="offset points", va="top",
                          ha="right" if right else "left", fontsize=8, color="#c1121f")
        elif mark.begins:
            begun[mark.name] = time
        elif mark.name in begun:
            start = begun.pop(mark.name)
            # up to the next band, as far as it shows
            gap = min(0.1 * (time - start), 0.002 * (last - first))
            axes.axvspan(start, time - gap, ymin=0.955, color="#d3d5d9", linewidth=0)
            bands.append((start, time, mark.name))
    for start, end, name in named(bands, last - first):
        axes.annotate(name, ((start + end) / 2, top), (0, -7), textcoords="offset points",
                      ha="center", va="center", fontsize=8, color=_INK)


def named(bands: list[_Band], span: float) -> list[_Band]:
    """The bands that have room for their names in an axis of length `span`.

    A narrow band right after another one shares its name.
    """
    def fits(band: _Band) -> bool:
        return band[1] - band[0] > 0.0075 * len(band[2]) * span

    found: list[_Band] = []
    for band in bands:
        if not fits(band) and found and band[0] - found[-1][1] < 0.01 * span:
            joined = found[-1][0], band[1], f"{found[-1][2]}, {band[2]}"
            if fits(joined):
                found[-1] = joined
        elif fits(band):
            found.append(band)
    return found


def _list_holders(axes: Any, history: History, peak: int) -> None:
    """List the holders of the peak: op, module, the line if it is known; most bytes first."""
    axes.axis("off")
    live = history.live_at(peak)
    shown = cut(held_by(live, _holder_and_line), _HOLDERS)
    axes.text(0, 1.0, "Who held the peak", fontsize=10, fontweight="bold", color=_INK,
              transform=axes.transAxes, va="top")
    for row, held in enumerate(shown):
        height = 0.83 - 0.13 * row
        name, _, line = held.name.partition("\t")
        most = _LINE if line else _NAME
        name = name if len(name) <= most else name[:most - 3] + "..."
        for place, text, side in ((0.13, size_text(held.size), "right"), (0.15, name, "left"),
                                  (0.62, line, "left"), (0.9, f"{held.blocks:,}", "right"),
                                  (0.91, "block" if held.blocks == 1 else "blocks", "left")):
            axes.text(place, height, text, ha=side, va="top", fontsize=9, color=_INK,
                      transform=axes.transAxes)


def _holder_and_line(life: Life) -> str:
    """The holder, and after a tab the file and the line that made it."""
    if life.source is None:
        return life.holder
    line = f"{basename(life.source.file)}:{life.source.line}"
    return f"{life.holder}\t{line if len(line) <= _FILE else '...' + line[3 - _FILE:]}"


def _unit(nbytes: int) -> tuple[int, str]:
    for power, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if nbytes >= 2 << power:
            return 1 << power, unit
    return 1, "B"

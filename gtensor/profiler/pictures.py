"""Profiles as pictures: time by module (an icicle), and ops under the machine's ceilings."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from gtensor.profiler.table import own_times, quantity, rows, time_text

if TYPE_CHECKING:
    from gtensor.profiler.spans import Recorded

_PHASES = {"forward": "#4c86c6", "backward": "#d9822b", "update": "#3f9b6b"}
_MODULE, _INK, _SOFT = "#dfe5ec", "#20242a", "#6b7280"
_LEAST = 0.004  # of the width; narrower boxes would be lines
_LETTER = 0.0068  # of the width, of a name in a box
_LEAST_TIME = 1e-3  # of all ops' time


def require_matplotlib() -> None:
    """Raise ModuleNotFoundError, in a sentence, without matplotlib."""
    if find_spec("matplotlib") is None:
        raise ModuleNotFoundError("a picture of a profile needs matplotlib, which is not "
                                  "installed; pip install matplotlib, or write the page: "
                                  "profile.html('profile.html')")


class _Box:
    """A module, or an op in it: its time, and what is within."""

    def __init__(self, colour: str = _MODULE) -> None:
        self.seconds = 0.0
        self.colour = colour
        self.inner: dict[str, _Box] = {}


def _boxes(recorded: Recorded) -> _Box:
    """The time of ops by phase, module and name, nested."""
    root = _Box()
    for span, (host, device) in zip(recorded.spans, own_times(recorded.spans), strict=True):
        if span.kind != "op":
            continue
        seconds = host if span.device_seconds is None else device
        colour = _PHASES.get(span.phase, _SOFT)
        path = [span.phase, *(span.module.split(".") if span.module else ["(outside modules)"]),
                span.name]
        box = root
        box.seconds += seconds
        for depth, name in enumerate(path):
            inner = depth < len(path) - 1
            box = box.inner.setdefault(name + "." * inner, _Box(_MODULE if inner else colour))
            box.seconds += seconds
    return root


def flame(recorded: Recorded) -> bytes:
    """The PNG of the time by phase, module and op; the width of a box is its time."""
    root = _boxes(recorded)
    placed = [*_placed("all ops.", root, 0.0, 0, root.seconds or 1.0)]
    levels = 1 + max(level for _, _, _, _, level in placed)
    figure, axes = _figure((13, 0.42 * levels + 1.1))
    figure.draw_without_rendering()
    for name, box, left, width, level in placed:
        axes.barh(-level, width, left=left, height=0.94, color=box.colour, edgecolor="white",
                  linewidth=0.8)
        title = name.removesuffix(".")
        share = f"{title}  {time_text(box.seconds)}, {100 * width:.0f} %"
        fits = int(width / _LETTER)
        text = share if len(share) <= fits else title if len(title) <= fits else (
            title[:fits - 1] + "…" if fits > 2 else "")
        axes.text(left + 0.003, -level, text, va="center", fontsize=8.5, clip_on=True,
                  color=_INK if box.colour == _MODULE else "white")
    axes.set_xlim(0, 1)
    axes.set_ylim(-levels + 0.45, 0.6)
    axes.axis("off")
    for phase, colour in _PHASES.items():
        axes.bar(0, 0, color=colour, label=phase)
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=3, frameon=False, fontsize=9,
                borderaxespad=0)
    axes.set_title(_title(recorded, "Time by phase, module and op"), loc="left", fontsize=11)
    return _png(figure)


def _placed(
    name: str, box: _Box, left: float, level: int, total: float
) -> Iterator[tuple[str, _Box, float, float, int]]:
    """Name, box, left edge, width and level of each box, widest first within its own."""
    width = box.seconds / total
    yield name, box, left, width, level
    for inner_name, inner in sorted(box.inner.items(), key=lambda item: -item[1].seconds):
        if inner.seconds / total >= _LEAST:
            yield from _placed(inner_name, inner, left, level + 1, total)
        left += inner.seconds / total


def roofline(recorded: Recorded, most: int = 12) -> bytes:
    """The PNG of ops under the ceilings: operations per byte and per second.

    Ops of less than a thousandth of the time are left out; the `most` slowest have their names.
    """
    ceilings = recorded.machine.get("ceilings", {})
    bandwidth, peak = ceilings.get("bytes_per_second"), ceilings.get("flops_per_second")
    found = [row for row in rows(recorded.spans) if row.flops and row.moved and row.time > 0]
    total = sum(row.time for row in found) or 1.0
    found = [row for row in found if row.time >= _LEAST_TIME * total]
    figure, axes = _figure((9, 6))
    intensity = [row.flops / row.moved for row in found]
    low, high = min([0.03, *intensity]) / 2, max([100.0, *intensity]) * 2
    high = max(high, 2 * peak / bandwidth) if bandwidth and peak else high
    rates = [row.flops / row.time for row in found]
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(low, high)
    axes.set_ylim(min([1e6, *rates]) / 3, max([peak or 1e9, *rates]) * 3)
    areas = [30 + 900 * row.time / total for row in found]  # square points
    axes.scatter(intensity, rates, s=areas, alpha=0.75, linewidths=0,
                 color=[_colour(row.name) for row in found])
    axes.set_xlabel("operations per byte, by the ops' definitions")
    axes.set_ylabel("operations per second")
    for name, colour in _PHASES.items():
        axes.scatter([], [], color=colour, label=name)
    axes.legend(loc="lower right", frameon=False, title="area: share of the time")
    axes.grid(True, which="major", color="#ececef")
    axes.set_axisbelow(True)
    axes.set_title(_title(recorded, "Ops under this machine's ceilings"), loc="left", fontsize=11)
    figure.draw_without_rendering()  # from here on the layout is known
    notes = _roof(axes, bandwidth, peak) if bandwidth and peak else []
    _label(figure, axes, [(row.name, *place) for row, place in zip(
        found[:most], zip(intensity, rates, areas, strict=True), strict=False)], notes)
    return _png(figure)


def _roof(axes: Any, bandwidth: float, peak: float) -> list[Any]:
    """Draw the ceilings and what they are; the texts."""
    (low, high), knee = axes.get_xlim(), peak / bandwidth
    axes.plot([low, knee, high], [low * bandwidth, peak, peak], color=_INK, linewidth=1.4)
    (x0, y0), (x1, y1) = axes.transData.transform([(low, low * bandwidth), (knee, peak)])
    return [
        axes.text(2 * low, 2.6 * low * bandwidth, f"copy: {quantity(bandwidth)}B/s", fontsize=9,
                  rotation=math.degrees(math.atan2(y1 - y0, x1 - x0)), rotation_mode="anchor",
                  color=_SOFT),
        axes.text(high / 1.1, peak * 1.12, f"float32 matrix product: {quantity(peak)}FLOP/s",
                  fontsize=9, color=_SOFT, ha="right")]


def _colour(name: str) -> str:
    """Of an op and its phase."""
    return _PHASES.get(name.split()[-1], _SOFT)


def _label(figure: Any, axes: Any, points: list[tuple[str, float, float, float]],
           notes: list[Any]) -> None:
    """Names beside points (x, y, area), each where it first covers no text or point; else none."""
    from matplotlib.transforms import Bbox

    renderer, pixel = figure.canvas.get_renderer(), figure.dpi / 72
    taken = [note.get_window_extent(renderer) for note in notes]
    for _, x, y, area in points:
        (left, low), half = axes.transData.transform((x, y)), area**0.5 / 2.2 * pixel
        taken.append(Bbox([[left - half, low - half], [left + half, low + half]]))
    bounds = axes.get_window_extent(renderer)
    for name, x, y, _ in points:
        for dx, dy in ((13, 5), (13, -13), (-13, 5), (-13, -13), (13, 18), (13, -26), (-13, 18),
                       (-13, -26)):
            text = axes.annotate(name, (x, y), (dx, dy), textcoords="offset points", fontsize=8,
                                 ha="left" if dx > 0 else "right", color=_colour(name))
            box = text.get_window_extent(renderer)
            if not any(box.overlaps(other) for other in taken) and (
                    bounds.x0 <= box.x0 and box.x1 <= bounds.x1):
                taken.append(box)
                break
            text.remove()


def _title(recorded: Recorded, what: str) -> str:
    machine = recorded.machine
    return f"{what}: {machine.get('device', '?')} ({machine.get('name', '?')})"


def _figure(size: tuple[float, float]) -> tuple[Any, Any]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(size, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _png(figure: Any) -> bytes:
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=120)
    return file.getvalue()

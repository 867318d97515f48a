"""Profiles as pictures: time by module (an icicle), and ops under the machine's ceilings."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from gtensor.profiler.table import own_times, quantity, rows, time_text

if TYPE_CHECKING:
    from gtensor.profiler.spans import Recorded

# Of boxes and points; dark text is read on all of them.
_PHASES = {"forward": "#5b93d1", "backward": "#d9822b", "update": "#3f9b6b"}
_MODULE, _OTHER = "#dfe5ec", "#9aa3af"
_INK, _SOFT = "#20242a", "#6b7280"  # of texts and lines
_LEAST = 0.004  # of the width; narrower boxes would be lines
_GAP = 4  # pixels between a name in a box and its edges
_LEAST_TIME = 1e-3  # of all ops' time
_DECADES = 5  # of rates below the peak, and of operations per byte, that have room
_LEAST_INTENSITY = 0.01


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
        colour = _PHASES.get(span.phase, _OTHER)
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
    axes.set_xlim(0, 1)
    axes.set_ylim(-levels + 0.45, 0.6)
    axes.axis("off")
    for phase, colour in _PHASES.items():
        axes.bar(0, 0, color=colour, label=phase)
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=3, frameon=False, fontsize=9,
                borderaxespad=0)
    axes.set_title(_title(recorded, "Time by phase, module and op"), loc="left", fontsize=11)
    _lay_out(figure)
    whole = axes.get_window_extent().width
    for name, box, left, width, level in placed:
        axes.barh(-level, width, left=left, height=0.94, color=box.colour, edgecolor="white",
                  linewidth=0.8)
        title = name.removesuffix(".")
        text = axes.text(left + _GAP / whole, -level, "", va="center", fontsize=8.5,
                         parse_math=False, color=_INK)
        _fit(text, width * whole - 2 * _GAP, [
            f"{title}  {time_text(box.seconds)}, {100 * width:.0f} %",
            *(title[:end] + "…" * (end < len(title)) for end in range(len(title), 1, -1))])
    return _png(figure)


def _fit(text: Any, room: float, choices: list[str]) -> None:
    """Write the first of the choices that is at most `room` pixels wide; none if none is."""
    for choice in choices:
        text.set_text(choice)
        if text.get_window_extent().width <= room:
            return
    text.remove()


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


def roofline(recorded: Recorded) -> bytes:
    """The PNG of ops under the ceilings: operations per byte and per second.

    Ops of less than a thousandth of the time are left out. What lies far from the others is drawn
    at the edge, as a triangle that points to it.
    """
    ceilings = recorded.machine.get("ceilings", {})
    bandwidth, peak = ceilings.get("bytes_per_second"), ceilings.get("flops_per_second")
    found = [row for row in rows(recorded.spans) if row.flops and row.moved and row.time > 0]
    total = sum(row.time for row in found) or 1.0
    found = [row for row in found if row.time >= _LEAST_TIME * total]
    figure, axes = _figure((9, 6))
    places = [(row.flops / row.moved, row.flops / row.time) for row in found]
    most = peak or max([1e9, *(rate for _, rate in places)])
    knee = peak / bandwidth if bandwidth and peak else 1.0
    right = max([100.0, 2 * knee, *(min(x, 1e4) for x, _ in places)]) * 2
    left = max(_LEAST_INTENSITY, right / 10**_DECADES)
    low, high = most / 10**_DECADES, most * 3
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(left, right)
    axes.set_ylim(low, high)
    axes.set_xlabel("operations per byte, by the ops' definitions")
    axes.set_ylabel("operations per second")
    points = []
    for row, (x, y) in zip(found, places, strict=True):
        area = 30 + 900 * row.time / total  # square points
        inside = (min(max(x, left * 1.06), right / 1.06), min(max(y, low * 1.12), high / 1.12))
        marker = ("<" if x < left else ">" if x > right else "v" if y < low
                  else "^" if y > high else "o")
        area = area if marker == "o" else 60
        axes.scatter(*inside, s=area, alpha=0.75, linewidths=0, marker=marker,
                     color=_PHASES.get(row.name.split()[-1], _OTHER))
        points.append((row.name, *inside, area))
    for name, colour in _PHASES.items():
        axes.scatter([], [], color=colour, label=name)
    axes.scatter([], [], color=_SOFT, marker="<", label="beyond the edge")
    legend = axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False,
                         title="area: share\nof the time", alignment="left")
    axes.grid(True, which="major", color="#ececef")
    axes.set_axisbelow(True)
    axes.set_title(_title(recorded, "Ops under this machine's ceilings"), loc="left", fontsize=11)
    _lay_out(figure)
    roof = _roof(axes, bandwidth, peak) if bandwidth and peak else np.empty((0, 4))
    _label(axes, points, np.vstack([roof, legend.get_window_extent().extents]))
    return _png(figure)


def _roof(axes: Any, bandwidth: float, peak: float) -> Any:
    """Draw the ceilings and what they are; the boxes that they take, in pixels."""
    (low, high), knee = axes.get_xlim(), peak / bandwidth
    bottom = axes.get_ylim()[0]
    start = max(low, bottom / bandwidth)  # where the slope comes into the picture
    middle = math.sqrt(start * knee)
    corners = [(start, start * bandwidth), (knee, peak), (high, peak)]
    axes.plot(*zip(*corners, strict=True), color=_INK, linewidth=1.4)
    ends = axes.transData.transform(corners)
    (x0, y0), (x1, y1), _ = ends
    texts = [
        axes.annotate(f"copy: {quantity(bandwidth)}B/s", (middle, middle * bandwidth), (-3, 5),
                      textcoords="offset points", fontsize=9, ha="center",
                      rotation=math.degrees(math.atan2(y1 - y0, x1 - x0)),
                      rotation_mode="anchor", color=_SOFT),
        axes.annotate(f"float32 matrix product: {quantity(peak)}FLOP/s", (high, peak), (-4, 5),
                      textcoords="offset points", fontsize=9, color=_SOFT, ha="right")]
    return np.vstack([_along(*ends[:2]), _along(*ends[1:]),
                      *(text.get_window_extent().extents for text in texts)])


def _along(begin: Any, end: Any) -> Any:
    """Small boxes along a line."""
    places = np.linspace(begin, end, 100)
    return np.hstack([places - 2, places + 2])


def _label(axes: Any, points: list[tuple[str, float, float, float]], taken: Any) -> None:
    """Names of points (x, y, area), each in the nearest place that covers no text, line or point.

    A name that is not beside its point has a line to it. Where there are so many that none has
    such a place, names may cover lines and points. `taken` are boxes (left, low, right, high) in
    pixels, as all here.
    """
    pixel = axes.figure.dpi / 72
    left, low, right, high = axes.get_window_extent().extents
    written = taken
    for _, x, y, area in points:
        centre, half = axes.transData.transform((x, y)), area**0.5 / 2 * pixel
        taken = np.vstack([taken, [*(centre - half), *(centre + half)]])
    for name, x, y, area in points:
        centre = axes.transData.transform((x, y))
        text = axes.annotate(
            name, (x, y), (0, 0), textcoords="offset points", fontsize=8, color=_INK,
            va="center", parse_math=False, arrowprops={
                "arrowstyle": "-", "color": _SOFT, "linewidth": 0.6, "shrinkA": 0, "shrinkB": 0})
        text.arrow_patch.set_visible(False)
        size = text.get_window_extent().size
        for covered, (ring, (dx, dy)) in product((taken, written), _around(area**0.5 / 2 + 3)):
            corner = centre + np.multiply((dx, dy), pixel) - size * (dx < 0, 0.5)
            box = np.hstack([corner - 1, corner + size + 1])
            line = _along(centre, centre + np.multiply((dx, dy), pixel))[:100 * (ring > 0)]
            if (left <= box[0] and low <= box[1] and box[2] <= right and box[3] <= high
                    and not _overlap(box[None], covered)
                    and (covered is written or not _overlap(line, written))):
                text.set_position((dx, dy))
                text.set_ha("left" if dx > 0 else "right")
                text.arrow_patch.set_visible(ring > 0)
                taken, written = np.vstack([taken, box, line]), np.vstack([written, box])
                break
        else:
            text.remove()


def _overlap(some: Any, others: Any) -> bool:
    """Whether one of these boxes overlaps one of those."""
    low, high = np.maximum(some[:, None, :2], others[:, :2]), np.minimum(
        some[:, None, 2:], others[:, 2:])
    return bool((low < high).all(axis=-1).any())


def _around(near: float) -> Iterator[tuple[int, tuple[float, float]]]:
    """Places around a point, in points of the picture, beside it first; each with its ring."""
    for ring in range(60):
        for angle in (0, 180, 30, 150, -30, -150, 60, 120, -60, -120, 85, -85, 15, 165, -15, -165):
            turn, reach = math.radians(angle), near + 9 * ring
            yield ring, (reach * math.cos(turn), reach * math.sin(turn))


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


def _lay_out(figure: Any) -> None:
    """Find the places of everything, and keep them from here on."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")


def _png(figure: Any) -> bytes:
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=120)
    return file.getvalue()

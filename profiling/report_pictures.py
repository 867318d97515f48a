"""Ratios as pictures: bars where there are few, a sorted curve where there are many.

A picture's metadata has a digest of what it shows, so that one of other ratios is found.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Sequence
from typing import Any, NamedTuple

from ladder import Spread

MOST_BARS = 30
_QUICK, _SLOW, _INK = "#2f6690", "#d9a05b", "#20242a"  # dark and light: apart without colour, too
_NAMED = 4  # ratios at each end of a curve that have their names


class Bar(NamedTuple):
    """A ratio, what it is of, and its target. Bars of one group stand under its name."""

    name: str
    spread: Spread
    target: float | None = None
    group: str = ""


def picture(title: str, bars: Sequence[Bar]) -> bytes:
    """The PNG of these ratios."""
    figure = _bars(title, bars) if len(bars) <= MOST_BARS else _curve(title, bars)
    return _png(figure, _digest(title, bars))


def shows(png: bytes, title: str, bars: Sequence[Bar]) -> bool:
    """Whether a picture was made of these ratios; its metadata is text within the PNG."""
    return b"Description\0" + _digest(title, bars).encode() in png


def _digest(title: str, bars: Sequence[Bar]) -> str:
    return hashlib.sha256(repr((title, list(bars))).encode()).hexdigest()


def _bars(title: str, bars: Sequence[Bar]) -> Any:
    """Bars from 1.0 to each ratio, with quartiles and target."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    lines = _lines(bars)
    figure, axes = _figure((9.5, 0.3 * len(lines) + 1.4))
    for place, line in enumerate(lines):
        if isinstance(line, str):
            continue
        _, spread, target, _ = line
        quick = spread.median <= 1
        axes.barh(place, spread.median - 1, left=1, height=0.66, edgecolor=_INK, linewidth=0.6,
                  color=_QUICK if quick else _SLOW, hatch="" if quick else "///")
        for colour, width in (("white", 4.0), (_INK, 1.8)):
            axes.plot((spread.low, spread.high), (place, place), color=colour, linewidth=width,
                      solid_capstyle="butt")
        if target:
            axes.plot(target, place, marker="D", markersize=5.5, markerfacecolor="white",
                      markeredgecolor=_INK, linestyle="")
        end = max(1.0, spread.high, target or 0)
        axes.annotate(f"{spread.median:.2f}", (end, place), (7, 0), textcoords="offset points",
                      va="center", fontsize=8.5)
    values = [1.0, *(value for bar in bars
                     for value in (bar.spread.low, bar.spread.high, bar.target) if value)]
    least, most = min(values), max(values)
    beside = (most / least) ** 0.12
    axes.set_xlim(least / beside**0.3, most * beside)  # with room for the last number
    axes.set_ylim(len(lines) - 0.4, -0.6)
    axes.set_yticks(range(len(lines)), [line if isinstance(line, str) else line.name
                                        for line in lines], fontsize=8.5)
    for label, line in zip(axes.get_yticklabels(), lines, strict=True):
        label.set_fontweight("bold" if isinstance(line, str) else "normal")
    axes.tick_params(axis="y", length=0)
    _logarithmic(axes, "x")
    axes.axvline(1, color=_INK, linewidth=1.2)
    figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    handles = [Patch(facecolor=_QUICK, edgecolor=_INK, label="less than the peer"),
               Patch(facecolor=_SLOW, edgecolor=_INK, hatch="///", label="more"),
               Line2D([], [], color=_INK, linewidth=1.6, label="quartiles")]
    if any(bar.target for bar in bars):
        handles.append(Line2D([], [], marker="D", linestyle="", markerfacecolor="white",
                              markeredgecolor=_INK, markersize=5.5, label="target, at most"))
    figure.legend(handles=handles, loc="outside lower right", ncols=4, frameon=False, fontsize=8.5)
    return figure


def _lines(bars: Sequence[Bar]) -> list[Bar | str]:
    """The bars, each group below its name."""
    found: list[Bar | str] = []
    group = ""
    for bar in bars:
        if bar.group != group:
            group = bar.group
            found.append(group)
        found.append(bar)
    return found


def _curve(title: str, bars: Sequence[Bar]) -> Any:
    """All ratios in order, the ends named."""
    figure, axes = _figure((11.5, 4.6))
    ordered = sorted(bars, key=lambda bar: bar.spread.median)
    places = range(len(ordered))
    axes.vlines(places, [bar.spread.low for bar in ordered], [bar.spread.high for bar in ordered],
                color="#b9c2cc", linewidth=1.5)
    axes.plot(places, [bar.spread.median for bar in ordered], color=_QUICK, marker=".",
              markersize=4, linestyle="")
    axes.axhline(1, color=_INK, linewidth=1.2)
    _logarithmic(axes, "y")
    axes.set_xlabel(f"{len(ordered)} measurements, in order; bars are quartiles")
    below = sum(bar.spread.median <= 1 for bar in ordered)
    axes.set_title(f"{title}: {below} of {len(ordered)} at most 1", loc="left", fontsize=11)
    for heading, some, height, side in (("most", ordered[:-_NAMED - 1:-1], 1.0, "top"),
                                        ("least", ordered[:_NAMED], 0.0, "bottom")):
        lines = [f"{bar.spread.median:.2f}  {bar.group}\n          {bar.name}" for bar in some]
        axes.text(1.02, height, "\n".join([heading, *lines]), transform=axes.transAxes, va=side,
                  fontsize=8, linespacing=1.3)
    return figure


def _logarithmic(axes: Any, name: str) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter

    getattr(axes, f"set_{name}scale")("log")
    getattr(axes, f"set_{name}label")("time / the peer's time")
    own = getattr(axes, f"{name}axis")
    first, last = own.get_view_interval()
    reach = last / first
    steps = (1.0, 1.5, 2.0, 3.0, 5.0) if reach < 15 else (1.0, 2.0, 5.0) if reach < 1e3 else (1.0,)
    own.set_major_locator(LogLocator(subs=steps))
    own.set_major_formatter(lambda value, place: f"{value:g}")  # 0.1 and not 10**-1
    own.set_minor_formatter(NullFormatter())
    axes.grid(axis=name, color="#dfe3e8", linewidth=0.7)
    axes.set_axisbelow(True)


def _figure(size: tuple[float, float]) -> tuple[Any, Any]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return figure, axes


def _png(figure: Any, digest: str) -> bytes:
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        text.set_parse_math(False)  # a name with dollars is no formula
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=100, metadata={"Description": digest})
    return buffer.getvalue()

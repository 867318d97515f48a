"""A recording as an HTML page: live bytes over time to hover and zoom, and their holders.

The file is self-contained: it loads no script or font. It has the events as numbers; for each pixel
column the page draws the points with the most and the fewest bytes.
"""

from __future__ import annotations

from typing import Any

from gtensor.memory.arena.layout import fragmentation
from gtensor.memory.trace.curves import colors
from gtensor.memory.trace.lifetimes import CATEGORIES, History
from gtensor.system.pages import page


def html_file(history: History) -> bytes:
    """The bytes of a `.html` file."""
    return page("gtensor.memory.trace", "timeline_page", _data(history))


def _data(history: History) -> dict[str, Any]:
    """The script's input: blocks as columns of numbers; times in microseconds, -1 for none."""
    categories = history.categories
    last = history.time_of(len(history.times) - 1)  # the axis ends there; marks may be later
    number = {name: n for n, name in enumerate(categories)}
    who: dict[tuple[str, str, int, str, str], int] = {}
    makers = [who.setdefault((life.op, life.module, number[life.category], str(life.source or ""),
                              life.holder), len(who)) for life in history.lives]
    return {
        "device": history.device,
        "categories": [{"name": name, "color": color, "doc": CATEGORIES.get(name, "")}
                       for name, color in zip(categories, colors(categories), strict=True)],
        "times": [round(time * 1e6) for time in history.times],
        "who": list(who),
        "maker": makers,
        "size": [life.size for life in history.lives],
        "made": [-1 if life.made is None else life.made for life in history.lives],
        "freed": [-1 if life.freed is None else life.freed for life in history.lives],
        "marks": [{**mark._asdict(), "time": round(min(mark.time, last) * 1e6)}
                  for mark in history.marks],
        "reserved": history.reserved() if history.segments else [],
        "fragmentation": f"{fragmentation(history.segments):.1f} %" if history.segments else "-",
    }

"""Live bytes over time as numbers to draw: one row per category, fewer points than events."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gtensor.memory.contract.report import size_text
from gtensor.memory.trace.lifetimes import History, held_by
from gtensor.system import notebook

_COLORS = {
    "parameters": "#4f77b5", "optimizer": "#86a8d9", "data": "#8d7cc3", "earlier": "#98a1ad",
    "gradients": "#e0a030", "saved": "#2a9d8f", "workspace": "#b5637a", "temporary": "#e76f51"}
_FURTHER = ("#6a994e", "#c08552", "#5e9aa8", "#a1869e")  # for the names that users give


def colors(categories: list[str]) -> list[str]:
    """A colour for each category, the same in every picture, for light and dark backgrounds."""
    given = [name for name in categories if name not in _COLORS]
    return [_COLORS.get(name) or _FURTHER[given.index(name) % len(_FURTHER)]
            for name in categories]


@dataclass(frozen=True)
class Curves:
    """Live bytes: `rows[c, k]` of category c from `times[k]` on; k = 0 is before all events."""

    categories: list[str]
    times: np.ndarray
    rows: np.ndarray  # (categories, events + 1)

    @property
    def totals(self) -> np.ndarray:
        """All categories together."""
        total: np.ndarray = self.rows.sum(axis=0)
        return total


def curves(history: History) -> Curves:
    """The live bytes of each category, after each event."""
    categories = history.categories
    number = {name: n for n, name in enumerate(categories)}
    rows = np.zeros((len(categories), len(history.times) + 1), np.int64)
    for life in history.lives:
        row = rows[number[life.category]]
        row[0 if life.made is None else life.made + 1] += life.size
        if life.freed is not None:
            row[life.freed + 1] -= life.size
    times = np.array([0.0, *history.times])
    return Curves(categories, times, rows.cumsum(axis=1))


def envelope(found: Curves, columns: int) -> Curves:
    """Of each of `columns` equal time intervals, the point with most bytes and the last point.

    So the peak is kept, and each interval continues from the end of the one before.
    """
    if len(found.times) <= 2 * columns:
        return found
    first, last = found.times[0], found.times[-1]
    column = np.minimum((found.times - first) * (columns / max(last - first, 1e-12)),
                        columns - 1).astype(int)
    order = np.lexsort((-found.totals, column))
    _, starts = np.unique(column[order], return_index=True)
    lasts = np.append(np.flatnonzero(np.diff(column)), len(column) - 1)
    kept = np.union1d(order[starts], lasts)
    return Curves(found.categories, found.times[kept], found.rows[:, kept])


def html(history: History, columns: int = 60) -> str:
    """See `Timeline._repr_html_`."""
    found = envelope(curves(history), columns)
    tints = dict(zip(found.categories, colors(found.categories), strict=True))
    held = held_by(history.live_at(history.peak()), lambda life: life.category)
    count, seconds = len(history.times), history.time_of(len(history.times) - 1)
    return notebook.titled(
        f"{history.device}: {count:,} events in {seconds:.3g} s, "
        f"{size_text(sum(one.size for one in held))} at the peak",
        notebook.areas(found.times.tolist(), found.rows.tolist(), [*tints.values()]),
        notebook.table(("at the peak", "size", "blocks"),
                       [(one.name, size_text(one.size), f"{one.blocks:,}") for one in held],
                       [tints[one.name] for one in held]))

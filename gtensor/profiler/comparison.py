"""Two profiles beside each other: what changed, largest change first."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median, quantiles
from typing import TYPE_CHECKING

from gtensor.profiler.table import (
    Row,
    drawn,
    fits,
    name_text,
    new_grid,
    of_steps,
    require_rich,
    rows,
    steps_of,
    time_text,
    times_by_step,
)

if TYPE_CHECKING:
    from gtensor.profiler.profiles import Profile

_SPARE = "change", "calls", "a step", "before"  # columns that go first where there is no room
_QUARTERS = 4  # steps, from which on there are quartiles
_FIRST = 3  # times the median of the other steps: a first step with first calls


def changes(before: Profile, after: Profile, group_by: str = "op") -> list[tuple[Row, Row]]:
    """The ops of each group in both profiles, by how much their time differs, largest first.

    A group that one of them lacks has an empty row there.
    """
    first, second = ({row.name: row for row in rows(p.spans, group_by)} for p in (before, after))
    pairs = [(first.get(name, Row(name)), second.get(name, Row(name)))
             for name in {**first, **second}]
    return sorted(pairs, key=lambda pair: -abs(pair[1].time - pair[0].time))


def compare(before: Profile, after: Profile, group_by: str = "op", most: int = 15,
            width: int = 100) -> str:
    """What changed from one profile to another, as a table of text.

    Times are those of the device that worked. Of profiles of four steps or more each, the last
    column is the ratio of a step between the quartiles: a change is told from noise where 1x lies
    outside. A "*" marks a time of which the first step took more than three times the median of
    the others: it has first calls, which compile kernels and get memory.

    Raises ValueError for another group than "op", "module", "phase" and "line",
    ModuleNotFoundError without rich.
    """
    require_rich()
    found = changes(before, after, group_by)
    steps = [times_by_step(p.spans, group_by) for p in (before, after)]
    noisy = all(steps_of(p.spans) >= _QUARTERS for p in (before, after))
    shown = ["calls", "before", "after", "change", "ratio", *["a step"] * noisy]
    lines = []
    for one, other in found[:most]:
        each = [times.get(one.name, []) for times in steps]
        cells = dict(zip(shown, [*_cells(one, other), _range(*each)], strict=False))
        for head, times in zip(("before", "after"), each, strict=True):
            cells[head] += " *" * _has_first_calls(times)
        lines.append((name_text(one, group_by), cells))
    for spare in _SPARE:
        if not fits(([head, *(cells[head] for _, cells in lines)] for head in shown), width):
            shown = [head for head in shown if head != spare]
    grid = new_grid(group_by, shown, width)
    for name, cells in lines:
        grid.add_row(name, *(cells[head] for head in shown))
    marked = any("*" in cells[head] for _, cells in lines for head in shown)
    note = (
        "\n* the first step took more than three times the others, with first calls; --steps "
        "leaves it out" * marked)
    return drawn(_title(found, before, after), grid, width) + note


def _range(before: Sequence[float], after: Sequence[float]) -> str:
    """The least and the largest ratio of times between the quartiles: "0.95x-1.08x"."""
    if min(len(before), len(after)) < _QUARTERS:
        return ""
    (low, _, high), (least, _, most) = (
        quantiles(times, n=4, method="inclusive") for times in (before, after))
    return f"{least / high:.2f}x-{most / low:.2f}x" if low > 0 else "-"


def _has_first_calls(times: Sequence[float]) -> bool:
    return len(times) >= _QUARTERS and times[0] > _FIRST * median(times[1:]) > 0


def _cells(one: Row, other: Row) -> Sequence[str]:
    ratio = "new" if not one.calls else "gone" if not other.calls else (
        f"{other.time / one.time:.2f}x" if one.time else "-")
    difference = other.time - one.time
    calls = f"{one.calls:,}" if one.calls == other.calls else f"{one.calls:,} > {other.calls:,}"
    return (calls, time_text(one.time), time_text(other.time),
            f"{'+' if difference > 0 else ''}{time_text(difference)}", ratio)


def _title(found: Sequence[tuple[Row, Row]], before: Profile, after: Profile) -> str:
    first, second = (sum(pair[side].time for pair in found) for side in (0, 1))
    devices = [str(p.machine.get("device", "?")) for p in (before, after)]
    note = "" if devices[0] == devices[1] else f" ({devices[0]} against {devices[1]})"
    ratio = f", {second / first:.2f}x" if first else ""
    return (f"All ops: {time_text(first)}{of_steps(before.spans)} before, {time_text(second)}"
            f"{of_steps(after.spans)} after{ratio}{note}")

"""Two profiles beside each other: what changed, largest change first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gtensor.profiler.table import (
    Row,
    drawn,
    name_text,
    new_grid,
    of_steps,
    require_rich,
    rows,
    time_text,
)

if TYPE_CHECKING:
    from gtensor.profiler.profiles import Profile


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

    Times are those of the device that worked. Raises ValueError for another group than "op",
    "module", "phase" and "line", ModuleNotFoundError without rich.
    """
    require_rich()
    found = changes(before, after, group_by)
    grid = new_grid(group_by, ("calls", "before", "after", "change", "ratio"))
    for one, other in found[:most]:
        grid.add_row(name_text(one, group_by), *_cells(one, other))
    return drawn(_title(found, before, after), grid, width)


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

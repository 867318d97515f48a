"""Profiles as tables: what took the time, by op, by module or by the user's line."""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

from gtensor.memory.contract.report import size_text
from gtensor.system.files import brief

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from gtensor.profiler.spans import Recorded, Span

GROUPS: dict[str, Callable[[Span], str]] = {
    "op": lambda span: f"{span.name} {span.phase}",
    "module": lambda span: span.module or "(outside modules)",
    "phase": lambda span: span.phase,
    "line": lambda span: span.source or "(unknown)",
}
ORDERS: dict[str, Callable[[Row], float]] = {
    "time": lambda row: row.time, "calls": lambda row: row.calls,
    "launches": lambda row: row.launches, "bytes": lambda row: row.moved,
    "flops": lambda row: row.flops, "allocations": lambda row: row.allocations,
}
_NARROWEST, _SMALL, _USUAL = 40, 60, 80  # characters of a line
_MIDDLE, _WIDE = 100, 120
_NAME = 24, 12  # of them for the group's name, at least; in a line shorter than usual


@dataclass
class Row:
    """The ops of one group. Times in seconds, each without the ops within it."""

    name: str
    calls: int = 0
    host: float = 0.0
    device: float = 0.0
    on_device: bool = False  # whether a GPU worked
    launches: int = 0
    moved: int = 0  # bytes
    flops: int = 0
    allocations: int = 0
    reused: int = 0

    @property
    def time(self) -> float:
        """The time of the device that worked: of the GPU, or of the host where that computes."""
        return self.device if self.on_device else self.host


def own_times(spans: Sequence[Span]) -> list[tuple[float, float]]:
    """Seconds of each op on the host and on a GPU, without the ops within it; of other spans all.

    A range or a module in an op is a part of the op.
    """
    host = [span.seconds for span in spans]
    device = [span.device_seconds or 0.0 for span in spans]
    for span in spans:
        around = span.parent if span.kind == "op" else None
        while around is not None and spans[around].kind != "op":
            around = spans[around].parent
        if around is not None:
            host[around] -= span.seconds
            device[around] -= span.device_seconds or 0.0
    return [*zip(host, (max(0.0, seconds) for seconds in device), strict=True)]


def rows(spans: Sequence[Span], group_by: str = "op", sort_by: str = "time") -> list[Row]:
    """The ops by group, largest first. Raises ValueError for another group or order."""
    if group_by not in GROUPS:
        raise ValueError(f"group_by={group_by!r} was given; wanted one of {', '.join(GROUPS)}")
    if sort_by not in ORDERS:
        raise ValueError(f"sort_by={sort_by!r} was given; wanted one of {', '.join(ORDERS)}")
    name = GROUPS[group_by]
    found: dict[str, Row] = {}
    for span, (host, device) in zip(spans, own_times(spans), strict=True):
        if span.kind != "op":
            continue
        row = found.setdefault(name(span), Row(name(span)))
        row.calls += 1
        row.host += host
        row.device += device
        row.on_device |= span.device_seconds is not None
        row.launches += span.launches
        row.moved += span.read + span.written
        row.flops += span.flops
        row.allocations += span.allocations
        row.reused += span.reused
    return sorted(found.values(), key=ORDERS[sort_by], reverse=True)


def table(recorded: Recorded, sort_by: str, group_by: str, most: int, width: int) -> str:
    """See `Profile.table`."""
    if most < 1:
        raise ValueError(f"most={most!r} was given; wanted 1 or more rows")
    found = rows(recorded.spans, group_by, sort_by)
    total = sum(row.time for row in found)
    return drawn(title_of(recorded, found),
                 _grid(recorded, found, most, total, group_by, width), width)


def html(recorded: Recorded, most: int = 10) -> str:
    """See `Profile._repr_html_`."""
    from gtensor.system import notebook

    found = rows(recorded.spans)
    total = sum(row.time for row in found)
    return notebook.titled(title_of(recorded, found), notebook.table(
        ("op", "calls", "time", "%", "each"),
        [(brief(row.name), f"{row.calls:,}", time_text(row.time),
          f"{100 * row.time / total if total else 0:.1f}", time_text(row.time / row.calls))
         for row in found[:most]]))


def title_of(recorded: Recorded, found: Sequence[Row]) -> str:
    """How long the ops took, and where."""
    calls = sum(row.calls for row in found)
    machine = recorded.machine
    return (f"{calls:,} op{'' if calls == 1 else 's'}{of_steps(recorded.spans)} took "
            f"{time_text(sum(row.time for row in found))} on {machine.get('device', '?')} "
            f"({machine.get('name', '?')}), in {time_text(recorded.seconds)} of the program")


def _grid(recorded: Recorded, found: Sequence[Row], most: int, total: float, group_by: str,
          width: int) -> Table:
    from rich.text import Text

    ceilings = recorded.machine.get("ceilings", {})
    columns: dict[str, Callable[[Row], str]] = {}
    if width >= _SMALL:
        columns["calls"] = lambda row: f"{row.calls:,}"
    on_device = any(row.on_device for row in found)
    if width >= _SMALL or not on_device:
        columns["host"] = lambda row: time_text(row.host)
    if on_device:
        columns["GPU"] = lambda row: time_text(row.device)
    columns["%"] = lambda row: f"{100 * row.time / total if total else 0:.1f}"
    if width >= _MIDDLE:
        columns["each"] = lambda row: time_text(row.time / row.calls)
    if width >= _MIDDLE and any(row.launches for row in found):
        columns["launches"] = lambda row: f"{row.launches:,}"
    if width >= _WIDE:
        columns["moved"] = lambda row: size_text(row.moved)
    if width >= _MIDDLE:
        columns["B/s"] = lambda row: _rate(row.moved, row.time)
    if width >= _USUAL:
        columns["% copy"] = lambda row: _share(row.moved, row.time, ceilings, "bytes_per_second")
    if width >= _MIDDLE:
        columns["FLOP/s"] = lambda row: _rate(row.flops, row.time)
    if width >= _USUAL:
        columns["% gemm"] = lambda row: _share(row.flops, row.time, ceilings, "flops_per_second")
    if width >= _WIDE and any(row.allocations for row in found):
        columns["blocks"] = lambda row: f"{row.allocations:,}" if row.allocations else "-"
        columns["reused"] = lambda row: (
            f"{100 * row.reused / row.allocations:.0f}%" if row.allocations else "-")
    grid = new_grid(group_by, columns, width)
    for row in found[:most]:
        grid.add_row(name_text(row, group_by), *[cell(row) for cell in columns.values()])
    if len(found) > most:
        rest = found[most:]
        share = sum(row.time for row in rest) / total if total else 0
        grid.add_row(Text(f"{len(rest)} more", style="dim"), *[
            f"{sum(row.calls for row in rest):,}" if head == "calls" else
            f"{100 * share:.1f}" if head == "%" else "" for head in columns])
    return grid


def steps_of(spans: Sequence[Span]) -> int:
    """How many updates of optimizers there are."""
    return sum(_ends_step(span) for span in spans)


def times_by_step(spans: Sequence[Span], group_by: str = "op") -> dict[str, list[float]]:
    """The time of each group's ops in every step; an update of an optimizer ends a step."""
    ends = sorted(span.start + span.seconds for span in spans if _ends_step(span))
    name = GROUPS[group_by]
    found: dict[str, list[float]] = {}
    for span, (host, device) in zip(spans, own_times(spans), strict=True):
        step = bisect_left(ends, span.start)
        if span.kind == "op" and step < len(ends):
            times = found.setdefault(name(span), [0.0] * len(ends))
            times[step] += host if span.device_seconds is None else device
    return found


def _ends_step(span: Span) -> bool:
    return span.kind == "phase" and span.name == "update"


def of_steps(spans: Sequence[Span]) -> str:
    """" of 3 steps", or nothing where no optimizer made any."""
    steps = steps_of(spans)
    return f" of {steps:,} step{'' if steps == 1 else 's'}" if steps else ""


def new_grid(group_by: str, heads: Iterable[str], width: int) -> Table:
    """A table with a column of names and columns of numbers."""
    from rich import box
    from rich.table import Table

    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    grid.add_column(group_by, overflow="fold", min_width=_NAME[width < _USUAL])
    for head in heads:
        grid.add_column(head, justify="right", no_wrap=True)
    return grid


def fits(columns: Iterable[Sequence[str]], width: int) -> bool:
    """Whether columns of numbers, heads included, have room beside the names in such a line."""
    return 2 + _NAME[width < _USUAL] + sum(3 + max(map(len, one)) for one in columns) <= width


def name_text(row: Row, group_by: str) -> Text:
    """A row's name as it is shown: a file by its path from the working folder, or gtensor's."""
    from rich.text import Text

    short = brief(row.name)
    if group_by != "line":
        return Text(short)
    for folder in (Path.cwd(), Path(__file__).parents[2]):
        short = short.removeprefix(f"{folder}{os.sep}")
    return Text(short, no_wrap=True, overflow="ellipsis")


def drawn(title: str, grid: Table, width: int) -> str:
    """A title over a table, as text. Raises ModuleNotFoundError without rich."""
    from rich.console import Console

    console = Console(file=StringIO(), width=max(width, _NARROWEST), highlight=False, markup=False,
                      emoji=False)
    console.print(brief(title), soft_wrap=True)
    console.print(grid)
    made: str = console.file.getvalue()  # type: ignore[attr-defined]
    return "\n".join(line.rstrip() for line in made.splitlines())


def require_rich() -> None:
    """Raise ModuleNotFoundError, in a sentence, without rich."""
    if find_spec("rich") is None:
        raise ModuleNotFoundError("a profile's table needs rich, which is not installed; pip "
                                  "install rich, or write the page: profile.html('profile.html')")


def time_text(seconds: float) -> str:
    """A time in three digits: "1.23 ms"."""
    unit, scale = next(((unit, scale) for unit, scale in (("s", 1.0), ("ms", 1e-3))
                        if abs(seconds) >= scale), ("us", 1e-6))
    number = seconds / scale
    return f"{number:.3g} {unit}" if abs(number) < 999.5 else f"{number:.0f} {unit}"


def _rate(work: int, seconds: float) -> str:
    return quantity(work / seconds) if work and seconds > 0 else "-"


def _share(work: int, seconds: float, ceilings: Mapping[str, float], name: str) -> str:
    """Work per second in percent of a ceiling."""
    ceiling = ceilings.get(name)
    return f"{100 * work / seconds / ceiling:.0f}" if ceiling and work and seconds > 0 else "-"


def quantity(number: float) -> str:
    """A number in three digits with a decimal prefix: "1.23 G"."""
    for prefix, scale in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3), ("", 1)):
        if number >= scale:
            return f"{number / scale:.3g} {prefix}".rstrip()
    return f"{number:.3g}"

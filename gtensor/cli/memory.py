"""`gtensor memory FILE`: the holders of memory at the peak, from a snapshot."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from shutil import get_terminal_size
from typing import Any

from gtensor.memory.arena.layout import PENDING, fragmentation
from gtensor.memory.contract.report import size_text
from gtensor.memory.trace.lifetimes import (
    CATEGORIES,
    OUT_OF_MEMORY,
    Held,
    History,
    Life,
    cut,
    held_by,
)
from gtensor.memory.trace.reading import SnapshotError, read_snapshot
from gtensor.system.files import brief
from gtensor.train.errors import UserError, require, told_to_user

GROUPS: dict[str, Callable[[Life], str]] = {
    "category": lambda life: life.category,
    "holder": lambda life: life.holder,
    "op": lambda life: life.op or "(no label)",
    "module": lambda life: life.module or "(outside modules)",
    "source": lambda life: str(life.source or "(not recorded)"),
}
_NAMES = {"category": "For what", "holder": "Who", "op": "By op", "module": "By module",
          "source": "By line of code"}
_WIDE_ENOUGH = 72  # columns of a terminal, for what a category means


def load(path: Path) -> History:
    """The snapshot at `path`. Raises UserError, in one sentence, if there is none."""
    try:
        with told_to_user():
            return read_snapshot(path)
    except SnapshotError as error:
        raise UserError(str(error)) from error


def facts(history: History) -> dict[str, Any]:
    """The command's output as plain JSON: bytes, seconds, RMM's percentage."""
    peak = history.peak()
    live = history.live_at(peak)
    now = history.totals()[-1]
    reserved = sum(segment.size for segment in history.segments)
    return {
        "device": history.device,
        "events": len(history.times),
        "seconds": round(history.times[-1], 9) if history.times else 0.0,
        "peak": {
            "bytes": sum(life.size for life in live), "blocks": len(live), "event": peak,
            "seconds": round(history.time_of(peak), 9),
            **{f"by_{group}": [held._asdict() for held in held_by(live, name)]
               for group, name in GROUPS.items()}},
        "end": {
            "live": now, "reserved": reserved, "segments": len(history.segments),
            "pending": sum(piece.size for segment in history.segments for piece in segment.pieces
                           if piece.state == PENDING),
            "reserved_per_live": reserved / now if now and reserved else None,
            "fragmentation_percent": fragmentation(history.segments)},
        "reserved_at_most": max((nbytes for _, nbytes in history.reserved()), default=0),
        "out_of_memory": [{"bytes": mark.nbytes, "seconds": mark.time}
                          for mark in history.marks if mark.name == OUT_OF_MEMORY],
    }


def show(history: History, by: str | None, most: int) -> None:
    """Print the facts as tables: by category and holder, or by the one group asked for."""
    require("rich", "rich", "gtensor memory without --json")
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, markup=False, emoji=False)  # names come from the file
    found = facts(history)
    peak, end = found["peak"], found["end"]
    console.print(Text.assemble(
        (f"{size_text(peak['bytes'])} live on {brief(history.device)}", "bold"),
        f" {'at the peak' if found['events'] else 'when this was written'}, in "
        f"{peak['blocks']:,} block{'s' * (peak['blocks'] != 1)}",
        f"; {found['events']:,} events in {found['seconds']:.3g} s, the peak after "
        f"{peak['seconds']:.3g} s" if found["events"] else ""), soft_wrap=True)
    for failure in found["out_of_memory"]:
        console.print(Text.assemble(
            ("Out of memory", "red"), f" at {failure['seconds']:.6g} s: "
            f"{size_text(failure['bytes'])} were wanted"), soft_wrap=True)
    tables = (("category", "holder") if by is None else (by,)) if peak["blocks"] else ()
    for group in tables:
        console.print(_table(group, [Held(**held) for held in peak[f"by_{group}"]],
                             peak["bytes"], most))
    if end["reserved"]:
        ratio = end["reserved_per_live"]
        before, after = (f"At the end {size_text(end['live'])} live, ",
                         f" (at most {size_text(found['reserved_at_most'])})")
        console.print(
            f"{before if found['events'] else ''}{size_text(end['reserved'])} reserved in "
            f"{end['segments']} segment{'s' * (end['segments'] != 1)}"
            f"{after if found['events'] else ''}.\nFragmentation: "
            f"{end['fragmentation_percent']:.1f} % of the free bytes lie outside the largest free "
            "piece (as RMM counts)"
            + (f"; reserved / live is {ratio:.2f}." if ratio else "."), soft_wrap=True)


def _table(group: str, held: list[Held], total: int, most: int) -> Any:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), title_justify="left", header_style="dim")
    table.add_column(_NAMES[group], overflow="fold")
    for heading in ("live", "share", "blocks"):
        table.add_column(heading, justify="right", no_wrap=True)
    described = group == "category" and get_terminal_size().columns >= _WIDE_ENOUGH
    if described:
        table.add_column("")
    for one in cut(held, most):
        row: list[Any] = [brief(one.name), size_text(one.size), f"{one.size / (total or 1):.1%}",
               f"{one.blocks:,}"]
        if described:
            row.append(Text(CATEGORIES.get(one.name, ""), "dim"))
        table.add_row(*row)
    return table

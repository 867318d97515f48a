"""Memory in words: sizes, the holders of live blocks, and the out-of-memory message."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from gtensor.memory.contract.resource import Stats


class Holding(NamedTuple):
    """A live block in a report: bytes held, and the op that made it ("" if unknown)."""

    nbytes: int
    label: str


def size_text(nbytes: int) -> str:
    """A size in binary units: '512 B', '1.5 MiB'."""
    if abs(nbytes) < 1024:
        return f"{nbytes} B"
    size = float(nbytes)
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        size /= 1024
        if abs(size) < 1024 or unit == "TiB":
            break
    return f"{size:.4g} {unit}" if abs(size) < 1000 else f"{size:.0f} {unit}"


def table(rows: Sequence[tuple[str, ...]], indent: str = "  ") -> list[str]:
    """Rows of text as lines; the first column is left-aligned, the others right-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [indent + "  ".join(
        cell.rjust(width) if i else cell.ljust(width)
        for i, (cell, width) in enumerate(zip(row, widths, strict=True))).rstrip() for row in rows]


def by_label(live: Iterable[Holding], most: int = 8) -> list[str]:
    """The ops that hold most bytes: name, bytes and blocks; the others in one last line."""
    totals: dict[str, list[int]] = {}
    for nbytes, label in live:
        total = totals.setdefault(label or "(no label)", [0, 0])
        total[0] += nbytes
        total[1] += 1
    order = sorted(totals.items(), key=lambda item: -item[1][0])
    shown = order if len(order) == most + 1 else order[:most]  # a single other keeps its name
    rows = [(label, size_text(nbytes), _blocks(count)) for label, (nbytes, count) in shown]
    if rest := order[len(shown):]:
        rows.append((f"{len(rest)} others", size_text(sum(total[0] for _, total in rest)),
                     _blocks(sum(total[1] for _, total in rest))))
    return table(rows) if rows else []


def largest(live: Iterable[Holding], most: int = 5) -> list[str]:
    """The largest live blocks: bytes and the op that made each."""
    order = sorted(live, key=lambda holding: -holding.nbytes)
    return [f"  {size_text(nbytes):>9}  {label or '(no label)'}" for nbytes, label in order[:most]]


def out_of_memory_text(where: str, nbytes: int, label: str, why: str, stats: Stats,
                       live: Sequence[Holding]) -> str:
    """The text of an OutOfMemoryError: one sentence, then the holders of the memory."""
    asker = f" for {label}" if label else ""
    lines = [
        f"out of memory on {where}: {size_text(nbytes)} wanted{asker}, but {why}; "
        f"{size_text(stats.allocated)} are live in {_blocks(len(live))}, "
        f"{size_text(stats.reserved)} are reserved"]
    if live:
        lines += ["largest live blocks:", *largest(live), "by op:", *by_label(live)]
    return "\n".join(lines)


def summary_text(where: str, stats: Stats, limit: int | None, live: Sequence[Holding]) -> str:
    """The counters of a resource as a table, and the ops that hold most."""
    requests = stats.hits + stats.misses
    lines = [f"memory of {where}", *table([
        ("", "now", "peak", "in"),
        ("allocated", size_text(stats.allocated), size_text(stats.peak_allocated),
         _blocks(len(live))),
        ("reserved", size_text(stats.reserved), size_text(stats.peak_reserved),
         f"{stats.segments} segment{'s' * (stats.segments != 1)}"),
    ])]
    free = max(0, stats.reserved - stats.active - stats.pending)
    lines.append(f"  {'no limit' if limit is None else f'limit {size_text(limit)}'}"
                 f", {size_text(free)} kept for later arrays"
                 + (f", {size_text(round(free * (1 - stats.fragmentation)))} of it in one piece"
                    if free else ""))
    lines.append(f"  {requests} requests, {stats.hits} of them served from free memory"
                 + (f" ({stats.hits / requests:.1%})" if requests else ""))
    if stats.pending:
        lines.append(f"  {size_text(stats.pending)} freed that a stream may still be using")
    if stats.borrowed:
        lines.append(f"  {_blocks(stats.borrowed)} so far cut from another stream's memory")
    if stats.private:
        lines.append(f"  {size_text(stats.private)} of the reserved belong to graphs")
    if stats.replaced:
        lines.append(f"  {size_text(stats.replaced)} beside it in arenas of other sources before")
    if live:
        lines += ["live by op:", *by_label(live)]
    return "\n".join(lines)


def _blocks(count: int) -> str:
    return "1 block" if count == 1 else f"{count} blocks"

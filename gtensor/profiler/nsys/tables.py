"""An export of Nsight Systems as tables of text: GPUs, kernels, gaps, copies, API calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from gtensor.memory.contract.report import size_text
from gtensor.profiler.nsys.work import Gap, Session, Work
from gtensor.profiler.table import drawn, new_grid, time_text

Row = TypeVar("Row", Work, Gap)

_TEXTS = ("op", "on the host", "its longest call")  # columns of names

NO_RANGES = ("No range of the domain gtensor was recorded, so no op is known: the program made "
             "none (GTENSOR_NVTX=1 was not set, or gtensor was not used), or its nvtx package and "
             "this nsys do not talk (docs/nsys.md).")
NO_KERNELS = ("No kernel was recorded: the program used no GPU, or nsys did not trace CUDA "
              "(--trace=cuda,nvtx).")


def tables(session: Session, most: int, width: int) -> str:
    """All that there is to say, at most `most` rows a table."""
    return "\n\n".join(part.rstrip() for part in _parts(session, most, width))


def _parts(session: Session, most: int, width: int) -> Iterator[str]:
    if session.seconds:
        yield _title(session)
    if not session.has_ranges:
        yield NO_RANGES
    kernels = session.kernels("op")
    if not kernels:
        yield NO_KERNELS
    for group_by in ("op", "module") if session.has_ranges else ():
        if kernels:
            yield _work(f"Kernels by {group_by}", group_by, "runs",
                        session.kernels(group_by), most, width)
    if kernels:
        yield _work("Kernels, and the op behind most of the time of each", "kernel", "runs",
                    session.kernels("kernel"), most, width)
    if session.has_ranges:
        yield _work("Ops and other ranges, by their time on the host without ops within", "op",
                    "ranges", session.host(), most, width)
    gaps = session.gaps(most)
    if gaps:
        yield _drawn("The longest times in which a GPU did nothing", "next on the GPU", gaps, most,
                     width, {
                         "at": lambda gap: time_text(gap.start),
                         "idle": lambda gap: time_text(gap.seconds),
                         "GPU": lambda gap: str(gap.device),
                         "on the host": lambda gap: gap.host,
                         "its longest call": lambda gap: gap.call and
                         f"{gap.call} {time_text(gap.call_seconds)}"},
                     lambda gap: gap.next or "(the end)")
    copies = session.copies()
    if copies:
        yield _work("Copies and memsets, and the op behind most of their time", "what", "copies",
                    copies, most, width)
    calls = session.calls()
    if calls:
        yield _work("Calls of CUDA's API, and the op behind most of their time", "call", "calls",
                    calls, most, width)


def _title(session: Session) -> str:
    version = f" (nsys {session.export.version})" if session.export.version else ""
    what = "the captured steps" if session.joined.steps else "all of the program"
    lines = [f"{time_text(session.seconds)} recorded{version}, {what}; updates of an optimizer: "
             f"{session.updates()}"]
    for gpu in session.devices():
        share = 100 * gpu.idle / session.seconds
        lines.append(f"GPU {gpu.device}{f' ({gpu.name})' * bool(gpu.name)}: busy "
                     f"{time_text(gpu.busy)}, idle {time_text(gpu.idle)} ({share:.1f} %); "
                     f"{gpu.kernels:,} kernels, {gpu.copies:,} copies and memsets")
    return "\n".join(lines)


def _work(title: str, named: str, counted: str, rows: Sequence[Work], most: int,
          width: int) -> str:
    total = sum(row.seconds for row in rows)
    columns: dict[str, Callable[[Work], str]] = {
        counted: lambda row: f"{row.number:,}",
        "time": lambda row: time_text(row.seconds),
        "%": lambda row: f"{100 * row.seconds / total if total else 0:.1f}",
        "each": lambda row: time_text(row.seconds / row.number),
        "longest": lambda row: time_text(row.longest)}
    if any(row.nbytes for row in rows):
        columns["bytes"] = lambda row: size_text(row.nbytes)
    if any(row.op for row in rows):
        columns["op"] = lambda row: row.op
    return _drawn(f"{title}: {time_text(total)}", named, rows, most, width, columns,
                  lambda row: row.name)


def _drawn(title: str, named: str, rows: Sequence[Row], most: int, width: int,
           columns: dict[str, Callable[[Row], str]], name: Callable[[Row], str]) -> str:
    from rich.text import Text

    grid = new_grid(named, columns, width)
    for column in grid.columns:
        if column.header in _TEXTS:
            column.justify, column.no_wrap, column.overflow = "left", False, "fold"
    for row in rows[:most]:
        grid.add_row(Text(name(row)), *[Text(cell(row)) for cell in columns.values()])
    if len(rows) > most:
        grid.add_row(Text(f"{len(rows) - most} more", style="dim"), *[""] * len(columns))
    return drawn(title, grid, width)

"""What every ladder program shares: its options, progress, table and result file."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import machine
from ladder import Ladder, Spread, Target, WrongRung

SCHEMA = 1  # of the result files
RESULTS = Path(__file__).resolve().parent / "results"
PROGRESS_EVERY = 5.0  # seconds between lines where the line cannot be rewritten


@dataclass(frozen=True)
class Figure:
    """A number that is measured once, not timed: bytes at a peak, a size chosen."""

    name: str
    measured: float
    target: float | None = None  # at most
    unit: str = ""
    note: str = ""

    def json(self) -> dict[str, Any]:
        met = None if self.target is None else self.measured <= self.target
        return {"name": self.name, "measured": self.measured, "target": self.target,
                "unit": self.unit, "note": self.note, "met": met}


@dataclass(frozen=True)
class Options:
    """What the command line asked for."""

    device: str
    rounds: int
    quick: bool
    threads: int
    own: argparse.Namespace = field(default_factory=argparse.Namespace)  # those of one program, too


Part = Ladder | Figure
Build = Callable[[Options], Iterable[tuple[str, Callable[[], Iterable[Part]]]]]


def on_cuda(
    options: Options, sizes: Iterable[Any], dtypes: Iterable[str],
    climb: Callable[[Any, str], Iterable[Part]],
) -> Iterator[tuple[str, Callable[[], Iterable[Part]]]]:
    """One part per size and dtype, `climb(size, dtype)`; none on the CPU."""
    if options.device == "cpu":
        return
    for size in [size.small() for size in sizes] if options.quick else sizes:
        for dtype in dtypes:
            yield f"{size.name} {dtype}", partial(climb, size, dtype)


def main(
    text: str | None, build: Build, name: str, arguments: list[str] | None = None,
    more: Callable[[argparse.ArgumentParser], None] = lambda parser: None, clock: str = "wall",
) -> int:
    """Run a ladder program. `build(options)` names its parts; each part makes ladders and figures.

    `more(parser)` adds options of the program's own; `clock` is the one that it has by default.

    Returns 0; 1 if a rung was refused as wrong, or with `--strict` if a target was missed.
    """
    parser = argparse.ArgumentParser(
        description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="what to measure")
    parser.add_argument("--rounds", type=int, default=25, help="interleaved rounds (default 25)")
    parser.add_argument("--quick", action="store_true", help="5 rounds, to see that it runs")
    parser.add_argument("--threads", type=int, default=1,
                        help="threads of BLAS and of every peer (default 1; 0 leaves them alone)")
    parser.add_argument("--clock", choices=["wall", "cpu"], default=clock,
                        help="on the CPU; cpu: processor time of one thread, for a busy machine "
                             f"(default {clock})")
    parser.add_argument("--only", default="", help="run the parts whose name contains this")
    parser.add_argument("--list", action="store_true", help="name the parts and stop")
    parser.add_argument("--out", type=Path, metavar="DIR",
                        help="folder of the JSON file (default profiling/results/<machine>/)")
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a target is missed")
    more(parser)
    given = parser.parse_args(arguments)
    if given.rounds < 1:
        parser.error(f"--rounds {given.rounds} given; wanted at least 1")
    if given.clock == "cpu" and given.device == "cpu" and given.threads != 1:
        parser.error(f"--threads {given.threads} given with --clock cpu, which counts the time of "
                     "one thread; wanted --clock wall, or --threads 1")
    if given.device == "cuda" and not _has_gpu():
        print("no CUDA device on this machine; nothing was measured", file=sys.stderr)
        return 2
    rounds = 5 if given.quick else given.rounds
    options = Options(given.device, rounds, given.quick, given.threads, given)
    parts = [(part, make) for part, make in build(options) if given.only in part]
    if given.list:
        print("\n".join(part for part, _ in parts))
        return 0
    if not parts:
        print(f"{name}: nothing to measure on {given.device}"
              + (f" under a name with {given.only!r}" if given.only else ""))
        return 0
    folder = given.out or RESULTS / machine.slug(given.device)
    # A part of the program gets a file of its own, so that it does not replace the whole.
    suffix = "-" + given.only.replace(" ", "-") if given.only else ""
    path = folder / f"{name}{suffix}.json"
    unfinished = path.with_suffix(".part")  # what there is of a run that is cut off
    folder.mkdir(parents=True, exist_ok=True)
    with _threads(given.threads) as pinned, _progress() as progress:
        document: dict[str, Any] = {
            "schema": SCHEMA, "program": name, "date": machine.now(), "command": machine.command(),
            "machine": machine.describe(given.device), "versions": machine.versions(),
            "device": given.device, "rounds": rounds, "blas_threads": pinned,
            "ladders": [], "figures": [],
        }
        try:
            for part in _measure(parts, rounds, progress, given.clock):
                document["ladders" if isinstance(part, Ladder) else "figures"].append(part.json())
                _write(unfinished, document)
        except WrongRung as wrong:
            progress("")
            print(f"refused: {wrong}", file=sys.stderr)
            return 1
    _write(path, document)
    unfinished.unlink(missing_ok=True)
    print(f"wrote {_short(path)}")
    missed = [entry for group in (*(la["ratios"] for la in document["ladders"]),
                                  document["figures"]) for entry in group if entry["met"] is False]
    if missed:
        print(f"{len(missed)} of the targets missed")
    return int(given.strict and bool(missed))


def _write(path: Path, document: dict[str, Any]) -> None:
    """Atomically: a run may be cut off at any time."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps(document, indent=1) + "\n")
    new.replace(path)


def _measure(
    parts: Iterable[tuple[str, Callable[[], Iterable[Part]]]], rounds: int,
    progress: Callable[[str], None], clock: str,
) -> Iterator[Part]:
    for _, make in parts:
        for part in make():
            if isinstance(part, Ladder):
                part.climb(rounds, progress, clock)
            progress("")
            show(part)
            yield part


# -- tables ----------------------------------------------------------------------------------------


def show(part: Part) -> None:
    """Print a measured ladder or a figure."""
    if isinstance(part, Figure):
        print(f"{part.name}: {number(part.measured, part.unit)}" + (
            f", target {number(part.target, part.unit)}: {part.measured / part.target:.3f}x, "
            f"{'met' if part.measured <= part.target else 'MISSED'}" if part.target else "")
            + (f" ({part.note})" if part.note else ""))
        return
    print(f"\n{part.name}, per {part.unit}, by {part.clock}")
    rows = []
    for rung in part.rungs:
        times = part.times(rung.name)
        above = part.above_floor(rung)
        rate = [f"{rung.moved / (times.median * part.per) / 1e9:.1f} GB/s"] if rung.moved else []
        if rung.flops:
            rate += [f"{rung.flops / (times.median * part.per) / 1e9:.1f} Gflop/s"]
        rows.append([rung.name + " (floor)" * rung.floor, seconds(times.median),
                     f"{seconds(times.low)} .. {seconds(times.high)}",
                     f"{above.median:.2f}x" if above else "", ", ".join(rate),
                     "-" if rung.error is None else f"{rung.error:.1e}"])
    table(["rung", "median", "quartiles", "above floor", "rate", "error"], rows)
    targets = {(t.rung, t.peer): t for t in part.targets}
    for rung_name, peer in part.ratios:
        spread = part.ratio(rung_name, peer)
        verdict = _verdict(part, targets.get((rung_name, peer)))
        print(f"  {rung_name} / {peer}: {spread_text(spread)}{verdict}")
    for note in part.notes:
        print(f"  note: {note}")


def table(heads: list[str], rows: list[list[str]]) -> None:
    """A table on stdout: by rich on a terminal that has it, else plain columns."""
    if sys.stdout.isatty():
        try:
            from rich.console import Console
            from rich.table import Table
        except ImportError:
            pass
        else:
            pretty = Table(*heads)
            for row in rows:
                pretty.add_row(*row)
            Console().print(pretty)
            return
    widths = [max(len(row[i]) for row in [heads, *rows]) for i in range(len(heads))]
    for row in [heads, *rows]:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:],
                                                                            strict=True))]
        print("  " + "  ".join(cells).rstrip())


def seconds(value: float) -> str:
    """A duration with a unit that suits it."""
    for factor, unit in ((1, "s"), (1e3, "ms"), (1e6, "us")):
        if value * factor >= 1:
            return f"{value * factor:.3g} {unit}"
    return f"{value * 1e9:.3g} ns"


def spread_text(spread: Spread) -> str:
    """A median and its quartiles."""
    return f"{spread.median:.3f} ({spread.low:.3f} .. {spread.high:.3f})"


def target_text(most: float, beside: float | None) -> str:
    """What a ratio should be at most."""
    return f"{most:.3g}{f' + {seconds(beside)}' if beside else ''}"


def _verdict(ladder: Ladder, target: Target | None) -> str:
    if target is None:
        return ""
    verdict = "met" if ladder.met(target) else "MISSED"
    return f", target {target_text(target.most, target.beside)}: {verdict}"


def number(value: float, unit: str) -> str:
    """A figure with its unit."""
    digits = f"{value:,.0f}" if float(value).is_integer() else f"{value:.4g}"
    return f"{digits} {unit}".rstrip()


def _short(path: Path) -> Path:
    """The path from here, if it lies below."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


# -- surroundings ----------------------------------------------------------------------------------


def left_out(module: str, device: str) -> str | None:
    """Why a peer takes no part on the device, as a note; None if it does."""
    if not find_spec(module):
        return f"left out: {module} is not installed"
    if module == "torch" and device == "cuda":
        import torch

        if not torch.cuda.is_available():
            return "left out: torch is installed, but finds no CUDA device"
    return None


def _has_gpu() -> bool:
    from gtensor import cuda_device_count

    return cuda_device_count() > 0


@contextmanager
def _threads(count: int) -> Iterator[int | None]:
    """The same number of threads for BLAS and PyTorch; yields how many, None if unknown."""
    if not count:
        yield None
        return
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(count)
    try:
        from threadpoolctl import threadpool_limits
    except ImportError:
        print("threadpoolctl is not installed: BLAS keeps the threads that it started with",
              file=sys.stderr)
        yield None
        return
    with threadpool_limits(count):
        yield count


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """A line on stderr that says where a long run stands; an empty text wipes it."""
    rewrite = sys.stderr.isatty()
    last = time.monotonic()

    def say(text: str) -> None:
        nonlocal last
        if rewrite:
            sys.stderr.write(f"\r\x1b[K{text[:100]}")
            sys.stderr.flush()
        elif text and time.monotonic() - last > PROGRESS_EVERY:
            last = time.monotonic()
            print(text, file=sys.stderr, flush=True)

    try:
        yield say
    finally:
        say("")

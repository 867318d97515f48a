"""Turns the results of the ladders into tables and pictures, so that no figure is typed by hand.

    python profiling/report.py                       # report.md and pictures; the READMEs' tables
    python profiling/report.py --check               # compare instead of writing; 1 if they differ
    python profiling/report.py --new DIR             # new results against the committed ones
    python profiling/report.py --against v0.1        # against those of a revision, or of a folder

Each folder of profiling/results is a machine. It gets a report.md with a table for every result
file, and a picture for every one with several ratios. A row that a newer file of the same program
has is left out of the older file's table. The gallery's picture of speed (docs/gallery/speed.png)
is made, too. A picture has a digest of its ratios, which --check compares.

A README's table stands between two markers,

    <!-- report: speed -->
    <!-- end -->

and is written anew in its place: `speed` and `memory` are tables of chosen rows, `launches` is of
the cost sheets, `results` lists the result files. A row whose peer or machine was missing says so.

A comparison (--new, --against) writes nothing. A ratio is worse if its quartiles lie above those
before and its median rose by more than 5 %; a figure, which has no spread, if it rose by more than
5 % and misses its target. Only results of one machine are compared: another folder's are refused,
and a file from another processor is named and left out. Rows that only the older results have are
named.

Exit status: 0; 1 if a table differs or something is worse; 2 if what is given cannot be reported.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from ladder_command import table
from report_pictures import Bar, picture, shows
from report_tables import (
    CHOSEN,
    bars,
    chosen_table,
    launches_table,
    picture_name,
    picture_title,
    report,
    results_table,
    speed_picture,
)
from result_rows import (
    WORSE,
    Refused,
    Result,
    change,
    of_folder,
    of_revision,
    without_superseded,
)

from gtensor.system.atomic import write_file

ROOT = Path(__file__).resolve().parents[1]
COMMAND = "python profiling/report.py"
NAMED = 3  # missing rows of a file


# -- what is written, and checked ------------------------------------------------------------------

MARKED = re.compile(r"<!-- (report: (\w+)|end) -->\n?")
TYPED = re.compile(r"(?<![\w.])(?<!\+ )\d[\d.,]*\s?(?:x (?:PyTorch|NumPy|CuPy|JAX|autograd)|"
                   r"[mun]s\b|[GM]B/s|Gflop/s|times as (?:fast|slow))")


def filled(path: Path, text: str, tables: Mapping[str, Callable[[], str]]) -> str:
    """A README's text with each table between its markers."""
    pieces, last, opened = [], 0, ""
    for marker in MARKED.finditer(text):
        line, name = text.count("\n", 0, marker.start()) + 1, marker[2]
        if bool(name) == bool(opened):
            raise Refused(f"{path.name}, line {line}: {marker[0].strip()} " + (
                f"stands within the table {opened!r}, which lacks its <!-- end -->" if name
                else "ends no table"))
        if name and name not in tables:
            raise Refused(f"{path.name}, line {line}: there is no table {name!r}; wanted one of "
                          f"{', '.join(tables)}")
        if name:
            pieces += [text[last:marker.end()], tables[name](), "\n"]
        else:
            pieces.append(marker[0])
        opened, last = name or "", marker.end()
    if opened:
        raise Refused(f"{path.name}: the table {opened!r} lacks its <!-- end -->")
    if not last:
        raise Refused(f"{path.name} has no table; wanted <!-- report: NAME --> and <!-- end --> "
                      f"around one of {', '.join(tables)}")
    return "".join([*pieces, text[last:]])


def typed(text: str) -> Iterator[tuple[int, str]]:
    """Lines outside of tables and code that have a measured figure, which nothing keeps up.

    A time after a plus is a target's ("1.5 + 1 us").
    """
    inside = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("```") or MARKED.fullmatch(line):
            inside = line.startswith("<!-- report") or line.startswith("```") and not inside
        elif not inside and not line.startswith("    ") and (found := TYPED.search(line)):
            yield number, found[0]


def texts(root: Path, machines: dict[Path, list[Result]]) -> dict[Path, str]:
    """Everything that is written but pictures, by file."""
    every = [result for results in machines.values() for result in results]
    found = {folder / "report.md": report(results) for folder, results in machines.items()}
    for name in ("README.md", "profiling/README.md"):
        path = root / name
        if not path.is_file():
            raise Refused(f"there is no file {path}, whose tables are to be written")
        folder = os.path.relpath(root / "profiling/results", path.parent) + "/"
        tables = {chosen: partial(chosen_table, chosen, every, folder) for chosen in CHOSEN}
        sheets = root / "profiling/results/cpu-2core/cost"
        tables["launches"] = partial(launches_table, sheets, f"{folder}cpu-2core/cost/")
        tables["results"] = partial(results_table, every, folder)
        found[path] = filled(path, path.read_text(encoding="utf-8"), tables)
    return found


def pictures(root: Path, machines: dict[Path, list[Result]]) -> dict[Path, tuple[str, list[Bar]]]:
    """The title and the bars of each picture that has some, by file."""
    every = [result for results in machines.values() for result in results]
    found = {root / "docs/gallery/speed.png": speed_picture(every)} | {
        folder / picture_name(result): (picture_title(result), bars(result))
        for folder, results in machines.items() for result in results}
    return {path: shown for path, shown in found.items() if shown[1]}


def check(root: Path, machines: dict[Path, list[Result]]) -> int:
    """Say where the files differ from the results; 1 if they do."""
    faults = []
    for path, wanted in texts(root, machines).items():
        there = path.read_text(encoding="utf-8") if path.is_file() else ""
        lines, wants = there.splitlines(), wanted.splitlines()
        if there != wanted:
            line = next((line for line, (a, b) in enumerate(zip(lines, wants, strict=False), 1)
                         if a != b), 1 + min(len(lines), len(wants)))
            faults.append(f"{path.relative_to(root)}, line {line}: not what the results say; run "
                          f"{COMMAND}")
        if path.name == "README.md":
            faults += [f"{path.relative_to(root)}, line {line}: {figure!r} is typed by hand; "
                       "name the result file, or a row of a table"
                       for line, figure in typed(there)]
    for path, shown in pictures(root, machines).items():
        if not path.is_file():
            faults.append(f"{path.relative_to(root)} is missing; run {COMMAND}")
        elif not shows(path.read_bytes(), *shown):
            faults.append(f"{path.relative_to(root)} shows other ratios than the results have; "
                          f"run {COMMAND}")
    print("\n".join(faults) or "all tables and pictures are those of the results")
    return int(bool(faults))


def write(root: Path, machines: dict[Path, list[Result]]) -> int:
    """Write every report, picture and table."""
    made = {path: text.encode() for path, text in texts(root, machines).items()}
    made |= {path: picture(*shown) for path, shown in pictures(root, machines).items()}
    for path, data in made.items():
        write_file(path, data)
        print(f"wrote {path.relative_to(root)}")
    return 0


# -- comparisons -----------------------------------------------------------------------------------


def compare(olds: Sequence[Result], news: Sequence[Result], old: str, new: str) -> int:
    """A table of what both have, and what only the old ones have; 1 if something is worse.

    `old` and `new` are where the results are, in words.
    """
    if olds[0].slug != news[0].slug:
        raise Refused(f"the new results are of {news[0].slug}, the old ones of {olds[0].slug}; "
                      "only results of one machine are compared")
    before = {result.name: result for result in olds}
    rows, compared, worse = [], 0, 0
    for result in news:
        older = before.get(result.name)
        if older is None or older.processor != result.processor:
            why = (f"measured on {result.processor}, before on {older.processor}" if older
                   else "there is no older file of this name")
            print(f"{result.name} is not compared: {why}")
            continue
        was = {row.key: row for row in older.rows}
        for row in result.rows:
            if row.key in was:
                moved = change(was[row.key], row)
                compared, worse = compared + 1, worse + (moved == WORSE)
                if moved:
                    rows.append([result.name, row.label, was[row.key].value, row.value, moved])
    count, lines = absent(olds, news)
    if count:
        print(f"rows of {old} that are not in {new}: {count}", *lines, sep="\n  ")
    if not compared:
        raise Refused("the new and the old results have no measurement in common")
    if rows:
        table(["file", "what", "before", "now", ""], rows)
    print(f"{worse} worse, {len(rows) - worse} better, of {compared} compared")
    return int(worse > 0)


def absent(olds: Sequence[Result], news: Sequence[Result]) -> tuple[int, list[str]]:
    """How many rows only the old results have, and a line of text for each file that had them."""
    now = {result.name: {row.key for row in result.rows} for result in news}
    count, lines = 0, []
    for result in olds:
        if result.name not in now:
            count += len(result.rows)
            lines.append(f"{result.name}: all {len(result.rows)}")
        elif labels := [row.label for row in result.rows if row.key not in now[result.name]]:
            count += len(labels)
            more = f"; and {len(labels) - NAMED} more" if len(labels) > NAMED else ""
            lines.append(f"{result.name}: {'; '.join(labels[:NAMED])}{more}")
    return count, lines


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true",
                        help="say where files differ from the results; write nothing")
    parser.add_argument("--new", type=Path, metavar="DIR",
                        help="compare the results in this folder with the committed ones")
    parser.add_argument("--against", metavar="FOLDER_OR_REVISION",
                        help="what to compare with (default: the committed results)")
    given = parser.parse_args(arguments)
    if given.check and (given.new or given.against):
        parser.error("--check given with --new or --against; wanted one of them")
    try:
        if given.new or given.against:
            return _compared(root, given.new, given.against)
        results = root / "profiling/results"
        machines = {folder: without_superseded(of_folder(folder))
                    for folder in sorted(results.glob("*/"))}
        if not machines:
            raise Refused(f"{results} has no folder of results")
        for folder, found in machines.items():
            if found[0].slug != folder.name:
                raise Refused(f"{folder} has results of {found[0].slug}")
        return (check if given.check else write)(root, machines)
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        print(f"report: pictures need {package}, which is not installed; pip install {package}",
              file=sys.stderr)
    except (Refused, OSError) as error:
        print(f"report: {error}", file=sys.stderr)
    return 2


def _compared(root: Path, new: Path | None, against: str | None) -> int:
    """The new results (default: every machine's) against others (default: the committed ones)."""
    places = [new] if new else sorted((root / "profiling/results").glob("*/"))
    status = 0
    for place in places:
        news = of_folder(place)
        committed = root / "profiling/results" / news[0].slug
        if against is None:
            olds, old = of_folder(committed), "the committed results"
        elif Path(against).is_dir():
            olds, old = of_folder(Path(against)), against
        else:
            olds, old = of_revision(root, against, news[0].slug), f"the results of {against}"
        status = max(status, compare(olds, news, old, str(new or "the committed results")))
    return status


if __name__ == "__main__":
    sys.exit(main())

"""`gtensor profile --nsys -- COMMAND` and `gtensor profile FILE.sqlite`: sessions with nsys."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from shutil import get_terminal_size
from tempfile import TemporaryDirectory

from gtensor.memory.trace.export import check_folder
from gtensor.profiler.nsys import sessions
from gtensor.profiler.nsys.export import read
from gtensor.profiler.nsys.tables import tables
from gtensor.profiler.nsys.work import Session
from gtensor.profiler.spans import ProfileError
from gtensor.system.atomic import make_folder_of
from gtensor.system.commands import found_command
from gtensor.train.errors import UserError, require, told_to_user


def session(words: Sequence[str], out: Path | None, steps: tuple[int, int] | None,
            most: int = 15) -> int:
    """Run a command under nsys, print what was recorded; the exit status of the command.

    Args:
        words: the command.
        out: the folder of the report, `session.nsys-rep`, and its export, `session.sqlite`
            (runs/nsys); files that are there are replaced once new ones are complete.
        steps: how many optimizer steps are passed over, and how many are recorded (10, 20).
        most: rows of a table.

    Raises UserError before anything is run if nsys is missing or does not fit, for wrong arguments
    and for files that cannot be written; after it if nothing, or no range, was recorded.
    """
    require("rich", "rich", "gtensor profile")
    folder = Path("runs") / "nsys" if out is None else out
    targets = [folder / f"session{suffix}" for suffix in (".nsys-rep", ".sqlite")]
    first, count = steps or sessions.STEPS
    with _told():
        command = _command(words)
        tool = sessions.found_nsys(os.environ)
        make_folder_of(targets[0])
        for target in targets:
            check_folder(target)
        with TemporaryDirectory(prefix=".gtensor-nsys-", dir=folder) as place:
            report, exported = (Path(place) / target.name for target in targets)
            status = sessions.profile(tool, command, report, (first, count))
            if not report.exists():
                return _nothing(status, first)
            os.replace(report, targets[0])
            sessions.export(tool, targets[0], exported)
            os.replace(exported, targets[1])
        sessions.print_statistics(tool, targets[1])
        found = Session(read(targets[1]))
    print(tables(found, most, get_terminal_size().columns))
    print(f"\nOpen {targets[0]} in nsys-ui to see the time line; docs/nsys.md explains it. These "
          f"tables again: gtensor profile {targets[1]}", flush=True)
    return status or (0 if found.has_ranges else 1)


def show(path: Path, most: int) -> int:
    """Print the tables of an export, at most `most` rows each. UserError if it is none."""
    require("rich", "rich", "gtensor profile")
    with _told():
        found = Session(read(path))
    print(tables(found, most, get_terminal_size().columns), flush=True)
    return 0


@contextmanager
def _told() -> Iterator[None]:
    """Errors of the block that are a sentence become UserErrors."""
    with told_to_user():
        try:
            yield
        except ProfileError as error:
            raise UserError(str(error)) from error


def _command(words: Sequence[str]) -> list[str]:
    """The command to run. UserError if there is none, or its script is missing."""
    try:
        found = found_command(words[1:] if words[:1] == ["--"] else words, "gtensor profile --nsys",
                              "gtensor profile --nsys -- python train.py")
    except ValueError as error:
        raise UserError(str(error)) from None
    script = Path(found[1]) if len(found) > 1 else None
    if script is not None and script.suffix == ".py" and not script.exists():
        raise UserError(f"there is no script {script}; wanted the path of one")
    return found


def _nothing(status: int, first: int) -> int:
    """Say why there is no report; the exit status of a failed program, else UserError."""
    why = (f"nsys wrote no report: it records when {first} optimizer steps have ended, which the "
           "program did not reach, or no range reached nsys; wanted more steps, or a smaller "
           "number in front of --steps FIRST:COUNT")
    if not status:
        raise UserError(why)
    print(f"gtensor: the program ended with exit status {status}, and {why}", file=sys.stderr)
    return status

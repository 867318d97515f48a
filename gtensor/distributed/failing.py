"""The end of all ranks when one of them fails, with its error shown once.

Ranks of `gtensor launch` also note their calls in its folder, and when they leave: the launcher
reads there who waits for whom.
"""

from __future__ import annotations

import atexit
import json
import mmap
import os
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, NoReturn, Protocol

from gtensor.distributed.keeper import ENDS
from gtensor.system.atomic import write_file
from gtensor.system.files import read_all
from gtensor.system.source_line import user_frame

FOLDER = "GTENSOR_LAUNCH_FOLDER"  # the variable with `gtensor launch`'s folder for `Log`
BYTES = 1024  # of a rank's file there
_ABORTED = "aborted"  # the file there of the first rank that ended all
_LEFT = "left"  # the files there of ranks whose programs have ended, with their numbers of calls
_JOINING = "joining"  # the files there of processes within `init`, with the line of their call
_MOST_LEFT = _MOST_ENDS = 1 << 20  # bytes of one
_STEP, _MOST = 0.3, 1.2  # seconds


class Communicator(Protocol):
    """What is asked of `distributed.communicator`'s, which imports this."""

    rank: int
    size: int

    def abort(self, message: str = "", status: int = 1) -> NoReturn:
        """End all ranks."""


def end_all(comm: Communicator, text: str) -> NoReturn:
    """Print the error of this rank, and end all.

    Often all ranks fail alike. So each waits a little longer than those below it, whose end is its
    own, and one text is printed.
    """
    time.sleep(min(_STEP * comm.rank, _MOST))
    sys.stdout.flush()
    named = f"rank {comm.rank} of {comm.size}: " if comm.rank else ""
    print(f"{named}{text.rstrip()}", file=sys.stderr, flush=True)
    comm.abort()


def install(comm: Communicator) -> None:
    """Let an error that nothing catches, in any thread, end all ranks."""
    if comm.size == 1:
        return
    before = sys.excepthook

    def ended(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not issubclass(kind, Exception):  # Ctrl-C reaches all ranks
            before(kind, error, trace)
            comm.abort(status=130)
        end_all(comm, "".join(traceback.format_exception(kind, error, trace)))

    def ended_thread(args: Any) -> None:
        if args.exc_type is not SystemExit:
            ended(args.exc_type, args.exc_value, args.exc_traceback)

    sys.excepthook = ended
    threading.excepthook = ended_thread


@contextmanager
def joining() -> Iterator[None]:
    """While the block connects this process to all others, `gtensor launch` knows that it waits."""
    folder = os.environ.get(FOLDER)
    if folder is None:
        yield
        return
    file = Path(folder) / f"{_JOINING}{os.getpid()}"
    code = user_frame(sys._getframe(2))
    with suppress(OSError):  # `gtensor launch` is gone
        write_file(file, f"init ({code.f_code.co_filename}:{code.f_lineno})".encode())
    try:
        yield
    finally:
        with suppress(OSError):
            file.unlink()


class Call(NamedTuple):
    """The latest collective that a rank has begun: the `number`-th of a communicator."""

    process: int
    communicator: str  # its name, the same on all ranks; "" before the first call
    number: int
    text: str


class Log:
    """The latest call of each rank, in a file that `gtensor launch` reads."""

    def __init__(self, rank: int) -> None:
        self.rank, self.process = rank, os.getpid()
        self.calls: dict[str, int] = {}  # of each communicator
        self._map: mmap.mmap | None = None
        if folder := os.environ.get(FOLDER):
            file = os.open(Path(folder) / str(rank), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.truncate(file, BYTES)
                self._map = mmap.mmap(file, BYTES)
            finally:
                os.close(file)
            self.note("", 0, "")
            _logs.append(self)

    def note(self, communicator: str, number: int, text: str) -> None:
        """Keep the call, and this process's number."""
        if self._map is not None:
            self.calls[communicator] = number
            line = f"{self.process} {communicator}:{number} {text}".encode()[:BYTES]
            self._map[:] = line.ljust(BYTES)

    def leave(self) -> None:
        """This rank calls nothing any more, and has not failed."""
        with suppress(OSError):  # `gtensor launch` is gone
            write_file(Path(os.environ[FOLDER]) / f"{_LEFT}{self.rank}",
                       json.dumps(self.calls).encode())


_logs: list[Log] = []


@atexit.register  # at import, so that what a program registers later may still call collectives
def _leave() -> None:
    for log in _logs:
        if log.process == os.getpid():  # not a fork
            log.leave()


def note_abort(status: int) -> None:
    """Let `gtensor launch` know that this rank ends all, which MPI does by killing the others.

    If another rank has ended already, its end is the cause, and nothing is noted.
    """
    if folder := os.environ.get(FOLDER):
        with suppress(OSError, ValueError):  # another was first, or `gtensor launch` is gone
            if all(_runs(call.process) for call in noted(Path(folder)).values()):
                file = os.open(Path(folder) / _ABORTED, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
                os.write(file, str(status).encode())
                os.close(file)


def aborted(folder: Path) -> int | None:
    """The status with which a rank ended all; None if none did."""
    with suppress(OSError, ValueError):
        return int(read_all(folder / _ABORTED, BYTES))
    return None


def _runs(process: int) -> bool:
    with suppress(OSError):
        stat = Path(f"/proc/{process}/stat").read_text(errors="replace")
        return stat.rpartition(")")[2].split()[0] not in "ZX"
    return False


def noted(folder: Path) -> dict[int, Call]:
    """The latest call of each rank."""
    found = {}
    for path in folder.iterdir():
        if path.name.isdecimal():
            with suppress(ValueError):  # its rank has not written it yet
                line = read_all(path, BYTES).decode(errors="replace")
                process, place, text = line.split(" ", 2)
                communicator, _, number = place.partition(":")
                found[int(path.name)] = Call(int(process), communicator, int(number),
                                             text.rstrip())
    return found


def departed(folder: Path) -> dict[int, dict[str, int]]:
    """The ranks that have left, each with its numbers of calls of its communicators."""
    return {int(path.name.removeprefix(_LEFT)): json.loads(read_all(path, _MOST_LEFT))
            for path in folder.iterdir() if path.name.startswith(_LEFT)}


def abandoned(folder: Path, ranks: int) -> str | None:
    """In words: a rank that has left, and another one's call that needs it."""
    left, calls_of = departed(folder), noted(folder)
    never = [rank for rank, _ in ends(folder) if rank not in calls_of]
    for path in folder.glob(f"{_JOINING}*") if never else ():
        with suppress(OSError):  # it has joined since
            return (f"rank {never[0]} of {ranks} has ended before it had joined, and this call "
                    f"waits for it: {read_all(path, _MOST_LEFT).decode(errors='replace')}")
    for rank, call in sorted(calls_of.items() if left else ()):
        for gone, calls in sorted(left.items()):
            if rank not in left and calls.get(call.communicator, call.number) < call.number:
                return (f"rank {gone} of {ranks} has ended, and this call waits for it: "
                        f"{call.text}")
    return None


def ends(folder: Path) -> list[tuple[int, int]]:
    """The ranks that ended by themselves, in this order, each with its status or -signal."""
    with suppress(OSError):
        lines = read_all(folder / ENDS, _MOST_ENDS).decode().splitlines()
        return [(int(rank), int(code)) for rank, code in map(str.split, lines)]
    return []


def first_early(folder: Path) -> tuple[int, int] | None:
    """The first rank that ended before its time, and its status or -signal; None if not known."""
    left, calls = departed(folder), noted(folder)
    early = [(rank, code) for rank, code in ends(folder) if code < 0 or rank not in left]
    # Only of programs that use this package it is known whether status 0 was their end.
    sure = [(rank, code) for rank, code in early if code or rank in calls]
    return sure[0] if sure else early[0] if len(early) == 1 else None

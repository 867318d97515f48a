"""The end of all ranks when one of them fails, with its error shown once."""

from __future__ import annotations

import mmap
import os
import sys
import threading
import time
import traceback
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from gtensor.system.files import read_all

if TYPE_CHECKING:
    from gtensor.distributed.communicator import Communicator

FOLDER = "GTENSOR_LAUNCH_FOLDER"  # the variable with `gtensor launch`'s folder for `Log`
BYTES = 1024  # of a rank's file there
_ABORTED = "aborted"  # the file there of the first rank that ended all
_STEP, _MOST = 0.3, 1.2  # seconds


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


class Log:
    """The latest call of each rank, in a file that `gtensor launch` reads when a rank was killed.
    """

    def __init__(self, rank: int) -> None:
        self._map: mmap.mmap | None = None
        if folder := os.environ.get(FOLDER):
            file = os.open(Path(folder) / str(rank), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.truncate(file, BYTES)
                self._map = mmap.mmap(file, BYTES)
            finally:
                os.close(file)
            self.note("")

    def note(self, text: str) -> None:
        """Keep the text, and this process's number."""
        if self._map is not None:
            line = f"{os.getpid()} {text}".encode()[:BYTES]
            self._map[:] = line.ljust(BYTES)


def note_abort(status: int) -> None:
    """Let `gtensor launch` know that this rank ends all, which MPI does by killing the others.

    If another rank has ended already, its end is the cause, and nothing is noted.
    """
    if folder := os.environ.get(FOLDER):
        with suppress(OSError, ValueError):  # another was first, or `gtensor launch` is gone
            if all(map(_runs, noted(Path(folder)))):
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


def noted(folder: Path) -> dict[int, tuple[int, str]]:
    """By process number: the rank, and its latest call."""
    found = {}
    for path in folder.iterdir():
        if path.name == _ABORTED:
            continue
        text = bytes(read_all(path, BYTES)).decode(errors="replace").strip("\0 ")
        number, _, text = text.partition(" ")
        if number:
            found[int(number)] = int(path.name), text
    return found

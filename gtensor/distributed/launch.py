"""`gtensor launch`: a command as several ranks, by MPI's own starter."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any

from gtensor.distributed.errors import DistributedError
from gtensor.distributed.failing import FOLDER, aborted, noted
from gtensor.system.commands import found_command

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_PATIENCE = 10.0  # seconds after Ctrl-C, in which a step may end and be saved
_GRACE = 3.0  # seconds from SIGTERM to SIGKILL
_BLOCK = re.compile(r"PID (\d+) RUNNING AT|EXIT CODE: (\d+)")


def launch(ranks: int, command: Sequence[str], timeout: int | None = None) -> int:
    """Run the command as so many ranks on this machine; the exit status.

    Ranks share the processors: each gets its number of threads, unless the environment says
    another. Ctrl-C goes to all ranks, a second one kills them.

    Raises DistributedError if there is no mpiexec, or no such command.
    """
    starter = mpiexec()
    try:
        words = [starter, "-n", str(ranks), *found_command(
            command, "gtensor launch", "gtensor launch -n 2 -- python train.py")]
    except ValueError as error:
        raise DistributedError(str(error)) from None
    with TemporaryDirectory(prefix="gtensor-launch-") as folder:
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env=environment(ranks, folder, timeout), start_new_session=True)
        reader = _Reader()
        threads = [threading.Thread(target=reader.copy, args=pair, daemon=True)
                   for pair in ((process.stdout, sys.stdout), (process.stderr, sys.stderr))]
        for thread in threads:
            thread.start()
        with _ended_by_terminate():
            try:
                status = _waited(process)
            finally:
                if process.poll() is None:
                    _end(process)
        for thread in threads:
            thread.join(5)
        ended = aborted(Path(folder))
        if ended is not None:  # the others were killed for it, and mpiexec may tell of one of them
            return 130 if status == 130 else ended
        if told := reader.killed(Path(folder), ranks):
            print(f"gtensor launch: {told}", file=sys.stderr, flush=True)
        return status


def mpiexec() -> str:
    """The starter: of this environment's mpich, else the system's."""
    beside = Path(sys.executable).with_name("mpiexec")
    found = str(beside) if beside.exists() else shutil.which("mpiexec")
    if found is None:
        raise DistributedError("gtensor launch needs MPI, whose mpiexec was not found; "
                               "pip install 'gtensor[mpi]'")
    return found


def environment(ranks: int, folder: str, timeout: int | None) -> dict[str, str]:
    """The ranks' variables."""
    made = {**os.environ, FOLDER: folder, "HYDRA_IFACE": os.environ.get("HYDRA_IFACE", "lo")}
    each = max(1, len(os.sched_getaffinity(0)) // ranks)
    for name in THREADS:
        made.setdefault(name, str(each))
    if timeout is not None:
        made["GTENSOR_COLLECTIVE_TIMEOUT"] = str(timeout)
    if sys.stdout.isatty():  # rank 0's progress bar
        size = shutil.get_terminal_size()
        made.update(TTY_COMPATIBLE="1", COLUMNS=str(size.columns), LINES=str(size.lines))
    return made


def _waited(process: subprocess.Popen[bytes]) -> int:
    """The exit status; Ctrl-C is passed on once, then all are killed."""
    asked = False
    while True:
        try:
            status = process.wait(_PATIENCE if asked else None)
            return 130 if asked and status else status if status >= 0 else 128 - status
        except KeyboardInterrupt:
            if not asked:
                process.send_signal(signal.SIGINT)
                asked = True
                continue
        except subprocess.TimeoutExpired:
            pass
        return 130


def _end(process: subprocess.Popen[bytes]) -> None:
    """End mpiexec, which asks its ranks to end, and kill them all if one does not."""
    ranks = _descendants(process.pid)  # each may have a session of its own
    os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(_GRACE)
    except subprocess.TimeoutExpired:
        for one in (process.pid, *ranks):
            with suppress(ProcessLookupError):
                os.kill(one, signal.SIGKILL)
        process.wait()


def _descendants(process: int) -> list[int]:
    """The processes that it has started, and those that they have."""
    pairs = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended since
            state = stat.read_text(errors="replace").rpartition(")")[2].split()
            pairs.append((int(stat.parent.name), int(state[1])))
    found = [process]
    for parent in found:
        found += [child for child, its in pairs if its == parent]
    return found[1:]


@contextmanager
def _ended_by_terminate() -> Iterator[None]:
    """Within the block, SIGTERM (of a batch system) is SystemExit, once: no rank is left."""
    def end(number: int, frame: object) -> None:
        signal.signal(number, signal.SIG_IGN)
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class _Reader:
    """Copies the ranks' output, but not mpiexec's notice of a rank's end, which it reads."""

    def __init__(self) -> None:
        self.process: int | None = None
        self.status = 0

    def copy(self, source: IO[bytes], target: Any) -> None:
        """Line by line, or what is there of a line."""
        within = False
        raw = target.buffer if hasattr(target, "buffer") else None
        pending = b""
        while chunk := os.read(source.fileno(), 1 << 16):
            lines = (pending + chunk).splitlines(keepends=True)
            pending = b""
            if lines and lines[-1].startswith(b"=") and not lines[-1].endswith(b"\n"):
                pending = lines.pop()
            for line in lines:
                text = line.decode(errors="replace")
                if text.startswith("=   BAD TERMINATION"):
                    within = True
                if within or text.startswith("====="):
                    self._note(text)
                    within = within and not text.startswith("Please see the FAQ page")
                elif not text.startswith(("YOUR APPLICATION TERMINATED", "This typically refers",
                                          "Please see the FAQ", "[mpiexec@", "[proxy:", "Abort(")):
                    (raw.write(line) if raw else target.write(text))
            target.flush()
        source.close()

    def _note(self, text: str) -> None:
        for process, status in _BLOCK.findall(text):
            self.process = int(process) if process else self.process
            self.status = int(status) if status else self.status

    def killed(self, folder: Path, ranks: int) -> str | None:
        """In words: which rank a signal has ended, and what the others waited for."""
        calls = noted(folder)
        if self.process is None or self.process not in calls or not 0 < self.status < 32:
            return None
        rank, own = calls.pop(self.process)
        name = signal.Signals(self.status).name
        told = f"rank {rank} of {ranks} was ended by signal {self.status} ({name})"
        told += f"; its last collective: {own}" if own else ""
        return told + "".join(f"\n  {text}" for _, text in sorted(calls.values()) if text)

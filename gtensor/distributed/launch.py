"""`gtensor launch`: a command as several ranks, by MPI's own starter."""

from __future__ import annotations

import ctypes
import os
import secrets
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any

from gtensor.distributed import keeper
from gtensor.distributed.environment import SECRET
from gtensor.distributed.errors import DistributedError
from gtensor.distributed.failing import FOLDER, abandoned, aborted, ends, first_early, noted
from gtensor.system.commands import found_command
from gtensor.system.installation import installation_of

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_PATIENCE = 10.0  # seconds after Ctrl-C, in which a step may end and be saved
_GRACE = 3.0  # seconds from SIGTERM to SIGKILL
LOCAL = {"HYDRA_IFACE": "lo", "HYDRA_LAUNCHER": "fork", "HYDRA_RMK": "user",
         "UCX_NET_DEVICES": "lo", "NCCL_SOCKET_IFNAME": "lo"}  # of ranks on one machine
_LOOK = 0.5  # seconds between looks whether a rank waits for one that has left


def launch(ranks: int, command: Sequence[str], timeout: int | None = None) -> int:
    """Run the command as so many ranks on this machine; the exit status.

    Ranks share the processors: each gets its number of threads, unless the environment says
    another. Ctrl-C goes to all ranks, a second one kills them. When this process ends, however that
    happens, no rank is left. A rank that ends while others need it ends all, and is named.

    Raises DistributedError if there is no mpiexec, or no such command.
    """
    starter = mpiexec()
    try:
        words = found_command(command, "gtensor launch", "gtensor launch -n 2 -- python train.py")
    except ValueError as error:
        raise DistributedError(str(error)) from None
    with TemporaryDirectory(prefix="gtensor-launch-") as name:
        folder = Path(name)
        process = subprocess.Popen(
            [starter, "-n", str(ranks), sys.executable, "-I", "-S", keeper.__file__, name, *words],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env=environment(ranks, name, timeout), start_new_session=True,
            preexec_fn=_ended_with_this())
        threads = [threading.Thread(target=_copy, args=pair, daemon=True)
                   for pair in ((process.stdout, sys.stdout), (process.stderr, sys.stderr))]
        for thread in threads:
            thread.start()
        with _ended_by_signals():
            try:
                status, told = _waited(process, folder, ranks)
            finally:
                if process.poll() is None:
                    _end(process)
        for thread in threads:
            thread.join(5)
        ended = aborted(folder)
        if ended is not None:  # the others were killed for it
            return 130 if status == 130 else ended
        if told is None and status != 130:
            status, told = _early(folder, ranks, status)
        if told is not None:
            print(f"gtensor launch: {told}", file=sys.stderr, flush=True)
        return status


def mpiexec() -> str:
    """The starter: of this environment's mpich, else the system's."""
    beside = Path(sys.executable).with_name("mpiexec")
    found = str(beside) if beside.exists() else shutil.which("mpiexec")
    if found is None:
        raise DistributedError("gtensor launch needs MPI, whose mpiexec was not found; "
                               f"{installation_of('mpi')}")
    return found


def environment(ranks: int, folder: str, timeout: int | None) -> dict[str, str]:
    """The ranks' variables. What listens does so for this machine only, where it has a setting."""
    made = {**LOCAL, **os.environ, FOLDER: folder}
    made[SECRET] = made.get(SECRET) or secrets.token_hex(32)  # an empty one is none
    each = max(1, len(os.sched_getaffinity(0)) // ranks)
    for name in THREADS:
        made.setdefault(name, str(each))
    if timeout is not None:
        made["GTENSOR_COLLECTIVE_TIMEOUT"] = str(timeout)
    if sys.stdout.isatty():  # rank 0's progress bar
        size = shutil.get_terminal_size()
        made.update(TTY_COMPATIBLE="1", COLUMNS=str(size.columns), LINES=str(size.lines))
    return made


def _ended_with_this() -> Callable[[], None]:
    """What mpiexec does first: from then on it is killed when this thread ends.

    Its helper process then kills the ranks.
    """
    prctl, this = ctypes.CDLL(None).prctl, os.getpid()

    def begin() -> None:
        prctl(keeper.PARENT_DEATH_SIGNAL, signal.SIGKILL)
        if os.getppid() != this:
            os._exit(1)

    return begin


def _waited(process: subprocess.Popen[bytes], folder: Path, ranks: int) -> tuple[int, str | None]:
    """The exit status, and why, if a rank waits for one that has left.

    Ctrl-C is passed on once, then all are killed.
    """
    asked, seen = 0.0, None  # when Ctrl-C came; who waited at the last look
    while True:
        try:
            try:
                status = process.wait(_LOOK)
                return 130 if asked and status else status if status >= 0 else 128 - status, None
            except subprocess.TimeoutExpired:
                if asked:
                    if time.monotonic() > asked + _PATIENCE:
                        return 130, None
                    continue
                told = abandoned(folder, ranks)
            if told is not None and told == seen:  # not a note that was half written
                return 1, told
            seen = told
        except KeyboardInterrupt:
            if asked:
                return 130, None
            process.send_signal(signal.SIGINT)
            asked = time.monotonic()


def _early(folder: Path, ranks: int, status: int) -> tuple[int, str | None]:
    """The status, and in words which rank ended all by its own end; what the others waited for."""
    found = ends(folder)
    if len(found) == ranks and all(code >= 0 for _, code in found):
        return status, None
    first, calls = first_early(folder), noted(folder)
    if first is None:
        told = f"a rank of {ranks} ended early, and mpiexec ended the others with status {status}"
        status = status or 1
    else:
        rank, code = first
        told = f"rank {rank} of {ranks} ended with status {code}, and the others with it"
        status = code or 1
        if code < 0:
            name, status = signal.Signals(-code).name, 128 - code
            told = f"rank {rank} of {ranks} was ended by signal {-code} ({name})"
        if (own := calls.pop(rank, None)) is not None and own.text:
            told += f"; its last collective: {own.text}"
    return status, told + "".join(f"\n  {call.text}" for _, call in sorted(calls.items())
                                  if call.text)


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
def _ended_by_signals() -> Iterator[None]:
    """Within the block, SIGTERM (of a batch system) and SIGHUP (of a terminal that is closed) are
    SystemExit, once: no rank is left."""
    def end(number: int, frame: object) -> None:
        for each in before:
            signal.signal(each, signal.SIG_IGN)
        raise SystemExit(128 + number)

    before = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGHUP)
              if signal.getsignal(each) is not signal.SIG_IGN}  # as nohup has it
    for each in before:
        signal.signal(each, end)
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _copy(source: IO[bytes], target: Any) -> None:
    """Copy the ranks' output, line by line, or what is there of a line; without mpiexec's own."""
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
            within = within or text.startswith("=   BAD TERMINATION")
            if within or text.startswith("====="):
                within = within and not text.startswith("Please see the FAQ page")
            elif not text.startswith(("YOUR APPLICATION TERMINATED", "This typically refers",
                                      "Please see the FAQ", "[mpiexec@", "[proxy:", "Abort(")):
                (raw.write(line) if raw else target.write(text))
        target.flush()
    source.close()

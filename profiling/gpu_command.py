"""A command within a limit of time, on a machine where a process may be stuck in the driver."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

GRACE = 15.0  # seconds from an interrupt to the kill: pytest and Python then still report
PATIENCE = 5.0  # seconds for a killed process to be gone: the kernel may wait for the driver
STEP = 0.02  # seconds between two looks at a process


@dataclass(frozen=True)
class Ended:
    """How a command ended. `code` is None if it could not be killed, and is then left behind."""

    code: int | None
    late: bool  # it was interrupted at its limit
    interrupted: bool  # SIGINT or SIGTERM came for this process
    wall: float  # seconds
    cpu: float  # seconds of processors, with those of its children

    def failure(self, limit: float) -> str:
        """What went wrong, in a few words; empty if nothing did."""
        if self.interrupted:
            return "interrupted"
        if self.code is None:
            return f"over its {limit:.0f} s, and could not be killed"
        if self.late:
            return f"over its {limit:.0f} s"
        return f"exit status {self.code}" if self.code else ""


def run(
    words: Sequence[str | Path], limit: float, hear: Callable[[bytes], None], *,
    environment: Mapping[str, str] | None = None, folder: Path | None = None, group: bool = False,
) -> Ended:
    """Run a command in a session of its own; `hear` gets each line of its output, in a thread.

    At its limit the command gets SIGINT, and all of its processes with `group`; SIGKILL follows
    `GRACE` seconds later. Whatever it started is killed at its end.
    """
    began = time.monotonic()
    process = subprocess.Popen(words, env=environment, cwd=folder, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, start_new_session=True)
    assert process.stdout is not None
    hearing = threading.Thread(target=_pass_on, args=(process.stdout, hear), daemon=True)
    hearing.start()
    code, cpu, interrupted = None, 0.0, False
    signalled: list[int] = []
    due = {signal.SIGINT: began + limit, signal.SIGKILL: began + limit + GRACE}
    while code is None and time.monotonic() < due[signal.SIGKILL] + PATIENCE:
        try:
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            if pid:
                code, cpu = os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime
                break
            for number, when in due.items():
                if time.monotonic() >= when and number not in signalled:
                    signalled.append(number)
                    _send(process.pid, number, group or number == signal.SIGKILL)
            time.sleep(STEP)
        except ChildProcessError:  # an interrupt came just after it was waited for
            break
        except KeyboardInterrupt:  # let it report
            interrupted = True
            due = {signal.SIGINT: 0.0, signal.SIGKILL: time.monotonic() + GRACE}
    _send(process.pid, signal.SIGKILL, True)
    process.returncode = code if code is not None else -signal.SIGKILL  # Popen would wait for it
    hearing.join(PATIENCE)  # longer if a process in a session of its own holds the pipe
    return Ended(code, bool(signalled) and not interrupted, interrupted,
                 time.monotonic() - began, cpu)


def output_of(
    words: Sequence[str | Path], limit: float, environment: Mapping[str, str] | None = None,
) -> tuple[Ended, list[str]]:
    """The same for a short command: how it ended, and the lines of its output."""
    lines: list[bytes] = []
    ended = run(words, limit, lines.append, environment=environment, group=True)
    return ended, [line.decode(errors="replace").strip() for line in lines]


def _pass_on(output: IO[bytes], hear: Callable[[bytes], None]) -> None:
    with output:
        for line in output:
            hear(line)


def _send(pid: int, number: int, group: bool) -> None:
    with contextlib.suppress(ProcessLookupError):
        (os.killpg if group else os.kill)(pid, number)

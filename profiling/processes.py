"""Jobs in several processes, handed out one at a time: a job that crashes or hangs costs itself.

    with Pool(["a", "b"], begin, (options,), processes=14, seconds=60) as pool:
        for result in pool.results():
            print(result.job, result.failure or "ok")

Each worker calls `begin(*arguments)` once. That returns a function from a job's name to a Result.
A worker whose Result is its last one ends; another process takes its place. So it is with a worker
that dies, and with one that is killed because its job took too long. Workers are spawned. `begin`
may take as long as it likes. `InThisProcess` runs the same jobs without workers.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import signal
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from types import FrameType
from typing import Any

SPAWN = get_context("spawn")
PATIENCE = 5  # seconds for a process to print where it is, and to be gone after it was killed
_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG


@dataclass
class Result:
    """What became of a job."""

    job: str
    failure: str = ""  # the reason; empty if it succeeded
    detail: str = ""  # lines for a reader: a traceback
    seconds: float = 0.0
    last: bool = False  # whether its process can run no further job
    news: Any = None  # whatever `begin`'s function wants to tell


class Stopped(BaseException):
    """SIGINT or SIGTERM arrived; the argument is its name."""


@contextlib.contextmanager
def stoppable() -> Iterator[None]:
    """SIGINT and SIGTERM raise Stopped in the block; further ones are ignored from then on."""
    numbers = (signal.SIGINT, signal.SIGTERM)

    def stop(number: int, frame: FrameType | None) -> None:
        for one in numbers:
            signal.signal(one, signal.SIG_IGN)
        raise Stopped(signal.Signals(number).name)

    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Pool:
    """Workers, the jobs that wait for one, and what the workers run now."""

    def __init__(self, jobs: Iterable[str], begin: Callable[..., Callable[[str], Result]],
                 arguments: tuple[Any, ...], processes: int, seconds: float) -> None:
        self.waiting = deque(jobs)
        self.unable: list[str] = []  # how processes ended that never asked for a job
        self._begin, self._seconds = (begin, arguments), seconds
        self._workers: list[_Worker] = []
        self._count = min(processes, len(self.waiting))

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *error: object) -> None:
        for worker in self._workers:
            worker.process.kill()
        until = time.monotonic() + PATIENCE
        for worker in self._workers:
            _await_end(worker.process, until)

    def running(self) -> list[str]:
        """The jobs that workers run, or ran when the pool was left."""
        return [worker.job for worker in self._workers if worker.job]

    def results(self) -> Iterator[Result]:
        """Every result as soon as it is there. Jobs keep waiting if no process could begin."""
        for _ in range(self._count):
            self._workers.append(_Worker(*self._begin))
        while self._workers and (self.waiting or self.running()):
            ready = wait([worker.connection for worker in self._workers], self._until_overdue())
            for worker in list(self._workers):
                job = worker.job
                if worker.connection in ready:
                    result = worker.receive()
                elif job and self._seconds and worker.taken() >= self._seconds:
                    result = worker.overdue(self._seconds)
                else:
                    continue
                if result.last:
                    worker.process.kill()
                    self._workers.remove(worker)
                    if not job:
                        self.unable.append(result.failure)
                    elif self.waiting:
                        self._workers.append(_Worker(*self._begin))
                elif self.waiting:
                    worker.give(self.waiting.popleft())
                if job:
                    yield result

    def _until_overdue(self) -> float | None:
        """Seconds until the first of the running jobs has taken too long."""
        taken = [worker.taken() for worker in self._workers if worker.job]
        return max(0.0, self._seconds - max(taken)) if taken and self._seconds else None


class InThisProcess:
    """The jobs one after the other in this process, in the form of a Pool.

    The job that takes too long cannot be ended: `overdue` is called in a thread with its Result,
    which should end the process.
    """

    def __init__(self, jobs: Iterable[str], begin: Callable[..., Callable[[str], Result]],
                 arguments: tuple[Any, ...], seconds: float,
                 overdue: Callable[[Result], None]) -> None:
        self.unable: list[str] = []
        self._jobs, self._begin, self._arguments = jobs, begin, arguments
        self._seconds, self._overdue = seconds, overdue
        self._job = ""

    def __enter__(self) -> InThisProcess:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def running(self) -> list[str]:
        return [self._job] if self._job else []

    def results(self) -> Iterator[Result]:
        """Every result, until one is the last."""
        run = self._begin(*self._arguments)
        for job in self._jobs:
            self._job = job
            timer = threading.Timer(self._seconds, self._late, [job, threading.get_ident()])
            timer.daemon = True
            if self._seconds:
                timer.start()
            try:
                result = run(job)
            finally:
                timer.cancel()
            self._job = ""
            yield result
            if result.last:
                return

    def _late(self, job: str, thread: int) -> None:
        where = "".join(traceback.format_stack(sys._current_frames()[thread]))
        self._overdue(Result(job, f"no result within {self._seconds:g} s", where,
                             self._seconds, last=True))


class _Worker:
    """A process as the coordinator sees it."""

    def __init__(self, begin: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self.job, self._since = "", 0.0
        self.connection, theirs = SPAWN.Pipe()
        self._traces, traces = SPAWN.Pipe(duplex=False)
        self.process = SPAWN.Process(
            target=_serve, args=(theirs, traces, begin, arguments), daemon=True)
        self.process.start()
        theirs.close()
        traces.close()

    def give(self, job: str) -> None:
        self.job, self._since = job, time.monotonic()
        with contextlib.suppress(OSError):  # it died while it had nothing to do: receive says so
            self.connection.send(job)

    def taken(self) -> float:
        """Seconds since it was given its job."""
        return time.monotonic() - self._since

    def receive(self) -> Result:
        """The result that it sent, or how it ended. The first message of a process has no job."""
        try:
            result = self.connection.recv()
        except (EOFError, OSError):
            _await_end(self.process)
            result = self._over(f"the process ended {_status(self.process.exitcode)}")
        self.job = ""
        return result

    def overdue(self, seconds: float) -> Result:
        """Let the process write where it hangs, which ends it, and kill it if it does not end."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid or 0, signal.SIGUSR1)
        _await_end(self.process)
        result = self._over(f"no result within {seconds:g} s")
        self.job = ""
        return result

    def _over(self, failure: str) -> Result:
        self.process.kill()
        _await_end(self.process)
        os.set_blocking(self._traces.fileno(), False)
        trace = ""
        with contextlib.suppress(BlockingIOError):  # a process that it started has the pipe, too
            trace = os.read(self._traces.fileno(), 1 << 16).decode(errors="replace")
        trace, _, _ = trace.partition("\nExtension modules: ")
        return Result(self.job, failure, trace, self.taken(), last=True)


def _await_end(process: Any, until: float | None = None) -> None:
    """Wait for a process, but not for one that the kernel cannot end. (`join` may wait for it.)"""
    until = time.monotonic() + PATIENCE if until is None else until
    while process.exitcode is None and time.monotonic() < until:
        time.sleep(0.005)


def _status(code: int | None) -> str:
    if code is None:
        return "its connection, but still exists"
    if code < 0:
        return f"by signal {-code} ({signal.strsignal(-code)})"
    return f"with exit status {code}"


def _serve(connection: Connection, traces: Connection, begin: Callable[..., Any],
           arguments: tuple[Any, ...]) -> None:
    """What a worker runs: begin, then a job at a time until there is no coordinator."""
    for number in (signal.SIGINT, signal.SIGTERM):  # they are for the coordinator, which kills
        signal.signal(number, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    faulthandler.enable(traces.fileno())
    # Chained to the default action, so that the process ends once the traceback is written.
    faulthandler.register(signal.SIGUSR1, traces.fileno(), chain=True)
    run = begin(*arguments)
    connection.send(Result(""))
    with contextlib.suppress(EOFError):
        while True:
            result = run(connection.recv())
            sys.stdout.flush()
            connection.send(result)
            if result.last:
                os._exit(0)  # the usual end frees memory of a device that answers with errors

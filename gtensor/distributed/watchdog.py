"""Deadlines of collectives for which no thread of the host waits.

On CUDA a stream waits for a collective, and the host goes on. A thread looks whether collectives
end in time. If one does not, it raises the error in the thread that has begun it, and then ends the
collective: a call that waits for the device returns, and what follows it does not run.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

from gtensor.distributed.errors import DistributedError
from gtensor.system.fork_safety import free_at_forks

_PERIOD = 0.05  # seconds between looks

Late = Callable[[float, str | None], DistributedError]
"""late(seconds, cause): the error of a deadline missed, or of a failure by a known cause."""


class Owner(Protocol):
    """The engine of a collective."""

    def failure(self) -> str | None:
        """What has gone wrong on another rank, None if nothing is known."""

    def lose(self, error: DistributedError, thread: int) -> None:
        """Raise the error in a thread, and end all collectives."""


@dataclass
class Watched:
    """A collective in progress. `kept` is memory that it uses."""

    owner: Owner
    event: Any
    seconds: float
    deadline: float
    late: Late
    thread: int
    kept: tuple[Any, ...]


class Watchdog:
    """The thread, and what it looks at. One per process; see `watchdog`."""

    def __init__(self) -> None:
        self._watched: list[Watched] = []
        self._changed = threading.Condition()
        free_at_forks(self._changed)
        threading.Thread(target=self._run, name="gtensor watchdog", daemon=True).start()

    def add(self, watched: Watched) -> None:
        with self._changed:
            self._watched.append(watched)
            if len(self._watched) == 1:
                self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._watched:
                    self._changed.wait()
                looked = list(self._watched)
            gone = {id(each) for each in looked if each.event.done() or self._lost(each)}
            del looked
            with self._changed:
                self._watched = [each for each in self._watched if id(each) not in gone]
            time.sleep(_PERIOD)

    def _lost(self, watched: Watched) -> bool:
        cause = watched.owner.failure()
        if cause is None and time.monotonic() < watched.deadline:
            return False
        watched.owner.lose(watched.late(watched.seconds, cause), watched.thread)
        return True


@cache
def watchdog() -> Watchdog:
    """The watchdog of this process, started at the first call."""
    return Watchdog()


def raise_in(thread: int, error: Exception) -> None:
    """Let a thread raise the error, at its next step in Python."""
    text = str(error)
    kind = type(error)
    raised = type(kind.__name__, (kind,), {
        "__init__": lambda self: kind.__init__(self, text), "__module__": kind.__module__})
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(raised))


def withdraw() -> None:
    """Do not raise in this thread what `raise_in` has asked for and did not happen yet."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(threading.get_ident()), None)

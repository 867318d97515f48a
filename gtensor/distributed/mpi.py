"""Collectives by MPI, through mpi4py: what NumPy arrays, and copies of CUDA's, go over.

Every call is a nonblocking one of MPI, so that each wait has a deadline. A thread waits for those
that the caller does not wait for at once: MPI moves bytes within its own calls only.
"""

from __future__ import annotations

import atexit
import faulthandler
import json
import os
import queue
import threading
import time
from collections.abc import Callable
from functools import cache
from math import inf
from typing import TYPE_CHECKING, Any, NoReturn
from weakref import finalize

import numpy as np

from gtensor.backend import device_of
from gtensor.distributed.errors import DistributedError
from gtensor.engine.handle.tensor import is_floating
from gtensor.system.installation import installation_of

if TYPE_CHECKING:
    from mpi4py import MPI

    from gtensor.backend.typing import Array

_BUSY = 2e-3  # seconds of polling before the processor is left to others
_PAUSE = 2e-4  # seconds between polls then
_ENDING = 20.0  # seconds that MPI may take to end all

_missed: list[Posted] = []  # which did not end in time


class Mpi:
    """An engine over two communicators of MPI, which has about two thousand for a process.

    MPI frees one collectively, and engines are dropped at another time on each rank. So those of an
    engine that was split off are freed at the next `split()` of the same engine after all ranks
    have dropped it; they stay if that engine was dropped before.
    """

    name = "mpi"

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._comm = comm
        self._signatures = comm.Dup()  # apart from the order of collectives
        self.rank, self.size = comm.Get_rank(), comm.Get_size()
        self._splits = 0
        self._parts: dict[int, list[MPI.Intracomm]] = {}  # of engines split off, by number
        self._dropped: list[int] = []  # of these, on this rank

    def all_reduce(self, array: Array, op: str) -> Posted:
        host = _summable(_on_host(array), op)
        request = self._comm.Iallreduce(_mpi().IN_PLACE, host, _operation(op))

        def finish() -> None:
            if op == "mean":
                np.divide(host, self.size, out=host)
            _give(host, array)

        return Posted(request, finish)

    def broadcast(self, array: Array, root: int) -> Posted:
        host = _on_host(array)
        request = self._comm.Ibcast(_bytes(host), root)
        return Posted(request, lambda: _give(host, array))

    def all_gather(self, array: Array, out: Array) -> Posted:
        given, host = _on_host(array), _on_host(out)
        request = self._comm.Iallgather(_bytes(given), _bytes(host))
        return Posted(request, lambda: _give(host, out), given)

    def reduce_scatter(self, array: Array, out: Array, op: str) -> Posted:
        given, host = (_summable(_on_host(x), op) for x in (array, out))
        request = self._comm.Ireduce_scatter_block(given, host, _operation(op))

        def finish() -> None:
            if op == "mean":
                np.divide(host, self.size, out=host)
            _give(host, out)

        return Posted(request, finish, given)

    def exchange(self, text: bytes, seconds: float) -> list[bytes] | None:
        """First the lengths, then the texts."""
        end = time.monotonic() + seconds
        lengths = np.zeros(self.size, np.int64)
        request = self._comm.Iallgather(np.array([len(text)]), lengths)
        if not _polled(request, end):
            return None
        found = np.empty(int(lengths.sum()), np.uint8)
        given = np.frombuffer(text, np.uint8)
        request = self._comm.Iallgatherv(given, [found, lengths])
        if not _polled(request, end):
            return None
        ends = lengths.cumsum()
        return [found[stop - n:stop].tobytes() for n, stop in zip(lengths, ends, strict=True)]

    def gather(self, signature: bytes) -> Signatures:
        found = np.empty((self.size, len(signature)), np.uint8)
        given = np.frombuffer(signature, np.uint8)
        return Signatures(self._signatures.Iallgather(given, found), found, given)

    def split(self, color: int, key: int) -> Mpi:
        told = self.exchange(json.dumps(self._dropped).encode(), inf)
        assert told is not None
        for number in sorted(set.intersection(*(set(json.loads(each)) for each in told))):
            self._dropped.remove(number)
            for comm in self._parts.pop(number):
                comm.Free()
        split: Any = self._comm.Split(color, key)
        made = Mpi(split)
        self._splits += 1
        self._parts[self._splits] = [made._comm, made._signatures]
        finalize(made, self._dropped.append, self._splits)
        return made

    def abort(self, status: int) -> NoReturn:
        _end_all(self._comm, status)


class Posted:
    """A request of MPI, and what is to be done with its result.

    `kept` are arrays that MPI reads. `done()` and `wait()` are called by one thread.
    """

    def __init__(self, request: MPI.Request, finish: Callable[[], None], *kept: Array) -> None:
        self._request = request
        self._finish: Callable[[], None] | None = finish
        self._kept = kept
        self._left: threading.Event | None = None  # set by the thread that waits

    def leave(self) -> None:
        """Let the thread wait for it, in which MPI moves its bytes meanwhile.

        The thread keeps its arrays until then, which nothing else may: not all collectives are
        waited for, and mpi4py keeps no array that is reduced in place.
        """
        self._left = threading.Event()
        _waiting().put((self, self._request, self._left))

    def watch(self, seconds: float, late: object) -> None:
        """`wait` does."""

    def done(self) -> bool:
        return self._finish is None or (
            self._request.Test() if self._left is None else self._left.is_set())

    def wait(self, seconds: float) -> bool:
        if self._finish is not None:
            if not (_polled(self._request, time.monotonic() + seconds) if self._left is None
                    else self._left.wait(seconds)):
                _missed.append(self)
                return False
            self._finish()
            self._finish, self._kept = None, ()
        return True


class Signatures:
    """Those of one call on all ranks, on their way."""

    def __init__(self, request: MPI.Request, found: np.ndarray, given: np.ndarray) -> None:
        self._found = found
        self._posted = Posted(request, lambda: None, found, given)

    def done(self) -> bool:
        return self._posted.done()

    def wait(self, seconds: float) -> list[bytes] | None:
        return [row.tobytes() for row in self._found] if self._posted.wait(seconds) else None


def _polled(request: MPI.Request, end: float) -> bool:
    """Whether a request was completed before a time of `time.monotonic`."""
    busy = time.monotonic() + _BUSY
    while not request.Test():
        now = time.monotonic()
        if now >= end:
            return False
        if now < busy:
            os.sched_yield()
        else:
            time.sleep(_PAUSE)
    return True


@cache
def _waiting() -> queue.SimpleQueue[tuple[Posted, MPI.Request, threading.Event]]:
    """What was posted, its request and an event: a thread waits for them in their order."""
    requests: queue.SimpleQueue[tuple[Posted, MPI.Request, threading.Event]] = queue.SimpleQueue()

    def run() -> None:
        while True:
            posted, request, ended = requests.get()
            request.Wait()
            ended.set()
            del posted

    threading.Thread(target=run, name="gtensor collectives", daemon=True).start()
    return requests


def world() -> Mpi:
    """The engine of all processes. Initializes MPI if nothing has."""
    return Mpi(_mpi().COMM_WORLD.Dup())


@cache
def _mpi() -> Any:
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:  # without a library of MPI, or with another one
        raise DistributedError(f"mpi4py could not load MPI ({error}); {installation_of('mpi')} "
                               "installs one") from error

    atexit.register(_end)
    return MPI


def _end() -> None:
    """At exit: MPI cannot be finalized while a collective waits for ranks that do not come."""
    if not all(posted.done() for posted in _missed):
        _end_all(_mpi().COMM_WORLD, 1)


def _end_all(comm: MPI.Intracomm, status: int) -> NoReturn:
    # MPI ends the process by exit(), which may wait for what a thread within MPI holds: then no
    # rank would end. The timer needs no lock of Python's, and shows where the threads are.
    faulthandler.dump_traceback_later(_ENDING, exit=True, file=2)
    comm.Abort(status)
    os._exit(status)


def _operation(op: str) -> Any:
    """MPI's operation; a mean is a sum, divided at the end."""
    return getattr(_mpi(), "SUM" if op == "mean" else op.upper())


def _on_host(array: Array) -> np.ndarray:
    """The array on the host: itself, or a copy."""
    return device_of(array).to_numpy(array)


def _summable(host: np.ndarray, op: str) -> np.ndarray:
    """In a dtype in which MPI reduces: float32 for floating-point numbers of 2 bytes or less."""
    return host.astype(np.float32) if is_floating(host.dtype) and host.itemsize <= 2 else host


def _bytes(host: np.ndarray) -> np.ndarray:
    """The same memory as bytes, which MPI moves whatever they mean."""
    return host.reshape(-1).view(np.uint8)


def _give(host: np.ndarray, array: Array) -> None:
    """Copy the result to where it was asked for, unless it lies there."""
    if host is not array:
        device = device_of(array)
        device.assign(array, device.from_numpy(host.astype(array.dtype, copy=False)))

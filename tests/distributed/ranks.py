"""Worlds of several ranks for tests: threads of this process, and real processes of mpiexec."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NoReturn

import numpy as np

from gtensor.backend import device_of
from gtensor.distributed import Communicator
from gtensor.distributed.communicator import FIRST
from gtensor.engine.handle.tensor import is_floating

ROOT = Path(__file__).parents[2]
SECONDS = 900.0  # of a world of processes
LATE = 120.0  # of a collective


def until(happened: Callable[[], bool]) -> None:
    """Wait for what another rank does; as long as for a collective, at most."""
    for _ in range(int(LATE / 0.01)):
        if happened():
            return
        time.sleep(0.01)
    raise TimeoutError("another rank did not come so far")


def past_first(comm: Communicator) -> None:
    """Make the first calls of a communicator, which all ranks compare; the next ones they do not.
    """
    for _ in range(FIRST):
        comm.barrier()


# -- threads ---------------------------------------------------------------------------------------


class _Meeting:
    """What the threads of one world exchange: the k-th call of each, in order."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.given: dict[int, dict[int, Any]] = {}
        self.changed = threading.Condition()
        self.lost = False
        self.worlds: dict[tuple[int, int], _Meeting] = {}

    def signatures(self) -> _Meeting:
        """Where the threads compare their calls, apart from these."""
        with self.changed:
            return self.worlds.setdefault((-1, 0), _Meeting(self.size))

    def give(self, call: int, rank: int, value: Any) -> None:
        with self.changed:
            self.given.setdefault(call, {})[rank] = value
            self.changed.notify_all()

    def whole(self, call: int) -> bool:
        return len(self.given[call]) == self.size

    def wait(self, call: int, seconds: float) -> list[Any] | None:
        with self.changed:
            if not self.changed.wait_for(lambda: self.lost or self.whole(call), seconds):
                return None
            if self.lost:
                raise RuntimeError("another thread of this world has raised")
            return [self.given[call][rank] for rank in range(self.size)]


class _Met:
    """A collective of threads: its result is computed at the wait."""

    def __init__(self, engine: Meeting, call: int, finish: Callable[[list[Any]], None]) -> None:
        self.engine, self.call, self.finish = engine, call, finish
        self.ended = False

    def leave(self) -> None:
        pass

    def watch(self, seconds: float, late: Any) -> None:
        pass

    def done(self) -> bool:
        return self.ended or self.engine.meeting.whole(self.call)

    def wait(self, seconds: float) -> bool:
        if not self.ended:
            found = self.engine.meeting.wait(self.call, seconds)
            if found is None:
                return False
            self.finish(found)
            self.ended = True
        return True


class _Gathered:
    """Signatures of one call."""

    def __init__(self, meeting: _Meeting, call: int) -> None:
        self.meeting, self.call = meeting, call

    def done(self) -> bool:
        return self.meeting.whole(self.call)

    def wait(self, seconds: float) -> list[bytes] | None:
        return self.meeting.wait(self.call, seconds)


class Meeting:
    """The engine of one thread."""

    name = "threads"

    def __init__(self, meeting: _Meeting, rank: int) -> None:
        self.meeting, self.rank, self.size = meeting, rank, meeting.size
        self.calls = self.checks = 0

    def _meet(self, array: Any, finish: Callable[[list[Any]], None]) -> _Met:
        call, self.calls = self.calls, self.calls + 1
        self.meeting.give(call, self.rank, np.array(device_of(array).to_numpy(array)))
        return _Met(self, call, finish)

    def all_reduce(self, array: Any, op: str) -> _Met:
        return self._meet(array, lambda found: _put(array, reduced(found, op)))

    def broadcast(self, array: Any, root: int) -> _Met:
        return self._meet(array, lambda found: _put(array, found[root]))

    def all_gather(self, array: Any, out: Any) -> _Met:
        return self._meet(array, lambda found: _put(out, np.stack(found)))

    def reduce_scatter(self, array: Any, out: Any, op: str) -> _Met:
        return self._meet(array, lambda found: _put(out, reduced(found, op)[self.rank]))

    def exchange(self, text: bytes, seconds: float) -> list[bytes] | None:
        call, self.calls = self.calls, self.calls + 1
        self.meeting.give(call, self.rank, text)
        return self.meeting.wait(call, seconds)

    def gather(self, signature: bytes) -> _Gathered:
        signatures = self.meeting.signatures()
        call, self.checks = self.checks, self.checks + 1
        signatures.give(call, self.rank, signature)
        return _Gathered(signatures, call)

    def split(self, color: int, key: int) -> Meeting:
        call = self.calls
        found = self.exchange(json.dumps([color, key]).encode(), SECONDS)
        assert found is not None
        pairs = [json.loads(text) for text in found]
        mine = sorted((k, r) for r, (c, k) in enumerate(pairs) if c == color)
        with self.meeting.changed:
            world = self.meeting.worlds.setdefault((call, color), _Meeting(len(mine)))
        return Meeting(world, mine.index((key, self.rank)))

    def abort(self, status: int) -> NoReturn:
        raise SystemExit(status)


def reduced(found: list[np.ndarray], op: str) -> np.ndarray:
    """By rank, in float32 for floating-point numbers of 2 bytes."""
    if op in ("max", "min"):
        return getattr(np, op)(np.stack(found), axis=0)
    dtype = found[0].dtype
    wide = np.float32 if is_floating(dtype) and dtype.itemsize <= 2 else dtype
    total = found[0].astype(wide)
    for other in found[1:]:
        total = total + other
    return (total / len(found) if op == "mean" else total).astype(dtype)


def _put(array: Any, value: np.ndarray) -> None:
    array[...] = device_of(array).from_numpy(value.astype(array.dtype))


def in_threads(size: int, function: Callable[..., Any], *args: Any, timeout: float = LATE
               ) -> list[Any]:
    """function(comm, *args) in `size` threads, a world; their results by rank.

    Raises the first error; the other threads then end.
    """
    meeting, results, errors = _Meeting(size), [None] * size, []

    def run(rank: int) -> None:
        try:
            results[rank] = function(Communicator(Meeting(meeting, rank), timeout), *args)
        except BaseException as error:
            errors.append(error)
            for world in _worlds(meeting):
                with world.changed:
                    world.lost = True
                    world.changed.notify_all()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
        assert not thread.is_alive(), "a thread of the world hangs"
    if errors:
        raise errors[0]
    return results


def _worlds(meeting: _Meeting) -> list[_Meeting]:
    below = list(meeting.worlds.values())
    return [meeting, *(world for one in below for world in _worlds(one))]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


# -- processes -------------------------------------------------------------------------------------


def mpiexec() -> str:
    """The mpiexec of this environment."""
    found = Path(sys.executable).with_name("mpiexec")
    assert found.exists(), f"{found} is missing; pip install 'gtensor[mpi]'"
    return str(found)


def run_ranks(size: int, function: Callable[..., Any], *args: Any, seconds: float = SECONDS,
              **environment: str) -> list[Any]:
    """function(comm, *args) of a module of the tests in so many processes; results by rank.

    Arguments and results are JSON, or NumPy arrays as results. Raises AssertionError with what the
    processes wrote if one of them fails, and after `seconds`.
    """
    with TemporaryDirectory() as folder:
        command = [mpiexec(), "-n", str(size), sys.executable, "-m", "distributed.ranks", folder,
                   function.__module__, function.__name__, json.dumps(args)]
        done = start(command, seconds, **environment)
        assert done.returncode == 0, done.stdout + done.stderr
        return [np.load(Path(folder) / f"{rank}.npy", allow_pickle=True).item()["result"]
                for rank in range(size)]


def start(command: list[str], seconds: float = SECONDS, **environment: str
          ) -> subprocess.CompletedProcess[str]:
    """A command with the checkout and its tests on the path, one thread each."""
    return subprocess.run(
        command, capture_output=True, text=True, timeout=seconds, stdin=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}",
             "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "HYDRA_IFACE": "lo",
             "GTENSOR_COLLECTIVE_TIMEOUT": "1800",  # so that a test of a hang ends by its own limit
             **environment})


def _main(folder: str, module: str, name: str, args: str) -> None:
    import importlib

    from gtensor import distributed

    comm = distributed.init(os.environ.get("RANKS_BACKEND", "mpi"), timeout=LATE)
    try:
        result = getattr(importlib.import_module(module), name)(comm, *json.loads(args))
        np.save(Path(folder) / f"{comm.rank}.npy", np.array({"result": result}, object))
    except BaseException:
        import traceback

        traceback.print_exc()
        comm.abort("the function of a test raised")


if __name__ == "__main__":
    _main(*sys.argv[1:])

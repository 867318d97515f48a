"""Collectives by NCCL, through CuPy: on arrays of one CUDA device for each rank.

A collective runs on a stream of the communicator. That stream waits for the work that made the
arrays; at `wait()` the current stream waits for the collective, and the host for neither. Within a
capture (`gt.Graph`) it is captured with the rest, and each replay runs it: all ranks capture and
replay the same. A replay has no deadline of its own; one that hangs is ended with the next
collective that misses its own.

What NCCL does not carry goes over a control connection: that of MPI, or TCP.
"""

from __future__ import annotations

import atexit
import json
import threading
import time
import weakref
from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeVar, cast

import numpy as np

from gtensor.backend import (
    DeviceError,
    cuda_device_count,
    default_device,
    device_of,
    get_device,
    nccl,
    set_default_device,
)
from gtensor.distributed import environment
from gtensor.distributed.alone import Alone
from gtensor.distributed.errors import CollectiveTimeout, DistributedError
from gtensor.distributed.watchdog import Late, Watched, raise_in, watchdog, withdraw
from gtensor.distributed.work import Check
from gtensor.system.fork_safety import free_at_forks

if TYPE_CHECKING:
    from gtensor.backend.cuda import CudaDevice
    from gtensor.backend.cuda_streams import CudaStream
    from gtensor.backend.typing import Array

_WIDE = {"i": "int32", "u": "uint32"}  # in which NCCL reduces what it does not reduce itself
_PAUSE = 5e-4  # seconds between looks while the host waits
_END = 2.0  # seconds that a communicator may take to end with its process

Result = TypeVar("Result")


class Control(Protocol):
    """The connection of the ranks' hosts: `Mpi`, `Star` or `Alone`."""

    rank: int
    size: int

    def exchange(self, text: bytes, seconds: float) -> list[bytes] | None: ...

    def gather(self, signature: bytes) -> Check: ...

    def split(self, color: int, key: int) -> Control: ...

    def abort(self, status: int) -> NoReturn: ...


class Nccl:
    """An engine over a communicator of NCCL.

    Arrays lie on `device`; those of the host are copied there and back, which the host waits for.
    """

    name = "nccl"

    def __init__(self, device: CudaDevice, control: Control, seconds: float) -> None:
        self.rank, self.size = control.rank, control.size
        self._control, self._device, self._seconds = control, device, seconds
        self._comm = _joined(device, control, seconds)
        self._stream: CudaStream = device.new_stream()
        self._last: Any = None  # the event behind the last collective
        self._lost: DistributedError | None = None
        self._losing = threading.Lock()
        free_at_forks(self._losing)
        _engines.add(self)

    def all_reduce(self, array: Array, op: str) -> Launched:
        return self._begin(array, array, lambda x, out, stream: (
            self._comm.all_reduce(x, out, op, stream)), reduces=True)

    def broadcast(self, array: Array, root: int) -> Launched:
        return self._begin(array, array, lambda x, _, stream: (
            self._comm.broadcast(x, root, stream)))

    def all_gather(self, array: Array, out: Array) -> Launched:
        return self._begin(array, out, self._comm.all_gather)

    def reduce_scatter(self, array: Array, out: Array, op: str) -> Launched:
        return self._begin(array, out, lambda x, part, stream: (
            self._comm.reduce_scatter(x, part, op, stream)), reduces=True)

    def exchange(self, text: bytes, seconds: float) -> list[bytes] | None:
        return self._control.exchange(text, seconds)

    def gather(self, signature: bytes) -> Check:
        """Within a capture the host waits for it: what is captured begins at its call."""
        check = self._control.gather(signature)
        if self.capturing():
            check.wait(self._seconds)
        return check

    def split(self, color: int, key: int) -> Nccl:
        """All ranks call it, and each gets a communicator with a stream of its own."""
        return Nccl(self._device, self._control.split(color, key), self._seconds)

    def abort(self, status: int) -> NoReturn:
        self._control.abort(status)

    # -- one collective ---------------------------------------------------------------------------

    def _begin(self, given: Array, target: Array, call: Callable[[Any, Any, CudaStream], None],
               reduces: bool = False) -> Launched:
        """Queue `call(given, target, stream)`, with conversions of what NCCL cannot read."""
        self.check()
        self._refuse(given, target)
        if not given.size:
            return Launched(self, None)
        device, captured = self._device, self._device.capturing()
        stream = device.current_stream() if captured else self._stream
        with device.running(stream):
            used = self._readable(given, reduces)
            out = used if target is given else target
            if out is not used and (out.dtype != used.dtype or isinstance(out, np.ndarray)):
                out = device.empty(target.shape, used.dtype, "collective")
            device.order((used,), (out,))
            call(used, out, stream)
            if out is not target and not isinstance(target, np.ndarray):
                device.assign(target, out)
            event = None if captured else stream.record()
            self._last = event or self._last
        # A resource knows who uses its blocks; other memory is kept until the work is done.
        kept = tuple(each for each in (used, out, target) if device.block_of(each) is None)
        host = (out, target) if isinstance(target, np.ndarray) else None
        return Launched(self, event, kept, stream, host)

    def _refuse(self, *arrays: Array) -> None:
        for array in arrays:
            device = device_of(array)
            if device is not self._device and device.type != "cpu":
                raise ValueError(f"a collective was given an array on {device}; wanted one on "
                                 f"{self._device}, which its communicator uses")
            if device.type == "cpu" and self._device.capturing():
                raise ValueError("a collective was given an array of the host within a capture; "
                                 f"wanted one on {self._device}")

    def _readable(self, array: Array, reduces: bool) -> Array:
        """The array, or a copy on the device in a dtype that NCCL reduces."""
        if isinstance(array, np.ndarray):
            array = self._device.from_numpy(array)
        if reduces and not nccl.reduces(array.dtype):
            return self._device.copy(array, _WIDE.get(array.dtype.kind, "float32"), "collective")
        return array

    def capturing(self) -> bool:
        """Whether this thread's work is being captured into a graph."""
        return self._device.capturing()

    # -- failing ----------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise the error of a collective that was lost."""
        if self._lost is not None:
            with self._losing:
                withdraw()
            raise self._lost

    def failure(self) -> str | None:
        return self._comm.error()

    def lose(self, error: DistributedError, thread: int | None) -> None:
        """Refuse further calls, and end what is queued; raise the error in a thread, if given."""
        with self._losing:
            if self._lost is not None:
                return
            self._lost = error
            if thread is not None:
                raise_in(thread, error)
        self._comm.abort()

    def close(self) -> None:
        """End the communicator: its memory, once all is done, else what it waits for."""
        with self._losing:
            if self._lost is not None:
                return
            self._lost = DistributedError("the process ends")
        idle = self._last is None or self._last.done()
        _within(_END, self._comm.destroy if idle else self._comm.abort)


class Launched:
    """A collective that is queued on a stream. `kept` is memory that it uses.

    With `host`, an array of the device and one of the host, `wait` copies.
    """

    def __init__(self, engine: Nccl, event: Any, kept: tuple[Any, ...] = (),
                 stream: CudaStream | None = None, host: tuple[Any, np.ndarray] | None = None
                 ) -> None:
        self._engine, self._event, self._kept = engine, event, kept
        self._stream, self._host = stream, host
        self._watched: Watched | None = None

    def leave(self) -> None:
        """The device goes on by itself."""

    def watch(self, seconds: float, late: Late) -> None:
        if self._event is not None and self._engine.size > 1:
            self._watched = Watched(self._engine, self._event, seconds, time.monotonic() + seconds,
                                    late, threading.get_ident(), self._kept)
            watchdog().add(self._watched)

    def done(self) -> bool:
        self._engine.check()
        return self._event is None or self._event.done()

    def wait(self, seconds: float) -> bool:
        self._engine.check()
        if self._event is None:
            return True
        if self._engine.capturing():
            raise RuntimeError("wait() was called within a capture for a collective that was begun "
                               "before; wanted it before the capture")
        end = time.monotonic() + seconds
        if self._watched is not None and end < self._watched.deadline:
            self._watched.seconds, self._watched.deadline = seconds, end
        if self._host is None:
            self._engine._device.current_stream().wait(self._event)
        elif not self._copied(end):
            return False
        self._event, self._kept = None, ()
        return True

    def _copied(self, end: float) -> bool:
        """The result is copied to the host, once it is there; False if it is not in time."""
        while not self._event.done():
            self._engine.check()
            if time.monotonic() >= end and self._watched is None:
                return False
            time.sleep(_PAUSE)
        self._engine.check()
        assert self._host is not None
        found, target = self._host
        with self._engine._device.running(self._stream):
            target[...] = self._engine._device.to_numpy(found)
        return True


# -- communicators ---------------------------------------------------------------------------------

_engines: weakref.WeakSet[Nccl] = weakref.WeakSet()


def world(seconds: float) -> Nccl:
    """The engine of all processes, which are connected by MPI, or as the environment says.

    A process uses the default device. Where a launcher numbers the processes of a machine, and the
    process sees several devices, its default device becomes the one with its number.

    Raises DistributedError, on every rank, if one of them has no NCCL or no device.
    """
    return Nccl(cast("CudaDevice", _device()), _control(seconds), seconds)


def _control(seconds: float) -> Control:
    if find_spec("mpi4py") is not None and environment.mpi_processes() > 1:
        from gtensor.distributed import mpi

        return mpi.world()
    meeting = environment.meeting()
    if meeting is None or meeting.size == 1:
        return Alone()
    from gtensor.distributed import tcp

    return tcp.world(meeting, seconds)


def _device() -> Any:
    local, count = environment.local_rank(), cuda_device_count()
    if local is not None and count > 1:
        set_default_device(f"cuda:{local % count}")
    return default_device() if default_device().type == "cuda" or not count else get_device("cuda")


def _joined(device: CudaDevice, control: Control, seconds: float) -> nccl.NcclCommunicator:
    """The communicator of all ranks of the control connection."""
    rank, size = control.rank, control.size
    try:
        if device.type != "cuda":
            raise DeviceError(f"NCCL was to use {device}; wanted a CUDA device")
        told = {"id": nccl.unique_id().hex(), "place": nccl.place(device)}
    except DeviceError as error:
        told = {"error": str(error)}
    found = control.exchange(json.dumps(told).encode(), seconds)
    if found is None:
        raise _late(rank, size, seconds)
    every = [json.loads(text) for text in found]
    faults = [f"rank {number}: {each['error']}" for number, each in enumerate(every)
              if "error" in each]
    places: dict[str, int] = {}
    for number, each in enumerate(every):
        first = places.setdefault(each.get("place", f"rank {number}"), number)
        if first != number:
            faults.append(f"ranks {first} and {number} have the same GPU ({each['place']}); wanted "
                          "one for each rank")
    if faults:
        raise DistributedError(f"NCCL cannot connect {size} ranks; {'; '.join(faults)}")
    made = _within(seconds, lambda: nccl.NcclCommunicator(
        device, size, bytes.fromhex(every[0]["id"]), rank))
    if made is None:
        raise _late(rank, size, seconds)
    return made


def _within(seconds: float, call: Callable[[], Result]) -> Result | None:
    """The call's result, None if it takes longer: NCCL's own calls have no deadline."""
    found: list[Result] = []
    errors: list[Exception] = []

    def run() -> None:
        try:
            found.append(call())
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="gtensor NCCL", daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise DistributedError(str(errors[0])) from errors[0]
    return found[0] if found else None


def _late(rank: int, size: int, seconds: float) -> CollectiveTimeout:
    return CollectiveTimeout(f"rank {rank} of {size}: NCCL's communicator was not made within "
                             f"{seconds:g} s; another rank has ended or hangs")


@atexit.register
def _end() -> None:
    """What is left at the end of the process must not hold it up."""
    for engine in list(_engines):
        engine.close()

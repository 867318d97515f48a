"""A CUDA device of NumPy memory: streams that run on request, and capture graphs.

Launched work runs when its stream steps, on whatever lies at its addresses by then: a wait that is
missing, or memory that was given away, shows as wrong values.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from weakref import WeakValueDictionary

import numpy as np

from gtensor.backend.cuda import CudaDevice
from gtensor.backend.devices import Device
from gtensor.backend.ordering import Ordering
from gtensor.backend.streams import SimulatedStream
from gtensor.memory import Arena, HostSegments, allocators


class IllegalInCapture(RuntimeError):
    """What CUDA answers with an error in the middle of a capture."""


class Launched:
    """What `end_capture` answers: work that is launched as a whole."""

    def __init__(self, work) -> None:
        self.work = work

    def launch(self, stream) -> None:
        for unit in self.work:
            stream.launch(unit)


class Stream(SimulatedStream):
    """A stream of work that does something, with the part of CuPy's face that captures."""

    def __init__(self, device) -> None:
        super().__init__()
        self.device = device
        self.captured = None
        self._queue = []

    @property
    def stream(self):
        return self

    def launch(self, work) -> None:
        if self.captured is None:
            super().launch()
            self._queue.append(work)
        else:
            self.captured.append(work)

    def step(self) -> bool:
        stepped = super().step()
        if stepped:
            self._queue[self.completed - 1]()
        return stepped

    def record(self):
        self._refuse("an event was recorded")
        return super().record()

    def wait(self, event) -> None:
        self._refuse("an event was waited for")
        super().wait(event)

    def synchronize(self) -> None:
        self._refuse("the host waited")
        super().synchronize()

    def begin_capture(self) -> None:
        self.captured = []

    def end_capture(self) -> Launched:
        work, self.captured = self.captured, None
        return Launched(work)

    def __enter__(self):
        self.device.stack += [self]  # no call: as CuPy's, nothing interrupts it
        return self

    def __exit__(self, *exception) -> None:
        del self.device.stack[-1]

    def _refuse(self, what) -> None:
        if self.captured is not None:
            raise IllegalInCapture(f"{what} on stream {self.id}, which is captured")


class Array:
    """Eight numbers in a block; as much of a CuPy array as the device looks at."""

    def __init__(self, block) -> None:
        self.data = SimpleNamespace(mem=block)

    @property
    def ptr(self) -> int:
        return self.data.mem.ptr


class SimulatedCuda(Device):
    """A device with one stream to begin with, the current one."""

    type = "cuda"
    array_type = Array
    order = CudaDevice.order
    block_of = CudaDevice.block_of
    new_capture = CudaDevice.new_capture

    def __init__(self, source=None) -> None:
        super().__init__(0)
        self._by_id = WeakValueDictionary()
        self._ordering = Ordering(self._by_id.get)
        self.streams = SimpleNamespace(captures=0)
        self.arena = self.resource = Arena(source or HostSegments(), "simulated",
                                           stream_of=self._by_id.get)
        self.stack: list[Stream] = [self.new_stream()]

    def new_stream(self, priority: int = 0) -> Stream:
        stream = Stream(self)
        self._by_id[stream.id] = stream
        return stream

    def current_stream(self) -> Stream:
        return self.stack[-1]

    @contextmanager
    def running(self, stream) -> Iterator[None]:
        with stream:
            yield

    def finish(self) -> None:
        """Let all work complete."""
        for stream in tuple(self._by_id.values()):
            stream.synchronize()

    # -- ops --------------------------------------------------------------------------------------

    def full(self, value: float) -> Array:
        out = self._made("full")
        return self.fill(out, value)

    def fill(self, array: Array, value: float) -> Array:
        """Write an array in place."""
        self.order((), (array,))
        at = numbers(array)
        self.current_stream().launch(lambda: at.fill(value))
        return array

    def add(self, a: Array, b: Array) -> Array:
        self.order((a, b))
        out = self._made("add")
        x, y, z = numbers(a), numbers(b), numbers(out)
        self.current_stream().launch(lambda: np.add(x, y, out=z))
        return out

    def copy(self, array: Array) -> Array:
        self.order((array,))
        out = self._made("copy")
        source, target = numbers(array), numbers(out)
        self.current_stream().launch(lambda: np.copyto(target, source))
        return out

    def _made(self, label: str) -> Array:
        return Array(self.resource.allocate(64, self.current_stream().id, label))


def numbers(array: Array) -> np.ndarray:
    """The bytes at an array's address, also after its free."""
    return np.frombuffer((ctypes.c_double * 8).from_address(array.ptr))


def connect(device: SimulatedCuda, monkeypatch) -> SimulatedCuda:
    """Register the device with `gt.memory` for the time of a test."""
    monkeypatch.setitem(allocators._arenas, device, device.arena)
    return device

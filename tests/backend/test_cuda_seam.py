"""The CUDA device as far as it goes without a driver: CuPy's classes, a driver of Python."""

from __future__ import annotations

import contextlib
import ctypes
from types import SimpleNamespace
from unittest.mock import patch

import cupy
import numpy as np
import pytest
from simulated import SimulatedSegments

import gtensor as gt
from gtensor.backend import cuda, cuda_memory, cuda_streams
from gtensor.backend.streams import SimulatedStream
from gtensor.creation import new_tensors
from gtensor.engine.handle.tensor import wrap
from gtensor.engine.walk.anomaly import NanFinder
from gtensor.memory import Arena
from gtensor.ops.arrange.index_keys import normalized
from gtensor.system.bus import GradientEvent


class _Driver:
    """Answers cuStreamGetId like the driver, with the handle plus a hundred."""

    status = 0

    def cuStreamGetId(self, handle, result):
        ctypes.cast(result, ctypes.POINTER(ctypes.c_ulonglong)).contents.value = (
            (handle.value or 0) + 100)
        return self.status


class _Device:
    def __init__(self, resource):
        self.resource = resource
        self.streams = cuda_streams.StreamBook(0, lambda number, last: None)
        self.current_stream = self.streams.current


@pytest.fixture
def allocator(monkeypatch):
    """The function that is installed into CuPy, over an arena of simulated segments."""
    installed = []
    arena = Arena(SimulatedSegments(1 << 30), block_type=cuda_memory.block_type())
    monkeypatch.setattr(cupy.cuda, "set_allocator", installed.append)
    monkeypatch.setattr(cupy.cuda.memory, "MemoryPool", lambda: None)
    monkeypatch.setattr(cupy.cuda.runtime, "getDevice", lambda: 0)
    monkeypatch.setattr(cupy.cuda, "get_current_stream", lambda device: stand_in(5, "theirs"))
    monkeypatch.setattr(cuda_streams, "driver", _Driver)
    monkeypatch.setattr(cupy.cuda, "Device", Current())
    device = _Device(arena)
    monkeypatch.setattr(cuda, "cuda_devices", {0: device})
    monkeypatch.setattr(cuda, "cuda_device", lambda index: device)
    cuda._install_allocator.__wrapped__()
    return installed[0], arena


@pytest.mark.parametrize(("status", "kind"), [(2, MemoryError), (1, None), (700, None)])
def test_only_the_status_for_memory_says_that_memory_is_out(status, kind):
    def refuse(*_):
        raise cupy.cuda.runtime.CUDARuntimeError(status)

    wanted = kind or cupy.cuda.runtime.CUDARuntimeError
    with patch.object(cupy.cuda.runtime, "hostAlloc", refuse), pytest.raises(wanted):
        cuda_memory.pinned_malloc(8)


def test_streams_are_known_by_the_drivers_id(monkeypatch):
    driver = _Driver()
    monkeypatch.setattr(cuda_streams, "driver", lambda: driver)
    assert cuda_streams.stream_id(0) == 100 and cuda_streams.stream_id(7) == 107
    driver.status = 400
    with pytest.raises(RuntimeError, match="400"):
        cuda_streams.stream_id(7)


def test_a_thread_that_is_new_to_the_device_gets_its_context_first(monkeypatch):
    driver = _Driver()
    driver.status = 201
    monkeypatch.setattr(cuda_streams, "driver", lambda: driver)
    monkeypatch.setattr(cupy.cuda.runtime, "free", lambda ptr: setattr(driver, "status", ptr))
    assert cuda_streams.stream_id(7) == 107


def test_cupy_memory_comes_from_the_arena_and_goes_back(allocator):
    allocate, arena = allocator
    pointer = allocate(1000)
    assert arena.allocated == 1024 and pointer.ptr % 512 == 0 and pointer.mem.size == 1024
    array = cupy.ndarray((250,), "float32", memptr=pointer)
    del pointer
    view = array[10:20]
    del array
    assert arena.allocated == 1024  # the view holds it
    del view
    assert arena.allocated == 0


def test_blocks_know_their_stream_and_op(allocator):
    allocate, _ = allocator
    cuda.running.name = "tanh"
    try:
        pointer = allocate(10)
    finally:
        cuda.running.name = None
    assert pointer.mem.stream == 105 and pointer.mem.label == "tanh"


def test_an_allocation_of_no_bytes_has_an_address(allocator):
    allocate, arena = allocator
    pointer = allocate(0)
    assert pointer.ptr != 0
    del pointer
    assert arena.allocated == 0


def test_handles_are_recycled_ids_are_not(current, monkeypatch):
    """A dead stream's handle serves a new stream; the book has two ids."""
    numbers = {}
    monkeypatch.setattr(cuda_streams, "stream_id", lambda handle: numbers[handle])
    monkeypatch.setattr(cuda_streams.StreamBook, "everything", lambda book: "all work")
    ended = []
    book = cuda_streams.StreamBook(0, lambda number, last: ended.append((number, last)))
    numbers[40] = 7
    stream = stand_in(40)
    first = book.known(stream)
    assert first is book.known(stream) is book.get(7) and first.stream is stream
    del stream
    assert ended == [(7, "all work")] and book.get(7) is None
    assert first.stream is None and first.record() == "all work"
    numbers[40] = 8
    other = stand_in(40)
    assert book.known(other).id == 8
    view = stand_in(40, "theirs")  # another object for the same stream
    assert book.known(view) is book.known(other)
    del view
    assert len(ended) == 1
    del other
    assert len(ended) == 2


class Current:
    """CuPy's devices without a driver: what is current, and before it."""

    def __init__(self):
        self.devices = [0]
        self.streams = []

    def __call__(self, index):
        current = self

        class Device:
            def __enter__(self):
                current.devices.append(index)

            def __exit__(self, *_):
                current.devices.pop()

        return Device()


@pytest.fixture
def current(monkeypatch):
    found = Current()
    monkeypatch.setattr(cupy.cuda, "Device", found)
    return found


def test_a_stream_makes_its_device_the_current_one(current, monkeypatch):
    """CuPy refuses to enter a stream of another device, and makes arrays on the current one."""
    monkeypatch.setattr(cuda_streams, "stream_id", lambda handle: handle)
    monkeypatch.setattr(cuda_streams.StreamBook, "everything", lambda book: "all work")
    kept = stand_in(40, current=current, device=1)
    stream = cuda_streams.StreamBook(1, lambda number, last: None).known(kept)
    with stream, stream:
        assert current.devices == [0, 1, 1] and current.streams == [40, 40]
    assert current.devices == [0] and current.streams == []
    current.streams = None  # so that CuPy fails
    with pytest.raises(AttributeError), stream:
        pass
    assert current.devices == [0]


def test_default_streams_of_devices_share_a_handle_and_have_their_own_ids(current, monkeypatch):
    monkeypatch.setattr(cuda_streams, "stream_id", lambda handle: 7 + current.devices[-1])
    default = stand_in(0)
    books = [cuda_streams.StreamBook(index, lambda number, last: None) for index in range(2)]
    assert [book.known(default).id for book in books] == [7, 8]
    assert [book.known(default).id for book in books] == [7, 8]


def test_an_event_is_made_on_the_device_of_its_stream(current, monkeypatch):
    made = []

    class Event:
        def __init__(self, disable_timing):
            made.append((current.devices[-1], disable_timing))

        def record(self, stream):
            made.append(stream.ptr)

    monkeypatch.setattr(cupy.cuda, "Event", Event)
    monkeypatch.setattr(cuda_streams, "stream_id", lambda handle: handle)
    monkeypatch.setattr(cuda_streams.StreamBook, "everything", lambda book: "all work")
    kept = stand_in(40)
    cuda_streams.StreamBook(1, lambda number, last: None).known(kept).record()
    assert made == [(1, True), 40] and current.devices == [0]


def stand_in(handle, foreign=None, current=None, device=0):
    """A CuPy Stream of a handle, which it owns unless another object does, without a driver.

    Entered, it refuses to be of another device than the current one, as CuPy's do.
    """
    def enter(stream):
        assert current.devices[-1] == device, "entered on another device"
        current.streams.append(handle)

    stream = cupy.cuda.Stream.__new__(type("Owned", (cupy.cuda.Stream,), {
        "__del__": _nothing, "__enter__": enter,
        "__exit__": lambda stream, *_: current.streams.pop() and None}))
    stream.ptr, stream.device_id, stream._foreign_stream_ref = handle, device, foreign
    return stream


def _nothing(stream):
    """Nothing to destroy."""


class FakeDevice:
    """What `CudaDevice`'s ordering needs, on simulated streams."""

    order = cuda.CudaDevice.order
    block_of = cuda.CudaDevice.block_of
    exported = cuda.CudaDevice.exported
    order_transforms = cuda.CudaDevice.order_transforms
    to_numpy = cuda.CudaDevice.to_numpy
    path = cuda.CudaDevice.path
    type = "cuda"
    index = 0

    def __init__(self, arena, streams):
        self.current, self.others = streams[0], {s.id: s for s in streams}
        self._ordering = cuda.Ordering(self.others.get)
        self.arena = arena
        self.array_type = type
        self.cupy_device = contextlib.nullcontext()
        self.current_index = lambda: 0
        self.bind_thread = str
        self.stream_on = lambda index: SimpleNamespace(_gtensor=[self.current])
        self._paths = {}

    def current_stream(self):
        return self.current

    def stream_from(self, stream):
        return self.others[stream]

    def empty(self):
        block = self.arena.allocate(1000, self.current.id)
        return type("Array", (), {"data": type("Pointer", (), {"mem": block})})


def test_an_op_on_another_stream_waits_for_the_producer_and_is_known_to_the_arena():
    a, b = streams = [SimulatedStream(), SimulatedStream()]
    arena = Arena(SimulatedSegments(1 << 30))
    arena.streams.update({s.id: s for s in streams})
    device = FakeDevice(arena, streams)
    x = device.empty()
    a.launch()
    device.order((x, 3, None))
    assert not a._waits
    device.current = b
    device.order((x,))
    b.launch()
    assert not b.step() and a.step() and b.step()
    assert device.block_of(x).node.uses == {a.id, b.id}
    device.exported(x, -1)
    device.exported(x, b.id)
    assert device.block_of(x).node.uses == {a.id, b.id}


def test_transforms_by_one_plan_are_ordered_across_streams(allocator, monkeypatch):
    """CuPy's plan has one work area, whatever stream it is run on."""
    allocate, arena = allocator
    home, side = SimulatedStream(), SimulatedStream()
    home.id = 105  # the current stream where the area is allocated
    arena.streams.update({home.id: home, side.id: side})
    device = FakeDevice(arena, [home, side])
    device.array_type = cupy.ndarray
    area = allocate(1000)
    plans = [("key", SimpleNamespace(plan=SimpleNamespace(work_area=area)))]
    monkeypatch.setattr(cupy.fft.config, "get_plan_cache", lambda: plans)
    device.order_transforms()
    home.launch()
    assert not home._waits
    device.current = side
    device.order_transforms()
    side.launch()
    assert not side.step()  # the one before has not passed
    assert area.mem.node.uses == {home.id, side.id}  # a plan that is dropped waits for both
    device.current = home
    device.order_transforms()
    home.launch()
    assert home.step() and not home.step() and side.step() and home.step()


class FakeArray:
    """An array of one element on a stream of a fake device, which says when it is read too early.

    `host` are the values; whatever copies them looks whether the current stream waits for `writer`.
    """

    def __init__(self, device, value, writer):
        self.data = device.empty().data
        self.host, self.device, self.writer = np.asarray(value), device, writer
        self.size, self.ndim, self.dtype = self.host.size, self.host.ndim, self.host.dtype
        self.shape = self.host.shape
        self.reads = 0

    def read(self):
        assert any(event.stream is self.writer for _, event in self.device.current._waits), (
            "the values were read before the stream that makes them had passed")
        self.reads += 1
        return self.host

    item = any = read

    def __ne__(self, other):
        return self


@pytest.fixture
def produced(monkeypatch):
    """A tensor whose values another stream than the current one is still making."""
    streams = [SimulatedStream(), SimulatedStream()]
    arena = Arena(SimulatedSegments(1 << 30))
    arena.streams.update({s.id: s for s in streams})
    device = FakeDevice(arena, streams)
    device.array_type = FakeArray
    monkeypatch.setattr(cupy, "asnumpy", FakeArray.read)

    def tensor(value):
        device.current = streams[0]
        array = FakeArray(device, value, streams[0])
        streams[0].launch()
        device.current = streams[1]
        return wrap(array, device)

    return tensor


@pytest.mark.parametrize("value,read", [
    (3, gt.Tensor.item), (3, int), (3, float), (3, complex), (3, bool), (3, "{:.1f}".format),
    (3, range), (3, gt.Tensor.tolist), (3, gt.Tensor.numpy), (3, repr), (3, gt.Tensor.__reduce__),
    (3, lambda x: gt.tensor([x], device="cpu")),
], ids=["item", "int", "float", "complex", "bool", "format", "index", "tolist", "numpy", "repr",
        "pickle", "in a list"])
def test_values_are_read_behind_the_stream_that_makes_them(produced, value, read):
    x = produced(value)
    read(x)
    assert x._array.reads > 0


def test_a_gradient_is_looked_through_for_nan_behind_the_stream_that_makes_it(produced):
    x = produced(0)
    finder = NanFinder()
    finder.gradient_written(GradientEvent(None, SimpleNamespace(device=x.device), x._array))
    assert x._array.reads > 0


def test_a_mask_is_counted_behind_the_stream_that_makes_it(produced):
    mask = produced(True)
    _, (part,) = normalized(mask, mask, recorded=False)
    assert part._array.read()


def test_values_of_another_device_are_ordered_on_that_one(produced, monkeypatch):
    array = produced(3)._array
    monkeypatch.setattr(new_tensors, "_home", lambda data: array.device)
    assert new_tensors._on(gt.device("cpu"), array) == 3 and array.reads == 1


def test_planted_fault_a_read_without_order_is_caught(produced, monkeypatch):
    monkeypatch.setattr(FakeDevice, "to_numpy", lambda device, array: array.read())
    with pytest.raises(AssertionError, match="read before the stream"):
        produced(3).item()

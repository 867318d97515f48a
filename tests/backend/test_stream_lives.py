"""How streams are met, and what of them stays when they end: handles, threads, events, notes."""

from __future__ import annotations

import ctypes
import gc
import threading
from types import SimpleNamespace

import cupy
import numpy as np
import pytest

import gtensor as gt
from gtensor.backend import cuda, cuda_streams
from gtensor.backend.cuda_streams import CudaEvent, IdleEvent, StreamBook
from gtensor.backend.ordering import Ordering
from gtensor.backend.streams import SimulatedStream
from gtensor.ops.fft import transforms

from .test_cuda_seam import Current, stand_in
from .test_ordering import StandIn


class World:
    """A book without a driver: `numbers` are the ids of handles, `ended` the streams that went."""

    stream_from = cuda.CudaDevice.stream_from

    def __init__(self, monkeypatch) -> None:
        self.numbers = {}
        self.ended = []
        monkeypatch.setattr(cupy.cuda, "Device", Current())
        monkeypatch.setattr(cuda_streams, "stream_id", self.stream_id)
        monkeypatch.setattr(StreamBook, "everything", lambda book: "all work")
        monkeypatch.setattr(cupy.cuda.Stream, "from_external", staticmethod(
            lambda handle: stand_in(handle.__cuda_stream__()[1], foreign=handle)))
        monkeypatch.setattr(cupy.cuda, "Event", lambda disable_timing: Recorded())
        self.streams = StreamBook(0, lambda number, last: self.ended.append(number))

    def stream_id(self, handle):
        if handle not in self.numbers:
            raise RuntimeError("cuStreamGetId answered 400")
        return self.numbers[handle]


class Recorded:
    """An event of CuPy's with the stream that recorded it."""

    def record(self, stream) -> None:
        self.stream = stream


@pytest.fixture
def world(monkeypatch):
    return World(monkeypatch)


def test_a_stream_of_cupys_that_is_only_named_is_heard_of_when_it_ends(world):
    """`record_stream(a, stream)` and `gt.Event.record(stream)` name it; it is never current."""
    world.numbers[40] = 7
    side = stand_in(40)
    known = world.stream_from(side)
    assert known.stream is side
    del side
    assert world.ended == [7] and world.streams.get(7) is None
    assert known.record() == "all work"


def test_the_owner_of_a_stream_is_heard_of_after_its_handle_was_met(world):
    world.numbers[40] = 7
    known = world.stream_from(40)
    gc.collect()
    assert known.stream is not None  # nobody else holds what stands for a handle
    side = stand_in(40)
    assert world.streams.known(side) is known and known.stream is side
    assert world.stream_from(40) is known
    view = stand_in(40, foreign="somebody's")
    assert world.streams.known(view) is known and known.stream is side
    del side
    assert world.ended == [7] and known.stream is None


def test_an_event_on_a_handle_that_means_another_stream_by_now_covers_all_work(world):
    world.numbers[40] = 7
    known = world.stream_from(40)
    assert known.record().event.stream is known.stream
    world.numbers[40] = 8
    assert known.record() == "all work" and known.stream is None
    assert world.stream_from(40).id == 8
    del world.numbers[40]
    assert world.stream_from(world.streams.get(8)).record() == "all work"


def test_a_default_stream_per_thread_ends_with_its_thread(world, monkeypatch):
    """A new thread may have the ident of one that ended, but it is not that thread."""
    ids = threading.local()
    numbers = iter(range(500, 600))

    def stream_id(handle):
        if not hasattr(ids, "number"):
            ids.number = next(numbers)
        return ids.number

    monkeypatch.setattr(cuda_streams, "stream_id", stream_id)
    monkeypatch.setattr(threading, "get_ident", lambda: 1)
    default = stand_in(2)
    seen = []

    def meet() -> None:
        known = world.streams.known(default)
        seen.append((known, known.record()))

    for _ in range(2):
        thread = threading.Thread(target=meet)
        thread.start()
        thread.join()
    (first, event), (second, _) = seen
    assert (first.id, second.id) == (500, 501) and event.event.stream is default
    assert world.ended == [500, 501] and world.streams.get(500) is None
    waited = []
    event.synchronize = lambda: waited.append(event)
    first.wait(event)  # the handle means this thread's own stream here
    assert first.record() == "all work" and waited == [event]


def test_a_stream_is_known_until_its_last_event_is(world, monkeypatch):
    """It exists throughout for other threads and for finalizers."""
    world.numbers[40] = 7
    found = []
    monkeypatch.setattr(StreamBook, "everything", lambda book: found.append(book.get(7)))
    world.streams._ended = lambda number, last: found.append(world.streams.get(number))
    side = stand_in(40)
    known = world.streams.known(side)
    del side
    assert found == [known, known] and world.streams.get(7) is None


def test_a_stream_ends_although_the_driver_fails(world, monkeypatch):
    def fail(book):
        raise RuntimeError("the driver is shutting down")

    world.numbers[40] = 7
    monkeypatch.setattr(StreamBook, "everything", fail)
    world.streams.device.synchronize = lambda: None
    ended = []
    world.streams._ended = lambda number, last: ended.append(last)
    world.streams.known(stand_in(40))
    assert [type(last) for last in ended] == [IdleEvent] and world.streams.get(7) is None


def test_a_stream_that_is_gone_waits_on_the_host(world):
    world.numbers[40] = 7
    known = world.streams.known(stand_in(40))
    waited = []
    event = CudaEvent("recorded")
    event.synchronize = lambda: waited.append(event)
    known.wait(event)
    assert waited == [event]


def test_waiting_for_a_whole_device_happens_once():
    waited = []
    event = IdleEvent(lambda: waited.append(1))
    assert not event.done()
    event.synchronize()
    event.synchronize()
    assert waited == [1] and event.done()


def test_streams_wait_for_gtensors_events(world):
    """As on the CPU: `stream.wait(event)` and `event.wait(stream)` are the same."""
    world.numbers[40] = 7
    side = stand_in(40)
    waited = []
    type(side).wait_event = lambda stream, event: waited.append(event)
    known = world.streams.known(side)
    event = gt.Event("cpu")
    known.wait(event)
    assert event.event is None and waited == []
    event.record()
    known.wait(event)
    assert waited == []
    event._event = CudaEvent("recorded")
    known.wait(event)
    assert waited == ["recorded"]


def test_what_ended_and_is_done_is_forgotten():
    main = SimulatedStream()
    known = {main.id: main}
    ordering = Ordering(known.get)
    for i in range(20):
        side = SimulatedStream()
        known[side.id] = side
        block = StandIn(side)
        side.launch()
        ordering.read(main, block)
        if i < 19:
            side.synchronize()
        del known[side.id]
        ordering.forget(side.id, side.record())
    assert len(ordering._latest) == len(ordering._seen) == 1  # the last one's work is not done
    main.launch()
    ordering.read(main, block)
    assert not main.step()


def test_streams_that_end_within_a_capture_are_forgotten_after_it():
    class Silent:
        def done(self):
            raise AssertionError("an event was asked within a capture")

    ordering = Ordering({}.get)
    ordering.captures[3] = None
    ordering.forget(1, Silent())
    del ordering.captures[3]
    Silent.done = lambda event: True
    ordering.forget(2, Silent())
    assert not ordering._latest


def test_a_reader_noted_by_another_thread_at_once_is_not_lost():
    ordering = Ordering({}.get)
    first, second = SimulatedStream(), SimulatedStream()

    class Block(StandIn):
        asked = False

        def __getattr__(self, name):  # where Python may go on with another thread
            if name == "readers" and not Block.asked:
                Block.asked = True
                ordering._note(self, second.id)
            raise AttributeError(name)

    block = Block(first)
    ordering._note(block, first.id)
    assert block.readers == {first.id, second.id}


def test_a_consumer_without_a_stream_means_the_default_one(monkeypatch):
    """DLPack: None is the legacy default stream, whose handle is 1."""
    told = []
    x = gt.asarray([1.0])
    monkeypatch.setattr(type(x.device), "exported", lambda device, array, stream: (
        told.append(stream)))
    x.__dlpack__()
    with pytest.raises(RuntimeError, match="NumPy only"):  # after it was told
        x.__dlpack__(stream=7)
    assert told == [1, 7]


def test_every_transform_on_a_gpu_is_ordered_before_it_starts(monkeypatch):
    calls = []
    device = SimpleNamespace(order_transforms=lambda: calls.append("ordered"))
    monkeypatch.setattr(transforms, "cupy", lambda: SimpleNamespace(fft=SimpleNamespace(
        **dict.fromkeys(("fftn", "ifftn", "rfftn", "irfftn"), lambda x, **more: (
            calls.append("computed"), x)[1]))))
    x = np.zeros(4, np.complex64)
    options = {"axes": (0,), "norm": "backward"}
    transforms.fft_c2c.gpu.placed(device, x, inverse=False, **options)
    transforms.fft_c2c.gpu.placed(device, x, inverse=True, **options)
    transforms.fft_r2c.gpu.placed(device, x.real, **options)
    transforms.fft_c2r.gpu.placed(device, x, size=6, **options)
    assert calls == ["ordered", "computed"] * 4


@pytest.mark.gpu
def test_gpu_transforms_on_two_streams_equal_those_on_one():
    """A prime number of points: by Bluestein's algorithm, which fills the work area."""
    values = [gt.random.normal((64, 10007)) for _ in range(8)]
    expected = [gt.fft.fft(x).numpy() for x in values]
    streams = [gt.stream(), gt.stream()]
    found = []
    for i, x in enumerate(values):
        with streams[i % 2]:
            found.append(gt.fft.fft(x))
    for value, wanted in zip(found, expected, strict=True):
        np.testing.assert_array_equal(value.numpy(), wanted)


@pytest.mark.gpu
def test_a_threads_first_op_has_the_devices_context():
    """Libraries and the driver are called past CuPy, which binds the context at its own calls."""
    device, found = gt.device("cuda"), []
    x = gt.ones((3,), device=device)

    def path(a):
        found.append(cuda_streams.driver().cuCtxGetDevice(ctypes.byref(ctypes.c_int())))

    thread = threading.Thread(target=lambda: device.path("first", path, 1)(x._array))
    thread.start()
    thread.join()
    assert found == [0]

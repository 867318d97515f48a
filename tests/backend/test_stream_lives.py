"""How streams are met, and what of them stays when they end: handles, threads, events, notes."""

from __future__ import annotations

import ctypes
import gc
import threading
from contextlib import nullcontext
from types import SimpleNamespace

import cupy
import numpy as np
import pytest

import gtensor as gt
from gtensor import hostcuda, memory
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


def unrecorded(world, monkeypatch) -> list[int]:
    """The waits for the device, of a driver that has no event behind all its work."""
    monkeypatch.setattr(StreamBook, "recorded", lambda book: None)
    waits = []
    world.streams.device.synchronize = lambda: waits.append(1)
    return waits


def test_one_wait_for_a_device_settles_the_events_before_it(world, monkeypatch):
    waited = unrecorded(world, monkeypatch)
    first, second = IdleEvent(world.streams), IdleEvent(world.streams)
    assert not first.done() and first.blocks and first.event is None
    second.synchronize()
    first.synchronize()
    third = IdleEvent(world.streams)
    assert waited == [1] and first.done() and second.done() and not third.done()
    assert not first.blocks and third.blocks
    world.streams.device.synchronize = lambda: IdleEvent(world.streams).done()
    world.streams.synchronize()
    assert third.done()


def test_an_event_made_while_the_device_is_waited_for_is_not_settled_by_it(world, monkeypatch):
    unrecorded(world, monkeypatch)
    made = []
    world.streams.device.synchronize = lambda: made.append(IdleEvent(world.streams))
    world.streams.synchronize()
    assert not made[0].done()
    world.streams.synchronize()
    assert made[0].done()


def test_an_event_that_could_not_be_recorded_is_recorded_later(world, monkeypatch):
    waited, recorded = unrecorded(world, monkeypatch), CudaEvent(Recorded())
    recorded.event.done = False
    event = IdleEvent(world.streams)
    assert not event.done() and event.blocks
    monkeypatch.setattr(StreamBook, "recorded", lambda book: recorded)
    assert event.event is recorded.event and not event.done() and not event.blocks
    recorded.event.done = True
    event.synchronize()
    assert event.done() and waited == []


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
    # The error is NumPy's own, raised after gtensor has noted the stream: a RuntimeError before
    # NumPy 2.5, a ValueError since.
    with pytest.raises((RuntimeError, ValueError), match="NumPy only"):
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


# -- ends of streams that the driver has no event for ----------------------------------------------

on_host = pytest.mark.host_cuda
ELEMENTS = 1 << 25  # more than other tests leave free in one place


class Refusing:
    """The driver, which answers this status where an event behind all work is asked for."""

    def __init__(self, status: int) -> None:
        self.asked = 0
        self._status, self._driver = status, cuda_streams.driver()

    def cuCtxRecordEvent(self, context, event) -> int:
        self.asked += 1
        return self._status

    def __getattr__(self, name):
        return getattr(self._driver, name)


@pytest.fixture
def book(monkeypatch):
    """The book of the default GPU, whose arena is empty and whose driver has refused nothing."""
    device = gt.device("cuda")
    gt.zeros(1, device=device)
    gc.collect()
    cupy.cuda.Device().synchronize()
    memory.empty_cache("cuda")
    for flag in ("_failed", "_refused"):
        monkeypatch.setattr(device.streams, flag, False)
    with memory.use_arena(True):
        yield device.streams
    memory.empty_cache("cuda")


def ended() -> int:
    """Work on a stream that ends. Returns what is reserved then."""
    side = gt.stream("cuda")
    with side:
        gt.empty((ELEMENTS,), device="cuda")
    del side
    gc.collect()
    return memory.stats("cuda").reserved


def grown() -> int:
    """What is reserved after an allocation on this stream, which is free again."""
    gt.empty((ELEMENTS,), device="cuda")
    return memory.stats("cuda").reserved


@pytest.mark.gpu
@on_host
@pytest.mark.parametrize(("status", "asked"), [(801, 1), (900, 1), (999, None)])
def test_memory_of_a_stream_whose_end_has_no_event_is_reused_after_a_wait_for_the_device(
    book, monkeypatch, capsys, status, asked
):
    refusing = Refusing(status)
    monkeypatch.setattr(cuda_streams, "driver", lambda: refusing)
    before = ended()
    hostcuda.reset_counters()
    after = grown()
    assert after > before, "the stream may still be at work"
    assert not hostcuda.counters().synchronizations, "an allocation waits for nothing"
    memory.empty_cache("cuda")  # the memory of this stream, and by a wait that of the other one
    before = ended()
    gt.device("cuda").synchronize()
    assert grown() == before, "reused"
    assert refusing.asked == asked if asked else refusing.asked > 1
    assert capsys.readouterr().err == ""


CAPTURES = {
    "of a stream that blocks": ({}, False, False),
    "of CuPy's current stream": ({"non_blocking": True}, True, False),
    "of a stream that gtensor has met": ({"non_blocking": True}, False, True),
}


@pytest.mark.gpu
@on_host
@pytest.mark.parametrize("name", CAPTURES)
def test_a_stream_that_ends_while_another_library_captures_does_not_break_the_capture(book, name):
    options, current, met = CAPTURES[name]
    stream = cupy.cuda.Stream(**options)
    if met:
        gt.device("cuda").stream_from(stream)
    side = gt.stream("cuda")
    with side:
        gt.empty((ELEMENTS,), device="cuda")
    with stream if current else nullcontext():
        stream.begin_capture()
        del side
        gc.collect()
        graph = stream.end_capture()
    graph.launch(cupy.cuda.Stream(non_blocking=True))
    assert not book._refused
    before = memory.stats("cuda").reserved
    assert grown() == before, "the event was recorded after the capture"


@pytest.mark.gpu
@on_host
def test_a_stream_that_ends_within_a_capture_of_gtensors_hands_its_memory_on(book):
    side, x = gt.stream("cuda"), gt.ones(3, device="cuda")
    with side:
        gt.empty((ELEMENTS,), device="cuda")
    graph = gt.Graph("cuda")
    with graph.capture():
        y = x + 1
        del side
        gc.collect()
    graph.replay()
    assert y.numpy().sum() == 6 and not book._refused
    before = memory.stats("cuda").reserved
    assert grown() == before


@pytest.mark.gpu
@on_host
def test_a_capture_that_cannot_be_seen_is_broken_once_at_most(book, capsys):
    """As NVIDIA documents of cuCtxRecordEvent; the device then asks for no such event again."""
    for broken in (True, False):
        stream = cupy.cuda.Stream(non_blocking=True)
        stream.begin_capture()
        before = ended()
        if broken:
            with pytest.raises(cupy.cuda.runtime.CUDARuntimeError, match="Invalidated"):
                stream.end_capture()
        else:
            stream.end_capture()
        assert book._refused
        gt.device("cuda").synchronize()
        assert grown() == before
        memory.empty_cache("cuda")
    assert capsys.readouterr().err == ""


@pytest.mark.gpu
@on_host
def test_a_wait_for_a_stream_is_no_wait_for_the_device_while_a_capture_is_seen(book, monkeypatch):
    refusing = Refusing(801)
    monkeypatch.setattr(cuda_streams, "driver", lambda: refusing)
    device, x = gt.device("cuda"), gt.ones(3, device="cuda")
    ended()
    stream = cupy.cuda.Stream(non_blocking=True)
    device.stream_from(stream)
    stream.begin_capture(cupy.cuda.runtime.streamCaptureModeRelaxed)
    (x + 1).device.synchronize()
    stream.end_capture()
    hostcuda.reset_counters()
    for _ in range(2):
        device.synchronize()
    assert hostcuda.counters().other == {"synchronize device": 1, "synchronize stream": 1}


@pytest.mark.gpu
@on_host
def test_values_that_an_ended_stream_made_are_waited_for(book, monkeypatch):
    """Deferred work runs late unless something waits."""
    refusing = Refusing(900)
    monkeypatch.setattr(cuda_streams, "driver", lambda: refusing)
    for value in range(5):
        side = gt.stream("cuda")
        with side:
            x = gt.full((1000,), float(value), device="cuda")
        del side
        gc.collect()
        y = x + 1
        assert (y.numpy() == value + 1).all()

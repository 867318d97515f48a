"""Capture and graphs: which calls are refused with which error, and the order of a graph."""

from __future__ import annotations

import contextlib
import ctypes
import threading

import numpy as np
import pytest

from gtensor import hostcuda

from .through import SEEDS, refused, streams

pytestmark = pytest.mark.host_cuda


def begun(cupy, blocking=False, mode=None):
    stream = cupy.cuda.Stream(non_blocking=not blocking)
    stream.begin_capture(*([] if mode is None else [mode]))
    return stream


ILLEGAL = {
    "synchronize": (900, lambda c, s: s.synchronize()),
    "synchronize the device": (900, lambda c, s: c.cuda.Device().synchronize()),
    "ask the stream": (900, lambda c, s: c.cuda.runtime.check_status(
        c.cuda.runtime.streamQuery(s.ptr))),
    "wait for an event of the capture": (907, lambda c, s: s.record().synchronize()),
    "capture again": (401, lambda c, s: s.begin_capture()),
    "copy from pageable memory": (900, lambda c, s: c.cuda.runtime.memcpyAsync(
        c.empty(4).data.ptr, np.zeros(4).ctypes.data, 32, 1, s.ptr)),
}


@pytest.mark.parametrize("name", ILLEGAL)
def test_a_call_that_a_capture_refuses(cupy, name):
    status, call = ILLEGAL[name]
    stream = begun(cupy)
    with refused(cupy, status):
        call(cupy, stream)
    if status == 900:
        with refused(cupy, 901):
            stream.end_capture()
    else:
        stream.end_capture()
    assert not stream.is_capturing()


def test_a_wait_for_work_outside_the_capture(cupy):
    other, = streams(cupy, 1)
    event = other.record()
    stream = begun(cupy)
    with refused(cupy, 905):
        stream.wait_event(event)
    with refused(cupy, 901):
        stream.end_capture()


def test_two_captures_do_not_merge(cupy):
    one, other = begun(cupy), begun(cupy)
    event = one.record()
    with refused(cupy, 902):
        other.wait_event(event)
    for stream in (one, other):
        with refused(cupy, 901):
            stream.end_capture()


def test_the_default_stream_during_the_capture_of_a_blocking_one(cupy):
    a = cupy.empty(4)
    stream = begun(cupy, blocking=True)
    with refused(cupy, 906):
        a.data.memset_async(0, 32, cupy.cuda.Stream.null)
    with refused(cupy, 901):
        stream.end_capture()


def test_asking_the_default_stream_is_an_error_that_breaks_no_capture(cupy):
    stream = begun(cupy, blocking=True)
    with refused(cupy, 906):
        cupy.cuda.Stream.null.is_capturing()
    assert stream.is_capturing()
    stream.end_capture()
    stream = begun(cupy)  # which the default stream does not wait for
    assert not cupy.cuda.Stream.null.is_capturing()
    stream.end_capture()


@pytest.mark.parametrize("mode", ["Global", "ThreadLocal", "Relaxed"])
def test_an_event_behind_the_whole_device_breaks_its_captures_in_every_mode(cupy, runtime, mode):
    """cuCtxRecordEvent: "the call will invalidate all the conflicting captures"."""
    driver, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
    event = cupy.cuda.Event(disable_timing=True)
    mode = getattr(runtime, f"streamCaptureMode{mode}")
    one, other = begun(cupy, mode=mode), begun(cupy, mode=mode)
    with cupy.cuda.Device(1):
        elsewhere = begun(cupy, mode=mode)
    assert driver.cuCtxGetCurrent(ctypes.byref(context)) == 0
    assert driver.cuCtxRecordEvent(context, ctypes.c_void_p(event.ptr)) == 900
    for stream in (one, other):
        with refused(cupy, 901):
            stream.end_capture()
    with cupy.cuda.Device(1):
        elsewhere.end_capture()
    assert driver.cuCtxRecordEvent(context, ctypes.c_void_p(event.ptr)) == 0


MODES = ("Global", 900), ("ThreadLocal", 900), ("Relaxed", 0)


@pytest.mark.parametrize(("mode", "status"), MODES)
def test_cudamalloc_within_a_capture(cupy, runtime, mode, status):
    stream = begun(cupy, mode=getattr(runtime, f"streamCaptureMode{mode}"))
    with refused(cupy, status) if status else contextlib.nullcontext():
        runtime.free(runtime.malloc(8))
    with refused(cupy, 901) if status else contextlib.nullcontext():
        stream.end_capture()


@pytest.mark.parametrize(("mode", "status"), [("Global", 900), ("ThreadLocal", 0), ("Relaxed", 0)])
def test_cudamalloc_in_another_thread(cupy, runtime, mode, status):
    stream = begun(cupy, mode=getattr(runtime, f"streamCaptureMode{mode}"))
    errors = []

    def allocate():
        try:
            runtime.free(runtime.malloc(8))
        except runtime.CUDARuntimeError as error:
            errors.append(error.status)

    thread = threading.Thread(target=allocate)
    thread.start()
    thread.join()
    assert errors == ([status] if status else [])
    with refused(cupy, 901) if status else contextlib.nullcontext():
        stream.end_capture()


def test_work_of_a_second_stream_has_to_be_joined(cupy):
    a = cupy.empty(4)
    stream, (other,) = begun(cupy), streams(cupy, 1)
    other.wait_event(stream.record())
    a.data.memset_async(0, 32, other)
    with refused(cupy, 904):
        stream.end_capture()
    assert not other.is_capturing()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_graph_runs_in_the_order_of_its_capture(cupy, seed):
    hostcuda.configure("deferred", seed)
    a, b, c = (cupy.empty(8, np.uint8) for _ in range(3))
    stream, (other,) = begun(cupy), streams(cupy, 1)
    a.data.memset_async(1, 8, stream)
    other.wait_event(stream.record())
    b.data.copy_from_device_async(a.data, 8, other)
    c.data.copy_from_device_async(a.data, 8, stream)
    stream.wait_event(other.record())
    a.data.memset_async(2, 8, stream)
    graph = stream.end_capture()
    hostcuda.reset_counters()
    for _ in range(2):
        graph.launch(stream)
    stream.synchronize()
    assert hostcuda.counters().memsets == {"memset": 4}  # those of the launches
    assert [set(each.get()) for each in (a, b, c)] == [{2}, {1}, {1}]


def test_a_wait_for_an_event_of_a_capture_that_has_ended(cupy):
    x = cupy.zeros(4)
    stream, (other, ) = begun(cupy), streams(cupy, 1)
    event = cupy.cuda.Event(disable_timing=True)
    with stream:
        x += 1
        event.record(stream)
        stream.end_capture()
    with refused(cupy, 907):
        other.wait_event(event)
    assert not other.is_capturing()
    event.record(stream)
    other.wait_event(event)


ENDS = """
from gtensor import hostcuda
hostcuda.install("eager")
import sys, threading
import cupy
import cupy.cuda.runtime as r
from gtensor.hostcuda.libraries import calls

sys.setswitchinterval(1e-5)
stop = False

def ask():
    while not stop:
        r.deviceGetAttribute(1, 0)

def captured(stream):
    r.streamBeginCapture(stream, 2)
    calls.enqueue(stream, "n", lambda: None, 13)
    return stream

threading.Thread(target=ask, daemon=True).start()
plain = r.streamCreateWithFlags(1)
for _ in range(100):
    r.streamDestroy(captured(r.streamCreateWithFlags(1)))
    for end in (r.eventDestroy, lambda event: r.eventRecord(event, plain)):
        event, stream = r.eventCreate(), captured(r.streamCreateWithFlags(1))
        r.eventRecord(event, stream)
        r.streamDestroy(stream)
        end(event)
    thread = threading.Thread(target=captured, args=(2, ))
    thread.start()
    thread.join()
stop = True
"""


def test_the_end_of_a_capture_does_not_wait_for_python(child):
    """A work's end takes Python's lock; a thread that holds it waits for the runtime's."""
    child(ENDS)

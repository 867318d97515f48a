"""The order of work on streams: what CUDA promises holds, what it does not promise is shuffled."""

from __future__ import annotations

import ctypes
import random
import threading
import time

import numpy as np
import pytest

from gtensor import hostcuda
from gtensor.hostcuda.libraries.calls import enqueue

from .through import SEEDS, refused, streams

pytestmark = pytest.mark.host_cuda


def copied(cupy, seed, wait):
    """What one stream reads while another writes 0, then 7."""
    hostcuda.configure("deferred", seed)
    writer, reader = streams(cupy, 2)
    runtime = cupy.cuda.runtime
    a, b = runtime.malloc(4), runtime.malloc(4)
    runtime.memsetAsync(a, 0, 4, writer.ptr)
    runtime.memsetAsync(a, 7, 4, writer.ptr)
    if wait:
        reader.wait_event(writer.record())
    runtime.memcpyAsync(b, a, 4, runtime.memcpyDeviceToDevice, reader.ptr)
    found = np.empty(4, np.uint8)
    reader.synchronize()
    runtime.memcpy(found.ctypes.data, b, 4, runtime.memcpyDeviceToHost)
    runtime.free(a)
    runtime.free(b)
    return found[0]


def test_a_missing_wait_shows_and_a_wait_helps(cupy):
    assert {copied(cupy, seed, wait=True) for seed in SEEDS} == {7}
    assert {copied(cupy, seed, wait=False) for seed in SEEDS} == {255, 0, 7}


def edges(cupy, rng, log):
    """A random program of host functions that log themselves: pairs that CUDA has run in order."""
    default, blocking, *free = [cupy.cuda.Stream.null, cupy.cuda.Stream(), *streams(cupy, 2)]
    every = [default, blocking, *free]
    last: dict[object, list[int]] = {stream: [] for stream in every}
    pairs, events = [], []
    for number in range(40):
        stream = rng.choice(every)
        kind = rng.random()
        if kind < 0.25:
            events.append((stream.record(), [*last[stream]] + (
                [*last[blocking]] if stream is default else
                [*last[default]] if stream is blocking else [])))
        elif kind < 0.5 and events:
            event, behind = rng.choice(events)
            stream.wait_event(event)
            last[stream] = last[stream] + behind
        else:
            stream.launch_host_func(log.append, number)
            behind = last[stream] + (last[blocking] if stream is default else
                                     last[default] if stream is blocking else [])
            pairs += [(before, number) for before in behind]
            last[stream] = [number]
    return pairs


@pytest.mark.parametrize("seed", SEEDS)
def test_random_programs_run_in_an_order_that_cuda_allows(cupy, seed):
    hostcuda.configure("deferred", seed)
    log: list[int] = []
    pairs = edges(cupy, random.Random(seed), log)
    cupy.cuda.Device().synchronize()
    place = {number: at for at, number in enumerate(log)}
    assert pairs and all(place[before] < place[after] for before, after in pairs)


def test_deferred_work_waits_and_eager_work_does_not(cupy):
    stream, = streams(cupy, 1)
    log: list[str] = []
    hostcuda.configure("deferred")
    stream.launch_host_func(log.append, "deferred")
    assert log == []
    stream.synchronize()
    hostcuda.configure("eager")
    stream.launch_host_func(log.append, "eager")
    assert log == ["deferred", "eager"]


def test_a_program_that_asks_an_event_gets_on(cupy):
    hostcuda.configure("deferred", 3)
    stream, = streams(cupy, 1)
    cupy.cuda.runtime.memsetAsync(cupy.cuda.alloc(8).ptr, 0, 8, stream.ptr)
    event = stream.record()
    end = time.monotonic() + 300
    while not event.done and time.monotonic() < end:
        pass
    assert event.done


@pytest.mark.parametrize("pinned", [False, True])
def test_pageable_memory_is_read_at_the_call_and_pinned_when_the_copy_runs(cupy, pinned):
    hostcuda.configure("deferred")
    stream, = streams(cupy, 1)
    host = np.zeros(4, np.uint8)
    if pinned:
        memory = cupy.cuda.alloc_pinned_memory(4)
        host = np.frombuffer(memory, np.uint8, 4)
        host[:] = 0
    runtime, device = cupy.cuda.runtime, cupy.empty(4, np.uint8)
    runtime.memcpyAsync(device.data.ptr, host.ctypes.data, 4, runtime.memcpyHostToDevice,
                        stream.ptr)
    host[:] = 5
    stream.synchronize()
    assert set(device.get()) == ({5} if pinned else {0})


def test_a_thread_with_pythons_lock_may_wait_for_work_in_python(cupy, runtime):
    """The worker runs a Python function of the queue; this thread comes with the GIL and waits."""
    hostcuda.configure("eager")
    stream, = streams(cupy, 1)
    started, log = threading.Event(), []

    def slow(_):
        started.set()
        time.sleep(0.2)
        log.append("ran")

    address = runtime.malloc(8)
    worker = threading.Thread(target=stream.launch_host_func, args=(slow, None))
    worker.start()
    assert started.wait(60)
    free = ctypes.PyDLL("libcuda.so.1").cuMemFree_v2  # keeps the lock, as no CuPy function does
    assert free(ctypes.c_void_p(address)) == 0
    assert log == ["ran"]
    worker.join(60)


def test_work_in_python_may_free_memory_and_start_other_work(cupy, runtime):
    hostcuda.configure("eager")
    stream, other = streams(cupy, 2)
    address, kept = runtime.malloc(8), runtime.malloc(8)
    seen = []

    def collect():
        runtime.free(address)
        runtime.memsetAsync(kept, 1, 8, other.ptr)
        other.synchronize()
        seen.append("end")

    enqueue(stream.ptr, "a library's work", collect, 1)
    assert seen == ["end"]
    with refused(cupy, 1):
        runtime.memset(address, 0, 8)
    runtime.free(kept)


def test_a_question_runs_no_host_function(cupy):
    """A host function may wait for what the thread that asks does next."""
    hostcuda.configure("deferred")
    stream, = streams(cupy, 1)
    answered = threading.Event()
    waited = []
    stream.launch_host_func(lambda _: waited.append(answered.wait(60)), None)
    event = stream.record()
    for _ in range(20):
        assert not stream.done and not event.done
    answered.set()
    stream.synchronize()
    assert waited == [True]

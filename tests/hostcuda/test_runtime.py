"""The runtime's stand-in, through CuPy: what CUDA promises and what it refuses.

These run with `pytest --host-cuda`.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from gtensor import hostcuda

pytestmark = pytest.mark.host_cuda
SEEDS = range(20)


def streams(cupy, count):
    return [cupy.cuda.Stream(non_blocking=True) for _ in range(count)]


@contextlib.contextmanager
def refused(cupy, status):
    errors = cupy.cuda.runtime.CUDARuntimeError, cupy.cuda.driver.CUDADriverError
    with pytest.raises(errors) as error:
        yield error
    assert error.value.status == status, error.value


# ---- order


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
    end = time.monotonic() + 10
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


# ---- Python's lock


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
    assert started.wait(10)
    free = ctypes.PyDLL("libcuda.so.1").cuMemFree_v2  # keeps the lock, as no CuPy function does
    assert free(ctypes.c_void_p(address)) == 0
    assert log == ["ran"]
    worker.join(10)


def test_work_in_python_may_free_memory_and_start_other_work(cupy, runtime):
    hostcuda.configure("eager")
    stream, other = streams(cupy, 2)
    address, kept = runtime.malloc(8), runtime.malloc(8)
    seen = []

    def collect(_):
        runtime.free(address)
        runtime.memsetAsync(kept, 1, 8, other.ptr)
        other.synchronize()
        seen.append("end")

    stream.launch_host_func(collect, None)
    assert seen == ["end"]
    with refused(cupy, 1):
        runtime.memset(address, 0, 8)
    runtime.free(kept)


# ---- memory


def test_memory_is_full_of_nan_and_ends_where_it_ends(cupy, runtime):
    address = runtime.malloc(1000)
    found = np.zeros(250, np.float32)
    runtime.memcpy(found.ctypes.data, address, 1000, runtime.memcpyDeviceToHost)
    assert np.isnan(found).all()
    with refused(cupy, 1):
        runtime.memset(address, 0, 1001)
    runtime.free(address)
    with refused(cupy, 1):
        runtime.free(address)


def test_no_more_memory_than_the_card_has(cupy, runtime):
    free, total = runtime.memGetInfo()
    assert total == 80 * 2**30
    with refused(cupy, 2):
        runtime.malloc(free + 2**20)
    address = runtime.malloc(free // 2)  # costs nothing until it is touched
    assert runtime.memGetInfo()[0] <= free - free // 2
    runtime.free(address)
    assert runtime.memGetInfo()[0] == free


FAULTY = r"""
extern "C" __global__ void beyond(float *x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    x[i == 37 ? n : i] = 1;
}
"""


def test_a_fault_names_kernel_block_and_thread_and_stays(cupy, runtime):
    hostcuda.configure("eager")
    memory = cupy.cuda.Memory(256 * 4)  # of its own: a pool would hide what lies behind it
    kernel = cupy.RawKernel(FAULTY, "beyond")
    x = cupy.ndarray(256, np.float32, cupy.cuda.MemoryPointer(memory, 0))
    with refused(cupy, 700) as error:
        kernel((8,), (32,), (x, np.int32(256)))
    text = str(error.value)
    assert "kernel beyond, block (1, 0, 0), thread (5, 0, 0)" in text and "write" in text
    with refused(cupy, 700):
        runtime.deviceSynchronize()
    hostcuda.forgive()
    runtime.deviceSynchronize()


def test_memory_freed_in_a_stream_is_gone_for_all_that_does_not_precede(cupy, runtime):
    hostcuda.configure("eager")
    stream, other = streams(cupy, 2)
    address = runtime.mallocAsync(64, stream.ptr)
    runtime.memsetAsync(address, 1, 64, stream.ptr)
    runtime.freeAsync(address, stream.ptr)
    with refused(cupy, 1):
        runtime.memsetAsync(address, 1, 64, other.ptr)


def test_memory_of_a_pool_that_its_stream_has_not_allocated_yet_is_not_there(cupy, runtime):
    hits = 0
    for seed in SEEDS:
        hostcuda.configure("deferred", seed)
        stream, other = streams(cupy, 2)
        address = runtime.mallocAsync(64, stream.ptr)
        runtime.memsetAsync(address, 1, 64, other.ptr)  # no wait for `stream`
        try:
            other.synchronize()
            stream.synchronize()
        except runtime.CUDARuntimeError as error:
            hits += 1
            assert error.status == 700 and "a memset touched" in str(error)
        hostcuda.forgive()
    assert 0 < hits < len(SEEDS)


def test_one_page_behind_two_addresses(cupy, runtime):
    from cuda.bindings import driver

    def ask(function, *arguments):
        status, *answer = function(*arguments)
        assert status == 0, status.name
        return answer[0] if answer else None

    cupy.cuda.Device(0).use()
    runtime.free(0)
    place = driver.CUmemLocation()
    place.type, place.id = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE, 0
    kind = driver.CUmemAllocationProp()
    kind.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    kind.location = place
    access = driver.CUmemAccessDesc()
    access.location = place
    access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    page = 2 << 20
    start = int(ask(driver.cuMemAddressReserve, 2 * page, page, 0, 0))
    memory = ask(driver.cuMemCreate, page, kind, 0)
    for address in (start, start + page):
        ask(driver.cuMemMap, address, page, 0, memory, 0)
    ask(driver.cuMemRelease, memory)  # the mappings keep it
    with refused(cupy, 1):
        runtime.memset(start, 1, 8)  # mapped, but no access was given
    ask(driver.cuMemSetAccess, start, 2 * page, [access], 1)
    runtime.memset(start, 7, 8)
    found = np.zeros(8, np.uint8)
    runtime.memcpy(found.ctypes.data, start + page, 8, runtime.memcpyDeviceToHost)
    assert set(found) == {7}
    assert driver.cuMemAddressFree(start, 2 * page)[0] == 1  # something is mapped there
    ask(driver.cuMemUnmap, start, page)
    with refused(cupy, 1):
        runtime.memset(start, 1, 8)
    again = ask(driver.cuMemRetainAllocationHandle, start + page)
    ask(driver.cuMemMap, start, page, 0, again, 0)
    ask(driver.cuMemRelease, again)
    ask(driver.cuMemUnmap, start, 2 * page)
    ask(driver.cuMemAddressFree, start, 2 * page)


# ---- capture


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


# ---- streams, events, devices, processes


def test_handles_that_mean_nothing(cupy, runtime):
    stream = runtime.streamCreate()
    runtime.streamDestroy(stream)
    with refused(cupy, 400):
        runtime.streamSynchronize(stream)
    with refused(cupy, 400):
        runtime.eventRecord(stream, 0)
    with refused(cupy, 101):
        runtime.setDevice(7)


def test_a_destroyed_streams_work_is_still_done(cupy, runtime):
    hostcuda.configure("deferred")
    address = runtime.malloc(8)
    stream = runtime.streamCreate()
    runtime.memsetAsync(address, 9, 8, stream)
    runtime.streamDestroy(stream)
    found = np.zeros(8, np.uint8)
    runtime.memcpy(found.ctypes.data, address, 8, runtime.memcpyDeviceToHost)  # the default stream
    assert set(found) == {9}
    runtime.free(address)


def test_each_thread_has_a_stream_of_its_own(cupy, runtime):
    driver = ctypes.CDLL("libcuda.so.1")

    def number():
        runtime.free(0)
        found = ctypes.c_ulonglong()
        assert driver.cuStreamGetId(ctypes.c_void_p(2), ctypes.byref(found)) == 0
        return found.value

    numbers = [number()]
    thread = threading.Thread(target=lambda: numbers.append(number()))
    thread.start()
    thread.join()
    assert len({*numbers}) == 2 and number() == numbers[0]


def test_a_thread_without_a_context_is_told_so():
    driver = ctypes.CDLL("libcuda.so.1")
    status = []

    def ask():
        number = ctypes.c_ulonglong()
        status.append(driver.cuStreamGetId(ctypes.c_void_p(0), ctypes.byref(number)))

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    assert status == [201]


def test_events_behind_a_whole_device(cupy):
    hostcuda.configure("deferred", 1)
    driver = ctypes.CDLL("libcuda.so.1")
    log: list[int] = []
    for number, stream in enumerate(kept := streams(cupy, 3)):
        stream.launch_host_func(log.append, number)
    event, context = cupy.cuda.Event(disable_timing=True), ctypes.c_void_p()
    assert driver.cuCtxGetCurrent(ctypes.byref(context)) == 0
    assert driver.cuCtxRecordEvent(context, ctypes.c_void_p(event.ptr)) == 0
    event.synchronize()
    assert sorted(log) == [0, 1, 2] and kept


def test_a_function_that_is_not_there_says_so(cupy, runtime):
    with refused(cupy, 801):
        runtime.ipcGetMemHandle(cupy.empty(3).data.ptr)
    assert hostcuda.missing()["cudaIpcGetMemHandle"] == 1


def test_a_child_process_has_the_devices_too():
    code = "import cupy; print(cupy.cuda.runtime.getDeviceCount())"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.stdout.strip() == "2", ran.stderr


def test_a_forked_child_cannot_use_cuda(cupy):
    cupy.empty(3)
    child = os.fork()
    if not child:
        try:
            cupy.cuda.runtime.malloc(8)
        except cupy.cuda.runtime.CUDARuntimeError as error:
            os._exit(error.status)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3

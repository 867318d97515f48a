"""Handles, contexts, counters, dry programs, child processes."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading

import numpy as np
import pytest

from gtensor import hostcuda

from .through import SEEDS, refused, streams

pytestmark = pytest.mark.host_cuda


def test_handles_that_mean_nothing(cupy, runtime):
    stream = runtime.streamCreate()
    runtime.streamDestroy(stream)
    with refused(cupy, 400):
        runtime.streamSynchronize(stream)
    with refused(cupy, 400):
        runtime.eventRecord(stream, 0)
    with refused(cupy, 101):
        runtime.setDevice(7)
    a = cupy.empty(4)
    for to, source in (99, 0), (0, -5):
        with refused(cupy, 101):
            runtime.memcpyPeer(a.data.ptr, to, a.data.ptr, source, 32)
        with refused(cupy, 101):
            runtime.memcpyPeerAsync(a.data.ptr, to, a.data.ptr, source, 32, 0)


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


def test_a_thread_without_a_context_gets_its_error():
    driver = ctypes.CDLL("libcuda.so.1")
    status = []

    def ask():
        number = ctypes.c_ulonglong()
        status.append(driver.cuStreamGetId(ctypes.c_void_p(0), ctypes.byref(number)))

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    assert status == [201]


@pytest.mark.parametrize("seed", SEEDS)
def test_events_behind_a_whole_device(cupy, seed):
    hostcuda.configure("deferred", seed)
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


@pytest.mark.parametrize("other", ["", "print('its own')"], ids=["alone", "before another"])
def test_a_child_process_has_the_devices_too(tmp_path, other):
    if other:
        (tmp_path / "sitecustomize.py").write_text(other)
    path = os.pathsep.join([os.environ["PYTHONPATH"], str(tmp_path)])
    code = "from cupy.cuda import runtime; print(runtime.getDeviceCount())"
    ran = subprocess.run([sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": path},
                         capture_output=True, text=True)
    assert (ran.stdout, ran.stderr) == ("its own\n2\n" if other else "2\n", "")


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


FORKS = """
from gtensor import hostcuda
hostcuda.install("eager")
import ctypes, os, signal, threading
import cupy

x = cupy.zeros(3)
stop = False

def work():
    while not stop:
        cupy.cuda.runtime.memset(x.data.ptr, 0, 8)

threads = [threading.Thread(target=work, daemon=True) for _ in range(2)]
for thread in threads:
    thread.start()
for _ in range(30):
    child = os.fork()
    if not child:
        signal.alarm(60)
        error = ctypes.CDLL("libcuda.so.1").cudaPeekAtLastError()
        ctypes.CDLL(None).exit(error)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status == 3, status
stop = True
for thread in threads:
    thread.join()
"""


def test_a_forked_child_ends_whatever_other_threads_did(child):
    child(FORKS)

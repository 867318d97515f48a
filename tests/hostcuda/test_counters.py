"""The counters against programs whose cost is counted by hand, and dry mode."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from gtensor import hostcuda
from gtensor.hostcuda.children import VARIABLE

pytestmark = pytest.mark.host_cuda
ADD, EXP = "cupy_add__float32_float_float32", "cupy_exp__float32_float32"


@pytest.fixture(params=[False, True], ids=["run", "dry"])
def x(request, cupy):
    """Six numbers on the device; counted from here on, in a dry run as in a real one."""
    x = cupy.arange(6, dtype=np.float32)
    hostcuda.configure("eager", dry=request.param)
    hostcuda.reset_counters()
    return x


def check(**wanted):
    """All that was counted: what is not named must be nothing."""
    names = ("kernels", "library", "copies", "memsets", "other", "bytes")
    found = hostcuda.counters()
    assert {name: getattr(found, name) for name in names} == {name: {} for name in names} | wanted
    return found


def test_kernels_by_name(cupy, x):
    y = x + 1
    cupy.add(y, 2, out=y)
    cupy.exp(y, out=y)
    y[2:4] += 1
    found = check(kernels={ADD: 3, EXP: 1})
    assert (found.launches, found.allocations, found.synchronizations) == (4, 0, 0)


def test_library_calls_one_each(cupy, x):
    a = x.reshape(2, 3)
    a @ a.T
    cupy.matmul(cupy.broadcast_to(a, (4, 2, 3)), cupy.broadcast_to(a.T, (4, 3, 2)))
    x.sum()
    found = hostcuda.counters()
    assert found.library.pop("cub::DeviceReduce") == 1
    assert sum(found.library.values()) == 2, found.library  # the batch is one call
    assert found.launches == 2 + sum(found.kernels.values()), found


def test_copies_by_direction(cupy, runtime, x):
    pinned, pageable = cupy.cuda.alloc_pinned_memory(24), np.zeros(6, np.float32)
    y = cupy.empty_like(x)
    hostcuda.reset_counters()
    stream = cupy.cuda.Stream(non_blocking=True)
    y.data.copy_from_device_async(x.data, 24, stream)
    y.data.copy_from_host_async(pinned.ptr, 16, stream)
    y.data.copy_to_host_async(pinned.ptr, 8, stream)
    assert check(
        copies={"device to device": 1, "host to device": 1, "device to host": 1},
        bytes={"device to device": 24, "host to device": 16, "device to host": 8},
    ).launches == 1
    hostcuda.reset_counters()
    y.data.copy_from_host_async(pageable.ctypes.data, 24, stream)  # staged: the call returns
    y.data.copy_to_host_async(pageable.ctypes.data, 24, stream)  # pageable: the call waits
    runtime.memcpy(pinned.ptr, y.data.ptr, 24, runtime.memcpyDeviceToHost)  # waits
    runtime.memcpy(y.data.ptr, x.data.ptr, 24, runtime.memcpyDeviceToDevice)  # does not wait
    found = check(copies={"host to device": 1, "device to host": 2, "device to device": 1},
                  bytes={"host to device": 24, "device to host": 48, "device to device": 24},
                  other={"synchronize copy": 2})
    assert found.launches == 1 and found.synchronizations == 2


def test_memsets(cupy, x):
    x.data.memset(0, 20)
    x.data.memset_async(0, 4, cupy.cuda.Stream.null)
    cupy.zeros(6, np.float32)
    assert check(memsets={"memset": 3}, bytes={"memset": 48}).launches == 0


def test_allocations(cupy, runtime, x):
    stream = cupy.cuda.Stream(non_blocking=True)
    address, host = runtime.malloc(100), runtime.hostAlloc(200, 0)
    later = runtime.mallocAsync(300, stream.ptr)
    runtime.freeAsync(later, stream.ptr)
    runtime.free(address)
    runtime.freeHost(host)
    found = check(
        other={"allocate": 1, "allocate host": 1, "allocate in stream": 1, "free": 1,
               "free host": 1, "free in stream": 1},
        bytes={"allocate": 100, "allocate host": 200, "allocate in stream": 300})
    assert found.allocations == 3


def test_synchronizations(cupy, runtime, x):
    stream = cupy.cuda.Stream(non_blocking=True)
    event = stream.record()
    cupy.cuda.Stream.null.wait_event(event)  # the device waits, the program does not
    event.synchronize()
    stream.synchronize()
    stream.synchronize()
    runtime.deviceSynchronize()
    found = check(other={"synchronize event": 1, "synchronize stream": 2, "synchronize device": 1})
    assert found.synchronizations == 4


def test_what_is_refused_is_not_counted(cupy, runtime):
    stream = cupy.cuda.Stream(non_blocking=True)
    address = runtime.malloc(8)
    hostcuda.reset_counters()
    stream.begin_capture()
    for refused in (runtime.deviceSynchronize, stream.synchronize):
        with pytest.raises(cupy.cuda.runtime.CUDARuntimeError):
            refused()
    with pytest.raises(cupy.cuda.runtime.CUDARuntimeError):
        stream.end_capture()
    for refused in (lambda: runtime.malloc(2**60), lambda: runtime.memset(address, 0, 9)):
        with pytest.raises(cupy.cuda.runtime.CUDARuntimeError):
            refused()
    check()
    runtime.free(address)


def test_a_graph_counts_when_it_is_launched(cupy, x):
    cupy.add(x, 1, out=x)
    hostcuda.reset_counters()
    with cupy.cuda.Stream(non_blocking=True) as stream:
        stream.begin_capture()
        cupy.add(x, 1, out=x)
        graph = stream.end_capture()
    check()
    for _ in range(3):
        graph.launch(stream)
    check(kernels={ADD: 3}, other={"launch graph": 3})


def test_a_dry_run_changes_nothing_and_reads_zero(cupy):
    x = cupy.arange(1, 5, dtype=np.float32)
    hostcuda.configure("eager", dry=True)
    cupy.add(x, 1, out=x)
    x.reshape(2, 2).dot(x.reshape(2, 2), out=x.reshape(2, 2))
    x.data.memset(0, 16)
    x.set(np.full(4, 7, np.float32))
    assert set(x.get()) == {0} and x[0].item() == 0
    hostcuda.configure("eager")
    assert x.get().tolist() == [1, 2, 3, 4]


LARGE = """
import resource
from gtensor import hostcuda
hostcuda.install(dry=True, card=hostcuda.Card(memory=200 * 2**30))
import gtensor as gt

gt.set_default_device("cuda")
weights = [gt.zeros((32768, 32768), requires_grad=True) for _ in range(15)]  # 4 GiB each
optimizer = gt.optim.SGD(weights, 0.1)
y = gt.zeros((64, 32768))
for weight in weights:
    y = gt.nn.functional.linear(y, weight)
y.sum().backward()
optimizer.step()
found = hostcuda.counters()
print(sum(weight.nbytes for weight in weights) / 2**30,
      sum(count for name, count in found.kernels.items() if name.startswith("gt_sgd<")),
      sum(count for name, count in found.library.items() if "cublas" in name),
      resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 2**20)  # KiB
"""


def test_a_model_of_60_gib_is_counted_in_less_than_one():
    without = {name: value for name, value in os.environ.items() if name != VARIABLE}
    ran = subprocess.run([sys.executable, "-c", LARGE], env=without, capture_output=True, text=True)
    # of 44 products the two of the sum's gradient, which repeats one number, are no library's
    assert ran.stdout.split() == ["60.0", "1", "42", "True"], ran.stderr


def test_events_measure_the_time_that_the_device_worked(cupy):
    hostcuda.configure("eager")
    x = cupy.arange(1 << 16, dtype=np.float32)
    begin, end = cupy.cuda.Event(), cupy.cuda.Event()
    hostcuda.reset_counters()
    begin.record()
    y = cupy.exp(x)
    sum(range(100_000))  # the device is idle
    y += x @ x
    end.record()
    end.synchronize()
    found = hostcuda.counters()
    assert found.seconds.keys() == {**found.kernels, **found.library, **found.memsets}.keys()
    elapsed = cupy.cuda.get_elapsed_time(begin, end)  # milliseconds
    assert elapsed == pytest.approx(1e3 * sum(found.seconds.values()))


def test_a_program_that_watches_is_told_of_each_launch(cupy, x):
    a = cupy.ones((8, 4), dtype=np.float32)
    y = cupy.empty(6, dtype=np.float32)
    with hostcuda.watch() as queued:
        cupy.add(x, 1, out=y)
        a.T @ a
        y.sum()
        add, *more = queued()
        assert (add.kind, add.name, add.grid, add.block) == ("kernels", ADD, (1, 1, 1), (6, 1, 1))
        address, size, shape, stride = np.frombuffer(add.parameters[0], np.int64)
        assert (address, size, shape, stride) == (x.data.ptr, 6, 6, 4)
        assert np.frombuffer(add.parameters[1], np.float32) == 1
        traffic = [each.traffic for each in more if each.kind == "library"]
        assert [(t.reads, t.writes, t.product) for t in traffic] == [
            (2 * 4 * 32, 4 * 16, (4, 4, 8, 1)), (4 * 6, 4, None)]
        assert queued() == []
        with pytest.raises(RuntimeError, match="watched already"), hostcuda.watch():
            pass
        cupy.exp(y, out=y)
        assert [each.name for each in queued()] == [EXP]
    cupy.exp(y, out=y)  # is counted and not noted
    assert hostcuda.counters().kernels[EXP] == 2

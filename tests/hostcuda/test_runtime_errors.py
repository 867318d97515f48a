"""Which of CUDA's errors a fault is, where it is noticed, and that none ends the process."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from gtensor import hostcuda

from .through import SEEDS, refused, streams

pytestmark = pytest.mark.host_cuda


def at(cupy, address, size):
    """float32 at an address, whatever is there."""
    memory = cupy.cuda.UnownedMemory(address, size * 4, None, 0)
    return cupy.ndarray(size, np.float32, cupy.cuda.MemoryPointer(memory, 0))


def gemm(cupy, x):
    cupy.dot(x[:64].reshape(8, 8), cupy.ones((8, 8), np.float32))


def dot(cupy, x):
    from cupy import cublas

    cublas.dot(x, x, out=cupy.empty((), np.float32))


def cholesky(cupy, x):
    from cupy_backends.cuda.libs import cusolver

    handle, info = cupy.cuda.device.get_cusolver_handle(), cupy.empty(1, np.int32)
    size = cusolver.spotrf_bufferSize(handle, 0, 8, x.data.ptr, 8)
    work = cupy.empty(size, np.float32)
    cusolver.spotrf(handle, 0, 8, x.data.ptr, 8, work.data.ptr, size, info.data.ptr)


def transform(cupy, x):
    from cupy.cuda import cufft

    plan = cufft.Plan1d(x.size // 2, cufft.CUFFT_C2C, 1)
    plan.fft(x.view(np.complex64), cupy.empty(x.size // 2, np.complex64), cufft.CUFFT_FORWARD)


def uniform(cupy, x):
    from cupy_backends.cuda.libs import curand

    generator = curand.createGenerator(curand.CURAND_RNG_PSEUDO_DEFAULT)
    curand.generateUniform(generator, x.data.ptr, x.size)
    curand.destroyGenerator(generator)


def reduction(cupy, x):
    from cupy.cuda import cub

    cub.device_reduce(x, cub.CUPY_CUB_SUM, (0,), ())


LIBRARIES = {"cublasGemmEx": gemm, "cublasSdot": dot, "cusolverDnSpotrf": cholesky,
             "cufftExecC2C": transform, "curandGenerateUniform": uniform,
             "cub::DeviceReduce": reduction, "thrust::stable_sort": lambda cupy, x: x.sort()}


@pytest.mark.parametrize("name", LIBRARIES)
def test_a_library_that_meets_memory_that_is_gone_is_an_illegal_address(cupy, runtime, name):
    hostcuda.configure("deferred")
    address = runtime.malloc(4096)
    runtime.free(address)
    LIBRARIES[name](cupy, at(cupy, address, 1024))
    with refused(cupy, 700) as error:
        runtime.deviceSynchronize()
    assert f"{name} touched {address:#x}" in str(error.value)
    hostcuda.forgive()
    assert cupy.sort(cupy.arange(3)[::-1])[2] == 2  # the process goes on, and so do the libraries


def test_a_library_looks_at_memory_when_it_runs(cupy, runtime):
    hits = 0
    for seed in SEEDS:
        hostcuda.configure("deferred", seed)
        stream, other = streams(cupy, 2)
        address = runtime.mallocAsync(4096, stream.ptr)
        stream.synchronize()
        with other:
            at(cupy, address, 1024).sort()
        runtime.freeAsync(address, stream.ptr)  # no wait for `other`
        try:
            runtime.deviceSynchronize()
        except runtime.CUDARuntimeError as error:
            hits += 1
            assert error.status == 700 and "thrust::stable_sort touched" in str(error)
        hostcuda.forgive()
    assert 0 < hits < len(SEEDS)


def test_what_a_library_may_touch(cupy, runtime):
    """Up to the last byte that was asked for, page-locked memory, and a peer's where that is on."""
    hostcuda.configure("eager")
    host = np.arange(250, dtype=np.float32)[::-1].copy()
    address = runtime.malloc(1000)
    at(cupy, address, 250).sort()
    with refused(cupy, 700) as error:
        at(cupy, address, 251).sort()
        runtime.deviceSynchronize()
    assert f"touched {address + 1000:#x}, 1000 bytes behind the start of" in str(error.value)
    hostcuda.forgive()
    with refused(cupy, 700):
        at(cupy, host.ctypes.data, 250).sort()
        runtime.deviceSynchronize()
    hostcuda.forgive()
    runtime.hostRegister(host.ctypes.data, host.nbytes, 0)
    at(cupy, host.ctypes.data, 250).sort()
    runtime.deviceSynchronize()
    assert host.tolist() == list(range(250))
    runtime.hostUnregister(host.ctypes.data)
    with cupy.cuda.Device(1):
        with refused(cupy, 700):
            at(cupy, address, 250).sort()
            runtime.deviceSynchronize()
        hostcuda.forgive()
        runtime.deviceEnablePeerAccess(0)
        at(cupy, address, 250).sort()
        runtime.deviceSynchronize()
        runtime.deviceDisablePeerAccess(0)
    runtime.free(address)


def test_what_a_library_does_not_read_may_be_anywhere(cupy, runtime):
    """With alpha 0: all but what beta scales."""
    from cupy_backends.cuda.libs import cublas

    hostcuda.configure("eager")
    address = runtime.malloc(64)
    runtime.free(address)
    handle, zero = cupy.cuda.device.get_cublas_handle(), np.zeros(1, np.float32).ctypes
    c = cupy.full(16, np.nan, np.float32)
    cublas.sgemm(handle, 0, 0, 4, 4, 4, zero.data, address, 4, address, 4, zero.data, c.data.ptr, 4)
    assert not c.any()
    c.fill(np.nan)
    cublas.strsm(handle, 0, 0, 0, 0, 4, 4, zero.data, address, 4, c.data.ptr, 4)
    assert not c.any()
    for call in (
        lambda y: cublas.sgemv(handle, 0, 4, 4, zero.data, address, 4, address, 1, zero.data, y, 1),
        lambda y: cublas.ssbmv(handle, 0, 4, 3, zero.data, address, 4, address, 1, zero.data, y, 1),
        lambda y: cublas.ssyrk(handle, 0, 0, 4, 4, zero.data, address, 4, zero.data, y, 4),
    ):
        c.fill(np.nan)
        call(c.data.ptr)
        assert not np.tril(c.reshape(4, 4).get().T)[:, 0].any()
    cublas.saxpy(handle, 4, zero.data, address, 1, address, 1)
    cublas.sger(handle, 4, 4, zero.data, address, 1, address, 1, address, 4)
    runtime.deviceSynchronize()


KERNELS = r"""
extern "C" __global__ void asserts(float *x) { assert(x == 0); }
extern "C" __global__ void misaligned(float *x) { *(float *)((char *)x + 1) = 1; }
extern "C" __global__ void traps(float *x) { __trap(); }
extern "C" __global__ void pokes(char *x, long long at) { x[at] = 7; }
"""


@pytest.mark.parametrize(("name", "status"), [("asserts", 710), ("misaligned", 716),
                                              ("traps", 719)])
def test_a_fault_in_a_kernel_stays_as_the_error_that_it_is(cupy, runtime, name, status):
    hostcuda.configure("eager")
    x = cupy.empty(4, np.float32)
    with refused(cupy, status):
        cupy.RawModule(code=KERNELS).get_function(name)((1,), (1,), (x,))
    with refused(cupy, status) as error:
        runtime.deviceSynchronize()
    assert f"kernel {name}, block (0, 0, 0), thread (0, 0, 0): " in str(error.value)


@pytest.mark.parametrize("end", ["synchronize", "free", "free in a stream"])
@pytest.mark.parametrize(("place", "said"), [
    (1000, "something wrote 0 bytes behind the end of the 1000 bytes allocated at "),
    (1023, "something wrote 23 bytes behind the end of the 1000 bytes allocated at "),
    (-1, "something wrote 1 bytes before the start of the 1000 bytes allocated at "),
])
def test_a_write_beside_an_allocation_is_seen_at_the_next_wait(cupy, runtime, end, place, said):
    """These bytes are of the allocation's pages: the kernel itself does not fault."""
    hostcuda.configure("eager")
    address = runtime.mallocAsync(1000, 0) if end == "free in a stream" else runtime.malloc(1000)
    pokes = cupy.RawModule(code=KERNELS).get_function("pokes")
    for inside in (0, 999):
        pokes((1,), (1,), (np.uint64(address), np.int64(inside)))
    runtime.deviceSynchronize()
    pokes((1,), (1,), (np.uint64(address), np.int64(place)))
    with refused(cupy, 700) as error:
        if end == "synchronize":
            runtime.deviceSynchronize()
        elif end == "free":
            runtime.free(address)
        else:
            runtime.freeAsync(address, 0)
    assert f"{said}{address:#x}" in str(error.value)
    hostcuda.forgive()
    runtime.deviceSynchronize()  # it is reported once
    if end == "synchronize":
        runtime.free(address)


POLLING = r"""
from gtensor import hostcuda
hostcuda.install("eager")
import cupy

WAITS = r'''
extern "C" __global__ void waits(volatile int *flag) {
  if (blockIdx.x == 0) while (!*flag) if (printf("")) break;
  if (blockIdx.x == 1) *flag = 1;
}
'''
flag = cupy.zeros(1, "i4")
try:
    cupy.RawKernel(WAITS, "waits")((2,), (1,), (flag,))
except cupy.cuda.driver.CUDADriverError as error:
    print(error.status, error)
hostcuda.forgive()
print(int(cupy.ones(5).sum()))
"""


def test_a_block_that_waits_for_another_one_is_a_launch_that_takes_too_long(child):
    said, after = child(POLLING, GTENSOR_HOSTCUDA_KERNEL_SECONDS="0.2").splitlines()
    assert said.startswith("702 ") and "after 0.2 s, the limit that" in said
    assert "kernel waits, block (0, 0, 0), thread (0, 0, 0): " in said
    assert after == "5"


PROFILED = r"""
import signal
from gtensor import hostcuda
hostcuda.install("eager")
import cupy

LONG = r'''extern "C" __global__ void runs(volatile int *x, int n) {
  for (int i = 0; i < n; ++i) x[0] = i;
}'''
hits = []
signal.signal(signal.SIGVTALRM, lambda *_: hits.append(1))
runs, x = cupy.RawKernel(LONG, "runs"), cupy.zeros(1, "i4")
runs((1,), (1,), (x, cupy.int32(1)))
signal.setitimer(signal.ITIMER_VIRTUAL, 0.01, 0.01)
runs((1,), (1,), (x, cupy.int32(200_000_000)))
signal.setitimer(signal.ITIMER_VIRTUAL, 0)
print(int(x[0]), len(hits) > 0)
"""


@pytest.mark.parametrize("seconds", ["120", "0"])
def test_a_programs_own_timer_ends_no_launch(child, seconds):
    """Profilers sample with ITIMER_VIRTUAL, whose signal is the one of a launch's timer."""
    assert child(PROFILED, GTENSOR_HOSTCUDA_KERNEL_SECONDS=seconds) == "199999999 True\n"


@pytest.mark.parametrize("given", ["-1", "abc", "nan", "inf", ""])
def test_the_limit_of_a_launch_is_a_number_of_seconds(child, given):
    program = ("from gtensor import hostcuda\ntry: hostcuda.install()\n"
               "except hostcuda.Unusable as error: print(error)")
    assert child(program, GTENSOR_HOSTCUDA_KERNEL_SECONDS=given) == (
        "GTENSOR_HOSTCUDA_KERNEL_SECONDS is the seconds that a kernel may run, 0 to 1e+09 "
        f"(0: without limit), got {given!r}\n")


@pytest.mark.parametrize("callback", [False, True], ids=["host function", "callback"])
def test_a_host_function_may_not_call_cuda(cupy, runtime, callback):
    """CUDA Runtime API, cudaLaunchHostFunc and cudaStreamAddCallback."""
    hostcuda.configure("deferred")
    stream, = streams(cupy, 1)
    address = runtime.malloc(64)
    calls = [runtime.getDevice, lambda: runtime.free(address), lambda: runtime.malloc(8),
             lambda: runtime.memsetAsync(address, 1, 64, stream.ptr), stream.synchronize]
    answers = []

    def function(*_):
        for call in calls:
            try:
                answers.append(call())
            except runtime.CUDARuntimeError as error:
                answers.append(error.status)

    if callback:
        stream.add_callback(function, None)
    else:
        stream.launch_host_func(function, None)
    stream.synchronize()
    assert answers == [800] * len(calls)
    runtime.free(address)


def test_work_that_is_not_ready_is_no_error(cupy, runtime):
    """CUDA C++ Programming Guide, "Error Checking"."""
    native, seen = ctypes.CDLL("libcuda.so.1"), set()
    for seed in SEEDS:
        hostcuda.configure("deferred", seed)
        stream, = streams(cupy, 1)
        runtime.memsetAsync(cupy.empty(4).data.ptr, 0, 8, stream.ptr)
        try:
            seen.add(runtime.streamQuery(stream.ptr))
        except runtime.CUDARuntimeError as error:
            seen.add(error.status)
        assert (native.cudaPeekAtLastError(), native.cudaGetLastError()) == (0, 0)
        stream.synchronize()
    assert 600 in seen

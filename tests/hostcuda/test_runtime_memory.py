"""Memory: its end, its content, its limit, pools, and pages behind several addresses."""

from __future__ import annotations

import numpy as np
import pytest

from gtensor import hostcuda

from .through import SEEDS, refused, streams

pytestmark = pytest.mark.host_cuda


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


def test_a_callback_runs_after_a_sticky_error_and_gets_its_status(cupy, runtime):
    hostcuda.configure("deferred")
    stream, = streams(cupy, 1)
    memory = cupy.cuda.Memory(256 * 4)
    x = cupy.ndarray(256, np.float32, cupy.cuda.MemoryPointer(memory, 0))
    told = []
    with stream:
        stream.add_callback(lambda _, status, __: told.append(status), None)
        cupy.RawKernel(FAULTY, "beyond")((8,), (32,), (x, np.int32(256)))
        stream.add_callback(lambda _, status, __: told.append(status), None)
        stream.launch_host_func(told.append, "a host function does not run")
    with refused(cupy, 700):
        stream.synchronize()
    assert told == [0, 700]
    hostcuda.forgive()


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


MAPPINGS = """
from gtensor import hostcuda
hostcuda.install("eager")
import ctypes, mmap
import cupy.cuda.runtime as r

r.free(r.malloc(64))
PAGE = 4096
libc = ctypes.CDLL(None)
limit = int(open("/proc/sys/vm/max_map_count").read())
mine = mmap.mmap(-1, 2 * limit * PAGE, mmap.MAP_PRIVATE)
start = ctypes.addressof(ctypes.c_char.from_buffer(mine))

def protect(place, access):  # each second page is a mapping of its own
    return libc.mprotect(ctypes.c_void_p(start + 2 * place * PAGE), PAGE, access)

taken = 0
while not protect(taken, 0):
    taken += 1
for place in range(100):
    protect(place, 3)
for _ in range(2):
    made = []
    try:
        while len(made) < limit:
            made.append(r.malloc(64))
    except r.CUDARuntimeError as error:
        assert error.status == 2, error
    print(len(made))
    for address in made:
        r.free(address)
"""


def test_a_system_without_more_mappings_is_without_memory(child):
    first, again = map(int, child(MAPPINGS).split())
    assert 10 < first < 1000 and again >= first // 2

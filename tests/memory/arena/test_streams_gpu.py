"""Streams on a real device: the race of github.com/cupy/cupy/issues/8068, and that it is gone."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import gtensor as gt
from gtensor import hostcuda, memory

pytestmark = pytest.mark.gpu

# On a GPU a race shows when work takes long, on a host device because its order is shuffled.
SIZE = 1 << 12 if hostcuda.installed() else 1 << 24
ROUNDS = 20


@pytest.fixture
def cupy():
    import cupy

    gc.collect()
    cupy.cuda.Device().synchronize()
    memory.empty_cache("cuda")
    before = hostcuda.configure("deferred", 1) if hostcuda.installed() else None
    yield cupy
    if before is not None:
        hostcuda.configure(**before)


def busy(cupy, stream) -> None:
    """Keep a stream at work for some milliseconds; deferred work is late of itself."""
    if hostcuda.installed():
        return
    spin = cupy.RawKernel(r"""
    extern "C" __global__ void spin(long long cycles) {
        long long start = clock64();
        while (clock64() - start < cycles) {}
    }""", "spin")
    with stream:
        spin((1,), (1,), (np.int64(20_000_000),))


def race(cupy, note) -> int:
    """In how many rounds a reader on a second stream saw bytes that were written after the free."""
    wrong = 0
    side = cupy.cuda.Stream(non_blocking=True)
    for _ in range(ROUNDS):
        first = cupy.full(SIZE, 1, np.float32)
        cupy.cuda.get_current_stream().synchronize()
        busy(cupy, side)
        with side:
            seen = first[:1024].copy()
        note(first, side)
        del first
        second = cupy.full(SIZE, 2, np.float32)  # gets the same bytes if they count as free
        cupy.cuda.Device().synchronize()
        wrong += int((seen.get() != 1).any())
        del second, seen
    return wrong


def test_plain_cupy_hands_out_bytes_that_another_stream_still_reads(cupy):
    with cupy.cuda.using_allocator(cupy.cuda.MemoryPool().malloc):
        assert race(cupy, lambda array, stream: None) > 0


def test_the_arena_does_not(cupy):
    gt.zeros(1, device="cuda")  # the device, and with it the arena
    with memory.use_arena(True):
        assert race(cupy, memory.record_stream) == 0


def test_ops_on_two_streams_need_no_synchronization_by_the_user(cupy):
    gt.zeros(1, device="cuda")
    side = gt.stream("cuda")
    wrong = 0
    for value in range(ROUNDS):
        busy(cupy, cupy.cuda.get_current_stream())
        x = gt.full((SIZE,), float(value), device="cuda")  # late, on the current stream
        busy(cupy, side.stream)
        with side:
            y = x + 1
        del x
        z = gt.full((SIZE,), -5.0, device="cuda")
        wrong += int((y.numpy() != value + 1).any())
        del y, z
    assert wrong == 0
    assert memory.stats("cuda").pending >= 0


def test_backward_runs_where_the_forward_ran(cupy):
    side = gt.stream("cuda")
    x = gt.full((SIZE,), 2.0, device="cuda").requires_grad_()
    busy(cupy, cupy.cuda.get_current_stream())
    with side:
        a = x * x
    b = x * 3
    (a.sum() + b.sum()).backward()
    np.testing.assert_allclose(x.grad.numpy()[:10], 7.0)
    assert a._node.stream.id == side.id != b._node.stream.id


def test_streams_are_known_by_id_and_their_memory_is_inherited(cupy):
    device = gt.device("cuda")
    arena = memory.arena_of("cuda")
    memory.empty_cache("cuda")
    ids = set()
    for _ in range(10):
        side = gt.stream("cuda")
        ids.add(side.id)
        with side:
            gt.zeros((1 << 22,), device="cuda")
        del side
        gc.collect()
    assert len(ids) == 10
    gt.zeros((1 << 22,), device="cuda")
    assert len(arena.streams) <= 2 and len(device.streams._known) <= 2
    assert arena.stats().segments <= 3


def test_dlpack_orders_the_consumer(cupy):
    x = gt.full((SIZE,), 1.0, device="cuda")
    side = cupy.cuda.Stream(non_blocking=True)
    for value in range(ROUNDS):
        busy(cupy, cupy.cuda.get_current_stream())
        x = gt.full((SIZE,), float(value), device="cuda")
        with side:
            y = cupy.from_dlpack(x)[:1024].copy()
        del x
        z = gt.full((SIZE,), -1.0, device="cuda")
        side.synchronize()
        assert (y.get() == value).all()
        del z


def test_events_order_work_of_the_users_own(cupy):
    side = gt.stream("cuda")
    busy(cupy, cupy.cuda.get_current_stream())
    x = cupy.full(SIZE, 3, np.float32)
    event = gt.Event("cuda").record()
    event.wait(side)
    with side:
        y = x[:100] + 1
    side.synchronize()
    assert event.done() and (y.get() == 4).all()


@pytest.mark.multi_gpu
def test_a_stream_makes_its_device_the_current_one_of_cupy(cupy):
    side = gt.stream("cuda:1")
    before = cupy.cuda.Device().id
    with side:
        made = cupy.ones(1000, np.float32)
        y = gt.ones(1000, device="cuda:1") + 1
        assert cupy.cuda.get_current_stream() == side.stream
    assert cupy.cuda.Device().id == before == 0
    assert made.device.id == 1 and made.data.mem.stream == side.id
    assert (y.numpy() == 2).all() and (made.get() == 1).all()

"""Workspaces: named buffers that grow, and never while an array uses the old one."""

from __future__ import annotations

import gc
import threading
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
from together import in_threads

import gtensor as gt
from gtensor import memory
from gtensor.backend.streams import SimulatedStream
from gtensor.memory import Failing, OutOfMemoryError, Workspace, workspace

KIB = 1 << 10


@pytest.fixture
def cpu():
    """The CPU device, all arrays in the arena."""
    gc.collect()
    with gt.settings.override(arena_min_bytes=0):
        yield gt.device("cpu")


def test_a_buffer_serves_its_name_again(cpu):
    ws = Workspace("cpu")
    a = ws.get("columns", (10, 100), np.float32)
    assert a.shape == (10, 100) and a.dtype == np.float32 and a.flags.c_contiguous
    a[:] = 7
    before = memory.stats("cpu").allocated
    b = ws.get("columns", (1000,), np.int32)
    assert np.shares_memory(a, b) and memory.stats("cpu").allocated == before
    other = ws.get("rows", (10, 100), np.float32)
    assert not np.shares_memory(a, other)
    assert (ws.allocations, ws.bytes_saved) == (2, 4000)


@pytest.mark.parametrize(("shape", "dtype"), [
    ((3, 5), ml_dtypes.bfloat16), ((), np.float64), ((0, 4), np.int8), (7, np.complex64),
    ([2, 2], "f2"), (np.int64(5), np.float32), (np.array([2, 3]), np.int8)])
def test_any_shape_and_dtype(cpu, shape, dtype):
    array = Workspace("cpu").get("x", shape, dtype)
    assert array.shape == np.empty(shape).shape and array.dtype == np.dtype(dtype)
    array[...] = 1
    assert (array == 1).all()


def test_capacities_are_powers_of_two(cpu):
    ws = Workspace("cpu")
    for nbytes, capacity in ((0, 512), (512, 512), (513, 1024), (5000, 8192), (8192, 8192),
                             (100, 8192)):
        ws.ensure_capacity("x", nbytes)
        assert ws.memory_usage().capacity == capacity
    assert ws.allocations == 3 and ws.bytes_saved == 0
    ws.get("x", 8192, np.uint8)
    assert (ws.allocations, ws.bytes_saved) == (3, 8192)


def test_growing_leaves_arrays_in_use_alone(cpu):
    ws = Workspace("cpu")
    old = ws.get("x", 100, np.float64)[10:]
    old[:] = 3
    new = ws.get("x", 1000, np.float64)
    new[:] = 4
    assert (old == 3).all() and not np.shares_memory(old, new)
    assert ws.memory_usage().buffers["x"] == (8192, 8000, 1024, 2)
    assert ws.memory_usage()[1:] == (8192, 8000, 1024, 9216)
    before = memory.stats("cpu").allocated
    del old
    assert memory.stats("cpu").allocated == before - 1024
    assert ws.memory_usage().retired == 0 and ws.memory_usage().held == 8192
    assert "1 buffers, 8 KiB held" in repr(ws)


def test_an_outgrown_buffer_makes_room_before_the_new_one(cpu):
    ws = Workspace("cpu")
    ws.get("x", 64 * KIB, np.uint8)
    memory.reset_peak("cpu")
    before = memory.stats("cpu").allocated
    ws.get("x", 128 * KIB, np.uint8)
    assert memory.stats("cpu").peak_allocated == before + 64 * KIB


def test_beyond_the_limit_nothing_changes(cpu):
    ws = Workspace("cpu", limit=8 * KIB)
    a = ws.get("a", 2 * KIB, np.uint8)
    ws.get("b", 2 * KIB, np.uint8)
    usage, allocated = ws.memory_usage(), memory.stats("cpu").allocated
    text = "'b' wants 6 KiB, a capacity of 8 KiB, but 4 KiB of its limit of 8 KiB are held"
    for _ in range(2):
        with pytest.raises(OutOfMemoryError, match=text) as caught:
            ws.get("b", 6 * KIB, np.uint8)
        assert caught.value.requested == 6 * KIB
    with pytest.raises(OutOfMemoryError, match="'c' wants 5 KiB"):
        ws.ensure_capacity("c", 5 * KIB)
    assert ws.memory_usage() == usage and ws.allocations == 2
    assert memory.stats("cpu").allocated == allocated
    ws.get("b", 4 * KIB, np.uint8)  # its old buffer, without views, does not count
    with pytest.raises(OutOfMemoryError):  # that of `a` does
        ws.get("a", 4 * KIB, np.uint8)
    assert np.shares_memory(a, ws.get("a", 2 * KIB, np.uint8))
    del a
    assert ws.get("a", 4 * KIB, np.uint8).size == 4 * KIB
    assert ws.memory_usage().held == 8 * KIB


def test_a_device_without_room_leaves_the_workspace_whole(cpu):
    ws = Workspace("cpu")
    viewed = ws.get("viewed", 1000, np.uint8)
    ws.get("x", 1000, np.uint8)
    upstream = cpu.resource
    for name, shape in (("x", 5000), ("viewed", 5000), ("new", 10)):
        usage, allocated = ws.memory_usage(), memory.stats("cpu").allocated
        cpu.resource = Failing(upstream, 1)
        try:
            with pytest.raises(OutOfMemoryError):
                ws.get(name, shape, np.uint8)
        finally:
            cpu.resource = upstream
        assert ws.memory_usage() == usage and ws.allocations == 2
        assert memory.stats("cpu").allocated == allocated
    cpu.resource = Failing(upstream, 1, 2)  # not even the old size
    try:
        with pytest.raises(OutOfMemoryError):
            ws.get("x", 5000, np.uint8)
    finally:
        cpu.resource = upstream
    assert ws.memory_usage().buffers.keys() == {"viewed"}
    assert ws.get("x", 10, np.uint8).size == 10
    assert np.shares_memory(viewed, ws.get("viewed", 1000, np.uint8))


def test_each_stream_and_thread_has_its_own(cpu, monkeypatch):
    ws = Workspace("cpu")
    here = ws.get("x", 100, np.uint8)
    with monkeypatch.context() as patch:
        stream = SimulatedStream()
        patch.setattr(type(cpu), "current_stream", lambda device: stream)
        there = ws.get("x", 100, np.uint8)
        assert np.shares_memory(there, ws.get("x", 100, np.uint8))
    found = []
    thread = threading.Thread(target=lambda: found.append(ws.get("x", 100, np.uint8)))
    thread.start()
    thread.join()
    assert not np.shares_memory(here, there) and not np.shares_memory(here, found[0])
    assert ws.memory_usage().buffers["x"] == (3 * 512, 300, 0, 1)


def test_buffers_of_streams_and_threads_that_are_gone_make_room(cpu, monkeypatch):
    ws = Workspace("cpu", limit=4 * KIB)
    mine = ws.get("x", KIB, np.uint8)
    for _ in range(10):
        stream = SimulatedStream()
        with monkeypatch.context() as patch:
            patch.setattr(type(cpu), "current_stream", lambda device, now=stream: now)
            assert ws.get("x", KIB, np.uint8).size == KIB
        del stream
        thread = threading.Thread(target=ws.get, args=("x", KIB, np.uint8))
        thread.start()
        thread.join()
    seen = []
    thread = threading.Thread(target=lambda: seen.append(ws.get("x", 2 * KIB, np.uint8)))
    thread.start()
    thread.join()
    assert ws.memory_usage().held == 3 * KIB, "its own, and the last thread's"
    ws.get("y", 512, np.uint8)
    assert ws.memory_usage().buffers["x"] == (KIB, KIB, 2 * KIB, 1), "one is still viewed"
    with pytest.raises(OutOfMemoryError, match="3.5 KiB of its limit of 4 KiB are held"):
        ws.get("z", KIB, np.uint8)
    seen.clear()
    ws.get("z", KIB, np.uint8)
    assert ws.memory_usage().held == 2 * KIB + 512
    assert np.shares_memory(mine, ws.get("x", KIB, np.uint8))


def test_eight_threads_compute_in_one_workspace(cpu):
    ws = Workspace("cpu")

    def work(value: int) -> None:
        for size in range(1, 300):
            array = ws.get("x", size * 7, np.int64)
            array[:] = value
            assert (array == value).all(), "another thread wrote here"

    in_threads(work, range(8))
    assert ws.memory_usage().held == ws.memory_usage().capacity


def test_planted_fault_one_buffer_for_all_threads_is_caught(cpu, monkeypatch):
    monkeypatch.setattr(workspace, "_thread", SimpleNamespace(
        number=0, life=workspace._thread.life))
    ws = Workspace("cpu")
    mine = ws.get("x", 10, np.uint8)
    found = []
    thread = threading.Thread(target=lambda: found.append(ws.get("x", 10, np.uint8)))
    thread.start()
    thread.join()
    assert np.shares_memory(mine, found[0])


@pytest.fixture
def at_growth(cpu):
    """Runs something in the middle of the growth of buffer "a", which is answered."""

    def run(ws, act):
        ws.get("a", 1 << 20, np.uint8)
        mark = memory.on_watermark(
            memory.arena_of(cpu).allocated + (2 << 20), lambda live: act(), cpu)
        try:
            return ws.get("a", 8 << 20, np.uint8)
        finally:
            mark.remove()

    return run


def test_a_watermark_may_use_the_workspace_whose_buffer_grows(at_growth):
    ws, inner = Workspace("cpu"), []
    outer = at_growth(ws, lambda: inner.append(ws.get("a", 100, np.uint8)))
    assert outer.shape == (8 << 20,) and inner[0].shape == (100,)
    assert not np.shares_memory(outer, inner[0])
    assert np.shares_memory(outer, ws.get("a", 100, np.uint8))
    ws.release()


def test_a_watermark_may_release_the_workspace_whose_buffer_grows(at_growth):
    ws = Workspace("cpu")
    outer = at_growth(ws, ws.release)
    assert np.shares_memory(outer, ws.get("a", 100, np.uint8))
    assert ws.memory_usage().held == 8 << 20

    def fail():
        ws.release()
        raise ArithmeticError("of the callback")

    ws.release()
    del outer
    with pytest.raises(ArithmeticError, match="of the callback"):
        at_growth(ws, fail)
    assert ws.memory_usage().held == 1 << 20


def test_release_and_the_end_of_the_block_free_all(cpu):
    before = memory.stats("cpu").allocated
    with Workspace("cpu") as ws:
        kept = ws.get("x", 1000, np.uint8)
        kept[:] = 9
        ws.get("y", 1000, np.uint8)
        assert memory.stats("cpu").allocated == before + 2048
    assert ws.memory_usage() == ({}, 0, 0, 0, 0)
    assert memory.stats("cpu").allocated == before + 1024 and (kept == 9).all()
    ws.get("x", 10, np.uint8)
    assert ws.allocations == 3
    ws.release()
    del kept
    assert memory.stats("cpu").allocated == before


def test_timelines_show_the_category(cpu):
    with memory.timeline(device="cpu") as timeline:
        Workspace("cpu").get("columns", 1000, np.uint8)
    event = timeline.events[0]
    assert (event.category, event.label) == ("workspace", "workspace columns")


def test_nonsense_is_refused(cpu):
    ws = Workspace("cpu")
    for call in (lambda: ws.get("x", (2, -1), np.uint8), lambda: ws.ensure_capacity("x", -1),
                 lambda: Workspace("cpu", limit=-1)):
        with pytest.raises(ValueError, match="wanted"):
            call()
    for shape in (2.0, (2, 1.5), None, "ab"):
        with pytest.raises(TypeError, match="wanted an integer, or several"):
            ws.get("x", shape, np.uint8)
    assert ws.memory_usage().buffers == {}

"""The public functions of `gt.memory` on the CPU device, with NumPy arrays over its blocks."""

from __future__ import annotations

import gc
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from gtensor import memory
from gtensor.backend import get_device
from gtensor.memory import Arena, HostSegments, Stats
from gtensor.memory.contract.report import size_text, summary_text
from gtensor.settings import settings

MIB = 1 << 20


@pytest.fixture
def cpu():
    """The CPU device with no cached memory, no limit, and all arrays in the arena."""
    gc.collect()
    memory.empty_cache("cpu")
    memory.reset_peak("cpu")
    with settings.override(arena_min_bytes=0):
        yield get_device("cpu")
    memory.set_limit(None, "cpu")


def test_arrays_hold_their_data_while_others_come_and_go(cpu):
    rng = np.random.default_rng(0)
    live = {}
    for step in range(400):
        if live and rng.random() < 0.45:
            key = list(live)[rng.integers(len(live))]
            array, value = live.pop(key)
            assert (array == value).all()
            del array
        else:
            array = cpu.empty((int(rng.integers(1, 200)), int(rng.integers(1, 300))), "float32")
            array[...] = step
            live[step] = array[::2, 1:] if step % 3 else array, step  # views keep the block
            del array
    for array, value in live.values():
        assert (array == value).all()


def test_the_last_view_frees_the_block(cpu):
    before = memory.stats("cpu").allocated
    array = cpu.empty((256, 1024), np.float32, "made here")
    assert array.ctypes.data % 64 == 0
    assert memory.stats("cpu").allocated == before + MIB
    view = array.T[3:4]
    del array
    assert memory.stats("cpu").allocated == before + MIB
    del view
    assert memory.stats("cpu").allocated == before


def test_arrays_outlive_their_arena():
    arena = Arena(HostSegments())
    block = arena.allocate(4096)
    block.__array_interface__ = {
        "version": 3, "data": (block.ptr, False), "shape": (4096,), "typestr": "|u1"}
    array = np.asarray(block)
    del arena, block
    gc.collect()
    array[:] = 7
    assert array.sum() == 7 * 4096


def test_the_functions_reach_the_devices_arena(cpu):
    array = cpu.empty((MIB,), np.uint8, "made here")
    assert memory.stats("cpu").allocated >= MIB
    found = memory.stats(cpu)
    assert replace(found, replaced=0) == memory.arena_of("cpu").stats()
    text = memory.summary(cpu)
    assert text.startswith("memory of cpu\n") and "made here" in text and "no limit" in text
    assert " that a stream may " not in text and " of another stream" not in text
    memory.set_limit(memory.stats(cpu).reserved, "cpu")
    with pytest.raises(memory.OutOfMemoryError, match="out of memory on cpu"):
        cpu.empty((64 * MIB,), np.uint8)
    memory.set_limit(None, "cpu")
    del array
    memory.empty_cache(cpu)
    memory.reset_peak(cpu)
    stats = memory.stats("cpu")
    assert stats.peak_allocated == stats.allocated


def test_the_summary_says_what_streams_hold_back_and_lend():
    plain = Stats(allocated=MIB, reserved=2 * MIB, active=MIB, peak_allocated=MIB,
                  peak_reserved=2 * MIB, hits=3, misses=1, segments=1, fragmentation=0.25)
    text = summary_text("cuda:0", plain, 4 * MIB, [])
    assert text.splitlines()[3:] == [
        "  reserved   2 MiB  2 MiB  1 segment",
        "  limit 4 MiB, 1 MiB kept for later arrays, 768 KiB of it in one piece",
        "  4 requests, 3 of them served from free memory (75.0%)"]
    text = summary_text("cuda:0", replace(plain, pending=512, borrowed=1), None, [])
    assert text.splitlines()[-2:] == [
        "  512 B freed that a stream may still be using",
        "  1 block so far cut from another stream's memory"]
    empty = replace(plain, allocated=0, active=0, reserved=0, hits=0, misses=0)
    assert summary_text("cuda:0", empty, None, []).splitlines()[-2:] == [
        "  no limit, 0 B kept for later arrays",
        "  0 requests, 0 of them served from free memory"]


def test_unknown_devices_are_named():
    with pytest.raises(ValueError, match="'tpu' given"):
        memory.stats("tpu")


def test_use_arena_as_a_block_and_as_a_call(cpu):
    arena = memory.arena_of(cpu)
    assert cpu.resource is arena
    with memory.use_arena(False):
        assert cpu.resource is None
        plain = cpu.empty((MIB,), np.uint8)
        with memory.use_arena(True):
            assert cpu.resource is arena
        assert cpu.resource is None
    assert plain.base is None and cpu.resource is arena
    memory.use_arena(False)
    assert cpu.resource is None
    memory.use_arena(True)
    assert cpu.resource is arena


def test_a_timeline_has_the_events_in_order(cpu):
    old = cpu.empty((2 * MIB,), np.uint8, "before")
    start = memory.stats(cpu).allocated
    with memory.timeline(device=cpu) as timeline:
        with memory.category("parameters"):
            weight = cpu.empty((MIB,), np.uint8, "linear")
        x = cpu.empty((MIB // 2,), np.uint8, "relu")
        del old
        del weight
        with memory.use_arena(False):
            assert cpu.resource is None
        assert cpu.resource is timeline
    del x  # after the end: not recorded, but freed
    assert [(e.delta, e.allocated - start, e.label, e.category) for e in timeline.events] == [
        (MIB, MIB, "linear", "parameters"),
        (MIB // 2, MIB * 3 // 2, "relu", ""),
        (-MIB, -MIB * 3 // 2, "linear", "parameters"),
    ]
    times = [event.time for event in timeline.events]
    assert times == sorted(times) and 0 <= times[0] < 60
    assert timeline.events[0].serial == timeline.events[2].serial != timeline.events[1].serial
    assert cpu.resource is memory.arena_of(cpu)
    assert memory.stats(cpu).allocated == start - 2 * MIB


def test_a_timeline_keeps_the_latest_events(cpu):
    with memory.timeline(device=cpu, most=4) as timeline:
        for i in range(10):
            cpu.empty((1000,), np.uint8, f"op{i}")
    assert [event.label for event in timeline.events] == ["op8", "op8", "op9", "op9"]
    assert timeline.recorded == 20


def test_a_timeline_needs_the_arena(cpu):
    with (memory.use_arena(False), pytest.raises(RuntimeError, match="is switched off"),
          memory.timeline(device=cpu)):
        pass


@pytest.mark.parametrize(("nbytes", "text"), [
    (0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (1536, "1.5 KiB"), (1023 * 1024, "1023 KiB"),
    (MIB, "1 MiB"), (3 * MIB + 600_000, "3.572 MiB"), (1 << 40, "1 TiB"), (5 << 50, "5120 TiB")])
def test_sizes_are_said_with_binary_units(nbytes, text):
    assert size_text(nbytes) == text


def test_blocks_alive_at_the_end_of_the_program_do_no_harm():
    program = """
import numpy as np
from gtensor import memory
from gtensor.backend import get_device
array = get_device("cpu").empty((1 << 20,), np.uint8)
array[:] = 1
keep = [array]
keep.append(keep)
class AtTheEnd:
    array = array
    def __del__(self):
        assert self.array[0] == self.array[-1] == 1
np.at_the_end = AtTheEnd()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_limit_may_be_a_text(cpu):
    memory.set_limit("64 MiB", "cpu")
    assert memory.arena_of("cpu").limit == 64 * MIB
    for wrong, kind in (("lots", ValueError), ("8XB", ValueError), (-1, ValueError),
                        (1.5, ValueError), ("0%", ValueError), ("x%", ValueError),
                        ([], TypeError)):
        with pytest.raises(kind, match="wanted"):
            memory.set_limit(wrong, "cpu")
    assert memory.arena_of("cpu").limit == 64 * MIB

"""Captures that fail, are interrupted or refused: one sentence, and everything as before."""

from __future__ import annotations

import gc
import itertools
from pathlib import Path
from types import GeneratorType

import pytest

import gtensor as gt
from gtensor import memory
from gtensor.memory import HostSegments
from gtensor.memory.arena.graphs import GraphPool

from ..interrupts import interrupt_after
from ..invariants import check
from ..simulated_cuda import IllegalInCapture, SimulatedCuda, connect
from . import test_graphs
from .test_graphs import MIB, blocks, captured, doubled, value

device = test_graphs.device


def capture_nothing(graph):
    with graph.capture():
        pass


@pytest.mark.parametrize("error", [ValueError("mine"), KeyboardInterrupt()])
def test_an_error_in_the_block_ends_the_capture_and_leaks_nothing(device, error):
    x = device.full(1.0)
    graph = gt.Graph(device)
    with pytest.raises(type(error)), graph.capture():
        half = device.add(x, x)
        raise error
    error.__traceback__ = None
    assert device.resource is device.arena and not device.streams.captures
    assert len(device.stack) == 1 and not device._ordering.captures
    with pytest.raises(RuntimeError, match="has captured nothing"):
        graph.replay()
    del half
    check(device.arena, blocks(x))
    with graph.capture():
        y = doubled(device, x)
    graph.replay()
    assert value(device, y) == 4.0
    assert device.arena.stats().private == 8 * MIB, "the second try did not have the first's bytes"


@pytest.mark.thorough
def test_an_interrupt_in_a_capture_or_a_replay_leaves_all_whole(monkeypatch):
    for work, stride in ((capture_nothing, 1), (captured_and_replayed, 251)):
        for place in itertools.count(1, stride):
            device = connect(SimulatedCuda(), monkeypatch)
            graph = gt.Graph(device)
            if not interrupt_after(
                    place, lambda work=work, graph=graph: work(graph), sample=stride > 1):
                break
            close_generators()
            assert device.resource is device.arena and not device.arena._orders.capturing
            assert not device.streams.captures and not device._ordering.captures
            assert device.arena._large.keys() <= {device.current_stream().id}
            again, y = captured(device, device.full(2.0), pool=graph.pool)
            again.replay()
            assert value(device, y) == 8.0
            held = sorted(chunk.ptr for pool in device.arena._segments.pools.all()
                          for chunk in pool.live())
            assert len(set(held)) == len(held)
        assert place > 50


def close_generators():
    """What Python does when nothing holds a `with` block's generator; a tracer holds its frame.

    Those of the host device hold the folders in which other threads compile.
    """
    for thing in (*gc.get_objects(0), *gc.get_objects(1)):
        if isinstance(thing, GeneratorType) and not thing.gi_running and (
                Path(thing.gi_code.co_filename).parent.name in ("arena", "backend", "execution")):
            thing.close()


def captured_and_replayed(graph):
    device = graph._device
    x = device.full(1.0)
    with graph.capture():
        doubled(device, x)
    graph.replay()


def test_what_waits_for_the_device_breaks_the_capture(device):
    x = device.full(1.0)
    with pytest.raises(IllegalInCapture, match="the host waited"), gt.Graph(device).capture():
        device.add(x, x)
        device.current_stream().synchronize()
    check(device.arena, blocks(x))


class Small(HostSegments):
    """A source with room for two segments, which come and go whole."""

    left = 2
    part = 0

    def acquire(self, nbytes):
        if not self.left:
            raise MemoryError("the device is full")
        self.left -= 1
        return super().acquire(nbytes)

    def release(self, ptr, nbytes):
        self.left += 1
        super().release(ptr, nbytes)


def test_out_of_memory_in_a_capture_gives_nothing_back_and_says_why(monkeypatch):
    device = connect(SimulatedCuda(Small()), monkeypatch)
    x, large = device.full(1.0), device.arena.allocate(40 * MIB, device.current_stream().id)
    del large  # free, but to be given back only after the capture
    graph = gt.Graph(device)
    with pytest.raises(memory.OutOfMemoryError, match="the device is full; nothing is released or "
                       "waited for while a graph is captured"), graph.capture():
        assert memory.empty_cache(device) == 0
        device.add(x, x)
    held = device.arena.allocate(80 * MIB, device.current_stream().id)
    with pytest.raises(memory.OutOfMemoryError, match="the device is full; 80 MiB are live"):
        device.arena.allocate(80 * MIB, device.current_stream().id)
    del held
    assert memory.empty_cache(device) == 80 * MIB
    with graph.capture():
        y = doubled(device, x)
    graph.replay()
    assert value(device, y) == 4.0
    check(device.arena, blocks(x, y))


def test_what_makes_no_sense_is_refused_in_one_sentence(device):
    x = device.full(1.0)
    graph, y = captured(device, x)
    with pytest.raises(RuntimeError, match="a second time; wanted a new gt.Graph"):
        capture_nothing(graph)
    other = gt.Graph(device)
    with other.capture():
        with pytest.raises(RuntimeError, match="begun within another capture"):
            capture_nothing(gt.Graph(device))
        with pytest.raises(RuntimeError, match="replayed within a capture"):
            graph.replay()
        with pytest.raises(RuntimeError, match="planned or captured"):
            memory.configure("host", device)
        for switch in (lambda: memory.use("arena", device), lambda: memory.use_arena(False)):
            with pytest.raises(RuntimeError, match="switched while a graph is captured"):
                switch()
        z = device.add(x, y)
        with device.new_stream():
            with pytest.raises(RuntimeError, match="wanted all work of the capture on its own"):
                device.full(1.0)
            with pytest.raises(RuntimeError, match="wanted it on that stream, or after"):
                device.order((z,))
    other.replay()
    assert value(device, z) == value(device, y) + 1
    elsewhere = SimulatedCuda().arena.graph_pool()
    with pytest.raises(ValueError, match="wanted one of the arena that cuda:0 uses now"):
        gt.Graph(device, pool=elsewhere)


def test_of_two_captures_that_begin_at_once_one_is_refused(device, monkeypatch):
    """Another thread's begins when this one has been found to stand alone."""
    first, second = gt.Graph(device), gt.Graph(device)
    other, real = first.capture(), GraphPool.capturing

    def capturing(pool, *streams):
        if pool is second.pool:
            other.__enter__()
        return real(pool, *streams)

    monkeypatch.setattr(GraphPool, "capturing", capturing)
    with pytest.raises(RuntimeError, match="begun within another capture"):
        capture_nothing(second)
    x = device.full(1.0)
    other.__exit__(None, None, None)
    assert device.resource is device.arena and blocks(x)[0] in first.pool.blocks


def test_only_cuda_devices_have_graphs():
    with pytest.raises(gt.DeviceError, match="a graph on cpu was asked for"):
        gt.Graph("cpu")


def test_steps_that_repeat_and_captures_keep_apart(device):
    x = device.full(1.0)
    with memory.record(device) as recording:
        device.add(x, x)
        with pytest.raises(RuntimeError, match="begun within a recording"):
            capture_nothing(gt.Graph(device))
    plan = recording.plan()
    with memory.planned(plan, device):
        device.add(x, x)
        with pytest.raises(RuntimeError, match="begun within a planned step"):
            capture_nothing(gt.Graph(device))
    with (pytest.raises(RuntimeError, match="planned step was begun within a capture"),
          gt.Graph(device).capture(), memory.planned(plan, device)):
        pass
    assert device.resource is device.arena


def test_a_graph_needs_its_arena_in_use(device):
    graph = gt.Graph(device)
    device.resource = None
    with pytest.raises(RuntimeError, match="is switched off; wanted it in use"):
        capture_nothing(graph)

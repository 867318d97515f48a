"""Wrong input to `gt.memory` is named in one sentence, and nothing has changed by then."""

from __future__ import annotations

import os
import re

import numpy as np
import pytest
from simulated import SimulatedSegments

import gtensor as gt
from gtensor import memory
from gtensor.backend import get_device


@pytest.fixture
def cpu():
    with gt.settings.override(arena_min_bytes=0):
        yield get_device("cpu")
    memory.set_limit(None, "cpu")


def test_a_device_is_a_name(cpu):
    for ask in (memory.stats, memory.summary, memory.empty_cache, gt.stream, gt.Event, gt.Graph):
        with pytest.raises(TypeError, match="device(=| )3.*; wanted .*'cpu'"):
            ask(3)


@pytest.mark.parametrize(("limit", "error", "sentence"), [
    (True, TypeError, "True was given; wanted bytes as an integer"),
    ("0.5", ValueError, "size '0.5' given; wanted bytes above 0"),
    (1e9, ValueError, "up to 1, or bytes as an integer")])
def test_a_limit_that_is_none_leaves_the_limit(cpu, limit, error, sentence):
    memory.set_limit(1 << 30, "cpu")
    with pytest.raises(error, match=sentence):
        memory.set_limit(limit, "cpu")
    assert memory.arena_of("cpu").limit == 1 << 30


@pytest.mark.parametrize("callback", [None, 3])
def test_a_watermark_wants_a_function(cpu, callback):
    with pytest.raises(TypeError, match=f"callback={callback}; wanted a function"):
        memory.on_watermark(0, callback, "cpu")
    assert gt.zeros((10,), device="cpu").shape == (10,)  # no callback is called


@pytest.mark.parametrize("name", ["nowhere/run.html", "folder.html", "nowhere/run.png"])
def test_a_timeline_says_at_once_that_its_file_cannot_be_written(cpu, tmp_path, name):
    (tmp_path / "folder.html").mkdir()
    ran = []
    with pytest.raises(OSError, match=re.escape(f"{name} could not be written: ")), \
            memory.timeline(tmp_path / name, "cpu"):
        ran.append(True)
    assert not ran and cpu.resource is memory.arena_of("cpu")


def test_a_timeline_into_a_folder_of_others(cpu, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(PermissionError, match="is not writable"), \
            memory.timeline(tmp_path / "run.json", "cpu"):
        pass


@pytest.mark.parametrize(("most", "error"), [(-1, ValueError), ("a", TypeError), (1.5, TypeError)])
def test_a_timeline_keeps_a_number_of_events(cpu, most, error):
    with pytest.raises(error, match=re.escape(f"most={most!r}") + ".*; wanted .*integer"), \
            memory.timeline(device="cpu", most=most):
        pass
    assert cpu.resource is memory.arena_of("cpu")


@pytest.mark.parametrize("plan", [None, 3])
def test_a_planned_step_wants_a_plan(cpu, plan):
    with pytest.raises(TypeError, match=f"plan {plan} given; wanted one that a recording's"), \
            memory.planned(plan, "cpu"):
        pass


@pytest.mark.parametrize("array", [[1], 3, None])
def test_a_stream_uses_arrays(array):
    with pytest.raises(TypeError, match=f"^{type(array).__name__} given; wanted a tensor, or an"):
        memory.record_stream(array, 0)


def test_a_source_is_a_name(cpu):
    with pytest.raises(ValueError, match="source 'page' was given for cpu; wanted one of"):
        memory.configure("page", "cpu")


@pytest.mark.parametrize("dtype", [object, "V0", [("a", object)], [("a", "f4")], "M8[s]"])
def test_a_workspace_holds_numbers(cpu, dtype):
    ws = memory.Workspace("cpu")
    with pytest.raises(TypeError, match="given; wanted one of numbers"):
        ws.get("a", (2,), dtype)
    assert ws.allocations == 0 and ws.memory_usage().buffers == {}


@pytest.mark.parametrize(("amount", "error"), [
    ("5MB", TypeError), (1.5, TypeError), (True, TypeError), (-1, ValueError)])
def test_sizes_of_a_workspace_are_integers(cpu, amount, error):
    with pytest.raises(error, match=re.escape(f"a limit of {amount!r} was given; wanted ")):
        memory.Workspace("cpu", limit=amount)
    ws = memory.Workspace("cpu", limit=np.int64(1 << 20))
    with pytest.raises(error, match=re.escape(f"a capacity of {amount!r} was asked for workspace")):
        ws.ensure_capacity("a", amount)
    assert ws.allocations == 0


def test_the_ops_of_a_summary_add_up_to_what_is_allocated(cpu):
    arena = memory.Arena(SimulatedSegments(1 << 30))
    held = [arena.allocate(1000 * n + 1, 0, f"op{n}") for n in range(1, 20)]
    assert sum(holding.nbytes for holding in arena.holdings()) == arena.stats().allocated
    assert sum(block.size for block in held) == arena.stats().allocated

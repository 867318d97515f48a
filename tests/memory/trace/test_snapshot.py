"""Snapshot files: PyTorch's layout as its viewer reads it, plain JSON, and both read back."""

from __future__ import annotations

import copy
import gc
import json
import os
import pickle
import pickletools
import runpy
import sys
import threading
import warnings

import pytest

import gtensor as gt
from gtensor import memory
from gtensor.memory.arena.layout import FREE, LIVE, PENDING, Piece, SegmentLayout
from gtensor.memory.trace.export import save
from gtensor.memory.trace.lifetimes import History, Life
from gtensor.memory.trace.owners import objects_of
from gtensor.memory.trace.reading import SnapshotError, read_snapshot
from gtensor.memory.trace.snapshots import json_file, pickle_file, plain, torch_document
from tests.memory.trace.recordings import random_history, random_work, training

# What the viewer's JavaScript decodes; anything else ends in "UNKNOWN OPCODE".
VIEWER_OPCODES = {
    "APPENDS", "BINGET", "BININT", "BININT1", "BININT2", "EMPTY_DICT", "EMPTY_LIST", "FRAME",
    "LONG1", "LONG_BINGET", "MARK", "MEMOIZE", "PROTO", "SETITEMS", "SHORT_BINUNICODE", "STOP",
    "TUPLE2", "APPEND", "NEWFALSE", "BINPUT", "BINUNICODE", "EMPTY_TUPLE", "NEWTRUE", "NONE",
    "BINFLOAT", "TUPLE", "TUPLE1", "TUPLE3", "LONG_BINPUT", "LIST", "DICT", "SETITEM"}
VIEWER_STATES = {"active_allocated", "active_pending_free", "inactive"}


def rewind(document: dict, index: int) -> dict[int, dict]:
    """Walk the events backwards from the segments, as the viewer does; the blocks at the start.

    Asserts what it takes for granted: blocks tile their segments, no event is missing.
    """
    segments, blocks = {}, {}
    for segment in document["segments"]:
        assert segment["device"] == index
        segments[segment["address"]] = segment["total_size"]
        address = segment["address"]
        for block in segment["blocks"]:
            assert block["address"] == address, "blocks do not tile their segment"
            assert block["state"] in VIEWER_STATES
            assert set(block) >= {"size", "requested_size", "state", "frames"}
            if block["state"] != "inactive":
                blocks[address] = block
            address += block["size"]
        assert address == segment["address"] + segment["total_size"]
    for event in reversed(document["device_traces"][index]):
        address, action = event["addr"], event["action"]
        if action in ("alloc", "free_requested", "free_completed"):
            assert any(start <= address < start + size for start, size in segments.items())
        if action == "alloc":
            assert address in blocks, "a block is made that nobody knows"
            del blocks[address]
        elif action == "free_completed":
            assert address not in blocks, "a block is freed whose place is taken"
            blocks[address] = event
        elif action == "free_requested":
            assert address in blocks
        elif action == "segment_alloc":
            assert segments.pop(address) == event["size"]
        elif action == "segment_free":
            segments[address] = event["size"]
        else:
            assert action in ("oom", "snapshot")
    return blocks


@pytest.mark.parametrize("seed", range(6))
def test_events_lead_back_to_the_blocks_of_the_start(seed):
    history = random_history(seed)
    history.check()
    document = torch_document(history)
    assert document["device_traces"][0] == []
    start = rewind(document, 1)
    assert {block["op"] for block in start.values()} == {"old"} and len(start) == 20
    assert history.totals()[0] == sum(block["block_size"] for block in start.values())
    assert history.totals()[-1] == history.stats["allocated"] > 0
    actions = [event["action"] for event in document["device_traces"][1]]
    assert actions.count("oom") == 1 and actions[-1] == "snapshot"


@pytest.mark.parametrize("fault", [
    lambda d: d["segments"][0]["blocks"].pop(),
    lambda d: d["segments"][0]["blocks"][0].update(state="active_awaiting_free"),
    lambda d: d["device_traces"][1].pop(max(
        i for i, e in enumerate(d["device_traces"][1]) if e["action"] == "free_completed")),
    lambda d: d["segments"][0].update(device=0),
])
def test_the_walk_finds_planted_faults(fault):
    document = torch_document(random_history(1))
    rewind(copy.deepcopy(document), 1)
    fault(document)
    with pytest.raises(AssertionError):
        rewind(document, 1)


def test_the_pickle_is_what_the_viewer_decodes():
    data = pickle_file(random_history(2))
    assert {code.name for code, _, _ in pickletools.genops(data)} <= VIEWER_OPCODES
    document = pickle.loads(data)
    categories = {event["category"] for event in document["device_traces"][1]}
    assert "unknown" in categories, "without it the viewer fails"
    assert categories >= {"earlier", "saved", "temporary", "workspace", "data", "mine"}

    def plain_values(value):
        assert type(value) in (dict, list, tuple, str, int, float, bool, type(None)), value
        for child in (value.values() if type(value) is dict else
                      value if type(value) in (list, tuple) else ()):
            plain_values(child)

    plain_values(document)


@pytest.mark.parametrize("kind", ["trace_plot", "segment_plot"])
def test_pytorch_renders_it(kind, tmp_path, monkeypatch):
    path, page = tmp_path / "run.pickle", tmp_path / "out.html"
    save(path, random_history(3))
    monkeypatch.setattr(sys, "argv", ["_memory_viz", kind, str(path), "-o", str(page)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # torch.cuda imports the module itself
        runpy.run_module("torch.cuda._memory_viz", run_name="__main__")
    assert "add_local_files" in page.read_text() and page.stat().st_size > path.stat().st_size


def test_pytorch_counts_the_same_bytes():
    viewer = pytest.importorskip("torch.cuda._memory_viz")
    document = torch_document(random_history(4))
    text = viewer.segsum(copy.deepcopy(document))  # raises unless every byte is accounted for
    assert f"segments: {len(document['segments'])}\n" in text
    told = viewer.trace(document)
    assert "raise OutOfMemoryError # 1.0TiB requested" in told and "cudaMalloc(" in told


def test_a_block_that_a_stream_may_still_use_is_pending():
    segment = SegmentLayout(0, 3072, 7, [
        Piece(0, 1024, LIVE, 1000, "add"), Piece(1024, 512, PENDING, 512, "mul"),
        Piece(1536, 1536, FREE)])
    document = torch_document(History("cuda:0", [], [], segments=[segment]))
    found = document["segments"][0]
    assert [block["state"] for block in found["blocks"]] == [
        "active_allocated", "active_pending_free", "inactive"]
    assert (found["allocated_size"], found["active_size"], found["requested_size"]) == (
        1024, 1536, 1512)


@pytest.mark.parametrize("seed", range(4))
def test_both_forms_read_back_to_the_same_history(seed, tmp_path):
    history = random_history(seed, most=300)
    for suffix in (".json", ".pickle"):
        save(tmp_path / f"run{suffix}", history)
        found = read_snapshot(tmp_path / f"run{suffix}")
        assert found.times == pytest.approx(history.times, abs=2e-6)
        assert found.totals() == history.totals() and found.peak() == history.peak()
        assert sorted(map(repr, found.lives)) == sorted(map(repr, history.lives))
        assert found.segments == history.segments and found.stats == history.stats
        assert found.reserved() == history.reserved() and found.device == "cuda:1"
        assert found.marks == [mark._replace(time=pytest.approx(mark.time))
                               for mark in history.marks]


def test_a_snapshot_without_a_recording_has_the_present_holders(tmp_path):
    with gt.settings.override(arena_min_bytes=0):
        step = training()
        step()
        gc.collect()  # what other tests left is not freed in between
        memory.snapshot(tmp_path / "now.json", "cpu")
        total = memory.stats("cpu").allocated
    found = read_snapshot(tmp_path / "now.json")
    assert found.peak() == -1 and found.totals() == [total]
    weights = [life for life in found.lives if life.op == "weight"
               and life.category == "parameters" and life.module == "Net.rest.0"]
    assert [life.nbytes for life in weights] == [64 * 8 * 4]
    assert {"optimizer", "gradients"} <= {life.category for life in found.lives}


def test_a_snapshot_within_a_recording_has_its_events(tmp_path):
    with gt.settings.override(arena_min_bytes=0):
        step = training()
        with memory.timeline(device="cpu") as recording:
            step()
            memory.snapshot(tmp_path / "now.pickle", "cpu")
            events = recording.recorded
            step()
    found = read_snapshot(tmp_path / "now.pickle")
    assert len(found.times) == events < recording.recorded
    assert {life.category for life in found.live_at(events - 1)} >= {"parameters", "gradients"}


def test_a_full_disk_leaves_the_snapshot_that_was_there(tmp_path, monkeypatch):
    path = tmp_path / "now.json"
    memory.snapshot(path, "cpu")
    before = path.read_bytes()

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left on device; the file that was there is whole"):
        memory.snapshot(path, "cpu")
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["now.json"]


@pytest.mark.parametrize("name", ["run.svg", "run", "run.html", "run.pkl"])
def test_another_suffix_is_refused(name):
    with pytest.raises(ValueError, match=r"given; wanted a name ending in \.pickle or \.json"):
        memory.snapshot(name)


# -- untrusted files -------------------------------------------------------------------------------


class Attack:
    """Unpickling it makes a file."""

    def __init__(self, path) -> None:
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("protocol", range(2, 6))
def test_nothing_in_a_pickle_is_run(tmp_path, protocol):
    document = torch_document(random_history(0)) | {"more": Attack(tmp_path / "made")}
    path = tmp_path / "bad.pickle"
    path.write_bytes(pickle.dumps(document, protocol=protocol))
    with pytest.raises(SnapshotError, match="it wants to build .*mkdir, which a snapshot never"):
        read_snapshot(path)
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("suffix,write", [(".pickle", pickle_file), (".json", json_file)])
def test_truncated_and_garbled_files_get_one_sentence(tmp_path, suffix, write):
    data = write(random_history(0, events=60))
    path = tmp_path / f"bad{suffix}"
    for cut in range(0, len(data) - 1, max(1, len(data) // 60)):
        path.write_bytes(data[:cut])
        with pytest.raises(SnapshotError) as error:
            read_snapshot(path)
        assert str(error.value).startswith(f"{path} is no ") and "\n" not in str(error.value)
    refused = 0
    for place in range(0, len(data), max(1, len(data) // 150)):
        path.write_bytes(data[:place] + bytes([data[place] ^ 0x55]) + data[place + 1:])
        try:
            read_snapshot(path)  # a digit or a letter of a name may change unnoticed
        except SnapshotError:
            refused += 1
    assert refused > 20


@pytest.mark.parametrize("document,sentence", [
    ({}, "'format' is not"), ([], "'format' is not"),
    ({"format": "gtensor memory snapshot", "version": 9}, "of version 9; this gtensor reads 1"),
])
def test_other_documents_are_named(tmp_path, document, sentence):
    path = tmp_path / "other.json"
    path.write_text(json.dumps(document))
    with pytest.raises(SnapshotError, match=sentence):
        read_snapshot(path)


@pytest.mark.parametrize("change,sentence", [
    (lambda d: d["blocks"].pop(), "is lost: it makes or frees no block"),
    (lambda d: d["blocks"].append(d["blocks"][-1]), "does not belong to one block"),
    (lambda d: d["segments"][0]["pieces"].pop(), "do not tile it"),
    (lambda d: d["segments"][0]["pieces"][0].update(state="busy"), "is 'busy'; wanted 'free'"),
    (lambda d: d["segments"][0]["pieces"][0].update(size=512), "do not tile it"),
])
def test_facts_that_contradict_each_other_are_found(tmp_path, change, sentence):
    document = plain(random_history(5))
    change(document)
    path = tmp_path / "wrong.json"
    path.write_text(json.dumps(document))
    with pytest.raises(SnapshotError, match=sentence):
        read_snapshot(path)


def test_pytorchs_own_snapshots_are_read(tmp_path):
    frames = [{"name": "empty", "filename": "x.cpp", "line": 0},
              {"name": "forward", "filename": "net.py", "line": 12}]

    def event(action, addr, size, time):
        return {"action": action, "addr": addr, "size": size, "stream": 0, "frames": frames,
                "time_us": 1_700_000_000_000_000 + time}

    document = {"segments": [{
        "device": 0, "address": 0, "total_size": 4096, "stream": 0, "allocated_size": 1024,
        "active_size": 1024, "segment_type": "small", "blocks": [
            {"address": 0, "size": 1024, "requested_size": 1000, "state": "active_allocated",
             "frames": frames},
            {"address": 1024, "size": 3072, "requested_size": 0, "state": "inactive",
             "frames": []}]}],
        "device_traces": [[event("alloc", 1024, 2000, 0), event("free_requested", 1024, 2000, 5),
                           event("free_completed", 1024, 2000, 6)]],
        "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": ""}}
    path = tmp_path / "torch.pickle"
    path.write_bytes(pickle.dumps(document))
    found = read_snapshot(path)
    assert found.totals() == [1000, 3000, 1000] and found.times == pytest.approx([0, 6e-6])
    assert {str(life.source) for life in found.lives} == {"net.py:12 (forward)"}
    assert found.live_at(0)[0].op == "empty"


def test_blocks_of_objects_that_are_frozen_are_counted_once(tmp_path):
    """A recording does not find their arrays; the segments of its end name them."""
    with gt.settings.override(arena_min_bytes=0):
        kept = gt.zeros((1 << 12,), device="cpu")
        gc.freeze()
        try:
            with memory.timeline(device="cpu") as timeline:
                gt.zeros((1 << 10,), device="cpu")
        finally:
            gc.unfreeze()
    assert timeline.unknown >= kept.nbytes
    timeline.save(tmp_path / "run.pickle")
    assert read_snapshot(tmp_path / "run.pickle").totals() == timeline.history().totals()


@pytest.mark.thorough
def test_bytes_of_which_nothing_is_known_are_kept(tmp_path):
    recording = random_work(0, events=20)
    recording.unknown = 4096
    recording.save(tmp_path / "run.pickle")
    found = read_snapshot(tmp_path / "run.pickle")
    assert [life for life in found.lives if not life.address] == [
        Life(0, 4096, 4096, 0, "", "", "earlier", None, None, None)]


def test_objects_are_found_while_another_thread_builds_a_tuple():
    """A tuple of a generator's items grows; CPython refuses that if the collector has shown it."""
    begun, looking, asked, errors = threading.Event(), threading.Event(), [], []

    class Hashed(type(gt.nn.Module)):
        def __hash__(cls):  # for the set of kinds, and for each object that is looked at
            asked.append(cls)
            if len(asked) == kinds + 1:
                looking.set()
                thread.join()
            return id(cls)

    kinds = sys.maxsize
    kind = Hashed("Module", (gt.nn.Module,), {})
    asked.clear()
    objects_of(gt.nn.Module)  # there is none of the kind
    kinds = len(asked)

    def items():
        yield from range(10)  # as many as a tuple has room for at first
        begun.set()
        looking.wait()
        yield from range(300)

    def build():
        try:
            tuple(items())
        except SystemError as error:
            errors.append(error)

    module, thread = kind(), threading.Thread(target=build)
    thread.start()
    begun.wait()
    asked.clear()
    try:
        assert any(thing is module for thing in objects_of(gt.nn.Module))
    finally:
        looking.set()
        thread.join()
    assert len(asked) > kinds and not errors

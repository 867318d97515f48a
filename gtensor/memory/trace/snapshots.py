"""Snapshot files: the layout of segments, the holders of blocks, and the recorded events.

The suffix selects one of two forms of the same facts.

`.pickle`: PyTorch's form, a dict of `segments` and `device_traces`, of plain Python values, which
`python -m torch.cuda._memory_viz trace_plot FILE -o out.html` and pytorch.org/memory_viz draw.
Facts that PyTorch's form lacks have keys of their own (`op`, `module`, `block_size`, the last
entry `gtensor`), which its viewer ignores.

`.json`: a dict of
    format, version   "gtensor memory snapshot", 1
    device            "cpu", "cuda:0"
    stats             the arena's counters in bytes or counts, see `gt.memory.Stats`; its limit
    times             seconds from the start of the recording, one per event; an event makes or
                      frees one block
    blocks            address, size (bytes held), nbytes (bytes requested), stream, op, module (the
                      dotted path), category, source (file, line, function; null if not recorded),
                      made, freed: numbers of events; null if before the first, or not yet
    marks             event (the number of the next event), time, name ("backward", "update" or
                      "out of memory"), begins (or ends), nbytes (requested when memory ran out)
    changes           segments acquired or released: event, time, taken (or released), address,
                      size, stream
    segments          address, size, stream (-1: it has ended; -2, -3, ...: the first, second, ...
                      pool for graphs), and pieces that tile them in address order: address,
                      size, state ("free", "live" or "pending": freed, but a stream may still use
                      it), nbytes, label, holder (the address of the block that it is a part of, 0
                      if it is the whole block), offset (its place in that block)
"""

from __future__ import annotations

import json
import pickle
import re
from operator import itemgetter
from typing import Any

from gtensor.memory.arena.layout import FREE, LIVE, Piece, SegmentLayout, graph_pool
from gtensor.memory.trace.lifetimes import OUT_OF_MEMORY, History, Life, SegmentChange, Source

FORMAT = "gtensor memory snapshot"
VERSION = 1
UNKNOWN = "unknown"  # PyTorch's viewer fails on categories without one of this name
STATES = {FREE: "inactive", LIVE: "active_allocated"}
PENDING_STATE = "active_pending_free"  # as the viewer spells it, and PyTorch writes it

Frames = list[dict[str, Any]]


def json_file(history: History) -> bytes:
    """The bytes of a `.json` file."""
    return json.dumps(plain(history)).encode()


def pickle_file(history: History) -> bytes:
    """The bytes of a `.pickle` file; the viewer reads protocols 2 to 4."""
    return pickle.dumps(torch_document(history), protocol=4)


def plain(history: History) -> dict[str, Any]:
    """The history as the JSON document that this module describes."""
    return {
        "format": FORMAT, "version": VERSION, "device": history.device, "stats": history.stats,
        "times": [round(time, 9) for time in history.times],
        "blocks": [{
            "address": life.address, "size": life.size, "nbytes": life.nbytes,
            "stream": life.stream, "op": life.op, "module": life.module,
            "category": life.category, "source": life.source and life.source._asdict(),
            "made": life.made, "freed": life.freed} for life in history.lives],
        "marks": [mark._asdict() for mark in history.marks],
        "changes": [change._asdict() for change in history.changes],
        "segments": [{
            "address": segment.address, "size": segment.size, "stream": segment.stream,
            "pieces": [piece._asdict() for piece in segment.pieces]}
            for segment in history.segments],
    }


def torch_document(history: History) -> dict[str, Any]:
    """The history as PyTorch's snapshot: `segments` and `device_traces`."""
    number = re.fullmatch(r"\w+:(\d{1,3})", history.device)
    index = int(number[1]) if number else 0
    frames = _FrameTable()
    living = {life.address: life for life in history.lives if life.freed is None and life.address}
    # Blocks of objects that `gc.freeze()` hides from a recording: only the segments show them.
    hidden = sum(piece.nbytes for segment in history.segments for piece in segment.pieces
                 if piece.state == LIVE and piece.owner not in living)
    unknown = sum(life.size for life in history.lives if not life.address)
    return {
        "segments": [_segment(segment, index, living, frames) for segment in history.segments],
        "device_traces": [[] for _ in range(index)] + [_trace(history, frames)],
        "gtensor": {
            "version": VERSION, "device": history.device, "stats": history.stats,
            "marks": [mark._asdict() for mark in history.marks],
            "unknown": max(0, unknown - hidden)},
    }


class _FrameTable(dict[tuple[str, str, Source | None], Frames]):
    """The frames that the viewer shows of a block: op, module and the user's line. Shared lists."""

    def of(self, life: Life) -> Frames:
        return self[life.op, life.module, life.source]

    def __missing__(self, key: tuple[str, str, Source | None]) -> Frames:
        op, module, source = key
        frames = [{"filename": module or "gtensor", "line": 0, "name": op or "(no label)"}]
        if source is not None:
            frames.append({"filename": source.file, "line": source.line, "name": source.function})
        self[key] = frames
        return frames


def _segment(segment: SegmentLayout, index: int, living: dict[int, Life],
             frames: _FrameTable) -> dict[str, Any]:
    blocks = [_block(piece, living.get(piece.owner), frames) for piece in segment.pieces]
    held = [block for block in blocks if block["state"] != STATES[FREE]]
    allocated = sum(block["size"] for block in held if block["state"] == STATES[LIVE])
    return {
        "device": index, "address": segment.address, "total_size": segment.size,
        "stream": segment.stream, "segment_type": "large",
        "segment_pool_id": (0, graph_pool(segment.stream)), "is_expandable": False, "frames": [],
        "allocated_size": allocated,
        "active_size": sum(block["size"] for block in held),
        "requested_size": sum(block["requested_size"] for block in held), "blocks": blocks}


def _block(piece: Piece, life: Life | None, frames: _FrameTable) -> dict[str, Any]:
    block = {"address": piece.address, "size": piece.size, "requested_size": piece.nbytes,
             "state": STATES.get(piece.state, PENDING_STATE), "frames": []}
    if piece.state == LIVE and life is not None:
        block |= {"frames": frames.of(life), "op": life.op, "module": life.module,
                  "category": life.category, "block_size": life.size}
    elif piece.state != FREE:
        block |= {"frames": frames[piece.label, "", None], "op": piece.label}
    if piece.holder:
        block["holder"] = piece.holder
    return block


def _trace(history: History, frames: _FrameTable) -> list[dict[str, Any]]:
    between = [(mark.event, _entry("oom", mark.time, size=mark.nbytes, device_free=0))
               for mark in history.marks if mark.name == OUT_OF_MEMORY]
    between += map(_change, history.changes)
    between = sorted(between, key=itemgetter(0))[::-1]
    times = [int(time * 1e6) for time in history.times]
    entries: list[Any] = [None] * len(times)  # by event
    for life in history.lives:
        who = frames.of(life)
        if life.made is not None:
            entries[life.made] = (_block_entry("alloc", life, who, times[life.made]),)
        if life.freed is not None:
            entries[life.freed] = tuple(_block_entry(action, life, who, times[life.freed])
                                        for action in ("free_requested", "free_completed"))
    trace: list[dict[str, Any]] = []
    for number, of_event in enumerate(entries):
        while between and between[-1][0] <= number:
            trace.append(between.pop()[1])
        trace += of_event
    trace.extend(entry for _, entry in reversed(between))
    if trace:
        trace.append(_entry("snapshot", trace[-1]["time_us"] * 1e-6))
    return trace


def _block_entry(action: str, life: Life, frames: Frames, time: int) -> dict[str, Any]:
    return {"action": action, "addr": life.address, "size": life.nbytes, "stream": life.stream,
            "frames": frames, "category": life.category or UNKNOWN, "time_us": time,
            "op": life.op, "module": life.module, "block_size": life.size}


def _change(change: SegmentChange) -> tuple[int, dict[str, Any]]:
    return change.event, _entry("segment_alloc" if change.taken else "segment_free", change.time,
                                addr=change.address, size=change.size, stream=change.stream)


def _entry(action: str, time: float, **facts: int) -> dict[str, Any]:
    """An entry of the trace without a block."""
    return {"action": action, "addr": 0, "size": 0, "stream": 0, "frames": [],
            "category": UNKNOWN, "time_us": int(time * 1e6), **facts}

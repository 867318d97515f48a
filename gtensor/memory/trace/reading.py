"""Reads snapshot files from untrusted sources: runs no code, checks every value, escapes texts."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import Any

from gtensor.memory.arena.layout import FREE, LIVE, PENDING, Piece, SegmentLayout
from gtensor.memory.trace import plain_pickle
from gtensor.memory.trace.lifetimes import (
    OUT_OF_MEMORY,
    History,
    Life,
    Mark,
    SegmentChange,
    Source,
    unknown_life,
)
from gtensor.memory.trace.snapshots import FORMAT, STATES, UNKNOWN, VERSION
from gtensor.system.collector import collector_paused
from gtensor.system.documents import MOST_ADDRESS, Facts, seconds
from gtensor.system.files import MOST_SNAPSHOT_BYTES, open_regular, pieces, read_text, size_within

_PIECE_STATES = {STATES[FREE]: FREE, STATES[LIVE]: LIVE, "active_pending_free": PENDING,
                 "active_awaiting_free": PENDING}


class SnapshotError(ValueError):
    """A file that is no memory snapshot; the message says in one sentence what is wrong."""


def read_snapshot(path: str | PathLike[str]) -> History:
    """The history in a `.pickle` file (gtensor's or PyTorch's own) or a `.json` file.

    A pickle that names a class or a function is refused. Unprintable characters become "?". Raises
    SnapshotError if the file is no snapshot, is larger than `gtensor.system.files` allows, or has
    events that contradict each other, OSError if it cannot be read.
    """
    suffix = Path(path).suffix
    if suffix not in _READERS:
        raise SnapshotError(f"{path} given; wanted a snapshot whose name ends in .pickle or .json")
    descriptor = open_regular(path)
    try:
        with collector_paused():
            size = size_within(descriptor, MOST_SNAPSHOT_BYTES)
            history = _READERS[suffix](descriptor, size)
            history.check()
    except (ValueError, RecursionError) as error:
        raise SnapshotError(f"{path} is no memory snapshot: {error}") from None
    finally:
        os.close(descriptor)
    return history


_READERS: dict[str, Callable[[int, int], History]] = {
    ".json": lambda file, size: _from_plain(json.loads(read_text(file, 0, size).decode())),
    ".pickle": lambda file, size: _from_torch(plain_pickle.load(pieces(file, 0, size)))}


def _mark(row: Facts) -> Mark:
    return Mark(row.whole("event"), row.seconds("time"), row.text("name"), row.flag("begins"),
                row.whole("nbytes", 0, MOST_ADDRESS))


# -- gtensor's plain form --------------------------------------------------------------------------


def _from_plain(document: object) -> History:
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ValueError(f"its 'format' is not {FORMAT!r}")
    whole = Facts("the snapshot", document)
    if (version := whole.whole("version")) != VERSION:
        raise ValueError(f"it is of version {version}; this gtensor reads {VERSION}")
    return History(
        whole.text("device"), [seconds(time, "a time") for time in whole.many("times")],
        [_plain_life(row) for row in whole.each("blocks", "a block")],
        [_mark(row) for row in whole.each("marks", "a mark")],
        [SegmentLayout(row.address("address"), row.whole("size"), row.integer("stream"),
                       [_piece(piece) for piece in row.each("pieces", "a piece")])
         for row in whole.each("segments", "a segment")],
        [SegmentChange(row.whole("event"), row.seconds("time"), row.flag("taken"),
                       row.address("address"), row.whole("size"), row.integer("stream"))
         for row in whole.each("changes", "a change")],
        whole.numbers("stats"))


def _plain_life(row: Facts) -> Life:
    source = None
    if row.found.get("source") is not None:
        line = Facts("a source", row.found["source"])
        source = Source(line.text("file"), line.whole("line"), line.text("function"))
    return Life(row.address("address"), row.whole("size"), row.whole("nbytes"),
                row.integer("stream"), row.text("op"), row.text("module"), row.text("category"),
                source, row.event("made"), row.event("freed"))


def _piece(row: Facts) -> Piece:
    return Piece(row.address("address"), row.whole("size"), row.text("state"),
                 row.whole("nbytes", 0), row.text("label", ""), row.address("holder", 0),
                 row.whole("offset", 0))


# -- PyTorch's form --------------------------------------------------------------------------------


def _from_torch(document: object) -> History:
    if not isinstance(document, dict) or not {"segments", "device_traces"} <= document.keys():
        raise ValueError("it lacks 'segments' and 'device_traces'")
    whole = Facts("the snapshot", document)
    own = Facts("'gtensor' of the snapshot", document["gtensor"]) if "gtensor" in whole else None
    traces = whole.many("device_traces")
    if any(type(trace) is not list for trace in traces):
        raise ValueError("one of 'device_traces' is no list")
    segments = whole.each("segments", "a segment")
    index = max(range(len(traces)), key=lambda n: len(traces[n]), default=0)
    if not any(traces) and segments:
        index = segments[0].whole("device", 0)
    trace = _Trace(traces[index] if index < len(traces) else [], since_start=own is not None)
    segments = [segment for segment in segments if segment.whole("device", 0) == index]
    layouts = []
    for segment, blocks in zip(segments, _blocks(segments), strict=True):
        trace.add_standing(segment, blocks)
        layouts.append(_segment(segment, blocks))
    if own is None:
        return History(f"cuda:{index}", trace.times, trace.lives, trace.marks, layouts,
                       trace.changes)
    if unknown := own.whole("unknown"):
        trace.lives.append(unknown_life(unknown))
    return History(own.text("device"), trace.times, trace.lives,
                   [_mark(row) for row in own.each("marks", "a mark")], layouts, trace.changes,
                   own.numbers("stats"))


def _blocks(segments: list[Facts]) -> list[list[Facts]]:
    """The blocks of each segment; refuses a pickle in which segments share one list."""
    if len({id(segment.many("blocks")) for segment in segments}) < len(segments):
        raise ValueError("two segments have one list of blocks")
    return [segment.each("blocks", "a block") for segment in segments]


class _Trace:
    """Lifetimes from a PyTorch trace, in which a free is two entries, or the second alone."""

    def __init__(self, entries: list[Any], since_start: bool) -> None:
        self.times: list[float] = []
        self.lives: list[Life] = []
        self.marks: list[Mark] = []
        self.changes: list[SegmentChange] = []
        self._open: dict[int, Life] = {}
        self._standing: dict[int, Life] = {}
        self._askers: dict[tuple[int, bool], tuple[str, Source | None]] = {}  # by id of frames
        rows = [Facts("an entry", entry) for entry in entries]
        first = 0 if since_start or not rows else rows[0].whole("time_us", 0)
        for number, row in enumerate(rows):
            time = (row.whole("time_us", number) - first) * 1e-6
            self._add(row, seconds(time, "a time"))

    def _add(self, row: Facts, time: float) -> None:
        action, number = row.text("action"), len(self.times)
        if action == "alloc":
            address = row.address("addr")
            life = self._open[address] = self._life(row, address, row.whole("size"))
            life.made = number
            self.lives.append(life)
            self.times.append(time)
        elif action == "free_completed":
            address = row.address("addr")
            freed = self._open.pop(address, None)
            if freed is None:  # made before the trace
                freed = self._life(row, address, row.whole("size"))
                self.lives.append(freed)
            freed.freed = number
            self.times.append(time)
        elif action == "oom":
            self.marks.append(Mark(number, time, OUT_OF_MEMORY, True,
                                   row.whole("size", most=MOST_ADDRESS)))
        elif action in ("segment_alloc", "segment_free", "segment_map", "segment_unmap"):
            self.changes.append(SegmentChange(
                number, time, action in ("segment_alloc", "segment_map"), row.address("addr"),
                row.whole("size"), row.integer("stream")))

    def add_standing(self, segment: Facts, blocks: list[Facts]) -> None:
        """Add the live blocks of a segment that were made before the trace."""
        address, stream = segment.address("address"), segment.integer("stream")
        for block in blocks:
            owner = block.address("holder", address)
            if block.text("state") == STATES[LIVE] and owner not in self._open:
                nbytes = block.whole("requested_size")
                known = self._standing.get(owner)
                if known is None:
                    self._standing[owner] = self._life(block, owner, nbytes, stream)
                    self.lives.append(self._standing[owner])
                else:  # another piece of it
                    known.nbytes += nbytes
                    known.size += 0 if "block_size" in block else nbytes
            address += block.whole("size")

    def _life(self, row: Facts, address: int, nbytes: int, stream: int | None = None) -> Life:
        """The block of a row; its op and line come from the frames if the row is PyTorch's."""
        own = "op" in row
        op, source = self._asker(row, own)
        category = row.text("category", UNKNOWN)
        if category == UNKNOWN and "action" not in row:
            category = "earlier"
        if stream is None or "stream" in row:
            stream = row.integer("stream")
        return Life(address, row.whole("block_size", nbytes), nbytes, stream,
                    row.text("op") if own else op, row.text("module", ""), category, source, None,
                    None)

    def _asker(self, row: Facts, own: bool) -> tuple[str, Source | None]:
        """The name in a row's first frame, and the user's line among its frames.

        Many rows share one list of frames, which is searched once.
        """
        frames = row.found.get("frames")
        if not frames:
            return "", None
        found = self._askers.get((id(frames), own))
        if found is None:
            rows = [Facts("a frame", frame) for frame in row.many("frames")]
            line = next((frame for frame in (rows[1:] if own else rows)
                         if own or frame.text("filename").endswith(".py")), None)
            source = None if line is None else Source(
                line.text("filename"), line.integer("line"), line.text("name"))
            found = self._askers[id(frames), own] = rows[0].text("name"), source
        return found


def _segment(segment: Facts, blocks: list[Facts]) -> SegmentLayout:
    pieces, address = [], segment.address("address")
    for block in blocks:
        state, size = block.text("state"), block.whole("size")
        state = _PIECE_STATES.get(state, state)
        nbytes = 0 if state == FREE else block.whole("requested_size", size)
        pieces.append(Piece(block.address("address", address), size, state, nbytes,
                            block.text("op", ""), block.address("holder", 0)))
        address += size
    return SegmentLayout(segment.address("address"), segment.whole("total_size"),
                         segment.integer("stream"), pieces)

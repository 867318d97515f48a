"""Snapshot files read back, without running anything that stands in them."""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Callable, Iterable
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from gtensor.memory.history import (
    OUT_OF_MEMORY,
    History,
    Life,
    Mark,
    SegmentChange,
    Source,
    unknown_life,
)
from gtensor.memory.layout import FREE, LIVE, PENDING, Piece, SegmentLayout
from gtensor.memory.snapshots import FORMAT, STATES, UNKNOWN, VERSION

_PIECE_STATES = {STATES[FREE]: FREE, STATES[LIVE]: LIVE, "active_pending_free": PENDING,
                 "active_awaiting_free": PENDING}
# What a document of another shape, or a pickle that is none, raises somewhere on the way.
_WRONG = (KeyError, IndexError, TypeError, ValueError, AttributeError, EOFError, OverflowError,
          RecursionError, pickle.UnpicklingError)


class SnapshotError(ValueError):
    """A file that is no memory snapshot; the message says what it is instead, in one sentence."""


class _PlainUnpickler(pickle.Unpickler):
    """Builds numbers, texts and containers, and nothing that has a name."""

    def find_class(self, module: str, name: str) -> Any:
        raise SnapshotError(f"it wants to build {module}.{name}, which a snapshot never does, so "
                            "it was not read further")

    def persistent_load(self, pid: Any) -> Any:
        raise SnapshotError("it refers to objects outside of it, which a snapshot never does")


def read_snapshot(path: str | PathLike[str]) -> History:
    """The history in a `.pickle` file (gtensor's or PyTorch's own) or a `.json` file.

    Nothing in the file is run: a pickle that names a class or a function is refused. Raises
    SnapshotError if it is no snapshot or tells of events that contradict each other, OSError if it
    cannot be read.
    """
    suffix = Path(path).suffix
    if suffix not in (".pickle", ".json"):
        raise SnapshotError(f"{path} given; wanted a snapshot whose name ends in .pickle or .json")
    data = Path(path).read_bytes()
    try:
        if suffix == ".json":
            history = _from_plain(json.loads(data))
        else:
            history = _from_torch(_PlainUnpickler(io.BytesIO(data)).load())
        history.check()
    except SnapshotError as error:
        raise SnapshotError(f"{path} is no memory snapshot: {error}") from None
    except _WRONG as error:
        told = str(error) if type(error) is ValueError else f"{type(error).__name__}: {error}"
        raise SnapshotError(f"{path} is no whole memory snapshot ({told})") from error
    return history


Row = TypeVar("Row", bound=NamedTuple)


def _rows(kind: Callable[..., Row], documents: Iterable[dict[str, Any]]) -> list[Row]:
    return [kind(**document) for document in documents]


def _from_plain(document: Any) -> History:
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise SnapshotError(f"its 'format' is not {FORMAT!r}")
    if document["version"] != VERSION:
        raise SnapshotError(f"it is of version {document['version']}; this gtensor reads {VERSION}")
    lives = [Life(**{**block, "source": block["source"] and Source(**block["source"])})
             for block in document["blocks"]]
    segments = [SegmentLayout(segment["address"], segment["size"], segment["stream"],
                              _rows(Piece, segment["pieces"])) for segment in document["segments"]]
    return History(document["device"], document["times"], lives, _rows(Mark, document["marks"]),
                   segments, _rows(SegmentChange, document["changes"]), document["stats"])


def _from_torch(document: Any) -> History:
    if not isinstance(document, dict) or not {"segments", "device_traces"} <= document.keys():
        raise SnapshotError("it lacks 'segments' and 'device_traces'")
    own = document.get("gtensor", {})
    traces = document["device_traces"]
    index = max(range(len(traces)), key=lambda n: len(traces[n]), default=0)
    if not any(traces) and document["segments"]:
        index = document["segments"][0].get("device", 0)
    trace = _Trace(traces[index] if index < len(traces) else [], since_start=bool(own))
    segments = [segment for segment in document["segments"] if segment.get("device", 0) == index]
    for segment in segments:
        trace.add_standing(segment)
    if own.get("unknown"):
        trace.lives.append(unknown_life(own["unknown"]))
    marks = _rows(Mark, own["marks"]) if own else trace.marks
    return History(own.get("device", f"cuda:{index}"), trace.times, trace.lives, marks,
                   [_layout(segment) for segment in segments], trace.changes, own.get("stats", {}))


class _Trace:
    """Lifetimes out of a PyTorch trace, in which a free is two entries, or the second alone."""

    def __init__(self, entries: list[dict[str, Any]], since_start: bool) -> None:
        self.times: list[float] = []
        self.lives: list[Life] = []
        self.marks: list[Mark] = []
        self.changes: list[SegmentChange] = []
        self._open: dict[int, Life] = {}
        self._standing: dict[int, Life] = {}
        first = 0 if since_start or not entries else entries[0].get("time_us", 0)
        for number, entry in enumerate(entries):
            self._add(entry, (entry.get("time_us", number) - first) * 1e-6)

    def _add(self, entry: dict[str, Any], time: float) -> None:
        action, number = entry["action"], len(self.times)
        if action == "alloc":
            life = self._open[entry["addr"]] = _life(entry, entry["addr"], entry["size"])
            life.made = number
            self.lives.append(life)
            self.times.append(time)
        elif action == "free_completed":
            freed = self._open.pop(entry["addr"], None)
            if freed is None:  # made before the trace
                freed = _life(entry, entry["addr"], entry["size"])
                self.lives.append(freed)
            freed.freed = number
            self.times.append(time)
        elif action == "oom":
            self.marks.append(Mark(number, time, OUT_OF_MEMORY, True, entry["size"]))
        elif action in ("segment_alloc", "segment_free", "segment_map", "segment_unmap"):
            self.changes.append(SegmentChange(number, time, action in (
                "segment_alloc", "segment_map"), entry["addr"], entry["size"], entry["stream"]))

    def add_standing(self, segment: dict[str, Any]) -> None:
        """The blocks that are live in a segment and were there before the trace."""
        address = segment["address"]
        for block in segment["blocks"]:
            owner = block.get("holder", address)
            if block["state"] == STATES[LIVE] and owner not in self._open:
                nbytes = block["requested_size"]
                known = self._standing.get(owner)
                if known is None:
                    block = {"stream": segment["stream"], **block}
                    self._standing[owner] = _life(block, owner, nbytes)
                    self.lives.append(self._standing[owner])
                else:  # another piece of it
                    known.nbytes += nbytes
                    known.size += 0 if "block_size" in block else nbytes
            address += block["size"]


def _life(entry: dict[str, Any], address: int, nbytes: int) -> Life:
    """A block as an entry tells of it; ops and lines out of the frames if it is PyTorch's own."""
    frames = entry.get("frames") or []
    op, module = entry.get("op"), entry.get("module", "")
    lines = frames[1:] if op is not None else [
        frame for frame in frames if frame["filename"].endswith(".py")]
    if op is None:
        op = frames[0]["name"] if frames else ""
    source = Source(lines[0]["filename"], lines[0]["line"], lines[0]["name"]) if lines else None
    category = entry.get("category", UNKNOWN)
    return Life(address, entry.get("block_size", nbytes), nbytes, entry["stream"], op, module,
                "earlier" if category == UNKNOWN and "action" not in entry else category, source,
                None, None)


def _layout(segment: dict[str, Any]) -> SegmentLayout:
    pieces, address = [], segment["address"]
    for block in segment["blocks"]:
        state = _PIECE_STATES.get(block["state"], block["state"])
        nbytes = 0 if state == FREE else block.get("requested_size", block["size"])
        pieces.append(Piece(block.get("address", address), block["size"], state, nbytes,
                            block.get("op", ""), block.get("holder", 0)))
        address += block["size"]
    return SegmentLayout(segment["address"], segment["total_size"], segment["stream"], pieces)

"""The lifetimes of blocks, each with its op, module and category.

A history comes from a recording or from a snapshot file. The pictures, the page and the tables of
`gtensor memory` read nothing else.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gtensor.memory.arena.layout import SegmentLayout, check_tiles

# In the order in which pictures stack them; the user's own categories are stacked on top.
CATEGORIES = {
    "parameters": "parameters and buffers of modules",
    "optimizer": "the optimizer's state, averaged weights",
    "data": "batches and data sets, where the program says so",
    "earlier": "made before the recording, use unknown",
    "gradients": "made in a backward pass, alive after it",
    "saved": "made in a forward pass, alive when the backward pass begins",
    "workspace": "work buffers of ops",
    "temporary": "all else, such as what is made and dropped within a pass",
}
_STANDING = {"parameters": "parameters", "optimizer": "optimizer state", "gradients": "gradients"}
OUT_OF_MEMORY = "out of memory"  # the name of a mark


class Source(NamedTuple):
    """The user's line that allocated."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} ({self.function})"


@dataclass(slots=True)
class Life:
    """A block: its bytes, its origin, and the events that made and freed it.

    `op` made it; if a module holds it, `op` is its name there ("weight"). `made` is None if it
    existed before the first event, `freed` is None if it still lives.
    """

    address: int
    size: int
    nbytes: int
    stream: int
    op: str
    module: str
    category: str
    source: Source | None
    made: int | None
    freed: int | None

    @property
    def holder(self) -> str:
        """The holder in words: the op and the module it ran in, or the network with the block."""
        if self.category in _STANDING and self.module:
            return f"{_STANDING[self.category]} of {self.module.partition('.')[0]}"
        who = f"{self.op or '(no label)'}{f' in {self.module}' if self.module else ''}"
        return who if self.op == self.category else f"{who}, {self.category}"


def unknown_life(nbytes: int) -> Life:
    """Bytes that were live before the first event and of which nothing else is known."""
    return Life(0, nbytes, nbytes, 0, "", "", "earlier", None, None, None)


class Mark(NamedTuple):
    """A phase or an error between two events: `event` is the number of the next one.

    `name` is a phase ("backward", "update") that begins or ends, or "out of memory", with the
    requested bytes.
    """

    event: int
    time: float
    name: str
    begins: bool
    nbytes: int = 0


class SegmentChange(NamedTuple):
    """A segment was acquired or released; `event` is the number of the next event.

    A release is noticed when the next segment is acquired, or at the end.
    """

    event: int
    time: float
    taken: bool
    address: int
    size: int
    stream: int


class Held(NamedTuple):
    """The bytes and blocks of one holder (an op, a module, a category ...) at one moment."""

    name: str
    size: int
    blocks: int


@dataclass
class History:
    """Lifetimes and events on one device; event k happened `times[k]` seconds from the start."""

    device: str
    times: list[float]
    lives: list[Life]
    marks: list[Mark] = field(default_factory=list)
    segments: list[SegmentLayout] = field(default_factory=list)
    changes: list[SegmentChange] = field(default_factory=list)
    stats: dict[str, Any] = field(default_factory=dict)

    def check(self) -> None:
        """Raise ValueError if an event is missing or doubled, or pieces do not tile a segment."""
        seen = bytearray(len(self.times))
        for life in self.lives:
            if life.made is not None and life.freed is not None and life.freed <= life.made:
                raise ValueError(f"the block at {life.address:#x} is freed by event {life.freed}, "
                                 f"before event {life.made} made it")
            for event in (life.made, life.freed):
                if event is None:
                    continue
                if not 0 <= event < len(seen) or seen[event]:
                    raise ValueError(f"event {event} of {len(seen)} does not belong to one block")
                seen[event] = 1
        if 0 in seen:
            raise ValueError(f"event {seen.index(0)} is lost: it makes or frees no block")
        for segment in self.segments:
            check_tiles(segment)

    @property
    def categories(self) -> list[str]:
        """The categories that occur, in the order in which pictures stack them."""
        found = dict.fromkeys(life.category for life in self.lives)
        return [*(name for name in CATEGORIES if name in found),
                *(name for name in found if name not in CATEGORIES)]

    def actors(self) -> list[Life]:
        """The block of each event."""
        acting: list[Any] = [None] * len(self.times)
        for life in self.lives:
            if life.made is not None:
                acting[life.made] = life
            if life.freed is not None:
                acting[life.freed] = life
        return acting

    def totals(self) -> list[int]:
        """Live bytes: before the first event, then after each."""
        live = sum(life.size for life in self.lives if life.made is None)
        found = [live]
        for event, life in enumerate(self.actors()):
            live += life.size if life.made == event else -life.size
            found.append(live)
        return found

    def reserved(self) -> list[tuple[int, int]]:
        """Bytes of all segments: (-1, at the start), then (event, from then on) at each change."""
        total = sum(segment.size for segment in self.segments) - sum(
            change.size if change.taken else -change.size for change in self.changes)
        found = [(-1, total)]
        for change in self.changes:
            total += change.size if change.taken else -change.size
            found.append((change.event, total))
        return found

    def peak(self) -> int:
        """The event after which most bytes were live; -1: before the first."""
        totals = self.totals()
        return totals.index(max(totals)) - 1

    def live_at(self, event: int) -> list[Life]:
        """The blocks that lived after an event, largest first; -1: before the first."""
        return sorted((life for life in self.lives
                       if (life.made is None or life.made <= event)
                       and (life.freed is None or life.freed > event)), key=lambda life: -life.size)

    def time_of(self, event: int) -> float:
        """Seconds from the start; 0 for -1."""
        return self.times[event] if event >= 0 else 0.0


def held_by(lives: Iterable[Life], name: Callable[[Life], str]) -> list[Held]:
    """Bytes and blocks by name, most bytes first."""
    found: dict[str, list[int]] = {}
    for life in lives:
        total = found.setdefault(name(life), [0, 0])
        total[0] += life.size
        total[1] += 1
    return sorted((Held(key, size, count) for key, (size, count) in found.items()),
                  key=lambda held: (-held.size, held.name))


def cut(held: list[Held], most: int) -> list[Held]:
    """The first `most` holders, and the others in one last line (a single other keeps its name)."""
    rest = held[most:]
    if len(rest) < 2:
        return held
    return [*held[:most], Held(f"{len(rest)} others", sum(one.size for one in rest),
                               sum(one.blocks for one in rest))]


class Classifier:
    """The category of blocks: the program's, else by the passes that they outlive."""

    def __init__(self, marks: Sequence[Mark]) -> None:
        self._backward = [mark.event for mark in marks if (mark.name, mark.begins)
                          == ("backward", True)]
        self._ends = {name: [mark.event for mark in marks if (mark.name, mark.begins)
                             == (name, False)] for name in _MADE_IN}

    def category(self, given: str, label: str, phase: str, made: int | None,
                 freed: int | None) -> str:
        """The category of a block that lives from event `made` to `freed`, made in `phase`."""
        if given:
            return given
        if label == "workspace":
            return "workspace"
        if made is None:
            return "earlier"
        if phase in _MADE_IN:
            return _MADE_IN[phase] if _outlives(made, freed, self._ends[phase]) else "temporary"
        return "saved" if _outlives(made, freed, self._backward) else "temporary"


_MADE_IN = {"backward": "gradients", "update": "optimizer"}  # and alive after it


def _outlives(made: int, freed: int | None, events: list[int]) -> bool:
    """Whether the block was alive at the first of the (rising) events after `made`."""
    at = bisect_right(events, made)
    return at < len(events) and (freed is None or events[at] <= freed)

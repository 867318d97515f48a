"""What was live when: the lifetimes of blocks, told apart by who asked for them and what for.

A history comes from a recording or from a snapshot file. Everything that explains memory (the
pictures, the page, the tables of `gtensor memory`) reads it and nothing else.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gtensor.memory.layout import SegmentLayout, check_tiles

# What memory is for, in the order in which pictures stack it; names that users give come on top.
CATEGORIES = {
    "parameters": "parameters and buffers of modules",
    "optimizer": "the optimizer's state",
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
    """The user's line that asked."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} ({self.function})"


@dataclass(slots=True)
class Life:
    """A block: its bytes, who asked, and the events that made and freed it.

    `op` is what made it, or its name if a module has one for it ("weight"). `made` is None if it
    was there before the first event, `freed` None if it still lives.
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
        """Who has it, in words: the op and where it ran, or the network that it is a part of."""
        if self.category in _STANDING and self.module:
            return f"{_STANDING[self.category]} of {self.module.partition('.')[0]}"
        who = f"{self.op or '(no label)'}{f' in {self.module}' if self.module else ''}"
        return who if self.op == self.category else f"{who}, {self.category}"


def unknown_life(nbytes: int) -> Life:
    """Bytes that were live before the first event and of which nothing else is known."""
    return Life(0, nbytes, nbytes, 0, "", "", "earlier", None, None, None)


class Mark(NamedTuple):
    """Something that happened between two events: `event` is the number of the next one.

    `name` is a phase ("backward", "update") that begins or ends, or "out of memory", with the
    bytes that were asked for.
    """

    event: int
    time: float
    name: str
    begins: bool
    nbytes: int = 0


class SegmentChange(NamedTuple):
    """A segment was taken from the source, or given back; `event` is the number of the next event.

    That it was given back is noticed when the next one is taken, or at the end.
    """

    event: int
    time: float
    taken: bool
    address: int
    size: int
    stream: int


class Held(NamedTuple):
    """What one holder (an op, a module, a category ...) has at some moment."""

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
        """Raise ValueError if an event is lost or told twice, or pieces do not tile a segment."""
        told = bytearray(len(self.times))
        for life in self.lives:
            if life.made is not None and life.freed is not None and life.freed <= life.made:
                raise ValueError(f"the block at {life.address:#x} is freed by event {life.freed}, "
                                 f"before event {life.made} made it")
            for event in (life.made, life.freed):
                if event is None:
                    continue
                if not 0 <= event < len(told) or told[event]:
                    raise ValueError(f"event {event} of {len(told)} does not belong to one block")
                told[event] = 1
        if 0 in told:
            raise ValueError(f"event {told.index(0)} is lost: it makes or frees no block")
        for segment in self.segments:
            check_tiles(segment)

    @property
    def categories(self) -> list[str]:
        """Those that occur, as pictures stack them."""
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
    """Blocks put together by a name: who holds how much, most first."""
    found: dict[str, list[int]] = {}
    for life in lives:
        total = found.setdefault(name(life), [0, 0])
        total[0] += life.size
        total[1] += 1
    return sorted((Held(key, size, count) for key, (size, count) in found.items()),
                  key=lambda held: (-held.size, held.name))


def cut(held: list[Held], most: int) -> list[Held]:
    """The first `most` holders, and the rest in a last line (unless it is one: that stays)."""
    rest = held[most:]
    if len(rest) < 2:
        return held
    return [*held[:most], Held(f"{len(rest)} others", sum(one.size for one in rest),
                               sum(one.blocks for one in rest))]


class Classifier:
    """What blocks are for: as the program said, else by the passes that they outlive."""

    def __init__(self, marks: Sequence[Mark]) -> None:
        self._backward = [mark.event for mark in marks if (mark.name, mark.begins)
                          == ("backward", True)]
        self._ends = {name: [mark.event for mark in marks if (mark.name, mark.begins)
                             == (name, False)] for name in _MADE_IN}

    def category(self, given: str, label: str, phase: str, made: int | None,
                 freed: int | None) -> str:
        """Of a block that lives from event `made` to `freed`, asked for in `phase`."""
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
    """Whether the first of the (rising) events after `made` found the block alive."""
    at = bisect_right(events, made)
    return at < len(events) and (freed is None or events[at] <= freed)

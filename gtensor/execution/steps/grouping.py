"""Which calls run as one: groups without a call between them that needs one and that one needs."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

_OPEN = 16  # groups of a kind, the latest, that a call may join


@dataclass(eq=False, slots=True)
class Unit:
    """Calls that run as one, by their places in the listing."""

    calls: list[int]
    needs: int  # the units, one bit each, that must run before
    dtype: np.dtype | None = None
    values: set[int] = field(default_factory=set)  # that its calls read and make
    made: set[int] = field(default_factory=set)
    facts: Any = None  # the first that a member has


class Member(NamedTuple):
    """A call that may join a unit of its kind."""

    kind: Hashable
    dtype: np.dtype | None  # all that have one must agree
    reads: set[int]
    makes: int
    fits: Callable[[Unit], bool]
    facts: Any = None
    begins: bool = True  # whether it may be the first of a unit


def grouped(members: Sequence[Member | None], needs: Sequence[set[int]]) -> list[Unit]:
    """The units of calls, of which each `needs` others, by their places."""
    units: list[Unit] = []
    unit_of: list[int] = []
    open_: dict[Hashable, list[int]] = {}  # the units that may grow, by kind
    for i, member in enumerate(members):
        before = {unit_of[j] for j in needs[i]}
        found = None
        if member is not None:
            for u in reversed(open_.setdefault(member.kind, [])):
                unit = units[u]
                if (_agree(unit.dtype, member.dtype)
                        and not any(units[b].needs >> u & 1 for b in before if b != u)
                        and member.fits(unit)):
                    found = u
                    break
        if found is None:
            found, bits = len(units), 0
            for b in before:
                bits |= units[b].needs | 1 << b
            units.append(Unit([i], bits))
            if member is not None and member.begins:
                open_[member.kind] = [*open_[member.kind][1 - _OPEN:], found]
        else:
            units[found].calls.append(i)
            _must_follow(units, found, before)
        unit_of.append(found)
        if member is not None:
            unit = units[found]
            if unit.dtype is None:  # a dtype is false
                unit.dtype = member.dtype
            if unit.facts is None:
                unit.facts = member.facts
            unit.values |= member.reads | {member.makes}
            unit.made.add(member.makes)
    return units


def _agree(one: np.dtype | None, other: np.dtype | None) -> bool:
    return one is None or other is None or one == other  # None is float64 to `==`


def _must_follow(units: list[Unit], which: int, before: set[int]) -> None:
    """A unit, and all that follow it, follow these units."""
    bits = 0
    for b in before:
        if b != which:
            bits |= units[b].needs | 1 << b
    if bits & ~units[which].needs:
        units[which].needs |= bits
        for unit in units:
            if unit.needs >> which & 1:
                unit.needs |= bits


def ordered(units: list[Unit]) -> Iterator[Unit]:
    """The units, each after those that it needs and else as late as its last call."""
    done = 0
    for last in sorted(range(len(units)), key=lambda u: units[u].calls[-1]):
        missing = units[last].needs & ~done | 1 << last
        if done >> last & 1:
            continue
        # Of units that need each other one needs fewer.
        wanted = [u for u in range(len(units)) if missing >> u & 1]
        for u in sorted(wanted, key=lambda u: (units[u].needs.bit_count(), units[u].calls[-1])):
            done |= 1 << u
            yield units[u]

"""Fusing: elementwise calls of one shape become one call, with results for what is used outside.

A call joins a group if no other call stands between them: one that needs a value of the group and
that the call needs. Groups of large arrays share values, so that they read memory less often; those
of small ones save Python's calls and need share nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from gtensor.execution.steps.fused_numpy import SMALL, fused_function
from gtensor.execution.steps.listing import Listing, makes, reads, size_of
from gtensor.execution.steps.passes import (
    dependences,
    drop_dead,
    is_view,
    lasting_roots,
    one_number,
    values_written,
    written_roots,
)
from gtensor.execution.steps.pieces import Piece, composed, piece_of
from gtensor.execution.steps.recorder import Call, Constant, Value

_OPEN = 16  # groups of a shape, the latest, that a call may join


@dataclass(eq=False, slots=True)
class _Unit:
    """Calls that run as one, by their places in the listing."""

    calls: list[int]
    needs: int  # the units, one bit each, that must run before
    dtype: np.dtype | None = None
    values: set[int] = field(default_factory=set)  # that its pieces read and make


def fuse_pieces(listing: Listing, relaxed: bool = False) -> None:
    """Make one call of elementwise calls, where that leaves every call with what it needs."""
    narrow = _narrow(listing)
    pieces = [None if isinstance(call, Call) and values_written(call)
              else piece_of(call, listing) for call in narrow]
    needs = dependences(listing, pieces)
    units = _grouped(listing, narrow, pieces, needs)
    order = _ordered(units)
    lasting = lasting_roots(listing)
    calls: list[Any] = []
    for unit in order:
        if len(unit.calls) == 1:
            call = listing.calls[unit.calls[0]]
            calls.append(call)
        else:
            call = _joined(listing, pieces, unit, lasting, relaxed)
            if not call.made:
                continue  # nothing that is used
            calls.append(call)
            for n in call.made:
                listing.earlier.pop(n, None)  # type: ignore[arg-type]
    listing.calls[:] = calls
    drop_dead(listing)
    _take_over(listing)


def _narrow(listing: Listing) -> list[Any]:
    """The calls, elementwise ones with what was broadcast in place of views that repeat it.

    What is one number throughout, as most first gradients are, is that number.
    """
    found = [*listing.calls]
    base: dict[int, Value | Constant] = {}
    written: set[int] = set()
    for call in listing.calls:
        written |= written_roots(call, listing, None)
    for i, call in enumerate(listing.calls):
        if not isinstance(call, Call) or call.host or not call.args:
            continue
        given = call.args[0]
        made: Any = call.made[0]
        if is_view(call) and call.name != "view":
            below = base.get(given.number, given) if isinstance(given, Value) else given
            if call.name == "broadcast_to" or isinstance(below, Constant):
                base[made] = below
            continue
        if base and any(n in base for n in reads(call)):
            args = tuple([base.get(a.number, a) if isinstance(a, Value) else a for a in call.args])
            changed = replace(call, args=args)
            if piece_of(changed, listing) is not None:
                found[i] = changed
                number = None if values_written(call) else one_number(changed)
                if number is not None and id(listing.values[made].root) not in written:
                    base[made] = Constant(number)
    return found


def _grouped(
    listing: Listing, narrow: Sequence[Any], pieces: Sequence[Piece | None],
    needs: Sequence[set[int]],
) -> list[_Unit]:
    units: list[_Unit] = []
    unit_of: list[int] = []
    open_: dict[Any, list[int]] = {}  # the units that may grow, by shape
    for i, call in enumerate(listing.calls):
        before = {unit_of[j] for j in needs[i]}
        piece = pieces[i]
        found = None
        if piece is not None:
            facts = listing.values[call.made[0]]
            small = size_of(facts) * 8 <= SMALL
            mine, dtype = {*reads(narrow[i]), call.made[0]}, piece.dtype
            for u in reversed(open_.setdefault(facts.shape, [])):
                unit = units[u]
                if ((unit.dtype in (None, dtype) or dtype is None)
                        and (small or not mine.isdisjoint(unit.values))
                        and not any(units[b].needs >> u & 1 for b in before if b != u)):
                    found = u
                    break
        if found is None:
            bits = 0
            for b in before:
                bits |= units[b].needs | 1 << b
            units.append(_Unit([i], bits))
            unit_of.append(len(units) - 1)
            if piece is None:
                continue
            found = len(units) - 1
            waiting = open_[facts.shape]
            waiting.append(found)
            del waiting[:-_OPEN]
        else:
            unit_of.append(found)
            units[found].calls.append(i)
            _must_follow(units, found, before)
        unit = units[found]
        unit.dtype = unit.dtype or dtype
        unit.values |= mine
    return units


def _must_follow(units: list[_Unit], which: int, before: set[int]) -> None:
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


def _ordered(units: list[_Unit]) -> Iterator[_Unit]:
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


def _joined(
    listing: Listing, pieces: Sequence[Piece | None], unit: _Unit, lasting: set[int], relaxed: bool
) -> Call:
    """The one call of a unit."""
    inside = {*unit.calls}
    made = {listing.calls[i].made[0]: i for i in unit.calls}
    used = {*listing.returned}
    for i, call in enumerate(listing.calls):
        if i not in inside:
            used.update(reads(call))
    outputs = [n for n in made if n in used]
    graph = composed([(n, pieces[i]) for n, i in made.items()],  # type: ignore[misc]
                     outputs, relaxed)
    names = [name for name, given in graph.inputs.items() if isinstance(given, Value)]
    args = tuple([graph.inputs[name] for name in names])
    facts = [listing.values[a.number] for a in args]  # type: ignore[union-attr]
    layouts = [(f.shape, listing.contiguous(a.number))  # type: ignore[union-attr]
               for f, a in zip(facts, args, strict=True)]
    last = listing.calls[unit.calls[-1]]
    shape = listing.values[last.made[0]].shape
    dtype = unit.dtype or np.dtype(np.float32)
    kept = [_is_internal(n, listing, lasting) for n in outputs]
    name = f"fused_{len(unit.calls)}"
    function = fused_function(graph, shape, dtype, names, layouts, name, kept)
    return Call(name, function, args, {}, tuple(outputs), len(outputs) > 1, frozenset(),
                last.device, last.where)


def _is_internal(number: int, listing: Listing, lasting: set[int]) -> bool:
    """Whether a value's memory may be that of the last replay: no one has it, and no call writes
    into it or could keep it."""
    return False


def _take_over(listing: Listing) -> None:
    """Let a call write into the memory that it wrote into when recorded, if nothing else needs it.
    """
    last: dict[int, int] = {}  # root -> the last call that reads it
    for i, call in enumerate(listing.calls):
        for n in reads(call):
            last[id(listing.values[n].root)] = i
    lasting = lasting_roots(listing)
    makers = {n: call for call in listing.calls for n in makes(call)}
    for i, call in enumerate(listing.calls):
        if not isinstance(call, Call) or call.host or len(call.made) != 1:
            continue
        before = listing.earlier.get(call.made[0])  # type: ignore[arg-type]
        if before is None or before not in makers:
            continue
        root = id(listing.values[before].root)
        if last.get(root, i) == i and before in reads(call) and root not in lasting:
            listing.calls[i] = replace(call, params={**call.params, "out": Value(before)})

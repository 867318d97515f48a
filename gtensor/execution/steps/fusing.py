"""Fusing: elementwise calls of one shape become one call, with results for what is used outside.

A call joins a group if no other call stands between them: one that needs a value of the group and
that the call needs. Groups of large arrays share values, so that they read memory less often; those
of small ones save Python's calls and need share nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gtensor.execution.steps.flow import (
    dependences,
    is_view,
    lasting_roots,
    values_written,
    written_roots,
)
from gtensor.execution.steps.fused_numpy import fused_function
from gtensor.execution.steps.grouping import Member, Unit, grouped, ordered
from gtensor.execution.steps.listing import Listing, makes, reads, size_of, users_of
from gtensor.execution.steps.pieces import Piece, composed, one_number, piece_of
from gtensor.execution.steps.recorder import Call, Constant, Value
from gtensor.execution.steps.rows import row_calls
from gtensor.execution.steps.totals import SMALL, Total, total_of

_MOST = 48  # values of a kernel, whose arguments have 4 KB
_FEW = 3  # calls in a row of a smaller shape that a kernel repeats for each element


def fuse_pieces(listing: Listing, relaxed: bool = False) -> None:
    """Make one call of elementwise calls, where that leaves every call with what it needs."""
    narrow, pieces = _narrow_pieces(listing)
    listing.calls[:], changed = row_calls(listing, narrow, pieces)
    if changed:
        narrow, pieces = _narrow_pieces(listing)
    needs = dependences(listing, pieces)
    units = grouped(pieces_as_members(listing, narrow, pieces), needs)
    users, returned = users_of(listing), {*listing.returned}
    calls: list[Any] = []
    for unit in ordered(units):
        if len(unit.calls) == 1:
            call = listing.calls[unit.calls[0]]
            calls.append(call)
        else:
            calls += _joined(listing, pieces, unit, relaxed, users, returned)
    listing.calls[:] = calls


def leave_out_views(listing: Listing) -> None:
    """On CUDA, let elementwise calls read what was broadcast: the views stand between calls."""
    for i, (call, piece) in enumerate(zip(*_narrow_pieces(listing), strict=True)):
        before = listing.calls[i]
        if piece is None or call is before or call.device.type != "cuda" or not all(
                isinstance(a, Value) or a is b
                for a, b in zip(call.args, before.args, strict=True)):
            continue
        shapes = [listing.values[n].shape for n in reads(call)]
        if np.broadcast_shapes(*shapes) == listing.values[call.made[0]].shape:
            listing.calls[i] = call


def _narrow_pieces(listing: Listing) -> tuple[list[Any], list[Piece | None]]:
    narrow = _narrow(listing)
    return narrow, [None if isinstance(call, Call) and values_written(call)
                    else piece_of(call, listing) for call in narrow]


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


def pieces_as_members(
    listing: Listing, narrow: Sequence[Any], pieces: Sequence[Piece | None]
) -> list[Member | None]:
    """Elementwise calls of one shape; of large arrays those that share a value."""
    found: list[Member | None] = []
    values, wanted = listing.values, _wanted_shapes(listing, narrow, pieces)
    for call, piece in zip(narrow, pieces, strict=True):
        total = total_of(call, listing)
        if total is not None:
            found.append(_sum_as_member(total, call, listing))
            continue
        if piece is None:
            found.append(None)
            continue
        facts = listing.values[call.made[0]]
        on_cuda = call.device.type == "cuda"
        small, mine = size_of(facts) * 8 <= SMALL, {*reads(call), call.made[0]}
        shape = wanted.get(call.made[0], facts.shape)

        def fits(
            unit: Unit, small: bool = small, mine: set[int] = mine, on_cuda: bool = on_cuda,
            shape: tuple[int, ...] = shape,
        ) -> bool:
            if any(wanted.get(n, values[n].shape) != shape for n in mine if n in unit.made):
                return False  # a sum of all, which is there when the last tile is done
            if on_cuda:
                return len(unit.values | mine) <= _MOST
            return small or not mine.isdisjoint(unit.values)

        found.append(Member((shape, call.device), piece.dtype, {*reads(call)}, call.made[0], fits))
    return found


def _wanted_shapes(
    listing: Listing, narrow: Sequence[Any], pieces: Sequence[Piece | None]
) -> dict[int, tuple[int, ...]]:
    """Of values that a single call of a larger shape uses that shape, on CUDA.

    Its kernel computes such a value for each element, which takes less time than a launch.
    """
    found: dict[int, tuple[int, ...]] = {}
    depth: dict[int, int] = {}
    users, returned = users_of(listing), {*listing.returned}
    for i in reversed(range(len(narrow))):
        if pieces[i] is None or narrow[i].device.type != "cuda":
            continue
        (made,) = narrow[i].made
        using = users.get(made, set())
        user = next(iter(using), i)
        if len(using) != 1 or made in returned or pieces[user] is None:
            continue
        (result,) = narrow[user].made
        shape = found.get(result, listing.values[result].shape)
        if shape != listing.values[made].shape and depth.get(result, 0) < _FEW:
            found[made], depth[made] = shape, depth.get(result, 0) + 1
    return found


def _sum_as_member(total: Total, call: Any, listing: Listing) -> Member:
    """A sum of all elements joins the calls that make what it sums."""
    facts = listing.values[total.given]
    return Member((facts.shape, call.device), facts.dtype, {total.given}, total.made,
                  lambda unit: total.given in unit.made, begins=False)


def _joined(
    listing: Listing, pieces: Sequence[Piece | None], unit: Unit, relaxed: bool,
    users: dict[int, set[int]], returned: set[int],
) -> list[Call]:
    """The one call of a unit; none if nothing else uses what it makes."""
    before = _apart(listing, pieces, unit, users)
    unit.calls = [i for i in unit.calls if i not in before]
    if before:
        first = [listing.calls[i] for i in before]
        return [*first, *_joined(listing, pieces, unit, relaxed, users, returned)]
    inside, narrow = {*unit.calls}, [i for i in unit.calls if pieces[i] is not None]
    made = {listing.calls[i].made[0]: i for i in narrow}
    outputs = [n for n in made if n in returned or not users.get(n, inside) <= inside]
    totals = [total_of(listing.calls[i], listing) for i in unit.calls if pieces[i] is None]
    summed = [total.given for total in totals if total is not None]
    sums = {total.given: total for total in totals if total is not None and (
        total.given not in outputs and summed.count(total.given) == 1)}
    after = [listing.calls[i] for i in unit.calls
             if pieces[i] is None and listing.calls[i].args[0].number not in sums]
    outputs = [*dict.fromkeys([*outputs, *[n for n in summed if n not in sums]])]
    if len(narrow) == 1 and not sums:
        return [listing.calls[i] for i in unit.calls]
    results = [*outputs, *[total.made for total in sums.values()]]
    if not results:
        return []
    graph = composed([(n, pieces[i]) for n, i in made.items()],  # type: ignore[misc]
                     [*outputs, *sums], relaxed)
    names = [name for name, given in graph.inputs.items() if isinstance(given, Value)]
    args = tuple([graph.inputs[name] for name in names])
    facts = [listing.values[a.number] for a in args]  # type: ignore[union-attr]
    layouts = [(f.shape, listing.contiguous(a.number))  # type: ignore[union-attr]
               for f, a in zip(facts, args, strict=True)]
    last = listing.calls[narrow[-1]]
    shape = listing.values[last.made[0]].shape
    dtype = np.dtype(np.float32) if unit.dtype is None else unit.dtype
    name = f"fused_{len(unit.calls)}"
    function: Callable[..., Any]
    if last.device.type == "cuda":
        from gtensor.execution.steps.fused_cuda import fused_kernel

        if np.broadcast_shapes(*[f.shape for f in facts]) != shape:
            return [listing.calls[i] for i in unit.calls]  # no argument has the whole shape
        conditions = [n for n, f in zip(names, facts, strict=True) if f.dtype == np.bool_]
        function = fused_kernel(graph, shape, dtype, names, conditions, last.device, name)
    else:
        function = fused_function(graph, shape, dtype, names, layouts, name, [*sums.values()])
    return [Call(name, function, args, {}, tuple(results), len(results) > 1, frozenset(),
                 last.device, last.where), *after]


def _apart(
    listing: Listing, pieces: Sequence[Piece | None], unit: Unit, users: dict[int, set[int]]
) -> list[int]:
    """The calls of a smaller shape than the unit's whose values are used outside of it."""
    shapes = {i: listing.values[listing.calls[i].made[0]].shape for i in unit.calls
              if pieces[i] is not None}
    largest = max(shapes.values(), key=lambda shape: (math.prod(shape), len(shape)))
    found: list[int] = []
    for i in reversed(shapes):
        using = users.get(listing.calls[i].made[0], set())
        if shapes[i] != largest and not using <= {*unit.calls} - {*found}:
            found.insert(0, i)
    return found


def take_over(listing: Listing) -> None:
    """Let a call write into the memory that it wrote into when recorded, if nothing else needs it.
    """
    last: dict[int, int] = {}  # root -> the last call that reads it
    for i, call in enumerate(listing.calls):
        for n in reads(call):
            last[id(listing.values[n].root)] = i
    lasting = lasting_roots(listing)
    makers = {n: call for call in listing.calls for n in makes(call)}
    for i, call in enumerate(listing.calls):
        if not isinstance(call, Call) or call.host or len(call.made) != 1 or (
                call.name.startswith("fused_")):
            continue
        before = listing.earlier.get(call.made[0])  # type: ignore[arg-type]
        if before is None or before not in makers:
            continue
        root = id(listing.values[before].root)
        if last.get(root, i) == i and before in reads(call) and root not in lasting:
            listing.calls[i] = replace(call, params={**call.params, "out": Value(before)})

"""What is changed in a recording before it is written as a program: dead calls, constants, versions
of overwritten memory, and fusing (`fusing`). Each pass takes a `Listing` and changes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from gtensor.backend import host
from gtensor.execution.steps.flow import (
    VIEWS,
    is_view,
    lasting_roots,
    only_results,
    values_written,
)
from gtensor.execution.steps.fusing import fuse_pieces, leave_out_views, take_over
from gtensor.execution.steps.listing import Listing, listed, makes, reads, renamed, size_of
from gtensor.execution.steps.pieces import one_number, piece_of
from gtensor.execution.steps.recorder import (
    Call,
    Constant,
    Recorder,
    Stored,
    Value,
    like,
    view_at,
)


def improved(recording: Recorder, returned: Iterable[int], fuse: bool | str) -> Listing:
    """The calls of a program."""
    listing = listed(recording, returned)
    drop_nothings(listing)
    if fuse:
        name_versions(listing)
    fold_constants(listing)
    drop_dead(listing)
    if fuse:
        leave_out_views(listing)
        drop_dead(listing)
        fuse_pieces(listing, relaxed=fuse == "relaxed")
        drop_dead(listing)
        take_over(listing)
    return listing


# -- dead calls ------------------------------------------------------------------------------------


def drop_nothings(listing: Listing) -> None:
    """Leave out `out=None`, which a call is quicker without."""
    for i, call in enumerate(listing.calls):
        if isinstance(call, Call) and not call.host and call.params.get("out", call) is None:
            listing.calls[i] = replace(
                call, params={key: x for key, x in call.params.items() if key != "out"})


def drop_dead(listing: Listing) -> None:
    """Leave out calls that write nothing, and of whose results none is used."""
    used = {*listing.returned}
    kept = []
    for call in reversed(listing.calls):
        if not (isinstance(call, Call) and used.isdisjoint(makes(call)) and _only_makes(call)):
            kept.append(call)
            used.update(reads(call))
    listing.calls[:] = reversed(kept)


def _only_makes(call: Call) -> bool:
    """Whether all that a call does is to make its results."""
    if call.host:
        return False
    if is_view(call) or call.name in VIEWS and "out" not in call.params:
        return True  # also one that was made before
    return only_results(call) and len(makes(call)) == len(call.made)


# -- constants -------------------------------------------------------------------------------------


def fold_constants(listing: Listing) -> None:
    """Run once what depends on single numbers alone, such as the gradients that backward begins
    with: with the same functions, so with the same bits."""
    written = {id(listing.values[n].root) for call in listing.calls if isinstance(call, Call)
               for n in values_written(call)}
    seen = lasting_roots(listing) | written
    known: dict[int, Constant] = {}
    calls = []
    for call in listing.calls:
        if isinstance(call, Call) and not call.host:
            if known:
                call = replace(call, args=_with_constants(call.args, known),
                               params=_with_constants(call.params, known))
            value = None if {id(listing.values[n].root) for n in makes(call)} & seen else _folded(
                call, listing)
            if value is not None:
                known[call.made[0]] = Constant(value)  # type: ignore[index]
                continue
        calls.append(call)
    listing.calls[:] = calls


def _folded(call: Call, listing: Listing) -> np.ndarray | None:
    """The one number that a call makes, if it is given nothing that changes."""
    facts = [listing.values[n] for n in call.made if n is not None]
    if len(facts) != 1 or facts[0].shape or not (
            call.function == host().ones or piece_of(call, listing) is not None):
        return None
    value = one_number(call)
    return value if value is not None and value.dtype == facts[0].dtype else None


def _with_constants(coded: Any, known: dict[int, Constant]) -> Any:
    """Coded arguments with constants in place of the values that are known."""
    if isinstance(coded, Value):
        return known.get(coded.number, coded)
    if isinstance(coded, (tuple, list)):
        return like(coded, [_with_constants(item, known) for item in coded])
    if isinstance(coded, dict):
        return {key: _with_constants(item, known) for key, item in coded.items()}
    return coded


# -- versions --------------------------------------------------------------------------------------


def name_versions(listing: Listing) -> None:
    """Make an elementwise write over the whole of a buffer of the step a value of its own."""
    whole = _whole_roots(listing)
    kept: set[int] = set()  # roots that something outside of the program sees
    latest: dict[int, int] = {}  # root -> its version, a value
    names: dict[int, int] = {}  # value -> that which stands for it
    calls: list[Any] = []

    def named(number: int) -> int:
        """What stands for a value now."""
        root = id(listing.values[number].root)
        if number in names or root not in latest:
            return names.get(number, number)
        version = latest[root]
        if listing.values[number].shape == listing.values[version].shape and (
                listing.contiguous(number)):
            return version
        names[number] = made = listing.new(number, listing.values[version].root)
        near = next(c for c in reversed(calls) if isinstance(c, Call) and version in c.made)
        calls.append(_view_of(version, number, made, whole[root][0], listing, near))
        return made

    for call in listing.calls:
        now = {n: named(n) for n in reads(call)}
        if isinstance(call, Stored):
            kept |= {id(listing.values[n].root) for n in now}
            calls.append(replace(call, entries=[(node, n if n is None else now[n], empty)
                                                for node, n, empty in call.entries]))
            continue
        if not isinstance(call, Call) or call.host:
            calls.append(call)
            continue
        out = call.params.get("out")
        root = id(listing.values[out.number].root) if isinstance(out, Value) else 0
        if (isinstance(out, Value) and root in whole and root not in kept
                and call.made == (out.number,) and listing.span(out.number) == whole[root]
                and piece_of(call, listing) is not None):
            made = listing.new(out.number)
            listing.earlier[made] = now[out.number]
            for n in [n for n in names if id(listing.values[n].root) == root]:
                del names[n]
            latest[root] = made
            params = {key: x for key, x in call.params.items() if key != "out"}
            calls.append(replace(call, args=renamed(call.args, now), params=renamed(params, now),
                                 made=(made,)))
            continue
        for n in makes(call):  # a view of what has a version by now
            root = id(listing.values[n].root)
            if root in latest:
                names[n] = now[n] = listing.new(n, listing.values[latest[root]].root)
        calls.append(replace(call, args=renamed(call.args, now), params=renamed(call.params, now),
                             made=tuple([now.get(n, n) if n is not None else None
                                         for n in call.made])))
    listing.returned[:] = [named(n) for n in listing.returned]
    listing.calls[:] = calls


def _whole_roots(listing: Listing) -> dict[int, tuple[int, int]]:
    """Of roots (by id) that a path has made: where the memory that the step knows begins, ends."""
    spans: dict[int, list[tuple[int, int]]] = {}
    for number, facts in enumerate(listing.values):
        if facts.root is not None and facts.root.made:
            spans.setdefault(id(facts.root), []).append(listing.span(number))
    by_python = {id(listing.values[n].root) for call in listing.calls
                 if isinstance(call, Call) and call.host for n in call.made if n is not None}
    return {root: (min(start for start, _ in found), max(end for _, end in found))
            for root, found in spans.items() if root not in by_python}


def _view_of(
    version: int, number: int, made: int, start: int, listing: Listing, near: Call
) -> Call:
    """The call that makes a value, a view, of a version of its memory."""
    facts, whole = listing.values[number], listing.values[version]
    given: tuple[Any, ...] = Value(version), facts.shape
    function: Callable[..., Any]
    if listing.contiguous(number) and size_of(facts) == size_of(whole):
        name, function = "reshape", reshaped
    elif size_of(whole) == 1:
        name, function = "broadcast_to", np.broadcast_to
    else:
        name, function = "view", view_at
        given = (Value(version), listing.span(number)[0] - start, facts.shape,
                 listing.strides[number], facts.dtype)
    return Call(name, function, given, {}, (made,), False, frozenset(), near.device, near.where)


def reshaped(array: Any, shape: tuple[int, ...]) -> Any:
    """A view of the same memory in another shape."""
    return array.reshape(shape)

"""Memory orders calls: what each reads and writes, and which calls it must follow.

A call follows the last one that wrote what it reads, and a write follows the reads of what was
there before. Memory is a root; a view, which reads and writes nothing, follows what made its root.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from gtensor.backend import host
from gtensor.engine.handle.context import EXCHANGES
from gtensor.engine.tape.op import registry
from gtensor.execution.steps.comparing import values_of
from gtensor.execution.steps.listing import Listing, makes, reads
from gtensor.execution.steps.pieces import Piece
from gtensor.execution.steps.recorder import Call, Stored

_WRITE_RESULTS = tuple(f"gtensor.ops.{room}." for room in (
    "activations", "define", "elementwise", "linalg", "losses", "order", "reduce", "scan"))
VIEWS = {"view", "reshape", "broadcast_to", "permute_dims"}


def written_roots(call: Any, listing: Listing, piece: Piece | None) -> set[int]:
    """The roots (by id) whose memory a call may write: all of what it is given, if in doubt."""
    if not isinstance(call, Call) or call.host:
        return set()
    numbers = (values_written(call) if piece is not None or is_view(call) or only_results(call)
               else reads(call))
    return {id(listing.values[n].root) for n in numbers}


def is_effect(call: Any) -> bool:
    """Whether a call does what no value shows: such calls stay in their order."""
    return not isinstance(call, Call) or call.host or call.kind == EXCHANGES


def values_written(call: Call) -> list[int]:
    """The values into which a call is known to write; of what ranks exchange all that it is given.
    """
    given = {*reads(call)}
    if call.kind == EXCHANGES:
        return [*given]
    return [*[n for n in call.made if n is not None and n in given],
            *values_of(call.params.get("out"))]


def only_results(call: Call) -> bool:
    """Whether a call is known to do nothing but to write its results."""
    if is_effect(call):
        return False
    if call.name.startswith("fused_") or call.function in (host().ones, host().empty):
        return True
    op = registry.get(call.name)
    if op is None or call.op not in (None, op):
        return False
    function: Any = op.cpu  # whose room is that of the GPU's path
    while isinstance(function, partial):
        function = function.func
    return str(getattr(function, "__module__", "")).startswith(_WRITE_RESULTS)


def is_view(call: Any) -> bool:
    """Whether a call only makes another array over memory."""
    return isinstance(call, Call) and not call.host and call.name in VIEWS and len(
        call.made) == 1 and not values_written(call)


def dependences(listing: Listing, pieces: Sequence[Piece | None]) -> list[set[int]]:
    """Of each call, the calls that it must follow."""
    made: dict[int, int] = {}  # value -> the call that makes it
    wrote: dict[int, int] = {}  # root -> the call that wrote it last
    read: dict[int, set[int]] = {}  # root -> the calls that have read it since
    values = listing.values
    outside = {id(facts.root) for facts in values
               if facts.root is not None and (not facts.root.made)}
    found: list[set[int]] = []
    effect: int | None = None  # the last call with an effect that is no value
    for i, call in enumerate(listing.calls):
        needs: set[int] = set()
        numbers = reads(call)
        roots = {id(values[n].root) for n in numbers if values[n].root is not None}
        writes = written_roots(call, listing, pieces[i])
        needs.update(made[n] for n in numbers if n in made)
        if is_effect(call):
            if effect is not None:
                needs.add(effect)
            effect = i
        if isinstance(call, Stored):
            outside |= roots
        if isinstance(call, Call) and call.host:  # it may read and write all that lasts
            roots = writes = outside
        for root in roots | writes:
            if root in wrote:
                needs.add(wrote[root])
        for root in writes:
            needs |= _reads_since(read, root)
            wrote[root], read[root] = i, set()
        for root in roots - writes:
            read.setdefault(root, set()).add(i)
        for n in makes(call):
            made[n] = i
            if values[n].root is not None and not is_view(call):
                wrote.setdefault(id(values[n].root), i)
        needs.discard(i)
        found.append(needs)
    return found


def _reads_since(read: dict[int, set[int]], root: int) -> set[int]:
    return read.get(root, set())


def lasting_roots(listing: Listing) -> set[int]:
    """Roots (by id) that something outside of the program sees after it."""
    values = listing.values
    seen = {id(values[n].root) for n in listing.returned}
    for call in listing.calls:
        if isinstance(call, Stored):
            seen |= {id(values[n].root) for n in reads(call)}
    return seen

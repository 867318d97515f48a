"""Storage: the facts about a buffer, shared by all its views.

A `Storage` records who else may read or write the buffer of a raw array. Every decision to reuse
memory reads it, never `sys.getrefcount`.
"""

from __future__ import annotations

import weakref
from itertools import count
from typing import Any

_next_export = count(1).__next__


class _Lender(weakref.ref[Any]):
    """A reference to what lives while an array that left does, one of the set that it names."""

    __slots__ = ("among",)
    among: weakref.ref[set[_Lender | None]]  # weak, or set and reference would keep each other
    # by identity: `weakref.ref` compares and hashes the objects, which memoryviews do not allow
    __hash__ = object.__hash__
    __eq__ = object.__eq__


def _ended(lender: _Lender) -> None:
    """What the reference names is gone."""
    among = lender.among()
    if among is not None:
        among.discard(lender)


class Storage:
    """The facts of one buffer. The class attributes are those of a new one.

    holds     how many gradient slots, walks and leaves hold it; the engine writes it only at 1
    version   counts in-place writes through gtensor; a guard stores the version that it saved
    saved     a record saved it (sticky: not cleared with that record); not True but a mark while
              one record alone did, which may take it
    exported  it left through `.array`, `.numpy()` or DLPack, so other code may read it at any time
    exports   0, or a number that the last time it left has alone
    outside   what lives while arrays that left do; None in it for one that may live for ever
    made      an op made it, so an op may overwrite it; False for data, leaves and gradients
    common    one object for all new buffers, until a fact changes (`Tensor._own_storage`)
    recipe    recomputes its values, for records that would save them
    handles   weak references to the tensors that share it; None while it has only one
    writer    id of the array through which it was last written
    leaf      a leaf's tensor uses it, or did (sticky: another leaf may share it)
    history   a recorded in-place op wrote it: handles of an older version have lost their history
    """

    holds = 1
    saved: object = False
    exported = False
    exports = 0
    outside: set[_Lender | None] | None = None
    writer = 0
    leaf = False
    history = False
    made = False
    common = False
    recipe: weakref.ref[Any] | None = None  # a `tape.recipes.Recipe`
    handles: set[weakref.ref[object]] | None = None

    def __init__(self) -> None:
        self.version = 0  # on the object, as every op reads it and the class is slower

    def leave(self, lender: object | None) -> None:
        """Other code gets an array that lives as long as `lender`; None if nothing tells how long.

        While it lives other code may write the memory, and nothing computed from it may be kept.
        """
        # No lock, as the GIL makes each step atomic. Readers take `exports` before `outside`, which
        # are written here in the other order. So they see the lender, or `exports` changes after.
        among = self.outside
        if among is None:
            among = self.lent_with(set())
        if lender is None:
            among.add(None)
        else:
            reference = _Lender(lender, _ended)
            reference.among = weakref.ref(among)
            among.add(reference)
        self.exported = True
        self.exports = _next_export()

    def lent_with(self, among: set[_Lender | None]) -> set[_Lender | None]:
        """`outside`, which becomes the given set if there is none: one also for two threads."""
        kept: set[_Lender | None] = self.__dict__.setdefault("outside", among)
        return kept

    def join(self, handle: object) -> None:
        """Add a tensor that shares this storage."""
        if self.handles is None:
            self.handles = set()
        self.handles.add(weakref.ref(handle, self.handles.discard))

    def part(self, handle: object) -> None:
        """Remove a tensor, which has other memory from now on."""
        for ref in list(self.handles or ()):
            if ref() is handle:
                self.handles.discard(ref)  # type: ignore[union-attr]

    def has(self, handle: object) -> bool:
        """Whether the tensor is among those that share this storage."""
        # by identity: equal references would compare the tensors' elements
        return any(ref() is handle for ref in list(self.handles or ()))

    def shared_beside(self, handle: object) -> bool:
        """Whether a living tensor other than `handle` shares this storage."""
        # a copy: a handle that is collected meanwhile leaves the set
        return any(
            other is not None and other is not handle
            for other in [ref() for ref in list(self.handles or ())])


# Of memory that the engine never writes: the caller's arrays, broadcast views, saved values. Its
# holds are never all released.
BORROWED = Storage()
BORROWED.holds = 1 << 60
# The common storages of new buffers; never written.
GIVEN = Storage()  # of data, and of arrays that an op may not own
FRESH = Storage()  # of an op's output on the CPU: it tells a call the device, too
FRESH_ELSEWHERE = Storage()  # of an op's output on other devices
UNREAD = Storage()  # of a `.grad` that a walk stored and of which no other code has a handle
GIVEN.common = FRESH.common = FRESH_ELSEWHERE.common = UNREAD.common = True
FRESH.made = FRESH_ELSEWHERE.made = True

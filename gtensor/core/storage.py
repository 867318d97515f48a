"""Storage: what is known about a buffer, shared by every view of it.

A raw array says nothing about who else may read or write it. Its `Storage` does, and every rule
about reuse reads from here, never from `sys.getrefcount`.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gtensor.core.recipe import Recipe


class Storage:
    """The facts of one buffer. The class attributes are the facts of a new one.

    holds     how many gradient slots, walks and leaves hold it; written by the engine only at 1
    version   counts in-place writes through gtensor; saves remember the version they read
    saved     a record saved it (sticky: it is not cleared when that record is gone)
    exported  it left through `.array`, `.numpy()` or DLPack: outsiders may read it at any time
    made      an op made it, so that an op may overwrite it; data, leaves and gradients are not
    recipe    how to make its values again, for whoever would save them
    handles   weak references to the tensors that share it; None while it has only one
    writer    id of the array through which it was written last
    leaf      a leaf's tensor lies in it, or did (sticky: another leaf may share it)
    history   a differentiable in-place op wrote it: handles of an older version lost their history
    """

    holds = 1
    saved = False
    exported = False
    writer = 0
    leaf = False
    history = False
    made = False
    recipe: weakref.ref[Recipe] | None = None
    handles: set[weakref.ref[Any]] | None = None

    def __init__(self) -> None:
        self.version = 0  # every op reads it, which is faster on the object than on the class

    def join(self, handle: Any) -> None:
        """One more tensor shares this storage."""
        if self.handles is None:
            self.handles = set()
        self.handles.add(weakref.ref(handle, self.handles.discard))

    def shared_beside(self, handle: Any) -> bool:
        """Whether a living tensor other than `handle` shares this storage."""
        # a copy: a handle that dies meanwhile leaves the set
        return any(
            other is not None and other is not handle
            for other in [ref() for ref in list(self.handles or ())])


class _Borrowed(Storage):
    """Storage that is never ours to write: a caller's arrays, broadcast (stride 0) views, saves."""

    @property
    def holds(self) -> int:
        return 2

    @holds.setter
    def holds(self, value: int) -> None:
        """A hold on borrowed storage is never released to one."""


BORROWED = _Borrowed()
# The storages of new buffers until a fact changes (`Tensor._facts`); these two are never written.
GIVEN = Storage()  # of data, and of whatever is not known to be an op's own
FRESH = Storage()  # of an op's output
FRESH.made = True

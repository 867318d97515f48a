"""Storage: what is known about a buffer, shared by every view of it.

A raw array says nothing about who else may read or write it. Its `Storage` does, and every rule
about reuse reads from here, never from `sys.getrefcount`.
"""

from __future__ import annotations


class Storage:
    """The facts of one buffer. The class attributes are the facts of a new one.

    holds     how many gradient slots, walks and leaves hold it; written by the engine only at 1
    version   counts in-place writes through gtensor; saves remember the version they read
    saved     a record saved it (sticky: it is not cleared when that record is gone)
    exported  it left through `.array`, `.numpy()` or DLPack: outsiders may read it at any time
              (for ops that overwrite an input of their own accord; none does yet)
    writer    id of the array through which it was written last
    leaf      a leaf's tensor lies in it
    history   a differentiable in-place op wrote it: handles of an older version lost their history
    """

    holds = 1
    version = 0
    saved = False
    exported = False
    writer = 0
    leaf = False
    history = False


class _Borrowed(Storage):
    """Storage that is never ours to write: a caller's arrays, broadcast (stride 0) views, saves."""

    @property
    def holds(self) -> int:
        return 2

    @holds.setter
    def holds(self, value: int) -> None:
        """A hold on borrowed storage is never released to one."""


BORROWED = _Borrowed()
FRESH = Storage()  # of every new buffer until a fact changes (`Tensor._facts`); never written

"""Locks with deadlock prevention: at a fork, and between two arenas.

**At a fork** the forking thread holds all of gtensor's locks and those of the random generators, so
that in the child they are free and what they guard is consistent. A child has only the thread that
forked; it would wait for ever for a lock that another thread held. The locks of a DataLoader's
workers are not among them, since its passes end at a fork (`data/workers.py`).

**Within a change** of one arena's pools a finalizer or a signal handler may allocate from another
arena, while another thread does the same in the opposite order. Both would wait for ever, so the
inner allocation raises an error after a while.
"""

from __future__ import annotations

import os
from contextlib import suppress
from threading import RLock
from typing import Any
from weakref import ref

PATIENCE = 10.0  # seconds to wait for a lock that may never be free


class _Register:
    """Weak references to locks."""

    def __init__(self) -> None:
        self._references: dict[ref[Any], None] = {}

    def add(self, lock: object) -> None:
        """Add a lock."""
        self._references[ref(lock, self._references.pop)] = None

    def there(self) -> list[Any]:
        """The live locks at one moment, while other threads may make and drop some."""
        found = [reference() for reference in list(self._references)]  # unlike `tuple`, one piece
        return [lock for lock in found if lock is not None]


_forking = RLock()  # one fork at a time
_known = _Register()
_arenas = _Register()
_held: list[Any] = []


def free_at_forks(*locks: object) -> None:
    """Hold these locks at a fork, so that they are free in the child."""
    for lock in locks:
        _known.add(lock)


def of_arena(lock: object) -> None:
    """`wait_for` may be called with this lock."""
    _arenas.add(lock)


def wait_for(lock: Any, name: str) -> None:
    """Take an arena's lock that another thread has.

    Raises RuntimeError if this thread holds another one, and has waited `PATIENCE` seconds.
    """
    while not lock.acquire(True, PATIENCE):
        if any(other is not lock and other._is_owned() for other in _arenas.there()):
            raise RuntimeError(
                f"memory on {name} was asked for in the middle of an allocation elsewhere, and "
                f"another thread has kept {name} for {PATIENCE:g} s, which may wait for this one; "
                "wanted finalizers and signal handlers that allocate nothing on a second device")


def _before() -> None:
    """Take all locks.

    It waits for one only while it holds no other, so the order does not matter; and at most
    `PATIENCE` seconds, since this thread may hold it itself, below a finalizer that forks.
    """
    _forking.acquire()
    given_up: list[Any] = []
    blocked: Any = None
    while True:
        if blocked is not None:
            (_held if blocked.acquire(True, PATIENCE) else given_up).append(blocked)
        for lock in _known.there():
            if lock is blocked or lock in given_up:
                continue
            if not lock.acquire(False):
                break
            _held.append(lock)
        else:
            return
        _release()
        blocked = lock


def _release() -> None:
    while _held:
        with suppress(RuntimeError):  # an error for one lock must not keep the others
            _held.pop().release()


def _after() -> None:
    _release()
    with suppress(RuntimeError):  # an interrupt came before it was taken
        _forking.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_after)

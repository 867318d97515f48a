"""Locks where a program could stop for ever: at a fork, and where two threads wait for each other.

**At a fork** nobody else holds them, so the child has what they guard whole, and free. A child has
only the thread that forked. Without this it would wait for ever for a lock that another thread
held, over what was being changed. All of gtensor's locks are among them, and those of the random
generators; but not those of a DataLoader's workers, whose passes end at a fork (`data/workers.py`).

**Within a change** of one arena's pools a finalizer or a signal handler may ask another arena for
memory, whose lock a thread may hold that asks the first one in the same way. Nobody can serve them
without the lock, so the one in the middle gets an error after a while.
"""

from __future__ import annotations

import os
from contextlib import suppress
from threading import RLock
from typing import Any
from weakref import ref

PATIENCE = 10.0  # seconds to wait for what may never come


class _Register:
    """Weak references to locks."""

    def __init__(self) -> None:
        self._references: dict[ref[Any], None] = {}

    def add(self, lock: Any) -> None:
        """Know a lock from now on."""
        self._references[ref(lock, self._references.pop)] = None

    def there(self) -> list[Any]:
        """The locks there are; of one moment, whatever other threads make and drop meanwhile."""
        found = [reference() for reference in list(self._references)]  # unlike `tuple`, one piece
        return [lock for lock in found if lock is not None]


_forking = RLock()  # one fork at a time
_known = _Register()
_arenas = _Register()
_held: list[Any] = []


def free_at_forks(*locks: object) -> None:
    """Let a fork wait for these locks, and the child have them free."""
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
    """Take all locks. It waits for one only while it has no other, so in any order; and no longer
    than `PATIENCE` seconds, since this thread may have it itself, below a finalizer that forks."""
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
        with suppress(RuntimeError):  # one that cannot be let go must not keep the others
            _held.pop().release()


def _after() -> None:
    _release()
    with suppress(RuntimeError):  # an interrupt came before it was taken
        _forking.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_after)

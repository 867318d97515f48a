"""Locks where a program could stop for ever: at a fork, and where two threads wait for each other.

**At a fork** nobody else holds them, so the child has what they guard whole, and free. A child has
only the thread that forked. Without this it would wait for ever for a lock that another thread
held, over pools that were being changed. Newest first, since what is built over an arena takes its
own lock before the arena's.

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

_forking = RLock()  # one fork at a time
_locks: dict[ref[Any], None] = {}  # oldest first
_held: list[Any] = []
PATIENCE = 10.0  # seconds to wait for another arena in the middle of a change


def free_at_forks(*locks: object) -> None:
    """Let a fork wait for these locks, and the child have them free."""
    for lock in locks:
        _locks[ref(lock, _gone)] = None


def _gone(reference: ref[Any]) -> None:
    _locks.pop(reference, None)


def _there() -> list[Any]:
    """The locks there are; of one moment, whatever other threads make and drop meanwhile."""
    found = [reference() for reference in list(_locks)]  # unlike `tuple`, in one piece
    return [lock for lock in found if lock is not None]


def wait_for(lock: Any, name: str) -> None:
    """Take an arena's lock that another thread has.

    Raises RuntimeError if this thread holds another one, and has waited `PATIENCE` seconds.
    """
    while not lock.acquire(True, PATIENCE):
        if any(other is not lock and other._is_owned() for other in _there()):
            raise RuntimeError(
                f"memory on {name} was asked for in the middle of an allocation elsewhere, and "
                f"another thread has kept {name} for {PATIENCE:g} s, which may wait for this one; "
                "wanted finalizers and signal handlers that allocate nothing on a second device")


def _before() -> None:
    _forking.acquire()
    for lock in reversed(_there()):
        lock.acquire()
        _held.append(lock)


def _after() -> None:
    while _held:
        with suppress(RuntimeError):  # one that cannot be let go must not keep the others
            _held.pop().release()
    with suppress(RuntimeError):  # an interrupt came before it was taken
        _forking.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_after)

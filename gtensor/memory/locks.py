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
from itertools import count
from threading import RLock
from typing import Any
from weakref import WeakValueDictionary

_forking = RLock()  # one fork at a time
_numbers = count()
_locks: WeakValueDictionary[int, object] = WeakValueDictionary()
_held: list[object] = []
PATIENCE = 10.0  # seconds to wait for another arena in the middle of a change


def free_at_forks(*locks: object) -> None:
    """Let a fork wait for these locks, and the child have them free."""
    with _forking:
        for lock in locks:
            _locks[next(_numbers)] = lock


def wait_for(lock: Any, name: str) -> None:
    """Take an arena's lock that another thread has.

    Raises RuntimeError if this thread holds another one, and has waited `PATIENCE` seconds.
    """
    others: tuple[Any, ...] = tuple(_locks.values())
    within = any(other is not lock and other._is_owned() for other in others)
    if not lock.acquire(True, PATIENCE if within else -1):
        raise RuntimeError(
            f"memory on {name} was asked for in the middle of an allocation elsewhere, and another "
            f"thread has kept {name} for {PATIENCE:g} s, which may wait for this one; wanted "
            "finalizers and signal handlers that allocate nothing on a second device")


def _before() -> None:
    _forking.acquire()
    for _, lock in sorted(_locks.items(), reverse=True):
        lock.acquire()  # type: ignore[attr-defined]
        _held.append(lock)


def _after() -> None:
    while _held:
        with suppress(RuntimeError):  # one that cannot be let go must not keep the others
            _held.pop().release()  # type: ignore[attr-defined]
    with suppress(RuntimeError):  # an interrupt came before it was taken
        _forking.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_after)

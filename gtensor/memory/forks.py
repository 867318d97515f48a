"""Locks at a fork: nobody else holds them then, so the child has what they guard whole, and free.

A child has only the thread that forked. Without this it would wait for ever for a lock that another
thread held, over pools that were being changed. Newest first, since what is built over an arena
takes its own lock before the arena's.
"""

from __future__ import annotations

import os
from contextlib import suppress
from itertools import count
from threading import RLock
from weakref import WeakValueDictionary

_forking = RLock()  # one fork at a time
_numbers = count()
_locks: WeakValueDictionary[int, object] = WeakValueDictionary()
_held: list[object] = []


def free_at_forks(*locks: object) -> None:
    """Let a fork wait for these locks, and the child have them free."""
    with _forking:
        for lock in locks:
            _locks[next(_numbers)] = lock


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

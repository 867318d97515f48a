"""Code that an interrupt (Ctrl-C, a signal handler that raises) must not split.

CPython delivers signals at the entry of a function, at a jump back and at the end of a call: never
between two stores, and never within a C call. So changes that must be complete are written as
stores, or made one C call by `in_turn`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from operator import call


def in_turn(*calls: Callable[[], object]) -> Callable[[], object]:
    """A C callable that makes these calls once, at its first call; an error ends them."""
    return partial(deque, map(call, calls), 0)

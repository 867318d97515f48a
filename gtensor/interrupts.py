"""What an interrupt (Ctrl-C, a signal handler that raises) must not cut in two.

CPython delivers signals at the entry of a function, at a jump back and at the end of a call: never
between two stores, and never within a call of C's. So what must happen as a whole is written as
stores, or made one call of C's by `in_turn`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from operator import call


def in_turn(*calls: Callable[[], object]) -> Callable[[], object]:
    """A call of C's that makes these calls, the first time it is made; an error ends them."""
    return partial(deque, map(call, calls), 0)

"""The module, phase and user's line that run when memory is allocated; kept only for listeners.

A hot path reads only `listeners`, which is mostly empty.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType
from typing import Protocol


class Listener(Protocol):
    """A recorder of allocations."""

    def mark(self, phase: str, begins: bool) -> None:
        """A phase begins or ends in this thread."""


class _Here(threading.local):
    """State of this thread.

    `module` is the running nn.Module's dotted path, `phase` is "backward", "update" or "", and
    `instruction` is, in a backward pass, the user's instruction that recorded the running rule.
    """

    module = ""
    phase = ""
    instruction: tuple[CodeType, int] | None = None


here = _Here()
listeners: list[Listener] = []


@contextmanager
def phase(name: str) -> Iterator[None]:
    """Mark the block as a phase of a training step; listeners are called at both ends."""
    if not listeners:
        yield
        return
    told = tuple(listeners)
    before = here.phase, here.module, here.instruction
    try:
        here.phase = name
        for listener in told:
            listener.mark(name, True)
        yield
    finally:
        here.phase, here.module, here.instruction = before
        for listener in told:
            listener.mark(name, False)

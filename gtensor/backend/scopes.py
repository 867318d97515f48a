"""What a program is doing when it asks for memory; kept only while somebody listens.

`listeners` is empty when nobody does, and it is all that a hot path looks at.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType
from typing import Protocol


class Listener(Protocol):
    """Somebody who records where memory goes."""

    def mark(self, phase: str, begins: bool) -> None:
        """A phase begins or ends in this thread."""


class _Here(threading.local):
    """Of this thread: the running nn.Module's dotted path, the phase ("backward", "update", ""
    for all else), and in a backward the user's instruction that the running rule belongs to."""

    module = ""
    phase = ""
    instruction: tuple[CodeType, int] | None = None


here = _Here()
listeners: list[Listener] = []


@contextmanager
def phase(name: str) -> Iterator[None]:
    """The block is this phase of a training step; those who listen are told when it ends, too."""
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

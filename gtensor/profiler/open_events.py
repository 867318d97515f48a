"""What a listener notes at the begin of an event, until its end."""

from __future__ import annotations

import threading
from typing import Generic, TypeVar

T = TypeVar("T")


class Open(threading.local, Generic[T]):
    """What a listener noted at the begin of the events that have not ended, per thread."""

    def __init__(self) -> None:
        self.stack: list[tuple[object, T]] = []

    def push(self, event: object, noted: T) -> None:
        """Note something at the begin of an event."""
        self.stack.append((event, noted))

    def taken(self, event: object) -> list[T]:
        """What was noted at the begin of the event, or nothing; other events stay as they are."""
        stack = self.stack
        for at in range(len(stack) - 1, -1, -1):
            if stack[at][0] is event:
                return [stack.pop(at)[1]]
        return []

    def pop(self, event: object) -> list[T]:
        """What was noted at the begin of the event, first, and of events in it without an end.

        An interrupt can take the end of an inner event. Empty if the begin was not noted.
        """
        stack = self.stack
        at = next((i for i, (one, _) in enumerate(stack) if one is event), len(stack))
        found = [noted for _, noted in stack[at:]]
        del stack[at:]
        return found

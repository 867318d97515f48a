"""Callbacks at the frees of blocks. A free is a C call, so each block is listened to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gtensor.system.interrupts import in_turn


class FreeAndNotify:
    """The `__del__` of a block with listeners: it calls each with its key, then frees the block.

    If an interrupt comes at the entry, dropping this object still frees the block.
    """

    __slots__ = ("__del__", "listeners")

    listeners: tuple[tuple[FreeListener, Any], ...]
    __del__: Callable[[], object]

    def __call__(self) -> None:
        try:
            for listener, key in self.listeners:  # before the free: the bytes are still the block's
                listener.notify(key)
        finally:
            self.__del__()


class FreeListener:
    """Calls `callback(key)` at the frees of blocks until `close`.

    Blocks refer to this object, which drops the callback at `close`.
    """

    def __init__(self, callback: Callable[[Any], None]) -> None:
        self._callback: Callable[[Any], None] | None = callback

    def listen(self, block: Any, key: object) -> None:
        """Call `callback(key)` when the block is freed."""
        hook: Any = block.__del__
        if type(hook) is not FreeAndNotify:
            free, hook = in_turn(hook), FreeAndNotify()
            hook.listeners = ()
            block.__del__ = hook  # stores: an interrupt would lose the free
            hook.__del__ = free
        hook.listeners = (*(pair for pair in hook.listeners if not pair[0].closed), (self, key))

    def notify(self, key: object) -> None:
        """A block is freed."""
        callback = self._callback
        if callback is not None:
            callback(key)

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._callback is None

    def close(self) -> None:
        """Stop listening."""
        self._callback = None

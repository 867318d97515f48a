"""Hooks: functions that are called in the order in which they were registered."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, TypeVar

H = TypeVar("H", bound=Callable[..., Any])
_next_id = itertools.count().__next__


class RemovableHandle:
    """One registered hook; `remove()`, or the end of a `with` block, removes it."""

    def __init__(self, hooks: dict[int, H], hook: H) -> None:
        if not callable(hook):
            raise TypeError(f"a hook was given as {type(hook).__name__}; wanted a function")
        _count("registered", hook)
        self._hooks = hooks
        self.id = _next_id()
        hooks[self.id] = hook

    def remove(self) -> None:
        """Remove the hook; a second call does nothing."""
        if self.id in self._hooks:
            _count("removed", self._hooks[self.id])
        self._hooks.pop(self.id, None)

    def __enter__(self) -> RemovableHandle:
        return self

    def __exit__(self, *exception: object) -> None:
        self.remove()


def _count(how: str, hook: object) -> None:
    from gtensor.system import structure

    structure.changed(f"a hook was {how}: {getattr(hook, '__qualname__', type(hook).__name__)}")

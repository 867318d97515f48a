"""Code that an interrupt (Ctrl-C, a signal handler that raises) must not split.

CPython delivers signals at the entry of a function, at a jump back and at the end of a call: never
between two stores, and never within a C call. The rule is:

    a change that must be complete is written as stores, from the comment "stores" on, or made one C
        call by `in_turn`; a longer one is a block `with undivided():`
    what a block must undo can be undone twice, and a block `with` an object of class `Undone` does
        so: an error and an interrupt end it alike, and an interrupt within `undo` starts it again;
        what is undone changes only within that block
    `except BaseException` with the comment "undone" is for what is undone after an error only, and
        raises it again; with "delivered", for where none may pass: into C, or out of a thread
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # signal.signal looks up two enumerations: 7 us
from collections import deque
from collections.abc import Callable
from functools import partial
from operator import call
from typing import Any

_INTERRUPT = _signal.SIGINT


def in_turn(*calls: Callable[[], object]) -> Callable[[], object]:
    """A C callable that makes these calls once, at its first call; an error ends them."""
    return partial(deque, map(call, calls), 0)


class Undone:
    """A block `with` it is undone at its end, also by an interrupt, which no `finally` promises.

    `undo` may be called more than once. If an interrupt comes at the entry of `__exit__`, it is
    called when this object is collected with the traceback, so nothing else may refer to it.
    """

    _within = False

    def __init__(self, undo: Callable[[], object]) -> None:
        self.undo = undo

    def __enter__(self) -> None:
        self._within = True

    def __exit__(self, *exception: object) -> None:
        try:
            self.undo()
        except BaseException:  # undone
            self.undo()
            raise
        self._within = False

    def __del__(self) -> None:
        if self._within:
            self.undo()


class undivided:
    """Within the block SIGINT is only noted; at its end the handler is called, once, if it came.

    In other threads than the main one, in which handlers run, the block does nothing; nor does it
    where the handler is not Python's, as SIGINT then ends the process, or is ignored. A handler of
    another signal that raises ends the block. If it does so at the entry of `__exit__`, `__del__`
    restores the handler.
    """

    _before: Any = None  # the handler, within the block

    def __enter__(self) -> None:
        before = _signal.getsignal(_INTERRUPT)
        if not callable(before):
            return
        self._before = before
        self._noted: list[Any] = []  # numbers and frames
        try:
            # a function that has no reference to this object, so that it can be collected
            _signal.signal(_INTERRUPT, partial(self._note, self._noted, before))
        except ValueError:  # not the main thread
            self._before = None

    @staticmethod
    def _note(noted: list[Any], before: Callable[..., object], *given: Any) -> None:
        noted.append(given)

    def __exit__(self, *exception: object) -> None:
        before = self._before
        if before is not None:
            _signal.signal(_INTERRUPT, before)
            self._before = None
            if self._noted:
                before(*self._noted[0])

    def __del__(self) -> None:
        if self._before is not None:
            self.__exit__()


class undivided_wait(undivided):
    """The same for a block that waits for other processes: a second SIGINT ends it.

    The handler is then called at once, for both. Blocks of `undivided` within it stay whole.
    """

    @staticmethod
    def _note(noted: list[Any], before: Callable[..., object], *given: Any) -> None:
        noted.append(given)
        if len(noted) > 1:
            both = noted[:]
            noted.clear()
            for each in both:
                before(*each)

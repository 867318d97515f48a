"""The structure epoch: a number that changes whenever a recorded step may no longer be the same.

`gt.capture` runs Python once and then repeats what it recorded. What Python would have noticed at
each call, such as another mode of a module, a parameter that was replaced or a hook, is counted
here by the code that changes it. Values are not structure: writes into tensors, steps of
optimizers and their numbers are not counted.

The code that changes something calls `changed`, right before the change, so that an interrupt
between the two is noticed, too. `epoch` is read at each call of a recorded step and compared for
equality: no value comes twice, but two threads may store theirs in the other order.

Modules that were made since the last recording, such as a loss that is made in each step, are in no
recorded step. They carry the present `age`, and what happens to them is not counted.
"""

from __future__ import annotations

from collections import deque
from itertools import count

_KEPT = 32  # latest changes, to name them
_REPR = (float, complex)  # told apart by their text: 0.0 from -0.0, and nan is itself
_PLAIN = (bool, int, str, bytes, type(None))


class _Age:
    """A time between two recordings; copies and pickles of it are of no time."""

    def __reduce__(self) -> tuple[object, ...]:
        return type(None), ()


epoch = 0
age = _Age()
_next = count(1).__next__
_changes: deque[tuple[int, str]] = deque(maxlen=_KEPT)


def changed(what: str) -> None:
    """Something is about to change, which `what` says: "Dropout.p was set"."""
    global epoch
    number = _next()
    _changes.append((number, what))
    epoch = number


def settle() -> int:
    """The epoch for a step that was recorded just now. Modules that are alive count from here on.

    A recorded step keeps this number; to keep `epoch` alone would miss changes of modules that were
    made while it was recorded.
    """
    global age
    age = _Age()
    return epoch


def since(number: int) -> list[str]:
    """What has changed after the epoch `number`, oldest first, each once; the last ones of many."""
    return [*dict.fromkeys([what for at, what in [*_changes] if at > number])]


def same(old: object, new: object) -> bool:
    """Whether a value is set to itself: one object, or equal numbers, texts and tuples of these."""
    if old is new:
        return True
    kind = type(old)
    if kind is not type(new):
        return False
    if kind in _REPR:
        return repr(old) == repr(new)
    if isinstance(old, tuple) and isinstance(new, tuple):
        return len(old) == len(new) and all(map(same, old, new))
    return kind in _PLAIN and old == new

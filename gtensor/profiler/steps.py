"""The steady state of a program: some steps of it, after others that warm it up."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from gtensor.system.bus import PhaseEvent


class Steps:
    """A listener that calls `begin` after the first steps and `end` after those that follow.

    A step ends with the update of an optimizer; those of all threads count.

    Args:
        steps: (first, count): those before `begin`, which is called at once for 0, and those
            between `begin` and `end`.

    Raises ValueError unless `first` is an integer of at least 0 and `count` of at least 1.
    """

    def __init__(self, steps: tuple[int, int], begin: Callable[[], object],
                 end: Callable[[], object]) -> None:
        if (not isinstance(steps, tuple) or [type(number) for number in steps] != [int, int]
                or steps[0] < 0 or steps[1] < 1):
            raise ValueError(f"steps={steps!r} was given; wanted (first, count), integers of at "
                             "least 0 and 1")
        first, count = steps
        self._next = itertools.count(1).__next__  # one call of C, so that threads count right
        self._calls = {first: begin, first + count: end}
        if first == 0:
            begin()

    def phase_ends(self, event: PhaseEvent) -> None:
        """Count an update."""
        if event.name == "update":
            call = self._calls.get(self._next())
            if call is not None:
                call()


def parsed(text: str) -> tuple[int, int]:
    """The numbers of "FIRST:COUNT", such as "5:20". ValueError for another text."""
    first, colon, count = text.partition(":")
    if not (colon and first.isdecimal() and count.isdecimal() and int(count)):
        raise ValueError(f"{text!r} given; wanted FIRST:COUNT, such as 5:20 for 20 steps after the "
                         "first 5")
    return int(first), int(count)

"""Limits and watermarks: sizes in bytes, as texts, or as fractions."""

from __future__ import annotations

import re
from collections.abc import Callable
from numbers import Integral, Real
from threading import RLock

from gtensor.system.fork_safety import free_at_forks

_UNITS = {"": 1, "B": 1, **{unit + "B": 1000**power for power, unit in enumerate("KMGT", 1)},
          **{unit + "IB": 1024**power for power, unit in enumerate("KMGT", 1)}}


def size_of(size: int | str) -> int:
    """Bytes of 500, "500", "500 MB" (10^6 each) or "5GiB" (2^30 each). Raises ValueError."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", str(size).strip())
    if found and found[2].upper() in _UNITS:
        from fractions import Fraction  # here, because it imports the module decimal

        nbytes = int(Fraction(found[1]) * _UNITS[found[2].upper()])
        if nbytes > 0:
            return nbytes
    raise ValueError(f"size {size!r} given; wanted bytes above 0, or a text as '5GB' or '500MiB'")


def amount_of(amount: int | float | str, whole: Callable[[], int]) -> int:
    """Bytes of a size as in `size_of`, or of a fraction of `whole()` bytes: 0.5, "50%".

    Raises TypeError for another type, ValueError for a fraction not in (0, 1].
    """
    if isinstance(amount, bool) or not isinstance(amount, str | Real):
        raise TypeError(f"{amount!r} was given; wanted bytes as an integer, a part as 0.5 or "
                        "'50%', or a text as '8GB'")
    if isinstance(amount, Integral):
        return int(amount)
    if isinstance(amount, str):
        if not amount.strip().endswith("%"):
            return size_of(amount)
        try:
            part = float(amount.strip()[:-1]) / 100
        except ValueError:
            raise ValueError(f"{amount!r} given; wanted a percentage as '50%'") from None
    else:
        part = float(amount)
    if not 0 < part <= 1:
        raise ValueError(f"{amount!r} given; wanted a part of the device above 0 and up to 1, or "
                         "bytes as an integer")
    return int(part * whole())


def stepped(size: int, steps: int, least: int) -> int:
    """The size rounded up to one of `steps` even steps in its power of two, if those are larger
    than `least` bytes."""
    step = (1 << (size - 1).bit_length() - 1) // steps
    return size if step <= least else (size + step - 1) & -step


class Watermark:
    """A callback at a level of live bytes; `remove()` ends it.

    `nbytes` is the level. `gt.memory.on_watermark` makes one.
    """

    def __init__(self, marks: Watermarks, nbytes: int, callback: Callable[[int], object]) -> None:
        self.nbytes = nbytes
        self.callback = callback
        self.running = False
        self._marks = marks

    def remove(self) -> None:
        """End the calls. A second call does nothing."""
        self._marks.remove(self)


class Watermarks:
    """The watermarks of one arena."""

    def __init__(self) -> None:
        self._all: tuple[Watermark, ...] = ()  # replaced, never changed: threads iterate over it
        self._replacing = RLock()
        free_at_forks(self._replacing)

    def add(self, nbytes: int, callback: Callable[[int], object]) -> Watermark:
        """A new watermark; raises ValueError for negative bytes, TypeError for no callback."""
        if not callable(callback):
            raise TypeError(f"callback {callback!r} was given for a watermark; wanted a function "
                            "of the live bytes")
        if nbytes < 0:
            raise ValueError(f"a watermark of {nbytes} bytes was given; wanted 0 or more")
        mark = Watermark(self, nbytes, callback)
        with self._replacing:
            self._all = (*self._all, mark)
        return mark

    def remove(self, mark: Watermark) -> None:
        """Remove a watermark."""
        with self._replacing:
            self._all = tuple([other for other in self._all if other is not mark])

    def below(self, nbytes: int) -> int:
        """The lowest watermark, `nbytes` at most."""
        return min([nbytes, *(mark.nbytes for mark in self._all)])

    def passed(self, before: int, after: int) -> bool:
        """Whether a rise passes a watermark."""
        return any(before <= mark.nbytes < after for mark in self._all)

    def call(self, now: int, rise: int) -> None:
        """Call the watermarks that a rise by `rise` bytes to `now` passed, lowest first.

        A callback's own allocations do not call it again.
        """
        for mark in sorted(self._all, key=lambda mark: mark.nbytes):
            if now - rise <= mark.nbytes < now and not mark.running:
                mark.running = True
                try:
                    mark.callback(now)
                finally:
                    mark.running = False

"""How many positions of a cache are filled: a number of Python's that captured steps follow."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np

from gtensor.backend import Device, host
from gtensor.engine.handle.context import again
from gtensor.engine.handle.tensor import Tensor, wrap
from gtensor.system.bus import here

if TYPE_CHECKING:
    from gtensor.backend.ordering import Replays
    from gtensor.backend.typing import Array


class NewPositions(NamedTuple):
    """The positions that a call adds to a cache.

    `first` is the first of them, without axes. In a captured step, where each replay has another
    one, it lies on the caches' device, and `start`, the same as Python's number, is None.
    """

    first: Tensor
    start: int | None


class CacheLength:
    """How many positions are filled, `number` of `capacity`, in all caches of a model on a device.

    A captured step follows it: a replay writes the positions that come next, counts them, and
    raises ValueError beyond the capacity, with nothing done. So does that of a `gt.Graph`.
    """

    def __init__(self, capacity: int, device: Device) -> None:
        self.capacity, self.device = capacity, device
        self._number = self._next = 0
        self._new: NewPositions | None = None  # of the block that runs

    @property
    def number(self) -> int:
        """The positions that are filled; those behind a smaller number are forgotten.

        A captured step may set it, not read it: CaptureError tells of that.
        """
        if here.recorder is not None:
            here.recorder.refuse(
                "the length of a cache was read: a replay would go on with that of the recording; "
                "read it before or after the step")
        return self._number

    @number.setter
    def number(self, number: int) -> None:
        if not 0 <= number <= self.capacity:
            raise ValueError(f"a length of {number} was given to a cache of {self.capacity} "
                             "positions; wanted at most as many")
        _set(self, number)

    @contextmanager
    def adding(self, count: int) -> Iterator[NewPositions]:
        """Within the block `count` positions are written; they are filled behind it.

        One within another is a part of that. Raises ValueError beyond the capacity.
        """
        if self._new is not None:
            yield self._new
            return
        live = here.recorder is not None or self.device.capturing()
        first = _first(self, count, self.device if live else host())
        try:
            self._new = NewPositions(first, None if live else self._number)
            yield self._new
        finally:
            self._new = None
        _count(self)

    def after(self, start: int, count: int) -> int:
        """The number after `count` positions from `start` on. Raises ValueError beyond capacity."""
        if start + count > self.capacity:
            raise ValueError(f"a cache of {self.capacity} positions was given positions {start} to "
                             f"{start + count}; wanted no more than it holds")
        return start + count


@again
def _set(length: CacheLength, number: int) -> None:
    """Set the number; a graph's is set by its replays."""
    replays = length.device.replays()
    if replays is None:
        length._number = number
    else:
        _of_replay(length, replays).parts.append((None, number))


@again
def _first(length: CacheLength, count: int, device: Device) -> Tensor:
    """The first of so many new positions, on a device: its number now, or at each replay."""
    replays = length.device.replays()
    if replays is None:
        length._next = length.after(length._number, count)
        return wrap(device.from_numpy(np.array(length._number, np.int64)), device)
    place = replays.empty((1,), np.int64, "positions")
    _of_replay(length, replays).parts.append((place, count))
    return wrap(place[0, ...], device)


@again
def _count(length: CacheLength) -> None:
    """Count the positions that `_first` has begun; a graph's are counted by its replays."""
    if length.device.replays() is None:
        length._number = length._next


class _Replay:
    """What a replay of a graph does to a length; a call does it, before the replay.

    `parts` has, in order, memory in which the graph reads the first of so many new positions; with
    None in its place, numbers that are set.
    """

    def __init__(self, length: CacheLength) -> None:
        self._length = length
        self.parts: list[tuple[Array | None, int]] = []

    def __call__(self) -> None:
        length, firsts = self._length, []
        number = length._number
        for place, count in self.parts:
            if place is not None:
                firsts.append((place, number))
            number = count if place is None else length.after(number, count)
        for place, first in firsts:
            length.device.upload(place, (first,))
        length._number = number


def _of_replay(length: CacheLength, replays: Replays) -> _Replay:
    return cast("_Replay", replays.functions.setdefault(length, _Replay(length)))

"""How many positions of a cache are filled: a number of Python's that captured steps follow."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gtensor.backend import Device, host
from gtensor.engine.handle.context import again
from gtensor.engine.handle.tensor import Tensor, wrap
from gtensor.system.bus import here

if TYPE_CHECKING:
    from gtensor.backend.typing import Array


class NewPositions(NamedTuple):
    """The positions that a call adds to a cache.

    `first` is the first of them, without axes. In a captured step, where each replay has another
    one, it lies on the caches' device, and `start`, the same as Python's number, is None.
    """

    first: Tensor
    start: int | None


class CacheLength:
    """How many positions are filled, `number` of `capacity`, in all caches of a model.

    A captured step reads it when it is replayed: a replay writes the positions that follow, counts
    them, and raises ValueError beyond the capacity, with nothing done. So does a `gt.Graph`.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._number = self._next = 0
        self._new: NewPositions | None = None  # of the block that runs

    @property
    def number(self) -> int:
        """The positions that are filled; those behind a smaller number are forgotten."""
        return self._number

    @number.setter
    def number(self, number: int) -> None:
        if not 0 <= number <= self.capacity:
            raise ValueError(f"a length of {number} was given to a cache of {self.capacity} "
                             "positions; wanted at most as many")
        self._number = number

    @contextmanager
    def adding(self, count: int, device: Device) -> Iterator[NewPositions]:
        """Within the block `count` positions are written on a device; they are filled behind it.

        One within another is a part of that. Raises ValueError beyond the capacity.
        """
        if self._new is not None:
            yield self._new
            return
        live = here.recorder is not None or device.capturing()
        first = _first(self, count, device if live else host())
        try:
            self._new = NewPositions(first, None if live else self._number)
            yield self._new
        finally:
            self._new = None
        _count(self, device)

    def after(self, count: int) -> int:
        """The number with so many more. Raises ValueError beyond the capacity."""
        number = self._number + count
        if number > self.capacity:
            raise ValueError(f"a cache of {self.capacity} positions was given positions "
                             f"{self._number} to {number}; wanted no more than it holds")
        return number


@again
def _first(length: CacheLength, count: int, device: Device) -> Tensor:
    """The first of so many new positions, on a device: its number now, or at each replay."""
    replays = device.replays()
    if replays is None:
        length._next = length.after(count)
        return wrap(device.from_numpy(np.array(length.number, np.int64)), device)
    added = replays.functions.setdefault(length, _Added(length, device, replays.empty))
    assert isinstance(added, _Added)
    return wrap(added.place_of(count), device)


@again
def _count(length: CacheLength, device: Device) -> None:
    """Count the positions that `_first` has begun; replays of a graph have counted them."""
    if device.replays() is None:
        length.number = length._next


class _Added:
    """The positions that a replay of a graph adds; a call counts them, before it."""

    def __init__(self, length: CacheLength, device: Device, empty: Callable[..., Array]) -> None:
        self._length, self._device, self._empty = length, device, empty
        self._count = 0
        self._firsts: list[tuple[Array, int]] = []  # its memory, positions of the replay before

    def place_of(self, count: int) -> Array:
        """Memory in which the graph reads the first of so many positions more."""
        place = self._empty((1,), np.int64, "positions")
        self._firsts.append((place, self._count))
        self._count += count
        return place[0, ...]

    def __call__(self) -> None:
        start, stop = self._length.number, self._length.after(self._count)
        for place, before in self._firsts:
            self._device.upload(place, (start + before,))
        self._length.number = stop

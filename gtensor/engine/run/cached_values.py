"""Values computed from tensors and kept until a tensor's memory is written.

A write through gtensor is counted. Other code writes through arrays that left (`.numpy()`,
`.array`, DLPack) or that a tensor was made over: while one lives nothing is kept, and what was kept
before is computed anew.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Generic, TypeVar

from gtensor.engine.handle.saved import Counted, replayed
from gtensor.engine.handle.storage import Storage
from gtensor.engine.handle.tensor import Tensor
from gtensor.system.bus import bus, here

T = TypeVar("T")


class CachedValue(Generic[T]):
    """A value of some tensors, kept until their memory, or its own, is written.

    Nothing is locked: what is kept is one tuple, stored and read at once.
    """

    __slots__ = ("_kept",)

    _kept: tuple[Hashable, _Facts, _Facts, T] | None

    def __init__(self) -> None:
        self._kept = None

    def __reduce__(self) -> tuple[object, ...]:
        return CachedValue, ()  # also of copies: of other storages

    def get(
        self, tensors: Sequence[Tensor], compute: Callable[[], T], key: Hashable = None
    ) -> T:
        """The kept value for these tensors and this key, else compute().

        In the capture of a graph, or the recording of a step, it is computed anew, since only
        replays give it its values.
        """
        if bus.listeners and here.recorder is not None or any(
                tensor._device.capturing() for tensor in tensors):
            return compute()
        kept = self._kept  # read once: another thread may store one
        if kept is not None and kept[0] == key and kept[1].hold(tensors):
            value = kept[3]
            if not isinstance(value, Tensor) or kept[2].hold((value,)):
                return value
            del value
        del kept  # compute may write its memory again
        facts = _Facts(tensors)  # before the values are read: a write meanwhile must be seen
        value = compute()
        own = _Facts((value,) if isinstance(value, Tensor) else ())
        self._kept = key, facts, own, value
        return value

    def drop(self) -> None:
        """Keep nothing."""
        self._kept = None


class _Facts:
    """Which arrays some tensors had, and how often the storage of each was written and left."""

    __slots__ = ("arrays", "replays", "within")

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.arrays: list[tuple[weakref.ref[Any], weakref.ref[Storage], int, int]] = []
        self.within = True  # whether gtensor alone could write them
        self.replays: list[tuple[Counted, int]] = []
        for tensor in tensors:
            storage = tensor._own_storage()
            self.arrays.append(
                (weakref.ref(tensor._array), weakref.ref(storage), storage.version,
                 storage.exports))
            self.within = self.within and not storage.outside
            if tensor._device.graphs:
                self.replays += [
                    guard[:2] for guard in replayed(tensor._array, tensor._device)]

    def hold(self, tensors: Sequence[Tensor]) -> bool:
        """Whether these are the tensors, not written since."""
        if len(tensors) != len(self.arrays) or not self.within:
            return False
        for tensor, (array, ref, version, exports) in zip(tensors, self.arrays, strict=True):
            storage = tensor._storage  # views share it
            if (array() is not tensor._array or ref() is not storage
                    or storage.version != version or storage.exports != exports):
                return False
        return all(counted.version == version for counted, version in self.replays)

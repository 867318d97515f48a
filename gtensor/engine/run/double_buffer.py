"""Tensors that are renewed again and again while records keep their older values."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from gtensor.backend import Device, owner
from gtensor.engine.handle.storage import Storage
from gtensor.engine.handle.tensor import Tensor, wrap

if TYPE_CHECKING:
    from gtensor.backend.typing import Array


class _Buffer:
    """An array, and the storages made for its memory: a dead one has no handle or record left."""

    __slots__ = ("array", "device", "outside", "storages")

    def __init__(self, array: Array, device: Device) -> None:
        self.array = array
        self.device = device
        self.storages: list[weakref.ref[Storage]] = []
        self.outside: set[Any] = set()  # of each storage: arrays that left may outlive it

    def join(self, storage: Storage) -> None:
        """Add a storage of this memory."""
        self.storages.append(weakref.ref(storage))
        # A storage that has a set already is of memory made outside: a None is in it for good.
        self.outside = storage.lent_with(self.outside)
        storage.exported = storage.exported or bool(self.outside)

    def held(self) -> bool:
        """Whether a tensor has the memory, or an open record saved it."""
        self.storages = [ref for ref in self.storages if ref() is not None]
        return bool(self.storages)

    def fits(self, like: _Buffer) -> bool:
        array, other = self.array, like.array
        return (array.shape == other.shape and array.dtype == other.dtype
                and self.device is like.device)


class DoubleBuffer:
    """The memory of one tensor, whose older values records and handles may have.

    A tensor has its storage, and so has the guard of a record that saved it, until the record is
    consumed or dropped. So a buffer is free when all storages made for it are dead. There is at
    most one buffer more than were held at once.

    Callers hold one lock from `turn` until they have written, and where they take the tensor from
    its holder: a record of another thread would save a value that is about to be overwritten.
    """

    def __init__(self) -> None:
        self._buffers: list[_Buffer] = []

    def __reduce__(self) -> tuple[object, ...]:
        return DoubleBuffer, ()  # also of copies, which have memory of their own

    def turn(
        self, holder: dict[str, Tensor | None], name: str, keep: bool = True
    ) -> tuple[Tensor, Tensor]:
        """`holder[name]`, and the tensor to write its next values into.

        They are one tensor if nothing but the holder has the old one: callers have it in no local
        variable. Without `keep`, buffers that are free are dropped first.
        """
        before: Any = holder[name]
        current = self._find(before._array, before._device)
        current.join(before._own_storage())
        holder[name] = source = wrap(before._array, before._device, Storage())
        del before
        if not keep:
            self.drop_free()
        target = wrap(self._next(current), current.device, Storage()) if current.held() \
            else source
        for tensor in (source, target):
            self._find(tensor._array, tensor._device).join(tensor._storage)
        return source, target

    def drop_free(self) -> None:
        """Drop the buffers that nothing has."""
        self._buffers = [buffer for buffer in self._buffers if buffer.held()]

    def _find(self, array: Array, device: Device) -> _Buffer:
        """The buffer of that memory; a new one for memory that came from elsewhere."""
        for buffer in self._buffers:
            if owner(buffer.array) is owner(array):
                return buffer
        self._buffers.append(_Buffer(array, device))
        return self._buffers[-1]

    def _next(self, current: _Buffer) -> Array:
        """The array of a free buffer, or a new one. Free ones that do not fit are dropped."""
        for buffer in [*self._buffers]:
            if buffer is current or buffer.held():
                continue
            if buffer.fits(current):
                return buffer.array
            self._buffers.remove(buffer)
        like = current.array
        return current.device.empty(like.shape, like.dtype, "renewed")

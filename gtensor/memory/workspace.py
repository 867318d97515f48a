"""Workspaces: named scratch buffers, allocated once and reused."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Iterable
from contextlib import AbstractContextManager
from math import prod
from operator import index
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gtensor.backend import Device, element_type, get_device
from gtensor.backend.layouts import address
from gtensor.backend.streams import Stream
from gtensor.memory.contract.adaptors import category
from gtensor.memory.contract.report import size_text
from gtensor.memory.contract.resource import OutOfMemoryError, Resource
from gtensor.memory.serving import Slot, named, serving
from gtensor.system.fork_safety import free_at_forks

if TYPE_CHECKING:
    from gtensor.backend.typing import DTypeLike

_LEAST = 512  # bytes of the smallest buffer

_Key = tuple[str, int, int]  # name, stream, thread


class _Thread(threading.local):
    """The running thread: a unique number (idents are reused), and an object that ends with it."""

    _numbers = itertools.count()

    def __init__(self) -> None:
        self.number = next(self._numbers)
        self.life = _Life()


class _Life:
    """An object of one thread; a dead weak reference to it means that the thread has ended."""


_thread = _Thread()


class BufferUsage(NamedTuple):
    """One name of a workspace, over all streams and threads; sizes in bytes.

    `capacity` of its buffers, `in_use` by the latest arrays, `retired` held by arrays over outgrown
    buffers, `generation` how many buffers one stream has had (the maximum over streams).
    """

    capacity: int
    in_use: int
    retired: int
    generation: int


class WorkspaceUsage(NamedTuple):
    """`buffers` by name, and sums over all of them; `held` counts against the limit."""

    buffers: dict[str, BufferUsage]
    capacity: int
    in_use: int
    retired: int
    held: int


class _Buffer:
    __slots__ = ("array", "capacity", "generation", "in_use", "life", "retired", "stream")

    def __init__(self, stream: weakref.ref[Stream], life: weakref.ref[_Life]) -> None:
        self.stream = stream
        self.life = life  # of its thread
        self.array: Any = None  # flat uint8, None before the first and after the last
        self.capacity = 0
        self.in_use = 0
        self.generation = 0
        self.retired: list[tuple[weakref.ref[Any], int]] = []

    @property
    def gone(self) -> bool:
        """Whether its stream or its thread has ended, so it cannot be requested again."""
        return self.stream() is None or self.life() is None

    def retire(self) -> None:
        """Drop its array; arrays that view it keep the bytes."""
        old = weakref.ref(self.array)
        self.array = None
        if old() is not None:
            self.retired.append((old, self.capacity))
        self.capacity = self.in_use = 0

    def still_viewed(self) -> int:
        """Bytes of outgrown buffers that arrays still view; forgets the other buffers."""
        self.retired = [(ref, nbytes) for ref, nbytes in self.retired if ref() is not None]
        return sum(nbytes for _, nbytes in self.retired)


class Workspace:
    """Named scratch buffers on a device, of power-of-two capacity, that grow and are kept.

    `get(name, shape, dtype)` returns an uninitialized array over the buffer of that name. The next
    `get` of the name has the same bytes, unless it exceeds the capacity: then a new buffer of the
    next generation is made, and the old one lives as long as an array views it. Each stream and
    each thread has its own buffers, since their work is not ordered; those of ended streams and
    threads are freed before a new one is made.

    `limit` bounds the bytes that the workspace holds, with outgrown buffers that arrays still view;
    None for no limit. `allocations` counts the buffers made, `bytes_saved` the bytes of arrays that
    needed no new buffer. Timelines show the category "workspace".

        with gt.memory.Workspace() as ws:
            columns = ws.get("columns", (64, 576), np.float32)

    Ops allocate their results there without knowing it: under `named`, within `serving`.

        with ws.serving():
            with ws.named("norm output"):
                y = F.rms_norm(x, 256)
    """

    def __init__(self, device: Device | str | None = None, limit: int | None = None) -> None:
        if limit is not None:
            limit = _bytes(limit, f"a limit of {limit!r} was given", ", or None")
        self.device = get_device(device)
        self.limit = limit
        self.allocations = 0
        self.bytes_saved = 0
        self._buffers: dict[_Key, _Buffer] = {}
        self._slots: dict[tuple[str, int, int], Slot] = {}  # name, index, stream
        self._lock = threading.RLock()
        free_at_forks(self._lock)

    def get(self, name: str, shape: int | Iterable[int], dtype: DTypeLike) -> Any:
        """An uninitialized C-contiguous array (raw: NumPy's or CuPy's) over the buffer `name`.

        Raises OutOfMemoryError beyond the limit or when the device has no room, and ValueError for
        a negative length, TypeError for a non-integer length and for a dtype whose elements are not
        plain bytes. Nothing is changed then.
        """
        lengths = _lengths(name, shape)
        if any(length < 0 for length in lengths):
            raise ValueError(f"shape {lengths} of workspace buffer {name!r} given; wanted lengths "
                             "of 0 or more")
        dtype = element_type(dtype)
        nbytes = prod(lengths) * dtype.itemsize
        with self._lock:
            buffer, made = self._with_capacity(name, nbytes)
            buffer.in_use = nbytes
            if not made:
                self.bytes_saved += nbytes
            flat = buffer.array
        return flat[:nbytes].view(dtype).reshape(lengths)

    def ensure_capacity(self, name: str, nbytes: int) -> None:
        """Make room for `nbytes` in the buffer `name` of this stream and thread.

        Raises as `get`.
        """
        nbytes = _bytes(nbytes, f"a capacity of {nbytes!r} was asked for workspace buffer {name!r}")
        with self._lock:
            self._with_capacity(name, nbytes)

    def serving(self) -> AbstractContextManager[None]:
        """Within the block, `named` is heard on this workspace's device.

        Nothing is served while the arena is switched off, and in a capture.
        """
        return serving(self.device)

    def named(self, name: str) -> AbstractContextManager[None]:
        """Within the block, this thread's new arrays on the device lie in the slots of the name.

        The k-th array of the block gets the k-th slot, unless the array that got it before is
        alive: such an array is never overwritten, and the arena serves the request. Small arrays on
        the CPU (below `settings.arena_min_bytes`) come from NumPy as always.
        """
        return named(self, name)

    def serve(
        self, upstream: Resource, name: str, index: int, nbytes: int, stream: int, label: str
    ) -> Slot | None:
        """The slot with room for an array, from now on not idle; None if its array is alive.

        Called by the adaptor of `serving`. Raises OutOfMemoryError as `get` does.
        """
        with self._lock:
            slot = self._slot(name, index, stream)
            if not slot.idle:
                return None
            slot.idle.pop()
            if slot.fits(nbytes):
                self.bytes_saved += nbytes
                return slot
            try:
                self._fill(slot, upstream, name, nbytes, stream)
            except BaseException:  # undone
                slot.idle.append(0)
                raise
            return slot

    def reserve(self, name: str, nbytes: int) -> None:
        """Make room for the first array that code under `named(name)` will allocate.

        Nothing is done while the arena is switched off, or while that array is alive. Raises
        OutOfMemoryError as `get` does.
        """
        resource = self.device.resource
        if resource is None:
            return
        with self._lock:
            stream = self.device.current_stream().id
            slot = self._slot(name, 0, stream)
            if slot.idle and not slot.fits(nbytes):
                self._fill(slot, resource, name, nbytes, stream)

    def _slot(self, name: str, index: int, stream: int) -> Slot:
        key = (name, index, stream)
        slot = self._slots.get(key)
        if slot is None:
            self._drop_gone()
            slot = self._slots[key] = Slot(weakref.ref(self.device.current_stream()))
        return slot

    def _fill(self, slot: Slot, upstream: Resource, name: str, nbytes: int, stream: int) -> None:
        """New memory for a slot that has too little, or that another stream has used."""
        capacity = _capacity(nbytes)
        self._check_limit(name, nbytes, capacity, slot.capacity)
        slot.block = None  # first, so that the new memory may be the same
        with category("workspace"):
            slot.block = upstream.allocate(capacity, stream, f"workspace {name}")
        slot.shared = False
        self.allocations += 1

    def memory_usage(self) -> WorkspaceUsage:
        """Bytes by name and in total."""
        found: dict[str, BufferUsage] = {}
        with self._lock:
            for (name, _, _), buffer in self._buffers.items():
                before = found.get(name, BufferUsage(0, 0, 0, 0))
                found[name] = BufferUsage(
                    before.capacity + buffer.capacity, before.in_use + buffer.in_use,
                    before.retired + buffer.still_viewed(),
                    max(before.generation, buffer.generation))
            for (name, _, _), slot in self._slots.items():
                before = found.get(name, BufferUsage(0, 0, 0, 0))
                found[name] = before._replace(
                    capacity=before.capacity + slot.capacity,
                    in_use=before.in_use + (0 if slot.idle else slot.nbytes))
        capacity, in_use, retired = (sum(usage[i] for usage in found.values()) for i in range(3))
        return WorkspaceUsage(found, capacity, in_use, retired, capacity + retired)

    def addresses(self) -> list[int]:
        """Where its buffers begin."""
        with self._lock:
            arrays = [buffer.array for buffer in self._buffers.values() if buffer.array is not None]
            blocks = [slot.block for slot in self._slots.values() if slot.block is not None]
        return [*map(address, arrays), *(block.ptr for block in blocks)]

    def release(self) -> None:
        """Drop all buffers. Arrays over them stay valid; the rest is freed at once."""
        with self._lock:
            self._buffers.clear()
            self._slots.clear()

    def __enter__(self) -> Workspace:
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()

    def __repr__(self) -> str:
        usage = self.memory_usage()
        return (f"<Workspace on {self.device}: {len(usage.buffers)} buffers, "
                f"{size_text(usage.held)} held>")

    def _with_capacity(self, name: str, nbytes: int) -> tuple[_Buffer, bool]:
        """The buffer `name` with room for `nbytes`, and whether it was made; the lock is held."""
        stream = self.device.current_stream()
        key = (name, stream.id, _thread.number)
        buffer = self._buffers.get(key)
        if buffer is not None and buffer.array is None:
            buffer = None  # a call further up the stack is growing it
        if buffer is not None and buffer.capacity >= nbytes:
            return buffer, False
        self._drop_gone()
        capacity = _capacity(nbytes)
        if buffer is None:
            self._check_limit(name, nbytes, capacity, 0)
            buffer = _Buffer(weakref.ref(stream), weakref.ref(_thread.life))
            buffer.array = self._allocate(name, capacity)
            self._buffers[key] = buffer
        else:
            self._check_limit(name, nbytes, capacity, buffer.capacity)
            self._grow(key, buffer, nbytes, capacity)
        buffer.capacity = capacity
        buffer.generation += 1
        self.allocations += 1
        return buffer, True

    def _drop_gone(self) -> None:
        """Drop the buffers and slots of ended streams and threads; the lock is held."""
        for place in [key for key, slot in self._slots.items() if slot.stream() is None]:
            self._slots.pop(place, None)
        for key in list(self._buffers):
            buffer = self._buffers.get(key)  # a finalizer may have released all of them
            if buffer is not None and buffer.gone:
                if buffer.array is not None:
                    buffer.retire()
                if not buffer.still_viewed():
                    self._buffers.pop(key, None)

    def _grow(self, key: _Key, buffer: _Buffer, nbytes: int, capacity: int) -> None:
        """Put a larger array into a buffer; on an error it has one of its old capacity.

        If a finalizer or watermark of this thread requests the name meanwhile, it gets another
        buffer.
        """
        name = key[0]
        old = weakref.ref(buffer.array)
        buffer.array = None  # first, so that the new array may reuse its bytes
        try:
            if old() is not None:  # an array views it, so it stays beside the new one
                self._check_limit(name, nbytes, capacity, 0)
            buffer.array = self._allocate(name, capacity)
        except BaseException:  # undone
            self._buffers.pop(key, None)  # the allocation of the old size may fail, too
            array = old()
            buffer.array = self._allocate(name, buffer.capacity) if array is None else array
            self._buffers[key] = buffer
            raise
        self._buffers[key] = buffer  # again, as `release` may have run meanwhile
        if old() is not None:
            buffer.retired.append((old, buffer.capacity))

    def _allocate(self, name: str, capacity: int) -> Any:
        with category("workspace"):
            return self.device.empty((capacity,), np.uint8, f"workspace {name}")

    def _check_limit(self, name: str, nbytes: int, capacity: int, given_up: int) -> None:
        """Raise if `capacity` more bytes exceed the limit once `given_up` bytes are freed."""
        if self.limit is None:
            return
        held = sum(buffer.capacity + buffer.still_viewed() for buffer in self._buffers.values())
        held += sum(slot.capacity for slot in self._slots.values())
        if held - given_up + capacity > self.limit:
            raise OutOfMemoryError(
                f"out of memory in a workspace on {self.device}: buffer {name!r} wants "
                f"{size_text(nbytes)}, a capacity of {size_text(capacity)}, but "
                f"{size_text(held)} of its limit of {size_text(self.limit)} are held", nbytes)


def _capacity(nbytes: int) -> int:
    """The bytes of a buffer: the next power of two."""
    return max(_LEAST, 1 << (nbytes - 1).bit_length())


def _bytes(nbytes: object, given: str, else_wanted: str = "") -> int:
    """Bytes as an int; TypeError for a non-integer, ValueError below 0."""
    if isinstance(nbytes, bool) or not hasattr(nbytes, "__index__"):
        raise TypeError(f"{given}; wanted bytes as an integer{else_wanted}")
    if index(nbytes) < 0:
        raise ValueError(f"{given}; wanted 0 bytes or more{else_wanted}")
    return index(nbytes)


def _lengths(name: str, shape: Any) -> tuple[int, ...]:
    """A shape as ints; a single integer is one length."""
    try:
        return (index(shape),)
    except TypeError:
        pass
    try:
        return tuple(map(index, shape))
    except TypeError:
        raise TypeError(f"shape {shape!r} of workspace buffer {name!r} given; wanted an integer, "
                        "or several") from None

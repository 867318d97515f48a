"""Serving: within a block of code, an op's new arrays lie in the named slots of a workspace.

Ops allocate as always; an adaptor over the arena answers from the slots. A slot whose last array is
still alive is not touched: the arena serves that request. So no result depends on the workspace,
and an array that its user keeps is never written again.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from functools import partial
from threading import RLock
from types import MethodType
from typing import Protocol

from gtensor.backend import Device
from gtensor.backend.streams import Stream
from gtensor.memory.contract.adaptors import (
    Adaptor,
    Captured,
    chain_of,
    push_adaptor,
    remove_adaptor,
)
from gtensor.memory.contract.resource import Block, Resource, block_of
from gtensor.system.fork_safety import free_at_forks
from gtensor.system.interrupts import Undone

_serials = itertools.count(-1 << 62)  # below those of arenas and of planned steps
_users: dict[Device, set[object]] = {}  # the blocks of code that are served on a device
_lock = RLock()
free_at_forks(_lock)


class Slot:
    """The memory of one place. `idle` has one element while no array lies there."""

    __slots__ = ("block", "idle", "nbytes", "shared", "stream")

    def __init__(self, stream: weakref.ref[Stream]) -> None:
        self.stream = stream
        self.block: Block | None = None  # of the arena
        self.idle = [0]
        self.nbytes = 0  # of the latest array
        self.shared = False  # whether another stream has used it

    @property
    def capacity(self) -> int:
        return 0 if self.block is None else self.block.nbytes

    def fits(self, nbytes: int) -> bool:
        """Whether an array of so many bytes may lie here."""
        return self.block is not None and self.block.nbytes >= nbytes and not self.shared

    def array_block(self, owner: Serving, nbytes: int, label: str) -> Block:
        """A block for an array; freeing it makes the slot idle again."""
        assert self.block is not None
        stream = self.block.stream
        made = block_of(owner, self, self.block.ptr, nbytes, nbytes, label, stream, next(_serials))
        made.__del__ = MethodType(self.idle.append, 0)
        self.nbytes = nbytes
        return made


class Slots(Protocol):
    """What serves: a workspace."""

    def serve(
        self, upstream: Resource, name: str, index: int, nbytes: int, stream: int, label: str
    ) -> Slot | None:
        """A slot with room that was idle, or None."""


class _Place:
    """Whose slots of a name serve, and how many arrays have got one."""

    __slots__ = ("count", "name", "slots")

    def __init__(self, slots: Slots, name: str) -> None:
        self.slots = slots
        self.name = name
        self.count = 0


_place: ContextVar[_Place | None] = ContextVar("gtensor workspace place", default=None)
current_place = _place.get


class Serving(Adaptor):
    """Places what is allocated under a name in the slots of that name's workspace."""

    def __init__(self, upstream: Resource, device: Device) -> None:
        super().__init__(upstream)
        self._device = device

    def allocate(self, nbytes: int, stream: int = 0, label: str = "") -> Block:
        place = current_place()
        if place is not None and not self._device.capturing():  # a graph keeps its addresses
            index = place.count
            place.count += 1
            slot = place.slots.serve(self.upstream, place.name, index, nbytes, stream, label)
            if slot is not None:
                return slot.array_block(self, nbytes, label)
        return self.upstream.allocate(nbytes, stream, label)

    def record_use(self, block: Block, stream: int) -> None:
        """As the upstream's. A slot that another stream used gets new memory for its next array."""
        slot = getattr(block, "node", None)
        if not isinstance(slot, Slot):
            self.upstream.record_use(block, stream)
        elif slot.block is not None:
            slot.shared = slot.shared or stream != slot.block.stream
            self.upstream.record_use(slot.block, stream)


def named(slots: Slots, name: str) -> AbstractContextManager[None]:
    """Within the block, the k-th array that this code allocates gets the k-th slot of the name."""
    return _at(_Place(slots, name))


def unserved() -> AbstractContextManager[None]:
    """Within the block, this thread's new arrays come from the arena: they are to last."""
    return _at(None)


@contextmanager
def _at(place: _Place | None) -> Iterator[None]:
    before = current_place()
    try:
        _place.set(place)
        yield
    finally:
        _place.set(before)


@contextmanager
def serving(device: Device) -> Iterator[None]:
    """Within the block, `named` is heard on the device.

    Nothing is served while the arena is switched off, nor in a capture: its graph keeps addresses.
    """
    if device.resource is None or any(
            isinstance(link, Captured) for link in chain_of(device.resource)):
        yield
        return
    block = object()
    with Undone(partial(_leave, device, block)):
        _enter(device, block)
        yield


def _enter(device: Device, block: object) -> None:
    with _lock:
        users = _users.setdefault(device, set())
        if not users:
            push_adaptor(device, "a workspace that serves ops on",
                         lambda upstream: Serving(upstream, device))
        users.add(block)


def _leave(device: Device, block: object) -> None:
    with _lock:
        users = _users.setdefault(device, set())
        users.discard(block)
        if not users:
            for link in chain_of(device.resource):
                if isinstance(link, Serving):
                    remove_adaptor(device, link)

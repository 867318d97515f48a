"""Adaptors: resources that hold another one as `upstream` and add one thing to it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import RLock, get_ident
from typing import Any, TypeVar
from weakref import WeakSet

from gtensor.backend import Device
from gtensor.backend.ordering import Stamp
from gtensor.memory.contract.resource import Block, OutOfMemoryError, Resource, Stats
from gtensor.system.fork_safety import free_at_forks
from gtensor.system.interrupts import Undone

_category: ContextVar[str] = ContextVar("gtensor memory category", default="")
current_category = _category.get
_chains = RLock()  # held while a device's chain of adaptors changes
free_at_forks(_chains)


@contextmanager
def category(name: str) -> Iterator[None]:
    """Blocks allocated within have this category in timelines, e.g. "parameters"."""
    before = _category.get()
    try:
        _category.set(name)
        yield
    finally:
        _category.set(before)


class Adaptor:
    """Passes everything on to `upstream`.

    A free goes directly to the resource that made the block; a `FreeListener` notes it.
    `surplus`: live bytes here minus those of the upstream. A non-empty `no_capture` forbids to
    begin a graph capture under this adaptor, and names it in the error.
    """

    surplus = 0
    no_capture = ""

    def __init__(self, upstream: Resource) -> None:
        self.upstream = upstream

    def held(self) -> list[Block]:
        """Blocks of the upstream in which it places its own blocks."""
        return []

    @property
    def block_type(self) -> type[Block]:
        return self.upstream.block_type

    @property
    def allocated(self) -> int:
        return self.upstream.allocated

    def allocate(self, nbytes: int, stream: int = 0, label: str = "") -> Block:
        return self.upstream.allocate(nbytes, stream, label)

    def record_use(self, block: Block, stream: int) -> None:
        self.upstream.record_use(block, stream)

    def stats(self) -> Stats:
        return self.upstream.stats()

    def reset_peak(self) -> None:
        self.upstream.reset_peak()

    def set_limit(self, nbytes: int | None) -> None:
        self.upstream.set_limit(nbytes)

    def empty_cache(self) -> int:
        return self.upstream.empty_cache()


def chain_of(resource: object) -> Iterator[Any]:
    """A resource and all its upstreams; nothing for None."""
    while resource is not None:
        yield resource
        resource = getattr(resource, "upstream", None)


def bottom_of(resource: object) -> Any:
    """The last upstream: the arena."""
    *_, bottom = chain_of(resource)
    return bottom


AnAdaptor = TypeVar("AnAdaptor", bound=Adaptor)


@contextmanager
def adaptor_over(
    device: Device, what: str, make: Callable[[Resource], AnAdaptor],
) -> Iterator[AnAdaptor]:
    """Within the block `make(device.resource)` is the device's resource, and then closed.

    Raises RuntimeError as `push_adaptor`.
    """
    made: list[Any] = []

    def over(resource: Resource) -> Any:
        made.append(make(resource))
        return made[0]

    def end() -> None:
        for adaptor in made:
            try:
                adaptor.close()
            finally:
                remove_adaptor(device, adaptor)

    with Undone(end):
        yield push_adaptor(device, what, over)


def push_adaptor(device: Device, what: str, make: Callable[[Resource], AnAdaptor]) -> AnAdaptor:
    """Make `make(device.resource)`, which is returned, the device's resource.

    Raises RuntimeError, which names `what`, if the device's arena is switched off.
    """
    with _chains:
        if device.resource is None:
            raise RuntimeError(f"{what} {device} was asked for, but its arena is switched off; "
                               "wanted gt.memory.use_arena(True)")
        made = device.resource = make(device.resource)
        return made


def replace_resource(device: Device, before: Resource, after: Resource) -> None:
    """Replace a resource by another one in the device's chain."""
    with _chains:
        if device.resource is before:
            device.resource = after
        for link in chain_of(device.resource):
            if link is not after and getattr(link, "upstream", None) is before:
                link.upstream = after


def remove_adaptor(device: Device, adaptor: Adaptor) -> None:
    """Remove an adaptor from the device's chain; those above and below it stay."""
    with _chains:  # also while `upstream` is read
        replace_resource(device, adaptor, adaptor.upstream)


class Captured(Adaptor):
    """The device's resource while a thread captures its work into a graph.

    `blocks` are the capture's live blocks, `first` is the serial of the first one that it
    allocated; replays need `memory`. `thread` (None once the capture is over)
    gets no memory of other streams, since the graph could not keep it. Other threads pass through.
    """

    no_capture = "another capture"

    def __init__(self, upstream: Resource, stream: int, memory: object = None) -> None:
        super().__init__(upstream)
        self.stream = stream
        self.memory = memory
        self.thread: int | None = get_ident()
        self.first = math.inf
        self.blocks: WeakSet[Block] = WeakSet()

    def allocate(self, nbytes: int, stream: int = 0, label: str = "") -> Block:
        if get_ident() != self.thread:
            return self.upstream.allocate(nbytes, stream, label)
        if stream != self.stream:
            raise RuntimeError(f"memory for stream {stream} was asked for in the middle of a "
                               f"capture on stream {self.stream}; wanted all work of the capture "
                               "on its own stream")
        block = self.upstream.allocate(nbytes, stream, label)
        block.stamp = Stamp()
        self.first = min(self.first, block.serial)
        self.blocks.add(block)
        return block


class Failing(Adaptor):
    """Refuses the allocations with these numbers (1 is the first), for tests.

    They raise OutOfMemoryError; all others go to `upstream`.
    """

    def __init__(self, upstream: Resource, *calls: int) -> None:
        super().__init__(upstream)
        self.calls = 0
        self._refused = frozenset(calls)

    def allocate(self, nbytes: int, stream: int = 0, label: str = "") -> Block:
        """A block of the upstream, or OutOfMemoryError if this call was to fail."""
        self.calls += 1
        if self.calls in self._refused:
            raise OutOfMemoryError(f"allocation {self.calls} was told to fail", nbytes)
        return super().allocate(nbytes, stream, label)

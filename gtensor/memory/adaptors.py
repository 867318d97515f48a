"""Adaptors: resources that hold another one as `upstream` and add one thing to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import RLock, get_ident
from typing import Any, TypeVar
from weakref import WeakSet, ref

from gtensor.backend import Device
from gtensor.memory.resource import Block, OutOfMemoryError, Resource, Stats

_category: ContextVar[str] = ContextVar("gtensor memory category", default="")
current_category = _category.get
_chains = RLock()  # one thread at a time changes what stands over a device


@contextmanager
def category(name: str) -> Iterator[None]:
    """Blocks made within are of this category in timelines, e.g. "parameters" or "gradients"."""
    token = _category.set(name)
    try:
        yield
    finally:
        _category.reset(token)


class Adaptor:
    """Passes everything on to `upstream`.

    Blocks report their free to who made them; an adaptor that wants to hear of it, too, lends them
    an `Ears`. `surplus`: live bytes here less those of the upstream. `no_capture`
    names what is under way, if no capture of a graph may begin within it.
    """

    surplus = 0
    no_capture = ""

    def __init__(self, upstream: Resource) -> None:
        self.upstream = upstream

    def held(self) -> list[Block]:
        """Blocks that it holds only to make blocks of its own in them: no bytes of an array's."""
        return []

    @property
    def allocated(self) -> int:
        return self.upstream.allocated

    def allocate(self, nbytes: int, stream: int = 0, label: str = "") -> Block:
        return self.upstream.allocate(nbytes, stream, label)

    def deallocate(self, block: Block) -> None:
        self.upstream.deallocate(block)

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


class Ear(Adaptor):
    """Stands before the owner of blocks, and tells the listener of its `ears` of their frees."""

    def __init__(self, upstream: Resource, ears: Ears) -> None:
        super().__init__(upstream)
        self.ears = ears

    def deallocate(self, block: Block) -> None:
        listener = self.ears.listener
        try:
            if listener is not None:  # told first: then nobody else can have the bytes yet
                listener(block)
        finally:
            self.upstream.deallocate(block)


class Ears:
    """Lets a listener hear of the frees of blocks until `close`.

    A block keeps its ear, which keeps the owner that the block had and nothing else: a listener
    can be dropped after `close`, and whatever stood between it and that owner, while the block
    lives. An ear lives as long as a block has it: a listener keeps no owner.
    """

    def __init__(self, listener: Callable[[Block], None]) -> None:
        self.listener: Callable[[Block], None] | None = listener
        self._ears: dict[int, ref[Ear]] = {}  # by the id of the owner, which its ear keeps

    def listen(self, block: Block) -> None:
        """Hear of the free of a block."""
        owner: Any = block.owner
        while type(owner) is Ear and owner.ears.listener is None:
            owner = owner.upstream
        known = self._ears.get(id(owner))
        ear = None if known is None else known()
        if ear is None:
            ear = Ear(owner, self)
            self._ears[id(owner)] = ref(ear)
        block.owner = ear

    def close(self) -> None:
        """Hear no more."""
        self.listener = None


def chain_of(resource: Any) -> Iterator[Any]:
    """A resource and all those below it; nothing for None."""
    while resource is not None:
        yield resource
        resource = getattr(resource, "upstream", None)


def bottom_of(resource: Any) -> Any:
    """What stands at the end of all upstreams: the arena."""
    *_, bottom = chain_of(resource)
    return bottom


AnAdaptor = TypeVar("AnAdaptor", bound=Adaptor)


def stand_over(device: Device, what: str, make: Callable[[Resource], AnAdaptor]) -> AnAdaptor:
    """Put what `make` makes of the device's resource over it.

    Raises RuntimeError that `what` was asked for, if the device's arena is switched off.
    """
    with _chains:
        if device.resource is None:
            raise RuntimeError(f"{what} {device} was asked for, but its arena is switched off; "
                               "wanted gt.memory.use_arena(True)")
        made = device.resource = make(device.resource)
        return made


def put_in_place(device: Device, before: Resource, after: Resource) -> None:
    """Put a resource in the place of another one, wherever that stands over the device."""
    with _chains:
        if device.resource is before:
            device.resource = after
        for link in chain_of(device.resource):
            if link is not after and getattr(link, "upstream", None) is before:
                link.upstream = after


def take_out(device: Device, adaptor: Adaptor) -> None:
    """End an adaptor's standing over a device; others may stand over it by now, and stay."""
    with _chains:  # around the look at the upstream, too
        put_in_place(device, adaptor, adaptor.upstream)


class Captured(Adaptor):
    """Stands over a device's resource while a thread captures its work into a graph.

    `blocks` are those of the capture that somebody holds, `joined` what keeps the addresses that it
    used. `thread`, None once the capture is over,
    gets no memory of other streams: nobody could keep it for the graph. Others are served as ever.
    """

    no_capture = "another capture"

    def __init__(self, upstream: Resource, stream: int, joined: object = None) -> None:
        super().__init__(upstream)
        self.stream = stream
        self.joined = joined
        self.thread: int | None = get_ident()
        self.blocks: WeakSet[Block] = WeakSet()

    def allocate(self, nbytes: int, stream: int = 0, label: str = "") -> Block:
        if get_ident() != self.thread:
            return self.upstream.allocate(nbytes, stream, label)
        if stream != self.stream:
            raise RuntimeError(f"memory for stream {stream} was asked for in the middle of a "
                               f"capture on stream {self.stream}; wanted all work of the capture "
                               "on its own stream")
        block = self.upstream.allocate(nbytes, stream, label)
        self.blocks.add(block)
        return block


class Failing(Adaptor):
    """Refuses the given allocations (1 is the first), for tests of what happens then."""

    def __init__(self, upstream: Resource, *calls: int) -> None:
        super().__init__(upstream)
        self.calls = 0
        self._refused = frozenset(calls)

    def allocate(self, nbytes: int, stream: int = 0, label: str = "") -> Block:
        self.calls += 1
        if self.calls in self._refused:
            raise OutOfMemoryError(f"allocation {self.calls} was told to fail", nbytes)
        return super().allocate(nbytes, stream, label)

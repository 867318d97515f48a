"""Memory of CUDA graphs: a pool that serves no other request while its graphs can be replayed.

A graph contains the addresses of its capture, and each replay writes them again; no event covers
that. So a captured stream allocates from a pool that belongs to the graph (`pools.py`). A block
freed during a capture serves later requests of it, as on any stream, and of later captures into the
same pool. So graphs of one pool share bytes, and each replay waits for the one before.

The pool ends when no graph and no `GraphPool` handle refers to it. Then the next request takes its
segments, ordered behind the last replay; blocks in use keep their bytes. Waits are forbidden during
a capture, so memory of ended streams that it may take is made ready before it begins
(`Streams.settle_ended`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import RLock
from typing import Any, TypeAlias
from weakref import WeakSet

from gtensor.backend import Device
from gtensor.backend.streams import Stream
from gtensor.memory.arena.out_of_memory_steps import Changing
from gtensor.memory.arena.pools import Capture, Orphan
from gtensor.memory.arena.segments import Segments
from gtensor.memory.contract.adaptors import (
    Adaptor,
    Captured,
    chain_of,
    push_adaptor,
    remove_adaptor,
)
from gtensor.memory.contract.resource import Block, Resource
from gtensor.system.bus import WaitEvent, bus, tell_aside
from gtensor.system.fork_safety import free_at_forks

Arena: TypeAlias = Any  # of arena.arena, which imports this


class GraphPool:
    """Memory for the captures of graphs that replay one after another; `Arena.graph_pool` makes it.

    `number` takes the place of the stream id of the pool's segments. `blocks` are the live blocks
    of all captures. `__del__` is a C callable, as that of a block.
    """

    __slots__ = ("__del__", "__dict__", "__weakref__")

    __del__: Callable[[], object]

    def __init__(self, arena: Arena, segments: Segments, changing: Changing) -> None:
        self.arena = arena
        self.number = segments.pools.open_private()
        self.blocks: WeakSet[Block] = WeakSet()
        self._segments = segments
        self._changing = changing
        self._lock = RLock()
        free_at_forks(self._lock)
        self._replays = segments.streams.replays
        self.__del__ = arena.forgetting(self.number, None)

    @contextmanager
    def capturing(self, stream: int, home: Stream | None = None) -> Iterator[Capture]:
        """Serve the stream with that id from this pool while it is captured.

        The pool may take segments of streams and graphs that have ended: `home`, the stream on
        which the results count as made, waits for their work, and replays wait for `home`. Without
        `home` the pool only grows.

        Replays need the returned object. Raises ValueError if the stream has memory of its own.
        """
        pools = self._segments.pools
        large, small = pools.large, pools.small
        if stream in large or stream in small:
            raise ValueError(f"stream {stream} was to be captured, but it has memory already; "
                             "wanted a stream on which nothing was allocated")
        capture = Capture([] if home is None else self._settled(home))
        with self.arena.capturing():
            try:  # only this thread uses the stream, so stores suffice; they are not interrupted
                self._segments.captures[self.number] = capture
                large[stream], small[stream] = pools.private[self.number]
                yield capture
            finally:
                capture.left = []
                if stream in large:
                    del large[stream]
                if stream in small:
                    del small[stream]
                if self.number in self._segments.captures:
                    del self._segments.captures[self.number]

    def _settled(self, home: Stream) -> list[Orphan]:
        """The pools of ended streams and graphs; `home` and the replays wait for work on them."""
        left, waits = self._changing(lambda allowed: (
            self._segments.settle_orphans(home) if allowed else ([], False)))
        if waits:
            with self.replaying(home):  # an event of `home` counts as the last replay
                pass
        return left

    @contextmanager
    def replaying(self, stream: Stream) -> Iterator[None]:
        """The caller launches a graph of the pool on the stream within.

        The stream waits for the replay before, and for other streams' work on freed blocks of the
        pool.
        """
        with self._lock:
            self._changing(
                lambda _: self._segments.streams.order_retired(stream.id, self.number))
            last = self._replays.get(self.number)
            if last is not None and last[0] != stream.id:
                stream.wait(last[1])
                if bus.waits:
                    tell_aside(bus.waits, WaitEvent(stream.id, last[0]))
            try:
                yield
            finally:
                try:
                    self._replays[self.number] = stream.id, stream.record()
                except BaseException:  # undone: no stream could wait for the replay
                    stream.synchronize()
                    raise


@contextmanager
def capturing(device: Device, pool: GraphPool, stream: int, home: Stream) -> Iterator[Captured]:
    """Serve this thread from the pool while it captures its work on the device, on that stream.

    `home` is as in `GraphPool.capturing`. Raises RuntimeError if the pool is not of the arena in
    use there, or within a planned step or a recording; ValueError as `GraphPool.capturing`.
    """
    _check_chain(device, pool)
    with pool.capturing(stream, home) as memory:
        captured = Captured(device.resource, stream, memory)

        def over(resource: Resource) -> Captured:
            _check_chain(device, pool)  # another thread may have begun something since
            captured.upstream = resource
            return captured

        try:
            push_adaptor(device, "a capture on", over)
            yield captured
        finally:
            captured.thread = None  # stores: an interrupt must not leave the adaptor in place
            if device.resource is captured:
                device.resource = captured.upstream
            else:  # a recording began within the capture and has not ended yet
                remove_adaptor(device, captured)


def _check_chain(device: Device, pool: GraphPool) -> None:
    """Raise RuntimeError if the device's chain allows no capture into the pool now."""
    chain = list(chain_of(device.resource))
    for link in chain:
        if isinstance(link, Adaptor) and link.no_capture:
            raise RuntimeError(f"a capture on {device} was begun within {link.no_capture}; wanted "
                               "it before or after")
    if pool.arena not in chain:
        raise RuntimeError(f"a capture on {device} was begun, but the arena that the graph was "
                           "made for is switched off; wanted it in use")

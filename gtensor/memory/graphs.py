"""Memory of CUDA graphs: pools that nobody else takes from while a graph may still replay.

A graph has the addresses of its capture built in: each replay writes them again, whatever lives
there by then. So what a captured stream allocates comes from a pool that belongs to the graph
(`pools.py`). Within it a free serves the next request of the capture at once, as on any
stream, and captures that come later into the same pool. Graphs of one pool therefore share bytes,
and replay one after another, on whatever streams: each waits for the one before.

The pool ends with its last holder: graphs, or who keeps it for graphs to come. Then its segments go
to whoever asks next, behind the last replay, and blocks in use keep their bytes. A capture may wait
for nobody, so what it may take of them is settled before it begins (`Streams.settle_ended`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import RLock
from typing import TYPE_CHECKING
from weakref import WeakSet

from gtensor.backend import Device
from gtensor.backend.streams import Event, Stream
from gtensor.locks import free_at_forks
from gtensor.memory.adaptors import Adaptor, Captured, chain_of, stand_over, take_out
from gtensor.memory.ladder import Changing
from gtensor.memory.pools import Orphan, Usable
from gtensor.memory.reserve import Reserve
from gtensor.memory.resource import Block, Resource
from gtensor.memory.spans import Joined

if TYPE_CHECKING:
    from gtensor.memory.arena import Arena


class GraphPool:
    """Memory for the captures of graphs that replay one after another; `Arena.graph_pool` makes it.

    `number` stands for the pool where segments have a stream, `blocks` are those of all captures
    that somebody holds. `__del__` is a call of C's, as that of a block.
    """

    __slots__ = ("__del__", "__dict__", "__weakref__")

    __del__: Callable[[], object]

    def __init__(self, arena: Arena, reserve: Reserve, changing: Changing) -> None:
        self.arena = arena
        self.number = reserve.pools.open_private()
        self.blocks: WeakSet[Block] = WeakSet()
        self._reserve = reserve
        self._changing = changing
        self._lock = RLock()
        free_at_forks(self._lock)
        self._last: tuple[int, Event] | None = None  # stream of the last replay, event behind it
        self.__del__ = arena.forgetting(self.number, None)

    @contextmanager
    def capturing(self, stream: int, home: Stream | None = None) -> Iterator[Joined]:
        """While the stream with that id is captured: what it asks for comes from this pool.

        The pool may take segments over from streams and graphs that are gone by now: `home`, on
        which the results count as made, waits for their work, and replays wait for `home`. Without
        it the pool only grows.

        Whoever holds the answer keeps the joined addresses that the capture used. Raises
        ValueError if the stream has memory of its own.
        """
        pools = self._reserve.pools
        large, small = pools.large, pools.small
        if stream in large or stream in small:
            raise ValueError(f"stream {stream} was to be captured, but it has memory already; "
                             "wanted a stream on which nothing was allocated")
        left = [] if home is None else self._settled(home)
        joined = Joined()
        self._reserve.replayed.add(joined)
        with self.arena.capturing():
            try:  # the stream is this thread's alone, so stores will do, which nothing interrupts
                self._reserve.captures[self.number] = Usable(joined, left)
                large[stream], small[stream] = pools.private[self.number]
                yield joined
            finally:
                if stream in large:
                    del large[stream]
                if stream in small:
                    del small[stream]
                if self.number in self._reserve.captures:
                    del self._reserve.captures[self.number]

    def _settled(self, home: Stream) -> list[Orphan]:
        """The pools of who is gone, once `home` and the replays come after all work on them."""
        left, waits = self._changing(lambda allowed: (
            self._reserve.settle_orphans(home) if allowed else ([], False)))
        if waits:
            with self.replaying(home):  # from now on an event of `home` counts as the last replay
                pass
        return left

    @contextmanager
    def replaying(self, stream: Stream) -> Iterator[None]:
        """A graph of the pool is launched on the stream within, behind the one before it, and
        behind who uses what the pool had of memory that nobody holds any more."""
        with self._lock:
            self._changing(
                lambda _: self._reserve.streams.order_retired(stream.id, self.number))
            if self._last is not None and self._last[0] != stream.id:
                stream.wait(self._last[1])
            try:
                yield
            finally:
                try:
                    self._last = stream.id, stream.record()
                    self.__del__ = self.arena.forgetting(self.number, self._last[1])
                except BaseException:  # nobody could wait for the replay
                    stream.synchronize()
                    raise


@contextmanager
def capturing(device: Device, pool: GraphPool, stream: int, home: Stream) -> Iterator[Captured]:
    """Serve this thread from the pool while it captures its work on the device, on that stream.
    `home` is as in `GraphPool.capturing`.

    Raises RuntimeError if the pool is not of the arena in use there, or a planned step or a
    recording stands over it; ValueError as `GraphPool.capturing`.
    """
    _check_chain(device, pool)
    with pool.capturing(stream, home) as joined:
        captured = Captured(device.resource, stream, joined)

        def over(resource: Resource) -> Captured:
            _check_chain(device, pool)  # another thread may have begun something since
            captured.upstream = resource
            return captured

        try:
            stand_over(device, "a capture on", over)
            yield captured
        finally:
            captured.thread = None  # stores again: an interrupt must not leave it standing
            if device.resource is captured:
                device.resource = captured.upstream
            else:  # somebody began to record in the capture, and has not ended yet
                take_out(device, captured)


def _check_chain(device: Device, pool: GraphPool) -> None:
    """Raise RuntimeError if what stands over the device allows no capture into the pool now."""
    chain = list(chain_of(device.resource))
    for link in chain:
        if isinstance(link, Adaptor) and link.no_capture:
            raise RuntimeError(f"a capture on {device} was begun within {link.no_capture}; wanted "
                               "it before or after")
    if pool.arena not in chain:
        raise RuntimeError(f"a capture on {device} was begun, but the arena that the graph was "
                           "made for is switched off; wanted it in use")

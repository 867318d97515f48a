"""The arena: blocks cut from large segments, reused without asking the system again.

A block belongs to the stream it was allocated on. A free makes its bytes available to that stream
at once, since later work on a stream runs after the block's last use there. Use on another stream
is noted (`record_use`); such a block is retired at its free until that stream's work has completed
(`memory/arena/streams.py`). `Segments` serves a request that finds no fit.

One lock guards all of it. A free never waits for it, because garbage collection may free a block in
the middle of an allocation, of this thread or another. So a free only appends its chunk to
`_pending`, and the next operation that takes the lock empties this queue; all counters are as if
the free had been done at once. A request that the first chunk in the queue fits exactly gets it
without the lock, if no thread is changing the pools: CPython switches threads and delivers signals
at calls and loops only, and there is none between the check of the queue and the last store. Where
two sizes take turns, a freed chunk becomes the spare, for the next request but one (`_in_turn`).
Only the last steps before an out-of-memory error (`out_of_memory_steps.py`) and `empty_cache` (also
called by a lower limit and new planned steps) wait for a device.

An interrupt (Ctrl-C) loses neither the lock nor a chunk (`system/interrupts.py`). `acquire` is
called within the `try` whose `finally` releases (`with` takes twice as long); a `release` without
the lock does nothing. The handle and its `__del__`, the queue's `append`, exist before the handle
gets the chunk.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from threading import RLock
from types import MethodType
from typing import Any

from gtensor.backend.streams import Event
from gtensor.memory.arena.chunks import Chunk, Segment
from gtensor.memory.arena.free_lists import BlockPool
from gtensor.memory.arena.graphs import GraphPool
from gtensor.memory.arena.layout import SegmentLayout, layout_of
from gtensor.memory.arena.out_of_memory_steps import Held, OutOfMemorySteps
from gtensor.memory.arena.segments import NoRoom, Segments
from gtensor.memory.arena.stitched import Stitcher
from gtensor.memory.arena.streams import Ended, StreamOf, Streams
from gtensor.memory.contract import report
from gtensor.memory.contract.limits import Watermark, Watermarks, stepped
from gtensor.memory.contract.resource import Block, OutOfMemoryError, Stats
from gtensor.memory.sources import PagedSource, SegmentSource
from gtensor.system.fork_safety import free_at_forks, of_arena, wait_for
from gtensor.system.interrupts import in_turn


class Arena:
    """A `Resource` over a segment source. `name` is for reports, e.g. the device's.

    Args:
        min_remainder: a chunk is split if at least so many bytes are left over (default: 8
            granules).
        stream_of: returns the stream with an id, None for unknown ones; `streams` may also be
            filled by hand. With neither, streams are told apart but cannot wait for each other.
        small: requests up to this many bytes are cut from separate segments (0: none).
        steps: round sizes up to this many steps per power of two (a power of two; 0: to granules
            only), so that sizes that vary a little can reuse each other's chunks.
        block_type: the class of its blocks, with the attributes of `Block`.

    Raises ValueError for steps that are not 0 or a power of two.
    """

    def __init__(self, source: SegmentSource, name: str = "memory",
                 min_remainder: int | None = None, *, stream_of: StreamOf | None = None,
                 small: int = 0, steps: int = 0, block_type: type[Block] = Block) -> None:
        if steps < 0 or steps & (steps - 1):
            raise ValueError(f"{steps} steps per power of two given; wanted 0 or a power of two")
        self.source = source
        self.name = name
        self.block_type = block_type
        self._round = source.granularity - 1
        self._mask = -source.granularity
        self._most_small = small
        self._steps = steps
        self._orders = Streams(stream_of)
        self.streams = self._orders.known
        self.order, self.may_order = self._orders.order, self._orders.may_order
        self.capturing = self._orders.capture
        stitcher = Stitcher(source, self._orders) if isinstance(source, PagedSource) else None
        self._segments = Segments(source, self._orders, 8 * source.granularity
                                if min_remainder is None else min_remainder, small, stitcher)
        self._out_of_memory = OutOfMemorySteps(self._segments, self._orders, self._changing)
        self._large, self._small = self._segments.pools.large, self._segments.pools.small
        self._watermarks = Watermarks()
        self._lock = RLock()
        self._noting = RLock()
        free_at_forks(self._lock, self._noting)
        of_arena(self._lock)
        self._busy = False  # the thread that holds the lock is changing the pools
        self._pending: deque[Chunk | Ended] = deque()  # freed chunks, new segments, ended streams
        self._spare: Chunk | None = None  # freed and counted so, but in no list: see `_in_turn`
        self._turn = 0  # bytes of the block that was freed last when the queue was last emptied
        self._free = self._pending.append
        self._allocated = 0
        self._active = 0
        self._peak_allocated = 0
        self._alert = 0  # live bytes beyond which the peak or a watermark has to be updated
        self._serial = 0

    @property
    def allocated(self) -> int:
        """Bytes of live blocks, as in `Stats`."""
        if self._pending:
            self._settle()
        return self._allocated

    @property
    def limit(self) -> int | None:
        """The most bytes of segments to hold, None for no limit."""
        return self._segments.limit

    def allocate(self, nbytes: int, stream: int = 0, label: str = "") -> Block:
        """A block of `nbytes` bytes (at least one granule) for work on the stream with that id.

        Raises OutOfMemoryError if there is no room after all that is tried, ValueError if `nbytes`
        is negative, and the error of a watermark's callback (the block is then free again).
        """
        size = (nbytes + self._round) & self._mask
        if size <= 0:
            if nbytes < 0:
                raise ValueError(f"a block of {nbytes} bytes was asked for; wanted 0 or more")
            size = -self._mask
        if self._steps:
            size = stepped(size, self._steps, self._round)
        block = self.block_type()
        block.owner = self
        pending = self._pending
        if pending:
            freed: Any = pending[0]  # no call from here
            if (freed.used == size and freed.pool.stream == stream and freed.uses is None
                    and self._allocated <= self._alert and not self._busy
                    and not self._orders.count):
                block.node = freed  # it stays counted
                block.__del__ = freed.let_go
                del pending[0]
                block.ptr = freed.ptr
                block.size = size
                block.nbytes = freed.nbytes = nbytes
                block.label = freed.label = label
                block.stream = block.only = stream
                self._serial = block.serial = self._serial + 1
                return block
            spare: Any = self._spare
            if (spare is not None and spare.used == size and spare.pool.stream == stream
                    and freed.used and freed.uses is None and not self._busy
                    and self._allocated - freed.used + size <= self._alert
                    and not self._orders.count):  # two sizes in turn: these chunks change places
                block.node = spare
                block.__del__ = spare.let_go
                self._spare = freed
                del pending[0]
                self._allocated += size - freed.used
                self._active += spare.size - freed.size
                block.ptr = spare.ptr
                block.size = size
                block.nbytes = spare.nbytes = nbytes
                block.label = spare.label = label
                block.stream = block.only = stream
                self._serial = block.serial = self._serial + 1
                return block
        block.node = None
        pools = self._large if size > self._most_small else self._small
        lock = self._lock
        chunk, risen = None, 0
        try:
            if not lock.acquire(False):
                wait_for(lock, self.name)
            if self._busy:
                return self._allocate_aside(block, size, nbytes, stream, label)
            try:
                self._busy = True
                if pending or self._spare is not None:
                    if size == self._turn and stream in pools and not self._orders.count:
                        chunk = self._in_turn(pools[stream], size)
                    if chunk is None:
                        self._drain()
                if self._orders.count:
                    self._orders.poll()
                if chunk is None and stream in pools:
                    chunk = pools[stream].take(size)
                if chunk is not None:
                    free = MethodType(self._free, chunk)
                    block.node = chunk  # stores
                    block.__del__ = chunk.let_go = free
                    chunk.used = size
                    self._active += chunk.size
                    self._allocated += size
                    block.ptr = chunk.ptr  # `_hold`, inlined
                    block.size = size
                    block.nbytes = chunk.nbytes = nbytes
                    block.label = chunk.label = label
                    block.stream = block.only = stream
                    self._serial = block.serial = self._serial + 1
                    if self._allocated > self._alert:
                        risen = self._rise(size)
            except BaseException:  # undone
                if chunk is not None and block.node is None:
                    chunk.pool.give(chunk)
                raise
            finally:
                self._busy = False
        finally:
            try:  # noqa: SIM105  an interrupt could end a call of `suppress` before the release
                lock.release()
            except RuntimeError:
                pass
        if chunk is None:
            risen = self._serve(block, size, nbytes, stream, label)
        if risen:
            try:
                self._watermarks.call(risen, size)
            except BaseException:  # undone
                del block  # the traceback refers to this frame and may live long
                raise
        return block

    def record_use(self, block: Block | int, stream: int) -> None:
        """Note that work queued on the stream with that id uses a live block, or an address in one.

        The bytes serve no other stream before that work has completed, and with it all work queued
        there until the free (for an address: until the pending queue is next emptied). Raises
        ValueError if no live block is there, or the stream is unknown.
        """
        if isinstance(block, int):
            chunk = self._changing(
                lambda allowed: self._segments.live_at(block) if allowed else None)
        else:
            chunk = block.node
        if chunk is None:
            raise ValueError(f"use of {block if isinstance(block, Block) else hex(block)} on stream"
                             f" {stream} was noted, but no live block is there; wanted one")
        if chunk.uses is None and stream == chunk.pool.stream:
            return
        if self._orders.get(stream) is None:
            raise ValueError(f"use of a block on stream {stream} was noted, but {self.name} does "
                             "not know this stream; wanted the id of one that exists")
        with self._noting:
            if chunk.uses is None:
                chunk.uses = {chunk.pool.stream}
                if isinstance(block, Block):  # events are recorded right at the free
                    block.__del__ = in_turn(block.__del__, self._settle)
            chunk.uses.add(stream)

    def forget_stream(self, stream: int, last: Event | None = None) -> None:
        """The stream with that id ends or has ended: other streams may take its memory.

        `last` is an event behind all its work; without it one is recorded now. Never waits.
        """
        known = self._orders.get(stream)
        if last is None and known is not None:
            last = known.record()
        self.forgetting(stream, last)()

    def forgetting(self, stream: int, last: Event | None) -> Callable[[], object]:
        """A C callable that forgets a stream; `last` is an event behind all its work, or None."""
        return in_turn(partial(self._pending.append, Ended(stream, last)), self._settle)

    def graph_pool(self) -> GraphPool:
        """A new pool for allocations of streams under capture."""
        return GraphPool(self, self._segments, self._changing)

    def stats(self) -> Stats:
        """The counters now, over all streams."""
        return self._changing(lambda _: self._segments.stats(
            self._allocated, self._peak_allocated, self._active, self._serial))

    def reset_peak(self) -> None:
        """Set both peaks to what is in use now."""
        def reset(_: bool) -> None:
            self._peak_allocated = self._allocated
            self._alert = self._watermarks.below(self._allocated)
            self._segments.peak = self._segments.reserved

        self._changing(reset)

    def set_limit(self, nbytes: int | None) -> None:
        """Hold at most `nbytes` bytes of segments from now on; None lifts the limit.

        Free segments beyond it are released; live blocks stay, and no segment is added until there
        is room below the limit.
        """
        if nbytes is not None and nbytes < 0:
            raise ValueError(f"a limit of {nbytes} bytes was given; wanted 0 or more, or None")
        self._segments.limit = nbytes
        if nbytes is not None and self._segments.reserved > nbytes:
            self.empty_cache()

    def on_watermark(self, nbytes: int, callback: Callable[[int], object]) -> Watermark:
        """Call `callback(live bytes)` each time the live bytes rise beyond `nbytes`.

        The allocating thread calls it without the lock; an allocation in the middle of another one
        does not. The handle's `remove()` ends it. Raises ValueError if `nbytes` is negative.
        """
        def add(_: bool) -> Watermark:
            mark = self._watermarks.add(nbytes, callback)
            self._alert = self._watermarks.below(self._peak_allocated)
            return mark

        return self._changing(add)

    def empty_cache(self) -> int:
        """Release free segments, once their streams are done; the number of bytes released."""
        return self._changing(lambda allowed: self._segments.release() if allowed else 0)

    def holdings(self) -> list[report.Holding]:
        """Every live block: the bytes it holds, and the op that made it."""
        return self._changing(lambda allowed: self._segments.holdings() if allowed else [])

    def _in_turn(self, pool: BlockPool, size: int) -> Chunk | None:
        """A chunk for a request of a size that takes turns with the one just freed, or None.

        The freed chunk becomes the spare: it goes to no list, where it would be joined with its
        neighbours and cut again. The next two requests exchange the spare and the chunk that is
        freed between them. Any other request, and all that looks at the pools, gives it back.
        """
        pending = self._pending
        if self._spare is not None:
            self._give_spare()
        if len(pending) != 1:
            return None
        freed: Any = pending[0]
        if not freed.used or freed.used == size or freed.uses is not None:
            return None  # no chunk, one that serves the request, or one of several streams
        chunk = pool.take(size)
        if chunk is not None:  # stores
            self._spare = freed
            self._allocated -= freed.used
            self._active -= freed.size
            self._turn = freed.used
            del pending[0]
        return chunk

    def _give_spare(self) -> None:
        spare = self._spare
        assert spare is not None
        spare.pool.give(spare)
        spare.let_go = None  # which refers to the chunk
        self._spare = None

    def _serve(self, block: Block, size: int, nbytes: int, stream: int, label: str) -> int:
        """Serve a request that its free list cannot; returns as `_rise`."""
        def attempt(_: bool) -> int:
            chunk: Chunk | None = None
            misses = self._segments.misses
            try:
                chunk = self._segments.take(size, stream)
                self._drain()  # blocks freed meanwhile do not count towards a new peak
                return self._hold(block, chunk, size, nbytes, stream, label)
            except NoRoom:
                raise
            except BaseException:  # undone
                if block.node is None:
                    self._segments.misses = misses
                    if chunk is not None and (
                            chunk.uses is None or not self._orders.retire(chunk)):
                        chunk.pool.give(chunk)
                raise

        try:
            return self._out_of_memory.run(size, attempt)
        except NoRoom as error:
            why = str(error)
        raise OutOfMemoryError(report.out_of_memory_text(
            self.name, nbytes, label, why, self.stats(), self.holdings()), nbytes)

    def _allocate_aside(self, block: Block, size: int, nbytes: int, stream: int,
                        label: str) -> Block:
        """A block for a finalizer or signal handler that interrupts this thread within `allocate`.

        It gets a segment of its own, which joins its pool when the pending queue is emptied.
        """
        try:
            segment = self._segments.grow(stream, size, self._pending.append)
        except NoRoom as why:
            raise OutOfMemoryError(
                f"out of memory on {self.name}: {report.size_text(nbytes)} wanted in the middle of "
                f"another allocation, but {why}", nbytes) from None
        self._hold(block, segment.right, size, nbytes, stream, label)
        return block  # no watermark callbacks: the lock is held

    def _hold(self, block: Block, chunk: Chunk, size: int, nbytes: int, stream: int,
              label: str) -> int:
        """Give a chunk to the block, and count it; returns as `_rise`."""
        free = MethodType(self._free, chunk)
        block.node = chunk  # stores
        block.__del__ = chunk.let_go = free
        block.ptr = chunk.ptr
        block.size = chunk.used = size
        block.nbytes = chunk.nbytes = nbytes
        block.label = chunk.label = label
        block.stream = block.only = stream
        self._serial = block.serial = self._serial + 1
        self._active += chunk.size
        self._allocated += size
        if chunk.uses is not None:  # as in `record_use`
            block.__del__ = in_turn(free, self._settle)
        return self._rise(size) if self._allocated > self._alert else 0

    def _rise(self, size: int) -> int:
        """Note a new peak. The live bytes if the last `size` bytes passed a watermark, else 0."""
        allocated = self._allocated
        self._peak_allocated = max(self._peak_allocated, allocated)
        self._alert = self._watermarks.below(self._peak_allocated)
        return allocated if self._watermarks.passed(allocated - size, allocated) else 0

    def _changing(self, work: Callable[[bool], Held]) -> Held:
        """Call `work(True)` under the lock, with the pending queue empty.

        It is `work(False)`, which must not touch the pools, if this thread is changing them.
        """
        with self._lock:
            if self._busy:
                return work(False)
            try:
                self._busy = True
                self._drain()
                return work(True)
            finally:
                self._busy = False

    def _settle(self) -> None:
        """Empty the pending queue, unless the lock is held."""
        lock = self._lock
        try:
            if lock.acquire(False) and not self._busy:
                try:
                    self._busy = True
                    self._drain()
                    if self._orders.count:
                        self._orders.record_retired()
                finally:
                    self._busy = False
        finally:
            try:  # noqa: SIM105  as in `allocate`
                lock.release()
            except RuntimeError:
                pass

    def _drain(self) -> None:
        """Empty the pending queue; the caller holds the lock.

        An item is removed after the last call for it, so work that an interrupt cut short is
        repeated.
        """
        pending = self._pending
        if self._spare is not None:
            self._give_spare()
        while pending:
            item = pending[0]
            if not isinstance(item, Chunk):
                self._orders.forget(item.stream, item.last)
                self._segments.pools.forget(item.stream)
            elif type(item) is Segment:
                item.pool.add(item)
                if not item.right.used:  # an interrupt came before a block had it
                    item.pool.give(item.right)
                    self._segments.misses -= 1
            else:
                used, size = item.used, item.size
                item.let_go = None  # which refers to the chunk
                if item.uses is None:
                    item.pool.give(item)
                elif not self._orders.retire(item):
                    continue  # only its own stream used it: given in the next round
                self._allocated -= used
                self._active -= size
                self._turn = used
            del pending[0]

    def layout(self) -> list[SegmentLayout]:
        """Every segment by address: its pieces and their holders."""
        return self._changing(lambda allowed: layout_of(self._segments) if allowed else [])

"""Order between the streams of one device: a reader waits for the writer, a writer for all users.

The producer of a block is the last stream that wrote it, at first the one it was allocated on. When
another stream first reads it, an event is recorded on the producer, behind the write, and the
reader waits for it. The event gets a number. The block stores it as an event behind its write, and
the device stores the latest number for which each stream has waited on each other. So one event
serves all blocks written before it, and a stream that has waited for it, or a later one, does not
wait again. A block that only one stream ever touches costs nothing.

For memory that is not a block (of another library or allocator) no user is known, so a stream that
touches it waits for all others.

Work that is captured into a graph runs later, so the capture waits for no stream. The blocks it
touches are noted (`captures`), and each replay is ordered like an op that reads and writes them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable
from threading import RLock
from typing import Any, Protocol

from gtensor.backend.streams import Event, Stream
from gtensor.system.bus import WaitEvent, bus, tell_aside
from gtensor.system.fork_safety import free_at_forks


class Stamp:
    """Counts in `version` the replays that write a block, as storages count writes in place."""

    version = 0


class Block(Protocol):
    """A block of memory: the stream that it belongs to, and its users so far.

    `owner` is its resource, whose `record_use` is called for each further stream. `readers` and
    `written` are unset until a second stream touches it, `stamp` until a captured op writes it.
    `only` is the id of the stream while no other one has touched it, then None.
    """

    only: int | None
    stream: int
    serial: int
    owner: Any
    readers: set[int]
    written: tuple[int, int]
    stamp: Any


class Replays:
    """What is done before each replay of a graph: `functions` are called, by their owners' keys.

    `empty(shape, dtype, label)` makes arrays for what they copy to the device. These lie outside of
    the graph's memory, in which they could share their place with temporaries of the capture.
    """

    def __init__(self, empty: Callable[..., Any]) -> None:
        self.functions: dict[Any, Callable[[], object]] = {}
        self.empty = empty


# The attributes of a block beside its address and size.
BLOCK_FIELDS = ("__del__", "__weakref__", "label", "nbytes", "node", "only", "owner", "readers",
                "serial", "stamp", "stream", "written")


class Touched:
    """The blocks from outside a capture that its work reads and writes."""

    def __init__(self, replays: Replays) -> None:
        self.replays = replays
        self.read: dict[Block, None] = {}
        self.written: dict[Block, None] = {}


class Ordering:
    """The waits between the streams of a device. `stream_of` returns a stream by its id."""

    def __init__(self, stream_of: Callable[[int], Stream | None]) -> None:
        self.captures: dict[int, Touched] = {}  # by stream that is being captured
        self._stream_of = stream_of
        self._numbers = itertools.count(1)
        self._latest: dict[int, tuple[int, Event]] = {}  # by producer: number and event
        self._seen: dict[tuple[int, int], int] = {}  # (waiter, producer) -> number
        self._ended: set[int] = set()  # ended streams whose work may not be done
        # Numbers must be in the order of the events, and a finalizer may run between the two.
        self._lock = RLock()
        free_at_forks(self._lock)

    def read(self, reader: Stream, block: Block) -> None:
        """The next work queued on `reader` reads the block."""
        if reader.id in self.captures:
            self.captures[reader.id].read[block] = None
            return
        writer, number = getattr(block, "written", (block.stream, 0))
        if writer != reader.id:
            with self._lock:
                if not number or self._seen.get((reader.id, writer), 0) < number:
                    reached = self._wait(reader, writer, number)
                    if not number:
                        block.written = writer, reached
        self._note(block, reader.id)

    def write(self, writer: Stream, *blocks: Block) -> None:
        """The next work queued on `writer` writes the blocks, which other streams may be using."""
        if writer.id in self.captures:
            with self._lock:  # two captures may write one block
                for block in blocks:
                    if not hasattr(block, "stamp"):
                        block.stamp = Stamp()
            self.captures[writer.id].written.update(dict.fromkeys(blocks))
            return
        with self._lock:
            users: set[int] = set()
            for block in blocks:
                before, _ = getattr(block, "written", (block.stream, 0))
                users.update((before,), getattr(block, "readers", ()))
            for user in sorted(users - {writer.id}):
                self._wait(writer, user, 0)
            _written_by(writer, blocks)
        for block in blocks:
            self._note(block, writer.id)

    def behind_all(self, stream: Stream, known: Iterable[int]) -> None:
        """The next work queued on `stream` touches memory whose users are unknown.

        It waits for the `known` streams and the ended ones. Within a capture it waits for none:
        each replay runs on the stream that launches it.
        """
        if stream.id in self.captures:
            return
        with self._lock:
            for other in sorted({*known, *self._ended} - {stream.id} - self.captures.keys()):
                self._wait(stream, other, 0)

    def adopt(self, stream: Stream, blocks: Collection[Block]) -> None:
        """Make the stream the producer of the blocks, without a wait."""
        with self._lock:
            _written_by(stream, blocks)
        for block in blocks:
            self._note(block, stream.id)

    def forget(self, stream: int, last: Event) -> None:
        """The stream has ended; `last` is an event behind all its work."""
        with self._lock:
            self._latest[stream] = next(self._numbers), last
            self._ended.add(stream)
            # Loops over copies: a finalizer of this thread may end another stream meanwhile.
            done = set() if self.captures else {  # within a capture no event may be queried
                ended for ended in list(self._ended)
                if ended in self._latest and _is_done(self._latest[ended][1])}
            self._ended -= done
            for ended in done:
                self._latest.pop(ended, None)
            for pair in list(self._seen):
                if pair[0] == stream or pair[1] in done:
                    self._seen.pop(pair, None)

    def _wait(self, waiter: Stream, producer: int, number: int) -> int:
        """Let `waiter` wait for the producer's event with that number or a later one.

        0 asks for a new event. Returns the number of the event.
        """
        if producer in self.captures:
            raise RuntimeError(f"work on stream {waiter.id} uses memory of a graph that is being "
                               f"captured on stream {producer}; wanted it on that stream, or after "
                               "the capture")
        latest = self._latest.get(producer)
        stream = self._stream_of(producer)
        if stream is not None and (latest is None or not number or latest[0] < number):
            event = stream.record()
            latest = self._latest[producer] = next(self._numbers), event
        if latest is None:  # it has ended, and all its work is done
            return number
        waiter.wait(latest[1])
        self._seen[waiter.id, producer] = latest[0]
        if bus.waits:
            tell_aside(bus.waits, WaitEvent(waiter.id, producer))
        return latest[0]

    def _note(self, block: Block, stream: int) -> None:
        """Store a user of the block, for its next writer and for its free."""
        readers = getattr(block, "readers", None)
        if readers is None:
            with self._lock:  # two threads must not both make a set
                readers = getattr(block, "readers", None)
                if readers is None:
                    block.only = None
                    readers = block.readers = set()
        if stream not in readers:
            readers.add(stream)
            block.owner.record_use(block, stream)


def _is_done(event: Event) -> bool:
    try:
        return event.done()
    except Exception:  # the driver failed: queried again later
        return False


def _written_by(stream: Stream, blocks: Collection[Block]) -> None:
    for block in blocks:
        block.written = stream.id, 0
        block.only = None
        block.readers = set()

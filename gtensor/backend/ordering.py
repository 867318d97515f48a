"""Order between streams of one device: who reads waits for who wrote, who writes for all.

The producer of a block is the last stream that wrote it, at first the one it was allocated on. When
another stream first reads it, an event is recorded on the producer, behind the write, and the
reader waits for it. The event gets a number; the block remembers it as lying behind its write, and
the device remembers up to which number each stream has waited for each other. So one event serves
all blocks that were written before it, and a stream that has waited for it, or a later one, does
not wait again. A block that only one stream ever touches costs nothing here.

Of memory that is no block (another library's, or of another allocator) nothing is known: whoever
touches it waits for all other streams.

Work that is captured into a graph runs later, so nobody waits then: what it touches is noted
(`captures`), and each replay is ordered like an op that reads and writes all of that.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable
from threading import RLock
from typing import Any

from gtensor.backend.streams import Event, Stream
from gtensor.locks import free_at_forks


class Stamp:
    """Counts in `version` the replays that write a block, as storages count writes in place."""

    version = 0


class Touched:
    """The blocks, not its own, that a stream's work reads and writes while it is captured."""

    def __init__(self) -> None:
        self.read: dict[Any, None] = {}
        self.written: dict[Any, None] = {}


class Ordering:
    """What the streams of a device have waited for. `stream_of` answers a stream by its id."""

    def __init__(self, stream_of: Callable[[int], Stream | None]) -> None:
        self.captures: dict[int, Touched] = {}  # by stream that is being captured
        self._stream_of = stream_of
        self._numbers = itertools.count(1)
        self._latest: dict[int, tuple[int, Event]] = {}  # by producer: number and event
        self._seen: dict[tuple[int, int], int] = {}  # (waiter, producer) -> number
        self._ended: set[int] = set()  # streams that are gone, with work that may not be done
        # A number must be given in the order of the events, and finalizers may come in between.
        self._lock = RLock()
        free_at_forks(self._lock)

    def read(self, reader: Stream, block: Any) -> None:
        """Work that is queued on `reader` next will read the block."""
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

    def write(self, writer: Stream, *blocks: Any) -> None:
        """Work that is queued on `writer` next will write blocks which others may be using."""
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
        """Work that is queued on `stream` next touches memory that nothing is noted of.

        It waits for the `known` streams and those that are gone. Within a capture it waits for
        nobody: each replay runs where it is launched.
        """
        if stream.id in self.captures:
            return
        with self._lock:
            for other in sorted({*known, *self._ended} - {stream.id} - self.captures.keys()):
                self._wait(stream, other, 0)

    def adopt(self, stream: Stream, blocks: Collection[Any]) -> None:
        """The contents of blocks are that stream's from now on; it waits for nobody."""
        with self._lock:
            _written_by(stream, blocks)
        for block in blocks:
            self._note(block, stream.id)

    def forget(self, stream: int, last: Event) -> None:
        """The stream is gone; `last` lies behind all its work."""
        with self._lock:
            self._latest[stream] = next(self._numbers), last
            self._ended.add(stream)
            # Over copies: another stream may end in the middle, by a finalizer of this thread.
            done = set() if self.captures else {  # within a capture no event may be asked
                ended for ended in list(self._ended)
                if ended in self._latest and _is_done(self._latest[ended][1])}
            self._ended -= done
            for ended in done:
                self._latest.pop(ended, None)
            for pair in list(self._seen):
                if pair[0] == stream or pair[1] in done:
                    self._seen.pop(pair, None)

    def _wait(self, waiter: Stream, producer: int, number: int) -> int:
        """Let `waiter` wait for the producer's event with that number or a later one, 0: for a new
        one; the number it has then seen."""
        if producer in self.captures:
            raise RuntimeError(f"work on stream {waiter.id} uses memory of a graph that is being "
                               f"captured on stream {producer}; wanted it on that stream, or after "
                               "the capture")
        latest = self._latest.get(producer)
        stream = self._stream_of(producer)
        if stream is not None and (latest is None or not number or latest[0] < number):
            event = stream.record()
            latest = self._latest[producer] = next(self._numbers), event
        if latest is None:  # gone, and all its work is done
            return number
        waiter.wait(latest[1])
        self._seen[waiter.id, producer] = latest[0]
        return latest[0]

    def _note(self, block: Any, stream: int) -> None:
        """Remember a user of the block, for who writes it next and for who frees it."""
        readers = getattr(block, "readers", None)
        if readers is None:
            with self._lock:  # of the sets of two threads one would be lost
                readers = getattr(block, "readers", None)
                if readers is None:
                    readers = block.readers = set()
        if stream not in readers:
            readers.add(stream)
            block.owner.record_use(block, stream)


def _is_done(event: Event) -> bool:
    try:
        return event.done()
    except Exception:  # a driver that fails: asked again another time
        return False


def _written_by(stream: Stream, blocks: Collection[Any]) -> None:
    for block in blocks:
        block.written = stream.id, 0
        block.readers = set()

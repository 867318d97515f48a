"""The streams of an arena, the waits between them, and the freed chunks that wait for events.

A freed chunk that another stream used is *retired*: one event per such stream is recorded behind
the work queued so far, and the chunk returns to its free list when all have completed. A request
may take it earlier if its stream can be made to wait for the events (`claim`).

The caller holds the arena's lock. While a stream is being captured into a graph (`capturing`)
events can neither be recorded nor queried; retired chunks then wait for the end of the capture.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Container, Iterator
from contextlib import contextmanager
from itertools import chain, islice
from typing import NamedTuple

from gtensor.backend.streams import Event, Stream
from gtensor.memory.arena.chunks import IN_USE, RETIRED, Chunk
from gtensor.system.bus import WaitEvent, bus, tell_aside

_LOOKS = 256  # retired chunks that a request searches

StreamOf = Callable[[int], Stream | None]


class Ended(NamedTuple):
    """An ended stream, and an event behind all its work (None: it had none).

    In a queue of freed chunks it is one of no bytes.
    """

    stream: int
    last: Event | None
    used: int = 0


class Retired:
    """A freed chunk and the events it waits for, by stream; `chunk` is None once it is free.

    `home`: whether the stream of the chunk's own pool used it, too.
    """

    __slots__ = ("chunk", "events", "home")

    def __init__(self, chunk: Chunk) -> None:
        self.chunk: Chunk | None = chunk
        self.events: dict[int, Event] = {}
        self.home = False


class Streams:
    """The streams of one arena by id, and the retired chunks.

    `known` maps ids to streams; `stream_of` finds those that are missing. `ended` maps ended
    streams to an event behind all their work. `replays` has the stream of the last replay of each
    pool of graphs, and an event behind it: not the pool, since an event that is found in a cycle
    of garbage is destroyed with it. `count` and `nbytes` are of the retired chunks.
    """

    def __init__(self, stream_of: StreamOf | None = None) -> None:
        self.known: dict[int, Stream] = {}
        self.ended: dict[int, Event] = {}
        self.replays: dict[int, tuple[int, Event]] = {}
        self.capturing = 0
        self.count = 0
        self.nbytes = 0
        self._stream_of = stream_of
        self._lines: dict[int, deque[Retired]] = {}  # by stream, in the order of their events
        # retired chunks whose events are still to be recorded, and those whose recording failed
        self._unrecorded: dict[Retired, None] = {}
        self._failed: dict[Retired, None] = {}

    def get(self, stream: int) -> Stream | None:
        """The stream with that id, None if it is unknown or has ended."""
        found = self.known.get(stream)
        if found is None and self._stream_of is not None and stream not in self.ended:
            found = self._stream_of(stream)
            if found is not None:
                self.known[stream] = found
        return found

    def record(self, stream: int) -> Event | None:
        """An event behind all work queued on a stream; None if all its work has completed."""
        found = self.get(stream)
        return self.ended.get(stream) if found is None else found.record()

    @contextmanager
    def capture(self) -> Iterator[None]:
        """While a stream is captured into a graph: no event is recorded, queried or waited for."""
        self.capturing += 1
        try:
            yield
        finally:
            self.capturing -= 1

    def may_order(self, waiter: int) -> bool:
        """Whether that stream can be made to wait for others now."""
        return not self.capturing and self.get(waiter) is not None

    def blocks(self, ended: int) -> bool:
        """Whether a wait for that stream, which has ended, would block the host."""
        return _blocks(self.ended.get(ended))

    def settling_blocks(self, ended: int) -> bool:
        """The same of a wait for all work on the memory of its pool."""
        return self.blocks(ended) or any(
            _blocks(event) for line in self._lines.values() for entry in line
            if entry.chunk is not None and entry.chunk.pool.stream == ended
            for event in entry.events.values())

    def order(self, waiter: int, on: int) -> None:
        """Let work queued on `waiter` from now on start after all work queued on `on` so far."""
        event = self.record(on)
        if event is not None:
            self._wait(waiter, event)

    def forget(self, stream: int, last: Event | None) -> None:
        """The stream, or pool of graphs, has ended; `last` is an event behind all its work.

        None: it had none, or that of the pool's last replay is behind it.
        """
        if last is None and stream in self.replays:
            last = self.replays[stream][1]
        if last is not None:
            self.ended[stream] = last
        self.known.pop(stream, None)
        self.replays.pop(stream, None)  # last: an interrupted call is repeated
        if self.capturing:
            return
        for other in [other for other, event in self.ended.items() if _done(event)]:
            del self.ended[other]

    def retire(self, chunk: Chunk) -> bool:
        """Retire a freed chunk; False if only the stream of its own pool used it: it is free."""
        assert chunk.uses is not None
        if chunk.uses == {chunk.pool.stream}:
            chunk.uses = None
            return False
        entry = Retired(chunk)
        self._unrecorded[entry] = None  # stores
        chunk.bin = RETIRED
        self.count += 1
        self.nbytes += chunk.size
        return True

    def record_retired(self) -> None:
        """Record the events of retired chunks. Errors of streams are not raised.

        If a stream cannot record, only chunks that it used stay retired; one of them is tried again
        at each call.
        """
        if self.capturing:
            return
        for entry in (*islice(self._failed, 1), *self._unrecorded):
            try:
                self._record(entry)
                failed = False
            except Exception:
                failed = True
            if entry in self._failed:  # stores
                del self._failed[entry]
            if failed:
                self._failed[entry] = None
            if entry in self._unrecorded:
                del self._unrecorded[entry]

    def _record(self, entry: Retired) -> None:
        chunk = entry.chunk
        if chunk is None:  # it was freed before an interrupt
            return
        home = chunk.pool.stream
        uses = chunk.uses
        assert uses is not None
        events = {}
        for user in sorted(uses - {home}):
            event = self.record(user)
            if event is not None:
                events[user] = event
        entry.events = events
        entry.home = home in uses
        for user in events:
            self._lines.setdefault(user, deque()).append(entry)
        if not events:
            self._settle(entry)

    def poll(self) -> None:
        """Free the chunks whose events have completed, in order for each stream."""
        self.record_retired()
        if self.capturing:
            return
        for stream, line in tuple(self._lines.items()):
            while line:
                entry = line[0]
                event = entry.events.get(stream)
                if event is not None and entry.chunk is not None:
                    if not _done(event):
                        break
                    if len(entry.events) == 1:
                        self._settle(entry)
                    else:
                        del entry.events[stream]
                line.popleft()
            if not line:
                del self._lines[stream]

    def order_retired(self, waiter: int, pool: int) -> None:
        """Let `waiter` wait for the streams that may still use a retired chunk of the pool.

        Raises the error of a stream that cannot record.
        """
        self.record_retired()
        for entry in (*self._failed, *self._unrecorded):  # another stream may be captured now
            if entry.chunk is not None and entry.chunk.pool.stream == pool:
                for user in sorted((entry.chunk.uses or set()) - {pool, waiter}):
                    self.order(waiter, user)
        for line in self._lines.values():
            for entry in line:
                if entry.chunk is not None and entry.chunk.pool.stream == pool:
                    for user, event in entry.events.items():
                        if user != waiter:
                            self._wait(waiter, event)

    def settle_ended(self, home: Stream, ended: Collection[int]) -> bool:
        """Free the retired chunks in the pools of these ended streams and graphs.

        `home`, and the streams that inherit the pools, wait for all work on the pools' memory.
        Returns whether `home` had to wait.
        """
        self.poll()
        retired = [entry for line in self._lines.values() for entry in line
                   if entry.chunk is not None and entry.chunk.pool.stream in ended]
        events = [event for number, event in self.ended.items()
                  if number in ended and not _done(event)]
        events += [event for entry in retired for event in entry.events.values()]
        if not events:
            return False
        for event in dict.fromkeys(events):
            home.wait(event)
        last = home.record()
        for number in ended:
            self.ended[number] = last
        for entry in retired:
            if entry.chunk is not None:  # it is in the line of each of its users
                self._settle(entry)
        return True

    def synchronize(self) -> bool:
        """Block until every retired chunk is free. False, at once, within a capture."""
        if self.capturing:
            return False
        self.record_retired()
        for stream, line in tuple(self._lines.items()):
            last = next((entry for entry in reversed(line)
                         if entry.chunk is not None and stream in entry.events), None)
            if last is not None:
                last.events[stream].synchronize()
        self.poll()
        return True

    def claim(self, size: int, stream: int, private: Container[int] = ()) -> Chunk | None:
        """A retired chunk of at least `size` bytes for that stream, which is made to wait for it.

        It is one of the first `_LOOKS` retired chunks, of no pool in `private`, and not much
        larger, since it is handed out whole. Preferred is a chunk that needs no wait, then one of
        the stream's own pool, then the smallest.
        """
        if not self.may_order(stream):
            return None
        found: tuple[tuple[bool, bool, int], Retired] | None = None
        for entry in islice(chain.from_iterable(self._lines.values()), _LOOKS):
            chunk = entry.chunk
            if chunk is None or chunk.size < size or chunk.size - size > chunk.size >> 3:
                continue
            if chunk.pool.stream in private or (self.ended and self._blocked(entry)):
                continue
            foreign = chunk.pool.stream != stream
            waits = (entry.home and foreign) or any(user != stream for user in entry.events)
            rank = waits, foreign, chunk.size
            if found is None or rank < found[0]:
                found = rank, entry
        return None if found is None else self._claimed(found[1], stream)

    def _blocked(self, entry: Retired) -> bool:
        """Whether a wait for the users of a chunk would block the host."""
        chunk = entry.chunk
        assert chunk is not None
        return self.blocks(chunk.pool.stream) or any(map(_blocks, entry.events.values()))

    def _claimed(self, entry: Retired, stream: int) -> Chunk:
        chunk = entry.chunk
        assert chunk is not None
        for user, event in entry.events.items():
            if user != stream:
                self._wait(stream, event)
        home = chunk.pool.stream
        if entry.home and home != stream:
            self.order(stream, home)
        entry.chunk = None
        self.count -= 1
        self.nbytes -= chunk.size
        chunk.bin = IN_USE
        chunk.uses = None if home == stream else {stream}
        return chunk

    def _settle(self, entry: Retired) -> None:
        chunk = entry.chunk
        assert chunk is not None
        size = chunk.size
        chunk.pool.give(chunk)
        chunk.uses = None  # stores, so it is freed once
        entry.chunk = None
        self.count -= 1
        self.nbytes -= size

    def _wait(self, waiter: int, event: Event) -> None:
        stream = self.get(waiter)
        assert stream is not None, "may_order was not asked"
        stream.wait(event)
        if bus.waits:
            tell_aside(bus.waits, WaitEvent(waiter, None))


def _blocks(event: Event | None) -> bool:
    """Whether a stream cannot wait for it: only the host can, until its device was waited for."""
    return getattr(event, "blocks", False)


def _done(event: Event) -> bool:
    """Whether it has completed; False if the query fails."""
    try:
        return event.done()
    except Exception:
        return False

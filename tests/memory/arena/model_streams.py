"""A model of what streams may still be doing to which bytes, independent of the arena.

Every unit of work touches some bytes of the device, whatever their addresses (`physical`). Each
stream carries a clock: up to where every other stream's work is done before its own next unit
starts, which it takes from the events that it waits for. Bytes may be handed to a stream only
if all unfinished work on them lies within its clock.
"""

from __future__ import annotations

from simulated import SimulatedPages, SimulatedSegments

from gtensor.backend.streams import SimulatedStream
from gtensor.memory import Block, SegmentSource, VirtualSegments

from ..invariants import physical


class Refused(RuntimeError):
    """A stream's call that the test made fail."""


class Calls:
    """Counts upstream calls and refuses the given ones, 1 being the next."""

    def __init__(self) -> None:
        self.count = 0
        self.refused: frozenset[int] = frozenset()

    def refuse(self, *calls: int) -> None:
        self.refused = frozenset(self.count + call for call in calls)

    def __call__(self, name: str) -> None:
        self.count += 1
        if self.count in self.refused:
            raise Refused(f"call {self.count}, of {name}, was told to fail")


class ModelEvent:
    """An event with the clock of its stream; `calls` may refuse to record it."""

    def __init__(self, event, clock, calls) -> None:
        self.event = event
        self.clock = clock
        self.calls = calls

    def done(self) -> bool:
        self.calls("done")
        return self.event.done()

    def synchronize(self) -> None:
        self.calls("synchronize")
        self.event.synchronize()


class ModelStream(SimulatedStream):
    """A stream with a clock, and a list of unfinished work: position, bytes."""

    def __init__(self, calls: Calls | None = None) -> None:
        super().__init__()
        self.calls = calls or Calls()
        self.clock: dict[int, int] = {}
        self.work: list[tuple[int, set[tuple[int, int]]]] = []

    def touch(self, block: Block) -> None:
        """Queue work on the block's bytes."""
        self.launch()
        self.work.append((self.launched, bytes_of(block)))

    def record(self):
        self.calls("record")
        return ModelEvent(super().record(), {**self.clock, self.id: self.launched}, self.calls)

    def wait(self, event) -> None:
        self.calls("wait")
        super().wait(event.event)
        for stream, position in event.clock.items():
            self.clock[stream] = max(self.clock.get(stream, 0), position)

    def unfinished(self, wanted: set[tuple[int, int]]) -> list[int]:
        """Positions of the unfinished work on these bytes."""
        self.work = [unit for unit in self.work if unit[0] > self.completed]
        return [position for position, touched in self.work
                if any(low < end and start < high
                       for low, high in touched for start, end in wanted)]


def bytes_of(block: Block) -> set[tuple[int, int]]:
    """The bytes of the device behind a block of an arena."""
    return physical(block.owner.source, block.ptr, block.size)


class Model:
    """All streams, those that are gone included; `seen` counts the handings-out it had to judge.

    `broken` is set when an assertion fails, whose traceback then keeps blocks alive.
    """

    def __init__(self) -> None:
        self.streams: list[ModelStream] = []
        self.seen = 0
        self.broken = False

    def handed_out(self, block: Block, to: ModelStream) -> None:
        """Assert that a new block's stream starts after all unfinished work on its bytes."""
        wanted = bytes_of(block)
        for stream in self.streams:
            for position in stream.unfinished(wanted):
                if stream is to:
                    continue
                self.seen += 1
                self.broken = to.clock.get(stream.id, 0) < position
                assert not self.broken, (
                    f"{block} was handed out while stream {stream.id} may still touch it")

    def returned(self, source: SegmentSource, ptr: int, nbytes: int) -> None:
        """Assert that nothing touches bytes that go back to the system."""
        gone = physical(source, ptr, nbytes)
        for stream in self.streams:
            self.broken = bool(stream.unfinished(gone))
            assert not self.broken, (
                f"bytes at {ptr:#x} were returned while stream {stream.id} may still touch them")

    def finish(self) -> None:
        """Let all work complete."""
        for stream in self.streams:
            stream.synchronize()


class ModelSegments(SimulatedSegments):
    """A source that asserts with the model that what it gets back is not in use."""

    def __init__(self, model: Model, capacity: int, calls: Calls | None = None, **more) -> None:
        super().__init__(capacity, **more)
        self.model = model
        self.calls = calls or Calls()

    def acquire(self, nbytes: int) -> int:
        self.calls("acquire")
        return super().acquire(nbytes)

    def release(self, ptr: int, nbytes: int) -> None:
        self.calls("release")
        self.model.returned(self, ptr, nbytes)
        super().release(ptr, nbytes)


class ModelPages(SimulatedPages):
    """Pages that count calls, and refuse the given ones."""

    def __init__(self, capacity: int, page: int, calls: Calls | None = None) -> None:
        super().__init__(capacity, page)
        self.calls = calls or Calls()
        self.full = Calls()

    def fail_at(self, *calls: int) -> None:
        """Let these calls of `map` find no room, counted from now (1 is the next)."""
        self.full.refuse(*calls)

    def map(self, address: int, nbytes: int) -> None:
        self.calls("map")
        try:
            self.full("map")
        except Refused as error:
            raise MemoryError(str(error)) from error
        super().map(address, nbytes)

    def unmap(self, address: int, nbytes: int) -> None:
        self.calls("unmap")
        super().unmap(address, nbytes)


class ModelVirtual(VirtualSegments):
    """Virtual memory that asserts with the model that what it gets back is not in use."""

    def __init__(self, model: Model, pages: SimulatedPages) -> None:
        super().__init__(pages)
        self.model = model

    def release(self, ptr: int, nbytes: int) -> None:
        self.model.returned(self, ptr, nbytes)
        super().release(ptr, nbytes)

"""The policy of CuPy's memory pool, to compare the arena with.

As in `cupy.cuda.MemoryPool` (cupy/cuda/memory.pyx, CuPy 14), sizes are rounded up to 512 bytes. The
smallest free chunk of the stream that fits is taken and always split. On a miss one segment of
exactly the requested size is acquired. When that fails, all free segments are released, then
garbage is collected, and it is tried again. The limit is checked before anything is released. No
stream waits for another.

Not for production: it searches all free chunks, and is not thread-safe.
"""

from __future__ import annotations

import gc
from types import MethodType

from gtensor.memory.contract import report
from gtensor.memory.contract.resource import Block, OutOfMemoryError, Stats, block_of
from gtensor.memory.sources import SegmentSource, round_up

_GRANULARITY = 512


class _Piece:
    """Consecutive bytes of a segment, and its neighbours there."""

    __slots__ = ("after", "before", "label", "nbytes", "ptr", "size", "stream")

    def __init__(self, ptr: int, size: int, stream: int) -> None:
        self.ptr = ptr
        self.size = size
        self.stream = stream
        self.before: _Piece | None = None
        self.after: _Piece | None = None
        self.nbytes = 0
        self.label = ""

    @property
    def whole(self) -> bool:
        """Whether it is its whole segment."""
        return self.before is None and self.after is None

    def split(self, size: int) -> _Piece:
        """Keep the first `size` bytes; the rest."""
        rest = _Piece(self.ptr + size, self.size - size, self.stream)
        rest.before, rest.after = self, self.after
        if rest.after is not None:
            rest.after.before = rest
        self.after = rest
        self.size = size
        return rest

    def swallow(self, after: _Piece) -> None:
        """Absorb the neighbour behind it."""
        self.size += after.size
        self.after = after.after
        if self.after is not None:
            self.after.before = self


class CupyPool:
    """A `Resource` with that policy over a segment source."""

    block_type = Block

    def __init__(self, source: SegmentSource, name: str = "memory") -> None:
        self.source = source
        self.name = name
        self.limit: int | None = None
        self.allocated = 0
        self._reserved = self._segments = 0
        self._peak_allocated = self._peak_reserved = 0
        self._serial = self._misses = 0
        self._free: set[_Piece] = set()
        self._live: set[_Piece] = set()

    def allocate(self, nbytes: int, stream: int = 0, label: str = "") -> Block:
        """A block of `nbytes` bytes; raises OutOfMemoryError, ValueError if it is negative."""
        if nbytes < 0:
            raise ValueError(f"a block of {nbytes} bytes was asked for; wanted 0 or more")
        size = round_up(max(nbytes, 1), _GRANULARITY)
        fitting = [piece for piece in self._free if piece.stream == stream and piece.size >= size]
        if fitting:
            piece = min(fitting, key=lambda piece: (piece.size, piece.ptr))
            self._free.remove(piece)
            if piece.size > size:
                self._free.add(piece.split(size))
        else:
            piece = self._opened(size, nbytes, stream, label)
        piece.nbytes, piece.label = nbytes, label
        self._live.add(piece)
        self.allocated += size
        self._peak_allocated = max(self._peak_allocated, self.allocated)
        self._serial += 1
        block = block_of(self, piece, piece.ptr, size, nbytes, label, stream, self._serial)
        block.__del__ = MethodType(self._give, piece)
        return block

    def _give(self, piece: _Piece) -> None:
        """Free a block's piece and join it with its free neighbours."""
        self.allocated -= piece.size
        self._live.remove(piece)
        if piece.after in self._free:
            self._free.remove(piece.after)
            piece.swallow(piece.after)
        if piece.before in self._free:
            self._free.remove(piece.before)
            piece.before.swallow(piece)
            piece = piece.before
        self._free.add(piece)

    def record_use(self, block: Block | int, stream: int) -> None:
        """Do nothing: this pool reuses a block at its free, even if other streams still use it."""

    def stats(self) -> Stats:
        """The counters now."""
        free = self._reserved - self.allocated
        largest = max((piece.size for piece in self._free), default=0)
        return Stats(
            allocated=self.allocated, reserved=self._reserved, active=self.allocated,
            peak_allocated=self._peak_allocated, peak_reserved=self._peak_reserved,
            hits=self._serial - self._misses, misses=self._misses, segments=self._segments,
            fragmentation=1 - largest / free if free else 0.0)

    def reset_peak(self) -> None:
        """Set both peaks to what is in use now."""
        self._peak_allocated = self.allocated
        self._peak_reserved = self._reserved

    def set_limit(self, nbytes: int | None) -> None:
        """Hold at most `nbytes` bytes of segments from now on; held segments stay."""
        if nbytes is not None and nbytes < 0:
            raise ValueError(f"a limit of {nbytes} bytes was given; wanted 0 or more, or None")
        self.limit = nbytes

    def empty_cache(self) -> int:
        """Release free segments (as `free_all_blocks`); the number of bytes released."""
        released = 0
        for piece in [piece for piece in self._free if piece.whole]:
            self.source.release(piece.ptr, piece.size)
            self._free.remove(piece)
            self._reserved -= piece.size
            self._segments -= 1
            released += piece.size
        return released

    def _opened(self, size: int, nbytes: int, stream: int, label: str) -> _Piece:
        """A piece of that size from a new segment."""
        if self.limit is not None and self._reserved + size > self.limit:
            raise self._no_room(nbytes, label, f"the limit is {report.size_text(self.limit)}")
        why = ""
        wanted = round_up(size, self.source.page)
        for attempt in range(3):
            if attempt == 2:
                gc.collect()
            if attempt:
                self.empty_cache()
            try:
                ptr = self.source.acquire(wanted)
            except MemoryError as error:
                why = str(error)
                continue
            self._misses += 1
            self._segments += 1
            self._reserved += wanted
            self._peak_reserved = max(self._peak_reserved, self._reserved)
            piece = _Piece(ptr, wanted, stream)
            if wanted > size:
                self._free.add(piece.split(size))
            return piece
        raise self._no_room(nbytes, label, why)

    def _no_room(self, nbytes: int, label: str, why: str) -> OutOfMemoryError:
        live = [report.Holding(piece.size, piece.label) for piece in self._live]
        return OutOfMemoryError(report.out_of_memory_text(
            self.name, nbytes, label, why, self.stats(), live), nbytes)

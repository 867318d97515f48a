"""The block policy: which bytes of a segment serve a request, without streams or locks.

A segment is cut into chunks, which form a ring in address order. Each free chunk is also in one of
many lists by size: 16 bins per power of two, and an integer with one bit per bin, so that a list
with a fitting chunk is found by a shift and a lowest-set-bit (the two-level segregated fit of
Masmano et al., 2004, with both levels in one Python integer). A free joins its chunk with both
neighbours at once, so two free chunks are never adjacent.

`take` and `give` search first (calls, loops) and then change the lists by plain stores. CPython
delivers signals at calls and loops only, so an interrupt such as Ctrl-C finds the lists consistent:
the changes begin at the comment "stores" (`system/interrupts.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from gtensor.memory.arena.chunks import IN_USE, Bin, Chunk, Segment, chunk_in_use

_STEP_BITS = 4  # 16 bins per power of two: a bin's chunks differ by less than 1/16 in size
_LINEAR_BITS = _STEP_BITS + 1  # below 32 granules every size has a bin of its own
_PROBES = 8  # chunks of a request's own bin that are tried before the next larger bin
_NEVER = 1 << 62  # more bytes than a request ever has
_SMALL = 4  # requests below a page divided by this are cut from a chunk's upper end


class BlockPool:
    """Free chunks of a set of segments, all sizes multiples of `granularity` (a power of two).

    A chunk is split only if at least `min_remainder` bytes are left over.

    `page` is the size of pages that can be joined (a power of two; 0: none). A request of a page or
    more is cut so that it breaks as few pages as possible: its remainder modulo the page has to fit
    in front of the chunk's first whole page. Small requests are cut from a chunk's upper end, large
    ones from its lower end, so that frees of one kind leave room for the same kind.

    `stream` and `taken` are the arena's: the stream of the pool, and how often it took memory from
    other streams.
    """

    __slots__ = ("_bins", "_filled", "_in_page", "_min_remainder", "_page", "_shift", "_small",
                 "segments", "stream", "taken")

    def __init__(self, granularity: int, min_remainder: int, stream: int = 0,
                 page: int = 0) -> None:
        self.stream = stream
        self.taken = 0
        self.segments: dict[int, Segment] = {}
        self._page = page or _NEVER
        self._small = page // _SMALL
        self._in_page = page - 1
        self._shift = granularity.bit_length() - 1
        self._min_remainder = max(min_remainder, granularity)
        self._bins: list[Bin] = []  # as many as the largest segment needs
        self._filled = 0  # the bits of all marked bins: every non-empty bin, and some empty ones

    def take(self, size: int, breaking: bool = False) -> Chunk | None:
        """A chunk of at least `size` bytes (a positive multiple of the granularity), or None.

        `breaking`: pages may be broken for it.
        """
        granules = size >> self._shift
        octave = granules.bit_length() - _LINEAR_BITS
        bin = (octave << _STEP_BITS) + (granules >> octave) if octave > 0 else granules
        filled = self._filled >> bin
        bins = self._bins
        chunk = None
        if filled & 1:  # the request's own bin has sizes a little above and a little below
            filled ^= 1
            chunk = bins[bin].after
            if chunk.size < size:
                chunk = self._search(bin, size, _PROBES)
        if chunk is None:
            while filled:  # any chunk of a larger bin fits
                lowest = filled & -filled
                head = bins[bin + lowest.bit_length() - 1]
                chunk = head.after
                if chunk is not head:
                    break
                filled ^= lowest
                self._filled ^= head.bit
                head.marked = False
            else:
                chunk = self._search(bin, size)
                if chunk is None:
                    return None

        rest = chunk.size - size
        if rest < self._min_remainder:
            before = chunk.before  # stores
            after = chunk.after
            before.after = after
            after.before = before
            chunk.bin = IN_USE
            return chunk

        lower = size >= self._small
        if (size >= self._page and not breaking
                and size & self._in_page > -chunk.ptr & self._in_page):
            return None
        granules = rest >> self._shift
        octave = granules.bit_length() - _LINEAR_BITS
        bin = (octave << _STEP_BITS) + (granules >> octave) if octave > 0 else granules
        cut = Chunk()
        cut.pool = self
        cut.size = size
        cut.bin = IN_USE
        cut.uses = None
        cut.used = cut.nbytes = 0
        cut.label = ""
        if lower:
            cut.ptr = chunk.ptr
            cut.right = chunk
            left = cut.left = chunk.left
            left.right = cut  # stores
            chunk.left = cut
            chunk.ptr += size
        else:
            cut.ptr = chunk.ptr + rest
            cut.left = chunk
            right = cut.right = chunk.right
            right.left = cut  # stores
            chunk.right = cut
        chunk.size = rest
        if bin != chunk.bin:
            before = chunk.before
            after = chunk.after
            before.after = after
            after.before = before
            head = bins[bin]
            if not head.marked:
                head.marked = True
                self._filled |= head.bit
            after = head.after
            chunk.before = head
            chunk.after = after
            head.after = after.before = chunk
            chunk.bin = bin
        return cut

    def give(self, chunk: Chunk) -> None:
        """Take a chunk back and join it with its free neighbours."""
        left = chunk.left
        right = chunk.right
        size = chunk.size
        if joins_left := left.bin >= 0:
            size += left.size
        if joins_right := right.bin >= 0:
            size += right.size
        granules = size >> self._shift
        octave = granules.bit_length() - _LINEAR_BITS
        bin = (octave << _STEP_BITS) + (granules >> octave) if octave > 0 else granules

        if joins_right:  # stores; the right neighbour absorbs the chunk ...
            right.ptr = chunk.ptr
            if joins_left:  # ... and the left neighbour, which leaves its list
                before = left.before
                after = left.after
                before.after = after
                after.before = before
                right.ptr = left.ptr
                left = left.left
            right.left = left
            left.right = right
            chunk = right
        elif joins_left:
            left.right = right
            right.left = left
            chunk = left
        chunk.size = size
        old = chunk.bin
        if old != bin:
            if old >= 0:
                before = chunk.before
                after = chunk.after
                before.after = after
                after.before = before
            head = self._bins[bin]
            if not head.marked:
                head.marked = True
                self._filled |= head.bit
            after = head.after
            chunk.before = head
            chunk.after = after
            head.after = after.before = chunk
            chunk.bin = bin

    def provide(self, nbytes: int) -> None:
        """Make bins for chunks up to a size."""
        granules = nbytes >> self._shift
        while len(self._bins) <= granules.bit_length() << _STEP_BITS:
            self._bins.append(Bin(len(self._bins)))

    def add(self, segment: Segment) -> None:
        """Add a new segment. Its only chunk is in use; `give` makes it free."""
        self.provide(segment.size)
        self.segments[segment.ptr] = segment

    def drop(self, segment: Segment) -> None:
        """Remove a free segment; the caller returns it to the source, or adds it again."""
        chunk = segment.right
        chunk.before.after, chunk.after.before = chunk.after, chunk.before
        chunk.bin = IN_USE
        del self.segments[segment.ptr]

    def extension(self, segment: Segment, nbytes: int) -> Chunk:
        """A chunk in use for the bytes by which a segment will grow; the ring is unchanged."""
        chunk = Segment(self, segment.ptr + segment.size, nbytes).right
        self.provide(segment.size + nbytes)
        chunk.left = segment.left
        chunk.right = segment
        return chunk

    def free(self, least: int = 0) -> Iterator[Chunk]:
        """The free chunks from about that size on, small ones first."""
        filled = self._filled >> (bin := self._bin(least)) << bin
        while filled:
            lowest = filled & -filled
            yield from self._listed(lowest)
            filled ^= lowest

    def free_below(self, most: int) -> Iterator[Chunk]:
        """The free chunks below about that size, large ones first."""
        filled = self._filled & (1 << self._bin(most)) - 1
        while filled:
            highest = 1 << filled.bit_length() - 1
            yield from self._listed(highest)
            filled ^= highest

    def _bin(self, size: int) -> int:
        granules = size >> self._shift
        octave = granules.bit_length() - _LINEAR_BITS
        return (octave << _STEP_BITS) + (granules >> octave) if octave > 0 else granules

    def _listed(self, bit: int) -> Iterator[Chunk]:
        """The chunks of the bin with that bit; an empty bin is unmarked."""
        head = self._bins[bit.bit_length() - 1]
        chunk = head.after
        if chunk is head:
            self._filled ^= head.bit
            head.marked = False
        while chunk is not head:
            yield chunk
            chunk = chunk.after

    def carve(self, chunk: Chunk, start: int, end: int) -> Chunk:
        """Take the addresses [start, end) of a free chunk into use; the rest stays free."""
        held = behind = chunk
        before, after = chunk.before, chunk.after
        before.after, after.before = after, before
        chunk.bin = IN_USE
        try:
            if chunk.ptr < start:
                held = behind = self._split(chunk, start - chunk.ptr)
            if end < held.ptr + held.size:
                behind = self._split(held, end - held.ptr)
                self.give(behind)
            if held is not chunk:
                self.give(chunk)
        except BaseException:  # undone: the middle part last, to join with its neighbours
            if behind is not held and behind.bin == IN_USE:
                self.give(behind)
            if chunk is not held and chunk.bin == IN_USE:
                self.give(chunk)
            self.give(held)
            raise
        return held

    def _split(self, chunk: Chunk, size: int) -> Chunk:
        """Cut a chunk in use after `size` bytes; the rest, which is in use, too."""
        rest = chunk_in_use(self, chunk.ptr + size, chunk.size - size)
        rest.left = chunk
        right = rest.right = chunk.right
        right.left = rest  # stores
        chunk.right = rest
        chunk.size = size
        return rest

    def cut(self, segment: Segment, chunk: Chunk, start: int, end: int) -> Segment:
        """Make the addresses [start, end) within a free chunk a free segment of their own.

        The parts in front and behind become segments, too. Returns the last one.
        """
        pieces = [held := self.carve(chunk, start, end)]
        try:
            if held.left is not segment:
                segment = self._part(segment, held)
            last = segment if held.right is segment else self._part(segment, held.right)
        finally:
            try:
                give_all(pieces)
            finally:
                give_all(pieces)
        return last

    def _part(self, segment: Segment, chunk: Chunk) -> Segment:
        """Split a segment in front of a chunk; the new segment begins with the chunk."""
        rest = Segment(self, chunk.ptr, segment.ptr + segment.size - chunk.ptr)
        before, last = chunk.left, segment.left
        self.segments[chunk.ptr] = rest  # stores
        rest.right, chunk.left = chunk, rest
        last.right, rest.left = rest, last
        before.right, segment.left = segment, before
        segment.size -= rest.size
        return rest

    def hand_over(self, segment: Segment, heir: BlockPool) -> None:
        """Give a segment with all its chunks, free and in use, to another pool."""
        try:
            self._hand_over(segment, heir)
        finally:  # after an interrupt: the chunks that are left
            self._hand_over(segment, heir)

    def _hand_over(self, segment: Segment, heir: BlockPool) -> None:
        heir.provide(segment.size)
        for chunk in segment:
            if chunk.pool is heir:
                continue
            if chunk.bin >= 0:
                head = heir._bins[chunk.bin]
                chunk.before.after, chunk.after.before = chunk.after, chunk.before
                head.marked = True  # stores, for each chunk
                heir._filled |= head.bit
                chunk.before, chunk.after = head, head.after
                head.after = chunk.after.before = chunk
            chunk.pool = heir
        segment.pool = heir  # and here
        heir.segments[segment.ptr] = segment
        if segment.ptr in self.segments:
            del self.segments[segment.ptr]

    def free_segments(self) -> list[Segment]:
        """The segments that are entirely free."""
        return [segment for segment in self.segments.values() if segment.free]

    def largest_free(self) -> int:
        """Size of the largest free chunk in bytes."""
        filled = self._filled
        while filled:
            head = self._bins[filled.bit_length() - 1]
            if head.after is not head:
                return max(chunk.size for chunk in head)
            filled ^= head.bit
        return 0

    def live(self) -> Iterator[Chunk]:
        """Every chunk that a block holds."""
        for segment in self.segments.values():
            for chunk in segment:
                if chunk.bin == IN_USE:
                    yield chunk

    def _search(self, bin: int, size: int, most: int | None = None) -> Chunk | None:
        """The first of a bin's chunks that fits, looking at no more than `most`."""
        if bin < len(self._bins):
            for chunk in islice(self._bins[bin], most):
                if chunk.size >= size:
                    return chunk
        return None


def give_all(chunks: list[Chunk]) -> None:
    """Give chunks in use back to the pools that have them now, and empty the list.

    After an interrupt the list has the chunks that are left. A caller with the only reference to
    them calls this once more.
    """
    while chunks:
        chunk = chunks[-1]
        if chunk.bin < 0 and chunk.right.left is chunk:  # else given before an interrupt
            chunk.pool.give(chunk)
        del chunks[-1]

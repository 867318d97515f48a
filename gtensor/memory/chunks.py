"""What a segment is cut into: chunks, in a ring by address, and the lists of the free ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gtensor.memory.blocks import BlockPool

IN_USE = -1  # the `bin` of a chunk that a block holds
RETIRED = -2  # of a chunk that no block holds any more, but that a stream may still be using
JOINED = -3  # of a chunk that is a part of another one, whose state is the block's (`spans.py`)


class Chunk:
    """Consecutive bytes of one segment, free or held by a block.

    `left` and `right` are the neighbours by address, `before` and `after` those in the free list.
    `used`, `nbytes` and `label` describe the block that holds the chunk: bytes rounded up, bytes
    requested, and the op that asked; 0 and "" before the first one. `uses` is the arena's note of
    who else uses a chunk in use, None for nobody and for every free chunk.
    """

    __slots__ = ("after", "before", "bin", "label", "left", "nbytes", "pool", "ptr", "right",
                 "size", "used", "uses")

    after: Chunk
    before: Chunk
    bin: int
    label: str
    left: Chunk
    nbytes: int
    pool: BlockPool
    ptr: int
    right: Chunk
    size: int
    used: int
    uses: set[int] | None


class Bin(Chunk):
    """The head of a list of free chunks; as a chunk it has no bytes.

    `marked` says if `bit` is set in the pool's `filled`. A list that runs empty stays marked until
    a search comes by, since it mostly fills again before that.
    """

    __slots__ = ("bit", "marked")

    bit: int
    marked: bool

    def __init__(self, number: int) -> None:
        self.bin = number
        self.bit = 1 << number
        self.marked = False
        self.size = 0
        self.before = self.after = self

    def __iter__(self) -> Iterator[Chunk]:
        """The chunks of the list, latest first."""
        chunk = self.after
        while chunk is not self:
            yield chunk
            chunk = chunk.after


class Segment(Chunk):
    """One piece of memory from the source, and the guard of its ring of chunks.

    It counts as in use, so that neither end of the segment ever joins with anything.
    """

    __slots__ = ()

    def __init__(self, pool: BlockPool, ptr: int, size: int) -> None:
        self.pool = pool
        self.ptr = ptr
        self.size = size
        self.bin = IN_USE
        whole = Chunk()
        whole.pool = pool
        whole.ptr = ptr
        whole.size = size
        whole.bin = IN_USE
        whole.uses = None
        whole.used = whole.nbytes = 0
        whole.label = ""
        whole.left = whole.right = self
        self.left = self.right = whole

    def __iter__(self) -> Iterator[Chunk]:
        """The chunks by address."""
        chunk = self.right
        while chunk is not self:
            yield chunk
            chunk = chunk.right

    @property
    def free(self) -> bool:
        """True if nobody uses a byte of the segment."""
        return self.left is self.right and self.left.bin >= 0

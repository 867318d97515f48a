"""Chunks, the parts of a segment: a ring by address, and lists of the free ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

BlockPool: TypeAlias = Any  # of free_lists, which imports this

IN_USE = -1  # the `bin` of a chunk that a block holds
RETIRED = -2  # of a freed chunk that a stream may still be using


class Chunk:
    """Consecutive bytes of one segment, free or held by a block.

    `left` and `right` are the neighbours by address, `before` and `after` those in the free list.
    `used`, `nbytes` and `label` describe the block that holds the chunk: bytes rounded up, bytes
    requested, and the op; 0 and "" before the first one. `uses` are the ids of the streams that
    used a chunk in use; None if only the pool's stream did, and for free chunks. `let_go` is
    the `__del__` of the block that holds it.
    """

    __slots__ = ("after", "before", "bin", "label", "left", "let_go", "nbytes", "pool", "ptr",
                 "right", "size", "used", "uses")

    after: Chunk
    before: Chunk
    bin: int
    label: str
    left: Chunk
    let_go: Callable[[], object] | None
    nbytes: int
    pool: BlockPool
    ptr: int
    right: Chunk
    size: int
    used: int
    uses: set[int] | None


def chunk_in_use(pool: BlockPool, ptr: int, size: int) -> Chunk:
    """A new chunk, in use; its neighbours are still to be set."""
    chunk = Chunk()
    chunk.pool = pool
    chunk.ptr = ptr
    chunk.size = size
    chunk.bin = IN_USE
    chunk.uses = None
    chunk.used = chunk.nbytes = 0
    chunk.label = ""
    return chunk


class Bin(Chunk):
    """The head of a list of free chunks; as a chunk it has no bytes.

    `marked` says if `bit` is set in the pool's `_filled`. A list that runs empty stays marked until
    a search visits it, since it mostly fills again before that.
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
    """One piece of memory from the source, and the sentinel of its ring of chunks.

    It counts as in use, so no chunk joins across the segment's ends.
    """

    __slots__ = ()

    def __init__(self, pool: BlockPool, ptr: int, size: int) -> None:
        self.pool = pool
        self.ptr = ptr
        self.size = size
        self.bin = IN_USE
        self.used = 0
        whole = chunk_in_use(pool, ptr, size)
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
        """Whether all bytes of the segment are free."""
        return self.left is self.right and self.left.bin >= 0

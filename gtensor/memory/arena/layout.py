"""The layout of segments: the pieces of each in address order, and their holders."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from operator import attrgetter
from typing import Any, NamedTuple

from gtensor.memory.arena.chunks import IN_USE, Chunk
from gtensor.memory.arena.segments import Segments
from gtensor.memory.contract.resource import Block

FREE, LIVE, PENDING = "free", "live", "pending"  # states of a piece
STREAM_ENDED = -1  # in place of the id of a stream that has ended


class Piece(NamedTuple):
    """Consecutive bytes of a segment: free, held by a block, or waiting for a stream to finish.

    For pieces that are not free, `nbytes` are the requested bytes and `label` is the op. If a block
    is joined of several pieces, `holder` is its address (else 0) and `offset` the piece's place in
    it.
    """

    address: int
    size: int
    state: str
    nbytes: int = 0
    label: str = ""
    holder: int = 0
    offset: int = 0

    @property
    def owner(self) -> int:
        """The address of its block."""
        return self.holder or self.address


class SegmentLayout(NamedTuple):
    """A segment and its pieces in address order; they tile it.

    `stream` is `STREAM_ENDED` if the stream has ended; lower numbers are pools for graphs.
    """

    address: int
    size: int
    stream: int
    pieces: list[Piece]


def layout_of(segments: Segments) -> list[SegmentLayout]:
    """Every segment by address. The caller holds the arena's lock."""
    gone = [orphan.pool for orphan in segments.pools.orphans]
    joined = {} if segments.stitcher is None else segments.stitcher.pieces()
    return sorted(
        SegmentLayout(segment.ptr, segment.size, STREAM_ENDED if pool in gone else pool.stream,
                      [joined.get(chunk) or _piece(chunk) for chunk in segment])
        for pool in segments.pools.all() for segment in pool.segments.values())


def graph_pool(stream: int) -> int:
    """The number (1, 2, ...) of the pool for graphs that has a segment; 0 if a stream has it."""
    return max(STREAM_ENDED - stream, 0)


def layout_and_stats(resource: Any) -> tuple[list[SegmentLayout], dict[str, Any]]:
    """The segments of an arena now, and its counters by name, with its limit."""
    layout = resource.layout() if hasattr(resource, "layout") else []
    return layout, {**asdict(resource.stats()), "limit": getattr(resource, "limit", None)}


def _piece(chunk: Chunk) -> Piece:
    if chunk.bin >= 0:
        return Piece(chunk.ptr, chunk.size, FREE)
    return Piece(chunk.ptr, chunk.size, LIVE if chunk.bin == IN_USE else PENDING, chunk.nbytes,
                 chunk.label)


def requested_of(nbytes: int, offset: int, size: int) -> int:
    """How many of the first `nbytes` bytes of a block are among the `size` bytes at an offset."""
    return min(max(nbytes - offset, 0), size)


def opened(segments: list[SegmentLayout], held: Iterable[Block],
           blocks: Iterable[Piece]) -> list[SegmentLayout]:
    """The segments with each block of `held` replaced by the blocks that were placed in it."""
    opening = {block.ptr for block in held}
    if not opening:
        return segments
    ordered = sorted(blocks, key=attrgetter("address"))

    def pieces_of(piece: Piece) -> Iterator[Piece]:
        if piece.owner not in opening or piece.state != LIVE:
            yield piece
            return
        at = piece.owner + piece.offset  # its address within the block
        end, there = at + piece.size, piece.address - at
        for block in ordered:
            low, high = max(at, block.address), min(end, block.address + block.size)
            if low < high:
                if at < low:
                    yield Piece(at + there, low - at, FREE)
                offset = low - block.address
                yield Piece(low + there, high - low, LIVE,
                            requested_of(block.nbytes, offset, high - low), block.label,
                            block.address if there else 0, offset)
                at = high
        if at < end:
            yield Piece(at + there, end - at, FREE)

    return [segment._replace(pieces=[inner for piece in segment.pieces
                                     for inner in pieces_of(piece)]) for segment in segments]


def fragmentation(segments: Sequence[SegmentLayout]) -> float:
    """(1 - largest free piece / all free bytes) * 100, as RMM reports it; 0 if nothing is free."""
    free = [piece.size for segment in segments for piece in segment.pieces if piece.state == FREE]
    return (1 - max(free) / sum(free)) * 100 if free else 0.0


def check_tiles(segment: SegmentLayout) -> None:
    """Raise ValueError if a segment's pieces do not tile it, or are in no known state."""
    address = segment.address
    for piece in segment.pieces:
        if piece.state not in (FREE, LIVE, PENDING):
            raise ValueError(f"the piece at {piece.address:#x} is {piece.state!r}; wanted "
                             f"{FREE!r}, {LIVE!r} or {PENDING!r}")
        if piece.address != address or piece.size <= 0:
            raise ValueError(f"the pieces of the segment at {segment.address:#x} do not tile it: "
                             f"{piece.size} bytes at {piece.address:#x} where {address:#x} is next")
        address += piece.size
    if address != segment.address + segment.size:
        raise ValueError(f"the pieces of the segment at {segment.address:#x} do not tile it: they "
                         f"end at {address:#x} of {segment.address + segment.size:#x}")

"""How segments lie: the pieces of each in address order, and who holds them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

from gtensor.memory.blocks import IN_USE, Chunk
from gtensor.memory.reserve import Reserve

FREE, LIVE, PENDING = "free", "live", "pending"  # states of a piece
NOBODY = -1  # the stream of a segment whose stream is gone


class Piece(NamedTuple):
    """Consecutive bytes of a segment: free, held by a block, or waiting for a stream to finish.

    `nbytes` is what was requested and `label` the op, of pieces that are not free.
    """

    address: int
    size: int
    state: str
    nbytes: int = 0
    label: str = ""


class SegmentLayout(NamedTuple):
    """A segment and its pieces in address order; they tile it.

    `stream` is `NOBODY` if the stream is gone, and below that the number of a pool for graphs.
    """

    address: int
    size: int
    stream: int
    pieces: list[Piece]


def laid_out(reserve: Reserve) -> list[SegmentLayout]:
    """Every segment by address. The caller holds the arena's lock."""
    gone = [pool for pool, _ in reserve.orphans]
    return sorted(SegmentLayout(segment.ptr, segment.size,
                                NOBODY if pool in gone else pool.stream, list(map(_piece, segment)))
                  for pool in reserve.all_pools() for segment in pool.segments.values())


def graph_pool(stream: int) -> int:
    """Which pool for graphs stands as a segment's stream: 1, 2, ...; 0 if none does."""
    return max(NOBODY - stream, 0)


def layout_of(resource: Any) -> tuple[list[SegmentLayout], dict[str, Any]]:
    """How the segments of an arena lie now, and its counters by name, its limit among them."""
    layout = resource.layout() if hasattr(resource, "layout") else []
    return layout, {**asdict(resource.stats()), "limit": getattr(resource, "limit", None)}


def _piece(chunk: Chunk) -> Piece:
    if chunk.bin >= 0:
        return Piece(chunk.ptr, chunk.size, FREE)
    return Piece(chunk.ptr, chunk.size, LIVE if chunk.bin == IN_USE else PENDING, chunk.nbytes,
                 chunk.label)


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

"""The contract: a resource hands out blocks, and dropping the last reference is the free."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from gtensor.backend.ordering import BLOCK_FIELDS


class OutOfMemoryError(MemoryError):
    """No room for a block, even after cached segments were released and garbage was collected.

    The message names the request, the limit, the bytes in use, and the ops that made the largest
    live blocks. `requested` is the requested size in bytes. The resource stays usable.
    """

    def __init__(self, message: str, requested: int = 0) -> None:
        super().__init__(message)
        self.requested = requested


@dataclass(frozen=True, slots=True)
class Stats:
    """The counters of a resource; sizes in bytes.

    `allocated`: live blocks, each with its `Block.size`. `active`: the chunks of those blocks, with
    remainders too small to split off. `reserved`: segments acquired from the source. `hits`,
    `misses`: blocks served from free memory, and those that needed a new segment. `fragmentation`:
    1 - largest free piece / all free bytes, 0 when nothing is free. `pending`: freed bytes that a
    stream may still be using. `borrowed`: how many blocks were cut from another stream's memory.
    `private`: segments that belong to graphs. `replaced`: bytes held by arenas that
    `gt.memory.configure` replaced, in no other counter.
    """

    allocated: int
    reserved: int
    active: int
    peak_allocated: int
    peak_reserved: int
    hits: int
    misses: int
    segments: int
    fragmentation: float
    pending: int = 0
    borrowed: int = 0
    private: int = 0
    replaced: int = 0

    @property
    def reserved_per_live(self) -> float:
        """`reserved` / `allocated`: 1 if nothing is reserved, infinite if nothing is live."""
        if not self.reserved:
            return 1.0
        return self.reserved / self.allocated if self.allocated else float("inf")


class Block:
    """Allocated bytes; dropping the last reference to this handle frees them.

    `ptr` is the address, `nbytes` the requested size, `size` that rounded up (to the granularity,
    or further with `arena_steps`), `label` the op ("" if unknown), `stream` the id of the stream it
    belongs to, `serial` a number that is unique in the resource. `owner` is the resource that made
    it, `node` the owner's object for the bytes (a chunk), None before it has bytes.
    `__array_interface__` is unset until a NumPy array is made over the block. `only` is the id of
    the stream while no other one has touched it, then None; `readers` and `written` are unset until
    then (`backend/ordering.py`), `stamp` until a captured op writes it (`backend/cuda_graphs.py`).
    On CUDA the block is the memory object of CuPy's arrays (`backend/cuda_memory.py`).

    `__del__` is an attribute of each block, unset while it has no bytes; it frees them. It is a C
    callable, such as a queue's `append`: an interrupt (Ctrl-C) at the entry of a Python function
    would skip the free.

    There is no `__init__`, which would cost more than all its stores: makers fill a block in, or
    call `block_of`.
    """

    __slots__ = ("__array_interface__", "ptr", "size", *BLOCK_FIELDS)

    __array_interface__: dict[str, Any]
    __del__: Callable[[], object]
    label: str
    nbytes: int
    node: Any
    only: int | None
    owner: Resource
    ptr: int
    readers: set[int]
    serial: int
    size: int
    stamp: Any
    stream: int
    written: tuple[int, int]

    def __repr__(self) -> str:
        made_by = f" by {self.label}" if self.label else ""
        return f"<Block of {self.nbytes} bytes at {self.ptr:#x}{made_by}, stream {self.stream}>"


def block_of(owner: Resource, node: object, ptr: int, size: int, nbytes: int, label: str,
             stream: int, serial: int) -> Block:
    """A block with these attributes; its `__del__` is still to be set."""
    block = owner.block_type()
    block.node = node
    block.ptr = ptr
    block.size = size
    block.nbytes = nbytes
    block.label = label
    block.stream = block.only = stream
    block.serial = serial
    block.owner = owner
    return block


class Resource(Protocol):
    """A maker of blocks: an arena, or an adaptor that holds another resource as `upstream`."""

    @property
    def block_type(self) -> type[Block]:
        """The class of its blocks."""

    @property
    def allocated(self) -> int:
        """Bytes of live blocks, as in `Stats`; cheap enough to be read at every event."""

    def allocate(self, nbytes: int, stream: int = 0, label: str = "") -> Block:
        """A block of at least `nbytes` bytes for work on the stream with id `stream`.

        Its `__del__` may be called by any thread at any point, and never waits. Raises
        OutOfMemoryError if there is no room, ValueError if `nbytes` is negative.
        """

    def record_use(self, block: Block, stream: int) -> None:
        """Note that work queued on the stream with that id uses the block.

        Its bytes then serve no other stream before that work has completed. Raises ValueError if
        the block is free, or the stream unknown.
        """

    def stats(self) -> Stats:
        """The counters now."""

    def reset_peak(self) -> None:
        """Set both peaks to what is in use now."""

    def set_limit(self, nbytes: int | None) -> None:
        """Never hold more than `nbytes` bytes of segments; None lifts the limit."""

    def empty_cache(self) -> int:
        """Release segments without a live block; the number of bytes released."""

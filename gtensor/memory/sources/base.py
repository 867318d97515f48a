"""The interface of a source, and the sizes of the segments that the arena acquires."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Protocol, runtime_checkable

MIB = 1 << 20
HUGE_PAGE = 2 * MIB


class SegmentSource(Protocol):
    """Acquires and releases segments.

    `granularity` divides every address it returns, `page` every size it is given. Both are powers
    of two, in bytes, and `page` is a multiple of `granularity`.
    """

    granularity: int
    page: int

    def acquire(self, nbytes: int) -> int:
        """The address of `nbytes` new bytes; raises MemoryError if there is no room."""

    def release(self, ptr: int, nbytes: int) -> None:
        """Release what `acquire(nbytes)` returned; raises an Exception if it was released before.

        The arena calls this a second time when an interrupt ends the first call.
        """


@runtime_checkable
class PagedSource(SegmentSource, Protocol):
    """A source whose segments grow in place, and release any whole pages.

    So `release(ptr, nbytes)` may name a part of a segment, at its ends or in the middle. The parts
    that are left can be released, again in parts, and grown.
    """

    def grow(self, ptr: int, old: int, new: int) -> bool:
        """Make the segment of `old` bytes at `ptr` one of `new` bytes, both in whole pages.

        False if addresses behind it are taken; raises MemoryError if there is no room. Then nothing
        has changed.
        """

    def join(self, parts: Sequence[tuple[int, int]]) -> int:
        """Map the pages of all parts a second time, at consecutive addresses; the first byte's.

        Each part (address, bytes) but the first begins at a page boundary, each but the last ends
        at one. Raises MemoryError if there are no addresses left.
        """

    def part(self, kept: Container[int]) -> None:
        """Unmap all joined addresses but the kept ones; called before pages are released."""


def segment_sizes(nbytes: int, reserved: int, page: int) -> list[int]:
    """The segment sizes to try for a request of `nbytes`, preferred first.

    A small request gets a segment that later ones share: 8 MiB at first, then a quarter of the
    reserved bytes, at most 64 MiB, so that its unused rest stays a small part of the whole. A large
    one gets a segment of its own, in whole huge pages. The last size is the smallest that serves.
    """
    shared = min(max(round_up(reserved // 4, HUGE_PAGE), 8 * MIB), 64 * MIB)
    sizes = [shared] if nbytes <= shared // 2 else []
    for unit in (HUGE_PAGE, page):
        size = round_up(nbytes, unit)
        if size not in sizes:
            sizes.append(size)
    return sizes


def round_up(nbytes: int, unit: int) -> int:
    """The least multiple of `unit` (a power of two) that is not below `nbytes`."""
    return (nbytes + unit - 1) & -unit

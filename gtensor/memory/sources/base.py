"""What the arena asks of a source, and how large the segments are that it asks for."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Protocol, runtime_checkable

MIB = 1 << 20
HUGE_PAGE = 2 * MIB


class SegmentSource(Protocol):
    """Gives segments out and takes them back.

    `granularity` divides every address it gives, `page` every size it is asked for: powers of two,
    in bytes, `page` a multiple of `granularity`.
    """

    granularity: int
    page: int

    def acquire(self, nbytes: int) -> int:
        """The address of `nbytes` new bytes; raises MemoryError if there is no room."""

    def release(self, ptr: int, nbytes: int) -> None:
        """Give back what `acquire(nbytes)` answered; raises an Exception if it was given back
        before, since the arena calls once more when an interrupt comes out of this."""


@runtime_checkable
class PagedSource(SegmentSource, Protocol):
    """A source whose segments grow in place, and which takes back any whole pages of them.

    So `release(ptr, nbytes)` may name a part of a segment, at its ends or in the middle. What is
    left can be given back, in parts again, and grown.
    """

    def grow(self, ptr: int, old: int, new: int) -> bool:
        """Make the segment of `old` bytes at `ptr` one of `new` bytes, both in whole pages.

        False if addresses behind it are taken; raises MemoryError if there is no room. Then nothing
        has changed.
        """

    def join(self, parts: Sequence[tuple[int, int]]) -> int:
        """The address from which the bytes of all parts lie one after another, as well.

        Each part (address, bytes) but the first begins with a page, each but the last ends with
        one. Raises MemoryError if there are no addresses left.
        """

    def part(self, kept: Container[int]) -> None:
        """Forget the joined addresses, apart from those that are kept; before pages of them are
        released."""


def segment_sizes(nbytes: int, reserved: int, page: int) -> list[int]:
    """The segment sizes to try for a request of `nbytes`, most wanted first.

    A small request opens a segment that later ones share: 8 MiB at first, then a quarter of what
    is reserved, 64 MiB at most, so that an unused rest stays a small part of the whole. A large one
    gets a segment of its own, in whole huge pages. The last size is the least that serves, for when
    there is hardly room.
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

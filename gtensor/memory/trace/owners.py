"""The owners of live blocks, found from the objects that hold them.

A recording sees bytes and the ops that allocated them. Only higher layers can tell that they are a
network's weights; these register finders.
"""

from __future__ import annotations

import gc
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import import_module
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from gtensor.memory.arena.layout import LIVE, Piece, layout_and_stats, opened
from gtensor.memory.contract.adaptors import Adaptor, bottom_of
from gtensor.memory.contract.resource import Block

if TYPE_CHECKING:
    from gtensor.memory.trace.lifetimes import History


class Found(NamedTuple):
    """Memory whose use is known from the object that holds it.

    `name` is its name in the module; "" keeps the name of the op that made it.
    """

    address: int
    category: str
    module: str
    name: str = ""


NOT_FOUND = Found(0, "", "")
Finder = Callable[[Sequence[Any]], Iterator[Found]]
_finders: dict[Finder, tuple[type, ...]] = {}
_modules: set[str] = set()


def find_with(finder: Finder, *kinds: type) -> None:
    """Call `finder` with all objects of those kinds at the start and the end of a recording."""
    _finders[finder] = kinds


def find_in(module: str) -> None:
    """Import the module, which calls `find_with`, when a recording first searches for holders."""
    _modules.add(module)


def _all_finders() -> dict[Finder, tuple[type, ...]]:
    for module in _modules:
        import_module(module)
    return _finders


class Present(NamedTuple):
    """An arena's live blocks, the blocks in which adaptors place their own, and the live bytes."""

    blocks: list[Block]
    held: list[Block]
    allocated: int


def present(objects: Iterable[Any], arena: Any) -> Present:
    """The blocks of an arena among objects (those of `objects_of(Block, Adaptor)`)."""
    own = [thing for thing in objects if type(thing) is Block  # some may be half made
           and getattr(thing, "node", None) is not None and hasattr(thing, "serial")
           and bottom_of(thing.owner) is arena]
    adaptors = [thing for thing in objects
                if isinstance(thing, Adaptor) and bottom_of(thing) is arena]
    held = [block for adaptor in adaptors for block in adaptor.held()]
    holding = set(map(id, held))
    return Present([block for block in own if id(block) not in holding], held,
                   arena.allocated + sum(adaptor.surplus for adaptor in adaptors))


def standing(arena: Any) -> History:
    """A history without events: the blocks of an arena now."""
    from gtensor.memory.trace.lifetimes import History, Life

    objects = objects_of(Block, Adaptor)
    layout, stats = layout_and_stats(arena)
    blocks, held, _ = present(objects, arena)
    segments = opened(layout, held, [
        Piece(block.ptr, block.size, LIVE, block.nbytes, block.label) for block in blocks])
    lives: dict[int, Life] = {}
    for segment in segments:
        for piece in segment.pieces:
            if piece.state == LIVE:
                category = "workspace" if piece.label == "workspace" else "earlier"
                life = lives.setdefault(piece.owner, Life(
                    piece.owner, 0, 0, segment.stream, piece.label, "", category, None, None, None))
                life.size += piece.size
                life.nbytes += piece.nbytes
    for life, found in uses(lives.values(), objects):
        life.category, life.module, life.op = found.category, found.module, found.name or life.op
    return History(arena.name, [], list(lives.values()), [], segments, [], stats)


class _Placed(Protocol):
    @property
    def address(self) -> int: ...
    @property
    def size(self) -> int: ...


Noted = TypeVar("Noted", bound=_Placed)


def objects_of(*kinds: type) -> list[Any]:
    """All objects of those kinds and of the finders' kinds, derived classes included."""
    wanted: list[type] = [*kinds, *chain.from_iterable(_all_finders().values())]
    for kind in wanted:  # the loop extends the list
        wanted.extend(kind.__subclasses__())
    among = frozenset(wanted)
    # Objects refer to their types. A list of all objects would also hold the tuples that other
    # threads build of a generator's items, which CPython refuses to go on with then.
    return [thing for thing in gc.get_referrers(*among) if type(thing) in among]


def uses(blocks: Iterable[Noted], objects: list[Any]) -> Iterator[tuple[Noted, Found]]:
    """The blocks whose use is known from the objects that hold them."""
    ordered = sorted(blocks, key=lambda block: block.address)
    places = [block.address for block in ordered]
    for found in found_by(objects):
        at = bisect_right(places, found.address) - 1
        if at >= 0 and found.address < places[at] + ordered[at].size:
            yield ordered[at], found


def found_by(objects: Sequence[Any]) -> Iterator[Found]:
    """The memory that these objects hold, as all finders tell."""
    for finder, kinds in _all_finders().items():
        yield from finder([thing for thing in objects if isinstance(thing, kinds)])

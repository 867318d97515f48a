"""Plans: the offset of each block of a repeated step, from the known lifetimes.

An online allocator must place a block before it knows the next request. In a repeated step all are
known: the blocks are rectangles, bytes by time, to be packed as low as possible (dynamic storage
allocation, which is NP-hard). The heuristic is best fit in decreasing order (Sekiyama et al. 2018,
"Profile-guided memory optimization for deep neural networks"; STAlloc, arXiv 2507.16274) by three
orders, and a local search that moves blocks above the target height to the front of the order.

Time is the number of an allocation or free within the iteration, `period` their count. A block that
is carried into the next iteration dies after `period`: time is cyclic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from gtensor.memory.contract.report import size_text
from gtensor.memory.contract.resource import Resource

_CLOSE = 1.005  # a plan within this of the peak of live bytes is not searched for a better one
_LARGE = 0.05  # of the peak: a local search first orders the blocks of at least this size
_MOVES = 500  # of large blocks, at most, per order
_ROUNDS = 30  # of all blocks, at most, per order
_WORK = 2e8  # comparisons after which the search ends: about two seconds
_OVERHEAD = 3000  # the fixed cost of placing a block, in comparisons


@dataclass(frozen=True, slots=True)
class Lifetime:
    """One allocation of an iteration: requested bytes, held bytes, and its lifetime.

    `birth` in [0, period). `death` in (birth, 2 * period], or None (unknown) if the block outlived
    the recording.
    """

    nbytes: int
    size: int
    stream: int
    label: str
    birth: int
    death: int | None


@dataclass(slots=True)
class Counts:
    """Counts of blocks over the planned steps so far, and of these steps.

    `served` blocks got their planned place. The others came from the arena: `kept` because they
    outlive the recording and have no planned place; `carried` because an earlier block still held
    their place; `deviating` because the request was not the planned one. `first` describes the
    first deviation, "" without one.
    """

    steps: int = 0
    served: int = 0
    kept: int = 0
    carried: int = 0
    deviating: int = 0
    first: str = ""


@dataclass(eq=False)
class Plan:
    """Places for the allocations of one iteration, in their order; made by `Recording.plan()`.

    `offsets[turn][k]` is the place of the k-th allocation within the reservation of its stream, -1
    for a block that outlived the recording. Successive iterations use successive turns: there is
    one, or two where a block still lives when its successor is made. `regions` are the bytes
    reserved by stream. `peak_live` is the peak of live bytes of the blocks with a place: no plan
    can reserve less.
    """

    lifetimes: tuple[Lifetime, ...]
    offsets: tuple[tuple[int, ...], ...]
    regions: dict[int, int]
    peak_live: int
    counts: Counts = field(default_factory=Counts)
    resource: Resource | None = None  # holds the reservation, from the first planned step on

    @property
    def reservation(self) -> int:
        """Bytes that the planned steps need, all streams together."""
        return sum(self.regions.values())

    @property
    def efficiency(self) -> float:
        """Peak of live bytes over reserved bytes; 1 is optimal."""
        return self.peak_live / self.reservation if self.reservation else 1.0

    def release(self) -> None:
        """Free the reservation as soon as no block lives in it; the next step allocates it anew.

        Dropping the plan does the same.
        """
        self.resource = None

    def report(self) -> str:
        """The plan and the counts of its steps as a text."""
        placed = sum(offset >= 0 for offset in self.offsets[0])
        counts = self.counts
        lines = [
            f"plan of {placed} blocks in {size_text(self.reservation)} for a peak of "
            f"{size_text(self.peak_live)} live: {self.efficiency:.1%}",
            f"{counts.steps} steps: {counts.served} blocks at their planned place; from the arena: "
            f"{counts.kept} that outlive the step, {counts.carried} whose place was still held, "
            f"{counts.deviating} that the plan does not expect",
        ]
        if counts.first:
            lines.append("first deviation: " + counts.first)
        return "\n".join(lines)


def make_plan(lifetimes: Sequence[Lifetime], period: int) -> Plan:
    """Places for all blocks whose lifetime is known, in a region per stream."""
    known = [lifetime for lifetime in lifetimes if lifetime.death is not None]
    # A block that still lives when its successor of the next iteration is made cannot share its
    # place: two iterations in turn are planned as one.
    turns = 1 + any(lifetime.death > lifetime.birth + period  # type: ignore[operator]
                    for lifetime in known)
    which = [k for k, lifetime in enumerate(lifetimes) if lifetime.death is not None]
    columns = np.array([(lt.size, lt.birth, lt.death, lt.stream) for lt in known],
                       np.int64).reshape(-1, 4).T
    sizes, births, deaths, streams = np.tile(columns, turns)
    later = np.repeat(np.arange(turns) * period, len(known))
    births, deaths, period = births + later, deaths + later, period * turns
    offsets = np.full((turns, len(lifetimes)), -1, np.int64)
    places = np.empty(len(sizes), np.int64)
    regions: dict[int, int] = {}
    for stream in dict.fromkeys(streams.tolist()):
        mine = streams == stream
        places[mine], regions[stream] = pack(sizes[mine], births[mine], deaths[mine], period)
    offsets[:, which] = places.reshape(turns, -1)
    return Plan(tuple(lifetimes), tuple(map(tuple, offsets.tolist())), regions,
                int(_load(sizes, births, deaths, period).max(initial=0)))


def pack(sizes: np.ndarray, births: np.ndarray, deaths: np.ndarray,
         period: int) -> tuple[np.ndarray, int]:
    """Offsets of blocks that do not overlap while both live, and the bytes that hold them all.

    Offsets are sums of sizes, so any common divisor of the sizes divides them. Lifetimes are at
    most one period long. The result is deterministic.
    """
    search = _Search(sizes, births, deaths, period)
    lives = deaths - births
    at_peak = (births <= search.peak) & (search.peak < deaths) | (search.peak + period < deaths)
    orders = [np.argsort(-sizes, kind="stable"), np.argsort(-sizes * lives, kind="stable"),
              np.lexsort((-sizes, -lives, ~at_peak))]
    for order in orders:
        search.try_order(order)
    orders = [search.large_moved(order) for order in orders]
    for _ in range(_ROUNDS):
        orders = [search.outliers_first(order) for order in orders]
    return search.places, search.total


class _Search:
    """The best places found so far; the search ends at good places or when `_work` is spent."""

    def __init__(self, sizes: np.ndarray, births: np.ndarray, deaths: np.ndarray,
                 period: int) -> None:
        self._blocks = sizes, births, deaths, period
        load = _load(sizes, births, deaths, period)
        self.peak = int(load.argmax())
        self._least = int(load.max())
        self._good = self._least * _CLOSE
        self._work = _WORK
        self._random = np.random.default_rng(0)
        self.places = np.zeros(len(sizes), np.int64)
        self.total = 0  # nothing is placed yet

    @property
    def over(self) -> bool:
        return 0 < self.total <= self._good or self._work < 0

    def try_order(self, order: np.ndarray) -> tuple[np.ndarray, int]:
        """Place blocks in this order; keep the places if the order is complete and the best."""
        count = len(order)
        if self.over:
            return self.places, self.total
        self._work -= count * (count + _OVERHEAD)
        places, total = _best_fit(order, *self._blocks)
        if count == len(places) and (not self.total or total < self.total):
            self.places, self.total = places, total
        return places, total

    def large_moved(self, order: np.ndarray) -> np.ndarray:
        """The large blocks first, in an order found by random moves, then the others.

        The small ones mostly fit into the gaps between the large ones.
        """
        sizes = self._blocks[0]
        large = sizes[order] >= self._least * _LARGE
        front, rest = order[large], order[~large]
        places, total = self.try_order(front)
        for _ in range(_MOVES):
            outside = np.flatnonzero((places + sizes)[front] > self._good)
            if self.over or not len(outside):
                break
            anything = self._random.random() < 0.3
            which = int(self._random.choice(len(front) if anything else outside))
            to = int(self._random.integers(0, len(front) if anything else which + 1))
            moved = np.insert(np.delete(front, which), to, front[which])
            moved_places, moved_total = self.try_order(moved)
            if moved_total <= total:
                front, places, total = moved, moved_places, moved_total
        return np.concatenate((front, rest))

    def outliers_first(self, order: np.ndarray) -> np.ndarray:
        """Try an order. Returns the next one: the blocks above the target height first."""
        places, _ = self.try_order(order)
        outside = (places + self._blocks[0])[order] > self._good
        return np.concatenate((order[outside], order[~outside]))


def _load(sizes: np.ndarray, births: np.ndarray, deaths: np.ndarray, period: int) -> np.ndarray:
    """Bytes alive after each event of the period, blocks from the one before included."""
    change = np.zeros(2 * period + 1, np.int64)
    np.add.at(change, births, sizes)
    np.add.at(change, deaths, -sizes)
    unrolled = np.cumsum(change)
    return unrolled[:period] + unrolled[period:2 * period]


def _best_fit(order: np.ndarray, sizes: np.ndarray, births: np.ndarray, deaths: np.ndarray,
              period: int) -> tuple[np.ndarray, int]:
    """Place blocks in this order, each into the tightest gap that is free for all its life."""
    count = len(order)
    places = np.zeros(len(sizes), np.int64)
    # Of the placed blocks, in the order of placing: offset and end, birth and death.
    offsets, ends = np.empty((2, count), np.int64)
    starts, stops = births[order], deaths[order]
    carried = bool((deaths > period).any())
    total = 0
    for done, (k, size, birth, death) in enumerate(zip(
            order.tolist(), sizes[order].tolist(), starts.tolist(), stops.tolist(), strict=True)):
        meets = starts[:done] < death
        meets &= stops[:done] > birth
        if carried:
            meets |= starts[:done] < death - period
            meets |= stops[:done] > birth + period
        others = np.flatnonzero(meets)
        place = 0
        if len(others):
            room = offsets[others]
            by_offset = room.argsort()
            room = room[by_offset]
            taken = np.maximum.accumulate(ends[others[by_offset]])
            room[1:] -= taken[:-1]
            fits = np.flatnonzero(room >= size)
            if len(fits):
                gap = fits[room[fits].argmin()]
                place = int(taken[gap - 1]) if gap else 0
            else:
                place = int(taken[-1])
        places[k] = offsets[done] = place
        ends[done] = place + size
        total = max(total, place + size)
    return places, total

"""Planned steps: a repeated iteration, run inside the reservation of its plan.

The k-th allocation of a step gets the k-th planned place if it has the planned size and stream, and
if no earlier block still holds a byte of that place. Every other allocation comes from the
upstream, as without a plan: no result depends on it.
"""

from __future__ import annotations

import itertools
import warnings
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from threading import RLock, get_ident
from types import MethodType
from typing import TYPE_CHECKING, NamedTuple

from gtensor.backend import Device, get_device
from gtensor.memory.contract.adaptors import (
    Adaptor,
    Captured,
    bottom_of,
    chain_of,
    replace_resource,
)
from gtensor.memory.contract.report import Holding, size_text
from gtensor.memory.contract.resource import Block, Resource, Stats, block_of
from gtensor.system.fork_safety import free_at_forks

if TYPE_CHECKING:
    from gtensor.memory.plan.plan import Lifetime, Plan

_AHEAD = 16  # after a deviation, the planned allocations searched for the request
_serials = itertools.count(-1, -1)  # below those of any arena


class Region:
    """The reserved bytes of one stream, and the live blocks in them.

    `starts` are the addresses of live blocks in order, `ends` maps them to their ends; entries of
    `ends` for other addresses are stale. One store to `starts` adds or removes a block, so an
    interrupt finds it consistent.
    """

    def __init__(self, reserved: Block) -> None:
        self.reserved = reserved
        self.starts: list[int] = []
        self.ends: dict[int, int] = {}


class Place(NamedTuple):
    """The addresses of a planned block in a region."""

    region: Region
    start: int
    end: int


class Planned(Adaptor):
    """Runs steps inside a plan's reservation, which it takes from the upstream.

    Only allocations of the thread that began the step are planned; the upstream serves the others.
    A free never waits: it is put into a queue, which the next allocation or read of the counters
    empties.
    """

    no_capture = "a planned step"  # a graph keeps its addresses, and the next step reuses them

    def __init__(self, upstream: Resource, plan: Plan) -> None:
        super().__init__(upstream)
        self.arena = upstream
        self.counts = plan.counts  # not the plan itself, which holds this
        self._lifetimes = plan.lifetimes
        self._live = self._reserved = self._peak = 0
        self._regions: dict[int, Region] = {}
        self._next = 0
        self._thread: int | None = None  # the thread that runs a step
        self._lock = RLock()
        free_at_forks(self._lock)
        self._busy = False  # the thread that holds the lock is changing regions
        self._freed: deque[Place] = deque()
        self._uses: dict[int, set[int]] = {}  # address of a place -> other streams that used it
        # by stream: freed places that the stream may reuse after it waits for these other streams
        self._shared: dict[int, list[tuple[Place, set[int]]]] = {}
        # all attributes are set before the first call that can fail: `objects_of` may find this
        upstream.empty_cache()  # memory that unplanned steps fragmented becomes whole segments
        self._regions = regions = {
            stream: Region(upstream.allocate(nbytes, stream, "planned steps"))
            for stream, nbytes in plan.regions.items()}
        self._turns = tuple(
            tuple((lifetime.nbytes, lifetime.stream, _place(regions, lifetime, offset))
                  for lifetime, offset in zip(plan.lifetimes, offsets, strict=True))
            for offsets in plan.offsets)
        self._reserved = sum(region.reserved.size for region in regions.values())
        self._requests = self._turns[0]  # of this step

    # -- steps ------------------------------------------------------------------------------------

    @property
    def stepping(self) -> bool:
        """True between `begin` and `end`."""
        return self._thread is not None

    def begin(self) -> None:
        """Begin a step: the calling thread's next allocations are the planned ones."""
        if self.counts.steps == 1:  # blocks that outlived the last unplanned step are freed by now
            self.arena.empty_cache()
        with self._lock:
            if self._thread is not None:
                raise RuntimeError("a planned step was begun within another of the same plan; "
                                   "wanted one at a time")
            self._requests = self._turns[self.counts.steps % len(self._turns)]
            self.counts.steps += 1
            self._next = 0
            self._thread = get_ident()

    def end(self, whole: bool = True) -> None:
        """End the step. `whole` is False if an error ended it."""
        self._thread = None
        counts = self.counts
        if whole and not counts.first and self._next < len(self._requests):
            counts.first = (f"step {counts.steps} ended after {self._next} of the "
                            f"{len(self._requests)} planned allocations")

    # -- blocks -----------------------------------------------------------------------------------

    @property
    def allocated(self) -> int:
        """Bytes of live blocks, those at planned places included, but not the reservation."""
        return self.upstream.allocated + self.surplus

    @property
    def surplus(self) -> int:  # type: ignore[override]  # in an adaptor that adds nothing, 0
        """Bytes of the plan's live blocks minus its reservation."""
        if self._freed:
            self._settle()
        return self._live - self._reserved

    def held(self) -> list[Block]:
        """The reservation."""
        return [region.reserved for region in self._regions.values()]

    def allocate(self, nbytes: int, stream: int = 0, label: str = "") -> Block:
        """The block at the next planned place, or one of the upstream if it does not fit."""
        block = None
        if self._thread == get_ident():
            own = block_of(self, None, 0, 0, nbytes, label, stream, next(_serials))
            with self._lock:
                if not self._busy:  # else this is a finalizer in the middle of an allocation
                    self._busy = True
                    try:
                        if self._freed:
                            self._drain()
                        if self._shared:
                            self._order(stream)
                        if self._take(own):
                            block = own
                    finally:
                        self._busy = False
        if block is None:
            block = self.upstream.allocate(nbytes, stream, label)
        live = self.upstream.allocated - self._reserved + self._live
        if live > self._peak:
            self._peak = live
        return block

    def record_use(self, block: Block | int, stream: int) -> None:
        """As the upstream's. A place that another stream used is reused after its work."""
        place = self._place_at(block) if isinstance(block, int) else block.node
        if type(place) is not Place:
            self.upstream.record_use(block, stream)  # type: ignore[arg-type]
            return
        reserved = place.region.reserved
        self.upstream.record_use(reserved, stream)
        if stream != reserved.stream:
            self._uses.setdefault(place.start, set()).add(stream)

    def stats(self) -> Stats:
        """The upstream's counters, with the plan's live blocks in place of its reservation."""
        found, surplus = self.upstream.stats(), self.surplus
        return replace(
            found, allocated=found.allocated + surplus, active=found.active + surplus,
            peak_allocated=max(self._peak, found.allocated + surplus),
            hits=found.hits + self.counts.served)

    def holdings(self, live: list[Holding]) -> list[Holding]:
        """The arena's holdings, with the plan's live blocks in place of its reservation."""
        found = list(live)
        for region in self._regions.values():
            reservation = Holding(region.reserved.size, region.reserved.label)
            if reservation in found:
                found.remove(reservation)
                found += [Holding(region.ends[start] - start, "planned steps")
                          for start in tuple(region.starts)]
        return found

    def reset_peak(self) -> None:
        """Set the peaks, also those of the upstream, to what is in use now."""
        self.upstream.reset_peak()
        self._peak = self.allocated

    def _take(self, block: Block) -> bool:
        """Give a block the next planned place, if it is the planned request and the place is free.

        Returns whether it got one.
        """
        nbytes, stream = block.nbytes, block.stream
        counts = self.counts
        at = self._next
        requests = self._requests
        if at == len(requests) or requests[at][0] != nbytes or requests[at][1] != stream:
            at = self._resume(nbytes, stream, block.label)
            if at < 0:
                counts.deviating += 1
                return False
        self._next = at + 1
        place = requests[at][2]
        if place is None:
            counts.kept += 1
            return False
        region, start, end = place
        size = end - start
        starts = region.starts
        above = bisect_right(starts, start)
        if (above and region.ends[starts[above - 1]] > start
                or above < len(starts) and starts[above] < end):
            counts.carried += 1
            return False
        region.ends[start] = end
        block.ptr = start
        block.size = size
        free = MethodType(self._freed.append, place)
        block.node = place  # stores
        block.__del__ = free
        self._live += size
        counts.served += 1
        starts[above:above] = (start,)
        return True

    def _resume(self, nbytes: int, stream: int, label: str) -> int:
        """After a deviation: which of the next planned allocations is requested; -1 if none."""
        counts = self.counts
        at, lifetimes = self._next, self._lifetimes
        if not counts.first:
            expected = "nothing more"
            if at < len(lifetimes):
                wanted = lifetimes[at]
                expected = _described(wanted.nbytes, wanted.label, wanted.stream)
            counts.first = (f"allocation {at + 1} of step {counts.steps}: expected {expected}, got "
                            + _described(nbytes, label, stream))
        for k in range(at, min(at + _AHEAD, len(lifetimes))):
            other = lifetimes[k]
            if (other.nbytes, other.stream, other.label) == (nbytes, stream, label):
                return k
        return -1

    def _settle(self) -> None:
        """Empty the queue of frees, unless the lock is held."""
        if self._lock.acquire(False):
            try:
                if not self._busy:
                    self._busy = True
                    try:
                        self._drain()
                    finally:
                        self._busy = False
            finally:
                self._lock.release()

    def _drain(self) -> None:
        while self._freed:
            place = self._freed[0]
            starts = place.region.starts
            at = bisect_left(starts, place.start)
            uses = self._uses.get(place.start)
            if uses is None:  # stores
                del starts[at]
            else:
                shared = self._shared.setdefault(place.region.reserved.stream, [])  # and here
                shared += ((place, uses),)
                del self._uses[place.start]
            self._live -= place.end - place.start
            del self._freed[0]

    def _order(self, stream: int) -> None:
        """Let a stream wait for the others that used freed places of its region.

        If a wait fails, this place and the later ones are left to the stream's next allocation.
        """
        shared = self._shared.get(stream)
        if not shared:
            return
        arena = bottom_of(self.arena)
        while shared and arena.may_order(stream):
            place, uses = shared[0]
            for user in sorted(uses):
                arena.order(stream, user)
            starts = place.region.starts
            at = bisect_left(starts, place.start)
            del starts[at]  # stores
            del shared[0]

    def _place_at(self, ptr: int) -> Place | None:
        """The live planned block's place that holds this address."""
        with self._lock:
            for region in self._regions.values():
                at = bisect_right(region.starts, ptr) - 1
                if at >= 0 and ptr < region.ends[region.starts[at]]:
                    start = region.starts[at]
                    end = region.ends[start]
                    return Place(region, start, end)
        return None


@contextmanager
def planned(plan: Plan, device: Device | str | None = None) -> Iterator[Plan]:
    """Run one iteration inside the plan's reservation on the device.

    The first step makes the reservation; it is kept until `plan.release()` or until the plan is
    dropped. A block that outlives its step keeps its bytes. Where a step differs from the recorded
    one, the arena serves it, and the first difference is reported by one UserWarning and in
    `plan.report()`. Timelines around the step or within it see its blocks, not the reservation.

    Raises RuntimeError within another planned step or a capture on the device and if its arena is
    switched off, OutOfMemoryError if the reservation does not fit.

    Raises TypeError for what is no plan.
    """
    from gtensor.memory.plan.plan import Plan

    if not isinstance(plan, Plan):
        raise TypeError(f"plan {plan!r} given; wanted one that a recording's plan() made")
    device = get_device(device)
    resource = device.resource
    if resource is None:
        raise RuntimeError(f"a planned step on {device} was asked for, but its arena is switched "
                           "off; wanted gt.memory.use_arena(True)")
    chain = list(chain_of(resource))
    if any(isinstance(link, Planned) and link.stepping for link in chain):
        raise RuntimeError(f"a planned step was begun within another on {device}; wanted one at a "
                           "time")
    if any(isinstance(link, Captured) for link in chain):
        raise RuntimeError(f"a planned step was begun within a capture on {device}; wanted it "
                           "before or after")
    runner, arena = plan.resource, chain[-1]
    if not isinstance(runner, Planned) or runner.arena is not arena:
        plan.resource = runner = Planned(arena, plan)
    known = plan.counts.first
    whole = False
    runner.begin()
    try:
        if runner not in chain:  # else an interrupt left it there
            replace_resource(device, arena, runner)
        yield plan
        whole = True
    finally:
        runner.end(whole)
        replace_resource(device, runner, arena)
    if plan.counts.first and not known:
        warnings.warn("a step differs from its plan, and the arena serves what does: "
                      + plan.counts.first, stacklevel=3)


def _place(regions: dict[int, Region], lifetime: Lifetime, offset: int) -> Place | None:
    if offset < 0:
        return None
    region = regions[lifetime.stream]
    start = region.reserved.ptr + offset
    return Place(region, start, start + lifetime.size)


def _described(nbytes: int, label: str, stream: int) -> str:
    made_by = f" by {label}" if label else ""
    return f"{size_text(nbytes)}{made_by} on stream {stream}"

"""Recordings: the allocations and frees of one iteration, in order, for a plan or a replay."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import NamedTuple

from gtensor.backend import Device, get_device
from gtensor.memory.contract.adaptors import Adaptor, adaptor_over
from gtensor.memory.contract.resource import Block, Resource
from gtensor.memory.plan.plan import Lifetime, Plan, make_plan
from gtensor.system.frees import FreeListener
from gtensor.system.written_code import checked, enter_class


class Request(NamedTuple):
    """An allocation as requested; `size` are the bytes held."""

    nbytes: int
    size: int
    stream: int
    label: str


class Recording(Adaptor):
    """Records the allocations and frees of the thread that made it, and no other thread's.

    `requests` are the allocations. `events` has both: k for the k-th allocation, ~k for its free.
    """

    no_capture = "a recording of an iteration"  # the stream of a capture is used only once

    def __init__(self, upstream: Resource) -> None:
        super().__init__(upstream)
        self.requests: list[Request] = []
        self.events: list[int] = []
        self.marks: list[int] = [0]  # where in `events` an iteration begins
        self._thread = get_ident()
        self._open = True
        self._alive: dict[int, int] = {}  # serial -> which allocation
        self._frees = FreeListener(self._freed)

    def allocate(self, nbytes: int, stream: int = 0, label: str = "") -> Block:
        """A block of the upstream; the request is noted."""
        block = super().allocate(nbytes, stream, label)
        if self._open and get_ident() == self._thread:
            which = self._alive[block.serial] = len(self.requests)
            self.requests.append(Request(nbytes, block.size, stream, label))
            self.events.append(which)
            self._frees.listen(block, block.serial)
        return block

    def _freed(self, serial: int) -> None:
        which = self._alive.pop(serial, None)
        if which is not None:
            self.events.append(~which)

    def mark(self) -> None:
        """The next iteration begins here; the plan is for the last one alone.

        The iteration before it shows when blocks that outlive an iteration are freed.
        """
        self.marks.append(len(self.events))

    def close(self) -> None:
        """Record no more. Blocks handed out so far stay valid."""
        self._open = False
        self._frees.close()
        self._alive.clear()

    def lifetimes(self) -> tuple[list[Lifetime], int]:
        """The lifetimes of the last iteration's allocations, and the number of its events."""
        events = tuple(self.events)
        begin = self.marks[-1]
        births = {which: at for at, which in enumerate(events) if which >= 0}
        deaths = {~which: at for at, which in enumerate(events) if which < 0}
        own = [which for which in births if births[which] >= begin]
        period = len(events) - begin
        carried = dict.fromkeys(own, None) if len(self.marks) == 1 else self._carried(
            own, births, deaths)
        found = []
        for which in own:
            death = deaths.get(which, carried[which])
            found.append(Lifetime(*self.requests[which], births[which] - begin,
                                  None if death is None else death - begin))
        return found, period

    def _carried(self, own: list[int], births: dict[int, int],
                 deaths: dict[int, int]) -> dict[int, int | None]:
        """When blocks die in the next iteration: as those of the iteration before died in this.

        None (unknown) unless both iterations made the same requests.
        """
        before, begin = self.marks[-2:]
        earlier = [which for which in births if before <= births[which] < begin]
        period = len(self.events) - begin
        same = len(earlier) == len(own) and all(
            self.requests[a][:3] == self.requests[b][:3]
            for a, b in zip(earlier, own, strict=True))
        if not same:
            return dict.fromkeys(own, None)
        return {b: deaths[a] + period if deaths.get(a, -1) >= begin else None
                for a, b in zip(earlier, own, strict=True)}

    def plan(self) -> Plan:
        """Places for the blocks of the last iteration; 10,000 of them take a second or two.

        Raises ValueError if nothing was recorded.
        """
        lifetimes, period = self.lifetimes()
        if not lifetimes:
            raise ValueError("a plan of an iteration without allocations was asked for; wanted a "
                             "recording in which arrays are made (on the CPU those of at least "
                             "settings.arena_min_bytes)")
        return make_plan(lifetimes, period)


enter_class(Recording, check=True)


@checked
@contextmanager
def record(device: Device | str | None = None) -> Iterator[Recording]:
    """Record what an iteration allocates on the device, and when it frees it.

    Do not record the first iteration, which also allocates what stays. With two iterations and
    `recording.mark()` between them, blocks that live into the next iteration, such as gradients,
    have a place in the plan, too.

    Raises RuntimeError if the device's arena is switched off.
    """
    with adaptor_over(get_device(device), "a recording of", Recording) as recording:
        yield recording

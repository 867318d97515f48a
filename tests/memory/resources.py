"""Every resource there is, over every source of segments, each to be made anew for a test."""

from __future__ import annotations

from simulated import CappedSegments, SimulatedPages, SimulatedSegments

from gtensor.memory import (
    Arena,
    CudaSegments,
    Failing,
    HostSegments,
    Planned,
    Recording,
    Timeline,
    VirtualSegments,
)
from gtensor.memory.contract.adaptors import Adaptor

from .loops import planned_loop

GIB = 1 << 30
NEVER = 10**9  # an allocation that no test comes to


def called_segments() -> CudaSegments:
    """The source of device functions, over stand-ins for cudaMalloc and cudaFree."""
    device = SimulatedSegments(4 * GIB)
    sizes = {}

    def malloc(nbytes):
        ptr = device.acquire(nbytes)
        sizes[ptr] = nbytes
        return ptr

    def free(ptr):
        device.release(ptr, sizes.pop(ptr))

    return CudaSegments(malloc, free)


SOURCES = {
    "simulated": lambda: SimulatedSegments(4 * GIB),
    "host": HostSegments,
    "called": called_segments,
    "capped": lambda: CappedSegments(SimulatedSegments(8 * GIB), 4 * GIB),
    "virtual": lambda: VirtualSegments(SimulatedPages(4 * GIB)),
    "small pages": lambda: VirtualSegments(SimulatedPages(4 * GIB, 1 << 16)),
}
OPTIONS = {
    "": {},
    "small apart": {"small": 100 * 1024},
    "always split": {"min_remainder": 0},
    "stepped": {"steps": 16},
    "all at once": {"small": 100 * 1024, "min_remainder": 0, "steps": 16},
}


def limited() -> Arena:
    """An arena that had a limit before the test sets its own."""
    arena = Arena(SimulatedSegments(4 * GIB))
    arena.set_limit(2 * GIB)
    return arena


def virtual() -> Arena:
    return Arena(SOURCES["small pages"]())


def planned(stepping: bool, source: str = "simulated") -> Planned:
    """A plan of 3, 5 and 2 MiB: of what the tests ask, little is planned and the rest deviates."""
    resource, _, _ = planned_loop(source=SOURCES[source]())
    if stepping:
        resource.begin()
    return resource


ADAPTED = {
    "limited": limited,
    "timeline": lambda: Timeline(Arena(HostSegments())),
    "timeline of virtual": lambda: Timeline(virtual()),
    "timeline with stacks": lambda: Timeline(virtual(), stacks=True),
    "failing": lambda: Failing(virtual(), NEVER),
    "recording": lambda: Recording(virtual()),
    "recording that is closed": lambda: closed(Recording(virtual())),
    "planned": lambda: planned(stepping=False),
    "planned step": lambda: planned(stepping=True),
    "planned step on virtual": lambda: planned(True, "small pages"),
    "timeline of failing": lambda: Timeline(Failing(Arena(HostSegments()), NEVER)),
    "timeline of timeline": lambda: Timeline(Timeline(virtual())),
    "timeline of planned step": lambda: Timeline(planned(stepping=True)),
    "recording of planned step": lambda: Recording(planned(stepping=True)),
    "four adaptors": lambda: Failing(
        Timeline(Recording(planned(True, "small pages"))), NEVER),
}
RESOURCES = {
    **{" ".join(filter(None, (source, option))):
       lambda make=make, more=more: Arena(make(), **more)
       for source, make in SOURCES.items() for option, more in OPTIONS.items()},
    **ADAPTED,
}


def closed(recording):
    recording.close()
    return recording


def close_timelines(resource) -> None:
    """Timelines listen until they are closed."""
    while isinstance(resource, Adaptor):
        if isinstance(resource, Timeline):
            resource.close()
        resource = resource.upstream

"""A training step in small, its plan, and the resource that runs it by that."""

from __future__ import annotations

from simulated import SimulatedSegments

from gtensor.memory import Arena, Plan, Planned, Recording, SegmentSource

MIB = 1 << 20


class Loop:
    """A step that keeps one block (`loss`) into the next step and drops two temporaries."""

    def __init__(self, resource) -> None:
        self.resource = resource
        self.loss = None
        self.plan: Plan | None = None

    def __call__(self, extra: int = 0, skip: bool = False, scale: int = 1) -> None:
        a = self.resource.allocate(3 * MIB * scale, 0, "linear")
        if extra:
            self.extra = self.resource.allocate(extra, 0, "surprise")
        b = None if skip else self.resource.allocate(5 * MIB, 0, "relu")
        self.seen = a.ptr, b.ptr if b else None
        del a
        self.loss = self.resource.allocate(2 * MIB, 0, "mean")
        c = self.resource.allocate(3 * MIB, 0, "grad")
        del b, c


def planned_loop(source: SegmentSource | None = None) -> tuple[Planned, Loop, Arena]:
    """A loop recorded twice, and the resource that runs it by its plan."""
    arena = Arena(source or SimulatedSegments(1 << 30))
    recording = Recording(arena)
    loop = Loop(recording)
    loop()
    recording.mark()
    loop()
    recording.close()
    loop.loss = None
    loop.plan = recording.plan()
    loop.resource = Planned(arena, loop.plan)
    return loop.resource, loop, arena


def step(planned: Planned, run, *args, **kwargs) -> None:
    """Run one planned step."""
    planned.begin()
    whole = False
    try:
        run(*args, **kwargs)
        whole = True
    finally:
        planned.end(whole)

"""The allocator by itself: bytes reserved over bytes alive, and what a malloc with its free costs.

    python profiling/ladder_allocator.py                    # replays traces on a simulated device
    python profiling/ladder_allocator.py --device cuda      # and CuPy arrays, against its peers
    python profiling/ladder_allocator.py --only digits      # one trace

The traces (`traces.py` records them) are replayed allocation by allocation, online through the
arena and by the plan of one iteration; no byte is touched. A figure is the reserved bytes at their
peak over the bytes of live blocks at theirs, in granules of 512; none can be below 1. On
virtual memory, whole pages of 2 MiB are reserved, and scattered ones joined; "cudamalloc" has
segments that stay where they are. For a plan the figure is its reservation over the peak of the
blocks that stand in it; beside it the whole process, parameters and optimizer included, once what
the unplanned iterations left is gone.

Times are host time per allocation with its free, of a block that is in the cache: the policy alone,
without an array; on a GPU the same with a CuPy array, beside CuPy's pool, cudaMallocAsync with a
raised threshold, RMM and PyTorch, those that are installed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from itertools import pairwise
from typing import Any

import traces
from ladder import Ladder
from ladder_arena import Peer, arena_empty, cuda_peers, hot_size, ladder_of, replay
from ladder_command import Figure, Options, Part, left_out, main
from simulated import SimulatedPages, SimulatedSegments

from gtensor.memory import (
    Arena,
    Block,
    Planned,
    Recording,
    Resource,
    SegmentSource,
    VirtualSegments,
)
from gtensor.memory.arena.chunks import Segment
from gtensor.memory.arena.free_lists import BlockPool
from gtensor.memory.plan.plan import Lifetime, make_plan
from gtensor.memory.sources import HUGE_PAGE

ONLINE_TARGET = 1.05  # reserved / peak live
PLANNED_TARGET = 1.01
HIT_TARGET = 1.5  # microseconds, without an array
CUPY_TARGET = 1.3  # x CuPy's pool, with an array
STEPS = 20  # iterations that are replayed beyond those that were recorded
SETTLED = 2  # planned iterations after which nothing of the unplanned ones is left
PAIRS = 1000  # allocations with their frees in a call of a rung


# -- traces ----------------------------------------------------------------------------------------


class Replay:
    """A trace on a resource, iteration by iteration; after the last it repeats the last."""

    def __init__(self, trace: traces.Trace) -> None:
        self.trace = trace
        self._held: dict[int, Block] = {}
        self._done = 0
        last = [event for event in trace.parts[-1] if event >= 0]
        self._first, self._count = last[0], len(last)

    def iteration(self, resource: Resource) -> None:
        """The next one."""
        again = max(0, self._done - len(self.trace.parts) + 1) * self._count
        for event in self.trace.parts[min(self._done, len(self.trace.parts) - 1)]:
            if event < 0:
                del self._held[~event + again]
                continue
            nbytes, label = self.trace.requests[event]
            self._held[event + again] = resource.allocate(nbytes, 0, label)
        self._done += 1


def virtual() -> SegmentSource:
    """Pages of 2 MiB of a device that has room for everything."""
    return VirtualSegments(SimulatedPages(1 << 40))


def cudamalloc() -> SegmentSource:
    """Segments of such a device."""
    return SimulatedSegments(1 << 50)


def replayed(name: str) -> Iterator[Part]:
    """A trace online and planned, on both sources."""
    trace = traces.load(name)
    for source in (virtual, cudamalloc):
        yield from online(f"{name}, online, {source.__name__}", Arena(source()), trace)
    for source in (virtual, cudamalloc):
        yield from by_plan(f"{name}, planned, {source.__name__}", Arena(source()), trace)


def online(name: str, arena: Arena, trace: traces.Trace) -> Iterator[Part]:
    """A trace through the arena, its last iteration again and again."""
    run = Replay(trace)
    iterations = len(trace.parts) + STEPS
    taken = []
    for _ in range(iterations):
        run.iteration(arena)
        taken.append(arena.stats().misses)
    stats = arena.stats()
    yield ratio(name, stats.peak_reserved, stats.peak_allocated, ONLINE_TARGET)
    each = ", ".join(str(after - before) for before, after in pairwise([0, *taken[:4]]))
    yield Figure(f"{name}, segments taken after the first iteration", taken[-1] - taken[0],
                 target=0, note=f"by iteration: {each} and so on")
    if isinstance(arena.source, VirtualSegments):
        pages = arena.source.pages
        before = pages.aliased
        run.iteration(arena)
        yield Figure(f"{name}, pages joined by then, in one more iteration",
                     pages.aliased - before, note=f"{before:,} before")


def by_plan(name: str, arena: Arena, trace: traces.Trace) -> Iterator[Part]:
    """A trace by the plan of its last recorded iteration."""
    run = Replay(trace)
    recording = Recording(arena)
    for part in range(len(trace.parts) - 1):
        if part:
            recording.mark()
        run.iteration(recording)
    recording.close()
    began = time.perf_counter()
    plan = recording.plan()
    took = time.perf_counter() - began
    planned = Planned(arena, plan)
    for step in range(SETTLED + STEPS):
        if step == SETTLED:
            planned.reset_peak()
            taken = arena.stats().misses
        planned.begin()
        run.iteration(planned)
        planned.end()
    stats = planned.stats()
    counts = plan.counts
    yield ratio(name, plan.reservation, plan.peak_live, PLANNED_TARGET,
                f"; {counts.served} of {counts.steps * len(plan.lifetimes)} blocks at their place")
    yield Figure(f"{name}, segments taken after the first iteration", stats.misses - taken,
                 target=0)
    yield ratio(f"{name}, whole process", stats.peak_reserved, stats.peak_allocated)
    yield Figure(f"{name}, planning {len(plan.lifetimes)} blocks", took, unit="s")


def ratio(name: str, reserved: int, live: int, target: float | None = None,
          note: str = "") -> Figure:
    """Reserved over live bytes."""
    return Figure(f"{name}, reserved / peak live", reserved / live, target,
                  note=f"{reserved:,} of {live:,} bytes{note}")


def large_plan(count: int = 10_000) -> Iterator[Part]:
    """The time to plan 10,000 blocks with lifetimes of up to 600 further ones."""
    import numpy as np

    rng = np.random.default_rng(0)
    sizes = 512 * np.exp2(rng.uniform(0, 15, count)).astype(int)
    births = 2 * np.arange(count)
    deaths = births + 2 * rng.integers(1, 600, count) + 1
    lifetimes = [Lifetime(size, size, 0, "", birth, death) for size, birth, death in zip(
        sizes.tolist(), births.tolist(), deaths.tolist(), strict=True)]
    began = time.perf_counter()
    plan = make_plan(lifetimes, 2 * count + 1200)
    yield Figure(f"planning {count:,} blocks", time.perf_counter() - began, unit="s",
                 note=f"reserved / peak live {1 / plan.efficiency:.4f}")


# -- time ------------------------------------------------------------------------------------------


def policy(nbytes: int = 4 << 20) -> Iterator[Part]:
    """A block taken from the cache and given back, by the policy, in the arena, at a planned place.

    "policy": a chunk of the block policy alone, without lock, counters and handle.
    "handed on": the size is the same each time, so the next request gets the chunk of the last free
    as it is. In the next two rungs two sizes take turns: each free goes through the free list.
    "whole": a free piece of each size is there, between live neighbours, as in a loop that repeats.
    "cut": the block is cut from a larger piece, and joined with it again.
    "joined": two free pages that lie apart are one block, at an address that they have already.
    """
    arena = Arena(cudamalloc())
    recording = Recording(arena)
    for _ in range(PAIRS):
        recording.allocate(nbytes)
    recording.close()
    planned = Planned(arena, recording.plan())
    arena = Arena(cudamalloc())
    half = nbytes // 2
    piece, live, other = (arena.allocate(size) for size in (nbytes, half, half))  # a segment full
    places = [piece.ptr, other.ptr]
    del piece, other
    large = Arena(cudamalloc())
    whole_segment = large.allocate(nbytes).ptr
    scattered, kept = scattered_pages()

    def pairs(resource: Resource, size: int) -> int:
        allocate = resource.allocate
        for _ in range(PAIRS):
            allocate(size)
        return PAIRS

    def turns(resource: Resource) -> int:
        allocate = resource.allocate
        for _ in range(PAIRS // 2):
            allocate(nbytes)
            allocate(half)
        return PAIRS

    pool = BlockPool(512, 4096)
    segment = Segment(pool, 1 << 40, nbytes)
    pool.add(segment)
    pool.give(segment.right)

    def chunks() -> int:
        take, give = pool.take, pool.give
        for _ in range(PAIRS):
            chunk = take(nbytes)
            assert chunk is not None
            give(chunk)
        return PAIRS

    def step() -> int:
        planned.begin()
        done = pairs(planned, nbytes)
        planned.end()
        return done

    def loop() -> int:
        make = object
        for _ in range(PAIRS):
            make()
        return PAIRS

    ladder = Ladder("malloc + free of a cached block", lambda: PAIRS, per=PAIRS, unit="pair")
    ladder.floor("an object made and dropped", loop)
    ladder.rung("policy", chunks)
    ladder.rung("arena, handed on", lambda: pairs(arena, nbytes))
    ladder.rung("arena, whole", lambda: turns(arena))
    ladder.rung("arena, cut", lambda: turns(large))
    ladder.rung("arena, joined", lambda: pairs(scattered, 2 * HUGE_PAGE))
    ladder.rung("planned step", step)
    ladder.compare("planned step", "arena, handed on")
    yield ladder
    # The ladder has been climbed when the generator is asked for more.
    assert [arena.allocate(size).ptr for size in (nbytes, half)] == places and live.ptr
    assert large.allocate(half).ptr == whole_segment and large.stats().misses == 1
    assert isinstance(scattered.source, VirtualSegments) and len(kept) == 2
    assert scattered.source.pages.aliased == 2, "blocks were joined anew, or not at all"
    for name in ("policy", "arena, handed on", "arena, whole"):
        yield Figure(f"malloc + free of a cached block, {name}",
                     ladder.times(name).median * 1e6, HIT_TARGET, "us")


def scattered_pages() -> tuple[Arena, list[Block]]:
    """An arena whose free memory are two pages that lie apart, and the blocks between them."""
    arena = Arena(virtual())
    blocks = [arena.allocate(HUGE_PAGE) for _ in range(4)]
    return arena, blocks[1::2]


def cupy_arrays(nbytes: int = 4 << 20) -> Iterator[Part]:
    """A CuPy array made and dropped: the arena against every allocator that is installed."""
    pattern = hot_size(nbytes)
    own = arena_empty("cuda")
    ladder = ladder_of("a CuPy array made and dropped", pattern)
    ladder.rung("gtensor", lambda: replay(pattern, own))
    for peer in [*cuda_peers(), *rmm_peers()]:
        ladder.rung(peer.name, lambda peer=peer: peer.run(pattern))
        if peer.name == "cupy pool":
            ladder.target("gtensor", peer.name, CUPY_TARGET)
        else:
            ladder.compare("gtensor", peer.name)
    for module in ("torch", "rmm"):
        reason = left_out(module, "cuda")
        if reason is not None:
            ladder.note(reason)
    yield ladder


def rmm_peers(initial: int = 1 << 28) -> Sequence[Peer]:
    """RMM's pool and arena under CuPy, where RMM is installed."""
    if not find_spec("rmm"):
        return ()
    import cupy
    import rmm
    from rmm.allocators.cupy import rmm_cupy_allocator

    def peer(name: str, make: Callable[[Any], Any]) -> Peer:
        resource = make(rmm.mr.CudaMemoryResource())

        def run(pattern: Any) -> int:
            before = rmm.mr.get_current_device_resource()
            rmm.mr.set_current_device_resource(resource)
            try:
                with cupy.cuda.using_allocator(rmm_cupy_allocator):
                    return replay(pattern, lambda nbytes: cupy.empty((nbytes,), "u1"))
            finally:
                rmm.mr.set_current_device_resource(before)

        return Peer(name, run, lambda pattern: 0)

    return [peer("rmm pool", lambda upstream: rmm.mr.PoolMemoryResource(upstream, initial)),
            peer("rmm arena", lambda upstream: rmm.mr.ArenaMemoryResource(upstream, initial))]


def build(options: Options) -> Iterator[tuple[str, Callable[[], Iterator[Part]]]]:
    """A part per trace, the planner's time, the policy's; CuPy arrays on a GPU."""
    for name in traces.TRACES:
        yield name, lambda name=name: replayed(name)
    yield "large plan", large_plan
    yield "policy", policy
    if options.device == "cuda":
        yield "cupy arrays", cupy_arrays


if __name__ == "__main__":
    sys.exit(main(__doc__, build, "ladder_allocator"))

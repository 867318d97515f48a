"""The arena against its peers: what an allocation and its free cost, and how much is reserved.

    python profiling/ladder_arena.py                    # against NumPy's malloc
    python profiling/ladder_arena.py --device cuda      # CuPy's pool, cudaMallocAsync, PyTorch
    python profiling/ladder_arena.py --only mlp         # one pattern

A pattern is a list of allocations and frees, replayed by every rung into the same slots: one hot
size; the blocks of an MLP step, recorded from the arena; sizes from 1 KiB to 16 MiB, uniform in
their logarithm; and steps of growing size with a temporary in each, which leave holes. Nothing is
computed. On the CPU each pattern is also replayed with one write per page, because memory that
malloc took from the system costs its page faults only then.

Times are host time per allocation with its free. The figures are the reserved bytes at their peak
over the live bytes at theirs, each allocator starting empty; none can be below 1.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from ladder import Ladder
from ladder_command import Figure, Options, Part, left_out, main
from workloads import Mlp

import gtensor as gt

PAGE = 4096
CUPY_TARGET = 1.0  # x CuPy's pool
ARENA_FROM = "gtensor, arrays of all sizes"
SHIPPED = "gtensor, as shipped"

Empty = Callable[[int], Any]  # bytes -> an uninitialized array of that many


@dataclass(frozen=True)
class Pattern:
    """Allocations and frees in order: (slot, bytes), where 0 bytes free what the slot holds."""

    name: str
    events: tuple[tuple[int, int], ...]

    @property
    def slots(self) -> int:
        return 1 + max(slot for slot, _ in self.events)

    @property
    def allocations(self) -> int:
        return sum(nbytes > 0 for _, nbytes in self.events)

    @property
    def total(self) -> int:
        """Bytes of all allocations."""
        return sum(nbytes for _, nbytes in self.events)

    @property
    def peak(self) -> int:
        """Most bytes that are live at a time."""
        held = [0] * self.slots
        most = live = 0
        for slot, nbytes in self.events:
            live += nbytes - held[slot]
            held[slot] = nbytes
            most = max(most, live)
        return most


# -- patterns --------------------------------------------------------------------------------------


def hot_size(nbytes: int = 4 << 20, times: int = 100) -> Pattern:
    """The same size, allocated and freed in turn."""
    return Pattern("hot size", ((0, nbytes), (0, 0)) * times)


def mlp_step() -> Pattern:
    """What one step of an MLP takes and frees, down to the smallest array."""
    with gt.settings.override(arena_min_bytes=0):
        step = Mlp("cpu").gtensor()
        step()
        with gt.memory.timeline(device="cpu") as timeline:
            step()
    slot_of: dict[int, int] = {}
    events: list[tuple[int, int]] = []
    free: list[int] = []
    for event in timeline.events:
        if event.delta > 0:
            slot = free.pop() if free else len(slot_of)
            slot_of[event.serial] = slot
            events.append((slot, event.delta))
        elif event.serial in slot_of:  # else it was there before the step
            slot = slot_of.pop(event.serial)
            free.append(slot)
            events.append((slot, 0))
    return Pattern("mlp step", tuple(events))


def random_sizes(times: int = 1000, slots: int = 48, seed: int = 0) -> Pattern:
    """Sizes from 1 KiB to 16 MiB, uniform in their logarithm, into random slots."""
    rng = np.random.default_rng(seed)
    sizes = np.exp2(rng.uniform(10, 24, times)).astype(int)
    return Pattern("random sizes", tuple(
        (int(slot), int(nbytes)) for slot, nbytes in zip(rng.integers(0, slots, times), sizes,
                                                         strict=True)))


def growing_steps(unit: int = 1 << 20, steps: int = 40, kept: int = 6) -> Pattern:
    """Steps that keep an output and drop a temporary of four times its size; both grow by 3 %.

    The freed temporary is a hole of which the next step's output takes a part, so that the next
    temporary does not fit there.
    """
    events: list[tuple[int, int]] = []
    for step in range(steps):
        size = int(unit * 1.03 ** step)
        events += [(step % kept, 0), (step % kept, size), (kept, 4 * size), (kept, 0)]
    return Pattern("growing steps", tuple(events))


def patterns(quick: bool = False) -> list[Pattern]:
    """All of them, each with everything freed at its end."""
    found = [hot_size(times=20 if quick else 100), mlp_step(),
             random_sizes(times=200 if quick else 1000), growing_steps()]
    return [Pattern(p.name, (*p.events, *((slot, 0) for slot in range(p.slots)))) for p in found]


# -- replaying -------------------------------------------------------------------------------------


def replay(pattern: Pattern, empty: Empty) -> int:
    """The bytes of all arrays that were made."""
    held: list[Any] = [None] * pattern.slots
    total = 0
    for slot, nbytes in pattern.events:
        held[slot] = None  # before the new one is made; and no other name may hold it
        if nbytes:
            held[slot] = empty(nbytes)
            total += held[slot].nbytes
    return total


def touched(empty: Empty) -> Empty:
    """The same arrays, written once per page."""

    def made(nbytes: int) -> Any:
        array = empty(nbytes)
        array[::PAGE] = 1
        return array

    return made


def arena_empty(device: str) -> Empty:
    """Arrays of gtensor's, as its ops get them."""
    place = gt.device(device)
    return lambda nbytes: place.empty((nbytes,), np.uint8)


def of_all_sizes(run: Callable[[], Any]) -> Callable[[], Any]:
    """The same with small arrays on the CPU from the arena, too."""

    def accounted() -> Any:
        with gt.settings.override(arena_min_bytes=0):
            return run()

    return accounted


def ladder_of(name: str, pattern: Pattern) -> Ladder:
    """A ladder in host time whose floor is the loop around the allocations."""
    ladder = Ladder(name, lambda: pattern.total, per=pattern.allocations, unit="allocation")
    one = np.empty(0)
    ladder.floor("the loop", lambda: replay(pattern, lambda nbytes: one))
    return ladder


# -- the CPU ---------------------------------------------------------------------------------------


def on_cpu(pattern: Pattern) -> Iterator[Part]:
    """Against NumPy's malloc; and what the arena reserves."""
    own = arena_empty("cpu")

    def numpy_empty(nbytes: int) -> Any:
        return np.empty((nbytes,), np.uint8)

    for suffix, change in (("", lambda empty: empty), (", a write per page", touched)):
        ours, theirs = change(own), change(numpy_empty)
        ladder = ladder_of(pattern.name + suffix, pattern)
        ladder.rung(SHIPPED, lambda ours=ours: replay(pattern, ours))
        ladder.rung(ARENA_FROM, of_all_sizes(lambda ours=ours: replay(pattern, ours)))
        ladder.rung("numpy", lambda theirs=theirs: replay(pattern, theirs))
        ladder.compare(SHIPPED, "numpy")
        ladder.compare(ARENA_FROM, "numpy")
        yield ladder
    yield reserved("gtensor", pattern, arena_peak("cpu", of_all_sizes(
        lambda: replay(pattern, own))))


# -- CUDA ------------------------------------------------------------------------------------------


def on_cuda(pattern: Pattern) -> Iterator[Part]:
    """Against CuPy's pool, cudaMallocAsync and PyTorch, in time and in bytes."""
    own = arena_empty("cuda")
    peers = cuda_peers()
    ladder = ladder_of(pattern.name, pattern)
    ladder.rung("gtensor", lambda: replay(pattern, own))
    for peer in peers:
        ladder.rung(peer.name, lambda peer=peer: peer.run(pattern))
        if peer.name == "cupy pool":
            ladder.target("gtensor", peer.name, CUPY_TARGET)
        else:
            ladder.compare("gtensor", peer.name)
    reason = left_out("torch", "cuda")
    if reason is not None:
        ladder.note(reason)
    yield ladder
    yield reserved("gtensor", pattern, arena_peak("cuda", lambda: replay(pattern, own)))
    for peer in peers:
        yield reserved(peer.name, pattern, peer.peak(pattern))


@dataclass(frozen=True)
class Peer:
    """An allocator on CUDA: how it replays a pattern, and its peak of reserved bytes then."""

    name: str
    run: Callable[[Pattern], int]
    peak: Callable[[Pattern], int]


def cuda_peers() -> list[Peer]:
    """Those that are installed and find the device."""
    absent = left_out("torch", "cuda") is not None
    return [cupy_pool(), malloc_async(), *([] if absent else [torch_allocator()])]


def _with_cupy(pattern: Pattern, malloc: Any) -> int:
    import cupy

    with cupy.cuda.using_allocator(malloc):
        return replay(pattern, lambda nbytes: cupy.empty((nbytes,), np.uint8))


def cupy_pool() -> Peer:
    """CuPy's own pool; it never gives back by itself, so what it holds at the end is its peak."""
    import cupy

    pool = cupy.cuda.MemoryPool()

    def peak(pattern: Pattern) -> int:
        pool.free_all_blocks()
        _with_cupy(pattern, pool.malloc)
        return int(pool.total_bytes())

    return Peer("cupy pool", lambda pattern: _with_cupy(pattern, pool.malloc), peak)


def malloc_async() -> Peer:
    """The driver's stream-ordered pool, set to keep what is freed, as the others do."""
    import cupy

    runtime = cupy.cuda.runtime
    pool = cupy.cuda.MemoryAsyncPool()
    handle = runtime.deviceGetDefaultMemPool(cupy.cuda.Device().id)
    runtime.memPoolSetAttribute(handle, runtime.cudaMemPoolAttrReleaseThreshold, (1 << 64) - 1)

    def peak(pattern: Pattern) -> int:
        cupy.cuda.Device().synchronize()
        pool.free_all_blocks()
        runtime.memPoolSetAttribute(handle, runtime.cudaMemPoolAttrReservedMemHigh, 0)
        _with_cupy(pattern, pool.malloc)
        return int(runtime.memPoolGetAttribute(handle, runtime.cudaMemPoolAttrReservedMemHigh))

    return Peer("cudaMallocAsync", lambda pattern: _with_cupy(pattern, pool.malloc), peak)


def torch_allocator() -> Peer:
    """PyTorch's caching allocator."""
    import torch

    def run(pattern: Pattern) -> int:
        return replay(pattern, lambda nbytes: torch.empty(nbytes, dtype=torch.uint8, device="cuda"))

    def peak(pattern: Pattern) -> int:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        run(pattern)
        return int(torch.cuda.max_memory_reserved())

    return Peer("pytorch", run, peak)


# -- reserved bytes --------------------------------------------------------------------------------


def arena_peak(device: str, run: Callable[[], Any]) -> int:
    """Most bytes that the arena reserves in a call when it starts empty."""
    gt.memory.empty_cache(device)
    before = gt.memory.stats(device).reserved  # segments in which something lives
    gt.memory.reset_peak(device)
    run()
    return gt.memory.stats(device).peak_reserved - before


def reserved(name: str, pattern: Pattern, peak: int) -> Figure:
    """The peak of what was reserved over that of what was live."""
    return Figure(f"{pattern.name}, reserved / peak live, {name}", peak / pattern.peak,
                  note=f"{peak:,} of {pattern.peak:,} bytes")


def build(options: Options) -> Iterator[tuple[str, Callable[[], Iterator[Part]]]]:
    """One part per pattern."""
    gt.set_default_device(options.device)
    measure = on_cpu if options.device == "cpu" else on_cuda
    for pattern in patterns(options.quick):
        yield pattern.name, lambda pattern=pattern: measure(pattern)


if __name__ == "__main__":
    sys.exit(main(__doc__, build, "ladder_arena"))

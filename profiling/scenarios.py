"""Real memory failures, to run by hand: `python profiling/scenarios.py NAME`.

Each scenario is a reported or common sequence of allocations and frees, on a device so small that
only an allocator with little fragmentation serves all of it. By default the device is simulated:
its addresses have no memory behind them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from cupy_policy import CupyPool
from simulated import CappedSegments, SimulatedPages, SimulatedSegments

from gtensor.backend import get_device
from gtensor.backend.cuda import CudaDevice
from gtensor.backend.streams import SimulatedStream
from gtensor.memory.arena.arena import Arena
from gtensor.memory.contract import report
from gtensor.memory.contract.limits import size_of
from gtensor.memory.contract.resource import Block, OutOfMemoryError, Resource
from gtensor.memory.sources import CudaSegments, HostSegments, SegmentSource, VirtualSegments

MIB = 1 << 20
GIB = 1 << 30
FITS, OUT_OF_MEMORY = 0, 3
SOURCES, POLICIES, DEVICES = ("cudamalloc", "virtual", "host"), ("arena", "cupy"), (
    "simulated", "cuda")


@dataclass(frozen=True)
class Machine:
    """The allocator and the two streams of a scenario."""

    resource: Resource
    streams: tuple[Any, Any]

    def take(self, nbytes: int, label: str, stream: int = 0) -> Block:
        """A block for work on the first or the second stream, which is queued."""
        queue = self.streams[stream]
        block = self.resource.allocate(nbytes, queue.id, label)
        _launch(queue)
        return block

    def use(self, block: Block, stream: int) -> None:
        """Queue work on that stream that reads the block."""
        self.resource.record_use(block, self.streams[stream].id)
        _launch(self.streams[stream])


def _launch(stream: object) -> None:
    if isinstance(stream, SimulatedStream):  # on a real device nothing reads the bytes
        stream.launch()


def httomo_667(machine: Machine, capacity: int) -> None:
    """Outputs of 1 GiB beside a temporary of 4 GiB; an output is cut from the cached temporary."""
    def with_temporary() -> Block:
        output = machine.take(GIB, "output of A")
        machine.take(4 * GIB, "temporary of A")  # freed at once
        return output

    first = with_temporary()
    second = machine.take(GIB, "output of B")
    third = with_temporary()
    del first, second, third


def cupy_7678(machine: Machine, capacity: int) -> None:
    """Half of a limit is used and freed, then three quarters of it are requested."""
    machine.resource.set_limit(capacity)
    machine.take(capacity // 2, "half")
    machine.take(capacity // 4 * 3, "three quarters")


def batch_alternation(machine: Machine, capacity: int) -> None:
    """Training with batches of N, N + 1 and N - 1 samples; the optimizer's state comes late."""
    state: list[Block] = []
    for step, batch in enumerate((32, 33, 31) * 4):
        saved = []
        for layer in range(8):
            saved.append(machine.take(batch * (8 - layer % 4) * MIB, f"layer {layer}"))
            machine.take(batch * 4 * MIB, "workspace")
        while saved:
            gradient = machine.take(saved[-1].nbytes, "gradient")
            if step < 3:
                state.append(machine.take(24 * MIB, "optimizer state"))
            saved.pop()
            del gradient


def producer_consumer(machine: Machine, capacity: int) -> None:
    """One stream loads batches through a large staging buffer, another one computes with them."""
    results = []
    for _ in range(4):
        machine.take(4 * GIB, "staging")
        batch = machine.take(GIB // 2, "batch")
        machine.use(batch, 1)
        results.append(machine.take(GIB // 4, "result", 1))
        machine.take(5 * GIB, "workspace", 1)
        del batch


def growing_sequence(machine: Machine, capacity: int) -> None:
    """Caches of four layers that grow by copies, step by step; each step leaves hidden states."""
    hidden = []
    caches = [machine.take(16 * MIB, "cache") for _ in range(4)]
    for length in range(2, 65):
        for layer in range(4):
            caches[layer] = machine.take(length * 16 * MIB, "cache")  # then the old one is freed
            machine.take(length * 8 * MIB, "scores")
        hidden.append(machine.take(length * MIB, "hidden states"))
    caches.clear()


@dataclass(frozen=True)
class Scenario:
    """A sequence of allocations, and the bytes of the device it is meant for."""

    run: Callable[[Machine, int], None]
    capacity: int

    @property
    def meaning(self) -> str:
        """A description in one line."""
        return (self.run.__doc__ or "").strip()


SCENARIOS = {
    "httomo-667": Scenario(httomo_667, 8 * GIB),
    "cupy-7678": Scenario(cupy_7678, GIB),
    "batch-alternation": Scenario(batch_alternation, 5 * GIB // 2),
    "producer-consumer": Scenario(producer_consumer, 8 * GIB),
    "growing-sequence": Scenario(growing_sequence, 57 * GIB // 8),
}


def source_of(source: str, device: str, capacity: int) -> SegmentSource:
    """A source by name, simulated or of the first GPU. Only simulated ones have `capacity`."""
    if source == "host":
        return HostSegments()
    if device == "simulated":
        return (SimulatedSegments(capacity) if source == "cudamalloc"
                else VirtualSegments(SimulatedPages(capacity)))
    real: Any = get_device("cuda")
    return (CudaSegments(real.malloc, real.free) if source == "cudamalloc"
            else VirtualSegments(real.pages()))


def machine_of(source: str, policy: str, capacity: int, device: str) -> Machine:
    """The allocator of that name, over a device of `capacity` bytes, and its streams."""
    segments = source_of(source, device, capacity)
    real = get_device("cuda") if device == "cuda" else None
    streams = ((SimulatedStream(), SimulatedStream()) if not isinstance(real, CudaDevice)
               else (real.new_stream(), real.new_stream()))
    if policy == "cupy":
        return Machine(CupyPool(CappedSegments(segments, capacity), device), streams)
    arena = Arena(segments, device)
    if device == "cuda" or source == "host":
        arena.set_limit(capacity)
    arena.streams.update({stream.id: stream for stream in streams})
    return Machine(arena, streams)


def run(name: str, source: str, policy: str, capacity: int, device: str) -> tuple[bool, str]:
    """Whether the scenario fits, and a text that describes the run."""
    machine = machine_of(source, policy, capacity, device)
    try:
        SCENARIOS[name].run(machine, capacity)
    except OutOfMemoryError as error:
        return False, str(error)
    finally:
        for stream in machine.streams:
            stream.synchronize()
    stats = machine.resource.stats()
    text = (f"peak {report.size_text(stats.peak_allocated)} live, "
            f"{report.size_text(stats.peak_reserved)} reserved")
    machine.resource.empty_cache()
    return True, text


def table(device: str, capacity: int | None, source: str | None = None,
          policy: str | None = None) -> list[str]:
    """A table of which scenarios fit, with one source and policy or with all."""
    columns = [(one, where) for one in ("cupy", "arena") for where in SOURCES
               if (device == "simulated" or where != "host")
               and policy in (None, one) and source in (None, where)]
    rows = [("scenario", "device", *(f"{policy}/{source}" for policy, source in columns))]
    for name, scenario in SCENARIOS.items():
        size = capacity or scenario.capacity
        rows.append((name, report.size_text(size), *(
            "fits" if run(name, source, policy, size, device)[0] else "OUT"
            for policy, source in columns)))
    return report.table(rows, "")


def listing() -> str:
    """The scenarios, one line each."""
    width = max(map(len, SCENARIOS))
    return "\n".join(f"  {name:{width}}  {report.size_text(one.capacity):>9}  {one.meaning}"
                     for name, one in SCENARIOS.items())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python profiling/scenarios.py",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Run a sequence of allocations that made other allocators fail, and see "
                    "whether it fits.",
        epilog=f"""scenarios (name, size of the device, what happens):
{listing()}
  {"all":17}         a table: which scenario fits where

exit code: {FITS} it fits, {OUT_OF_MEMORY} out of memory, 2 wrong arguments

examples:
  python profiling/scenarios.py httomo-667 --policy cupy     # runs out of memory
  python profiling/scenarios.py httomo-667 --source virtual  # fits
  python profiling/scenarios.py all""")
    parser.add_argument("name", nargs="?", metavar="NAME", choices=[*SCENARIOS, "all"],
                        help="the scenario, or 'all'; without it they are listed")
    parser.add_argument("--source", choices=SOURCES, default=None,
                        help="where segments come from: cudaMalloc, virtual memory that grows in "
                             "place, or the machine's own memory (default: virtual; with 'all', "
                             "all)")
    parser.add_argument("--policy", choices=POLICIES, default=None,
                        help="who cuts them: gtensor's arena, or the policy of CuPy's pool "
                             "(default: arena; with 'all', both)")
    parser.add_argument("--capacity", type=_capacity, default=None, metavar="SIZE",
                        help="the device's memory, as 8GiB (default: the scenario's own)")
    parser.add_argument("--device", choices=DEVICES, default="simulated",
                        help="a device that exists only as numbers, or the first GPU, of which "
                             "only CAPACITY is used (default: simulated)")
    return parser


def _capacity(text: str) -> int:
    try:
        return size_of(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def main(argv: Sequence[str] | None = None) -> int:
    """The command; the exit code."""
    parser = _parser()
    asked = parser.parse_args(argv)
    if asked.device == "cuda":
        if asked.source == "host":
            parser.error("--source host is the machine's own memory; wanted --device simulated")
        try:
            get_device("cuda")
        except ValueError as error:
            parser.error(str(error))
    if asked.name is None:
        print(f"scenarios (name, size of the device, what happens):\n{listing()}\n"
              "Run one by name, or 'all'; --help says more.")
        return FITS
    if asked.name == "all":
        print("\n".join(table(asked.device, asked.capacity, asked.source, asked.policy)))
        return FITS
    capacity = asked.capacity or SCENARIOS[asked.name].capacity
    source, policy = asked.source or "virtual", asked.policy or "arena"
    fits, text = run(asked.name, source, policy, capacity, asked.device)
    print(f"{asked.name}, {policy} on {source}, {report.size_text(capacity)}: "
          f"{'fits' if fits else 'OUT OF MEMORY'}\n{text}")
    return FITS if fits else OUT_OF_MEMORY


if __name__ == "__main__":
    sys.exit(main())

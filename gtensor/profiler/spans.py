"""What a profile holds, as data."""

from __future__ import annotations

from typing import Any, NamedTuple


class Span(NamedTuple):
    """An op's path or rule, a phase, a module's call, a range of the user's, as it ran.

    Attributes:
        name: of the op, the phase, the module; the user's.
        kind: "op", "phase", "module", "range", "data", "communication" or "graph".
        phase: of an op, "forward", "backward" or "update".
        module: the dotted path of the running nn.Module, "" outside.
        source: the user's line, "file:line: text", "" if unknown.
        thread: its number; 0 is the one that profiled.
        start, seconds: by the host's clock, since the profile began.
        stream: the id of the GPU's stream, None on the CPU.
        device_start, device_seconds: by the GPU's clock, None on the CPU.
        launches: kernels and library calls launched, without those of ops within; 0 where the
            driver does not count.
        read, written: bytes, by the definition.
        flops: floating point operations, by the definition.
        allocations, allocated, reused: blocks from the arena, their bytes, and how many of them
            were made of memory that it held already.
        link: of a backward op, the index of its forward op.
        parent: the index of the span around it in its thread.
    """

    name: str
    kind: str
    phase: str
    module: str
    source: str
    thread: int
    start: float
    seconds: float
    stream: int | None
    device_start: float | None
    device_seconds: float | None
    launches: int
    read: int
    written: int
    flops: int
    allocations: int
    allocated: int
    reused: int
    link: int | None
    parent: int | None


class Recorded(NamedTuple):
    """What a profile holds: spans in order of their begins, (seconds, device, live bytes) after
    each allocation, the seconds of the block, and the machine."""

    spans: list[Span]
    live: list[tuple[float, str, int]]
    seconds: float
    machine: dict[str, Any]


class ProfileError(ValueError):
    """A file is no profile, or a damaged one."""

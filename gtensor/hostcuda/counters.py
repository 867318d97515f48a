"""Counts of the work that a program's devices have done."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field

from gtensor.hostcuda.install import native

KINDS = ("kernels", "library", "copies", "memsets", "other")
_Take = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_ulonglong,
                         ctypes.c_ulonglong, ctypes.c_double)


@dataclass(frozen=True)
class Counters:
    """Name -> how often, of each kind, since the start or since `reset_counters`.

    `library` has the calls of NVIDIA's libraries that queue work, CUB and Thrust among them, one
    for each call; `copies` the directions; `other` allocations, frees, synchronizations, host
    functions and launches of graphs. `bytes` has those of copies, memsets and allocations by the
    same names. `seconds`, by the name of a kernel, a library call, a copy or a memset, is the time
    that devices have worked on it: CUDA's events measure that clock, which stands while a device
    is idle. Work that was captured counts at each launch of its graph, not when it is captured.

    A synchronization is a call that waits for the device: of a device, a stream or an event, or a
    copy that waits for its bytes ("synchronize copy": cudaMemcpy from or to the host, and any copy
    to pageable memory). cudaFree waits, too; it is counted as "free".
    """

    kernels: dict[str, int] = field(default_factory=dict)
    library: dict[str, int] = field(default_factory=dict)
    copies: dict[str, int] = field(default_factory=dict)
    memsets: dict[str, int] = field(default_factory=dict)
    other: dict[str, int] = field(default_factory=dict)
    bytes: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict, compare=False)

    @property
    def launches(self) -> int:
        """How often a device computed: kernels, library calls and copies within the device."""
        return (sum(self.kernels.values()) + sum(self.library.values())
                + self.copies.get("device to device", 0))

    @property
    def allocations(self) -> int:
        """How often memory was asked of CUDA, of the device's or of the host's."""
        return self._others("allocate")

    @property
    def synchronizations(self) -> int:
        """How often a thread waited for a device; frees wait, too, and are not among them."""
        return self._others("synchronize")

    def _others(self, verb: str) -> int:
        return sum(count for name, count in self.other.items() if name.split()[0] == verb)


def counters() -> Counters:
    """What was done so far."""
    found = Counters()
    for kind, name, count, size, took in _lines():
        if kind >= 0:
            getattr(found, KINDS[kind])[name] = count
            if size:
                found.bytes[name] = size
            if took:
                found.seconds[name] = took
    return found


def missing() -> dict[str, int]:
    """The calls of functions that are not implemented, by name."""
    return {name: count for kind, name, count, *_ in _lines() if kind < 0}


def reset_counters() -> None:
    """Count from 0 again; `missing` is kept."""
    native().cuda.hostcuda_reset_counters()


def _lines() -> list[tuple[int, str, int, int, float]]:
    lines = []

    def take(_: int, kind: int, name: bytes, count: int, size: int, took: float) -> None:
        lines.append((kind, name.decode(), count, size, took))

    native().cuda.hostcuda_counters(_Take(take), None)
    return lines

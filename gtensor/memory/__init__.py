"""Memory that can be accounted for: `gt.memory`.

Every device has an arena, made with the device. Its blocks hold the arrays: on the CPU those from
`GTENSOR_ARENA_MIN_BYTES` bytes on, on CUDA all. Dropping the last reference to an array is the
free. Functions take a device or its name; None is the default device. Sizes are in bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Integral

from gtensor.backend import Device, get_device, on_new_device
from gtensor.backend.cuda import CudaDevice
from gtensor.memory.adaptors import Event, Failing, Timeline, category
from gtensor.memory.arena import Arena
from gtensor.memory.resource import Block, OutOfMemoryError, Resource, Stats
from gtensor.memory.segments import (
    CudaSegments,
    HostSegments,
    SegmentSource,
    SimulatedSegments,
)

__all__ = [
    "Arena", "Block", "CudaSegments", "Event", "Failing", "HostSegments", "OutOfMemoryError",
    "Resource", "SegmentSource", "SimulatedSegments", "Stats", "Timeline", "arena_of", "category",
    "copies", "empty_cache", "reset_peak", "set_limit", "stats", "summary", "timeline",
    "use_arena",
]

_UNITS = {"": 1, "B": 1, **{unit + "B": 1000**power for power, unit in enumerate("KMGT", 1)},
          **{unit + "IB": 1024**power for power, unit in enumerate("KMGT", 1)}}
_arenas: dict[Device, Arena] = {}
_enabled = True


def arena_of(device: Device | str | None = None) -> Arena:
    """The device's arena, also while it is switched off."""
    return _arenas[get_device(device)]


def stats(device: Device | str | None = None) -> Stats:
    """Counters of the device's arena."""
    return arena_of(device).stats()


def copies(device: Device | str | None = None) -> dict[str, tuple[int, int]]:
    """How often ops that overwrite their input had to take a buffer beside it, and its bytes.

    By the op's name. They do so where somebody else could see the write.
    """
    return dict(get_device(device).copies)


def reset_peak(device: Device | str | None = None) -> None:
    """Let `peak_allocated` and `peak_reserved` start again from what is in use now."""
    arena_of(device).reset_peak()


def set_limit(nbytes: int | str | None, device: Device | str | None = None) -> None:
    """Reserve at most `nbytes` on the device from now on: 500, "8GB" or "500 MiB"; None lifts it.

    Raises TypeError for what is none of these, ValueError for less than 0 and for other texts.
    """
    if isinstance(nbytes, str):
        nbytes = size_of(nbytes)
    elif nbytes is not None and not isinstance(nbytes, Integral):
        raise TypeError(f"a limit of {nbytes!r} was given; wanted bytes as an integer, a text as "
                        "'8GB', or None")
    arena_of(device).set_limit(nbytes)


def size_of(size: int | str) -> int:
    """Bytes of 500, "500", "500 MB" (10^6 each) or "5GiB" (2^30 each). Raises ValueError."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", str(size).strip())
    if not found or found[2].upper() not in _UNITS or float(found[1]) <= 0:
        raise ValueError(f"size {size!r} given; wanted bytes above 0, or a text as '5GB' or "
                         "'500MiB'")
    return int(float(found[1]) * _UNITS[found[2].upper()])


def empty_cache(device: Device | str | None = None) -> int:
    """Return memory in which no array lives to the system; the bytes returned."""
    return arena_of(device).empty_cache()


def summary(device: Device | str | None = None) -> str:
    """A readable table: how much is in use, at the peak, and which ops hold it."""
    return arena_of(device).summary()


@contextmanager
def timeline(device: Device | str | None = None, most: int = 1_000_000) -> Iterator[Timeline]:
    """Record allocations and frees within the block; the latest `most` events are kept.

    Raises RuntimeError if the device's arena is switched off.
    """
    device = get_device(device)
    upstream = device.resource
    if upstream is None:
        raise RuntimeError(f"a timeline of {device} was asked for, but its arena is switched off; "
                           "wanted gt.memory.use_arena(True)")
    recording = device.resource = Timeline(upstream, most)
    try:
        yield recording
    finally:
        recording.close()
        if device.resource is recording:
            device.resource = upstream


class use_arena:
    """Switch all arenas on or off: for good by `use_arena(False)`, or `with use_arena(False):`.

    Without them new arrays come from NumPy's and CuPy's own allocators; live ones stay in place.
    """

    def __init__(self, enabled: bool) -> None:
        global _enabled
        self._before = _enabled, {device: device.resource for device in _arenas}
        _enabled = enabled
        for device in tuple(_arenas):
            _connect(device)

    def __enter__(self) -> None:
        return None

    def __exit__(self, *exception: object) -> None:
        global _enabled
        _enabled, resources = self._before
        for device in tuple(_arenas):
            if device in resources:
                device.resource = resources[device]
            else:
                _connect(device)


def _connect(device: Device) -> None:
    if not _enabled:
        device.resource = None
    elif device.resource is None:  # else an adaptor over the arena may stand there
        device.resource = _arenas[device]


def _watch(device: Device) -> None:
    source: SegmentSource = HostSegments()
    if isinstance(device, CudaDevice):
        source = CudaSegments(device.malloc, device.free)
    _arenas[device] = Arena(source, str(device))
    _connect(device)


on_new_device(_watch)

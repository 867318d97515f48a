"""Memory that can be accounted for: `gt.memory`.

Every device has an arena, made with the device. Its blocks hold the arrays: on the CPU those from
`GTENSOR_ARENA_MIN_BYTES` bytes on, on CUDA all. Dropping the last reference to an array is the
free. Functions take a device or its name; None is the default device. Sizes are in bytes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from numbers import Integral
from os import PathLike
from typing import Any

from gtensor.backend import Device, device_of, get_device
from gtensor.memory import export
from gtensor.memory.adaptors import Failing, category, chain_of, stand_over, take_out
from gtensor.memory.allocators import (
    arena_of,
    configure,
    release_replaced,
    replaced_bytes,
    use,
    use_arena,
)
from gtensor.memory.arena import Arena
from gtensor.memory.history import History
from gtensor.memory.limits import Watermark, amount_of, size_of
from gtensor.memory.plan import Plan
from gtensor.memory.planned import Planned, planned
from gtensor.memory.recording import Recording, record
from gtensor.memory.report import summary_text
from gtensor.memory.resource import Block, OutOfMemoryError, Resource, Stats
from gtensor.memory.sources import (
    CudaSegments,
    HostSegments,
    SegmentSource,
    SimulatedPages,
    SimulatedSegments,
    VirtualSegments,
)
from gtensor.memory.timelines import Event, Timeline
from gtensor.memory.uses import standing
from gtensor.memory.workspace import Workspace

__all__ = [
    "Arena", "Block", "CudaSegments", "Event", "Failing", "History", "HostSegments",
    "OutOfMemoryError", "Plan", "Planned", "Recording", "Resource", "SegmentSource",
    "SimulatedPages", "SimulatedSegments", "Stats", "Timeline", "VirtualSegments", "Watermark",
    "Workspace", "arena_of", "category", "configure", "copies", "empty_cache", "on_watermark",
    "planned", "record", "record_stream", "reset_peak", "set_limit", "size_of", "snapshot",
    "stats", "summary", "timeline", "use", "use_arena",
]

def stats(device: Device | str | None = None) -> Stats:
    """Counters of the device's memory: of its arena.

    Within a planned step the plan's live blocks count, and not its reservation; between steps the
    reservation is one live block.
    """
    device = get_device(device)
    release_replaced(device)
    return replace(_resource_of(device).stats(), replaced=replaced_bytes(device))


def copies(device: Device | str | None = None) -> dict[str, tuple[int, int]]:
    """How often ops that overwrite their input had to take a buffer beside it, and its bytes.

    By the op's name. They do so where somebody else could see the write.
    """
    return dict(get_device(device).copies)


def reset_peak(device: Device | str | None = None) -> None:
    """Let `peak_allocated` and `peak_reserved` start again from what is in use now."""
    _resource_of(get_device(device)).reset_peak()


def set_limit(amount: int | float | str | None, device: Device | str | None = None) -> None:
    """Reserve at most so much on the device from now on; None lifts the limit.

    Bytes as 500, "8GB" or "500 MiB", or a part of the device's memory as 0.5 or "50%". Raises
    TypeError for what is none of these, ValueError for less than 0, parts above 1, other texts.
    """
    device = get_device(device)
    arena_of(device).set_limit(
        None if amount is None else amount_of(amount, partial(_memory_of, device)))


def on_watermark(amount: int | float | str, callback: Callable[[int], object],
                 device: Device | str | None = None) -> Watermark:
    """Call `callback(live bytes)` each time the live bytes rise beyond an amount.

    Amounts as in `set_limit`; a part is one of the limit if there is one. The callback is called by
    the thread whose allocation passed the mark, without any lock held, so it may free and allocate;
    what it raises comes out of that allocation, which then leaves nothing behind. An allocation in
    the middle of another one (by a finalizer or a signal handler) calls nobody; nor does one within
    a callback call that callback. Returns a handle whose `remove()` ends it.
    """
    arena = arena_of(device)

    def whole() -> int:
        return _memory_of(get_device(device)) if arena.limit is None else arena.limit

    return arena.on_watermark(amount_of(amount, whole), callback)


def record_stream(array: Any, stream: Any) -> None:
    """Say that work of yours, queued on `stream`, uses an array (or a tensor's memory).

    For kernels that gtensor cannot see: raw CuPy kernels on `t.array` on another stream than the
    array was made on. The memory then serves nobody else before that work has completed. Streams of
    gtensor and of CuPy, handles, and what has `__cuda_stream__` will do. Ops need no such call. It
    does not make your stream wait for the array's values; `stream.wait(event)` does.
    """
    given, array = array, getattr(array, "array", array)
    try:
        device = device_of(array)
    except AttributeError:
        raise TypeError(f"{type(given).__name__} given; wanted a tensor, or an array of NumPy's or "
                        "CuPy's") from None
    block = device.block_of(array)
    if block is not None:
        block.owner.record_use(block, device.stream_from(stream).id)


def _memory_of(device: Device) -> int:
    """Bytes of the device's memory, on the CPU of the machine's."""
    return device.describe()[1] or os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def empty_cache(device: Device | str | None = None) -> int:
    """Return memory in which no array lives to the system; the bytes returned."""
    device = get_device(device)
    return release_replaced(device) + arena_of(device).empty_cache()


def summary(device: Device | str | None = None) -> str:
    """A readable table: how much is in use, at the peak, and which ops hold it; as `stats`."""
    device = get_device(device)
    arena = arena_of(device)
    live = arena.holdings()
    for link in chain_of(_resource_of(device)):
        if isinstance(link, Planned):
            live = link.holdings(live)
    return summary_text(arena.name, stats(device), arena.limit, live)


def _resource_of(device: Device) -> Resource:
    """What counts the device's memory: what stands there, or its arena, which is switched off."""
    return arena_of(device) if device.resource is None else device.resource


@contextmanager
def timeline(path: str | PathLike[str] | None = None, device: Device | str | None = None,
             most: int = 1_000_000, stacks: bool = False) -> Iterator[Timeline]:
    """Record where memory goes within the block: every allocation and free, who asked, what for.

    Args:
        path: written when the block ends, also by an error: `.html`, a page to hover and zoom;
            `.png`; `.pickle` or `.json`, a snapshot. The recording's `save(path)` writes more.
        most: the latest `most` events are kept.
        stacks: note the user's line that asked, too (about 1 us more per event).

    An event costs up to 3 us and some 200 bytes; both ends look through all objects of Python's for
    who holds what, which takes 10 to 100 ms, by how many there are.

    Raises RuntimeError if the device's arena is switched off, ValueError for another suffix or a
    negative `most`, OSError at once if there is no such folder, or it cannot be written.
    """
    if path is not None:
        export.check(path)
        export.check_folder(path)
    if not isinstance(most, Integral) or most < 0:
        raise (ValueError if isinstance(most, Integral) else TypeError)(
            f"most={most!r} given; wanted how many events to keep, an integer of 0 or more")
    device = get_device(device)
    recording = stand_over(device, "a timeline of",
                           partial(Timeline, most=most, stacks=stacks))
    try:
        yield recording
    except BaseException as error:
        _end(device, recording)
        if path is not None:
            try:
                recording.save(path)
            except OSError as unwritten:
                error.add_note(str(unwritten))
        raise
    _end(device, recording)
    if path is not None:
        recording.save(path)


def _end(device: Device, recording: Timeline) -> None:
    try:
        recording.close()
    finally:
        take_out(device, recording)


def snapshot(path: str | PathLike[str], device: Device | str | None = None) -> None:
    """Write how the device's memory lies now and who holds it; within `timeline()` also how it
    came to that.

    `.pickle` is PyTorch's layout, for its memory viewer; `.json` the same facts as plain JSON. What
    the keys mean stands in `gtensor.memory.snapshots`; `gtensor memory FILE` reads both. Raises
    ValueError for another suffix, OSError if the file cannot be written.
    """
    export.check(path, snapshot=True)
    resource = get_device(device).resource
    while resource is not None and not isinstance(resource, Timeline):
        resource = getattr(resource, "upstream", None)
    with export.collector_paused():
        history = resource.history() if resource is not None else standing(arena_of(device))
        export.save(path, history, snapshot=True)

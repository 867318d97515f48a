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
from os import PathLike
from typing import TYPE_CHECKING, Any

from gtensor.backend import Device, device_of, get_device
from gtensor.memory.allocators import (
    arena_of,
    configure,
    release_replaced,
    replaced_bytes,
    use,
    use_arena,
)
from gtensor.memory.arena.arena import Arena
from gtensor.memory.contract.adaptors import (
    Failing,
    adaptor_over,
    category,
    chain_of,
)
from gtensor.memory.contract.limits import Watermark, amount_of, size_of
from gtensor.memory.contract.resource import Block, OutOfMemoryError, Resource, Stats
from gtensor.memory.plan.planned import Planned, planned
from gtensor.memory.sources import (
    CudaSegments,
    HostSegments,
    SegmentSource,
    VirtualSegments,
)
from gtensor.memory.trace.owners import standing
from gtensor.system.late_imports import late
from gtensor.system.written_code import enter as _enter

if TYPE_CHECKING:
    from gtensor.memory.plan.plan import Plan
    from gtensor.memory.plan.recording import Recording, record
    from gtensor.memory.trace.lifetimes import History
    from gtensor.memory.trace.timelines import Event, Timeline
    from gtensor.memory.workspace import Workspace
else:
    __getattr__, __dir__ = late(__name__, {
        "History": "gtensor.memory.trace.lifetimes", "Plan": "gtensor.memory.plan.plan",
        "Recording": "gtensor.memory.plan.recording", "record": "gtensor.memory.plan.recording",
        "Event": "gtensor.memory.trace.timelines", "Timeline": "gtensor.memory.trace.timelines",
        "Workspace": "gtensor.memory.workspace"})

__all__ = [
    "Arena", "Block", "CudaSegments", "Event", "Failing", "History", "HostSegments",
    "OutOfMemoryError", "Plan", "Planned", "Recording", "Resource", "SegmentSource",
    "Stats", "Timeline", "VirtualSegments", "Watermark", "Workspace", "arena_of", "category",
    "configure", "copies", "empty_cache", "on_watermark", "planned", "record", "record_stream",
    "reset_peak", "set_limit", "size_of", "snapshot", "stats", "summary", "timeline", "use",
    "use_arena",
]

def stats(device: Device | str | None = None) -> Stats:
    """Counters of the device's arena.

    Within a planned step the plan's live blocks count and its reservation does not; between steps
    the reservation is one live block.
    """
    device = get_device(device)
    release_replaced(device)
    return replace(_resource_of(device).stats(), replaced=replaced_bytes(device))


def copies(device: Device | str | None = None) -> dict[str, tuple[int, int]]:
    """Copies made by ops that overwrite their input: how many, and their bytes, by the op's name.

    Such an op copies when another tensor, a saved value or the user's code shares the input.
    """
    return dict(get_device(device).copies)


def reset_peak(device: Device | str | None = None) -> None:
    """Set `peak_allocated` and `peak_reserved` to what is in use now."""
    _resource_of(get_device(device)).reset_peak()


def set_limit(amount: int | float | str | None, device: Device | str | None = None) -> None:
    """Limit the bytes that the device's arena reserves; None lifts the limit.

    `amount`: bytes (500, "8GB", "500 MiB") or a fraction of the device's memory (0.5, "50%").
    Raises TypeError for another type, ValueError below 0, above 1 for a fraction, or for another
    text.
    """
    device = get_device(device)
    arena_of(device).set_limit(
        None if amount is None else amount_of(amount, partial(_memory_of, device)))


def on_watermark(amount: int | float | str, callback: Callable[[int], object],
                 device: Device | str | None = None) -> Watermark:
    """Call `callback(live bytes)` each time the live bytes rise beyond an amount.

    Amounts as in `set_limit`; a fraction is one of the limit if there is one. The thread whose
    allocation passed the mark calls the callback and holds no lock, so the callback may free and
    allocate. If it raises, that allocation raises the error and its block is freed. An allocation
    in the middle of another one (by a finalizer or a signal handler) calls no callback, and a
    callback's own allocations do not call it again. Returns a handle whose `remove()` ends it.
    """
    arena = arena_of(device)

    def whole() -> int:
        return _memory_of(get_device(device)) if arena.limit is None else arena.limit

    return arena.on_watermark(amount_of(amount, whole), callback)


def record_stream(array: Any, stream: Any) -> None:
    """Declare that your own work, queued on `stream`, uses an array (or a tensor's memory).

    For kernels that gtensor cannot see: raw CuPy kernels on `t.array`, on another stream than the
    array was made on. The memory is not reused before that work has completed. `stream` is a stream
    of gtensor or CuPy, a handle, or an object with `__cuda_stream__`. Ops need no such call. The
    call does not make your stream wait for the array's values; `stream.wait(event)` does.

    Raises TypeError for what is neither an array nor a tensor.
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
    """Bytes of the device's memory; for the CPU, of the machine's."""
    return device.describe()[1] or os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def empty_cache(device: Device | str | None = None) -> int:
    """Return memory without live arrays to the system; the number of bytes returned."""
    device = get_device(device)
    return release_replaced(device) + arena_of(device).empty_cache()


def summary(device: Device | str | None = None) -> str:
    """A readable table of `stats`: bytes in use and at the peak, and the ops that hold them."""
    from gtensor.memory.contract.report import summary_text
    from gtensor.system.notebook import Text

    device = get_device(device)
    arena = arena_of(device)
    live = arena.holdings()
    for link in chain_of(_resource_of(device)):
        if isinstance(link, Planned):
            live = link.holdings(live)
    return Text(summary_text(arena.name, stats(device), arena.limit, live))


def _resource_of(device: Device) -> Resource:
    """The resource that counts the device's memory: the one in use, else the switched-off arena."""
    return arena_of(device) if device.resource is None else device.resource


@contextmanager
def timeline(path: str | PathLike[str] | None = None, device: Device | str | None = None,
             most: int = 1_000_000, stacks: bool = False) -> Iterator[Timeline]:
    """Record every allocation and free within the block, with its op, module and category.

    Args:
        path: written when the block ends, also by an error: `.html`, a page to hover and zoom;
            `.png`; `.pickle` or `.json`, a snapshot. The recording's `save(path)` writes more.
        most: the latest `most` events are kept.
        stacks: also record the user's line that allocated (about 1 us more per event).

    An event costs up to 3 us and some 200 bytes. The start and the end search all Python objects
    for the holders of blocks, which takes 10 to 100 ms.

    Raises RuntimeError if the device's arena is switched off, ValueError for another suffix or a
    negative `most`, OSError at once if there is no such folder, or it cannot be written.
    """
    if path is not None:
        from gtensor.memory.trace import export

        export.check(path)
        export.check_folder(path)
    if most < 0:
        raise ValueError(f"most={most!r} given; wanted how many events to keep, an integer of 0 or "
                         "more")
    from gtensor.memory.trace.timelines import Timeline  # late, as the name of this module

    recording = None
    try:
        with adaptor_over(get_device(device), "a timeline of",
                          partial(Timeline, most=most, stacks=stacks)) as recording:
            yield recording
    except BaseException as error:  # undone
        if path is not None and recording is not None:
            try:
                recording.save(path)
            except OSError as unwritten:
                error.add_note(str(unwritten))
        raise
    if path is not None:
        recording.save(path)


def snapshot(path: str | PathLike[str], device: Device | str | None = None) -> None:
    """Write the layout and holders of the device's memory now; within `timeline()` also its events.

    `.pickle` is PyTorch's form, for its memory viewer; `.json` the same facts as plain JSON.
    `gtensor.memory.trace.snapshots` documents the keys; `gtensor memory FILE` reads both. Raises
    ValueError for another suffix, OSError if the file cannot be written.
    """
    from gtensor.memory.trace import export
    from gtensor.memory.trace.timelines import Timeline
    from gtensor.system.collector import collector_paused

    export.check(path, snapshot=True)
    recording = next((link for link in chain_of(get_device(device).resource)
                      if isinstance(link, Timeline)), None)
    with collector_paused():
        history = standing(arena_of(device)) if recording is None else recording.history()
        export.save(path, history, snapshot=True)


_enter(globals(), check=True, leave=("Block",))

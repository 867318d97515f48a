"""The allocator of each device, and the source of its arena's segments."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from gtensor.backend import Device, cuda_device_count, get_device, on_new_device
from gtensor.backend.cuda import CudaDevice
from gtensor.backend.cuda_memory import (
    LIBRARIES,
    KeepingPool,
    block_type,
    pinned_free,
    pinned_malloc,
)
from gtensor.memory.arena.arena import Arena
from gtensor.memory.contract.adaptors import Captured, chain_of, replace_resource
from gtensor.memory.sources import CudaSegments, HostSegments, SegmentSource, VirtualSegments
from gtensor.settings import settings

_arenas: dict[Device, Arena] = {}
_replaced: dict[Device, list[Arena]] = {}  # arenas before `configure` that still have memory
_enabled = True


def arena_of(device: Device | str | None = None) -> Arena:
    """The device's arena, also while it is switched off."""
    return _arenas[get_device(device)]


_CUDA: dict[str, Callable[[CudaDevice], SegmentSource]] = {
    "cudamalloc": lambda device: CudaSegments(device.malloc, device.free),
    "virtual": lambda device: VirtualSegments(device.pages()),
    "async": lambda device: _called(device.async_memory()),
}
_HOST: dict[str, Callable[[], SegmentSource]] = {
    "host": HostSegments,
    "pinned": lambda: CudaSegments(pinned_malloc, pinned_free),
}


def configure(source: str, device: Device | str | None = None) -> None:
    """Give the device a new arena whose segments come from another source.

    Args:
        source: on CUDA "cudamalloc", "virtual" (segments grow in place and release free pages;
            only the device itself may access them, so no peer access by another GPU and no legacy
            IPC handles; needs cuda-bindings) or "async" (CUDA's own pool); the default is
            `settings.cuda_source` (GTENSOR_CUDA_SOURCE). On the CPU "host" (the default) or
            "pinned" (page-locked memory, which a GPU copies directly, although CuPy's own copies
            to a GPU may still pass through a pinned buffer of CuPy; needs a GPU).

    Live blocks stay in the arena before. Its free memory is returned now and by every later
    `stats`, `summary`, `empty_cache` and `configure`, which may wait for work on it. What it still
    holds counts as `Stats.replaced`, and not against the limit. The limit is kept; counters and
    watermarks start anew. Raises ValueError for a source that the device does not have, ImportError
    if a package is not installed, RuntimeError while the arena is switched off, recorded, planned
    or captured.
    """
    device = get_device(device)
    known = _CUDA if isinstance(device, CudaDevice) else _HOST
    if not isinstance(source, str) or source not in known:
        raise ValueError(f"source {source!r} was given for {device}; wanted one of "
                         + ", ".join(map(repr, known)))
    if source == "pinned" and not cuda_device_count():
        raise ValueError("source 'pinned' was given, but this machine has no CUDA device; wanted "
                         "'host'")
    before = _arenas[device]
    if device.resource is not before:
        raise RuntimeError(f"a source for {device} was given while its arena is switched off, or "
                           "recorded, planned or captured; wanted the arena in use, and nothing "
                           "over it")
    arena = _new_arena(device, source)
    arena.set_limit(before.limit)
    _replaced.setdefault(device, []).append(before)
    _arenas[device] = device.resource = arena
    release_replaced(device)


def release_replaced(device: Device) -> int:
    """Return free memory of the arenas that `configure` replaced; the number of bytes returned.

    During a capture nothing is returned: waiting for the device would break the capture.
    """
    released = 0
    arenas = _replaced.get(device, [])
    if arenas and not _capturing(device):
        for arena in tuple(arenas):
            released += arena.empty_cache()
            if not arena.stats().reserved:
                with suppress(ValueError):  # another thread removed it
                    arenas.remove(arena)
                    if isinstance(device, CudaDevice):
                        device.on_stream_end.remove(arena.forget_stream)
    return released


def replaced_bytes(device: Device) -> int:
    """Bytes that the arenas that `configure` replaced still hold."""
    return sum(arena.stats().reserved for arena in tuple(_replaced.get(device, ())))


class use:
    """Switch the allocator of a device: for good by `use("cupy")`, or `with use("cupy"):`.

    Args:
        allocator: "arena" is gtensor's; on CUDA also "cupy" (CuPy's pool), "async" (CUDA's pool,
            set to keep freed memory until the block ends) and "rmm" (RMM's resource of the
            device). Only the arena has statistics here and tracks streams.

    Live arrays stay in place. Raises ValueError for an allocator that the device does not have,
    ImportError if RMM is not installed, RuntimeError while a graph is captured.
    """

    def __init__(self, allocator: str, device: Device | str | None = None) -> None:
        device = get_device(device)
        wanted = ("arena", *LIBRARIES) if isinstance(device, CudaDevice) else ("arena",)
        if allocator not in wanted:
            raise ValueError(f"allocator {allocator!r} was given for {device}; wanted "
                             + " or ".join(map(repr, wanted))
                             + ", or a CUDA device" * (allocator in LIBRARIES))
        _check_no_capture(device)
        self._device = device
        self._resource, self._arena = device.resource, _arenas[device]
        if isinstance(device, CudaDevice):
            self._library = device.library
            device.use_library(None if allocator == "arena" else allocator)
            self._own = device.library
        if allocator != "arena":
            device.resource = None
        elif device.resource is None:  # else it may be an adaptor over the arena
            device.resource = _arenas[device]

    def __enter__(self) -> None:
        return None

    def __exit__(self, *exception: object) -> None:
        _restore(self._device, self._resource, self._arena)
        if isinstance(self._device, CudaDevice):
            self._device.library = self._library
            if isinstance(self._own, KeepingPool):
                self._own.restore()


class use_arena:
    """Switch all arenas on or off: for good by `use_arena(False)`, or `with use_arena(False):`.

    Without them new arrays come from NumPy's and CuPy's own allocators; live ones stay in place.
    Raises RuntimeError while a graph is captured.
    """

    def __init__(self, enabled: bool) -> None:
        global _enabled
        for device in tuple(_arenas):
            _check_no_capture(device)
        self._before = _enabled, {
            device: (device.resource, arena) for device, arena in tuple(_arenas.items())}
        _enabled = enabled
        for device in tuple(_arenas):
            _connect(device)

    def __enter__(self) -> None:
        return None

    def __exit__(self, *exception: object) -> None:
        global _enabled
        _enabled, before = self._before
        for device in tuple(_arenas):
            if device in before:
                _restore(device, *before[device])
            else:
                _connect(device)


def _restore(device: Device, resource: object, arena: Arena) -> None:
    """Give a device the resource back that it had when `arena` was its arena.

    `configure` may have replaced the arena since.
    """
    device.resource = resource
    replace_resource(device, arena, _arenas[device])


def _capturing(device: Device) -> bool:
    return any(isinstance(link, Captured) for link in chain_of(device.resource))


def _check_no_capture(device: Device) -> None:
    if _capturing(device):
        raise RuntimeError(f"the allocator of {device} was switched while a graph is captured "
                           "there; wanted it before or after")


def _connect(device: Device) -> None:
    if not _enabled:
        device.resource = None
    elif device.resource is None:  # else it may be an adaptor over the arena
        device.resource = _arenas[device]


def _called(memory: Any) -> SegmentSource:
    return CudaSegments(memory.malloc, memory.free)


def _new_arena(device: Device, source: str) -> Arena:
    if not isinstance(device, CudaDevice):
        return Arena(_HOST[source](), str(device), steps=settings.arena_steps)
    arena = Arena(_CUDA[source](device), str(device), stream_of=device.streams.get,
                  small=settings.arena_small_bytes, steps=settings.arena_steps,
                  block_type=block_type())
    device.on_stream_end.append(arena.forget_stream)
    return arena


def _watch(device: Device) -> None:
    _arenas[device] = _new_arena(
        device, settings.cuda_source if isinstance(device, CudaDevice) else "host")
    _connect(device)


on_new_device(_watch)

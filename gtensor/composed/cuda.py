"""`gt.cuda`: what programs ask about GPUs, by PyTorch's names.

    device = "cuda" if gt.cuda.is_available() else "cpu"

Each is one call of what gtensor has for every device: `gt.memory`, `gt.Event`, `gt.device`. A
device is its name, its number, or None for the first. Without a GPU there is no memory in use, and
nothing to wait for or to return.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gtensor import memory
from gtensor.backend import Device, cuda_device_count, get_device
from gtensor.creation.generators import manual_seed
from gtensor.system.late_imports import late as _late

if not TYPE_CHECKING:
    __getattr__, __dir__ = _late(__name__)

__all__ = [
    "device_count", "empty_cache", "is_available", "manual_seed", "manual_seed_all",
    "max_memory_allocated", "max_memory_reserved", "memory_allocated", "memory_reserved",
    "reset_peak_memory_stats", "synchronize",
]

device_count = cuda_device_count
manual_seed_all = manual_seed  # the numbers of all devices come from one generator


def is_available() -> bool:
    """Whether there is a CUDA device."""
    return cuda_device_count() > 0


def synchronize(device: Device | str | int | None = None) -> None:
    """Wait until all work queued on the device is done, that of every stream, as PyTorch's does.

    `gt.device("cuda").synchronize()` waits for the current stream.
    """
    if is_available():
        _named(device).streams.synchronize()  # type: ignore[attr-defined]  # a CUDA device's


def memory_allocated(device: Device | str | int | None = None) -> int:
    """Bytes of live arrays."""
    return memory.stats(_named(device)).allocated if is_available() else 0


def max_memory_allocated(device: Device | str | int | None = None) -> int:
    """The most bytes of live arrays since the last `reset_peak_memory_stats`."""
    return memory.stats(_named(device)).peak_allocated if is_available() else 0


def memory_reserved(device: Device | str | int | None = None) -> int:
    """Bytes that the device's arena has from CUDA."""
    return memory.stats(_named(device)).reserved if is_available() else 0


def max_memory_reserved(device: Device | str | int | None = None) -> int:
    """The most bytes that the arena had since the last `reset_peak_memory_stats`."""
    return memory.stats(_named(device)).peak_reserved if is_available() else 0


def reset_peak_memory_stats(device: Device | str | int | None = None) -> None:
    """Let peaks begin at what is in use now."""
    if is_available():
        memory.reset_peak(_named(device))


def empty_cache() -> None:
    """Return memory without live arrays to CUDA, on every device."""
    for index in range(cuda_device_count()):
        memory.empty_cache(_named(index))


def _named(device: Device | str | int | None) -> Device:
    if device is None:
        return get_device("cuda")
    return get_device(f"cuda:{device}" if isinstance(device, int) else device)

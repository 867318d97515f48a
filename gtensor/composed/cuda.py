"""`gt.cuda`: PyTorch's questions about GPUs. Memory is `gt.memory`, streams `gt.stream`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gtensor.backend import cuda_device_count, get_device
from gtensor.memory import empty_cache as _empty_cache
from gtensor.random import manual_seed
from gtensor.system.late_imports import late as _late

if TYPE_CHECKING:
    from gtensor.backend import Device
else:
    __getattr__, __dir__ = _late(__name__)

__all__ = ["device_count", "empty_cache", "is_available", "manual_seed", "manual_seed_all",
           "synchronize"]

manual_seed_all = manual_seed  # there is one generator, whatever the device


def is_available() -> bool:
    """Whether there is a GPU."""
    return cuda_device_count() > 0


def device_count() -> int:
    """The number of GPUs."""
    return cuda_device_count()


def synchronize(device: Device | str | int | None = None) -> None:
    """Wait until a GPU has done its work."""
    place: Any = f"cuda:{device}" if isinstance(device, int) else device or "cuda"
    get_device(place).synchronize()


def empty_cache() -> None:
    """Give memory that no tensor uses back to the driver: `gt.memory.empty_cache("cuda")`."""
    if is_available():
        _empty_cache("cuda")

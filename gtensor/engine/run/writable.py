"""What every write in place checks before it, and counts after it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gtensor.backend.layouts import overlap
from gtensor.engine.handle.arrays import broadcast_view, layout
from gtensor.engine.handle.tensor import Tensor
from gtensor.engine.tape.levels import Traced
from gtensor.system.bus import bus, here

if TYPE_CHECKING:
    from gtensor.backend import Device
    from gtensor.backend.typing import Array
    from gtensor.engine.tape.op import Op


def refuse_traced(target: Tensor, name: str) -> None:
    """Raise LevelError for a write to a value within a transform."""
    if isinstance(target, Traced):
        target._level.refuse_write(name)


def count_write(target: Tensor) -> None:
    """The tensor's memory was written through its own handle."""
    storage = target._own_storage() if target._storage.common else target._storage
    storage.version += 1
    storage.writer = id(target._array)
    target._version = storage.version
    if bus.listeners and here.recorder is not None:
        here.recorder.wrote(target)


def refuse_unwritable(op: Op, target: Tensor) -> None:
    """Raise ValueError for memory that may not be written, or whose elements share it."""
    check_writable(op.name, target._array)


def check_writable(name: str, array: Array) -> None:
    """Raise ValueError for memory that may not be written, or whose elements share it."""
    if broadcast_view(array):
        raise ValueError(f"in-place {name} on a broadcast view of shape {array.shape}, whose "
                         "elements share memory; clone() it first")
    if not getattr(array.flags, "writeable", True):  # CuPy has no such flag
        raise ValueError(f"in-place {name} on read-only memory of shape {array.shape} (of a "
                         "broadcast view, or an array that its owner locked); clone() it first")


def overlapping(device: Device, a: Array, b: Array) -> bool:
    return (isinstance(b, device.array_type) and bool(device.xp.may_share_memory(a, b))
            and overlap(a, b))


def same_layout(a: Array, b: Array) -> bool:
    return layout(a) == layout(b)

"""Time on a GPU: points of its streams' work, read later, and how much was launched.

A mark is a CUDA event that takes the time when the device reaches it. Recording one does not
wait; `seconds_between` does, so it is called when the measured work is over.
"""

from __future__ import annotations

from collections.abc import Callable
from ctypes import c_ulonglong
from functools import cache
from typing import TYPE_CHECKING, Any

from gtensor.backend.cuda_streams import cupy, driver

if TYPE_CHECKING:
    from gtensor.backend.devices import Device


def mark(device: Device) -> tuple[int, Any]:
    """The id of a GPU's current stream, and a mark behind its work so far.

    The mark is None while the stream's work is captured into a graph.
    """
    stream: Any = device.current_stream()
    if device.capturing():
        return stream.id, None
    with device.cupy_device:  # type: ignore[attr-defined]  # where the event is made
        event = cupy().cuda.Event()
        event.record(stream.stream)
    return stream.id, event


def seconds_between(first: Any, last: Any) -> float:
    """The device's time between two of its marks; waits for both. CUDA's resolution is 0.5 us."""
    first.synchronize()
    last.synchronize()
    return float(cupy().cuda.get_elapsed_time(first, last)) * 1e-3


@cache
def launches() -> Callable[[], int]:
    """A function that counts the launches of this process so far.

    It returns 0 where the driver does not count: NVIDIA's tells only its own tools,
    `gtensor.hostcuda`'s does.
    """
    try:
        count = driver().hostcuda_launches
    except (OSError, AttributeError):
        return int
    count.restype = c_ulonglong
    count.argtypes = ()
    return count

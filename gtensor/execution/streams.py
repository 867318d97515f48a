"""Streams and events for users: `with gt.stream():` and `gt.Event`.

Ops on tensors are ordered across streams automatically. The user's own kernels on `t.array` are
not: they need `gt.memory.record_stream(array, stream)` and events.

The users of a block are recorded with the arena's memory. An op on other memory (imported by DLPack
or the CUDA array interface, of another allocator, made without arenas) waits for all work queued so
far on the streams that gtensor knows, so streams wait for each other at every such op. Its
allocator reuses such memory right after the free, even if a stream still uses it: keep the tensor
until that stream's work is done. Within a capture no stream waits for it: it must be ready when a
graph is replayed.
"""

from __future__ import annotations

from typing import Any

from gtensor.backend import Device, get_device


def stream(device: Device | str | None = None, *, priority: int = 0) -> Any:
    """A new stream of the device (None: the default one), to be used as a `with` block.

        side = gt.stream()
        with side:
            y = gt.exp(x)       # runs on `side`, after the work that made x
        z = y + 1               # waits for y

    Memory that is not the arena's makes streams wait for each other: see
    `gtensor.execution.streams`. The block also sets CuPy's current device to the stream's;
    gtensor's default device is unchanged. It has `id`, `record()` (an event), `wait(event)` and
    `synchronize()`; on CUDA `stream` is CuPy's. The CPU has one stream, on which everything is
    done when a call returns.

    Args:
        priority: of its work, lower runs first (CUDA; see `cudaStreamCreateWithPriority`).
    """
    return get_device(device).new_stream(priority)


class Event:
    """A point in a stream's work that others can wait for.

    Before the first `record` it is done, as an event of CUDA's is.
    """

    def __init__(self, device: Device | str | None = None) -> None:
        self._device = get_device(device)
        self._event: Any = None

    def record(self, stream: object = None) -> Event:
        """Record the event behind all work queued so far on the stream (None: the current one)."""
        self._event = self._on(stream).record()
        return self

    def wait(self, stream: object = None) -> None:
        """Let work queued from now on on the stream (None: the current one) start after this."""
        if self._event is not None:
            self._on(stream).wait(self._event)

    def done(self) -> bool:
        """Whether all work before it has completed; never blocks."""
        return self._event is None or self._event.done()

    def synchronize(self) -> None:
        """Block until it is done."""
        if self._event is not None:
            self._event.synchronize()

    @property
    def event(self) -> Any:
        """CuPy's event, for the streams of CUDA; None where there is none."""
        return getattr(self._event, "event", None)

    def _on(self, stream: object) -> Any:
        device = self._device
        return device.current_stream() if stream is None else device.stream_from(stream)

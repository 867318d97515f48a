"""CuPy's streams and events behind the interface of `streams.py`.

Streams are known by the driver's stream id: handles are recycled, ids are not. A device knows its
streams by weak references, so it keeps none alive; what a stream that is gone has queued is covered
by an event behind all work of the device's context.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Callable
from functools import cache
from typing import Any

_NO_CONTEXT = 201  # CUDA_ERROR_INVALID_CONTEXT
_PER_THREAD = 2  # the handle of cudaStreamPerThread, which means another stream in each thread


@cache
def cupy() -> Any:
    """The CuPy module."""
    import cupy as module

    return module


@cache
def driver() -> ctypes.CDLL:
    """The CUDA driver's library."""
    return ctypes.CDLL("libcuda.so.1")


def stream_id(handle: int) -> int:
    """The driver's id of a stream handle (CUDA driver API, cuStreamGetId)."""
    number = ctypes.c_ulonglong(0)
    status = driver().cuStreamGetId(ctypes.c_void_p(handle), ctypes.byref(number))
    if status == _NO_CONTEXT:  # a thread that has not used the device yet
        cupy().cuda.runtime.free(0)
        status = driver().cuStreamGetId(ctypes.c_void_p(handle), ctypes.byref(number))
    if status != 0:
        raise RuntimeError(f"cuStreamGetId answered {status} for the stream handle {handle:#x}")
    return number.value


class _Token:
    """Stands for a thread: it goes when the thread ends, and never comes back as an ident does."""


class _Here(threading.local):
    """The token of this thread."""

    def __init__(self) -> None:
        self.token = _Token()


_here = _Here()


def _owns(stream: Any) -> bool:
    """Whether a CuPy object destroys its stream when it goes."""
    return stream.ptr > _PER_THREAD and getattr(stream, "_foreign_stream_ref", stream) is None


class _Handle:
    """A handle that offers itself as CUDA's stream protocol wants it."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._handle


class CudaEvent:
    """An event of CuPy's, without timing."""

    def __init__(self, event: Any) -> None:
        self.event = event

    def done(self) -> bool:
        return bool(self.event.done)

    def synchronize(self) -> None:
        self.event.synchronize()


class IdleEvent:
    """Stands for all work of a device where the driver has no event for that.

    It is done once somebody has waited for the device: nobody asks before memory is short.
    """

    event = None

    def __init__(self, synchronize: Callable[[], None]) -> None:
        self._synchronize = synchronize
        self._done = False

    def done(self) -> bool:
        return self._done

    def synchronize(self) -> None:
        if not self._done:
            self._synchronize()
            self._done = True


class CudaStream:
    """A stream as the arena and the engine see it; `with` makes it this thread's current one.

    Its device is then CuPy's current one, too: CuPy would make arrays on another device otherwise.
    `stream` is CuPy's, None once it is gone. A stream that `gtensor.stream()` made is held, others
    only known.
    """

    def __init__(self, stream: Any, number: int, book: StreamBook, held: bool = False) -> None:
        self.id = number
        self._reference = weakref.ref(stream)
        self._held = stream if held else None
        self._book = book
        self._thread = weakref.ref(_here.token) if stream.ptr == _PER_THREAD else None

    def refer_to(self, stream: Any) -> None:
        """Another CuPy object for the same stream: the one before may go, unless it owns it."""
        present = self.stream
        if present is None or not _owns(present):
            self._reference = weakref.ref(stream)
            self._held = None

    def hold(self, stream: Any) -> None:
        """Keep a CuPy object that nobody else keeps."""
        self._held = stream

    @property
    def stream(self) -> Any:
        return self._reference()

    def record(self) -> Any:
        """An event behind all work queued so far (of a per-thread stream of another thread, and of
        one that is gone: behind all work of the device)."""
        stream = self._usable()
        if stream is None:
            return self._book.everything()
        with self._book.device:  # an event belongs to the device that is current
            event = cupy().cuda.Event(disable_timing=True)
            event.record(stream)
        return CudaEvent(event)

    def wait(self, event: Any) -> None:
        stream = self._usable()
        if stream is None or event.event is None:
            event.synchronize()
            return
        with self._book.device:  # the handle of a default stream means the current device's
            stream.wait_event(event.event)

    def synchronize(self) -> None:
        with self._book.device:  # as above
            (self._usable() or self.record()).synchronize()

    def _usable(self) -> Any:
        """CuPy's stream, None if this thread cannot reach it (any more) by its handle."""
        stream = self.stream
        if stream is None or (self._thread is not None and self._thread() is not _here.token):
            return None
        if stream.ptr > _PER_THREAD and not _owns(stream) and not self._still(stream.ptr):
            self._held = None
            return None
        return stream

    def _still(self, handle: int) -> bool:
        """Whether somebody else's handle, of whose end nobody tells, still means this stream."""
        try:
            return stream_id(handle) == self.id
        except RuntimeError:
            return False

    def __enter__(self) -> CudaStream:
        self._book.device.__enter__()
        try:
            self.stream.__enter__()
        except BaseException:
            self._book.device.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self.stream.__exit__(*exception)
        self._book.device.__exit__(*exception)

    def __cuda_stream__(self) -> tuple[int, int]:
        """Version and handle, for other libraries."""
        return 0, self.stream.ptr


class StreamBook:
    """The streams that one device has seen, by id. `ended(id, event)` is called for each that goes.

    `captures` counts the streams that are being captured into graphs: then no event is recorded
    behind the whole context, which would break the capture.
    """

    def __init__(self, index: int, ended: Callable[[int, Any], None]) -> None:
        self.captures = 0
        self.device = cupy().cuda.Device(index)  # as a `with` block it is CuPy's current one
        self._index = index
        self._known: dict[int, CudaStream] = {}
        self._ended = ended

    def get(self, number: int) -> CudaStream | None:
        """The stream with that id, None if it was never seen or is gone."""
        return self._known.get(number)

    def ids(self) -> tuple[int, ...]:
        """The ids of all streams that were seen and are there."""
        return (*self._known,)  # unlike `tuple`, in one piece: a collection may end streams

    def current(self) -> CudaStream:
        """This thread's current stream of the device."""
        return self.known(cupy().cuda.get_current_stream(self._index))

    def known(self, stream: Any) -> CudaStream:
        """A CuPy stream as ours; the same object each time."""
        by_device = stream.__dict__.get("_gtensor")
        found = None if by_device is None else by_device.get(self._index)
        if found is not None and stream.ptr != _PER_THREAD:
            return found
        with self.device:  # the default streams of all devices have the same handle
            number = stream_id(stream.ptr)
        found = self._known.get(number)
        if found is None:
            found = self._known[number] = CudaStream(stream, number, self)
            if stream.ptr == _PER_THREAD:
                weakref.finalize(_here.token, self._gone, number).atexit = False
        elif found.stream is not stream:
            found.refer_to(stream)
        if _owns(stream):  # only once: from now on it is found by its attribute
            weakref.finalize(stream, self._gone, number).atexit = False
        if stream.ptr != _PER_THREAD:
            stream.__dict__.setdefault("_gtensor", {})[self._index] = found
        return found

    def made(self, priority: int) -> CudaStream:
        """A new stream, held by the object returned."""
        with self.device:
            stream = cupy().cuda.Stream(non_blocking=True, priority=priority)
            known = self.known(stream)
            return CudaStream(stream, known.id, self, held=True)

    def from_handle(self, handle: int) -> CudaStream:
        """The stream behind a driver's handle, as other libraries give it."""
        with self.device:
            known = self._known.get(stream_id(handle))
            if known is not None and known.stream is not None:
                return known
            external = cupy().cuda.Stream.from_external(_Handle(handle))
            known = self.known(external)
            known.hold(external)
            return known

    def everything(self) -> Any:
        """An event behind all work of the device so far (CUDA driver API, cuCtxRecordEvent)."""
        record = getattr(driver(), "cuCtxRecordEvent", None)
        with self.device:
            if record is not None and not self.captures:
                context = ctypes.c_void_p()
                driver().cuCtxGetCurrent(ctypes.byref(context))
                event = cupy().cuda.Event(disable_timing=True)
                if record(context, ctypes.c_void_p(event.ptr)) == 0:
                    return CudaEvent(event)
        return IdleEvent(self.device.synchronize)

    def _gone(self, number: int) -> None:
        """A stream has ended. It stays known until all have an event behind its work."""
        try:
            last = self.everything()
        except Exception:  # whoever needs it waits for the device then
            last = IdleEvent(self.device.synchronize)
        try:
            self._ended(number, last)
        finally:
            self._known.pop(number, None)

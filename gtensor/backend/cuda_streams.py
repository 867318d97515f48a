"""CuPy's streams and events behind the interface of `streams.py`.

Streams are identified by the driver's stream id, since handles are recycled. A device holds its
streams by weak references. When a stream has ended, an event behind all work of the device's
context covers its work (`StreamBook.everything`).

To record that event while a stream of the context is captured is an error, which breaks the capture
in every capture mode (CUDA driver API, "cuCtxRecordEvent"). So it is postponed during captures of
gtensor, and of other libraries on streams that the device has met, on CuPy's current stream, or on
any stream that is not non-blocking. Another capture cannot be seen. If it made the driver refuse
the event, the device asks for none again. Ended streams then count as at work until the next
synchronization of the device (`StreamBook.synchronize`).
"""

from __future__ import annotations

import ctypes
import itertools
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gtensor.backend.streams import Event

_NO_CONTEXT = 201  # CUDA_ERROR_INVALID_CONTEXT
_NEVER = 801, 900  # CUDA_ERROR_NOT_SUPPORTED, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
_LEGACY = 1  # the handle CU_STREAM_LEGACY
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
        from gtensor.backend.cuda_losses import noted  # late: imports stay cheap without a GPU

        raise noted(RuntimeError(f"cuStreamGetId answered {status} for the stream handle "
                                 f"{handle:#x}"), status)
    return number.value


class _Token:
    """Identifies a thread and is collected when it ends; thread idents are recycled."""


class _Here(threading.local):
    """The token of this thread."""

    def __init__(self) -> None:
        self.token = _Token()


_here = _Here()


class _Running(threading.local):
    """The op that this thread runs, which labels the blocks that CuPy allocates within it.

    It is "" between ops, and None before the thread's first one.
    """

    name: str | None = None


running = _Running()


def _owns(stream: Any) -> bool:
    """Whether a CuPy object destroys its stream when it is collected."""
    return stream.ptr > _PER_THREAD and getattr(stream, "_foreign_stream_ref", stream) is None


class _Handle:
    """A handle with CUDA's stream protocol."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._handle


class CudaEvent:
    """A CuPy event without timing."""

    def __init__(self, event: Any) -> None:
        self.event = event

    def done(self) -> bool:
        return bool(self.event.done)

    def synchronize(self) -> None:
        self.event.synchronize()


class IdleEvent:
    """An event behind all work of a device, where the driver has not recorded one yet.

    It is recorded later if that becomes possible, behind all work until then. Else it is done when
    the device has been waited for, which `synchronize` does.
    """

    def __init__(self, book: StreamBook) -> None:
        self._book = book
        self._number = book.number()
        self._later: CudaEvent | None = None

    @property
    def event(self) -> Any:
        """CuPy's event; None if there is none: then only the host can wait."""
        later = self._recorded()
        return None if later is None else later.event

    @property
    def blocks(self) -> bool:
        """Whether a stream that waits for it blocks the host."""
        return not self.done() and self._later is None

    def done(self) -> bool:
        if self._book.settled > self._number:
            return True
        later = self._recorded()
        return later is not None and later.done()

    def synchronize(self) -> None:
        if not self.done():
            self._book.synchronize()

    def _recorded(self) -> CudaEvent | None:
        if self._later is None and self._book.settled < self._number:
            with suppress(Exception):  # the driver failed: the device is waited for instead
                self._later = self._book.recorded()
        return self._later


class CudaStream:
    """A stream for the arena and the engine; `with` makes it this thread's current one.

    `with` also makes its device CuPy's current one, on which CuPy makes arrays. `stream` is CuPy's
    object, None once that is collected. Only a stream made by `gtensor.stream()` keeps it alive.
    """

    def __init__(self, stream: Any, number: int, book: StreamBook, held: bool = False) -> None:
        self.id = number
        self._reference = weakref.ref(stream)
        self._held = stream if held else None
        self._book = book
        self._thread = weakref.ref(_here.token) if stream.ptr == _PER_THREAD else None

    def refer_to(self, stream: object) -> None:
        """Use another CuPy object for the same stream, unless the present one owns the stream."""
        present = self.stream
        if present is None or not _owns(present):
            self._reference = weakref.ref(stream)
            self._held = None

    def hold(self, stream: object) -> None:
        """Keep a CuPy object alive that has no other reference."""
        self._held = stream

    @property
    def stream(self) -> Any:
        return self._reference()

    def record(self) -> CudaEvent | IdleEvent:
        """An event behind all work queued so far.

        For an ended stream, or a per-thread stream of another thread, it is behind all work of the
        device.
        """
        stream = self._usable()
        if stream is None:
            return self._book.everything()
        with self._book.device:  # an event is made on the current device
            event = cupy().cuda.Event(disable_timing=True)
            event.record(stream)
        return CudaEvent(event)

    def wait(self, event: Any) -> None:
        stream = self._usable()
        if stream is None or event.event is None:
            event.synchronize()
            return
        with self._book.device:  # a default stream's handle means the current device's stream
            stream.wait_event(event.event)

    def synchronize(self) -> None:
        with self._book.device:  # as above
            (self._usable() or self.record()).synchronize()

    def _usable(self) -> Any:
        """CuPy's stream, None if its handle does not mean this stream in this thread (any more)."""
        stream = self.stream
        if stream is None or (self._thread is not None and self._thread() is not _here.token):
            return None
        if stream.ptr > _PER_THREAD and not _owns(stream) and not self._still(stream.ptr):
            self._held = None
            return None
        return stream

    def _still(self, handle: int) -> bool:
        """Whether a handle of another library, which may end unnoticed, still means this stream."""
        try:
            return stream_id(handle) == self.id
        except RuntimeError:
            return False

    def __enter__(self) -> CudaStream:
        self._book.device.__enter__()
        try:
            self.stream.__enter__()
        except BaseException:  # undone
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
    """The streams that one device has seen, by id; `ended(id, event)` is called when one ends.

    `captures` counts gtensor's streams under capture. Waits for the device and events that need one
    are numbered: those with a number below `settled` are done.
    """

    def __init__(self, index: int, ended: Callable[[int, Event], None]) -> None:
        self.captures = 0
        self.settled = 0
        self.device = cupy().cuda.Device(index)  # `with` makes it CuPy's current one
        self._index = index
        self._known: dict[int, CudaStream] = {}
        self._ended = ended
        self._on_device = cupy().cuda.get_current_stream
        self._numbers = itertools.count(1)
        self._newest = 0  # event that needs a wait for the device
        self._failed = False  # whether the last such event could not be recorded
        self._refused = False  # whether the driver is not to be asked for one again

    def get(self, number: int) -> CudaStream | None:
        """The stream with that id, None if it was never seen or has ended."""
        return self._known.get(number)

    def ids(self) -> tuple[int, ...]:
        """The ids of all streams that were seen and have not ended."""
        return (*self._known,)  # unlike `tuple`, atomic: a garbage collection may end streams

    def current(self) -> CudaStream:
        """This thread's current stream of the device."""
        stream = self._on_device(self._index)
        try:
            found: CudaStream = stream._gtensor[self._index]
            return found
        except (AttributeError, KeyError):  # the first time, or a stream per thread
            return self.known(stream)

    def known(self, stream: Any) -> CudaStream:
        """The `CudaStream` of a CuPy stream; the same object each time."""
        found = stream.__dict__.get("_gtensor", {}).get(self._index)
        if found is not None:
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
        if _owns(stream):  # reached once: later calls find `_gtensor`
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
        """The stream of a driver's handle from another library."""
        with self.device:
            known = self._known.get(stream_id(handle))
            if known is not None and known.stream is not None:
                return known
            external = cupy().cuda.Stream.from_external(_Handle(handle))
            known = self.known(external)
            known.hold(external)
            return known

    def everything(self) -> CudaEvent | IdleEvent:
        """An event behind all work of the device so far."""
        return self.recorded() or IdleEvent(self)

    def recorded(self) -> CudaEvent | None:
        """The same; None if the driver refuses to record it, or it could break a capture."""
        if self._refused or self.captures:
            return None
        record = getattr(driver(), "cuCtxRecordEvent", None)
        if record is None:  # an old driver
            self._failed = self._refused = True
            return None
        with self.device:
            if self._is_captured():
                return None
            self._failed = True  # unless all goes well
            context = ctypes.c_void_p()
            driver().cuCtxGetCurrent(ctypes.byref(context))
            event = cupy().cuda.Event(disable_timing=True)
            status = record(context, ctypes.c_void_p(event.ptr))
        self._failed, self._refused = status != 0, status in _NEVER
        return None if status else CudaEvent(event)

    def _is_captured(self) -> bool:
        """Whether a stream is captured, as far as can be asked without a harm to the capture.

        Of the legacy stream the question means all streams that it blocks, and is answered by an
        error (CUDA driver API, "cuStreamIsCapturing").
        """
        handles = {_LEGACY, self._on_device(self._index).ptr or _LEGACY}
        for number in self.ids():
            known = self._known.get(number)
            stream = None if known is None else known._usable()
            if stream is not None:
                handles.add(stream.ptr or _LEGACY)
        found = ctypes.c_int()
        return any(driver().cuStreamIsCapturing(ctypes.c_void_p(handle), ctypes.byref(found))
                   or found.value for handle in handles)

    def number(self) -> int:
        """The number of an event that needs a wait for the device, unless it is recorded later."""
        self._newest = next(self._numbers)
        return self._newest

    def needs_wait(self) -> bool:
        """Whether there are events that only a wait for the device makes done, and it may be now.
        """
        if not self._failed or self._newest <= self.settled or self.captures:
            return False
        with self.device:
            return not self._is_captured()

    def synchronize(self) -> None:
        """Wait for the device. Events behind all its work are then done, if they were made before.
        """
        number = next(self._numbers)  # what is made while the device is waited for has a later one
        self.device.synchronize()
        self.settled = max(self.settled, number)

    def _gone(self, number: int) -> None:
        """A stream has ended. It stays known until all listeners have an event behind its work."""
        try:
            last = self.everything()
        except Exception:  # the driver failed: its users wait for the device instead
            last = IdleEvent(self)
        try:
            self._ended(number, last)
        finally:
            self._known.pop(number, None)

"""CUDA graphs through CuPy: one capture of a thread's work, and its replays.

A capture runs on a stream of its own, which ends with it. So a later backward pass over captured
records runs on the stream of its caller.

CuPy captures in CUDA's relaxed mode, which allows calls such as cudaMalloc of this and other
threads: a pool may have to grow. No mode allows calls that wait for the device (`item()`, a copy to
the host).
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeAlias

from gtensor.backend.cuda_streams import CudaStream, cupy
from gtensor.backend.ordering import Ordering, Replays, Touched
from gtensor.backend.streams import Stream

if TYPE_CHECKING:
    from gtensor.backend.ordering import Block

CudaDevice: TypeAlias = Any  # of backend.cuda, which imports this


class Capture:
    """Work of one thread on one device, recorded once and launched as a whole.

    `touched` are the blocks from outside the capture that its ops read and write; they are kept
    alive.
    """

    def __init__(self, device: CudaDevice, ordering: Ordering) -> None:
        self._device = device
        self._ordering = ordering
        self._graph: Any = None
        self._first = math.inf
        self.touched = Touched(Replays(device.empty))
        device.graphs.add(weakref.ref(self, device.graphs.discard))

    @contextmanager
    def recording(
        self, stream: CudaStream, empty: Callable[..., Any] | None = None
    ) -> Iterator[None]:
        """Record the work that this thread launches within, on a stream that no other thread uses.

        `empty` makes arrays outside of the graph's memory, within the block.

        After an error there is no graph. Raises RuntimeError if a call in the block has broken the
        capture.
        """
        device, ordering = self._device, self._ordering
        touched = self.touched = Touched(Replays(empty or device.empty))
        device.streams.captures += 1
        ordering.captures[stream.id] = touched
        try:
            with device.running(stream):
                try:
                    stream.stream.begin_capture()
                    yield
                except BaseException:  # undone
                    with suppress(Exception):  # the first error is the cause
                        stream.stream.end_capture()
                    raise
                try:
                    self._graph = stream.stream.end_capture()
                except cupy().cuda.runtime.CUDARuntimeError as error:
                    raise RuntimeError(
                        f"the capture on {device} was broken by a call within it ({error}); wanted "
                        "no copy to the host, no synchronization and no other stream") from error
        finally:
            del ordering.captures[stream.id]
            device.streams.captures -= 1

    def check(self, stream: Stream) -> None:
        """Raise RuntimeError if the stream for a replay is itself being captured."""
        if stream.id in self._ordering.captures:
            raise RuntimeError(f"a graph was replayed within a capture on {self._device}; wanted "
                               "it before or after")

    def own(self, stream: Stream, blocks: Iterable[Block], first: float) -> None:
        """The contents of the capture's own blocks are that stream's from now on.

        `first` is the serial of the first block that the capture allocated. The stamps of all that
        the work writes count this as a write, so what records saved in the capture is refused
        outside.
        """
        own = tuple(blocks)
        self._first = first
        self._ordering.adopt(stream, own)
        self._count(own)

    def launch(self, stream: CudaStream, outputs: Iterable[Block]) -> None:
        """Run the work on a stream, after the writers of its inputs and all users of its outputs.

        `outputs` are the live blocks of captures into the same memory. Those that were allocated
        since this capture's first one may lie where it had a temporary.
        """
        for function in self.touched.replays.functions.values():
            function()
        for block in _foreign(self.touched.read, stream):
            self._ordering.read(stream, block)
        self._ordering.write(stream, *_foreign(self.touched.written, stream), *outputs)
        self._count(block for block in outputs if block.serial >= self._first)
        with self._device.running(stream):
            self._graph.launch(stream.stream)

    def _count(self, blocks: Iterable[Block]) -> None:
        """Count a write of these blocks, and of those from outside that the work writes."""
        for block in (*blocks, *self.touched.written):
            block.stamp.version += 1


def _foreign(blocks: Iterable[Block], stream: Stream) -> list[Block]:
    """The blocks that another stream has ever touched."""
    return [block for block in blocks if block.only != stream.id]

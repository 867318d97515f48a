"""CUDA graphs for users: `gt.Graph` captures work once and launches it as a whole.

A graph replays the same kernels on the same addresses. So new inputs are written in place, results
are read at the addresses of the capture, and the graph's memory is reserved while it lives
(`memory/arena/graphs.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from gtensor.backend import Device, get_device
from gtensor.memory.allocators import arena_of
from gtensor.memory.arena.graphs import GraphPool, capturing
from gtensor.system import ranges

if TYPE_CHECKING:
    from gtensor.backend.streams import Stream
    from gtensor.memory.contract.adaptors import Captured


def _empty_outside(
    device: Device, captured: Captured, home: Stream, *given: Any
) -> Any:
    """`device.empty(*given)` in a capture, of the memory of the stream `home`."""
    thread, captured.thread = captured.thread, None
    try:
        with device.running(home):
            return device.empty(*given)
    finally:
        captured.thread = thread


around_captures: list[Callable[[], AbstractContextManager[None]]] = []
"""Contexts in which captures run, of modules whose state a capture must not change."""


class Graph:
    """Work on a CUDA device that is captured once and replayed as often as wanted.

        f(x)                        # once before: compiles kernels, makes the libraries' handles
        graph = gt.Graph()
        with graph.capture():       # records, and runs nothing
            y = f(x)
        x[...] = batch              # new values at the old address
        graph.replay()              # y has the results

    The graph keeps the memory that the capture allocates: `y` has its address until the graph is
    dropped, and each replay writes it again. Older tensors that its ops read or write are kept
    alive; keep arrays yourself that only your own kernels use. Values that Python computes
    (branches, shapes) are those of the capture. The step numbers of optimizers, the numbers among
    their options, and the seeds of dropout are those of each replay;
    `docs/concepts/streams_and_graphs.md` has a table.

    Args:
        device: one with graphs; None is the default device.
        pool: the `pool` of another graph, to share its memory: for graphs that replay one after
            another. A replay may write over results of graphs that were captured later into it.

    Raises DeviceError if the device has no graphs (the CPU has none), ValueError for a pool of
    another device or allocator.
    """

    def __init__(self, device: Device | str | None = None, pool: GraphPool | None = None) -> None:
        self._device = get_device(device)
        self._work = self._device.new_capture()
        arena = arena_of(self._device)
        if pool is not None and pool.arena is not arena:
            raise ValueError(f"a graph on {self._device} was given a pool of {pool.arena.name}; "
                             f"wanted one of the arena that {self._device} uses now")
        self._pool = arena.graph_pool() if pool is None else pool
        self._captured = False
        self._memory: object = None  # keeps the addresses that replays write

    @property
    def pool(self) -> GraphPool:
        """The memory of the graph, which others may share; this object keeps it reserved."""
        return self._pool

    @contextmanager
    def capture(self) -> Iterator[None]:
        """Record the work that this thread launches on the device in the block; nothing runs.

        Inputs must be made before. A call that needs a result on the host, such as `item()`, ends
        the capture by a CUDA error. After an error the graph is unchanged, and capture may be tried
        again. Other threads continue; memory that they free is reused by other streams only after
        the capture.

        Raises RuntimeError if the graph has captured already; within another capture, a planned
        step or a recording (a timeline is fine); if the arena is switched off; and for work on
        other streams.
        """
        if self._captured:
            raise RuntimeError("a graph was to capture for a second time; wanted a new gt.Graph, "
                               "which may share its pool")
        home, stream = self._device.current_stream(), self._device.new_stream()
        with (ExitStack() as contexts,
              capturing(self._device, self._pool, stream.id, home) as captured,
              self._work.recording(stream, partial(_empty_outside, self._device, captured, home))):
            for around in around_captures:
                contexts.enter_context(around())
            contexts.enter_context(ranges.range("graph capture", category="graph"))
            yield
        self._work.own(home, captured.blocks, captured.first)
        self._pool.blocks.update(captured.blocks)
        self._memory = captured.memory
        self._captured = True

    def replay(self) -> None:
        """Run the captured work on the current stream; returns at once.

        Before, new learning rates and other numbers of optimizers that stepped in the capture are
        copied to the device, and the seeds of its dropouts are drawn.

        It waits for other streams' work on the tensors that it reads and writes and on results of
        graphs of the same pool, and for the last replay of one; ops on its results wait for it.

        Raises RuntimeError if nothing was captured, within a capture, and if options of such an
        optimizer were changed that are not numbers.
        """
        if not self._captured:
            raise RuntimeError("a graph was replayed that has captured nothing; wanted "
                               "`with graph.capture():` before")
        stream = self._device.current_stream()
        self._work.check(stream)
        with (ranges.range("graph replay", category="graph"), self._pool.replaying(stream)):
            self._work.launch(stream, tuple(self._pool.blocks))

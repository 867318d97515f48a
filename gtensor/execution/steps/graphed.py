"""A program on a CUDA device: its text is captured into one graph, which each replay launches.

A graph has fixed addresses, so arguments are copied into arrays of their own, results out of the
graph's memory, and gradients stand in it: a `.grad` that somebody has read is moved out of it
before the next replay writes it. What Python computes is done at each replay: random numbers are
drawn before it, schedules step before or after it. Numbers of optimizers, seeds of dropouts and
shares of averages are refreshed by the graph itself.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from gtensor.backend import Device
from gtensor.engine.handle.storage import UNREAD
from gtensor.engine.handle.tensor import Tensor, wrap
from gtensor.execution.graphs import Graph
from gtensor.execution.steps.program import Program, again, counter
from gtensor.execution.steps.recorder import Call, Constant, Recorder, Stored, Written
from gtensor.memory import empty_cache
from gtensor.memory.arena.graphs import GraphPool

if TYPE_CHECKING:
    from gtensor.backend.typing import Array
    from gtensor.execution.steps.results import Results

_CHECKS = {"check_range"}  # of values on the host, which a graph cannot do


class Gradients:
    """The gradients that stand in graphs' memory: of each leaf the handle that it has."""

    def __init__(self) -> None:
        self._handles: dict[Any, weakref.ref[Tensor]] = {}

    def move_out(self) -> None:
        """Copy those that somebody has read, or has beside the leaf, before they are written."""
        for leaf, ref in self._handles.items():
            handle = ref()
            if handle is None or leaf.grad is handle and handle._storage is UNREAD:
                continue
            handle._array = handle._device.copy(handle._array, label="gradient")
        self._handles.clear()

    def store(self, leaf: Any, array: Array, device: Device) -> None:
        """Make an array in a graph's memory a leaf's `.grad`."""
        leaf.grad = handle = wrap(array, device, UNREAD)
        self._handles[leaf] = weakref.ref(handle)


def graphable(recording: Recorder) -> Device | None:
    """The CUDA device on which a recording can be one graph; None if it cannot.

    All its values must lie there, and what only Python does must come before or after the updates.
    """
    devices = {call.device for call in recording.calls if isinstance(call, Call) and call.device}
    if len(devices) != 1 or any(isinstance(f.root and f.root.owner(), np.ndarray)
                                for f in recording.values):
        return None
    (device,) = devices
    if device.type == "cpu":
        return None
    hosts = [c for c in recording.calls if isinstance(c, Call) and c.host]
    works = [i for i, c in enumerate(hosts) if not (c.python or c.drawn)]
    pythons = [i for i, c in enumerate(hosts) if c.python]
    inner = [i for i in pythons if works and works[0] < i < works[-1]]
    return None if inner else device


class Graphed(Program):
    """A program whose replays launch a graph."""

    def __init__(
        self, recording: Recorder, results: Results, state: Hashable, fuse: bool | str,
        device: Device, pools: dict[Device, tuple[GraphPool | None, Gradients]],
    ) -> None:
        self._device, self._pools = device, pools
        self._before: list[Callable[[], object]] = []  # Python's part, in order
        self._after: list[Callable[[Sequence[Tensor]], object]] = []
        self._drawn: list[tuple[Callable[[], Any], list[Array]]] = []
        self._stores: list[tuple[Any, int]] = []  # (leaf, or an argument's number; value)
        self._kept: list[Array] = []
        self._graph: Graph | None = None
        super().__init__(recording, results, state, fuse)

    def calls(self, recording: Recorder) -> list[Any]:
        """What the graph does; the rest is put before and after it."""
        inside: list[Any] = []
        works = False  # whether an update has come
        for call in super().calls(recording):
            if isinstance(call, Written):
                self._after.append(counter(call))
            elif isinstance(call, Stored):
                inside.append(call)
            elif call.name in _CHECKS:
                continue
            elif not call.host:
                inside.append(self._with_constants(call, recording))
            elif call.drawn:
                self._drawn.append((again(call), [self._place(recording, n) for n in call.made
                                                  if n is not None]))
            elif call.python:
                run = again(call)
                if works:
                    self._after.append(lambda x, run=run: run())
                else:
                    self._before.append(run)
            else:
                works = works or call.name != "Optimizer.zero_grad"
                inside.append(call)
        return inside

    def _place(self, recording: Recorder, number: int) -> Array:
        """Memory for a value that is made before the graph, which reads it there."""
        facts = recording.values[number]
        place = self._device.empty(facts.shape, facts.dtype, "captured step")
        facts.kind, facts.array = "external", lambda: place  # type: ignore[assignment]
        return place

    def _with_constants(self, call: Call, recording: Recorder) -> Call:
        """Numbers of Python's that became an array are copied from one on the device."""
        if call.name != "tensor" or not isinstance(call.args[1:2] and call.args[1], Constant):
            return call
        place = self._device.copy(self._device.from_numpy(call.args[1].array))
        self._kept.append(place)
        return call.like(partial(self._device.copy, place), ())

    def replay(self, arguments: Sequence[Tensor]) -> Any:
        """Launch the graph; the first time capture it before."""
        external = self.external()
        if self._graph is None:
            self._capture(arguments, external)
        graph = self._graph
        assert graph is not None
        del external
        gradients = self._pools[self._device][1]
        for leaf in self._empty:
            if leaf.grad is not None:
                raise RuntimeError("a captured step found a gradient where there was none when it "
                                   "was recorded; call zero_grad() within the step")
        for run in self._before:
            run()
        for draw, places in self._drawn:
            for place, array in zip(places, draw(), strict=True):
                self._device.assign(place, array)
        for place, x in zip(self._inputs, arguments, strict=True):
            if place is not None and x._array is not place._array:
                self._device.assign(place._array, x._array)
        gradients.move_out()
        graph.replay()
        for leaf, array in self._gradients:
            if type(leaf) is int:
                node = arguments[leaf]._node
                node.grad = wrap(self._device.copy(array, label="gradient"), self._device)
            else:
                gradients.store(leaf, array, self._device)
        for count in self._after:
            count(arguments)
        return self._build(arguments, [
            a if a is None else self._device.copy(a, label="result") for a in self._results])

    def _capture(self, arguments: Sequence[Tensor], external: Sequence[Array]) -> None:
        """Capture the text on arrays of its own in place of the arguments."""
        device = self._device
        used = {self.recording.values[n].root.argument for n in self.inputs()}  # type: ignore[union-attr]
        self._inputs = [wrap(_like(device, x._array), device) if i in used else None
                        for i, x in enumerate(arguments)]
        leaves = [leaf for leaf in self._leaves() if type(leaf) is not int]
        before = [(leaf, leaf.grad) for leaf in leaves]
        cleared = any(isinstance(c, Call) and c.host and c.name.endswith("zero_grad")
                      for c in self.recording.calls)
        self._empty = [] if cleared else [leaf for leaf, grad in before if grad is None]
        empty_cache(device)  # what the eager calls have left
        pool, gradients = self._pools.get(device) or (None, Gradients())
        graph = Graph(device, pool)
        self._pools[device] = graph.pool, gradients
        try:
            with graph.capture():
                arrays = self._run(self._inputs, external)
        finally:
            found = [(leaf, leaf.grad) for leaf in leaves]
            for leaf, grad in before:
                leaf.grad = grad
        self._results = arrays[:len(arrays) - len(self._extra)]
        own = dict(zip(self._extra, arrays[len(self._results):], strict=True))
        self._gradients = [(leaf, grad._array) for leaf, grad in found if grad is not None]
        self._gradients += [(i, own[n]) for i, n in self._of_arguments()]
        self._graph = graph


def _like(device: Device, array: Array) -> Array:
    """New memory with the layout of an array, as far as it is dense."""
    order = sorted(range(array.ndim), key=lambda i: -array.strides[i])
    place = device.empty(tuple(array.shape[i] for i in order), array.dtype, "captured step")
    back = tuple(order.index(i) for i in range(array.ndim))
    return place.transpose(back)

"""A program on a CUDA device: its text is captured into one graph, which each replay launches.

A graph has fixed addresses, so arguments are copied into arrays of their own, results out of the
graph's memory. Gradients lie in it: a `.grad` that is still referred to is moved out before the
next replay writes it. What Python computes is done at each replay: random numbers are drawn before
it, schedules step before or after it. Numbers of optimizers, seeds of dropouts, shares of averages
and lengths of caches are refreshed by the graph itself.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from gtensor.backend import Device, owner
from gtensor.engine.handle.context import EXCHANGES
from gtensor.engine.handle.node import Node
from gtensor.engine.handle.storage import UNREAD
from gtensor.engine.handle.tensor import Tensor, wrap
from gtensor.execution.graphs import Graph
from gtensor.execution.steps.flow import values_written
from gtensor.execution.steps.listing import Listing, reads
from gtensor.execution.steps.program import NoGraph, Program, again, counter, refuse_gradient
from gtensor.execution.steps.recorder import Call, Recorder, Stored, Written, copied
from gtensor.memory import empty_cache
from gtensor.memory.arena.graphs import GraphPool

if TYPE_CHECKING:
    from gtensor.backend.typing import Array
    from gtensor.execution.steps.results import Results

_CHECKS = {"check_range"}  # of values on the host, which a graph cannot do


class Graphs:
    """What the graphs of a captured step share: memory, by device, and gradients that lie there."""

    def __init__(self) -> None:
        self.pools: dict[Device, GraphPool] = {}
        self._handles: list[tuple[Node, weakref.ref[Tensor]]] = []

    def move_out(self) -> None:
        """Copy the gradients that are referred to, before a replay writes over them."""
        for leaf, ref in self._handles:
            handle = ref()
            if handle is not None and not (leaf.grad is handle and handle._storage is UNREAD):
                handle._array = handle._device.copy(handle._array, label="gradient")
        self._handles.clear()

    def store(self, leaf: Node, array: Array, device: Device) -> None:
        """Make an array in a graph's memory the `.grad` of a leaf."""
        leaf.grad = handle = wrap(array, device, UNREAD)
        self._handles.append((leaf, weakref.ref(handle)))


def graphable(recording: Recorder) -> Device | None:
    """The CUDA device on which a recording can be one graph; None if it cannot.

    All its values must lie there, and what only Python does must come before or after the updates.
    Ranks exchange call by call: one may record anew while another replays, and both must count and
    compare the same collectives.
    """
    if any(isinstance(c, Call) and c.kind == EXCHANGES for c in recording.calls):
        return None
    if len(recording.devices) != 1 or any(
            facts.root is not None and facts.root.on_host for facts in recording.values):
        return None
    kinds = [c.kind for c in recording.calls if isinstance(c, Call) and c.host]
    updates = [i for i, kind in enumerate(kinds) if not kind]
    if updates and "python" in kinds[updates[0]:updates[-1]]:
        return None
    return next(iter(recording.devices))


class Graphed(Program):
    """A program whose replays launch a graph.

    `inputs` are the tensors from which it reads the arguments, None for those that it does not
    read: an argument that is one of them is not copied.
    """

    def __init__(
        self, recording: Recorder, results: Results, state: tuple[int, Any], fuse: bool | str,
        device: Device, graphs: Graphs, shared: bool,
    ) -> None:
        self._device, self._graphs, self._shared = device, graphs, shared
        self._before: list[Callable[[], object]] = []  # what Python does, in order
        self._after: list[Callable[[Sequence[Tensor]], object]] = []
        self._drawn: list[tuple[Callable[[], Any], list[Array]]] = []
        self._own: list[tuple[int, int]] = []  # gradients of arguments: (argument, value)
        self._graph: Graph | None = None
        self._changed: list[Any] = []  # the arguments that the step writes
        self._written: set[int | None] = set()  # arguments, or None
        self._unordered = False  # whether numbers are drawn after the seed of a dropout
        super().__init__(recording, results, state, fuse)
        updated = [group["params"] for call in recording.calls if isinstance(call, Call)
                   and call.host for x in call.args for group in getattr(x, "param_groups", ())]
        self._outside |= {id(owner(x._array)) for members in updated for x in members}

    def arranged(self, listing: Listing) -> Listing:
        """The calls of the graph; others are put before and after it."""
        inside: list[Any] = []
        updated = seeded = False
        for call in listing.calls:
            if isinstance(call, Written):
                self._after.append(counter(call))
                self._written.add(call.argument)
            elif isinstance(call, Stored):
                own = [(node, number) for node, number, _ in call.entries if type(node) is int]
                self._own += [(node, number) for node, number in own if number is not None]
                inside.append(Stored([e for e in call.entries if type(e[0]) is not int],
                                     call.where))
            elif call.name in _CHECKS:
                continue
            elif not call.host:
                inside.append(self._with_constants(call))
            elif call.kind == "draws":
                self._unordered |= seeded
                self._drawn.append((again(call), [self._placed(listing, n) for n in call.made
                                                  if n is not None]))
            elif call.kind == "python":
                run = again(call)
                if updated:
                    self._after.append(partial(_without_arguments, run))
                else:
                    self._before.append(run)
            else:
                if call.name.endswith("zero_grad"):
                    self._before.append(again(call))  # also where the graph has no gradient
                updated, seeded = True, seeded or any(
                    n is not None and listing.values[n].kind == "object" for n in call.made)
                inside.append(call)
        listing.calls = inside
        listing.returned = [*listing.returned, *[number for _, number in self._own]]
        return listing

    def _placed(self, listing: Listing, number: int) -> Array:
        """Memory for a value that is made before each replay, in which the graph reads it."""
        facts = listing.values[number]
        assert facts.dtype is not None
        place = self._device.empty(facts.shape, facts.dtype, "captured step")
        kept: Any = partial(_itself, place)
        listing.values[number] = replace(facts, kind="external", array=kept)
        return place

    def _with_constants(self, call: Call) -> Call:
        """Python's numbers that became an array are copied from one on the device."""
        if call.function is not copied:
            return call
        place = self._device.copy(self._device.from_numpy(call.args[1].array))
        return replace(call, function=partial(self._device.copy, place), args=())

    def serve(self, state: tuple[int, Any]) -> None:
        """As of a program; what an optimizer does is in the graph, which is captured anew."""
        super().serve(state)
        if any(isinstance(call, Call) and call.host for call in self.listing.calls):
            self._graph = None

    def replay(self, arguments: Sequence[Tensor]) -> Any:
        """Launch the graph; the first time, capture it before. Raises as `Program.replay`."""
        lasting = self.lasting(arguments)
        if self._graph is None:
            self._capture(arguments, lasting)
        device = self._device
        for leaf in self._empty:
            refuse_gradient(leaf)
        for run in self._before:
            run()
        for draw, places in self._drawn:
            for place, array in zip(places, draw(), strict=True):
                device.assign(place, array)
        for own, x in zip(self.inputs, arguments, strict=True):
            if own is not None and own._array is not x._array:
                device.assign(own._array, x._array)
        self._graphs.move_out()
        assert self._graph is not None
        self._graph.replay()
        for i in self._changed:
            own, x = self.inputs[i], arguments[i]
            if own is not None and own._array is not x._array:
                device.assign(x._array, own._array)
        for leaf, array in self._gradients:
            self._graphs.store(leaf, array, device)
        for (i, _), array in zip(self._own, self._arrays[self._results:], strict=True):
            node = arguments[i]._node
            assert node is not None
            node.grad = wrap(device.copy(array, label="gradient"), device)
        for count in self._after:
            count(arguments)
        results = self._arrays[:self._results]
        return self._build(arguments, results if self._shared else [
            device.copy(array, label="result") for array in results])

    def _capture(self, arguments: Sequence[Tensor], lasting: list[Array]) -> None:
        """Capture the text, on arrays of its own in place of the arguments."""
        device, listing = self._device, self.listing
        if self._unordered:
            raise NoGraph("random numbers are drawn after the seed of a dropout")
        read = {listing.values[n].root for call in listing.calls for n in reads(call)}
        used = {facts.argument for facts in listing.values if facts.root in read}
        changed = {listing.values[n].root for call in listing.calls if isinstance(call, Call)
                   for n in values_written(call)}
        of = {(facts.argument, facts.root) for facts in listing.values if facts.argument is not None
              and (facts.root in changed or facts.argument in self._written)}
        if len({root for _, root in of}) < len(of):
            raise NoGraph("arguments share memory that the step writes")
        self._changed = sorted([argument for argument, _ in of])
        self.inputs = [wrap(_like(device, x._array), device) if i in used else None
                        for i, x in enumerate(arguments)]
        leaves = dict.fromkeys([node for call in listing.calls if isinstance(call, Stored)
                                for node, _, _ in call.entries if isinstance(node, Node)])
        cleared = any(isinstance(call, Call) and call.name.endswith("zero_grad")
                      for call in listing.calls)
        self._empty = [] if cleared else [leaf for leaf in leaves if leaf.grad is None]
        before = [(leaf, None if cleared else leaf.grad) for leaf in leaves]
        for leaf, grad in before:
            leaf.grad = grad  # None where the step drops it: its memory can serve the graph
        empty_cache(device)  # the segments that the uncaptured calls have left
        graph = Graph(device, self._graphs.pools.get(device))
        try:
            with graph.capture():
                self._arrays = self.run(self.inputs, lasting)  # type: ignore[arg-type]
            self._gradients = [(leaf, leaf.grad._array) for leaf in leaves
                               if leaf.grad is not None]
        except RuntimeError as error:
            raise NoGraph(str(error)) from error
        finally:
            for leaf, grad in before:
                leaf.grad = grad
        self._results = len(self._arrays) - len(self._own)
        self._graphs.pools[device] = graph.pool
        self._graph = graph


def _without_arguments(run: Callable[[], object], arguments: Sequence[Tensor]) -> None:
    run()


def _itself(array: Array) -> Array:
    return array


def _like(device: Device, array: Array) -> Array:
    """New memory with an array's order of axes."""
    order = sorted(range(array.ndim), key=lambda i: -array.strides[i])
    place = device.empty(tuple([array.shape[i] for i in order]), array.dtype, "captured step")
    return place.transpose([order.index(i) for i in range(array.ndim)])

"""Nodes of the graph: leaves, and the records of ops.

Tensors own nodes; a record owns its parents' nodes and its saved arrays, never a
Tensor. So there are no cycles, and dropping the outputs frees the whole graph with the
garbage collector switched off.
"""

from __future__ import annotations

import itertools
import sys
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import numpy as np

from gtensor.system.bus import bus
from gtensor.system.bus import here as scope
from gtensor.system.source_line import place, user_frame

if TYPE_CHECKING:
    from types import CodeType

    from gtensor.backend import Device
    from gtensor.backend.streams import Stream
    from gtensor.backend.typing import Array, Params
    from gtensor.engine.complete import Collector
    from gtensor.engine.levels import Level
    from gtensor.engine.op import Op
    from gtensor.engine.tensor import Tensor
    from gtensor.engine.typing import Saved

next_seq = itertools.count().__next__
_frame_at = sys._getframe


class Node:
    """A differentiable tensor on the tape: shape, dtype and device of its gradient.

    `seq` is its place on the tape, used only for order. Rare attributes are the class's until set.
    """

    __slots__ = ("__dict__", "__weakref__", "device", "dtype", "seq", "shape")

    shape: tuple[int, ...]
    dtype: np.dtype
    device: Device
    seq: int
    grad: Tensor | None = None
    stream: Stream | None = None  # the op's stream, on devices with several
    # Whether to keep the gradient of a tensor that is not a leaf, or the node to keep it for; and
    # the record that keeps it for this node, see `retained`.
    retain: bool | Node = False
    heir: weakref.ref[Node] | None = None
    hooks: dict[int, Callable[[Tensor], Tensor | None]] | None = None
    level: Level | None = None  # of the transform on whose tape it is; None for tensors
    collector: Collector | None = None  # of a leaf: who takes its gradient during a walk
    stored: dict[int, Callable[[], object]] | None = None  # called when `grad` was stored
    cast_beside: list[weakref.ref[Tensor]] | None = None  # with a leaf, under `autocast`
    module = ""  # the running nn.Module, and the number of the op's path, as they were told;
    number = 0  # recorded while there are listeners


class Leaf(Node):
    """A tensor that the user made with `requires_grad`; gradients end here."""

    __slots__ = ()

    def __init__(
        self, shape: tuple[int, ...], dtype: np.dtype, device: Device, level: Level | None = None
    ) -> None:
        if level is not None:
            self.level = level
        self.shape = shape
        self.dtype = dtype
        self.device = device
        self.seq = next_seq()


class Counted(Protocol):
    """Counts the writes of a buffer: those through its storage, or by replays of graphs."""

    version: int


# What counts the writes of a saved array, its version, its place in `saved` (-1: an input of a
# recipe there, or the count is that of replays).
Guard = tuple[Counted, int, int]
Guards = tuple[Guard, ...]
FREE, WALKED, CONSUMED = range(3)  # states of a record


def replayed(array: Array, device: Device) -> Guards:
    """The guard that detects a later replay of a CUDA graph that writes a saved array.

    Asked only of devices that have graphs.
    """
    stamp = device.stamp(array)
    return () if stamp is None else ((stamp, stamp.version, -1),)


def overwritten(guards: Guards) -> bool:
    """Whether an array was written since it was saved."""
    for count, version, _ in guards:  # noqa: SIM110  a generator costs as much as a small op
        if count.version != version:
            return True
    return False


class Record(Node):
    """One application of an op: its parents, and what its backward rule needs."""

    __slots__ = ("code", "guards", "hooks", "lasti", "mask", "op", "params", "parents", "retain",
                 "saved", "state", "stream")

    op: Op
    parents: tuple[Node | None, ...]  # per input: its node, None if it needs no gradient
    mask: int  # bit i: input i has a node
    saved: Saved  # arrays and scalars in the order of `op.save_names`
    guards: Guards  # of the saved arrays that a handle can write
    params: Params
    state: int
    code: CodeType  # with `lasti`: the user's instruction
    lasti: int

    def where(self) -> str:
        """The op and the user's line that recorded it, for error messages."""
        return f"{self.op.name} ({place(self.code, self.lasti)})"


def new_record(
    op: Op, parents: tuple[Node | None, ...], mask: int, saved: Saved, guards: Guards,
    params: Params, array: Array, device: Device,
) -> Record:
    """A record of the op's output `array`. `call_text` has the same for the CPU."""
    record = Record()  # without `__init__`, which would cost as much again
    record.shape = array.shape
    record.dtype = array.dtype
    record.device = device
    record.seq = next_seq()
    record.op = op
    record.parents = parents
    record.mask = mask
    record.saved = saved
    record.guards = guards
    record.params = params
    record.state = FREE
    record.hooks = None
    record.retain = False
    record.stream = None if device.type == "cpu" else device.current_stream()
    frame = user_frame(_frame_at(1))
    record.code = frame.f_code
    record.lasti = frame.f_lasti
    if bus.listeners:
        record.module, record.number = scope.module, scope.number
    return record


def hangs_on(
    node: Node, arguments: frozenset[Node], apart: set[int] | None = None
) -> Node | None:
    """An argument that the node depends on, or a consumed record through which it may do so.

    `apart` caches, by `seq`, nodes that depend on none of the arguments.
    """
    apart = set() if apart is None else apart
    oldest = min(argument.seq for argument in arguments)  # older nodes depend on none of them
    found = {node}
    stack = [node] if node.seq >= oldest and node.seq not in apart else []
    while stack:
        node = stack.pop()
        if node in arguments:
            return node
        if isinstance(node, Record):
            if node.state == CONSUMED:  # its parents are cleared
                return node
            more = {p for p in node.parents
                    if p is not None and p.seq >= oldest and p.seq not in apart} - found
            found |= more
            stack += more
    apart.update(n.seq for n in found)
    return None


def here() -> str:
    """The user's line that is running, as text."""
    frame = user_frame(_frame_at(1))
    return place(frame.f_code, frame.f_lasti)

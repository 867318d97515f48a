"""Nodes: what a handle knows of the graph. A node is a leaf, or the record of an op.

Tensors own nodes; a record (`tape.record`) owns its parents' nodes and its saved arrays, never a
Tensor. So there are no cycles, and dropping the outputs frees the whole graph with the garbage
collector switched off.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from gtensor.backend import Device
    from gtensor.backend.streams import Stream
    from gtensor.backend.typing import Array

next_seq = itertools.count().__next__
FREE, WALKED, CONSUMED = range(3)  # states of a record


class Tape(Protocol):
    """The tape of a transform, as the nodes on it know it: a `tape.levels.Level`."""

    grad_enabled: bool

    def step(self, wanted: set[Node] | None) -> Any:
        """What the rules of a walk of this tape see; None for recorded ops."""

    def lift(self, x: Any) -> Any:
        """A value of a lower level as a handle of this one."""

    def owns(self, x: object) -> bool:
        """Whether x is a handle of this level."""


class Collector(Protocol):
    """Takes the gradients of its leaves in a `backward()` that reaches one of them."""

    def begin(self, leaves: Iterable[Node]) -> None:
        """A walk begins that reaches these leaves, its own among them."""

    def place(self, leaf: Node) -> Array | None:
        """Where the leaf's gradient is to be gathered: contiguous memory of its shape and dtype.

        None for memory of the walk's own.
        """

    def complete(self, leaf: Node, array: Array) -> None:
        """The gradient of a leaf, in its place, or in memory without another holder."""

    def finish(self) -> Mapping[Node, Any]:
        """The gradients, Tensors, that leaves have after the walk, also of leaves not reached.

        Those of its leaves that are not among them are stored as by any walk.
        """

    def cancel(self) -> None:
        """The walk has raised; no gradient is stored."""


class Node:
    """A differentiable tensor on the tape: shape, dtype and device of its gradient.

    `seq` is its place on the tape, used only for order. Rare attributes are the class's until set.
    The types of handles (`Tensor`) and definitions (`Op`) lie above this one, so they are Any here.
    """

    __slots__ = ("__dict__", "__weakref__", "device", "dtype", "seq", "shape")

    shape: tuple[int, ...]
    dtype: np.dtype
    device: Device
    seq: int
    op: Any = None  # of a record: its definition
    parents: tuple[Node | None, ...] = ()  # of a record, per input: None if it needs no gradient
    state = FREE
    grad: Any = None  # a Tensor
    stream: Stream | None = None  # the op's stream, on devices with several
    # Whether to keep the gradient of a tensor that is not a leaf, or the node to keep it for; and
    # the record that keeps it for this node, see `retained`.
    retain: bool | Node = False
    heir: weakref.ref[Node] | None = None
    hooks: dict[int, Callable[[Any], Any]] | None = None  # of Tensors
    level: Tape | None = None  # of the transform on whose tape it is; None for tensors
    collector: Collector | None = None  # of a leaf: who takes its gradient during a walk
    stored: dict[int, Callable[[], object]] | None = None  # called when `grad` was stored
    cast_beside: list[weakref.ref[Any]] | None = None  # with a leaf, under `autocast`: Tensors
    module = ""  # the running nn.Module, and the number of the op's path, as they were told;
    number = 0  # recorded while there are listeners

    def where(self) -> str:
        """What made it, for error messages."""
        return "a leaf"


class Leaf(Node):
    """A tensor that the user made with `requires_grad`; gradients end here."""

    __slots__ = ()

    def __init__(
        self, shape: tuple[int, ...], dtype: np.dtype, device: Device, level: Tape | None = None
    ) -> None:
        if level is not None:
            self.level = level
        self.shape = shape
        self.dtype = dtype
        self.device = device
        self.seq = next_seq()


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
        if node.state == CONSUMED:  # its parents are cleared
            return node
        more = {p for p in node.parents
                if p is not None and p.seq >= oldest and p.seq not in apart} - found
        found |= more
        stack += more
    apart.update(n.seq for n in found)
    return None

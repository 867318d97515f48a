"""Nodes of the graph: what a handle knows of the tape. A leaf is one; so is an op's record."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from gtensor.backend import Device
    from gtensor.backend.streams import Stream
next_seq = itertools.count().__next__


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


FREE, WALKED, CONSUMED = range(3)  # states of a record


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

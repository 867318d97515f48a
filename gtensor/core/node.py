"""Nodes of the graph: leaves, and the records of ops.

Tensors own nodes; a record owns its parents' nodes and its saved arrays, never a
Tensor. So there are no cycles, and dropping the outputs frees the whole graph with the
garbage collector switched off.
"""

from __future__ import annotations

import itertools
import linecache
import os
import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from gtensor.backend import Device
    from gtensor.core.op import Op
    from gtensor.core.storage import Storage
    from gtensor.core.tensor import Tensor

_next_seq = itertools.count().__next__
_frame_at = sys._getframe
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_inside: dict[str, bool] = {}  # file name -> is it gtensor's own


class Node:
    """What the walk knows of a differentiable tensor: shape, dtype and device of its gradient.

    `seq` is its place on the tape, only for order. The rare facts are class attributes until set.
    """

    __slots__ = ("__dict__", "__weakref__", "device", "dtype", "seq", "shape")

    shape: tuple[int, ...]
    dtype: np.dtype
    device: Device
    seq: int
    grad: Tensor | None = None
    retain = False  # keep the gradient of a tensor that is no leaf
    hooks: dict[int, Callable[[Tensor], Tensor | None]] | None = None


class Leaf(Node):
    """A tensor that the user made with `requires_grad`; gradients end here."""

    __slots__ = ()

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype, device: Device) -> None:
        self.shape = shape
        self.dtype = dtype
        self.device = device
        self.seq = _next_seq()


# A saved array's storage, its version, its place in `saved` (-1: an input of a recipe there).
Guard = tuple["Storage", int, int]
Guards = tuple[Guard, ...]
FREE, WALKED, CONSUMED = range(3)  # states of a record


class Record(Node):
    """One application of an op: who its parents are and what its backward rule needs."""

    __slots__ = ("code", "guards", "lasti", "mask", "op", "params", "parents", "saved", "state")

    def __init__(
        self,
        op: Op,
        parents: tuple[Node | None, ...],  # per input: its node, None where no gradient is due
        mask: int,  # bit i: input i has a node
        saved: tuple[Any, ...],  # arrays and scalars in the order of `op.save_names`
        guards: Guards,  # of the saved arrays that a handle can write
        params: dict[str, Any],
        array: Any,
        device: Device,
    ) -> None:
        self.shape = array.shape
        self.dtype = array.dtype
        self.device = device
        self.seq = _next_seq()
        self.op = op
        self.parents = parents
        self.mask = mask
        self.saved = saved
        self.guards = guards
        self.params = params
        self.state = FREE
        frame = _frame_at(2)  # 1 is apply; 2 the user, or an operator that the user called
        inside = _inside.get(frame.f_code.co_filename)
        if inside and frame.f_back is not None:
            frame = frame.f_back
            inside = _inside.get(frame.f_code.co_filename)
        if inside is not False:
            frame = _user_frame(frame)
        self.code = frame.f_code
        self.lasti = frame.f_lasti

    def where(self) -> str:
        """The op and the user's line that recorded it, for error messages."""
        return f"{self.op.name} ({_place(self.code, self.lasti)})"


def here() -> str:
    """The user's line that is running, as text."""
    frame = _user_frame(_frame_at(1))
    return _place(frame.f_code, frame.f_lasti)


def _user_frame(frame: FrameType) -> FrameType:
    """The innermost frame outside gtensor, from `frame` outwards (the outermost if none is)."""
    while True:
        name = frame.f_code.co_filename
        inside = _inside.get(name)
        if inside is None:
            inside = _inside[name] = name.startswith(_PACKAGE)
        if not inside or frame.f_back is None:
            return frame
        frame = frame.f_back


def _place(code: CodeType, lasti: int) -> str:
    """`file:line: source` of an instruction; computed only when an error needs it."""
    line = next((n for start, end, n in code.co_lines() if start <= lasti < end and n), None)
    text = linecache.getline(code.co_filename, line).strip() if line else ""
    return f"{code.co_filename}:{line}" + (f": {text}" if text else "")

"""Records: the tape's entries, one for each call of an op."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from gtensor.engine.handle.node import FREE, Node, next_seq
from gtensor.system.bus import bus
from gtensor.system.bus import here as scope
from gtensor.system.source_line import place, user_frame

if TYPE_CHECKING:
    from types import CodeType

    from gtensor.backend import Device
    from gtensor.backend.typing import Array, Params
    from gtensor.engine.handle.saved import Guards, Saved
    from gtensor.engine.tape.op import Op

_frame_at = sys._getframe


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


def here() -> str:
    """The user's line that is running, as text."""
    frame = user_frame(_frame_at(1))
    return place(frame.f_code, frame.f_lasti)

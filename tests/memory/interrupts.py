"""Interrupt a call at each point where CPython delivers signals, one run per point."""

from __future__ import annotations

import dis
import gc
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


class Interrupt(BaseException):
    """Stands for KeyboardInterrupt."""


INTERRUPTIBLE = {"CALL", "CALL_FUNCTION_EX", "CALL_KW", "JUMP_BACKWARD", "RESUME"}


def interrupt_after(place: int, run: Callable[[], object]) -> bool:
    """Run, raising Interrupt at the `place`-th point where CPython delivers signals; if it did."""
    passed = 0
    arrived: dict[FrameType, bool] = {}  # frame -> its previous instruction was such a point

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal passed
        frame.f_trace_opcodes = True
        if event == "opcode":
            if arrived.get(frame):
                arrived[frame] = False
                passed += 1
                if passed == place:
                    raise Interrupt
            opcode = frame.f_code.co_code[frame.f_lasti]
            arrived[frame] = dis.opname[opcode] in INTERRUPTIBLE
        return trace

    before, collects = sys.gettrace(), gc.isenabled()
    gc.disable()  # an interrupt inside a callback of the collector would be swallowed there
    sys.settrace(trace)
    try:
        run()
    except Interrupt:
        return True
    finally:
        sys.settrace(before)
        if collects:
            gc.enable()
    return False

"""Interrupt a call at each point where CPython delivers signals, one run per point."""

from __future__ import annotations

import dis
import gc
import inspect
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from gtensor.memory.sources import simulated


class Interrupt(BaseException):
    """Stands for KeyboardInterrupt."""


INTERRUPTIBLE = {"CALL", "CALL_FUNCTION_EX", "CALL_KW", "JUMP_BACKWARD", "RESUME"}


def interrupt_after(place: int, run: Callable[[], object]) -> bool:
    """Run, raising Interrupt at the `place`-th point where CPython delivers signals; if it did.

    Not within what stands for a driver, whose calls are one call of C.
    """
    passed = 0
    arrived: dict[FrameType, bool] = {}  # frame -> its previous instruction was such a point

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal passed
        if frame.f_code.co_filename == simulated.__file__:
            return None
        frame.f_trace_opcodes = True
        caller, code = frame.f_back, frame.f_code
        if event == "call" and caller in arrived and (
                code.co_name in caller.f_code.co_names
                or any(getattr(value, "__code__", None) is code
                       for value in caller.f_locals.values())):
            # A Python function called by its name, or an argument: signals come at its RESUME,
            # none at its return.
            arrived[caller] = bool(code.co_flags & inspect.CO_GENERATOR)
        if event == "opcode":
            if arrived.get(frame):
                arrived[frame] = False
                passed += 1
                if passed == place:
                    raise Interrupt
            opcode = code.co_code[frame.f_lasti]
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
        arrived.clear()  # the frames, and with them what the interrupt left to be freed
        if collects:
            gc.enable()
    return False

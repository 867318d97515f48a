"""Interrupt a call at each point where CPython delivers signals, one run per point."""

from __future__ import annotations

import dis
import gc
import inspect
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np
import simulated


class Interrupt(BaseException):
    """Stands for KeyboardInterrupt."""


CALLS = {"CALL", "CALL_FUNCTION_EX", "CALL_KW"}


def _calls(frame: FrameType) -> bool:
    """Whether the frame is at an instruction that calls."""
    return dis.opname[frame.f_code.co_code[frame.f_lasti]] in CALLS


def interrupt_after(place: int, run: Callable[[], object], number: int | None = None,
                    sample: bool = False) -> bool:
    """Run, raising Interrupt at the `place`-th point where CPython delivers signals; if there is
    one. In a finalizer Python ignores it, and the run goes on. With the `number` of a signal, that
    is sent there, whose handler may raise Interrupt. Fails if a run has ended before `place` - 1,
    so that points were left out; unless the places are a `sample`.

    These points are the entry of a function, a jump back and the end of a call: the instruction
    itself fails, so the handlers around the next one play no part. Not within what stands for a
    driver, whose calls are one call of C.
    """
    passed = 0
    called: dict[FrameType, bool] = {}  # frame -> its previous instruction was a call of C

    def point() -> None:
        nonlocal passed
        passed += 1
        if passed == place and number is not None:
            signal.raise_signal(number)
        elif passed == place:
            raise Interrupt

    def trace(frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code.co_filename == simulated.__file__:
            return None
        frame.f_trace_opcodes = True
        caller, code = frame.f_back, frame.f_code
        if event == "call":
            if caller in called and (
                    code.co_name in caller.f_code.co_names
                    or any(callable(value) and getattr(value, "__code__", None) is code
                           for value in caller.f_locals.values())):
                # A Python function called by its name, or an argument: signals come at its entry,
                # none at its return but that of a call that makes a generator.
                called[caller] = bool(code.co_flags & inspect.CO_GENERATOR) and _calls(caller)
            point()
        elif event == "exception":
            called[frame] = False  # a call that fails delivers none
        elif event == "opcode":
            if called.get(frame):
                called[frame] = False
                point()
            called[frame] = _calls(frame)
            if dis.opname[code.co_code[frame.f_lasti]] == "JUMP_BACKWARD":
                point()
        return trace

    def told(about: Any) -> None:
        if about.exc_type is not Interrupt:
            hook(about)

    before, collects, hook = sys.gettrace(), gc.isenabled(), sys.unraisablehook
    sys.unraisablehook = told
    gc.disable()  # an interrupt inside a callback of the collector would be swallowed there
    try:
        with np.errstate():  # an interrupt within NumPy's own block of the kind leaves its state
            sys.settrace(trace)
            try:
                run()
            finally:
                sys.settrace(before)
    except Interrupt:
        pass
    finally:
        sys.unraisablehook = hook
        called.clear()  # the frames, and with them what the interrupt left to be freed
        if collects:
            gc.enable()
    assert sample or passed >= place - 1, (
        f"points {passed + 1} to {place - 1} were never tried: a first call has more points than "
        "later ones, so run it once before the first interrupt")
    return passed >= place

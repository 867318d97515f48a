"""`capture`: a step that is recorded twice, compared, and from then on replayed."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Generic, ParamSpec, TypeVar

import numpy as np

from gtensor.backend import default_device, get_default_dtype
from gtensor.engine.handle.context import STATE, current_casts, grad_enabled
from gtensor.engine.handle.tensor import Tensor
from gtensor.engine.tape.levels import Traced
from gtensor.engine.tape.record import Record
from gtensor.execution.steps.comparing import difference
from gtensor.execution.steps.program import Moved, Program
from gtensor.execution.steps.recorder import Recorder
from gtensor.execution.steps.results import Results
from gtensor.func.trees import leaves
from gtensor.system.bus import Registered, bus, here
from gtensor.system.interrupts import Undone

P = ParamSpec("P")
R = TypeVar("R")


class CaptureError(RuntimeError):
    """A step cannot be captured. It has run as always; `result` is what it returned."""

    result: Any = None


class Captured(Generic[P, R]):
    """A function of tensors whose calls are replayed. Made by `capture`."""

    def __init__(self, function: Callable[P, R]) -> None:
        self.function = function
        functools.update_wrapper(self, function)
        self._lock = threading.RLock()
        self.programs: dict[Hashable, _Signature] = {}

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if here.recorder is not None or STATE.levels:
            return self.function(*args, **kwargs)  # part of another step, or of a transform
        found = leaves((args, kwargs))
        tensors = [x for _, x in found if isinstance(x, Tensor)]
        if any(isinstance(x, Traced) for x in tensors):
            return self.function(*args, **kwargs)
        key = _signature(found)
        with self._lock:
            known = self.programs.get(key)
            if known is None:
                known = self.programs[key] = _Signature()
            if known.program is not None:
                try:
                    return known.program.replay(tensors)
                except Moved:
                    known.program = None
                    known.recordings.clear()
            return self._record(known, tensors, args, kwargs)

    def _record(
        self, known: _Signature, tensors: list[Tensor], args: Any, kwargs: Any
    ) -> Any:
        """Run the function as always, and record it."""
        recorder = Recorder(tensors)
        listener = Registered(recorder)
        with Undone(functools.partial(_stop, listener)):
            bus.add(listener)
            here.recorder = recorder
            result = self.function(*args, **kwargs)
            recorder.end()
        results = Results(recorder, result)
        results.detach(result)
        reason = recorder.reason()
        recordings = known.recordings
        if reason is None:
            for earlier, its_results in recordings:
                if earlier.values is None:
                    continue
                reason = difference(earlier, recorder, (its_results, results))
                if reason is None:
                    known.program = Program(recorder, results)
                    recordings.clear()
                    return result
            recordings.append((recorder, results))
            if len(recordings) < 3:
                return result
        recordings.clear()
        error = CaptureError(f"{_name(self.function)} cannot be captured: {reason}")
        error.result = result
        raise error

    def clear(self) -> None:
        """Forget all programs."""
        with self._lock:
            self.programs.clear()


class _Signature:
    """What is known of one signature."""

    def __init__(self) -> None:
        self.program: Program | None = None
        self.recordings: list[tuple[Recorder, Results]] = []


def _stop(listener: Registered) -> None:
    bus.remove(listener)
    here.recorder = None


def _name(function: Any) -> str:
    return getattr(function, "__qualname__", None) or type(function).__name__


def _signature(found: Sequence[tuple[str, Any]]) -> Hashable:
    """What a program is made for: facts of tensors, values of others, modes."""
    key: list[Any] = [grad_enabled(), default_device(), get_default_dtype()]
    casts = current_casts()
    key.append(None if casts is None else casts.dtype)
    owners: dict[int, int] = {}
    for path, x in found:
        if isinstance(x, Tensor):
            array, node = x._array, x._node
            if isinstance(node, Record):
                raise CaptureError(f"a captured step was given a tensor with a history as{path}; "
                                   "wanted tensors without one: detach() it")
            base = array.base
            own = id(base if type(base) is type(array) else array)
            key.append((path, array.shape, array.dtype, array.strides, x._device,
                        node is not None, owners.setdefault(own, len(owners))))
        elif isinstance(x, np.ndarray):
            raise CaptureError(f"a captured step was given a NumPy array as{path}; wanted a tensor: "
                               "gt.asarray() makes one over its memory")
        else:
            key.append((path, type(x), x))
    return tuple(key)


def capture(function: Callable[P, R]) -> Captured[P, R]:
    """A step that is recorded once and replayed; see the class."""
    return Captured(function)

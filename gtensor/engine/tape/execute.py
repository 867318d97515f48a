"""Running an op's path on arrays, with or without listeners."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gtensor.backend import DeviceError
from gtensor.system.bus import bus, heard, here
from gtensor.system.source_line import place, user_frame

if TYPE_CHECKING:
    from gtensor.backend import Device
    from gtensor.backend.typing import Params
    from gtensor.engine.tape.op import Op


def execute(op: Op, device: Device, arrays: Sequence[Any], params: Params) -> Any:
    """The output of the op's path for the device."""
    path = op.cpu
    if device.type != "cpu":
        if op.gpu is None:
            raise DeviceError(f"{op.name} has no path for {device}; move its inputs to the "
                              "CPU with .to('cpu'), or give the op one")
        path = device.path(op.name, op.gpu)
    try:
        if bus.ops:
            return heard(op, "forward", path, arrays, params)
        return path(*arrays, **params)
    except ValueError as error:
        name_shapes(op.name, error, arrays)
        raise
    except TypeError as error:
        if "NoneType" in str(error) and any(a is None for a in arrays):
            wrong = next(name for name, a in zip(op.input_names, arrays, strict=False) if a is None)
            raise TypeError(f"{op.name} was given None as {wrong}; wanted a tensor, an array or a "
                            "number") from error
        raise


_NO_BROADCAST = ("operands could not be broadcast together", "shape mismatch: objects cannot be")


def name_shapes(name: str, error: ValueError, arrays: Sequence[Any]) -> None:
    """Give NumPy's or CuPy's error for shapes that do not broadcast the op's name, and them.

    So no op that broadcasts has to check its shapes. A note has the user's line. Other errors stay
    as they are. `error.of_shapes` is the sentence, by which functions of several ops, and levels,
    whose ops see the axes of examples, know such an error.
    """
    known = hasattr(error, "of_shapes")
    if not known and not str(error).startswith(_NO_BROADCAST):
        return
    shapes = [np.shape(a) for a in arrays if a is not None]
    try:
        np.broadcast_shapes(*shapes)
    except ValueError:
        listed = f"{', '.join(map(str, shapes[:-1]))} and {shapes[-1]}"
        sentence = (f"{name} of shapes {listed}; wanted shapes whose axes agree or are 1, counted "
                    "from the last")
        if not known:
            frame = user_frame(sys._getframe(1))
            error.add_note(f"called at {place(frame.f_code, frame.f_lasti)}")
        error.args = (sentence,)
        error.of_shapes = sentence  # type: ignore[attr-defined]


class Aside:
    """In the place of an op's definition, for listeners: work of the engine that is no op."""

    view, flops = False, 1

    def __init__(self, name: str, device: Device) -> None:
        self.name = name
        self.device = device


def run_noted(name: str, device: Device, function: Callable[..., Any], *given: Any) -> Any:
    """A function of the device that only a recorder of steps is told of, as an op of that name."""
    if bus.listeners and here.recorder is not None:
        return heard(Aside(name, device), "forward", function, given)
    return function(*given)


def run_aside(
    name: str, device: Device, function: Callable[..., Any], *arrays: Any, **params: Any
) -> Any:
    """A function of the device's library, told to listeners as an op of that name."""
    path = function if device.type == "cpu" else device.path(name, function)
    if bus.ops:
        return heard(Aside(name, device), "forward", path, arrays, params)
    return path(*arrays, **params)

"""Guards of CUDA paths and backward rules: where they run, behind which work, under which label.

A guard makes the device current, lets the stream wait for other streams' work on the arrays, and
labels the blocks that CuPy allocates within. In the usual case it only checks that there is nothing
to do: the device is current, and no other stream has touched the arrays. The guard of a path is
text, written once for its op, since Python's time per op dominates with small arrays.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from gtensor.backend.cuda_streams import running
from gtensor.backend.devices import cuda_device_count
from gtensor.system.written_code import written

if TYPE_CHECKING:
    from gtensor.backend.typing import CudaArray, Params, Path

CudaDevice: TypeAlias = Any  # of backend.cuda, which imports this

_WRITTEN = ("out", "state", "counts")  # parameters that a path writes; two are optimizers'
_PLAIN = frozenset({bool, int, float, complex, str, type(None)} | {
    type(np.dtype(code)) for code in "?bhilqBHILQefdgFDG"})  # types of values without an array

_GUARD = """\
def guarded({names}**params):
{switch}    before = running.name
    if before is None:
        before = bind_thread()
    running.name = NAME
    try:
        try:
            stream = stream_on(INDEX)._gtensor[INDEX].id
            settled = {settled}(not params or plain(params))
        except (AttributeError, KeyError):  # memory of another library, or a stream seen first
            settled = False
        if not settled:
            order_all(({inputs}), params)
        return path({inputs}**params) if params else path({inputs})
    finally:
        running.name = before
"""
_SWITCH = """\
    if current_device() != INDEX:
        with DEVICE:
            return guarded({inputs}**params)
"""
_SETTLED = "(x{i}.data.mem.only == stream if type(x{i}) is ndarray else type(x{i}) in PLAIN) and "


def guarded_path(device: CudaDevice, name: str, path: Path, inputs: int | None) -> Path:
    """A path with its guard, for so many inputs, or for any number (None)."""
    def order_all(arrays: tuple[Any, ...], params: Params) -> None:
        device.order((*arrays, *_nested(params.values())),
                     [*_nested(params[name] for name in _WRITTEN if name in params)])

    numbers = range(1, (inputs or 0) + 1)
    names = "".join(f"x{i}, " for i in numbers) or "*arrays, "
    text = _GUARD.format(
        names=names if inputs is None else f"{names}/, ", inputs=names,
        switch=_SWITCH.format(inputs=names) if cuda_device_count() > 1 else "",
        settled="".join(_SETTLED.format(i=i) for i in numbers) or "not arrays and ")
    return written(text, {
        "DEVICE": device.cupy_device, "INDEX": device.index, "NAME": name, "PLAIN": _PLAIN,
        "bind_thread": device.bind_thread, "current_device": device.current_index,
        "ndarray": device.array_type, "order_all": order_all, "path": path, "plain": _plain,
        "running": running, "stream_on": device.stream_on}, "guarded", name)


def guarded_rule(device: CudaDevice) -> Path:
    """The rule of a step's record with its guard: it runs on the stream of its op."""
    index, current_index, current_stream = device.index, device.current_index, device.current_stream
    array_type = device.array_type
    several = cuda_device_count() > 1

    def guarded(ns: Any, step: Any, g: CudaArray, placed: bool = False) -> None:
        record = step.record
        stream = current_stream()
        if not placed and (
                stream is not record.stream or several and current_index() != index):
            with device.running(record.stream):
                return guarded(ns, step, g, True)
        op = record.op
        before = running.name
        if before is None:
            before = device.bind_thread()
        running.name = op.name
        try:
            number = stream.id
            try:
                settled = True
                for value in (g, *step.saved):
                    if (value.data.mem.only != number if type(value) is array_type
                            else type(value) not in _PLAIN):
                        settled = False
            except AttributeError:  # an array of another library's memory
                settled = False
            if not settled:
                device.order((g, *step.saved))
            op.backward(ns, step, g)
        finally:
            running.name = before

    return guarded


def _plain(params: Params) -> bool:
    """Whether no parameter holds an array, as far as its type tells."""
    for value in params.values():
        if type(value) not in _PLAIN and not (
                type(value) is tuple and _PLAIN.issuperset(map(type, value))):
            return False
    return True


def _nested(values: Iterable[object]) -> Iterable[Any]:
    """The values, with tuples and lists (keys of an index, several outputs) flattened."""
    for value in values:
        if isinstance(value, (tuple, list)):
            yield from value
        else:
            yield value

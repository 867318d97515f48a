"""What a program queues on the host device, launch by launch, for programs that count its cost.

    with watch() as queued:
        step()
        for launch in queued():
            print(launch.name, launch.grid, launch.block)
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gtensor.hostcuda.counters import KINDS
from gtensor.hostcuda.install import native

if TYPE_CHECKING:
    from gtensor.hostcuda.libraries.calls import Traffic


@dataclass(frozen=True)
class Launch:
    """Something that was queued or done; `kind` and `name` are those of `Counters`.

    Of a kernel: `function` is its name in the module (a CUmodule) that it is from, `parameters` the
    bytes of each of its parameters, `shared` its dynamic shared memory, and `resident` the blocks
    that a multiprocessor holds. Of a library's call: `traffic`, where it is known.
    """

    kind: str
    name: str
    nbytes: int
    module: int = 0
    function: str = ""
    grid: tuple[int, int, int] = (0, 0, 0)
    block: tuple[int, int, int] = (0, 0, 0)
    shared: int = 0
    resident: int = 0
    parameters: tuple[bytes, ...] = ()
    traffic: Traffic | None = None


class _Event(ctypes.Structure):
    """hostcuda_event of native/hostcuda.h."""

    _fields_ = (
        ("kind", ctypes.c_int), ("name", ctypes.c_char_p), ("nbytes", ctypes.c_ulonglong),
        ("module", ctypes.c_ulonglong), ("function", ctypes.c_char_p),
        ("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared", ctypes.c_ulonglong),
        ("resident", ctypes.c_int), ("count", ctypes.c_uint),
        ("sizes", ctypes.POINTER(ctypes.c_uint)), ("parameters", ctypes.c_void_p))


_Take = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.POINTER(_Event))


@contextlib.contextmanager
def watch() -> Iterator[Callable[[], list[Launch]]]:
    """Note what is queued; the function that it gives hands over what came since its last call.

    One watch at a time, and the program launches from one thread.
    """
    from gtensor.hostcuda.libraries import calls

    if calls.watched is not None:
        raise RuntimeError("the host device is watched already")
    calls.watched = []
    native().cuda.hostcuda_watch(1)
    try:
        yield _taken
    finally:
        native().cuda.hostcuda_watch(0)
        calls.watched = None


def _taken() -> list[Launch]:
    from gtensor.hostcuda.libraries import calls

    assert calls.watched is not None
    traffic, calls.watched = iter(calls.watched), []
    found: list[Launch] = []

    def take(_: int, pointer: Any) -> None:
        event = pointer.contents
        kind, name = KINDS[event.kind], event.name.decode()
        if kind == "kernels":
            found.append(Launch(
                kind, name, 0, event.module, event.function.decode(), tuple(event.grid),
                tuple(event.block), event.shared, event.resident, _split(event)))
        else:
            found.append(Launch(kind, name, event.nbytes,
                                traffic=next(traffic, None) if kind == "library" else None))

    native().cuda.hostcuda_watched(_Take(take), None)
    return found


def _split(event: Any) -> tuple[bytes, ...]:
    parts, start = [], event.parameters
    for place in range(event.count):
        parts.append(ctypes.string_at(start, event.sizes[place]))
        start += event.sizes[place]
    return tuple(parts)

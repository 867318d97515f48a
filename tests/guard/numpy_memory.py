"""Every array that NumPy makes: how many, how large, and the most that live at a time, exactly.

NumPy lets its memory be allocated by another handler (NEP 49), which is set for one thread. Unlike
tracemalloc's count, this one has nothing of Python's objects. NumPy's cache of small blocks is part
of its own handler, so every array is counted, whatever was freed before.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy._core import _multiarray_umath

_SET_HANDLER = 304  # the place of PyDataMem_SetHandler in NumPy's table of C functions
_pointer, _size = ctypes.c_void_p, ctypes.c_size_t
_Malloc = ctypes.CFUNCTYPE(_pointer, _pointer, _size)
_Calloc = ctypes.CFUNCTYPE(_pointer, _pointer, _size, _size)
_Realloc = ctypes.CFUNCTYPE(_pointer, _pointer, _pointer, _size)
_Free = ctypes.CFUNCTYPE(None, _pointer, _pointer, _size)


class _Handler(ctypes.Structure):
    """PyDataMem_Handler of NumPy's ndarraytypes.h."""

    _fields_ = (("name", ctypes.c_char * 127), ("version", ctypes.c_uint8), ("ctx", _pointer),
                ("malloc", _Malloc), ("calloc", _Calloc), ("realloc", _Realloc), ("free", _Free))


class Tally:
    """Arrays and their bytes since `restart`, what lives, and the most that lived meanwhile."""

    arrays = nbytes = live = alive = peak = _before = 0

    def restart(self) -> None:
        self.arrays = self.nbytes = 0
        self.peak = self._before = self.live

    @property
    def above(self) -> int:
        """Bytes at the peak beyond what lived at the restart."""
        return self.peak - self._before

    def add(self, nbytes: int) -> None:
        self.arrays += 1
        self.alive += 1
        self.nbytes += nbytes
        self.live += nbytes
        self.peak = max(self.peak, self.live)

    def drop(self, nbytes: int) -> None:
        self.alive -= 1
        self.live -= nbytes


def _handler(tally: Tally) -> Any:
    """A capsule with a handler that adds to the tally. It is never freed: arrays may outlive it."""
    libc = ctypes.CDLL(None)
    for name, given in (("malloc", (_size,)), ("calloc", (_size, _size)),
                        ("realloc", (_pointer, _size)), ("free", (_pointer,))):
        getattr(libc, name).restype, getattr(libc, name).argtypes = _pointer, given
    sizes: dict[int, int] = {}

    def noted(address: int, nbytes: int) -> int:
        sizes[address] = nbytes
        tally.add(nbytes)
        return address

    def forgotten(address: int) -> None:
        if address in sizes:
            tally.drop(sizes.pop(address))

    def realloc(_: int, address: int, nbytes: int) -> int:
        forgotten(address)
        return noted(libc.realloc(address, nbytes), nbytes)

    def free(_: int, address: int, nbytes: int) -> None:
        forgotten(address)
        libc.free(address)

    # NumPy asks for at least one byte for an array without elements.
    handler = _Handler(
        b"guard", 1, None, _Malloc(lambda _, n: noted(libc.malloc(n), n)),
        _Calloc(lambda _, n, each: noted(libc.calloc(n, each), n * each)),
        _Realloc(realloc), _Free(free))
    api = ctypes.pythonapi
    api.Py_IncRef(ctypes.py_object(handler))
    api.PyCapsule_New.restype = ctypes.py_object
    api.PyCapsule_New.argtypes = (_pointer, ctypes.c_char_p, _pointer)
    return api.PyCapsule_New(ctypes.addressof(handler), b"mem_handler", None)


def _set_handler(capsule: Any) -> Any:
    """Let NumPy allocate by this handler in this thread; the one before."""
    api = ctypes.pythonapi
    api.PyCapsule_GetPointer.restype = _pointer
    api.PyCapsule_GetPointer.argtypes = (ctypes.py_object, ctypes.c_char_p)
    table = api.PyCapsule_GetPointer(_multiarray_umath._ARRAY_API, None)
    functions = ctypes.cast(table, ctypes.POINTER(_pointer))
    function = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)(functions[_SET_HANDLER])
    return function(capsule)


_tally = Tally()
_counting = _handler(_tally)


@contextmanager
def counted() -> Iterator[Tally]:
    """The tally of the block, which no collection of garbage interrupts."""
    enabled = gc.isenabled()
    gc.disable()
    before = _set_handler(_counting)
    _tally.restart()
    try:
        yield _tally
    finally:
        _set_handler(before)
        if enabled:
            gc.enable()


class Block:
    """Memory of one array, as a resource hands it out."""

    def __init__(self, nbytes: int) -> None:
        self.memory = np.empty(nbytes, np.uint8)
        self.ptr = self.memory.ctypes.data


class Resource:
    """What a device's arrays are asked of: each is one of NumPy's, and counted as asked for."""

    asked = 0

    def allocate(self, nbytes: int, stream: int, label: str) -> Block:
        self.asked += 1
        return Block(nbytes)

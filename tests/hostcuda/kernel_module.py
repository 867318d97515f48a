"""Modules of the kernel compiler, called by ctypes: no runtime and no CuPy behind them."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from gtensor.hostcuda.kernels import compiler


class _Kernel(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p), ("thread", ctypes.c_void_p), ("parameter_count", ctypes.c_uint),
        ("parameter_sizes", ctypes.POINTER(ctypes.c_size_t)),
        ("static_shared_bytes", ctypes.c_size_t), ("max_threads", ctypes.c_uint),
    ]


class Fault(Exception):
    """A launch that the fiber library ended: one of CUDA's errors, and a sentence."""

    def __init__(self, error: int, sentence: str) -> None:
        super().__init__(sentence)
        self.error = error


class Module:
    """A text, compiled and loaded; `kernels` are its kernels by name."""

    def __init__(self, source: str, options: tuple[str, ...] = (), names: tuple[str, ...] = (),
                 headers: dict[str, str] | None = None) -> None:
        self._run = ctypes.CDLL(str(compiler.fibers())).hostcuda_run
        self.compiled = compiler.compile(source, options, names, headers)
        self.library = ctypes.CDLL(str(compiler.load(self.compiled.image)))
        at = self.library.hostcuda_module_kernel
        at.argtypes, at.restype = [ctypes.c_size_t], ctypes.POINTER(_Kernel)
        self.kernels: dict[str, Any] = {}
        while kernel := at(len(self.kernels)):
            self.kernels[kernel.contents.name.decode()] = kernel

    def launch(self, name: str, grid: tuple[int, ...], block: tuple[int, ...],
               args: tuple[Any, ...], shared: int = 0, schedule: int = 0) -> None:
        """Run a kernel; arguments are arrays (their addresses), NumPy scalars and bytes."""
        kernel = self.kernels[name]
        values = [np.uint64(value.ctypes.data).tobytes() if isinstance(value, np.ndarray)
                  else memoryview(value).tobytes() for value in args]
        count = kernel.contents.parameter_count
        assert [len(value) for value in values] == kernel.contents.parameter_sizes[:count]
        buffers = [ctypes.create_string_buffer(value, len(value)) for value in values]
        pointers = (ctypes.c_void_p * (count + 1))(*map(ctypes.addressof, buffers))
        fault = ctypes.create_string_buffer(2000)
        error = self._run(kernel, (ctypes.c_uint * 3)(*(*grid, 1, 1)[:3]),
                          (ctypes.c_uint * 3)(*(*block, 1, 1)[:3]), ctypes.c_size_t(shared),
                          pointers, ctypes.c_ulonglong(schedule), fault, len(fault))
        if error:
            raise Fault(error, fault.value.decode())


def guarded(size: int) -> np.ndarray:
    """Floats that end where a page without access begins."""
    page = 4096
    bytes_ = (size * 4 + page - 1) // page * page
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    start = libc.mmap(None, bytes_ + page, 3, 0x22, -1, 0)
    assert libc.mprotect(start + bytes_, page, 0) == 0
    memory = (ctypes.c_float * size).from_address(start + bytes_ - size * 4)
    return np.frombuffer(memory, np.float32)

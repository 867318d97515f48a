"""Connects libhostcuda to its parts in Python: the compiler and the libraries."""

from __future__ import annotations

import atexit
import ctypes
import sys
import traceback
from pathlib import Path
from typing import Any

from gtensor.hostcuda import libraries
from gtensor.hostcuda.kernels import compiler

_INVALID_IMAGE, _NO_IMAGE_FOR_DEVICE = 200, 209  # CUDA_ERROR_INVALID_IMAGE, _NO_BINARY_FOR_GPU
_INTERNAL = 11  # NVRTC_ERROR_INTERNAL_ERROR
_COMPILATION = 6  # NVRTC_ERROR_COMPILATION
_Texts = ctypes.POINTER(ctypes.c_char_p)
_Compile = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, _Texts, ctypes.c_int, _Texts,
    ctypes.c_int, _Texts, _Texts)
_Load = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t,
                         ctypes.POINTER(ctypes.c_char), ctypes.c_size_t)


def connect(native: Any, packages: Path, capability: int, kernel_seconds: float) -> list[Any]:
    """Register the parts; what is returned has to be kept for as long as the process runs.

    `packages` is the folder in which CuPy lies, `capability` the cards', such as 90; a launch ends
    after `kernel_seconds`. Without a stand-in for NVRTC there is nothing to compile and to run.
    """
    if native.nvrtc is None:
        stubs = libraries.load(packages, native.cuda)
        atexit.register(_end, native, stubs)
        return [stubs]
    fibers = ctypes.CDLL(str(compiler.fibers()))
    fibers.hostcuda_limit(ctypes.c_double(kernel_seconds))
    compile_ = _Compile(_compiler(native.nvrtc))
    load = _Load(_loader(capability))
    native.nvrtc.hostcuda_set_compiler(compile_)
    native.cuda.hostcuda_set_loader(load)
    native.cuda.hostcuda_set_runner(fibers.hostcuda_run)
    stubs = libraries.load(packages, native.cuda)
    atexit.register(_end, native, stubs)
    return [fibers, compile_, load, stubs]


def _end(native: Any, stubs: list[libraries.stubs.Stub]) -> None:
    """End all calls into Python: the interpreter ends before its C modules do.

    CUB, Thrust and the generators stay connected, since only Python code calls them.
    """
    if native.nvrtc is not None:
        native.nvrtc.hostcuda_set_compiler(_Compile())
    native.cuda.hostcuda_set_loader(_Load())
    native.nccl.hostcuda_nccl_end()
    native.cuda.hostcuda_end()
    for stub in stubs:
        stub.end()


def _compiler(nvrtc: ctypes.CDLL) -> Any:
    nvrtc.hostcuda_compiled.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t,
                                        ctypes.c_char_p)
    nvrtc.hostcuda_failed.argtypes = (ctypes.c_void_p, ctypes.c_char_p)
    nvrtc.hostcuda_lowered.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p)

    def compile_(program: int, source: bytes, options: int, option: Any, names: int, name: Any,
                 headers: int, header: Any, header_name: Any) -> int:
        try:
            made = compiler.compile(
                source.decode(), [option[place].decode() for place in range(options)],
                [name[place].decode() for place in range(names)],
                {header_name[place].decode(): header[place].decode() for place in range(headers)})
        except compiler.CompileError as error:
            nvrtc.hostcuda_failed(program, str(error).encode())
            return _COMPILATION
        except BaseException:  # delivered: the caller is C code, which no exception may pass
            nvrtc.hostcuda_failed(program, traceback.format_exc().encode())
            return _INTERNAL
        for expression, lowered in made.lowered.items():
            nvrtc.hostcuda_lowered(program, expression.encode(), lowered.encode())
        nvrtc.hostcuda_compiled(program, made.image, len(made.image), made.log.encode())
        return 0

    return compile_


def _loader(capability: int) -> Any:
    def load(image: int, size: int, path: Any, room: int) -> int:
        try:
            found = compiler.load(ctypes.string_at(image, size), capability)
            text = str(found).encode() + b"\0"
            if len(text) > room:
                raise OSError(f"the path {found} is longer than {room} bytes")
            ctypes.memmove(path, text, len(text))
        except compiler.NoImageForDevice as error:
            print(f"hostcuda: {error}", file=sys.stderr)
            return _NO_IMAGE_FOR_DEVICE
        except BaseException:  # delivered
            traceback.print_exc(file=sys.stderr)
            return _INVALID_IMAGE
        return 0

    return load

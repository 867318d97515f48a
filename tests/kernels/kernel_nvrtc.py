"""NVRTC without a GPU or a driver: PTX, CUBIN and what ptxas says, for any architecture."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernel_text import cuda_include

from gtensor.backend import kernels

ARCHITECTURES = (75, 80, 86, 89, 90, 100, 120)

# What CuPy's RawModule adds to the options that it is given.
CUPY_OPTIONS = ("-ftz=true", "--device-as-default-execution-space")

_USAGE = re.compile(
    r"Compiling entry function '(?P<function>\w+)'.*?"
    r"(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, "
    r"(?P<loads>\d+) bytes spill loads.*?Used (?P<registers>\d+) registers",
    re.DOTALL,
)


class CompileError(Exception):
    """NVRTC's log."""


@dataclass(frozen=True)
class Usage:
    """What one kernel uses on one architecture."""

    function: str
    registers: int
    stack_bytes: int
    spill_bytes: int


@dataclass(frozen=True)
class Program:
    """A compiled text."""

    ptx: bytes
    cubin: bytes
    log: str
    usages: tuple[Usage, ...]

    @property
    def warnings(self) -> list[str]:
        return [line for line in self.log.splitlines() if "warning" in line.lower()]


def compile_text(
    text: str, names: list[str], architecture: int, include: tuple[Path, ...] = ()
) -> Program:
    """Compile `names` (name expressions) of a text for sm_<architecture>, with CuPy's options.

    Raises:
        CompileError: with the log.
    """
    from cuda.bindings import nvrtc

    folders = (cuda_include(), *include)
    options = [
        *kernels.OPTIONS, *CUPY_OPTIONS, f"-arch=sm_{architecture}", "--ptxas-options=-v",
        *(f"-I{folder}" for folder in folders),
    ]
    program = _checked(nvrtc.nvrtcCreateProgram(text.encode(), b"kernels.cu", 0, [], []))
    try:
        for name in names:
            _checked(nvrtc.nvrtcAddNameExpression(program, name.encode()))
        encoded = [option.encode() for option in options]
        (status,) = nvrtc.nvrtcCompileProgram(program, len(encoded), encoded)
        log = _bytes(program, nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog)
        text_log = log.decode(errors="replace").rstrip("\0")
        if int(status):
            raise CompileError(f"sm_{architecture}: {text_log[:6000]}")
        return Program(
            _bytes(program, nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX),
            _bytes(program, nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN),
            text_log, _usages(text_log),
        )
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _checked(result: tuple[Any, ...]) -> Any:
    if int(result[0]):
        raise CompileError(f"NVRTC answers {result[0]!r}")
    return result[1] if len(result) > 1 else None


def _bytes(program: Any, size_of: Any, get: Any) -> bytes:
    buffer = b" " * _checked(size_of(program))
    _checked(get(program, buffer))
    return buffer


def _usages(log: str) -> tuple[Usage, ...]:
    return tuple(
        Usage(found["function"], int(found["registers"]), int(found["stack"]),
              int(found["stores"]) + int(found["loads"]))
        for found in _USAGE.finditer(log)
    )

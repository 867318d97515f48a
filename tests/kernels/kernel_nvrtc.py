"""NVRTC without a GPU or a driver: PTX, CUBIN and what ptxas says, for any architecture.

`Compiler` keeps what it compiled between runs: ptxas takes seconds for each file and architecture.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import re
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gtensor.backend import kernels
from gtensor.hostcuda.build import headers, made

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

    @property
    def usages(self) -> tuple[Usage, ...]:
        """Of each kernel."""
        return tuple(
            Usage(found["function"], int(found["registers"]), int(found["stack"]),
                  int(found["stores"]) + int(found["loads"]))
            for found in _USAGE.finditer(self.log)
        )

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

    folders = (headers(), *include)
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
            text_log,
        )
    finally:
        nvrtc.nvrtcDestroyProgram(program)


class Compiler:
    """Programs compiled by threads of its own, each once, and kept in a folder between runs."""

    def __init__(self, folder: Path) -> None:
        from cuda.bindings import nvrtc

        self.folder = folder
        self.version = nvrtc.nvrtcVersion()[1:]
        self._pool = ThreadPoolExecutor(max_workers=min(os.cpu_count() or 1, 4))
        self._programs: dict[str, Future[Program]] = {}

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    def kernel_file(self, file: str, ctypes: tuple[str, ...], architecture: int) -> Program:
        """All kernels of a file of kernels/ for some C types."""
        return self.later_kernel_file(file, ctypes, architecture).result()

    def later_kernel_file(
        self, file: str, ctypes: tuple[str, ...], architecture: int
    ) -> Future[Program]:
        """As `kernel_file`, in a thread."""
        names = [f"{function}<{ctype}>" for function in kernels.functions(file)
                 for ctype in ctypes]
        return self.later(kernels.source(file), names, architecture)

    def later(self, text: str, names: list[str], architecture: int) -> Future[Program]:
        """As `compile_text`, in a thread."""
        asked = (self.version, str(headers()), kernels.OPTIONS, CUPY_OPTIONS, text, names,
                 architecture)
        key = hashlib.sha256(repr(asked).encode()).hexdigest()[:24]
        if key not in self._programs:
            self._programs[key] = self._pool.submit(
                self._kept, self.folder / f"{key}.program", text, names, architecture
            )
        return self._programs[key]

    def _kept(self, path: Path, text: str, names: list[str], architecture: int) -> Program:
        def make(folder: Path) -> Path:
            program = compile_text(text, names, architecture)
            kept = folder / "program"
            kept.write_bytes(pickle.dumps((program.ptx, program.cubin, program.log)))
            return kept

        return Program(*pickle.loads(made(path, make).read_bytes()))


def _checked(result: tuple[Any, ...]) -> Any:
    if int(result[0]):
        raise CompileError(f"NVRTC answers {result[0]!r}")
    return result[1] if len(result) > 1 else None


def _bytes(program: Any, size_of: Any, get: Any) -> bytes:
    buffer = b" " * _checked(size_of(program))
    _checked(get(program, buffer))
    return buffer

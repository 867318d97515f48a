"""NVRTC without a GPU or a driver: PTX, CUBIN and what ptxas says, for any architecture.

`Compiler` keeps what it compiled: ptxas takes seconds for each file and architecture.
"""

from __future__ import annotations

import os
import pickle
import re
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernel_kept import content, kept

from gtensor.backend import kernels
from gtensor.hostcuda.build import headers
from gtensor.hostcuda.kernels import toolchain

ARCHITECTURES = (75, 80, 86, 89, 90, 100, 120)

# CuPy's RawModule adds the second line to the options that it is given.
OPTIONS = (*kernels.OPTIONS,
           "-ftz=true", "--device-as-default-execution-space",
           "--ptxas-options=-v")

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
    text: str, names: list[str], architecture: int, with_cupy: bool = False
) -> Program:
    """Compile `names` (name expressions) of a text for sm_<architecture>, with CuPy's options.

    Args:
        with_cupy: the text may include CuPy's headers, which must be installed.

    Raises:
        CompileError: with the log.
    """
    from cuda.bindings import nvrtc

    folders = (headers(), *([toolchain.cupy_include()] if with_cupy else []))
    options = [*OPTIONS, f"-arch=sm_{architecture}", *(f"-I{folder}" for folder in folders)]
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
    """Programs compiled by threads of its own, each once, and kept in a folder."""

    def __init__(self, folder: Path) -> None:
        from cuda.bindings import nvrtc

        self.folder = folder
        # The headers of CuPy and CUDA have the versions of their packages.
        self.versions = nvrtc.nvrtcVersion()[1:], toolchain.versions()
        self._pool = ThreadPoolExecutor(max_workers=min(os.cpu_count() or 1, 4))
        self._programs: dict[object, Future[Program]] = {}

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    def wait(self) -> None:
        """Wait until nothing is compiled."""
        wait(self._programs.values())

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

    def text(self, *asked: Any) -> Program:
        """As `compile_text`, kept."""
        return self.later(*asked).result()

    def later(
        self, text: str, names: list[str], architecture: int, with_cupy: bool = False
    ) -> Future[Program]:
        """As `text`, in a thread."""
        asked = text, tuple(names), architecture, with_cupy
        if asked not in self._programs:
            self._programs[asked] = self._pool.submit(self._kept, *asked)
        return self._programs[asked]

    def _kept(self, *asked: Any) -> Program:
        def make(room: Path) -> Path:
            program = compile_text(*asked)
            made = room / "program"
            made.write_bytes(pickle.dumps((program.ptx, program.cubin, program.log)))
            return made

        entry = kept(self.folder, ("ptx, cubin, log", self.versions, OPTIONS, asked), make)
        return Program(*pickle.loads(content(entry)))


def _checked(result: tuple[Any, ...]) -> Any:
    if int(result[0]):
        raise CompileError(f"NVRTC answers {result[0]!r}")
    return result[1] if len(result) > 1 else None


def _bytes(program: Any, size_of: Any, get: Any) -> bytes:
    buffer = b" " * _checked(size_of(program))
    _checked(get(program, buffer))
    return buffer

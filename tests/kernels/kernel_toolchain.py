"""g++ with sanitizers, and the two machines that a kernel's text is linked with.

The machine of fibers, and all that a kernel sees, are the host device's (gtensor/hostcuda/fibers);
the one of threads, and the server of launches, are in host/.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from kernel_kept import kept
from kernel_text import HOST

from gtensor.hostcuda.build import Arguments, compiler, headers, run
from gtensor.hostcuda.kernels import toolchain

FLAGS = ("-std=c++17", "-O1", "-g1", "-Wall", "-Wextra", "-Werror", "-Wno-unused-function",
         "-Wno-unknown-pragmas", "-fno-omit-frame-pointer", "-DHOSTCUDA_ALL_COME")
LIBRARY = ("-std=c++17", "-Wall", "-Werror", "-shared", "-fPIC")


@dataclass(frozen=True)
class Build:
    """One way to build a text: the machine, its sanitizers, and the copies of the text it wants."""

    machine: Path
    flags: tuple[str, ...]
    copies: int


FIBERS = Build(toolchain.FIBERS / "fibers.cpp",
               ("-fsanitize=address,undefined", "-fno-sanitize-recover=all"), 1)
"""AddressSanitizer and UBSan; threads run in chosen orders."""

THREADS = Build(HOST / "threads.cpp", ("-fsanitize=thread", "-pthread", "-DHOSTCUDA_THREADS"), 2)
"""ThreadSanitizer; threads, and two blocks, run at the same time."""


def sources() -> list[Path]:
    """Our own files that go into what is compiled, beside its text; by name, wherever they lie."""
    found = [*HOST.iterdir(), *toolchain.FIBERS.iterdir(),
             toolchain.PACKAGE / "native" / "kernel_abi.h"]
    return sorted((path for path in found if path.is_file()), key=lambda path: path.name)


class Toolchain:
    """Compiles CUDA text to executables, kept in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        compiler()  # raises where there is none
        self.key = hashlib.sha256(toolchain.versions().encode())
        for path in sources():
            self.key.update(path.name.encode() + path.read_bytes())

    def executable(self, text: str, build: Build = FIBERS) -> Path:
        """The executable for a text that already holds its registrations."""
        def make(room: Path) -> Path:
            unit = room / "text.cpp"
            unit.write_text(text, encoding="utf-8")
            return self._compile(room, build, ("-include", self._prelude(build), unit,
                                               *self.machine(build)))

        return self._kept((text, *_flags(build)), make)

    def machine(self, build: Build = FIBERS) -> list[Path]:
        """The object files of a machine."""
        return [self._kept((source.name, *_flags(build)),
                           partial(self._compile, build=build, arguments=("-c", source)))
                for source in (HOST / "server.cpp", toolchain.FIBERS / "block.cpp", build.machine)]

    def library(self, source: Path) -> Path:
        """The shared library of one source file."""
        return self._kept((source.name, *LIBRARY), partial(self._run, arguments=(*LIBRARY, source)))

    def _prelude(self, build: Build) -> Path:
        """What every text includes first: g++ appends .gch, and finds server.h precompiled."""
        def make(room: Path) -> Path:
            header = room / "prelude.h"
            header.write_text('#include "server.h"\n')
            return self._compile(room, build, ("-x", "c++-header", header))

        return self._kept(("prelude", *_flags(build)), make, ".gch").with_suffix("")

    def _kept(self, depends_on: object, make: Callable[[Path], Path], suffix: str = "") -> Path:
        return kept(self.folder, (self.key.hexdigest(), depends_on), make, suffix)

    def _compile(self, room: Path, build: Build, arguments: Arguments) -> Path:
        return self._run(room, (*_flags(build), "-I", HOST, "-I", toolchain.FIBERS,
                                "-isystem", headers(), *arguments))

    def _run(self, room: Path, arguments: Arguments) -> Path:
        path = room / "made"
        result = run([*arguments, "-o", path])
        if result.returncode:
            raise RuntimeError(
                "g++ refuses a kernel (it wants its libasan, libubsan and libtsan, too):\n"
                + result.stderr[:6000]
            )
        return path


def _flags(build: Build) -> tuple[str, ...]:
    return (*FLAGS, *build.flags)

"""g++ with sanitizers, and the two machines that a kernel's text is linked with.

The machine of fibers, and all that a kernel sees, are the host device's (gtensor/hostcuda/fibers);
the one of threads, and the server of launches, are in host/.
"""

from __future__ import annotations

import hashlib
import subprocess
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from kernel_text import HOST

from gtensor.hostcuda.build import compiler, headers, made
from gtensor.hostcuda.kernels import toolchain

FLAGS = ("-std=c++17", "-O1", "-g1", "-Wall", "-Wextra", "-Werror", "-Wno-unused-function",
         "-Wno-unknown-pragmas", "-fno-omit-frame-pointer", "-DHOSTCUDA_ALL_COME")


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


class Toolchain:
    """Compiles CUDA text to executables, kept in a folder under a hash of what goes into them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.compiler = compiler()
        sources = b"".join(path.read_bytes() for path in sorted(HOST.iterdir()))
        self.key = toolchain.key().encode() + sources + " ".join(FLAGS).encode()

    def executable(self, text: str, build: Build = FIBERS) -> Path:
        """The executable for a text that already holds its registrations."""
        def make(folder: Path) -> Path:
            unit = folder / "text.cpp"
            unit.write_text(text, encoding="utf-8")
            return self._compile([str(unit), *map(str, self.machine(build))], build, folder)

        return made(self._path(text.encode(), build, "exe"), make)

    def machine(self, build: Build = FIBERS) -> list[Path]:
        """The object files of a machine."""
        sources = (HOST / "server.cpp", toolchain.FIBERS / "block.cpp", build.machine)
        return [made(self._path(source.name.encode(), build, "o"),
                     partial(self._compile, ["-c", str(source)], build)) for source in sources]

    def _path(self, text: bytes, build: Build, suffix: str) -> Path:
        digest = hashlib.sha256(self.key + repr(build).encode() + text).hexdigest()
        return self.folder / f"{digest[:24]}.{suffix}"

    def _compile(self, arguments: list[str], build: Build, folder: Path) -> Path:
        path = folder / "made"
        command = [self.compiler, *FLAGS, *build.flags, "-I", str(HOST),
                   "-I", str(toolchain.FIBERS), "-isystem", str(headers()),
                   *arguments, "-o", str(path)]
        result = subprocess.run(command, capture_output=True, text=True)
        if result.returncode:
            raise RuntimeError(
                "g++ refuses a kernel (it wants its libasan, libubsan and libtsan, too):\n"
                + result.stderr[:6000]
            )
        return path

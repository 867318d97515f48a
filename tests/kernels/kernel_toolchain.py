"""g++ with sanitizers, and the two machines of host/ that a kernel's text is linked with."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock
from kernel_text import HOST, cuda_include

FLAGS = ("-std=c++17", "-O1", "-g1", "-Wall", "-Wextra", "-Werror", "-Wno-unused-function",
         "-Wno-unknown-pragmas", "-fno-omit-frame-pointer")


@dataclass(frozen=True)
class Build:
    """One way to build a text: the machine, its sanitizers, and the copies of the text it wants."""

    machine: str
    flags: tuple[str, ...]
    copies: int


FIBERS = Build("fibers.cpp", ("-fsanitize=address,undefined", "-fno-sanitize-recover=all"), 1)
"""AddressSanitizer and UBSan; threads run in chosen orders."""

THREADS = Build("threads.cpp", ("-fsanitize=thread", "-pthread", "-DGT_HOST_THREADS"), 2)
"""ThreadSanitizer; threads, and two blocks, run at the same time."""


class Toolchain:
    """Compiles CUDA text to executables, kept in a folder under a hash of what goes into them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        found = shutil.which("g++")
        if found is None:
            raise FileNotFoundError(
                "no g++ on the PATH; the tests run every CUDA kernel on the CPU and want g++ with "
                "its sanitizer libraries (Debian and Ubuntu: apt-get install g++)"
            )
        self.compiler = found
        version = subprocess.run([found, "--version"], capture_output=True, check=True).stdout
        shim = b"".join(path.read_bytes() for path in sorted(HOST.iterdir()))
        self.key = version + shim + " ".join(FLAGS).encode() + str(cuda_include()).encode()

    def executable(self, text: str, build: Build = FIBERS) -> Path:
        """The executable for a text that already holds its registrations."""
        path = self._path(text.encode(), build, "exe")
        machine = self.machine(build)
        with FileLock(path.with_suffix(".lock")):  # processes that run tests share the folder
            if not path.exists():
                unit = path.with_suffix(".cpp")
                unit.write_text(text, encoding="utf-8")
                self._compile([str(unit), *map(str, machine)], build, path)
        return path

    def machine(self, build: Build = FIBERS) -> list[Path]:
        """The object files of a machine."""
        objects = []
        for source in ("server.cpp", "block.cpp", build.machine):
            path = self._path(source.encode(), build, "o")
            with FileLock(path.with_suffix(".lock")):
                if not path.exists():
                    self._compile(["-c", str(HOST / source)], build, path)
            objects.append(path)
        return objects

    def _path(self, text: bytes, build: Build, suffix: str) -> Path:
        digest = hashlib.sha256(self.key + repr(build).encode() + text).hexdigest()
        return self.folder / f"{digest[:24]}.{suffix}"

    def _compile(self, arguments: list[str], build: Build, path: Path) -> None:
        part = path.with_suffix(".part")
        command = [self.compiler, *FLAGS, *build.flags, "-I", str(HOST),
                   "-isystem", str(cuda_include()), *arguments, "-o", str(part)]
        result = subprocess.run(command, capture_output=True, text=True)
        if result.returncode:
            raise RuntimeError(
                "g++ refuses a kernel (it wants its libasan, libubsan and libtsan, too):\n"
                + result.stderr[:6000]
            )
        part.replace(path)

"""g++, the headers that it is given, and the folder of what it built."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
FIBERS = PACKAGE / "fibers"
INCLUDE = PACKAGE / "kernels" / "include"


class ToolchainError(RuntimeError):
    """g++ refuses a source of this package."""


def compiler() -> str:
    """The path of g++.

    Raises:
        FileNotFoundError: if there is none.
    """
    found = shutil.which("g++")
    if found is None:
        raise FileNotFoundError(
            "no g++ on the PATH; the host device compiles every kernel by it (Debian and Ubuntu: "
            "apt-get install g++)"
        )
    return found


@functools.cache
def cuda_include() -> Path:
    """The folder with cuda_fp16.h, of the installed nvidia-cuda-runtime package.

    Raises:
        FileNotFoundError: if there is none.
    """
    spec = importlib.util.find_spec("nvidia")
    for root in (spec.submodule_search_locations if spec else None) or ():
        for header in sorted(Path(root).glob("*/include/cuda_fp16.h")):
            if (header.parent / "crt").is_dir() and (header.parent / "nv").is_dir():
                return header.parent
    raise FileNotFoundError(
        "no cuda_fp16.h with crt/ and nv/ beside it in an installed nvidia package; wanted the pip "
        "packages nvidia-cuda-runtime, nvidia-cuda-crt and nvidia-cuda-cccl"
    )


@functools.cache
def cupy_include() -> Path | None:
    """The folder of CuPy's own headers; None where CuPy is not installed."""
    spec = importlib.util.find_spec("cupy")
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent / "_core" / "include"


def cache_folder() -> Path:
    """Where builds are kept: `HOSTCUDA_CACHE_DIR`, else a folder of the user's cache."""
    chosen = os.environ.get("HOSTCUDA_CACHE_DIR")
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(chosen) if chosen else Path(base) / "gtensor-hostcuda"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@functools.cache
def key() -> str:
    """Changes with the compiler, with the headers, and with this package's sources."""
    digest = hashlib.sha256()
    binary = Path(compiler()).resolve()
    stat = binary.stat()
    include = cupy_include()
    for word in (binary, stat.st_size, stat.st_mtime_ns, cuda_include(), include,
                 *((include / "cupy").stat().st_mtime_ns,) * (include is not None), sys.byteorder):
        digest.update(f"{word}\n".encode())
    for folder in (FIBERS, INCLUDE, PACKAGE / "kernels", PACKAGE / "native"):
        for path in sorted(folder.rglob("*") if folder == INCLUDE else folder.iterdir()):
            if path.suffix in (".h", ".cuh", ".cpp", ".py") and path.name[0] != "_":
                digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


def run(arguments: Sequence[str | os.PathLike[str]]) -> subprocess.CompletedProcess[str]:
    """Run g++; its messages are in English and without colours."""
    return subprocess.run([compiler(), *map(os.fspath, arguments)], capture_output=True, text=True,
                          errors="replace", env=os.environ | {"LC_ALL": "C"})


@contextlib.contextmanager
def building(path: Path) -> Iterator[Path | None]:
    """Gives a path to write, which becomes `path` if the block ends well; None if `path` is there.

    One process at a time builds the same path; nothing half written is ever seen at it.
    """
    if path.exists():
        yield None
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = path.with_name(path.name + ".lock")
    with open(lock, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if path.exists():
            yield None
            return
        with tempfile.TemporaryDirectory(prefix=path.name, dir=path.parent) as folder:
            part = Path(folder) / path.name
            try:
                yield part
                part.replace(path)
            finally:
                # One that waits for this lock has its own name for the file, and looks for `path`.
                lock.unlink(missing_ok=True)


def built(path: Path, arguments: Sequence[str | os.PathLike[str]]) -> Path:
    """`path`, made by g++ with these arguments if it is not there.

    Raises:
        ToolchainError: with g++'s messages.
    """
    with building(path) as part:
        if part is not None:
            result = run([*arguments, "-o", part])
            if result.returncode:
                raise ToolchainError("g++ refuses a source of the host device:\n" + result.stderr)
    return path

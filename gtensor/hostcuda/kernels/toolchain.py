"""What kernels are compiled with, and the folder of what was compiled."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import importlib.util
import os
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from gtensor.hostcuda import build

PACKAGE = Path(__file__).resolve().parents[1]
FIBERS = PACKAGE / "fibers"
INCLUDE = PACKAGE / "kernels" / "include"


@functools.cache
def cupy_include() -> Path | None:
    """The folder of CuPy's own headers; None where CuPy is not installed."""
    spec = importlib.util.find_spec("cupy")
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent / "_core" / "include"


def cache_folder() -> Path:
    """Where modules and what they are made with are kept."""
    return build.cache() / "kernels" / key()[:24]


@functools.cache
def key() -> str:
    """Changes with the compiler, with the headers, and with this package's sources."""
    digest = hashlib.sha256()
    binary = Path(build.compiler()).resolve()
    stat = binary.stat()
    include = cupy_include()
    cupy = () if include is None else (include, (include / "cupy").stat().st_mtime_ns)
    for word in (binary, stat.st_size, stat.st_mtime_ns, build.headers(), *cupy):
        digest.update(f"{word}\n".encode())
    sources = [PACKAGE / "native" / "kernel_abi.h", *FIBERS.iterdir(),
               *(PACKAGE / "kernels").rglob("*.*")]
    for path in sorted(sources):
        if path.suffix in (".h", ".cuh", ".cpp", ".py"):
            digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


def run(arguments: Sequence[str | os.PathLike[str]]) -> subprocess.CompletedProcess[str]:
    """Run g++; its messages are in English and without colours."""
    return subprocess.run([build.compiler(), *(os.fspath(each) for each in arguments)],
                          capture_output=True, text=True, errors="replace",
                          env=os.environ | {"LC_ALL": "C"})


@contextlib.contextmanager
def locked(path: Path) -> Iterator[Path]:
    """Gives a folder to build in; one process at a time has it for the same path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = path.with_name(path.name + ".lock")
    with open(lock, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            with tempfile.TemporaryDirectory(prefix=path.name, dir=path.parent) as folder:
                yield Path(folder)
        finally:
            # Another one may hold a lock of this name next: all look whether `path` is there.
            lock.unlink(missing_ok=True)


def built(path: Path, arguments: Sequence[str | os.PathLike[str]]) -> Path:
    """`path`, made by g++ with these arguments if it is not there.

    Raises:
        Unusable: with g++'s messages.
    """
    if not path.exists():
        with locked(path) as folder:
            part = folder / path.name
            if not path.exists():
                result = run([*arguments, "-o", part])
                if result.returncode:
                    raise build.Unusable("hostcuda could not be compiled:\n" + result.stderr)
                part.replace(path)  # nothing half written is ever seen there
    return path

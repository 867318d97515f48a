"""What kernels are compiled with, and the folder of what was compiled."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import importlib.util
from pathlib import Path

from gtensor.hostcuda import build

PACKAGE = Path(__file__).resolve().parents[1]
FIBERS = PACKAGE / "fibers"
INCLUDE = PACKAGE / "kernels" / "include"
_CUPY = "cupy-cuda13x"
_PACKAGES = (_CUPY, "nvidia-cuda-runtime", "nvidia-cuda-nvrtc", "nvidia-cuda-crt",
             "nvidia-cuda-cccl")  # whose headers kernels include


@functools.cache
def cupy_include() -> Path | None:
    """The folder of CuPy's own headers; None where CuPy is not installed."""
    spec = importlib.util.find_spec("cupy")
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent / "_core" / "include"


def cache_folder() -> Path:
    """Where modules and what they are made with are kept."""
    return build.used(build.cache() / "kernels" / key()[:24])


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _headers(package: str) -> str:
    """The version of a package's headers; without one, as of a CuPy built here, their contents."""
    version = _version(package)
    folder = cupy_include() if package == _CUPY else build.headers()
    return version if version or folder is None else _contents(folder)


@functools.cache
def _contents(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        digest.update(str(path.relative_to(folder)).encode() + path.read_bytes())
    return digest.hexdigest()


def versions() -> str:
    """Of g++, and of the packages whose headers kernels include."""
    return "\n".join([build.version(), *map(_headers, _PACKAGES)])


@functools.cache
def key() -> str:
    """Changes with the compiler, with the headers, and with this package's sources.

    No path is part of it: installations of the same contents share what they compile.
    """
    digest = hashlib.sha256(versions().encode())
    sources = [PACKAGE / "native" / "kernel_abi.h", *FIBERS.iterdir(),
               *(PACKAGE / "kernels").rglob("*.*")]
    for path in sorted(sources):
        if path.suffix in (".h", ".cuh", ".cpp", ".py"):
            digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()

"""Builds by g++, cached on disk by their text; libhostcuda, built with NVIDIA's headers."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

_NATIVE = Path(__file__).parent / "native"
_FLAGS = ("-std=c++20", "-O1", "-g1", "-fPIC", "-fno-semantic-interposition", "-Wall", "-Wextra",
          "-Wno-deprecated-declarations")
_STAMP = "used"  # the file in a folder of compiled things whose time is that of its last use
_KEPT = 30 * 24 * 3600  # seconds that such a folder is kept without being used
_held: list[int] = []  # descriptors of the stamps of the folders that this process uses
_LIBRARIES = {  # file -> what it consists of; the file's name is the one that programs open
    "libcuda.so.1": None,  # all others
    "libnvrtc.so.13": ("nvrtc",),
    "libnccl.so.2": ("nccl", "nccl_reduce", "nccl_shared"),  # calls the first one
}


class Unusable(RuntimeError):
    """This machine or this CuPy cannot be used; the message is one sentence."""


def cache() -> Path:
    """The folder for what was compiled: GTENSOR_HOSTCUDA_CACHE, or one of the user's."""
    given = os.environ.get("GTENSOR_HOSTCUDA_CACHE")
    if given:
        return Path(given)
    try:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError as error:
        raise Unusable(f"hostcuda keeps what it compiles, and this user has no home ({error}); "
                       "let GTENSOR_HOSTCUDA_CACHE name a folder") from error
    return Path(base) / "gtensor" / "hostcuda"


def compiler() -> str:
    """g++'s path."""
    found = shutil.which("g++")
    if found is None:
        raise Unusable("hostcuda compiles with g++, which is not on PATH; install g++ 12 or newer")
    return found


@functools.cache
def version() -> str:
    """g++'s description of itself."""
    return run(["--version"]).stdout


Arguments = Sequence[str | os.PathLike[str]]


def run(arguments: Arguments) -> subprocess.CompletedProcess[str]:
    """Run g++; its messages are in English and without colours."""
    return subprocess.run([compiler(), *(os.fspath(each) for each in arguments)],
                          capture_output=True, text=True, errors="replace",
                          env=os.environ | {"LC_ALL": "C"})


def gpp(arguments: Arguments) -> None:
    """Run g++. Raises Unusable with its messages."""
    result = run(arguments)
    if result.returncode:
        raise Unusable("hostcuda could not be compiled:\n" + result.stderr)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[Path]:
    """A folder to build in, which one process at a time has for a path."""
    lock = path.with_name(path.name + ".lock")
    try:
        held = _hold(lock, fcntl.LOCK_EX)
    except OSError as error:
        raise Unusable(f"hostcuda cannot write into {path.parent} ({error.strerror}); let "
                       "GTENSOR_HOSTCUDA_CACHE name a folder that it can write into") from error
    try:
        with tempfile.TemporaryDirectory(prefix=path.name, dir=path.parent) as folder:
            yield Path(folder)
    finally:
        lock.unlink(missing_ok=True)
        os.close(held)


def _hold(path: Path, how: int) -> int:
    """A descriptor of the file of this name, made if it is not there, opened and locked.

    A process that waits for a lock may get that of a file that was removed meanwhile.
    """
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            file = _lock(path, os.O_RDWR | os.O_CREAT, how)
            if file is not None:
                return file


def _lock(path: Path, flags: int, how: int) -> int | None:
    """A locked descriptor of a file; None if another file has its name by then.

    It is no file object, which would warn at the end of the process that it was left open.
    """
    file = os.open(path, flags, 0o666)
    try:
        fcntl.flock(file, how)
        if os.path.samestat(os.fstat(file), path.stat()):
            file, held = -1, file
            return held
    except (BlockingIOError, FileNotFoundError):
        raise
    except OSError as error:
        raise Unusable(f"hostcuda cannot lock {path} ({error.strerror}); let "
                       "GTENSOR_HOSTCUDA_CACHE name a folder of a file system that has locks"
                       ) from error
    finally:
        if file >= 0:
            os.close(file)
    return None


@functools.cache
def used(folder: Path) -> Path:
    """`folder`, which stays while this process runs; what is long unused beside it is removed."""
    with contextlib.suppress(OSError, Unusable):  # a cache may be read-only, or without locks
        stamp = folder / _STAMP
        _held.append(_hold(stamp, fcntl.LOCK_SH))
        os.utime(stamp)
        clear(folder.parent)
    return folder


def clear(folder: Path) -> None:
    """Remove what is in a folder, and has not been used for long, by any process."""
    with contextlib.suppress(OSError):  # it may be absent, and others remove at the same time
        for each in folder.iterdir():
            with contextlib.suppress(OSError, Unusable):
                _remove(each)


def _is_old(path: Path) -> bool:
    """Whether the last use is long ago; without a stamp, the last change."""
    stamp = path / _STAMP
    return time.time() - (stamp if stamp.exists() else path).stat().st_mtime > _KEPT


def _remove(path: Path) -> None:
    """Remove a file or a folder, unless a process uses it or has used it lately."""
    if not _is_old(path):
        return
    if not path.is_dir():
        path.unlink()
        return
    stamp = path / _STAMP
    held = _lock(stamp, os.O_RDWR, fcntl.LOCK_EX | fcntl.LOCK_NB) if stamp.exists() else None
    try:
        if _is_old(path):
            # Renamed first: a process that needs it meanwhile makes a new one.
            gone = path.rename(path.with_name(f"{path.name}.{os.getpid()}"))
            shutil.rmtree(gone, ignore_errors=True)
    finally:
        if held is not None:
            os.close(held)


def made(path: Path, make: Callable[[Path], Path],
         is_whole: Callable[[Path], bool] = Path.exists) -> Path:
    """`path`: what `make` makes in the folder that it is given, unless a whole one is there."""
    if is_whole(path):
        with contextlib.suppress(OSError):  # a cache may be one that is only read
            os.utime(path)  # so that `clear` leaves it
        return path
    with locked(path) as folder:
        if not is_whole(path):
            make(folder).rename(path)  # atomic: nothing incomplete is found there
    return path


def built(path: Path, arguments: Arguments) -> Path:
    """`path`, made by g++ with these arguments if it is not there. Raises Unusable."""
    def make(folder: Path) -> Path:
        gpp([*arguments, "-o", folder / path.name])
        return folder / path.name

    return made(path, make)


def headers() -> Path:
    """The folder of NVIDIA's headers."""
    package = importlib.util.find_spec("nvidia")
    for place in (package.submodule_search_locations or []) if package else []:
        folder = Path(place) / "cu13" / "include"
        if all((folder / name).exists() for name in ("cuda_runtime_api.h", "cuda.h", "nvrtc.h",
                                                     "crt/host_defines.h", "cuda_fp16.h",
                                                     "nv/target")):
            return folder
    raise Unusable("hostcuda compiles against NVIDIA's headers, which are not installed; install "
                   "gtensor[hostcuda] (nvidia-cuda-runtime, nvidia-cuda-nvrtc, nvidia-cuda-crt, "
                   "nvidia-cuda-cccl)")


def enumeration(header: str, prefix: str) -> dict[str, int]:
    """Name -> value of the enumerators that begin so and have a number."""
    text = (headers() / header).read_text(errors="replace")
    found = re.findall(rf"^\s*({prefix}\w+)\s*=\s*(0x[0-9a-fA-F]+|\d+)", text, re.MULTILINE)
    return {name: int(value, 0) for name, value in found}


def libraries() -> dict[str, Path]:
    """File name -> path of each library, compiled if it is not there yet."""
    include = headers()
    sources = sorted(_NATIVE.glob("*.cpp"))
    tools = hashlib.sha256(version().encode() + repr(_FLAGS).encode())
    for name in ("cuda_runtime_api.h", "driver_types.h", "cuda.h", "nvrtc.h"):
        tools.update((include / name).read_bytes())
    key = tools.copy()
    for path in sorted(_NATIVE.iterdir()):
        key.update(path.name.encode() + path.read_bytes())
    place = used(cache() / "native" / key.hexdigest()[:24])
    folder = made(place / "libraries",
                  lambda room: _libraries(include, sources, tools.digest(), room))
    return {name: folder / name for name in _LIBRARIES}


def _libraries(include: Path, sources: list[Path], tools: bytes, room: Path) -> Path:
    """All libraries, in a folder within `room`; `tools` changes with g++ and NVIDIA's headers."""
    folder = room / "libraries"
    folder.mkdir()
    for name, header, prefix in (("runtime_errors", "driver_types.h", "cuda(?:Error|Success)"),
                                 ("driver_errors", "cuda.h", "CUDA_(?:ERROR_|SUCCESS)")):
        lines = (f'{{{value}, "{each}"}},\n' for each, value in enumeration(header, prefix).items())
        (room / f"{name}.inc").write_text("".join(lines))

    shared = b"".join(path.read_bytes() for path in sorted(_NATIVE.glob("*.h")))

    def compiled(source: Path) -> Path:  # kept by its text: a change of one file compiles one
        key = hashlib.sha256(tools + shared + source.read_bytes())
        return built(room.parents[1] / f"{source.stem}-{key.hexdigest()[:24]}.o",
                     [*_FLAGS, f"-isystem{include}", f"-I{room}", "-c", source])

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = dict(zip((source.stem for source in sources), pool.map(compiled, sources),
                           strict=True))
    for name, parts in _LIBRARIES.items():
        alone = {part for others in _LIBRARIES.values() for part in others or ()}
        chosen = [path for stem, path in objects.items()
                  if (stem in parts if parts else stem not in alone)]
        needed = [folder / "libcuda.so.1"] if name == "libnccl.so.2" else []
        gpp(["-shared", f"-Wl,-soname,{name}", "-Wl,-z,defs", *chosen, *needed, "-ldl", "-pthread",
             "-o", folder / name])
    return folder

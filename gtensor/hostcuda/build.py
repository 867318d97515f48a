"""libhostcuda: compiled by g++ against NVIDIA's own headers, once per text, and kept on disk."""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

_NATIVE = Path(__file__).parent / "native"
_FLAGS = ("-std=c++20", "-O1", "-g1", "-fPIC", "-fno-semantic-interposition", "-Wall", "-Wextra",
          "-Wno-deprecated-declarations")
_LIBRARIES = {  # file -> what it consists of; the file's name is the one that programs open
    "libcuda.so.1": None,  # all others
    "libnvrtc.so.13": ("nvrtc",),
}


class Unusable(RuntimeError):
    """This machine or this CuPy cannot be used; one sentence that says what is wanted."""


def cache() -> Path:
    """The folder for what was compiled: GTENSOR_HOSTCUDA_CACHE, or one of the user's."""
    given = os.environ.get("GTENSOR_HOSTCUDA_CACHE")
    if given:
        return Path(given)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "gtensor" / "hostcuda"


def compiler() -> str:
    """g++'s path."""
    found = shutil.which("g++")
    if found is None:
        raise Unusable("hostcuda compiles with g++, which is not on PATH; install g++ 12 or newer")
    return found


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
    gpp, include = compiler(), headers()
    sources = sorted(_NATIVE.glob("*.cpp"))
    key = hashlib.sha256(subprocess.run([gpp, "--version"], capture_output=True).stdout)
    for path in sorted(_NATIVE.iterdir()):
        key.update(path.name.encode() + path.read_bytes())
    for name in ("cuda_runtime_api.h", "driver_types.h", "cuda.h", "nvrtc.h"):
        key.update((include / name).read_bytes())
    key.update(" ".join(_FLAGS).encode())
    folder = cache() / "native" / key.hexdigest()[:24]
    paths = {name: folder / name for name in _LIBRARIES}
    if all(path.exists() for path in paths.values()):
        return paths
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not all(path.exists() for path in paths.values()):
            _compile(gpp, include, sources, folder)
    return paths


def _compile(gpp: str, include: Path, sources: list[Path], folder: Path) -> None:
    for name, header, prefix in (("runtime_errors", "driver_types.h", "cuda(?:Error|Success)"),
                                 ("driver_errors", "cuda.h", "CUDA_(?:ERROR_|SUCCESS)")):
        lines = (f'{{{value}, "{each}"}},\n' for each, value in enumeration(header, prefix).items())
        (folder / f"{name}.inc").write_text("".join(lines))

    shared = b"".join(path.read_bytes() for path in sorted(_NATIVE.glob("*.h")))

    def compiled(source: Path) -> Path:  # kept by its text: a change of one file compiles one
        text = shared + source.read_bytes() + repr((gpp, _FLAGS)).encode()
        key = hashlib.sha256(text).hexdigest()
        made = folder.parent / f"{source.stem}-{key[:24]}.o"
        if not made.exists():
            part = folder / f"{source.stem}.o"
            _call([gpp, *_FLAGS, f"-isystem{include}", f"-I{folder}", "-c", str(source),
                   "-o", str(part)])
            part.rename(made)
        return made

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = dict(zip((source.stem for source in sources), pool.map(compiled, sources),
                           strict=True))
    for name, parts in _LIBRARIES.items():
        alone = {part for others in _LIBRARIES.values() for part in others or ()}
        chosen = [str(path) for stem, path in objects.items()
                  if (stem in parts if parts else stem not in alone)]
        made = folder / f"{name}.made"
        _call([gpp, "-shared", f"-Wl,-soname,{name}", "-Wl,-z,defs", "-o", str(made), *chosen,
               "-ldl", "-pthread"])
        made.rename(folder / name)


def _call(command: list[str]) -> None:
    ran = subprocess.run(command, capture_output=True, text=True)
    if ran.returncode:
        raise Unusable(f"hostcuda could not be compiled: {' '.join(command)}\n{ran.stderr}")

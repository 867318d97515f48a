"""Stand-ins for NVIDIA's libraries: cuBLAS, cuBLASLt, cuSOLVER, cuFFT, cuRAND, CUB and Thrust.

`load` loads stub libraries in place of NVIDIA's, before CuPy's modules; `patches` has the functions
to replace inside CuPy's modules: CUB, Thrust, the random generators. cuSPARSE returns "not
supported". `missing` lists calls of functions that are not implemented.
"""

import ctypes
import pathlib

from gtensor.hostcuda import elf
from gtensor.hostcuda.libraries import (
    cub,
    cublas,
    cublaslt,
    cufft,
    curand,
    cusolver,
    cusparse,
    stubs,
    thrust,
)
from gtensor.hostcuda.libraries.calls import runtime

# Libraries that cuBLAS, cuSOLVER and cuSPARSE need in their turn, and that are looked for by name.
DEPENDENCIES = (("libnvJitLink.so.13", "nvJitLinkVersion"),)
LIBRARIES = tuple(
    module.library for module in (cublas, cublaslt, cusolver, cufft, curand, cusparse)
)
MODULES = (cub.library, thrust.library, curand.kernels)
# Where CuPy's modules lie that need NVIDIA's libraries.
FOLDERS = ("cupy_backends/cuda/libs", "cupy/cuda", "cupyx")


def wanted(packages: pathlib.Path) -> dict[str, set[str]]:
    """What CuPy's modules import from each library: SONAME -> names, by their prefix."""
    modules = [path for folder in FOLDERS for path in sorted((packages / folder).glob("*.so"))]
    imported = set().union(*(elf.wanted(module) for module in modules))
    begins = {library.soname: library.soname[3:].split(".")[0] for library in LIBRARIES}
    return {
        soname: {name for name in imported if name.startswith(begin)}
        for soname, begin in begins.items()
    }


def sonames() -> list[str]:
    """The libraries that stubs stand in for."""
    return [library.soname for library in LIBRARIES] + [soname for soname, _ in DEPENDENCIES]


def load(packages: pathlib.Path, native: ctypes.CDLL | None = None) -> list[stubs.Stub]:
    """Loads the stubs for the CuPy that lies in this folder of packages.

    `native` is libhostcuda, into whose streams the work is put; without it work runs at once.
    """
    if native is not None:
        runtime.attach(native)
    names = wanted(packages)
    loaded = [library.load(names[library.soname]) for library in LIBRARIES]
    loaded += [stubs.Stub(soname, [name], 1) for soname, name in DEPENDENCIES]
    if native is not None:
        note = ctypes.cast(native.hostcuda_missing, ctypes.c_void_p).value or 0
        for stub in loaded:
            stub.note(note)
    return loaded


def patches() -> dict[str, dict[str, int]]:
    """{module of CuPy: {symbol: address of the function that replaces it}}."""
    return {module.soname: module.addresses() for module in MODULES}


def missing() -> list[str]:
    """The functions that were called and are not implemented."""
    return sorted(name for library in LIBRARIES for name in library.missing())


__all__ = ["LIBRARIES", "MODULES", "load", "missing", "patches", "sonames"]

"""Put the stand-ins under CuPy, before it is imported."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.metadata
import importlib.util
import os
import platform
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from gtensor.hostcuda import build, elf
from gtensor.hostcuda.build import Unusable
from gtensor.hostcuda.card import Card

CUPY = "14.2."
_RUNTIMES = (  # CuPy's extension modules that contain NVIDIA's runtime
    "cupy_backends/cuda/api/runtime", "cupy/cuda/cub", "cupy/cuda/thrust", "cupy/cuda/jitify",
    "cupy/random/_generator_api",
)
_MODES = ("eager", "deferred")
_COMPILERS = ("g++", "nvrtc")
_STICKY = (700, 702, 710, 716, 719)  # the errors of a device that stay
_MOST = 4  # devices
_SECONDS = "GTENSOR_HOSTCUDA_KERNEL_SECONDS"
_MOST_SECONDS = 1e9  # 30 years
_NVRTC = "libnvrtc.so.13"
_CUPY_CACHE = "hostcuda"  # the last folder in CUPY_CACHE_DIR

_kept: list[Any] = []  # what machine code refers to: never freed


class Native:
    """libhostcuda, loaded; its own functions with their types."""

    def __init__(self, paths: dict[str, Path]) -> None:
        self.cuda = ctypes.CDLL(str(paths["libcuda.so.1"]))
        nvrtc = paths.get(_NVRTC)  # None: NVIDIA's own compiles
        self.nvrtc = None if nvrtc is None else ctypes.CDLL(str(nvrtc))
        self.nccl = ctypes.CDLL(str(paths["libnccl.so.2"]))
        text, size, number = ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int
        self.cuda.hostcuda_add_device.argtypes = (text, size, ctypes.POINTER(number), size)
        self.cuda.hostcuda_configure.argtypes = (number, number, ctypes.c_ulonglong)
        self.cuda.hostcuda_lose_device.argtypes = (number, text)
        self.cuda.hostcuda_set_memory.argtypes = (number, size)
        self.cuda.hostcuda_random.restype = ctypes.c_ulonglong

    def address(self, name: str) -> int | None:
        """The address of a function of libhostcuda, None if it has none of that name."""
        function = getattr(self.cuda, name, None)
        return None if function is None else ctypes.cast(function, ctypes.c_void_p).value


_native: Native | None = None  # set once the installation is complete
_begun = False  # whether stand-in libraries are loaded
_devices = 0
_compiler = _COMPILERS[0]
_set: dict[str, Any] = {}  # the latest arguments of `configure`


def native() -> Native:
    """libhostcuda of this process; raises RuntimeError before `install`."""
    if _native is None:
        raise RuntimeError("gtensor.hostcuda is not installed in this process; call install()")
    return _native


def installed() -> bool:
    """Whether CuPy runs on the host in this process."""
    return _native is not None


def present() -> dict[str, Any]:
    """The arguments of `install`, with later changes by `configure`."""
    native()
    return {"devices": _devices, "compiler": _compiler, **_set}


def install(mode: str = "eager", devices: int = 1, seed: int = 0, dry: bool = False,
            card: Card | None = None, compiler: str = "g++") -> None:
    """Let CuPy, cuda-bindings and ctypes find CUDA devices that this machine's CPU simulates.

    Call it before CuPy is imported. `mode` "eager" runs each operation when it is queued,
    "deferred" when something waits for it, in an order drawn by `seed` among those that CUDA
    allows. With `dry` operations are counted and not run. Raises Unusable, with one sentence, if it
    cannot.

    `compiler` "g++" compiles kernels for the CPU. With "nvrtc", which needs `dry`, NVIDIA's own
    NVRTC compiles them for the card: what does not compile for it is refused, launches are checked
    by the registers and the shared memory that the kernels take, and CUPY_CACHE_DIR holds the files
    that a machine with such a card looks for. The kernels do nothing.
    """
    global _native, _begun, _devices, _compiler
    _check_compiler(compiler, dry)
    _check(mode, devices)
    seconds = _kernel_seconds()
    if _native is not None:
        raise RuntimeError("gtensor.hostcuda is installed already; configure() changes its mode")
    if _begun:
        raise RuntimeError("an earlier install() failed half-way in this process; wanted a new one")
    folder = _cupy()
    paths = build.libraries()
    if compiler == "nvrtc":
        _load_nvrtc()
        del paths[_NVRTC]
    from gtensor.hostcuda import libraries, wiring  # SciPy is not for every run of pytest

    _check_loaded((*paths, *libraries.sonames()))
    _begun = True
    native = Native(paths)
    card = card or Card()
    _add_devices(native, devices, card)
    caches = [build.cache() / "stubs"]
    if compiler == "nvrtc":
        native.cuda.hostcuda_take_cubins()
    else:
        os.environ["CUPY_CACHE_DIR"] = str(_cupy_cache())
        caches.append(_cupy_cache())
    with _expected("CuPy's modules are"):
        _kept.append(wiring.connect(native, folder, card.capability, seconds))
    for cache in caches:
        build.clear(cache)
    inside = libraries.patches()
    for name in _RUNTIMES:
        with _expected(f"CuPy's module {name} is"):
            _patch(native, folder, name, inside.get(name, {}))
    _native, _devices, _compiler = native, devices, compiler
    configure(mode, seed, dry)


def configure(mode: str = "eager", seed: int = 0, dry: bool = False) -> dict[str, Any]:
    """Change the mode of a process in which it is installed, once all work has run.

    Returns the settings before, for `configure(**before)`.
    """
    global _set
    _check_mode(mode)
    _check_compiler(_compiler, dry)
    native().cuda.hostcuda_configure(mode == "deferred", dry, seed)
    before, _set = _set, {"mode": mode, "seed": seed, "dry": dry}
    return before


def fail(code: int = 700, why: str = "hostcuda.fail was called") -> None:
    """Let the current device answer from now on as after a fault of a kernel, in dry mode, too.

    `code` is the error, one of those that stay, and `why` the sentence in its text. An error that
    the device answers already stays in its place. `forgive` clears it. It is for tests of programs
    that must survive the loss of a device.
    """
    if code not in _STICKY:
        raise ValueError(f"code is one of {', '.join(map(str, _STICKY))}, got {code!r}")
    native().cuda.hostcuda_lose_device(code, why.encode())


def forgive() -> None:
    """Clear sticky errors (illegal accesses), once all work has run, for tests of them."""
    from gtensor.hostcuda.libraries.calls import runtime

    native().cuda.hostcuda_forgive()
    runtime.failures.clear()


def _check_mode(mode: str) -> None:
    if mode not in _MODES:
        raise ValueError(f"mode is one of {', '.join(_MODES)}, got {mode!r}")


def _check_compiler(compiler: str, dry: bool) -> None:
    if compiler not in _COMPILERS:
        raise ValueError(f"compiler is one of {', '.join(_COMPILERS)}, got {compiler!r}")
    if compiler == "nvrtc" and not dry:
        raise ValueError("compiler 'nvrtc' needs dry=True: a CPU does not run what NVRTC compiles")


def _check(mode: str, devices: int) -> None:
    _check_mode(mode)
    if not 1 <= devices <= _MOST:
        raise ValueError(f"devices is 1 to {_MOST}, got {devices}")
    if sys.platform != "linux" or platform.machine() != "x86_64":
        raise Unusable("hostcuda runs on Linux x86-64, this is "
                       f"{sys.platform} {platform.machine()}")
    if platform.python_implementation() != "CPython":
        raise Unusable(f"hostcuda needs CPython, this is {platform.python_implementation()}")
    loaded = sorted(name for name in sys.modules if name.split(".")[0] in ("cupy", "cupy_backends"))
    if loaded:
        raise RuntimeError(f"hostcuda goes under CuPy before it is imported; {loaded[0]} is")


def _kernel_seconds() -> float:
    """The seconds of the CPU's time that a launch may take; 0: any."""
    given = os.environ.get(_SECONDS, "120")
    with contextlib.suppress(ValueError):
        if 0 <= float(given) <= _MOST_SECONDS:  # NaN is no number
            return float(given)
    raise Unusable(f"{_SECONDS} is the seconds that a kernel may run, 0 to {_MOST_SECONDS:g} (0: "
                   f"without limit), got {given!r}")


def _check_loaded(names: Iterable[str]) -> None:
    """The dynamic loader takes a library that is loaded for any other of the same name."""
    for name in names:
        with contextlib.suppress(OSError):
            ctypes.CDLL(name, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
            raise Unusable(f"{name} is loaded in this process already; hostcuda must be installed "
                           "before it is (before torch is imported, for example)")


def _load_nvrtc() -> None:
    """Load NVIDIA's NVRTC as CuPy does."""
    try:
        from cuda.pathfinder import DynamicLibNotFoundError, load_nvidia_dynamic_lib

        with contextlib.suppress(DynamicLibNotFoundError):
            load_nvidia_dynamic_lib("nvrtc")
        ctypes.CDLL(_NVRTC, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    except (ImportError, OSError):
        raise Unusable(f"compiler 'nvrtc' is NVIDIA's {_NVRTC}, which was not found; install "
                       "nvidia-cuda-nvrtc==13.*") from None


def _cupy_cache() -> Path:
    """A cache folder that no real device reads images from; child processes use the same."""
    given = Path(os.environ.get("CUPY_CACHE_DIR") or build.cache() / "cupy")
    return given if given.name == _CUPY_CACHE else given / _CUPY_CACHE


def _cupy() -> Path:
    """The folder of CuPy's packages."""
    try:
        version = importlib.metadata.version("cupy-cuda13x")
    except importlib.metadata.PackageNotFoundError:
        raise Unusable("hostcuda stands under the wheel cupy-cuda13x, which is not installed; "
                       f"install cupy-cuda13x=={CUPY}*") from None
    if not version.startswith(CUPY):
        raise Unusable(f"hostcuda knows cupy-cuda13x {CUPY}*, found {version}; install "
                       f"cupy-cuda13x=={CUPY}*")
    spec = importlib.util.find_spec("cupy")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent.parent


def _add_devices(native: Native, devices: int, card: Card) -> None:
    values = build.enumeration("driver_types.h", "cudaDevAttr")
    driver = build.enumeration("cuda.h", "CU_DEVICE_ATTRIBUTE_")
    attributes = dict.fromkeys(values.values(), 0)  # what the card does not state, it does not have
    attributes |= {values["cudaDevAttr" + name]: value for name, value in card.attributes.items()}
    attributes |= {driver["CU_DEVICE_ATTRIBUTE_" + name]: value
                   for name, value in card.driver.items()}
    flat = (ctypes.c_int * (2 * len(attributes)))(
        *(number for pair in attributes.items() for number in pair))
    for _ in range(devices):
        native.cuda.hostcuda_add_device(card.name.encode(), card.memory, flat, len(attributes))


@contextlib.contextmanager
def _expected(what: str) -> Iterator[None]:
    """Raise Unusable if CuPy's files are not the tested ones."""
    try:
        yield
    except (OSError, elf.NoSymbols) as error:
        raise Unusable(f"{what} not as expected ({error}); install the wheel "
                       f"cupy-cuda13x=={CUPY}*") from error


def _patch(native: Native, folder: Path, name: str, inside: dict[str, int]) -> None:
    suffix = f".cpython-3{sys.version_info.minor}-x86_64-linux-gnu.so"
    path = folder / (name + suffix)
    defined = elf.functions(path)
    names = [each for each in defined if each.startswith("cuda") and each[4:5].isupper()]
    if "cudaMalloc" not in names:
        raise elf.NoSymbols("it does not contain NVIDIA's runtime")
    here = {each: native.address(each) for each in names}
    absent = elf.Named(native.address("hostcuda_missing") or 0,
                       [each for each, address in here.items() if address is None])
    _kept.append(absent)
    _kept.append(elf.patch(path, {each: address or absent.addresses[each]
                                  for each, address in here.items()} | inside))

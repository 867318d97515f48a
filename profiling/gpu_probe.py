"""What GPU this machine has, and whether CuPy can use it.

    python profiling/gpu_probe.py               # one line; exit status 1 if CuPy cannot
    python profiling/gpu_probe.py --describe    # the card, the tools and the packages

It loads the driver by itself, so that nothing else can fail first, and changes no setting.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import re
import subprocess
import sys

# Read only: nothing here changes a setting of the card.
CARD = ("name,driver_version,memory.total,memory.used,compute_cap,clocks.sm,clocks.max.sm,"
        "clocks.mem,power.limit,mig.mode.current,compute_mode,ecc.mode.current")
PACKAGES = ("numpy", "cupy-cuda12x", "cupy-cuda13x", "ml_dtypes", "nvtx", "torch", "pytest",
            "pytest-xdist", "hypothesis", "expecttest", "scikit-learn", "safetensors",
            "cuda-bindings", "nvidia-cuda-nvrtc", "nvidia-cuda-runtime", "nvidia-cublas",
            "nvidia-nccl-cu13", "mpi4py")


def look() -> str:
    """The card and the driver. Raises SystemExit with one sentence if CuPy cannot use them."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise SystemExit(f"no CUDA device on this machine ({error}); nothing was run") from None
    count, version, name = ctypes.c_int(), ctypes.c_int(), ctypes.create_string_buffer(100)
    failed = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    if failed or not count.value:
        raise SystemExit("no CUDA device on this machine"
                         + (f" (the driver answers CUDA error {failed})" if failed else "")
                         + "; nothing was run")
    driver.cuDriverGetVersion(ctypes.byref(version))
    driver.cuDeviceGetName(name, len(name), 0)
    wheels = {wheel: wanted for wheel, wanted in (("cupy-cuda13x", 13), ("cupy-cuda12x", 12))
              if installed(wheel)}
    if not wheels and importlib.util.find_spec("cupy") is None:
        raise SystemExit("CuPy is not installed for this Python, and everything here needs it; "
                         "install cupy-cuda13x, or let PYTHON name an interpreter that has it")
    has = f"{version.value // 1000}.{version.value % 1000 // 10}"
    for wheel, wanted in wheels.items():
        if version.value < wanted * 1000:
            raise SystemExit(f"the driver is one for CUDA {has}, and {wheel} needs {wanted}.0 or "
                             "newer; nothing was run")
    return f"{count.value} x {name.value.decode()}, a driver for CUDA {has}"


def installed(package: str) -> bool:
    try:
        importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def describe() -> None:
    """Print the card, the tools and the packages."""
    def said(*words: str) -> str:
        try:
            call = subprocess.run(words, capture_output=True, text=True, timeout=4)
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"missing: {type(error).__name__}"
        return call.stdout.strip() or call.stderr.strip()

    print("python", sys.version.split()[0])
    for name in PACKAGES:
        print(name, importlib.metadata.version(name) if installed(name) else "missing")
    sys.stdout.flush()
    for tool in ("nvcc", "compute-sanitizer", "nsys"):
        lines = [line for line in said(tool, "--version").splitlines()
                 if re.search(r"release|version|missing", line, re.IGNORECASE)]
        print(f"{tool}: {lines[-1] if lines else 'says no version'}")
    print("nvidia-smi:", said("nvidia-smi", "--format=csv", f"--query-gpu={CARD}"))
    sys.stdout.flush()
    subprocess.run([sys.executable, "-m", "gtensor", "info"], check=False)


if __name__ == "__main__":
    if sys.argv[1:] == ["--describe"]:
        describe()
    else:
        print(look())

"""What a measurement ran on: versions, processor, GPU. No host name, no user, no path."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import re
import sys
from pathlib import Path
from typing import Any

PACKAGES = ("gtensor", "numpy", "cupy-cuda13x", "cupy-cuda12x", "torch", "autograd", "mygrad",
            "ml_dtypes", "nvtx", "threadpoolctl", "scipy")


def cores() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0))


def slug(device: str) -> str:
    """A short name for a folder of results: "cpu-2core", "h200"."""
    if device == "cpu":
        return f"cpu-{cores()}core"
    words = re.findall(r"[a-z0-9]+", gpu()["name"].lower())
    return "-".join(word for word in words if word != "nvidia")


def describe(device: str) -> dict[str, Any]:
    """The machine, as it stands in a result."""
    from gtensor.profiler.machine import processor  # late: NumPy's threads are set first

    found: dict[str, Any] = {
        "slug": slug(device), "system": platform.system(), "architecture": platform.machine(),
        "processor": processor(), "cores": cores(), "memory_bytes": _memory_bytes(),
    }
    if device != "cpu":
        found["gpu"] = gpu()
    return found


def gpu() -> dict[str, Any]:
    """The first GPU, as CuPy sees it."""
    import cupy

    runtime = cupy.cuda.runtime
    properties = runtime.getDeviceProperties(0)
    return {
        "name": properties["name"].decode(), "memory_bytes": properties["totalGlobalMem"],
        "multiprocessors": properties["multiProcessorCount"],
        "compute_capability": f"{properties['major']}.{properties['minor']}",
        "driver": runtime.driverGetVersion(), "runtime": runtime.runtimeGetVersion(),
    }


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that matter here; a checkout's own from its source."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    if "gtensor" in sys.modules:
        found["gtensor"] = sys.modules["gtensor"].__version__
    return found


def command() -> str:
    """The command line that made a result, without folders."""
    given = iter(sys.argv[1:])
    kept = []
    for word in given:
        if word == "--out":
            next(given, None)
        elif not word.startswith("--out="):
            kept.append(word)
    return " ".join(["python", f"profiling/{Path(sys.argv[0]).name}", *kept])


def now() -> str:
    """Date and time, UTC."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

"""Facts about this machine: devices, versions, settings, and missing packages."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
import re
import shutil
import sys
import textwrap
from pathlib import Path
from typing import Any

from gtensor.backend import Device, cuda_device_count, default_device, visible_devices
from gtensor.backend.kernels import files, folder
from gtensor.settings import settings

_PACKAGES = {  # import name -> (distribution, what it is for, how to get it)
    "numpy": ("numpy", "the CPU device", "pip install numpy"),
    "ml_dtypes": ("ml_dtypes", "bfloat16", "pip install ml_dtypes"),
    "nvtx": ("nvtx", "ranges in Nsight Systems", "pip install nvtx"),
    "opt_einsum": ("opt_einsum", "einsum of three operands or more", "pip install opt_einsum"),
    "cupy": ("cupy-cuda13x", "CUDA devices", "pip install 'gtensor[cuda13]'"),
    "sklearn": ("scikit-learn", "gtensor train", "pip install 'gtensor[train]'"),
    "rich": ("rich", "gtensor train", "pip install 'gtensor[train]'"),
    "matplotlib": ("matplotlib", "gtensor train", "pip install 'gtensor[train]'"),
    "mpi4py": ("mpi4py", "several processes", "pip install 'gtensor[mpi]'"),
}


def facts() -> dict[str, Any]:
    """Everything `gtensor info` prints, of plain JSON types."""
    packages = {name: _version(name) for name in _PACKAGES}
    missing = [f"{name} ({_PACKAGES[name][1]}): {_PACKAGES[name][2]}"
               for name, version in packages.items() if version is None]
    if packages["cupy"] is not None and not cuda_device_count():
        missing.append("an NVIDIA driver (CUDA devices): CuPy is installed, but no driver answers")
    return {
        "gtensor": sys.modules["gtensor"].__version__,  # a checkout may have no metadata
        "python": platform.python_version(),
        "devices": [_device(device) for device in visible_devices()],
        "default_device": str(default_device()),
        "packages": packages,
        "driver": _driver(),
        "cuda": {"folder": str(folder()), "files": list(files())},
        "settings": settings.describe().splitlines(),
        "missing": missing,
    }


def text(found: dict[str, Any]) -> str:
    """The facts for a person."""
    lines = [f"gtensor {found['gtensor']}, Python {found['python']}", "", "devices"]
    for device in found["devices"]:
        mark = "  (default)" if device["name"] == found["default_device"] else ""
        lines.append(f"  {device['name']:8} {device['what']}{mark}")
    lines += ["", "packages"]
    lines += [f"  {name:12} {version or '-'}" for name, version in found["packages"].items()]
    lines.append(f"  {'driver':12} {found['driver'] or '-'}  (NVIDIA)")
    cuda = found["cuda"]
    lines += ["", "CUDA text", f"  {len(cuda['files'])} kernel files (.cu) in {cuda['folder']}"]
    lines += ["", "settings", *(_folded(f"  {line}") for line in found["settings"])]
    if found["missing"]:
        lines += ["", "missing", *(_folded(f"  {line}", 4) for line in found["missing"])]
    return "\n".join(lines)


def _folded(line: str, indent: int = 41) -> str:
    """The line at the terminal's width, its rest indented (under the settings' meaning)."""
    columns = max(60, shutil.get_terminal_size().columns)
    return textwrap.fill(line, columns, subsequent_indent=" " * indent)


def _device(device: Device) -> dict[str, str]:
    if device.type == "cpu":
        return {"name": str(device), "what": f"NumPy on {platform.machine()}"}
    name, total = device.describe()
    return {"name": str(device), "what": f"{name}, {total / 2**30:.0f} GiB"}


def _driver() -> str | None:
    """The version of the NVIDIA driver, as its kernel module states it; None without one."""
    try:
        text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8")
    except OSError:
        return None
    found = re.search(r"\d+\.\d+(\.\d+)?", text)
    return found[0] if found else "unknown"


def _version(name: str) -> str | None:
    """The version of an importable package, None if it is not there; nothing is imported."""
    if importlib.util.find_spec(name) is None:
        return None
    for distribution in importlib.metadata.packages_distributions().get(name, []):
        return importlib.metadata.version(distribution)
    return "unknown"

"""Facts about this machine: devices, versions, settings, and missing packages."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
import shutil
import sys
import textwrap
from typing import Any

from gtensor.backend import (
    Device,
    compiled,
    cuda_device_count,
    default_device,
    visible_devices,
)
from gtensor.backend.kernels import files, folder
from gtensor.settings import settings
from gtensor.system.installation import cuda_extra, driver, installation_of, installation_of_package

_PACKAGES = {  # by what is imported: what it is for, and gtensor's extra, "" if it needs none
    "numpy": ("the CPU device", ""), "ml_dtypes": ("bfloat16", ""),
    "nvtx": ("ranges in Nsight Systems", ""),
    "opt_einsum": ("einsum of three operands or more", ""),
    "cupy": ("CUDA devices", "cuda"), "sklearn": ("gtensor train", "train"),
    "rich": ("gtensor train", "train"), "matplotlib": ("gtensor train", "train"),
    "mpi4py": ("several processes", "mpi"), "argcomplete": ("completion in a shell", "completion"),
}
_WIDE_ENOUGH = 72  # columns of a terminal, for two columns of text


def facts() -> dict[str, Any]:
    """Everything `gtensor info` prints, of plain JSON types."""
    packages = {name: _version(name) for name in _PACKAGES}
    lacking: dict[tuple[str, str], list[str]] = {}  # what for and how it is installed: names
    for name, (use, extra) in _PACKAGES.items():
        if packages[name] is None:
            lacking.setdefault((use, _installation(name, extra)), []).append(name)
    missing = [f"{', '.join(names)} ({use}): {how}" for (use, how), names in lacking.items()]
    if packages["cupy"] is not None and not cuda_device_count():
        missing.append("an NVIDIA driver (CUDA devices): CuPy is installed, but no driver answers")
    return {
        "gtensor": sys.modules["gtensor"].__version__,  # a checkout may have no metadata
        "python": platform.python_version(),
        "devices": [_device(device) for device in visible_devices()],
        "default_device": str(default_device()),
        "packages": packages,
        "driver": driver(),
        "cuda": {"folder": str(folder()), "files": list(files())},
        "compiled": compiled.described(),
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
    lines += ["", "C for the CPU", _folded(f"  {found['compiled']}", 2)]
    cuda = found["cuda"]
    lines += ["", "CUDA text", f"  {len(cuda['files'])} kernel files (.cu) in {cuda['folder']}"]
    lines += ["", "settings", *(_folded(f"  {line}") for line in found["settings"])]
    if found["missing"]:
        lines += ["", "missing", *(_lacking(line) for line in found["missing"])]
    return "\n".join(lines)


def _folded(line: str, indent: int = 41) -> str:
    """The line at the terminal's width, its rest indented (under the settings' meaning)."""
    columns = shutil.get_terminal_size().columns
    indent = indent if columns >= _WIDE_ENOUGH else 4
    return textwrap.fill(line, columns, subsequent_indent=" " * indent, break_long_words=False)


def _lacking(line: str) -> str:
    """What is missing; the command that installs it in a line of its own, whole, to be copied."""
    what, _, how = line.partition(": ")
    return f"  {what}\n    {how}" if " install " in how else _folded(f"  {line}", 4)


def _device(device: Device) -> dict[str, str]:
    if device.type == "cpu":
        return {"name": str(device), "what": f"NumPy on {platform.machine()}"}
    name, total = device.describe()
    return {"name": str(device), "what": f"{name}, {total / 2**30:.0f} GiB"}


def _installation(name: str, extra: str) -> str:
    return installation_of_package(name) if not extra else installation_of(
        cuda_extra() if extra == "cuda" else extra)


def _version(name: str) -> str | None:
    """The version of an importable package, None if it is not there; nothing is imported."""
    if importlib.util.find_spec(name) is None:
        return None
    for distribution in importlib.metadata.packages_distributions().get(name, []):
        return importlib.metadata.version(distribution)
    return "unknown"

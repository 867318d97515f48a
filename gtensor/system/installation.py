"""How to install what is missing: the command that works from where gtensor was installed.

`pip install 'gtensor[train]'` finds nothing for a checkout, or for a wheel in a folder. The
installation's own record says where it came from (PEP 610, `direct_url.json`).
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sys
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

_PACKAGE = Path(__file__).resolve().parents[1]
_DRIVER_OF_CUDA_13 = 580

find_spec = PathFinder.find_spec  # without setuptools' hook, which warns where it is asked for pip


def installation_of(*extras: str) -> str:
    """The command that adds extras of gtensor to this Python."""
    return f"{_installer()} {_quoted(*_source(','.join(extras)))}"


def installation_of_package(name: str) -> str:
    """The command that adds another package to this Python."""
    return f"{_installer()} {_quoted(name)}"


def cuda_extra() -> str:
    """The extra that this machine's NVIDIA driver can run; the newest without a driver."""
    major = (driver() or "").partition(".")[0]
    return "cuda12" if major.isdecimal() and int(major) < _DRIVER_OF_CUDA_13 else "cuda13"


def driver() -> str | None:
    """The version of the NVIDIA driver, as its kernel module states it; None without one."""
    try:
        text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8")
    except OSError:
        return None
    found = re.search(r"\d+\.\d+(\.\d+)?", text)
    return found[0] if found else "unknown"


def _installer() -> str:
    """pip of this Python, which another folder's `pip` may not be; uv where it has none."""
    own = Path(sys.executable).parent
    if find_spec("pip") is None:
        return f"uv pip install --python {_quoted(sys.executable)}"
    found = shutil.which("pip")
    if found is not None and Path(found).parent == own:
        return "pip install"
    short = os.path.relpath(sys.executable)
    python = sys.executable if short.startswith("..") else short
    return f"{_quoted(python)} -m pip install"


def _source(extras: str) -> list[str]:
    """Where gtensor came from, with extras, as pip takes it; without a record, this checkout."""
    said = _record()
    url = said.get("url", "")
    if url.startswith("file:"):
        place = Path(unquote(urlsplit(url).path))
        if place.exists():
            edits = ["-e"] * bool(said.get("dir_info", {}).get("editable"))
            return [*edits, f"{_short(place)}[{extras}]"]
    elif url:
        vcs = said.get("vcs_info", {})
        kind = f"{vcs['vcs']}+" if "vcs" in vcs else ""
        at = f"@{vcs['commit_id']}" if "commit_id" in vcs else ""
        return [f"gtensor[{extras}] @ {kind}{url}{at}"]
    checkout = _PACKAGE.parent
    if (checkout / "pyproject.toml").is_file():
        return ["-e", f"{_short(checkout)}[{extras}]"]
    return _packages(extras) if url else [f"gtensor[{extras}]"]


def _short(place: Path) -> Path:
    return Path(".") if place == Path.cwd() else place


def _record() -> dict[str, Any]:
    """What the installer noted of this gtensor's origin; nothing for an index, or a path."""
    from importlib import metadata  # here: it takes long

    try:
        distribution = metadata.distribution("gtensor")
        found = json.loads(distribution.read_text("direct_url.json") or "{}")
        edited = found.get("dir_info", {}).get("editable")
        home = Path(unquote(urlsplit(found["url"]).path) if edited
                    else str(distribution.locate_file(""))) / "gtensor"
    except (metadata.PackageNotFoundError, OSError, ValueError, KeyError,
            AttributeError, TypeError):
        return {}
    own = home.resolve() == _PACKAGE  # and not another gtensor, which the path has first
    return found if own and isinstance(found.get("url"), str) else {}


def _packages(extras: str) -> list[str]:
    """The packages of extras themselves, where the place that gtensor came from is gone."""
    from importlib import metadata

    wanted = {f'extra == "{extra}"' for extra in extras.split(",")}
    return [line.partition(";")[0].strip() for line in metadata.requires("gtensor") or ()
            if line.partition(";")[2].strip() in wanted]


def _quoted(*words: str) -> str:
    """Words for a shell."""
    return " ".join(map(shlex.quote, words))

"""The machine code of compiled kernels, by cuobjdump and nvdisasm of the pip packages."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import tempfile
from pathlib import Path

_FUNCTION = re.compile(r"^\s*Function : (\w+)$", re.MULTILINE)
_WIDE = re.compile(r"\b(?P<name>LDG|STG)(?:\.\w+)*\.(?:128|256)\b")


def tools() -> Path:
    """The folder of cuobjdump and nvdisasm.

    Raises:
        FileNotFoundError: naming what to install.
    """
    spec = importlib.util.find_spec("nvidia")
    for root in (spec.submodule_search_locations if spec else None) or ():
        for tool in sorted(Path(root).glob("*/bin/cuobjdump")):
            if (tool.parent / "nvdisasm").exists():
                return tool.parent
    raise FileNotFoundError(
        "no cuobjdump and nvdisasm in an installed nvidia package; wanted the pip packages "
        "nvidia-cuda-cuobjdump and nvidia-cuda-nvdisasm (they are in gtensor[test])"
    )


def disassembled(cubin: bytes) -> dict[str, str]:
    """The machine code of each kernel of a cubin, by its mangled name."""
    folder = tools()
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch, "kernels.cubin")
        path.write_bytes(cubin)
        result = subprocess.run(
            [str(folder / "cuobjdump"), "--dump-sass", str(path)], capture_output=True, text=True,
            env=os.environ | {"PATH": f"{folder}{os.pathsep}{os.environ.get('PATH', '')}"},
        )
    if result.returncode:
        raise RuntimeError(f"cuobjdump refuses a cubin: {result.stderr or result.stdout}")
    _, *parts = _FUNCTION.split(result.stdout)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def wide_accesses(code: str) -> set[str]:
    """Which of LDG (global load) and STG (global store) occur with 16 bytes or more at once."""
    return {found["name"] for found in _WIDE.finditer(code)}

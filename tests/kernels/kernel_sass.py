"""The machine code of compiled kernels, by cuobjdump and nvdisasm of the pip packages."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import subprocess
import zlib
from collections import Counter
from pathlib import Path

from kernel_kept import content, kept

PACKAGES = ("nvidia-cuda-cuobjdump", "nvidia-cuda-nvdisasm")
_FUNCTION = re.compile(r"^\s*Function : (\w+)$", re.MULTILINE)
_INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?\w+\s+)?(?P<name>[A-Z]\w*)",
                          re.MULTILINE)
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
        f"{' and '.join(PACKAGES)} (they are in gtensor[test])"
    )


def disassembled(cubin: bytes, place: Path) -> dict[str, str]:
    """The machine code of each kernel of a cubin, by its mangled name; kept in a folder."""
    folder = tools()
    versions = [importlib.metadata.version(package) for package in PACKAGES]

    def make(room: Path) -> Path:
        path, made = room / "kernels.cubin", room / "made"
        path.write_bytes(cubin)
        result = subprocess.run(
            [str(folder / "cuobjdump"), "--dump-sass", str(path)], capture_output=True, text=True,
            env=os.environ | {"PATH": f"{folder}{os.pathsep}{os.environ.get('PATH', '')}"},
        )
        if result.returncode:
            raise RuntimeError(f"cuobjdump refuses a cubin: {result.stderr or result.stdout}")
        made.write_bytes(zlib.compress(result.stdout.encode()))
        return made

    entry = kept(place, ("--dump-sass, zlib", versions, cubin), make)
    _, *parts = _FUNCTION.split(zlib.decompress(content(entry)).decode())
    return dict(zip(parts[::2], parts[1::2], strict=True))


def wide_accesses(code: str) -> set[str]:
    """Which of LDG (global load) and STG (global store) occur with 16 bytes or more at once."""
    return {found["name"] for found in _WIDE.finditer(code)}


def instructions(code: str) -> Counter[str]:
    """How often each instruction stands in a kernel's machine code; HMMA of HMMA.16816.F32."""
    return Counter(found["name"] for found in _INSTRUCTION.finditer(code))

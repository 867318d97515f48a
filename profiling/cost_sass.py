"""Machine code of compiled kernels, counted: instructions, bytes of loads and stores, of a thread.

nvdisasm of the pip packages (`gtensor[test]`) reads the cubins; no GPU is needed. Counts are kept
in hostcuda's cache by the cubin's text.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import subprocess
import tempfile
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from gtensor.hostcuda.build import cache

_FUNCTION = re.compile(r"^\s*Function : (\w+)$", re.MULTILINE)
_INSTRUCTION = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(@!?U?P\w+\s+)?([A-Z][\w.]*)([^;]*);",
                          re.MULTILINE)
_TARGET = re.compile(r"(0x[0-9a-f]+)\s*$")
_SIZE = re.compile(r"\.(?:[US](8|16)|(32|64|128|256))\b")
_VERSION = "3"  # of what is counted
_LOADS, _STORES = ("LDG", "LDGSTS"), ("STG", "RED", "ATOMG")
_MATRIX = ("HMMA", "IMMA", "DMMA", "HGMMA")


class Loop(NamedTuple):
    """A loop of a kernel's text, each instruction once; bytes are those of a thread."""

    instructions: int
    loaded: int
    stored: int


class Code(NamedTuple):
    """A kernel's text. `entry` is the shortest way through it that loads and stores, if it can."""

    instructions: int
    entry: Loop
    loaded: int
    stored: int
    matrix: int  # instructions of tensor cores
    loops: tuple[Loop, ...]  # those that access global memory

    def executed(self, warps: float, reads: float, writes: float) -> float:
        """Instructions of all warps of a launch that moves these bytes.

        Each warp goes the shortest way once; loops move the bytes that this leaves. Loops that do
        the same for other widths of indices or for unaligned rows stand beside each other: of those
        that load, the one runs that takes fewest instructions for a byte; of those that store
        likewise.
        """
        runs: dict[Loop, float] = {}
        for place, nbytes in ((1, reads), (2, writes)):
            loop = min((x for x in self.loops if x[place]), default=None,
                       key=lambda x: x.instructions / x[place])
            left = nbytes - 32 * warps * self.entry[place]
            if loop is not None and left > 0:
                runs[loop] = max(runs.get(loop, 0.0), left / (32 * loop[place]))
        return warps * self.entry.instructions + sum(
            count * loop.instructions for loop, count in runs.items())

    @property
    def on_the_way(self) -> int:
        """Bytes that a thread loads before it waits: those of the loop that runs, once."""
        loads = [x for x in self.loops if x.loaded]
        if not loads:
            return self.loaded
        return min(loads, key=lambda x: x.instructions / x.loaded).loaded


class NoTools(RuntimeError):
    """cuobjdump or nvdisasm is not there."""


def count(cubin: bytes) -> dict[str, Code]:
    """The code of each kernel of a cubin, by its name there."""
    kept = cache() / "sass" / _VERSION / f"{hashlib.sha256(cubin).hexdigest()[:32]}.json"
    if kept.exists():
        found = json.loads(kept.read_text())
        return {name: Code(whole, Loop(*entry), *rest, tuple(Loop(*loop) for loop in loops))
                for name, (whole, entry, *rest, loops) in found.items()}
    found = {name: _counted(text) for name, text in _disassembled(cubin).items()}
    kept.parent.mkdir(parents=True, exist_ok=True)
    whole = kept.with_suffix(f".{os.getpid()}")
    whole.write_text(json.dumps(found))
    whole.replace(kept)  # another process may write the same
    return found


class _Line(NamedTuple):
    address: int
    guarded: bool
    name: str
    target: int | None  # of a branch


def _counted(text: str) -> Code:
    code = []
    for address, guard, name, rest in _INSTRUCTION.findall(text):
        target = _TARGET.search(rest) if name.startswith("BRA") else None
        code.append(_Line(int(address, 16), bool(guard) or "P" in rest.split(",")[0], name,
                          int(target[1], 16) if target else None))
    end = max((n for n, line in enumerate(code) if line.name == "EXIT"), default=len(code) - 1)
    loops = []
    for last, line in enumerate(code):
        if line.target is None or line.target >= line.address:
            continue
        first = next(n for n, other in enumerate(code) if other.address >= line.target)
        body = code[first:last + 1]
        found = Loop(len(body), _bytes(body, _LOADS), _bytes(body, _STORES))
        if found.loaded or found.stored:
            loops.append(found)
    return Code(end + 1, _shortest(code), _bytes(code, _LOADS), _bytes(code, _STORES),
                sum(line.name.startswith(_MATRIX) for line in code), tuple(loops))


def _shortest(code: list[_Line]) -> Loop:
    """From the entry to an end that no guard skips, by a load and a store if the text has them."""
    places = {line.address: n for n, line in enumerate(code)}
    wanted = (_has(code, _LOADS), _has(code, _STORES))
    front: deque[tuple[int, bool, bool, Loop]] = deque([(0, False, False, Loop(0, 0, 0))])
    seen = set()
    while front:
        place, loads, stores, way = front.popleft()
        if place >= len(code) or (place, loads, stores) in seen:
            continue
        seen.add((place, loads, stores))
        line = code[place]
        loaded, stored = _bytes([line], _LOADS), _bytes([line], _STORES)
        way = Loop(way.instructions + 1, way.loaded + loaded, way.stored + stored)
        loads, stores = loads or loaded > 0, stores or stored > 0
        if line.name in ("EXIT", "RET") and not line.guarded:
            if (loads, stores) == wanted:
                return way
            continue
        if line.target is not None:
            front.append((places.get(line.target, place + 1), loads, stores, way))
        if line.target is None or line.guarded:
            front.append((place + 1, loads, stores, way))
    return Loop(len(code), _bytes(code, _LOADS), _bytes(code, _STORES))


def _has(code: Iterable[_Line], kinds: tuple[str, ...]) -> bool:
    return any(line.name.split(".")[0] in kinds for line in code)


def _bytes(code: Iterable[_Line], kinds: tuple[str, ...]) -> int:
    return sum(_width(line.name) for line in code if line.name.split(".")[0] in kinds)


def _width(name: str) -> int:
    """Bytes of a load or store: "LDG.E.128.CONSTANT" has 16."""
    found = _SIZE.search(name)
    return int(found[1] or found[2]) // 8 if found else 4


def _disassembled(cubin: bytes) -> dict[str, str]:
    folder = _tools()
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch, "kernels.cubin")
        path.write_bytes(cubin + b"\0")  # CuPy drops the last byte
        ran = subprocess.run(
            [str(folder / "cuobjdump"), "--dump-sass", str(path)], capture_output=True, text=True,
            env=os.environ | {"PATH": f"{folder}{os.pathsep}{os.environ.get('PATH', '')}"})
    if ran.returncode:
        raise NoTools(f"cuobjdump refuses a cubin: {ran.stderr or ran.stdout}")
    _, *parts = _FUNCTION.split(ran.stdout)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def _tools() -> Path:
    spec = importlib.util.find_spec("nvidia")
    for root in (spec.submodule_search_locations if spec else None) or ():
        for tool in sorted(Path(root).glob("*/bin/cuobjdump")):
            if (tool.parent / "nvdisasm").exists():
                return tool.parent
    raise NoTools("no cuobjdump and nvdisasm in an installed nvidia package; wanted the packages "
                  "nvidia-cuda-cuobjdump and nvidia-cuda-nvdisasm (they are in gtensor[test])")

"""The house rules that can be read from the text: floors, who imports what, sizes of files.

Imports point down only (`TYPE_CHECKING` imports do not count: nothing runs them). The checker
itself is checked on a planted package that breaks each rule once.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FLOORS = {
    "settings": 0, "frames": 0, "atomic": 0, "files": 0, "facts": 0, "locks": 0, "interrupts": 0,
    "backend": 1, "memory": 2,
    "core": 3, "ops": 4, "creation": 4, "streaming": 4, "graphs": 4, "random": 4,
    "dtypes": 4, "linalg": 5, "fft": 5, "namespace_info": 5,
    "nn": 5, "optim": 5, "data": 5, "train": 6, "cli": 8, "__main__": 8, "testing": 6,
    "_testing": 6, "info": 6, "profiler": 6, "checkpoint": 6, "holders": 6, "explain": 6,
    "__init__": 7,
}
APART = "hostcuda"  # has no floor: it imports nothing of the package, and nothing imports it
MOST_LINES = 900  # a file is split by meaning; one as long as this holds more than one subject
MOST_COLUMNS = 100
READERS = {  # the files that may open files themselves, and why
    "files.py": "it is where that is done",
    "atomic.py": "to write; and folders, to sync them",
    "checkpoint/turns.py": "to lock and to write, with the same check",
    "backend/kernels.py": "text of the package", "memory/timeline_page.py": "text of the package",
    "info.py": "what the system says of its driver", "cli.py": "/dev/null, to write",
}
RAW_ARRAYS = {  # the files of nn/ and optim/ that may import numpy, and why
}


@dataclass(frozen=True)
class Import:
    """One import of a module by another, at a line; names in full."""

    path: Path
    line: int
    target: str


def part_of(package: Path, path: Path) -> str:
    """The part of the house that a file belongs to: its top folder, or its own name."""
    return path.relative_to(package).parts[0].removesuffix(".py")


@cache
def tree(path: Path) -> ast.Module:
    """The parsed file: several rules read it."""
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def imports(package: Path, path: Path) -> list[Import]:
    """Every import that can run, also those inside functions."""
    return list(_imports(package, path))


def _imports(package: Path, path: Path) -> Iterator[Import]:
    for node in _running(tree(path)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(path, node.lineno, alias.name)
        elif isinstance(node, ast.ImportFrom):
            source = node.module or ""
            if node.level:
                above = path.relative_to(package.parent).parts[:-node.level]
                source = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                whole = f"{source}.{alias.name}"
                yield Import(path, node.lineno, whole if _is_module(package, whole) else source)
        elif (isinstance(node, ast.Call) and _name_of(node.func) in ("import_module", "__import__")
                and node.args and isinstance(node.args[0], ast.Constant)):
            yield Import(path, node.lineno, str(node.args[0].value))


def _running(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and _name_of(child.test) == "TYPE_CHECKING":
            for other in child.orelse:
                yield from _running(other)
            continue
        yield from _running(child)


def _is_module(package: Path, name: str) -> bool:
    place = package.parent.joinpath(*name.split("."))
    return place.is_dir() or place.with_suffix(".py").is_file()


def _name_of(node: ast.AST) -> str:
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else ""


def sources(package: Path) -> list[Path]:
    """The package's Python files, without those that stand apart."""
    return sorted(path for path in package.rglob("*.py") if part_of(package, path) != APART)


# -- the rules: each answers what breaks it, one line per place ------------------------------------


def upward(package: Path) -> Iterator[str]:
    """Imports point down only, and every part has a floor."""
    for path in sources(package):
        part = part_of(package, path)
        if part not in FLOORS:
            yield f"{path.name}: part {part!r} has no floor; give it one in FLOORS"
            continue
        for one in imports(package, path):
            names = one.target.split(".")
            if names[0] != package.name:
                continue
            other = names[1] if len(names) > 1 else "__init__"
            if FLOORS.get(other, 99) > FLOORS[part]:
                yield f"{path.name}:{one.line}: {part} (floor {FLOORS[part]}) imports {one.target}"


def apart(package: Path) -> Iterator[str]:
    """What stands apart imports nothing of the package, and nothing of the package imports it."""
    for path in package.rglob("*.py"):
        inside = part_of(package, path) == APART
        for one in imports(package, path):
            names = [*one.target.split("."), "__init__"]
            if names[0] == package.name and inside != (names[1] == APART):
                yield f"{path.name}:{one.line}: imports {one.target}; {APART} stands apart"


def array_libraries(package: Path) -> Iterator[str]:
    """Only backend imports cupy."""
    for path in sources(package):
        for one in imports(package, path):
            library = one.target.split(".")[0]
            if library in ("cupy", "cupyx") and part_of(package, path) != "backend":
                yield f"{path.name}:{one.line}: imports {one.target}; ask backend"


def eager_cupy(package: Path) -> Iterator[str]:
    """Nothing imports cupy while gtensor is imported: only functions do."""
    for path in sources(package):
        for node in tree(path).body:
            inner = _outside_functions(node)
            for child in inner:
                names = [a.name for a in child.names] if isinstance(child, ast.Import) else (
                    [child.module or ""] if isinstance(child, ast.ImportFrom) else [])
                if any(name.split(".")[0] in ("cupy", "cupyx") for name in names):
                    yield f"{path.name}:{child.lineno}: imports cupy at import time"


def _outside_functions(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
        for child in ast.iter_child_nodes(node):
            yield from _outside_functions(child)


def kernel_text(package: Path) -> Iterator[str]:
    """Only backend/kernels.py knows where the CUDA text lies."""
    for path in sources(package):
        if path.relative_to(package).as_posix() == "backend/kernels.py":
            continue
        prose = {id(node.value) for node in ast.walk(tree(path))
                 if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)}
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Constant) and id(node) not in prose and (
                    node.value in ("kernels", "_cuda") or str(node.value).startswith("kernels/")):
                yield f"{path.name}:{node.lineno}: names {node.value!r}; leave it to backend"


def memory_from_ops(package: Path) -> Iterator[str]:
    """core and ops never import memory: they ask a device for an array."""
    for path in sources(package):
        if part_of(package, path) in ("core", "ops"):
            for one in imports(package, path):
                if one.target.startswith(f"{package.name}.memory"):
                    yield f"{path.name}:{one.line}: imports {one.target}; ask the device for arrays"


def raw_arrays(package: Path) -> Iterator[str]:
    """nn and optim compose ops: no numpy, no array behind a tensor, no path of an op."""
    for path in sources(package):
        if part_of(package, path) not in ("nn", "optim"):
            continue
        if path.relative_to(package).as_posix() not in RAW_ARRAYS:
            for one in imports(package, path):
                if one.target.split(".")[0] == "numpy":
                    yield f"{path.name}:{one.line}: imports numpy; compose ops"
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Attribute) and node.attr in ("_array", "array", "numpy", "xp"):
                yield f"{path.name}:{node.lineno}: touches .{node.attr}; compose ops"


def guesses(package: Path) -> Iterator[str]:
    """Ownership is proven by holds, never guessed from Python's reference counts."""
    for path in sources(package):
        for node in ast.walk(tree(path)):
            if _name_of(node) == "getrefcount" or (
                    isinstance(node, ast.alias) and node.name == "getrefcount"):
                yield f"{path.name}: uses getrefcount"


def unbounded_reads(package: Path) -> Iterator[str]:
    """Files are opened by `files`, which looks what they are and bounds how much is read."""
    for path in sources(package):
        if path.relative_to(package).as_posix() in READERS:
            continue
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Call) and (
                    ast.unparse(node.func) in ("open", "os.open", "os.fdopen", "np.fromfile")
                    or getattr(node.func, "attr", "") in ("read_bytes", "read_text")):
                yield f"{path.name}:{node.lineno}: opens a file; ask files"


def sizes(package: Path) -> Iterator[str]:
    """Files of at most MOST_LINES, lines of at most MOST_COLUMNS."""
    for path in package.rglob("*.py"):
        lines = path.read_text(encoding="utf-8").splitlines()
        if len(lines) > MOST_LINES:
            yield f"{path.name}: {len(lines)} lines; split it (at most {MOST_LINES})"
        yield from (f"{path.name}:{n}: {len(line)} columns (at most {MOST_COLUMNS})"
                    for n, line in enumerate(lines, 1) if len(line) > MOST_COLUMNS)


RULES = {rule.__name__: rule for rule in (
    upward, apart, array_libraries, eager_cupy, kernel_text, memory_from_ops, raw_arrays, guesses,
    unbounded_reads, sizes)}


@pytest.mark.parametrize("rule", RULES)
def test_the_house_keeps(rule: str) -> None:
    found = list(RULES[rule](ROOT / "gtensor"))
    assert not found, "\n".join(found)


@pytest.mark.parametrize("folder", ["tests", "profiling"])
def test_files_outside_the_package_are_small_too(folder: str) -> None:
    found = list(sizes(ROOT / folder))
    assert not found, "\n".join(found)


# -- the checker is checked ------------------------------------------------------------------------

PLANTED = {  # rule -> (file, text that breaks it once, and a harmless look-alike)
    "upward": ("core/a.py", "def f():\n    from gtensor.ops import add\n    return add\n"),
    "upward, relative": ("core/a.py", "from ..nn import layer\n"),
    "upward, from the package": ("ops/a.py", "from gtensor import nn\n"),
    "upward, the package itself": ("core/a.py", "import gtensor\n"),
    "upward, by name": ("core/a.py", "import importlib\nimportlib.import_module('gtensor.nn')\n"),
    "upward, no floor": ("extras.py", "x = 1\n"),
    "apart": ("hostcuda/a.py", "def f():\n    from gtensor import memory\n    return memory\n"),
    "apart, from inside": ("ops/a.py", "from gtensor.hostcuda import install\n"),
    "array_libraries": ("ops/a.py", "def f():\n    import cupy.cuda as c\n    return c\n"),
    "eager_cupy": ("backend/a.py", "try:\n    import cupy\nexcept ImportError:\n    cupy = None\n"),
    "kernel_text": ("ops/a.py", "from pathlib import Path\nx = Path('..') / 'kernels'\n"),
    "memory_from_ops": ("ops/a.py", "from gtensor import memory\n"),
    "raw_arrays": ("nn/a.py", "import numpy as np\n"),
    "raw_arrays, behind a tensor": ("nn/a.py", "def f(x):\n    return x._array\n"),
    "guesses": ("core/a.py", "import sys\nx = sys.getrefcount([])\n"),
    "unbounded_reads": ("memory/a.py", "x = open('y')\n"),
    "unbounded_reads, of a path": ("nn/a.py", "from pathlib import Path\nPath('y').read_bytes()\n"),
    "sizes": ("core/a.py", "x = 1\n" * (MOST_LINES + 1)),
    "sizes, columns": ("core/a.py", f"x = '{'y' * 100}'\n"),
}
HARMLESS = {
    "core/b.py": "from typing import TYPE_CHECKING\n"
                 "if TYPE_CHECKING:\n    from gtensor.ops import add\n",
    "ops/b.py": "'''Reads kernels/ by name.'''\nfrom gtensor.core import b\nfrom . import a\n"
                "x = 'activation.cuh'\n",
    "memory/b.py": "def f(x):\n    return x.open(), read_text(x)\n",
    "nn/b.py": "'''x._array'''\nfrom gtensor.ops import b\n",
    "backend/b.py": "def f():\n    import cupy\n    return cupy\n",
    "hostcuda/b.py": "import cupy\nfrom gtensor.hostcuda import a\nx = open('kernels')\n",
    "__init__.py": "from gtensor import nn\n",
}


def _plant(root: Path, files: dict[str, str]) -> Path:
    package = root / "gtensor"
    for part in ("settings.py", "backend", "memory", "core", "ops", "nn", "hostcuda"):
        place = package / part
        place.parent.mkdir(parents=True, exist_ok=True)
        if part.endswith(".py"):
            place.write_text("")
        else:
            place.mkdir()
            (place / "__init__.py").write_text("")
    for name, text in files.items():
        (package / name).write_text(text)
    return package


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_violation_is_found_once(fault: str, tmp_path: Path) -> None:
    name, text = PLANTED[fault]
    package = _plant(tmp_path, {**HARMLESS, name: text})
    assert len(list(RULES[fault.partition(",")[0]](package))) == 1


@pytest.mark.parametrize("rule", RULES)
def test_look_alikes_are_left_alone(rule: str, tmp_path: Path) -> None:
    assert list(RULES[rule](_plant(tmp_path, HARMLESS))) == []


# -- what only a fresh process shows ---------------------------------------------------------------


def test_importing_gtensor_imports_neither_cupy_nor_the_test_tools() -> None:
    text = ("import sys, gtensor; "
            "print([m for m in ('cupy', 'torch', 'hypothesis', 'pytest') if m in sys.modules])")
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True,
                          cwd=ROOT)
    assert done.stdout.strip() == "[]"


@pytest.mark.thorough
def test_tests_without_their_gpu_are_deselected_aloud(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text())
    (tmp_path / "test_marked.py").write_text(
        "import pytest\n"
        "def test_plain(): pass\n"
        "@pytest.mark.gpu\ndef test_one(): pass\n"
        "@pytest.mark.gpu\ndef test_two(): pass\n"
        "@pytest.mark.multi_gpu\ndef test_three(): pass\n")
    hidden = ("import sys, pytest, gtensor; gtensor.cuda_device_count = lambda: 0; "
              f"sys.exit(pytest.main(['-p', 'no:cacheprovider', '-c', {str(ROOT)!r} + "
              f"'/pyproject.toml', '--rootdir', {str(tmp_path)!r}, {str(tmp_path)!r}]))")
    done = subprocess.run([sys.executable, "-c", hidden], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed, 3 deselected" in done.stdout
    assert "deselected 2 tests marked gpu: they need 1 CUDA device(s)" in done.stdout
    assert "deselected 1 tests marked multi_gpu" in done.stdout

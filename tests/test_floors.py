"""The house rules that can be read from the text: floors, who imports what, sizes of files.

Imports point down only, those for types as well: a reader follows them. The checker itself is
checked on a planted package that breaks each rule once.
"""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[1]
# From the bottom up, and so are the lines of a floor. A room imports rooms of the lines before its
# own, or of its own. A room within another has a line of its own only where the order matters.
FLOORS = (
    ("system settings",),
    ("backend",),
    ("memory.contract", "memory.sources", "memory.arena",
     "memory.trace memory.plan memory.serving", "memory.allocators memory.workspace",
     "memory", "execution"),
    ("engine", "engine.handle", "engine.tape", "engine.walk", "engine.run",
     "engine.transforms", "creation", "kinds"),
    ("ops.define", "ops.elementwise ops.updates", "ops.arrange", "ops.reduce",
     "ops.linalg ops.order ops.activations", "ops.scan ops.conv",
     "ops.fft ops.pool ops.norms ops.attention ops.losses ops.recurrent ops.sampling", "ops",
     "linalg fft random special"),
    ("nn data composed", "optim func distributions",
     "amp autograd checkpoint ndimage profiler execution.steps", "models", "distributed"),
    ("testing train",),
    ("__init__",),
    ("cli",),
    ("__main__",),
)
_LINES = [line for floor in FLOORS for line in floor]
LINE_OF = {room: number for number, line in enumerate(_LINES) for room in line.split()}
APART = "hostcuda"  # has no floor: it imports nothing of the package, and nothing imports it
MOST_LINES = 900  # a file is split by meaning; one as long as this holds more than one subject
MOST_COLUMNS = 100
READERS = {  # the files that may open files themselves, and why
    "system/files.py": "it is where that is done",
    "system/atomic.py": "to write; and folders, to sync them",
    "backend/kernels.py": "text of the package",
    "system/pages.py": "text of the package",
    "distributed/failing.py": "to map a page that the launcher reads",
    "distributed/keeper.py": "to write; it imports nothing of the package",
    "distributed/launch.py": "what the system says of its processes",
    "system/installation.py": "what the system says of its driver",
    "cli/__init__.py": "/dev/null, to write",
}
_NAMESPACES = ("ns", "recorded", "public")  # as the engine names them
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


def module_of(package: Path, path: Path) -> str:
    """The name of a file's module below the package; a folder's own file is its `__init__`."""
    return ".".join(path.relative_to(package).with_suffix("").parts)


def line_of(module: str) -> int | None:
    """The line of the innermost room that has one."""
    parts = module.split(".")
    rooms = (".".join(parts[:n]) for n in range(len(parts), 0, -1))
    return next((LINE_OF[room] for room in rooms if room in LINE_OF), None)


def target_of(package: Path, name: str) -> str | None:
    """The module below the package that an import reads, None for other packages."""
    first, _, rest = name.partition(".")
    if first != package.name:
        return None
    place = package.joinpath(*rest.split(".")) if rest else package
    return ".".join(filter(None, [rest, "__init__" if place.is_dir() else ""]))


@cache
def tree(path: Path) -> ast.Module:
    """The parsed file: several rules read it."""
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def imports(package: Path, path: Path, types: bool = False) -> list[Import]:
    """Every import that can run, also those inside functions; those for types if `types`."""
    return list(_imports(package, path, types))


def _imports(package: Path, path: Path, types: bool) -> Iterator[Import]:
    for node in ast.walk(tree(path)) if types else _running(tree(path)):
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
        module = module_of(package, path)
        line = line_of(module)
        if line is None:
            yield f"{path.name}: part {module!r} has no floor; give it one in FLOORS"
            continue
        for one in imports(package, path, types=True):
            other = target_of(package, one.target)
            if other is not None and (line_of(other) or 0) > line:
                yield f"{path.name}:{one.line}: {module} imports {one.target}, which lies above"


def circles(package: Path) -> Iterator[str]:
    """No module imports itself through others, nor does a room: in functions and for types, too."""
    graphs: list[dict[str, set[str]]] = [{}, {}]
    for path in sources(package):
        module = module_of(package, path)
        for one in imports(package, path, types=True):
            other = target_of(package, one.target)
            if other is not None and other != "__init__":
                rooms = _room(package, module), _room(package, other)
                for graph, pair in zip(graphs, ((module, other), rooms), strict=True):
                    if pair[0] != pair[1]:
                        graph.setdefault(pair[0], set()).add(pair[1])
    for graph in graphs:
        try:
            list(TopologicalSorter(graph).static_order())
        except CycleError as error:
            yield " imports ".join(error.args[1])


def _room(package: Path, module: str) -> str:
    """The folder of a module; the module itself if it lies loose, or is the face of rooms."""
    folder, _, name = module.rpartition(".")
    face = name == "__init__" and any((package / folder.replace(".", "/")).glob("*/__init__.py"))
    return module if face else folder or module


def loose(package: Path) -> Iterator[str]:
    """The engine has rooms only: which may import which is said of rooms."""
    yield from (f"engine/{path.name} lies in no room" for path in (package / "engine").glob("*.py")
                if path.stem != "__init__")


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
    """engine and ops never import memory: they ask a device for an array."""
    for path in sources(package):
        if part_of(package, path) in ("engine", "ops"):
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


def ops_by_name(package: Path) -> Iterator[str]:
    """The engine calls ops through its namespaces, and only those of `namespaces.NEEDED`."""
    seam = package / "engine" / "handle" / "namespaces.py"
    needed = next((ast.literal_eval(node.value) for node in ast.walk(tree(seam))
                   if isinstance(node, ast.Assign) and _name_of(node.targets[0]) == "NEEDED"), ())
    for path in (package / "engine").rglob("*.py"):
        if path.name in ("methods.py", "op.py"):  # Tensor's methods; what registers an op
            continue
        for node in ast.walk(tree(path)):
            if (isinstance(node, ast.Attribute) and _name_of(node.value) in _NAMESPACES
                    and node.attr not in (*needed, "backward")):  # `backward` is the walk
                yield f"{path.name}:{node.lineno}: calls {node.attr}; add it to NEEDED, or do not"


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
    upward, circles, loose, apart, array_libraries, eager_cupy, kernel_text, memory_from_ops,
    raw_arrays, ops_by_name, guesses, unbounded_reads, sizes)}


@pytest.mark.parametrize("rule", RULES)
def test_the_house_keeps(rule: str) -> None:
    found = list(RULES[rule](ROOT / "gtensor"))
    assert not found, "\n".join(found)


@pytest.mark.parametrize("folder", ["tests", "profiling"])
def test_files_outside_the_package_are_small_too(folder: str) -> None:
    found = list(sizes(ROOT / folder))
    assert not found, "\n".join(found)


# -- the checker is checked ------------------------------------------------------------------------

_FOR_TYPES = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n"
PLANTED = {  # rule -> (file, text that breaks it once, and a harmless look-alike)
    "upward": ("engine/run/a.py", "def f():\n    from gtensor.ops import add\n    return add\n"),
    "upward, relative": ("engine/run/a.py", "from ...nn import layer\n"),
    "upward, from the package": ("ops/a.py", "from gtensor import nn\n"),
    "upward, the package itself": ("engine/run/a.py", "import gtensor\n"),
    "upward, by name": ("engine/run/a.py",
                        "import importlib\nimportlib.import_module('gtensor.nn')\n"),
    "upward, for types": ("engine/run/a.py", f"{_FOR_TYPES}    from gtensor.ops import add\n"),
    "upward, between rooms": ("engine/tape/a.py", "from gtensor.engine.walk import b\n"),
    "circles": ("engine/run/a.py",
                "def f():\n    from gtensor.engine.run import c\n    return c\n"),
    "circles, for types": ("engine/run/a.py",
                           f"{_FOR_TYPES}    from gtensor.engine.run import c\n"),
    "upward, no floor": ("extras.py", "x = 1\n"),
    "loose": ("engine/a.py", "x = 1\n"),
    "apart": ("hostcuda/a.py", "def f():\n    from gtensor import memory\n    return memory\n"),
    "apart, from inside": ("ops/a.py", "from gtensor.hostcuda import install\n"),
    "array_libraries": ("ops/a.py", "def f():\n    import cupy.cuda as c\n    return c\n"),
    "eager_cupy": ("backend/a.py", "try:\n    import cupy\nexcept ImportError:\n    cupy = None\n"),
    "kernel_text": ("ops/a.py", "from pathlib import Path\nx = Path('..') / 'kernels'\n"),
    "memory_from_ops": ("ops/a.py", "from gtensor import memory\n"),
    "raw_arrays": ("nn/a.py", "import numpy as np\n"),
    "raw_arrays, behind a tensor": ("nn/a.py", "def f(x):\n    return x._array\n"),
    "ops_by_name": ("engine/run/d.py", "def f(ns, x):\n    return ns.matmul(x, ns.add(x, x))\n"),
    "guesses": ("engine/run/a.py", "import sys\nx = sys.getrefcount([])\n"),
    "unbounded_reads": ("memory/a.py", "x = open('y')\n"),
    "unbounded_reads, of a path": ("nn/a.py", "from pathlib import Path\nPath('y').read_bytes()\n"),
    "sizes": ("engine/run/a.py", "x = 1\n" * (MOST_LINES + 1)),
    "sizes, columns": ("engine/run/a.py", f"x = '{'y' * 100}'\n"),
}
HARMLESS = {
    "engine/run/b.py": "from typing import TYPE_CHECKING\n"
                       "if TYPE_CHECKING:\n    from gtensor.engine.handle import tensor\n",
    "ops/b.py": "'''Reads kernels/ by name.'''\nfrom gtensor.engine.run import b\n"
                "from .a import x\n"
                "x = 'activation.cuh'\n",
    "engine/handle/namespaces.py": "NEEDED = ('add',)\nrecorded = 1\n",
    "engine/run/e.py": "def f(self, x):\n    return self.ns.add(x, x.matmul(x))\n",
    "engine/run/c.py": "from gtensor.engine.run import a\n",
    "memory/b.py": "def f(x):\n    return x.open(), read_text(x)\n",
    "nn/b.py": "'''x._array'''\nfrom gtensor.ops import b\n",
    "backend/b.py": "def f():\n    import cupy\n    return cupy\n",
    "hostcuda/b.py": "import cupy\nfrom gtensor.hostcuda import a\nx = open('kernels')\n",
    "__init__.py": "from gtensor import nn\n",
}


def _plant(root: Path, files: dict[str, str]) -> Path:
    package = root / "gtensor"
    for part in ("settings.py", "backend", "memory", "engine", "engine/handle", "engine/tape",
                 "engine/walk", "engine/run", "ops", "nn", "hostcuda"):
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


def test_the_wheel_has_every_folder_of_the_package() -> None:
    """setuptools finds no folder that lies elsewhere, as `kernels` does, so all are listed."""
    with open(ROOT / "pyproject.toml", "rb") as text:
        listed = tomllib.load(text)["tool"]["setuptools"]["packages"]
    held = {".".join(path.parent.relative_to(ROOT).parts) for path in (ROOT / "gtensor").rglob("*")
            if path.is_file() and not {"__pycache__", "include"} & {*path.parts}}
    assert sorted(listed) == sorted({*held, "gtensor._cuda"})


# -- the page about it -----------------------------------------------------------------------------


def rooms_on(page: str) -> set[str]:
    """The folders and loose modules below gtensor/ in the page's tree."""
    tree = page.partition("\n    gtensor/\n")[2].partition("\n\n")[0]
    found, above = set(), []
    for line in tree.splitlines():
        depth = (len(line) - len(line.lstrip())) // 2 - 3
        above[depth:] = [line.split()[0].rstrip("/")]
        found.add("/".join(above))
    return found


def floors_on(page: str) -> dict[str, int]:
    """The floor of each room in the page's table."""
    rows = re.findall(r"^\| (\d) \| (.*) \|$", page, re.M)
    return {room: int(floor) for floor, rooms in rows for room in re.findall(r"`(\w+)`", rooms)}


PAGE = (ROOT / "docs/design.md").read_text(encoding="utf-8")


def test_the_design_shows_every_room_and_no_other() -> None:
    package = ROOT / "gtensor"
    folders = {path.parent.relative_to(package).as_posix() for path in package.rglob("*.py")}
    within = {f for f in folders if f != "." and not f.startswith(f"{APART}/")}
    loose = {path.name for path in package.glob("*.py") if not path.stem.startswith("__")}
    assert rooms_on(PAGE) == within | loose
    assert rooms_on(PAGE.replace("  engine/ ", "  core/   ")) != within | loose


def test_the_design_shows_the_floors() -> None:
    wanted: dict[str, int] = {}
    for number, lines in enumerate(FLOORS):
        for room in " ".join(lines).split():
            if not room.startswith("__"):
                wanted.setdefault(room.partition(".")[0], number)
    assert floors_on(PAGE) == wanted
    assert floors_on(PAGE.replace("| 1 | `backend` |", "| 2 | `backend` |")) != wanted


def test_the_walk_fits_on_a_screen() -> None:
    functions = [node for path in (ROOT / "gtensor/engine/walk").glob("*.py")
                 for node in ast.walk(tree(path)) if isinstance(node, ast.FunctionDef)]
    lines = {node.name: (node.end_lineno or 0) - node.lineno + 1 for node in functions}
    assert lines["walk"] <= 36 and not [name for name, n in lines.items() if n > 40]


# -- names -----------------------------------------------------------------------------------------


def hiding(modules: Iterable[str]) -> list[str]:
    """Of modules, those that have the name of a function of their package, or of NumPy.

    Then the name means the one or the other, as imports come.
    """
    found = []
    for name in modules:
        package, _, own = name.rpartition(".")
        value = vars(importlib.import_module(package)).get(own)
        if callable(value) or package == "gtensor" and callable(getattr(np, own, None)):
            found.append(name)
    return found


def test_no_room_or_module_has_the_name_of_a_public_function() -> None:
    package = ROOT / "gtensor"
    paths = [path.parent if path.stem == "__init__" else path for path in sources(package)]
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths
             if path != package and path.stem != "__main__" and path.parent.name != "cli"]
    assert len(names) > 300 and hiding(names) == []


@pytest.mark.parametrize("name", ["gtensor.array", "gtensor.backend.host", "gtensor.sum"])
def test_a_name_that_hides_a_function_is_found(name: str) -> None:
    assert hiding(["gtensor.engine", name]) == [name]


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


def test_every_handler_of_every_exception_is_one_that_the_rule_for_interrupts_knows() -> None:
    """`system/interrupts.py`: "undone" raises again, "delivered" may not."""
    found = set()
    for path in (ROOT / "gtensor").rglob("*.py"):
        lines = path.read_text(encoding="utf-8").splitlines()
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ExceptHandler) and (
                    node.type is None or getattr(node.type, "id", "") == "BaseException"):
                word = lines[node.lineno - 1].partition("  # ")[2].partition(":")[0]
                raises = any(isinstance(inner, ast.Raise) for inner in ast.walk(node))
                assert word == ("undone" if raises else "delivered"), f"{path}:{node.lineno}"
                found.add(word)
    assert found == {"undone", "delivered"}

"""The environment of a GPU machine, made here as far as the package registries give it."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from gpu_steps import CHECKOUT, files_with_gpu_tests

PYTHON = "3.12"  # the machine's
PACKAGES = CHECKOUT / "profiling" / "gpu_machine.txt"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gtensor" / "gpu_machine"


class Impossible(Exception):
    """What is missing here, in one sentence."""


def interpreter(version: str = PYTHON) -> Path | None:
    """A Python of this version: on PATH, or one of pyenv's; None if there is none."""
    name = f"python{version}"
    places = [shutil.which(name) or "",
              *sorted(map(str, Path.home().glob(f".pyenv/versions/{version}*/bin/{name}")))]
    for place in filter(None, places):
        answer = subprocess.run([place, "-c", "import ensurepip, sys; print(sys.version)"],
                                capture_output=True, text=True)
        if answer.returncode == 0 and answer.stdout.startswith(version):
            return Path(place)
    return None


def requirements() -> dict[str, str]:
    """Package -> the line that asks for it, of gpu_machine.txt."""
    lines = [line.strip() for line in PACKAGES.read_text().splitlines()]
    return {normal(re.split(r"[=<>]", line)[0]): line for line in lines
            if line and not line.startswith("#")}


def pinned(*extras: str) -> list[str]:
    """The packages that pyproject.toml names for these extras of gtensor."""
    import tomllib

    found = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    return [line for extra in extras for line in found["optional-dependencies"][extra]
            if not line.startswith("gtensor[")]


def normal(package: str) -> str:
    return re.sub(r"[-_.]+", "-", package).lower()


def environment(root: Path, python: Path, packages: Iterable[str], *extra: str) -> Path:
    """A virtual environment with these packages and no more; the path of its Python.

    It is kept: a second call with the same packages takes no time.
    """
    wanted = "\n".join(sorted(packages)) + "\n"
    note, ours = root / "packages.txt", root / "bin" / "python"
    if note.exists() and note.read_text() == wanted and ours.exists():
        return ours
    if root.exists() and any(root.iterdir()) and not note.exists():
        raise Impossible(f"{root} is there and was not made by this program; name a site in an "
                         "environment that may be made anew")
    shutil.rmtree(root, ignore_errors=True)
    print(f"making {root} with {python}", flush=True)
    subprocess.run([python, "-m", "venv", root], check=True)
    note.write_text("not complete\n")  # so that the next call may make it anew
    call = subprocess.run([ours, "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
                           *extra, *wanted.split("\n")[:-1]], stdout=sys.stderr)
    if call.returncode:
        raise Impossible(f"pip could not install the packages of {root} (its messages are above)")
    note.write_text(wanted)
    return ours


def rehearsing() -> Path:
    """This Python with what the tests need, and a PyTorch for the CPU; made if it is not there.

    A PyTorch with CUDA, which the machine has, cannot be loaded on a host device.
    """
    packages = [line for name, line in requirements().items() if name != "torch"]
    packages = [re.split("[=<>]", line)[0] if re.match("numpy|jax", line) else line
                for line in packages]  # this Python may be older than the machine's
    return environment(CACHE / f"rehearsal-{sys.version_info.minor}", Path(sys.executable),
                       [*packages, *pinned("hostcuda")[1:],
                        *(line for line in pinned("test") if line.startswith("torch=="))])


def third_party(files: Iterable[str]) -> set[str]:
    """The modules outside the standard library that these tests and their helpers import."""
    tests = CHECKOUT / "tests"
    found: set[str] = set()
    waiting, seen = [CHECKOUT / file for file in files], set()
    while waiting:
        path = waiting.pop()
        if path in seen:
            continue
        seen.add(path)
        for node in ast.walk(ast.parse(path.read_text())):
            names = ([alias.name for alias in node.names] if isinstance(node, ast.Import) else
                     [node.module] if isinstance(node, ast.ImportFrom) and node.module
                     and not node.level else [])
            for name in names:
                ours = [place for place in (tests / name.replace(".", "/"),
                                            path.parent / name.split(".")[0])
                        if place.with_suffix(".py").exists() or (place / "__init__.py").exists()]
                for place in ours:
                    file = place.with_suffix(".py")
                    waiting.append(file if file.exists() else place / "__init__.py")
                if not ours:
                    found.add(name.split(".")[0])
    return found - set(sys.stdlib_module_names) - {"gtensor", "__future__"}


def absent(python: Path) -> list[str]:
    """The modules that tests marked gpu import, at their head or within, and this Python lacks."""
    names = sorted(third_party(files_with_gpu_tests()) - {path.stem for path in (
        CHECKOUT / "profiling").glob("*.py")})
    program = ("import importlib.util, sys; "
               "print(*[n for n in sys.argv[1:] if importlib.util.find_spec(n) is None])")
    call = subprocess.run([python, "-c", program, *names], capture_output=True, text=True,
                          check=True, cwd=CHECKOUT / "tests")
    return call.stdout.split()


def on_host_device(python: Path, cache: Path, tree: Path = CHECKOUT) -> dict[str, str]:
    """Variables with which programs run on a host device with NVIDIA's NVRTC and empty kernels.

    CuPy then finds and keeps in `cache` what it would find and keep on a GPU.
    """
    switches = {"devices": 1, "dry": True, "compiler": "nvrtc"}
    path = [tree / "gtensor" / "hostcuda" / "site", tree, tree / "profiling"]
    kept = {name: value for name, value in os.environ.items()
            if name not in ("PYTHONPATH", "VIRTUAL_ENV", "CUDA_PATH", "CUDA_HOME")}
    return kept | {
        "GTENSOR_HOSTCUDA": json.dumps(switches), "PYTHONPATH": os.pathsep.join(map(str, path)),
        "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}", "PYTHON": str(python),
        "CUPY_CACHE_DIR": str(cache), "OMP_NUM_THREADS": "1",
    }

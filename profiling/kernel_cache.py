"""Find out whether the compiled kernels of a bundle are those that CuPy looks for on this machine.

    python profiling/kernel_cache.py                  # unpack the bundle's kernels, then probe
    python profiling/kernel_cache.py --parts          # only print the parts of the key, as JSON
    python profiling/kernel_cache.py --compile TEXTS  # compile what `note` has noted elsewhere

CuPy keeps a compiled kernel in CUPY_CACHE_DIR under a hash of what it depends on: the
architecture, the options with the absolute folders of the headers, NVRTC's version and build,
CuPy's own headers, and the text. This program prints those parts, and the bundle's where they
differ, runs small kernels of the library, and counts how many of the first 20 were found. A kernel
that is not found is compiled.

`note(file)` lets a process write down every text that CuPy is asked for, with its options. So the
texts of tests, which want PyTorch, can be compiled where there is none, under other folders.
"""

from __future__ import annotations

import json
import os
import sys
import tarfile
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

PROBES = 20
OPS = ("exp", "log", "tanh", "sigmoid", "gelu", "silu", "softplus", "sqrt", "sin", "cos", "square",
       "abs", "sum", "mean", "max", "erf", "log1p", "expm1", "sign", "floor", "relu", "elu",
       "leaky_relu", "negative", "reciprocal", "prod")  # each of one argument, and a kernel


def unpack(bundle: Path, cache: Path) -> None:
    """Put the bundle's kernels beside those that are there; never over one."""
    packed = bundle / "kernels.tar.xz"
    if not packed.exists():
        print(f"no bundle in {bundle}: kernels are compiled when they are first used")
        return
    cache.mkdir(parents=True, exist_ok=True)
    unpacked = 0
    with tarfile.open(packed) as archive:
        for member in archive:
            if member.isfile() and not (cache / Path(member.name).name).exists():
                member.name = Path(member.name).name  # into this folder, whatever the archive says
                archive.extract(member, cache, filter="data")
                unpacked += 1
    print(f"{unpacked} kernels unpacked")


def parts() -> dict[str, str]:
    """What CuPy's key is made of, beside the text of a kernel."""
    from cupy.cuda import compiler

    arch = compiler._get_arch()
    build = compiler._preprocess("", ("-ftz=true",), arch, "nvrtc")
    lines = [line.strip("/ ") for line in build.splitlines()
             if "Build" in line or "release" in line]
    version = ".".join(map(str, compiler._get_nvrtc_version()))
    return {"architecture": str(arch), "NVRTC": version, "NVRTC's build": ", ".join(lines),
            "CuPy's headers": str(compiler._get_cupy_cache_key())}


def probe() -> tuple[int, int, set[str]]:
    """How many of the first 20 kernels were found in the cache, of how many; the folders named."""
    from cupy.cuda import compiler
    from cupy.cuda._compiler_cache import DiskKernelCacheBackend

    import gtensor as gt

    found: list[bool] = []
    folders: set[str] = set()

    class Counting(DiskKernelCacheBackend):
        def load(self, name: str) -> bytes | None:
            payload = super().load(name)
            found.append(payload is not None)
            return payload

    compile_ = compiler._compile_with_cache_cuda

    def noting(source: str, options: tuple[str, ...], *others: Any, **named: Any) -> Any:
        folders.update(option[2:] for option in options if option.startswith("-I"))
        return compile_(source, options, *others, **named)

    compiler._compile_with_cache_cuda = noting
    compiler._set_kernel_cache_backend(Counting())
    gt.set_default_device("cuda")
    x = gt.ones((3, 5))
    for name in OPS:
        if len(found) >= PROBES:
            break
        function = getattr(gt, name, None) or getattr(gt.nn.functional, name)
        function(x)
    return sum(found[:PROBES]), min(len(found), PROBES), folders


# -- texts, from one environment to another --------------------------------------------------------


def site() -> str:
    """The folder in which CuPy and NVIDIA's packages lie."""
    import cupy

    return str(Path(cupy.__file__).parents[1])


def note(file: Path) -> None:
    """Append from now on every text that this process lets CuPy compile, or find, to a file."""
    from cupy.cuda import compiler

    compile_, seen, folder = compiler._compile_with_cache_cuda, set[str](), site()

    def noting(
        source: str, options: tuple[str, ...], arch: Any, extra_source: Any = None,
        backend: str = "nvrtc", enable_cooperative_groups: bool = False,
        name_expressions: Any = None, *others: Any,
    ) -> Any:
        line = json.dumps([folder, source, options, extra_source, name_expressions]) + "\n"
        if line not in seen:
            seen.add(line)
            with file.open("ab", buffering=0) as open_file:
                open_file.write(line.encode())  # in one call: other processes append, too
        return compile_(source, options, arch, extra_source, backend, enable_cooperative_groups,
                        name_expressions, *others)

    compiler._compile_with_cache_cuda = noting


def compile_noted(file: Path, processes: int) -> int:
    """Compile the texts of a file for this environment's folders; how many there are."""
    lines = sorted(set(file.read_text().splitlines()))
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        for done in pool.map(_compile, [lines[k::processes] for k in range(processes)]):
            assert done
    return len(lines)


def _compile(lines: list[str]) -> bool:
    from cupy.cuda import compiler

    here = site()
    for line in lines:
        folder, source, options, extra_source, names = json.loads(line)
        options = tuple(option.replace(folder, here) for option in options)
        compiler._compile_with_cache_cuda(source, options, None, extra_source,
                                          name_expressions=names)
    return True


def main() -> int:
    """Unpack, compare, probe."""
    if sys.argv[1:2] == ["--compile"]:
        print(f"{compile_noted(Path(sys.argv[2]), os.cpu_count() or 1)} texts compiled")
        return 0
    here = parts()
    if sys.argv[1:] == ["--parts"]:
        hits, probes, folders = probe()
        print(json.dumps(here | {"folders of headers": ", ".join(sorted(folders))}, indent=1))
        return 0
    bundle = Path(os.environ["GPU_CHECK_BUNDLE"])
    about = bundle / "about.json"
    there = json.loads(about.read_text())["key"] if about.exists() else {}
    compare(here, there)  # at once: what follows may take long where the kernels do not fit
    unpack(bundle, Path(os.environ["CUPY_CACHE_DIR"]))
    hits, probes, folders = probe()
    compare({"folders of headers": ", ".join(sorted(folders))}, there)
    print(f"kernel cache: {hits} of {probes} probes hit")
    return 0


def compare(here: dict[str, str], there: dict[str, str]) -> None:
    """Print parts of the key, and those of the bundle where they differ."""
    for name, value in here.items():
        print(f"{name}: {value}", flush=True)
        if there.get(name, value) != value:
            print(f"    differs from the bundle: {there[name]}", flush=True)


if __name__ == "__main__":
    sys.exit(main())

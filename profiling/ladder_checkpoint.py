"""Reading and writing safetensors, against the safetensors package.

    python profiling/ladder_checkpoint.py                   # all: 4 GB of memory, 2 GB of disk
    python profiling/ladder_checkpoint.py --only "load warm"   # 1 GB from the page cache
    python profiling/ladder_checkpoint.py --only "load cold"   # the same from the disk
    python profiling/ladder_checkpoint.py --only small      # many small tensors
    python profiling/ladder_checkpoint.py --only memory     # peaks, each in a fresh process
    python profiling/ladder_checkpoint.py --device cuda     # onto a GPU

Warm: the file lies in the system's page cache, as just after it was written or read. Cold: its
pages are dropped before every call, in all rungs and within the measured time (a disk may have a
cache of its own). Arrays are new memory in every call: gtensor's arena is emptied
first, within the measured time, except where a rung says that it is warm. gtensor reads by several
threads, as many as there are processors, four at most; the package's loader has one.

The file holds a transformer's matrices and vectors in float32. `--quick` makes it 16 times smaller.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from ladder import Ladder
from ladder_command import Figure, Options, Part, main

import gtensor as gt
from gtensor import checkpoint
from gtensor.checkpoint import reading

LOAD_TARGET = 1.2  # x safetensors.numpy.load_file
WIDTH = 1600  # of the transformer; 8 layers make 0.98 GB
LAYERS = 8
SMALL = 20_000  # tensors of 1 KB


def build(options: Options) -> Iterator[tuple[str, Callable[[], Iterator[Part]]]]:
    """The parts, by name."""
    yield "load warm", lambda: load(options, transformer(options), cold=False)
    yield "load cold", lambda: load(options, transformer(options), cold=True)
    yield "load small", lambda: load(options, small(options), cold=False, judged=False)
    if options.device == "cpu":
        yield "save", lambda: save(options)
        yield "memory", lambda: memory(options)


# -- files -----------------------------------------------------------------------------------------


def transformer(options: Options) -> dict[str, np.ndarray]:
    """Names and shapes of a GPT, about 1 GB (--quick: 61 MB)."""
    width = WIDTH // 4 if options.quick else WIDTH
    shapes: dict[str, tuple[int, ...]] = {}
    for layer in range(LAYERS):
        block = f"h.{layer}"
        for name, rows in (("attn.c_attn", 3), ("attn.c_proj", 1), ("mlp.c_fc", 4),
                           ("mlp.c_proj", 4)):
            shapes[f"{block}.{name}.weight"] = (rows * width, width)
            shapes[f"{block}.{name}.bias"] = (rows * width,)
        for name in ("ln_1", "ln_2"):
            shapes[f"{block}.{name}.weight"] = shapes[f"{block}.{name}.bias"] = (width,)
    return filled(shapes)


def small(options: Options) -> dict[str, np.ndarray]:
    """Many tensors of 1 KB."""
    return filled({f"t{i}": (256,) for i in range(SMALL // (16 if options.quick else 1))})


def filled(shapes: dict[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """Random float32 values: nothing on the way could compress them."""
    rng = np.random.default_rng(0)
    return {name: rng.random(shape, np.float32) for name, shape in shapes.items()}


@contextmanager
def file_of(tensors: dict[str, np.ndarray]) -> Iterator[Path]:
    """A file with these tensors, written to the disk, for the length of the block."""
    with tempfile.TemporaryDirectory(prefix="ladder-checkpoint-") as folder:
        path = Path(folder) / "model.safetensors"
        checkpoint.save_file(tensors, path)
        yield path


def forget(path: Path) -> None:
    """Drop the file's pages from the page cache."""
    descriptor = os.open(path, os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


def checks(found: Any) -> np.ndarray:
    """A checksum of every tensor's bytes, by name: what all loaders must agree in."""
    arrays = {name: np.asarray(t.numpy() if isinstance(t, gt.Tensor) else t.get()
                               if hasattr(t, "get") else t) for name, t in found.items()}
    return np.array([zlib.crc32(arrays[name].reshape(-1).view(np.uint8)) for name in
                     sorted(arrays)], np.float64)


# -- parts -----------------------------------------------------------------------------------------


def load(
    options: Options, tensors: dict[str, np.ndarray], cold: bool, judged: bool = True
) -> Iterator[Part]:
    """All tensors of a file. `judged`: the target is for files of a usual number of tensors."""
    with file_of(tensors) as path:
        wanted, count, size = checks(tensors), len(tensors), path.stat().st_size
        tensors.clear()
        ladder = Ladder(f"load {size / 1e9:.3g} GB in {count} tensors, page cache "
                        + ("cold" if cold else "warm"), lambda: wanted, tolerance=0,
                        device=options.device)

        def before() -> None:
            if cold:
                forget(path)

        def gtensor(empty: bool = True, threads: int = reading.MOST_THREADS) -> Any:
            before()
            if empty:
                gt.memory.empty_cache(options.device)
            usual, reading.MOST_THREADS = reading.MOST_THREADS, threads
            try:
                return checkpoint.load_file(path, options.device)
            finally:
                reading.MOST_THREADS = usual

        def package() -> Any:
            before()
            found = safetensors.numpy.load_file(path)
            return found if options.device == "cpu" else on_gpu(found)

        ladder.rung("gtensor", gtensor, result=checks, moved=size)
        if options.device == "cpu":
            ladder.rung("gtensor, one thread", lambda: gtensor(threads=1), result=checks,
                        moved=size)
        ladder.rung("gtensor, arena warm", lambda: gtensor(empty=False), result=checks, moved=size)
        name = "safetensors" if options.device == "cpu" else "safetensors, then cupy"
        ladder.rung(name, package, result=checks, moved=size)
        if options.device == "cpu" and judged:
            ladder.target("gtensor", name, LOAD_TARGET)
        else:
            ladder.compare("gtensor", name)
        for other in ladder.rungs[1:-1]:
            ladder.compare(other.name, name)
        ladder.note(f"gtensor reads by {min(reading.MOST_THREADS, len(os.sched_getaffinity(0)))} "
                    "threads, safetensors.numpy.load_file by one")
        yield ladder


def on_gpu(arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    """The arrays as CuPy's."""
    import cupy

    return {name: cupy.asarray(array) for name, array in arrays.items()}


def save(options: Options) -> Iterator[Part]:
    """Writing the file; ours is synced and renamed, the package's is neither."""
    tensors = transformer(options)
    wanted = checks(tensors)
    with tempfile.TemporaryDirectory(prefix="ladder-checkpoint-") as folder:
        ours, package = Path(folder) / "ours", Path(folder) / "package"
        ladder = Ladder(f"save {sum(t.nbytes for t in tensors.values()) / 1e9:.3g} GB",
                        lambda: wanted, tolerance=0)
        ladder.rung("gtensor", lambda: checkpoint.save_file(tensors, ours),
                    result=lambda _: checks(checkpoint.load_file(ours)))

        def synced() -> None:
            safetensors.numpy.save_file(tensors, package)
            descriptor = os.open(package, os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)

        ladder.rung("safetensors and fsync", synced,
                    result=lambda _: checks(checkpoint.load_file(package)))
        ladder.compare("gtensor", "safetensors and fsync")
        yield ladder


PEAK = """
import sys
import {module}
load = {module}.{function}
def peak():
    with open("/proc/self/status") as file:
        return 1024 * int(next(line.split()[1] for line in file if line.startswith("VmHWM")))
load(sys.argv[1])
before = peak()
found = load(sys.argv[2])
print(peak() - before)
"""


def memory(options: Options) -> Iterator[Part]:
    """The most memory a process has held while it loaded a file, beside what it held before."""
    tensors = transformer(options)
    largest = max(t.nbytes for t in tensors.values())
    with file_of(tensors) as path, file_of({"x": np.ones(1)}) as warm_up:
        size = path.stat().st_size
        tensors.clear()
        for name, module, target in (("gtensor", "gtensor.checkpoint", size + largest),
                                     ("safetensors", "safetensors.numpy", None)):
            text = PEAK.format(module=module, function="load_file")
            done = subprocess.run([sys.executable, "-c", text, str(warm_up), str(path)], text=True,
                                  capture_output=True, check=True)
            yield Figure(f"peak of {name} load_file", int(done.stdout), target, "bytes",
                         f"file {size:,}, largest tensor {largest:,}; VmHWM of a fresh process, "
                         "pages of a mapped file included")


if __name__ == "__main__":
    sys.exit(main(__doc__, build, "ladder_checkpoint"))

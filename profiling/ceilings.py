"""The ceilings of a machine: how fast bytes move, matrices are multiplied, a kernel starts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from ladder import Ladder
from ladder_command import Options, Part

import gtensor as gt

COPY_BYTES = {"cpu": 1 << 28, "cuda": 1 << 30}  # far beyond any cache
MATRIX = {"cpu": 1024, "cuda": 8192}


def copy_floor(ladder: Ladder, xp: Any, nbytes: int) -> None:
    """Add the floor of work bound by memory: a copy of so many bytes."""
    source = xp.asarray(np.random.default_rng(0).integers(0, 256, nbytes, np.uint8))
    target = xp.empty_like(source)
    target[...] = source  # the pages exist before the measurement
    ladder.floor("copy", lambda: xp.copyto(target, source), moved=2 * nbytes)


def product_floor(ladder: Ladder, xp: Any, n: int, dtype: Any = np.float32) -> None:
    """Add the floor of work bound by arithmetic: a product of two n x n matrices."""
    rng = np.random.default_rng(0)
    a, b = (xp.asarray(rng.standard_normal((n, n)).astype(dtype)) for _ in range(2))
    out = xp.empty_like(a)
    ladder.floor(f"product {np.dtype(dtype).name}", lambda: xp.matmul(a, b, out=out),
                 flops=2 * n**3)


def build(options: Options) -> Iterator[tuple[str, Callable[[], Iterator[Part]]]]:
    """The parts of `python profiling/ladder.py`."""
    if options.device == "cpu":
        xp: Any = np
    else:
        import cupy

        xp = cupy
    size = COPY_BYTES[options.device] >> (4 if options.quick else 0)
    n = MATRIX[options.device] >> (2 if options.quick else 0)

    def memory() -> Iterator[Part]:
        ladder = Ladder(f"copy of {size >> 20} MiB", device=options.device)
        copy_floor(ladder, xp, size)
        yield ladder

    def arithmetic() -> Iterator[Part]:
        ladder = Ladder(f"matrix product, n = {n}", device=options.device)
        for dtype in (np.float32, np.float64) if options.device == "cpu" else (
                np.float16, np.float32, np.float64):
            product_floor(ladder, xp, n, dtype)
        yield ladder

    def tf32() -> Iterator[Part]:
        with gt.settings.override(tf32=True):
            ladder = Ladder(f"matrix product in TF32, n = {n}", device="cuda")
            a, b = (gt.random.normal((n, n), device="cuda") for _ in range(2))
            out = gt.empty_like(a)
            ladder.floor("product tf32", lambda: gt.matmul(a, b, out=out), flops=2 * n**3)
            yield ladder

    def start() -> Iterator[Part]:
        """A replay launches its kernels without the host."""
        count = 10 if options.quick else 1000
        x, graph = gt.ones((1,), device="cuda"), gt.Graph("cuda")
        with gt.no_grad(), graph.capture():
            for _ in range(count):
                x += 1
        ladder = Ladder("a tiny kernel in a graph", device="cuda", per=count, unit="kernel")
        ladder.floor("start", graph.replay)
        yield ladder

    def link() -> Iterator[Part]:
        host = xp.cuda.alloc_pinned_memory(size // 4)
        source = np.frombuffer(host, np.uint8, size // 4)
        source[...] = 1
        target = xp.empty(source.shape, source.dtype)
        ladder = Ladder(f"copy of {size >> 22} MiB from the host", device="cuda")
        ladder.floor("link", lambda: target.set(source), moved=size // 4)
        yield ladder

    yield "memory", memory
    yield "arithmetic", arithmetic
    if options.device == "cuda":
        yield "TF32", tf32
        yield "start", start
        yield "link", link

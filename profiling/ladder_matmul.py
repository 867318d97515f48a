"""Products by the library's own kernel: matmul_into.cu against a naive kernel, cuBLAS and CuPy.

    python profiling/ladder_matmul.py --device cuda
    python profiling/ladder_matmul.py --device cuda --only bfloat16

"composed" is what the kernel replaces: operands that cuBLAS cannot read are copied, then multiplied
by cuBLAS. "naive" is matmul_naive.cu, a thread to an element. "square" is what cuBLAS does best;
there it is a floor, with the operations per second that the others are held against. Tensor cores
serve cuBLAS for bfloat16 and never this kernel. Needs a GPU: on a CPU there is nothing to measure.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np
from ladder import Ladder
from ladder_command import Options, Part, main, on_cuda

from gtensor.backend import get_device
from gtensor.backend.kernels import NULL, flat_launch, raw
from gtensor.backend.matmul_kernel import kernel_settings, matmul_into, plan

DTYPES = {"float32": np.dtype(np.float32), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
TOLERANCES = {"float32": 1e-4, "bfloat16": 2e-2}
NAIVE = raw("matmul_naive.cu", "matmul_naive")


@dataclass(frozen=True)
class Size:
    """A product of (*lead, m, k) and (*lead, k, n)."""

    name: str
    m: int
    n: int
    k: int
    lead: tuple[int, ...] = ()
    step: int = 1  # between neighbours in a row of a

    def small(self) -> Size:
        """At most 128 along each axis, to see that it runs."""
        m, n, k = (min(length, 128) for length in (self.m, self.n, self.k))
        return replace(self, m=m, n=n, k=k, lead=tuple(min(length, 2) for length in self.lead))


SIZES = (
    Size("square", 2048, 2048, 2048),
    Size("columns of a wider buffer", 4096, 512, 512, step=2),
    Size("heads", 32, 32, 64, (64, 12)),
)


@dataclass
class Data:
    """The arrays of a product, and its rungs; each writes an out of its own."""

    size: Size
    dtype: np.dtype

    def __post_init__(self) -> None:
        size, self.xp = self.size, get_device("cuda").xp
        self.a = self.drawn(*size.lead, size.m, size.k * size.step)[..., ::size.step]
        self.b = self.drawn(*size.lead, size.k, size.n) / np.float32(size.k**0.5)
        self.b = self.b.astype(self.dtype)
        self.out = self.xp.empty((*size.lead, size.m, size.n), self.dtype)
        self.flops = 2 * self.out.size * size.k

    def drawn(self, *shape: int) -> Any:
        random = self.xp.random.RandomState(len(shape))
        return random.standard_normal(shape, dtype=np.float32).astype(self.dtype)

    def own(self) -> Any:
        matmul_into(self.a, self.b, self.out)
        return self.out

    def naive(self) -> Any:
        arrays = self.a, self.b, self.out
        found = plan(*((x.shape, x.strides, x.dtype) for x in arrays), None)
        assert found is not None and not found.exchanged
        how = kernel_settings(1.0, 0.0, False, False)
        NAIVE[self.dtype](*flat_launch(self.out.size), (
            *arrays, NULL, found.axes, how, self.out.size))
        return self.out

    def composed(self) -> Any:
        return get_device("cuda").matmul(self.xp.ascontiguousarray(self.a), self.b, self.out)

    def plain(self) -> None:
        get_device("cuda").matmul(self.a, self.b, self.out)

    def sampled(self, out: Any) -> Any:
        """Some elements, in float32."""
        return out.reshape(-1)[::1_009].astype(np.float32).get()


def build(options: Options) -> Iterator[tuple[str, Callable[[], Iterable[Part]]]]:
    """One part per product and dtype."""
    return on_cuda(options, SIZES, DTYPES, lambda s, d: climb(Data(s, DTYPES[d]), d))


def climb(data: Data, dtype: str) -> Iterator[Ladder]:
    ladder = Ladder(f"{data.size.name} {dtype}", lambda: data.sampled(data.composed()),
                    tolerance=TOLERANCES[dtype], device="cuda")
    if data.size.name == "square":
        ladder.floor("cuBLAS", data.plain, flops=data.flops)
    ladder.rung("gtensor", data.own, result=data.sampled, flops=data.flops)
    ladder.rung("composed", data.composed, result=data.sampled)
    ladder.rung("naive", data.naive, result=data.sampled)
    ladder.compare("gtensor", "composed", "naive")
    yield ladder


if __name__ == "__main__":
    sys.exit(main(__doc__, build, "ladder_matmul"))

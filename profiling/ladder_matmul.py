"""Products by the library's own kernel: matmul_into.cu against a naive kernel, cuBLAS and CuPy.

    python profiling/ladder_matmul.py --device cuda
    python profiling/ladder_matmul.py --device cuda --only bfloat16

"composed" is what the kernel replaces: operands that cuBLAS cannot read are copied, then cleaned,
multiplied by cuBLAS, and what follows is added by CuPy, one pass over memory for each step. "naive"
is matmul_naive.cu, a thread to an element. "square" is what cuBLAS does best; there it is a floor,
with the operations per second that the others are held against. Tensor cores serve cuBLAS for
bfloat16 and never this kernel. Needs a GPU: on a CPU there is nothing to measure.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
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
    """A product of (*lead, m, k) and (*lead, k, n), and what is done besides."""

    name: str
    m: int
    n: int
    k: int
    lead: tuple[int, ...] = ()
    step: int = 1  # between neighbours in a row of a
    scaled: bool = False  # a residual is added to the product, which is scaled
    clean: bool = False
    bias: bool = False
    activation: str = "identity"

    def small(self) -> Size:
        """At most 128 along each axis, to see that it runs."""
        m, n, k = (min(length, 128) for length in (self.m, self.n, self.k))
        return replace(self, m=m, n=n, k=k, lead=tuple(min(length, 2) for length in self.lead))


SIZES = (
    Size("square", 2048, 2048, 2048),
    Size("columns of a wider buffer", 4096, 512, 512, step=2),
    Size("heads", 32, 32, 64, (64, 12)),
    Size("x + scale * (x @ c)", 16384, 256, 256, scaled=True),
    Size("cleaned", 4096, 512, 512, clean=True),
    Size("bias and tanh-GELU", 4096, 512, 512, bias=True, activation="gelu_tanh"),
)


@dataclass
class Data:
    """The arrays of a product, and its rungs; each writes an out of its own."""

    size: Size
    dtype: np.dtype
    arrays: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        size, self.xp = self.size, get_device("cuda").xp
        self.a = self.drawn(*size.lead, size.m, size.k * size.step)[..., ::size.step]
        self.b = self.drawn(*size.lead, size.k, size.n) / np.float32(size.k**0.5)
        self.b = self.b.astype(self.dtype)
        self.out = self.xp.empty((*size.lead, size.m, size.n), self.dtype)
        self.residual = self.drawn(*self.out.shape) if size.scaled else None
        self.bias = self.drawn(size.n) if size.bias else None
        self.scale = self.xp.asarray(0.5, np.float32) if size.scaled else None
        if size.clean:
            self.a[..., ::7] = np.nan
        self.flops = 2 * self.out.size * size.k

    def drawn(self, *shape: int) -> Any:
        random = self.xp.random.RandomState(len(shape))
        return random.standard_normal(shape, dtype=np.float32).astype(self.dtype)

    def own(self) -> Any:
        matmul_into(self.a, self.b, self.out, alpha=1.0 if self.scale is None else self.scale,
                    residual=self.residual, bias=self.bias, activation=self.size.activation,
                    clean=self.size.clean)
        return self.out

    def naive(self) -> Any:
        found = plan(*(None if x is None else (x.shape, x.strides, x.dtype)
                       for x in (self.a, self.b, self.out, self.residual, self.bias)))
        assert found is not None and not found.exchanged
        how = kernel_settings(1.0, 0.0, self.size.activation, 0.0, self.size.clean, False, False,
                              False)
        more = (NULL if x is None else x for x in (self.residual, self.bias, self.scale))
        NAIVE[self.dtype](*flat_launch(self.out.size), (
            self.a, self.b, self.out, *more, found.axes, how, self.out.size))
        return self.out

    def composed(self) -> Any:
        xp, device, a = self.xp, get_device("cuda"), self.a
        if self.size.clean:
            wide = a.astype(np.float32)
            a = xp.where(xp.isfinite(wide), wide, np.float32(0)).astype(self.dtype)
        product = device.matmul(a, self.b, self.out)
        if self.scale is not None:
            product *= self.scale.astype(self.dtype)
            product += self.residual
        if self.bias is not None:
            product += self.bias
            x = product.astype(np.float32)
            inner = np.float32(0.7978845608028654) * (x + np.float32(0.044715) * x * x * x)
            product[...] = np.float32(0.5) * x * (1 + xp.tanh(inner))
        return product

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

"""Cases of the products into memory: matmul_into.cu, matmul_into_complex.cu, matmul_naive.cu.

An operand is a part of a buffer that begins where the buffer does, so the sanitizers see the end of
what a kernel may touch. tests/backend/test_matmul_kernel.py has the strides that need a start
elsewhere, and what the launcher does.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from kernel_cases import Case, assert_close, compute, unwritten
from numpy.lib.stride_tricks import as_strided

from gtensor.backend.kernels import NULL, flat_launch, raw
from gtensor.backend.matmul_kernel import LARGE, SMALL, Tiling, kernel_settings, plan

NAIVE = raw("matmul_naive.cu", "matmul_naive")
COMPLEX = {"float32": np.dtype(np.complex64), "float64": np.dtype(np.complex128)}


def placed(values: np.ndarray, layout: str) -> tuple[np.ndarray, np.ndarray]:
    """A buffer, and the part of it that holds the values.

    Rows in one piece ("rows"), columns in one piece ("columns"), rows apart ("apart"), neither in
    one piece ("spread"), or one matrix for all indices of the batch ("repeated").
    """
    if layout == "repeated":
        buffer, part = placed(values[(0,) * (values.ndim - 2)], "rows")
        return buffer, np.broadcast_to(part, values.shape)
    if layout == "columns":
        buffer = np.ascontiguousarray(values.swapaxes(-1, -2))
        return buffer, buffer.swapaxes(-1, -2)
    step, more = {"rows": (1, 0), "apart": (1, 3), "spread": (2, 0)}[layout]
    buffer = unwritten((*values.shape[:-1], step * values.shape[-1] + more), values.dtype)
    part = buffer[..., :step * values.shape[-1]:step]
    part[...] = values
    return buffer, part


@dataclass(frozen=True)
class Product:
    """A product of (*lead, m, k) and (*lead, k, n), and what is done besides."""

    m: int
    n: int
    k: int
    lead: tuple[int, ...] = ()
    layouts: tuple[str, str, str] = ("rows", "rows", "rows")  # of a, b, out
    alpha: complex = 1.0
    beta: complex = 0.0
    bias: bool = False
    wide: bool = False
    wide_bias: bool = False
    tiling: Tiling | None = SMALL  # None: the naive kernel
    complex: bool = False
    dtypes: tuple[str, ...] = field(default=("float16", "bfloat16", "float32", "float64"))

    def case(self, name: str) -> Case:
        kind = "complex" if self.complex else "naive" if self.tiling is None else "real"
        size = {None: "", LARGE: "_large", SMALL: "_small"}[self.tiling]
        dtypes = tuple(COMPLEX) if self.complex else self.dtypes
        return Case(f"matmul-{kind}{size}-{name}", self.check, dtypes)

    def numbers(self, rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        values = rng.standard_normal(shape)
        if self.complex:
            values = values + 1j * rng.standard_normal(shape)
        return values.astype(dtype)

    def check(self, executor: Any, dtype: np.dtype, rng: np.random.Generator) -> None:
        m, n, k, lead, of = self.m, self.n, self.k, self.lead, dtype
        exact = np.complex128 if self.complex else np.float64
        if self.complex:
            dtype = COMPLEX[dtype.name]
        stored = compute(dtype) if self.wide else dtype
        a, b = (self.numbers(rng, (*lead, *matrix), dtype) for matrix in ((m, k), (k, n)))
        out = self.numbers(rng, (*lead, m, n), stored) if self.beta \
            else np.full((*lead, m, n), np.nan, stored)
        (at_a, a), (at_b, b), (at_out, out) = (
            placed(x, layout) for x, layout in zip((a, b, out), self.layouts, strict=True))
        bias = self.numbers(rng, (n,), stored if self.wide_bias else dtype) if self.bias else None

        wanted = self.alpha * np.matmul(*(x.astype(exact) for x in (a, b)))
        for factor, x in ((1, bias), (self.beta, out if self.beta else None)):
            wanted = wanted if x is None else wanted + factor * x.astype(exact)

        found = plan(*(None if x is None else (x.shape, x.strides, x.dtype)
                       for x in (a, b, out, bias)), self.tiling or SMALL)
        assert found is not None
        how = kernel_settings(self.alpha, self.beta, self.wide, self.wide_bias)
        kernel = found.kernel if self.tiling else NAIVE
        grid, block, count = (found.grid, found.block, found.tiles) if self.tiling else (
            *flat_launch(out.size), out.size)
        operands = [at_b, at_a] if found.exchanged else [at_a, at_b]
        kept = at_out.copy()
        executor.raw(kernel.file, kernel.function, of, grid, block,
                     [*operands, at_out, NULL if bias is None else bias, found.axes, how, count])
        real = np.dtype(f"f{dtype.itemsize // 2}") if self.complex else stored
        assert_close(np.ascontiguousarray(out).view(real), _parts(wanted), real, factor=4.0)
        as_strided(kept.reshape(-1), out.shape, out.strides)[...] = out
        assert at_out.tobytes() == kept.tobytes(), "written between the elements"


def _parts(x: np.ndarray) -> torch.Tensor:
    """Real numbers, or the parts of complex ones along a last axis twice as long."""
    return torch.from_numpy(np.ascontiguousarray(x).view(np.float64))


LAYOUTS = [(a, b, out) for a in ("rows", "columns") for b in ("rows", "columns", "apart")
           for out in ("rows", "columns")]
LAYOUTS += [("spread", "apart", "spread"), ("apart", "spread", "apart")]

CASES = [
    *(Product(33, 20, 21, layouts=layouts).case("-".join(layouts)) for layouts in LAYOUTS),
    *(Product(130, 36, 16, layouts=layouts, tiling=LARGE).case("-".join(layouts))
      for layouts in (("rows", "rows", "rows"), ("columns", "columns", "columns"))),
    Product(3, 129, 45, tiling=LARGE, beta=1.0, bias=True).case("in-place"),
    *(Product(*sizes).case("x".join(map(str, sizes)))
      for sizes in ((1, 1, 1), (1, 40, 3), (40, 1, 3), (2, 3, 0), (32, 32, 32), (3, 2, 100))),
    Product(5, 7, 6, (2, 3), ("columns", "repeated", "apart")).case("batch"),
    Product(5, 7, 6, (2, 1, 3), ("repeated", "columns", "columns"), beta=0.5,
            ).case("batch-added"),
    Product(1, 6, 5, (4,)).case("batch-of-rows"),
    Product(5, 37, 9, bias=True).case("bias"),
    Product(6, 5, 0, beta=-2.0, bias=True).case("nothing"),
    Product(9, 35, 17, alpha=0.7, beta=0.3).case("factors"),
    Product(35, 9, 17, layouts=("columns", "rows", "columns"), bias=True, alpha=-1.0, beta=1.0,
            ).case("all-terms"),
    Product(9, 35, 17, layouts=("rows", "rows", "apart"), beta=1.0, bias=True, wide=True,
            dtypes=("float16", "bfloat16")).case("wide"),
    Product(9, 35, 17, bias=True, wide=True, wide_bias=True, dtypes=("float16", "bfloat16"),
            ).case("wide-bias"),
    Product(9, 35, 17, tiling=None, beta=1.0, bias=True).case("all-terms"),
    Product(2, 3, 4, (2,), ("columns", "repeated", "columns"), tiling=None).case("batch"),
    Product(2, 3, 4, tiling=None).case("tiny"),
    *(Product(33, 20, 21, layouts=layouts, complex=True).case("-".join(layouts))
      for layouts in LAYOUTS[::3]),
    Product(65, 7, 9, complex=True, tiling=LARGE, layouts=("columns", "apart", "columns"),
            ).case("columns"),
    Product(9, 35, 17, complex=True, alpha=0.5 - 1j, beta=2j, bias=True).case("all-terms"),
    Product(5, 7, 6, (2, 3), ("columns", "repeated", "apart"), complex=True).case("batch"),
    Product(3, 3, 0, complex=True, beta=1.0).case("nothing"),
]

"""Cases of linear_scan.cu."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from kernel_cases import Case, assert_close, exact, normal, unwritten

from gtensor.backend.kernels import NULL
from gtensor.ops.scan.linear_scan import scan_launch

FILE = "linear_scan.cu"


def scanned(a: torch.Tensor, b: torch.Tensor, initial: Any, reverse: bool) -> torch.Tensor:
    """The recurrence step by step, of (rows, steps, channels)."""
    before = torch.zeros_like(b[:, 0]) if initial is None else initial
    found = []
    for t in reversed(range(a.shape[1])) if reverse else range(a.shape[1]):
        before = a[:, t] * before + b[:, t]
        found.append(before)
    return torch.stack(found[::-1] if reverse else found, dim=1)


def _scan(
    shape: tuple[int, int, int], begun: bool = True, reverse: bool = False, in_place: bool = False,
    launch: tuple[tuple[int], tuple[int], int] | None = None,
) -> Case:
    rows, steps, channels = shape
    grid, block, width = launch or scan_launch(*shape)
    sizes = [rows, steps, channels, width, int(reverse)]

    def check(executor: Any, dtype: np.dtype, rng: np.random.Generator) -> None:
        a, b = rng.uniform(-0.9, 1.05, shape).astype(dtype), normal(rng, shape, dtype)
        initial: Any = normal(rng, (rows, channels), dtype) if begun else NULL
        leaves = [exact(x).requires_grad_() if x is not NULL else None for x in (a, b, initial)]
        wanted = scanned(*leaves, reverse)  # type: ignore[arg-type]
        g, was = normal(rng, shape, dtype), exact(b)
        wanted.backward(exact(g))
        h = b if in_place else unwritten(shape, dtype)
        executor.raw(FILE, "linear_scan_forward", dtype, grid, block, [a, b, initial, h, *sizes])
        assert_close(h, wanted, dtype, factor=2.0)
        assert in_place or torch.equal(exact(b), was)

        da, db = unwritten(shape, dtype), g if in_place else unwritten(shape, dtype)
        first: Any = unwritten((rows, channels), dtype) if begun else NULL
        executor.raw(FILE, "linear_scan_backward", dtype, grid, block,
                     [g, a, h, initial, da, db, first, *sizes])
        assert_close(db, leaves[1].grad, dtype, factor=2.0)
        assert_close(da, leaves[0].grad, dtype, factor=8.0)  # of h, which was rounded
        if begun:
            assert_close(first, leaves[2].grad, dtype, factor=4.0)
        again = unwritten(shape, dtype)
        if not in_place:
            executor.raw(FILE, "linear_scan_backward", dtype, grid, block,
                         [g, a, h, initial, again, NULL, NULL, *sizes])
            assert np.array_equal(again, da)

    more = ["begun"] * begun + ["reverse"] * reverse + ["inplace"] * in_place
    more += [f"block{block[0]}"] if launch else []
    return Case("-".join(["linear_scan", "x".join(map(str, shape)), *more]), check)


CASES = [
    _scan((1, 1, 1)), _scan((2, 5, 3), begun=False), _scan((2, 16, 33), reverse=True),
    _scan((1, 17, 2), begun=False, reverse=True), _scan((3, 150, 5), in_place=True),
    _scan((1, 300, 40)), _scan((2, 70, 9), launch=((1,), (8,), 4), reverse=True, in_place=True),
    _scan((2, 40, 3), launch=((2,), (8,), 2)), _scan((0, 4, 3)), _scan((2, 3, 0)),
]

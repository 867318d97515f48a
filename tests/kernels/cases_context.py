"""Cases of attention_context.cu, whose elementwise companions run in tests/nn."""

from __future__ import annotations

from typing import Any

import numpy as np
from kernel_cases import Case, assert_close, compute, exact, normal, unwritten

from gtensor.ops.attention import context


def _rows(width: int, lead: tuple[int, ...], strided: bool = False) -> Case:
    def check(executor: Any, dtype: np.dtype, rng: np.random.Generator) -> None:
        step, work = 1 + strided, compute(dtype)
        arrays = [normal(rng, (*lead, step * width), dtype) + dtype.type(4) for _ in range(2)]
        arrays[0][..., 0] = np.where(rng.random(lead) < 0.5, np.nan, np.inf)
        parts = [a[..., ::step] for a in arrays]
        numbers = context._sampled(int(np.prod(lead)))
        rows = unwritten((2, len(numbers), width), work)
        lengths = unwritten((2, width), work)
        executor.raw("attention_context.cu", "context_rows", dtype, (-(-width // 256), 2), (256,), [
            *arrays, rows, lengths,
            context._offsets(*((part.shape, context._steps(part)) for part in parts)), step, step,
            len(numbers), width])
        for part, found, length in zip(parts, rows, lengths, strict=True):
            sampled = exact(part).reshape(-1, width)[list(numbers)].nan_to_num(0, 0, 0)
            wanted = sampled - sampled.mean(0)
            assert_close(found, wanted, work)
            assert_close(length, wanted.norm(dim=0), work)

    return Case(f"context_rows-{'x'.join(map(str, (*lead, width)))}{'-strided' * strided}", check)


def _dot(count: int, blocks: int) -> Case:
    def check(executor: Any, dtype: np.dtype, rng: np.random.Generator) -> None:
        x, y = (normal(rng, (count,), dtype) for _ in range(2))
        parts, total = unwritten((blocks,), np.dtype(np.float64)), unwritten((), compute(dtype))
        file = "attention_context.cu"
        executor.raw(file, "context_dot", dtype, (blocks,), (256,), [x, y, parts, count])
        executor.raw(file, "context_dot_of_parts", total.dtype, (1,), (256,),
                     [parts, total, blocks])
        assert_close(total, exact(x) @ exact(y), total.dtype)

    return Case(f"context_dot-{count}-{blocks}", check)


CASES = [
    *(_rows(width, lead) for width, lead in ((5, (3,)), (300, (4, 9)), (1, (70,)), (7, (2, 50)))),
    _rows(33, (3, 5), strided=True),
    *(_dot(count, blocks) for count, blocks in ((1, 1), (1000, 1), (1000, 3), (0, 1))),
]

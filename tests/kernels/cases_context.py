"""Cases of the kernels of an attention context: attention_context.cu and two of one line."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
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
            context._addresses(*((a.shape, a.strides, a.itemsize) for a in parts)), len(numbers),
            width])
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


def _average(executor: Any, dtype: np.dtype, rng: np.random.Generator) -> None:
    denom = np.abs(normal(rng, (40,), dtype))
    cov, before = denom * rng.uniform(-1, 1, 40).astype(dtype), normal(rng, (40,), dtype)
    denom[::3], cov[1], denom[2], cov[4], denom[4] = 1e-13, np.nan, np.inf, np.inf, np.inf
    out = unwritten((40,), dtype)
    executor.elementwise(context._AVERAGE, dtype, [cov, denom, before, 0.25], [out])
    ratio = torch.nan_to_num(torch.tanh(exact(cov) / exact(denom)), 0)
    alike = torch.where(exact(denom) > 1e-12, ratio, 0.0)
    assert_close(out, 0.75 * exact(before) + 0.25 * alike, dtype)


def _add(executor: Any, dtype: np.dtype, rng: np.random.Generator) -> None:
    x, mixed = normal(rng, (40,), dtype), normal(rng, (40,), dtype)
    strength = np.full((40,), 0.75, dtype)
    wanted = exact(x) + exact(strength) * exact(mixed)
    executor.elementwise(context._ADD, dtype, [x, mixed, strength], [mixed])
    assert_close(mixed, wanted, dtype)


CASES = [
    *(_rows(width, lead) for width, lead in ((5, (3,)), (300, (4, 9)), (1, (70,)), (7, (2, 50)))),
    _rows(33, (3, 5), strided=True),
    *(_dot(count, blocks) for count, blocks in ((1, 1), (1000, 1), (1000, 3), (0, 1))),
    Case("context_average", _average, ("float32", "float64")), Case("context_add", _add),
]

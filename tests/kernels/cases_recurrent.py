"""Cases of the pointwise parts of recurrent steps: lstm_cell.cu, gru_cell.cu."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from kernel_cases import Case, assert_close, assert_equal, compute, exact, normal, unwritten

from gtensor.backend.kernels import flat_launch

Shape = tuple[int, int, int, int]  # leading axis, steps, rows, width


def _places(step: int, reverse: int) -> tuple[int, int]:
    """Of the state that the step reads, and of the one that it makes."""
    return step + reverse, step + 1 - reverse


def _launch(shape: Shape, block: int) -> tuple[tuple[int], tuple[int], int]:
    lead, _, rows, width = shape
    size = lead * rows * width
    grid, _ = flat_launch(size)
    return (max(grid[0], -(-size // block) - 1) if size else 0,), (block,), size


def _lstm(shape: Shape, step: int, reverse: int, block: int = 64) -> Case:
    def check(executor: Any, dtype: np.dtype, rng: np.random.Generator) -> None:
        lead, steps, rows, width = shape
        before, after = _places(step, reverse)
        grid, threads, size = _launch(shape, block)
        sizes = [size, steps, rows, width, step, reverse]
        gates = normal(rng, (lead, steps, rows, 4 * width), dtype)
        hidden = normal(rng, (lead, steps + 2, rows, width), dtype)
        cells = normal(rng, (lead, steps + 1, rows, width), compute(dtype))
        pre = exact(gates[:, step]).requires_grad_()
        c = exact(cells[:, before]).requires_grad_()
        i, f, g, o = pre.chunk(4, -1)
        acts = [torch.sigmoid(i), torch.sigmoid(f), torch.tanh(g), torch.sigmoid(o)]
        cell = acts[1] * c + acts[0] * acts[2]
        made = acts[3] * torch.tanh(cell)
        wanted = [exact(a) for a in (gates, hidden, cells)]
        wanted[0][:, step] = torch.cat(acts, -1).detach()
        wanted[1][:, after], wanted[2][:, after] = made.detach(), cell.detach()
        executor.raw("lstm_cell.cu", "lstm_cell_forward", dtype, grid, threads,
                     [gates, hidden, cells, *sizes])
        for given, right in zip((gates, hidden), wanted, strict=False):
            assert_close(given, right, dtype)
        assert_close(cells, wanted[2], compute(dtype))

        upstream = normal(rng, hidden.shape, dtype)
        dh, dc = (normal(rng, (lead, rows, width), compute(dtype)) for _ in range(2))
        for first in (0, 1):
            d = unwritten(gates.shape, dtype)
            through = exact(upstream[:, after]) + (0 if first else exact(dh))
            grads = torch.autograd.grad([made, cell], [pre, c], [through, exact(dc)],
                                        retain_graph=True)
            right = exact(d)
            right[:, step] = grads[0]
            own = dc.copy()
            executor.raw("lstm_cell.cu", "lstm_cell_backward", dtype, grid, threads,
                         [upstream, gates, cells, d, dh, own, *sizes, first])
            assert_close(d, right, dtype, factor=4.0)  # of rounded gates
            assert_close(own, grads[1], dtype, factor=4.0)

    return Case(_name("lstm_cell", shape, step, reverse), check)


def _gru(shape: Shape, step: int, reverse: int, block: int = 64) -> Case:
    def check(executor: Any, dtype: np.dtype, rng: np.random.Generator) -> None:
        lead, steps, rows, width = shape
        before, after = _places(step, reverse)
        grid, threads, size = _launch(shape, block)
        sizes = [size, steps, rows, width, step, reverse]
        gates = normal(rng, (lead, steps, rows, 4 * width), dtype)
        hidden = normal(rng, (lead, steps + 1, rows, width), dtype)
        pre = exact(gates[:, step]).requires_grad_()
        h = exact(hidden[:, before]).requires_grad_()
        n, r, z, q = pre.chunk(4, -1)
        r, z = torch.sigmoid(r), torch.sigmoid(z)
        n = torch.tanh(n + r * q)
        made = (1 - z) * n + z * h
        wanted = [exact(a) for a in (gates, hidden)]
        wanted[0][:, step] = torch.cat([n, r, z, q], -1).detach()
        wanted[1][:, after] = made.detach()
        executor.raw("gru_cell.cu", "gru_cell_forward", dtype, grid, threads,
                     [gates, hidden, *sizes])
        for given, right in zip((gates, hidden), wanted, strict=True):
            assert_close(given, right, dtype)
        assert_equal(gates[:, step, :, 3 * width:], q)

        upstream = normal(rng, hidden.shape, dtype)
        dh = normal(rng, (lead, rows, width), compute(dtype))
        for first in (0, 1):
            d, own = unwritten(gates.shape, dtype), dh.copy()
            through = exact(upstream[:, after]) + (0 if first else exact(dh))
            grads = torch.autograd.grad(made, [pre, h], through, retain_graph=True)
            right = exact(d)
            right[:, step] = grads[0]
            executor.raw("gru_cell.cu", "gru_cell_backward", dtype, grid, threads,
                         [upstream, gates, hidden, d, own, *sizes, first])
            assert_close(d, right, dtype, factor=4.0)  # of rounded gates
            assert_close(own, grads[1], dtype, factor=4.0)

    return Case(_name("gru_cell", shape, step, reverse), check)


def _name(kind: str, shape: Shape, step: int, reverse: int) -> str:
    ending = "-reverse" if reverse else ""
    return f"{kind}-{'x'.join(map(str, shape))}-step{step}{ending}"


CASES = [
    case for make in (_lstm, _gru) for case in (
        make((1, 3, 2, 5), 0, 0), make((1, 3, 2, 5), 2, 1), make((2, 4, 3, 7), 1, 0, 16),
        make((3, 2, 5, 33), 1, 1), make((1, 1, 1, 1), 0, 0, 1), make((1, 2, 0, 3), 1, 0))
]

"""The checker is checked: deliberately broken kernels must be caught on the host.

Each fault is one change of a kernel's text; its test names what has to notice it: AddressSanitizer,
UBSan, the machine itself, or the comparison of values and of thread schedules. ThreadSanitizer has
to notice every missing barrier, too. test_kernels_machine_faults.py has those of warps, atomics and
dynamic shared memory.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import kernel_plants
import numpy as np
import pytest
from cases_multi_tensor import CUT, SIZE, blocks, cases_text
from kernel_host import (
    HostMachine,
    KernelFault,
    Toolchain,
    launch_all_schedules,
)
from kernel_plants import Plant
from kernel_toolchain import FIBERS, THREADS, Build

from gtensor.backend import kernels
from gtensor.backend.matmul_kernel import SMALL, kernel_settings, plan
from gtensor.hostcuda.build import Unusable
from gtensor.ops.define.updates import update_of
from gtensor.ops.updates import optimizers

ROWS, COLUMNS = 3, 37


def _softmax(machine: HostMachine) -> None:
    """Two blocks of two warps, each a row: the last one has none."""
    rng = np.random.default_rng(5)
    x = rng.standard_normal((ROWS, COLUMNS)).astype(np.float32)
    y = np.full_like(x, 77)
    launch_all_schedules(machine, "softmax_forward<float>", (2,), (32, 2), [x, y, ROWS, COLUMNS])
    exponentials = np.exp(x.astype(np.float64))
    wanted = exponentials / exponentials.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(y, wanted, rtol=1e-5)


def _long_rows(machine: HostMachine) -> None:
    """Rows of two warps, of packs, and of more packs than a thread keeps; some are -infinity."""
    x = np.random.default_rng(5).standard_normal((3, 1200)).astype(np.float32)
    x[0, :300] = -np.inf  # all that some threads keep at first
    x[1, 300:] += 50  # what is larger comes later
    y = np.full_like(x, 77)
    launch_all_schedules(machine, "softmax_forward<float>", (1,), (64, 2), [x, y, 3, 1200])
    exponentials = np.exp(x.astype(np.float64))
    np.testing.assert_allclose(y, exponentials / exponentials.sum(1, keepdims=True), rtol=1e-5)


def _weight_gradient(machine: HostMachine) -> None:
    """Two groups of one channel each, 12 taps: two blocks for each output; 120 positions."""
    rng = np.random.default_rng(5)
    shape, kernel, padding, out = (3, 2, 5, 8), (4, 3), (1, 0), (4, 6)
    x = rng.standard_normal(shape).astype(np.float32)
    g = rng.standard_normal((3, 2, *out)).astype(np.float32)
    weight = np.full((2, 12), 77, np.float32)
    launch_all_schedules(machine, "conv_weight_gradient<float>", (2, 2), (64,), [
        g, x, weight, *shape, *kernel, *out, 1, 1, *padding, 1, 1, 2, 2, 0])
    columns = _windows(x, kernel, padding, out)  # (n, c, taps, positions)
    np.testing.assert_allclose(
        weight, np.einsum("ncp,nckp->ck", g.reshape(3, 2, -1), columns), rtol=1e-4, atol=1e-5)


def _windows(
    x: np.ndarray, kernel: tuple[int, int], padding: tuple[int, int], out: tuple[int, int]
) -> np.ndarray:
    top, left = padding
    padded = np.pad(x, ((0, 0), (0, 0), (top, top), (left, left)))
    taps = [padded[..., i:i + out[0], j:j + out[1]]
            for i in range(kernel[0]) for j in range(kernel[1])]
    return np.stack(taps, axis=2).reshape(*x.shape[:2], len(taps), -1)


def _columns_beside(machine: HostMachine) -> None:
    """Columns (taps, n, positions) of one channel, and outputs moved to (outputs, n, positions)."""
    rng = np.random.default_rng(5)
    shape, kernel, out = (2, 1, 4, 5), (2, 2), (3, 4)
    x = rng.standard_normal(shape).astype(np.float32)
    y = rng.standard_normal((2, 5, 12)).astype(np.float32)
    columns, moved = np.full((4, 2, 12), 77, np.float32), np.full((5, 2, 12), 77, np.float32)
    launch_all_schedules(machine, "im2col_beside<float>", (2,), (64,), [
        x, columns, y, moved, 5, *shape, *kernel, *out, 1, 1, 0, 0, 1, 1, 12, 24, 1])
    np.testing.assert_array_equal(
        columns, _windows(x, kernel, (0, 0), out)[:, 0].swapaxes(0, 1))
    np.testing.assert_array_equal(moved, y.swapaxes(0, 1))


def _normalized(machine: HostMachine) -> None:
    """Backward over g, with the sums for the parameters: two blocks, two rows of two warps each."""
    rng = np.random.default_rng(6)
    g, x = rng.standard_normal((2, 5, 72)).astype(np.float32)
    mean, rstd = x.mean(axis=1), 1 / x.std(axis=1)
    partials = np.full((2, 2, 72), 77, np.float32)
    xhat = (x - mean[:, None]) * rstd[:, None]
    wanted = (g * xhat).sum(0), g.sum(0)
    level, slope = g.mean(1, keepdims=True), (g * xhat).mean(1, keepdims=True)
    dx = (g - level - xhat * slope) * rstd[:, None]
    launch_all_schedules(machine, "layer_norm_backward<float>", (2,), (64, 2), [
        g, x, 0, mean, rstd, g, partials, 5, 72, 5, 1, 0], 4 * 72 * 4)
    np.testing.assert_allclose(g, dx, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(partials.sum(0), wanted, rtol=1e-4, atol=1e-5)


def _parameters(machine: HostMachine) -> None:
    partials = np.random.default_rng(6).standard_normal((20, 2, 40)).astype(np.float32)
    dweight, dbias = np.full((2, 40), 77, np.float32)
    launch_all_schedules(machine, "layer_norm_parameters<float>", (2, 2), (32, 8),
                         [partials, dweight, dbias, 20, 40, 2])
    np.testing.assert_allclose([dweight, dbias], partials.sum(0), rtol=1e-4, atol=1e-5)


def _statistics(machine: HostMachine) -> None:
    x = np.random.default_rng(6).standard_normal((3, 2, 15)).astype(np.float32)
    mean, var = np.full((2, 2), 77, np.float32)
    launch_all_schedules(machine, "batch_norm_statistics<float>", (2,), (16,),
                         [x, mean, var, 3, 2, 15])
    np.testing.assert_allclose([mean, var], [x.mean((0, 2)), x.var((0, 2))], rtol=1e-4, atol=1e-6)


def _collected(machine: HostMachine) -> None:
    """Two parts of two channels; the first block of a channel moves its averages."""
    x = np.random.default_rng(6).standard_normal((4, 2, 8)).astype(np.float32)
    partials = np.zeros((2, 2, 4), np.float32)  # count, mean, rest, squares
    for part, images in enumerate(np.split(x, 2)):
        center = images.mean((0, 2))
        squares = ((images - center[:, None]) ** 2).sum((0, 2))
        partials[part] = np.stack([np.full(2, 16), center, np.zeros(2), squares], axis=1)
    mean, var, running_mean, running_var = np.full((4, 2), 77, np.float32)
    count, z = np.array([3]), np.full_like(x, 77)
    launch_all_schedules(machine, "bn_act_forward<float>", (2, 2), (64,), [
        x, mean, var, 0, 0, z, 4, 2, 8, 1e-5, 0, 0.0, 0, 0, partials, 2, running_mean, running_var,
        count, 0.5, 2.0])
    wanted = x.mean((0, 2)), x.var((0, 2))
    np.testing.assert_allclose([mean, var], wanted, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(running_mean, 0.5 * (77 + wanted[0]), rtol=1e-4)
    np.testing.assert_allclose(running_var, 0.5 * (77 + 2 * wanted[1]), rtol=1e-4)
    assert count == 4


def _few_rows(machine: HostMachine) -> None:
    rng = np.random.default_rng(7)
    x, targets = rng.standard_normal((20, 5)).astype(np.float32), rng.integers(0, 5, 20)
    loss, largest, total, out, count = (np.full(n, 77, np.float32) for n in (20, 20, 20, 1, 1))
    launch_all_schedules(machine, "cross_entropy_few_rows<float>", (1,), (32, 2), [
        x, targets, 0, loss, largest, total, out, count, 20, 5, -100, 1, 0.0])
    wanted = np.log(np.exp(x).sum(1)) - x[np.arange(20), targets]
    np.testing.assert_allclose(out, wanted.mean(), rtol=1e-5)


def _logit_gradient(machine: HostMachine) -> None:
    """Over the logits; a row is ignored."""
    x = np.random.default_rng(7).standard_normal((5, 72)).astype(np.float32)
    targets, largest = np.array([0, 71, -100, 5, 6]), x.max(1)
    total, g = np.exp(x - largest[:, None]).sum(1), np.ones(5, np.float32)
    wanted = np.exp(x - largest[:, None]) / total[:, None] - np.eye(72)[targets % 72]
    wanted[2] = 0
    launch_all_schedules(machine, "cross_entropy_backward<float>", (2,), (32, 2), [
        x, targets, 0, 0, largest, total, g, 0, x, 5, 72, -100, 1, 0.0])
    np.testing.assert_allclose(x, wanted, rtol=1e-5, atol=1e-6)


def _grouped(machine: HostMachine) -> None:
    """Groups of three planes, two at a time, over the gradients; two groups to a block."""
    rng = np.random.default_rng(9)
    x, g = (rng.standard_normal((2, 6, 12)).astype(np.float32) for _ in range(2))
    weight, rows = rng.standard_normal(6).astype(np.float32), x.reshape(4, 36).astype(np.float64)
    mean, var = rows.mean(1), rows.var(1)
    xhat = ((rows - mean[:, None]) / np.sqrt(var + 1e-5)[:, None]).reshape(x.shape)
    h = (g * weight[:, None]).reshape(4, 36)
    slope = (h * xhat.reshape(4, 36)).mean(1, keepdims=True)
    wanted = (h - h.mean(1, keepdims=True) - xhat.reshape(4, 36) * slope) / np.sqrt(
        var + 1e-5)[:, None]
    sums = np.stack([(g * xhat).sum(2), g.sum(2)], axis=1)
    partials = np.full((2, 2, 6), 77, np.float32)
    launch_all_schedules(machine, "group_norm_backward<float>", (2,), (32, 2), [
        g, x, weight, mean.astype(np.float32), var.astype(np.float32), g, partials, 4, 2, 3, 12,
        1e-5])
    np.testing.assert_allclose(g.reshape(4, 36), wanted, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(partials, sums, rtol=1e-3, atol=1e-4)


def _smoothed(machine: HostMachine) -> None:
    """Losses with weights and label smoothing, of rows whose first logits are not the largest."""
    x = np.sort(np.random.default_rng(7).standard_normal((5, 600)).astype(np.float32), axis=1) * 9
    targets, weight = np.array([0, 599, -100, 5, 6]), np.linspace(0.5, 2, 600).astype(np.float32)
    loss, largest, total = (np.full(5, 77, np.float32) for _ in range(3))
    launch_all_schedules(machine, "cross_entropy_forward<float>", (2,), (64, 2), [
        x, targets, weight, loss, largest, total, 5, 600, -100, 0.25])
    wide = x.astype(np.float64)
    logs = wide - wide.max(1, keepdims=True)
    logs -= np.log(np.exp(logs).sum(1, keepdims=True))
    wanted = -0.75 * weight[targets % 600] * logs[np.arange(5), targets % 600]
    wanted -= 0.25 * (logs * weight).mean(1)
    wanted[2] = 0
    np.testing.assert_allclose(loss, wanted, rtol=1e-4)


def _sum_rows(machine: HostMachine) -> None:
    x = np.random.default_rng(8).standard_normal((70, 40)).astype(np.float32)
    out, partials = np.full(40, 77, np.float32), np.full((3, 40), 77, np.float32)
    launch_all_schedules(machine, "sum_rows<float>", (2, 3), (64,), [
        x, out, partials, np.zeros(2, np.uint32), 70, 40, 32])
    np.testing.assert_allclose(out, x.sum(0), rtol=1e-4, atol=1e-5)


def _linear_scan(machine: HostMachine) -> None:
    """Two blocks of four lanes, 2 chunks of the sequence; the last lane has no steps in the end."""
    rng = np.random.default_rng(9)
    a, b = rng.uniform(0.5, 1, (2, 110, 2)).astype(np.float32), np.ones((2, 110, 2), np.float32)
    h, wanted = np.full_like(a, 77), np.zeros_like(a)
    launch_all_schedules(machine, "linear_scan_forward<float>", (2,), (8,), [
        a, b, 0, h, 2, 110, 2, 2, 0])
    for t in range(110):
        wanted[:, t] = a[:, t] * wanted[:, t - 1] + b[:, t]
    np.testing.assert_allclose(h, wanted, rtol=1e-5)


def _product(machine: HostMachine) -> None:
    """Rows that are 16 bytes in one operand, 20 in the other; two tiles, each three packs deep."""
    rng = np.random.default_rng(7)
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((33, 20), (20, 5)))
    out = np.full((33, 5), np.nan, np.float32)
    found = plan(*((x.shape, x.strides, x.dtype) for x in (a, b, out)), None, SMALL)
    assert found is not None
    how = kernel_settings(1.0, 0.0, False, False)
    launch_all_schedules(machine, "matmul_into_small<float>", found.grid, found.block,
                         [a, b, out, 0, found.axes, how, found.tiles])
    np.testing.assert_allclose(out, a @ b, rtol=1e-4, atol=1e-5)


def _update(machine: HostMachine) -> None:
    """A step of SGD with momentum over three tensors."""
    rng = np.random.default_rng(7)
    p, g, m = rng.standard_normal((3, SIZE)).astype(np.float32)
    rates = np.where(np.arange(SIZE) < CUT, 0.1, 0.2).astype(np.float32)
    wanted = p - rates * (0.9 * m + g), 0.9 * m + g
    row = {"rate": 0.1, "weight_decay": 0.0, "momentum": 0.9, "dampening": 0.0}
    numbers = np.array([*row.values(), *{**row, "rate": 0.2}.values()])
    steps, skip = np.array([4, 4, 4, 0]), np.zeros(1, np.float32)
    launch_all_schedules(machine, "gt_0::gt_case<float>", (blocks(),), (kernels.BLOCK,),
                         [p, g, m, SIZE, CUT, numbers, steps, skip])
    np.testing.assert_allclose(p, wanted[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(m, wanted[1], rtol=1e-5, atol=1e-6)
    assert steps.tolist() == [5, 5, 5, 0]


def _lstm_cell(machine: HostMachine) -> None:
    """The last of three steps of two sequences apart: all but its own places stay."""
    rng = np.random.default_rng(7)
    gates = rng.standard_normal((2, 3, 5, 4 * 7)).astype(np.float32)
    hidden, cells = (rng.standard_normal((2, n, 5, 7)).astype(np.float32) for n in (5, 4))
    before = gates.copy()
    i, f, g, o = np.split(gates[:, 2].astype(np.float64), 4, axis=-1)
    i, f, o = (1 / (1 + np.exp(-x)) for x in (i, f, o))
    cell = f * cells[:, 2] + i * np.tanh(g)
    launch_all_schedules(machine, "lstm_cell_forward<float>", (2,), (32,),
                         [gates, hidden, cells, 70, 3, 5, 7, 2, 0])
    np.testing.assert_allclose(cells[:, 3], cell, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(hidden[:, 3], o * np.tanh(cell), rtol=1e-5, atol=1e-6)
    assert np.array_equal(gates[:, :2], before[:, :2])


UPDATE = "update"
TEXTS = {UPDATE: kernels.inline_includes(cases_text([update_of(optimizers.sgd).kernel_of(1, {
    "rate": 0.1, "weight_decay": 0.0, "momentum": 0.9, "dampening": 0.0, "nesterov": False,
    "maximize": False})]), UPDATE)}


def _replaced(file: str, old: str, new: str, which: int = 0) -> str:
    """The file's text with one occurrence of `old` replaced."""
    text = TEXTS.get(file) or kernels.source(file)
    at = [match.start() for match in re.finditer(re.escape(old), text)][which]
    return text[:at] + new + text[at + len(old):]


SOFTMAX, LAYER_NORM, MATMUL = "softmax.cu", "layer_norm.cu", "matmul_into.cu"
WEIGHTS, IM2COL = "weight_gradient.cu", "im2col.cu"
GROUP_NORM = "group_norm.cu"
CROSS_ENTROPY, SUM_ROWS, SCAN = "cross_entropy.cu", "sum_rows.cu", "linear_scan.cu"
LSTM, BATCH_NORM, BN_ACT = "lstm_cell.cu", "batch_norm.cu", "bn_act.cu"
BARRIER = "__syncthreads();"
Run = Callable[[HostMachine], None]

FAULTS: dict[str, tuple[str, str, str, Run, Any]] = {
    "read one past the row": (
        SOFTMAX, _replaced(SOFTMAX, "place(first, k) < columns", "place(first, k) <= columns", 1),
        "softmax_forward", _softmax, "heap-buffer-overflow"),
    "write one past the row": (SOFTMAX, _replaced(SOFTMAX, "y + row *", "y + 1 + row *"),
                               "softmax_forward", _softmax, "heap-buffer-overflow"),
    "write one before the array": (SOFTMAX, _replaced(SOFTMAX, "y + row *", "y - 1 + row *"),
                                   "softmax_forward", _softmax, "heap-buffer-overflow"),
    "a row that does not exist": (SOFTMAX, _replaced(SOFTMAX, "columns, row < rows)",
                                                     "columns, true)"),
                                  "softmax_forward", _softmax, "heap-buffer-overflow"),
    "past the end of a shared array": (
        BATCH_NORM, _replaced(BATCH_NORM, "cells[GT_BLOCK]", "cells[15]"), "batch_norm_statistics",
        _statistics, "insufficient space|global-buffer-overflow"),
    "past the end of a shared row": (
        LAYER_NORM, _replaced(LAYER_NORM, "cells[8][33]", "cells[8][31]"),
        "layer_norm_parameters", _parameters, "out of bounds"),
    "index arithmetic in 32 bits": (
        SOFTMAX, _replaced(SOFTMAX, "y + row * columns + column",
                           "y + int(row) * 2147483647 * int(columns) + int(column)"),
        "softmax_forward", _softmax, "signed integer overflow",
    ),
    "packs of rows that begin anywhere": (
        SOFTMAX, _replaced(SOFTMAX, "row % gt_width<T> == 0 && ", "row > 0 && "),
        "softmax_forward", _softmax, "misaligned address"),
    "no barrier after the cells are written": (SOFTMAX, _replaced(SOFTMAX, BARRIER, "", -2),
                                               "softmax_forward", _long_rows, AssertionError),
    **{f"no barrier {place}": (
        BATCH_NORM, _replaced(BATCH_NORM, BARRIER, "", which), "batch_norm_statistics", _statistics,
        AssertionError) for which, place in enumerate((
            "before the tree", "inside the tree", "before the tree's cells are reused"))},
    "cells of another row": (
        SOFTMAX, _replaced(SOFTMAX, "cells + threadIdx.y * warps", "cells"), "softmax_forward",
        _long_rows, AssertionError),
    "a sum that a larger logit does not rescale": (
        SOFTMAX, _replaced(SOFTMAX, "if (now != largest) total *=", "if (false) total *="),
        "softmax_forward", _long_rows, AssertionError),
    "a difference of infinities": (
        SOFTMAX, _replaced(SOFTMAX, "now == -gt_infinity<F>() ? F(0) : now", "now"),
        "softmax_forward", _long_rows, AssertionError),
    "a long row of which the first part stays": (
        SOFTMAX, _replaced(SOFTMAX, "if (!whole) load(first);", ""), "softmax_forward",
        _long_rows, AssertionError),
    "no barrier before dx is written": (
        LAYER_NORM, _replaced(LAYER_NORM, f"{BARRIER}  // dx may", "// "), "layer_norm_backward",
        _normalized, AssertionError),
    "sums of rows of other blocks": (
        LAYER_NORM, _replaced(LAYER_NORM, "at < first + blockDim.y", "at < first + 2 * blockDim.y"),
        "layer_norm_backward", _normalized, AssertionError),
    "sums of a row behind the last": (
        LAYER_NORM, _replaced(LAYER_NORM, "at < rows && at", "at"), "layer_norm_backward",
        _normalized, "heap-buffer-overflow"),
    "sums that are not cleared": (
        LAYER_NORM, _replaced(LAYER_NORM, "if (partials) sums.clear();", ""),
        "layer_norm_backward", _normalized, AssertionError),
    "the sums of all blocks in one place": (
        LAYER_NORM, _replaced(LAYER_NORM, "partials + blockIdx.x *", "partials + 0 *"),
        "layer_norm_backward", _normalized, AssertionError),
    "no barrier between lanes": (LAYER_NORM, _replaced(LAYER_NORM, BARRIER, "", -1),
                                 "layer_norm_parameters", _parameters, AssertionError),
    "parts of which one is left out": (
        LAYER_NORM, _replaced(LAYER_NORM, "part < parts", "part + 1 < parts"),
        "layer_norm_parameters", _parameters, AssertionError),
    "the next class is the target": (
        CROSS_ENTROPY, _replaced(CROSS_ENTROPY, "w == hit", "w == hit + 1"),
        "cross_entropy_backward", _logit_gradient, AssertionError),
    "a gradient of an ignored row": (
        CROSS_ENTROPY, _replaced(CROSS_ENTROPY, "const bool ignored = target == ignore_index",
                                 "const bool ignored = target == ignore_index + 1"),
        "cross_entropy_backward", _logit_gradient, AssertionError),
    "a weighted sum that a larger logit does not move": (
        CROSS_ENTROPY, _replaced(CROSS_ENTROPY, "sum += mass * (base - to);", ""),
        "cross_entropy_forward", _smoothed, AssertionError),
    "weights of the next classes": (
        CROSS_ENTROPY,
        _replaced(CROSS_ENTROPY, "classes.weight + column", "classes.weight + column / 2"),
        "cross_entropy_forward", _smoothed, AssertionError),
    "no barrier before the teams' sums are read": (
        GROUP_NORM, _replaced(GROUP_NORM, f"{BARRIER}  // the teams' sums", "// "),
        "group_norm_backward", _grouped, AssertionError),
    "the weight of a channel of the first group": (
        GROUP_NORM, _replaced(GROUP_NORM, "weight[first + channel]", "weight[channel]", -1),
        "group_norm_backward", _grouped, AssertionError),
    "a plane behind the group's last": (
        GROUP_NORM, _replaced(GROUP_NORM, "channel < channels ? plane : 0", "plane"),
        "group_norm_backward", _grouped, "heap-buffer-overflow"),
    "sums of another image": (
        GROUP_NORM, _replaced(GROUP_NORM, "partials + row / groups * 2", "partials + 0 * 2"),
        "group_norm_backward", _grouped, AssertionError),
    "averages that every block moves": (
        BN_ACT, _replaced(BN_ACT, "first = walk.chunk == 0 &&", "first ="), "bn_act_forward",
        _collected, AssertionError),
    "a count that every channel increases": (
        BN_ACT, _replaced(BN_ACT, "count && channel == 0", "count != 0"), "bn_act_forward",
        _collected, AssertionError),
    "partial results of another channel": (
        BN_ACT, _replaced(BN_ACT, "partials[part * c + walk.channel + p]",
                          "partials[part * c + p]"), "bn_act_forward", _collected, AssertionError),
    "a partial result that is left out": (
        BN_ACT, _replaced(BN_ACT, "part < parts; part", "part + 1 < parts; part"),
        "bn_act_forward", _collected, AssertionError),
    "no barrier before the losses are read": (
        CROSS_ENTROPY, _replaced(CROSS_ENTROPY, f"{BARRIER}  // the losses are read", "// "),
        "cross_entropy_few_rows", _few_rows, AssertionError),
    "no barrier before a column's cells are read": (
        SUM_ROWS, _replaced(SUM_ROWS, f"cells[threadIdx.x] = value;\n  {BARRIER}",
                            "cells[threadIdx.x] = value;"), "sum_rows", _sum_rows, AssertionError),
    "a part of the rows that is left out": (
        SUM_ROWS, _replaced(SUM_ROWS, "part = lane;", "part = lane + 1;"), "sum_rows", _sum_rows,
        AssertionError),
    **{f"no barrier {place}": (
        SCAN, _replaced(SCAN, f"{BARRIER}  // {place}", "// "), "linear_scan_forward",
        _linear_scan, AssertionError)
       for place in ("before others read the cells", "before they are overwritten",
                     "before the next distance reads them",
                     "before the next steps overwrite the cells")},
    "a step behind the sequence": (
        SCAN, _replaced(SCAN, "begin + k < steps", "begin + k <= steps"), "linear_scan_forward",
        _linear_scan, "heap-buffer-overflow"),
    "lanes combined in the wrong order": (
        SCAN, _replaced(SCAN, "factor * earlier_sum + sum", "earlier_factor * sum + earlier_sum"),
        "linear_scan_forward", _linear_scan, AssertionError),
    "gates of the first sequence for all": (
        LSTM, _replaced(LSTM, "(row / rows * steps + step)", "step"), "lstm_cell_forward",
        _lstm_cell, AssertionError),
    "a state behind the sequence": (
        LSTM, _replaced(LSTM, "return step + 1 - reverse;", "return step + 3 - reverse;"),
        "lstm_cell_forward", _lstm_cell, "heap-buffer-overflow"),
    "divergent barrier": (
        SOFTMAX, _replaced(SOFTMAX, BARRIER, "if (threadIdx.x != 3) __syncthreads();", -2),
        "softmax_forward", _long_rows, "divergent barrier"),
    "barrier not reached by all": (
        SOFTMAX, _replaced(SOFTMAX, "found.combine(cells);",
                           "if (threadIdx.x > 31) return; found.combine(cells);"),
        "softmax_forward", _long_rows, "divergent barrier: .* have ended"),
    "no barrier before the tiles are multiplied": (
        MATMUL, _replaced(MATMUL, BARRIER, "", 1), "matmul_into_small", _product, AssertionError),
    "no barrier after the corner is written": (
        MATMUL, _replaced(MATMUL, BARRIER, "", 0), "matmul_into_small", _product, AssertionError),
    "no barrier where one tile serves for two": (
        MATMUL, _replaced(MATMUL, "turn ^= 1;", ""), "matmul_into_small", _product,
        AssertionError),
    "a pack where neighbours begin anywhere": (
        MATMUL, _replaced(MATMUL, "&& gt_address(from) % sizeof(gt_pack<T, W>) == 0", ""),
        "matmul_into_small", _product, "misaligned address"),
    "a pack across the end": (
        MATMUL, _replaced(MATMUL, "count >= W && step == 1 && gt_address(from)",
                          "step == 1 && gt_address(from)"),
        "matmul_into_small", _product, "heap-buffer-overflow"),
    "rows of a tile that do not exist": (
        MATMUL, _replaced(MATMUL, "row >= rows", "row > rows"), "matmul_into_small", _product,
        "heap-buffer-overflow"),
    "old memory is read": (MATMUL, _replaced(MATMUL, "if (beta != F(0)) {", "{"),
                           "matmul_into_small", _product, AssertionError),
    "a block that takes the tensor before its own": (
        UPDATE, _replaced(UPDATE, "table.first[middle] <=", "table.first[middle] <"),
        "gt_0::gt_case", _update, AssertionError),
    "16 bytes at once of tensors that begin anywhere": (
        UPDATE, _replaced(UPDATE, "return reinterpret_cast<size_t>(at) % (sizeof(T) * W) == 0;",
                          "return at != nullptr;"),
        "gt_0::gt_case", _update, "misaligned address"),
    "a pack behind the tensor": (
        UPDATE, _replaced(UPDATE, "done += (range.end - range.begin) / W * W;",
                          "done += (range.end - range.begin + W - 1) / W * W;"),
        "gt_0::gt_case", _update, AssertionError),
    "a step that every block counts": (
        UPDATE, _replaced(UPDATE, "|| !gt_last_block(table.ticket, gridDim.x)", ""),
        "gt_0::gt_case", _update, AssertionError),
    "numbers of another row": (
        UPDATE, _replaced(UPDATE, "table.row[tensor];", "table.row[tensor & 0];"),
        "gt_0::gt_case", _update, AssertionError),
    "no barrier before the numbers are read": (
        UPDATE, _replaced(UPDATE, BARRIER, "", -1), "gt_0::gt_case", _update, AssertionError),
    "a tap beyond the window": (
        WEIGHTS, _replaced(WEIGHTS, "threadIdx.x == 0 && first + k < taps", "threadIdx.x == 0"),
        "conv_weight_gradient", _weight_gradient, "heap-buffer-overflow"),
    "a row below the image": (
        WEIGHTS, _replaced(WEIGHTS, "row < height", "row <= height"),
        "conv_weight_gradient", _weight_gradient, "heap-buffer-overflow"),
    "channels of another group": (
        WEIGHTS, _replaced(WEIGHTS, "output / (outputs / groups)", "output / outputs"),
        "conv_weight_gradient", _weight_gradient, AssertionError),
    "positions that no thread takes": (
        WEIGHTS, _replaced(WEIGHTS, "at += blockDim.x", "at += 2 * blockDim.x"),
        "conv_weight_gradient", _weight_gradient, AssertionError),
    "outputs that stay where they are": (
        IM2COL, _replaced(
            IM2COL, "(image * outputs + output) * pos", "(output * n + image) * pos"),
        "im2col_beside", _columns_beside, AssertionError),
    "a result that is 0.05 % wrong": (
        SOFTMAX, _replaced(SOFTMAX, "exp(below) / total;", "exp(below) / total * F(1.0005);"),
        "softmax_forward", _softmax, AssertionError),
    "a skipped element": (
        SOFTMAX, _replaced(SOFTMAX, "gt_store(y + row", "if (column != 36) gt_store(y + row"),
        "softmax_forward", _softmax, AssertionError),
}


RACES: dict[str, tuple[str, str, str, Run, Any]] = {
    "no barrier before the teams' sums are overwritten": (
        GROUP_NORM, _replaced(GROUP_NORM, f"{BARRIER}  // the next group", "// "),
        "group_norm_backward", _grouped, None),
    "no barrier before the cells are reused": (SOFTMAX, _replaced(SOFTMAX, BARRIER, "", -1),
                                               "softmax_forward", _long_rows, None),
}
"""Fibers stop at the shuffles in between, so their order shows nothing; ThreadSanitizer sees it."""
MISSING_BARRIERS = [*RACES, *[name for name in FAULTS if name.startswith("no barrier")]]
UNBROKEN: dict[str, tuple[str, str, str, Run, Any]] = {
    "softmax": (SOFTMAX, kernels.source(SOFTMAX), "softmax_forward", _softmax, None),
    "long rows": (SOFTMAX, kernels.source(SOFTMAX), "softmax_forward", _long_rows, None),
    "layer norm": (LAYER_NORM, kernels.source(LAYER_NORM), "layer_norm_backward", _normalized,
                   None),
    "statistics": (BATCH_NORM, kernels.source(BATCH_NORM), "batch_norm_statistics", _statistics,
                   None),
    "collected": (BN_ACT, kernels.source(BN_ACT), "bn_act_forward", _collected, None),
    "parameters": (LAYER_NORM, kernels.source(LAYER_NORM), "layer_norm_parameters", _parameters,
                   None),
    "groups": (GROUP_NORM, kernels.source(GROUP_NORM), "group_norm_backward", _grouped, None),
    "smoothed": (CROSS_ENTROPY, kernels.source(CROSS_ENTROPY), "cross_entropy_forward", _smoothed,
                 None),
    "logits": (CROSS_ENTROPY, kernels.source(CROSS_ENTROPY), "cross_entropy_backward",
               _logit_gradient, None),
    "cross entropy": (CROSS_ENTROPY, kernels.source(CROSS_ENTROPY), "cross_entropy_few_rows",
                      _few_rows, None),
    "linear scan": (SCAN, kernels.source(SCAN), "linear_scan_forward", _linear_scan, None),
    "sums over rows": (SUM_ROWS, kernels.source(SUM_ROWS), "sum_rows", _sum_rows, None),
    "LSTM cell": (LSTM, kernels.source(LSTM), "lstm_cell_forward", _lstm_cell, None),
    "weight gradient": (WEIGHTS, kernels.source(WEIGHTS), "conv_weight_gradient",
                        _weight_gradient, None),
    "columns beside outputs": (IM2COL, kernels.source(IM2COL), "im2col_beside", _columns_beside,
                               None),
    "product": (MATMUL, kernels.source(MATMUL), "matmul_into_small", _product, None),
    "update": (UPDATE, TEXTS[UPDATE], "gt_0::gt_case", _update, None),
}
Machines = Callable[[str, Build], HostMachine]


def _plant(name: str, build: Build) -> Plant:
    file, broken, function, *_ = (FAULTS | RACES | UNBROKEN)[name]
    text = TEXTS.get(file) or kernels.source(file)
    return Plant(text, broken, (f"{function}<float>",), build)


@pytest.fixture(scope="module")
def machines(toolchain: Toolchain) -> Iterator[Machines]:
    """The machine of a fault, or of an unbroken kernel, in a build; all are made at once."""
    keys = [(name, FIBERS) for name in (*FAULTS, *UNBROKEN)]
    keys += [(name, THREADS) for name in (*MISSING_BARRIERS, *UNBROKEN)]
    with kernel_plants.machines(toolchain, {key: _plant(*key) for key in keys}) as made:
        yield lambda name, build: made[name, build]


@pytest.mark.parametrize("name", FAULTS)
def test_fault_is_caught(name: str, machines: Machines) -> None:
    *_, run, caught_by = FAULTS[name]
    if isinstance(caught_by, str):
        with pytest.raises(KernelFault, match=caught_by):
            run(machines(name, FIBERS))
    else:
        with pytest.raises(caught_by):
            run(machines(name, FIBERS))


@pytest.mark.parametrize("name", MISSING_BARRIERS)
def test_a_missing_barrier_is_a_race(name: str, machines: Machines) -> None:
    *_, run, _ = (FAULTS | RACES)[name]
    with pytest.raises(KernelFault, match=r"ThreadSanitizer: data race(.|\n)*gt_copy_[01]::"):
        run(machines(name, THREADS))


@pytest.mark.parametrize("build", [FIBERS, THREADS], ids=["fibers", "threads"])
@pytest.mark.parametrize("name", UNBROKEN)
def test_the_unbroken_kernel_passes(name: str, build: Build, machines: Machines) -> None:
    *_, run, _ = UNBROKEN[name]
    run(machines(name, build))


def test_the_machine_recovers_after_a_fault(machines: Machines) -> None:
    """A fault ends the child; the next launch starts another one."""
    machine = machines("read one past the row", FIBERS)
    for _ in range(2):
        with pytest.raises(KernelFault, match="heap-buffer-overflow"):
            _softmax(machine)


def test_wrong_arguments_are_said(machines: Machines) -> None:
    machine = machines("a skipped element", FIBERS)
    with pytest.raises(KernelFault, match="3 arguments for softmax_forward<float>; wanted 4"):
        machine.launch("softmax_forward<float>", (1,), (1,), [0, 0, 1])
    with pytest.raises(KernelFault, match="wants an array or 0"):
        machine.launch("softmax_forward<float>", (1,), (1,), [1.5, 0, 1, 1])
    with pytest.raises(KernelFault, match="wants a structure of 360 bytes"):
        machines("product", FIBERS).launch("matmul_into_small<float>", (1,), (64,), [0] * 7)
    with pytest.raises(KernelFault, match="no kernel softmin"):
        machine.launch("softmin", (1,), (1,), [])


def test_a_missing_compiler_is_said(toolchain: Toolchain, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(Unusable, match=r"g\+\+, which is not on PATH; install g\+\+"):
        Toolchain(toolchain.folder)


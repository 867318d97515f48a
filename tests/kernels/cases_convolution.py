"""Cases of the kernels over images: im2col.cu, weight_gradient.cu, pool.cu, batch_norm.cu."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from kernel_cases import Case, assert_close, assert_equal, compute, exact, normal, unwritten

from gtensor.backend.kernels import ACTIVATIONS, NULL, flat_launch, row_launch

Pair = tuple[int, int]


@dataclass(frozen=True)
class Window:
    """Images (n, c, h, w) and a sliding window over them."""

    n: int
    c: int
    h: int
    w: int
    kernel: Pair
    step: Pair = (1, 1)
    pad: Pair = (0, 0)
    dilation: Pair = (1, 1)
    ceiling: bool = False

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return (self.n, self.c, self.h, self.w)

    @property
    def name(self) -> str:
        image = "x".join(map(str, self.shape))
        return f"{image}-k{self.kernel[0]}{self.kernel[1]}-s{self.step[0]}{self.step[1]}" \
               f"-p{self.pad[0]}{self.pad[1]}-d{self.dilation[0]}{self.dilation[1]}" \
               + ("-ceil" if self.ceiling else "")

    def out(self) -> Pair:
        spans = [
            size + 2 * pad - dilation * (kernel - 1) - 1
            for size, pad, dilation, kernel in
            zip((self.h, self.w), self.pad, self.dilation, self.kernel, strict=True)
        ]
        return spans[0] // self.step[0] + 1, spans[1] // self.step[1] + 1


COLUMN_WINDOWS = [
    Window(2, 3, 6, 5, (3, 3), pad=(1, 1)),
    Window(1, 2, 7, 8, (2, 3), step=(2, 3), pad=(0, 2), dilation=(2, 1)),
    Window(3, 1, 1, 1, (1, 1)),
    Window(2, 2, 5, 5, (3, 2), step=(3, 2), pad=(2, 1), dilation=(1, 3)),
    Window(0, 2, 4, 4, (3, 3)),
]


def _layouts(n: int, taps: int, positions: int) -> dict[str, tuple[Any, tuple[int, ...], Any]]:
    """By name: the shape, the strides (n, k, p), and the axes that make it from (n, k, p)."""
    return {
        "nkp": ((n, taps, positions), (taps * positions, positions, 1), (0, 1, 2)),
        "knp": ((taps, n, positions), (positions, n * positions, 1), (1, 0, 2)),
        "npk": ((n, positions, taps), (positions * taps, 1, taps), (0, 2, 1)),
    }


def _columns(window: Window, layout: str) -> Case:
    def check(executor: Any, dtype: np.dtype, rng: np.random.Generator) -> None:
        out_h, out_w = window.out()
        taps, positions = window.c * window.kernel[0] * window.kernel[1], out_h * out_w
        shape, strides, axes = _layouts(window.n, taps, positions)[layout]
        geometry = [*window.shape, *window.kernel, out_h, out_w, *window.step, *window.pad,
                    *window.dilation, *strides]
        x, columns = normal(rng, window.shape, dtype), unwritten(shape, dtype)
        executor.raw("im2col.cu", "im2col", dtype, *flat_launch(columns.size),
                     [x, columns, *geometry])
        leaf = exact(x).requires_grad_()
        if window.n == 0:  # PyTorch's unfold refuses an empty batch
            return
        wanted = F.unfold(leaf, window.kernel, window.dilation, window.pad, window.step)
        assert_equal(columns, wanted.permute(axes))

        g = normal(rng, shape, dtype)
        wanted.permute(axes).backward(exact(g))
        dx = unwritten(window.shape, dtype)
        executor.raw("im2col.cu", "col2im", dtype, *flat_launch(dx.size), [g, dx, *geometry, 0])
        assert_close(dx, leaf.grad, dtype)
        more = normal(rng, window.shape, dtype)
        wanted_more = exact(more) + leaf.grad
        executor.raw("im2col.cu", "col2im", dtype, *flat_launch(dx.size), [g, more, *geometry, 1])
        assert_close(more, wanted_more, dtype)

    return Case(f"im2col-{window.name}-{layout}", check)


def _columns_beside(window: Window, outputs: int) -> Case:
    """Columns as a product over all images needs them, and a second array in the same order."""
    def check(executor: Any, dtype: np.dtype, rng: np.random.Generator) -> None:
        positions = window.out()
        shape, strides, axes = _layouts(
            window.n, window.c * prod(window.kernel), prod(positions))["knp"]
        x, y = normal(rng, window.shape, dtype), normal(
            rng, (window.n, outputs, *positions), dtype)
        columns, moved = unwritten(shape, dtype), unwritten((outputs, window.n, *positions), dtype)
        executor.raw("im2col.cu", "im2col_beside", dtype,
                     *flat_launch(max(columns.size, moved.size)),
                     [x, columns, y, moved, outputs, *window.shape, *window.kernel, *positions,
                      *window.step, *window.pad, *window.dilation, *strides])
        wanted = F.unfold(exact(x), window.kernel, window.dilation, window.pad, window.step)
        assert_equal(columns, wanted.permute(axes))
        assert_equal(moved, exact(y).transpose(0, 1))

    return Case(f"im2col_beside-{window.name}-o{outputs}", check)


def _weight_gradient(window: Window, outputs: int, groups: int, block: int = 256) -> Case:
    def check(executor: Any, dtype: np.dtype, rng: np.random.Generator) -> None:
        taps, work = window.c // groups * prod(window.kernel), compute(dtype)
        x, g = normal(rng, window.shape, dtype), normal(
            rng, (window.n, outputs, *window.out()), dtype)
        weight = torch.zeros(
            (outputs, window.c // groups, *window.kernel), dtype=torch.float64, requires_grad=True)
        F.conv2d(exact(x), weight, None, window.step, window.pad, window.dilation,
                 groups).backward(exact(g))
        geometry = [*window.shape, *window.kernel, *window.out(), *window.step, *window.pad,
                    *window.dilation, outputs, groups]
        out, more = unwritten(weight.shape, work), normal(rng, weight.shape, work)
        wanted = exact(more) + weight.grad
        for target, accumulate in ((out, 0), (more, 1)):
            executor.raw("weight_gradient.cu", "conv_weight_gradient", dtype,
                         (outputs, -(-taps // 9)), (block,), [g, x, target, *geometry, accumulate])
        assert_close(out, weight.grad, work)
        assert_close(more, wanted, work)

    return Case(f"weight_gradient-{window.name}-o{outputs}-g{groups}", check)


WEIGHT_WINDOWS = [
    (Window(3, 1, 8, 8, (3, 3), pad=(1, 1)), 4, 1),  # 192 positions: some threads have none
    (Window(2, 4, 9, 8, (3, 2), step=(2, 3), pad=(1, 0), dilation=(1, 2)), 6, 2),  # 12 taps
    (Window(2, 3, 20, 11, (5, 5), pad=(2, 4), dilation=(2, 1)), 3, 3),  # 25 taps
    (Window(4, 2, 1, 1, (1, 1)), 2, 2),
]
POOL_WINDOWS = [
    Window(2, 3, 6, 6, (2, 2), step=(2, 2)),
    Window(1, 2, 7, 9, (3, 2), step=(2, 1), pad=(1, 1)),
    Window(1, 1, 5, 6, (3, 3), step=(1, 2), pad=(1, 0)),
    Window(2, 1, 7, 6, (3, 3), step=(2, 2), pad=(1, 1), ceiling=True),
    Window(1, 2, 1, 1, (1, 1)),
]
DILATED = Window(1, 2, 9, 8, (3, 2), step=(2, 2), pad=(1, 1), dilation=(2, 3))


def _max_pool(window: Window, nan: bool = False) -> Case:
    def check(executor: Any, dtype: np.dtype, rng: np.random.Generator) -> None:
        # Half types tie now and then; the first of equals wins, here as in PyTorch.
        x = normal(rng, window.shape, dtype)
        if nan:
            x[..., 1, 2] = np.nan
        leaf = exact(x).requires_grad_()
        wanted, indices = F.max_pool2d(
            leaf, window.kernel, window.step, window.pad, window.dilation, window.ceiling,
            return_indices=True,
        )
        out_h, out_w = wanted.shape[2:]
        planes = window.n * window.c
        geometry = [planes, window.h, window.w, *window.kernel, out_h, out_w, *window.step,
                    *window.pad, *window.dilation]
        y, argmax = unwritten(wanted.shape, dtype), np.full(wanted.shape, -7, np.int32)
        executor.raw("pool.cu", "max_pool2d_forward", dtype, *flat_launch(y.size),
                     [x, y, argmax, *geometry])
        assert_close(y, wanted, dtype)
        assert_equal(argmax, indices)

        g = normal(rng, wanted.shape, dtype)
        wanted.backward(exact(g))
        dx = unwritten(window.shape, dtype)
        executor.raw("pool.cu", "max_pool2d_backward", dtype, *flat_launch(dx.size),
                     [g, argmax, dx, *geometry, 0, planes])
        assert_close(dx, leaf.grad, dtype)
        twice = unwritten((2, *window.shape), dtype)  # the second planes find the same maxima
        executor.raw("pool.cu", "max_pool2d_backward", dtype, *flat_launch(twice.size),
                     [np.stack([g, -g]), argmax, twice, 2 * planes, *geometry[1:], 0, planes])
        assert_equal(twice, exact(np.stack([dx, -dx])))

    return Case(f"max_pool-{window.name}" + ("-nan" if nan else ""), check)


def _avg_pool(window: Window, include_pad: bool) -> Case:
    def check(executor: Any, dtype: np.dtype, rng: np.random.Generator) -> None:
        x = normal(rng, window.shape, dtype)
        leaf = exact(x).requires_grad_()
        wanted = F.avg_pool2d(
            leaf, window.kernel, window.step, window.pad, window.ceiling, include_pad
        )
        geometry = [window.n * window.c, window.h, window.w, *window.kernel, *wanted.shape[2:],
                    *window.step, *window.pad, int(include_pad)]
        y = unwritten(wanted.shape, dtype)
        executor.raw("pool.cu", "avg_pool2d_forward", dtype, *flat_launch(y.size),
                     [x, y, *geometry])
        assert_close(y, wanted, dtype)

        g = normal(rng, wanted.shape, dtype)
        wanted.backward(exact(g))
        dx = normal(rng, window.shape, dtype)
        before = exact(dx)
        executor.raw("pool.cu", "avg_pool2d_backward", dtype, *flat_launch(dx.size),
                     [g, dx, *geometry, 1])
        assert_close(dx, before + leaf.grad, dtype)

    return Case(f"avg_pool-{window.name}" + ("-pad" if include_pad else ""), check)


TORCH_ACTIVATIONS: dict[str, tuple[float, Callable[[torch.Tensor], torch.Tensor]]] = {
    "identity": (0.0, lambda y: y * 1.0),
    "relu": (0.0, F.relu),
    "leaky_relu": (0.02, lambda y: F.leaky_relu(y, 0.02)),
    "elu": (1.3, lambda y: F.elu(y, 1.3)),
    "gelu": (0.0, F.gelu),
    "gelu_tanh": (0.0, lambda y: F.gelu(y, approximate="tanh")),
    "sigmoid": (0.0, torch.sigmoid),
    "softplus": (1.5, lambda y: F.softplus(y, 1.5)),
    "tanh": (0.0, torch.tanh),
    "silu": (0.0, F.silu),
}


def _batch_norm(
    activation: str, shape: tuple[int, int, int], affine: bool = True, training: bool = True,
    block: int = 32,
) -> Case:
    parameter, function = TORCH_ACTIVATIONS[activation]

    def check(executor: Any, dtype: np.dtype, rng: np.random.Generator) -> None:
        file, statistics = "batch_norm.cu", compute(dtype)
        n, c, s = shape
        x = (normal(rng, shape, dtype) + np.asarray(3).astype(dtype)).astype(dtype)
        weight: Any = normal(rng, c, statistics) if affine else NULL
        bias: Any = normal(rng, c, statistics) if affine else NULL
        leaves = [exact(a).requires_grad_() if affine else None for a in (weight, bias)] \
            if affine else [None, None]
        leaf = exact(x).requires_grad_()
        mean, var = unwritten(c, statistics), unwritten(c, statistics)
        if training:
            executor.raw(file, "batch_norm_statistics", dtype, row_launch(c)[0], (block,),
                         [x, mean, var, n, c, s])
            assert_close(mean, exact(x).mean((0, 2)), statistics)
            assert_close(var, exact(x).var((0, 2), correction=0), statistics)
        else:
            mean[:], var[:] = rng.standard_normal(c), rng.uniform(0.5, 2, c)
        y = F.batch_norm(leaf, exact(mean), exact(var), leaves[0], leaves[1], training, eps=1e-5)
        wanted = function(y)
        z = unwritten(shape, dtype)
        code, normalization = ACTIVATIONS[activation], [mean, var, weight, bias]
        tail = [n, c, s, 1e-5, code, parameter]
        executor.raw(file, "batch_norm_forward", dtype, *flat_launch(x.size),
                     [x, *normalization, z, *tail])
        assert_close(z, wanted, dtype, factor=4.0)

        g = normal(rng, shape, dtype)
        wanted.backward(exact(g))
        sum_dy, sum_dy_xhat = unwritten(c, statistics), unwritten(c, statistics)
        executor.raw(file, "batch_norm_backward_reduce", dtype, row_launch(c)[0], (block,),
                     [g, x, *normalization, sum_dy, sum_dy_xhat, *tail])
        if affine:
            assert_close(sum_dy, leaves[1].grad, statistics, factor=8.0)
            assert_close(sum_dy_xhat, leaves[0].grad, statistics, factor=8.0)
        executor.raw(file, "batch_norm_backward", dtype, *flat_launch(x.size),
                     [g, x, *normalization, sum_dy, sum_dy_xhat, g, *tail, int(training)])
        assert_close(g, leaf.grad, dtype, factor=16.0)  # over g

    kind = ["affine" if affine else "plain", "train" if training else "eval"]
    return Case("-".join(["batch_norm", activation, "x".join(map(str, shape)), *kind]), check)


def _huge_mean(executor: Any, dtype: np.dtype, rng: np.random.Generator) -> None:
    """|mean| / deviation = 1e4: the variance keeps three digits in float32."""
    x = (1e4 + rng.standard_normal((2, 3, 500))).astype(dtype)
    mean, var = unwritten(3, compute(dtype)), unwritten(3, compute(dtype))
    executor.raw("batch_norm.cu", "batch_norm_statistics", dtype, *row_launch(3),
                 [x, mean, var, 2, 3, 500])
    wanted = x.astype(np.float64).var(axis=(0, 2))
    np.testing.assert_allclose(var, wanted, rtol=1e-3)


CASES = [
    *(_columns(window, layout) for window in COLUMN_WINDOWS for layout in ("nkp", "knp", "npk")),
    *(_columns_beside(window, outputs) for window in COLUMN_WINDOWS[:4] for outputs in (2, 30)),
    *(_weight_gradient(*window) for window in WEIGHT_WINDOWS),
    _weight_gradient(Window(0, 2, 4, 4, (3, 3)), 2, 2, block=32),
    *(_max_pool(window) for window in (*POOL_WINDOWS, DILATED)),
    _max_pool(POOL_WINDOWS[1], nan=True),
    *(_avg_pool(window, pad) for window in POOL_WINDOWS for pad in (False, True)),
    *(_batch_norm(activation, (3, 2, 35)) for activation in TORCH_ACTIVATIONS),
    _batch_norm("identity", (2, 3, 130), affine=False, block=256),
    _batch_norm("leaky_relu", (5, 4, 1), training=False),
    Case("batch_norm-huge-mean", _huge_mean, ("float32", "float64")),
]

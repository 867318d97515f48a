"""Average pooling, and the public functions of all poolings."""

from __future__ import annotations

from typing import Any

import numpy as np

from gtensor.backend import host
from gtensor.backend.cuda import cupy
from gtensor.backend.kernels import flat_launch, raw
from gtensor.core.op import op
from gtensor.core.samples import Sample, normal
from gtensor.core.tensor import Tensor, make
from gtensor.ops.conv import pair
from gtensor.ops.conv_paths import Pair
from gtensor.ops.linalg import matmul
from gtensor.ops.pool import (
    Windows,
    adjoint_gpu,
    max_pool2d_op,
    plane_scratch,
    planes,
    sizes,
    window_params,
    windows,
)
from gtensor.ops.reduce import mean
from gtensor.ops.scratch import computed_in
from gtensor.ops.shape import reshape


def _divisors(w: Windows, count_include_pad: bool, dtype: Any) -> np.ndarray:
    """How many elements each window counts: those inside, or also those in the padding."""
    counts = []
    for axis in (0, 1):
        start = np.arange(w.out[axis]) * w.stride[axis] - w.padding[axis]
        end = np.minimum(start + w.kernel[axis], w.size[axis] + w.padding[axis])
        if not count_include_pad:
            start, end = np.maximum(start, 0), np.minimum(end, w.size[axis])
        counts.append(end - start)
    return (counts[0][:, None] * counts[1]).astype(dtype)


def _average_cpu(x: Any, *, count_include_pad: bool, out: Any = None, **params: Any) -> Any:
    w = windows(x.shape[2:], **params)
    shape = (*x.shape[:2], *w.out)
    if out is None:
        out = host().empty(shape, x.dtype, "avg_pool2d")
    work = computed_in(x.dtype)
    divisors = _divisors(w, count_include_pad, work)
    wide = plane_scratch(x.shape, work) if work != x.dtype else None
    for tile in planes(x.shape):
        total = out[tile] if wide is None else wide(0, out[tile].shape)
        total[...] = 0
        for _, target, source in w.taps():
            total[:, *target] += x[tile][:, *source]
        total /= divisors
        if wide is not None:
            out[tile] = total
    return out


def _spread_cpu(
    g: Any, *, size: Pair, count_include_pad: bool, out: Any = None, beta: float = 0.0,
    **params: Any,
) -> Any:
    w = windows(size, **params)
    shape = (*g.shape[:2], *size)
    if out is None:
        out = host().empty(shape, g.dtype, "avg_pool2d_grad")
        beta = 0.0
    work = computed_in(g.dtype)
    divisors = _divisors(w, count_include_pad, work)
    wide = plane_scratch(shape, work) if work != g.dtype else None
    for tile in planes(shape):
        total = out[tile] if wide is None else wide(0, out[tile].shape)
        if wide is not None or not beta:
            total[...] = out[tile] if beta else 0
        share = g[tile] / divisors
        for _, target, source in w.taps():
            total[:, *source] += share[:, *target]
        if wide is not None:
            out[tile] = total
    return out


_FORWARD = raw("pool.cu", "avg_pool2d_forward")
_BACKWARD = raw("pool.cu", "avg_pool2d_backward")


def _average_gpu(x: Any, *, count_include_pad: bool, out: Any = None, **params: Any) -> Any:
    xp, w = cupy(), windows(x.shape[2:], **params)
    x = xp.ascontiguousarray(x)
    shape = (*x.shape[:2], *w.out)
    y = xp.empty(shape, x.dtype)
    grid, block = flat_launch(y.size)
    _FORWARD[x.dtype](grid, block, (x, y, *sizes(shape[0] * shape[1], w), int(count_include_pad)))
    if out is None:
        return y
    out[...] = y
    return out


def _spread_gpu(
    g: Any, *, size: Pair, count_include_pad: bool, out: Any = None, beta: float = 0.0,
    **params: Any,
) -> Any:
    w = windows(size, **params)

    def launch(g: Any, result: Any, accumulate: int) -> None:
        grid, block = flat_launch(result.size)
        _BACKWARD[g.dtype](grid, block, (
            g, result, *sizes(g.shape[0] * g.shape[1], w), int(count_include_pad), accumulate))

    return adjoint_gpu(launch, g, size, out, beta)


def _average_backward(ns: Any, step: Any, g: Any) -> None:
    buffer, beta = step.into(0)
    step.give(0, ns.avg_pool2d_grad(
        g, size=step.shape(0)[2:], out=buffer, beta=beta, **step.params))


def _spread_backward(ns: Any, step: Any, u: Any) -> None:
    params = {name: value for name, value in step.params.items() if name != "size"}
    step.give(0, ns.avg_pool2d(u, **params))


def _linear(name: str) -> Any:
    def tangent(ns: Any, primals: Any, tangents: Any, out: Any, params: Any) -> Any:
        return getattr(ns, name)(tangents[0], **params)

    return tangent


def _reference(
    torch: Any, x: Any, kernel: Any, ceil: Any, dilation: Any, **params: Any
) -> Any:
    return torch.nn.functional.avg_pool2d(x, kernel, ceil_mode=ceil, **params)


_CASES = [
    ((2, 3, 4, 6), window_params(count_include_pad=True)),
    ((1, 2, 5, 6), window_params(kernel=(3, 2), stride=(1, 2), padding=(1, 1),
                                 count_include_pad=True)),
    ((1, 2, 5, 5), window_params(kernel=(3, 3), stride=(2, 2), padding=(1, 1), ceil=True,
                                 count_include_pad=False)),
]


def _grad_samples() -> list[Sample]:
    found = []
    for shape, params in _CASES:
        given = {name: value for name, value in params.items() if name != "count_include_pad"}
        g = (*shape[:2], *windows(shape[2:], **given).out)
        found.append(Sample((g,), normal, {**params, "size": shape[2:]}))
    return found


avg_pool2d_grad = op(
    "avg_pool2d_grad", inputs="g", cpu=_spread_cpu, gpu=_spread_gpu,
    backward=_spread_backward, tangent=_linear("avg_pool2d_grad"), samples=_grad_samples(),
    doc="Each g (N, C, OH, OW) shared among the elements of its window in (N, C, *size).",
)

avg_pool2d_op = op(
    "avg_pool2d", inputs="x", cpu=_average_cpu, gpu=_average_gpu, floating=True,
    backward=_average_backward, tangent=_linear("avg_pool2d"),
    samples=[Sample((shape,), normal, params) for shape, params in _CASES], reference=_reference,
    doc="The mean of each window of (N, C, H, W). Parameters: kernel, stride, padding, dilation "
        "(pairs), ceil, count_include_pad.",
)


# -- public functions ----------------------------------------------------------------------------


def max_pool2d(
    input: Tensor, kernel_size: int | Pair, stride: int | Pair | None = None,
    padding: int | Pair = 0, dilation: int | Pair = 1, ceil_mode: bool = False,
) -> Tensor:
    """The largest element of each window. Saves where it was (int32 per output).

    Args:
        input: (N, C, H, W) or (C, H, W).
        kernel_size, stride, padding, dilation: one integer, or (height, width). The stride is the
            kernel's size by default; padding, at most half of it, never wins.
        ceil_mode: windows may also begin where less than a whole one fits.
    """
    params = _window("max_pool2d", input, kernel_size, stride, padding, dilation, ceil_mode)
    return _batched(input, lambda x: max_pool2d_op(x, **params))


def avg_pool2d(
    input: Tensor, kernel_size: int | Pair, stride: int | Pair | None = None,
    padding: int | Pair = 0, ceil_mode: bool = False, count_include_pad: bool = True,
) -> Tensor:
    """The mean of each window. Saves nothing.

    Args:
        input: (N, C, H, W) or (C, H, W).
        kernel_size, stride, padding, ceil_mode: as for max_pool2d.
        count_include_pad: the padding's zeros count as elements.
    """
    params = _window("avg_pool2d", input, kernel_size, stride, padding, 1, ceil_mode)
    return _batched(
        input, lambda x: avg_pool2d_op(x, count_include_pad=bool(count_include_pad), **params))


def _batched(x: Tensor, pool: Any) -> Tensor:
    """`pool` of images (N, C, H, W), or of one (C, H, W)."""
    if x.ndim == 4:
        return pool(x)
    y = pool(reshape(x, (1, *x.shape)))
    return reshape(y, y.shape[1:])


def _check_images(name: str, x: Tensor) -> None:
    if x.ndim not in (3, 4):
        raise ValueError(f"{name} was given an input of shape {x.shape}; wanted (N, C, H, W) or "
                         "(C, H, W)")


def _window(
    name: str, x: Tensor, kernel_size: Any, stride: Any, padding: Any, dilation: Any, ceil: bool
) -> dict[str, Any]:
    _check_images(name, x)
    kernel = pair(name, "kernel_size", kernel_size, 1)
    steps = pair(name, "stride", kernel if stride is None else stride, 1)
    border = pair(name, "padding", padding, 0)
    spacing = pair(name, "dilation", dilation, 1)
    if any(2 * border[i] > kernel[i] for i in (0, 1)):
        raise ValueError(f"{name} was given padding={padding} for kernel_size={kernel_size}; "
                         "wanted at most half the kernel")
    params = {"kernel": kernel, "stride": steps, "padding": border, "dilation": spacing,
              "ceil": bool(ceil)}
    out = windows(x.shape[-2:], **params).out  # type: ignore[arg-type]
    if min(out) < 1:
        raise ValueError(f"{name} of an input of shape {x.shape} with kernel_size={kernel_size} "
                         f"would have an output of {out}; wanted an input at least as large as the "
                         "kernel")
    return params


def adaptive_avg_pool2d(input: Tensor, output_size: int | tuple[int | None, int | None]) -> Tensor:
    """Means of windows laid out so that (N, C, H, W) becomes (N, C, *output_size).

    output_size is one integer or (height, width); None keeps that size. Where it divides the
    image's size the windows lie side by side, otherwise they overlap as in PyTorch.
    """
    _check_images("adaptive_avg_pool2d", input)
    size = input.shape[-2:]
    given = (output_size, output_size) if isinstance(output_size, int) else tuple(output_size)
    given = tuple(n if wanted is None else wanted for wanted, n in zip(given, size, strict=False))
    rows, columns = pair("adaptive_avg_pool2d", "output_size", given, 1)
    if 0 in size:
        raise ValueError(f"adaptive_avg_pool2d was given an input of shape {input.shape}; wanted "
                         "images of at least one element")
    if size[0] % rows == 0 and size[1] % columns == 0:  # equal windows side by side
        shape = (*input.shape[:-2], rows, size[0] // rows, columns, size[1] // columns)
        split = reshape(input, shape)
        return mean(split, (split.ndim - 3, split.ndim - 1))
    left = _averaging(input, size[0], rows)
    return matmul(matmul(left, input), _averaging(input, size[1], columns).T)


def _averaging(x: Tensor, size: int, count: int) -> Tensor:
    """The matrix (count, size) that averages `count` windows, as even as whole elements allow."""
    matrix = np.zeros((count, size))
    for i in range(count):
        first, last = i * size // count, -(-(i + 1) * size // count)
        matrix[i, first:last] = 1 / (last - first)
    return make(x.device.from_numpy(matrix.astype(x.dtype)), x.device)

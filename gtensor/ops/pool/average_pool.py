"""Average pooling over two axes: the op, and its adjoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gtensor.backend import host
from gtensor.backend.cuda import cupy
from gtensor.backend.kernels import flat_launch, raw
from gtensor.engine.handle.tensor import Tensor
from gtensor.engine.tape.op import op
from gtensor.engine.tape.samples import Sample, normal
from gtensor.ops.arrange.shape import linear_tangent
from gtensor.ops.conv.convolution import on_images
from gtensor.ops.conv.paths import Pair
from gtensor.ops.define.arguments import takes_arrays
from gtensor.ops.define.batching import in_channels
from gtensor.ops.define.cpu_tiles import computed_in
from gtensor.ops.define.path_builders import settled
from gtensor.ops.pool.windows import (
    Single,
    Windows,
    adjoint_gpu,
    plane_scratch,
    planes,
    sizes,
    window_arguments,
    window_params,
    windows,
)

if TYPE_CHECKING:
    from gtensor.backend.typing import Array
    from gtensor.engine.handle.namespaces import Namespace
    from gtensor.engine.walk.typing import Step


def _divisors(w: Windows, count_include_pad: bool, dtype: np.dtype) -> np.ndarray:
    """How many elements each window counts: those inside, or also those in the padding."""
    counts = []
    for axis in (0, 1):
        start = np.arange(w.out[axis]) * w.stride[axis] - w.padding[axis]
        end = np.minimum(start + w.kernel[axis], w.size[axis] + w.padding[axis])
        if not count_include_pad:
            start, end = np.maximum(start, 0), np.minimum(end, w.size[axis])
        counts.append(end - start)
    return (counts[0][:, None] * counts[1]).astype(dtype)


def _average_cpu(
    x: Array, *, count_include_pad: bool, out: Array | None = None, **params: Any
) -> Array:
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
            total[..., *target] += x[tile][..., *source]
        total /= divisors
        if wide is not None:
            out[tile] = total
    return out


def _grad_cpu(
    g: Array, *, size: Pair, count_include_pad: bool, out: Array | None = None, beta: float = 0.0,
    **params: Any,
) -> Array:
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
            total[..., *source] += share[..., *target]
        if wide is not None:
            out[tile] = total
    return out


_FORWARD = raw("pool.cu", "avg_pool2d_forward")
_BACKWARD = raw("pool.cu", "avg_pool2d_backward")


def _average_gpu(
    x: Array, *, count_include_pad: bool, out: Array | None = None, **params: Any
) -> Array:
    xp, w = cupy(), windows(x.shape[2:], **params)
    x = xp.ascontiguousarray(x)
    shape = (*x.shape[:2], *w.out)
    y = xp.empty(shape, x.dtype)
    grid, block = flat_launch(y.size)
    _FORWARD[x.dtype](grid, block, (x, y, *sizes(shape[0] * shape[1], w), int(count_include_pad)))
    return settled(y, out)


def _grad_gpu(
    g: Array, *, size: Pair, count_include_pad: bool, out: Array | None = None, beta: float = 0.0,
    **params: Any,
) -> Array:
    w = windows(size, **params)

    def launch(g: Array, result: Array, accumulate: int) -> None:
        grid, block = flat_launch(result.size)
        _BACKWARD[g.dtype](grid, block, (
            g, result, *sizes(g.shape[0] * g.shape[1], w), int(count_include_pad), accumulate))

    return adjoint_gpu(launch, g, size, out, beta)


def _average_backward(ns: Namespace, step: Step, g: Array) -> None:
    buffer, beta = step.into(0)
    step.give(0, ns.avg_pool2d_grad(
        g, size=step.shape(0)[-2:], out=buffer, beta=beta, **step.params))


def _grad_backward(ns: Namespace, step: Step, u: Array) -> None:
    params = {name: value for name, value in step.params.items() if name != "size"}
    step.give(0, ns.avg_pool2d(u, **params))


def _reference(torch: Any, x: Any, kernel: Any, ceil: Any, dilation: Any, **params: Any) -> Any:
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
    "avg_pool2d_grad", inputs="g", cpu=_grad_cpu, gpu=_grad_gpu,
    backward=_grad_backward, tangent=linear_tangent("avg_pool2d_grad"), batch=in_channels,
    samples=_grad_samples(),
    doc="Each g (N, C, OH, OW) shared among the elements of its window in (N, C, *size).",
)

avg_pool2d_op = op(
    "avg_pool2d", inputs="x", cpu=_average_cpu, gpu=_average_gpu, floating=True,
    backward=_average_backward, tangent=linear_tangent("avg_pool2d"), batch=in_channels,
    samples=[Sample((shape,), normal, params) for shape, params in _CASES], reference=_reference,
    doc="The mean of each window of (N, C, H, W). Parameters: kernel, stride, padding, dilation "
        "(pairs), ceil, count_include_pad.",
)


@takes_arrays
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
    params = window_arguments(
        "avg_pool2d", 2, input, kernel_size, stride, padding, 1, ceil_mode)
    return on_images(input, 2, lambda x: avg_pool2d_op(
        x, count_include_pad=bool(count_include_pad), **params))


@takes_arrays
def avg_pool1d(
    input: Tensor, kernel_size: Single, stride: Single | None = None, padding: Single = 0,
    ceil_mode: bool = False, count_include_pad: bool = True,
) -> Tensor:
    """avg_pool2d of signals (N, C, L) or (C, L).

    Raises ValueError for a window larger than the padded input, and for another number of axes.
    """
    params = window_arguments(
        "avg_pool1d", 1, input, kernel_size, stride, padding, 1, ceil_mode)
    return on_images(input, 1, lambda x: avg_pool2d_op(
        x, count_include_pad=bool(count_include_pad), **params))

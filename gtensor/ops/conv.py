"""Convolution over two axes: three bilinear ops that are each other's derivatives.

conv2d and its two gradients are records of their own, so that derivatives of any order are these
three again. Only the input and the weight are saved; columns are made anew (see conv_paths).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gtensor.backend import host
from gtensor.backend.cuda import cupy
from gtensor.core.op import op
from gtensor.core.samples import Sample, normal
from gtensor.core.tensor import Tensor
from gtensor.ops.conv_paths import (
    GpuTiles,
    Pair,
    by_group,
    channels_first,
    correlate,
    geometry,
    out_size,
    spread,
    weigh,
    weight_matrix,
)
from gtensor.ops.linear import same_dtype
from gtensor.ops.scratch import computed_in
from gtensor.ops.shape import reshape

# -- paths ---------------------------------------------------------------------------------------


def _conv2d_cpu(
    x: Any, weight: Any, bias: Any, *, out: Any = None, beta: float = 0.0, **params: Any
) -> Any:
    g = geometry(x.shape[2:], weight.shape[2:], **params)
    if out is None:
        out = host().empty((x.shape[0], weight.shape[0], *g.out), x.dtype, "conv2d")
    return correlate(x, weight_matrix(weight, g.groups), bias, g, out, beta)


def _grad_input_cpu(
    g: Any, weight: Any, *, size: Pair, out: Any = None, beta: float = 0.0, **params: Any
) -> Any:
    geo = geometry(size, weight.shape[2:], **params)
    if out is None:
        shape = (g.shape[0], weight.shape[1] * geo.groups, *size)
        out = host().empty(shape, g.dtype, "conv2d_grad_input")
    return spread(g, weight, geo, out, beta)


def _grad_weight_cpu(
    g: Any, x: Any, *, kernel: Pair, out: Any = None, beta: float = 0.0, **params: Any
) -> Any:
    geo = geometry(x.shape[2:], kernel, **params)
    if out is None:
        shape = (g.shape[1], x.shape[1] // geo.groups, *kernel)
        out = host().empty(shape, g.dtype, "conv2d_grad_weight")
    return weigh(g, x, geo, out, beta)


def _conv2d_gpu(
    x: Any, weight: Any, bias: Any, *, out: Any = None, beta: float = 0.0, **params: Any
) -> Any:
    xp, x = cupy(), cupy().ascontiguousarray(x)
    g = geometry(x.shape[2:], weight.shape[2:], **params)
    if out is None:
        out = xp.empty((x.shape[0], weight.shape[0], *g.out), x.dtype)
    rows = xp.ascontiguousarray(weight.reshape(weight.shape[0], -1))
    space = GpuTiles(x.shape, x.dtype, g)
    for tile in space.tiles():
        columns = space.gather(x, tile)
        product = xp.empty((weight.shape[0], columns.shape[1]), x.dtype)
        for a, b, c in zip(*(by_group(m, g.groups) for m in (rows, columns, product)), strict=True):
            xp.matmul(a, b, out=c)
        part = product.reshape(weight.shape[0], -1, *g.out).transpose(1, 0, 2, 3)
        if bias is not None:
            part = part + bias.reshape(-1, 1, 1)
        out[tile] = out[tile] + part if beta else part
    return out


def _grad_input_gpu(
    g: Any, weight: Any, *, size: Pair, out: Any = None, beta: float = 0.0, **params: Any
) -> Any:
    xp = cupy()
    geo = geometry(size, weight.shape[2:], **params)
    shape = (g.shape[0], weight.shape[1] * geo.groups, *size)
    direct = out is not None and out.flags.c_contiguous
    result = out if direct else xp.empty(shape, g.dtype)
    rows = xp.ascontiguousarray(weight.reshape(weight.shape[0], -1))
    space = GpuTiles(shape, g.dtype, geo)
    for tile in space.tiles():
        matrices = (rows, channels_first(g, tile), space.columns(tile))
        for a, b, c in zip(*(by_group(m, geo.groups) for m in matrices), strict=True):
            xp.matmul(a.T, b, out=c)
        space.scatter(result, tile, bool(direct and beta))
    if out is None or direct:
        return result
    out[...] = out + result if beta else result
    return out


def _grad_weight_gpu(
    g: Any, x: Any, *, kernel: Pair, out: Any = None, beta: float = 0.0, **params: Any
) -> Any:
    xp, x = cupy(), cupy().ascontiguousarray(x)
    geo = geometry(x.shape[2:], kernel, **params)
    shape = (g.shape[1], x.shape[1] // geo.groups, *kernel)
    total = xp.zeros((shape[0], int(np.prod(shape[1:]))), computed_in(g.dtype))
    space = GpuTiles(x.shape, x.dtype, geo)
    for tile in space.tiles():
        matrices = (channels_first(g, tile), space.gather(x, tile), total)
        for a, b, c in zip(*(by_group(m, geo.groups) for m in matrices), strict=True):
            c += xp.matmul(a, b.T)
    if out is None:
        return total.reshape(shape).astype(g.dtype, copy=False)
    out[...] = out + total.reshape(shape) if beta else total.reshape(shape)
    return out


# -- rules ---------------------------------------------------------------------------------------


def _shared(step: Any, *without: str) -> dict[str, Any]:
    """The parameters that all three ops have."""
    return {name: value for name, value in step.params.items() if name not in without}


def _conv2d_backward(ns: Any, step: Any, g: Any) -> None:
    x, weight = step.saved
    params = step.params
    if step.needs(1):
        buffer, beta = step.into(1)
        step.give(1, ns.conv2d_grad_weight(
            g, x, kernel=step.shape(1)[2:], out=buffer, beta=beta, **params))
    if step.needs(2):
        step.give(2, ns.sum(g, axis=(0, 2, 3)))
    if step.needs(0):
        buffer, beta = step.into(0)
        step.give(0, ns.conv2d_grad_input(
            g, weight, size=step.shape(0)[2:], out=buffer, beta=beta, **params))


def _grad_input_backward(ns: Any, step: Any, u: Any) -> None:
    g, weight = step.saved
    params = _shared(step, "size")
    if step.needs(0):
        buffer, beta = step.into(0)
        step.give(0, ns.conv2d(u, weight, None, out=buffer, beta=beta, **params))
    if step.needs(1):
        buffer, beta = step.into(1)
        step.give(1, ns.conv2d_grad_weight(
            g, u, kernel=step.shape(1)[2:], out=buffer, beta=beta, **params))


def _grad_weight_backward(ns: Any, step: Any, u: Any) -> None:
    g, x = step.saved
    params = _shared(step, "kernel")
    if step.needs(0):
        buffer, beta = step.into(0)
        step.give(0, ns.conv2d(x, u, None, out=buffer, beta=beta, **params))
    if step.needs(1):
        buffer, beta = step.into(1)
        step.give(1, ns.conv2d_grad_input(
            g, u, size=step.shape(1)[2:], out=buffer, beta=beta, **params))


def _bilinear_tangent(name: str) -> Any:
    def tangent(ns: Any, primals: Any, tangents: Any, out: Any, params: dict[str, Any]) -> Any:
        rest = (None,) * (len(primals) - 2)
        function = getattr(ns, name)
        terms = []
        if tangents[0] is not None:
            terms.append(function(tangents[0], primals[1], *rest, **params))
        if tangents[1] is not None:
            terms.append(function(primals[0], tangents[1], *rest, **params))
        if rest and tangents[2] is not None:
            bias = ns.reshape(tangents[2], shape=(1, out.shape[1], 1, 1))
            terms.append(ns.broadcast_to(bias, shape=out.shape))
        total = terms[0]
        for term in terms[1:]:
            total = ns.add(total, term)
        return total

    return tangent


# -- records -------------------------------------------------------------------------------------

_CASES: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((2, 3, 5, 4), (4, 3, 3, 3), {}),
    ((1, 4, 7, 6), (2, 2, 3, 2), {"stride": (2, 3), "padding": (1, 0, 2, 1), "groups": 2}),
    ((2, 2, 6, 6), (3, 2, 2, 3), {"dilation": (2, 1), "padding": (0, 2, 1, 0)}),
    ((2, 3, 4, 4), (2, 3, 1, 1), {}),
]


def _samples(kind: str) -> list[Sample]:
    found = []
    for x, weight, given in _CASES:
        params = {"stride": (1, 1), "padding": (0, 0, 0, 0), "dilation": (1, 1), "groups": 1,
                  **given}
        g = geometry(x[2:], weight[2:], **params)  # type: ignore[arg-type]
        y = (x[0], weight[0], *g.out)
        if kind == "forward":
            found += [Sample((x, weight, weight[:1]), normal, params),
                      Sample((x, weight, None), normal, params)]
        elif kind == "input":
            found.append(Sample((y, weight), normal, {**params, "size": x[2:]}))
        else:
            found.append(Sample((y, x), normal, {**params, "kernel": weight[2:]}))
    return found


def _reference(
    torch: Any, x: Any, weight: Any, bias: Any = None, *, padding: Any, **params: Any
) -> Any:
    top, left, bottom, right = padding
    padded = torch.nn.functional.pad(x, (left, right, top, bottom))
    return torch.nn.functional.conv2d(padded, weight, bias, **params)


conv2d_grad_input = op(
    "conv2d_grad_input", inputs="g weight", cpu=_grad_input_cpu, gpu=_grad_input_gpu,
    saves={"g": "weight", "weight": "g"},
    backward=_grad_input_backward, tangent=_bilinear_tangent("conv2d_grad_input"),
    samples=_samples("input"),
    doc="The gradient of conv2d's input (N, C, *size) from that of its output, g (N, O, OH, OW).",
)

conv2d_grad_weight = op(
    "conv2d_grad_weight", inputs="g x", cpu=_grad_weight_cpu, gpu=_grad_weight_gpu,
    saves={"g": "x", "x": "g"},
    backward=_grad_weight_backward, tangent=_bilinear_tangent("conv2d_grad_weight"),
    samples=_samples("weight"),
    doc="The gradient of conv2d's weight (O, C / groups, *kernel) from that of its output.",
)

conv2d_op = op(
    "conv2d", inputs="x weight bias", cpu=_conv2d_cpu, gpu=_conv2d_gpu,
    saves={"x": "weight", "weight": "x"},
    backward=_conv2d_backward, tangent=_bilinear_tangent("conv2d"),
    samples=_samples("forward"), reference=_reference,
    doc="x (N, C, H, W) convolved with weight (O, C / groups, KH, KW), plus bias (O). Parameters: "
        "stride, padding (top, left, bottom, right), dilation, groups.",
)


def pair(name: str, what: str, value: Any, least: int) -> Pair:
    """(value, value) of an integer, or a pair of them; ValueError below `least`."""
    both = (value, value) if isinstance(value, int) else tuple(value)
    if len(both) != 2 or any(not isinstance(n, int) or n < least for n in both):
        raise ValueError(f"{name} was given {what}={value!r}; wanted an integer from {least} on, "
                         "or two of them (height, width)")
    return both[0], both[1]


def conv2d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: int | Pair = 1,
    padding: int | Pair | str = 0, dilation: int | Pair = 1, groups: int = 1,
) -> Tensor:
    """Cross-correlation of images with kernels: (N, O, OH, OW). Saves input and weight.

    Columns are made in tiles, in a workspace of `conv_paths.WORKSPACE_BYTES` (on a GPU
    `GPU_WORKSPACE_BYTES`), and made anew in backward.

    Args:
        input: (N, C, H, W), or one image (C, H, W).
        weight: (O, C / groups, KH, KW).
        bias: (O), or None.
        stride, dilation: one integer, or (height, width).
        padding: zeros around the image: one integer, (height, width), "valid" (none) or "same" (the
            output has the input's size; stride 1; the odd row and column at the bottom and right).
        groups: input and output channels are split into as many independent convolutions.

    Source: Chellapilla et al., "High performance convolutional neural networks for document
    processing", 2006 (convolution by matrix multiplication).
    """
    if input.ndim == 3:
        image = reshape(input, (1, *input.shape))
        y = conv2d(image, weight, bias, stride, padding, dilation, groups)
        return reshape(y, y.shape[1:])
    steps, spacing = pair("conv2d", "stride", stride, 1), pair("conv2d", "dilation", dilation, 1)
    _check_shapes(input, weight, bias, groups)
    same_dtype("conv2d", input=input, weight=weight, bias=bias)
    kernel: Pair = weight.shape[2:]  # type: ignore[assignment]
    border = _padding(padding, kernel, steps, spacing)
    size = out_size(input.shape[2:], kernel, steps, border, spacing)  # type: ignore[arg-type]
    if min(size) < 1:
        raise ValueError(f"conv2d of an input of shape {input.shape} with a kernel of {kernel}, "
                         f"padding {padding!r} and dilation {spacing} would have an output of "
                         f"{size}; wanted an input at least as large as the kernel")
    return conv2d_op(
        input, weight, bias, stride=steps, padding=border, dilation=spacing, groups=groups)


def _check_shapes(input: Tensor, weight: Tensor, bias: Tensor | None, groups: int) -> None:
    if not isinstance(groups, int) or groups < 1:
        raise ValueError(f"conv2d was given groups={groups!r}; wanted an integer from 1 on")
    fits = (input.ndim == 4 and weight.ndim == 4 and weight.shape[0] % groups == 0
            and input.shape[1] == weight.shape[1] * groups and min(weight.shape) > 0)
    if not fits:
        raise ValueError(f"conv2d was given an input of shape {input.shape}, a weight of shape "
                         f"{weight.shape} and groups={groups}; wanted (N, C, H, W) and "
                         "(O, C / groups, KH, KW), with O divisible by groups")
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(f"conv2d was given a bias of shape {bias.shape} for a weight of shape "
                         f"{weight.shape}; wanted ({weight.shape[0]},)")


def _padding(
    padding: int | Pair | str, kernel: Pair, stride: Pair, dilation: Pair
) -> tuple[int, int, int, int]:
    """(top, left, bottom, right); 'same' puts an odd one at the bottom and right, as in PyTorch."""
    if padding == "valid":
        return 0, 0, 0, 0
    if padding == "same":
        if stride != (1, 1):
            raise ValueError(f"conv2d was given padding='same' with stride {stride}; wanted stride "
                             "1")
        tall, wide = (dilation[i] * (kernel[i] - 1) for i in (0, 1))
        return tall // 2, wide // 2, tall - tall // 2, wide - wide // 2
    if isinstance(padding, str):
        raise ValueError(f"conv2d was given padding={padding!r}; wanted 'same', 'valid', an "
                         "integer or two of them")
    tall, wide = pair("conv2d", "padding", padding, 0)
    return tall, wide, tall, wide

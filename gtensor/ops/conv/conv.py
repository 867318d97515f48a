"""Convolution over two axes: three bilinear ops that are each other's derivatives.

conv2d and its two gradients are ops of their own, so that derivatives of any order are these three
again. Only the input and the weight are saved; columns are recomputed (see conv_paths).
"""

from __future__ import annotations

from math import prod
from typing import Any

from gtensor.backend import device_of, host
from gtensor.backend.cuda import cupy
from gtensor.engine.op import op
from gtensor.engine.samples import Sample, normal
from gtensor.ops.build.cpu_tiles import computed_in
from gtensor.ops.conv import planes
from gtensor.ops.conv.paths import (
    GpuTiles,
    Pair,
    by_group,
    channels_first,
    correlate,
    geometry,
    input_gradient,
    weight_gradient,
    weight_matrix,
)
from gtensor.ops.conv.planes import kernels_of

# -- paths ---------------------------------------------------------------------------------------


def _conv2d_cpu(
    x: Any, weight: Any, bias: Any, *, out: Any = None, beta: float = 0.0, **params: Any
) -> Any:
    g = geometry(x.shape[2:], weight.shape[2:], **params)
    if out is None:
        out, beta = host().empty((x.shape[0], weight.shape[0], *g.out), x.dtype, "conv2d"), 0.0
    if planes.use_planes(weight.shape, g.groups):
        return planes.correlate(x, kernels_of(weight, g.groups), bias, g, out, beta)
    return correlate(x, weight_matrix(weight, g.groups), bias, g, out, beta)


def _grad_input_cpu(
    g: Any, weight: Any, bias: Any, *, size: Pair, out: Any = None, beta: float = 0.0,
    **params: Any,
) -> Any:
    geo = geometry(size, weight.shape[2:], **params)
    if out is None:
        shape = (g.shape[0], weight.shape[1] * geo.groups, *size)
        out, beta = host().empty(shape, g.dtype, "conv2d_grad_input"), 0.0
    if planes.use_planes(weight.shape, geo.groups):
        return planes.input_gradient(g, kernels_of(weight, geo.groups), bias, geo, out, beta)
    return input_gradient(g, weight, bias, geo, out, beta)


def _grad_weight_cpu(
    g: Any, x: Any, *, kernel: Pair, out: Any = None, beta: float = 0.0, **params: Any
) -> Any:
    geo = geometry(x.shape[2:], kernel, **params)
    shape = (g.shape[1], x.shape[1] // geo.groups, *kernel)
    if out is None:
        out, beta = host().empty(shape, g.dtype, "conv2d_grad_weight"), 0.0
    if planes.use_planes(shape, geo.groups):
        return planes.weight_gradient(g, x, geo, out, beta)
    return weight_gradient(g, x, geo, out, beta)


def _conv2d_gpu(
    x: Any, weight: Any, bias: Any, *, out: Any = None, beta: float = 0.0, **params: Any
) -> Any:
    xp, device, x = cupy(), device_of(x), cupy().ascontiguousarray(x)
    g = geometry(x.shape[2:], weight.shape[2:], **params)
    if out is None:
        out = xp.empty((x.shape[0], weight.shape[0], *g.out), x.dtype)
    rows = xp.ascontiguousarray(weight.reshape(weight.shape[0], -1))
    space = GpuTiles(x.shape, x.dtype, g)
    for tile in space.tiles():
        columns = space.gather(x, tile)
        product = device.matmul(by_group(rows, g.groups), by_group(columns, g.groups))
        part = product.reshape(weight.shape[0], -1, *g.out).transpose(1, 0, 2, 3)
        if bias is not None:
            part = part + bias.reshape(-1, 1, 1)
        out[tile] = out[tile] + part if beta else part
    return out


def _grad_input_gpu(
    g: Any, weight: Any, bias: Any, *, size: Pair, out: Any = None, beta: float = 0.0,
    **params: Any,
) -> Any:
    xp, device = cupy(), device_of(g)
    geo = geometry(size, weight.shape[2:], **params)
    shape = (g.shape[0], weight.shape[1] * geo.groups, *size)
    direct = out is not None and out.flags.c_contiguous
    result = out if direct else xp.empty(shape, g.dtype)
    rows = xp.ascontiguousarray(weight.reshape(weight.shape[0], -1))
    space = GpuTiles(shape, g.dtype, geo)
    for tile in space.tiles():
        matrices = (rows, channels_first(g, tile), space.columns(tile))
        a, b, c = (by_group(m, geo.groups) for m in matrices)
        device.matmul(a.swapaxes(1, 2), b, c)
        space.scatter(result, tile, bool(direct and beta))
    if bias is not None:
        result += bias.reshape(-1, 1, 1)
    if out is None or direct:
        return result
    out[...] = out + result if beta else result
    return out


def _grad_weight_gpu(
    g: Any, x: Any, *, kernel: Pair, out: Any = None, beta: float = 0.0, **params: Any
) -> Any:
    xp, device, x = cupy(), device_of(x), cupy().ascontiguousarray(x)
    geo = geometry(x.shape[2:], kernel, **params)
    shape = (g.shape[1], x.shape[1] // geo.groups, *kernel)
    work = computed_in(g.dtype)
    direct = out is not None and out.flags.c_contiguous and out.dtype == work
    total = (out if direct else xp.empty(shape, work)).reshape(shape[0], prod(shape[1:]))
    begun = direct and bool(beta)
    space = GpuTiles(x.shape, x.dtype, geo)
    for tile in space.tiles():
        matrices = (channels_first(g, tile), space.gather(x, tile), total)
        a, b, c = (by_group(m, geo.groups) for m in matrices)
        device.matmul(a, b.swapaxes(1, 2), c, beta=float(begun))
        begun = True
    if not begun:  # no image
        total[...] = 0
    if direct:
        return out
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
            g, weight, None, size=step.shape(0)[2:], out=buffer, beta=beta, **params))


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
    if step.needs(2):
        step.give(2, ns.sum(u, axis=(0, 2, 3)))


def _grad_weight_backward(ns: Any, step: Any, u: Any) -> None:
    g, x = step.saved
    params = _shared(step, "kernel")
    if step.needs(0):
        buffer, beta = step.into(0)
        step.give(0, ns.conv2d(x, u, None, out=buffer, beta=beta, **params))
    if step.needs(1):
        buffer, beta = step.into(1)
        step.give(1, ns.conv2d_grad_input(
            g, u, None, size=step.shape(1)[2:], out=buffer, beta=beta, **params))


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


# -- definitions -----------------------------------------------------------------------------------

_CASES: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((2, 3, 5, 4), (4, 3, 3, 3), {}),
    ((1, 4, 7, 6), (2, 2, 3, 2), {"stride": (2, 3), "padding": (1, 0, 2, 1), "groups": 2}),
    ((2, 2, 6, 6), (3, 2, 2, 3), {"dilation": (2, 1), "padding": (0, 2, 1, 0)}),
    ((2, 3, 4, 4), (2, 3, 1, 1), {}),
    ((2, 3, 5, 4), (6, 1, 2, 3), {"padding": (1, 1, 0, 1), "groups": 3}),
    ((1, 4, 6, 5), (2, 2, 3, 2), {"stride": (2, 1), "dilation": (1, 2), "groups": 2}),
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
            found += [Sample((y, weight, x[1:2]), normal, {**params, "size": x[2:]}),
                      Sample((y, weight, None), normal, {**params, "size": x[2:]})]
        else:
            found.append(Sample((y, x), normal, {**params, "kernel": weight[2:]}))
    return found


def _reference(
    torch: Any, x: Any, weight: Any, bias: Any = None, *, padding: Any, **params: Any
) -> Any:
    top, left, bottom, right = padding
    padded = torch.nn.functional.pad(x, (left, right, top, bottom))
    return torch.nn.functional.conv2d(padded, weight, bias, **params)


def _transposed_reference(
    torch: Any, g: Any, weight: Any, bias: Any = None, *, size: Any, padding: Any, **params: Any
) -> Any:
    whole = torch.nn.functional.conv_transpose2d(g, weight, **params)
    top, left = padding[:2]
    cut = torch.nn.functional.pad(
        whole, (-left, size[1] + left - whole.shape[3], -top, size[0] + top - whole.shape[2]))
    return cut if bias is None else cut + bias.reshape(-1, 1, 1)


conv2d_grad_input = op(
    "conv2d_grad_input", inputs="g weight bias", cpu=_grad_input_cpu, gpu=_grad_input_gpu,
    saves={"g": "weight", "weight": "g"},
    backward=_grad_input_backward, tangent=_bilinear_tangent("conv2d_grad_input"),
    samples=_samples("input"), reference=_transposed_reference,
    doc="The gradient of conv2d's input (N, C, *size) from that of its output, g (N, O, OH, OW), "
        "plus bias (C): the transposed convolution.",
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

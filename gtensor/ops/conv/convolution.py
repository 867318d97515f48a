"""Convolution over two axes: three bilinear ops that are each other's derivatives.

conv2d and its two gradients are ops of their own, so that derivatives of any order are these three
again. Only the input and the weight are saved. On the CPU kernels in C read images in place
(direct.py); elsewhere columns are recomputed (paths.py). Transposed convolution is the adjoint of
conv2d as a function of its own, and one axis is an image of one row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from gtensor.backend import host
from gtensor.backend.cuda import cupy
from gtensor.engine.handle.tensor import Tensor
from gtensor.engine.tape.op import op
from gtensor.engine.tape.samples import Sample, normal
from gtensor.ops.arrange.shape import expand_dims, reshape, squeeze
from gtensor.ops.conv import direct
from gtensor.ops.conv.paths import (
    GpuTiles,
    Pair,
    correlate,
    direct_weight_gradient,
    geometry,
    input_gradient,
    kernels_of,
    out_size,
    planes_correlate,
    planes_input_gradient,
    planes_weight_gradient,
    sums_directly,
    use_planes,
    weight_gradient,
    weight_matrix,
)
from gtensor.ops.define.arguments import same_dtype, takes_arrays
from gtensor.ops.define.batching import Inputs, Mapped, apart, batch_size, merged, or_none
from gtensor.ops.define.cpu_tiles import computed_in
from gtensor.ops.define.flops import (
    of_convolution,
    of_convolution_weight,
    of_transposed_convolution,
)
from gtensor.ops.define.path_builders import on_gpu

if TYPE_CHECKING:
    import numpy as np

    from gtensor.backend import Device
    from gtensor.backend.typing import Array, Params, Path
    from gtensor.engine.handle.namespaces import Namespace
    from gtensor.engine.walk.typing import Step, Tangent, Values


# -- paths ---------------------------------------------------------------------------------------


def _conv2d_cpu(
    x: Array, weight: Array, bias: Array | None, *, out: Array | None = None, beta: float = 0.0,
    **params: Any,
) -> Array:
    g = geometry(x.shape[2:], weight.shape[2:], **params)
    if out is None:
        out, beta = host().empty((x.shape[0], weight.shape[0], *g.out), x.dtype, "conv2d"), 0.0
    if direct.correlate(x, weight, bias, g, out, beta):
        return out
    if use_planes(weight.shape, g.groups):
        return planes_correlate(x, kernels_of(weight, g.groups), bias, g, out, beta)
    return correlate(x, weight_matrix(weight, g.groups), bias, g, out, beta)


def _grad_input_cpu(
    g: Array, weight: Array, bias: Array | None, *, size: Pair, out: Array | None = None,
    beta: float = 0.0, **params: Any,
) -> Array:
    geo = geometry(size, weight.shape[2:], **params)
    if out is None:
        shape = (g.shape[0], weight.shape[1] * geo.groups, *size)
        out, beta = host().empty(shape, g.dtype, "conv2d_grad_input"), 0.0
    if direct.input_gradient(g, weight, bias, geo, out, beta):
        return out
    if use_planes(weight.shape, geo.groups):
        return planes_input_gradient(g, kernels_of(weight, geo.groups), bias, geo, out, beta)
    return input_gradient(g, weight, bias, geo, out, beta)


def _grad_weight_cpu(
    g: Array, x: Array, *, kernel: Pair, out: Array | None = None, beta: float = 0.0, **params: Any
) -> Array:
    geo = geometry(x.shape[2:], kernel, **params)
    shape = (g.shape[1], x.shape[1] // geo.groups, *kernel)
    if out is None:
        out, beta = host().empty(shape, g.dtype, "conv2d_grad_weight"), 0.0
    if direct.weight_gradient(g, x, geo, out, beta):
        return out
    if use_planes(shape, geo.groups):
        return planes_weight_gradient(g, x, geo, out, beta)
    return weight_gradient(g, x, geo, out, beta)


def _result(out: Array | None, shape: tuple[int, ...], dtype: np.dtype) -> tuple[Array, bool]:
    """The contiguous array that a GPU path writes, and whether it is `out`."""
    if out is not None and out.flags.c_contiguous and out.dtype == dtype:
        return out, True
    return cupy().empty(shape, dtype), False


def _settled(result: Array, out: Array | None, direct: bool, beta: float) -> Array:
    """A GPU path's result, from the array that it has written."""
    if out is None or direct:
        return result
    out[...] = out + result if beta else result
    return out


def _weights(weight: Array, groups: int) -> Array:
    """The weight matrices (groups, outputs of a group, taps)."""
    return cupy().ascontiguousarray(weight).reshape(groups, weight.shape[0] // groups, -1)


def _conv2d_gpu(
    device: Device, x: Array, weight: Array, bias: Array | None, *, out: Array | None = None,
    beta: float = 0.0, **params: Any
) -> Array:
    x = cupy().ascontiguousarray(x)
    g = geometry(x.shape[2:], weight.shape[2:], **params)
    result, direct = _result(out, (x.shape[0], weight.shape[0], *g.out), x.dtype)
    factor = beta if direct else 0.0
    matrices = _weights(weight, g.groups)
    space = GpuTiles(device, x.shape, x.dtype, g)
    for tile in space.tiles():
        columns, place = space.gather(x, tile), space.place(result, tile)
        if place is not None:
            device.matmul(matrices, columns, place, beta=factor)
        else:
            space.store(device.matmul(matrices, columns), result, tile, bool(factor))
    if bias is not None:
        result += bias.reshape(-1, 1, 1)
    return _settled(result, out, direct, beta)


def _grad_input_gpu(
    device: Device, g: Array, weight: Array, bias: Array | None, *, size: Pair,
    out: Array | None = None, beta: float = 0.0, **params: Any
) -> Array:
    geo = geometry(size, weight.shape[2:], **params)
    shape = (g.shape[0], weight.shape[1] * geo.groups, *size)
    result, direct = _result(out, shape, g.dtype)
    factor = beta if direct else 0.0
    matrices = _weights(weight, geo.groups).swapaxes(1, 2)
    space = GpuTiles(device, shape, g.dtype, geo)
    for tile in space.tiles():
        outputs = space.outputs(g, tile)
        if space.plain:
            device.matmul(matrices, outputs, space.place(result, tile), beta=factor)
        else:
            device.matmul(matrices, outputs, space.columns(tile))
            space.scatter(result, tile, bool(factor))
    if bias is not None:
        result += bias.reshape(-1, 1, 1)
    return _settled(result, out, direct, beta)


def _grad_weight_gpu(
    device: Device, g: Array, x: Array, *, kernel: Pair, out: Array | None = None,
    beta: float = 0.0, **params: Any
) -> Array:
    x = cupy().ascontiguousarray(x)
    geo = geometry(x.shape[2:], kernel, **params)
    shape = (g.shape[1], x.shape[1] // geo.groups, *kernel)
    whole, direct = _result(out, shape, computed_in(g.dtype))
    begun = direct and bool(beta)
    if sums_directly(x, g, geo):
        direct_weight_gradient(g, x, geo, whole, begun)
    else:
        total = whole.reshape(geo.groups, shape[0] // geo.groups, -1)
        space = GpuTiles(device, x.shape, x.dtype, geo, flat=True)
        for tile in space.tiles():
            columns, outputs = space.factors(x, g, tile)
            device.matmul(outputs, columns.swapaxes(1, 2), total, beta=float(begun))
            begun = True
        if not begun:  # no image
            total[...] = 0
    if out is None:
        return whole.astype(g.dtype, copy=False)
    return _settled(whole, out, direct, beta)


# -- rules ---------------------------------------------------------------------------------------


def _shared(step: Step, *without: str) -> Params:
    """The parameters that all three ops have."""
    return {name: value for name, value in step.params.items() if name not in without}


def _conv2d_backward(ns: Namespace, step: Step, g: Array) -> None:
    x, weight = step.saved
    params = step.params
    if step.needs(1):
        buffer, beta = step.into(1, wide=True)  # halves are added up in float32
        step.give(1, ns.conv2d_grad_weight(
            g, x, kernel=step.shape(1)[-2:], out=buffer, beta=beta, **params))
    if step.needs(2):
        step.give(2, ns.sum(g, axis=(-4, -2, -1)))
    if step.needs(0):
        buffer, beta = step.into(0)
        step.give(0, ns.conv2d_grad_input(
            g, weight, None, size=step.shape(0)[-2:], out=buffer, beta=beta, **params))


def _grad_input_backward(ns: Namespace, step: Step, u: Array) -> None:
    g, weight = step.saved
    params = _shared(step, "size")
    if step.needs(0):
        buffer, beta = step.into(0)
        step.give(0, ns.conv2d(u, weight, None, out=buffer, beta=beta, **params))
    if step.needs(1):
        buffer, beta = step.into(1)
        step.give(1, ns.conv2d_grad_weight(
            g, u, kernel=step.shape(1)[-2:], out=buffer, beta=beta, **params))
    if step.needs(2):
        step.give(2, ns.sum(u, axis=(-4, -2, -1)))


def _grad_weight_backward(ns: Namespace, step: Step, u: Array) -> None:
    g, x = step.saved
    params = _shared(step, "kernel")
    if step.needs(0):
        buffer, beta = step.into(0)
        step.give(0, ns.conv2d(x, u, None, out=buffer, beta=beta, **params))
    if step.needs(1):
        buffer, beta = step.into(1)
        step.give(1, ns.conv2d_grad_input(
            g, u, None, size=step.shape(1)[-2:], out=buffer, beta=beta, **params))


def _bilinear_tangent(name: str) -> Tangent:
    def tangent(
        ns: Namespace, primals: Values, tangents: Values, out: Array, params: Params
    ) -> Array:
        rest = (None,) * (len(primals) - 2)
        function = getattr(ns, name)
        terms = []
        if tangents[0] is not None:
            terms.append(function(tangents[0], primals[1], *rest, **params))
        if tangents[1] is not None:
            terms.append(function(primals[0], tangents[1], *rest, **params))
        if rest and tangents[2] is not None:
            bias = ns.reshape(tangents[2], shape=(1, out.shape[-3], 1, 1))
            terms.append(ns.broadcast_to(bias, shape=out.shape))
        total = terms[0]
        for term in terms[1:]:
            total = ns.add(total, term)
        return total

    return tangent


# -- examples: folded into the images, or as channels beside each other ----------------------------
#
# With a weight of each example, N examples are N times as many groups. What all examples share is
# never repeated: channels of one input then stand beside each other within each group.


def _folded(ns: Namespace, run: Path, x: Any, *rest: Any, **params: Any) -> Any:
    n, images = x.shape[:2]
    y = run(ns.reshape(x, shape=(n * images, *x.shape[2:])), *rest, **params)
    return ns.reshape(y, shape=(n, images, *y.shape[1:]))


def _with_bias(ns: Namespace, y: Any, bias: Any, mapped: bool) -> Any:
    """y (N, images, C, H, W) plus a bias (C) or (N, C)."""
    if bias is None:
        return y
    lead = (bias.shape[0], 1) if mapped else ()
    return ns.add(y, ns.reshape(bias, shape=(*lead, bias.shape[-1], 1, 1)))


def _weighted_batch(beside: int) -> Any:
    """Of conv2d and conv2d_grad_input; `beside` is the weight's axis of the output's channels."""

    def batch(ns: Namespace, run: Path, inputs: Inputs, mapped: Mapped, params: Params) -> Any:
        x, weight, bias = inputs
        n, groups = batch_size(inputs, mapped), params["groups"]
        if mapped[0] and not mapped[1]:
            inner = None if mapped[2] else bias
            y = _folded(ns, run, x, weight, inner, **params)
            return _with_bias(ns, y, bias, True) if mapped[2] else y
        if mapped[0]:
            x, weight = merged(ns, x, 1, 1), merged(ns, weight, 0, 1)
            y = apart(ns, run(x, weight, None, **{**params, "groups": n * groups}), 1, n, 1)
        elif mapped[1]:
            weight = merged(ns, weight, beside, 1 if beside else groups)
            y = apart(ns, run(x, weight, None, **params), 1, n, groups)
        else:
            y = run(x, weight, None, **params)
        return _with_bias(ns, y, bias, mapped[2])

    return or_none(batch)


def _grad_weight_batch(
    ns: Namespace, run: Path, inputs: Inputs, mapped: Mapped, params: Params
) -> Any:
    g, x = inputs
    n, groups = batch_size(inputs, mapped), params["groups"]
    if mapped[0] and mapped[1]:
        g, x = merged(ns, g, 1, 1), merged(ns, x, 1, 1)
        return apart(ns, run(g, x, **{**params, "groups": n * groups}), 0, n, 1)
    if mapped[0]:
        return apart(ns, run(merged(ns, g, 1, groups), x, **params), 0, n, groups)
    return apart(ns, run(g, merged(ns, x, 1, groups), **params), 1, n, 1)


# -- definitions -----------------------------------------------------------------------------------

_CASES: list[tuple[tuple[int, ...], tuple[int, ...], Params]] = [
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
    "conv2d_grad_input", flops=of_transposed_convolution,
    autocast="low", inputs="g weight bias", cpu=_grad_input_cpu,
    gpu=on_gpu(_grad_input_gpu),
    saves={"weight": "g", "g": "weight"},
    backward=_grad_input_backward, tangent=_bilinear_tangent("conv2d_grad_input"),
    batch=_weighted_batch(1),
    samples=_samples("input"), reference=_transposed_reference,
    doc="The gradient of conv2d's input (N, C, *size) from that of its output, g (N, O, OH, OW), "
        "plus bias (C): the transposed convolution.",
)

conv2d_grad_weight = op(
    "conv2d_grad_weight", flops=of_convolution_weight,
    inputs="g x", cpu=_grad_weight_cpu, gpu=on_gpu(_grad_weight_gpu),
    saves={"x": "g", "g": "x"},
    backward=_grad_weight_backward, tangent=_bilinear_tangent("conv2d_grad_weight"),
    batch=or_none(_grad_weight_batch),
    samples=_samples("weight"),
    doc="The gradient of conv2d's weight (O, C / groups, *kernel) from that of its output.",
)

conv2d_op = op(
    "conv2d", flops=of_convolution,
    autocast="low", inputs="x weight bias", cpu=_conv2d_cpu, gpu=on_gpu(_conv2d_gpu),
    saves={"weight": "x", "x": "weight"},
    backward=_conv2d_backward, tangent=_bilinear_tangent("conv2d"), batch=_weighted_batch(0),
    samples=_samples("forward"), reference=_reference,
    doc="x (N, C, H, W) convolved with weight (O, C / groups, KH, KW), plus bias (O). Parameters: "
        "stride, padding (top, left, bottom, right), dilation, groups.",
)


_AXES = {1: "(N, C, L)", 2: "(N, C, H, W)"}
_KERNELS = {1: "K", 2: "KH, KW"}


# -- signals (N, C, L) as images of one row, for pooling, too --------------------------------------

PerAxis: TypeAlias = "int | Sequence[int]"  # one for all axes, or one per axis


def per_axis(name: str, what: str, value: PerAxis, least: int, axes: int) -> Pair:
    """(height, width) of an integer or of one per axis; ValueError below `least`.

    With one axis the height is that of the images' only row: 1, or 0 where 0 is allowed.
    """
    each = (value,) * axes if isinstance(value, int) else tuple(value)
    if len(each) != axes or any(not isinstance(n, int) or n < least for n in each):
        more = "two of them (height, width)" if axes == 2 else "a tuple of one"
        raise ValueError(f"{name} was given {what}={value!r}; wanted an integer from {least} on, "
                         f"or {more}")
    return (least, each[0]) if axes == 1 else (each[0], each[1])


def as_images(x: Tensor, axes: int) -> Tensor:
    """x itself, or signals (..., L) as images of one row (..., 1, L)."""
    return x if axes == 2 else expand_dims(x, -2)


def on_images(x: Tensor, axes: int, function: Callable[[Tensor], Tensor]) -> Tensor:
    """`function` of images (N, C, H, W) on images or signals, batched or not."""
    images = as_images(x, axes)
    if images.ndim == 3:
        images = reshape(images, (1, *images.shape))
    y = function(images)
    if x.ndim == axes + 1:
        y = reshape(y, y.shape[1:])
    return y if axes == 2 else squeeze(y, -2)


# -- public functions ------------------------------------------------------------------------------


@takes_arrays
def conv2d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: int | Pair = 1,
    padding: int | Pair | str = 0, dilation: int | Pair = 1, groups: int = 1,
) -> Tensor:
    """Cross-correlation of images with kernels: (N, O, OH, OW). Saves input and weight.

    Columns are made in tiles, in a workspace of `paths.WORKSPACE_BYTES` (on a GPU
    `GPU_WORKSPACE_BYTES`), and recomputed in backward. On the CPU groups of few channels are
    computed plane by plane instead.

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
    return _convolution("conv2d", 2, input, weight, bias, stride, padding, dilation, groups)


@takes_arrays
def conv1d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: int | tuple[int] = 1,
    padding: int | tuple[int] | str = 0, dilation: int | tuple[int] = 1, groups: int = 1,
) -> Tensor:
    """Cross-correlation of signals with kernels: (N, O, OL). conv2d of images one row high.

    Args:
        input: (N, C, L), or one signal (C, L).
        weight: (O, C / groups, K).
        bias, stride, padding, dilation, groups: as for conv2d, of one axis.
    """
    return _convolution("conv1d", 1, input, weight, bias, stride, padding, dilation, groups)


def _convolution(
    name: str, axes: int, input: Tensor, weight: Tensor, bias: Tensor | None, stride: PerAxis,
    padding: PerAxis | str, dilation: PerAxis, groups: int,
) -> Tensor:
    steps = per_axis(name, "stride", stride, 1, axes)
    spacing = per_axis(name, "dilation", dilation, 1, axes)
    check_shapes(name, axes, input, weight, bias, groups, transposed=False)
    kernel: Pair = as_images(weight, axes).shape[2:]  # type: ignore[assignment]
    border = _padding(name, axes, padding, kernel, steps, spacing)
    images = as_images(input, axes)
    size = out_size(images.shape[-2:], kernel, steps, border, spacing)  # type: ignore[arg-type]
    if min(size) < 1:
        raise ValueError(f"{name} of an input of shape {input.shape} with a kernel of "
                         f"{weight.shape[2:]}, padding {padding!r} and dilation {dilation} would "
                         f"have an output of {size[-axes:]}; wanted an input at least as large as "
                         "the kernel")
    return on_images(input, axes, lambda x: conv2d_op(
        x, as_images(weight, axes), bias, stride=steps, padding=border, dilation=spacing,
        groups=groups))


# -- checks ----------------------------------------------------------------------------------------


def check_shapes(
    name: str, axes: int, input: Tensor, weight: Tensor, bias: Tensor | None, groups: int,
    transposed: bool,
) -> None:
    """Raise ValueError for shapes that do not fit each other, TypeError for dtypes."""
    if not isinstance(groups, int) or groups < 1:
        raise ValueError(f"{name} was given groups={groups!r}; wanted an integer from 1 on")
    fits = (input.ndim in (axes + 1, axes + 2) and weight.ndim == axes + 2
            and min(weight.shape) > 0 and weight.shape[0] % groups == 0
            and input.shape[-axes - 1] == weight.shape[0 if transposed else 1]
            * (1 if transposed else groups))
    if not fits:
        kernel = _KERNELS[axes]
        wanted = (f"(C, O / groups, {kernel}), with C divisible by groups" if transposed
                  else f"(O, C / groups, {kernel}), with O divisible by groups")
        raise ValueError(f"{name} was given an input of shape {input.shape}, a weight of shape "
                         f"{weight.shape} and groups={groups}; wanted {_AXES[axes]} and {wanted}")
    outputs = weight.shape[1] * groups if transposed else weight.shape[0]
    if bias is not None and bias.shape != (outputs,):
        raise ValueError(f"{name} was given a bias of shape {bias.shape} for a weight of shape "
                         f"{weight.shape}; wanted ({outputs},)")
    same_dtype(name, input=input, weight=weight, bias=bias)


def _padding(
    name: str, axes: int, padding: PerAxis | str, kernel: Pair, stride: Pair, dilation: Pair
) -> tuple[int, int, int, int]:
    """(top, left, bottom, right); 'same' puts an odd one at the bottom and right, as in PyTorch."""
    if padding == "valid":
        return 0, 0, 0, 0
    if padding == "same":
        if stride != (1, 1):
            raise ValueError(f"{name} was given padding='same' with stride {stride[-axes:]}; "
                             "wanted stride 1")
        tall, wide = (dilation[i] * (kernel[i] - 1) for i in (0, 1))
        return tall // 2, wide // 2, tall - tall // 2, wide - wide // 2
    if isinstance(padding, str):
        raise ValueError(f"{name} was given padding={padding!r}; wanted 'same', 'valid', an "
                         "integer or one per axis")
    tall, wide = per_axis(name, "padding", padding, 0, axes)
    return tall, wide, tall, wide


@takes_arrays
def conv_transpose2d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: int | Pair = 1,
    padding: int | Pair = 0, output_padding: int | Pair = 0, groups: int = 1,
    dilation: int | Pair = 1,
) -> Tensor:
    """The map that gives conv2d's input its gradient, applied to images: (N, O, OH, OW).

    OH = (H - 1) * stride - 2 * padding + dilation * (KH - 1) + output_padding + 1, OW likewise.
    Saves input and weight.

    Args:
        input: (N, C, H, W), or one image (C, H, W).
        weight: (C, O / groups, KH, KW).
        bias: (O), or None.
        stride, dilation, padding: those of the convolution whose adjoint this is: one integer, or
            (height, width). Padding is cut off all around.
        output_padding: rows and columns more at the bottom and right; less than stride or dilation.
        groups: input and output channels are split into as many independent convolutions.

    Source: Dumoulin and Visin, "A guide to convolution arithmetic for deep learning", 2016.
    """
    return _transposed("conv_transpose2d", 2, input, weight, bias, stride, padding, output_padding,
                       groups, dilation)


@takes_arrays
def conv_transpose1d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: int | tuple[int] = 1,
    padding: int | tuple[int] = 0, output_padding: int | tuple[int] = 0, groups: int = 1,
    dilation: int | tuple[int] = 1,
) -> Tensor:
    """conv_transpose2d of signals (N, C, L) with a weight (C, O / groups, K): (N, O, OL).

    OL = (L - 1) * stride - 2 * padding + dilation * (K - 1) + output_padding + 1. Raises ValueError
    for shapes that do not fit.
    """
    return _transposed("conv_transpose1d", 1, input, weight, bias, stride, padding, output_padding,
                       groups, dilation)


def _transposed(
    name: str, axes: int, input: Tensor, weight: Tensor, bias: Tensor | None, stride: PerAxis,
    padding: PerAxis, output_padding: PerAxis, groups: int, dilation: PerAxis,
) -> Tensor:
    steps = per_axis(name, "stride", stride, 1, axes)
    spacing = per_axis(name, "dilation", dilation, 1, axes)
    border = per_axis(name, "padding", padding, 0, axes)
    more = per_axis(name, "output_padding", output_padding, 0, axes)
    if any(more[i] >= max(steps[i], spacing[i]) for i in (0, 1)):
        raise ValueError(f"{name} was given output_padding={output_padding} with stride={stride} "
                         f"and dilation={dilation}; wanted less than one of these")
    check_shapes(name, axes, input, weight, bias, groups, transposed=True)
    kernel = as_images(weight, axes).shape[2:]
    images = as_images(input, axes).shape[-2:]
    height, width = (
        (images[i] - 1) * steps[i] - 2 * border[i] + spacing[i] * (kernel[i] - 1) + more[i] + 1
        for i in (0, 1))
    if min(height, width) < 1:
        raise ValueError(f"{name} of an input of shape {input.shape} with a kernel of "
                         f"{weight.shape[2:]} and padding {padding} would have an output of "
                         f"{(height, width)[-axes:]}; wanted at least 1")
    # what the output has more, the convolution of it would not read
    around = (*border, border[0] - more[0], border[1] - more[1])
    return on_images(input, axes, lambda x: conv2d_grad_input(
        x, as_images(weight, axes), bias, size=(height, width), stride=steps, padding=around,
        dilation=spacing, groups=groups))

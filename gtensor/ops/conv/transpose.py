"""Transposed convolution: the adjoint of conv2d as a function of its own."""

from __future__ import annotations

from typing import Any

from gtensor.engine.tensor import Tensor
from gtensor.ops.conv.conv import conv2d_grad_input
from gtensor.ops.conv.convolution import check_shapes
from gtensor.ops.conv.images import as_images, on_images, per_axis
from gtensor.ops.conv.paths import Pair


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


def conv_transpose1d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: int | tuple[int] = 1,
    padding: int | tuple[int] = 0, output_padding: int | tuple[int] = 0, groups: int = 1,
    dilation: int | tuple[int] = 1,
) -> Tensor:
    """conv_transpose2d of signals (N, C, L) with a weight (C, O / groups, K): (N, O, OL)."""
    return _transposed("conv_transpose1d", 1, input, weight, bias, stride, padding, output_padding,
                       groups, dilation)


def _transposed(
    name: str, axes: int, input: Tensor, weight: Tensor, bias: Tensor | None, stride: Any,
    padding: Any, output_padding: Any, groups: int, dilation: Any,
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

"""conv1d and conv2d: the checks of the public functions, and one axis as two."""

from __future__ import annotations

from typing import Any

from gtensor.engine.tensor import Tensor
from gtensor.ops.build.arguments import same_dtype
from gtensor.ops.conv.conv import conv2d_op
from gtensor.ops.conv.images import as_images, on_images, per_axis
from gtensor.ops.conv.paths import Pair, out_size

_AXES = {1: "(N, C, L)", 2: "(N, C, H, W)"}
_KERNELS = {1: "K", 2: "KH, KW"}


def conv2d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: int | Pair = 1,
    padding: int | Pair | str = 0, dilation: int | Pair = 1, groups: int = 1,
) -> Tensor:
    """Cross-correlation of images with kernels: (N, O, OH, OW). Saves input and weight.

    Columns are made in tiles, in a workspace of `conv_paths.WORKSPACE_BYTES` (on a GPU
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
    name: str, axes: int, input: Tensor, weight: Tensor, bias: Tensor | None, stride: Any,
    padding: Any, dilation: Any, groups: int,
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
    name: str, axes: int, padding: Any, kernel: Pair, stride: Pair, dilation: Pair
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

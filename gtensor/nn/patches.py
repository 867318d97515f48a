"""Pixels, channels and patches of images moved about. Public in `gtensor.nn.functional`."""

from __future__ import annotations

from gtensor.creation.new_tensors import eye
from gtensor.engine.handle.tensor import Tensor
from gtensor.ops import stack, tile
from gtensor.ops.arrange.padding import pad
from gtensor.ops.conv.convolution import conv_transpose2d
from gtensor.ops.define.arguments import takes_arrays

Size = int | tuple[int, int]


@takes_arrays
def pixel_shuffle(input: Tensor, upscale_factor: int) -> Tensor:
    """(..., C * r^2, H, W) -> (..., C, H * r, W * r): r^2 channels become squares of r x r pixels.

    Source: Shi et al., "Real-time single image and video super-resolution using an efficient
    sub-pixel convolutional neural network", 2016. Raises ValueError unless r^2 divides the
    channels.
    """
    r = upscale_factor
    if input.ndim < 3 or r < 1 or input.shape[-3] % (r * r):
        raise ValueError(f"pixel_shuffle was given upscale_factor={r} for an input of shape "
                         f"{input.shape}; wanted (..., C, H, W) with C divisible by its square")
    *lead, c, h, w = input.shape
    n = len(lead)
    split = input.reshape((*lead, c // (r * r), r, r, h, w))
    moved = split.permute_dims((*range(n), n, n + 3, n + 1, n + 4, n + 2))
    return moved.reshape((*lead, c // (r * r), h * r, w * r))


@takes_arrays
def pixel_unshuffle(input: Tensor, downscale_factor: int) -> Tensor:
    """(..., C, H * r, W * r) -> (..., C * r^2, H, W): the inverse of `pixel_shuffle`.

    Raises ValueError unless r divides height and width.
    """
    r = downscale_factor
    if input.ndim < 3 or r < 1 or input.shape[-2] % r or input.shape[-1] % r:
        raise ValueError(f"pixel_unshuffle was given downscale_factor={r} for an input of shape "
                         f"{input.shape}; wanted (..., C, H, W) with H and W divisible by it")
    *lead, c, h, w = input.shape
    n = len(lead)
    split = input.reshape((*lead, c, h // r, r, w // r, r))
    moved = split.permute_dims((*range(n), n, n + 2, n + 4, n + 1, n + 3))
    return moved.reshape((*lead, c * r * r, h // r, w // r))


@takes_arrays
def channel_shuffle(input: Tensor, groups: int) -> Tensor:
    """(N, C, ...), the channels of all groups in turns; the same shape out.

    Source: Zhang et al., "ShuffleNet", 2018. Raises ValueError unless `groups` divides C.
    """
    if input.ndim < 3 or groups < 1 or input.shape[1] % groups:
        raise ValueError(f"channel_shuffle was given groups={groups} for an input of shape "
                         f"{input.shape}; wanted (N, C, ...) and a divisor of C")
    n, c, *rest = input.shape
    split = input.reshape((n, groups, c // groups, *rest))
    return split.permute_dims((0, 2, 1, *range(3, split.ndim))).reshape(input.shape)


@takes_arrays
def unfold(
    input: Tensor, kernel_size: Size, dilation: Size = 1, padding: Size = 0, stride: Size = 1
) -> Tensor:
    """The patches that a convolution sees: (N, C, H, W) -> (N, C * kernel size, patches).

    Args:
        input: images, or one of shape (C, H, W).
        kernel_size, dilation, padding, stride: those of the convolution, one number or (of rows, of
            columns).

    Raises ValueError for other shapes, and for a kernel larger than the padded image.
    """
    if input.ndim == 3:
        return unfold(input.reshape((1, *input.shape)), kernel_size, dilation, padding, stride)[0]
    (kh, kw), (dh, dw), (ph, pw), (sh, sw) = map(_pair, (kernel_size, dilation, padding, stride))
    rows, columns = _patches("unfold", input.shape, (kh, kw), (dh, dw), (ph, pw), (sh, sw))
    x = pad(input, (pw, pw, ph, ph))
    parts = [x[:, :, i * dh:i * dh + (rows - 1) * sh + 1:sh,
               j * dw:j * dw + (columns - 1) * sw + 1:sw] for i in range(kh) for j in range(kw)]
    return stack(parts, axis=2).reshape((x.shape[0], x.shape[1] * kh * kw, rows * columns))


@takes_arrays
def fold(
    input: Tensor, output_size: Size, kernel_size: Size, dilation: Size = 1, padding: Size = 0,
    stride: Size = 1,
) -> Tensor:
    """Sums of patches at their places: (N, C * kernel size, patches) -> (N, C, *output_size).

    The other way of `unfold`, whose gradient it is. Arguments are those of `unfold`, and
    output_size the height and width of the images; an input without its first axis is one image.

    Raises ValueError for an input that does not have the channels or patches of these sizes.
    """
    if input.ndim == 2:
        return fold(input.reshape((1, *input.shape)), output_size, kernel_size, dilation, padding,
                    stride)[0]
    size, kernel, d, p, s = map(_pair, (output_size, kernel_size, dilation, padding, stride))
    area = kernel[0] * kernel[1]
    counts = _patches("fold", (1, 1, *size), kernel, d, p, s)
    if input.ndim != 3 or input.shape[1] % area or input.shape[2] != counts[0] * counts[1]:
        raise ValueError(f"fold was given an input of shape {input.shape} for output_size={size} "
                         f"and kernel_size={kernel}; wanted (N, C * {area}, "
                         f"{counts[0] * counts[1]})")
    channels = input.shape[1] // area
    one = eye(area, dtype=input.dtype, device=input.device).reshape((area, 1, *kernel))
    left = tuple(size[i] + 2 * p[i] - d[i] * (kernel[i] - 1) - 1 - (counts[i] - 1) * s[i]
                 for i in (0, 1))
    return conv_transpose2d(
        input.reshape((input.shape[0], channels * area, *counts)), tile(one, (channels, 1, 1, 1)),
        None, s, p, (left[0], left[1]), channels, d)


def _pair(value: Size) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[1])


def _patches(
    name: str, shape: tuple[int, ...], kernel: tuple[int, int], dilation: tuple[int, int],
    padding: tuple[int, int], stride: tuple[int, int],
) -> tuple[int, int]:
    """How many patches there are below and beside each other."""
    if len(shape) != 4 or min(*kernel, *dilation, *stride, 1 + min(padding)) < 1:
        raise ValueError(f"{name} was given shape {shape}, kernel_size={kernel}, "
                         f"dilation={dilation}, padding={padding} and stride={stride}; wanted "
                         "(N, C, H, W), positive sizes and padding of 0 or more")
    spans = [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, p, d, k, s in zip(
        shape[2:], padding, dilation, kernel, stride, strict=True)]
    if min(spans) < 1:
        raise ValueError(f"{name} was given kernel_size={kernel} and dilation={dilation} for shape "
                         f"{shape} with padding={padding}; wanted a kernel that fits")
    return spans[0], spans[1]

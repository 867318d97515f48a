"""Windows over planes, which all poolings share: their places, arguments and checks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from gtensor.backend import Scratch, host
from gtensor.backend.cuda import cupy
from gtensor.engine.handle.tensor import Tensor
from gtensor.ops.conv.convolution import as_images, per_axis
from gtensor.ops.conv.paths import Pair
from gtensor.settings import settings

if TYPE_CHECKING:
    import numpy as np

    from gtensor.backend.typing import Array, Params
    from gtensor.ops.conv.convolution import PerAxis

Single = int | tuple[int]


class Windows(NamedTuple):
    """Windows over planes of `size`: `kernel` taps `dilation` apart, windows `stride` apart."""

    size: Pair
    out: Pair
    kernel: Pair
    stride: Pair
    padding: Pair
    dilation: Pair

    def taps(self) -> Iterator[tuple[Pair, tuple[slice, slice], tuple[slice, slice]]]:
        """Each tap's place, the outputs for which it lies inside, the inputs it reads there."""
        for i in range(self.kernel[0]):
            rows, source_rows = self._along(0, i)
            for j in range(self.kernel[1]):
                columns, source_columns = self._along(1, j)
                yield (i, j), (rows, columns), (source_rows, source_columns)

    def _along(self, axis: int, tap: int) -> tuple[slice, slice]:
        step = self.stride[axis]
        offset = tap * self.dilation[axis] - self.padding[axis]
        first = max(0, -(offset // step))  # the first output whose tap is at 0 or later
        last = min(self.out[axis], -((offset - self.size[axis]) // step))
        last = max(first, last)
        start = first * step + offset
        end = start + (last - first - 1) * step + 1 if last > first else start
        return slice(first, last), slice(start, end, step)


def windows(
    size: Pair, *, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair, ceil: bool
) -> Windows:
    """The windows of a pooling with these parameters, as many as PyTorch counts."""
    outs = []
    for i in (0, 1):
        room = size[i] + 2 * padding[i] - dilation[i] * (kernel[i] - 1) - 1
        count = (room + (stride[i] - 1 if ceil else 0)) // stride[i] + 1
        if ceil and (count - 1) * stride[i] >= size[i] + padding[i]:
            count -= 1  # a window must start inside the input or its left padding
        outs.append(count)
    return Windows(size, (outs[0], outs[1]), kernel, stride, padding, dilation)


def planes(shape: tuple[int, ...]) -> Iterator[tuple[slice, slice]]:
    """Keys (images, channels) of tiles of whole planes, at least one each."""
    n, channels = shape[:2]
    images, step = _in_tile(shape)
    for i in range(0, n, images):
        for j in range(0, channels, step):
            yield slice(i, min(i + images, n)), slice(j, min(j + step, channels))


def _in_tile(shape: tuple[int, ...]) -> Pair:
    """How many images and channels of each a tile has: of small images several."""
    count = max(1, settings.tile_elements // max(1, shape[2] * shape[3]))
    return max(1, min(shape[0], count // max(1, shape[1]))), min(max(1, shape[1]), count)


def plane_scratch(shape: tuple[int, ...], dtype: np.dtype, size: Pair | None = None) -> Scratch:
    """One buffer for the largest tile of `planes(shape)`, its planes as they are or of `size`."""
    return host().workspace(prod(_in_tile(shape)) * prod(size or shape[2:]), dtype)


def sizes(count: int, w: Windows) -> tuple[int, ...]:
    """The kernels' arguments from the number of planes on."""
    return (count, *w.size, *w.kernel, *w.out, *w.stride, *w.padding)


def adjoint_gpu(
    launch: Callable[[Array, Array, int], None], g: Array, size: Pair, out: Array | None,
    beta: float,
) -> Array:
    """`launch(g, result, accumulate)` on contiguous arrays."""
    xp = cupy()
    result = (out if out is not None and out.flags.c_contiguous
              else xp.empty((*g.shape[:2], *size), g.dtype))
    direct = result is out
    launch(xp.ascontiguousarray(g), result, int(direct and bool(beta)))
    if out is None or direct:
        return result
    out[...] = out + result if beta else result
    return out


def window_params(**given: Any) -> Params:
    """Parameters of a sample: 2x2 windows unless given."""
    return {"kernel": (2, 2), "stride": (2, 2), "padding": (0, 0), "dilation": (1, 1),
            "ceil": False, **given}


def window_arguments(
    name: str, axes: int, x: Tensor, kernel_size: PerAxis, stride: PerAxis | None, padding: PerAxis,
    dilation: PerAxis, ceil: bool,
) -> Params:
    """The parameters of the ops; ValueError for windows that do not fit."""
    check_rank(name, axes, x)
    kernel = per_axis(name, "kernel_size", kernel_size, 1, axes)
    steps = kernel if stride is None else per_axis(name, "stride", stride, 1, axes)
    border = per_axis(name, "padding", padding, 0, axes)
    spacing = per_axis(name, "dilation", dilation, 1, axes)
    if any(2 * border[i] > kernel[i] for i in (0, 1)):
        raise ValueError(f"{name} was given padding={padding} for kernel_size={kernel_size}; "
                         "wanted at most half the kernel")
    params = {"kernel": kernel, "stride": steps, "padding": border, "dilation": spacing,
              "ceil": bool(ceil)}
    out = windows(as_images(x, axes).shape[-2:], **params).out  # type: ignore[arg-type]
    if min(out) < 1:
        raise ValueError(f"{name} of an input of shape {x.shape} with kernel_size={kernel_size} "
                         f"would have an output of {out[-axes:]}; wanted an input at least as "
                         "large as the kernel")
    return params


def check_rank(name: str, axes: int, x: Tensor) -> None:
    if x.ndim not in (axes + 1, axes + 2):
        wanted = "(N, C, H, W) or (C, H, W)" if axes == 2 else "(N, C, L) or (C, L)"
        raise ValueError(f"{name} was given an input of shape {x.shape}; wanted {wanted}")

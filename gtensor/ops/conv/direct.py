"""Convolution on the CPU by kernels in C, which read images in place of columns: where, and how.

kernels/cpu/convolution.c computes a pass: outputs on a grid, each the sum over taps of inputs that
lie `stride` apart from output to output. A convolution is one pass, the gradient of its input one
for each place of a pixel within a stride. `Axis` is what a pass is along one axis.

The functions return False, and write nothing, where the products of paths.py serve: without
compiled kernels, for other dtypes and layouts, and where products of large matrices are faster.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from math import prod
from typing import NamedTuple

import numpy as np

from gtensor.backend import compiled, host
from gtensor.backend.threads import get_num_threads
from gtensor.ops.conv.paths import Geometry, Pair
from gtensor.settings import settings

WINDOW_BYTES = 128 << 10  # of a tile's inputs, channels last; half a core's second cache, or less
TILE_PIXELS = 256  # outputs of a tile: with 32 channels they fill a core's first cache
GRADIENT_PIXELS = 128  # the same for the weight's gradient, where both factors are read again
PLANE_BYTES = 24 << 10  # of a tile's planes and outputs: in a core's first cache

_MASK_BYTES = 64  # in front of the memory of calls, as in convolution.c
DTYPES = {np.dtype(np.float32): "float32", np.dtype(np.float64): "float64"}
_BUILT = compiled.kernel("conv_pack_float32") is not None


class Axis(NamedTuple):
    """A pass along one axis: tap i of output u reads input u * stride + shifts[i]."""

    outputs: int
    stride: int
    start: int  # where the first output lies, and how far apart they are
    step: int
    taps: tuple[int, ...]  # places in the kernel
    shifts: tuple[int, ...]  # rising

    def reach(self, outputs: int) -> int:
        """Inputs from the first to the last that so many outputs read."""
        return (outputs - 1) * self.stride + self.shifts[-1] - self.shifts[0] + 1


def forward_axis(geo: Geometry, axis: int) -> Axis:
    """Of the convolution itself."""
    taps = range(geo.kernel[axis])
    return Axis(geo.out[axis], geo.stride[axis], 0, 1, tuple(taps),
                tuple(i * geo.dilation[axis] - geo.before[axis] for i in taps))


def adjoint_axes(geo: Geometry, axis: int) -> Iterator[Axis]:
    """Of the gradient of its input: for each place in a stride, that of the pixels there.

    Pixel q = m * stride + place - before is read by tap i of output m - (i * dilation - place) /
    stride, where that is whole.
    """
    stride, before, size = geo.stride[axis], geo.before[axis], geo.size[axis]
    for place in range(stride):
        first = -((place - before) // stride)  # the least m of a pixel inside
        start = first * stride + place - before
        taps = tuple(i for i in reversed(range(geo.kernel[axis]))
                     if i * geo.dilation[axis] % stride == place)
        yield Axis(max(0, -((start - size) // stride)), 1, start, stride, taps,
                   tuple(first - (i * geo.dilation[axis] - place) // stride for i in taps))


# -- which kernel ----------------------------------------------------------------------------------
# Measured on one core with AVX-512 against the products of paths.py: windows of 1x1 and 3x3, 8 to
# 1,024 channels, planes of 1 to 28 pixels a side, 1 to 32 images. Edges lie where both take as
# long. Groups of few channels are faster here at every size.

PLANE_OUTPUTS = 8  # of a group, up to which vectors lie along pixels and not along outputs
PLANE_INPUTS, PLANE_WIDTH = 16, 16  # the same up to so many inputs, from so wide a plane on
PLANE_WEIGHTS = 32  # of a group and tap: for the weight's gradient, too

MOST_WEIGHTS = 1 << 22  # of a group: with more, products are faster
PACKED_WEIGHTS, PACKED_PIXELS = 1 << 20, 32  # to pack more weights takes so many pixels to repay
MOST_GRADIENTS = 1 << 20  # the same for the gradient of a weight
POINT_WEIGHTS, POINT_PIXELS = 1 << 15, 192  # of 1x1 windows: more weights need so many pixels


def _by_planes(inputs: int, outputs: int, width: int) -> bool:
    """Whether a correlation lays vectors along pixels."""
    return outputs <= PLANE_OUTPUTS or (inputs <= PLANE_INPUTS and width >= PLANE_WIDTH)


def _gradient_by_planes(inputs: int, outputs: int) -> bool:
    return outputs <= PLANE_OUTPUTS and inputs * outputs <= PLANE_WEIGHTS


def _weights(weight: np.ndarray, geo: Geometry) -> int:
    return weight.size // geo.groups


def correlates(weight: np.ndarray, pixels: int, geo: Geometry) -> bool:
    """Whether a convolution is better done here; `pixels` are those of all outputs' planes."""
    weights = _weights(weight, geo)
    return not is_product(geo) and weights <= MOST_WEIGHTS and (
        weights <= PACKED_WEIGHTS or pixels >= PACKED_PIXELS)


def is_product(geo: Geometry) -> bool:
    """Whether images are the columns of a product as they lie (1x1 windows)."""
    return (geo.kernel == (1, 1) and geo.stride == (1, 1) and geo.before == (0, 0)
            and geo.out == geo.size)


def sums_outer_products(weight: np.ndarray, pixels: int, geo: Geometry) -> bool:
    """Whether a gradient of the weight (given by its array) is better done here."""
    weights = _weights(weight, geo)
    if geo.kernel == (1, 1) and geo.groups == 1:
        return weight.shape[0] > PLANE_OUTPUTS and (
            weights <= POINT_WEIGHTS or pixels >= POINT_PIXELS)
    return weights <= MOST_GRADIENTS


# -- passes ----------------------------------------------------------------------------------------


class _Pass(NamedTuple):
    """The numbers that a pass is given by, as `read_pass` in convolution.c reads them."""

    numbers: np.ndarray
    shared: int  # bytes of packed weights or totals
    memory: int  # bytes for one call
    items: int


def _pass(
    n: int, groups: int, inputs: int, size: Pair, outputs: int, out: Pair, kernel: Pair,
    rows: Axis, columns: Axis, dtype: np.dtype, *, transposed: bool, accumulate: bool,
    planes: bool, gradient: bool,
) -> _Pass:
    line = columns.reach(columns.outputs) * inputs * dtype.itemsize
    images = 1
    if planes:
        line += columns.outputs * min(outputs, 4) * dtype.itemsize
        tile_rows = PLANE_BYTES // line
    else:
        pixels = GRADIENT_PIXELS if gradient else TILE_PIXELS
        halo = rows.shifts[-1] - rows.shifts[0]
        tile_rows = min(pixels // columns.outputs, (WINDOW_BYTES // line - halo - 1) // rows.stride)
        if tile_rows >= rows.outputs:
            images = min(n, pixels // (rows.outputs * columns.outputs),
                         WINDOW_BYTES // (line * rows.reach(rows.outputs)))
    tile_rows = max(1, min(rows.outputs, tile_rows))
    numbers = np.array([
        n, groups, inputs, *size, outputs, *out, *kernel, transposed, accumulate, max(1, images),
        tile_rows, planes,
        *(x for a in (rows, columns) for x in (a.outputs, a.stride, len(a.taps), a.start, a.step)),
        *rows.taps, *rows.shifts, *columns.taps, *columns.shifts], np.int64)
    sizes = np.zeros(6, np.int64)
    _call("sizes", dtype, (numbers, sizes), 0, 1)
    return _Pass(numbers, *(int(sizes[i]) for i in range(int(gradient), 6, 2)))


@lru_cache(maxsize=1024)
def _forward_pass(
    n: int, inputs: int, outputs: int, geo: Geometry, dtype: np.dtype, accumulate: bool,
    gradient: bool,
) -> _Pass:
    planes = (_gradient_by_planes(inputs, outputs) if gradient
              else _by_planes(inputs, outputs, geo.out[1]))
    return _pass(n, geo.groups, inputs, geo.size, outputs, geo.out, geo.kernel,
                 forward_axis(geo, 0), forward_axis(geo, 1), dtype, transposed=False,
                 accumulate=accumulate, planes=planes, gradient=gradient)


@lru_cache(maxsize=1024)
def _adjoint_passes(
    n: int, inputs: int, outputs: int, geo: Geometry, dtype: np.dtype, accumulate: bool
) -> tuple[tuple[Axis, Axis, _Pass | None], ...]:
    """With their axes; None where no tap reaches the pixels."""
    found = []
    for rows in adjoint_axes(geo, 0):
        for columns in adjoint_axes(geo, 1):
            if rows.outputs and columns.outputs:
                reached = rows.taps and columns.taps
                found.append((rows, columns, _pass(
                    n, geo.groups, inputs, geo.out, outputs, geo.size, geo.kernel, rows, columns,
                    dtype, transposed=True, accumulate=accumulate,
                    planes=_by_planes(inputs, outputs, columns.outputs), gradient=False)
                    if reached else None))
    return tuple(found)


# -- calls -----------------------------------------------------------------------------------------


def _call(
    name: str, dtype: np.dtype, arrays: tuple[np.ndarray | None, ...], memory: int, items: int
) -> int:
    """The flags of overflow and of invalid operations. They alone do not say that one is due:
    unused lanes and places between rows are computed, too.
    """
    kernel = compiled.kernel(f"conv_{name}_{DTYPES[dtype]}")
    assert kernel is not None
    return compiled.run(kernel, arrays, (memory,), (), items, compiled.ALL) & compiled.INFINITE


def _report(flags: int, written: np.ndarray, *read: np.ndarray | None) -> None:
    """Report an invalid operation if there are NaN in what was written, and none in what was read;
    overflow if the same holds for infinities.
    """
    for flag, test in ((compiled.INVALID, np.isnan), (compiled.OVERFLOW, np.isinf)):
        if flags & flag and test(written).any() and not any(
                a is not None and test(a).any() for a in read):
            compiled.report(flag)


def _buffers(p: _Pass) -> tuple[np.ndarray, np.ndarray, int]:
    """What calls share, the memory of all that run at a time, and the bytes of each one's part."""
    each, count = -(-p.memory // 64) * 64, max(1, min(get_num_threads(), p.items, 64))
    shared, memory = (host().workspace(n, np.uint8)(0, (n,)) for n in (
        max(1, p.shared), _MASK_BYTES + count * each))
    memory[:8].view(np.uint64)[0] = (1 << count) - 1  # a bit for each part that is free
    return shared, memory, each


def readable(*arrays: np.ndarray | None) -> bool:
    """Whether kernels in C are there, and read and write these arrays, all of one dtype."""
    if not _BUILT or not settings.compiled:
        return False
    first = arrays[0]
    assert first is not None
    return first.dtype in DTYPES and all(
        a is None or (a.flags.c_contiguous and a.flags.aligned and a.dtype == first.dtype
                      and a.size > 0)
        for a in arrays)


def _run(
    p: _Pass, x: np.ndarray, weight: np.ndarray, bias: np.ndarray | None, out: np.ndarray
) -> int:
    packed, memory, each = _buffers(p)
    _call("pack", x.dtype, (p.numbers, weight, packed), 0, 1)
    arrays = p.numbers, x, packed, bias, out, memory
    return _call("correlate", x.dtype, arrays, each, p.items)


def correlate(
    x: np.ndarray, weight: np.ndarray, bias: np.ndarray | None, geo: Geometry, out: np.ndarray,
    beta: float,
) -> bool:
    """out = x convolved with a weight + bias + beta * out; False where it is not done here."""
    if not (readable(x, weight, bias, out) and correlates(weight, len(x) * prod(geo.out), geo)):
        return False
    inputs, outputs = weight.shape[1], weight.shape[0] // geo.groups
    p = _forward_pass(len(x), inputs, outputs, geo, x.dtype, bool(beta), False)
    flags = _run(p, x, weight, bias, out)
    if flags:
        _report(flags, out, x, weight, bias)
    return True


def input_gradient(
    g: np.ndarray, weight: np.ndarray, bias: np.ndarray | None, geo: Geometry, out: np.ndarray,
    beta: float,
) -> bool:
    """out = the gradient of the input + bias + beta * out; False where it is not done here."""
    if not readable(g, weight, bias, out) or is_product(geo):
        return False
    inputs, outputs = weight.shape[0] // geo.groups, weight.shape[1]
    flags = 0
    for rows, columns, p in _adjoint_passes(len(g), inputs, outputs, geo, g.dtype, bool(beta)):
        if p is not None:
            flags |= _run(p, g, weight, bias, out)
            continue
        part = out[:, :, rows.start::rows.step, columns.start::columns.step]
        if not beta:
            part[...] = 0
        if bias is not None:
            part += bias.reshape(-1, 1, 1)
    if flags:
        _report(flags, out, g, weight, bias)
    return True


def weight_gradient(
    g: np.ndarray, x: np.ndarray, geo: Geometry, out: np.ndarray, beta: float
) -> bool:
    """out = the gradient of the weight + beta * out; False where it is not done here."""
    if not (readable(g, x, out) and sums_outer_products(out, len(x) * prod(geo.out), geo)):
        return False
    p = _forward_pass(len(x), out.shape[1], out.shape[0] // geo.groups, geo, g.dtype, bool(beta),
                      True)
    totals, memory, each = _buffers(p)
    arrays = p.numbers, g, x, out, totals, memory
    flags = _call("weight_gradient", g.dtype, arrays, each, p.items)
    if flags:
        _report(flags, out, g, x)
    return True

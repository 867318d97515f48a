"""Two-dimensional convolution as matrix products over columns, tile by tile.

On the CPU kernels in C serve in place of these paths where direct.py says so. Here the columns are
channels-last, (groups, images * positions, taps * channels): a tap's channels lie together, so the
copy moves long runs, and each tile is one GEMM per group. Columns, padded images and products of a
tile together take `WORKSPACE_BYTES`, or one output row of one image where that is more. On the GPU
the columns are (images, channels * taps, positions), made by kernels/im2col.cu; they take
`GPU_WORKSPACE_BYTES`, or one image's columns where that is more. The gradient of few weights needs
none there (kernels/weight_gradient.cu).
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided

from gtensor.backend import Device, host
from gtensor.backend.cuda import cupy
from gtensor.backend.kernels import BLOCK, MULTIPROCESSORS, flat_launch, raw
from gtensor.ops.define.cpu_tiles import broadcast_directly, computed_in
from gtensor.settings import settings

if TYPE_CHECKING:
    from gtensor.backend.typing import Array


WORKSPACE_BYTES = 4 * 2**20  # of a tile on the CPU: in the cache of a core, large enough for a GEMM
GPU_WORKSPACE_BYTES = 64 * 2**20

Pair = tuple[int, int]


class Geometry(NamedTuple):
    """The geometry of windows on the input: sizes (height, width); `before` < 0 crops."""

    size: Pair
    kernel: Pair
    out: Pair
    stride: Pair
    before: Pair  # padding at the top and at the left
    dilation: Pair
    groups: int

    def reach(self) -> Pair:
        """Input rows and columns from a window's first tap to its last."""
        return (self.dilation[0] * (self.kernel[0] - 1) + 1,
                self.dilation[1] * (self.kernel[1] - 1) + 1)

    def adjoint(self) -> Geometry:
        """Of the convolution of the output's gradient that gives the input's; for stride 1."""
        tall, wide = self.reach()
        return self._replace(size=self.out, out=self.size,
                             before=(tall - 1 - self.before[0], wide - 1 - self.before[1]))


def out_size(
    size: Pair, kernel: Pair, stride: Pair, padding: tuple[int, ...], dilation: Pair
) -> Pair:
    """Output height and width; padding is (top, left, bottom, right)."""
    height, width = (
        (size[i] + padding[i] + padding[i + 2] - dilation[i] * (kernel[i] - 1) - 1) // stride[i] + 1
        for i in (0, 1))
    return height, width


def geometry(
    size: Pair, kernel: Pair, *, stride: Pair, padding: tuple[int, ...], dilation: Pair, groups: int
) -> Geometry:
    """The geometry of a convolution with these parameters."""
    return Geometry(size, kernel, out_size(size, kernel, stride, padding, dilation), stride,
                    (padding[0], padding[1]), dilation, groups)


# -- CPU: tiles ----------------------------------------------------------------------------------


class Tile(NamedTuple):
    """Images and output rows, the input rows they read, and the parts of these that exist."""

    images: slice
    rows: slice
    inside: tuple[slice, slice]  # of the padded window buffer
    source: tuple[slice, slice]  # of the input


class CpuTiles:
    """The tiles of one call, and the buffers that all of them use."""

    def __init__(self, n: int, channels: int, outputs: int, g: Geometry, dtype: np.dtype) -> None:
        self.g, self.channels, self.outputs = g, channels, outputs
        self.taps = prod(g.kernel) * channels // g.groups  # rows of a group's weight matrix
        tall, wide = g.reach()
        self.width = (g.out[1] - 1) * g.stride[1] + wide
        line = self.width * channels
        one_row = g.out[1] * (self.taps * g.groups + outputs) + g.stride[0] * line
        limit = WORKSPACE_BYTES // np.dtype(dtype).itemsize - (tall - g.stride[0]) * line
        self.rows = max(1, min(g.out[0], limit // max(1, one_row)))
        image = g.out[0] * one_row + (tall - g.stride[0]) * line
        self.images = max(1, min(n, WORKSPACE_BYTES // np.dtype(dtype).itemsize // max(1, image)))
        self.n = n
        self.height = (self.rows - 1) * g.stride[0] + tall
        positions = self.images * self.rows * g.out[1]
        self._window = host().workspace(self.images * self.height * line, dtype)
        self._columns = host().workspace(positions * self.taps * g.groups, dtype)
        self._product = host().workspace(positions * outputs, dtype)

    def tiles(self) -> Iterator[Tile]:
        """All images and output rows."""
        for first in range(0, self.n, self.images):
            for row in range(0, self.g.out[0], self.rows):
                yield self._tile(first, row)

    def _tile(self, first: int, row: int) -> Tile:
        g = self.g
        rows = slice(row, min(row + self.rows, g.out[0]))
        top = row * g.stride[0] - g.before[0]
        height = (rows.stop - rows.start - 1) * g.stride[0] + g.reach()[0]
        vertical = overlap(top, height, g.size[0])
        horizontal = overlap(-g.before[1], self.width, g.size[1])
        return Tile(slice(first, min(first + self.images, self.n)), rows,
                    (vertical[0], horizontal[0]), (vertical[1], horizontal[1]))

    def window(self, t: Tile) -> np.ndarray:
        """The tile's padded images, channels last: (n, height, width, channels), uninitialized."""
        n, rows = t.images.stop - t.images.start, t.rows.stop - t.rows.start
        height = (rows - 1) * self.g.stride[0] + self.g.reach()[0]
        return self._window(0, (n, height, self.width, self.channels))

    def columns(self, t: Tile) -> np.ndarray:
        """The tile's columns (groups, n, rows, width, kernel height, kernel width, channels)."""
        g = self.g
        shape = (g.groups, t.images.stop - t.images.start, t.rows.stop - t.rows.start, g.out[1],
                 *g.kernel, self.channels // g.groups)
        return self._columns(0, shape)

    def product(self, t: Tile) -> np.ndarray:
        """The tile's outputs, channels last: (groups, n, rows, width, outputs of a group)."""
        shape = (self.g.groups, t.images.stop - t.images.start, t.rows.stop - t.rows.start,
                 self.g.out[1], self.outputs // self.g.groups)
        return self._product(0, shape)

    def gather(self, x: np.ndarray, t: Tile) -> np.ndarray:
        """The tile's columns of x, as a stack of matrices (groups, positions, taps)."""
        window, g = self.window(t), self.g
        if t.inside != _everything(window):
            window[...] = 0
        part = x[t.images, :, t.source[0], t.source[1]]
        window[:, t.inside[0], t.inside[1]] = part.transpose(0, 2, 3, 1)
        columns = self.columns(t)
        a, b, c, d = window.strides
        taps = as_strided(
            window, (*columns.shape[1:6], g.groups, columns.shape[6]),
            (a, b * g.stride[0], c * g.stride[1], b * g.dilation[0], c * g.dilation[1],
             d * columns.shape[6], d))
        columns[...] = taps.transpose(5, 0, 1, 2, 3, 4, 6)
        return columns.reshape(g.groups, -1, self.taps)

    def scatter(self, x: np.ndarray, t: Tile) -> None:
        """Add the tile's columns to the places of x that they were read from."""
        window, columns, g = self.window(t), self.columns(t), self.g
        window[...] = 0
        rows, width = columns.shape[2], columns.shape[3]
        split = window.reshape(*window.shape[:3], g.groups, -1)
        for i in range(g.kernel[0]):
            top = i * g.dilation[0]
            for j in range(g.kernel[1]):
                left = j * g.dilation[1]
                split[:, top:top + (rows - 1) * g.stride[0] + 1:g.stride[0],
                      left:left + (width - 1) * g.stride[1] + 1:g.stride[1]] += (
                    columns[:, :, :, :, i, j].transpose(1, 2, 3, 0, 4))
        part = window[:, t.inside[0], t.inside[1]]
        x[t.images, :, t.source[0], t.source[1]] += part.transpose(0, 3, 1, 2)

    def outputs_of(self, y: np.ndarray, t: Tile) -> np.ndarray:
        """The tile's part of y (N, outputs, height, width), in the order of `product`."""
        groups = self.g.groups
        split = y.reshape(y.shape[0], groups, y.shape[1] // groups, *y.shape[2:])
        return split[t.images, :, :, t.rows].transpose(1, 0, 3, 4, 2)


def overlap(first: int, count: int, size: int) -> tuple[slice, slice]:
    """The overlap of [first, first + count) and [0, size), as a slice of each."""
    low = min(max(first, 0), size)
    high = max(low, min(first + count, size))
    start = min(max(low - first, 0), count)
    return slice(start, start + high - low), slice(low, high)


def _everything(window: np.ndarray) -> tuple[slice, slice]:
    return slice(0, window.shape[1]), slice(0, window.shape[2])


# -- CPU: the three products ---------------------------------------------------------------------


def correlate(
    x: np.ndarray, matrix: np.ndarray, bias: Array | None, g: Geometry, out: np.ndarray, beta: float
) -> np.ndarray:
    """out = x convolved with a weight matrix (groups, outputs, taps) + bias + beta * out."""
    if bias is not None:
        bias = bias.reshape(g.groups, 1, -1)
    if _plain(x, g, out) and not beta:
        return _correlate_plain(x, matrix, bias, g, out)
    space = CpuTiles(x.shape[0], x.shape[1], out.shape[1], g, matrix.dtype)
    for tile in space.tiles():
        product = space.product(tile)
        flat = product.reshape(g.groups, -1, matrix.shape[1])
        np.matmul(space.gather(x, tile), matrix.transpose(0, 2, 1), out=flat)
        if bias is not None:
            flat += bias
        target = space.outputs_of(out, tile)
        if beta:
            target += product
        else:
            target[...] = product
    return out


def _plain(x: np.ndarray, g: Geometry, out: np.ndarray) -> bool:
    """Whether the images themselves are the columns: 1x1 windows, each on one pixel."""
    return (g.kernel == (1, 1) and g.stride == (1, 1) and g.before == (0, 0) and g.out == g.size
            and x.flags.c_contiguous and out.flags.c_contiguous and x.itemsize > 2)


def _correlate_plain(
    x: np.ndarray, matrix: np.ndarray, bias: Array | None, g: Geometry, out: np.ndarray
) -> np.ndarray:
    positions = prod(g.size)
    images = x.reshape(x.shape[0], g.groups, x.shape[1] // g.groups, positions)
    product = out.reshape(x.shape[0], g.groups, matrix.shape[1], positions)
    np.matmul(matrix, images, out=product)
    if bias is not None:
        product += bias.reshape(g.groups, -1, 1)
    return out


def weight_matrix(weight: np.ndarray, groups: int, flipped: bool = False) -> np.ndarray:
    """(groups, outputs, taps * channels) of a weight (outputs, channels of a group, height, width).

    Flipped, the kernel is turned around and outputs and channels are exchanged, for the adjoint.
    """
    outputs, channels, *kernel = weight.shape
    split = weight.reshape(groups, outputs // groups, channels, *kernel)
    if flipped:
        split = split[..., ::-1, ::-1].transpose(0, 2, 3, 4, 1)
    else:
        split = split.transpose(0, 1, 3, 4, 2)
    matrix = host().copy(split, computed_in(weight.dtype), "workspace")
    return matrix.reshape(groups, split.shape[1], -1)


def input_gradient(
    g: np.ndarray, weight: np.ndarray, bias: Array | None, geo: Geometry, out: np.ndarray,
    beta: float,
) -> np.ndarray:
    """out = the gradient of the convolution's input + bias + beta * out."""
    if geo.stride == (1, 1):
        matrix = weight_matrix(weight, geo.groups, flipped=True)
        return correlate(g, matrix, bias, geo.adjoint(), out, beta)
    if not beta:
        out[...] = 0
    if bias is not None:
        out += bias.reshape(-1, 1, 1)
    matrix = weight_matrix(weight, geo.groups)
    space = CpuTiles(g.shape[0], out.shape[1], g.shape[1], geo, matrix.dtype)
    for tile in space.tiles():
        product, columns = space.product(tile), space.columns(tile)
        product[...] = space.outputs_of(g, tile)
        np.matmul(product.reshape(geo.groups, -1, matrix.shape[1]), matrix,
                  out=columns.reshape(geo.groups, -1, matrix.shape[2]))
        space.scatter(out, tile)
    return out


def weight_gradient(
    g: np.ndarray, x: np.ndarray, geo: Geometry, out: np.ndarray, beta: float
) -> np.ndarray:
    """out = the gradient of the convolution's weight + beta * out."""
    outputs, work = g.shape[1] // geo.groups, computed_in(g.dtype)
    space = CpuTiles(x.shape[0], x.shape[1], g.shape[1], geo, work)
    shape = (geo.groups, outputs, space.taps)
    parts = host().workspace(prod(shape), work, 2)
    total, part = parts(0, shape), parts(1, shape)
    total[...] = 0
    for tile in space.tiles():
        product = space.product(tile)
        product[...] = space.outputs_of(g, tile)
        flat = product.reshape(geo.groups, -1, outputs)
        total += np.matmul(flat.transpose(0, 2, 1), space.gather(x, tile), out=part)
    channels = x.shape[1] // geo.groups
    result = total.reshape(g.shape[1], *geo.kernel, channels).transpose(0, 3, 1, 2)
    if beta:
        out += result
    else:
        out[...] = result
    return out


# -- GPU -----------------------------------------------------------------------------------------

_IM2COL = raw("im2col.cu", "im2col")
_IM2COL_BESIDE = raw("im2col.cu", "im2col_beside")
_COL2IM = raw("im2col.cu", "col2im")
_WEIGHT_GRADIENT = raw("weight_gradient.cu", "conv_weight_gradient")


# Bytes of columns and outputs that one launch moves. Two take fewer instructions an element, which
# with more bytes pay for the second launch.
MOVED_TOGETHER = 8 << 20
_TAPS = 9  # `GT_TAPS` in weight_gradient.cu

# With fewer output positions a product for each image is too narrow for cuBLAS's tiles.
_FEWEST_POSITIONS = 16


class GpuTiles:
    """Tiles of images, their columns, and their outputs as matrices.

    Columns are (n, groups, taps, positions): a product of each image is written where it belongs.
    `flat`, or with few positions, they are (groups, taps, n * positions), the factor of a single
    product whose outputs lie apart.
    """

    def __init__(
        self, device: Device, x_shape: tuple[int, ...], dtype: np.dtype, g: Geometry,
        flat: bool = False,
    ) -> None:
        self.n, self.channels = x_shape[:2]
        self.g = g
        self.taps, self.positions = self.channels * prod(g.kernel), prod(g.out)
        self.flat = flat or self.positions < _FEWEST_POSITIONS
        # of 1x1 windows, each on one pixel: the images themselves are the columns
        self.plain = (not self.flat and g.kernel == (1, 1) and g.stride == (1, 1)
                      and g.before == (0, 0) and g.out == g.size)
        image = max(1, self.taps * self.positions * np.dtype(dtype).itemsize)
        self.images = max(1, min(self.n, GPU_WORKSPACE_BYTES // image))
        self._columns = None if self.plain else device.workspace(
            self.taps * self.images * self.positions, dtype)

    def tiles(self) -> Iterator[slice]:
        """All images."""
        for first in range(0, self.n, self.images):
            yield slice(first, min(first + self.images, self.n))

    def columns(self, tile: slice) -> Array:
        """Uninitialized columns of a tile."""
        n, groups = tile.stop - tile.start, self.g.groups
        taps = self.taps // groups
        assert self._columns is not None
        return self._columns(0, (groups, taps, n * self.positions) if self.flat
                             else (n, groups, taps, self.positions))

    def _arguments(self, tile: slice) -> tuple[int, ...]:
        n, p = tile.stop - tile.start, self.positions
        steps = (p, n * p, 1) if self.flat else (self.taps * p, p, 1)
        return (n, self.channels, *self.g.size, *self.g.kernel, *self.g.out, *self.g.stride,
                *self.g.before, *self.g.dilation, *steps)

    def gather(self, x: Array, tile: slice) -> Array:
        """The tile's columns of x, which is contiguous."""
        if self.plain:
            return self._split(x[tile])
        columns = self.columns(tile)
        grid, block = flat_launch(columns.size)
        _IM2COL[x.dtype](grid, block, (x[tile], columns, *self._arguments(tile)))
        return columns

    def factors(self, x: Array, y: Array, tile: slice) -> tuple[Array, Array]:
        """The tile's columns of x and its `outputs` of y; of few bytes to move, by one launch."""
        part = y[tile]
        values = part.size + len(part) * self.taps * self.positions
        if (len(part) < 2 or self.positions == 1 or x.dtype != y.dtype
                or not part.flags.c_contiguous or values * part.itemsize > MOVED_TOGETHER):
            return self.gather(x, tile), self.outputs(y, tile)
        n, outputs = part.shape[:2]
        columns, moved = self.columns(tile), cupy().empty((outputs, n, self.positions), y.dtype)
        grid, block = flat_launch(max(columns.size, moved.size))
        _IM2COL_BESIDE[x.dtype](grid, block, (
            x[tile], columns, part, moved, outputs, *self._arguments(tile)))
        groups = self.g.groups
        return columns, moved.reshape(groups, outputs // groups, -1)

    def scatter(self, x: Array, tile: slice, accumulate: bool) -> None:
        """The tile's columns summed into x, which is contiguous."""
        part = x[tile]
        grid, block = flat_launch(part.size)
        _COL2IM[x.dtype](grid, block, (
            self.columns(tile), part, *self._arguments(tile), int(accumulate)))

    def _split(self, part: Array) -> Array:
        """Images as (n, groups, channels of a group, positions): a view of contiguous ones."""
        n, channels = part.shape[:2]
        return part.reshape(n, self.g.groups, channels // self.g.groups, self.positions)

    def place(self, y: Array, tile: slice) -> Array | None:
        """A view of the tile's part of contiguous y as the product's output; None: there is none.

        cuBLAS writes and reads it transposed where an image has one position.
        """
        if not self.flat:
            return self._split(y[tile])
        return self._split(y[tile])[..., 0].transpose(1, 2, 0) if self.positions == 1 else None

    def outputs(self, y: Array, tile: slice) -> Array:
        """The tile's part of y as a factor: a view, or a copy with one image behind another."""
        place = self.place(y, tile)
        if place is not None:
            return place
        part = y[tile].transpose(1, 0, 2, 3)
        groups = self.g.groups
        return cupy().ascontiguousarray(part).reshape(groups, part.shape[0] // groups, -1)

    def store(self, product: Array, y: Array, tile: slice, accumulate: bool) -> None:
        """Write the product of flat columns to the tile's part of contiguous y."""
        split = self._split(y[tile])
        groups, channels = split.shape[1:3]
        moved = product.reshape(groups, channels, len(split), self.positions).transpose(2, 0, 1, 3)
        if accumulate:
            split += moved
        else:
            split[...] = moved


# With more weights in a group, or more outputs in a channel where channels do not fill a GPU,
# products of matrices are faster than `direct_weight_gradient`.
MOST_WEIGHTS = 512
MOST_VALUES = 2**17


def sums_directly(x: Array, g: Array, geo: Geometry) -> bool:
    """Whether a weight's gradient on a GPU is better summed up without columns."""
    outputs = g.shape[1]
    weights = outputs // geo.groups * (x.shape[1] // geo.groups) * prod(geo.kernel)
    values = len(g) * prod(geo.out)
    return (weights <= MOST_WEIGHTS and x.dtype == g.dtype and max(x.size, g.size) < 2**30
            and (values <= MOST_VALUES or outputs >= MULTIPROCESSORS))


def direct_weight_gradient(g: Array, x: Array, geo: Geometry, out: Array, accumulate: bool) -> None:
    """out = the gradient of a weight, or is added to; x and out are contiguous.

    `out` is float32, or float64 where x is.
    """
    outputs, taps = g.shape[1], x.shape[1] // geo.groups * prod(geo.kernel)
    _WEIGHT_GRADIENT[x.dtype]((outputs, -(-taps // _TAPS)), (BLOCK,), (
        cupy().ascontiguousarray(g), x, out, *x.shape, *geo.kernel, *geo.out, *geo.stride,
        *geo.before, *geo.dilation, outputs, geo.groups, int(accumulate)))


# -- grouped convolution with few channels to a group (depthwise), plane by plane, on the CPU ------
#
# As matrix products these would be as thin as a group. Here a tile of planes is copied into a
# padded buffer, and every tap is one multiply and one add of whole planes. With stride 1 a tap is a
# shift of the padded buffer as one flat run, so the innermost loops are as long as a plane; what
# the shift carries from one row's end into the next lies beyond the output's width and is never
# read.

MOST_PRODUCTS = 4  # input times output channels of a group: with more, matrix products are faster


def use_planes(weight_shape: tuple[int, ...], groups: int) -> bool:
    """Whether a convolution with a weight of this shape is better done by planes."""
    outputs, channels = weight_shape[0] // groups, weight_shape[1]
    return groups > 1 and channels * outputs <= MOST_PRODUCTS


def kernels_of(weight: np.ndarray, groups: int) -> np.ndarray:
    """(groups, outputs of a group, channels of a group, height, width)."""
    split = weight.reshape(groups, weight.shape[0] // groups, *weight.shape[1:])
    return split.astype(computed_in(weight.dtype), copy=False)


class _Planes:
    """Tiles of groups of one image each, and the buffers that all of them use."""

    def __init__(self, n: int, channels: int, outputs: int, g: Geometry, dtype: np.dtype) -> None:
        self.n, self.g = n, g
        tall, wide = g.reach()
        self.height = (g.out[0] - 1) * g.stride[0] + tall
        self.width = (g.out[1] - 1) * g.stride[1] + wide
        self.flat = g.stride == (1, 1)
        self.row = self.width if self.flat else g.out[1]  # of the buffers of outputs
        vertical = overlap(-g.before[0], self.height, g.size[0])
        horizontal = overlap(-g.before[1], self.width, g.size[1])
        self.inside = (..., vertical[0], horizontal[0])
        self.source = (..., vertical[1], horizontal[1])
        self.channels, self.outputs = channels // g.groups, outputs // g.groups
        plane = self.height * self.width
        largest = plane * max(self.channels, self.outputs)
        count = self._count = max(1, min(g.groups, settings.tile_elements // max(1, largest)))
        self._padded = host().workspace(count * self.channels * plane, dtype)
        self._products = host().workspace(count * self.outputs * g.out[0] * self.row, dtype, 2)

    def tiles(self) -> Iterator[tuple[int, slice]]:
        """Keys (image, groups)."""
        for i in range(self.n):
            for first in range(0, self.g.groups, self._count):
                yield i, slice(first, min(first + self._count, self.g.groups))

    def split(self, a: np.ndarray) -> np.ndarray:
        """A view (N, groups, channels of a group, height, width) of images."""
        return a.reshape(a.shape[0], self.g.groups, a.shape[1] // self.g.groups, *a.shape[2:])

    def padded(self, key: tuple[int, slice]) -> np.ndarray:
        """The buffer of padded planes (groups, channels, height, width)."""
        shape = (key[1].stop - key[1].start, self.channels, self.height, self.width)
        return self._padded(0, shape)

    def products(self, which: int, key: tuple[int, slice]) -> np.ndarray:
        """Buffer 0 or 1 for outputs (groups, outputs, output height, row)."""
        shape = (key[1].stop - key[1].start, self.outputs, self.g.out[0], self.row)
        return self._products(which, shape)

    def runs(self, a: np.ndarray) -> np.ndarray:
        """What of a buffer of outputs the taps fill: flat runs, or the planes as they are."""
        if not self.flat:
            return a
        reached = (self.g.out[0] - 1) * self.width + self.g.out[1]
        return a.reshape(*a.shape[:2], -1)[..., :reached]

    def taps(self, padded: np.ndarray) -> Iterator[tuple[int, int, np.ndarray]]:
        """Each tap's place in the kernel, and what it reads of the padded planes."""
        g = self.g
        flat = padded.reshape(*padded.shape[:2], -1)
        reached = (g.out[0] - 1) * self.width + g.out[1]
        for i in range(g.kernel[0]):
            top = i * g.dilation[0]
            for j in range(g.kernel[1]):
                left = j * g.dilation[1]
                if self.flat:
                    start = top * self.width + left
                    yield i, j, flat[..., start:start + reached]
                else:
                    yield i, j, padded[
                        ..., top:top + (g.out[0] - 1) * g.stride[0] + 1:g.stride[0],
                        left:left + (g.out[1] - 1) * g.stride[1] + 1:g.stride[1]]

    def factor(self, weights: np.ndarray) -> np.ndarray:
        """One number per plane, shaped to multiply what a tap reads."""
        return weights.reshape(*weights.shape, *(1,) * (1 if self.flat else 2))


def planes_correlate(
    x: np.ndarray, kernels: np.ndarray, bias: Array | None, g: Geometry, out: np.ndarray,
    beta: float,
) -> np.ndarray:
    """out = x convolved with `kernels_of` a weight + bias + beta * out."""
    space = _Planes(x.shape[0], x.shape[1], out.shape[1], g, kernels.dtype)
    planes, results = space.split(x), space.split(out)
    shift = None if bias is None else bias.astype(kernels.dtype).reshape(g.groups, -1, 1, 1)
    space.padded((0, slice(0, space._count)))[...] = 0  # the border stays so from tile to tile
    with np.errstate():
        broadcast_directly(g.out[0] * space.row if space.flat else g.out[1])
        for key in space.tiles():
            padded, total = space.padded(key), space.products(0, key)
            padded[space.inside] = planes[key][space.source]
            sums, terms = space.runs(total), space.runs(space.products(1, key))
            weights = kernels[key[1]]
            first = True
            for i, j, part in space.taps(padded):
                for c in range(space.channels):
                    factor = space.factor(weights[:, :, c, i, j])
                    np.multiply(part[:, c:c + 1], factor, out=sums if first else terms)
                    if not first:
                        np.add(sums, terms, out=sums)
                    first = False
            result = total[..., :g.out[1]]
            if shift is not None:
                result += shift[key[1]]
            if beta:
                results[key] += result
            else:
                results[key] = result
    return out


def planes_input_gradient(
    g: np.ndarray, kernels: np.ndarray, bias: Array | None, geo: Geometry, out: np.ndarray,
    beta: float,
) -> np.ndarray:
    """out = the gradient of the convolution's input + bias + beta * out."""
    if geo.stride == (1, 1):
        flipped = kernels[..., ::-1, ::-1].swapaxes(1, 2)
        return planes_correlate(g, flipped, bias, geo.adjoint(), out, beta)
    space = _Planes(g.shape[0], out.shape[1], g.shape[1], geo, kernels.dtype)
    grads, results = space.split(g), space.split(out)
    shift = None if bias is None else bias.reshape(geo.groups, -1, 1, 1)
    for key in space.tiles():
        padded, product = space.padded(key), space.products(0, key)
        term = space.products(1, key)
        padded[...] = 0
        product[...] = grads[key]
        for i, j, part in space.taps(padded):
            for c in range(space.channels):
                np.multiply(product, space.factor(kernels[key[1], :, c, i, j]), out=term)
                for q in range(space.outputs):
                    part[:, c] += term[:, q]
        target = results[key]
        if not beta:
            target[...] = 0
        target[space.source] += padded[space.inside]
        if shift is not None:
            target += shift[key[1]]
    return out


def planes_weight_gradient(
    g: np.ndarray, x: np.ndarray, geo: Geometry, out: np.ndarray, beta: float
) -> np.ndarray:
    """out = the gradient of the convolution's weight + beta * out."""
    space = _Planes(x.shape[0], x.shape[1], g.shape[1], geo, computed_in(g.dtype))
    planes, grads = space.split(x), space.split(g)
    shape = (geo.groups, space.outputs, space.channels, *geo.kernel)
    total = np.zeros(shape, computed_in(g.dtype))
    whole = (0, slice(0, space._count))
    space.padded(whole)[...] = 0
    space.products(0, whole)[...] = 0  # beyond the output's width nothing may be added
    for key in space.tiles():
        padded, product = space.padded(key), space.products(0, key)
        padded[space.inside] = planes[key][space.source]
        product[..., :geo.out[1]] = grads[key]
        left = space.runs(product)
        for i, j, part in space.taps(padded):
            total[key[1], :, :, i, j] += (
                np.vecdot(left[:, :, None], part[:, None]) if space.flat
                else np.einsum("goij,gaij->goa", left, part))
    result = total.reshape(prod(shape[:2]), *shape[2:])
    if beta:
        out += result
    else:
        out[...] = result
    return out

"""The CPU and GPU paths of batch norm: see batch_norm.py for what they compute.

On the CPU the channels come first and are walked in tiles, each through the same few work buffers.
On the GPU `GpuChannels` holds what the kernels of bn_act.cu are launched with. In-place activated
batch norm uses both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, overload

import numpy as np

from gtensor.backend import host
from gtensor.backend.cuda import cupy
from gtensor.backend.kernels import ACTIVATIONS as CODES
from gtensor.backend.kernels import BLOCK, NULL, Raw, raw, shared_bytes
from gtensor.engine.handle.namespaces import raw as raw_spaces
from gtensor.ops.activations.activation import ACTIVATIONS
from gtensor.ops.define import rows as row_kernels
from gtensor.ops.define.cpu_tiles import computed_in
from gtensor.ops.define.path_builders import settled, tiled, tiles
from gtensor.ops.norms.moments import add_products, add_sums, moments, over_lead
from gtensor.settings import settings

if TYPE_CHECKING:
    from gtensor.backend.typing import Array, DTypeLike
    from gtensor.ops.define.cpu_tiles import Tile

Gather: TypeAlias = "Callable[[Array], Array]"  # of `replicas`


class Channels:
    """Arrays of x's shape with the channels first, and per-channel arrays beside them, by tiles.

    Tiles have `limit` elements (by default those of the settings), and so have the buffers. Results
    stay in buffers until they are done: NumPy takes twice as long on strided arrays.
    """

    def __init__(self, x: np.ndarray, buffers: int, limit: int | None = None) -> None:
        self.shape = (x.shape[1], x.shape[0], *x.shape[2:])
        self.work = computed_in(x.dtype)
        self.limit = max(1, settings.tile_elements if limit is None else limit)
        self.scratch = host().workspace(min(prod(self.shape), self.limit), self.work, buffers)

    def moved(self, a: np.ndarray) -> np.ndarray:
        """A view with the channels first."""
        return a.swapaxes(0, 1)

    @overload
    def per_channel(self, a: Array) -> Array: ...

    @overload
    def per_channel(self, a: Array | None) -> Array | None: ...

    def per_channel(self, a: Array | None) -> Array | None:
        """A per-channel array, in the compute dtype, broadcast to the moved shape."""
        return None if a is None else over_lead(a.astype(self.work, copy=False), self.shape)

    def tiles(self) -> Iterator[tuple[Tile, tuple[int, ...]]]:
        """Keys of the tiles, and the shape that each selects."""
        shape = np.broadcast_to(np.empty(()), self.shape)
        for tile in tiles(self.shape, self.limit):
            key = (*tile, ...)  # selects arrays, never scalars: a tile can be written
            yield key, shape[key].shape

    def widened(self, part: np.ndarray, which: int) -> np.ndarray:
        """A tile in the compute dtype: itself, or a copy in scratch buffer `which`."""
        return part if part.dtype == self.work else self._copied(part, which)

    def dense(self, part: np.ndarray, which: int) -> np.ndarray:
        """A tile that is contiguous, too."""
        simple = part.dtype == self.work and part.flags.c_contiguous
        return part if simple else self._copied(part, which)

    def _copied(self, part: np.ndarray, which: int) -> np.ndarray:
        copy = self.scratch(which, part.shape)
        copy[...] = part
        return copy


# -- the walks, of this op and of the one in place -------------------------------------------------

Term: TypeAlias = "tuple[Tile, Array, Array]"  # of a tile: its key, values a, the gradient dy
# of x's shape, channels first: the gradient of the output and x; per channel: mean, 1 / deviation,
# weight, bias
Views: TypeAlias = "tuple[Array, Array, Array, Array, Array | None, Array | None]"


def transform(
    c: Channels, x: Array, out: Array, center: Array, slope: Array, shift: Array | None,
    activate: Callable[[np.ndarray], np.ndarray],
) -> None:
    """out = activate((x - center) * slope + shift), in scratch buffer 0. `out` may be x."""
    source, result = c.moved(x), c.moved(out)
    center, slope, shift = c.per_channel(center), c.per_channel(slope), c.per_channel(shift)
    # Over x an overflow must not raise half-way: x would be lost.
    with np.errstate(all="ignore") if out is x else nullcontext():
        for key, shape in c.tiles():
            y = np.subtract(source[key], center[key], out=c.scratch(0, shape))
            y *= slope[key]
            if shift is not None:
                y += shift[key]
            result[key] = activate(y)


def normalize_cpu(
    x: Array, out: Array, weight: Array | None, bias: Array | None, mean: Array | None,
    var: Array | None, eps: float, activation: str, parameter: float,
    activate: Callable[[np.ndarray], np.ndarray], parts: int = 1
) -> tuple[Array, Array]:
    """out = activate((x - mean) / sqrt(var + eps) * weight + bias); mean and var, x's if not given.

    `out` may be x. Tiles are a part of those of the settings.
    """
    given = mean is not None and var is not None
    if mean is None or var is None:
        mean, var = np.empty((2, x.shape[1]), computed_in(x.dtype))
    if row_kernels.batch_norm(
            x, weight, bias, out, mean, var, given, eps, activation, parameter):
        return mean, var
    if not given:
        mean, var = statistics_cpu(x)
    c = Channels(x, 1, settings.tile_elements // parts)
    transform(c, x, out, mean, scale_of(weight, var, eps, c.work), bias, activate)
    return mean, var


def summed(c: Channels, terms: Iterable[Term], totals: np.ndarray) -> Iterator[Term]:
    """The terms, once the sums of dy and of a * dy are added to totals, (2, C).

    What is not contiguous is copied to scratch buffers 0 (a) and 1 (dy).
    """
    for key, a, dy in terms:
        a, dy = c.dense(a, 0), c.dense(dy, 1)
        add_sums(totals[0], key, dy)
        add_products(totals[1], key, a, dy)
        yield key, a, dy


def write_dx(
    c: Channels, out: Array, terms: Iterable[Term], scale: Array, tilt: Array | None = None,
    low: Array | None = None,
) -> None:
    """out = dy * scale - (a * tilt + low), without the bracket where tilt is None.

    In scratch buffers 0 and 1, where a and dy of a term may be.
    """
    result = c.moved(out)
    scale, tilt, low = c.per_channel(scale), c.per_channel(tilt), c.per_channel(low)
    for key, a, dy in terms:
        dx = np.multiply(dy, scale[key], out=c.scratch(1, dy.shape))
        if tilt is not None and low is not None:
            a = np.multiply(a, tilt[key], out=c.scratch(0, a.shape))
            a += low[key]
            dx -= a
        result[key] = dx


def normalized(
    c: Channels, key: Tile, shape: tuple[int, ...], x: Array, mean: Array, rstd: Array
) -> np.ndarray:
    """(x - mean) * rstd of a tile, in scratch buffer 0."""
    xhat = c.scratch(0, shape)
    np.subtract(x[key], mean[key], out=xhat)
    xhat *= rstd[key]
    return xhat


def affine(
    c: Channels, key: Tile, xhat: np.ndarray, weight: Array | None, bias: Array | None
) -> np.ndarray:
    """xhat * weight + bias of a tile, in scratch buffer 1."""
    y = c.scratch(1, xhat.shape)
    if weight is None:
        y[...] = xhat
    else:
        np.multiply(xhat, weight[key], out=y)
    if bias is not None:
        y += bias[key]
    return y


def inverse_deviation(var: np.ndarray, eps: float, work: DTypeLike) -> np.ndarray:
    """1 / sqrt(var + eps), computed in float64."""
    return (1 / np.sqrt(var.astype(np.float64) + eps)).astype(work)


def scale_of(weight: Array | None, var: np.ndarray, eps: float, work: np.dtype) -> np.ndarray:
    """weight / deviation per channel."""
    rstd = inverse_deviation(var, eps, work)
    return rstd if weight is None else rstd * weight.astype(work)


def statistics_cpu(x: np.ndarray, out: Array | None = None) -> np.ndarray:
    """Mean and biased variance per channel, (2, C)."""
    work = computed_in(x.dtype)
    made = np.empty((2, x.shape[1]), work)
    exact = out is not None and out.dtype != work  # replicas add up float64
    if not exact and row_kernels.batch_norm(
            x, None, None, None, made[0], made[1], False, 0.0, "identity", 0.0):
        return settled(made, out)
    result = np.stack(moments(x.swapaxes(0, 1), 1, work))
    if out is None:
        return result.astype(work)
    out[...] = result
    return out


class Moving(NamedTuple):
    """Running averages that an op moves towards the statistics that it computes, in place."""

    mean: Array | None
    var: Array | None
    batches: Array | None  # int64 (), increased by one
    momentum: float
    unbiased: float  # what makes a variance the unbiased one


move = tiled(
    "running_statistics", lambda ns, a, b, *, momentum, scale: a + momentum * (scale * b - a))


def move_cpu(moving: Moving | None, mean: Array, var: Array) -> None:
    """Move the averages towards these statistics."""
    if moving is None:
        return
    for average, now, scale in ((moving.mean, mean, 1.0), (moving.var, var, moving.unbiased)):
        if average is not None:
            move(average, now, momentum=moving.momentum, scale=scale, out=average)
    if moving.batches is not None:
        moving.batches[...] += 1


def forward_cpu(
    x: Array, weight: Array | None, bias: Array | None, mean: Array | None, var: Array | None, *,
    training: bool, eps: float, activation: str, parameter: float, gather: Gather | None = None,
    moving: Moving | None = None, out: Array | None = None,
) -> tuple[Array, Array, Array]:
    """act((x - mean) / sqrt(var + eps) * weight + bias), mean, var."""
    if out is None:
        out = host().empty(x.shape, x.dtype, "batch_norm")
    given = mean is not None
    act, ns = ACTIVATIONS[activation][0], raw_spaces["cpu"]
    mean, var = normalize_cpu(x, out, weight, bias, mean, var, eps, activation, parameter,
                              lambda y: act(ns, y, parameter, out=y))
    if not given:
        move_cpu(moving, mean, var)
    return out, mean, var


def _terms(c: Channels, arrays: Views, activation: str, parameter: float) -> Iterator[Term]:
    """Terms with a = xhat; dy is the gradient before the activation."""
    g, x, mean, rstd, weight, bias = arrays
    act_grad, ns = ACTIVATIONS[activation][1], raw_spaces["cpu"]
    for key, shape in c.tiles():
        xhat = normalized(c, key, shape, x, mean, rstd)
        dy = g[key]
        if activation != "identity" or dy.dtype != c.work:
            dy = c.scratch(2, shape)
            dy[...] = g[key]
        if activation != "identity":
            act_grad(ns, dy, affine(c, key, xhat, weight, bias), parameter, out=dy)
        yield key, xhat, dy


def _views(
    c: Channels, g: Array, x: Array, weight: Array | None, bias: Array | None, mean: Array,
    var: Array, eps: float,
) -> Views:
    rstd = inverse_deviation(var, eps, c.work)
    return (c.moved(g), c.moved(x), c.per_channel(mean), c.per_channel(rstd),
            c.per_channel(weight), c.per_channel(bias))


def _compiled(
    g: Array, x: Array, weight: Array | None, bias: Array | None, mean: Array, var: Array,
    out: Array | None, *, training: bool, eps: float, activation: str, parameter: float,
    known: Array | None = None, count: float | None = None
) -> Array | None:
    """dx in `out`, where it is wanted, by a kernel; the sums (C, 2), None where none serves."""
    if not row_kernels.takes(x, activation):
        return None
    channels = x.shape[1]
    sums = np.zeros((channels, 2)) if known is None else known.T.astype(np.float64, order="C")
    found = row_kernels.batch_norm_grads(
        g, x, out, sums, mean, inverse_deviation(var, eps, computed_in(x.dtype)),
        scale_of(weight, var, eps, computed_in(x.dtype)), weight, bias, activation=activation,
        parameter=parameter, training=training, known=known is not None,
        count=count or x.size // channels)
    return sums if found else None


def sums_cpu(
    g: Array, x: Array, weight: Array | None, bias: Array | None, mean: Array, var: Array, *,
    training: bool, eps: float, activation: str, parameter: float, out: Array | None = None,
) -> Array:
    """Per channel the sums of dy and of dy * xhat, (2, C): the gradients of bias and weight."""
    sums = _compiled(g, x, weight, bias, mean, var, None, training=training, eps=eps,
                     activation=activation, parameter=parameter)
    if sums is not None:
        return settled(sums.T.astype(x.dtype), out)
    c = Channels(x, 3, settings.tile_elements // 2)  # so that all of them are a tile of 64K
    totals = np.zeros((2, x.shape[1]), np.float64)
    arrays = _views(c, g, x, weight, bias, mean, var, eps)
    for _ in summed(c, _terms(c, arrays, activation, parameter), totals):
        pass
    if out is None:
        return totals.astype(c.work)
    out[...] = totals
    return out


def dx_cpu(
    g: Array, x: Array, weight: Array | None, bias: Array | None, mean: Array, var: Array,
    sums: Array, *, training: bool, eps: float, activation: str, parameter: float,
    count: int | None = None, out: Array | None = None,
) -> Array:
    """The gradient of x, from `sums` in training."""
    if out is None:
        out = host().empty(x.shape, x.dtype, "batch_norm_dx")
    if _compiled(g, x, weight, bias, mean, var, out, training=training, eps=eps,
                 activation=activation, parameter=parameter, known=sums, count=count) is not None:
        return out
    c = Channels(x, 3, settings.tile_elements // 2)  # so that all of them are a tile of 64K
    terms = _terms(c, _views(c, g, x, weight, bias, mean, var, eps), activation, parameter)
    scale = scale_of(weight, var, eps, c.work)
    low = tilt = None
    if training:
        low, tilt = sums.astype(c.work, copy=False) * (scale / (count or max(1, prod(c.shape[1:]))))
    write_dx(c, out, terms, scale, tilt, low)
    return out


# -- the GPU paths ---------------------------------------------------------------------------------

CHIP_BLOCK = 512
"""Threads of a block that holds a channel on chip: `GT_CHIP_BLOCK` in bn_act.cuh."""

_WARP = 32
_PACK = 16  # bytes that a thread loads at once
_LINE = 128  # bytes of a row that a block takes where channels are last: a line of the cache
_STEPS = 8  # packs for a thread, at least, before a channel is divided among blocks
_BLOCKS_FIRST = 4096  # enough for several on each multiprocessor, several times over
_BLOCKS_LAST = 1024  # fewer: the last block of a tile reads what all of them found


Kernels: TypeAlias = tuple[Raw, Raw]


def pair(name: str, file: str = "bn_act.cu") -> Kernels:
    """A kernel for channels first, and the one for channels last."""
    return raw(file, f"bn_act_{name}"), raw(file, f"bn_act_{name}_last")


_STATISTICS = pair("statistics")
_FORWARD = pair("forward")
_FORWARD_ON_CHIP = raw("bn_act.cu", "bn_act_forward_on_chip")
_REDUCE = pair("reduce_from_x", "bn_act_from_x.cu")
_BACKWARD = pair("backward_from_x", "bn_act_from_x.cu")


def _power_of_two(number: int) -> int:
    """The smallest that is not below a positive number."""
    return 1 << (number - 1).bit_length()


class GpuChannels:
    """The memory layout of the channels of an (N, C, ...) array, and its kernels' launches.

    First: C-contiguous. Last: the memory of a C-contiguous (N, ..., C). `dense` copies other
    layouts to C order.
    """

    def __init__(self, x: Array) -> None:
        positions = prod(x.shape[2:])
        self.shape, self.dtype = x.shape, x.dtype
        self.count = x.shape[0] * positions  # elements of a channel
        self.last = positions <= 1 or (
            not x.flags.c_contiguous and bool(cupy().moveaxis(x, 1, -1).flags.c_contiguous))
        width = _PACK // x.dtype.itemsize
        if self.last:
            self._cut_rows(x.shape[1], width)
        else:
            self._cut_channels(x.shape[0], x.shape[1], positions, width)

    def _cut_rows(self, channels: int, width: int) -> None:
        tile = min(_power_of_two(max(1, channels)), _LINE // _PACK * width)
        across = tile // width if channels and channels % width == 0 else tile
        threads = max(_WARP, tile, min(BLOCK, across * _power_of_two(max(1, self.count))))
        columns = -(-channels // tile)
        steps = self.count // (threads // across)
        self._divide(columns, steps, _BLOCKS_LAST)
        self.block, self.sizes = (threads,), (self.count, channels, tile)

    def _cut_channels(self, images: int, channels: int, positions: int, width: int) -> None:
        packs = self.count // (width if positions % width == 0 else 1)
        whole = _power_of_two(max(_WARP, packs))
        threads = min(BLOCK, whole)
        self._divide(channels, packs // threads, _BLOCKS_FIRST)
        self.block, self.sizes = (threads,), (images, channels, positions)
        self.chip_block = (min(CHIP_BLOCK, whole),)

    def _divide(self, columns: int, steps: int, blocks: int) -> None:
        parts = max(1, min(steps // _STEPS, -(-blocks // max(1, columns))))
        self.grid = (columns, parts)

    def on_chip(self, arrays: int) -> int:
        """Bytes of shared memory for so many arrays' part of a channel; 0 if they do not fit."""
        nbytes = arrays * self.count * self.dtype.itemsize
        return 0 if self.last or nbytes > shared_bytes() else nbytes

    def dense(self, a: Array) -> Array:
        """An array of this shape as kernels read it: contiguous, in this order of axes."""
        xp = cupy()
        return xp.ascontiguousarray(xp.moveaxis(a, 1, -1) if self.last else a, dtype=self.dtype)

    def target(self, out: Array | None) -> tuple[Array, bool]:
        """The array for kernels to write, in this order of axes, and whether it is in `out`."""
        xp = cupy()
        if out is not None and out.dtype == self.dtype:
            view = xp.moveaxis(out, 1, -1) if self.last else out
            if view.flags.c_contiguous:
                return view, True
        n, c, *rest = self.shape
        return xp.empty((n, *rest, c) if self.last else self.shape, self.dtype), False

    def result(self, target: Array, out: Array | None, direct: bool) -> Array:
        """A path's result, from that of `target`."""
        if direct and out is not None:
            return out
        return settled(cupy().moveaxis(target, -1, 1) if self.last else target, out)

    def launch(self, kernels: Kernels, *args: object) -> None:
        """Launch the kernel for this layout."""
        kernels[self.last][self.dtype](self.grid, self.block, args)

    def launch_on_chip(self, kernel: Raw, shared: int, *args: object) -> None:
        """Launch a kernel that gives each channel a block with so many bytes of shared memory."""
        kernel[self.dtype](self.grid[:1], self.chip_block, args, shared_mem=shared)

    def workspace(self, numbers: int) -> tuple[Array | int, Array | int]:
        """Room for so many numbers of each channel and part, and a ticket, 0, for each column."""
        xp, (columns, parts) = cupy(), self.grid
        if parts == 1:
            return NULL, NULL
        work = computed_in(self.dtype)
        return xp.empty((parts, self.shape[1], numbers), work), xp.zeros(columns, "uint32")

    def partials(self, numbers: int) -> Array:
        """Room for so many numbers of each channel and part, which the next launch collects."""
        return cupy().empty((self.grid[1], self.shape[1], numbers), computed_in(self.dtype))

    def per_channel(self, *arrays: Array | None) -> list[Array | int]:
        """Arrays over channels, or None, as kernels read them."""
        work = computed_in(self.dtype)
        return [NULL if a is None else cupy().ascontiguousarray(a, dtype=work) for a in arrays]


def activated(eps: float, activation: str, parameter: float) -> tuple[float, int, float]:
    """Three arguments of most kernels."""
    return float(eps), CODES[activation], float(parameter)


def statistics_gpu(x: Array, out: Array | None = None) -> Array:
    """Mean and biased variance per channel, (2, C)."""
    c = GpuChannels(x)
    result = cupy().empty((2, x.shape[1]), computed_in(x.dtype))
    c.launch(_STATISTICS, c.dense(x), result[0], result[1], *c.workspace(4), *c.sizes)
    return settled(result, out)


def normalize(
    x: Array, weight: Array | None, bias: Array | None, mean: Array | None, var: Array | None,
    inside: bool, eps: float, activation: str, parameter: float, out: Array | None,
    absolute: bool = False, moving: Moving | None = None,
) -> tuple[Array, Array, Array]:
    """z, mean, var; `inside`: z is kept inside the open range of the activation."""
    c = GpuChannels(x)
    source, (z, direct) = c.dense(x), c.target(out)
    options = (*activated(eps, activation, parameter), int(absolute), int(inside))
    affine = c.per_channel(weight, bias)
    if mean is not None and var is not None:
        c.launch(_FORWARD, source, *c.per_channel(mean, var), *affine, z, *c.sizes, *options,
                 NULL, 0, *_STILL)
        return c.result(z, out, direct), mean, var
    mean, var = cupy().empty((2, x.shape[1]), computed_in(x.dtype))
    averages, moved = _STILL, []
    if moving is not None:
        moved = c.per_channel(moving.mean, moving.var)
        averages = (*moved, NULL if moving.batches is None else moving.batches,
                    float(moving.momentum), float(moving.unbiased))
    shared = c.on_chip(1)
    if shared:
        c.launch_on_chip(_FORWARD_ON_CHIP, shared, source, mean, var, *affine, z, *c.sizes,
                         *options, *averages)
    else:
        partials = c.partials(4)
        c.launch(_STATISTICS, source, mean, var, partials, NULL, *c.sizes)
        c.launch(_FORWARD, source, mean, var, *affine, z, *c.sizes, *options, partials,
                 len(partials), *averages)
    for average, array in zip((moving or (None, None))[:2], moved, strict=False):
        if average is not None and array is not average:  # in another dtype or layout
            average[...] = array
    return c.result(z, out, direct), mean, var


_STILL: tuple[Any, ...] = (NULL, NULL, NULL, 0.0, 0.0)  # no averages are moved


def forward_gpu(
    x: Array, weight: Array | None, bias: Array | None, mean: Array | None, var: Array | None, *,
    training: bool, eps: float, activation: str, parameter: float, gather: Gather | None = None,
    moving: Moving | None = None, out: Array | None = None,
) -> tuple[Array, Array, Array]:
    """As forward_cpu."""
    return normalize(
        x, weight, bias, mean, var, False, eps, activation, parameter, out, moving=moving)


def sums_gpu(
    g: Array, x: Array, weight: Array | None, bias: Array | None, mean: Array, var: Array, *,
    training: bool, eps: float, activation: str, parameter: float, out: Array | None = None,
) -> Array:
    """As sums_cpu."""
    c = GpuChannels(x)
    sums = cupy().empty((2, x.shape[1]), computed_in(x.dtype))
    c.launch(_REDUCE, c.dense(g), c.dense(x), *c.per_channel(mean, var, weight, bias), *sums,
             *c.workspace(2), *c.sizes, *activated(eps, activation, parameter))
    return settled(sums, out)


def dx_gpu(
    g: Array, x: Array, weight: Array | None, bias: Array | None, mean: Array, var: Array,
    sums: Array, *, training: bool, eps: float, activation: str, parameter: float,
    count: float | None = None, out: Array | None = None,
) -> Array:
    """As dx_cpu."""
    c = GpuChannels(x)
    dx, direct = c.target(out)
    given = sums if training else (None, None)
    c.launch(
        _BACKWARD, c.dense(g), c.dense(x), *c.per_channel(mean, var, weight, bias, *given), dx,
        *c.sizes, *activated(eps, activation, parameter),
        float(c.count if count is None else count), NULL, 0)
    return c.result(dx, out, direct)


def grads_cpu(
    g: Array, x: Array, weight: Array | None, bias: Array | None, mean: Array, var: Array, *,
    training: bool, eps: float, activation: str, parameter: float, out: Array | None = None,
) -> tuple[Array, Array, Array]:
    """The gradients of x, bias and weight."""
    options: Any = {
        "training": training, "eps": eps, "activation": activation, "parameter": parameter}
    if out is None:
        out = host().empty(x.shape, x.dtype, "batch_norm_dx")
    found = _compiled(g, x, weight, bias, mean, var, out, **options)
    if found is not None:
        return out, *found.T.astype(x.dtype)
    sums = sums_cpu(g, x, weight, bias, mean, var, **options)
    return dx_cpu(g, x, weight, bias, mean, var, sums, out=out, **options), sums[0], sums[1]


def grads_gpu(
    g: Array, x: Array, weight: Array | None, bias: Array | None, mean: Array, var: Array, *,
    training: bool, eps: float, activation: str, parameter: float, out: Array | None = None,
) -> tuple[Array, Array, Array]:
    """As grads_cpu."""
    options = activated(eps, activation, parameter)
    return gradients(_REDUCE, _BACKWARD, g, x, (mean, var, weight, bias), training, options, out)


def gradients(
    reduce: Kernels, backward: Kernels, g: Array, x: Array, known: Sequence[Array | None],
    training: bool, options: Sequence[float], out: Array | None,
) -> tuple[Array, Array, Array]:
    """The gradients of x, bias and weight by two kernels; x is what they read."""
    c, xp = GpuChannels(x), cupy()
    # apart, so that each can become a leaf's gradient
    sums = [xp.empty(x.shape[1], computed_in(x.dtype)) for _ in range(2)]
    arrays = c.dense(g), c.dense(x), *c.per_channel(*known)
    dx, direct = c.target(out)
    partials = c.partials(2)
    c.launch(reduce, *arrays, *sums, partials, NULL, *c.sizes, *options)
    c.launch(backward, *arrays, *sums, dx, *c.sizes, *options,
             float(c.count if training else 0), partials, len(partials))
    return c.result(dx, out, direct), *sums

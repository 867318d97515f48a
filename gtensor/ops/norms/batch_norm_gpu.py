"""The GPU paths of batch norm: see batch_norm.py for what they compute.

`Channels`, what the kernels of bn_act.cu are launched with, serves inplace_abn_gpu.py, too.
"""

from __future__ import annotations

from math import prod
from typing import Any

from gtensor.backend.cuda import cupy
from gtensor.backend.kernels import ACTIVATIONS as CODES
from gtensor.backend.kernels import BLOCK, NULL, Raw, raw, shared_bytes
from gtensor.ops.build.cpu_tiles import computed_in
from gtensor.ops.build.path_builders import settled

CHIP_BLOCK = 512
"""Threads of a block that holds a channel on chip: `GT_CHIP_BLOCK` in bn_act_walk.cuh."""

_WARP = 32
_PACK = 16  # bytes that a thread loads at once
_LINE = 128  # bytes of a row that a block takes where channels are last: a line of the cache
_STEPS = 8  # packs for a thread, at least, before a channel is divided among blocks
_BLOCKS_FIRST = 4096  # enough for several on each multiprocessor, several times over
_BLOCKS_LAST = 1024  # fewer: the last block of a tile reads what all of them found


def pair(name: str, file: str = "bn_act.cu") -> tuple[Raw, Raw]:
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


class Channels:
    """The memory layout of the channels of an (N, C, ...) array, and its kernels' launches.

    First: C-contiguous. Last: the memory of a C-contiguous (N, ..., C). `dense` copies other
    layouts to C order.
    """

    def __init__(self, x: Any) -> None:
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

    def dense(self, a: Any) -> Any:
        """An array of this shape as kernels read it: contiguous, in this order of axes."""
        xp = cupy()
        return xp.ascontiguousarray(xp.moveaxis(a, 1, -1) if self.last else a, dtype=self.dtype)

    def target(self, out: Any) -> tuple[Any, bool]:
        """The array for kernels to write, in this order of axes, and whether it is in `out`."""
        xp = cupy()
        if out is not None and out.dtype == self.dtype:
            view = xp.moveaxis(out, 1, -1) if self.last else out
            if view.flags.c_contiguous:
                return view, True
        n, c, *rest = self.shape
        return xp.empty((n, *rest, c) if self.last else self.shape, self.dtype), False

    def result(self, target: Any, out: Any, direct: bool) -> Any:
        """A path's result, from that of `target`."""
        if direct:
            return out
        return settled(cupy().moveaxis(target, -1, 1) if self.last else target, out)

    def launch(self, kernels: tuple[Raw, Raw], *args: Any) -> None:
        """Launch the kernel for this layout."""
        kernels[self.last][self.dtype](self.grid, self.block, args)

    def launch_on_chip(self, kernel: Raw, shared: int, *args: Any) -> None:
        """Launch a kernel that gives each channel a block with so many bytes of shared memory."""
        kernel[self.dtype](self.grid[:1], self.chip_block, args, shared_mem=shared)

    def workspace(self, numbers: int) -> tuple[Any, Any]:
        """Room for so many numbers of each channel and part, and a ticket, 0, for each column."""
        xp, (columns, parts) = cupy(), self.grid
        if parts == 1:
            return NULL, NULL
        work = computed_in(self.dtype)
        return xp.empty((parts, self.shape[1], numbers), work), xp.zeros(columns, "uint32")

    def per_channel(self, *arrays: Any) -> list[Any]:
        """Arrays over channels, or None, as kernels read them."""
        work = computed_in(self.dtype)
        return [NULL if a is None else cupy().ascontiguousarray(a, dtype=work) for a in arrays]


def activated(eps: float, activation: str, parameter: float) -> tuple[float, int, float]:
    """Three arguments of most kernels."""
    return float(eps), CODES[activation], float(parameter)


def statistics_gpu(x: Any, out: Any = None) -> Any:
    """Mean and biased variance per channel, (2, C)."""
    c = Channels(x)
    result = cupy().empty((2, x.shape[1]), computed_in(x.dtype))
    c.launch(_STATISTICS, c.dense(x), result[0], result[1], *c.workspace(4), *c.sizes)
    return settled(result, out)


def normalize(
    x: Any, weight: Any, bias: Any, mean: Any, var: Any, inside: bool, eps: float, activation: str,
    parameter: float, out: Any,
) -> Any:
    """z, mean, var; `inside`: z is kept inside the open range of the activation."""
    c = Channels(x)
    source, (z, direct) = c.dense(x), c.target(out)
    options = (*activated(eps, activation, parameter), int(inside))
    affine = c.per_channel(weight, bias)
    shared = c.on_chip(1) if mean is None else 0
    if shared:
        mean, var = cupy().empty((2, x.shape[1]), computed_in(x.dtype))
        c.launch_on_chip(
            _FORWARD_ON_CHIP, shared, source, mean, var, *affine, z, *c.sizes, *options)
    else:
        if mean is None:
            mean, var = statistics_gpu(x)
        c.launch(_FORWARD, source, *c.per_channel(mean, var), *affine, z, *c.sizes, *options)
    return c.result(z, out, direct), mean, var


def forward_gpu(
    x: Any, weight: Any, bias: Any, mean: Any, var: Any, *, training: bool, eps: float,
    activation: str, parameter: float, sync: Any = None, out: Any = None,
) -> Any:
    """As forward_cpu."""
    return normalize(x, weight, bias, mean, var, False, eps, activation, parameter, out)


def sums_gpu(
    g: Any, x: Any, weight: Any, bias: Any, mean: Any, var: Any, *, training: bool, eps: float,
    activation: str, parameter: float, out: Any = None,
) -> Any:
    """As sums_cpu."""
    c = Channels(x)
    sums = cupy().empty((2, x.shape[1]), computed_in(x.dtype))
    c.launch(_REDUCE, c.dense(g), c.dense(x), *c.per_channel(mean, var, weight, bias), sums,
             *c.workspace(2), *c.sizes, *activated(eps, activation, parameter))
    return settled(sums, out)


def dx_gpu(
    g: Any, x: Any, weight: Any, bias: Any, mean: Any, var: Any, sums: Any, *, training: bool,
    eps: float, activation: str, parameter: float, count: float | None = None, out: Any = None,
) -> Any:
    """As dx_cpu."""
    c = Channels(x)
    dx, direct = c.target(out)
    c.launch(
        _BACKWARD, c.dense(g), c.dense(x),
        *c.per_channel(mean, var, weight, bias, sums if training else None), dx, *c.sizes,
        *activated(eps, activation, parameter), float(c.count if count is None else count))
    return c.result(dx, out, direct)

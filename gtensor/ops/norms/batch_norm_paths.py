"""The CPU paths of batch norm: see batch_norm.py for what they compute.

The channels come first and are walked in tiles, each through the same few work buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from math import prod
from typing import Any

import numpy as np

from gtensor.backend import host
from gtensor.engine.namespaces import raw as raw_spaces
from gtensor.ops.activations.activation import ACTIVATIONS
from gtensor.ops.build.cpu_tiles import Scratch, computed_in
from gtensor.ops.build.path_builders import tiles
from gtensor.ops.norms.moments import add_products, add_sums, moments, over_lead
from gtensor.settings import settings


class Channels:
    """Arrays of x's shape with the channels first, and per-channel arrays beside them, by tiles.

    Tiles have `limit` elements (by default those of the settings), and so have the buffers. Results
    stay in buffers until they are done: NumPy takes twice as long on strided arrays.
    """

    def __init__(self, x: np.ndarray, buffers: int, limit: int | None = None) -> None:
        self.shape = (x.shape[1], x.shape[0], *x.shape[2:])
        self.work = computed_in(x.dtype)
        self.limit = max(1, settings.tile_elements if limit is None else limit)
        self.scratch = Scratch(buffers, min(prod(self.shape), self.limit), self.work)

    def moved(self, a: np.ndarray) -> np.ndarray:
        """A view with the channels first."""
        return a.swapaxes(0, 1)

    def per_channel(self, a: Any) -> Any:
        """A per-channel array, in the compute dtype, broadcast to the moved shape."""
        return None if a is None else over_lead(a.astype(self.work, copy=False), self.shape)

    def tiles(self) -> Iterator[tuple[Any, tuple[int, ...]]]:
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

Term = tuple[Any, np.ndarray, np.ndarray]  # of a tile: its key, values a, the gradient dy


def transform(
    c: Channels, x: Any, out: Any, center: Any, slope: Any, shift: Any,
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
    c: Channels, out: Any, terms: Iterable[Term], scale: Any, tilt: Any = None, low: Any = None
) -> None:
    """out = dy * scale - (a * tilt + low), without the bracket where tilt is None.

    In scratch buffers 0 and 1, where a and dy of a term may be.
    """
    result = c.moved(out)
    scale, tilt, low = c.per_channel(scale), c.per_channel(tilt), c.per_channel(low)
    for key, a, dy in terms:
        dx = np.multiply(dy, scale[key], out=c.scratch(1, dy.shape))
        if tilt is not None:
            a = np.multiply(a, tilt[key], out=c.scratch(0, a.shape))
            a += low[key]
            dx -= a
        result[key] = dx


def normalized(c: Channels, key: Any, shape: Any, x: Any, mean: Any, rstd: Any) -> np.ndarray:
    """(x - mean) * rstd of a tile, in scratch buffer 0."""
    xhat = c.scratch(0, shape)
    np.subtract(x[key], mean[key], out=xhat)
    xhat *= rstd[key]
    return xhat


def affine(c: Channels, key: Any, xhat: np.ndarray, weight: Any, bias: Any) -> np.ndarray:
    """xhat * weight + bias of a tile, in scratch buffer 1."""
    y = c.scratch(1, xhat.shape)
    if weight is None:
        y[...] = xhat
    else:
        np.multiply(xhat, weight[key], out=y)
    if bias is not None:
        y += bias[key]
    return y


def inverse_deviation(var: np.ndarray, eps: float, work: Any) -> np.ndarray:
    """1 / sqrt(var + eps), computed in float64."""
    return (1 / np.sqrt(var.astype(np.float64) + eps)).astype(work)


def scale_of(weight: Any, var: np.ndarray, eps: float, work: Any) -> np.ndarray:
    """weight / deviation per channel."""
    rstd = inverse_deviation(var, eps, work)
    return rstd if weight is None else rstd * weight.astype(work)


def statistics_cpu(x: np.ndarray, out: Any = None) -> np.ndarray:
    """Mean and biased variance per channel, (2, C)."""
    work = computed_in(x.dtype)
    result = np.stack(moments(x.swapaxes(0, 1), 1, work))
    if out is None:
        return result.astype(work)
    out[...] = result
    return out


def forward_cpu(
    x: Any, weight: Any, bias: Any, mean: Any, var: Any, *, training: bool, eps: float,
    activation: str, parameter: float, sync: Any = None, out: Any = None,
) -> Any:
    """act((x - mean) / sqrt(var + eps) * weight + bias), mean, var."""
    if out is None:
        out = host().empty(x.shape, x.dtype, "batch_norm")
    if mean is None:
        mean, var = statistics_cpu(x)
    c = Channels(x, 1)
    act, ns = ACTIVATIONS[activation][0], raw_spaces["cpu"]
    transform(c, x, out, mean, scale_of(weight, var, eps, c.work), bias,
              lambda y: act(ns, y, parameter, out=y))
    return out, mean, var


def _terms(
    c: Channels, arrays: tuple[Any, ...], activation: str, parameter: float
) -> Iterator[Term]:
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
    c: Channels, g: Any, x: Any, weight: Any, bias: Any, mean: Any, var: Any, eps: float
) -> tuple[Any, ...]:
    rstd = inverse_deviation(var, eps, c.work)
    return (c.moved(g), c.moved(x), *map(c.per_channel, (mean, rstd, weight, bias)))


def sums_cpu(
    g: Any, x: Any, weight: Any, bias: Any, mean: Any, var: Any, *, training: bool, eps: float,
    activation: str, parameter: float, out: Any = None,
) -> Any:
    """Per channel the sums of dy and of dy * xhat, (2, C): the gradients of bias and weight."""
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
    g: Any, x: Any, weight: Any, bias: Any, mean: Any, var: Any, sums: Any, *, training: bool,
    eps: float, activation: str, parameter: float, count: int | None = None, out: Any = None,
) -> Any:
    """The gradient of x, from `sums` in training."""
    if out is None:
        out = host().empty(x.shape, x.dtype, "batch_norm_dx")
    c = Channels(x, 3, settings.tile_elements // 2)  # so that all of them are a tile of 64K
    terms = _terms(c, _views(c, g, x, weight, bias, mean, var, eps), activation, parameter)
    scale = scale_of(weight, var, eps, c.work)
    low = tilt = None
    if training:
        low, tilt = sums.astype(c.work, copy=False) * (scale / (count or max(1, prod(c.shape[1:]))))
    write_dx(c, out, terms, scale, tilt, low)
    return out

"""The CPU paths of batch norm: see batch_norm.py for what they compute.

The channels come first and are walked in tiles, each through the same few work buffers.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np

from gtensor.backend import host
from gtensor.core.namespaces import raw as raw_spaces
from gtensor.ops.activation import ACTIVATIONS
from gtensor.ops.moments import add_products, add_sums, moments, spread
from gtensor.ops.scratch import Scratch, computed_in, tile_size, whole_tiles


class Channels:
    """Arrays of x's shape with the channels first, and per-channel arrays beside them, by tiles."""

    def __init__(self, x: np.ndarray, buffers: int) -> None:
        self.shape = (x.shape[1], x.shape[0], *x.shape[2:])
        self.work = computed_in(x.dtype)
        self.scratch = Scratch(buffers, tile_size(self.shape), self.work)

    def moved(self, a: np.ndarray) -> np.ndarray:
        """A view with the channels first."""
        return a.swapaxes(0, 1)

    def spread(self, a: Any) -> Any:
        """A per-channel array, in the dtype that is computed in, broadcast to the moved shape."""
        return None if a is None else spread(a.astype(self.work, copy=False), self.shape)

    def tiles(self) -> Iterator[tuple[Any, tuple[int, ...]]]:
        """Keys of the tiles, and the shape that each selects."""
        shape = np.broadcast_to(np.empty(()), self.shape)
        for key in whole_tiles(self.shape):
            yield key, shape[key].shape

    def target(self, out: np.ndarray, key: Any, which: int) -> np.ndarray:
        """Where a tile of the output is computed: itself, or scratch buffer `which` if it is half.
        """
        part = out[key]
        return part if part.dtype == self.work else self.scratch(which, part.shape)


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
    activation: str, parameter: float, out: Any = None,
) -> Any:
    """act((x - mean) / sqrt(var + eps) * weight + bias), mean, var."""
    if out is None:
        out = host().empty(x.shape, x.dtype, "batch_norm")
    if mean is None:
        mean, var = statistics_cpu(x)
    c = Channels(x, 1)
    act, ns = ACTIVATIONS[activation][0], raw_spaces["cpu"]
    source, result = c.moved(x), c.moved(out)
    center, scale = c.spread(mean), scale_of(weight, var, eps, c.work)
    slope, shift = c.spread(scale), c.spread(bias)
    for key, _ in c.tiles():
        y = np.subtract(source[key], center[key], out=c.target(result, key, 0))
        y *= slope[key]
        if shift is not None:
            y += shift[key]
        z = act(ns, y, parameter, out=y)
        if z is not y or y.dtype != out.dtype:
            result[key] = z
    return out, mean, var


def _terms(
    c: Channels, arrays: tuple[Any, ...], activation: str, parameter: float
) -> Iterator[tuple[Any, np.ndarray, np.ndarray]]:
    """For each tile: its key, xhat, and the gradient before the activation."""
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
    return (c.moved(g), c.moved(x), c.spread(mean), c.spread(inverse_deviation(var, eps, c.work)),
            c.spread(weight), c.spread(bias))


def sums_cpu(
    g: Any, x: Any, weight: Any, bias: Any, mean: Any, var: Any, *, training: bool, eps: float,
    activation: str, parameter: float, out: Any = None,
) -> Any:
    """Per channel the sums of dy and of dy * xhat, (2, C): the gradients of bias and weight."""
    c = Channels(x, 3)
    totals = np.zeros((2, x.shape[1]), np.float64)
    arrays = _views(c, g, x, weight, bias, mean, var, eps)
    for key, xhat, dy in _terms(c, arrays, activation, parameter):
        add_sums(totals[0], key, dy)
        add_products(totals[1], key, xhat, dy)
    if out is None:
        return totals.astype(c.work)
    out[...] = totals
    return out


def dx_cpu(
    g: Any, x: Any, weight: Any, bias: Any, mean: Any, var: Any, sums: Any, *, training: bool,
    eps: float, activation: str, parameter: float, out: Any = None,
) -> Any:
    """The gradient of x, from `sums` in training."""
    if out is None:
        out = host().empty(x.shape, x.dtype, "batch_norm_dx")
    c = Channels(x, 3)
    result = c.moved(out)
    arrays = _views(c, g, x, weight, bias, mean, var, eps)
    count = max(1, prod(c.shape[1:]))
    shift, slope = (c.spread(s / count) for s in (sums if training else (mean, var)))  # or unread
    scale = c.spread(scale_of(weight, var, eps, c.work))
    for key, xhat, dy in _terms(c, arrays, activation, parameter):
        if training:
            xhat *= slope[key]
            xhat += shift[key]
            dy = np.subtract(dy, xhat, out=xhat)
        y = np.multiply(dy, scale[key], out=c.target(result, key, 0))
        if y.dtype != out.dtype:
            result[key] = y
    return out

"""The CPU paths of in-place activated batch norm: see inplace_abn.py for what they compute.

z = act(xhat * weight + bias) may be written over x, and the gradient over that of z. Backward has
only z and inverts the activation tile by tile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import inf, prod
from typing import Any

import numpy as np

from gtensor.backend import host
from gtensor.engine.namespaces import raw as raw_spaces
from gtensor.ops.activations.activation import ACTIVATIONS
from gtensor.ops.activations.inverses import INVERSES, Inverse
from gtensor.ops.build.cpu_tiles import computed_in
from gtensor.ops.norms.batch_norm_paths import (
    Channels,
    Term,
    inverse_deviation,
    scale_of,
    statistics_cpu,
    summed,
    transform,
    write_dx,
)
from gtensor.settings import settings


def _channels(z: np.ndarray) -> Channels:
    """Scratch buffers: 0 is y or what is made of it, 1 is dy, 2 is work, 3 is z where it is half.

    Together they take one and a half tiles of the settings.
    """
    buffers = 4 if computed_in(z.dtype) != z.dtype else 3
    return Channels(z, buffers, settings.tile_elements * 3 // 2 // buffers)


# -- forward ---------------------------------------------------------------------------------------


def _activation(name: str, parameter: float, dtype: np.dtype) -> Callable[[Any], Any]:
    """The activation of a tile, written over it, and kept strictly inside its range."""
    act, ns = ACTIVATIONS[name][0], raw_spaces["cpu"]
    lowest, highest = INVERSES[name].inside(dtype, parameter)

    def activate(y: Any) -> Any:
        z = act(ns, y, parameter, out=y)
        # looking takes a fraction of the time of writing; this way around beside NaN, too
        if lowest > -inf and not z.min(initial=inf) >= lowest:
            np.maximum(z, lowest, out=z)
        if highest < inf and not z.max(initial=-inf) <= highest:
            np.minimum(z, highest, out=z)
        return z

    return activate


def forward_cpu(
    x: Any, weight: Any, bias: Any, mean: Any, var: Any, *, training: bool, eps: float,
    activation: str, parameter: float, sync: Any = None, out: Any = None,
) -> Any:
    """z, mean, var; mean and var are x's own where mean is None. `out` may be x."""
    if out is None:
        out = host().empty(x.shape, x.dtype, "inplace_abn")
    if mean is None:
        mean, var = statistics_cpu(x)
    # the activation makes temporaries: softplus four of a tile's size, others at most half as many
    parts = 4 if activation == "softplus" else 2
    c = Channels(x, 1, settings.tile_elements // parts)
    transform(c, x, out, mean, scale_of(weight, var, eps, c.work), bias,
              _activation(activation, parameter, x.dtype))
    return out, mean, var


# -- backward --------------------------------------------------------------------------------------


def _terms(
    c: Channels, g: Any, z: Any, bias: Any, inverse: Inverse, parameter: float
) -> Iterator[Term]:
    """Terms with a = y - bias."""
    g, z, bias = c.moved(g), c.moved(z), c.per_channel(bias)
    for key, shape in c.tiles():
        part, work = c.widened(z[key], 3), c.scratch(2, shape)
        dy = inverse.gradient(g[key], part, parameter, c.scratch(1, shape), work)
        y = inverse.invert(part, parameter, c.scratch(0, shape), work)
        if bias is not None:
            y = np.subtract(y, bias[key], out=c.scratch(0, shape))
        yield key, y, dy


def _store(c: Channels, out: Any, terms: Iterator[Term]) -> None:
    """out = dy."""
    result = c.moved(out)
    for key, _, dy in terms:
        result[key] = dy


def grad_cpu(
    g: Any, z: Any, weight: Any, bias: Any, mean: Any, var: Any, *, training: bool, eps: float,
    activation: str, parameter: float, sync: Any = None, out: Any = None,
) -> Any:
    """The gradient of x, and the sums of dy and of dy * xhat, (2, C), from z and its gradient g.

    `out` may be g. `sync.sums(sums)`, if given, returns the sums of all replicas and the count of
    their samples per channel: dx takes these in training, what is returned is this replica's.
    """
    if out is None:
        out = host().empty(z.shape, z.dtype, "inplace_abn_dx")
    c, inverse = _channels(z), INVERSES[activation]
    gamma = np.ones(z.shape[1]) if weight is None else weight.astype(np.float64)
    rstd = inverse_deviation(var, eps, np.float64)
    totals = np.zeros((2, z.shape[1]), np.float64)
    first = summed(c, _terms(c, g, z, bias, inverse, parameter), totals)
    if not training:
        write_dx(c, out, first, gamma * rstd)
        totals[1] /= gamma
        return out, totals.astype(c.work)
    if activation != "identity" and out.dtype == c.work:  # dy waits in `out`: it is made once
        _store(c, out, first)
        g, inverse = out, inverse._replace(gradient=INVERSES["identity"].gradient)
    else:
        for _ in first:
            pass
    totals[1] /= gamma
    local = totals.astype(c.work)
    total, count = (totals, prod(c.shape[1:])) if sync is None else sync.sums(local)
    # dx = gamma * rstd * (dy - total[0] / count - xhat * total[1] / count), in terms of y
    low, tilt = rstd * total.astype(np.float64) / max(1, count)
    low = low * gamma if bias is None else low * gamma - tilt * bias.astype(np.float64)
    write_dx(c, out, _terms(c, g, z, None, inverse, parameter), gamma * rstd, tilt, low)
    return out, local


def input_cpu(
    z: Any, weight: Any, bias: Any, mean: Any, var: Any, *, eps: float, activation: str,
    parameter: float, out: Any = None,
) -> Any:
    """x, rebuilt from z: (y - bias) / weight * sqrt(var + eps) + mean. `out` may be z."""
    if out is None:
        out = host().empty(z.shape, z.dtype, "inplace_abn_input")
    c, inverse = _channels(z), INVERSES[activation]
    source, result = c.moved(z), c.moved(out)
    shift, center = c.per_channel(bias), c.per_channel(mean)
    slope = c.per_channel(1 / scale_of(weight, var, eps, np.dtype(np.float64)))
    for key, shape in c.tiles():
        y = inverse.invert(
            c.widened(source[key], 3), parameter, c.scratch(0, shape), c.scratch(2, shape))
        if shift is not None:
            y = np.subtract(y, shift[key], out=c.scratch(0, shape))
        x = np.multiply(y, slope[key], out=c.scratch(0, shape))
        x += center[key]
        result[key] = x
    return out

"""The CPU and GPU paths of group norm: see group_norm.py for what they compute.

On the CPU arrays are views (N, groups, channels of a group, ...), walked in tiles. On the GPU the
kernels of batch norm run over (1, N * C, ...) with the numbers of a group repeated for its
channels, and those of layer norm over rows that are groups.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from gtensor.backend import host
from gtensor.backend.cuda import cupy
from gtensor.ops.build.cpu_tiles import Scratch, computed_in, tile_size, whole_tiles
from gtensor.ops.build.path_builders import settled
from gtensor.ops.norms import batch_norm_gpu, batch_norm_paths, row_norm_paths
from gtensor.ops.norms.moments import add_products, add_sums, moments, over_lead

# -- CPU -----------------------------------------------------------------------------------------


class _Groups:
    """Views of arrays like x with the groups apart, and the numbers of groups and channels."""

    def __init__(self, x: np.ndarray, groups: int, buffers: int) -> None:
        self.groups, self.work = groups, computed_in(x.dtype)
        self.shape = self.split(x).shape
        self.scratch = Scratch(buffers, tile_size(self.shape), self.work)

    def split(self, a: np.ndarray) -> np.ndarray:
        """(N, C, ...) as (N, groups, C / groups, ...)."""
        n, channels, *rest = a.shape
        return a.reshape(n, self.groups, channels // self.groups, *rest)

    def per_group(self, a: np.ndarray) -> np.ndarray:
        """Numbers (N, groups), to be read at a tile's key."""
        return over_lead(a.astype(self.work, copy=False), self.shape)

    def per_channel(self, a: Any) -> Any:
        """A parameter (C), to be read at a tile's key."""
        if a is None:
            return None
        split = a.astype(self.work, copy=False).reshape(1, *self.shape[1:3])
        return over_lead(np.broadcast_to(split, self.shape[:3]), self.shape)

    def normalized(self, x: np.ndarray, mean: Any, rstd: Any, key: Any) -> np.ndarray:
        """(x - mean) * rstd of a tile, in scratch buffer 0."""
        part = x[key]
        xhat = np.subtract(part, mean[key], out=self.scratch(0, part.shape))
        xhat *= rstd[key]
        return xhat

    def target(self, out: np.ndarray, key: Any, which: int) -> np.ndarray:
        """The array in which a tile of the output is computed: itself, or for half a buffer."""
        part = out[key]
        return part if part.dtype == self.work else self.scratch(which, part.shape)

    def inverse(self, var: np.ndarray, eps: float) -> np.ndarray:
        """1 / deviation of every group, to be read at a tile's key."""
        return self.per_group(batch_norm_paths.inverse_deviation(var, eps, self.work))


def forward_cpu(
    x: Any, weight: Any, bias: Any, *, groups: int, eps: float, out: Any = None
) -> Any:
    """(x - mean) / sqrt(var + eps) * weight + bias, mean, var."""
    if out is None:
        out = host().empty(x.shape, x.dtype, "group_norm")
    s = _Groups(x, groups, 1)
    source, result = s.split(x), s.split(out)
    mean, var = (a.astype(s.work) for a in moments(source, 2, s.work))
    center, slope = s.per_group(mean), s.inverse(var, eps)
    scale, shift = s.per_channel(weight), s.per_channel(bias)
    for key in whole_tiles(s.shape):
        y = np.subtract(source[key], center[key], out=s.target(result, key, 0))
        y *= slope[key]
        if scale is not None:
            y *= scale[key]
        if shift is not None:
            y += shift[key]
        if y.dtype != out.dtype:
            result[key] = y
    return out, mean, var


def sums_cpu(
    g: Any, x: Any, mean: Any, var: Any, *, groups: int, eps: float, out: Any = None
) -> Any:
    """The sums over each plane of g and of g * xhat, (2, N, C)."""
    s = _Groups(x, groups, 2)
    source, grads = s.split(x), s.split(g)
    center, slope = s.per_group(mean), s.inverse(var, eps)
    totals = np.zeros((2, *s.shape[:3]))
    for key in whole_tiles(s.shape):
        part = grads[key]
        if part.dtype != s.work:
            wide = s.scratch(1, part.shape)
            wide[...] = part
            part = wide
        add_sums(totals[0], key, part)
        add_products(totals[1], key, s.normalized(source, center, slope, key), part)
    result = totals.reshape(2, *x.shape[:2])
    if out is None:
        return result.astype(s.work)
    out[...] = result
    return out


def dx_cpu(
    g: Any, x: Any, weight: Any, mean: Any, var: Any, sums: Any, *, groups: int, eps: float,
    out: Any = None,
) -> Any:
    """The gradient of x: (h - mean(h) - xhat * mean(h * xhat)) / deviation with h = g * weight."""
    if out is None:
        out = host().empty(x.shape, x.dtype, "group_norm_dx")
    s = _Groups(x, groups, 2)
    source, grads, result = s.split(x), s.split(g), s.split(out)
    center, slope, scale = s.per_group(mean), s.inverse(var, eps), s.per_channel(weight)
    weighted = sums if weight is None else sums * weight.astype(s.work)
    count = max(1, prod(s.shape[2:]))
    low, tilt = (s.per_group(a.reshape(s.shape[:3]).sum(axis=2) / count) for a in weighted)
    for key in whole_tiles(s.shape):
        xhat = s.normalized(source, center, slope, key)
        xhat *= tilt[key]
        xhat += low[key]
        y = s.target(result, key, 1)
        np.multiply(grads[key], s.work.type(1) if scale is None else scale[key], out=y)
        y -= xhat
        y *= slope[key]
        if y.dtype != out.dtype:
            result[key] = y
    return out


# -- GPU -----------------------------------------------------------------------------------------

_PLAIN: dict[str, Any] = {"training": False, "activation": "identity", "parameter": 0.0}


def _planes(a: Any) -> Any:
    """(N, C, ...) as one image of N * C channels."""
    return cupy().ascontiguousarray(a).reshape(1, prod(a.shape[:2]), prod(a.shape[2:]))


def _per_plane(a: Any, channels: int) -> Any:
    """Numbers (N, groups), repeated for the channels of each group."""
    return cupy().repeat(a.reshape(-1), channels // a.shape[1])


def forward_gpu(
    x: Any, weight: Any, bias: Any, *, groups: int, eps: float, out: Any = None
) -> Any:
    """As forward_cpu."""
    xp, (n, channels) = cupy(), x.shape[:2]
    rows = xp.ascontiguousarray(x).reshape(1, n * groups, -1 if x.size else 0)
    mean, var = batch_norm_gpu.statistics_gpu(rows).reshape(2, n, groups)
    scale, shift = (None if a is None else xp.tile(a, n) for a in (weight, bias))
    y = batch_norm_gpu.forward_gpu(
        _planes(x), scale, shift, _per_plane(mean, channels), _per_plane(var, channels), eps=eps,
        **_PLAIN)[0].reshape(x.shape)
    if out is None:
        return y, mean, var
    out[...] = y
    return out, mean, var


def sums_gpu(
    g: Any, x: Any, mean: Any, var: Any, *, groups: int, eps: float, out: Any = None
) -> Any:
    """As sums_cpu."""
    sums = batch_norm_gpu.sums_gpu(
        _planes(g), _planes(x), None, None, _per_plane(mean, x.shape[1]),
        _per_plane(var, x.shape[1]), eps=eps, **_PLAIN).reshape(2, *x.shape[:2])
    return settled(sums, out)


def dx_gpu(
    g: Any, x: Any, weight: Any, mean: Any, var: Any, sums: Any, *, groups: int, eps: float,
    out: Any = None,
) -> Any:
    """As dx_cpu; g * weight is written where the result will be."""
    xp = cupy()
    direct = out is not None and out.flags.c_contiguous
    h = out if direct else xp.empty(x.shape, x.dtype)
    if weight is None:
        h[...] = g
    else:
        xp.multiply(g, weight.reshape(-1, *(1,) * (x.ndim - 2)), out=h)
    shape = (x.shape[0] * groups, -1 if x.size else 0)
    rstd = 1 / xp.sqrt(var + var.dtype.type(eps))
    rows = h.reshape(shape)
    row_norm_paths.dx_gpu(
        rows, xp.ascontiguousarray(x).reshape(shape), None, mean.reshape(-1), rstd.reshape(-1),
        dims=1, eps=eps, out=rows)
    if out is None or direct:
        return h
    out[...] = h
    return out

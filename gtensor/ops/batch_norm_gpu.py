"""The GPU paths of batch norm: see batch_norm.py for what they compute."""

from __future__ import annotations

from math import prod
from typing import Any

from gtensor.backend.cuda import cupy
from gtensor.backend.kernels import ACTIVATIONS as CODES
from gtensor.backend.kernels import NULL, flat_launch, raw, row_launch
from gtensor.ops.paths import settled
from gtensor.ops.scratch import computed_in

_STATISTICS = raw("batch_norm.cu", "batch_norm_statistics")
_FORWARD = raw("batch_norm.cu", "batch_norm_forward")
_REDUCE = raw("batch_norm.cu", "batch_norm_backward_reduce")
_BACKWARD = raw("batch_norm.cu", "batch_norm_backward")


def _sizes(x: Any) -> tuple[int, int, int]:
    return x.shape[0], x.shape[1], prod(x.shape[2:])


def _dense(a: Any, dtype: Any) -> Any:
    return NULL if a is None else cupy().ascontiguousarray(a, dtype=dtype)


def statistics_gpu(x: Any, out: Any = None) -> Any:
    """Mean and biased variance per channel, (2, C)."""
    xp = cupy()
    x = xp.ascontiguousarray(x)
    result = xp.empty((2, x.shape[1]), computed_in(x.dtype))
    grid, block = row_launch(x.shape[1])
    _STATISTICS[x.dtype](grid, block, (x, result[0], result[1], *_sizes(x)))
    return settled(result, out)


def forward_gpu(
    x: Any, weight: Any, bias: Any, mean: Any, var: Any, *, training: bool, eps: float,
    activation: str, parameter: float, out: Any = None,
) -> Any:
    """As forward_cpu."""
    xp = cupy()
    if mean is None:
        mean, var = statistics_gpu(x)
    dense, work = xp.ascontiguousarray(x), computed_in(x.dtype)
    z = xp.empty(x.shape, x.dtype)
    grid, block = flat_launch(x.size)
    _FORWARD[x.dtype](grid, block, (
        dense, _dense(mean, work), _dense(var, work), _dense(weight, work),
        _dense(bias, work), z, *_sizes(x), float(eps), CODES[activation], float(parameter)))
    if out is None:
        return z, mean, var
    out[...] = z
    return out, mean, var


def sums_gpu(
    g: Any, x: Any, weight: Any, bias: Any, mean: Any, var: Any, *, training: bool, eps: float,
    activation: str, parameter: float, out: Any = None,
) -> Any:
    """As sums_cpu."""
    xp, work = cupy(), computed_in(x.dtype)
    sums = xp.empty((2, x.shape[1]), work)
    grid, block = row_launch(x.shape[1])
    _REDUCE[x.dtype](grid, block, (
        _dense(g, x.dtype), xp.ascontiguousarray(x), _dense(mean, work), _dense(var, work),
        _dense(weight, work), _dense(bias, work), sums[0], sums[1], *_sizes(x), float(eps),
        CODES[activation], float(parameter)))
    return settled(sums, out)


def dx_gpu(
    g: Any, x: Any, weight: Any, bias: Any, mean: Any, var: Any, sums: Any, *, training: bool,
    eps: float, activation: str, parameter: float, out: Any = None,
) -> Any:
    """As dx_cpu."""
    xp, work = cupy(), computed_in(x.dtype)
    direct = out is not None and out.flags.c_contiguous
    dx = out if direct else xp.empty(x.shape, x.dtype)
    sums = (NULL, NULL) if sums is None else xp.ascontiguousarray(sums, dtype=work)
    grid, block = flat_launch(x.size)
    _BACKWARD[x.dtype](grid, block, (
        _dense(g, x.dtype), xp.ascontiguousarray(x), _dense(mean, work), _dense(var, work),
        _dense(weight, work), _dense(bias, work), sums[0], sums[1], dx, *_sizes(x),
        float(eps), CODES[activation], float(parameter), int(training)))
    if out is None or direct:
        return dx
    out[...] = dx
    return out

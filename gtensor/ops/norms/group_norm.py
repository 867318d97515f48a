"""Group norm of (N, C, ...): each group of channels of each image to mean 0 and variance 1.

Saved are x and two numbers per group (float32 for half types).
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from gtensor.backend import host
from gtensor.backend.cuda import cupy
from gtensor.engine.namespaces import recorded
from gtensor.engine.op import op
from gtensor.engine.samples import Sample
from gtensor.engine.tensor import Tensor
from gtensor.ops.build.arguments import same_dtype
from gtensor.ops.build.cpu_tiles import computed_in, tile_size, whole_tiles
from gtensor.ops.build.path_builders import settled
from gtensor.ops.norms import batch_norm_paths, batching, row_norm_paths
from gtensor.ops.norms.batch_norm import not_channels
from gtensor.ops.norms.moments import add_products, add_sums, moments, over_lead

if TYPE_CHECKING:
    from gtensor.backend.typing import Array, Params
    from gtensor.engine.typing import ArrayOrTensor, Namespace, Step, Values
    from gtensor.ops.build.cpu_tiles import Tile

# -- the CPU paths, over views (N, groups, channels of a group, ...), tile by tile -----------------


class _Groups:
    """Views of arrays like x with the groups apart, and the numbers of groups and channels."""

    def __init__(self, x: np.ndarray, groups: int, buffers: int) -> None:
        self.groups, self.work = groups, computed_in(x.dtype)
        self.shape = self.split(x).shape
        self.scratch = host().workspace(tile_size(self.shape), self.work, buffers)

    def split(self, a: np.ndarray) -> np.ndarray:
        """(N, C, ...) as (N, groups, C / groups, ...)."""
        n, channels, *rest = a.shape
        return a.reshape(n, self.groups, channels // self.groups, *rest)

    def per_group(self, a: np.ndarray) -> np.ndarray:
        """Numbers (N, groups), to be read at a tile's key."""
        return over_lead(a.astype(self.work, copy=False), self.shape)

    @overload
    def per_channel(self, a: Array) -> Array: ...

    @overload
    def per_channel(self, a: Array | None) -> Array | None: ...

    def per_channel(self, a: Array | None) -> Array | None:
        """A parameter (C), to be read at a tile's key."""
        if a is None:
            return None
        split = a.astype(self.work, copy=False).reshape(1, *self.shape[1:3])
        return over_lead(np.broadcast_to(split, self.shape[:3]), self.shape)

    def normalized(self, x: np.ndarray, mean: Array, rstd: Array, key: Tile) -> np.ndarray:
        """(x - mean) * rstd of a tile, in scratch buffer 0."""
        part = x[key]
        xhat = np.subtract(part, mean[key], out=self.scratch(0, part.shape))
        xhat *= rstd[key]
        return xhat

    def target(self, out: np.ndarray, key: Tile, which: int) -> np.ndarray:
        """The array in which a tile of the output is computed: itself, or for half a buffer."""
        part = out[key]
        return part if part.dtype == self.work else self.scratch(which, part.shape)

    def inverse(self, var: np.ndarray, eps: float) -> np.ndarray:
        """1 / deviation of every group, to be read at a tile's key."""
        return self.per_group(batch_norm_paths.inverse_deviation(var, eps, self.work))


def forward_cpu(
    x: Array, weight: Array | None, bias: Array | None, *, groups: int, eps: float,
    out: Array | None = None,
) -> tuple[Array, Array, Array]:
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
    g: Array, x: Array, mean: Array, var: Array, *, groups: int, eps: float,
    out: Array | None = None,
) -> Array:
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
    g: Array, x: Array, weight: Array | None, mean: Array, var: Array, sums: Array, *, groups: int,
    eps: float, out: Array | None = None,
) -> Array:
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

_PLAIN: Params = {"training": False, "activation": "identity", "parameter": 0.0}


# -- the GPU paths ---------------------------------------------------------------------------------
#
# The kernels of batch norm run over (1, N * C, ...) with the numbers of a group repeated for its
# channels, and those of layer norm over rows that are groups.


def _planes(a: Array) -> Array:
    """(N, C, ...) as one image of N * C channels."""
    return cupy().ascontiguousarray(a).reshape(1, prod(a.shape[:2]), prod(a.shape[2:]))


def _per_plane(a: Array, channels: int) -> Array:
    """Numbers (N, groups), repeated for the channels of each group."""
    return cupy().repeat(a.reshape(-1), channels // a.shape[1])


def forward_gpu(
    x: Array, weight: Array | None, bias: Array | None, *, groups: int, eps: float,
    out: Array | None = None,
) -> tuple[Array, Array, Array]:
    """As forward_cpu."""
    xp, (n, channels) = cupy(), x.shape[:2]
    rows = xp.ascontiguousarray(x).reshape(1, n * groups, -1 if x.size else 0)
    mean, var = batch_norm_paths.statistics_gpu(rows).reshape(2, n, groups)
    scale, shift = (None if a is None else xp.tile(a, n) for a in (weight, bias))
    y = batch_norm_paths.forward_gpu(
        _planes(x), scale, shift, _per_plane(mean, channels), _per_plane(var, channels), eps=eps,
        **_PLAIN)[0].reshape(x.shape)
    if out is None:
        return y, mean, var
    out[...] = y
    return out, mean, var


def sums_gpu(
    g: Array, x: Array, mean: Array, var: Array, *, groups: int, eps: float,
    out: Array | None = None,
) -> Array:
    """As sums_cpu."""
    sums = batch_norm_paths.sums_gpu(
        _planes(g), _planes(x), None, None, _per_plane(mean, x.shape[1]),
        _per_plane(var, x.shape[1]), eps=eps, **_PLAIN).reshape(2, *x.shape[:2])
    return settled(sums, out)


def dx_gpu(
    g: Array, x: Array, weight: Array | None, mean: Array, var: Array, sums: Array, *, groups: int,
    eps: float, out: Array | None = None,
) -> Array:
    """As dx_cpu; g * weight is written where the result will be."""
    xp = cupy()
    h = out if out is not None and out.flags.c_contiguous else xp.empty(x.shape, x.dtype)
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
    if out is None or h is out:
        return h
    out[...] = h
    return out


# -- rules ---------------------------------------------------------------------------------------


def _rows(ns: Namespace, a: ArrayOrTensor, groups: int) -> ArrayOrTensor:
    """(N, C, ...) as rows (N, groups, values of a group)."""
    values = prod(a.shape[1:]) // groups
    return ns.reshape(a, shape=(a.shape[0], groups, values))


def _recorded_xhat(
    ns: Namespace, x: ArrayOrTensor, groups: int, eps: float
) -> tuple[ArrayOrTensor, ArrayOrTensor]:
    """xhat as rows, and 1 / deviation, as functions of x."""
    rows = _rows(ns, x, groups)
    deviation = rows - ns.mean(rows, axis=(-1,), keepdims=True)
    rstd = 1 / ns.sqrt(ns.mean(ns.square(deviation), axis=(-1,), keepdims=True) + eps)
    return deviation * rstd, rstd


def _projected(
    ns: Namespace, h: ArrayOrTensor, x: ArrayOrTensor, groups: int, eps: float
) -> ArrayOrTensor:
    """rstd * (h - mean(h) - xhat * mean(h * xhat)): the derivative of xhat, which is symmetric."""
    xhat, rstd = _recorded_xhat(ns, x, groups, eps)
    rows = _rows(ns, h, groups)
    slope = ns.mean(rows * xhat, axis=(-1,), keepdims=True)
    projected = rstd * (rows - ns.mean(rows, axis=(-1,), keepdims=True) - xhat * slope)
    return ns.reshape(projected, shape=x.shape)


def _wide(ns: Namespace, a: ArrayOrTensor, like: ArrayOrTensor) -> ArrayOrTensor:
    """A parameter (C) beside (N, C, ...)."""
    return ns.reshape(a, shape=(1, like.shape[1], *(1,) * (len(like.shape) - 2)))


def _sums_recorded(
    g: Tensor, x: Tensor, mean: Tensor, var: Tensor, *, groups: int, eps: float
) -> Tensor:
    ns, shape = recorded, (1, *x.shape[:2])
    xhat = ns.reshape(_recorded_xhat(ns, x, groups, eps)[0], shape=x.shape)
    axes = tuple(range(2 - len(x.shape), 0))
    parts = [ns.reshape(ns.sum(a, axis=axes), shape=shape) for a in (g, g * xhat)]
    return ns.concat(*parts, axis=-3, sizes=(1, 1))


def _dx_recorded(
    g: Tensor, x: Tensor, weight: Tensor | None, mean: Tensor, var: Tensor, sums: Tensor, *,
    groups: int, eps: float,
) -> Tensor:
    h = g if weight is None else g * _wide(recorded, weight, x)
    return _projected(recorded, h, x, groups, eps)


def _backward(ns: Namespace, step: Step, g: Array) -> None:
    x, weight, mean, var = step.saved
    params = step.params
    if not any(step.needs(i) for i in (0, 1)):
        step.give(2, ns.sum(g, axis=not_channels(g)))
        return
    sums = ns.group_norm_sums(g, x, mean, var, **params)
    for i in (1, 2):
        if step.needs(i):
            part = ns.slice(sums, key=(..., 2 - i, slice(None), slice(None)))  # (N, C)
            step.give(i, ns.sum(part, axis=(-2,)))
    if step.needs(0):
        step.give(0, ns.group_norm_dx(
            g, x, weight, mean, var, sums, out=step.reuse(g), **params))


def _tangent(ns: Namespace, primals: Values, tangents: Values, out: Array, params: Params) -> Array:
    x, weight, _ = primals
    dx, dweight, dbias = tangents
    terms = []
    if dx is not None:
        change = _projected(ns, dx, x, **params)
        terms.append(change if weight is None else change * _wide(ns, weight, x))
    if dweight is not None:
        xhat = ns.reshape(_recorded_xhat(ns, x, **params)[0], shape=x.shape)
        terms.append(xhat * _wide(ns, dweight, x))
    if dbias is not None:
        terms.append(_wide(ns, dbias, x))
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return ns.broadcast_to(total, shape=out.shape)


# -- definitions -----------------------------------------------------------------------------------


def _samples() -> list[Sample]:
    # Groups of several numbers: two that are close have a gradient which single precision loses.
    cases = (((2, 8), 2), ((2, 6, 5), 3), ((3, 4, 2, 3), 1), ((2, 3, 7), 3), ((0, 4, 2), 2))
    return [Sample((shape, *(shape[1:2],) * 2), params={"groups": groups, "eps": 1e-5})
            for shape, groups in cases] + [
            Sample(((2, 4, 3), None, None), params={"groups": 2, "eps": 1e-5})]


def _reference(torch: Any, x: Any, weight: Any, bias: Any, *, groups: int, eps: float) -> Any:
    return torch.nn.functional.group_norm(x, groups, weight, bias, eps)


group_norm_sums = op(
    "group_norm_sums", cpu=sums_cpu, gpu=sums_gpu, backward=None, tangent=None,
    composed=_sums_recorded, batch=batching.groups_sums,
    samples=None,  # mean and var must be x's: tested through group_norm
    doc="The sums of g and of g * xhat over each plane, (2, N, C).",
)

group_norm_dx = op(
    "group_norm_dx", cpu=dx_cpu, gpu=dx_gpu, backward=None, tangent=None,
    composed=_dx_recorded, batch=batching.groups_dx, samples=None,  # as above
    doc="The gradient of group_norm's input, from group_norm_sums.",
)

group_norm_op = op(
    "group_norm", autocast="float32", cpu=forward_cpu, gpu=forward_gpu, extras="mean var",
    saves={"x": "x weight mean var", "weight": "x mean var"},
    backward=_backward, tangent=_tangent, batch=batching.groups,
    samples=_samples(), reference=_reference,
    doc="(x - mean) / sqrt(var + eps) * weight + bias with the statistics of each group of "
        "channels. Parameters: groups, eps.",
)


def group_norm(
    input: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Each group of channels of each image to mean 0 and variance 1, times weight, plus bias.

    Args:
        input: (N, C, ...).
        num_groups: into how many equal groups of neighbours the channels are split.
        weight, bias: (C), or None for 1 and 0.
        eps: added to the (biased) variance.

    Source: Wu and He, "Group normalization", 2018.

    Raises ValueError unless num_groups divides C, and for a weight or bias of another shape.
    """
    if input.ndim < 2 or not isinstance(num_groups, int) or num_groups < 1 or (
            input.shape[1] % num_groups):
        raise ValueError(f"group_norm was given num_groups={num_groups} for an input of shape "
                         f"{input.shape}; wanted (N, C, ...) and a divisor of C")
    for name, tensor in {"weight": weight, "bias": bias}.items():
        if tensor is not None and tensor.shape != input.shape[1:2]:
            raise ValueError(f"group_norm was given a {name} of shape {tensor.shape} for an input "
                             f"of shape {input.shape}; wanted ({input.shape[1]},)")
    same_dtype("group_norm", input=input, weight=weight, bias=bias)
    return group_norm_op(input, weight, bias, groups=num_groups, eps=eps)

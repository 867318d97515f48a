"""Group norm of (N, C, ...): each group of channels of each image to mean 0 and variance 1.

Saved are x and two numbers per group (float32 for half types).
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from gtensor.backend import host
from gtensor.backend.cuda import cupy
from gtensor.backend.kernels import BLOCK, NULL, packed_launch, raw, row_launch
from gtensor.engine.handle.namespaces import raw as namespaces
from gtensor.engine.handle.namespaces import recorded
from gtensor.engine.handle.tensor import Tensor
from gtensor.engine.tape.op import op
from gtensor.engine.tape.samples import Sample
from gtensor.ops.define import rows as row_kernels
from gtensor.ops.define.arguments import same_dtype, takes_arrays
from gtensor.ops.define.cpu_tiles import computed_in, tile_size, whole_tiles
from gtensor.ops.define.path_builders import settled
from gtensor.ops.norms import batch_norm_paths, batching, row_norm_paths
from gtensor.ops.norms.batch_norm import not_channels
from gtensor.ops.norms.layer_norm import give_all
from gtensor.ops.norms.moments import add_products, add_sums, moments, over_lead

if TYPE_CHECKING:
    from gtensor.backend.typing import Array, Params
    from gtensor.engine.handle.namespaces import Namespace
    from gtensor.engine.walk.typing import ArrayOrTensor, Step, Values
    from gtensor.ops.define.cpu_tiles import Tile
    from gtensor.ops.norms.row_norm_paths import Grads, Needs

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
    statistics = row_kernels.group_norm(x, weight, bias, out, groups, eps)
    if statistics is not None:
        return out, *statistics
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
    made = host().empty((2, *x.shape[:2]), x.dtype, "group_norm_sums") if out is None else out
    if row_kernels.group_norm_grads(g, x, None, mean, var, None, made, groups, eps):
        return made
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


def grads_cpu(
    g: Array, x: Array, weight: Array | None, mean: Array, var: Array, *, groups: int, eps: float,
    needs: Needs, out: Array | None = None,
) -> Grads:
    """The gradients of x, weight and bias, None for those that are not needed."""
    dx = host().empty(x.shape, x.dtype, "group_norm_dx") if needs[0] and out is None else out
    sums = host().empty((2, *x.shape[:2]), x.dtype, "group_norm_sums")
    if row_kernels.group_norm_grads(g, x, weight, mean, var, dx, sums, groups, eps):
        dweight, dbias = (sums[2 - i].sum(axis=0) if needs[i] else None for i in (1, 2))
        return dx, dweight, dbias
    return _from_sums(namespaces["cpu"], (g, x, weight, mean, var), groups, eps, needs, dx)


def _from_sums(
    ns: Namespace, arrays: tuple[Any, ...], groups: int, eps: float, needs: Needs,
    out: Array | None,
) -> Grads:
    """As grads_cpu, by the sums over planes, in a pass of their own."""
    g, x, weight, mean, var = arrays
    sums, dx = ns.group_norm_sums(g, x, mean, var, groups=groups, eps=eps), None
    if needs[0]:
        dx = ns.group_norm_dx(g, x, weight, mean, var, sums, groups=groups, eps=eps, out=out)
    dweight, dbias = (sums[2 - i].sum(axis=0) if needs[i] else None for i in (1, 2))
    return dx, dweight, dbias


# -- the GPU paths ---------------------------------------------------------------------------------
#
# A launch each way, and one for the parameters, where a group is the work of one block. Longer ones
# are split over blocks by the kernels of batch norm and layer norm: the former run over
# (1, N * C, ...) with the numbers of a group repeated for its channels, the latter over rows that
# are groups.

_MOST = 1 << 16  # elements of a group that one block takes
_PLAIN: Params = {"training": False, "activation": "identity", "parameter": 0.0}
_FORWARD = raw("group_norm.cu", "group_norm_forward")
_BACKWARD = raw("group_norm.cu", "group_norm_backward")


def _sizes(x: Array, groups: int) -> tuple[int, int, int, int]:
    """Groups of all images, groups of one, channels of a group, elements of a channel's plane."""
    return len(x) * groups, groups, x.shape[1] // groups, prod(x.shape[2:])


def _dense(a: Array | None) -> Array | int:
    return NULL if a is None else cupy().ascontiguousarray(a)


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
    rows, *sizes = _sizes(x, groups)
    y: Any
    if prod(sizes[1:]) <= _MOST:
        mean, var = (xp.empty((n, groups), computed_in(x.dtype)) for _ in range(2))
        direct = out is not None and out.flags.c_contiguous
        y = out if direct else xp.empty(x.shape, x.dtype)
        _FORWARD[x.dtype](*packed_launch(rows, prod(sizes[1:]), x.itemsize), (
            _dense(x), _dense(weight), _dense(bias), y, mean, var, rows, *sizes, float(eps)))
    else:
        flat = xp.ascontiguousarray(x).reshape(1, n * groups, -1)
        mean, var = batch_norm_paths.statistics_gpu(flat).reshape(2, n, groups)
        scale, shift = (None if a is None else xp.tile(a, n) for a in (weight, bias))
        y = batch_norm_paths.forward_gpu(
            _planes(x), scale, shift, _per_plane(mean, channels), _per_plane(var, channels),
            eps=eps, **_PLAIN)[0].reshape(x.shape)
    if out is None or y is out:
        return y, mean, var
    out[...] = y
    return out, mean, var


def grads_gpu(
    g: Array, x: Array, weight: Array | None, mean: Array, var: Array, *, groups: int, eps: float,
    needs: Needs, out: Array | None = None,
) -> Grads:
    """As grads_cpu: one pass over g and x, which leaves the sums over planes."""
    xp, (n, channels) = cupy(), x.shape[:2]
    rows, *sizes = _sizes(x, groups)
    if prod(sizes[1:]) > _MOST:
        return _from_sums(namespaces["cuda"], (g, x, weight, mean, var), groups, eps, needs, out)
    dx: Any = None
    if needs[0]:
        direct = out is not None and out.flags.c_contiguous
        dx = out if direct else xp.empty(x.shape, x.dtype)
    partials = xp.empty((n, 2, channels), mean.dtype) if any(needs[1:]) else None
    _, (threads, _) = packed_launch(1, sizes[2], x.itemsize)
    teams = max(1, min(BLOCK // threads, sizes[1]))
    _BACKWARD[x.dtype](row_launch(rows)[0], (threads, teams), (
        _dense(g), _dense(x), _dense(weight), mean, var, NULL if dx is None else dx,
        NULL if partials is None else partials, rows, *sizes, float(eps)))
    dweight, dbias = (xp.empty(channels, x.dtype) if needed else None for needed in needs[1:])
    if partials is not None:
        row_norm_paths.sum_partials(partials, dweight, dbias)
    if dx is None or out is None or dx is out:
        return dx, dweight, dbias
    out[...] = dx
    return out, dweight, dbias


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
    if ns is not recorded:
        needs = step.needs(0), step.needs(1), step.needs(2)
        out = step.reuse(g) if needs[0] else None
        give_all(step, ns.group_norm_grads(
            g, x, weight, mean, var, needs=needs, out=out, **params))
        return
    found: Any
    sums = ns.group_norm_sums(g, x, mean, var, **params)
    for i in (1, 2):
        if step.needs(i):
            found = ns.slice(sums, key=(..., 2 - i, slice(None), slice(None)))  # (N, C)
            found = ns.sum(found, axis=(-2,))
            step.give(i, found)
    if step.needs(0):
        found = ns.group_norm_dx(g, x, weight, mean, var, sums, **params)
        step.give(0, found)


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

group_norm_grads = op(
    "group_norm_grads", cpu=grads_cpu, gpu=grads_gpu, backward=None, tangent=None,
    batch=batching.groups_grads, samples=None,  # it returns three arrays: tested as above
    doc="The gradients of group_norm's input, weight and bias in one pass. Parameters as "
        "group_norm, and needs: which of them.",
)

group_norm_op = op(
    "group_norm", autocast="float32", cpu=forward_cpu, gpu=forward_gpu, extras="mean var",
    saves={"x": "x weight mean var", "weight": "x mean var"},
    backward=_backward, tangent=_tangent, batch=batching.groups,
    samples=_samples(), reference=_reference,
    doc="(x - mean) / sqrt(var + eps) * weight + bias with the statistics of each group of "
        "channels. Parameters: groups, eps.",
)


@takes_arrays
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

"""Products along axes and cumulative ones, with gradients that never divide."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from gtensor.backend import element_type, host
from gtensor.backend.cuda import cupy
from gtensor.engine.handle.namespaces import recorded
from gtensor.engine.handle.tensor import Tensor
from gtensor.engine.tape.op import op
from gtensor.engine.tape.samples import Sample, below, normal
from gtensor.ops.arrange.shape import along, clone, resized
from gtensor.ops.define.arguments import given_axis, takes_arrays, torch_words
from gtensor.ops.define.batching import trailing, unchanged
from gtensor.ops.define.cpu_tiles import computed_in, row_tiles
from gtensor.ops.linalg.matrix_products import conjugated
from gtensor.ops.reduce.reductions import (
    Axis,
    accumulator,
    kept_shape,
    normalize_axis,
    reduction_cpu,
    reduction_gpu,
    reduction_samples,
    rounded_last,
)
from gtensor.ops.scan.scan import (
    accumulated,
    cumulative_gpu,
    samples,
    scanned,
    shifted_keys,
    torch_scan,
)

if TYPE_CHECKING:
    from types import ModuleType

    from gtensor.backend.typing import Array, DTypeLike, Params
    from gtensor.engine.handle.namespaces import Namespace
    from gtensor.engine.walk.typing import Step, Values

__all__ = ["cumulative_prod", "prod"]

METHODS = __all__


# -- linear recurrence -----------------------------------------------------------------------------


def _recur(b: Array, c: Array, reverse: bool) -> Array:
    """s in place of b, along the last axis: by doubling, in log2(n) steps over all elements."""
    distance, n = 1, b.shape[-1]
    while distance < n:
        if reverse:
            b[..., :-distance] += c * b[..., distance:]
        else:
            b[..., distance:] += c * b[..., :-distance]
        c = c[..., distance:] * c[..., :-distance]  # now links elements twice as far apart
        distance *= 2
    return b


def _link_scan_cpu(
    b: Array, c: Array, *, axis: int, reverse: bool, out: Array | None = None
) -> Array:
    if out is None:
        out = host().empty(b.shape, b.dtype, "link_scan")
    if not b.size:
        return out
    work = computed_in(b.dtype)
    starts, links, result = (np.moveaxis(a, axis, -1) for a in (b, c, out))
    with np.errstate(over="ignore", invalid="ignore"):
        for tile in row_tiles(starts.shape):
            part = links[tile].astype(work, copy=False)
            result[tile] = _recur(starts[tile].astype(work), part, reverse)
    return out


def _link_scan_gpu(
    b: Array, c: Array, *, axis: int, reverse: bool, out: Array | None = None
) -> Array:
    xp, work = cupy(), computed_in(b.dtype)
    starts, links = (xp.moveaxis(a, axis, -1).astype(work) for a in (b, c))
    result = xp.moveaxis(_recur(starts, links, reverse), -1, axis)
    if out is None:
        return xp.ascontiguousarray(result).astype(b.dtype, copy=False)
    out[...] = result
    return out


def _link_scan_backward(ns: Namespace, step: Step, g: Array) -> None:
    """The same recurrence from the other end, times what each link was multiplied with."""
    c, s = step.saved
    axis, reverse = step.params["axis"], step.params["reverse"]
    t = ns.link_scan(g, conjugated(ns, c), axis=axis, reverse=not reverse)
    if step.needs(1):
        to, origin = shifted_keys(axis, reverse)
        step.give(1, ns.multiply(ns.slice(t, key=to), conjugated(ns, ns.slice(s, key=origin))))
    if step.needs(0):
        step.give(0, t)


def _link_scan_tangent(
    ns: Namespace, primals: Values, tangents: Values, out: Array, params: Params
) -> Array:
    (_, c), (db, dc) = primals, tangents
    if dc is not None:
        to, origin = shifted_keys(params["axis"], params["reverse"])
        moved = ns.unslice(ns.multiply(dc, ns.slice(out, key=origin)), key=to, shape=out.shape)
        db = moved if db is None else ns.add(db, moved)
    return ns.link_scan(db, c, **params)


def _torch_link_scan(torch: Any, b: Any, c: Any, axis: int, reverse: bool) -> Any:
    starts, links = list(b.unbind(axis)), list(c.unbind(axis))
    if reverse:
        starts, links = starts[::-1], links[::-1]
    rows = starts[:1]
    for start, link in zip(starts[1:], links, strict=True):
        rows.append(start + link * rows[-1])
    return torch.stack(rows[::-1] if reverse else rows, dim=axis)


link_scan = op(
    "link_scan", cpu=_link_scan_cpu, gpu=_link_scan_gpu, complex=True,
    saves={"b": "c", "c": "c out"}, backward=_link_scan_backward, tangent=_link_scan_tangent,
    batch=trailing,
    samples=[Sample((s, resized(s, a, s[a] - 1)), normal, {"axis": a, "reverse": r})
             for s, a in (((7,), -1), ((3, 5), -1), ((4, 3), -2), ((1, 2), -2), ((0, 2), -1))
             for r in (False, True)],
    reference=_torch_link_scan,
    doc="s[k] = b[k] + c[k - 1] * s[k - 1] along `axis`, or from the end s[k] = b[k] + c[k] * "
        "s[k + 1]: the gradient of a cumulative product. Rows beyond a tile need three buffers of "
        "their length; products of neighbouring c must not overflow.",
)


# -- cumulative product ----------------------------------------------------------------------------


def _cumulative_prod_cpu(
    x: Array, *, axis: int, include_initial: bool = False, dtype: DTypeLike | None = None,
    out: Array | None = None
) -> Array:
    return accumulated(x, axis, dtype, 1 if include_initial else None, False, np.multiply, out)


def _cumulative_prod_backward(ns: Namespace, step: Step, g: Array) -> None:
    """dx[i] = (x[0] ... x[i - 1]) * s[i] with s[i] = g[i] + x[i + 1] * s[i + 1]: no division."""
    x, y = step.saved
    axis = step.params["axis"]
    if x.dtype != g.dtype:
        x = ns.astype(x, dtype=g.dtype)
    later, earlier = shifted_keys(axis, False)
    initial = step.params.get("include_initial", False)
    if initial:
        g = ns.slice(g, key=later)
    if not x.shape[axis]:
        step.give(0, g)
        return
    s = ns.link_scan(g, conjugated(ns, ns.slice(x, key=later)), axis=axis, reverse=True)
    before = conjugated(ns, ns.slice(y, key=earlier))
    if initial:
        step.give(0, ns.multiply(s, before, out=s))
        return
    product = ns.multiply(ns.slice(s, key=later), before)
    step.give(0, ns.set_item(s, product, key=later, out=s))


def _cumulative_prod_tangent(
    ns: Namespace, primals: Values, tangents: Values, out: Array, params: Params
) -> Array:
    """dy[k] = y[k - 1] * dx[k] + x[k] * dy[k - 1]: the recurrence of the product's rule."""
    (x,), (dx,) = primals, tangents
    axis = params["axis"]
    if not x.shape[axis]:
        return ns.cumulative_prod(dx, **params) if not params["include_initial"] else (
            ns.multiply(out, 0))
    later, earlier = shifted_keys(axis, False)
    before = ns.slice(out, key=earlier)
    if not params["include_initial"]:
        scaled = ns.set_item(dx, ns.multiply(ns.slice(dx, key=later), before), key=later)
        return ns.link_scan(scaled, ns.slice(x, key=later), axis=axis, reverse=False)
    moved = ns.link_scan(ns.multiply(dx, before), ns.slice(x, key=later), axis=axis,
                           reverse=False)
    return ns.unslice(moved, key=later, shape=out.shape)


_cumulative_prod = op(
    "cumulative_prod", autocast="float32",
    cpu=_cumulative_prod_cpu, gpu=partial(cumulative_gpu, "cumprod", 1),
    complex=True, saves={"x": "x out"},
    backward=_cumulative_prod_backward, tangent=_cumulative_prod_tangent, batch=unchanged,
    samples=samples() + samples(below(2))[:4],
    reference=lambda torch, x, **params: torch_scan(torch, x, "cumprod", **params),
)


@takes_arrays
def cumulative_prod(
    x: Tensor, /, axis: int | None = None, *, dtype: DTypeLike | None = None,
    include_initial: bool = False, dim: int | None = None,
) -> Tensor:
    """The products of the first 1, 2, ... elements along `axis`, which a 1-d x may leave out.

    `include_initial`: a 1 comes first, so the axis is one longer. Dtypes as in `cumulative_sum`.
    The gradient is also right where elements are zero: it is a recurrence that never divides.

    Raises ValueError for an axis that does not exist, or none given where there are several.
    """
    if dim is not None:
        axis = given_axis("cumulative_prod", axis, dim)
    return scanned(_cumulative_prod, x, axis, dtype, include_initial)


# -- products without one of the factors -----------------------------------------------------------


def _others(x: Array, result: Array, xp: ModuleType) -> None:
    """Along the last axis: the product of those before, times the product of those behind."""
    result[..., :1] = 1
    result[..., 1:] = xp.cumprod(x[..., :-1], axis=-1)
    result[..., :-1] *= xp.cumprod(x[..., :0:-1], axis=-1)[..., ::-1]


def _prod_others_cpu(x: Array, *, axis: int, out: Array | None = None) -> Array:
    if out is None:
        out = host().empty(x.shape, x.dtype, "prod_others")
    rows, result = np.moveaxis(x, axis, -1), np.moveaxis(out, axis, -1)
    if x.size:
        work = computed_in(x.dtype)
        for tile in row_tiles(rows.shape):
            part = rows[tile].astype(work, copy=False)
            wide = result[tile] if work == x.dtype else np.empty(part.shape, work)
            _others(part, wide, np)
            result[tile] = wide
    return out


def _prod_others_gpu(x: Array, *, axis: int, out: Array | None = None) -> Array:
    xp, work = cupy(), computed_in(x.dtype)
    result = xp.empty(x.shape, work)
    _others(xp.moveaxis(x, axis, -1).astype(work), xp.moveaxis(result, axis, -1), xp)
    if out is None:
        return result.astype(x.dtype, copy=False)
    out[...] = result
    return out


def _composed_others(x: Tensor, *, axis: int) -> Tensor:
    back, front = along(axis, None, None, -1), along(axis, 0, -1)
    before, behind = (
        recorded.slice(recorded.cumulative_prod(a, axis=axis, include_initial=True), key=front)
        for a in (x, recorded.slice(x, key=back)))
    return recorded.multiply(before, recorded.slice(behind, key=back))


prod_others = op(
    "prod_others", cpu=_prod_others_cpu, gpu=_prod_others_gpu, backward=None, tangent=None,
    composed=_composed_others, batch=unchanged,
    samples=[Sample((s,), draw, {"axis": a}) for draw in (normal, below(2))
             for s, a in (((7,), -1), ((3, 5), -1), ((3, 5), -2), ((2, 3, 4), -2), ((2, 1), -1),
                          ((0, 3), -1))],
    doc="For each element the product of the others along `axis`: the gradient of a product. Rows "
        "beyond a tile need a buffer of their length.",
)


# -- product ---------------------------------------------------------------------------------------


def product_of_others(ns: Namespace, x: Array, axis: tuple[int, ...]) -> Array:
    """For each element the product of the others over `axis` (one axis or more), of x's shape."""
    last, rest = axis[-1], axis[:-1]
    others = ns.prod_others(x, axis=last)
    if not rest:
        return others
    rows = product_of_others(ns, ns.prod(x, axis=(last,), keepdims=True), rest)
    return ns.multiply(others, rows, out=others)


def _prod_backward(ns: Namespace, step: Step, g: Array) -> None:
    (x,) = step.saved
    axis = step.params["axis"]
    if x.dtype != g.dtype:
        x = ns.astype(x, dtype=g.dtype)
    others = product_of_others(ns, conjugated(ns, x), axis)
    g = ns.reshape(g, shape=kept_shape(x.shape, axis, True))
    step.give(0, ns.multiply(g, others, out=others))


def _prod_tangent(
    ns: Namespace, primals: Values, tangents: Values, out: Array, params: Params
) -> Array:
    return ns.sum(ns.multiply(tangents[0], product_of_others(ns, primals[0], params["axis"])),
                  **params)


_prod = op(
    "prod", autocast="float32",
    cpu=reduction_cpu("prod", np.multiply), gpu=reduction_gpu("prod", widens=True),
    complex=True, saves={"x": "x"}, backward=_prod_backward, tangent=_prod_tangent, batch=unchanged,
    samples=[*reduction_samples(no_axis=False),
             Sample(((2, 4),), below(2), {"axis": (-2, -1), "keepdims": False}),
             Sample(((4, 3),), lambda rng, s: rng.choice([0.0, 1.5, -0.5], s),
                    {"axis": (-2,), "keepdims": False})],
    reference=lambda torch, x, axis, keepdims: _torch_prod(x, axis, keepdims),
    doc="The product over `axis`, a tuple of at least one. Its gradient divides by nothing.",
)


def _torch_prod(x: Any, axis: tuple[int, ...], keepdims: bool) -> Any:
    for a in axis:  # the first of all first: those behind keep their place from the end
        x = x.prod(dim=a, keepdim=keepdims)
    return x


@takes_arrays
def prod(
    x: Tensor, /, axis: Axis = None, *, dtype: DTypeLike | None = None, keepdims: bool = False,
    dim: Axis = None, keepdim: bool | None = None,
) -> Tensor:
    """The product over `axis` (all by default), in `dtype`, by default x's own.

    Small integers multiply as int64, small unsigned ones as uint64; half precision in float32. The
    gradient is right where elements are zero, too: it multiplies the others and never divides.
    """
    if dim is not None or keepdim is not None:
        axis, keepdims = torch_words("prod", axis, dim, keepdims, keepdim)
    axes = normalize_axis(axis, x.ndim, "prod")
    dtype = accumulator(x.dtype) if dtype is None else element_type(dtype)
    if not axes:
        return clone(x if dtype is None else x.astype(dtype))
    if dtype is None:
        return rounded_last(_prod, x, axis=axes, keepdims=keepdims)
    return _prod(x, axis=axes, keepdims=keepdims, dtype=dtype)

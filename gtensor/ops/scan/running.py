"""What the first 1, 2, ... elements of a row hold: their extreme, and the logarithm of their sum of
exponentials.

An extreme is an op that gives places; the values are taken by them, so that gradients are those of
taking. The gradient of the logarithm on the CPU is a sum in the logarithmic domain, which NumPy
accumulates in one pass; on CUDA, and where it is recorded, it is a linear recurrence whose factors
are at most 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gtensor.backend import host
from gtensor.backend.cuda import cupy
from gtensor.engine.handle.namespaces import recorded
from gtensor.engine.handle.tensor import Tensor
from gtensor.engine.tape.op import op
from gtensor.engine.tape.samples import Sample, below, distinct
from gtensor.ops.arrange.gather_along import take_along_axis
from gtensor.ops.arrange.shape import along, axis_index, lone, moveaxis, reshape
from gtensor.ops.define.arguments import floats, takes_arrays
from gtensor.ops.define.batching import trailing, unchanged
from gtensor.ops.define.cpu_tiles import computed_in, row_tiles, sortable
from gtensor.ops.define.path_builders import settled
from gtensor.ops.define.pointwise import zero_tangent
from gtensor.ops.scan.linear_scan import forward_gpu
from gtensor.ops.scan.scan import accumulated, shifted_keys
from gtensor.system.written_code import enter

if TYPE_CHECKING:
    from gtensor.backend.typing import Array, Params
    from gtensor.engine.handle.namespaces import Namespace
    from gtensor.engine.walk.typing import Step, Values

__all__: list[str] = []  # the functions are public in gtensor, which imports them when used


class RunningExtreme(NamedTuple):
    """The extremes of the first 1, 2, ... elements, and where they are."""

    values: Tensor
    indices: Tensor


# -- extremes --------------------------------------------------------------------------------------


def _places_cpu(x: Array, *, largest: bool, out: Array | None = None) -> Array:
    """By tiles of whole rows."""
    if out is None:
        out = host().empty(x.shape, np.dtype(np.int64), "running_extreme")
    extreme = np.maximum if largest else np.minimum
    if x.size:
        numbers = np.arange(x.shape[-1])
        for tile in row_tiles(x.shape):
            part = sortable(x[tile])
            found = (part == extreme.accumulate(part, axis=-1)) | (part != part)
            np.maximum.accumulate(np.where(found, numbers, 0), axis=-1, out=out[tile])
    return out


def _places_gpu(x: Array, *, largest: bool, out: Array | None = None) -> Array:
    """In log2(columns) steps: each joins the parts before an element that twice as many have."""
    xp = cupy()
    rows, size = sortable(x), x.shape[-1]
    places = xp.array(xp.broadcast_to(xp.arange(size), x.shape))
    distance = 1
    while distance < size:
        own, before = places[..., distance:], places[..., :-distance]
        later, earlier = (xp.take_along_axis(rows, p, -1) for p in (own, before))
        lost = earlier > later if largest else earlier < later
        lost = (lost | (earlier != earlier)) & (later == later)  # a NaN stays, the last of them
        places[..., distance:] = xp.where(lost, before, own)
        distance *= 2
    return settled(places, out)


_extreme = op(
    "running_extreme", flops=0, cpu=_places_cpu, gpu=_places_gpu, backward=None,
    tangent=zero_tangent, batch=unchanged,
    samples=[Sample((s,), draw, {"largest": largest}) for draw, s in (
        (distinct, (7,)), (below(3), (3, 9)), (below(2), (2, 1, 4)), (distinct, (0, 3)),
        (distinct, (3, 0))) for largest in (True, False)],
    reference=lambda torch, x, largest: (torch.cummax if largest else torch.cummin)(x, -1).indices,
    doc="The place of the largest (or smallest) of the first 1, 2, ... elements of each row, the "
        "last of equal ones; int64.",
)


@takes_arrays
def cummax(x: Tensor, dim: int) -> RunningExtreme:
    """The largest of the first 1, 2, ... elements along `dim`: named tuple (values, indices).

    The index is of the last of equal ones; from the first NaN on all are NaN. Gradients flow
    through the values, on a GPU summed by atomics. As PyTorch's; NumPy's `maximum.accumulate` has
    the values. Raises AxisError for a dim not there, TypeError for complex numbers.

        values, indices = gt.cummax(gt.tensor([1.0, 3.0, 2.0]), 0)     # [1, 3, 3], [0, 1, 1]
    """
    return _running("cummax", x, dim, True)


@takes_arrays
def cummin(x: Tensor, dim: int) -> RunningExtreme:
    """The smallest of the first 1, 2, ... elements along `dim`: named tuple (values, indices).

    As `cummax`.
    """
    return _running("cummin", x, dim, False)


def _running(name: str, x: Tensor, dim: int, largest: bool) -> RunningExtreme:
    _refuse_complex(name, x)
    if lone(dim, x.ndim):
        found = _running(name, reshape(x, (1,)), 0, largest)
        return RunningExtreme(*(reshape(part, ()) for part in found))
    axis = axis_index(dim, x.ndim, name)
    places = moveaxis(_extreme(moveaxis(x, axis, -1), largest=largest), -1, axis)
    return RunningExtreme(take_along_axis(x, places, axis) if x.size else x, places)


def _refuse_complex(name: str, x: Tensor) -> None:
    if x.dtype.kind == "c":
        raise TypeError(f"{name} of a tensor of dtype {x.dtype}; wanted real numbers")


# -- logarithms of sums of exponentials ------------------------------------------------------------


def _forward_cpu(x: Array, *, reverse: bool, out: Array | None = None) -> Array:
    return accumulated(x, -1, None, None, reverse, np.logaddexp, out)


def _largest_so_far(x: Array) -> Array:
    """The values of `cummax` along the last axis."""
    return cupy().take_along_axis(x, _places_gpu(x, largest=True), -1)


def _forward_gpu(x: Array, *, reverse: bool, out: Array | None = None) -> Array:
    """The largest so far, and the sum of what exponentials are left of it."""
    xp = cupy()
    rows = x.astype(computed_in(x.dtype), copy=False)
    rows = rows[along(-1, None, None, -1)] if reverse else rows
    top = _largest_so_far(rows) if rows.size else rows
    base = xp.where(xp.isfinite(top), top, 0)
    link = xp.zeros_like(rows)
    link[..., 1:] = xp.where(top[..., :-1] == -np.inf, 0, xp.exp(base[..., :-1] - base[..., 1:]))
    found = forward_gpu(link[..., None], xp.exp(rows - base)[..., None], reverse=False)[..., 0]
    found = xp.log(found) + base
    found = found[along(-1, None, None, -1)] if reverse else found
    return settled(found.astype(x.dtype, copy=False), out)


def _weights(ns: Namespace, x: Any, y: Any) -> Any:
    """exp(x - y): the share of an element in a sum. 0 where the sum is one of nothing."""
    return ns.exp(ns.subtract(x, _base(ns, y)))


def _base(ns: Namespace, y: Any) -> Any:
    return ns.where(ns.equal(y, float("-inf")), 0.0, y)


def _links(ns: Namespace, y: Any, reverse: bool, onto: bool) -> Any:
    """The share of each sum in the next one: at the place of the next one if `onto`, else its own.
    """
    later, earlier = shifted_keys(-1, reverse)
    share = _weights(ns, ns.slice(y, key=earlier), ns.slice(y, key=later))
    return ns.unslice(share, key=later if onto else earlier, shape=y.shape)


def _scanned(ns: Namespace, link: Any, x: Any, reverse: bool) -> Any:
    """The recurrence along the last axis."""
    shape = (*x.shape, 1)
    found = ns.linear_scan(ns.reshape(link, shape=shape), ns.reshape(x, shape=shape), None,
                           reverse=reverse)
    return ns.reshape(found, shape=x.shape)


def _grad_composed(g: Tensor, x: Tensor, y: Tensor, *, reverse: bool) -> Tensor:
    ns = recorded
    total = _scanned(ns, _links(ns, y, reverse, False), g, not reverse)
    return ns.multiply(_weights(ns, x, y), total)


def _grad_cpu(g: Array, x: Array, y: Array, *, reverse: bool, out: Array | None = None) -> Array:
    """exp(x + log(the sum of g / exp(y) from here on)), of positive and negative g each."""
    if out is None:
        out = host().empty(x.shape, x.dtype, "logcumsumexp_grad")
    work, order = computed_in(x.dtype), along(-1, None, None, 1 if reverse else -1)
    for tile in row_tiles(x.shape) if x.size else ():
        slope, place, total = (a[tile].astype(work, copy=False)[order] for a in (g, x, y))
        base = np.where(total == -np.inf, np.inf, total)  # of which no gradient comes
        found = np.zeros((), work)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            for sign in (1, -1):
                part = np.log(np.maximum(sign * slope, 0)) - base
                found = found + sign * np.exp(place + np.logaddexp.accumulate(part, -1))
        out[tile] = found[order]
    return out


def _grad_gpu(g: Array, x: Array, y: Array, *, reverse: bool, out: Array | None = None) -> Array:
    xp, work = cupy(), computed_in(x.dtype)
    slope, place, total = (a.astype(work, copy=False) for a in (g, x, y))
    base = xp.where(total == -np.inf, 0, total)
    later, earlier = shifted_keys(-1, reverse)
    link = xp.zeros_like(total)
    link[earlier] = xp.exp(total[earlier] - base[later])
    found = forward_gpu(link[..., None], slope[..., None], reverse=not reverse)[..., 0]
    return settled((xp.exp(place - base) * found).astype(x.dtype, copy=False), out)


def _backward(ns: Namespace, step: Step, g: Array) -> None:
    x, y = step.saved
    step.give(0, ns.logcumsumexp_grad(g, x, y, reverse=step.params["reverse"]))


def _tangent(
    ns: Namespace, primals: Values, tangents: Values, out: Array, params: Params
) -> Any:
    reverse = params["reverse"]
    moved = ns.multiply(_weights(ns, primals[0], out), tangents[0])
    return _scanned(ns, _links(ns, out, reverse, True), moved, reverse)


def _torch_forward(torch: Any, x: Any, reverse: bool) -> Any:
    return torch.logcumsumexp(x.flip(-1), -1).flip(-1) if reverse else torch.logcumsumexp(x, -1)


op(
    "logcumsumexp_grad", inputs="g x y", cpu=_grad_cpu, gpu=_grad_gpu, backward=None, tangent=None,
    composed=_grad_composed, batch=trailing,
    samples=None,  # y must be that of x: tested through logcumsumexp
    doc="The gradient of logcumsumexp at x, where y is its value.",
)

_logcumsumexp = op(
    "logcumsumexp", autocast="float32", floating=True, cpu=_forward_cpu, gpu=_forward_gpu,
    saves={"x": "x out"}, backward=_backward, tangent=_tangent, batch=unchanged,
    samples=[Sample((s,), params={"reverse": reverse}) for s in (
        (7,), (3, 5), (2, 1, 4), (0, 3), (3, 0), (3, 1)) for reverse in (False, True)],
    reference=_torch_forward,
    doc="The logarithm of the sum of the exponentials of the first 1, 2, ... elements of each row. "
        "Parameters: reverse (of the last 1, 2, ... ones).",
)


@takes_arrays
def logcumsumexp(x: Tensor, dim: int) -> Tensor:
    """log(sum of exp(x)) of the first 1, 2, ... elements along `dim`, which does not overflow.

    As PyTorch's. -inf is the sum of nothing and gets no gradient. Integers become the default dtype
    first. Raises AxisError for a dim not there, TypeError for complex numbers.
    """
    _refuse_complex("logcumsumexp", x)
    x = floats(x)
    if lone(dim, x.ndim):
        return reshape(_logcumsumexp(reshape(x, (1,)), reverse=False), ())
    axis = axis_index(dim, x.ndim, "logcumsumexp")
    return moveaxis(_logcumsumexp(moveaxis(x, axis, -1), reverse=False), -1, axis)


enter(globals())

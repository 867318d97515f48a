"""Batch rules of norms: examples are rows, images or channels of one call of the op.

Statistics are those of each example. Where all examples share x, it is normalized once: a formula
in other ops then takes the op's place. In recorded ops a formula takes the statistics from x, which
has a history, as the ops' composed forms do.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

from gtensor.engine.handle.namespaces import recorded
from gtensor.ops.activations.activation import ACTIVATIONS
from gtensor.ops.define.batching import (
    Inputs,
    Mapped,
    apart,
    batch_axis_at,
    batch_axis_first,
    batch_size,
    behind,
    in_dtype,
    merged,
    or_none,
    spread,
)

if TYPE_CHECKING:
    from gtensor.backend.typing import Params, Path
    from gtensor.engine.handle.namespaces import Namespace


def _inverse_deviation(ns: Namespace, var: Any, eps: float) -> Any:
    return ns.divide(1.0, ns.sqrt(ns.add(var, eps)))


# -- layer norm and RMS norm -----------------------------------------------------------------------


def rows(ns: Namespace, run: Path, inputs: Inputs, mapped: Mapped, params: Params) -> Any:
    """Of x, weight and perhaps bias: a weight of each example multiplies what is normalized."""
    x, *affine = inputs
    if not any(mapped[1:]):
        return run(*inputs, **params)
    y, *sums = run(x, *[None] * len(affine), **params)
    ndim, size = x.ndim - mapped[0], batch_size(inputs, mapped)
    for function, a, m in zip((ns.multiply, ns.add), affine, mapped[1:], strict=False):
        if a is not None:
            y = function(y, behind(ns, a, m, ndim))
    return y, *[spread(ns, s, mapped[0], size) for s in sums]


def rows_dx(ns: Namespace, run: Path, inputs: Inputs, mapped: Mapped, params: Params) -> Any:
    """Of g, x, weight and the statistics of x."""
    g, x, weight, *sums = inputs
    shares = [*mapped]
    if mapped[2]:
        ndim = g.ndim - mapped[0]
        g, weight, shares[0] = ns.multiply(g, behind(ns, weight, True, ndim)), None, True
    size = batch_size(inputs, mapped)
    g, x, *sums = [spread(ns, a, m, size) for a, m in zip(
        (g, x, *sums), (*shares[:2], *shares[3:]), strict=True)]
    return run(g, x, weight, *sums, **params)


def _rows_dweight(ns: Namespace, inputs: Inputs, mapped: Mapped, dims: int) -> Any:
    """Of g, x and its statistics: the sum over an example's rows is one over its own axes."""
    g, x, *sums = inputs
    *mean, rstd = [ns.reshape(s, shape=(*s.shape, *(1,) * dims)) for s in sums]
    product = ns.multiply(g, ns.multiply(ns.subtract(x, mean[0]) if mean else x, rstd))
    total = ns.sum(product, axis=tuple(range(mapped[0] - g.ndim, -dims)))
    return spread(ns, in_dtype(ns, total, g.dtype), any(mapped), batch_size(inputs, mapped))


def rows_grads(
    ns: Namespace, run: Path, inputs: Inputs, mapped: Mapped, params: Params
) -> tuple[Any, ...]:
    """Of g, x, weight and the statistics of x: three gradients, None where not needed."""
    (g, x, _, *sums), size = inputs, batch_size(inputs, mapped)
    own = {name: value for name, value in params.items() if name != "needs"}
    needs, dx, dweight, dbias = params["needs"], None, None, None
    if needs[0]:
        dx = rows_dx(ns, ns.layer_norm_dx if len(sums) > 1 else ns.rms_norm_dx, inputs, mapped, own)
    if needs[1]:
        dweight = _rows_dweight(ns, (g, x, *sums), (*mapped[:2], *mapped[3:]), own["dims"])
    if needs[2]:
        dbias = ns.sum(g, axis=tuple(range(mapped[0] - g.ndim, -own["dims"])))
        dbias = spread(ns, dbias, mapped[0], size)
    return dx, dweight, dbias


# -- group norm: examples are images ---------------------------------------------------------------


def _images(ns: Namespace, x: Any) -> Any:
    """(N, images, ...) as (N * images, ...)."""
    return None if x is None else ns.reshape(x, shape=(x.shape[0] * x.shape[1], *x.shape[2:]))


def _per_channel(ns: Namespace, a: Any, ndim: int) -> Any:
    """A parameter (C) or (N, C) beside (N, images, C, ...), whose examples have `ndim` axes."""
    return ns.reshape(a, shape=(*a.shape[:-1], 1, a.shape[-1], *(1,) * (ndim - 2)))


@or_none
def groups(ns: Namespace, run: Path, inputs: Inputs, mapped: Mapped, params: Params) -> Any:
    """Of x, weight and bias."""
    x, *affine = inputs
    size, ndim = batch_size(inputs, mapped), x.ndim - mapped[0]
    inside = [None, None] if any(mapped[1:]) else affine
    if mapped[0]:
        y, *sums = [ns.reshape(a, shape=(*x.shape[:2], *a.shape[1:]))
                    for a in run(_images(ns, x), *inside, **params)]
    else:
        y, *sums = run(x, *inside, **params)
    if any(mapped[1:]):
        for function, a in zip((ns.multiply, ns.add), affine, strict=True):
            y = y if a is None else function(y, _per_channel(ns, a, ndim))
    return y, *[spread(ns, s, mapped[0], size) for s in sums]


def _normalized_groups(
    ns: Namespace, x: Any, m: bool, mean: Any, var: Any, groups: int, eps: float
) -> tuple[Any, Any]:
    """xhat in groups (..., images, groups, values), and 1 / deviation beside it."""
    lead = x.shape[:1 + m]
    grouped = ns.reshape(x, shape=(*lead, groups, prod(x.shape[1 + m:]) // groups))
    if ns is recorded:
        deviation = ns.subtract(grouped, ns.mean(grouped, axis=(-1,), keepdims=True))
        var = ns.mean(ns.square(deviation), axis=(-1,), keepdims=True)
    else:
        mean, var = (ns.reshape(a, shape=(*a.shape, 1)) for a in (mean, var))
        deviation = ns.subtract(grouped, mean)
    rstd = _inverse_deviation(ns, var, eps)
    return ns.multiply(deviation, rstd), rstd


@or_none
def groups_sums(ns: Namespace, run: Path, inputs: Inputs, mapped: Mapped, params: Params) -> Any:
    """Of g, x and its mean and variance: (N, 2, images, C)."""
    if all(mapped):
        lead = inputs[0].shape[:3]
        sums = run(*[_images(ns, a) for a in inputs], **params)  # (2, N * images, C)
        return batch_axis_first(ns, ns.reshape(sums, shape=(2, *lead)), 1)
    (g, x, *statistics), size = inputs, batch_size(inputs, mapped)
    xhat, rstd = _normalized_groups(ns, x, mapped[1], *statistics, **params)
    xhat = ns.reshape(xhat, shape=(*xhat.shape[:-2], *x.shape[1 + mapped[1]:]))
    given = mapped[0], xhat.ndim > g.ndim - mapped[0]
    parts = []
    for part in _plane_sums(ns, in_dtype(ns, g, rstd.dtype), xhat, given):
        part = spread(ns, part, part.ndim == 3, size)  # (N, images, C)
        parts.append(ns.reshape(part, shape=(size, 1, *part.shape[1:])))
    return ns.concat(*parts, axis=-3, sizes=(1, 1))


@or_none
def groups_dx(ns: Namespace, run: Path, inputs: Inputs, mapped: Mapped, params: Params) -> Any:
    """Of g, x, weight, mean, variance and the op's sums."""
    g, x, weight, mean, var, sums = inputs
    mg, mx, mw, *shares = mapped
    if mw:
        g = ns.multiply(g, _per_channel(ns, weight, g.ndim - mg))
        sums = ns.multiply(sums, ns.reshape(weight, shape=(len(weight), 1, 1, weight.shape[1])))
        mg, weight, shares[2] = True, None, True
    if mg and mx and all(shares):
        n, two, images, width = sums.shape
        totals = ns.reshape(batch_axis_at(ns, sums, 1), shape=(two, n * images, width))
        found = run(_images(ns, g), _images(ns, x), weight, _images(ns, mean), _images(ns, var),
                    totals, **params)
        return ns.reshape(found, shape=g.shape)
    if weight is not None:
        g = ns.multiply(g, _per_channel(ns, weight, g.ndim - mg))
        sums = ns.multiply(sums, weight)
    found = _groups_projected(ns, (g, x, mean, var, sums), (mg, mx), **params)
    return ns.reshape(found, shape=(batch_size(inputs, mapped), *x.shape[mx:]))


def groups_grads(
    ns: Namespace, run: Path, inputs: Inputs, mapped: Mapped, params: Params
) -> tuple[Any, ...]:
    """Of g, x, weight, mean and variance: three gradients, None where not needed."""
    own = {name: value for name, value in params.items() if name not in ("needs", "out")}
    known = [i for i in range(len(inputs)) if i != 2]
    sums = groups_sums(ns, ns.group_norm_sums, [inputs[i] for i in known],
                       tuple([mapped[i] for i in known]), own)
    needs, dx = params["needs"], None
    if needs[0]:
        dx = groups_dx(ns, ns.group_norm_dx, (*inputs, sums), (*mapped, True), own)
    rows = [ns.sum(ns.slice(sums, key=(..., 2 - i, slice(None), slice(None))), axis=(-2,))
            if needs[i] else None for i in (1, 2)]
    return dx, *rows


def _groups_projected(
    ns: Namespace, arrays: Inputs, mapped: Mapped, groups: int, eps: float
) -> Any:
    """rstd * (g - mean(g) - xhat * mean(g * xhat)), in groups (N, images, groups, values)."""
    g, x, mean, var, sums = arrays
    xhat, rstd = _normalized_groups(ns, x, mapped[1], mean, var, groups, eps)
    values = xhat.shape[-1]
    grouped = ns.reshape(g, shape=(*g.shape[:1 + mapped[0]], groups, values))
    each = ns.reshape(sums, shape=(*sums.shape[:-1], groups, sums.shape[-1] // groups))
    means = ns.multiply(ns.sum(each, axis=(-1,), keepdims=True), 1 / max(1, values))
    low, tilt = (ns.slice(means, key=(..., i, *(slice(None),) * 3)) for i in (0, 1))
    level = ns.add(low, ns.multiply(xhat, tilt))
    return in_dtype(ns, ns.multiply(rstd, ns.subtract(grouped, level)), g.dtype)


def _plane_sums(ns: Namespace, g: Any, xhat: Any, mapped: Mapped) -> tuple[Any, Any]:
    """The sums of g and of g * xhat over the positions of (..., images, C, ...).

    The second is a product of vectors: no array of all examples' terms is made.
    """
    g, xhat = (ns.reshape(a, shape=(*a.shape[:2 + m], prod(a.shape[2 + m:])))
               for a, m in zip((g, xhat), mapped, strict=True))
    return ns.sum(g, axis=(-1,)), ns.vecdot(g, xhat)


# -- batch norm: examples are channels -------------------------------------------------------------


def _tiled(ns: Namespace, a: Any, mapped: bool, size: int) -> Any:
    """A parameter (C) or (N, C) as one of N * C channels."""
    return None if a is None else ns.reshape(
        spread(ns, a, mapped, size), shape=(size * a.shape[-1],))


def _beside(ns: Namespace, a: Any, mapped: bool, ndim: int) -> Any:
    """A parameter (C) or (N, C) beside (N, images, C, ...), whose examples have `ndim` axes."""
    lead = (a.shape[0], 1) if mapped else ()
    return ns.reshape(a, shape=(*lead, a.shape[-1], *(1,) * (ndim - 2)))


def _own_statistics(ns: Namespace, x: Any, mapped: bool) -> tuple[Any, Any]:
    """Mean and variance (C) of x (images, C, ...), or (N, C), in ops that have derivatives."""
    ndim = x.ndim - mapped
    axes = (-ndim, *range(2 - ndim, 0))
    deviation = ns.subtract(x, ns.mean(x, axis=axes, keepdims=True))
    return ns.mean(x, axis=axes), ns.mean(ns.square(deviation), axis=axes)


class _Formula:
    """The terms of batch norm where not all of its arrays have a batch axis.

    `xhat` is the normalized x, `y` the value before the activation; each (N, images, C, ...) or,
    where all examples share it, (images, C, ...). `ndim` is that of an example.
    """

    def __init__(self, ns: Namespace, arrays: Inputs, mapped: Mapped, params: Params) -> None:
        x, self.weight, bias, mean, var = arrays
        (mx, self.mw, mb, *shares), self.ns = mapped, ns
        self.ndim: int = x.ndim - mx
        if params["training"] and (mean is None or ns is recorded):
            (mean, var), shares = _own_statistics(ns, x, mx), [mx, mx]
        self.statistics = [(mean, shares[0]), (var, shares[1])]
        self.rstd = self.wide(_inverse_deviation(ns, var, params["eps"]), shares[1])
        self.xhat = ns.multiply(ns.subtract(x, self.wide(mean, shares[0])), self.rstd)
        self.y = self.xhat if self.weight is None else ns.multiply(
            self.xhat, self.wide(self.weight, self.mw))
        self.y = self.y if bias is None else ns.add(self.y, self.wide(bias, mb))
        self.activation, self.parameter = params["activation"], params["parameter"]

    def wide(self, a: Any, mapped: bool) -> Any:
        return _beside(self.ns, a, mapped, self.ndim)

    def output(self) -> Any:
        return ACTIVATIONS[self.activation][0](self.ns, self.y, self.parameter)

    def before_activation(self, g: Any) -> Any:
        """The gradient of y, for g of the output."""
        return ACTIVATIONS[self.activation][1](self.ns, g, self.y, self.parameter)


@or_none
def channels(ns: Namespace, run: Path, inputs: Inputs, mapped: Mapped, params: Params) -> Any:
    """Of x, weight, bias, mean and variance: each example has the statistics of its own images."""
    (x, *rest), size = inputs, batch_size(inputs, mapped)
    if not mapped[0]:
        terms = _Formula(ns, inputs, mapped, params)
        y = spread(ns, terms.output(), True, size)
        statistics = [spread(ns, a, m, size) for a, m in terms.statistics]
        return in_dtype(ns, y, x.dtype), *statistics
    if not params["training"] and not any(mapped[1:]):
        y, *statistics = run(_images(ns, x), *rest, **params)
        return ns.reshape(y, shape=x.shape), *[spread(ns, a, False, size) for a in statistics]
    given = [_tiled(ns, a, m, size) for a, m in zip(rest, mapped[1:], strict=True)]
    y, *statistics = run(merged(ns, x, 1), *given, **params)
    return apart(ns, y, 1, size), *[ns.reshape(a, shape=(size, -1)) for a in statistics]


@or_none
def channels_statistics(
    ns: Namespace, run: Path, inputs: Inputs, mapped: Mapped, params: Params
) -> Any:
    """Of x: (N, numbers, C)."""
    (x,) = inputs
    return apart(ns, run(merged(ns, x, 1), **params), 1, len(x))


@or_none
def channels_sums(ns: Namespace, run: Path, inputs: Inputs, mapped: Mapped, params: Params) -> Any:
    """Of g, x, weight, bias, mean and variance: (N, 2, C)."""
    (g, x, *rest), size = inputs, batch_size(inputs, mapped)
    if mapped[0] and mapped[1]:
        given = [_tiled(ns, a, m, size) for a, m in zip(rest, mapped[2:], strict=True)]
        return apart(ns, run(merged(ns, g, 1), merged(ns, x, 1), *given, **params), 1, size)
    terms = _Formula(ns, inputs[1:], mapped[1:], params)
    dy = in_dtype(ns, terms.before_activation(g), terms.rstd.dtype)
    shares = dy.ndim > terms.ndim, terms.xhat.ndim > terms.ndim
    parts = []
    for part in _plane_sums(ns, dy, terms.xhat, shares):
        part = ns.sum(part, axis=(-2,))
        part = spread(ns, part, part.ndim == 2, size)
        parts.append(ns.reshape(part, shape=(size, 1, part.shape[1])))
    return ns.concat(*parts, axis=-2, sizes=(1, 1))


@or_none
def channels_dx(ns: Namespace, run: Path, inputs: Inputs, mapped: Mapped, params: Params) -> Any:
    """Of g, x, weight, bias, mean, variance and the op's sums, None where they are not needed."""
    (g, x, *rest, sums), size = inputs, batch_size(inputs, mapped)
    if mapped[0] and mapped[1]:
        given = [_tiled(ns, a, m, size) for a, m in zip(rest, mapped[2:-1], strict=True)]
        totals = None if sums is None else merged(ns, spread(ns, sums, mapped[-1], size), 1)
        return apart(
            ns, run(merged(ns, g, 1), merged(ns, x, 1), *given, totals, **params), 1, size)
    terms = _Formula(ns, inputs[1:-1], mapped[1:-1], params)
    dy = terms.before_activation(g)
    if params["training"]:
        count = params.get("count") or prod(x.shape[mapped[1]:]) // x.shape[1 + mapped[1]]
        shift, slope = (terms.wide(
            ns.multiply(ns.slice(sums, key=(..., i, slice(None))), 1 / count), mapped[-1])
            for i in (0, 1))
        dy = ns.subtract(ns.subtract(dy, shift), ns.multiply(terms.xhat, slope))
    scale = terms.rstd if terms.weight is None else ns.multiply(
        terms.rstd, terms.wide(terms.weight, terms.mw))
    found = in_dtype(ns, ns.multiply(dy, scale), x.dtype)
    return spread(ns, found, found.ndim > terms.ndim, size)


@or_none
def channels_grads(ns: Namespace, run: Path, inputs: Inputs, mapped: Mapped, params: Params) -> Any:
    """Of g, x, weight, bias, mean and variance: three gradients."""
    sums = channels_sums(ns, ns.batch_norm_sums, inputs, mapped, params)
    dx = channels_dx(ns, ns.batch_norm_dx, (*inputs, sums), (*mapped, True), params)
    shift, slope = (ns.slice(sums, key=(..., i, slice(None))) for i in (0, 1))
    return dx, shift, slope


@or_none
def inverted(ns: Namespace, run: Path, inputs: Inputs, mapped: Mapped, params: Params) -> Any:
    """Of z, weight, bias, mean and variance: the input of an in-place batch norm."""
    (z, *rest), size = inputs, batch_size(inputs, mapped)
    given = [_tiled(ns, a, m, size) for a, m in zip(rest, mapped[1:], strict=True)]
    whole = merged(ns, spread(ns, z, mapped[0], size), 1)
    return apart(ns, run(whole, *given, **params), 1, size)


@or_none
def inverted_grad(ns: Namespace, run: Path, inputs: Inputs, mapped: Mapped, params: Params) -> Any:
    """Of g and what `inverted` takes, by x and the ops of batch norm."""
    left_out = "gather", "moving", "out"
    options = {name: value for name, value in params.items() if name not in left_out}
    (g, *known), (mg, *shares) = inputs, mapped
    given = known[1] if options.pop("absolute", False) else None
    if given is not None:
        known[1] = ns.abn_scale(given, eps=options["eps"])
    own = {name: options[name] for name in ("eps", "activation", "parameter")}
    find = ns.inplace_abn_input
    x = inverted(ns, find, known, shares, own) if any(shares) else find(*known, **own)
    arrays, stacked = (g, x, *known[1:]), (mg, any(shares), *shares[1:])
    sums = channels_sums(ns, ns.batch_norm_sums, arrays, stacked, options)
    totals, count = sums, None
    if params["gather"] is not None:
        totals, count = ns.joint_means(
            sums, count=prod(x.shape[stacked[1]:]) // x.shape[1 + stacked[1]],
            gather=params["gather"]), 1
    dx = channels_dx(ns, ns.batch_norm_dx, (*arrays, totals), (*stacked, True),
                     {**options, "count": count})
    shift, slope = (ns.slice(sums, key=(..., i, slice(None))) for i in (0, 1))
    return dx, shift, slope if given is None else ns.abs_grad(slope, given)

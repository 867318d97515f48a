"""Sums of B-splines at any places: the sampling of images, and its adjoint.

Of coefficients c on a grid, `spline_sample` gives at each place the sum of c times a product of
splines, one for each axis; or a derivative of it, of so many orders along each axis.
`spline_spread` is its adjoint. The slope by a coordinate is a sample of one order more, and so both
are closed under differentiation: every derivative is one of the two.
"""

from __future__ import annotations

from fractions import Fraction
from functools import cache, lru_cache, partial
from itertools import product
from math import comb, factorial, prod
from typing import TYPE_CHECKING, Any

import numpy as np

from gtensor.backend import host
from gtensor.backend.cuda import cupy
from gtensor.backend.kernels import BLOCK, raw
from gtensor.engine.tape.op import op
from gtensor.engine.tape.samples import Sample, normal
from gtensor.ops.define.batching import trailing
from gtensor.ops.define.cpu_tiles import computed_in
from gtensor.ops.define.path_builders import settled
from gtensor.settings import settings

if TYPE_CHECKING:
    from gtensor.backend.typing import Array, Params
    from gtensor.engine.handle.namespaces import Namespace
    from gtensor.engine.walk.typing import Step, Values

__all__: list[str] = []  # gtensor.ndimage has the functions

MODES = {"constant": 0, "nearest": 1, "mirror": 2, "reflect": 3, "wrap": 4, "grid-wrap": 5}
"""The codes of what lies beyond the edges, in spline_sampling.cu, too."""

MOST_AXES = 6  # GT_MOST_AXES of spline_sampling.cu
MOST_ORDER = 5

Orders = tuple[int, ...]

# -- splines ---------------------------------------------------------------------------------------


@cache
def _pieces(order: int, derivative: int) -> tuple[tuple[float, ...], ...]:
    """Of each of the order + 1 splines that reach a place: the coefficients of its polynomial.

    In t, from 0 to 1 between two knots, the highest power first.
    """
    found = []
    for tap in range(order + 1):
        powers = [Fraction(0)] * (order + 1)  # the lowest first
        for s in range(tap, order + 1):
            sign = Fraction((-1) ** (s - tap) * comb(order + 1, s - tap), factorial(order))
            for p in range(order + 1):
                powers[p] += sign * comb(order, p) * (order - s) ** (order - p)
        for _ in range(derivative):
            powers = [p * c for p, c in enumerate(powers)][1:]
        found.append(tuple(float(c) for c in reversed(powers)))
    return tuple(found)


def _tap_mode(mode: str) -> str:
    """How taps beyond an edge are continued, as SciPy does."""
    return "mirror" if mode in ("constant", "wrap") else mode


def continued(i: np.ndarray, size: int, mode: str) -> np.ndarray:
    """The elements of an axis that its continuation beyond the edges repeats at places i."""
    if size == 1:
        return np.zeros_like(i)
    if mode == "nearest":
        return np.clip(i, 0, size - 1)
    if mode == "mirror":
        return np.abs((i + size - 1) % (2 * size - 2) - (size - 1))
    if mode == "reflect":
        return np.minimum(i % (2 * size), 2 * size - 1 - i % (2 * size))
    return i % size


@lru_cache(maxsize=64)
def _table(size: int, mode: str, stride: int) -> np.ndarray:
    """Where the tap at i - MOST_ORDER lies, in elements."""
    return continued(np.arange(-MOST_ORDER, size + MOST_ORDER), size, mode) * stride


# -- CPU: tiles of places --------------------------------------------------------------------------


def _within(x: np.ndarray, size: int, mode: str) -> tuple[Any, Any, Any]:
    """The places continued into the grid, their slopes (None for 1), and which lie beyond it."""
    slope = outside = None
    low, high = (x.min(), x.max()) if x.size else (0, 0)
    if low >= 0 and high <= size - 1:  # not so where one is NaN
        return x, slope, outside
    if mode == "constant":
        outside = (x < 0) | (x > size - 1)  # a NaN does not
        return np.where(outside, 0, x), slope, outside
    if mode == "nearest":  # where all taps are at an edge, the place has no effect
        return np.clip(x, -3, size + 1), slope, outside
    if size == 1:
        return x * 0.0, slope, outside
    if mode in ("mirror", "reflect"):
        half = 0.5 if mode == "reflect" else 0.0
        period = 2 * (size - 1 + 2 * half)
        folded = np.mod(x + half, period)
        slope = np.where(folded > period / 2, -1, 1).astype(x.dtype)
        return np.minimum(folded, period - folded) - half, slope, outside
    if mode == "wrap":
        period = size - 1
        turns = np.where(x < 0, np.floor(-x / period) + 1, np.where(
            x > period, -np.floor(x / period), 0))  # SciPy's: -period is period, and 2 period is 0
        return x + period * turns, slope, outside
    return np.mod(x, size), slope, outside


def _start(x: np.ndarray, order: int) -> tuple[np.ndarray, np.ndarray]:
    """The element whose taps reach a place, and the place between two knots, from 0 to 1."""
    first = np.floor(x) if order % 2 else np.floor(x + 0.5)
    t = x - first if order % 2 else x - first + 0.5
    with np.errstate(invalid="ignore"):  # of NaN any element
        return first.astype(np.intp), t


def _weights(t: np.ndarray, order: int, derivative: int, slope: Any) -> list[np.ndarray]:
    """The weights of the taps, by Horner's rule."""
    found = []
    for terms in _pieces(order, derivative):
        weight = t if terms[0] == 1 and len(terms) > 1 else np.full_like(
            t, terms[0]) if len(terms) == 1 else t * terms[0]
        for power, term in enumerate(terms[1:], 2 - len(terms)):  # from 0 on it is the last
            if term:
                weight = np.add(weight, term, out=None if weight is t else weight)
            if power < 0:
                weight = np.multiply(weight, t, out=None if weight is t else weight)
        found.append(weight * slope ** derivative if derivative and slope is not None else weight)
    return found


def taps_of(
    x: np.ndarray, size: int, stride: int, order: int, mode: str, derivative: int
) -> tuple[list[np.ndarray], list[np.ndarray], Any]:
    """Of one axis: the taps' places in elements, their weights, and which places lie beyond."""
    x, slope, outside = _within(x, size, mode)
    start, t = _start(x, order)
    start += MOST_ORDER - order // 2
    table = _table(size, _tap_mode(mode), stride)
    offsets = [table.take(start + tap, mode="clip") for tap in range(order + 1)]
    return offsets, _weights(t, order, derivative, slope), outside


def _all_taps(
    coords: np.ndarray, shape: tuple[int, ...], order: int, mode: str, derivative: Orders
) -> tuple[list[list[np.ndarray]], list[list[np.ndarray]], Any]:
    """Those of every axis."""
    offsets, weights, beyond = [], [], None
    for axis, (x, size) in enumerate(zip(coords, shape, strict=True)):
        places, shares, outside = taps_of(
            x, size, prod(shape[axis + 1:]), order, mode, derivative[axis])
        offsets.append(places)
        weights.append(shares)
        if outside is not None:
            beyond = outside if beyond is None else beyond | outside
    return offsets, weights, beyond


def _bordered(x: np.ndarray, order: int, mode: str, dtype: np.dtype) -> tuple[np.ndarray, int]:
    """x with all taps beyond its edges, so that a place reads neighbours; and how many come first.
    """
    low, high = order // 2 + (3 if mode == "nearest" else 1), order - order // 2 + 2
    found = np.empty([n + low + high for n in x.shape], dtype)
    inner = [slice(low, low + n) for n in x.shape]
    found[tuple(inner)] = x
    for axis, n in enumerate(x.shape):
        border = np.r_[-low:0, n:n + high]
        source = continued(border, n, _tap_mode(mode))
        before, after = (slice(None),) * axis, inner[axis + 1:]
        to: Any = (*before, border + low, *after)
        of: Any = (*before, source + low, *after)
        found[to] = found[of]
    return found, low


def _sum_of_taps(
    flat: np.ndarray, base: np.ndarray, start: int, strides: tuple[int, ...],
    weights: list[list[np.ndarray]], value: np.ndarray,
) -> np.ndarray:
    """The sum over the taps of these axes, the first of which lies at base + start."""
    total: Any = None
    for tap, weight in enumerate(weights[0]):
        first = start + tap * strides[0]
        if len(weights) == 1:
            part = flat[first:].take(base, out=value, mode="clip")
        else:
            part = _sum_of_taps(flat, base, first, strides[1:], weights[1:], value)
        if total is None:
            total = part * weight
        else:
            part *= weight
            total += part
    return total


def _parts(x: Array, coords: Array) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The leading axes, and those of the grid."""
    axes = coords.shape[-2]
    return x.shape[:x.ndim - axes], x.shape[x.ndim - axes:]


def _sample_cpu(
    x: Array, coords: Array, *, order: int, mode: str, cval: float, derivative: Orders,
    out: Array | None = None,
) -> Array:
    lead, shape = _parts(x, coords)
    if out is None:
        out = host().empty((*lead, coords.shape[-1]), x.dtype, "spline_sample")
    if max(derivative) > order:
        out[...] = 0
        return out
    work, step = computed_in(x.dtype), max(1, settings.tile_elements // 4)
    fill = 0.0 if any(derivative) else cval
    scratch = np.empty(step, work)
    for key in np.ndindex(lead if coords.size else (0,)):
        grid, low = _bordered(x[key], order, mode, work)
        strides = tuple(n // grid.itemsize for n in grid.strides)
        for first in range(0, coords.shape[-1], step):
            tile = (*key, slice(first, first + step))
            part = coords[(*key, slice(None), tile[-1])].astype(work, copy=False)
            inside = _inside(part, shape) if mode == "constant" else None
            base: Any = None
            weights = []
            for axis, size in enumerate(shape):
                place = part[axis] if inside is None else part[axis].take(inside)
                place, slope, _ = (place, None, None) if mode == "constant" else _within(
                    place, size, mode)
                start, t = _start(place, order)
                weights.append(_weights(t, order, derivative[axis], slope))
                start *= strides[axis]
                base = start if base is None else np.add(base, start, out=base)
            corner = sum(strides) * (low - order // 2)
            if mode in ("nearest", "reflect"):  # of places before the first element it is negative
                base += corner
                corner = 0
            value = _sum_of_taps(
                grid.reshape(-1), base, corner, strides, weights, scratch[:base.size])
            if inside is not None:
                out[tile] = fill
                out[tile][inside] = value
            else:
                out[tile] = value
    return out


def _inside(coords: np.ndarray, shape: tuple[int, ...]) -> np.ndarray | None:
    """The numbers of the places within the grid, None if all are."""
    beyond: Any = None
    for x, size in zip(coords, shape, strict=True):
        if x.size and not (x.min() >= 0 and x.max() <= size - 1):
            lost = (x < 0) | (x > size - 1)
            beyond = lost if beyond is None else beyond | lost
    return None if beyond is None else np.flatnonzero(~beyond)


def _spread_cpu(
    g: Array, coords: Array, *, order: int, mode: str, derivative: Orders, shape: tuple[int, ...],
    out: Array | None = None,
) -> Array:
    if out is None:
        out = host().empty(shape, g.dtype, "spline_spread")
    out[...] = 0
    lead, grid = shape[:len(shape) - coords.shape[-2]], shape[len(shape) - coords.shape[-2]:]
    if max(derivative) > order:
        return out
    size = prod(grid)
    step = max(1, settings.tile_elements // 4, size)
    for key in np.ndindex(lead):
        total = np.zeros(size)
        for start in range(0, coords.shape[-1], step):
            tile = slice(start, start + step)
            part = coords[(*key, slice(None), tile)].astype(computed_in(g.dtype), copy=False)
            offsets, weights, beyond = _all_taps(part, grid, order, mode, derivative)
            values = g[(*key, tile)].astype(np.float64)
            if beyond is not None:
                values[beyond] = 0
            for taps in product(range(order + 1), repeat=len(grid)):
                place: Any = sum(offsets[a][k] for a, k in enumerate(taps))
                share: Any = prod(weights[a][k] for a, k in enumerate(taps))
                total += np.bincount(place, values * share, size)
        out[key] = total.reshape(grid)
    return out


# -- GPU: kernels/spline_sampling.cu ---------------------------------------------------------------

_HIGH, _LOW = 35, 70  # GT_HIGH, GT_LOW: bits of a value in either of the two sums
_MOST_WEIGHT = 6  # bits of the largest product of weights: derivatives have weights of up to 10


@cache
def _kernel(name: str, order: int, axes: int) -> Any:
    return raw("spline_sampling.cu", name, f"-DGT_ORDER={order}", f"-DGT_AXES={axes}")


def sizes_of(
    grid: tuple[int, ...], points: int, mode: str, derivative: Orders
) -> tuple[int, ...]:
    """The kernels' arguments from the number of points on: sizes, mode, orders in octal digits."""
    sizes = (*grid, *(1,) * (MOST_AXES - len(grid)))
    return (points, *sizes, MODES[mode], sum(d << 3 * i for i, d in enumerate(derivative)))


def _launch(
    name: str, lead: tuple[int, ...], points: int, order: int, axes: int, dtype: Any,
    arguments: tuple[Any, ...],
) -> None:
    threads = prod(lead) * points
    if threads:
        blocks = min(-(-threads // BLOCK), 2**31 - 1)
        _kernel(name, order, axes)[dtype]((blocks,), (BLOCK,), arguments)


def _sample_gpu(
    x: Array, coords: Array, *, order: int, mode: str, cval: float, derivative: Orders,
    out: Array | None = None,
) -> Array:
    xp, (lead, grid), points = cupy(), _parts(x, coords), coords.shape[-1]
    work = computed_in(x.dtype)
    if max(derivative) > order:
        return settled(xp.zeros((*lead, points), x.dtype), out)
    found = xp.empty((*lead, points), work)
    _launch("spline_sample", lead, points, order, len(grid), work, (
        *(xp.ascontiguousarray(a.astype(work, copy=False)) for a in (x, coords)), found,
        0.0 if any(derivative) else float(cval), prod(lead),
        *sizes_of(grid, points, mode, derivative)))
    return settled(found.astype(x.dtype, copy=False), out)


def _spread_gpu(
    g: Array, coords: Array, *, order: int, mode: str, derivative: Orders, shape: tuple[int, ...],
    out: Array | None = None,
) -> Array:
    """Sums of whole numbers, which do not depend on the order; what is not finite gives NaN."""
    xp, points, work = cupy(), coords.shape[-1], computed_in(g.dtype)
    axes = coords.shape[-2]
    lead, grid = shape[:len(shape) - axes], shape[len(shape) - axes:]
    if max(derivative) > order or not g.size:
        return settled(xp.zeros(shape, g.dtype), out)
    high, low = (xp.zeros(shape, np.uint64) for _ in range(2))
    lost = xp.zeros(shape, np.uint32)
    size = xp.max(xp.where(xp.isfinite(g), xp.abs(g), 0).astype(np.float64)).reshape(1)
    exponent = (xp.frexp(size)[1] + _MOST_WEIGHT).astype(np.int32)
    _launch("spline_spread", lead, points, order, axes, work, (
        *(xp.ascontiguousarray(a.astype(work, copy=False)) for a in (g, coords)), high, low, lost,
        exponent, prod(lead), *sizes_of(grid, points, mode, derivative)))
    total = xp.ldexp(high.view(np.int64).astype(np.float64), exponent - _HIGH)
    total += xp.ldexp(low.view(np.int64).astype(np.float64), exponent - _LOW)
    total[lost != 0] = np.nan
    return settled(total.astype(g.dtype), out)


# -- rules -----------------------------------------------------------------------------------------


def _more(derivative: Orders, axis: int) -> Orders:
    return tuple(d + (i == axis) for i, d in enumerate(derivative))


def _slopes(ns: Namespace, x: Any, coords: Any, g: Any, params: Params) -> Any:
    """g times the derivative of the samples of x by each coordinate: (..., axes, points)."""
    axes = range(coords.shape[-2])
    options = {"order": params["order"], "mode": params["mode"], "cval": 0.0}
    each = [ns.multiply(g, ns.spline_sample(
        x, coords, derivative=_more(params["derivative"], axis), **options)) for axis in axes]
    rows = [ns.reshape(s, shape=(*s.shape[:-1], 1, s.shape[-1])) for s in each]
    return rows[0] if len(rows) == 1 else ns.concat(*rows, axis=-2, sizes=(1,) * len(rows))


def _without(params: Params, *names: str) -> Params:
    return {name: value for name, value in params.items() if name not in names}


def _sample_backward(ns: Namespace, step: Step, g: Array) -> None:
    coords, x = step.saved
    if step.needs(1):
        step.give(1, _slopes(ns, x, coords, g, step.params))
    if step.needs(0):
        step.give(0, ns.spline_spread(
            g, coords, shape=step.shape(0), **_without(step.params, "cval")))


def _spread_backward(ns: Namespace, step: Step, g: Array) -> None:
    coords, values = step.saved
    if step.needs(1):
        step.give(1, _slopes(ns, g, coords, values, step.params))
    if step.needs(0):
        step.give(0, ns.spline_sample(
            g, coords, cval=0.0, **_without(step.params, "shape")))


def _row(ns: Namespace, x: Any, axis: int) -> Any:
    return ns.slice(x, key=(..., axis, slice(None)))


def _moved(
    ns: Namespace, first: Any, coords: Any, tangents: Values, run: Any, derivative: Orders,
    scaled: bool,
) -> Any:
    """The sum of the changes by the first input and by each coordinate."""
    dfirst, dcoords = tangents
    found = None if dfirst is None else run(dfirst, coords, derivative=derivative)
    for axis in range(coords.shape[-2]) if dcoords is not None else ():
        step, more = _row(ns, dcoords, axis), _more(derivative, axis)
        part = (run(ns.multiply(first, step), coords, derivative=more) if scaled else
                ns.multiply(run(first, coords, derivative=more), step))
        found = part if found is None else ns.add(found, part)
    return found


def _sample_tangent(
    ns: Namespace, primals: Values, tangents: Values, out: Array, params: Params
) -> Any:
    run = partial(ns.spline_sample, order=params["order"], mode=params["mode"], cval=0.0)
    x, coords = primals
    return _moved(ns, x, coords, tangents, run, params["derivative"], False)


def _spread_tangent(
    ns: Namespace, primals: Values, tangents: Values, out: Array, params: Params
) -> Any:
    run = partial(ns.spline_spread, order=params["order"], mode=params["mode"],
                  shape=params["shape"])
    g, coords = primals
    return _moved(ns, g, coords, tangents, run, params["derivative"], True)


def _places(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Away from the knots, where derivatives of low orders jump, and beyond the edges, too."""
    return rng.integers(-3, 5, shape) + rng.choice([-0.3, -0.2, 0.2, 0.3], shape)


_CASES = (  # leading axes, grid, points, order, mode, derivative
    ((), (5,), 4, 1, "constant", (0,)), ((2,), (4,), 3, 3, "mirror", (0,)),
    ((), (3, 4), 5, 3, "reflect", (0, 0)), ((2,), (3, 4), 3, 2, "grid-wrap", (0, 1)),
    ((), (4, 2), 3, 1, "nearest", (0, 0)), ((), (3, 4, 3), 2, 3, "constant", (0, 0, 0)),
    ((), (6,), 3, 4, "wrap", (1,)), ((), (7,), 3, 5, "mirror", (0,)),
    ((), (4,), 0, 1, "wrap", (0,)))

spline_spread = op(
    "spline_spread", inputs="g coords", cpu=_spread_cpu, gpu=_spread_gpu,
    saves={"g": "coords", "coords": "g coords"}, backward=_spread_backward,
    tangent=_spread_tangent, batch=trailing,
    samples=[Sample(((*lead, points), (*lead, len(grid), points)), (normal, _places), {
        "order": order, "mode": mode, "derivative": derivative, "shape": (*lead, *grid)})
        for lead, grid, points, order, mode, derivative in _CASES],
    doc="The adjoint of spline_sample: g spread over the taps of each place.",
)

spline_sample = op(
    "spline_sample", inputs="x coords", cpu=_sample_cpu, gpu=_sample_gpu,
    saves={"x": "coords", "coords": "x coords"}, backward=_sample_backward,
    tangent=_sample_tangent, batch=trailing,
    samples=[Sample(((*lead, *grid), (*lead, len(grid), points)), (normal, _places), {
        "order": order, "mode": mode, "cval": 0.5, "derivative": derivative})
        for lead, grid, points, order, mode, derivative in _CASES],
    doc="Sums of B-splines at places (axes, points), or their derivatives. Parameters: order, mode "
        "(beyond the edges), cval, derivative (its order along each axis).",
)

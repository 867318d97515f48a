"""The updates of the optimizers: one pass over a parameter, its gradient and its state, in place.

An update is the path of an optimizer and works on raw arrays: `engine.in_place.write` calls it and
increases the parameter's version. On the CPU they work in tiles, with buffers of a tile's size; on
CUDA each is one elementwise kernel. State may be of a half dtype; the arithmetic is then done in
float32. Formulas and their order are PyTorch's; Lion's are its paper's.

After the optimizers come other passes over all parameters or gradients in place: the moving average
of the weights, and clipping.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache, lru_cache
from math import inf, isfinite, prod
from typing import TYPE_CHECKING, Any

import numpy as np
from ml_dtypes import finfo

from gtensor.backend import Scratch, host
from gtensor.backend.cuda import cupy
from gtensor.backend.kernels import elementwise, source
from gtensor.engine.op import Op
from gtensor.ops.build.cpu_tiles import computed_in, tile_size, whole_tiles
from gtensor.ops.build.path_builders import negative, tiled
from gtensor.settings import settings

if TYPE_CHECKING:
    from gtensor.backend.typing import Array

_WIDE = 1e30  # float16 alone has a largest number below it
_HELPERS = 2  # buffers of a tile's size that an update computes in
_OPERANDS = 5  # parameter, gradient, three states: widened into buffers if they are of a half dtype


def workspace(shape: tuple[int, ...], dtype: np.dtype) -> Scratch:
    """The buffers that an update of a parameter on the CPU needs; larger ones serve as well."""
    half = dtype.itemsize == 2
    return host().workspace(
        min(prod(shape), settings.tile_elements), computed_in(dtype) if half else dtype,
        _HELPERS + (_OPERANDS if half else 0))


def _tiles(
    scratch: Scratch, parameter: Array, gradient: Array, state: tuple[Array, ...]
) -> Iterable[tuple[Sequence[Array], tuple[Array, Array]]]:
    """The arrays tile by tile, in the dtype that is computed in, and two buffers of a tile's shape.

    The parameter comes first, then the gradient, then the state. What was widened is written back
    when the next tile is asked for, except the gradient.
    """
    size, shape = parameter.size, parameter.shape
    if parameter.itemsize != 2 and size <= settings.tile_elements:
        helpers = scratch.buffers[:_HELPERS, :size]
        return (((parameter, gradient, *state),
                 (helpers[0].reshape(shape), helpers[1].reshape(shape))),)
    return _cut(scratch, (parameter, gradient, *state))


def _cut(
    scratch: Scratch, arrays: tuple[Array, ...]
) -> Iterator[tuple[Sequence[Array], tuple[Array, Array]]]:
    half = arrays[0].itemsize == 2
    for key in whole_tiles(arrays[0].shape):
        places = [a[key] for a in arrays]
        helpers = scratch(0, places[0].shape), scratch(1, places[0].shape)
        if not half:
            yield places, helpers
            continue
        values = [scratch(_HELPERS + i, helpers[0].shape) for i in range(len(arrays))]
        for value, place in zip(values, places, strict=True):
            value[...] = place
        yield values, helpers
        for i, place in enumerate(places):
            if i != 1:
                place[...] = values[i]


# -- SGD -------------------------------------------------------------------------------------------


def _sgd_cpu(
    parameter: Array, gradient: Array, *, scratch: Scratch, state: tuple[Array, ...], rate: float,
    weight_decay: float, momentum: float, dampening: float, nesterov: bool, maximize: bool,
    first: bool, out: Array,
) -> Array:
    for (p, g, *more), (direction, helper) in _tiles(scratch, out, gradient, state):
        if maximize:
            g = negative(g, direction)
        if weight_decay:
            g = np.add(g, np.multiply(p, weight_decay, out=helper), out=direction)
        if more:
            m = more[0]
            if first:
                m[...] = g
            else:
                m *= momentum
                m += np.multiply(g, 1 - dampening, out=helper)
            g = np.add(g, np.multiply(m, momentum, out=helper), out=direction) if nesterov else m
        p -= np.multiply(g, rate, out=helper)
    return out


_sgd_kernel = elementwise(
    "T g, float64 rate, float64 decay, float64 sign", "T p",
    "gt_sgd(p, gt_float<T>(sign) * gt_up(g), rate, decay)", "optimizer.cuh", name="gt_sgd")
_momentum_kernel = elementwise(
    "T g, float64 rate, float64 decay, float64 sign, float64 keep, float64 dampening, "
    "bool nesterov, bool first", "T p, T m",
    "gt_sgd_momentum(p, m, gt_float<T>(sign) * gt_up(g), rate, decay, keep, dampening, nesterov, "
    "first)", "optimizer.cuh", name="gt_sgd_momentum")


def _sgd_gpu(
    parameter: Array, gradient: Array, *, scratch: Scratch | None, state: tuple[Array, ...],
    rate: float, weight_decay: float, momentum: float, dampening: float, nesterov: bool,
    maximize: bool, first: bool, out: Array,
) -> Array:
    sign = -1.0 if maximize else 1.0
    if not state:
        return _sgd_kernel(gradient, rate, weight_decay, sign, out=out)
    _momentum_kernel(gradient, rate, weight_decay, sign, momentum, dampening, nesterov, first,
                     out=(out, *state))
    return out


sgd = Op("sgd", cpu=_sgd_cpu, gpu=_sgd_gpu, backward=None, tangent=None, samples=None,
         doc="One step of stochastic gradient descent, in place.")


# -- Adam and AdamW --------------------------------------------------------------------------------


def _adam_cpu(
    parameter: Array, gradient: Array, *, scratch: Scratch, state: tuple[Array, ...], rate: float,
    beta1: float, beta2: float, eps: float, weight_decay: float, decoupled: bool, maximize: bool,
    step: int, out: Array,
) -> Array:
    scale = rate / (1 - beta1**step)
    root = (1 - beta2**step) ** 0.5
    bounds = _bounds(state[1].dtype, beta2)
    for (p, g, first, second, *largest), (direction, helper) in _tiles(
            scratch, out, gradient, state):
        if maximize:
            g = negative(g, direction)
        if decoupled:
            p *= 1 - rate * weight_decay
        elif weight_decay:
            g = np.add(g, np.multiply(p, weight_decay, out=helper), out=direction)
        g = _average_square(second, g, beta2, bounds, helper)
        np.subtract(g, first, out=helper)
        helper *= 1 - beta1
        first += helper
        if largest:
            second = np.maximum(largest[0], second, out=largest[0])
        np.sqrt(second, out=helper)
        helper /= root
        helper += eps
        np.divide(first, helper, out=helper)
        helper *= scale
        p -= helper
    return out


@lru_cache(64)
def _bounds(dtype: np.dtype, beta2: float) -> tuple[float, float]:
    """The largest mean square of a dtype, and the gradient that reaches it in one step.

    Larger finite gradients are limited to that one: an infinite mean square would stop all later
    updates of the parameter. An infinite gradient is unchanged.
    """
    limits = finfo(dtype)
    most = float(limits.max) * (1 - 4 * float(limits.eps))  # sums of shares are rounded
    return most, most**0.5 / (1 - beta2) ** 0.5


def _average_square(
    second: Array, g: Array, beta2: float, bounds: tuple[float, float], helper: Array
) -> Array:
    """second = beta2 * second + (1 - beta2) * g * g, within its bounds; g within them."""
    most, limit = bounds
    fits = most > _WIDE  # float16 is computed in float32, which overflows later
    try:
        with np.errstate(over="raise"):
            np.multiply(g, g, out=helper)
    except FloatingPointError:
        fits = False
    second *= beta2
    if fits:
        helper *= 1 - beta2
        second += helper
        return g
    finite = np.isfinite(g) & np.isfinite(second)  # infinities stay
    g = np.clip(g, -limit, limit, where=finite, out=g.copy())
    np.multiply(g, 1 - beta2, out=helper)
    with np.errstate(over="ignore"):
        helper *= g
        second += helper
    np.copyto(second, most, where=(second > most) & finite)
    return g


_ADAM = ("T g, float64 rate, float64 beta1, float64 beta2, float64 eps, float64 decay, "
         "float64 shrink, float64 sign, float64 correction1, float64 correction2, "
         "float64 most, float64 limit")
_DECAYED = "gt_float<T>(sign) * gt_up(g) + gt_float<T>(decay) * gt_up(p)"
_adam_kernel = elementwise(
    _ADAM, "T p, T m, T v",
    f"gt_adam(p, m, v, {_DECAYED}, rate, beta1, beta2, eps, shrink, correction1, correction2, "
    "most, limit)", "optimizer.cuh", name="gt_adam")
_amsgrad_kernel = elementwise(
    _ADAM, "T p, T m, T v, T largest",
    f"gt_amsgrad(p, m, v, largest, {_DECAYED}, rate, beta1, beta2, eps, shrink, correction1, "
    "correction2, most, limit)", "optimizer.cuh", name="gt_amsgrad")


def _adam_gpu(
    parameter: Array, gradient: Array, *, scratch: Scratch | None, state: tuple[Array, ...],
    rate: float, beta1: float, beta2: float, eps: float, weight_decay: float, decoupled: bool,
    maximize: bool, step: int, out: Array,
) -> Array:
    decay, shrink = (0.0, weight_decay) if decoupled else (weight_decay, 0.0)
    kernel = _amsgrad_kernel if len(state) == 3 else _adam_kernel
    kernel(gradient, rate, beta1, beta2, eps, decay, shrink, -1.0 if maximize else 1.0,
           1 - beta1**step, 1 - beta2**step, *_bounds(state[1].dtype, beta2), out=(out, *state))
    return out


adam = Op("adam", cpu=_adam_cpu, gpu=_adam_gpu, backward=None, tangent=None, samples=None,
          doc="One step of Adam, or AdamW if `decoupled`, in place; a third state is AMSGrad's.")


# -- Lion ------------------------------------------------------------------------------------------


def _lion_cpu(
    parameter: Array, gradient: Array, *, scratch: Scratch, state: tuple[Array, ...], rate: float,
    beta1: float, beta2: float, weight_decay: float, out: Array,
) -> Array:
    for (p, g, m), (direction, helper) in _tiles(scratch, out, gradient, state):
        if weight_decay:
            p *= 1 - rate * weight_decay
        np.multiply(m, beta1, out=direction)
        direction += np.multiply(g, 1 - beta1, out=helper)
        np.sign(direction, out=direction)
        direction *= rate
        p -= direction
        m *= beta2
        m += np.multiply(g, 1 - beta2, out=helper)
    return out


_lion_kernel = elementwise(
    "T g, float64 rate, float64 beta1, float64 beta2, float64 decay", "T p, T m",
    "gt_lion(p, m, g, rate, beta1, beta2, decay)", "optimizer.cuh")


def _lion_gpu(
    parameter: Array, gradient: Array, *, scratch: Scratch | None, state: tuple[Array, ...],
    rate: float, beta1: float, beta2: float, weight_decay: float, out: Array,
) -> Array:
    _lion_kernel(gradient, rate, beta1, beta2, weight_decay, out=(out, *state))
    return out


lion = Op("lion", cpu=_lion_cpu, gpu=_lion_gpu, backward=None, tangent=None, samples=None,
          doc="One step of Lion, in place.")


# -- moving average --------------------------------------------------------------------------------


def _average_cpu(average: Array, value: Array, *, weight: float, out: Array) -> Array:
    scratch = host().workspace(tile_size(out.shape), out.dtype)
    for key in whole_tiles(out.shape):
        place = out[key]
        change = np.subtract(value[key], place, out=scratch(0, place.shape))
        change *= weight
        place += change
    return out


_average_kernel = elementwise("T x, float64 weight", "S average", "gt_average(average, x, weight)",
                              "optimizer.cuh")


def _average_gpu(average: Array, value: Array, *, weight: float, out: Array) -> Array:
    return _average_kernel(value, weight, out=out)


average = Op("average", cpu=_average_cpu, gpu=_average_gpu, backward=None, tangent=None,
             samples=None, doc="average += weight * (value - average), in place; the average's "
             "dtype is float32 or wider.")


# -- clipping --------------------------------------------------------------------------------------


def _norm_cpu(*gradients: Array, order: float) -> Array:
    total = 0.0
    for gradient in gradients:
        wide = computed_in(gradient.dtype)
        for key in whole_tiles(gradient.shape):
            part = gradient[key].reshape(-1).astype(wide, copy=False)  # a tile at most is copied
            total = _combined(total, part, order)
    return np.asarray(_root(total, order), np.result_type(*[
        computed_in(gradient.dtype) for gradient in gradients]))


def _combined(total: float, part: Array, order: float) -> float:
    """The norm (without its root) of what was seen so far and of `part`; NaN stays NaN."""
    if order == inf:
        return float(np.maximum(total, abs(part).max(initial=0)))
    with np.errstate(over="ignore", invalid="ignore"):
        more = float(_power_sum(part, order))
        if not isfinite(more):  # squares of float32 overflow from 1.8e19 on
            more = float(_power_sum(part.astype(np.float64), order))
    return total + more


def _power_sum(part: Array, order: float) -> Any:
    return np.dot(part, part) if order == 2 else (abs(part) ** order).sum()


def _root(total: Any, order: float) -> Any:  # of a number, or of CuPy's 0-d array
    return total if order == inf else total ** (1 / order)


@cache
def _norm_kernel(order: float) -> Any:
    """A reduction to a float64 in one pass; CuPy compiles it at its first call."""
    terms, combine = ("fabs(double(gt_up(x)))", "gt_larger(a, b)") if order == inf else (
        ("double(gt_up(x)) * double(gt_up(x))" if order == 2 else
         "pow(fabs(double(gt_up(x))), order)"), "a + b")
    return cupy().ReductionKernel(
        "T x, float64 order", "float64 total", terms, combine, "total = a", "0",
        name=f"gt_norm_{'larger' if order == inf else 'square' if order == 2 else 'power'}",
        preamble=source("optimizer.cuh"))


def _norm_gpu(*gradients: Array, order: float) -> Array:
    xp = cupy()
    parts = xp.empty(len(gradients), np.float64)
    for i, gradient in enumerate(gradients):
        _norm_kernel(order)(gradient, order, parts[i, ...])
    total = parts.max() if order == inf else parts.sum()
    return _root(total, order).astype(np.result_type(*[
        computed_in(gradient.dtype) for gradient in gradients]))


norm = Op("gradient_norm", cpu=_norm_cpu, gpu=_norm_gpu, backward=None, tangent=None, samples=None,
          variadic=True, doc="The norm of all arrays together, 0-d, float32 or wider.")

# S: CuPy refuses an array of another dtype where a kernel declares float64
_scale_kernel = elementwise("S factor", "T g", "gt_scale(g, double(gt_up(factor)))",
                            "optimizer.cuh", name="gt_scale")
_clip_kernel = elementwise("T limit", "T g", "gt_clip(g, double(gt_up(limit)))", "optimizer.cuh",
                           name="gt_clip")

_scaled = tiled("scale_gradient", lambda ns, gradient, factor: ns.multiply(gradient, factor))


def _scale_cpu(gradient: Array, factor: Any, out: Array) -> Array:
    with np.errstate(invalid="ignore"):  # an infinite norm: inf * 0 is NaN, as documented
        return _scaled(gradient, factor, out=out)


scale = Op(
    "scale_gradient", cpu=_scale_cpu,
    gpu=lambda gradient, factor, out: _scale_kernel(factor, out=out),
    backward=None, tangent=None, samples=None,
    doc="gradient *= factor, in place; the factor is 0-d and may lie on the device.")
clip = Op(
    "clip_gradient",
    cpu=tiled("clip_gradient", lambda ns, gradient, limit: ns.minimum(
        ns.maximum(gradient, -limit), limit)),
    gpu=lambda gradient, limit, out: _clip_kernel(limit, out=out), inputs="gradient limit",
    backward=None, tangent=None, samples=None,
    doc="Each element of the gradient at most the limit in size, in place; NaN stays NaN.")

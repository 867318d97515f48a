"""The updates of the optimizers: one pass over a parameter, its gradient and its state, in place.

An update is the path of an optimizer and works on raw arrays: `engine.in_place.write` calls it and
increases the parameter's version. Both paths follow from a formula (`ops.build.updates`): tiles on
the CPU, one elementwise kernel on CUDA. State may be of a half dtype; the arithmetic is then done
in float32. Formulas and their order are PyTorch's; Lion's are its paper's.

After the optimizers come other passes over all parameters or gradients in place: the moving average
of the weights, and clipping.
"""

from __future__ import annotations

from functools import cache
from math import inf, isfinite, prod
from typing import TYPE_CHECKING, Any

import numpy as np

from gtensor.backend import Scratch, host
from gtensor.backend.cuda import cupy
from gtensor.backend.kernels import source
from gtensor.engine.op import Op
from gtensor.ops.build.cpu_tiles import computed_in, whole_tiles
from gtensor.ops.build.formula_numpy import numpy_path
from gtensor.ops.build.updates import Update
from gtensor.settings import settings

if TYPE_CHECKING:
    from gtensor.backend.typing import Array, Path

_BUFFERS = 2  # that an update computes in, besides its outputs
_OPERANDS = 5  # parameter, gradient, three states: widened into buffers if they are of a half dtype


def workspace(shape: tuple[int, ...], dtype: np.dtype) -> Scratch:
    """The buffers that an update of a parameter on the CPU needs; larger ones serve as well."""
    half = dtype.itemsize == 2
    return host().workspace(
        min(prod(shape), settings.tile_elements), computed_in(dtype) if half else dtype,
        _BUFFERS + (_OPERANDS if half else 0))


# -- optimizers ------------------------------------------------------------------------------------


def _sgd(
    ns: Any, p: Any, g: Any, buffer: Any, *, rate: float, weight_decay: float | None,
    momentum: float, dampening: float, nesterov: bool, maximize: bool, first: bool,
) -> Any:
    g = _direction(p, g, weight_decay, maximize)
    if buffer is None:
        return p - rate * g
    m = g if first else momentum * buffer + (1 - dampening) * g
    return p - rate * (g + momentum * m if nesterov else m), m


def _direction(p: Any, g: Any, weight_decay: float | None, maximize: bool) -> Any:
    g = -g if maximize else g
    return g if weight_decay is None else g + weight_decay * p


def _adam(
    ns: Any, p: Any, g: Any, first: Any, second: Any, largest: Any, *, rate: float, beta1: float,
    beta2: float, eps: float, weight_decay: float | None, decoupled: bool, maximize: bool,
    correction1: float, correction2: float, most: float | None,
) -> Any:
    """An infinite mean square would stop all later updates of the parameter, so that of a finite
    gradient is at most `most`, and so is the gradient's share of it. Infinities stay."""
    g = _direction(p, g, None if decoupled else weight_decay, maximize)
    if most is None:
        v = beta2 * second + (1 - beta2) * ns.square(g)
        watched: tuple[Any, ...] = (ns.square(g),)
    else:
        limit = most**0.5 / (1 - beta2)**0.5  # whose share is `most`
        finite = ns.isfinite(g) & ns.isfinite(second)
        g = ns.where(finite, ns.maximum(ns.minimum(g, limit), -limit), g)
        v = beta2 * second + (1 - beta2) * g * g
        v = ns.where(finite, ns.minimum(v, most), v)
        watched = ()
    m = first + (1 - beta1) * (g - first)
    top = v if largest is None else ns.maximum(largest, v)
    if decoupled and weight_decay is not None:
        p = p * (1 - rate * weight_decay)
    p = p - rate / correction1 * (m / (ns.sqrt(top) / correction2**0.5 + eps))
    return (p, m, v, *(() if largest is None else (top,)), *watched)


def _lion(
    ns: Any, p: Any, g: Any, m: Any, *, rate: float, beta1: float, beta2: float,
    weight_decay: float | None,
) -> Any:
    direction = ns.sign(beta1 * m + (1 - beta1) * g)
    if weight_decay is not None:
        p = p * (1 - rate * weight_decay)
    return p - rate * direction, beta2 * m + (1 - beta2) * g


def _op(update: Update, doc: str, cpu: Path | None = None, name: str = "") -> Op:
    return Op(name or update.formula.name, inputs=" ".join(update.formula.inputs[:2]),
              cpu=cpu or update.cpu, gpu=update.gpu, backward=None, tangent=None, samples=None,
              doc=doc)


sgd = _op(Update("sgd", _sgd, {1: "sgd_momentum"}),
          "One step of stochastic gradient descent, in place.")
adam = _op(Update("adam", _adam, {3: "amsgrad"}),
           "One step of Adam, or AdamW if `decoupled`, in place; a third state is AMSGrad's.")
lion = _op(Update("lion", _lion), "One step of Lion, in place.")

# -- moving average and clipping -------------------------------------------------------------------


_average = Update(
    "average", lambda ns, average, value, *, weight: average + weight * (value - average))
_scale = Update("scale", lambda ns, gradient, factor: gradient * factor)
_clip = Update("clip", lambda ns, gradient, limit: ns.minimum(
    ns.maximum(gradient, -limit), limit))
_scaled = numpy_path(_scale.formula)


def _scale_cpu(gradient: Array, factor: Any, out: Array) -> Array:
    with np.errstate(invalid="ignore"):  # an infinite norm: inf * 0 is NaN, as documented
        return _scaled(gradient, factor, out=out)


average = _op(_average, "average += weight * (value - average), in place; the average's dtype is "
              "float32 or wider.", numpy_path(_average.formula))
scale = _op(_scale, "gradient *= factor, in place; the factor is 0-d and may lie on the device.",
            _scale_cpu, "scale_gradient")
clip = _op(_clip, "Each element of the gradient at most the limit in size, in place; NaN stays "
           "NaN.", numpy_path(_clip.formula), "clip_gradient")


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

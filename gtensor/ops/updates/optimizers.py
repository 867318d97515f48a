"""The updates of the optimizers: one pass over parameters, their gradients and state, in place.

An update is the path of an optimizer and works on raw arrays: `run.grouped_writes.write_all` calls
it for many parameters and increases their versions. Both paths follow from a formula
(`ops.define.updates`): tiles on the CPU, one launch for all parameters of a dtype on CUDA. State
may be of a half dtype; the arithmetic is then done in float32. Formulas and their order are
PyTorch's; Lion's are its paper's.
"""

from __future__ import annotations

from typing import Any

from gtensor.ops.define.updates import Update, update_op


def _sgd(
    ns: Any, p: Any, g: Any, buffer: Any, *, rate: Any, weight_decay: Any, momentum: Any,
    dampening: Any, nesterov: bool, maximize: bool, step: Any, first: bool | None, deferred: bool,
) -> Any:
    g = _direction(ns, p, g, weight_decay, maximize, deferred)
    if buffer is None:
        return p - rate * g
    share = 1 - dampening
    if first is None:  # the buffer is 0 at first
        share = ns.where(ns.equal(step, 1), 1.0, share)
    m = g if first else momentum * buffer + share * g
    return p - rate * (g + momentum * m if nesterov else m), m


def _direction(ns: Any, p: Any, g: Any, weight_decay: Any, maximize: bool, deferred: bool) -> Any:
    g = -g if maximize else g
    if weight_decay is None:
        return g
    decayed = g + weight_decay * p
    return ns.where(ns.not_equal(weight_decay, 0), decayed, g) if deferred else decayed


def _mean_square(ns: Any, g: Any, second: Any, beta: Any, most: float | None) -> Any:
    """The gradient, the running mean of its square, and what is watched.

    An infinite mean square would stop all later updates of the parameter, so that of a finite
    gradient is at most `most`, and so is the gradient's share of it. Infinities stay."""
    if most is None:
        return g, beta * second + (1 - beta) * ns.square(g), (ns.square(g),)
    limit = most**0.5 / (1 - beta)**0.5  # whose share is `most`
    finite = ns.isfinite(g) & ns.isfinite(second)
    g = ns.where(finite, ns.maximum(ns.minimum(g, limit), -limit), g)
    v = beta * second + (1 - beta) * g * g
    return g, ns.where(finite, ns.minimum(v, most), v), ()


def _adam(
    ns: Any, p: Any, g: Any, first: Any, second: Any, largest: Any, *, rate: Any, beta1: Any,
    beta2: Any, eps: Any, weight_decay: Any, decoupled: bool, maximize: bool, step: Any,
    most: float | None, deferred: bool,
) -> Any:
    g = _direction(ns, p, g, None if decoupled else weight_decay, maximize, deferred)
    g, v, watched = _mean_square(ns, g, second, beta2, most)
    m = first + (1 - beta1) * (g - first)
    top = v if largest is None else ns.maximum(largest, v)
    if decoupled and weight_decay is not None:
        p = p * (1 - rate * weight_decay)
    correction1, correction2 = 1 - ns.power(beta1, step), 1 - ns.power(beta2, step)
    p = p - rate / correction1 * (m / (ns.sqrt(top) / correction2**0.5 + eps))
    return (p, m, v, *(() if largest is None else (top,)), *watched)


def _rmsprop(
    ns: Any, p: Any, g: Any, second: Any, buffer: Any, center: Any, *, rate: Any, alpha: Any,
    eps: Any, weight_decay: Any, momentum: Any, maximize: bool, most: float | None, deferred: bool,
) -> Any:
    """Centered if there is a mean of gradients; a buffer of momentum 0 is the step itself."""
    g = _direction(ns, p, g, weight_decay, maximize, deferred)
    g, v, watched = _mean_square(ns, g, second, alpha, most)
    spread = v
    if center is not None:
        center = center + (1 - alpha) * (g - center)
        spread = ns.maximum(v - center * center, 0)  # below it by rounding
    step = g / (ns.sqrt(spread) + eps)
    if buffer is None:
        return (p - rate * step, v, *watched)
    step = momentum * buffer + step
    return (p - rate * step, v, step, *(() if center is None else (center,)), *watched)


def _adagrad(
    ns: Any, p: Any, g: Any, total: Any, *, rate: Any, rate_decay: Any, eps: Any,
    weight_decay: Any, maximize: bool, step: Any, deferred: bool,
) -> Any:
    g = _direction(ns, p, g, weight_decay, maximize, deferred)
    total = total + g * g
    rate = rate / (1 + (step - 1) * rate_decay)
    return p - rate * (g / (ns.sqrt(total) + eps)), total


def _lion(
    ns: Any, p: Any, g: Any, m: Any, *, rate: Any, beta1: Any, beta2: Any, weight_decay: Any
) -> Any:
    direction = ns.sign(beta1 * m + (1 - beta1) * g)
    if weight_decay is not None:
        p = p * (1 - rate * weight_decay)
    return p - rate * direction, beta2 * m + (1 - beta2) * g


_DECAY = ("weight_decay",)
sgd = update_op(Update("sgd", _sgd, {1: "sgd_momentum"}, neglected=_DECAY, counted=True),
                "One step of stochastic gradient descent, in place.")
adam = update_op(Update("adam", _adam, {3: "amsgrad"}, neglected=_DECAY, counted=True),
                 "One step of Adam, or AdamW if `decoupled`, in place; a third state is AMSGrad's.")
lion = update_op(Update("lion", _lion, neglected=_DECAY, counted=True),
                 "One step of Lion, in place.")
rmsprop = update_op(
    Update("rmsprop", _rmsprop, {2: "rmsprop_momentum", 3: "rmsprop_centered"}, neglected=_DECAY,
           counted=True),
    "One step of RMSprop, in place; a second state is momentum's, a third the gradients' mean.")
adagrad = update_op(Update("adagrad", _adagrad, neglected=_DECAY, counted=True),
                    "One step of Adagrad, in place.")

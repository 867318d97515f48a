"""The updates of the optimizers: one pass over a parameter, its gradient and its state, in place.

They are to an optimizer what the paths of an op are to the op, so they see raw arrays, which
nothing in `optim` does: `core.inplace.write` calls them and counts the parameter's version. On the
CPU they work in tiles, with buffers of a tile's size; on CUDA each is one elementwise kernel.
State may be of a half dtype; the arithmetic is done in float32 then. Formulas and their order are
PyTorch's.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gtensor.backend.kernels import elementwise
from gtensor.core.op import Op
from gtensor.ops.scratch import Scratch, computed_in, tile_size, whole_tiles

_HELPERS = 2  # buffers of a tile's size that an update computes in
_OPERANDS = 4  # parameter, gradient, two states: widened into buffers if they are of a half dtype


def workspace(shape: tuple[int, ...], dtype: np.dtype) -> Scratch:
    """The buffers that an update of a parameter on the CPU needs; larger ones serve as well."""
    count = _HELPERS + (_OPERANDS if dtype.itemsize == 2 else 0)
    return Scratch(count, tile_size(shape), computed_in(dtype))


class _Tile:
    """Arrays at one tile, in the dtype that is computed in; `store` writes widened ones back."""

    def __init__(self, key: tuple[Any, ...], scratch: Scratch, *arrays: Any) -> None:
        self.places = [a[key] for a in arrays]
        self.values = self.places
        shape = self.places[0].shape
        self.helpers = [scratch(i, shape) for i in range(_HELPERS)]
        if computed_in(arrays[0].dtype) != arrays[0].dtype:
            self.values = [scratch(_HELPERS + i, shape) for i in range(len(arrays))]
            for value, place in zip(self.values, self.places, strict=True):
                value[...] = place

    def store(self, *which: int) -> None:
        for i in which:
            if self.values[i] is not self.places[i]:
                self.places[i][...] = self.values[i]


# -- SGD -------------------------------------------------------------------------------------------


def _sgd_cpu(
    parameter: Any, gradient: Any, *, scratch: Scratch, state: tuple[Any, ...], rate: float,
    weight_decay: float, momentum: float, dampening: float, nesterov: bool, first: bool, out: Any,
) -> Any:
    for key in whole_tiles(parameter.shape):
        tile = _Tile(key, scratch, out, gradient, *state)
        p, g, *more = tile.values
        direction, helper = tile.helpers
        if weight_decay:
            np.multiply(p, weight_decay, out=direction)
            g = np.add(direction, g, out=direction)
        if more:
            m = more[0]
            if first:
                m[...] = g
            else:
                m *= momentum
                m += np.multiply(g, 1 - dampening, out=helper)
            g = np.add(g, np.multiply(m, momentum, out=helper), out=direction) if nesterov else m
        p -= np.multiply(g, rate, out=helper)
        tile.store(0, *range(2, 2 + len(more)))
    return out


_sgd_kernel = elementwise("T g, float64 rate, float64 decay", "T p", "gt_sgd(p, g, rate, decay)",
                          "optimizer.cuh")
_momentum_kernel = elementwise(
    "T g, float64 rate, float64 decay, float64 keep, float64 dampening, bool nesterov, bool first",
    "T p, T m", "gt_sgd_momentum(p, m, g, rate, decay, keep, dampening, nesterov, first)",
    "optimizer.cuh")


def _sgd_gpu(
    parameter: Any, gradient: Any, *, scratch: Scratch | None, state: tuple[Any, ...], rate: float,
    weight_decay: float, momentum: float, dampening: float, nesterov: bool, first: bool, out: Any,
) -> Any:
    if not state:
        return _sgd_kernel(gradient, rate, weight_decay, out=out)
    _momentum_kernel(gradient, rate, weight_decay, momentum, dampening, nesterov, first,
                     out=(out, *state))
    return out


sgd = Op("sgd", cpu=_sgd_cpu, gpu=_sgd_gpu, backward=None, tangent=None, samples=None,
         doc="One step of stochastic gradient descent, in place.")


# -- Adam and AdamW --------------------------------------------------------------------------------


def _adam_cpu(
    parameter: Any, gradient: Any, *, scratch: Scratch, state: tuple[Any, ...], rate: float,
    beta1: float, beta2: float, eps: float, weight_decay: float, decoupled: bool, step: int, out:
    Any,
) -> Any:
    scale = rate / (1 - beta1**step)
    root = (1 - beta2**step) ** 0.5
    for key in whole_tiles(parameter.shape):
        tile = _Tile(key, scratch, out, gradient, *state)
        p, g, first, second = tile.values
        decayed, helper = tile.helpers
        if decoupled:
            p *= 1 - rate * weight_decay
        elif weight_decay:
            g = np.add(g, np.multiply(p, weight_decay, out=decayed), out=decayed)
        np.subtract(g, first, out=helper)
        helper *= 1 - beta1
        first += helper
        second *= beta2
        np.multiply(g, g, out=helper)
        helper *= 1 - beta2
        second += helper
        np.sqrt(second, out=helper)
        helper /= root
        helper += eps
        np.divide(first, helper, out=helper)
        helper *= scale
        p -= helper
        tile.store(0, 2, 3)
    return out


_RATES = ("T g, float64 rate, float64 beta1, float64 beta2, float64 eps, float64 decay, "
          "float64 correction1, float64 correction2")
_adamw_kernel = elementwise(
    _RATES, "T p, T m, T v",
    "gt_adamw(p, m, v, g, rate, beta1, beta2, eps, decay, correction1, correction2)",
    "optimizer.cuh")
_adam_kernel = elementwise(
    _RATES, "T p, T m, T v",
    "gt_adamw(p, m, v, gt_up(g) + gt_float<T>(decay) * gt_up(p), rate, beta1, beta2, eps, 0.0, "
    "correction1, correction2)", "optimizer.cuh", name="gt_adam")


def _adam_gpu(
    parameter: Any, gradient: Any, *, scratch: Scratch | None, state: tuple[Any, ...], rate: float,
    beta1: float, beta2: float, eps: float, weight_decay: float, decoupled: bool, step: int, out:
    Any,
) -> Any:
    kernel = _adamw_kernel if decoupled else _adam_kernel
    kernel(gradient, rate, beta1, beta2, eps, weight_decay, 1 - beta1**step, 1 - beta2**step,
           out=(out, *state))
    return out


adam = Op("adam", cpu=_adam_cpu, gpu=_adam_gpu, backward=None, tangent=None, samples=None,
          doc="One step of Adam, or AdamW if `decoupled`, in place.")

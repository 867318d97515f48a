"""Activations of straight pieces (hardtanh, hardswish, hardsigmoid, PReLU), and SELU."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gtensor.engine.handle.tensor import Tensor
from gtensor.engine.tape.op import op
from gtensor.engine.tape.samples import Sample, alike, apart, normal, unary
from gtensor.ops.arrange.writing import overwrite
from gtensor.ops.define.arguments import of_half, same_dtype, takes_arrays
from gtensor.ops.define.formula import Formula, derivative
from gtensor.ops.define.fused import formula_of, fused, paths
from gtensor.ops.define.pointwise import partial, pointwise

if TYPE_CHECKING:
    from gtensor.backend.typing import Array
    from gtensor.engine.handle.namespaces import Namespace

_SELU_ALPHA = 1.6732632423543772848  # Klambauer et al., "Self-normalizing neural networks", 2017
_SELU_SCALE = 1.0507009873554804934


def _off_kinks(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Values from -5 to 5 that are 0.2 or more away from integers, and from 0.5 beside them."""
    return rng.integers(-5, 5, shape) + rng.uniform(0.2, 0.4, shape)


# -- hardtanh --------------------------------------------------------------------------------------

def _hardtanh(ns: Namespace, x: Array, *, lowest: float, highest: float) -> Array:
    return ns.minimum(ns.maximum(x, lowest), highest)


def _is_between(ns: Namespace, x: Array, *, lowest: float, highest: float) -> Array:
    return ns.where(ns.greater(x, lowest), ns.where(ns.less(x, highest), 1, 0), 0)


hardtanh_op = formula_of(
    "hardtanh", _hardtanh, slope=_is_between, of="out",
    gradient={
        "by_ops": True, "samples": alike(2, (normal, _off_kinks), lowest=-1.0, highest=2.0),
        "reference": lambda torch, g, y, lowest, highest: g * ((y > lowest) & (y < highest)),
        "doc": "The gradient of y = hardtanh(x): g where y is strictly between the ends, else 0."},
    samples=unary(_off_kinks, lowest=-1.0, highest=2.0),
    reference=lambda torch, x, lowest, highest: torch.nn.functional.hardtanh(x, lowest, highest),
    doc="x cut at `lowest` and `highest`; NaN passes. Its gradient at the ends is 0.",
)

hardtanh_of_half_op = formula_of(
    "hardtanh_of_half", _hardtanh, slope=_is_between,
    gradient={
        "by_ops": True, "samples": alike(2, (normal, _off_kinks), lowest=-1.0, highest=2.0),
        "reference": lambda torch, g, x, lowest, highest: g * ((x > lowest) & (x < highest))},
    samples=unary(_off_kinks, lowest=-1.0, highest=2.0),
    reference=lambda torch, x, lowest, highest: torch.nn.functional.hardtanh(x, lowest, highest),
    doc="hardtanh of half types. It saves its input: an end that was rounded inwards lies between "
        "the ends.",
)


# -- hardsigmoid and hardswish ---------------------------------------------------------------------

hardsigmoid_op = formula_of(
    "hardsigmoid", lambda ns, x: ns.minimum(ns.maximum(x + 3, 0), 6) * (1 / 6),
    slope=lambda ns, x: ns.where(ns.less(ns.abs(x), 3), 1 / 6, 0),
    gradient={"by_ops": True, "samples": alike(2, (normal, _off_kinks)),
              "reference": lambda torch, g, x: g / 6 * (x.abs() < 3)},
    floating=True, samples=unary(_off_kinks),
    reference=lambda torch, x: torch.nn.functional.hardsigmoid(x),
    doc="(x + 3) / 6 cut at 0 and 1, elementwise.",
)

hardswish_op = formula_of(
    "hardswish", lambda ns, x: x * (ns.minimum(ns.maximum(x + 3, 0), 6) * (1 / 6)),
    slope=lambda ns, x: ns.where(
        ns.less_equal(x, -3), 0, ns.where(ns.greater_equal(x, 3), 1, x * (1 / 3) + 0.5)),
    gradient={
        "by_ops": True, "samples": alike(2, (normal, _off_kinks)),
        "reference": lambda torch, g, x: g * torch.where(x > 3, 1.0, (x / 3 + 0.5) * (x > -3))},
    floating=True, samples=unary(_off_kinks),
    reference=lambda torch, x: torch.nn.functional.hardswish(x),
    doc="x * hardsigmoid(x), elementwise. Its slope at -3 is 0, at 3 it is 1.",
)


# -- selu ------------------------------------------------------------------------------------------

def _selu(ns: Namespace, x: Array) -> Array:
    return _SELU_SCALE * (ns.maximum(x, 0) + _SELU_ALPHA * ns.expm1(ns.minimum(x, 0)))


selu_op = formula_of(
    "selu", _selu,
    slope=lambda ns, y: ns.where(
        ns.greater(y, 0), _SELU_SCALE, y + _SELU_SCALE * _SELU_ALPHA), of="out",
    gradient={
        "by_ops": True, "samples": alike(2, (normal, apart)),
        "reference": lambda torch, g, y: g * torch.where(
            y > 0, _SELU_SCALE, y + _SELU_SCALE * _SELU_ALPHA)},
    floating=True, samples=unary(apart), reference=lambda torch, x: torch.selu(x),
    doc="elu with the alpha and scale that keep mean 0 and variance 1.",
)

selu_of_half_op = formula_of(
    "selu_of_half", _selu,
    slope=lambda ns, x: ns.where(
        ns.greater(x, 0), _SELU_SCALE, _SELU_SCALE * _SELU_ALPHA * ns.exp(ns.minimum(x, 0))),
    gradient={
        "by_ops": True, "samples": alike(2, (normal, apart)),
        "reference": lambda torch, g, x: g * torch.where(
            x > 0, _SELU_SCALE, _SELU_SCALE * _SELU_ALPHA * torch.exp(x))},
    floating=True, samples=unary(apart), reference=lambda torch, x: torch.selu(x),
    doc="selu of half types. It saves its input, as elu_of_half.",
)


# -- prelu -----------------------------------------------------------------------------------------

_PRELU = Formula("prelu", lambda ns, x, weight: ns.where(ns.greater(x, 0), x, x * weight))

prelu_grad = fused(
    "prelu_grad", derivative(_PRELU, "x"), by_ops=True,
    samples=alike(3, (normal, apart, normal)),
    reference=lambda torch, g, x, w: torch.where(x > 0, g, g * w),
    doc="The gradient of prelu(x, weight) with respect to x.",
)

prelu_grad_weight = fused(
    "prelu_grad_weight", lambda ns, g, x: g * ns.minimum(x, 0),
    samples=alike(2, (normal, apart)), reference=lambda torch, g, x: g * x.clamp(max=0),
    doc="The gradient of prelu(x, weight) with respect to a weight of x's shape.",
)

prelu_op = op(
    "prelu", autocast="low", **paths(_PRELU),
    backward=pointwise(
        partial("x weight", lambda ns, g, x, w, out: ns.prelu_grad(g, x, w)),
        partial("x", "prelu_grad_weight")),
    samples=[*alike(2, (apart, normal)), Sample(((2, 3, 4), (3, 1)), (apart, normal))],
    reference=lambda torch, x, w: torch.where(x > 0, x, x * w),
    doc="x where x > 0, else x * weight, with broadcasting.",
)


# -- public functions ------------------------------------------------------------------------------


def selu(input: Tensor, inplace: bool = False) -> Tensor:
    """elu with the alpha and the scale that keep mean 0 and variance 1.

    Saves its output, of half types its input.

    Source: Klambauer et al., "Self-normalizing neural networks", 2017.
    """
    chosen = selu_of_half_op if of_half(input) else selu_op
    return overwrite(chosen, input) if inplace else chosen(input)


@takes_arrays
def hardtanh(
    input: Tensor, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False
) -> Tensor:
    """input cut at min_val and max_val; the gradient is 0 there and beyond.

    Saves its output, of half types its input.

    Raises ValueError for a min_val above max_val.
    """
    if not min_val <= max_val:
        raise ValueError(f"hardtanh was given min_val={min_val} and max_val={max_val}; wanted "
                         "min_val <= max_val")
    cut = hardtanh_of_half_op if of_half(input) else hardtanh_op
    if inplace:
        return overwrite(cut, input, lowest=float(min_val), highest=float(max_val))
    return cut(input, lowest=float(min_val), highest=float(max_val))


def relu6(input: Tensor, inplace: bool = False) -> Tensor:
    """input cut at 0 and 6."""
    return hardtanh(input, 0.0, 6.0, inplace)


def hardsigmoid(input: Tensor, inplace: bool = False) -> Tensor:
    """(input + 3) / 6 cut at 0 and 1, elementwise."""
    return overwrite(hardsigmoid_op, input) if inplace else hardsigmoid_op(input)


def hardswish(input: Tensor, inplace: bool = False) -> Tensor:
    """input * hardsigmoid(input), elementwise.

    Source: Howard et al., "Searching for MobileNetV3", 2019.
    """
    return overwrite(hardswish_op, input) if inplace else hardswish_op(input)


@takes_arrays
def prelu(input: Tensor, weight: Tensor) -> Tensor:
    """input where positive, else weight * input; weight (1,), or (C,) for input (N, C, ...).

    Source: He et al., "Delving deep into rectifiers", 2015.

    Raises ValueError for a weight of another shape.
    """
    same_dtype("prelu", input=input, weight=weight)
    channels = input.shape[1] if input.ndim > 1 else 1
    if weight.ndim > 1 or weight.size not in (1, channels):
        raise ValueError(f"prelu was given a weight of shape {weight.shape} for an input of shape "
                         f"{input.shape}; wanted (1,) or ({channels},)")
    tail = (1,) * (input.ndim - 2) if weight.size != 1 else ()
    shape = (weight.size, *tail) if input.ndim else ()
    return prelu_op(input, weight.reshape(shape))

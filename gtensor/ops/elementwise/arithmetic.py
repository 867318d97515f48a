"""Arithmetic and powers."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

import numpy as np

from gtensor.backend.kernels import elementwise
from gtensor.engine.handle.tensor import Tensor
from gtensor.engine.tape.op import op
from gtensor.engine.tape.samples import alike, apart, binary, normal, unary
from gtensor.engine.tape.samples import positive as above_zero
from gtensor.ops.define.formula import Formula
from gtensor.ops.define.fused import fused
from gtensor.ops.define.path_builders import cupy_function, ufunc
from gtensor.ops.define.pointwise import analytic, identity, partial, pointwise
from gtensor.ops.elementwise.rounding import ZERO

if TYPE_CHECKING:
    from gtensor.backend.typing import Array
    from gtensor.engine.handle.namespaces import Namespace
    from gtensor.engine.handle.tensor import Operand

__all__ = [
    "add", "copysign", "divide", "hypot", "multiply", "negative", "positive", "pow", "square",
    "subtract",
]

add = op(
    "add", cpu=ufunc(np.add), gpu=cupy_function("add"), complex=True,
    backward=pointwise(identity, identity),
    samples=binary(), reference=lambda torch, a, b: a + b,
    doc="x1 + x2, elementwise with broadcasting.",
)

subtract = op(
    "subtract", cpu=ufunc(np.subtract), gpu=cupy_function("subtract"), complex=True,
    backward=pointwise(identity, partial("", "negative")),
    samples=binary(), reference=lambda torch, a, b: a - b,
    doc="x1 - x2, elementwise with broadcasting.",
)

multiply = op(
    "multiply", cpu=ufunc(np.multiply), gpu=cupy_function("multiply"), complex=True,
    backward=analytic(
        partial("x2", "multiply"), partial("x1", "multiply")),
    samples=binary(), reference=lambda torch, a, b: a * b,
    doc="x1 * x2, elementwise with broadcasting.",
)

divide_grad = fused(
    "divide_grad", Formula("divide_grad", lambda ns, g, x2, y: -(g * y / x2), analytic=True),
    by_ops=True,
    samples=alike(3, (normal, apart, normal)), reference=lambda torch, g, b, y: -(g * y / b),
    doc="The gradient of x1 / x2 with respect to x2, from y = x1 / x2.",
)

divide = op(
    "divide", cpu=ufunc(np.divide), gpu=cupy_function("divide"), floating=True, complex=True,
    backward=analytic(
        partial("x2", "divide"),
        partial("x2 out", lambda ns, g, x2, y, out: ns.divide_grad(g, x2, y, out=out))),
    samples=binary(normal, apart), reference=lambda torch, a, b: a / b,
    doc="x1 / x2, elementwise with broadcasting; integers become the default dtype first.",
)

negative = op(
    "negative", cpu=ufunc(np.negative), gpu=cupy_function("negative"), complex=True,
    backward=pointwise(partial("", "negative")),
    samples=unary(), reference=lambda torch, x: -x, doc="-x, elementwise.",
)

# -- powers ----------------------------------------------------------------------------------------

square_grad = fused(
    "square_grad", Formula("square_grad", lambda ns, g, x: 2 * g * x, analytic=True), by_ops=True,
    samples=alike(2), reference=lambda torch, g, x: 2 * g * x, doc="The gradient of x * x.",
)

square = op(
    "square", autocast="float32", cpu=ufunc(np.square), gpu=cupy_function("square"), complex=True,
    backward=analytic(partial("x", lambda ns, g, x, out: ns.square_grad(g, x, out=out))),
    samples=unary(), reference=lambda torch, x: x * x, doc="x * x, elementwise.",
)


_NUMBERS = (int, float, complex)
_VALUES = (*_NUMBERS, np.ndarray)


def _pow_grad(ns: Namespace, g: Array, x1: Array, x2: Array) -> Array:
    """g x2 x1 ** (x2 - 1); where x2 is 0 and x1 not, its derivative by x2 is g / x1.

    0 where x2 is 0 and x1 is 0 or NaN.
    """
    if isinstance(x2, _VALUES) and np.all(x2):  # for a tensor the check would wait for the GPU
        return g * (x2 * ns.power(x1, x2 - 1))
    kept = ns.logical_or(ns.not_equal(x2, 0), ns.greater(ns.abs(x1), 0))
    return g * ns.where(kept, x2 * ns.power(ns.where(kept, x1, 1.0), x2 - 1), 0.0)


def _pow_backward_base(ns: Namespace, g: Array, x1: Array, x2: Array, out: Array) -> Array:
    """By the number 0 a power is 1 everywhere."""
    if isinstance(x2, _NUMBERS) and not x2:
        return ns.zero_gradient(g, out=out)
    return ns.pow_grad(g, x1, x2, out=out)


def _pow_grad_exponent(ns: Namespace, g: Array, x1: Array, y: Array) -> Array:
    """g y log(x1), and 0 where x1 is but y = 0 ** x2 finite, as in PyTorch.

    A complex y has a real x1 < 0, too, which has a complex log.
    """
    if y.dtype.kind == "c":
        x1 = x1 + 0j
    if isinstance(x1, _NUMBERS):
        return g * (y * (np.log(x1).item() if x1 else ns.where(ns.isfinite(y), 0.0, -inf)))
    zero = ns.logical_and(ns.equal(x1, 0), ns.isfinite(y))
    return g * ns.where(zero, 0.0, y * ns.log(ns.where(zero, 1.0, x1)))


pow_grad = fused(
    "pow_grad", _pow_grad,
    gpu=elementwise("T g, T x1, T x2", "T dx",
                    "dx = x2 == T(0) ? T(0) : T(g * x2 * pow(x1, x2 - T(1)))"),
    samples=alike(3, (normal, above_zero, normal)),
    reference=lambda torch, g, a, b: g * b * a ** (b - 1),
    doc="The gradient of x1 ** x2 with respect to x1.",
)

pow_grad_exponent = fused(
    "pow_grad_exponent", _pow_grad_exponent,
    gpu=elementwise("T g, T x1, T y", "T dx",
                    "dx = x1 == T(0) && y - y == T(0) ? T(0) : T(g * y * log(x1))"),
    samples=alike(3, (normal, above_zero, normal)),
    reference=lambda torch, g, a, y: g * y * torch.log(a),
    doc="The gradient of y = x1 ** x2 with respect to x2; NaN where x1 < 0. Where x1 = 0 it is "
        "0, and -infinity for x2 < 0, as in PyTorch.",
)

power = op(
    "power", autocast="float32", cpu=ufunc(np.power), gpu=cupy_function("power"), complex=True,
    backward=analytic(
        partial("x1 x2", _pow_backward_base),
        partial("x1 out", lambda ns, g, x1, y, out: ns.pow_grad_exponent(g, x1, y, out=out))),
    samples=binary(above_zero, normal), reference=lambda torch, a, b: a ** b,
    doc="x1 ** x2, elementwise with broadcasting.",
)


def pow(x1: Operand, x2: Operand, /) -> Tensor:
    """x1 ** x2, elementwise with broadcasting. Whole powers 1 and 2 cost no call of pow.

    Raises ValueError for integers to a negative power, and for shapes that do not broadcast.
    """
    if isinstance(x1, Tensor) and (
            type(x2) is int or (type(x2) is float and x1.dtype.kind in "fVc")):
        if x2 == 2:
            return square(x1)
        if x2 == 1:
            return multiply(x1, 1)
    return power(x1, x2)


# -- length and sign -------------------------------------------------------------------------------

hypot_grad = fused(
    "hypot_grad", lambda ns, g, x, y: g * (x / y), by_ops=True,
    samples=alike(3, (normal, normal, above_zero)), reference=lambda torch, g, x, y: g * (x / y),
    doc="The gradient of y = hypot(x, x2) with respect to x.",
)

hypot = op(
    "hypot", cpu=ufunc(np.hypot), gpu=cupy_function("hypot"), floating=True,
    backward=pointwise(
        partial("x1 out", lambda ns, g, x1, y, out: ns.hypot_grad(g, x1, y, out=out)),
        partial("x2 out", lambda ns, g, x2, y, out: ns.hypot_grad(g, x2, y, out=out))),
    samples=binary(apart), reference=lambda torch, a, b: torch.hypot(a, b),
    doc="sqrt(x1 ** 2 + x2 ** 2), elementwise with broadcasting, without overflow.",
)

copysign_grad = fused(
    "copysign_grad", lambda ns, g, x1, x2: g * (ns.sign(x1) * ns.copysign(1.0, x2)),
    by_ops=True,
    samples=alike(3, (normal, apart, apart)),
    reference=lambda torch, g, a, b: g * torch.sign(a) * torch.sign(b),
    doc="The gradient of copysign(x1, x2) with respect to x1; 0 where x1 is 0.",
)

copysign = op(
    "copysign", cpu=ufunc(np.copysign), gpu=cupy_function("copysign"), floating=True,
    backward=pointwise(
        partial("x1 x2", lambda ns, g, x1, x2, out: ns.copysign_grad(g, x1, x2, out=out)), ZERO),
    samples=binary(apart), reference=lambda torch, a, b: torch.copysign(a, b),
    doc="|x1| with the sign of x2, elementwise with broadcasting.",
)

positive = op(
    "positive", cpu=ufunc(np.positive), gpu=cupy_function("positive"), complex=True,
    backward=pointwise(identity), samples=unary(), reference=lambda torch, x: x.clone(),
    doc="+x, elementwise: a copy.",
)

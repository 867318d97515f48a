"""Arithmetic, powers and comparison."""

from __future__ import annotations

from typing import Any

import numpy as np

from gtensor.backend import host
from gtensor.backend.cuda import cupy
from gtensor.backend.kernels import elementwise
from gtensor.core.op import Op, op
from gtensor.core.samples import (
    Sample,
    alike,
    apart,
    below,
    binary,
    boolean,
    distinct,
    normal,
    positive,
    unary,
)
from gtensor.core.tensor import Tensor
from gtensor.creation import asarray
from gtensor.ops.fused import fused
from gtensor.ops.paths import cupy_function, ufunc
from gtensor.ops.pointwise import SAME, d, pointwise

__all__ = [
    "abs", "add", "bitwise_and", "bitwise_invert", "bitwise_or", "bitwise_xor", "divide",
    "equal", "floor_divide", "greater", "greater_equal", "isnan", "less", "less_equal",
    "maximum", "minimum", "multiply", "negative", "not_equal", "pow", "remainder", "sign",
    "square", "subtract", "where",
]

add = op(
    "add", cpu=ufunc(np.add), gpu=cupy_function("add"),
    backward=pointwise(SAME, SAME),
    samples=binary(), reference=lambda torch, a, b: a + b,
    doc="x1 + x2, elementwise with broadcasting.",
)

subtract = op(
    "subtract", cpu=ufunc(np.subtract), gpu=cupy_function("subtract"),
    backward=pointwise(SAME, d("", lambda ns, g, out: ns.negative(g, out=out))),
    samples=binary(), reference=lambda torch, a, b: a - b,
    doc="x1 - x2, elementwise with broadcasting.",
)

multiply = op(
    "multiply", cpu=ufunc(np.multiply), gpu=cupy_function("multiply"),
    backward=pointwise(
        d("x2", lambda ns, g, x2, out: ns.multiply(g, x2, out=out)),
        d("x1", lambda ns, g, x1, out: ns.multiply(g, x1, out=out))),
    samples=binary(), reference=lambda torch, a, b: a * b,
    doc="x1 * x2, elementwise with broadcasting.",
)

divide_grad = fused(
    "divide_grad", lambda ns, g, x2, y: -(g * y / x2),
    gpu=elementwise("T g, T x2, T y", "T dx", "dx = -(g * y / x2)"),
    samples=alike(3, (normal, apart, normal)), reference=lambda torch, g, b, y: -(g * y / b),
    doc="The gradient of x1 / x2 with respect to x2, from y = x1 / x2.",
)

divide = op(
    "divide", cpu=ufunc(np.divide), gpu=cupy_function("divide"), floating=True,
    backward=pointwise(
        d("x2", lambda ns, g, x2, out: ns.divide(g, x2, out=out)),
        d("x2 out", lambda ns, g, x2, y, out: ns.divide_grad(g, x2, y, out=out))),
    samples=binary(normal, apart), reference=lambda torch, a, b: a / b,
    doc="x1 / x2, elementwise with broadcasting; integers become float32 first.",
)

negative = op(
    "negative", cpu=ufunc(np.negative), gpu=cupy_function("negative"),
    backward=pointwise(d("", lambda ns, g, out: ns.negative(g, out=out))),
    samples=unary(), reference=lambda torch, x: -x, doc="-x, elementwise.",
)

sign = op(
    "sign", cpu=ufunc(np.sign), gpu=cupy_function("sign"), backward=None, tangent=None,
    samples=unary(apart), reference=lambda torch, x: torch.sign(x),
    doc="-1, 0 or 1 by the sign of x. Has no derivative.",
)

abs = op(
    "abs", cpu=ufunc(np.absolute), gpu=cupy_function("absolute"),
    backward=pointwise(d("x", lambda ns, g, x, out: ns.copysign_grad(g, x, out=out))),
    samples=unary(apart), reference=lambda torch, x: torch.abs(x),
    doc="|x|, elementwise; its gradient at 0 is 0.",
)

copysign_grad = fused(
    "copysign_grad", lambda ns, g, x: ns.where(x > 0, g, ns.where(x < 0, -g, 0.0)),
    gpu=elementwise("T g, T x", "T dx", "dx = g * T((x > T(0)) - (x < T(0)))"),
    samples=alike(2, (normal, apart)), reference=lambda torch, g, x: g * torch.sign(x),
    doc="g where x > 0, -g where x < 0.",
)

square_grad = fused(
    "square_grad", lambda ns, g, x: 2 * g * x,
    gpu=elementwise("T g, T x", "T dx", "dx = T(2) * g * x"),
    samples=alike(2), reference=lambda torch, g, x: 2 * g * x, doc="The gradient of x * x.",
)

square = op(
    "square", cpu=ufunc(np.square), gpu=cupy_function("square"),
    backward=pointwise(d("x", lambda ns, g, x, out: ns.square_grad(g, x, out=out))),
    samples=unary(), reference=lambda torch, x: x * x, doc="x * x, elementwise.",
)

pow_grad = fused(
    "pow_grad",  # the exponent 0 is kept from 0 ** -1
    lambda ns, g, x1, x2: g * (x2 * ns.power(x1, ns.where(ns.equal(x2, 0), 1.0, x2 - 1))),
    gpu=elementwise("T g, T x1, T x2", "T dx",
                    "dx = x2 == T(0) ? T(0) : T(g * x2 * pow(x1, x2 - T(1)))"),
    samples=alike(3, (normal, positive, normal)),
    reference=lambda torch, g, a, b: g * b * a ** (b - 1),
    doc="The gradient of x1 ** x2 with respect to x1.",
)

pow_grad_exponent = fused(
    "pow_grad_exponent",
    lambda ns, g, x1, y: g * ns.where(x1 > 0, y * ns.log(ns.where(x1 > 0, x1, 1.0)), 0.0),
    gpu=elementwise("T g, T x1, T y", "T dx", "dx = x1 > T(0) ? T(g * y * log(x1)) : T(0)"),
    samples=alike(3, (normal, positive, normal)),
    reference=lambda torch, g, a, y: g * y * torch.log(a),
    doc="The gradient of y = x1 ** x2 with respect to x2; 0 where x1 <= 0.",
)

power = op(
    "power", cpu=ufunc(np.power), gpu=cupy_function("power"),
    backward=pointwise(
        d("x1 x2", lambda ns, g, x1, x2, out: ns.pow_grad(g, x1, x2, out=out)),
        d("x1 out", lambda ns, g, x1, y, out: ns.pow_grad_exponent(g, x1, y, out=out))),
    samples=binary(positive, normal), reference=lambda torch, a, b: a ** b,
    doc="x1 ** x2, elementwise with broadcasting.",
)


def pow(x1: Any, x2: Any) -> Tensor:
    """x1 ** x2, elementwise with broadcasting. Whole powers 1 and 2 cost no call of pow."""
    if type(x2) in (int, float) and isinstance(x1, Tensor):
        if x2 == 2:
            return square(x1)
        if x2 == 1:
            return multiply(x1, 1)
    return power(x1, x2)


# -- selection -------------------------------------------------------------------------------------


def _tied(comparison: str) -> Any:
    """Gradient of maximum/minimum: to the side taken; a tie shares it equally, as in PyTorch."""

    def formula(ns: Any, g: Any, x1: Any, x2: Any) -> Any:
        taken = getattr(ns, comparison)(x1, x2)
        return ns.where(taken, g, ns.where(ns.equal(x1, x2), 0.5 * g, 0.0))

    return formula


maximum_grad = fused(
    "maximum_grad", _tied("greater"),
    gpu=elementwise("T g, T x1, T x2", "T dx",
                    "dx = x1 > x2 ? g : (x1 == x2 ? T(g * T(0.5)) : T(0))"),
    samples=alike(3, (normal, apart, distinct)),
    reference=lambda torch, g, a, b: g * (a > b),
    doc="g where x1 > x2, half of it at a tie.",
)

maximum = op(
    "maximum", cpu=ufunc(np.maximum), gpu=cupy_function("maximum"),
    backward=pointwise(
        d("x1 x2", lambda ns, g, x1, x2, out: ns.maximum_grad(g, x1, x2, out=out)),
        d("x1 x2", lambda ns, g, x1, x2, out: ns.maximum_grad(g, x2, x1, out=out))),
    samples=binary(apart, normal), reference=lambda torch, a, b: torch.maximum(a, b),
    doc="The larger of x1 and x2, elementwise; NaN if either is.",
)

minimum_grad = fused(
    "minimum_grad", _tied("less"),
    gpu=elementwise("T g, T x1, T x2", "T dx",
                    "dx = x1 < x2 ? g : (x1 == x2 ? T(g * T(0.5)) : T(0))"),
    samples=alike(3, (normal, apart, distinct)),
    reference=lambda torch, g, a, b: g * (a < b),
    doc="g where x1 < x2, half of it at a tie.",
)

minimum = op(
    "minimum", cpu=ufunc(np.minimum), gpu=cupy_function("minimum"),
    backward=pointwise(
        d("x1 x2", lambda ns, g, x1, x2, out: ns.minimum_grad(g, x1, x2, out=out)),
        d("x1 x2", lambda ns, g, x1, x2, out: ns.minimum_grad(g, x2, x1, out=out))),
    samples=binary(apart, normal), reference=lambda torch, a, b: torch.minimum(a, b),
    doc="The smaller of x1 and x2, elementwise; NaN if either is.",
)


def _where_cpu(condition: Any, x1: Any, x2: Any, out: Any = None) -> Any:
    arrays = [a for a in (x1, x2) if isinstance(a, np.ndarray)]
    dtype = np.result_type(x1, x2) if len(arrays) != 1 else arrays[0].dtype
    shape = np.broadcast_shapes(condition.shape, *[a.shape for a in arrays])
    if out is None:
        out = host().empty(shape, dtype, "where")
    if out is not x2:
        out[...] = x2
    np.copyto(out, x1, where=condition, casting="same_kind")
    return out


def _where_gpu(condition: Any, x1: Any, x2: Any, out: Any = None) -> Any:
    result = cupy().where(condition, x1, x2)
    if out is None:
        return result
    out[...] = result
    return out


where_op = op(
    "where", cpu=_where_cpu, gpu=_where_gpu,
    backward=pointwise(
        None,
        d("condition", lambda ns, g, condition, out: ns.where(condition, g, 0.0)),
        d("condition", lambda ns, g, condition, out: ns.where(condition, 0.0, g))),
    samples=[Sample(s.shapes[:1] + s.shapes, (boolean, normal, normal)) for s in binary()],
    reference=lambda torch, c, a, b: torch.where(c, a, b),
    doc="x1 where condition is true, else x2, with broadcasting.",
)


def where(condition: Any, x1: Any, x2: Any) -> Tensor:
    """x1 where condition is true, else x2, with broadcasting.

    Raises TypeError unless the condition is boolean: a tensor, an array or a bool.
    """
    chosen = condition if isinstance(condition, Tensor) else asarray(condition)
    if chosen.dtype != np.bool_:
        raise TypeError(f"where was given a condition of dtype {chosen.dtype}; wanted bool, such "
                        "as x > 0")
    return where_op(chosen, x1, x2)


# -- comparison and logic: results are boolean or integer, so no gradient is due -------------------


def _discrete(name: str, function: np.ufunc, samples: Any, reference: Any) -> Op:
    return op(name, cpu=ufunc(function), gpu=cupy_function(function.__name__), backward=None,
              tangent=None, samples=samples, reference=reference,
              doc=f"{function.__name__}, elementwise with broadcasting. Has no derivative.")


equal = _discrete("equal", np.equal, binary(below(3)), lambda torch, a, b: a == b)
not_equal = _discrete("not_equal", np.not_equal, binary(below(3)), lambda torch, a, b: a != b)
less = _discrete("less", np.less, binary(), lambda torch, a, b: a < b)
less_equal = _discrete("less_equal", np.less_equal, binary(), lambda torch, a, b: a <= b)
greater = _discrete("greater", np.greater, binary(), lambda torch, a, b: a > b)
greater_equal = _discrete("greater_equal", np.greater_equal, binary(), lambda torch, a, b: a >= b)
bitwise_and = _discrete("bitwise_and", np.bitwise_and, binary(boolean), lambda torch, a, b: a & b)
bitwise_or = _discrete("bitwise_or", np.bitwise_or, binary(boolean), lambda torch, a, b: a | b)
bitwise_xor = _discrete("bitwise_xor", np.bitwise_xor, binary(boolean), lambda torch, a, b: a ^ b)
bitwise_invert = _discrete("bitwise_invert", np.bitwise_not, unary(boolean), lambda torch, a: ~a)
isnan = _discrete("isnan", np.isnan, unary(), lambda torch, a: torch.isnan(a))
floor_divide = _discrete("floor_divide", np.floor_divide, binary(normal, apart),
                         lambda torch, a, b: torch.floor_divide(a, b))
remainder = _discrete("remainder", np.remainder, binary(normal, apart),
                      lambda torch, a, b: torch.remainder(a, b))

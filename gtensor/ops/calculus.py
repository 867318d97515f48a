"""Exponential, logarithm, roots, trigonometry."""

from __future__ import annotations

import numpy as np

from gtensor.backend.kernels import elementwise
from gtensor.core.op import op
from gtensor.core.samples import alike, normal, positive, unary
from gtensor.ops.fused import fused
from gtensor.ops.paths import cupy_function, ufunc
from gtensor.ops.pointwise import d, pointwise

__all__ = ["cos", "exp", "log", "sin", "sqrt", "tanh"]

exp = op(
    "exp", cpu=ufunc(np.exp), gpu=cupy_function("exp"), floating=True,
    backward=pointwise(d("out", lambda ns, g, y, out: ns.multiply(g, y, out=out))),
    samples=unary(), reference=lambda torch, x: torch.exp(x), doc="e ** x, elementwise.",
)

log = op(
    "log", cpu=ufunc(np.log), gpu=cupy_function("log"), floating=True,
    backward=pointwise(d("x", lambda ns, g, x, out: ns.divide(g, x, out=out))),
    samples=unary(positive), reference=lambda torch, x: torch.log(x),
    doc="Natural logarithm, elementwise.",
)

sqrt_grad = fused(
    "sqrt_grad", lambda ns, g, y: 0.5 * g / y,
    gpu=elementwise("T g, T y", "T dx", "dx = T(0.5) * g / y"),
    samples=alike(2, (normal, positive)), reference=lambda torch, g, y: 0.5 * g / y,
    doc="The gradient of y = sqrt(x).",
)

sqrt = op(
    "sqrt", cpu=ufunc(np.sqrt), gpu=cupy_function("sqrt"), floating=True,
    backward=pointwise(d("out", lambda ns, g, y, out: ns.sqrt_grad(g, y, out=out))),
    samples=unary(positive), reference=lambda torch, x: torch.sqrt(x),
    doc="Square root, elementwise.",
)

tanh_grad = fused(
    "tanh_grad", lambda ns, g, y: g * (1 - y * y),
    gpu=elementwise("T g, T y", "T dx", "dx = g * (T(1) - y * y)"),
    samples=alike(2), reference=lambda torch, g, y: g * (1 - y * y),
    doc="The gradient of y = tanh(x).",
)

tanh = op(
    "tanh", cpu=ufunc(np.tanh), gpu=cupy_function("tanh"), floating=True,
    backward=pointwise(d("out", lambda ns, g, y, out: ns.tanh_grad(g, y, out=out))),
    samples=unary(), reference=lambda torch, x: torch.tanh(x),
    doc="Hyperbolic tangent, elementwise.",
)

sin_grad = fused(
    "sin_grad", lambda ns, g, x: g * ns.cos(x),
    gpu=elementwise("T g, T x", "T dx", "dx = g * cos(x)"),
    samples=alike(2), reference=lambda torch, g, x: g * torch.cos(x), doc="The gradient of sin(x).",
)

sin = op(
    "sin", cpu=ufunc(np.sin), gpu=cupy_function("sin"), floating=True,
    backward=pointwise(d("x", lambda ns, g, x, out: ns.sin_grad(g, x, out=out))),
    samples=unary(), reference=lambda torch, x: torch.sin(x),
    doc="Sine of x in radians, elementwise.",
)

cos_grad = fused(
    "cos_grad", lambda ns, g, x: -(g * ns.sin(x)),
    gpu=elementwise("T g, T x", "T dx", "dx = -(g * sin(x))"),
    samples=alike(2), reference=lambda torch, g, x: -g * torch.sin(x),
    doc="The gradient of cos(x).",
)

cos = op(
    "cos", cpu=ufunc(np.cos), gpu=cupy_function("cos"), floating=True,
    backward=pointwise(d("x", lambda ns, g, x, out: ns.cos_grad(g, x, out=out))),
    samples=unary(), reference=lambda torch, x: torch.cos(x),
    doc="Cosine of x in radians, elementwise.",
)

"""Exponentials, logarithms and roots; and the builder of ops that are smooth functions of x."""

from __future__ import annotations

from collections.abc import Callable
from math import log as number_log
from typing import Any

import numpy as np

from gtensor.backend.kernels import elementwise
from gtensor.core.op import Op, op
from gtensor.core.samples import Draw, alike, binary, normal, positive, unary
from gtensor.ops.fused import fused
from gtensor.ops.paths import cupy_function, ufunc
from gtensor.ops.pointwise import analytic, d, pointwise

__all__ = [
    "exp", "expm1", "log", "log1p", "log2", "log10", "logaddexp", "reciprocal", "sqrt",
]

_LN2, _LN10 = number_log(2), number_log(10)


def smooth(
    name: str, function: np.ufunc, gradient: Callable[..., Any], kernel: str, doc: str, *,
    of: str = "x", draw: Draw = normal, drawn: Draw | None = None,
) -> Op:
    """Register an analytic function of one input, and `<name>_grad`, its gradient in one pass.

    Args:
        function: NumPy's function; CuPy's and PyTorch's have its name or the op's.
        gradient: `gradient(ns, g, x)` is g times the derivative; `of` says whether x is the op's
            input ("x") or its output ("out").
        kernel: the same in CUDA C++, of `T g, T x`.
        draw, drawn: samples of the input, and of what `gradient` takes if that is the output.
    """
    slope = f"{name}_grad"

    def formula(ns: Any, g: Any, x: Any) -> Any:
        return gradient(ns, g, x)

    fused(slope, formula, gpu=elementwise("T g, T x", "T dx", f"dx = {kernel}"),
          samples=alike(2, (normal, drawn or draw)), reference=formula,
          doc=f"The gradient of y = {name}(x), from g and {'y' if of == 'out' else 'x'}.")
    return op(
        name, cpu=ufunc(function), gpu=cupy_function(function.__name__), floating=True,
        complex=True, samples=unary(draw), reference=lambda torch, x: getattr(torch, name)(x),
        backward=analytic(d(of, lambda ns, g, x, out: getattr(ns, slope)(g, x, out=out))), doc=doc)


exp = op(
    "exp", cpu=ufunc(np.exp), gpu=cupy_function("exp"), floating=True, complex=True,
    backward=analytic(d("out", lambda ns, g, y, out: ns.multiply(g, y, out=out))),
    samples=unary(), reference=lambda torch, x: torch.exp(x), doc="e ** x, elementwise.",
)

expm1 = smooth("expm1", np.expm1, lambda ns, g, y: g * (y + 1), "g * (x + T(1))",
               "e ** x - 1, elementwise, exact for small x.", of="out", drawn=positive)

log = op(
    "log", cpu=ufunc(np.log), gpu=cupy_function("log"), floating=True, complex=True,
    backward=analytic(d("x", lambda ns, g, x, out: ns.divide(g, x, out=out))),
    samples=unary(positive), reference=lambda torch, x: torch.log(x),
    doc="Natural logarithm, elementwise.",
)

log1p = smooth("log1p", np.log1p, lambda ns, g, x: g / (x + 1), "g / (x + T(1))",
               "The natural logarithm of 1 + x, elementwise, exact for small x.", draw=positive)
log2 = smooth("log2", np.log2, lambda ns, g, x: g / (x * _LN2), f"g / (x * T({_LN2!r}))",
              "Logarithm to base 2, elementwise.", draw=positive)
log10 = smooth("log10", np.log10, lambda ns, g, x: g / (x * _LN10), f"g / (x * T({_LN10!r}))",
               "Logarithm to base 10, elementwise.", draw=positive)
sqrt = smooth("sqrt", np.sqrt, lambda ns, g, y: 0.5 * g / y, "T(0.5) * g / x",
              "Square root, elementwise.", of="out", draw=positive)
reciprocal = smooth("reciprocal", np.reciprocal, lambda ns, g, y: -(g * y * y), "-(g * x * x)",
                    "1 / x, elementwise.", of="out", draw=positive)


def _logaddexp_grad(ns: Any, g: Any, x: Any, y: Any) -> Any:
    """exp(x - y), with 1 where x is y: so an infinite x gets all of g."""
    return g * ns.exp(ns.where(ns.equal(x, y), 0.0, x - y))


logaddexp_grad = fused(
    "logaddexp_grad", _logaddexp_grad,
    gpu=elementwise("T g, T x, T y", "T dx", "dx = x == y ? g : T(g * exp(x - y))"),
    samples=alike(3), reference=lambda torch, g, x, y: g * torch.exp(x - y),
    doc="The gradient of y = log(exp(x) + exp(x2)) with respect to x.",
)

logaddexp = op(
    "logaddexp", cpu=ufunc(np.logaddexp), gpu=cupy_function("logaddexp"), floating=True,
    backward=pointwise(
        d("x1 out", lambda ns, g, x1, y, out: ns.logaddexp_grad(g, x1, y, out=out)),
        d("x2 out", lambda ns, g, x2, y, out: ns.logaddexp_grad(g, x2, y, out=out))),
    samples=binary(), reference=lambda torch, a, b: torch.logaddexp(a, b),
    doc="log(exp(x1) + exp(x2)), elementwise with broadcasting, without overflow.",
)

"""Exponentials, logarithms, roots and the error function; and the builder of smooth ops of x."""

from __future__ import annotations

from math import log as number_log
from typing import TYPE_CHECKING, Literal

import numpy as np

from gtensor.engine.tape.op import Op, op
from gtensor.engine.tape.samples import Draw, alike, binary, normal, positive, unary
from gtensor.ops.define.formula import Formula
from gtensor.ops.define.fused import fused, paths
from gtensor.ops.define.path_builders import cupy_function, ufunc
from gtensor.ops.define.pointwise import analytic, partial, pointwise
from gtensor.ops.define.primitives import TWO_OVER_ROOT_PI

if TYPE_CHECKING:
    from gtensor.backend.typing import Array, Path
    from gtensor.engine.handle.namespaces import Namespace

__all__ = [
    "exp", "expm1", "log", "log1p", "log2", "log10", "logaddexp", "reciprocal", "sqrt",
]  # erf is public in gtensor.nn.functional

_LN2, _LN10 = number_log(2), number_log(10)


def smooth(
    name: str, function: np.ufunc, gradient: Path, doc: str, *,
    of: str = "x", draw: Draw = normal, drawn: Draw | None = None,
    autocast: Literal["low", "float32"] | None = None,
) -> Op:
    """Register an analytic function of one input, and `<name>_grad`, its gradient in one pass.

    Args:
        function: NumPy's function; CuPy's and PyTorch's have its name or the op's.
        gradient: `gradient(ns, g, x)` is g times the derivative; `of` says whether x is the op's
            input ("x") or its output ("out").
        autocast: the op's policy.
        draw, drawn: samples of the input, and of what `gradient` takes if that is the output.
    """
    slope = f"{name}_grad"

    def formula(ns: Namespace, g: Array, x: Array) -> Array:
        return gradient(ns, g, x)

    fused(slope, Formula(slope, formula, analytic=True), by_ops=True,
          samples=alike(2, (normal, drawn or draw)), reference=formula,
          doc=f"The gradient of y = {name}(x), from g and {'y' if of == 'out' else 'x'}.")
    return op(
        name, cpu=ufunc(function), gpu=cupy_function(function.__name__), floating=True,
        complex=True, samples=unary(draw), reference=lambda torch, x: getattr(torch, name)(x),
        backward=analytic(partial(of, slope)), autocast=autocast, doc=doc)


exp = op(
    "exp", autocast="float32", cpu=ufunc(np.exp), gpu=cupy_function("exp"), floating=True,
    complex=True, backward=analytic(partial("out", "multiply")),
    samples=unary(), reference=lambda torch, x: torch.exp(x), doc="e ** x, elementwise.",
)

expm1 = smooth("expm1", np.expm1, lambda ns, g, y: g * (y + 1),
               "e ** x - 1, elementwise, exact for small x.", of="out", drawn=positive,
               autocast="float32")

log = op(
    "log", autocast="float32", cpu=ufunc(np.log), gpu=cupy_function("log"), floating=True,
    complex=True, backward=analytic(partial("x", "divide")),
    samples=unary(positive), reference=lambda torch, x: torch.log(x),
    doc="Natural logarithm, elementwise.",
)

log1p = smooth("log1p", np.log1p, lambda ns, g, x: g / (x + 1),
               "The natural logarithm of 1 + x, elementwise, exact for small x.", draw=positive,
               autocast="float32")
log2 = smooth("log2", np.log2, lambda ns, g, x: g / (x * _LN2),
              "Logarithm to base 2, elementwise.", draw=positive, autocast="float32")
log10 = smooth("log10", np.log10, lambda ns, g, x: g / (x * _LN10),
               "Logarithm to base 10, elementwise.", draw=positive, autocast="float32")
sqrt = smooth("sqrt", np.sqrt, lambda ns, g, y: 0.5 * g / y,
              "Square root, elementwise.", of="out", draw=positive)
reciprocal = smooth("reciprocal", np.reciprocal, lambda ns, g, y: -(g * y * y),
                    "1 / x, elementwise.", of="out", draw=positive, autocast="float32")


logaddexp_grad = fused(
    "logaddexp_grad", lambda ns, g, x1, x2: g * ns.sigmoid(x1 - x2), by_ops=True,
    samples=alike(3), reference=lambda torch, g, x1, x2: g * torch.sigmoid(x1 - x2),
    doc="The gradient of log(exp(x1) + exp(x2)) with respect to x1; from the output, exp(x1 - y) "
        "would lose the digits that a large y rounds away.",
)

logaddexp = op(
    "logaddexp", cpu=ufunc(np.logaddexp), gpu=cupy_function("logaddexp"), floating=True,
    backward=pointwise(
        partial("x1 x2", lambda ns, g, x1, x2, out: ns.logaddexp_grad(g, x1, x2, out=out)),
        partial("x1 x2", lambda ns, g, x1, x2, out: ns.logaddexp_grad(g, x2, x1, out=out))),
    samples=binary(), reference=lambda torch, a, b: torch.logaddexp(a, b),
    doc="log(exp(x1) + exp(x2)), elementwise with broadcasting, without overflow.",
)

erf_grad = fused(
    "erf_grad", lambda ns, g, x: g * (TWO_OVER_ROOT_PI * ns.exp(-(x * x))), by_ops=True,
    samples=alike(2), reference=lambda torch, g, x: g * TWO_OVER_ROOT_PI * torch.exp(-x * x),
    doc="The gradient of erf(x).",
)

erf = op(
    "erf", **paths(Formula("erf", lambda ns, x: ns.erf(x))), floating=True,
    backward=pointwise(partial("x", "erf_grad")),
    samples=unary(), reference=lambda torch, x: torch.erf(x),
    doc="The error function, elementwise: 2 / sqrt(pi) times the integral of exp(-t^2), 0 to x.",
)

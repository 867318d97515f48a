"""Trigonometric and hyperbolic functions and their inverses. Angles are in radians."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gtensor.engine.tape.op import op
from gtensor.engine.tape.samples import alike, apart, binary, normal
from gtensor.ops.define.fused import fused
from gtensor.ops.define.path_builders import cupy_function, ufunc
from gtensor.ops.define.pointwise import partial, pointwise
from gtensor.ops.elementwise.exponentials import smooth

if TYPE_CHECKING:
    from gtensor.backend.typing import Array
    from gtensor.engine.handle.namespaces import Namespace

__all__ = [
    "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cos", "cosh", "sin", "sinh", "tan",
    "tanh",
]


def _inside(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Values in (-0.9, 0.9): away from the ends at -1 and 1."""
    return rng.uniform(-0.9, 0.9, shape)


def _above_one(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Values in [1.2, 3)."""
    return rng.uniform(1.2, 3.0, shape)


sin = smooth("sin", np.sin, lambda ns, g, x: g * ns.cos(x), "Sine, elementwise.")
cos = smooth("cos", np.cos, lambda ns, g, x: -(g * ns.sin(x)),
             "Cosine, elementwise.")
tan = smooth("tan", np.tan, lambda ns, g, y: g * (1 + y * y),
             "Tangent, elementwise.", of="out", draw=_inside, drawn=normal, autocast="float32")
asin = smooth("asin", np.arcsin, lambda ns, g, x: g / ns.sqrt((1 - x) * (1 + x)),
              "Inverse sine, elementwise: angles in [-pi / 2, pi / 2].", draw=_inside,
              autocast="float32")
acos = smooth("acos", np.arccos, lambda ns, g, x: -(g / ns.sqrt((1 - x) * (1 + x))),
              "Inverse cosine, elementwise: angles in [0, pi].", draw=_inside, autocast="float32")
atan = smooth("atan", np.arctan, lambda ns, g, x: g / (1 + x * x),
              "Inverse tangent, elementwise: angles in [-pi / 2, pi / 2].")

sinh = smooth("sinh", np.sinh, lambda ns, g, x: g * ns.cosh(x),
              "Hyperbolic sine, elementwise.", autocast="float32")
cosh = smooth("cosh", np.cosh, lambda ns, g, x: g * ns.sinh(x),
              "Hyperbolic cosine, elementwise.", autocast="float32")
tanh = smooth("tanh", np.tanh, lambda ns, g, y: g * (1 - y * y),
              "Hyperbolic tangent, elementwise.", of="out")
asinh = smooth("asinh", np.arcsinh, lambda ns, g, x: g / ns.sqrt(1 + x * x),
               "Inverse hyperbolic sine, elementwise.")
acosh = smooth("acosh", np.arccosh,  # two roots: right for complex x, too
               lambda ns, g, x: g / (ns.sqrt(x - 1) * ns.sqrt(x + 1)),
               "Inverse hyperbolic cosine, elementwise.", draw=_above_one)
atanh = smooth("atanh", np.arctanh, lambda ns, g, x: g / ((1 - x) * (1 + x)),
               "Inverse hyperbolic tangent, elementwise.", draw=_inside)



def _over_square(ns: Namespace, numerator: Array, x1: Array, x2: Array) -> Array:
    """numerator / (x1 ** 2 + x2 ** 2): 0 at the origin, where the angle has no derivative."""
    square = x1 * x1 + x2 * x2
    return numerator / ns.where(ns.equal(square, 0), 1.0, square)


atan2_grad_x1 = fused(
    "atan2_grad_x1", lambda ns, g, x1, x2: _over_square(ns, g * x2, x1, x2), by_ops=True,
    samples=alike(3, (normal, apart, apart)),
    reference=lambda torch, g, a, b: g * b / (a * a + b * b),
    doc="The gradient of atan2(x1, x2) with respect to x1; 0 at the origin.",
)

atan2_grad_x2 = fused(
    "atan2_grad_x2", lambda ns, g, x1, x2: _over_square(ns, -(g * x1), x1, x2), by_ops=True,
    samples=alike(3, (normal, apart, apart)),
    reference=lambda torch, g, a, b: -(g * a / (a * a + b * b)),
    doc="The gradient of atan2(x1, x2) with respect to x2; 0 at the origin.",
)

atan2 = op(
    "atan2", cpu=ufunc(np.arctan2), gpu=cupy_function("arctan2"), floating=True,
    backward=pointwise(
        partial("x1 x2", lambda ns, g, x1, x2, out: ns.atan2_grad_x1(g, x1, x2, out=out)),
        partial("x1 x2", lambda ns, g, x1, x2, out: ns.atan2_grad_x2(g, x1, x2, out=out))),
    samples=binary(apart), reference=lambda torch, a, b: torch.atan2(a, b),
    doc="The angle of the point (x2, x1), elementwise with broadcasting: in [-pi, pi].",
)

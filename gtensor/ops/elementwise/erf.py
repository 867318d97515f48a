"""The error function."""

from __future__ import annotations

from gtensor.engine.op import op
from gtensor.engine.samples import alike, unary
from gtensor.ops.build.formula import Formula
from gtensor.ops.build.fused import fused, paths
from gtensor.ops.build.pointwise import partial, pointwise
from gtensor.ops.build.primitives import TWO_OVER_ROOT_PI

__all__: list[str] = []  # erf is public in gtensor.nn.functional

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

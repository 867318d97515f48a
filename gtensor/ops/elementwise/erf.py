"""The error function."""

from __future__ import annotations

from gtensor.engine.samples import alike, unary
from gtensor.ops.build.fused import formula_of
from gtensor.ops.build.primitives import TWO_OVER_ROOT_PI

__all__: list[str] = []  # erf is public in gtensor.nn.functional

erf = formula_of(
    "erf", lambda ns, x: ns.erf(x),
    gradient={"by_ops": True, "samples": alike(2), "reference": lambda torch, g, x: (
        g * TWO_OVER_ROOT_PI * torch.exp(-x * x))},
    floating=True, samples=unary(), reference=lambda torch, x: torch.erf(x),
    doc="The error function, elementwise: 2 / sqrt(pi) times the integral of exp(-t^2), 0 to x.",
)

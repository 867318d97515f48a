"""More smooth activations: mish, logsigmoid, softsign, the gates of GLU and SwiGLU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gtensor.engine.op import op
from gtensor.engine.samples import alike, apart, normal, unary
from gtensor.engine.tensor import Tensor
from gtensor.ops.arrange.shape import along, axis_index, from_end
from gtensor.ops.build.arguments import want_tensors
from gtensor.ops.build.formula import Formula, derivative
from gtensor.ops.build.fused import formula_of, fused, paths
from gtensor.ops.build.pointwise import partial, pointwise

if TYPE_CHECKING:
    from gtensor.backend.typing import Array
    from gtensor.engine.typing import Namespace


# -- mish ------------------------------------------------------------------------------------------


def _mish_gate(ns: Namespace, x: Array) -> Any:
    """tanh(softplus(x)) = m / (m + 2) with m = e^x (e^x + 2); 1 from x = 20 on."""
    e = ns.exp(ns.minimum(x, 20.0))
    m = e * (e + 2)
    return m / (m + 2)


def _mish_slope(ns: Namespace, x: Array) -> Array:
    gate = _mish_gate(ns, x)
    return gate + x * (1 - gate * gate) * ns.sigmoid(x)


mish_op = formula_of(
    "mish", lambda ns, x: x * _mish_gate(ns, x), slope=_mish_slope,
    gradient={"by_ops": True, "samples": alike(2, apart)}, floating=True, samples=unary(),
    reference=lambda torch, x: torch.nn.functional.mish(x),
    doc="x * tanh(softplus(x)), elementwise (Misra, 2019).",
)


# -- logsigmoid and softsign -----------------------------------------------------------------------

logsigmoid_op = formula_of(
    "logsigmoid", lambda ns, x: ns.minimum(x, 0) - ns.log1p(ns.exp(-ns.abs(x))),
    slope=lambda ns, x: ns.sigmoid(-x),
    gradient={"samples": alike(2), "reference": lambda torch, g, x: g * torch.sigmoid(-x)},
    floating=True, samples=unary(),
    reference=lambda torch, x: torch.nn.functional.logsigmoid(x),
    doc="log(sigmoid(x)), elementwise, without overflow.",
)

softsign_op = formula_of(
    "softsign", lambda ns, x: x / (1 + ns.abs(x)),
    slope=lambda ns, x: 1 / ns.square(1 + ns.abs(x)),
    gradient={"by_ops": True, "samples": alike(2, (normal, apart)),
              "reference": lambda torch, g, x: g / (1 + x.abs()) ** 2},
    floating=True, samples=unary(apart),
    reference=lambda torch, x: torch.nn.functional.softsign(x),
    doc="x / (1 + |x|), elementwise.",
)


# -- the gate of GLU -------------------------------------------------------------------------------

_GATED = Formula("gated", lambda ns, x, gate: x * ns.sigmoid(gate))

gated_grad = fused(
    "gated_grad", lambda ns, g, gate: g * ns.sigmoid(gate),
    samples=alike(2), reference=lambda torch, g, gate: g * torch.sigmoid(gate),
    doc="The gradient of gated(x, gate) with respect to x.",
)

gated_grad_gate = fused(
    "gated_grad_gate", derivative(_GATED, "gate"), by_ops=True, samples=alike(3),
    doc="The gradient of gated(x, gate) with respect to the gate.",
)

gated = op(
    "gated", **paths(_GATED), floating=True,
    backward=pointwise(
        partial("gate", lambda ns, g, gate, out: ns.gated_grad(g, gate)),
        partial("x gate", "gated_grad_gate")),
    samples=alike(2), reference=lambda torch, x, gate: x * torch.sigmoid(gate),
    doc="x * sigmoid(gate), elementwise.",
)


# -- the gate of SwiGLU ----------------------------------------------------------------------------

_SWISH_GATED = Formula("swish_gated", lambda ns, gate, x: x * (gate * ns.sigmoid(gate)))

swish_gated_grad_gate = fused(
    "swish_gated_grad_gate", derivative(_SWISH_GATED, "gate"), by_ops=True, samples=alike(3),
    doc="The gradient of swish_gated(gate, x) with respect to the gate.",
)

swish_gated = op(
    "swish_gated", **paths(_SWISH_GATED), floating=True,
    backward=pointwise(
        partial("gate x", "swish_gated_grad_gate"),
        partial("gate", lambda ns, g, gate, out: ns.swish_gated(gate, g))),
    samples=alike(2), reference=lambda torch, gate, x: torch.nn.functional.silu(gate) * x,
    doc="silu(gate) * x, elementwise.",
)


# -- public functions ------------------------------------------------------------------------------


def mish(input: Tensor) -> Tensor:
    """input * tanh(softplus(input)), elementwise."""
    return mish_op(input)


def logsigmoid(input: Tensor) -> Tensor:
    """log(sigmoid(input)), elementwise, without overflow."""
    return logsigmoid_op(input)


def softsign(input: Tensor) -> Tensor:
    """input / (1 + |input|), elementwise."""
    return softsign_op(input)


def glu(input: Tensor, dim: int = -1) -> Tensor:
    """a * sigmoid(b), where a and b are the halves of input along `dim`. Saves input only.

    Source: Dauphin et al., "Language modeling with gated convolutional networks", 2016.
    """
    return gated(*_halves("glu", input, dim))


def swiglu(input: Tensor, dim: int = -1) -> Tensor:
    """silu(a) * b, where a and b are the halves of input along `dim`. Saves input only.

    Source: Shazeer, "GLU variants improve Transformer", 2020.
    """
    return swish_gated(*_halves("swiglu", input, dim))


def _halves(name: str, input: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    want_tensors(name, input=input)
    axis = from_end(axis_index(dim, input.ndim, name), input.ndim)
    half, odd = divmod(input.shape[axis], 2)
    if odd:
        raise ValueError(f"{name} was given {input.shape[axis]} elements along axis {dim}; wanted "
                         "an even number")
    return input[along(axis, 0, half)], input[along(axis, half, None)]

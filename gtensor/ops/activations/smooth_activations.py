"""More smooth activations: mish, logsigmoid, softsign, the gate of GLU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gtensor.engine.op import op
from gtensor.engine.samples import alike, apart, normal, unary
from gtensor.engine.tensor import Tensor
from gtensor.ops.arrange.shape import along, axis_index, from_end
from gtensor.ops.build.arguments import want_tensors
from gtensor.ops.build.fused import fused
from gtensor.ops.build.half_kernels import wide_kernel
from gtensor.ops.build.path_builders import tiled
from gtensor.ops.build.pointwise import partial, pointwise
from gtensor.ops.elementwise.erf import extended, sigmoid_values

if TYPE_CHECKING:
    from gtensor.backend.typing import Array
    from gtensor.engine.typing import Namespace

_HEADER = "activation.cuh"


# -- mish ------------------------------------------------------------------------------------------


def _mish_gate(ns: Namespace, x: Array) -> Any:
    """tanh(softplus(x)) = m / (m + 2) with m = e^x (e^x + 2); 1 from x = 20 on."""
    e = ns.exp(ns.minimum(x, 20.0))
    m = e * (e + 2)
    return m / (m + 2)


def _mish_grad_formula(ns: Namespace, g: Array, x: Array) -> Array:
    gate = _mish_gate(ns, x)
    return g * (gate + x * (1 - gate * gate) * ns.sigmoid(x))


_MISH_GATE = ("const F e = exp(x < F(20) ? x : F(20)), m = e * (e + F(2)), "
              "gate = m / (m + F(2)); ")

mish_grad = fused(
    "mish_grad", extended(_mish_grad_formula),
    gpu=wide_kernel("g x", "g * (gate + x * (F(1) - gate * gate) * gt_sigmoid(x))",
                    name="mish_grad", before=_MISH_GATE, header=_HEADER),
    samples=alike(2, apart), doc="The gradient of mish(x).",
)

mish_op = op(
    "mish", inputs="x", floating=True,
    cpu=tiled("mish", lambda ns, x: x * _mish_gate(ns, x)),
    gpu=wide_kernel("x", "x * gate", name="mish", before=_MISH_GATE),
    backward=pointwise(partial("x", lambda ns, g, x, out: ns.mish_grad(g, x, out=out))),
    samples=unary(), reference=lambda torch, x: torch.nn.functional.mish(x),
    doc="x * tanh(softplus(x)), elementwise (Misra, 2019).",
)


# -- logsigmoid and softsign -----------------------------------------------------------------------

logsigmoid_grad = fused(
    "logsigmoid_grad", extended(lambda ns, g, x: g * ns.sigmoid(-x)),
    gpu=wide_kernel("g x", "g * gt_sigmoid(-x)", name="logsigmoid_grad", header=_HEADER),
    samples=alike(2), reference=lambda torch, g, x: g * torch.sigmoid(-x),
    doc="The gradient of logsigmoid(x).",
)

logsigmoid_op = op(
    "logsigmoid", inputs="x", floating=True,
    cpu=tiled("logsigmoid", lambda ns, x: ns.minimum(x, 0) - ns.log1p(ns.exp(-ns.abs(x)))),
    gpu=wide_kernel("x", "(x > F(0) ? F(0) : x) - log1p(exp(x > F(0) ? -x : x))",
                    name="logsigmoid"),
    backward=pointwise(partial("x", lambda ns, g, x, out: ns.logsigmoid_grad(g, x, out=out))),
    samples=unary(), reference=lambda torch, x: torch.nn.functional.logsigmoid(x),
    doc="log(sigmoid(x)), elementwise, without overflow.",
)

softsign_grad = fused(
    "softsign_grad", lambda ns, g, x: g / ns.square(1 + ns.abs(x)),
    gpu=wide_kernel("g x", "g / (s * s)", name="softsign_grad",
                    before="const F s = F(1) + (x < F(0) ? -x : x); "),
    samples=alike(2, (normal, apart)), reference=lambda torch, g, x: g / (1 + x.abs()) ** 2,
    doc="The gradient of softsign(x).",
)

softsign_op = op(
    "softsign", inputs="x", floating=True, cpu=tiled("softsign", lambda ns, x: x / (1 + ns.abs(x))),
    gpu=wide_kernel("x", "x / (F(1) + (x < F(0) ? -x : x))", name="softsign"),
    backward=pointwise(partial("x", lambda ns, g, x, out: ns.softsign_grad(g, x, out=out))),
    samples=unary(apart), reference=lambda torch, x: torch.nn.functional.softsign(x),
    doc="x / (1 + |x|), elementwise.",
)


# -- the gate of GLU -------------------------------------------------------------------------------

gated_grad = fused(
    "gated_grad", extended(lambda ns, g, gate: g * ns.sigmoid(gate)),
    gpu=wide_kernel("g gate", "g * gt_sigmoid(gate)", name="gated_grad", header=_HEADER),
    samples=alike(2), reference=lambda torch, g, gate: g * torch.sigmoid(gate),
    doc="The gradient of gated(x, gate) with respect to x.",
)


def _gated_grad_gate_formula(ns: Namespace, g: Array, x: Array, gate: Any) -> Array:
    s = ns.sigmoid(gate)
    return g * x * (s * (1 - s))


gated_grad_gate = fused(
    "gated_grad_gate", extended(_gated_grad_gate_formula),
    gpu=wide_kernel("g x gate", "gt_sigmoid_grad(g * x, gate)", name="gated_grad_gate",
                    header=_HEADER),
    samples=alike(3), doc="The gradient of gated(x, gate) with respect to the gate.",
)

gated = op(
    "gated", inputs="x gate", floating=True,
    cpu=tiled("gated", lambda ns, x, gate: x * sigmoid_values(gate)),
    gpu=wide_kernel("x gate", "x * gt_sigmoid(gate)", name="gated", header=_HEADER),
    backward=pointwise(
        partial("gate", lambda ns, g, gate, out: ns.gated_grad(g, gate)),
        partial("x gate", lambda ns, g, x, gate, out: ns.gated_grad_gate(g, x, gate, out=out))),
    samples=alike(2), reference=lambda torch, x, gate: x * torch.sigmoid(gate),
    doc="x * sigmoid(gate), elementwise.",
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
    want_tensors("glu", input=input)
    axis = from_end(axis_index(dim, input.ndim, "glu"), input.ndim)
    half, odd = divmod(input.shape[axis], 2)
    if odd:
        raise ValueError(f"glu was given {input.shape[axis]} elements along axis {dim}; wanted an "
                         "even number")
    return gated(input[along(axis, 0, half)], input[along(axis, half, None)])

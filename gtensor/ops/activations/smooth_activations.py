"""More smooth activations: mish, logsigmoid, softsign, the gates of GLU and SwiGLU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gtensor.engine.handle.namespaces import raw, recorded
from gtensor.engine.handle.tensor import Tensor
from gtensor.engine.tape.op import op
from gtensor.engine.tape.samples import Sample, alike, apart, normal, unary
from gtensor.ops.arrange.shape import along, axis_index, from_end
from gtensor.ops.arrange.writing import overwrite
from gtensor.ops.define.arguments import takes_arrays
from gtensor.ops.define.batching import trailing, unchanged
from gtensor.ops.define.formula import Formula, derivative
from gtensor.ops.define.fused import formula_of, fused, paths, together
from gtensor.ops.define.path_builders import placed
from gtensor.ops.define.pointwise import partial, pointwise

if TYPE_CHECKING:
    from gtensor.backend import Device
    from gtensor.backend.typing import Array, Params
    from gtensor.engine.handle.namespaces import Namespace
    from gtensor.engine.walk.typing import ArrayOrTensor, Step, Values


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

together("gated_grads", ("gated_grad_gate", "g a b"), ("gated_grad", "g b"))

gated = op(
    "gated", **paths(_GATED), floating=True,
    backward=pointwise(
        partial("gate", lambda ns, g, gate, out: ns.gated_grad(g, gate)),
        partial("x gate", "gated_grad_gate"), together="gated_grads"),
    samples=alike(2), reference=lambda torch, x, gate: x * torch.sigmoid(gate),
    doc="x * sigmoid(gate), elementwise.",
)


# -- the gate of SwiGLU ----------------------------------------------------------------------------

_SWISH_GATED = Formula("swish_gated", lambda ns, gate, x: x * (gate * ns.sigmoid(gate)))

swish_gated_grad_gate = fused(
    "swish_gated_grad_gate", derivative(_SWISH_GATED, "gate"), by_ops=True, samples=alike(3),
    doc="The gradient of swish_gated(gate, x) with respect to the gate.",
)

together("swish_gated_grads", ("swish_gated", "a g"), ("swish_gated_grad_gate", "g a b"))

swish_gated = op(
    "swish_gated", **paths(_SWISH_GATED), floating=True,
    backward=pointwise(
        partial("gate x", "swish_gated_grad_gate"),
        partial("gate", lambda ns, g, gate, out: ns.swish_gated(gate, g, out=out)),
        together="swish_gated_grads"),
    samples=alike(2), reference=lambda torch, gate, x: torch.nn.functional.silu(gate) * x,
    doc="silu(gate) * x, elementwise.",
)


# -- SwiGLU of one array ---------------------------------------------------------------------------


def _swiglu_path(device: Device, x: Array, *, out: Array | None = None) -> Array:
    half = x.shape[-1] // 2
    if out is None:
        out = device.empty((*x.shape[:-1], half), x.dtype, "swiglu")
    return raw[device.type].swish_gated(x[..., :half], x[..., half:], out=out)


def _swiglu_grad_path(device: Device, g: Array, x: Array, *, out: Array | None = None) -> Array:
    """Both halves of the gradient in one array."""
    half, ns = x.shape[-1] // 2, raw[device.type]
    gate, value = x[..., :half], x[..., half:]
    if out is None:
        out = device.empty(x.shape, x.dtype, "swiglu_grad")
    if device.type == "cuda":
        ns.swish_gated_grads(g, gate, value, out=(out[..., half:], out[..., :half]))
        return out
    ns.swish_gated_grad_gate(g, gate, value, out=out[..., :half])
    ns.swish_gated(gate, g, out=out[..., half:])
    return out


def _split(ns: Namespace, x: ArrayOrTensor) -> tuple[Any, Any]:
    half = x.shape[-1] // 2
    return ns.slice(x, key=along(-1, 0, half)), ns.slice(x, key=along(-1, half, None))


def _swiglu_grad_composed(g: Tensor, x: Tensor) -> Tensor:
    gate, value = _split(recorded, x)
    return recorded.concat(recorded.swish_gated_grad_gate(g, gate, value),
                           recorded.swish_gated(gate, g), axis=-1,
                           sizes=(gate.shape[-1],) * 2)


def _swiglu_backward(ns: Namespace, step: Step, g: Array) -> None:
    step.give(0, ns.swiglu_grad(g, *step.saved))


def _swiglu_tangent(
    ns: Namespace, primals: Values, tangents: Values, out: Array, params: Params
) -> Any:
    (gate, value), (dgate, dvalue) = (_split(ns, x) for x in (primals[0], tangents[0]))
    return ns.add(ns.swish_gated_grad_gate(dgate, gate, value), ns.swish_gated(gate, dvalue))


swiglu_grad = op(
    "swiglu_grad", **placed(_swiglu_grad_path), backward=None, tangent=None,
    composed=_swiglu_grad_composed, batch=trailing,
    samples=[Sample(((*shape[:-1], shape[-1] // 2), shape)) for shape in ((3, 4), (2, 3, 2))],
    doc="The gradient of swiglu, in the shape of its input.",
)

swiglu_op = op(
    "swiglu", **placed(_swiglu_path), saves={"x": "x"},
    backward=_swiglu_backward, tangent=_swiglu_tangent, batch=unchanged,
    samples=[Sample((shape,)) for shape in ((3, 4), (6,), (2, 3, 2), (0, 4), (2, 0))],
    reference=lambda torch, x: torch.nn.functional.silu(x.chunk(2, -1)[0]) * x.chunk(2, -1)[1],
    doc="silu(a) * b with the halves a and b of the last axis.",
)


# -- public functions ------------------------------------------------------------------------------


def mish(input: Tensor, inplace: bool = False) -> Tensor:
    """input * tanh(softplus(input)), elementwise."""
    return overwrite(mish_op, input) if inplace else mish_op(input)


def logsigmoid(input: Tensor) -> Tensor:
    """log(sigmoid(input)), elementwise, without overflow."""
    return logsigmoid_op(input)


def softsign(input: Tensor) -> Tensor:
    """input / (1 + |input|), elementwise."""
    return softsign_op(input)


@takes_arrays
def glu(input: Tensor, dim: int = -1) -> Tensor:
    """a * sigmoid(b), where a and b are the halves of input along `dim`. Saves input only.

    Source: Dauphin et al., "Language modeling with gated convolutional networks", 2016.
    """
    axis, half = _half("glu", input, dim)
    return gated(input[along(axis, 0, half)], input[along(axis, half, None)])


@takes_arrays
def swiglu(input: Tensor, dim: int = -1) -> Tensor:
    """silu(a) * b, where a and b are the halves of input along `dim`. Saves input only.

    Source: Shazeer, "GLU variants improve Transformer", 2020.
    """
    axis, half = _half("swiglu", input, dim)
    if axis == -1:
        return swiglu_op(input)
    return swish_gated(input[along(axis, 0, half)], input[along(axis, half, None)])


def _half(name: str, input: Tensor, dim: int) -> tuple[int, int]:
    """The axis from the end, and half of its size."""
    axis = from_end(axis_index(dim, input.ndim, name), input.ndim)
    half, odd = divmod(input.shape[axis], 2)
    if odd:
        raise ValueError(f"{name} was given {input.shape[axis]} elements along axis {dim}; wanted "
                         "an even number")
    return axis, half

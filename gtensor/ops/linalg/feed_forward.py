"""Two linear maps with an activation between them, the feed-forward part of a Transformer.

On CUDA the biases, the activation, its derivative and the sums that are the biases' gradients are
epilogues of the products (cublasLt). It has ReLU and GELU's approximation by tanh, of which it has
eight digits: in float64 that is not fused, and exact GELU never is. What a derivative needs is kept
by the product: for ReLU a bit for each element, for GELU the activation's input. Where cublasLt
refuses, the parts run one after another.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from gtensor.backend.layouts import rows_in_step
from gtensor.engine.handle.context import grad_enabled
from gtensor.engine.handle.namespaces import raw, recorded
from gtensor.engine.handle.tensor import Tensor
from gtensor.engine.tape.op import op
from gtensor.engine.tape.samples import Sample, normal
from gtensor.ops.activations.activation import ACTIVATIONS
from gtensor.ops.define.arguments import same_dtype, takes_arrays
from gtensor.ops.define.batching import Inputs, Mapped, aligned, batch_size, in_dtype, spread
from gtensor.ops.define.flops import of_feed_forward
from gtensor.ops.define.path_builders import placed
from gtensor.ops.linalg.linear import (
    cast_beside,
    give_parameters,
    linear_batch,
    linear_tangent,
    sums_into,
)
from gtensor.ops.linalg.matrix_products import swapped

if TYPE_CHECKING:
    from gtensor.backend.typing import Array, Params, Path
    from gtensor.engine.handle.namespaces import Namespace
    from gtensor.engine.walk.typing import Step, Values

__all__: list[str] = []  # feed_forward is public in gtensor.nn.functional

FUSED = ("relu", "gelu_tanh")


# -- paths -----------------------------------------------------------------------------------------


def _matrix(x: Array) -> Array | None:
    """x as a matrix of its last axis, if that is a view."""
    return x.reshape(prod(x.shape[:-1]), x.shape[-1]) if x.ndim > 1 and rows_in_step(x) else None


def _forward_path(
    device: Any, x: Array, weight1: Array, bias1: Array | None, weight2: Array,
    bias2: Array | None, summand: Array | None, *, activation: str, keep: bool,
    out: Array | None = None,
) -> tuple[Array, Array, Array]:
    """The output, the hidden values, and what the activation's derivative needs."""
    ns = raw[device.type]
    found = _fused_hidden(device, x, weight1, bias1, activation, keep)
    if found is None:
        before = ns.linear(x, weight1, bias1)
        kept = keep and activation != "relu"  # whose derivative follows from its output
        hidden = ACTIVATIONS[activation][0](ns, before, 0.0, out=None if kept else before)
        found = hidden, before if kept else hidden
    return _second(ns, found[0], weight2, bias2, summand, out=out), *found


def _second(
    ns: Namespace, hidden: Any, weight: Any, bias: Any, summand: Any, **more: Any
) -> Any:
    """The second linear map, plus the summand if there is one."""
    if summand is None:
        return ns.linear(hidden, weight, bias, **more)
    return ns.linear_sum(hidden, weight, bias, summand, **more)


def _fused_hidden(
    device: Any, x: Array, weight: Array, bias: Array | None, activation: str, keep: bool
) -> tuple[Array, Array] | None:
    rows = _matrix(x) if device.type == "cuda" else None
    if rows is None:
        return None
    from gtensor.backend.cublas import kept_layout  # here: only a GPU needs it

    hidden = device.empty((*x.shape[:-1], weight.shape[0]), x.dtype, "feed_forward")
    place = hidden.reshape(len(rows), weight.shape[0])
    layout = kept_layout(activation, len(rows), weight.shape[0], x.dtype)
    kept = device.empty(*layout, "feed_forward") if keep else None
    if not device.products.activated(rows, weight.T, place, activation, bias, kept):
        return None
    return hidden, hidden if kept is None else kept


def _grads_path(
    device: Any, g: Array, weight2: Array, hidden: Array, kept: Array, *, activation: str,
    summed: bool,
) -> tuple[Array, Array | None]:
    """The gradients of the activation's input, and of the first bias if it is `summed`."""
    ns, rows = raw[device.type], _matrix(g)
    if device.type == "cuda" and rows is not None and _is_kept(kept, activation, len(rows), hidden):
        d = device.empty(hidden.shape, hidden.dtype, "feed_forward")
        sums = device.empty(hidden.shape[-1:], hidden.dtype, "feed_forward") if summed else None
        if device.products.differentiated(rows, weight2, d.reshape(len(rows), d.shape[-1]),
                                          activation, kept, sums):
            return d, sums
    d = _hidden_gradient(ns, g, weight2, hidden, kept, activation)
    return d, ns.sum(d, axis=tuple(range(-d.ndim, -1))) if summed else None


def _is_kept(kept: Array, activation: str, rows: int, hidden: Array) -> bool:
    """Whether a product has written what the derivative needs, so that one can read it."""
    from gtensor.backend.cublas import kept_layout  # here: as above

    return (kept.shape, kept.dtype) == kept_layout(
        activation, rows, hidden.shape[-1], hidden.dtype) and bool(kept.flags.c_contiguous)


def _hidden_gradient(
    ns: Namespace, g: Any, weight2: Any, hidden: Any, kept: Any, activation: str
) -> Any:
    d = ns.linear(g, swapped(ns, weight2), None)
    if activation == "relu":
        return ns.relu_grad(d, hidden, out=d)
    if kept.shape != hidden.shape:  # rows as cublasLt keeps them
        kept = ns.slice(kept, key=(..., slice(0, hidden.shape[-1])))
        kept = ns.reshape(kept, shape=hidden.shape)
    return ACTIVATIONS[activation][1](ns, d, kept, 0.0, out=d)


# -- rules -----------------------------------------------------------------------------------------


def _backward(ns: Namespace, step: Step, g: Array) -> None:
    hidden = step.saved[4]
    low = g if hidden is None else in_dtype(ns, g, hidden.dtype)  # of a sum it may be wider
    _give_linear(ns, step, low)
    if step.needs(5):
        step.give(5, g)


def _give_linear(ns: Namespace, step: Step, g: Array) -> None:
    """Each product is added to the gradient that is there."""
    x, weight1, bias1, weight2, hidden, kept = step.saved
    activation = step.params["activation"]
    if ns is recorded:  # again, with their history
        before = ns.linear(x, weight1, bias1)
        hidden, kept = ACTIVATIONS[activation][0](ns, before, 0.0), before
    give_parameters(ns, step, g, hidden, (3, 4))
    if not (step.needs(0) or step.needs(1) or step.needs(2)):
        return
    bias: Any = step.parents[2]
    # the sums have the dtype of d, so those of a cast bias come from the product that is wider
    summed = ns is not recorded and step.needs(2) and bias.dtype == g.dtype
    d: Any
    if ns is recorded:
        d = _hidden_gradient(ns, g, weight2, hidden, kept, activation)
    else:
        d, dbias = ns.feed_forward_grads(g, weight2, hidden, kept, activation=activation,
                                         summed=summed)
    if not summed:
        give_parameters(ns, step, d, x, (1, 2))
    else:
        step.give(2, dbias)
        if step.needs(1):
            buffer, beta = step.into(1, wide=True, dtype=g.dtype)
            step.give(1, ns.linear_grad_weight(d, x, out=buffer, beta=beta))
    if step.needs(0):
        buffer, beta = step.into(0, wide=True, dtype=g.dtype)
        step.give(0, ns.linear(d, swapped(ns, weight1), None, out=buffer, beta=beta))


def _tangent(
    ns: Namespace, primals: Values, tangents: Values, out: Array, params: Params
) -> Any:
    """The tangent of each linear map, and between them the activation's slope."""
    x, weight1, bias1, weight2, bias2, _ = primals
    *given, added = tangents
    if all(t is None for t in given):
        return added
    activate, differentiate = ACTIVATIONS[params["activation"]]
    before = ns.linear(x, weight1, bias1)
    moved = None
    if any(t is not None for t in tangents[:3]):
        moved = linear_tangent(ns, primals[:3], tangents[:3], before, {})
        moved = differentiate(ns, moved, before, 0.0)
    change = linear_tangent(ns, (activate(ns, before, 0.0), weight2, bias2),
                            (moved, *tangents[3:5]), out, {})
    return change if added is None else ns.add(added, change)


def _composed(
    x: Tensor, weight1: Tensor, bias1: Tensor | None, weight2: Tensor, bias2: Tensor | None,
    summand: Tensor | None, *, activation: str, keep: bool = True,
) -> Tensor:
    hidden = ACTIVATIONS[activation][0](recorded, recorded.linear(x, weight1, bias1), 0.0)
    made: Tensor = _second(recorded, hidden, weight2, bias2, summand)
    return made


def _batch(
    ns: Namespace, run: Path, inputs: Inputs, mapped: Mapped, params: Params
) -> tuple[Any, Any, Any]:
    """Examples that share the parameters are rows; else the parts run one after another."""
    x, weight1, bias1, weight2, bias2, summand = inputs
    size = batch_size(inputs, mapped)
    if not any(mapped[1:5]) and x.ndim > 1 and (summand is None or mapped[0] and mapped[5]):
        y, hidden, kept = run(*inputs, **params)
        if kept.shape != hidden.shape and size:
            kept = ns.reshape(kept, shape=(size, kept.shape[0] // size, kept.shape[1]))
        return y, hidden, kept
    activation, first = params["activation"], any(mapped[:3])
    before = linear_batch(ns, ns.linear, (x, weight1, bias1), mapped[:3], {}) if first else (
        ns.linear(x, weight1, bias1))
    hidden = ACTIVATIONS[activation][0](ns, before, 0.0)
    given, own = (hidden, weight2, bias2), (first, *mapped[3:5])
    y = linear_batch(ns, ns.linear, given, own, {}) if any(own) else ns.linear(*given)
    if summand is not None:
        y = ns.add(*aligned(ns, (summand, y), (mapped[5], any(own))))
    y, before, hidden = (spread(ns, a, m, size) for a, m in (
        (y, any(own) or mapped[5]), (before, first), (hidden, first)))
    return y, hidden, hidden if activation == "relu" else before


def _grads_batch(
    ns: Namespace, run: Path, inputs: Inputs, mapped: Mapped, params: Params
) -> tuple[Any, Any]:
    """The parts one after another, each by its own rule."""
    (g, weight2, hidden, kept), size = inputs, batch_size(inputs, mapped)
    given = mapped[0], mapped[1], False
    d = linear_batch(ns, ns.linear, (g, swapped(ns, weight2), None), given, {})
    activation, source, own = params["activation"], hidden, mapped[2]
    if activation != "relu":
        shape = hidden.shape[mapped[2]:]
        kept = ns.slice(kept, key=(..., slice(0, shape[-1])))
        source, own = ns.reshape(kept, shape=(*kept.shape[:mapped[3]], *shape)), mapped[3]
    d, source = aligned(ns, (d, source), (mapped[0] or mapped[1], own))
    d = ACTIVATIONS[activation][1](ns, d, source, 0.0)
    d = spread(ns, d, d.ndim > hidden.ndim - mapped[2], size)
    return d, ns.sum(d, axis=tuple(range(1 - d.ndim, -1))) if params["summed"] else None


# -- definitions -----------------------------------------------------------------------------------


def _reference(
    torch: Any, x: Any, weight1: Any, bias1: Any, weight2: Any, bias2: Any, summand: Any, *,
    activation: str, keep: bool,
) -> Any:
    functional = torch.nn.functional
    before = functional.linear(x, weight1, bias1)
    hidden = (functional.relu(before) if activation == "relu"
              else functional.gelu(before, approximate="tanh"))
    y = functional.linear(hidden, weight2, bias2)
    return y if summand is None else y + summand


def _far(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """From 0.5 to 2."""
    return rng.uniform(0.5, 2.0, shape)


def _rows_of_one_sign(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """So that their products with `_far` are far from 0, the kink of ReLU, in any precision."""
    return _far(rng, shape) * rng.choice([-1.0, 1.0], (shape[0], 1))


def _small(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.uniform(-0.25, 0.25, shape)


_DRAWS = {"relu": (_far, _rows_of_one_sign, _small, normal, normal, normal)}


def _samples() -> list[Sample]:
    return [Sample((shape, (6, 3), (6,) if biased else None, (5, 6), (5,) if biased else None,
                    (*shape[:-1], 5) if summed else None),
                   _DRAWS.get(activation, normal), {"activation": activation, "keep": True})
            for activation in FUSED for shape, biased, summed in (
                ((4, 3), True, False), ((2, 3, 3), False, True), ((3,), True, True),
                ((0, 3), True, False))]


feed_forward_grads = op(
    "feed_forward_grads", **placed(_grads_path), backward=None, tangent=None, batch=_grads_batch,
    samples=None,  # its inputs depend on each other: tested through feed_forward
    doc="The gradients of the activation's input, and of the bias before it.",
)

_NEEDED = "x weight1 bias1 weight2 hidden kept"

feed_forward_op = op(
    "feed_forward", flops=of_feed_forward,
    **placed(_forward_path), extras="hidden kept",
    saves=dict.fromkeys(("x", "weight1", "bias1", "weight2"), _NEEDED),
    backward=_backward, tangent=_tangent, composed=_composed, batch=_batch, samples=_samples(),
    reference=_reference,
    doc="linear, an activation, linear; plus a summand of the output's shape, if there is one. "
        "Parameters: activation, keep (whether a gradient follows).",
)


@takes_arrays
def feed_forward(
    input: Tensor, weight1: Tensor, bias1: Tensor | None, weight2: Tensor, bias2: Tensor | None,
    activation: str = "relu", summand: Tensor | None = None,
) -> Tensor:
    """linear(activation(linear(input, weight1, bias1)), weight2, bias2): (..., out).

    On CUDA two launches forward and four backward: biases, activation and their gradients are part
    of the products (cublasLt). Saves the hidden values, and for "gelu_tanh" what they were before
    the activation; ReLU's derivative takes a bit for each.

    Args:
        input: (..., in).
        weight1: (hidden, in).
        bias1: (hidden), or None.
        weight2: (out, hidden).
        bias2: (out), or None.
        activation: "relu", or "gelu_tanh", GELU's approximation by tanh. Exact GELU has no such
            products: compose it of `linear` and `gelu`.
        summand: what is added to the output, of its shape: a residual connection. Under
            `gt.autocast` the sum has its dtype.

    Source: Vaswani et al., "Attention is all you need", 2017, section 3.3.

    Raises ValueError for another activation, and for shapes that do not fit.
    """
    if activation not in FUSED:
        raise ValueError(f"feed_forward was given activation={activation!r}; wanted "
                         + " or ".join(map(repr, FUSED)))
    same_dtype("feed_forward", input=input, weight1=weight1, bias1=bias1, weight2=weight2,
               bias2=bias2)
    if summand is not None and summand.shape != (*input.shape[:-1], *weight2.shape[:1]):
        raise ValueError(f"feed_forward was given a summand of shape {summand.shape}; wanted "
                         f"{(*input.shape[:-1], *weight2.shape[:1])}")
    first, second = weight1.shape, weight2.shape
    if (len(first) != 2 or len(second) != 2 or input.shape[-1:] != first[1:]
            or first[0] != second[1]):
        raise ValueError(f"feed_forward was given an input of shape {input.shape} and weights of "
                         f"shapes {first} and {second}; wanted (..., in), (hidden, in) and "
                         "(out, hidden)")
    for name, bias, size in (("bias1", bias1, first[0]), ("bias2", bias2, second[0])):
        if bias is not None and bias.shape != (size,):
            raise ValueError(f"feed_forward was given {name} of shape {bias.shape}; wanted "
                             f"({size},)")
    keep = grad_enabled() and any(x is not None and x.requires_grad for x in (
        input, weight1, bias1, weight2, bias2))
    inputs = cast_beside(summand, input, weight1, bias1, weight2, bias2)
    if summand is None or sums_into(inputs[0], inputs[-1], summand):
        return feed_forward_op(*inputs, summand, activation=activation, keep=keep)
    made = feed_forward_op(*cast_beside(None, *inputs), None, activation=activation, keep=keep)
    return recorded.add(summand, made)

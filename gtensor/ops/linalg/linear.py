"""The affine map of a layer: one GEMM, with the bias as its epilogue on a GPU."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from gtensor.backend import host
from gtensor.backend.layouts import rows_in_step
from gtensor.engine.handle.context import current_casts
from gtensor.engine.handle.namespaces import raw, recorded
from gtensor.engine.handle.tensor import Tensor
from gtensor.engine.tape.op import op
from gtensor.engine.tape.samples import Sample
from gtensor.ops.define.arguments import same_dtype, sums_in, takes_arrays
from gtensor.ops.define.batching import (
    Inputs,
    Mapped,
    aligned,
    batch_size,
    behind,
    in_dtype,
    spread,
)
from gtensor.ops.define.flops import of_product, of_weight_gradient
from gtensor.ops.define.path_builders import placed
from gtensor.ops.linalg.matrix_products import is_small, matmul_batch, summed_path, swapped

if TYPE_CHECKING:
    from gtensor.backend import Device
    from gtensor.backend.typing import Array, Params, Path
    from gtensor.engine.handle.namespaces import Namespace
    from gtensor.engine.walk.typing import Step, Values

__all__: list[str] = []  # linear is public in gtensor.nn.functional


def _linear_path(
    device: Any, x: Array, weight: Array, bias: Array | None, *, out: Array | None = None,
    beta: float = 0.0
) -> Array:
    """out = x @ weight.T + beta * out + bias; the bias may be part of the GPU's GEMM."""
    if out is None and x.ndim == 2 and device.type == "cpu" and is_small(x, weight, len(weight)):
        out = np.matmul(x, weight.T)
        return out if bias is None else np.add(out, bias, out)
    if x.ndim == 1:
        made = _linear_path(device, x[None], weight, bias, out=out if out is None else out[None],
                            beta=beta)
        return made[0] if out is None else out
    fused = {"bias": bias} if bias is not None and device.type == "cuda" else {}
    if rows_in_step(x):
        out = device.matmul(x, weight.T, out, beta, label="linear", **fused)
    else:  # one product for each index of the shorter axes
        axis = max(range(x.ndim - 1), key=lambda i: x.shape[i])
        if out is None:
            out = device.empty((*x.shape[:-1], len(weight)), x.dtype, "linear")
        device.matmul(x.swapaxes(axis, -2), weight.T, out.swapaxes(axis, -2), beta, label="linear",
                      **fused)
    if bias is not None and not fused:
        out += bias
    return out


def _prepared_linear(
    x: Any, weight: Any, bias: Any, *, out: Any = None, beta: float = 0.0
) -> Path | None:
    """`_linear_path` on the CPU for rows that NumPy multiplies where they lie."""
    if out is not None or not _are_rows(x, weight) or bias is not None and bias.dtype != x.dtype:
        return None
    shape, dtype, empty = (*x.shape[:-1], weight.shape[0]), x.dtype, host().empty
    rows, matrix = (prod(shape[:-1]), x.shape[-1]), (prod(shape[:-1]), shape[-1])

    def path(x: Array, weight: Array, bias: Array | None, **params: Any) -> Array:
        made = empty(shape, dtype, "linear")
        np.matmul(x.reshape(rows), weight.T, made.reshape(matrix))
        return made if bias is None else np.add(made, bias, made)

    return path


def _are_rows(*arrays: Any) -> bool:
    """Whether the facts are those of dense matrices of one dtype, or of rows in their order."""
    one = arrays[0].dtype
    return one.char in "fd" and all(a.dtype == one and (
        a.contiguous if len(a.shape) > 2 else len(a.shape) == 2 and a.dense) for a in arrays)


_linear_path.prepare = _prepared_linear  # type: ignore[attr-defined]


def _sum_path(
    device: Any, x: Array, weight: Array, bias: Array | None, summand: Array, *,
    out: Array | None = None,
) -> Array:
    """out = x @ weight.T + bias + summand, in the summand's dtype, which may be wider than x's."""
    if out is None:
        out = device.empty(summand.shape, summand.dtype, "linear_sum")
    if device.type == "cpu" or x.ndim == 1 or not rows_in_step(x):
        _linear_path(device, x, weight, bias, out=out)
        out += summand
        return out
    whole: Array = device.matmul(
        x, weight.T, out, label="linear_sum", bias=bias, summand=summand)
    return whole


def _prepared_sum(x: Any, weight: Any, bias: Any, summand: Any, *, out: Any = None) -> Path | None:
    linear = _prepared_linear(x, weight, bias, out=out)
    if linear is None or summand.dtype != x.dtype:
        return None

    def path(x: Array, weight: Array, bias: Array | None, summand: Array) -> Array:
        made = linear(x, weight, bias)
        return np.add(made, summand, made)

    return path


_sum_path.prepare = _prepared_sum  # type: ignore[attr-defined]


def _grad_weight_path(
    device: Any, g: Array, x: Array, *, out: Array | None = None, beta: float = 0.0,
    sums: Array | None = None
) -> Array:
    """Leading axes that are no rows of two matrices are summed over by the GEMM, one by one."""
    rows = _as_rows(device, g, x)
    if rows is None:
        shape = g.shape[-1], x.shape[-1]
        return summed_path(device, g.swapaxes(-1, -2), x, shape=shape, out=out, beta=beta)
    fused = {} if sums is None else {"sums": sums}
    return device.matmul(rows[0].T, rows[1], out, beta, label="linear", **fused)


def _as_rows(device: Any, g: Array, x: Array) -> tuple[Array, Array] | None:
    """Both as matrices of the same rows, in any order: views, or on a GPU a copy of the narrower.

    The CPU, which makes no copy larger than a tile, has None then. On a GPU sums of products of a
    few rows each would write the gradient anew for each.
    """
    if g.ndim == x.ndim == 2:
        return g, x
    if not (rows_in_step(g) and rows_in_step(x)):
        wide = g if g.shape[-1] >= x.shape[-1] else x
        order = [*sorted(range(g.ndim - 1), key=lambda i: -wide.strides[i]), g.ndim - 1]
        g, x = (a.transpose(order) for a in (g, x))
        if device.type == "cpu" and not (rows_in_step(g) and rows_in_step(x)):
            return None
    rows = [a if rows_in_step(a) else device.copy(a, label="linear") for a in (g, x)]
    count = prod(g.shape[:-1])
    return rows[0].reshape(count, g.shape[-1]), rows[1].reshape(count, x.shape[-1])


def _grads_cpu(
    device: Device, g: Array, x: Array, *, out: Array | None = None, beta: float = 0.0
) -> tuple[Array, Array]:
    sums = raw["cpu"].sum(g, axis=tuple(range(-g.ndim, -1)))  # first: g, just made, is in the cache
    return _grad_weight_path(device, g, x, out=out, beta=beta), sums


def _prepared_grad_weight(g: Any, x: Any, *, out: Any = None, beta: float = 0.0) -> Path | None:
    if out is not None or not _are_rows(g, x):
        return None
    shape, dtype, empty = (g.shape[-1], x.shape[-1]), g.dtype, host().empty
    rows = prod(g.shape[:-1])

    def path(g: Array, x: Array, **params: Any) -> Array:
        made = empty(shape, dtype, "linear")
        return np.matmul(g.reshape(rows, shape[0]).T, x.reshape(rows, shape[1]), made)

    return path


def _prepared_grads(g: Any, x: Any, *, out: Any = None, beta: float = 0.0) -> Path | None:
    product = _prepared_grad_weight(g, x, out=out)
    if product is None:
        return None
    axes = tuple(range(-len(g.shape), -1))

    def path(g: Array, x: Array, **params: Any) -> tuple[Array, Array]:
        sums = raw["cpu"].sum(g, axis=axes)
        return product(g, x), sums

    return path


_grad_weight_path.prepare = _prepared_grad_weight  # type: ignore[attr-defined]
_grads_cpu.prepare = _prepared_grads  # type: ignore[attr-defined]


def _grads_gpu(
    device: Device, g: Array, x: Array, *, out: Array | None = None, beta: float = 0.0
) -> tuple[Array, Array]:
    sums = device.empty((g.shape[-1],), (g if out is None else out).dtype, "linear")
    return _grad_weight_path(device, g, x, out=out, beta=beta, sums=sums), sums


def _linear_backward(ns: Namespace, step: Step, g: Array) -> None:
    """Both products accumulate straight into gradients that are already there."""
    x, weight = step.saved
    give_parameters(ns, step, g, x, (1, 2))
    if step.needs(0):
        buffer, beta = step.into(0, wide=True)
        step.give(0, ns.linear(g, swapped(ns, weight), None, out=buffer, beta=beta))


def give_parameters(
    ns: Namespace, step: Step, g: Array, x: Array, places: tuple[int, int]
) -> None:
    """Give a weight and a bias, at these places among the inputs, their gradients; a GPU takes one
    product for both."""
    weight, bias = places
    if step.needs(weight) and step.needs(bias) and ns is not recorded:
        buffer, beta = step.into(weight, wide=True, dtype=g.dtype)
        dweight, dbias = ns.linear_grads(g, x, out=buffer, beta=beta)
        step.give(bias, dbias)
        step.give(weight, dweight)
        return
    if step.needs(bias):
        step.give(bias, ns.sum(g, axis=tuple(range(-len(g.shape), -1))))
    if step.needs(weight):
        buffer, beta = step.into(weight, wide=True, dtype=g.dtype)
        step.give(weight, ns.linear_grad_weight(g, x, out=buffer, beta=beta))


def _sum_backward(ns: Namespace, step: Step, g: Array) -> None:
    """As of linear, in the dtype of its factors; g itself is the summand's gradient."""
    x, weight = step.saved
    factor = x if weight is None else weight
    low = g if factor is None else in_dtype(ns, g, factor.dtype)
    give_parameters(ns, step, low, x, (1, 2))
    if step.needs(0):
        buffer, beta = step.into(0, wide=True, dtype=low.dtype)
        step.give(0, ns.linear(low, swapped(ns, weight), None, out=buffer, beta=beta))
    if step.needs(3):
        step.give(3, g)


def _sum_tangent(
    ns: Namespace, primals: Values, tangents: Values, out: Array, params: Params
) -> Any:
    *parts, moved = tangents
    if all(t is None for t in parts):
        return moved
    change = linear_tangent(ns, primals[:3], tangents[:3], out, params)
    return change if moved is None else ns.add(moved, change)


def linear_tangent(
    ns: Namespace, primals: Values, tangents: Values, out: Array, params: Params
) -> Array:
    """A product for the input and for the weight, and the bias's tangent."""
    x, weight, _ = primals
    dx, dweight, dbias = tangents
    terms = []
    if dx is not None:
        terms.append(ns.linear(dx, weight, None))
    if dweight is not None:
        terms.append(ns.linear(x, dweight, None))
    if dbias is not None:
        terms.append(ns.broadcast_to(dbias, shape=out.shape))
    total = terms[0]
    for term in terms[1:]:
        total = ns.add(total, term)
    return total


def _grad_weight_backward(ns: Namespace, step: Step, u: Array) -> None:
    g, x = step.saved
    if step.needs(0):
        buffer, beta = step.into(0, wide=True)
        step.give(0, ns.linear(x, u, None, out=buffer, beta=beta))
    if step.needs(1):
        buffer, beta = step.into(1, wide=True)
        step.give(1, ns.linear(g, swapped(ns, u), None, out=buffer, beta=beta))


def _grad_weight_tangent(
    ns: Namespace, primals: Values, tangents: Values, out: Array, params: Params
) -> Array:
    (g, x), (dg, dx) = primals, tangents
    terms = [ns.linear_grad_weight(dg, x)] if dg is not None else []
    if dx is not None:
        terms.append(ns.linear_grad_weight(g, dx))
    return terms[0] if len(terms) == 1 else ns.add(*terms)


# -- examples, each with a weight of its own -------------------------------------------------------


def linear_batch(
    ns: Namespace, run: Path, inputs: Inputs, mapped: Mapped, params: Params
) -> Any:
    """One product of all rows, or one for each example's weight."""
    x, weight, bias = inputs
    ndim = x.ndim - mapped[0]
    if not (mapped[1] or mapped[2]):
        return run(x, weight, bias)
    if not mapped[1]:
        y = run(x, weight, None)
    else:
        rows = ns.reshape(x, shape=(*x.shape[:-1], 1, x.shape[-1])) if ndim == 1 else x
        turned = behind(ns, swapped(ns, weight), True, max(2, ndim))
        y = matmul_batch(ns, ns.matmul, (rows, turned), mapped[:2], {})  # (batch, ..., rows, out)
        y = ns.reshape(y, shape=(*y.shape[:-2], y.shape[-1])) if ndim == 1 else y
    return y if bias is None else ns.add(y, behind(ns, bias, mapped[2], ndim))


def _grad_weight_batch(
    ns: Namespace, run: Path, inputs: Inputs, mapped: Mapped, params: Params
) -> Any:
    g, x = (ns.reshape(a, shape=(*a.shape[:m], prod(a.shape[m:-1]), a.shape[-1]))
            for a, m in zip(inputs, mapped, strict=True))
    return ns.matmul(swapped(ns, g), x)  # (batch, out, in)


def _grads_batch(
    ns: Namespace, run: Path, inputs: Inputs, mapped: Mapped, params: Params
) -> tuple[Any, Any]:
    g, size = inputs[0], batch_size(inputs, mapped)
    sums = ns.sum(g, axis=tuple(range(mapped[0] - g.ndim, -1)))
    return _grad_weight_batch(ns, run, inputs, mapped, params), spread(ns, sums, mapped[0], size)


def _sum_batch(
    ns: Namespace, run: Path, inputs: Inputs, mapped: Mapped, params: Params
) -> Any:
    """All examples' rows are one product where they share the parameters; else the two parts."""
    *given, summand = inputs
    if mapped[0] and mapped[3] and not (mapped[1] or mapped[2]):
        return run(*inputs)
    first = any(mapped[:3])
    y = linear_batch(ns, ns.linear, given, mapped[:3], {}) if first else ns.linear(*given)
    return ns.add(*aligned(ns, (summand, y), (mapped[3], first)))


linear_grad_weight = op(
    "linear_grad_weight", flops=of_weight_gradient, **placed(_grad_weight_path),
    saves={"x": "g", "g": "x"}, backward=_grad_weight_backward, tangent=_grad_weight_tangent,
    batch=_grad_weight_batch,
    samples=[Sample(((4, 3), (4, 5))), Sample(((2, 4, 3), (2, 4, 5))), Sample(((3,), (5,))),
             Sample(((0, 3), (0, 5)))],
    reference=lambda torch, g, x: g.reshape(-1, g.shape[-1]).T @ x.reshape(-1, x.shape[-1]),
    doc="The weight gradient of linear: g (..., out) times x (..., in), summed over leading axes.",
)

linear_grads = op(
    "linear_grads", flops=of_weight_gradient,
    **placed(_grads_cpu, _grads_gpu), backward=None, tangent=None,
    batch=_grads_batch, samples=None,  # it returns two arrays: tested through linear
    doc="The gradients of linear's weight and bias; on a GPU one GEMM with an epilogue.",
)

linear_op = op(
    "linear", flops=of_product, autocast="low", **placed(_linear_path),
    saves={"weight": "x", "x": "weight"}, backward=_linear_backward, tangent=linear_tangent,
    batch=linear_batch,
    samples=[Sample(((4, 3), (5, 3), (5,))), Sample(((4, 3), (5, 3), None)),
             Sample(((2, 4, 3), (5, 3), (5,))), Sample(((3,), (5, 3), (5,))),
             Sample(((0, 3), (5, 3), (5,))), Sample(((2, 1), (1, 1), (1,)))],
    reference=lambda torch, x, weight, bias: torch.nn.functional.linear(x, weight, bias),
    doc="x (..., in) @ weight (out, in).T + bias (out).",
)


linear_sum_op = op(
    "linear_sum", flops=of_product, **placed(_sum_path),
    saves={"weight": "x", "x": "weight"}, backward=_sum_backward, tangent=_sum_tangent,
    batch=_sum_batch,
    samples=[Sample(((4, 3), (5, 3), (5,), (4, 5))), Sample(((2, 4, 3), (5, 3), None, (2, 4, 5))),
             Sample(((3,), (5, 3), (5,), (5,))), Sample(((0, 3), (5, 3), (5,), (0, 5)))],
    reference=lambda torch, x, weight, bias, summand: (
        torch.nn.functional.linear(x, weight, bias) + summand),
    doc="linear plus a summand of its output's shape, whose dtype it has: a residual connection.",
)


def linear_sum(input: Tensor, weight: Tensor, bias: Tensor | None, summand: Tensor) -> Tensor:
    """summand + linear(input, weight, bias), of shapes that fit: on CUDA one product.

    Under `gt.autocast` the factors are cast, and the sum has the summand's dtype.
    """
    same_dtype("linear", input=input, weight=weight, bias=bias)
    given = cast_beside(summand, input, weight, bias)
    if sums_into(given[0], given[2], summand):
        return linear_sum_op(*given, summand)
    return recorded.add(summand, recorded.linear(input, weight, bias))


def cast_beside(summand: Tensor | None, *inputs: Tensor | None) -> tuple[Any, ...]:
    """A product's inputs as `gt.autocast` casts them, if it does; the last one is its bias.

    A bias of the summand's dtype stays in it, as the sum does.
    """
    casts, bias = current_casts(), inputs[-1]
    if casts is None:
        return inputs
    if bias is None or summand is None or bias.dtype != summand.dtype:
        return casts.cast("low", inputs)
    return *casts.cast("low", inputs[:-1]), bias


def sums_into(x: Tensor, bias: Tensor | None, summand: Tensor) -> bool:
    """Whether a product of x's dtype and its bias can be written in the summand's dtype."""
    return sums_in(summand.dtype, x.dtype) and (bias is None or bias.dtype == summand.dtype)


@takes_arrays
def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """input @ weight.T + bias, one GEMM: (..., out). Saves input and weight.

    Args:
        input: (..., in).
        weight: (out, in).
        bias: (out), or None.

    Raises ValueError for shapes that do not fit.
    """
    dtype = input._array.dtype
    if dtype.kind != "f" or weight._array.dtype is not dtype or (
            bias is not None and bias._array.dtype is not dtype):
        same_dtype("linear", input=input, weight=weight, bias=bias)
    given, matrix = input._array.shape, weight._array.shape
    if len(matrix) != 2 or not given or given[-1] != matrix[1]:
        raise ValueError(f"linear was given an input of shape {given} and a weight of shape "
                         f"{matrix}; wanted (..., in) and (out, in)")
    if bias is not None and bias._array.shape != matrix[:1]:
        raise ValueError(f"linear was given a bias of shape {bias.shape} for a weight of shape "
                         f"{matrix}; wanted ({matrix[0]},)")
    return linear_op(input, weight, bias)

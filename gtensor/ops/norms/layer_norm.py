"""Layer norm over trailing axes: y = (x - mean) * rstd * weight + bias.

Saved are x and two numbers per row (float32 for half types).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gtensor.engine.handle.context import current_casts
from gtensor.engine.handle.namespaces import recorded
from gtensor.engine.handle.tensor import Tensor
from gtensor.engine.run.bind import FLOAT32
from gtensor.engine.tape.levels import Traced
from gtensor.engine.tape.op import Op, op
from gtensor.engine.tape.samples import Sample
from gtensor.ops.define.arguments import same_dtype, takes_arrays
from gtensor.ops.define.batching import in_dtype
from gtensor.ops.norms import batching
from gtensor.ops.norms import row_norm_paths as paths

if TYPE_CHECKING:
    from gtensor.backend.typing import Array, Params
    from gtensor.engine.handle.namespaces import Namespace
    from gtensor.engine.walk.typing import ArrayOrTensor, Step, Values

# -- rules ---------------------------------------------------------------------------------------


def _recorded_xhat(
    ns: Namespace, x: ArrayOrTensor, dims: int, eps: float
) -> tuple[ArrayOrTensor, ArrayOrTensor]:
    """xhat and 1 / deviation as functions of x."""
    axes = tuple(range(-dims, 0))
    deviation = x - ns.mean(x, axis=axes, keepdims=True)
    var = ns.mean(ns.square(deviation), axis=axes, keepdims=True)
    rstd = 1 / ns.sqrt(var + eps)
    return deviation * rstd, rstd


def _projected(
    ns: Namespace, h: ArrayOrTensor, xhat: ArrayOrTensor, rstd: ArrayOrTensor, dims: int
) -> ArrayOrTensor:
    """rstd * (h - mean(h) - xhat * mean(h * xhat)): the derivative of xhat, which is symmetric."""
    axes = tuple(range(-dims, 0))
    mean = ns.mean(h, axis=axes, keepdims=True)
    return rstd * (h - mean - xhat * ns.mean(h * xhat, axis=axes, keepdims=True))


def _dx_recorded(
    g: Tensor, x: Tensor, weight: Tensor | None, mean: Tensor, rstd: Tensor, *, dims: int,
    eps: float,
) -> Tensor:
    xhat, again = _recorded_xhat(recorded, x, dims, eps)
    return _projected(recorded, g if weight is None else g * weight, xhat, again, dims)


def _dweight_recorded(g: Any, x: Any, *, dims: int, eps: float) -> Any:
    xhat, _ = _recorded_xhat(recorded, x, dims, eps)
    return recorded.sum(g * xhat, axis=tuple(range(-len(x.shape), -dims)))


def _backward(ns: Namespace, step: Step, g: Array) -> None:
    x, weight, mean, rstd = step.saved
    params = {name: step.params[name] for name in ("dims", "eps")}
    if step.needs(1) and ns is not recorded:
        needs = step.needs(0), True, step.needs(2)
        give_all(step, ns.layer_norm_grads(
            g, x, weight, mean, rstd, needs=needs, **place(step, g), **params))
        return
    if step.needs(1):
        step.give(1, _dweight_recorded(g, x, **params))
    if step.needs(2):
        step.give(2, ns.sum(g, axis=tuple(range(-len(g.shape), -params["dims"]))))
    if step.needs(0):
        step.give(0, ns.layer_norm_dx(g, x, weight, mean, rstd, **place(step, g), **params))


def place(step: Step, g: Array) -> Params:
    """Where a path writes x's gradient, if it is needed: into one that is there, or over g."""
    if not step.needs(0):
        return {}
    buffer, beta = step.into(0)
    return {"out": step.reuse(g) if buffer is None else buffer, "beta": beta}


def give_all(step: Step, gradients: Sequence[Array | None]) -> None:
    """Give each input its gradient, if it has one."""
    for i, gradient in enumerate(gradients):
        if gradient is not None:
            step.give(i, gradient)


def _tangent(ns: Namespace, primals: Values, tangents: Values, out: Array, params: Params) -> Array:
    x, weight, _ = primals
    dx, dweight, dbias = tangents
    xhat, rstd = _recorded_xhat(ns, x, params["dims"], params["eps"])
    change = None
    if dx is not None:
        change = _projected(ns, dx, xhat, rstd, params["dims"])
        change = change if weight is None else change * weight
    for term in (None if dweight is None else xhat * dweight, dbias):
        if term is not None:
            change = term if change is None else change + term
    return ns.broadcast_to(in_dtype(ns, change, out.dtype), shape=out.shape)


def _reference(
    torch: Any, x: Any, weight: Any, bias: Any, *, dims: int, eps: float, dtype: None = None
) -> Any:
    return torch.nn.functional.layer_norm(x, x.shape[x.ndim - dims:], weight, bias, eps)


layer_norm_dx = op(
    "layer_norm_dx", cpu=paths.dx_cpu, gpu=paths.dx_gpu, backward=None, tangent=None,
    composed=_dx_recorded, batch=batching.rows_dx,
    samples=None,  # mean, rstd must be x's: tested through layer_norm
    doc="The gradient of layer_norm's input.",
)

layer_norm_grads = op(
    "layer_norm_grads", cpu=paths.grads_cpu, gpu=paths.grads_gpu, backward=None, tangent=None,
    batch=batching.rows_grads, samples=None,  # it returns three arrays: tested through layer_norm
    doc="The gradients of layer_norm's input, weight and bias in one pass. Parameters as "
        "layer_norm, and needs: which of them.",
)

layer_norm_op = op(
    "layer_norm", autocast="float32",
    cpu=paths.forward_cpu, gpu=paths.forward_gpu, extras="mean rstd",
    saves={"x": "x weight mean rstd", "weight": "x mean rstd"},
    backward=_backward, tangent=_tangent, batch=batching.rows,
    samples=[Sample((shape, row, row) if row is not None else (shape, None, None),
                    params={"dims": dims, "eps": 1e-5})
             for shape, row, dims in (((3, 5), (5,), 1), ((2, 3, 4), (3, 4), 2), ((6,), (6,), 1),
                                      ((2, 3, 4), None, 1), ((0, 3), (3,), 1))],
    reference=_reference,
    doc="(x - mean) / sqrt(var + eps) * weight + bias over the last axes. Parameters: dims (how "
        "many), eps, dtype of the output.",
)


def written_low(op: Op, *inputs: Tensor | None, **params: Any) -> Tensor:
    """A row norm for products alone: under `gt.autocast` it writes the dtype that they compute in.

    Its gradient is float32 then, as if they had cast a float32 output.
    """
    casts = current_casts()
    if casts is None or any(x is not None and (isinstance(x, Traced) or x.dtype != FLOAT32)
                            for x in inputs):
        return op(*inputs, **params)
    y = op(*inputs, dtype=casts.dtype, **params)
    if y._node is not None:
        y._node.dtype = FLOAT32
    return y


def layer_norm_for_products(
    input: Tensor, normalized_shape: tuple[int, ...], weight: Tensor | None, bias: Tensor | None,
    eps: float,
) -> Tensor:
    """As `layer_norm`; see `written_low`."""
    check_rows("layer_norm", input, normalized_shape, weight=weight, bias=bias)
    return written_low(layer_norm_op, input, weight, bias, dims=len(normalized_shape), eps=eps)


@takes_arrays
def layer_norm(
    input: Tensor, normalized_shape: int | Sequence[int], weight: Tensor | None = None,
    bias: Tensor | None = None, eps: float = 1e-5,
) -> Tensor:
    """Each row over the last axes to mean 0 and variance 1, times weight, plus bias; same shape.

    Args:
        input: (..., *normalized_shape).
        normalized_shape: the sizes of the axes that make a row.
        weight, bias: of normalized_shape, or None for 1 and 0.
        eps: added to the (biased) variance.

    Source: Ba et al., "Layer normalization", 2016.
    """
    row = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
    check_rows("layer_norm", input, row, weight=weight, bias=bias)
    return layer_norm_op(input, weight, bias, dims=len(row), eps=eps)


def check_rows(
    name: str, input: Tensor, row: tuple[int, ...], **parameters: Tensor | None
) -> None:
    """Raise ValueError unless `row` is the input's last sizes and the parameters' shape."""
    if not row or input.shape[max(0, input.ndim - len(row)):] != row:
        raise ValueError(f"{name} was given normalized_shape={row} for an input of shape "
                         f"{input.shape}; wanted its last sizes")
    for what, tensor in parameters.items():
        if tensor is not None and tensor.shape != row:
            raise ValueError(f"{name} was given a {what} of shape {tensor.shape}; wanted {row}")
    same_dtype(name, input=input, **parameters)

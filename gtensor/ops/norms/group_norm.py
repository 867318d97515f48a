"""Group norm of (N, C, ...): each group of channels of each image to mean 0 and variance 1.

Saved are x and two numbers per group (float32 for half types).
"""

from __future__ import annotations

from math import prod
from typing import Any

from gtensor.engine.namespaces import recorded
from gtensor.engine.op import op
from gtensor.engine.samples import Sample
from gtensor.engine.tensor import Tensor
from gtensor.ops.build.arguments import same_dtype
from gtensor.ops.norms import group_norm_paths as paths

# -- rules ---------------------------------------------------------------------------------------


def _rows(ns: Any, a: Any, groups: int) -> Any:
    """(N, C, ...) as rows (N, groups, values of a group)."""
    values = prod(a.shape[1:]) // groups
    return ns.reshape(a, shape=(a.shape[0], groups, values))


def _recorded_xhat(ns: Any, x: Any, groups: int, eps: float) -> tuple[Any, Any]:
    """xhat as rows, and 1 / deviation, as functions of x."""
    rows = _rows(ns, x, groups)
    deviation = rows - ns.mean(rows, axis=(2,), keepdims=True)
    rstd = 1 / ns.sqrt(ns.mean(ns.square(deviation), axis=(2,), keepdims=True) + eps)
    return deviation * rstd, rstd


def _projected(ns: Any, h: Any, x: Any, groups: int, eps: float) -> Any:
    """rstd * (h - mean(h) - xhat * mean(h * xhat)): the derivative of xhat, which is symmetric."""
    xhat, rstd = _recorded_xhat(ns, x, groups, eps)
    rows = _rows(ns, h, groups)
    slope = ns.mean(rows * xhat, axis=(2,), keepdims=True)
    projected = rstd * (rows - ns.mean(rows, axis=(2,), keepdims=True) - xhat * slope)
    return ns.reshape(projected, shape=x.shape)


def _wide(ns: Any, a: Any, like: Any) -> Any:
    """A parameter (C) beside (N, C, ...)."""
    return ns.reshape(a, shape=(1, like.shape[1], *(1,) * (len(like.shape) - 2)))


def _sums_recorded(g: Any, x: Any, mean: Any, var: Any, *, groups: int, eps: float) -> Any:
    ns, shape = recorded, (1, *x.shape[:2])
    xhat = ns.reshape(_recorded_xhat(ns, x, groups, eps)[0], shape=x.shape)
    axes = tuple(range(2, len(x.shape)))
    parts = [ns.reshape(ns.sum(a, axis=axes), shape=shape) for a in (g, g * xhat)]
    return ns.concat(*parts, axis=0, sizes=(1, 1))


def _dx_recorded(
    g: Any, x: Any, weight: Any, mean: Any, var: Any, sums: Any, *, groups: int, eps: float
) -> Any:
    h = g if weight is None else g * _wide(recorded, weight, x)
    return _projected(recorded, h, x, groups, eps)


def _backward(ns: Any, step: Any, g: Any) -> None:
    x, weight, mean, var = step.saved
    params = step.params
    if not any(step.needs(i) for i in (0, 1)):
        step.give(2, ns.sum(g, axis=(0, *range(2, len(g.shape)))))
        return
    sums = ns.group_norm_sums(g, x, mean, var, **params)
    for i in (1, 2):
        if step.needs(i):
            step.give(i, ns.sum(ns.slice(sums, key=(2 - i,)), axis=(0,)))
    if step.needs(0):
        step.give(0, ns.group_norm_dx(
            g, x, weight, mean, var, sums, out=step.reuse(g), **params))


def _tangent(ns: Any, primals: Any, tangents: Any, out: Any, params: dict[str, Any]) -> Any:
    x, weight, _ = primals
    dx, dweight, dbias = tangents
    terms = []
    if dx is not None:
        change = _projected(ns, dx, x, **params)
        terms.append(change if weight is None else change * _wide(ns, weight, x))
    if dweight is not None:
        xhat = ns.reshape(_recorded_xhat(ns, x, **params)[0], shape=x.shape)
        terms.append(xhat * _wide(ns, dweight, x))
    if dbias is not None:
        terms.append(_wide(ns, dbias, x))
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return ns.broadcast_to(total, shape=out.shape)


# -- definitions -----------------------------------------------------------------------------------


def _samples() -> list[Sample]:
    cases = (((2, 4), 2), ((2, 6, 5), 3), ((3, 4, 2, 3), 1), ((2, 3, 7), 3), ((0, 4, 2), 2))
    return [Sample((shape, *(shape[1:2],) * 2), params={"groups": groups, "eps": 1e-5})
            for shape, groups in cases] + [
            Sample(((2, 4, 3), None, None), params={"groups": 2, "eps": 1e-5})]


def _reference(torch: Any, x: Any, weight: Any, bias: Any, *, groups: int, eps: float) -> Any:
    return torch.nn.functional.group_norm(x, groups, weight, bias, eps)


group_norm_sums = op(
    "group_norm_sums", cpu=paths.sums_cpu, gpu=paths.sums_gpu, backward=None, tangent=None,
    composed=_sums_recorded, samples=None,  # mean and var must be x's: tested through group_norm
    doc="The sums of g and of g * xhat over each plane, (2, N, C).",
)

group_norm_dx = op(
    "group_norm_dx", cpu=paths.dx_cpu, gpu=paths.dx_gpu, backward=None, tangent=None,
    composed=_dx_recorded, samples=None,  # as above
    doc="The gradient of group_norm's input, from group_norm_sums.",
)

group_norm_op = op(
    "group_norm", cpu=paths.forward_cpu, gpu=paths.forward_gpu, extras="mean var",
    saves={"x": "x weight mean var", "weight": "x mean var"},
    backward=_backward, tangent=_tangent, samples=_samples(), reference=_reference,
    doc="(x - mean) / sqrt(var + eps) * weight + bias with the statistics of each group of "
        "channels. Parameters: groups, eps.",
)


def group_norm(
    input: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Each group of channels of each image to mean 0 and variance 1, times weight, plus bias.

    Args:
        input: (N, C, ...).
        num_groups: into how many equal groups of neighbours the channels are split.
        weight, bias: (C), or None for 1 and 0.
        eps: added to the (biased) variance.

    Source: Wu and He, "Group normalization", 2018.
    """
    if input.ndim < 2 or not isinstance(num_groups, int) or num_groups < 1 or (
            input.shape[1] % num_groups):
        raise ValueError(f"group_norm was given num_groups={num_groups} for an input of shape "
                         f"{input.shape}; wanted (N, C, ...) and a divisor of C")
    for name, tensor in {"weight": weight, "bias": bias}.items():
        if tensor is not None and tensor.shape != input.shape[1:2]:
            raise ValueError(f"group_norm was given a {name} of shape {tensor.shape} for an input "
                             f"of shape {input.shape}; wanted ({input.shape[1]},)")
    same_dtype("group_norm", input=input, weight=weight, bias=bias)
    return group_norm_op(input, weight, bias, groups=num_groups, eps=eps)

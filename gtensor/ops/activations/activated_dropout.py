"""Dropout behind an activation, and behind a residual connection's branch, in one pass each.

The masks are those of `dropout`. Of ReLU the output alone says what was kept: no input is saved,
and backward draws no numbers.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

from gtensor.backend import host
from gtensor.backend.kernels import elementwise
from gtensor.engine.levels import vectorizing
from gtensor.engine.namespaces import raw, recorded
from gtensor.engine.op import op
from gtensor.engine.samples import Sample, alike, apart, unary
from gtensor.engine.tensor import Tensor
from gtensor.ops.activations.activation import gelu, relu
from gtensor.ops.activations.dropout import (
    dropout,
    dropout_op,
    fresh_seed,
    keep_factor,
    keep_threshold,
    same_mask,
)
from gtensor.ops.build.batching import Inputs, Mapped, aligned, batch_size, in_dtype, spread
from gtensor.ops.build.fused import fused
from gtensor.ops.build.pointwise import partial, pointwise

if TYPE_CHECKING:
    from gtensor.backend.typing import Array, Params, Path
    from gtensor.engine.typing import Namespace, Step, Values

__all__: list[str] = []  # used by layers that have an activation or a sum beside their dropout

_GIVEN = "uint64 seed, uint64 size, uint64 threshold, float64 scale"
_DROPS = "gt_drops(i, seed, size, threshold)"


def _numbers(x: Array, p: float, seed: Any, shared: int) -> tuple[Any, ...]:
    """What the kernels take behind their arrays."""
    return seed, max(1, prod(x.shape[shared:])), keep_threshold(p), keep_factor(p)


# -- ReLU ------------------------------------------------------------------------------------------

_RELU = elementwise(
    f"T x, {_GIVEN}", "T y", f"y = {_DROPS} ? T(0) : T(gt_relu(x) * gt_float<T>(scale))",
    "dropout.cuh", "gt_relu_dropout")


def _relu_cpu(
    x: Array, *, p: float, seed: int, shared: int = 0, out: Array | None = None
) -> Array:
    out = host().empty(x.shape, x.dtype, "relu_dropout") if out is None else out
    raw["cpu"].relu(x, out=out)
    return raw["cpu"].dropout(out, p=p, seed=seed, shared=shared, out=out)


def _relu_gpu(
    x: Array, *, p: float, seed: int | Array, shared: int = 0, out: Array | None = None
) -> Array:
    made: Array = _RELU(x, *_numbers(x, p, seed, shared), out=out)
    return made


fused(
    "relu_dropout_grad",
    lambda ns, g, y, *, factor: ns.where(ns.less_equal(y, 0), 0, g * factor),
    samples=alike(2, apart, factor=1.25),
    reference=lambda torch, g, y, factor: torch.where(y > 0, g * factor, 0 * g),
    doc="The gradient of y = relu_dropout(x): g times a factor where y > 0, else 0.")

relu_dropout = op(
    "relu_dropout", cpu=_relu_cpu, gpu=_relu_gpu,
    backward=pointwise(partial("out", lambda ns, g, y, out, p, seed, shared=0: (
        ns.relu_dropout_grad(g, y, factor=keep_factor(p), out=out)))),
    batch=same_mask,
    samples=[*unary(apart, p=0.3, seed=7), *unary(apart, p=0.3, seed=7, shared=1)[1:3]],
    doc="dropout(relu(x)). Saves its output. Parameters as of dropout.",
)


# -- GELU ------------------------------------------------------------------------------------------

_GELU = elementwise(
    f"T x, {_GIVEN}", "T y", f"y = {_DROPS} ? T(0) : T(gt_gelu(x) * gt_float<T>(scale))",
    "dropout.cuh", "gt_gelu_dropout")
_GELU_GRAD = elementwise(
    f"T g, T x, {_GIVEN}", "T y",
    f"y = {_DROPS} ? T(0) : T(gt_gelu_grad(g, x) * gt_float<T>(scale))",
    "dropout.cuh", "gt_gelu_dropout_grad")


def _gelu_cpu(
    x: Array, *, p: float, seed: int, shared: int = 0, out: Array | None = None
) -> Array:
    out = host().empty(x.shape, x.dtype, "gelu_dropout") if out is None else out
    raw["cpu"].gelu(x, approximate="none", out=out)
    return raw["cpu"].dropout(out, p=p, seed=seed, shared=shared, out=out)


def _gelu_gpu(
    x: Array, *, p: float, seed: int | Array, shared: int = 0, out: Array | None = None
) -> Array:
    made: Array = _GELU(x, *_numbers(x, p, seed, shared), out=out)
    return made


def _gelu_grad_cpu(
    g: Array, x: Array, *, p: float, seed: int, shared: int = 0, out: Array | None = None
) -> Array:
    kept = raw["cpu"].dropout(g, p=p, seed=seed, shared=shared, out=out)
    return raw["cpu"].gelu_grad(
        kept, x, approximate="none", out=kept if out is None else out)


def _gelu_grad_gpu(
    g: Array, x: Array, *, p: float, seed: int | Array, shared: int = 0, out: Array | None = None
) -> Array:
    made: Array = _GELU_GRAD(g, x, *_numbers(g, p, seed, shared), out=out)
    return made


def _gelu_grad_composed(
    g: Tensor, x: Tensor, *, p: float, seed: int, shared: int = 0
) -> Any:
    return recorded.gelu_grad(dropout_op(g, p=p, seed=seed, shared=shared), x, approximate="none")


def _mask_of_all(
    ns: Namespace, run: Path, inputs: Inputs, mapped: Mapped, params: Params
) -> Any:
    """One mask for all examples, of inputs that all have their axis then."""
    size = batch_size(inputs, mapped)
    whole = [spread(ns, x, m, size) for x, m in zip(
        aligned(ns, inputs, mapped), mapped, strict=True)]
    return run(*whole, **{**params, "shared": params.get("shared", 0) + 1})


op(
    "gelu_dropout_grad", cpu=_gelu_grad_cpu, gpu=_gelu_grad_gpu, backward=None, tangent=None,
    composed=_gelu_grad_composed, batch=_mask_of_all, samples=alike(2, p=0.3, seed=7),
    doc="The gradient of gelu_dropout(x).",
)

gelu_dropout = op(
    "gelu_dropout", cpu=_gelu_cpu, gpu=_gelu_gpu,
    backward=pointwise(partial("x", "gelu_dropout_grad")), batch=same_mask,
    samples=[*unary(p=0.3, seed=7), *unary(p=0.3, seed=7, shared=1)[1:3]],
    doc="dropout(gelu(x)). Parameters as of dropout.",
)


# -- a branch --------------------------------------------------------------------------------------

_SUM = elementwise(
    f"T x, U branch, {_GIVEN}", "T y",
    f"y = {_DROPS} ? x : T(gt_up(x) + gt_float<T>(gt_up(branch)) * gt_float<T>(scale))",
    "dropout.cuh", "gt_dropout_sum")


def _sum_cpu(
    x: Array, branch: Array, *, p: float, seed: int, shared: int = 0, out: Array | None = None
) -> Array:
    kept = raw["cpu"].dropout(branch, p=p, seed=seed, shared=shared)
    same = kept.dtype == x.dtype and kept.ndim > 0
    made: Array = raw["cpu"].add(x, kept, out=kept if out is None and same else out)
    return made


def _sum_gpu(
    x: Array, branch: Array, *, p: float, seed: int | Array, shared: int = 0,
    out: Array | None = None,
) -> Array:
    made: Array = _SUM(x, branch, *_numbers(branch, p, seed, shared), out=out)
    return made


def _sum_backward(ns: Namespace, step: Step, g: Array) -> None:
    params = step.params
    if not step.needs(1):
        step.give(0, g)
        return
    if step.needs(0):
        step.lend(0, g)
    own: Any = step.parents[1]
    step.give(1, ns.dropout(in_dtype(ns, g, own.dtype), **params))


def _sum_tangent(
    ns: Namespace, primals: Values, tangents: Values, out: Array, params: Params
) -> Any:
    moved, branch = tangents
    if branch is None:
        return moved
    kept = in_dtype(ns, ns.dropout(branch, **params), out.dtype)
    return kept if moved is None else ns.add(moved, kept)


dropout_sum = op(
    "dropout_sum", cpu=_sum_cpu, gpu=_sum_gpu, backward=_sum_backward, tangent=_sum_tangent,
    batch=_mask_of_all,
    samples=[Sample((shape, shape), params={"p": 0.3, "seed": 7}) for shape in (
        (7,), (3, 5), (2, 0), ())],
    doc="x + dropout(branch), of one shape; the branch may have a lower dtype. Parameters as of "
        "dropout.",
)


# -- functions of layers ---------------------------------------------------------------------------

_BEHIND = {"relu": relu_dropout, "gelu": gelu_dropout}


def activated_dropout(x: Tensor, activation: str, p: float) -> Tensor:
    """dropout(activation(x)) with "relu" or exact "gelu", in training."""
    if p == 0.0 or vectorizing():  # whose `randomness` decides
        return dropout(relu(x) if activation == "relu" else gelu(x), p)
    return _BEHIND[activation](x, p=float(p), seed=fresh_seed(x.device))


def residual_dropout(x: Tensor, branch: Tensor, p: float) -> Tensor:
    """x + dropout(branch), in training."""
    fits = x.shape == branch.shape and x.dtype.itemsize >= branch.dtype.itemsize
    if p == 0.0 or vectorizing() or not fits:
        return x + dropout(branch, p)
    return dropout_sum(x, branch, p=float(p), seed=fresh_seed(x.device))

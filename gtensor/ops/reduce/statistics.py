"""Variance, standard deviation and the logarithm of a sum of exponentials: two passes, no copy."""

from __future__ import annotations

from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from gtensor.backend import host
from gtensor.backend.cuda import cupy
from gtensor.backend.kernels import elementwise
from gtensor.engine.handle.namespaces import recorded
from gtensor.engine.handle.tensor import Tensor
from gtensor.engine.tape.op import op
from gtensor.engine.tape.samples import Sample, apart, normal
from gtensor.ops.define.arguments import takes_arrays, torch_words
from gtensor.ops.define.batching import in_dtype, trailing, unchanged
from gtensor.ops.define.cpu_tiles import computed_in, tile_size
from gtensor.ops.define.flops import of_input
from gtensor.ops.define.fused import fused, kernel_path
from gtensor.ops.define.path_builders import settled
from gtensor.ops.reduce.reductions import (
    Axis,
    kept_shape,
    normalize_axis,
    reduced,
    reduction_samples,
    reduction_tiles,
    rounded_last,
    torch_reduction,
    widened,
)
from gtensor.settings import settings

if TYPE_CHECKING:
    from gtensor.backend.typing import Array, DTypeLike, Params
    from gtensor.engine.handle.namespaces import Namespace
    from gtensor.engine.walk.typing import Step, Values

__all__ = ["logsumexp", "std", "var"]

METHODS = __all__
_add_up: Any = np.add.reduce
_largest: Any = np.maximum.reduce


def _real(x: Tensor, name: str) -> None:
    if x.dtype.kind == "c":
        raise TypeError(f"{name} was given dtype {x.dtype}; wanted a real one")


def _settled(
    total: Array, x: Array, axis: tuple[int, ...], keepdims: bool, out: Array | None,
    dtype: DTypeLike | None = None,
) -> Array:
    """The result that was made with the reduced axes kept: in its shape and dtype, or in `out`."""
    if not keepdims:
        total = total.reshape(kept_shape(x.shape, axis, False))
    if out is not None:
        out[...] = total
        return out
    wanted = x.dtype if dtype is None else dtype
    return total if total.dtype == wanted else total.astype(wanted)


def _sum_of(function: np.ufunc, x: Array, center: Array, axis: tuple[int, ...]) -> Array:
    """The sum over `axis`, which it keeps, of function(x - center); no temporary beyond a tile."""
    if x.size <= settings.tile_elements:
        terms = np.asarray(np.subtract(x, center))
        return np.asarray(_add_up(function(terms, terms), axis, None, None, True))
    total = host().empty(center.shape, center.dtype, "sum")
    total[...] = 0
    scratch = host().workspace(tile_size(x.shape), center.dtype)
    for tile, result, axes in reduction_tiles(x.shape, axis):
        part = x[tile]
        terms = np.subtract(part, center[result], scratch(0, part.shape))
        total[result] += _add_up(function(terms, terms), axes, None, None, True)
    return total


# -- variance --------------------------------------------------------------------------------------


def _variance(x: Array, axis: tuple[int, ...], correction: float) -> tuple[Array, Array]:
    """Variance and mean, in the dtype that they are computed in, the reduced axes kept."""
    count = reduced(x.shape, axis)
    freedom = count - correction
    mean = np.asarray(_add_up(x, axis, computed_in(x.dtype), None, True))
    mean /= count or np.nan
    total = _sum_of(np.square, x, mean, axis)
    if freedom > 0:
        total /= freedom
    else:
        with np.errstate(divide="ignore", invalid="ignore"):  # infinite or NaN, as in PyTorch
            total /= 0.0
    return total, mean


def _var_cpu(
    x: Array, *, axis: tuple[int, ...], correction: float, keepdims: bool = False,
    dtype: DTypeLike | None = None, out: Array | None = None
) -> tuple[Array, Array]:
    value, mean = _variance(x, axis, correction)
    return _settled(value, x, axis, keepdims, out, dtype), mean


def _std_cpu(
    x: Array, *, axis: tuple[int, ...], correction: float, keepdims: bool = False,
    dtype: DTypeLike | None = None, out: Array | None = None
) -> tuple[Array, Array]:
    value, mean = _variance(x, axis, correction)
    return _settled(np.sqrt(value, value), x, axis, keepdims, out, dtype), mean


@cache
def _squares(root: bool) -> Any:
    """The sum of squared deviations times `scale`, or its root.

    CuPy's own `var` takes the mean of a half type in that type, whatever `dtype` it is given.
    """
    result = "sqrt(a * scale)" if root else "a * scale"
    return cupy().ReductionKernel(
        "T x, M mean, M scale", "M y",
        "(static_cast<M>(x) - mean) * (static_cast<M>(x) - mean)", "a + b", f"y = {result}", "0",
        "gt_std" if root else "gt_var")


def _deviation_gpu(
    root: bool, x: Array, *, axis: tuple[int, ...], correction: float, keepdims: bool = False,
    dtype: DTypeLike | None = None, out: Array | None = None
) -> tuple[Array, Array]:
    work = computed_in(x.dtype)
    mean = cupy().mean(x, axis=axis, dtype=work, keepdims=True)
    freedom = reduced(x.shape, axis) - correction
    scale = work.type(1 / freedom if freedom > 0 else np.inf)
    value = _squares(root)(x, mean, scale, axis=axis, keepdims=True)
    return _settled(value, x, axis, keepdims, out, dtype), mean


scaled_deviation = fused(
    "scaled_deviation", lambda ns, g, x, mean: g * (x - mean),
    gpu=elementwise("T g, T x, T mean", "T dx", "dx = T(gt_up(g) * (gt_up(x) - gt_up(mean)))",
                    "number.cuh"),
    samples=[Sample(s) for s in (((7,),) * 3, ((3, 1), (3, 5), (3, 1)), ((1, 4), (0, 4), (1, 4)),
                                 ((), (), ()))],
    reference=lambda torch, g, x, mean: g * (x - mean),
    doc="g * (x - mean), with broadcasting: the gradient of a variance.",
)

std_scale = fused(
    "std_scale",
    lambda ns, g, y, *, freedom: g / ns.where(ns.equal(y, 0), float("inf"), freedom * y),
    gpu=kernel_path(elementwise("T g, T y, float64 freedom", "T dx",
                                "dx = y == T(0) ? T(0) : "
                                "T(gt_up(g) / (gt_float<T>(freedom) * gt_up(y)))",
                                "number.cuh"), "freedom"),
    samples=[Sample(((3, 5),) * 2, (normal, apart), {"freedom": 4.0}),
             Sample(((), ()), (normal, apart), {"freedom": 1.5})],
    reference=lambda torch, g, y, freedom: g / (freedom * y),
    doc="g / (freedom * y), 0 where y is 0: no deviation has no slope.",
)


def _centered(ns: Namespace, x: Array, mean: Array, axis: tuple[int, ...]) -> tuple[Any, Any]:
    """x and its mean over `axis`, kept: the saved one, but in a graph it is a function of x."""
    if ns is recorded:
        x = widened(ns, x)
        return x, ns.mean(x, axis=axis, keepdims=True)
    return x, mean


def _freedom(shape: tuple[int, ...], params: Params) -> float:
    return max(0.0, reduced(shape, params["axis"]) - params["correction"])


def _moved(ns: Namespace, x: Array, t: Array, params: Params) -> Array:
    """The sum of t * (x - mean)."""
    axis = params["axis"]
    x, t = widened(ns, x), widened(ns, t)
    moved = ns.scaled_deviation(t, x, ns.mean(x, axis=axis, keepdims=True))
    return ns.sum(moved, axis=axis, keepdims=params["keepdims"])


def _var_backward(ns: Namespace, step: Step, g: Array) -> None:
    x, mean = step.saved
    axis = step.params["axis"]
    freedom = _freedom(x.shape, step.params)
    g = ns.multiply(widened(ns, g), 2 / freedom if freedom else float("inf"))
    g = ns.reshape(g, shape=kept_shape(x.shape, axis, True))
    step.give(0, ns.scaled_deviation(g, *_centered(ns, x, mean, axis)))


def _var_tangent(
    ns: Namespace, primals: Values, tangents: Values, out: Array, params: Params
) -> Array:
    total = _moved(ns, primals[0], tangents[0], params)
    return in_dtype(ns, ns.multiply(total, 2 / _freedom(primals[0].shape, params)), out.dtype)


def _std_backward(ns: Namespace, step: Step, g: Array) -> None:
    x, y, mean = step.saved
    axis = step.params["axis"]
    g = ns.std_scale(widened(ns, g), widened(ns, y), freedom=_freedom(x.shape, step.params))
    g = ns.reshape(g, shape=kept_shape(x.shape, axis, True))
    step.give(0, ns.scaled_deviation(g, *_centered(ns, x, mean, axis)))


def _std_tangent(
    ns: Namespace, primals: Values, tangents: Values, out: Array, params: Params
) -> Array:
    total = _moved(ns, primals[0], tangents[0], params)
    freedom = _freedom(primals[0].shape, params)
    return in_dtype(ns, ns.std_scale(total, widened(ns, out), freedom=freedom), out.dtype)


def _corrected(correction: float) -> list[Sample]:
    return [Sample(s.shapes, s.draws, {**s.params, "correction": correction})
            for s in reduction_samples(none=False, no_axis=False)]


def _torch_corrected(name: str) -> Any:
    return lambda torch, x, axis, correction, keepdims: getattr(torch, name)(
        x, dim=axis, correction=correction, keepdim=keepdims)


_var = op(
    "var", flops=of_input,
    cpu=_var_cpu, gpu=partial(_deviation_gpu, False), floating=True, extras="mean",
    saves={"x": "x mean"},
    backward=_var_backward, tangent=_var_tangent, batch=unchanged,
    samples=[*_corrected(0), *_corrected(1.5),
             Sample(((),), normal, {"axis": (), "correction": 0, "keepdims": False})],
    reference=lambda torch, x, axis, correction, keepdims: (
        torch.var(x, dim=axis, correction=correction, keepdim=keepdims) if axis else x * 0),
)

_std = op(
    "std", flops=of_input,
    cpu=_std_cpu, gpu=partial(_deviation_gpu, True), floating=True, extras="mean",
    saves={"x": "x out mean"},
    backward=_std_backward, tangent=_std_tangent, batch=unchanged,
    samples=[*_corrected(0), *_corrected(1)], reference=_torch_corrected("std"),
)


def _corrected_words(
    name: str, axis: Axis, dim: Axis, keepdims: bool, keepdim: bool | None, correction: float,
    unbiased: bool | None,
) -> tuple[Axis, bool]:
    """`torch_words`; `dim` alone would be PyTorch's call, which divides by another number."""
    if dim is not None and not correction and unbiased is None:
        raise TypeError(f"{name} was given dim={dim} without a correction, for which PyTorch "
                        f"divides by n - 1, and {name} here by n; wanted {name}(x, axis={dim}, "
                        f"correction=1), or correction=0 with axis=")
    return torch_words(name, axis, dim, keepdims, keepdim)


@takes_arrays
def var(
    x: Tensor, /, axis: Axis = None, *, correction: float = 0.0, keepdims: bool = False,
    dim: Axis = None, keepdim: bool | None = None, unbiased: bool | None = None,
) -> Tensor:
    """The variance over `axis` (all by default) around the mean, over count - correction.

    The correction is 0, as in NumPy; PyTorch's is 1. `unbiased`, PyTorch's word, says 1 or 0. Two
    passes, so that a large mean costs no digits. Integers become the default dtype first. NaN over
    no elements. Raises TypeError for complex input.
    """
    if dim is not None or keepdim is not None:
        axis, keepdims = _corrected_words(
            "var", axis, dim, keepdims, keepdim, correction, unbiased)
    if unbiased is not None:
        correction = float(bool(unbiased))
    _real(x, "var")
    return rounded_last(_var, x, axis=normalize_axis(axis, x.ndim, "var"), correction=correction,
                        keepdims=keepdims)


@takes_arrays
def std(
    x: Tensor, /, axis: Axis = None, *, correction: float = 0.0, keepdims: bool = False,
    dim: Axis = None, keepdim: bool | None = None, unbiased: bool | None = None,
) -> Tensor:
    """The standard deviation over `axis` (all by default): the square root of `var`.

    The correction is 0, as in NumPy; PyTorch's is 1. Its gradient where all elements are equal is
    0, as in PyTorch. Raises TypeError for complex input.
    """
    if dim is not None or keepdim is not None:
        axis, keepdims = _corrected_words(
            "std", axis, dim, keepdims, keepdim, correction, unbiased)
    if unbiased is not None:
        correction = float(bool(unbiased))
    _real(x, "std")
    return rounded_last(_std, x, axis=normalize_axis(axis, x.ndim, "std"), correction=correction,
                        keepdims=keepdims)


# -- log of the sum of exponentials ----------------------------------------------------------------


def _logsumexp_cpu(
    x: Array, *, axis: tuple[int, ...], keepdims: bool = False, out: Array | None = None
) -> tuple[Array, ...]:
    """The largest element is taken out of each sum first, unless it is infinite."""
    largest = np.asarray(_largest(x, axis, computed_in(x.dtype), None, True, -np.inf))
    np.copyto(largest, 0, where=~np.isfinite(largest))
    with np.errstate(divide="ignore", over="ignore"):  # of nothing, or of -infinity only
        total = _sum_of(np.exp, x, largest, axis)
        result = np.log(total) + largest
    return _settled(result, x, axis, keepdims, out), largest, total


def _logsumexp_gpu(
    x: Array, *, axis: tuple[int, ...], keepdims: bool = False, out: Array | None = None
) -> tuple[Array, ...]:
    xp, work = cupy(), computed_in(x.dtype)
    if not reduced(x.shape, axis):
        total = xp.full(kept_shape(x.shape, axis, True), -np.inf, work)
        return _settled(total, x, axis, keepdims, out), *xp.zeros((2, *total.shape), work)
    largest = xp.max(x, axis=axis, keepdims=True).astype(work)
    largest = xp.where(xp.isfinite(largest), largest, 0)
    total = xp.sum(xp.exp(x - largest), axis=axis, keepdims=True)
    return _settled(xp.log(total) + largest, x, axis, keepdims, out), largest, total


exponential_share = fused(
    "exponential_share", lambda ns, g, x, y: g * ns.exp(x - y),
    gpu=elementwise("T g, T x, T y", "T dx", "dx = T(gt_up(g) * exp(gt_up(x) - gt_up(y)))",
                    "number.cuh"),
    samples=[Sample(s) for s in (((7,),) * 3, ((3, 1), (3, 5), (3, 1)), ((), (), ()))],
    reference=lambda torch, g, x, y: g * torch.exp(x - y),
    doc="g * exp(x - y), with broadcasting.",
)


def _logsumexp_grad_cpu(
    g: Array, x: Array, largest: Array, total: Array, *, axis: tuple[int, ...],
    out: Array | None = None
) -> Array:
    if out is None:
        out = host().empty(x.shape, x.dtype, "logsumexp_grad")
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):  # of -infinity only: NaN
        return exponential_share.cpu(np.asarray(g / total), x, largest, out=out)


def _logsumexp_grad_gpu(
    g: Array, x: Array, largest: Array, total: Array, *, axis: tuple[int, ...],
    out: Array | None = None
) -> Array:
    result = exponential_share.gpu(g / total, x, largest)
    return settled(result.astype(x.dtype, copy=False), out)


def _logsumexp_grad(
    g: Tensor, x: Tensor, largest: Tensor, total: Tensor, *, axis: tuple[int, ...]
) -> Tensor:
    terms = recorded.exp(x - largest)  # the softmax does not depend on what is taken out of x
    return g * (terms / recorded.sum(terms, axis=axis, keepdims=True))


logsumexp_grad = op(
    "logsumexp_grad", cpu=_logsumexp_grad_cpu, gpu=_logsumexp_grad_gpu,
    backward=None, tangent=None, composed=_logsumexp_grad, batch=trailing,
    samples=None,  # its inputs depend on each other: tested through logsumexp
    doc="g * exp(x - largest) / total: from the output, exp(x - y) would lose the digits that a "
        "large y rounds away.",
)


def _logsumexp_backward(ns: Namespace, step: Step, g: Array) -> None:
    x, largest, total = step.saved
    axis = step.params["axis"]
    g = ns.reshape(g, shape=kept_shape(x.shape, axis, True))
    step.give(0, ns.logsumexp_grad(g, x, largest, total, axis=axis))


def _logsumexp_tangent(
    ns: Namespace, primals: Values, tangents: Values, out: Array, params: Params
) -> Array:
    x, t = widened(ns, primals[0]), widened(ns, tangents[0])
    y = ns.reshape(widened(ns, out), shape=kept_shape(x.shape, params["axis"], True))
    total = ns.sum(ns.exp(ns.subtract(x, y)), **params)  # 1, but for the digits that y rounded away
    total = ns.where(ns.equal(total, 0), 1.0, total)  # of nothing
    moved = ns.sum(ns.exponential_share(t, x, y), **params)
    return in_dtype(ns, ns.divide(moved, total), out.dtype)


_logsumexp = op(
    "logsumexp", flops=of_input, autocast="float32",
    cpu=_logsumexp_cpu, gpu=_logsumexp_gpu, floating=True, extras="largest total",
    saves={"x": "x largest total"},
    backward=_logsumexp_backward, tangent=_logsumexp_tangent, batch=unchanged,
    samples=reduction_samples(), reference=torch_reduction("logsumexp"),
)


@takes_arrays
def logsumexp(
    x: Tensor, /, axis: Axis = None, *, keepdims: bool = False, dim: Axis = None,
    keepdim: bool | None = None,
) -> Tensor:
    """log(sum(exp(x))) over `axis` (all by default), without overflow; -infinity over no elements.

    Raises TypeError for complex input.
    """
    if dim is not None or keepdim is not None:
        axis, keepdims = torch_words("logsumexp", axis, dim, keepdims, keepdim)
    _real(x, "logsumexp")
    return _logsumexp(x, axis=normalize_axis(axis, x.ndim, "logsumexp"), keepdims=keepdims)

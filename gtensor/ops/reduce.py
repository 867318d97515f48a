"""Reductions: sum, mean, var, max, min, argmax."""

from __future__ import annotations

import builtins
from math import prod
from typing import Any

import numpy as np

from gtensor.backend import host
from gtensor.backend.cuda import cupy
from gtensor.core.op import Op, op
from gtensor.core.samples import Sample, distinct, normal
from gtensor.core.tensor import Tensor
from gtensor.ops.arithmetic import square
from gtensor.ops.shape import linear_tangent

__all__ = ["argmax", "max", "mean", "min", "sum", "var"]

METHODS = ("sum", "mean", "var", "max", "min", "argmax")
_SUMS = ("sum", "mean")
Axis = int | tuple[int, ...] | None


def normalize_axis(axis: Axis, ndim: int, op_name: str) -> tuple[int, ...]:
    """Sorted non-negative axes; all of them for None. Raises ValueError for one not there."""
    axes = tuple(range(ndim)) if axis is None else (axis,) if isinstance(axis, int) else tuple(axis)
    found = sorted(a + ndim if a < 0 else a for a in axes)
    if any(not 0 <= a < ndim for a in found) or len(set(found)) != len(found):
        raise ValueError(f"{op_name} over axis {axis} of a tensor of {ndim} dimensions; wanted "
                         f"different axes from {-ndim} to {ndim - 1}")
    return tuple(found)


def _kept(shape: tuple[int, ...], axis: tuple[int, ...], keepdims: bool) -> tuple[int, ...]:
    """The shape after a reduction over `axis`."""
    if keepdims:
        return tuple(1 if i in axis else n for i, n in enumerate(shape))
    return tuple(n for i, n in enumerate(shape) if i not in axis)


def _samples(draw: Any = normal, empty: bool = True) -> list[Sample]:
    cases: list[tuple[tuple[int, ...], tuple[int, ...], bool]] = [
        ((7,), (0,), False), ((3, 5), (1,), False), ((3, 5), (0,), True),
        ((2, 3, 4), (0, 2), False), ((2, 3), (0, 1), False), ((), (), False), ((3, 4), (), False)]
    if empty:
        cases.append(((3, 0), (1,), False))
    return [Sample((s,), draw, {"axis": a, "keepdims": k}) for s, a, k in cases]


def _torch_axis(function: str, empty_axis: Any) -> Any:
    def reference(torch: Any, x: Any, axis: tuple[int, ...], keepdims: bool) -> Any:
        if not axis:
            return empty_axis(torch, x)
        return getattr(torch, function)(x, dim=axis, keepdim=keepdims)

    return reference


# -- sum -------------------------------------------------------------------------------------------


_UFUNCS = {"sum": np.add, "mean": np.add, "max": np.maximum, "min": np.minimum}


def _reduction_cpu(name: str) -> Any:
    """A reduction by its ufunc: NumPy's functions of that name only add Python around it."""
    reduce: Any = _UFUNCS[name].reduce

    def path(x: Any, *, axis: tuple[int, ...], keepdims: bool = False, out: Any = None) -> Any:
        if out is None:
            out = host().empty(_kept(x.shape, axis, keepdims), x.dtype, name)
        if name in _SUMS and x.dtype.itemsize == 2:  # half precision is added up in float32
            total = reduce(x, axis=axis, keepdims=keepdims, dtype=np.float32)
            out[...] = total / _count(x.shape, axis) if name == "mean" else total
            return out
        reduce(x, axis=axis, keepdims=keepdims, out=out)
        if name == "mean":
            out /= _count(x.shape, axis)
        return out

    return path


def _reduction_gpu(name: str) -> Any:
    def path(x: Any, *, axis: tuple[int, ...], keepdims: bool = False, out: Any = None) -> Any:
        wide = {"dtype": np.float32} if name in _SUMS and x.dtype.itemsize == 2 else {}
        result = getattr(cupy(), name)(x, axis=axis, keepdims=keepdims, **wide)
        if out is None:
            return result.astype(x.dtype, copy=False)
        out[...] = result
        return out

    return path


def _count(shape: tuple[int, ...], axis: tuple[int, ...]) -> float:
    """Elements that are reduced to one; NaN for none, the mean of nothing."""
    return prod(shape[i] for i in axis) or float("nan")


def _sum_backward(ns: Any, step: Any, g: Any) -> None:
    shape, axis = step.shape(0), step.params["axis"]
    g = ns.reshape(g, shape=_kept(shape, axis, True))
    step.give(0, ns.broadcast_to(g, shape=shape))


_sum = op(
    "sum", cpu=_reduction_cpu("sum"), gpu=_reduction_gpu("sum"),
    backward=_sum_backward, tangent=linear_tangent("sum"),
    samples=_samples(), reference=_torch_axis("sum", lambda torch, x: x.clone()),
)


def sum(x: Tensor, axis: Axis = None, *, dtype: Any = None, keepdims: bool = False) -> Tensor:
    """The sum over `axis` (all by default). Booleans are counted; small integers add up as int64.

    The gradient of every element is the output's: a broadcast view, no new memory.
    """
    axes = normalize_axis(axis, x.ndim, "sum")
    if dtype is None and x.dtype.kind in "biu" and x.dtype.itemsize < 8:
        dtype = np.uint64 if x.dtype.kind == "u" else np.int64
    if dtype is not None and x.dtype != np.dtype(dtype):
        x = x.astype(dtype)
    return _sum(x, axis=axes, keepdims=keepdims)


# -- mean and variance -----------------------------------------------------------------------------


def _mean_backward(ns: Any, step: Any, g: Any) -> None:
    shape, axis = step.shape(0), step.params["axis"]
    count = builtins.max(1, prod(shape[i] for i in axis))
    g = ns.reshape(ns.multiply(g, 1.0 / count), shape=_kept(shape, axis, True))
    step.give(0, ns.broadcast_to(g, shape=shape))


_mean = op(
    "mean", cpu=_reduction_cpu("mean"), gpu=_reduction_gpu("mean"), floating=True,
    backward=_mean_backward, tangent=linear_tangent("mean"),
    samples=_samples(empty=False),
    reference=_torch_axis("mean", lambda torch, x: x.clone()),
)


def mean(x: Tensor, axis: Axis = None, *, keepdims: bool = False) -> Tensor:
    """The arithmetic mean over `axis` (all axes by default); integers become float32 first."""
    return _mean(x, axis=normalize_axis(axis, x.ndim, "mean"), keepdims=keepdims)


def var(x: Tensor, axis: Axis = None, *, correction: float = 0.0, keepdims: bool = False) -> Tensor:
    """The variance over `axis` around the mean, divided by count - correction."""
    axes = normalize_axis(axis, x.ndim, "var")
    count = prod(x.shape[a] for a in axes)
    deviation = x - mean(x, axes, keepdims=True)
    scale = 1 / builtins.max(0.0, count - correction) if count > correction else float("nan")
    return sum(square(deviation), axes, keepdims=keepdims) * scale


# -- maximum and minimum ---------------------------------------------------------------------------


def _extreme_backward(ns: Any, step: Any, g: Any) -> None:
    """To the extreme elements; ties share the gradient equally, as PyTorch's amax and amin do."""
    x, y = step.saved
    kept = _kept(x.shape, step.params["axis"], True)
    y, g = ns.reshape(y, shape=kept), ns.reshape(g, shape=kept)
    hits = ns.astype(ns.equal(x, y), dtype=x.dtype)  # 1 where x is the extreme
    share = ns.divide(g, ns.sum(hits, axis=step.params["axis"], keepdims=True))
    step.give(0, ns.multiply(hits, share))


def _extreme_tangent(ns: Any, primals: Any, tangents: Any, out: Any, params: dict[str, Any]) -> Any:
    axis = params["axis"]
    x, kept = primals[0], _kept(primals[0].shape, axis, True)
    hits = ns.astype(ns.equal(x, ns.reshape(out, shape=kept)), dtype=x.dtype)
    hits = ns.divide(hits, ns.sum(hits, axis=axis, keepdims=True))
    return ns.sum(ns.multiply(tangents[0], hits), axis=axis, keepdims=params["keepdims"])


def _extreme(name: str) -> Op:
    return op(
        name, cpu=_reduction_cpu(name), gpu=_reduction_gpu(name), saves={"x": "x out"},
        backward=_extreme_backward, tangent=_extreme_tangent,
        samples=_samples(distinct, empty=False),
        reference=_torch_axis(f"a{name}", lambda torch, x: x.clone()),
    )


_max, _min = _extreme("max"), _extreme("min")


def max(x: Tensor, axis: Axis = None, *, keepdims: bool = False) -> Tensor:
    """The largest element over `axis` (all axes by default); NaN if there is one.

    Raises ValueError for a reduction over no elements.
    """
    return _max(x, axis=_some(x, axis, "max"), keepdims=keepdims)


def min(x: Tensor, axis: Axis = None, *, keepdims: bool = False) -> Tensor:
    """The smallest element over `axis` (all axes by default); NaN if there is one.

    Raises ValueError for a reduction over no elements.
    """
    return _min(x, axis=_some(x, axis, "min"), keepdims=keepdims)


def _some(x: Tensor, axis: Axis, name: str) -> tuple[int, ...]:
    axes = normalize_axis(axis, x.ndim, name)
    if prod(x.shape[a] for a in axes) == 0:
        raise ValueError(f"{name} over axis {axis} of a tensor of shape {x.shape}, which has no "
                         "elements there; wanted at least one")
    return axes


def _argmax_path(x: Any, *, axis: int | None, keepdims: bool, out: Any = None) -> Any:
    return x.argmax(axis=axis, keepdims=keepdims, out=out)


_argmax = op(
    "argmax", cpu=_argmax_path, gpu=_argmax_path, backward=None, tangent=None,
    samples=[Sample((s,), distinct, {"axis": a, "keepdims": k})
             for s, a, k in (((7,), 0, False), ((3, 5), 1, True), ((3, 5), None, False))],
    reference=lambda torch, x, axis, keepdims: torch.argmax(x, dim=axis, keepdim=keepdims),
)


def argmax(x: Tensor, axis: int | None = None, *, keepdims: bool = False) -> Tensor:
    """Index of the first largest element along `axis` (of the flattened tensor for None); int64."""
    _some(x, axis, "argmax")
    return _argmax(x, axis=axis, keepdims=keepdims)

"""Selection: the larger, the smaller, clipping, one of two by a condition."""

from __future__ import annotations

from functools import wraps
from math import inf, prod
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeAlias, overload

import numpy as np

from gtensor.backend import host
from gtensor.backend.cuda import cupy
from gtensor.backend.kernels import elementwise
from gtensor.creation.new_tensors import asarray
from gtensor.engine.handle.namespaces import public
from gtensor.engine.handle.tensor import Tensor
from gtensor.engine.tape.op import op
from gtensor.engine.tape.samples import Sample, alike, apart, binary, boolean, distinct, normal
from gtensor.ops.define.batching import broadcasting
from gtensor.ops.define.cpu_tiles import masked, select, select_into, tile_size, whole_tiles
from gtensor.ops.define.fused import fused
from gtensor.ops.define.path_builders import common, cupy_function, promoted, ufunc
from gtensor.ops.define.pointwise import partial, pointwise
from gtensor.ops.elementwise.arithmetic import positive

if TYPE_CHECKING:
    from gtensor.backend.typing import Array, Path, Scalar
    from gtensor.engine.handle.namespaces import Namespace
    from gtensor.engine.handle.tensor import Operand

__all__ = ["clip", "maximum", "minimum", "where"]

Bound: TypeAlias = "Array | Scalar | None"
_NUMBERS = (bool, int, float, complex)
_USER_DTYPE = 256  # dtype numbers from here on are not NumPy's own (ml_dtypes)
_BRANCHING = 4096  # elements up to which np.where is faster than what does without branches


def _is_zero(x: object) -> bool:
    """Whether x is a number whose bits are all zero in every dtype (-0.0 is not)."""
    return isinstance(x, (int, float)) and x == 0 and str(x) != "-0.0"


def _chosen(mask: Array, x1: Any, x2: Any) -> Array:
    """np.where on a tile: no branches, and nothing to do where the mask is false throughout."""
    if not isinstance(mask, np.ndarray) or mask.size <= _BRANCHING:
        return np.where(mask, x1, x2)
    if _is_zero(x1) and x2.shape == mask.shape:
        return masked(x2, ~mask)
    if _is_zero(x2) and x1.shape == mask.shape:
        return masked(x1, mask)
    if isinstance(x2, np.ndarray) and x2.shape == mask.shape and not mask.any():
        return x2
    return select(mask, x1, x2)


_tile = SimpleNamespace(
    equal=np.equal, greater=np.greater, greater_equal=np.greater_equal, less=np.less,
    less_equal=np.less_equal, logical_and=np.logical_and, logical_or=np.logical_or, where=_chosen)


def _branchless(formula: Path) -> Path:
    """The formula, with `_chosen` in place of np.where."""

    @wraps(formula)
    def called(ns: Namespace, *inputs: Array | Scalar | None) -> Array:
        return formula(_tile if ns is np else ns, *inputs)

    return called


# -- maximum and minimum ---------------------------------------------------------------------------


@_branchless
def _maximum_grad(ns: Namespace, g: Array, x1: Array, x2: Array) -> Array:
    kept = ns.where(ns.less(x1, x2), 0.0, g)
    return ns.where(ns.equal(x1, x2), 0.5 * kept, kept)


@_branchless
def _minimum_grad(ns: Namespace, g: Array, x1: Array, x2: Array) -> Array:
    kept = ns.where(ns.greater(x1, x2), 0.0, g)
    return ns.where(ns.equal(x1, x2), 0.5 * kept, kept)


maximum_grad = fused(
    "maximum_grad", _maximum_grad,
    gpu=elementwise("T g, T x1, T x2", "T dx",
                    "dx = x1 < x2 ? T(0) : (x1 == x2 ? T(g * T(0.5)) : g)"),
    samples=alike(3, (normal, apart, distinct)),
    reference=lambda torch, g, a, b: g * (a > b),
    doc="0 where x1 < x2, half of g at a tie, else g: also where one is NaN, as in PyTorch.",
)

maximum = op(
    "maximum", cpu=ufunc(np.maximum), gpu=cupy_function("maximum"),
    backward=pointwise(
        partial("x1 x2", lambda ns, g, x1, x2, out: ns.maximum_grad(g, x1, x2, out=out)),
        partial("x1 x2", lambda ns, g, x1, x2, out: ns.maximum_grad(g, x2, x1, out=out))),
    samples=binary(apart, normal), reference=lambda torch, a, b: torch.maximum(a, b),
    doc="The larger of x1 and x2, elementwise; NaN if either is.",
)

minimum_grad = fused(
    "minimum_grad", _minimum_grad,
    gpu=elementwise("T g, T x1, T x2", "T dx",
                    "dx = x1 > x2 ? T(0) : (x1 == x2 ? T(g * T(0.5)) : g)"),
    samples=alike(3, (normal, apart, distinct)),
    reference=lambda torch, g, a, b: g * (a < b),
    doc="0 where x1 > x2, half of g at a tie, else g: also where one is NaN, as in PyTorch.",
)

minimum = op(
    "minimum", cpu=ufunc(np.minimum), gpu=cupy_function("minimum"),
    backward=pointwise(
        partial("x1 x2", lambda ns, g, x1, x2, out: ns.minimum_grad(g, x1, x2, out=out)),
        partial("x1 x2", lambda ns, g, x1, x2, out: ns.minimum_grad(g, x2, x1, out=out))),
    samples=binary(apart, normal), reference=lambda torch, a, b: torch.minimum(a, b),
    doc="The smaller of x1 and x2, elementwise; NaN if either is.",
)

# -- clip ------------------------------------------------------------------------------------------


def _clip_samples(gradient_of: str = "") -> list[Sample]:
    """Inputs x, min, max, some without a bound; g first, for a gradient of one of them."""
    draws = (normal, *(lambda rng, shape, m=m: rng.uniform(m - 0.4, m + 0.4, shape)
                       for m in (-0.6, 0.6)))
    shapes: list[tuple[tuple[int, ...] | None, ...]] = [
        ((7,), (7,), (7,)), ((3, 5), (5,), (3, 1)), ((9,), None, (9,)), ((9,), (), None),
        ((0, 3), (3,), None), ((), (), ())]
    if not gradient_of:
        return [Sample(s, draws) for s in [*shapes, ((3,), (4, 1), None)]]
    given = ("x", "min", "max").index(gradient_of)
    return [Sample((s[0], *s), (normal, *draws)) for s in shapes if s[given] is not None]


def _clip_cpu(
    x: Array, min: Bound, max: Bound, out: Any = None  # overloads of np.clip refuse a union
) -> Array:
    if out is None and (x.size > _BRANCHING or x.dtype.kind == "V"):  # np.clip widens bfloat16
        bounds = [b for b in (min, max) if b is not None]
        shape = np.broadcast_shapes(x.shape, *[np.shape(b) for b in bounds])
        out = host().empty(shape, common(x, *bounds), "clip")
    return np.clip(x, min, max, out=out)


_clip_kernel = elementwise(  # NaN stays, in x and in a bound
    "T x, T low, T high", "T y",
    "T above = x < low || low != low ? low : x; y = above > high || high != high ? high : above")


def _clip_gpu(x: Array, min: Bound, max: Bound, out: Array | None = None) -> Array:
    if max is None:
        return cupy().maximum(x, min, out=out)
    if min is None:
        return cupy().minimum(x, max, out=out)
    return _clip_kernel(*promoted(x, min, max), out=out)


def _without_bounds(kernel: Path) -> Path:
    """The GPU path of a gradient of clip: infinity stands for a bound that is not there."""

    def path(g: Array, x: Array, min: Bound, max: Bound, out: Array | None = None) -> Array:
        return kernel(g, x, -inf if min is None else min, inf if max is None else max, out=out)

    return path


@_branchless
def _clip_grad(ns: Namespace, g: Array, x: Array, min: Bound, max: Bound) -> Array:
    if min is None:
        inside = ns.less_equal(x, max)
    elif max is None:
        inside = ns.greater_equal(x, min)
    else:
        inside = ns.logical_and(ns.greater_equal(x, min), ns.less_equal(x, max))
    return ns.where(inside, g, 0.0)


@_branchless
def _clip_grad_min(ns: Namespace, g: Array, x: Array, min: Bound, max: Bound) -> Array:
    below = ns.less(x, min)
    if max is not None:
        below = ns.logical_and(below, ns.less(min, max))
    return ns.where(below, g, 0.0)


@_branchless
def _clip_grad_max(ns: Namespace, g: Array, x: Array, min: Bound, max: Bound) -> Array:
    above = ns.greater(x, max)
    if min is not None:
        above = ns.logical_or(above, ns.less(max, min))
    return ns.where(above, g, 0.0)


def _clip_torch(torch: Any, x: Any, min: Any, max: Any) -> Any:
    return torch.clip(x, min, max)


for _name, _formula, _condition, _of in (
        ("clip_grad", _clip_grad, "x >= low && x <= high", "x"),
        ("clip_grad_min", _clip_grad_min, "x < low && low < high", "min"),
        ("clip_grad_max", _clip_grad_max, "x > high || high < low", "max")):
    fused(_name, _formula, samples=_clip_samples(_of),
          gpu=_without_bounds(elementwise("T g, T x, T low, T high", "T dx",
                                          f"dx = {_condition} ? g : T(0)")),
          doc=f"The gradient of clip(x, min, max) with respect to {_of}.")

clip_op = op(
    "clip", cpu=_clip_cpu, gpu=_clip_gpu,
    backward=pointwise(
        partial("x min max",
                lambda ns, g, x, low, high, out: ns.clip_grad(g, x, low, high, out=out)),
        partial("x min max",
                lambda ns, g, x, low, high, out: ns.clip_grad_min(g, x, low, high, out=out)),
        partial("x min max",
                lambda ns, g, x, low, high, out: ns.clip_grad_max(g, x, low, high, out=out)),
    ),
    samples=_clip_samples(), reference=_clip_torch,
    doc="x, but at least min and at most max, elementwise with broadcasting.",
)


def clip(x: Operand, /, min: Operand | None = None, max: Operand | None = None) -> Tensor:
    """x, but at least `min` and at most `max`: numbers, tensors that broadcast, or None.

    Where min exceeds max the result is max. Between the bounds and on them x gets the gradient,
    outside the bound does. Without any bound the result is a copy of x.
    """
    if type(x) in _NUMBERS:
        x = asarray(x)
    return positive(x) if min is None and max is None else clip_op(x, min, max)


# -- where -----------------------------------------------------------------------------------------


def _goes_with(x: Any, condition: np.ndarray) -> bool:
    """Whether x is a number, or an array of the condition's shape (and not bfloat16)."""
    if type(x) in _NUMBERS:
        return True
    if x.size != condition.size or x.dtype.num >= _USER_DTYPE:
        return False
    return (x.ndim == 1 and condition.ndim == 1) or x.shape == condition.shape


def _where_cpu(condition: Array, x1: Any, x2: Any, out: Array | None = None) -> Array:
    if (out is None and condition.size <= _BRANCHING and _goes_with(x1, condition)
            and _goes_with(x2, condition)):
        return np.where(condition, x1, x2)
    dtype = common(x1, x2)
    shape = np.broadcast_shapes(condition.shape, np.shape(x1), np.shape(x2))
    if out is None:
        out = host().empty(shape, dtype, "where")
    zero = 1 if _is_zero(x1) else 2 if _is_zero(x2) else 0
    branching = dtype.itemsize > 8 or prod(shape) <= _BRANCHING
    work = host().workspace(0 if zero or branching else tile_size(shape), dtype)
    mask, x1, x2 = (np.broadcast_to(x if isinstance(x, np.ndarray) else np.asarray(x, dtype), shape)
                    for x in (condition, x1, x2))
    for tile in whole_tiles(shape):
        place, chosen = out[tile], mask[tile]
        a, b = (x[tile].astype(dtype, copy=False) for x in (x1, x2))
        if branching:
            place[...] = np.where(chosen, a, b)
        elif zero:
            masked(a if zero == 2 else b, chosen if zero == 2 else ~chosen, out=place)
        else:
            select_into(place, chosen, a, b, work(0, place.shape))
    return out


_where_kernel = elementwise("B condition, T x1, T x2", "T y", "y = condition ? x1 : x2")


def _where_gpu(
    condition: Array, x1: Array | Scalar, x2: Array | Scalar, out: Array | None = None
) -> Array:
    return _where_kernel(condition, *promoted(x1, x2), out=out)


where_op = op(
    "where", cpu=_where_cpu, gpu=_where_gpu, constants="condition", complex=True,
    batch=broadcasting,
    backward=pointwise(
        None,
        partial("condition", lambda ns, g, condition, out: ns.where(condition, g, 0.0, out=out)),
        partial("condition", lambda ns, g, condition, out: ns.where(condition, 0.0, g, out=out))),
    samples=[Sample(s.shapes[:1] + s.shapes, (boolean, normal, normal)) for s in binary()],
    reference=lambda torch, c, a, b: torch.where(c, a, b),
    doc="x1 where condition is true, else x2, with broadcasting.",
)


@overload
def where(condition: Operand, x1: Operand, x2: Operand, /) -> Tensor: ...


@overload
def where(condition: Operand, /) -> tuple[Tensor, ...]: ...


def where(
    condition: Operand, x1: Operand | None = None, x2: Operand | None = None, /
) -> Tensor | tuple[Tensor, ...]:
    """x1 where condition is true, else x2, with broadcasting; alone, `nonzero(condition)`.

    Raises TypeError unless the condition is boolean (a tensor, an array or a bool), or for one of
    x1 and x2 alone.
    """
    chosen = condition if isinstance(condition, Tensor) else asarray(condition)
    if x1 is None or x2 is None:
        if x1 is not x2:
            raise TypeError("where was given two arguments; wanted where(condition, x1, x2), or "
                            "where(condition) for the places where it is true")
        return public.nonzero(chosen)
    if chosen._array.dtype.kind != "b":
        raise TypeError(f"where was given a condition of dtype {chosen.dtype}; wanted bool, such "
                        "as x > 0")
    if isinstance(x1, _NUMBERS) and isinstance(x2, _NUMBERS):
        x1, x2 = asarray([x1, x2])  # one dtype, the default of their kind
    return where_op(chosen, x1, x2)

"""Norms of vectors and matrices, diagonals and traces."""

from __future__ import annotations

from math import inf, prod
from typing import TYPE_CHECKING, Any

import numpy as np

from gtensor.backend.cuda import cupy
from gtensor.creation.new_tensors import asarray
from gtensor.engine.handle.namespaces import raw, recorded
from gtensor.engine.handle.tensor import Tensor
from gtensor.engine.tape.op import op
from gtensor.engine.tape.samples import Sample, apart, normal
from gtensor.ops.arrange.shape import axis_indices, expand_dims, linear_tangent, moveaxis, reshape
from gtensor.ops.define.arguments import autocast, torch_words
from gtensor.ops.define.batching import (
    Inputs,
    Mapped,
    aligned,
    batch_size,
    in_dtype,
    spread,
    trailing,
    unchanged,
)
from gtensor.ops.define.cpu_tiles import computed_in
from gtensor.ops.define.flops import of_input
from gtensor.ops.define.fused import fused
from gtensor.ops.define.path_builders import placed, settled
from gtensor.ops.elementwise.complex_parts import abs as modulus
from gtensor.ops.linalg.matrix_products import is_half, matrices
from gtensor.ops.linalg.singular_values import svdvals
from gtensor.ops.reduce.reductions import (
    Axis,
    kept_shape,
    normalize_axis,
    reduction_tiles,
    rounded_last,
    widened,
)
from gtensor.ops.reduce.reductions import max as largest
from gtensor.ops.reduce.reductions import min as smallest
from gtensor.ops.reduce.reductions import sum as total
from gtensor.settings import settings

if TYPE_CHECKING:
    from types import ModuleType

    from gtensor.backend import Device
    from gtensor.backend.typing import Array, DTypeLike, Params, Path
    from gtensor.engine.handle.namespaces import Namespace
    from gtensor.engine.walk.typing import Step, Values

__all__: list[str] = []  # the functions are public in gtensor.linalg


# -- diagonals -------------------------------------------------------------------------------------


def _corner(shape: tuple[int, ...], offset: int) -> tuple[slice, slice]:
    """The square block whose diagonal is the one at `offset`."""
    rows, columns = shape[-2:]
    top, left = max(0, -offset), max(0, offset)
    size = max(0, min(rows - top, columns - left))
    return slice(top, top + size), slice(left, left + size)


def _diagonal_path(x: Array, *, offset: int, out: Array | None = None) -> Array:
    block = x[(..., *_corner(x.shape, offset))]
    if isinstance(block, np.ndarray):
        view = np.einsum("...ii->...i", block)  # np.diagonal's view could not be written
    else:
        view = cupy().diagonal(block, 0, -2, -1)
    return settled(view, out)


def _diagonal_backward(ns: Namespace, step: Step, g: Array) -> None:
    buffer, beta = step.into(0)
    step.give(0, ns.undiagonal(g, offset=step.params["offset"], shape=step.shape(0),
                               out=buffer, beta=beta))


def _torch_diagonal(torch: Any, x: Any, offset: int) -> Any:
    """PyTorch refuses offsets outside the matrix, whose diagonals are empty."""
    rows, columns = x.shape[-2:]
    if -rows <= offset <= columns:
        return torch.diagonal(x, offset, -2, -1)
    return x.reshape(*x.shape[:-2], -1)[..., :0]


_DIAGONALS = [((3, 3), 0), ((2, 3, 4), 1), ((4, 2), -1), ((2, 3), 5), ((0, 2, 2), 0), ((1, 1), 0)]

diagonal_op = op(
    "diagonal", cpu=_diagonal_path, gpu=_diagonal_path, view=True, complex=True,
    backward=_diagonal_backward, tangent=linear_tangent("diagonal"), batch=unchanged,
    samples=[Sample((shape,), normal, {"offset": k}) for shape, k in _DIAGONALS],
    reference=_torch_diagonal, doc="A diagonal of the last two axes: a view.",
)


def _undiagonal_path(
    device: Device, g: Array, *, offset: int, shape: tuple[int, ...], out: Array | None = None,
    beta: float = 0.0
) -> Array:
    if out is None or not beta:
        out = device.empty(shape, g.dtype, "undiagonal") if out is None else out
        out[...] = 0
    target = _diagonal_path(out, offset=offset)
    if beta:
        target += g
    else:
        target[...] = g
    return out


undiagonal = op(
    "undiagonal", **placed(_undiagonal_path), complex=True,
    backward=lambda ns, step, g: step.give(
        0, ns.diagonal(g, offset=step.params["offset"])),
    tangent=linear_tangent("undiagonal"), batch=trailing,
    samples=[Sample((np.empty(shape).diagonal(k, -2, -1).shape,), normal,
                    {"offset": k, "shape": shape}) for shape, k in _DIAGONALS],
    doc="Zeros of `shape` with g on a diagonal of the last two axes: the adjoint of diagonal.",
)


def diagonal(x: Tensor, /, *, offset: int = 0) -> Tensor:
    """The diagonal of the last two axes (..., m, n), `offset` above the main one: a view.

    The result is (..., k), k being the number of elements on that diagonal. Raises ValueError for
    fewer than two axes.
    """
    return diagonal_op(matrices(x, "diagonal"), offset=offset)


def trace(x: Tensor, /, *, offset: int = 0, dtype: DTypeLike | None = None) -> Tensor:
    """The sum of a diagonal of the last two axes (..., m, n); small integers add up as int64.

    The result is (...). `offset` counts from the main diagonal, up. Raises ValueError for fewer
    than two axes.
    """
    return total(diagonal(x, offset=offset), axis=-1, dtype=dtype)


# -- norms of vectors ------------------------------------------------------------------------------


def _terms(xp: ModuleType, x: Array, order: float) -> Array:
    """The terms that the norm sums or compares."""
    if order == 0:
        return x != 0
    if order == 2 and x.dtype.kind != "c":
        return x * x
    size = xp.abs(x)
    return size if order in (1, inf, -inf) else size ** order


def _root(xp: ModuleType, sums: Array, order: float) -> Array:
    if order in (0, 1, inf, -inf):
        return sums
    return xp.sqrt(sums) if order == 2 else sums ** (1 / order)


def _result(x: Array) -> np.dtype:
    """The dtype of the norms of x: real."""
    return np.dtype(x.dtype.char.lower()) if x.dtype.kind == "c" else x.dtype


_COMBINE = {inf: np.maximum, -inf: np.minimum}


def _norm_cpu(
    x: Array, *, axis: tuple[int, ...], keepdims: bool, order: float,
    dtype: np.dtype | None = None, out: Array | None = None
) -> Array:
    """Tile by tile: only a tile of powers needs memory beside the output."""
    dtype = _result(x) if dtype is None else dtype
    if x.size <= settings.tile_elements:
        norms = _root(np, _combined(x, axis, keepdims, order), order)
    else:
        combine = _COMBINE.get(order, np.add)
        sums = np.full(kept_shape(x.shape, axis, True), inf if order == -inf else 0.0,
                       computed_in(dtype))
        for key, target, axes in reduction_tiles(x.shape, axis):
            combine(sums[target], _combined(x[key], axes, True, order), out=sums[target])
        norms = _root(np, sums, order).reshape(kept_shape(x.shape, axis, keepdims))
    if out is None:
        return norms.astype(dtype, copy=False)
    out[...] = norms
    return out


def _combined(part: Array, axis: tuple[int, ...], keepdims: bool, order: float) -> Array:
    """The sum, or the extreme, of the terms of a part."""
    if is_half(part.dtype):
        part = part.astype(np.float32)
    reduce: Any = _COMBINE.get(order, np.add).reduce
    terms = _terms(np, part, order)
    return reduce(terms, axis, _result(part), None, bool(keepdims), inf if order == -inf else 0.0)


def _norm_gpu(
    x: Array, *, axis: tuple[int, ...], keepdims: bool, order: float,
    dtype: np.dtype | None = None, out: Array | None = None
) -> Array:
    xp = cupy()
    terms = _terms(xp, x.astype(np.float32) if is_half(x.dtype) else x, order)
    dtype = _result(x) if dtype is None else dtype
    if order in _COMBINE:
        sums = (xp.max if order > 0 else xp.min)(terms, axis=axis, keepdims=keepdims)
    else:
        sums = xp.sum(terms, axis=axis, keepdims=keepdims, dtype=computed_in(dtype))
    value = _root(xp, sums, order).astype(dtype, copy=False)
    return settled(value, out)


def _norm_slope(ns: Namespace, x: Array, norm: Array, axis: tuple[int, ...], order: float) -> Array:
    """The derivative of the norm by each element; 0 where all elements are, as in PyTorch.

    For a complex x the direction in which the norm grows. Quotients are formed before powers, so
    that large and small elements do not overflow.
    """
    if order == 0:
        return ns.zero_gradient(x)
    safe = ns.where(ns.equal(norm, 0), 1.0, norm)
    if order == 2:
        return ns.divide(x, safe)
    size = ns.abs(x)
    if 2 < order < inf:  # smooth at zeros of x
        return ns.multiply(ns.divide(x, safe), ns.power(ns.divide(size, safe), order - 2))
    safe_size = ns.where(ns.equal(size, 0), 1.0, size)
    direction = ns.divide(x, safe_size)
    if order == 1:
        return direction
    if order in _COMBINE:  # ties share equally
        hits = ns.astype(ns.equal(size, norm), dtype=norm.dtype)
        share = ns.divide(hits, ns.sum(hits, axis=axis, keepdims=True))
        return ns.multiply(direction, share)
    return ns.multiply(direction, ns.power(ns.divide(safe_size, safe), order - 1))


norm_share = fused(
    "norm_share", lambda ns, g, x, norm: g * (x / ns.where(ns.equal(norm, 0), 1, norm)),
    samples=[Sample(s, (normal, normal, apart)) for s in (
        ((7,),) * 3, ((3, 1), (3, 5), (3, 1)), ((), (), ()))],
    reference=lambda torch, g, x, norm: g * x / norm,
    doc="g * x / norm, with broadcasting, 0 where the norm is 0: the gradient of the 2-norm.",
)


def _norm_backward(ns: Namespace, step: Step, g: Array) -> None:
    x, norm = step.saved
    axis, order = step.params["axis"], step.params["order"]
    kept = kept_shape(step.shape(0), axis, True)
    norm, g = ns.reshape(norm, shape=kept), ns.reshape(g, shape=kept)
    if order == 2 and x.dtype.kind != "c":
        step.give(0, ns.norm_share(g, x, norm))
        return
    x = widened(ns, x)
    slope = _norm_slope(ns, x, norm, axis, order)
    step.give(0, ns.multiply(slope, g, out=slope if slope.ndim else None))  # no NumPy scalar


def _norm_tangent(
    ns: Namespace, primals: Values, tangents: Values, out: Array, params: Params
) -> Array:
    axis, order = params["axis"], params["order"]
    (x,), (t,) = primals, tangents
    x, t = widened(ns, x), widened(ns, t)
    norm = ns.reshape(widened(ns, out), shape=kept_shape(x.shape, axis, True))
    slope = _norm_slope(ns, x, norm, axis, order)
    if slope.dtype.kind == "c":
        slope = ns.conj(slope)
    moved = ns.sum(ns.multiply(slope, t), axis=axis, keepdims=params["keepdims"])
    return ns.real(moved) if moved.dtype.kind == "c" else in_dtype(ns, moved, out.dtype)


def _torch_norm(
    torch: Any, x: Any, axis: tuple[int, ...], keepdims: bool, order: float
) -> Any:
    return torch.linalg.vector_norm(x, order, dim=axis, keepdim=keepdims)


def _sizes_apart(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Values whose moduli are 0.1 apart, so that none ties for largest or smallest."""
    sizes = 0.1 * (1.0 + rng.permutation(prod(shape)).reshape(shape))
    return sizes * rng.choice([-1.0, 1.0], shape)


_ORDERS = [(2.0, normal), (1.0, apart), (3.5, apart), (0.5, apart), (1.5, apart), (-1.0, apart),
           (inf, _sizes_apart), (-inf, _sizes_apart), (0.0, apart)]

vector_norm_op = op(
    "vector_norm", flops=of_input, autocast="float32",
    cpu=_norm_cpu, gpu=_norm_gpu, complex=True, floating=True, saves={"x": "x out"},
    backward=_norm_backward, tangent=_norm_tangent, batch=unchanged,
    samples=[
        *(Sample(((3, 5),), draw, {"axis": (-1,), "keepdims": False, "order": order})
          for order, draw in _ORDERS),
        Sample(((2, 3, 4),), normal, {"axis": (-3, -1), "keepdims": True, "order": 2.0}),
        Sample(((7,),), normal, {"axis": (-1,), "keepdims": False, "order": 2.0}),
        Sample(((0, 3),), normal, {"axis": (-1,), "keepdims": False, "order": 3.0})],
    reference=_torch_norm, doc="Norms of vectors along axes, of any order; 0 counts the others.",
)


def vector_norm(
    x: Tensor, /, axis: Axis = None, *, keepdims: bool = False, ord: float = 2,
    dim: Axis = None, keepdim: bool | None = None,
) -> Tensor:
    """(sum of |x| ** ord) ** (1 / ord) over `axis` (all of them for None); the result is real.

    `ord` inf is the largest |x|, -inf the smallest, 0 the number of elements that are not 0.
    Where all elements are 0 the gradient is 0, as in PyTorch; equally large ones share it.
    Raises ValueError for the smallest of no elements.
    """
    if dim is not None or keepdim is not None:
        axis, keepdims = torch_words("vector_norm", axis, dim, keepdims, keepdim)
    x, order = asarray(x), float(ord)
    axes = normalize_axis(axis, x.ndim, "vector_norm")
    if order in _COMBINE and x.size == 0 and prod(x.shape[a] for a in axes) == 0:
        if order < 0:
            raise ValueError(f"vector_norm with ord={ord} of a tensor of shape {x.shape}, which "
                             f"has no elements over axis {axis}; wanted at least one")
        order = 1.0  # the largest of no sizes is 0, as their sum
    return rounded_last(vector_norm_op, x, axis=axes, keepdims=keepdims, order=order)


# -- weight normalization --------------------------------------------------------------------------


def _weight_norm_path(
    device: Device, v: Array, g: Array, norm: Array | None = None, *, axis: tuple[int, ...],
    out: Array | None = None,
) -> tuple[Array, Array]:
    """v * (g / norm), and the norm along the axes, which is computed unless it is given."""
    if norm is None:
        norm = raw[device.type].vector_norm(v, axis=axis, keepdims=True, order=2.0)
    if out is None:
        out = device.empty(v.shape, v.dtype, "weight_norm")
    return device.xp.multiply(v, device.xp.divide(g, norm), out=out), norm


def _length(ns: Namespace, v: Any, axis: tuple[int, ...]) -> Any:
    """The norm as a function of v."""
    return ns.sqrt(ns.sum(ns.square(v), axis=axis, keepdims=True))


def _weight_norm_backward(ns: Namespace, step: Step, d: Any) -> None:
    v, g, norm, length = step.saved
    axis = step.params["axis"]
    norm = _length(ns, v, axis) if ns is recorded else length if norm is None else norm
    work = ns.multiply(d, v)  # in the end the gradient of v
    along = ns.divide(ns.sum(work, axis=axis, keepdims=True), norm)
    if step.needs(0):
        work = ns.multiply(v, ns.divide(along, norm), out=work)
        work = ns.subtract(d, work, out=work)
        step.give(0, ns.multiply(work, ns.divide(g, norm), out=work))
    if step.needs(1):
        step.give(1, along)


def _weight_norm_tangent(
    ns: Namespace, primals: Values, tangents: Values, out: Array, params: Params
) -> Any:
    (v, g), (dv, dg) = primals[:2], tangents[:2]
    norm = _length(ns, v, params["axis"])
    unit = v / norm
    terms = [] if dg is None else [dg * unit]
    if dv is not None:
        along = ns.sum(unit * dv, axis=params["axis"], keepdims=True)
        terms.append((dv - unit * along) * (g / norm))
    return terms[0] if len(terms) == 1 else ns.add(*terms)


def _weight_norm_batch(
    ns: Namespace, run: Path, inputs: Inputs, mapped: Mapped, params: Params
) -> Any:
    v, *others = aligned(ns, inputs, mapped)
    return run(spread(ns, v, mapped[0], batch_size(inputs, mapped)), *others, **params)


weight_norm_op = op(
    "weight_norm", **placed(_weight_norm_path), extras="length", constants="norm",
    saves={"v": "v g norm length", "g": "v norm length"}, backward=_weight_norm_backward,
    tangent=_weight_norm_tangent, batch=_weight_norm_batch,
    samples=[Sample(((3, 5), (3, 1), None), params={"axis": (-1,)}),
             Sample(((2, 3, 4), (1, 3, 1), None), params={"axis": (-3, -1)}),
             Sample(((4, 2), (), None), params={"axis": (-2, -1)})],
    reference=lambda torch, v, g, norm, axis: v * (g / torch.linalg.vector_norm(
        v, dim=axis, keepdim=True)),
    doc="v * g / norm, the norm of v along axes, which may be given. Parameter: axis.",
)

# -- norms of matrices -----------------------------------------------------------------------------


def matrix_norm(
    x: Tensor, /, *, keepdims: bool = False, ord: float | str | None = "fro", keepdim: bool = False
) -> Tensor:
    """Norms (...) of matrices (..., m, n).

    `ord` is "fro" (or None: the root of the sum of squares), "nuc" (the sum of singular values), 2
    or -2 (the largest or smallest of them), 1 or -1 (the largest or smallest sum of |x| down a
    column), inf or -inf (along a row). The largest of none is 0. Raises ValueError for another
    `ord`, and for the smallest of none.
    """
    keepdims = keepdims or keepdim  # PyTorch's name
    x = matrices(x, "matrix_norm")
    if ord in ("fro", None):
        return vector_norm(x, axis=(-2, -1), keepdims=keepdims)
    (x,) = autocast("float32", x)
    work = np.dtype(np.float32) if is_half(x.dtype) else None  # sums are rounded last
    if ord in ("nuc", 2, -2):
        values = svdvals(x if work is None else x.astype(work))
        values = total(values, axis=-1) if ord == "nuc" else _extreme(values, ord)
    elif ord in (1, -1):
        values = _extreme(total(modulus(x), axis=-2, dtype=work), ord)
    elif ord in (inf, -inf):
        values = _extreme(total(modulus(x), axis=-1, dtype=work), ord)
    else:
        raise ValueError(f"matrix_norm was given ord={ord!r}; wanted 'fro', 'nuc', 1, -1, 2, -2, "
                         "inf or -inf")
    if work is not None:
        values = values.astype(x.dtype)
    return expand_dims(expand_dims(values, -1), -1) if keepdims else values


def _extreme(values: Tensor, ord: Any) -> Tensor:
    """The largest or smallest of values that are not negative."""
    if ord > 0 and values.shape[-1] == 0:
        return total(values, axis=-1)
    return (largest if ord > 0 else smallest)(values, axis=-1)


def norm(
    x: Tensor, /, ord: float | str | None = None, axis: Axis = None, keepdims: bool = False, *,
    dim: Axis = None, keepdim: bool | None = None,
) -> Tensor:
    """`vector_norm` or `matrix_norm`, as NumPy's and PyTorch's `linalg.norm` choose.

    Args:
        x: of any shape.
        ord: the order, which is 2 for vectors and "fro" for matrices by default.
        axis: one axis has vectors, two have matrices (rows, columns). Without it all of x is one
            vector if there is no `ord`; else x is a vector or a matrix.
        keepdims: whether the axes stay, of size 1.
        dim, keepdim: PyTorch's names of axis and keepdims.

    Raises ValueError for other numbers of axes, and for an order that the norm does not have.
    """
    axis, keepdims = torch_words("norm", axis, dim, keepdims, keepdim)
    x = asarray(x)
    if axis is None and (ord is None or x.ndim == 1):
        axes = tuple(range(x.ndim))
    else:
        axes = axis_indices(range(x.ndim) if axis is None else axis, x.ndim, "norm")
        if len(axes) not in (1, 2):
            raise ValueError(f"norm was given axis={axis} and ord={ord!r} for shape {x.shape}; "
                             "wanted one axis, of vectors, or two, of matrices")
    matrix = len(axes) == 2 and ord is not None
    if isinstance(ord, str) and not matrix:
        raise ValueError(f"norm was given ord={ord!r} for vectors; wanted a number")
    if not matrix or ord == "fro":
        return vector_norm(x, axis=axes, keepdims=keepdims,
                           ord=2 if ord is None or isinstance(ord, str) else ord)
    found = matrix_norm(moveaxis(x, axes, (-2, -1)), ord=ord)
    return reshape(found, kept_shape(x.shape, axes, True)) if keepdims else found

"""Linear systems: solve, inverse, determinant, pseudo-inverse, least squares, powers, rank.

Gradients are for real matrices and follow PyTorch's formulas; complex matrices have values only.
Triangular systems of the backward rules use the general solver, too, as NumPy has no other.
"""

from __future__ import annotations

import operator
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gtensor.creation.new_tensors import asarray, eye
from gtensor.engine.handle.namespaces import recorded
from gtensor.engine.handle.tensor import Tensor
from gtensor.engine.tape.op import op
from gtensor.engine.tape.samples import Sample
from gtensor.ops.arrange.shape import expand_dims, matrix_transpose, reshape, squeeze
from gtensor.ops.arrange.triangles import tril, triu
from gtensor.ops.define.arguments import takes_arrays
from gtensor.ops.define.batching import (
    Inputs,
    Mapped,
    batch_size,
    behind,
    broadcasting,
    in_dtype,
    spread,
    unchanged,
)
from gtensor.ops.elementwise.selection import where
from gtensor.ops.linalg.decompositions import leaning
from gtensor.ops.linalg.gemm import matmul
from gtensor.ops.linalg.matrix_products import (
    adjoint,
    check_leading,
    gpu_factors,
    is_half,
    matrices,
    matrix_paths,
    singular_parts,
    swapped,
)
from gtensor.ops.linalg.multi_output import Shape, pack, packed_in, parts_of, real_part
from gtensor.ops.linalg.norms import matrix_norm
from gtensor.ops.linalg.singular_values import svdvals
from gtensor.ops.reduce.reductions import max as largest
from gtensor.ops.reduce.reductions import sum as total
from gtensor.ops.reduce.reductions import widened

if TYPE_CHECKING:
    from types import ModuleType

    from gtensor.backend.typing import Array, Params, Path
    from gtensor.engine.handle.namespaces import Namespace
    from gtensor.engine.handle.tensor import Operand
    from gtensor.engine.walk.typing import Step, Values

__all__: list[str] = []  # the functions are public in gtensor.linalg

_SQUARES = [Sample((s,), leaning) for s in ((1, 1, 1), (1, 3, 3), (2, 4, 4), (0, 2, 2))]


def _scalars(ns: Namespace, x: Array) -> Array:
    """One number per matrix, as a matrix of one element, to multiply matrices by."""
    return ns.reshape(x, shape=(*x.shape, 1, 1))


def _inner(ns: Namespace, a: Array, b: Array) -> Array:
    """The sum of a * b over the last two axes."""
    return ns.sum(ns.multiply(a, b), axis=(-2, -1))


# -- solve and inverse -----------------------------------------------------------------------------


def _solve_path(xp: ModuleType, x1: Array, x2: Array) -> Array:
    if isinstance(x1, np.ndarray):
        return xp.linalg.solve(x1, x2)
    lead = np.broadcast_shapes(x1.shape[:-2], x2.shape[:-2])
    return gpu_factors().solve(*(xp.broadcast_to(x, lead + x.shape[-2:]) for x in (x1, x2)))


def _solve_backward(ns: Namespace, step: Step, g: Array) -> None:
    a, y = step.saved
    right = ns.solve(swapped(ns, a), g)
    if step.needs(0):
        step.give(0, ns.negative(ns.matmul(right, swapped(ns, y))))
    if step.needs(1):
        step.give(1, right)


def _solve_tangent(
    ns: Namespace, primals: Values, tangents: Values, out: Array, params: Params
) -> Array:
    da, db = tangents
    moved = ns.negative(ns.matmul(da, out)) if da is not None else None
    if db is not None:
        moved = db if moved is None else ns.add(moved, db)
        moved = ns.broadcast_to(moved, shape=out.shape)
    return ns.solve(primals[0], moved)


def _solve_batch(
    ns: Namespace, run: Path, inputs: Inputs, mapped: Mapped, params: Params
) -> Any:
    """A matrix that all examples share is factorized once, for the columns of all of them."""
    a, b = inputs
    if mapped[0] or a.ndim != 2 or b.ndim < 3:
        return broadcasting(ns, run, inputs, mapped, params)
    *lead, rows, columns = b.shape
    order = (-2, *range(-b.ndim, -2), -1)
    together = ns.reshape(ns.permute_dims(b, axes=order), shape=(rows, prod(lead) * columns))
    y = ns.reshape(run(a, together), shape=(rows, *lead, columns))
    return ns.permute_dims(y, axes=(*range(1 - b.ndim, -1), -b.ndim, -1))


def near_identity(rng: np.random.Generator, shape: Shape) -> np.ndarray:
    """Well-conditioned square matrices."""
    return 0.3 * rng.standard_normal(shape) + 2.0 * np.eye(shape[-1])


solve_op = op(
    "solve", **matrix_paths("solve", _solve_path), floating=True,
    saves={"x1": "x1 out", "x2": "x1"}, backward=_solve_backward, tangent=_solve_tangent,
    batch=_solve_batch,
    samples=[Sample(pair, (near_identity, leaning)) for pair in (
        ((1, 3, 3), (1, 3, 2)), ((2, 1, 3, 3), (2, 3, 1)), ((1, 3, 3), (2, 3, 3)),
        ((0, 2, 2), (0, 2, 1)), ((2, 0, 0), (2, 0, 3)))],
    reference=lambda torch, a, b: torch.linalg.solve(a, b),
    doc="The x with x1 x = x2, for matrices x1 and x2.",
)


def solve(x1: Tensor, x2: Tensor, /) -> Tensor:
    """The x with x1 x = x2, for square matrices x1 (..., n, n) that have an inverse.

    x2 is one vector (n,), with a result (..., n), or matrices (..., n, k); batches broadcast.
    Raises LinAlgError (a ValueError) unless x1 is square and, on the CPU, for a singular matrix
    (on a GPU the check would wait, and the result is not finite).
    """
    x1, x2 = matrices(x1, "solve", square=True), asarray(x2)
    vector = x2.ndim == 1
    if not x2.ndim or x2.shape[0 if vector else -2] != x1.shape[-1]:
        raise ValueError(f"solve of shapes {x1.shape} and {x2.shape}; wanted a vector of "
                         f"{x1.shape[-1]} elements or matrices of as many rows")
    if not vector:
        check_leading("solve", x1.shape, x2.shape)
        return solve_op(x1, x2)
    answer = solve_op(x1, reshape(x2, (*x2.shape, 1)))
    return reshape(answer, answer.shape[:-1])


def solve_triangular(
    x1: Tensor, x2: Tensor, /, *, upper: bool = True, left: bool = True,
    unitriangular: bool = False,
) -> Tensor:
    """`solve` of one triangle of x1 (..., n, n); the elements outside of it are not read.

    Args:
        x1: the matrices; their gradient is 0 outside of the triangle.
        x2: as for `solve`; with left=False matrices (..., k, n).
        upper: which triangle.
        left: whether x1 x = x2 is solved, else x x1 = x2.
        unitriangular: take the diagonal for ones, without reading it.

    It costs as much as `solve`. Raises LinAlgError as that does.
    """
    x1, x2 = matrices(x1, "solve_triangular", square=True), asarray(x2)
    check_leading("solve_triangular", x1.shape, x2.shape)
    triangle = (triu if upper else tril)(x1, k=int(unitriangular) * (1 if upper else -1))
    if unitriangular:
        triangle = triangle + eye(x1.shape[-1], dtype=x1.dtype, device=x1.device)
    if left:
        return solve(triangle, x2)
    return matrix_transpose(solve(matrix_transpose(triangle), matrix_transpose(x2)))


def cholesky_solve(x1: Tensor, x2: Tensor, /, upper: bool = False) -> Tensor:
    """The x with a x = x1, where x2 is the Cholesky factor of a. PyTorch's order of arguments.

    Args:
        x1: (..., n, k) matrices; a vector is one column: x1[:, None].
        x2: (..., n, n), lower triangular with a = x2 x2^H, or upper with a = x2^H x2; the other
            triangle is not read.
        upper: whether x2 is upper triangular.

    Batches broadcast. Raises ValueError for shapes that do not fit, LinAlgError (a ValueError) as
    `solve` does.

        x = gt.linalg.cholesky_solve(b, gt.linalg.cholesky(a))
    """
    x1, x2 = matrices(x1, "cholesky_solve"), matrices(x2, "cholesky_solve", square=True)
    if x1.shape[-2] != x2.shape[-1]:
        raise ValueError(f"cholesky_solve of shapes {x1.shape} and {x2.shape}; wanted matrices of "
                         f"{x2.shape[-1]} rows: cholesky_solve(b, factor)")
    lower = adjoint(recorded, x2) if upper else x2
    first = solve_triangular(lower, x1, upper=False)
    return solve_triangular(adjoint(recorded, lower), first)


def _inv_backward(ns: Namespace, step: Step, g: Array) -> None:
    flipped = swapped(ns, step.saved[0])
    step.give(0, ns.negative(ns.matmul(ns.matmul(flipped, g), flipped)))


def _inv_tangent(
    ns: Namespace, primals: Values, tangents: Values, out: Array, params: Params
) -> Array:
    return ns.negative(ns.matmul(ns.matmul(out, tangents[0]), out))


def _inv_path(xp: ModuleType, x: Array) -> Array:
    return xp.linalg.inv(x) if isinstance(x, np.ndarray) else gpu_factors().inverse(x)


inv_op = op(
    "inv", **matrix_paths("inv", _inv_path), floating=True,
    saves={"x": "out"}, backward=_inv_backward, tangent=_inv_tangent, batch=unchanged,
    samples=_SQUARES,
    reference=lambda torch, x: torch.linalg.inv(x), doc="The inverse of square matrices.",
)


def _inverse_or_nan_path(xp: ModuleType, x: Array) -> Array:
    """NumPy refuses a batch for one singular matrix; then each has its own turn."""
    try:
        return _inv_path(xp, x)
    except np.linalg.LinAlgError:
        found = np.full_like(x, np.nan)
        if x.ndim > 2:
            for part, inverse in zip(x, found, strict=True):
                inverse[...] = _inverse_or_nan_path(xp, part)
        return found


inverse_or_nan = op(
    "inverse_or_nan", **matrix_paths("inverse_or_nan", _inverse_or_nan_path), floating=True,
    saves={"x": "out"}, backward=_inv_backward, tangent=_inv_tangent, batch=unchanged,
    samples=_SQUARES, reference=lambda torch, x: torch.linalg.inv(x),
    doc="The inverse of square matrices, NaN for one with a pivot of 0.",
)


def inv(x: Tensor, /) -> Tensor:
    """The inverse of square matrices (..., n, n). Raises as `solve` does."""
    return inv_op(matrices(x, "inv", square=True))


# -- determinants ----------------------------------------------------------------------------------


def _scaled(xp: ModuleType, x: Array) -> tuple[Array, Array, Array]:
    """x with its rows and columns scaled to about 1 by powers of two, which are returned, too."""
    rows = xp.frexp(xp.abs(x).max(axis=-1, keepdims=True))[1]
    x = xp.ldexp(x, -rows)
    columns = xp.frexp(xp.abs(x).max(axis=-2, keepdims=True))[1]
    return xp.ldexp(x, -columns), rows, columns


def _unscaled(
    xp: ModuleType, inner: Array, power: Array, rows: Array, columns: Array
) -> Array:
    """|R S| R^-1 inner S^-1 of the scales of rows and columns, times two to the power."""
    power = (power + rows.sum(axis=(-2, -1)) + columns.sum(axis=(-2, -1))).astype(np.int32)
    return xp.ldexp(inner, power[..., None, None] - rows - columns, out=inner)


def _cofactor_path(xp: ModuleType, x: Array) -> Array:
    """From the singular values: products of all but one of them need no division.

    Nothing on the way overflows or vanishes unless its result does: rows and columns are scaled by
    powers of two first, C(R x S) = |R S| R^-1 C(x) S^-1, and products are kept as mantissas and
    exponents.
    """
    if not x.size:
        return xp.empty(x.shape, x.dtype)
    x, rows, columns = _scaled(xp, x)
    u, s, vh = singular_parts(xp, x)
    part, power = _others(xp, s)
    top = power.max(axis=-1)
    sign = xp.linalg.det(u) * xp.linalg.det(vh)
    part = xp.ldexp(part, power - top[..., None]) * sign[..., None]
    inner = xp.matmul(u * part[..., None, :], vh, out=x)
    return _unscaled(xp, inner, top, rows, columns)


def _mantissas(xp: ModuleType, s: Array) -> tuple[Array, Array]:
    """Mantissas around 1, so that products of hundreds stay in range, and exponents."""
    part, power = xp.frexp(s)
    small = part < 0.5 ** 0.5
    return xp.where(small, 2 * part, part), power - small


def _others(xp: ModuleType, s: Array) -> tuple[Array, Array]:
    """The product of all the other s along the last axis, as mantissas and exponents."""
    part, power = _mantissas(xp, s)
    all_but_one = xp.where(xp.eye(s.shape[-1], dtype=bool), 1.0, part[..., None, :])
    product, more = xp.frexp(all_but_one.prod(axis=-1, dtype=np.float64))
    return product.astype(s.dtype), more + power.sum(axis=-1, keepdims=True) - power


def _others_of_two(xp: ModuleType, s: Array) -> tuple[Array, Array]:
    """[i, j]: the product of all s but s_i and s_j, 0 for i = j, as mantissas and exponents.

    Each is a product of three running ones: of the s before both, between them, and behind both.
    """
    part, power = _mantissas(xp, s)
    n = s.shape[-1]
    behind = xp.tri(n, k=-1, dtype=bool).T  # [i, j]: j > i
    part = part.astype(np.float64)
    one = xp.ones_like(part[..., :1])
    before = xp.concatenate([one, xp.cumprod(part[..., :-1], axis=-1)], axis=-1)
    after = xp.concatenate([one, xp.cumprod(part[..., :0:-1], axis=-1)], axis=-1)[..., ::-1]
    up_to = xp.cumprod(xp.where(behind, part[..., None, :], 1.0), axis=-1)
    upper = xp.zeros_like(up_to)
    upper[..., 1:] = up_to[..., :-1]
    upper *= before[..., :, None]
    upper *= after[..., None, :]
    upper *= behind
    product, more = xp.frexp(xp.add(upper, xp.swapaxes(upper, -1, -2), out=up_to))
    more += (power.sum(axis=-1, keepdims=True) - power).astype(more.dtype)[..., :, None]
    more -= power.astype(more.dtype)[..., None, :]
    return product.astype(s.dtype), more


def _cofactor_change_path(xp: ModuleType, x: Array, t: Array) -> Array:
    """Of cofactors in the direction t, by products of all singular values but two.

    Around a diagonal S the cofactors change by -A_ji p_ij off the diagonal and by the sums of
    p_ik A_kk on it. With x = U S V^T, A is U^T t V.
    """
    shape = np.broadcast_shapes(x.shape, t.shape)
    if not prod(shape):
        return xp.empty(shape, np.result_type(x, t))
    x, rows, columns = _scaled(xp, x)
    t = xp.ldexp(t, -rows - columns)
    size = xp.frexp(xp.abs(t).max(axis=(-2, -1), keepdims=True))[1]
    t = xp.ldexp(t, -size)
    u, s, vh = singular_parts(xp, x)
    v = xp.swapaxes(vh, -1, -2)
    part, power = _others_of_two(xp, s)
    top = power.max(axis=(-2, -1), keepdims=True)
    sign = xp.linalg.det(u) * xp.linalg.det(vh)
    part = xp.ldexp(part, xp.subtract(power, top, out=power), out=part)
    part *= sign[..., None, None]
    spare = x if x.shape == shape else None  # directions of one matrix share what is above
    inner = xp.matmul(xp.matmul(xp.swapaxes(u, -1, -2), t, out=spare), v, out=t)
    along = xp.matmul(part, xp.diagonal(inner, 0, -2, -1)[..., None])
    moved = xp.multiply(part, xp.swapaxes(inner, -1, -2), out=None if spare is None else part)
    moved = xp.subtract(xp.eye(x.shape[-1], dtype=x.dtype) * along, moved, out=moved)
    inner = xp.matmul(xp.matmul(u, moved, out=spare), vh, out=t)
    return _unscaled(xp, inner, (top + size)[..., 0, 0], rows, columns)


def _third_change(ns: Namespace, x: Array, t: Array, g: Array) -> Array:
    """The gradient of <g, cofactor_change(x, t)> with respect to x, which has an inverse.

    For a singular x it is NaN, or wrong where rounding leaves a tiny pivot.
    """
    dtype = x.dtype
    x, t, g = (widened(ns, a) for a in (x, t, g))  # terms of half types would cancel
    f = swapped(ns, ns.inverse_or_nan(x))
    turned_t, turned_g = (ns.matmul(f, ns.matmul(swapped(ns, a), f)) for a in (t, g))
    by_t, by_g = _inner(ns, f, t), _inner(ns, f, g)
    square = ns.subtract(ns.multiply(by_t, by_g), _inner(ns, turned_t, g))
    both = ns.add(ns.matmul(turned_g, ns.matmul(swapped(ns, t), f)),
                  ns.matmul(turned_t, ns.matmul(swapped(ns, g), f)))
    both = ns.add(both, ns.multiply(f, _scalars(ns, square)))
    both = ns.subtract(both, ns.multiply(turned_t, _scalars(ns, by_g)))
    both = ns.subtract(both, ns.multiply(turned_g, _scalars(ns, by_t)))
    return in_dtype(ns, ns.multiply(both, _scalars(ns, ns.det(x))), dtype)


def _cofactor_change_backward(ns: Namespace, step: Step, g: Array) -> None:
    """Linear in t and its own adjoint, as second derivatives are symmetric."""
    x, t = step.saved
    if step.needs(0):
        step.give(0, _third_change(ns, x, t, g))
    if step.needs(1):
        step.give(1, ns.cofactor_change(x, g))


def _cofactor_change_tangent(
    ns: Namespace, primals: Values, tangents: Values, out: Array, params: Params
) -> Array:
    (x, t), (dx, dt) = primals, tangents
    if dx is None:
        return ns.cofactor_change(x, dt)
    third = _third_change(ns, x, t, dx)
    return third if dt is None else ns.add(third, ns.cofactor_change(x, dt))


cofactor_change = op(
    "cofactor_change", **matrix_paths("cofactor_change", _cofactor_change_path), floating=True,
    saves={"x": "x t", "t": "x"}, inputs="x t", backward=_cofactor_change_backward,
    tangent=_cofactor_change_tangent, batch=broadcasting,
    samples=[Sample((s, s), (leaning, leaning)) for s in (
        (1, 1, 1), (1, 3, 3), (2, 4, 4), (0, 2, 2))],
    reference=lambda torch, x, t: torch.linalg.det(x)[..., None, None] * (
        (torch.linalg.inv(x) @ t).diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None]
        * torch.linalg.inv(x).mT - (torch.linalg.inv(x) @ t @ torch.linalg.inv(x)).mT),
    doc="How the matrix of cofactors changes in the direction t: the second derivative of det, "
        "also where x is singular.",
)

cofactor = op(
    "cofactor", **matrix_paths("cofactor", _cofactor_path), floating=True,
    saves={"x": "x"}, batch=unchanged,
    backward=lambda ns, step, g: step.give(0, ns.cofactor_change(step.saved[0], g)),
    tangent=lambda ns, primals, tangents, out, params: ns.cofactor_change(
        primals[0], tangents[0]),
    samples=_SQUARES,
    reference=lambda torch, x: torch.linalg.det(x)[..., None, None] * torch.linalg.inv(x).mT,
    doc="The matrix of cofactors: the gradient of det(x), also where x is singular.",
)


def _det_backward(ns: Namespace, step: Step, g: Array) -> None:
    step.give(0, ns.multiply(ns.cofactor(step.saved[0]), _scalars(ns, g)))


def _det_tangent(
    ns: Namespace, primals: Values, tangents: Values, out: Array, params: Params
) -> Array:
    return _inner(ns, ns.cofactor(primals[0]), tangents[0])


det_op = op(
    "det", **matrix_paths("det", lambda xp, x: xp.linalg.det(x)), floating=True,
    saves={"x": "x"}, backward=_det_backward, tangent=_det_tangent, batch=unchanged,
    samples=_SQUARES,
    reference=lambda torch, x: torch.linalg.det(x), doc="Determinants of square matrices.",
)


def det(x: Tensor, /) -> Tensor:
    """Determinants (...) of square matrices (..., n, n).

    The gradient is the matrix of cofactors, from the singular values. It and the second derivative
    are right for singular matrices, too. The third needs an inverse: of a singular matrix it is
    NaN, or huge and wrong where rounding leaves a tiny pivot instead of 0.
    """
    return det_op(matrices(x, "det", square=True))


class SlogdetResult(NamedTuple):
    """det(x) = sign * exp(logabsdet)."""

    sign: Tensor
    logabsdet: Tensor


_SLOGDET_ITEMS: tuple[Shape, Shape] = ((), ())


def _slogdet_path(xp: ModuleType, x: Array) -> Array:
    sign, logabs = (xp.asarray(part) for part in xp.linalg.slogdet(x))
    return pack(xp, (sign, ()), (logabs.astype(sign.dtype), ()))


def _slogdet_backward(ns: Namespace, step: Step, g: Array) -> None:
    _, glog = parts_of(ns, g, *_SLOGDET_ITEMS)
    step.give(0, ns.multiply(swapped(ns, ns.inverse_or_nan(step.saved[0])), _scalars(ns, glog)))


def _slogdet_tangent(
    ns: Namespace, primals: Values, tangents: Values, out: Array, params: Params
) -> Array:
    moved = _inner(ns, swapped(ns, ns.inverse_or_nan(primals[0])), tangents[0])
    return packed_in(ns, (ns.multiply(moved, 0), ()), (moved, ()))


def _slogdet_reference(torch: Any, x: Any) -> Any:
    return torch.stack(tuple(torch.linalg.slogdet(x)), dim=-1)


slogdet_op = op(
    "slogdet", **matrix_paths("slogdet", _slogdet_path), floating=True,
    saves={"x": "x"}, backward=_slogdet_backward, tangent=_slogdet_tangent, batch=unchanged,
    samples=_SQUARES,
    reference=_slogdet_reference,
    doc="Sign and logarithm of the absolute value of determinants, end to end.",
)


def slogdet(x: Tensor, /) -> SlogdetResult:
    """(sign, log of the absolute value) of the determinants of square matrices (..., n, n).

    The sign is constant almost everywhere. Of a matrix with a pivot of 0 it is 0, the logarithm
    -infinity, and the gradient NaN, which leaves those of other matrices of a batch as they are.
    Where rounding leaves a tiny pivot of a singular matrix, all are finite: the logarithm is far
    below 0 and the gradient huge.
    """
    packed = slogdet_op(matrices(x, "slogdet", square=True))
    sign, logabs = parts_of(recorded, packed, *_SLOGDET_ITEMS)
    return SlogdetResult(sign, real_part(logabs))


# -- pseudo-inverse, rank, powers ------------------------------------------------------------------


def _computed_in(x: Tensor) -> np.dtype:
    """The real dtype in which the singular values of x are computed."""
    if x.dtype.kind not in "fc" or is_half(x.dtype):
        return np.dtype(np.float32)
    return np.finfo(x.dtype).dtype


def _tolerance(x: Tensor, rtol: Operand | None) -> Tensor:
    """`rtol` on x's device, a number in float64; by default max(m, n) * eps."""
    dtype = _computed_in(x)
    if rtol is None:
        rtol = max(x.shape[-2:]) * float(np.finfo(dtype).eps)
    number = isinstance(rtol, (int, float))
    return asarray(rtol, dtype=np.float64 if number else dtype, device=x.device).detach()


def _pinv_path(xp: ModuleType, x: Array, *, rtol: Array) -> Array:
    u, s, vh = singular_parts(xp, x, full_matrices=False)
    limit = rtol[..., None] * s[..., :1]
    inverse = xp.where(s > limit, 1 / xp.where(s > limit, s, 1), 0).astype(s.dtype)
    flipped_u, v = (xp.conj(xp.swapaxes(part, -1, -2)) for part in (u, vh))
    return (v * inverse[..., None, :]) @ flipped_u


def _given_rtol(path: Path) -> Path:
    """The path with rtol as an input, which is no matrix."""
    return lambda x, rtol, *, out=None: path(x, rtol=rtol, out=out)


def _pinv_change(ns: Namespace, x: Array, y: Array, dx: Array) -> Array:
    """The change of y = pinv(x) with x, at constant rank (Golub and Pereyra, 1973)."""
    flipped, dflipped = swapped(ns, y), swapped(ns, dx)
    ydx = ns.matmul(y, dx)
    first = ns.negative(ns.matmul(ydx, y))
    outside_columns = ns.subtract(dflipped, ns.matmul(ns.matmul(dflipped, x), y))
    outside_rows = ns.subtract(dflipped, ns.matmul(y, ns.matmul(x, dflipped)))
    found = ns.add(first, ns.matmul(ns.matmul(y, flipped), outside_columns))
    return ns.add(found, ns.matmul(ns.matmul(outside_rows, flipped), y))


def _pinv_backward(ns: Namespace, step: Step, g: Array) -> None:
    """The adjoint of `_pinv_change` is that change itself, for the transposed matrices."""
    x, y = step.saved
    step.give(0, _pinv_change(ns, swapped(ns, x), swapped(ns, y), g))


def _pinv_tangent(
    ns: Namespace, primals: Values, tangents: Values, out: Array, params: Params
) -> Array:
    return _pinv_change(ns, primals[0], out, tangents[0])


def _pinv_batch(
    ns: Namespace, run: Path, inputs: Inputs, mapped: Mapped, params: Params
) -> Any:
    (x, rtol), size = inputs, batch_size(inputs, mapped)
    lead = max(x.ndim - mapped[0] - 2, rtol.ndim - mapped[1])  # rtol may have axes of other vmaps
    x = spread(ns, behind(ns, x, mapped[0], lead + 2), mapped[0], size)
    return run(x, behind(ns, rtol, mapped[1], lead), **params)


def _limits(rng: np.random.Generator, shape: Shape) -> np.ndarray:
    """Below what singular values of `leaning` matrices are to their largest."""
    return np.full(shape, 1e-6)


_pinv_paths: Any = matrix_paths("pinv", _pinv_path)

pinv_op = op(
    "pinv", cpu=_given_rtol(_pinv_paths["cpu"]), gpu=_given_rtol(_pinv_paths["gpu"]),
    floating=True, constants="rtol",
    saves={"x": "x out"}, backward=_pinv_backward, tangent=_pinv_tangent, batch=_pinv_batch,
    samples=[Sample((s, r), (leaning, _limits)) for s, r in (
        ((1, 3, 3), ()), ((2, 4, 2), ()), ((2, 2, 3), (2,)), ((0, 3, 2), ()), ((2, 0, 3), ()))],
    reference=lambda torch, x, rtol: torch.linalg.pinv(x, rtol=rtol),
    doc="The Moore-Penrose pseudo-inverse of matrices.",
)


def pinv(x: Tensor, /, *, rtol: Operand | None = None) -> Tensor:
    """The Moore-Penrose pseudo-inverse (..., n, m) of matrices (..., m, n).

    Singular values up to `rtol` (a number, or one per matrix: (...)) times the largest count as
    zero; by default max(m, n) times the dtype's epsilon. The gradient is that at constant rank.
    """
    x = matrices(x, "pinv")
    return pinv_op(x, _tolerance(x, rtol))


def matrix_rank(x: Tensor, /, *, rtol: Operand | None = None) -> Tensor:
    """How many singular values of matrices (..., m, n) exceed `rtol` times the largest; int64.

    `rtol` is a number, or one per matrix: (...); by default max(m, n) times the dtype's epsilon.
    """
    x = matrices(x, "matrix_rank").detach()
    s = svdvals(x)
    limit = _tolerance(x, rtol).astype(s.dtype)
    if not s.shape[-1]:
        return total(s, axis=-1).astype(np.int64)
    bound = largest(s, axis=-1, keepdims=True) * reshape(limit, (*limit.shape, 1))
    return total(s > bound, axis=-1, dtype=np.int64)


class LstsqResult(NamedTuple):
    """What `lstsq` returns."""

    solution: Tensor
    residuals: Tensor
    rank: Tensor
    singular_values: Tensor


def lstsq(x1: Tensor, x2: Tensor, /, rcond: Operand | None = None) -> LstsqResult:
    """Least squares: the x of smallest norm among those that make |x1 x - x2| smallest.

    Args:
        x1: matrices (..., m, n).
        x2: one vector (m,), or matrices (..., m, k); batches broadcast.
        rcond: singular values up to rcond times the largest count as zero; by default
            max(m, n) times the dtype's epsilon.

    Returns the solution (..., n) or (..., n, k), the sums of squares of what is left of each column
    (always, where NumPy and PyTorch leave them out for some shapes and ranks), the rank and the
    singular values of x1. The gradient is that of `pinv`. Raises ValueError for shapes that do not
    fit.
    """
    x1, x2 = matrices(x1, "lstsq"), asarray(x2)
    vector = x2.ndim == 1
    if not x2.ndim or x2.shape[0 if vector else -2] != x1.shape[-2]:
        raise ValueError(f"lstsq of shapes {x1.shape} and {x2.shape}; wanted a vector of "
                         f"{x1.shape[-2]} elements or matrices of as many rows")
    if not vector and x2.shape == x1.shape[:-1]:
        raise ValueError(f"lstsq of shapes {x1.shape} and {x2.shape}; wanted x2[..., None] for "
                         "vectors of a batch, as PyTorch reads it, or x2[None] for matrices")
    columns = expand_dims(x2, -1) if vector else x2
    solution = matmul(pinv(x1, rtol=rcond), columns)
    left = matmul(x1, solution) - columns
    residuals = total((left * left.conj()).real if left.dtype.kind == "c" else left * left, axis=-2)
    if vector:
        solution, residuals = squeeze(solution, -1), squeeze(residuals, -1)
    return LstsqResult(solution, residuals, matrix_rank(x1, rtol=rcond), svdvals(x1))


@takes_arrays
def cond(x: Tensor, /, p: float | str | None = None) -> Tensor:
    """Condition numbers (...) of matrices (..., m, n): the norm times that of the inverse.

    By default (and for p=2) the largest singular value over the smallest, for p=-2 the inverse of
    that; other orders are those of `matrix_norm`, of square matrices. Raises LinAlgError for these
    on the CPU if a matrix has no inverse, ValueError for matrices without elements.
    """
    x = matrices(x, "cond", square=p not in (None, 2, -2))
    if 0 in x.shape[-2:]:
        raise ValueError(f"cond of a tensor of shape {x.shape}; wanted matrices with elements")
    if p not in (None, 2, -2):
        return matrix_norm(x, ord=p) * matrix_norm(inv(x), ord=p)
    s = svdvals(x)
    return s[..., -1] / s[..., 0] if p == -2 else s[..., 0] / s[..., -1]


def matrix_power(x: Tensor, n: int, /) -> Tensor:
    """Square matrices to the power n, by repeated squaring; 0 is the identity, n < 0 inverts.

    x and the result are (..., n, n). Raises LinAlgError for matrices that are not square, or on the
    CPU have no inverse where one is needed, TypeError for a power that is no integer.
    """
    x = matrices(x, "matrix_power", square=True)
    n = operator.index(n)
    if n == 0:  # selected, so that the gradient is zero and not missing
        identity = eye(x.shape[-1], dtype=x.dtype, device=x.device)
        return where(asarray(False, device=x.device), x, identity)
    square, left = (inv(x) if n < 0 else x), abs(n)
    product: Tensor | None = None
    while True:
        if left & 1:
            product = square if product is None else matmul(product, square)
        left >>= 1
        if not left:
            assert product is not None
            return product.clone() if product is x else product
        square = matmul(square, square)

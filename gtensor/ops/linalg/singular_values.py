"""Singular values and vectors: one op with its parts packed, see `ops/linalg/multi_output.py`.

The gradient is for real matrices and follows PyTorch's formula; complex ones have values only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gtensor.engine.handle.namespaces import recorded
from gtensor.engine.handle.tensor import Tensor
from gtensor.engine.tape.op import op
from gtensor.engine.tape.samples import Sample
from gtensor.ops.define.batching import unchanged
from gtensor.ops.linalg.decompositions import leaning, settled_signs
from gtensor.ops.linalg.matrix_products import (
    gpu_factors,
    matrices,
    matrix_paths,
    singular_parts,
    swapped,
)
from gtensor.ops.linalg.multi_output import (
    Shape,
    column,
    pack,
    packed_in,
    parts_of,
    ratio,
    real_part,
    row,
    skew,
)

if TYPE_CHECKING:
    from types import ModuleType

    from gtensor.backend.typing import Array, Params
    from gtensor.engine.handle.namespaces import Namespace
    from gtensor.engine.walk.typing import Step, Values

__all__: list[str] = []  # the functions are public in gtensor.linalg


class SVDResult(NamedTuple):
    """x = U diag(S) Vh, with S descending."""

    U: Tensor
    S: Tensor
    Vh: Tensor


def _svd_items(rows: int, columns: int, full: bool) -> tuple[Shape, Shape, Shape]:
    k = min(rows, columns)
    return (rows, rows if full else k), (k,), (columns if full else k, columns)


def _svd_path(xp: ModuleType, x: Array, *, full: bool) -> Array:
    items = _svd_items(x.shape[-2], x.shape[-1], full)
    u, s, vh = singular_parts(xp, x, full_matrices=full)
    k = s.shape[-1]
    signs = settled_signs(xp, u[..., :k])
    u[..., :k] *= signs
    vh[..., :k, :] *= signs.swapaxes(-1, -2)
    return pack(xp, *zip((u, s.astype(u.dtype), vh), items, strict=True))


# -- the vectors beside the singular ones ----------------------------------------------------------
# Full matrices have further columns, an orthonormal basis of what the first k do not reach. It is
# arbitrary up to rotations, so the derivative may be taken along the path that does not rotate it:
# first^T d(rest) = -d(first)^T rest, and rest^T d(rest) = 0.


def _split(ns: Namespace, u: Array, k: int) -> tuple[Array, Array]:
    """The first k columns, and the rest."""
    return ns.slice(u, key=(..., slice(None, k))), ns.slice(u, key=(..., slice(k, None)))


def _gradient_of_first(ns: Namespace, u: Array, gu: Array, k: int) -> tuple[Array, Array]:
    """The first k columns and their gradient, with what the rest of the columns add to it."""
    if u.shape[-1] == k:
        return u, gu
    (first, rest), (g_first, g_rest) = _split(ns, u, k), _split(ns, gu, k)
    moved = ns.matmul(rest, ns.matmul(swapped(ns, g_rest), first))
    return first, ns.subtract(g_first, moved)


def _tangent_of_all(ns: Namespace, u: Array, d_first: Array, k: int) -> Array:
    """The tangent of all columns, from that of the first k."""
    if u.shape[-1] == k:
        return d_first
    first, rest = _split(ns, u, k)
    d_rest = ns.negative(ns.matmul(first, ns.matmul(swapped(ns, d_first), rest)))
    return ns.concat(d_first, d_rest, axis=-1, sizes=(k, u.shape[-1] - k))


# -- rules -----------------------------------------------------------------------------------------


def _gaps_and_shares(ns: Namespace, s: Array) -> tuple[Array, Array, Array]:
    """[i, j]: s_j - s_i, s_j / (s_i + s_j) and s_i / (s_i + s_j), which is a view.

    So s_j / (s_j^2 - s_i^2) is a share over a gap, without squares, which vanish or overflow.
    """
    across, down = row(ns, s), column(ns, s)
    both = ns.add(across, down)
    both = ns.where(ns.equal(both, 0), 1.0, both)
    share = ns.divide(across, both, out=both)
    return ns.subtract(across, down), share, swapped(ns, share)


def _svd_backward(ns: Namespace, step: Step, g: Array) -> None:
    """U (skew(U^T gU) / gaps S + S skew(V^T gV) / gaps + diag(gS)) Vh, and what is outside."""
    rows, columns = step.shape(0)[-2:]
    items = _svd_items(rows, columns, step.params["full"])
    u, s, vh = parts_of(ns, step.saved[0], *items)
    gu, gs, gvh = parts_of(ns, g, *items)
    k = s.shape[-1]
    u, gu = _gradient_of_first(ns, u, gu, k)
    vh, gvh = (swapped(ns, a) for a in _gradient_of_first(
        ns, swapped(ns, vh), swapped(ns, gvh), k))
    gaps, share, other = _gaps_and_shares(ns, s)
    along_u, along_v = ns.matmul(swapped(ns, u), gu), ns.matmul(vh, swapped(ns, gvh))
    left = ns.multiply(ratio(ns, skew(ns, along_u), gaps), share)
    right = ns.multiply(ratio(ns, skew(ns, along_v), gaps), other)
    found = ns.add(ns.matmul(u, ns.add(left, right)), ns.multiply(u, row(ns, gs)))
    if rows > columns:
        outside = ns.subtract(gu, ns.matmul(u, along_u))
        found = ns.add(found, ratio(ns, outside, row(ns, s)))
    found = ns.matmul(found, vh)
    if columns > rows:
        outside = ns.subtract(gvh, ns.matmul(swapped(ns, along_v), vh))
        found = ns.add(found, ns.matmul(u, ratio(ns, outside, column(ns, s))))
    step.give(0, found)


def _svd_tangent(
    ns: Namespace, primals: Values, tangents: Values, out: Array, params: Params
) -> Array:
    (dx,) = tangents
    rows, columns = dx.shape[-2:]
    items = _svd_items(rows, columns, params["full"])
    all_u, s, all_vh = parts_of(ns, out, *items)
    k = s.shape[-1]
    u, vh = _split(ns, all_u, k)[0], swapped(ns, _split(ns, swapped(ns, all_vh), k)[0])
    inner = ns.matmul(ns.matmul(swapped(ns, u), dx), swapped(ns, vh))
    ds = ns.diagonal(inner, offset=0)
    inner = ns.scaled_triangles(inner, below=1.0, diagonal=0.0, above=1.0)
    flipped, (gaps, share, other) = swapped(ns, inner), _gaps_and_shares(ns, s)
    turn_u = ns.add(ns.multiply(inner, share), ns.multiply(flipped, other))
    turn_v = ns.add(ns.multiply(inner, other), ns.multiply(flipped, share))
    du = ns.matmul(u, ratio(ns, turn_u, gaps))
    dvh = ns.matmul(swapped(ns, ratio(ns, turn_v, gaps)), vh)
    if rows > columns:
        moved = ns.matmul(dx, swapped(ns, vh))
        outside = ns.subtract(moved, ns.matmul(u, ns.matmul(swapped(ns, u), moved)))
        du = ns.add(du, ratio(ns, outside, row(ns, s)))
    if columns > rows:
        moved = ns.matmul(swapped(ns, u), dx)
        outside = ns.subtract(moved, ns.matmul(ns.matmul(moved, swapped(ns, vh)), vh))
        dvh = ns.add(dvh, ratio(ns, outside, column(ns, s)))
    du = _tangent_of_all(ns, all_u, du, k)
    dvh = swapped(ns, _tangent_of_all(ns, swapped(ns, all_vh), swapped(ns, dvh), k))
    return packed_in(ns, *zip((du, ds, dvh), items, strict=True))


def _svd_samples(**params: Any) -> list[Sample]:
    shapes = ((1, 3, 3), (2, 4, 2), (2, 2, 3), (0, 3, 2), (2, 0, 3))
    return [Sample((s,), leaning, params) for s in shapes]


svd_op = op(
    "svd", **matrix_paths("svd", _svd_path),
    saves={"x": "out"}, floating=True, backward=_svd_backward, tangent=_svd_tangent,
    batch=unchanged,
    samples=[*_svd_samples(full=False), Sample(((0, 3, 2),), leaning, {"full": True})],
    doc="The singular value decomposition, reduced or full, U, S and Vh end to end.",
)

def _svdvals_path(xp: ModuleType, x: Array) -> Array:
    values = xp.linalg.svd(x, compute_uv=False)
    if not isinstance(x, np.ndarray):
        gpu_factors().finite_or_nan(x, values)
    return values


svdvals_op = op(
    "svdvals", **matrix_paths("svdvals", _svdvals_path),
    backward=None, tangent=None, floating=True, batch=unchanged,
    composed=lambda x: svd(x, full_matrices=False).S,
    samples=_svd_samples(), reference=lambda torch, x: torch.linalg.svdvals(x),
    doc="Singular values of matrices; recorded as svd.",
)


def svd(x: Tensor, /, *, full_matrices: bool = True) -> SVDResult:
    """(U, S, Vh) with x = U[..., :k] diag(S) Vh[..., :k, :]; x is (..., m, n), k = min(m, n).

    U is (..., m, m), S (..., k), Vh (..., n, n); with `full_matrices=False` only the parts that
    singular values multiply: U (..., m, k), Vh (..., k, n). In each column of U[..., :k] the real
    part of largest absolute value is positive; where a positive and a negative one are equally
    large, the sign is arbitrary, and so is the phase of complex columns. The basis where singular
    values are equal is arbitrary, too: gradients through such vectors are infinite or NaN, as in
    PyTorch; through S alone they are right. The basis of the further columns of full matrices is
    arbitrary, too: gradients through them are right for functions that do not depend on its choice,
    such as the projector on them (PyTorch's are 0).
    """
    x = matrices(x, "svd")
    rows, columns = x.shape[-2:]
    full = full_matrices and rows != columns
    u, s, vh = parts_of(recorded, svd_op(x, full=full), *_svd_items(rows, columns, full))
    return SVDResult(u, real_part(s), vh)


def svdvals(x: Tensor, /) -> Tensor:
    """Descending singular values (..., min(m, n)) of matrices (..., m, n)."""
    return svdvals_op(matrices(x, "svdvals"))

"""Singular values and vectors: one record with its parts packed, see `ops/packed.py`.

The gradient is for real matrices and follows PyTorch's formula; complex ones have values only.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from gtensor.core.namespaces import recorded
from gtensor.core.op import op
from gtensor.core.samples import Sample
from gtensor.core.tensor import Tensor
from gtensor.ops.decompositions import leaning
from gtensor.ops.linalg import matrices, matrix_paths, swapped
from gtensor.ops.packed import (
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

__all__: list[str] = []  # the functions are public in gtensor.linalg


class SVDResult(NamedTuple):
    """x = U diag(S) Vh, with S descending."""

    U: Tensor
    S: Tensor
    Vh: Tensor


def _svd_items(rows: int, columns: int, full: bool = False) -> tuple[Shape, Shape, Shape]:
    k = min(rows, columns)
    return (rows, rows if full else k), (k,), (columns if full else k, columns)


def _svd_path(xp: Any, x: Any, full: bool) -> Any:
    items = _svd_items(x.shape[-2], x.shape[-1], full)
    u, s, vh = xp.linalg.svd(x, full_matrices=full)
    return pack(xp, *zip((u, s.astype(u.dtype), vh), items, strict=True))


def _square_gaps(ns: Any, s: Any) -> Any:
    """[i, j]: s_j^2 - s_i^2, without squares of close numbers subtracted."""
    return ns.multiply(ns.subtract(row(ns, s), column(ns, s)), ns.add(row(ns, s), column(ns, s)))


def _svd_backward(ns: Any, step: Any, g: Any) -> None:
    """U (skew(U^T gU) / gaps S + S skew(V^T gV) / gaps + diag(gS)) Vh, and what is outside."""
    rows, columns = step.shape(0)[-2:]
    items = _svd_items(rows, columns)
    u, s, vh = parts_of(ns, step.saved[0], *items)
    gu, gs, gvh = parts_of(ns, g, *items)
    gaps = _square_gaps(ns, s)
    along_u, along_v = ns.matmul(swapped(ns, u), gu), ns.matmul(vh, swapped(ns, gvh))
    left = ns.multiply(ratio(ns, skew(ns, along_u), gaps), row(ns, s))
    right = ns.multiply(ratio(ns, skew(ns, along_v), gaps), column(ns, s))
    found = ns.add(ns.matmul(u, ns.add(left, right)), ns.multiply(u, row(ns, gs)))
    if rows > columns:
        outside = ns.subtract(gu, ns.matmul(u, along_u))
        found = ns.add(found, ratio(ns, outside, row(ns, s)))
    found = ns.matmul(found, vh)
    if columns > rows:
        outside = ns.subtract(gvh, ns.matmul(swapped(ns, along_v), vh))
        found = ns.add(found, ns.matmul(u, ratio(ns, outside, column(ns, s))))
    step.give(0, found)


def _svd_tangent(ns: Any, primals: Any, tangents: Any, out: Any, params: dict[str, Any]) -> Any:
    (dx,) = tangents
    rows, columns = dx.shape[-2:]
    items = _svd_items(rows, columns)
    u, s, vh = parts_of(ns, out, *items)
    inner = ns.matmul(ns.matmul(swapped(ns, u), dx), swapped(ns, vh))
    ds = ns.diagonal(inner, offset=0)
    inner = ns.scaled_triangles(inner, below=1.0, diagonal=0.0, above=1.0)
    flipped, gaps = swapped(ns, inner), _square_gaps(ns, s)
    turn_u = ns.add(ns.multiply(inner, row(ns, s)), ns.multiply(flipped, column(ns, s)))
    turn_v = ns.add(ns.multiply(inner, column(ns, s)), ns.multiply(flipped, row(ns, s)))
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
    return packed_in(ns, *zip((du, ds, dvh), items, strict=True))


_SVD_SAMPLES = [Sample((s,), leaning) for s in ((1, 3, 3), (2, 4, 2), (2, 2, 3), (0, 3, 2),
                                                (2, 0, 3))]

svd_op = op(
    "svd", **matrix_paths("svd", lambda xp, x: _svd_path(xp, x, False)),
    saves={"x": "out"}, floating=True, backward=_svd_backward, tangent=_svd_tangent,
    samples=_SVD_SAMPLES,
    doc="The reduced singular value decomposition, U, S and Vh end to end.",
)

svd_full_op = op(
    "svd_full_matrices", **matrix_paths("svd", lambda xp, x: _svd_path(xp, x, True)),
    backward=None, tangent=None, floating=True,
    samples=[Sample((s,), leaning) for s in ((1, 4, 2), (2, 2, 3), (0, 3, 2))],
    doc="The full singular value decomposition, U, S and Vh end to end. Has no derivative.",
)

svdvals_op = op(
    "svdvals", **matrix_paths("svdvals", lambda xp, x: xp.linalg.svd(x, compute_uv=False)),
    backward=None, tangent=None, floating=True,
    composed=lambda x: parts_of(recorded, svd_op(x), *_svd_items(*x.shape[-2:]))[1],
    samples=_SVD_SAMPLES, reference=lambda torch, x: torch.linalg.svdvals(x),
    doc="Singular values of matrices; recorded as svd.",
)


def svd(x: Tensor, /, *, full_matrices: bool = True) -> SVDResult:
    """(U, S, Vh) with x = U[..., :k] diag(S) Vh[..., :k, :]; x is (..., m, n), k = min(m, n).

    U is (..., m, m), S (..., k), Vh (..., n, n); `full_matrices=False` leaves out what multiplies
    no singular value: U (..., m, k), Vh (..., k, n). Only so has it a derivative if m and n differ,
    since the rest is arbitrary. So is the sign of each pair of vectors, and their basis where
    singular values are equal: gradients through such vectors are infinite or NaN, as in PyTorch;
    through S alone they are right.
    """
    x = matrices(x, "svd")
    rows, columns = x.shape[-2:]
    full = full_matrices and rows != columns
    packed = svd_full_op(x) if full else svd_op(x)
    u, s, vh = parts_of(recorded, packed, *_svd_items(rows, columns, full))
    return SVDResult(u, real_part(s), vh)


def svdvals(x: Tensor, /) -> Tensor:
    """Descending singular values (..., min(m, n)) of matrices (..., m, n)."""
    return svdvals_op(matrices(x, "svdvals"))

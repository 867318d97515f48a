"""Decompositions of matrices: Cholesky, QR, eigenvalues of symmetric matrices.

A decomposition is one op with its parts packed into one output (see `ops/linalg/multi_output.py`).

Gradients are for real matrices and follow PyTorch's formulas (Giles, "Collected matrix derivative
results", 2008; Walter and Lehmann, arXiv 1009.6112, for QR). Complex matrices have values only.

Symmetric matrices: `cholesky`, `eigh` and `eigvalsh` read the lower triangle and take the upper one
for its mirror image, as NumPy's and PyTorch's; the gradient is symmetric, as PyTorch's. Their ops
take the symmetric part (x + x^H) / 2, which for a mirrored matrix is the matrix itself, bit for
bit, and whose derivative is the symmetric gradient.
"""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gtensor.engine.handle.namespaces import recorded
from gtensor.engine.handle.tensor import Tensor
from gtensor.engine.tape.op import Op, op
from gtensor.engine.tape.samples import Sample
from gtensor.ops.arrange.shape import matrix_transpose
from gtensor.ops.define.batching import unchanged
from gtensor.ops.define.path_builders import placed
from gtensor.ops.linalg.matrix_products import (
    conjugated,
    gpu_factors,
    matrices,
    matrix_paths,
    swapped,
)
from gtensor.ops.linalg.multi_output import (
    LOWER,
    UPPER,
    Shape,
    column,
    pack,
    packed_in,
    parts_of,
    ratio,
    real_part,
    row,
    skew,
    symmetric,
)

if TYPE_CHECKING:
    from types import ModuleType

    from gtensor.backend import Device
    from gtensor.backend.typing import Array, Params
    from gtensor.engine.handle.namespaces import Namespace
    from gtensor.engine.walk.typing import Step, Values

__all__: list[str] = []  # the functions are public in gtensor.linalg


def _mirrored_path(device: Device, x: Array, out: Array | None = None) -> Array:
    if out is None:
        out = device.empty(x.shape, x.dtype, "mirrored")
    flipped = x.swapaxes(-1, -2)
    out[...] = flipped.conj() if x.dtype.kind == "c" else flipped
    device.xp.copyto(out, x, where=device.xp.tri(x.shape[-1], dtype=bool))
    return out


# Not in the registry: numeric differences do not give this derivative. They would be twice as large
# below the diagonal and 0 above; shared by both it is that of a matrix known to be symmetric. The
# ops behind it return symmetric gradients.
_mirrored = Op(
    "mirrored", **placed(_mirrored_path), complex=True, samples=None, batch=unchanged,
    backward=lambda ns, step, g: step.give(0, g),
    tangent=lambda ns, primals, tangents, out, params: tangents[0],
    doc="Matrices with the upper triangle replaced by the mirrored (conjugate) lower one.",
)


def _from_lower(x: Tensor, name: str) -> Tensor:
    """Square matrices, symmetric by their lower triangle."""
    return _mirrored(matrices(x, name, square=True))


def _symmetric_part(xp: ModuleType, x: Array) -> Array:
    half = 0.5 * x  # halved first: the sum of large elements would overflow
    return half + xp.conj(xp.swapaxes(half, -1, -2))


# -- Cholesky --------------------------------------------------------------------------------------


def definite(rng: np.random.Generator, shape: Shape) -> np.ndarray:
    """Symmetric positive definite matrices, well conditioned."""
    noise = rng.standard_normal(shape)
    size = shape[-1]
    return (noise @ np.swapaxes(noise, -1, -2)) / max(1, size) + 2.0 * np.eye(size)


def _cholesky_backward(ns: Namespace, step: Step, g: Array) -> None:
    """L^-T Phi(L^T g) L^-1, made symmetric."""
    (factor,) = step.saved
    upper = swapped(ns, factor)
    inner = ns.scaled_triangles(ns.matmul(upper, g), **LOWER)
    left = ns.solve(upper, inner)
    step.give(0, symmetric(ns, swapped(ns, ns.solve(upper, swapped(ns, left)))))


def _cholesky_tangent(
    ns: Namespace, primals: Values, tangents: Values, out: Array, params: Params
) -> Array:
    left = ns.solve(out, symmetric(ns, tangents[0]))
    both = ns.solve(out, swapped(ns, left))
    return ns.matmul(out, ns.scaled_triangles(both, **LOWER))


def _cholesky_path(xp: ModuleType, x: Array) -> Array:
    x = _symmetric_part(xp, x)
    return xp.linalg.cholesky(x) if isinstance(x, np.ndarray) else gpu_factors().cholesky(x)


cholesky_op = op(
    "cholesky", **matrix_paths("cholesky", _cholesky_path),
    backward=_cholesky_backward, tangent=_cholesky_tangent, saves={"x": "out"}, floating=True,
    batch=unchanged,
    samples=[Sample((s,), definite) for s in ((1, 1, 1), (1, 3, 3), (2, 4, 4), (0, 2, 2))],
    reference=lambda torch, x: torch.linalg.cholesky(x),
    doc="The lower Cholesky factor of the symmetric part of positive definite matrices.",
)


def cholesky(x: Tensor, /, *, upper: bool = False) -> Tensor:
    """L with x = L L^H of positive definite matrices x (..., n, n); `upper`: U = L^H, x = U^H U.

    Reads the lower triangle of x; the gradient is symmetric. Raises LinAlgError unless x is square,
    and on the CPU unless it is positive definite (on a GPU the check would wait, and the result is
    NaN).
    """
    factor = cholesky_op(_from_lower(x, "cholesky"))
    return matrix_transpose(conjugated(recorded, factor)) if upper else factor


# -- QR --------------------------------------------------------------------------------------------


class QRResult(NamedTuple):
    """x = Q R: orthonormal columns, upper triangle."""

    Q: Tensor
    R: Tensor


def _qr_items(rows: int, columns: int, complete: bool = False) -> tuple[Shape, Shape]:
    k = rows if complete else min(rows, columns)
    return (rows, k), (k, columns)


def _qr_path(xp: ModuleType, x: Array, complete: bool) -> Array:
    q, r = xp.linalg.qr(x, mode="complete" if complete else "reduced")
    items = _qr_items(x.shape[-2], x.shape[-1], complete)
    return pack(xp, (q, items[0]), (r, items[1]))


def _leading(ns: Namespace, r: Array) -> Array:
    """The square block of R: all of it for a tall matrix."""
    return ns.slice(r, key=(..., builtins.slice(None, r.shape[-2])))


def _over(ns: Namespace, x: Array, r: Array) -> Array:
    """x R^-1."""
    return swapped(ns, ns.solve(swapped(ns, r), swapped(ns, x)))


def _qr_backward(ns: Namespace, step: Step, g: Array) -> None:
    """A wide x = [x1 x2] is a square QR of x1, and R2 = Q^T x2."""
    shape = step.shape(0)
    items = _qr_items(shape[-2], shape[-1])
    k = items[0][1]
    q, r = parts_of(ns, step.saved[0], *items)
    gq, gr = parts_of(ns, g, *items)
    square, gsquare = _leading(ns, r), _leading(ns, gr)
    wide = shape[-1] > k
    if wide:
        rest = (..., builtins.slice(k, None))
        g2 = ns.slice(gr, key=rest)
        x2 = ns.matmul(q, ns.slice(r, key=rest))
        gq = ns.add(gq, ns.matmul(x2, swapped(ns, g2)))
    inner = ns.subtract(ns.matmul(gsquare, swapped(ns, square)), ns.matmul(swapped(ns, q), gq))
    upper = ns.scaled_triangles(inner, **UPPER)
    both = ns.add(upper, swapped(ns, upper))
    total = ns.add(gq, ns.matmul(q, both))
    found = _over(ns, total, swapped(ns, square))
    if wide:
        found = ns.concat(found, ns.matmul(q, g2), axis=-1, sizes=(k, shape[-1] - k))
    step.give(0, found)


def _qr_tangent(
    ns: Namespace, primals: Values, tangents: Values, out: Array, params: Params
) -> Array:
    """dQ = Q W + (1 - Q Q^T) dx R^-1 with W skew, dR = Q^T dx - W R."""
    (dx,) = tangents
    items = _qr_items(*dx.shape[-2:])
    q, r = parts_of(ns, out, *items)
    moved = _over(ns, _leading(ns, dx) if dx.shape[-1] > dx.shape[-2] else dx, _leading(ns, r))
    inner = ns.matmul(swapped(ns, q), moved)
    turn = skew(ns, ns.scaled_triangles(inner, below=1.0, diagonal=0.0, above=0.0))
    dq = ns.add(ns.matmul(q, ns.subtract(turn, inner)), moved)
    dr = ns.subtract(ns.matmul(swapped(ns, q), dx), ns.matmul(turn, r))
    return packed_in(ns, (dq, items[0]), (dr, items[1]))


def _qr_reference(torch: Any, x: Any) -> Any:
    return torch.cat([part.flatten(-2) for part in torch.linalg.qr(x)], dim=-1)


def leaning(rng: np.random.Generator, shape: Shape) -> np.ndarray:
    """Matrices with a heavy diagonal that rises: well conditioned, singular values apart."""
    rows, columns = shape[-2:]
    return 0.2 * rng.standard_normal(shape) + np.eye(rows, columns) * (1.0 + np.arange(columns))


qr_op = op(
    "qr", **matrix_paths("qr", lambda xp, x: _qr_path(xp, x, False)),
    saves={"x": "out"}, floating=True, backward=_qr_backward, tangent=_qr_tangent,
    batch=unchanged,
    samples=[Sample((s,), leaning) for s in ((1, 3, 3), (2, 4, 2), (2, 2, 3), (0, 3, 2),
                                             (2, 0, 3))],
    reference=_qr_reference,
    doc="The reduced QR decomposition, Q and R end to end.",
)

qr_complete_op = op(
    "qr_complete", **matrix_paths("qr", lambda xp, x: _qr_path(xp, x, True)),
    backward=None, tangent=None, floating=True, batch=unchanged,
    samples=[Sample((s,), leaning) for s in ((1, 4, 2), (0, 3, 2))],
    doc="The complete QR decomposition of tall matrices, Q and R end to end. Has no derivative.",
)


def qr(x: Tensor, /, *, mode: str = "reduced") -> QRResult:
    """(Q, R) with x = Q R for matrices x (..., m, n); k = min(m, n).

    Mode "reduced": Q (..., m, k), R (..., k, n). Mode "complete": Q (..., m, m), R (..., m, n); it
    has no derivative where m > n, since the added columns of Q are arbitrary. Gradients need the
    first k columns of x to be independent.

    Raises ValueError for another mode.
    """
    x = matrices(x, "qr")
    if mode not in ("reduced", "complete"):
        raise ValueError(f"qr was given mode {mode!r}; wanted 'reduced' or 'complete'")
    rows, columns = x.shape[-2:]
    complete = mode == "complete" and rows > columns
    packed = qr_complete_op(x) if complete else qr_op(x)
    return QRResult(*parts_of(recorded, packed, *_qr_items(rows, columns, complete)))


# -- symmetric eigenvalues -------------------------------------------------------------------------


class EighResult(NamedTuple):
    """Ascending eigenvalues, and eigenvectors in the columns."""

    eigenvalues: Tensor
    eigenvectors: Tensor


def _eigh_items(n: int) -> tuple[Shape, Shape]:
    return (n,), (n, n)


def settled_signs(xp: ModuleType, v: Array) -> Array:
    """1 or -1 for each column: times it, the real part of largest absolute value is positive.

    Libraries and dtypes return vectors of different signs. Where a positive and a negative part are
    equally large, the sign is unchanged; so is the phase of a complex vector.
    """
    if not v.size:
        return xp.ones((*v.shape[:-2], 1, v.shape[-1]), v.dtype)
    highest, lowest = v.real.max(-2, keepdims=True), v.real.min(-2, keepdims=True)
    return xp.where(highest < -lowest, -1, 1).astype(v.dtype)


def _eigh_path(xp: ModuleType, x: Array) -> Array:
    w, v = xp.linalg.eigh(_symmetric_part(xp, x))
    if not isinstance(x, np.ndarray):
        gpu_factors().finite_or_nan(x, w, v)
    v *= settled_signs(xp, v)
    values, vectors = _eigh_items(x.shape[-1])
    return pack(xp, (w.astype(v.dtype), values), (v, vectors))


def _gaps(ns: Namespace, w: Array) -> Array:
    """[i, j]: w_j - w_i."""
    return ns.subtract(row(ns, w), column(ns, w))


def _eigh_backward(ns: Namespace, step: Step, g: Array) -> None:
    """V (diag(gw) + skew(V^T gV) / gaps) V^T."""
    items = _eigh_items(step.shape(0)[-1])
    w, v = parts_of(ns, step.saved[0], *items)
    gw, gv = parts_of(ns, g, *items)
    turn = ns.multiply(skew(ns, ns.matmul(swapped(ns, v), gv)), 0.5)
    inner = ns.matmul(v, ratio(ns, turn, _gaps(ns, w)))
    total = ns.add(ns.multiply(v, row(ns, gw)), inner)
    step.give(0, ns.matmul(total, swapped(ns, v)))


def _eigh_tangent(
    ns: Namespace, primals: Values, tangents: Values, out: Array, params: Params
) -> Array:
    items = _eigh_items(primals[0].shape[-1])
    w, v = parts_of(ns, out, *items)
    inner = ns.matmul(ns.matmul(swapped(ns, v), symmetric(ns, tangents[0])), v)
    off = ns.scaled_triangles(inner, below=1.0, diagonal=0.0, above=1.0)
    dv = ns.matmul(v, ratio(ns, off, _gaps(ns, w)))
    return packed_in(ns, (ns.diagonal(inner, offset=0), items[0]), (dv, items[1]))


eigh_op = op(
    "eigh", **matrix_paths("eigh", _eigh_path), saves={"x": "out"}, floating=True,
    backward=_eigh_backward, tangent=_eigh_tangent, batch=unchanged,
    samples=[Sample((s,), leaning) for s in ((1, 1, 1), (1, 3, 3), (2, 4, 4), (0, 2, 2))],
    doc="Eigenvalues and eigenvectors of the symmetric part of matrices, end to end.",
)

def _eigvalsh_path(xp: ModuleType, x: Array) -> Array:
    values = xp.linalg.eigvalsh(_symmetric_part(xp, x))
    if not isinstance(x, np.ndarray):
        gpu_factors().finite_or_nan(x, values)
    return values


eigvalsh_op = op(
    "eigvalsh", **matrix_paths("eigvalsh", _eigvalsh_path),
    backward=None, tangent=None, floating=True, batch=unchanged,
    composed=lambda x: parts_of(recorded, eigh_op(x), *_eigh_items(x.shape[-1]))[0],
    samples=[Sample((s,), leaning) for s in ((1, 3, 3), (2, 4, 4), (0, 2, 2))],
    reference=lambda torch, x: torch.linalg.eigvalsh((x + x.mT) / 2),
    doc="Eigenvalues of the symmetric part of matrices; recorded as eigh.",
)


def eigh(x: Tensor, /) -> EighResult:
    """(eigenvalues (..., n), eigenvectors (..., n, n)) of symmetric or Hermitian matrices.

    Reads the lower triangle of x; the gradient is symmetric. In each eigenvector the real part of
    largest absolute value is positive; where a positive and a negative one are equally large, the
    sign is arbitrary, and so is the phase of complex vectors. The basis where eigenvalues are equal
    is arbitrary, too: gradients through their vectors are infinite or NaN, as in PyTorch; through
    eigenvalues alone they are right.
    """
    x = _from_lower(x, "eigh")
    w, v = parts_of(recorded, eigh_op(x), *_eigh_items(x.shape[-1]))
    return EighResult(real_part(w), v)


def eigvalsh(x: Tensor, /) -> Tensor:
    """Ascending eigenvalues (..., n) of symmetric or Hermitian matrices (..., n, n).

    Reads the lower triangle of x; the gradient is symmetric.
    """
    return eigvalsh_op(_from_lower(x, "eigvalsh"))

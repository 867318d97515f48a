"""Linear maps along one axis by sparse matrices; the adjoint is the same op on the transpose."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from gtensor.backend import host
from gtensor.backend.cuda import cupy
from gtensor.backend.kernels import BLOCK, raw
from gtensor.engine.tape.op import op
from gtensor.engine.tape.samples import Sample, normal
from gtensor.ops.arrange.shape import linear_tangent, resized
from gtensor.ops.define.batching import unchanged
from gtensor.ops.define.cpu_tiles import computed_in
from gtensor.ops.define.path_builders import tiles
from gtensor.ops.pool.mixing import Made, Mixing
from gtensor.ops.pool.mixing import matrix as matrix_of
from gtensor.settings import settings

if TYPE_CHECKING:
    from gtensor.backend.typing import Array
    from gtensor.engine.handle.namespaces import Namespace
    from gtensor.engine.walk.typing import Step
    from gtensor.ops.define.cpu_tiles import Tile

_KERNEL = raw("resample.cu", "resample")


def _add_terms(matrix: Mixing, axis: int, x: np.ndarray, total: np.ndarray) -> None:
    """total += the matrix times x, along a negative axis."""
    after = (slice(None),) * (-axis - 1)
    for term in matrix.terms:
        if isinstance(term.of, slice):
            key: Tile = (..., term.of, *after)
            part = x[key]
        else:
            part = np.take(x, term.of, axis=axis)
        if term.weight is not None:
            weight = term.weight.astype(total.dtype).reshape(-1, *(1,) * len(after))
            part = part * weight
        total[(..., term.to, *after)] += part


def _multiply_blocks(
    matrix: Mixing, axis: int, x: np.ndarray, total: np.ndarray, add: bool
) -> None:
    """total = the matrix times x along a negative axis, or added to it: products of its blocks."""
    trail = prod(x.shape[axis:][1:])
    rows, columns = (a.reshape(*a.shape[:axis], a.shape[axis], trail) if axis < -1 else
                     np.atleast_2d(a).swapaxes(-1, -2) for a in (total, x))
    for to, of, part in matrix.blocks:
        block, source, target = part.astype(x.dtype, copy=False), columns[..., of, :], rows[
            ..., to, :]
        if add:
            target += block @ source
        elif axis < -1:
            np.matmul(block, source, out=target)
        else:  # turned, so that the product is written in place
            np.matmul(source.swapaxes(-1, -2), block.T, out=target.swapaxes(-1, -2))


def _resample_cpu(
    x: Array, *, axis: int, matrix: Made, transposed: bool, out: Array | None = None,
    beta: float = 0.0,
) -> Array:
    mixing = matrix_of(matrix, transposed)
    if out is None:
        out, beta = host().empty(resized(x.shape, axis, mixing.rows), x.dtype, "resample"), 0.0
    lead, trail = x.shape[:axis], prod(x.shape[axis:][1:])
    work = computed_in(x.dtype)
    limit = max(1, settings.tile_elements // max(1, trail * max(mixing.rows, mixing.columns)))
    size = min(prod(lead), limit) * mixing.rows * trail
    wide = host().workspace(size, work) if work != x.dtype else None
    for tile in tiles(lead, limit):
        key = (*tile, ...)
        result = out[key]
        total = result if wide is None else wide(0, result.shape)
        in_blocks = bool(mixing.blocks) and total.flags.c_contiguous
        part = x[key].astype(work, copy=False) if in_blocks else x[key]
        if in_blocks and np.isfinite(part).all():  # zeros of a block times infinity would be NaN
            if beta and wide is not None:
                total[...] = result
            _multiply_blocks(mixing, axis, part, total, bool(beta))
        else:
            if not beta:
                total[...] = 0
            elif wide is not None:
                total[...] = result
            _add_terms(mixing, axis, x[key], total)
        if wide is not None:
            out[key] = total
    return out


def _resample_gpu(
    x: Array, *, axis: int, matrix: Made, transposed: bool, out: Array | None = None,
    beta: float = 0.0,
) -> Array:
    mixing = matrix_of(matrix, transposed)
    xp, work = cupy(), computed_in(x.dtype)
    shape = resized(x.shape, axis, mixing.rows)
    direct = out is not None and out.flags.c_contiguous and out.dtype == x.dtype
    found: Any = out if direct else xp.empty(shape, x.dtype)
    if found.size:
        starts, columns, weights = (xp.asarray(a) for a in mixing.compressed)
        lead, trail = prod(x.shape[:axis]), prod(x.shape[axis:][1:])
        blocks = min(-(-found.size // BLOCK), 2**31 - 1)
        _KERNEL[x.dtype]((blocks,), (BLOCK,), (
            xp.ascontiguousarray(x), starts, columns, weights.astype(work, copy=False), found,
            lead, mixing.rows, mixing.columns, trail, int(direct and bool(beta))))
    if out is None or direct:
        return found
    out[...] = out + found if beta else found
    return out


def _backward(ns: Namespace, step: Step, g: Array) -> None:
    buffer, beta = step.into(0)
    params = {**step.params, "transposed": not step.params["transposed"]}
    step.give(0, ns.resample(g, **params, out=buffer, beta=beta))


def _reference(torch: Any, x: Any, axis: int, matrix: Made, transposed: bool) -> Any:
    dense = torch.tensor(matrix_of(matrix, transposed).dense(), dtype=x.dtype)
    return torch.movedim(torch.movedim(x, axis, -1) @ dense.T, -1, axis)


_LINEAR, _CORNERS = ("linear", 3, 5, None, False), ("linear", 3, 5, None, True)
_FILTER = ("correlation", 40, "reflect", 0.1, 0.2, -0.3, 0.5, 0.2, 0.1, 0.1, 0.3, 0.1)  # by blocks
_SAMPLES = [
    Sample((shape,), normal, {"axis": axis, "matrix": matrix, "transposed": transposed})
    for shape, axis, matrix, transposed in (
        ((2, 3), -1, _LINEAR, False), ((2, 3, 4), -2, _CORNERS, False),
        ((2, 5), -1, _LINEAR, True), ((5,), -1, ("window means", 5, 3), False),
        ((2, 4), -1, ("nearest", 3, 4, None), True), ((0, 3, 2), -2, _LINEAR, False),
        ((5, 3), -2, ("spline zoom", 5, 7, 3, "mirror", False, 0), False),
        ((3, 40), -1, _FILTER, False), ((2, 40, 3), -2, _FILTER, True))]

resample = op(
    "resample", inputs="x", cpu=_resample_cpu, gpu=_resample_gpu, backward=_backward,
    tangent=linear_tangent("resample"), batch=unchanged,
    samples=_SAMPLES, reference=_reference,
    doc="A sparse matrix times x along one axis. Parameters: axis, matrix (what it is made from), "
        "transposed.",
)

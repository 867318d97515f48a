"""Linear maps along one axis by sparse matrices; the adjoint is the same op on the transpose."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

from gtensor.backend import host
from gtensor.backend.cuda import cupy
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
    from types import ModuleType

    from gtensor.backend.typing import Array
    from gtensor.engine.handle.namespaces import Namespace
    from gtensor.engine.walk.typing import Step
    from gtensor.ops.define.cpu_tiles import Tile


def _add_terms(xp: ModuleType, matrix: Mixing, axis: int, x: Array, total: Array) -> None:
    """total += the matrix times x, along a negative axis."""
    after = (slice(None),) * (-axis - 1)
    for term in matrix.terms:
        if isinstance(term.of, slice):
            key: Tile = (..., term.of, *after)
            part = x[key]
        else:
            part = xp.take(x, xp.asarray(term.of), axis=axis)
        if term.weight is not None:
            weight = term.weight.astype(total.dtype).reshape(-1, *(1,) * len(after))
            part = part * xp.asarray(weight)
        to = term.to if isinstance(term.to, slice) else xp.asarray(term.to)
        total[(..., to, *after)] += part


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
        if not beta:
            total[...] = 0
        elif wide is not None:
            total[...] = result
        _add_terms(host().xp, mixing, axis, x[key], total)
        if wide is not None:
            out[key] = total
    return out


def _resample_gpu(
    x: Array, *, axis: int, matrix: Made, transposed: bool, out: Array | None = None,
    beta: float = 0.0,
) -> Array:
    mixing = matrix_of(matrix, transposed)
    xp, work = cupy(), computed_in(x.dtype)
    if out is not None and beta and work == x.dtype:
        _add_terms(xp, mixing, axis, x, out)
        return out
    total = xp.zeros(resized(x.shape, axis, mixing.rows), work)
    _add_terms(xp, mixing, axis, x, total)
    if out is None:
        return total.astype(x.dtype, copy=False)
    out[...] = out + total if beta else total
    return out


def _backward(ns: Namespace, step: Step, g: Array) -> None:
    buffer, beta = step.into(0)
    params = {**step.params, "transposed": not step.params["transposed"]}
    step.give(0, ns.resample(g, **params, out=buffer, beta=beta))


def _reference(torch: Any, x: Any, axis: int, matrix: Made, transposed: bool) -> Any:
    dense = torch.tensor(matrix_of(matrix, transposed).dense(), dtype=x.dtype)
    return torch.movedim(torch.movedim(x, axis, -1) @ dense.T, -1, axis)


_LINEAR, _CORNERS = ("linear", 3, 5, None, False), ("linear", 3, 5, None, True)
_SAMPLES = [
    Sample((shape,), normal, {"axis": axis, "matrix": matrix, "transposed": transposed})
    for shape, axis, matrix, transposed in (
        ((2, 3), -1, _LINEAR, False), ((2, 3, 4), -2, _CORNERS, False),
        ((2, 5), -1, _LINEAR, True), ((5,), -1, ("window means", 5, 3), False),
        ((2, 4), -1, ("nearest", 3, 4, None), True), ((0, 3, 2), -2, _LINEAR, False))]

resample = op(
    "resample", inputs="x", cpu=_resample_cpu, gpu=_resample_gpu, backward=_backward,
    tangent=linear_tangent("resample"), batch=unchanged,
    samples=_SAMPLES, reference=_reference,
    doc="A sparse matrix times x along one axis. Parameters: axis, matrix (what it is made from), "
        "transposed.",
)

"""Softmax and its logarithm: the output is saved, gradients are written over the incoming one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from gtensor.backend import host
from gtensor.backend.cuda import cupy
from gtensor.backend.kernels import Raw, packed_launch, raw
from gtensor.engine.handle.namespaces import recorded
from gtensor.engine.handle.tensor import Tensor
from gtensor.engine.tape.op import Op, op
from gtensor.engine.tape.samples import Sample, alike, normal
from gtensor.ops.arrange.shape import along_one
from gtensor.ops.define import rows
from gtensor.ops.define.arguments import takes_arrays
from gtensor.ops.define.batching import trailing, unchanged
from gtensor.ops.define.cpu_tiles import (
    SMALL,
    broadcast_directly,
    computed_in,
    row_maxima,
    row_tile_size,
    row_tiles,
)
from gtensor.ops.define.path_builders import once
from gtensor.ops.define.sums import row_sums
from gtensor.settings import settings

if TYPE_CHECKING:
    from gtensor.backend.typing import Array, CudaArray, DTypeLike, Params, Path
    from gtensor.engine.handle.namespaces import Namespace
    from gtensor.engine.walk.typing import Step, Values


def _last(x: Array, axis: int) -> Array:
    """A view with `axis` last."""
    return x if axis == -1 else np.moveaxis(x, axis, -1)


# -- CPU: tiles of whole rows --------------------------------------------------------------------

_FACTOR = 2  # row_tiles: the output and at most one buffer share the cache
_MODERATE = 16.0  # where all |x| of a tile are below it, softmax subtracts no maxima


def _reader(x: Array, buffers: int) -> Callable[[int, np.ndarray], np.ndarray]:
    """read(which, tile): in the dtype that is computed in, itself or a copy in a work buffer."""
    work = computed_in(x.dtype)
    if work == x.dtype:
        return lambda which, tile: tile
    scratch = host().workspace(row_tile_size(x.shape, _FACTOR), work, buffers)

    def read(which: int, tile: np.ndarray) -> np.ndarray:
        wide = scratch(which, tile.shape)
        wide[...] = tile
        return wide

    return read


def _is_one_tile(x: Array) -> bool:
    """Whether the loop over tiles would cost more than the rows."""
    return x.size < SMALL and x.itemsize > 2 and x.size <= settings.tile_elements


def _exponentials(rows: np.ndarray, terms: np.ndarray) -> None:
    """terms = exp(rows) up to a factor of each row's, so that no sum overflows or vanishes."""
    moderate = rows.size >= SMALL and rows.max() <= _MODERATE and rows.min() >= -_MODERATE
    if not moderate:  # a NaN is not, either
        rows = np.subtract(rows, row_maxima(rows), out=terms)
    np.exp(rows, out=terms)


def _softmax_cpu(x: Array, *, axis: int, out: Array | None = None) -> Array:
    if out is None:
        out = host().empty(x.shape, x.dtype, "softmax")
    if x.size == 0:
        return out
    source, result = _last(x, axis), _last(out, axis)
    if rows.softmax("softmax", result, source, quiet=True):
        return out
    # a row of -infinity only becomes NaN, as in PyTorch
    with np.errstate(invalid="ignore", over="ignore"):
        if _is_one_tile(x):
            _exponentials(source, result)
            np.divide(result, row_sums(result), out=result)
            return out
        read = _reader(source, 1)
        broadcast_directly(source.shape[-1])
        for tile in row_tiles(source.shape, _FACTOR):
            part, target = read(0, source[tile]), result[tile]
            terms = target if target.dtype == part.dtype else part
            _exponentials(part, terms)
            np.divide(terms, row_sums(terms), out=terms)
            if terms is not target:
                target[...] = terms
    return out


def _log_softmax_cpu(x: Array, *, axis: int, out: Array | None = None) -> Array:
    if out is None:
        out = host().empty(x.shape, x.dtype, "log_softmax")
    if x.size == 0:
        return out
    source, result = _last(x, axis), _last(out, axis)
    if rows.softmax("log_softmax", result, source, quiet=True):
        return out
    with np.errstate(invalid="ignore", over="ignore"):  # half types: down to -infinity
        if _is_one_tile(x):
            np.subtract(source, row_maxima(source), out=result)
            np.subtract(result, np.log(row_sums(np.exp(result))), out=result)
            return out
        read = _reader(source, 1)
        scratch = host().workspace(row_tile_size(source.shape, _FACTOR), computed_in(x.dtype))
        broadcast_directly(source.shape[-1])
        for tile in row_tiles(source.shape, _FACTOR):
            part, target = read(0, source[tile]), result[tile]
            wide = target if target.dtype == part.dtype else part
            np.subtract(part, row_maxima(part), out=wide)
            terms = np.exp(wide, out=scratch(0, part.shape))
            np.subtract(wide, np.log(row_sums(terms)), out=wide)
            if wide is not target:
                target[...] = wide
    return out


def _softmax_grad_cpu(g: Array, y: Array, *, axis: int, out: Array | None = None) -> Array:
    if out is None:
        out = host().empty(g.shape, g.dtype, "softmax_grad")
    if g.size == 0:
        return out
    gs, ys, result = _last(g, axis), _last(y, axis), _last(out, axis)
    if rows.softmax("softmax_grad", result, gs, ys):
        return out
    read = _reader(gs, 2)
    with np.errstate():
        broadcast_directly(gs.shape[-1])
        for tile in row_tiles(gs.shape, _FACTOR):
            grad, value, target = read(0, gs[tile]), read(1, ys[tile]), result[tile]
            wide = target if target.dtype == grad.dtype else grad
            np.subtract(grad, np.vecdot(grad, value)[..., None], out=wide)
            np.multiply(wide, value, out=wide)
            if wide is not target:
                target[...] = wide
    return out


def _log_softmax_grad_cpu(g: Array, y: Array, *, axis: int, out: Array | None = None) -> Array:
    if out is None:
        out = host().empty(g.shape, g.dtype, "log_softmax_grad")
    if g.size == 0:
        return out
    gs, ys, result = _last(g, axis), _last(y, axis), _last(out, axis)
    if rows.softmax("log_softmax_grad", result, gs, ys):
        return out
    read = _reader(gs, 2)
    scratch = host().workspace(row_tile_size(gs.shape, _FACTOR), computed_in(g.dtype))
    with np.errstate():
        broadcast_directly(gs.shape[-1])
        for tile in row_tiles(gs.shape, _FACTOR):
            grad, target = read(0, gs[tile]), result[tile]
            share = scratch(0, grad.shape)
            np.exp(read(1, ys[tile]), out=share)
            np.multiply(share, row_sums(grad), out=share)
            wide = target if target.dtype == grad.dtype else grad
            np.subtract(grad, share, out=wide)
            if wide is not target:
                target[...] = wide
    return out


# -- GPU: contiguous rows ------------------------------------------------------------------------


def _rows_path(kernel: Raw) -> Path:
    """The path of a kernel over contiguous rows (inputs, output, rows, columns), for any axis."""

    def path(*arrays: Array, axis: int, out: Array | None = None) -> Array:
        xp = cupy()
        x = arrays[0]
        first, *others = [xp.moveaxis(a, axis, -1) for a in arrays]
        inputs = [xp.ascontiguousarray(a) for a in (first, *map(once, others))]
        shape = first.shape
        direct = out is not None and axis == -1 and out.flags.c_contiguous
        result: CudaArray = out if direct else xp.empty(shape, x.dtype)
        columns = shape[-1]
        rows = x.size // columns if columns else 0
        grid, block = packed_launch(rows, columns, x.itemsize)
        shared = [a.size // columns for a in inputs[1:]] if columns else []
        kernel[x.dtype](grid, block, (*inputs, result, rows, columns, *shared))
        if direct:
            return result
        moved = xp.moveaxis(result, -1, axis)
        if out is None:
            return xp.ascontiguousarray(moved)
        out[...] = moved
        return out

    return path


# -- definitions -----------------------------------------------------------------------------------


def _sum(ns: Namespace, x: Array, axis: int) -> Array:
    return ns.sum(x, axis=(axis,), keepdims=True)


def _softmax_grad(g: Array, y: Array, *, axis: int) -> Array:
    return y * (g - _sum(recorded, g * y, axis))


def _log_softmax_grad(g: Array, y: Array, *, axis: int) -> Array:
    return g - recorded.exp(y) * _sum(recorded, g, axis)


def _softmax_backward(ns: Namespace, step: Step, g: Array) -> None:
    (y,) = step.saved
    step.give(0, ns.softmax_grad(g, y, axis=step.params["axis"], out=step.reuse(g)))


def _log_softmax_backward(ns: Namespace, step: Step, g: Array) -> None:
    (y,) = step.saved
    step.give(0, ns.log_softmax_grad(g, y, axis=step.params["axis"], out=step.reuse(g)))


def _softmax_tangent(
    ns: Namespace, primals: Values, tangents: Values, out: Array, params: Params
) -> Array:
    return ns.softmax_grad(tangents[0], out, axis=params["axis"])  # its Jacobian is symmetric


def _log_softmax_tangent(
    ns: Namespace, primals: Values, tangents: Values, out: Array, params: Params
) -> Array:
    t = tangents[0]
    return ns.subtract(t, _sum(ns, ns.multiply(ns.exp(out), t), params["axis"]))


_AXES = [Sample((shape,), normal, {"axis": axis}) for shape, axis in (
    ((7,), -1), ((3, 5), -1), ((3, 5), -2), ((2, 3, 4), -2), ((0, 3), -1), ((3, 0), -1),
    ((4, 1), -1))]
_PAIRS = [*[Sample(s.shapes * 2, normal, s.params) for s in _AXES],
          *alike(2, axis=-1)[:1], *alike(2, axis=-2)[1:2]]

softmax_grad = op(
    "softmax_grad", cpu=_softmax_grad_cpu, gpu=_rows_path(raw("softmax.cu", "softmax_backward")),
    backward=None, tangent=None, composed=_softmax_grad, batch=trailing, samples=_PAIRS,
    reference=lambda torch, g, y, axis: y * (g - (g * y).sum(axis, keepdim=True)),
    doc="The gradient of y = softmax(x): y * (g - sum(g * y)).",
)

log_softmax_grad = op(
    "log_softmax_grad", cpu=_log_softmax_grad_cpu,
    gpu=_rows_path(raw("softmax.cu", "log_softmax_backward")),
    backward=None, tangent=None, composed=_log_softmax_grad, batch=trailing, samples=_PAIRS,
    reference=lambda torch, g, y, axis: g - torch.exp(y) * g.sum(axis, keepdim=True),
    doc="The gradient of y = log_softmax(x): g - exp(y) * sum(g).",
)

softmax_op = op(
    "softmax", autocast="float32", cpu=_softmax_cpu, floating=True,
    gpu=_rows_path(raw("softmax.cu", "softmax_forward")),
    saves={"x": "out"}, backward=_softmax_backward, tangent=_softmax_tangent, batch=unchanged,
    samples=_AXES, reference=lambda torch, x, axis: torch.softmax(x, axis),
    doc="exp(x) over its sum along `axis` (from the end), computed without overflow.",
)

log_softmax_op = op(
    "log_softmax", autocast="float32", cpu=_log_softmax_cpu, floating=True,
    gpu=_rows_path(raw("softmax.cu", "log_softmax_forward")),
    saves={"x": "out"}, backward=_log_softmax_backward, tangent=_log_softmax_tangent,
    batch=unchanged,
    samples=_AXES, reference=lambda torch, x, axis: torch.log_softmax(x, axis),
    doc="x minus the logarithm of the sum of exp(x) along `axis` (from the end).",
)


# -- public functions ------------------------------------------------------------------------------


@takes_arrays
def softmax(input: Tensor, dim: int | None = None, *, dtype: DTypeLike | None = None) -> Tensor:
    """exp(input) over its sum along `dim`, without overflow; same shape. Saves its output.

    `dim` must be given, which PyTorch guesses; with `dtype` the input is converted to it first.
    """
    return _normalized(softmax_op, input, dim, dtype)


@takes_arrays
def log_softmax(input: Tensor, dim: int | None = None, *, dtype: DTypeLike | None = None) -> Tensor:
    """input minus the logarithm of the sum of exp(input) along `dim`. Saves its output.

    `dim` must be given, which PyTorch guesses; with `dtype` the input is converted to it first.
    """
    return _normalized(log_softmax_op, input, dim, dtype)


def _normalized(op: Op, input: Tensor, dim: int | None, dtype: DTypeLike | None) -> Tensor:
    """PyTorch still guesses `dim` where it is left out, and warns; a guess may sum wrong rows."""
    name = op.name
    if dim is None:
        raise TypeError(f"{name} was given dim=None; wanted the axis whose values add up to 1, "
                        "such as dim=-1")
    if type(dim) is int and dtype is None and -input.ndim <= dim < input.ndim:
        return op(input, axis=dim - input.ndim if dim >= 0 else dim)
    return along_one(op, input if dtype is None else input.astype(dtype), dim, name)

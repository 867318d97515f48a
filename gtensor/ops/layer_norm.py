"""Layer norm over trailing axes: y = (x - mean) * rstd * weight + bias.

Saved are x and two numbers per row (float32 for half types).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import numpy as np

from gtensor.backend import host
from gtensor.backend.cuda import cupy
from gtensor.backend.kernels import NULL, column_launch, raw, row_launch
from gtensor.core.namespaces import recorded
from gtensor.core.op import op
from gtensor.core.samples import Sample
from gtensor.core.tensor import Tensor
from gtensor.ops.linear import same_dtype
from gtensor.ops.paths import tiles
from gtensor.ops.scratch import Scratch, computed_in
from gtensor.settings import settings

# -- CPU: tiles of whole rows --------------------------------------------------------------------


class _Rows:
    """Tiles of rows, a row being the last `dims` axes; work buffers are (rows, columns)."""

    def __init__(self, x: np.ndarray, dims: int, buffers: int) -> None:
        self.lead, self.row = x.shape[:x.ndim - dims], x.shape[x.ndim - dims:]
        self.columns = prod(self.row)
        self.work = computed_in(x.dtype)
        self._limit = max(1, settings.tile_elements // max(1, self.columns))
        rows = min(self._limit, max(1, prod(self.lead)))
        self._scratch = Scratch(buffers, rows * self.columns, self.work)

    def tiles(self) -> Iterator[Any]:
        """Keys into the leading axes."""
        for tile in tiles(self.lead, self._limit):
            yield (*tile, ...)

    def load(self, which: int, a: np.ndarray, key: Any) -> np.ndarray:
        """A copy of the tile of `a`, (rows, columns), in work buffer `which`."""
        part = a[key]
        buffer = self._scratch(which, part.shape)
        buffer[...] = part
        return buffer.reshape(-1, self.columns)

    def normalized(self, x: np.ndarray, mean: Any, rstd: Any, key: Any) -> np.ndarray:
        """(x - mean) * rstd of the tile, in work buffer 0."""
        xhat = self.load(0, x, key)
        xhat -= mean[key].reshape(-1, 1)
        xhat *= rstd[key].reshape(-1, 1)
        return xhat

    def flat(self, weight: Any) -> Any:
        """A parameter as one row."""
        return None if weight is None else weight.reshape(-1).astype(self.work, copy=False)


def _forward_cpu(
    x: Any, weight: Any, bias: Any, *, dims: int, eps: float, out: Any = None
) -> Any:
    rows = _Rows(x, dims, 1)
    if out is None:
        out = host().empty(x.shape, x.dtype, "layer_norm")
    mean, rstd = (host().empty(rows.lead, rows.work, "layer_norm") for _ in range(2))
    w, b = rows.flat(weight), rows.flat(bias)
    for key in rows.tiles():
        part = rows.load(0, x, key)
        if not part.size:
            continue
        average = part.mean(axis=-1, keepdims=True)
        part -= average
        inverse = 1 / np.sqrt(np.vecdot(part, part)[:, None] / rows.columns + rows.work.type(eps))
        mean[key], rstd[key] = average.reshape(mean[key].shape), inverse.reshape(mean[key].shape)
        part *= inverse
        if w is not None:
            part *= w
        if b is not None:
            part += b
        out[key] = part.reshape(out[key].shape)
    return out, mean, rstd


def _dx_cpu(
    g: Any, x: Any, weight: Any, mean: Any, rstd: Any, *, dims: int, eps: float, out: Any = None
) -> Any:
    rows = _Rows(x, dims, 2)
    if out is None:
        out = host().empty(x.shape, x.dtype, "layer_norm_dx")
    w = rows.flat(weight)
    for key in rows.tiles():
        h, xhat = rows.load(1, g, key), rows.normalized(x, mean, rstd, key)
        if not h.size:
            continue
        if w is not None:
            h *= w
        slope = np.vecdot(h, xhat)[:, None] / rows.columns
        h -= h.mean(axis=-1, keepdims=True)
        xhat *= slope
        h -= xhat
        h *= rstd[key].reshape(-1, 1)
        out[key] = h.reshape(out[key].shape)
    return out


def _dweight_cpu(
    g: Any, x: Any, mean: Any, rstd: Any, *, dims: int, eps: float, out: Any = None
) -> Any:
    rows = _Rows(x, dims, 2)
    if out is None:
        out = host().empty(rows.row, g.dtype, "layer_norm_dweight")
    total = np.zeros(rows.columns, rows.work)
    for key in rows.tiles():
        h = rows.load(1, g, key)
        h *= rows.normalized(x, mean, rstd, key)
        total += h.sum(axis=0)
    out[...] = total.reshape(rows.row)
    return out


# -- GPU -----------------------------------------------------------------------------------------

_FORWARD = raw("layer_norm.cu", "layer_norm_forward")
_BACKWARD = raw("layer_norm.cu", "layer_norm_backward")
_WEIGHT = raw("layer_norm.cu", "layer_norm_backward_weight")


def _dense(a: Any, dtype: Any) -> Any:
    return NULL if a is None else cupy().ascontiguousarray(a, dtype=dtype)


def _counts(x: Any, dims: int) -> tuple[int, int]:
    return prod(x.shape[:x.ndim - dims]), prod(x.shape[x.ndim - dims:])


def _forward_gpu(
    x: Any, weight: Any, bias: Any, *, dims: int, eps: float, out: Any = None
) -> Any:
    xp, work = cupy(), computed_in(x.dtype)
    lead = x.shape[:x.ndim - dims]
    y, mean, rstd = xp.empty(x.shape, x.dtype), xp.empty(lead, work), xp.empty(lead, work)
    rows, columns = _counts(x, dims)
    grid, block = row_launch(rows)
    _FORWARD[x.dtype](grid, block, (
        _dense(x, x.dtype), _dense(weight, x.dtype), _dense(bias, x.dtype), y, mean, rstd, rows,
        columns, float(eps)))
    if out is None:
        return y, mean, rstd
    out[...] = y
    return out, mean, rstd


def _dx_gpu(
    g: Any, x: Any, weight: Any, mean: Any, rstd: Any, *, dims: int, eps: float, out: Any = None
) -> Any:
    xp, work = cupy(), computed_in(x.dtype)
    direct = out is not None and out.flags.c_contiguous
    dx = out if direct else xp.empty(x.shape, x.dtype)
    rows, columns = _counts(x, dims)
    grid, block = row_launch(rows)
    _BACKWARD[x.dtype](grid, block, (
        _dense(g, x.dtype), _dense(x, x.dtype), _dense(weight, x.dtype), _dense(mean, work),
        _dense(rstd, work), dx, rows, columns))
    if out is None or direct:
        return dx
    out[...] = dx
    return out


def _dweight_gpu(
    g: Any, x: Any, mean: Any, rstd: Any, *, dims: int, eps: float, out: Any = None
) -> Any:
    xp, work = cupy(), computed_in(x.dtype)
    dweight = xp.empty(x.shape[x.ndim - dims:], x.dtype)
    rows, columns = _counts(x, dims)
    grid, block = column_launch(columns)
    _WEIGHT[x.dtype](grid, block, (
        _dense(g, x.dtype), _dense(x, x.dtype), _dense(mean, work), _dense(rstd, work), dweight,
        NULL, rows, columns, 0))
    if out is None:
        return dweight
    out[...] = dweight
    return out


# -- rules ---------------------------------------------------------------------------------------


def _recorded_xhat(ns: Any, x: Any, dims: int, eps: float) -> tuple[Any, Any]:
    """xhat and 1 / deviation as functions of x."""
    axes = tuple(range(len(x.shape) - dims, len(x.shape)))
    deviation = x - ns.mean(x, axis=axes, keepdims=True)
    var = ns.mean(ns.square(deviation), axis=axes, keepdims=True)
    rstd = 1 / ns.sqrt(var + eps)
    return deviation * rstd, rstd


def _projected(ns: Any, h: Any, xhat: Any, rstd: Any, dims: int) -> Any:
    """rstd * (h - mean(h) - xhat * mean(h * xhat)): the derivative of xhat, which is symmetric."""
    axes = tuple(range(len(h.shape) - dims, len(h.shape)))
    mean = ns.mean(h, axis=axes, keepdims=True)
    return rstd * (h - mean - xhat * ns.mean(h * xhat, axis=axes, keepdims=True))


def _dx_recorded(
    g: Any, x: Any, weight: Any, mean: Any, rstd: Any, *, dims: int, eps: float
) -> Any:
    xhat, again = _recorded_xhat(recorded, x, dims, eps)
    return _projected(recorded, g if weight is None else g * weight, xhat, again, dims)


def _dweight_recorded(g: Any, x: Any, mean: Any, rstd: Any, *, dims: int, eps: float) -> Any:
    xhat, _ = _recorded_xhat(recorded, x, dims, eps)
    return recorded.sum(g * xhat, axis=tuple(range(len(x.shape) - dims)))


def _backward(ns: Any, step: Any, g: Any) -> None:
    x, weight, mean, rstd = step.saved
    params = step.params
    if step.needs(1):
        step.give(1, ns.layer_norm_dweight(g, x, mean, rstd, **params))
    if step.needs(2):
        step.give(2, ns.sum(g, axis=tuple(range(len(g.shape) - params["dims"]))))
    if step.needs(0):
        step.give(0, ns.layer_norm_dx(g, x, weight, mean, rstd, out=step.reuse(g), **params))


def _tangent(ns: Any, primals: Any, tangents: Any, out: Any, params: dict[str, Any]) -> Any:
    x, weight, _ = primals
    dx, dweight, dbias = tangents
    xhat, rstd = _recorded_xhat(ns, x, params["dims"], params["eps"])
    change = None
    if dx is not None:
        change = _projected(ns, dx, xhat, rstd, params["dims"])
        change = change if weight is None else change * weight
    for term in (None if dweight is None else xhat * dweight, dbias):
        if term is not None:
            change = term if change is None else change + term
    return ns.broadcast_to(change, shape=out.shape)


def _reference(
    torch: Any, x: Any, weight: Any, bias: Any, *, dims: int, eps: float
) -> Any:
    return torch.nn.functional.layer_norm(x, x.shape[x.ndim - dims:], weight, bias, eps)


layer_norm_dweight = op(
    "layer_norm_dweight", cpu=_dweight_cpu, gpu=_dweight_gpu, backward=None, tangent=None,
    composed=_dweight_recorded, samples=None,  # mean, rstd must be x's: tested through layer_norm
    doc="The gradient of layer_norm's weight.",
)

layer_norm_dx = op(
    "layer_norm_dx", cpu=_dx_cpu, gpu=_dx_gpu, backward=None, tangent=None,
    composed=_dx_recorded, samples=None,  # as above
    doc="The gradient of layer_norm's input.",
)

layer_norm_op = op(
    "layer_norm", cpu=_forward_cpu, gpu=_forward_gpu, extras="mean rstd",
    saves={"x": "x weight mean rstd", "weight": "x mean rstd"},
    backward=_backward, tangent=_tangent,
    samples=[Sample((shape, row, row) if row is not None else (shape, None, None),
                    params={"dims": dims, "eps": 1e-5})
             for shape, row, dims in (((3, 5), (5,), 1), ((2, 3, 4), (3, 4), 2), ((6,), (6,), 1),
                                      ((2, 3, 4), None, 1), ((0, 3), (3,), 1))],
    reference=_reference,
    doc="(x - mean) / sqrt(var + eps) * weight + bias over the last axes. Parameters: dims (how "
        "many), eps.",
)


def layer_norm(
    input: Tensor, normalized_shape: int | Sequence[int], weight: Tensor | None = None,
    bias: Tensor | None = None, eps: float = 1e-5,
) -> Tensor:
    """Each row over the last axes to mean 0 and variance 1, times weight, plus bias; same shape.

    Args:
        input: (..., *normalized_shape).
        normalized_shape: the sizes of the axes that make a row.
        weight, bias: of normalized_shape, or None for 1 and 0.
        eps: added to the (biased) variance.

    Source: Ba et al., "Layer normalization", 2016.
    """
    given = normalized_shape
    row = (given,) if isinstance(given, int) else tuple(given)
    if not row or input.shape[max(0, input.ndim - len(row)):] != row:
        raise ValueError(f"layer_norm was given normalized_shape={given} for an input of shape "
                         f"{input.shape}; wanted its last sizes")
    for name, tensor in {"weight": weight, "bias": bias}.items():
        if tensor is not None and tensor.shape != row:
            raise ValueError(f"layer_norm was given a {name} of shape {tensor.shape}; wanted {row}")
    same_dtype("layer_norm", input=input, weight=weight, bias=bias)
    return layer_norm_op(input, weight, bias, dims=len(row), eps=eps)

"""Triangles of matrices: tril and triu."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING

import numpy as np

from gtensor.backend import host
from gtensor.backend.cuda import cupy
from gtensor.engine.handle.tensor import Tensor
from gtensor.engine.tape.op import Op, op
from gtensor.engine.tape.samples import Sample, normal
from gtensor.ops.arrange.shape import linear_tangent
from gtensor.ops.define.arguments import takes_arrays
from gtensor.ops.define.batching import unchanged
from gtensor.ops.elementwise.selection import where_op

if TYPE_CHECKING:
    from gtensor.backend.typing import Array, Path
    from gtensor.engine.handle.namespaces import Namespace
    from gtensor.engine.walk.typing import Step

__all__ = ["tril", "triu"]

METHODS = ("tril", "triu")
_ROWS = 64  # rows at a time: the band that needs a mask is as wide


def _triangle_cpu(name: str) -> Path:
    """In blocks of rows: columns kept for every row, columns for none, and a band by a mask."""
    lower = name == "tril"

    def path(x: Array, *, k: int, out: Array | None = None) -> Array:
        if out is None:
            out = host().empty(x.shape, x.dtype, name)
        rows, columns = x.shape[-2:]
        last = k if lower else k - 1  # the highest diagonal (column - row) of the lower triangle
        zero = np.zeros((), x.dtype)
        for start in range(0, rows, _ROWS):
            stop = min(start + _ROWS, rows)
            left, right = (min(max(0, n), columns) for n in (start + last + 1, stop + last))
            block, source = out[..., start:stop, :], x[..., start:stop, :]
            block[..., left:] = source[..., left:] if not lower else zero
            block[..., :left] = source[..., :left] if lower else zero
            if right > left:
                band = block[..., left:right]
                diagonal = np.arange(left, right) - np.arange(start, stop)[:, None]
                band[...] = source[..., left:right]
                np.copyto(band, zero, where=(diagonal <= last) != lower)
        return out

    return path


def _triangle_gpu(name: str) -> Path:
    def path(x: Array, *, k: int, out: Array | None = None) -> Array:
        rows, columns = x.shape[-2:]
        if name == "tril":
            return where_op.gpu(cupy().tri(rows, columns, k, dtype=bool), x, 0, out=out)
        return where_op.gpu(cupy().tri(rows, columns, k - 1, dtype=bool), 0, x, out=out)

    return path


def _triangle(name: str, doc: str) -> Op:
    def backward(ns: Namespace, step: Step, g: Array) -> None:
        step.give(0, getattr(ns, name)(g, k=step.params["k"]))

    return op(
        name, flops=0, cpu=_triangle_cpu(name), gpu=_triangle_gpu(name), complex=True,
        backward=backward, tangent=linear_tangent(name), batch=unchanged,
        samples=[Sample((s,), normal, {"k": k})
                 for s, k in (((3, 5), 0), ((5, 3), -1), ((2, 4, 4), 2), ((3, 0), 0), ((2, 2), 9))],
        reference=lambda torch, x, k: getattr(torch, name)(x, k), doc=doc,
    )


_tril = _triangle("tril", "The lower triangles of matrices: zero above diagonal k.")
_triu = _triangle("triu", "The upper triangles of matrices: zero below diagonal k.")


@takes_arrays
def tril(x: Tensor, /, k: int = 0, *, diagonal: int | None = None) -> Tensor:
    """The lower triangles of matrices (..., M, N): zero above diagonal k (0 is the main one).

    `diagonal` is PyTorch's name of k. Raises ValueError for fewer than two axes.
    """
    return _tril(_matrices(x, "tril"), k=operator.index(k if diagonal is None else diagonal))


@takes_arrays
def triu(x: Tensor, /, k: int = 0, *, diagonal: int | None = None) -> Tensor:
    """The upper triangles of matrices (..., M, N): zero below diagonal k (0 is the main one).

    `diagonal` is PyTorch's name of k. Raises ValueError for fewer than two axes.
    """
    return _triu(_matrices(x, "triu"), k=operator.index(k if diagonal is None else diagonal))


def _matrices(x: Tensor, name: str) -> Tensor:
    if x.ndim < 2:
        raise ValueError(f"{name} of a tensor of shape {x.shape}; wanted two axes or more")
    return x

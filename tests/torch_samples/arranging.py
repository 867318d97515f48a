"""Shape, manipulation, indexing, joining and creation."""

from __future__ import annotations

from typing import Any

import torch

import gtensor as gt
from torch_samples.cases import INTEGERS, NO_BOOL, Skip, axes, keyword, of, same, scalar_axis

WITHOUT_AXES = Skip("meshgrid is of 1-d tensors", lambda given: any(
    x.ndim == 0 for x in (given.input, *given.args) if isinstance(x, torch.Tensor)) or any(
    x.ndim == 0 for x in given.input if isinstance(given.input, list)))

NUMPY_COUNTS = Skip("NumPy rounds fractional steps of integers down, PyTorch to zero",
                    of(*INTEGERS))


def _given_or_many(shape: tuple[Any, ...]) -> tuple[int, ...]:
    return tuple(shape[0]) if len(shape) == 1 and not isinstance(shape[0], int) else tuple(shape)


def _expand(x: Any, *shape: Any) -> Any:
    wanted = _given_or_many(shape)
    lead = len(wanted) - x.ndim
    return gt.broadcast_to(x, tuple(x.shape[i - lead] if n == -1 else n
                                    for i, n in enumerate(wanted)))


def _swapped(x: Any, a: int, b: int) -> Any:
    order = list(range(x.ndim))
    if order:
        order[a], order[b] = order[b], order[a]
    return gt.permute_dims(x, tuple(order))


def _narrow(x: Any, dim: int, start: int, length: int) -> Any:
    start = int(start)
    start += x.shape[dim] if start < 0 else 0
    return x[(slice(None),) * (dim % x.ndim) + (slice(start, start + length),)]


def _sliced(x: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    return x[(slice(None),) * (dim % x.ndim) + (slice(start, end, step),)]


def _masked_fill(x: Any, mask: Any, value: Any) -> Any:
    return gt.where(mask, value, x)


def _masked_select(x: Any, mask: Any) -> Any:
    x, mask = gt.broadcast_arrays(x, mask)
    return x[mask]


def _written(x: Any, key: Any, value: Any, accumulate: bool = False) -> Any:
    result = gt.clone(x)
    result[key] = value
    return result


def _along(dim: int, index: Any, ndim: int) -> Any:
    return (slice(None),) * (dim % ndim if ndim else 0) + (index,)


def _split(x: Any, size: Any, dim: int = 0) -> Any:
    sizes = size if isinstance(size, (list, tuple)) else [
        min(size, x.shape[dim] - i) for i in range(0, x.shape[dim], size)]
    ends = [sum(sizes[:i + 1]) for i in range(len(sizes))]
    return [x[_along(dim, slice(end - n, end), x.ndim)] for end, n in zip(ends, sizes, strict=True)]


def _repeat(x: Any, *counts: Any) -> Any:
    return gt.tile(x, _given_or_many(counts))


TABLE = [
    same("reshape", gt.reshape),
    same("view", gt.reshape, theirs=torch.reshape),  # of any strides
    same("reshape_as", lambda x, y: gt.reshape(x, y.shape)),
    same("ravel", lambda x: gt.reshape(x, (-1,))),
    same("flatten", gt.flatten),
    same("unflatten", lambda x, dim, sizes: gt.reshape(
        x, (*x.shape[:dim % x.ndim], *sizes, *x.shape[dim % x.ndim + 1:]))),
    same("broadcast_to", gt.broadcast_to),
    same("broadcast_tensors", gt.broadcast_arrays),
    same("expand", _expand),
    same("expand_as", lambda x, y: gt.broadcast_to(x, y.shape)),
    same("permute", lambda x, *dims: gt.permute_dims(x, _given_or_many(dims))),
    same("transpose", _swapped),
    same("t", lambda x: x.T if x.ndim == 2 else x),
    same("mT", lambda x: gt.matrix_transpose(x)),
    same("movedim", lambda x, a, b: gt.moveaxis(x, axes(a), axes(b))),
    same("squeeze", lambda x, dim=None: gt.squeeze(
        x, tuple(i for i in (range(x.ndim) if dim is None else [dim] if x.ndim else [])
                 if x.shape[i] == 1))),
    same("squeeze.multiple", lambda x, dims: gt.squeeze(
        x, tuple(i for i in (dims if x.ndim else ()) if x.shape[i] == 1))),
    same("unsqueeze", lambda x, dim: gt.expand_dims(x, axis=dim)),
    same("flip", lambda x, dims: gt.flip(x, axis=axes(dims))),
    same("fliplr", lambda x: gt.flip(x, axis=1)),
    same("flipud", lambda x: gt.flip(x, axis=0)),
    same("roll", lambda x, shifts, dims=None: gt.roll(x, axes(shifts), axis=axes(dims))),
    same("repeat", _repeat),
    same("tile", _repeat),
    same("repeat_interleave", lambda x, repeats, dim=None, output_size=None: gt.repeat(
        x, repeats, axis=dim)),
    same("cat", lambda x, dim=0: gt.concat(x, axis=dim), Skip(
        "PyTorch takes an empty 1-d tensor among others",
        lambda given: len({x.ndim for x in given.input}) > 1)),
    same("stack", lambda x, dim=0: gt.stack(x, axis=dim)),
    same("unbind", lambda x, dim=0: gt.unstack(x, axis=dim)),
    same("split", _split),
    same("split.list_args", _split),
    same("meshgrid.variadic_tensors", lambda *x, indexing: gt.meshgrid(*x, indexing=indexing),
         WITHOUT_AXES),
    same("meshgrid.list_of_tensors", lambda x, indexing: gt.meshgrid(*x, indexing=indexing),
         WITHOUT_AXES),
    same("tril", lambda x, k=0: gt.tril(x, k=k)),
    same("triu", lambda x, k=0: gt.triu(x, k=k)),
    # -- indexing
    same("__getitem__", lambda x, key: x[key]),
    same("narrow", _narrow),
    same("slice", _sliced),
    same("select", lambda x, dim, i: x[_along(dim, i, x.ndim)]),
    same("gather", lambda x, dim, index: gt.take_along_axis(x, index, axis=dim),
         Skip("indices have as many axes as the tensor",
              lambda given: given.input.ndim == 0 or given.args[1].ndim != given.input.ndim)),
    same("take_along_dim", lambda x, index, dim=None: gt.take_along_axis(x, index, axis=dim)
         if dim is not None else gt.take(gt.reshape(x, (-1,)), gt.reshape(index, (-1,))),
         theirs=lambda x, index, dim=None: torch.take_along_dim(  # its own views want one stride
             x.contiguous(), index.contiguous(), dim)),
    same("index_select", lambda x, dim, index: gt.take(x, index, axis=dim), scalar_axis()),
    same("take", lambda x, index: gt.reshape(
        gt.take(gt.reshape(x, (-1,)), gt.reshape(index, (-1,)), axis=0), index.shape)),
    same("masked_fill", _masked_fill, NO_BOOL),
    same("masked_select", _masked_select),
    same("index_put", _written, Skip(
        "x[key] = value does not add", keyword("accumulate"))),
    same("index_copy", lambda x, dim, index, y: _written(x, _along(dim, index, x.ndim), y),
         scalar_axis()),
    same("index_fill", lambda x, dim, index, y: _written(x, _along(dim, index, x.ndim), y),
         scalar_axis()),
    same("select_scatter", lambda x, y, dim, i: _written(x, _along(dim, i, x.ndim), y)),
    same("slice_scatter", lambda x, y, dim=0, start=None, end=None, step=1: _written(
        x, _along(dim, slice(start, end, step), x.ndim), y)),
    # -- creation
    same("arange", lambda start, end=None, step=1, dtype=None, device=None: gt.arange(
        start, end, step, dtype=dtype), NUMPY_COUNTS),
    same("linspace", lambda start, end, steps, dtype=None, device=None: gt.linspace(
        start, end, steps, dtype=dtype), NUMPY_COUNTS),
    same("eye", lambda n, m=None, dtype=None, device=None, requires_grad=False: gt.eye(
        n, m, dtype=dtype)),
    same("full", lambda shape, value, dtype=None, device=None: gt.full(shape, value, dtype)),
    same("full_like", lambda x, value, dtype=None, **_: gt.full_like(x, value, dtype=dtype)),
    same("zeros_like", lambda x, dtype=None, **_: gt.zeros_like(x, dtype=dtype)),
    same("ones_like", lambda x, dtype=None, **_: gt.ones_like(x, dtype=dtype)),
]

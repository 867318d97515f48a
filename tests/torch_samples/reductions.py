"""Reductions, statistics, scans, sorting, searching and sets."""

from __future__ import annotations

from typing import Any

import torch

import gtensor as gt
from torch_samples.cases import NO_COMPLEX, Skip, axes, keyword, same, scalar_axis


def _reduced(function: Any) -> Any:
    """sum(x, dim, keepdim) of PyTorch, which reduces all axes for dim=()."""
    def call(x: Any, dim: Any = None, keepdim: bool = False, **other: Any) -> Any:
        return function(x, axis=axes(dim) if dim != () else None, keepdims=keepdim, **other)

    return call


def _with_places(function: Any, places: Any) -> Any:
    def call(x: Any, dim: int, keepdim: bool = False) -> Any:
        return (function(x, axis=dim, keepdims=keepdim), places(x, axis=dim, keepdims=keepdim))

    return call


def _deviation(function: Any) -> Any:
    def call(x: Any, dim: Any = None, unbiased: Any = None, keepdim: bool = False,
             correction: Any = None) -> Any:
        if isinstance(dim, bool):
            dim, unbiased = None, dim
        if correction is None:
            correction = 1 if unbiased is None else int(unbiased)
        return function(x, axis=axes(dim) or None if isinstance(dim, (tuple, list)) else dim,
                        correction=correction, keepdims=keepdim)

    return call


def _unique(x: Any, sorted: bool, return_inverse: bool, return_counts: bool, dim: None) -> Any:
    found = gt.unique_all(x)
    chosen = [found.values]
    chosen += [found.inverse_indices] if return_inverse else []
    chosen += [found.counts] if return_counts else []
    return chosen


INT32 = Skip("places are int64 in the array API", keyword("out_int32"))
ONE_SORTED = Skip("gtensor searches in one dimension",
                  lambda given: given.input.ndim != 1)


NO_AXIS = Skip("a 0-d tensor has no axis", lambda given: given.input.ndim == 0)


def _stable(function: Any) -> Any:
    """PyTorch's places of equal elements are arbitrary unless it sorts stably."""
    def call(x: Any, *args: Any, **kwargs: Any) -> Any:
        names = ("dim", "descending")
        return function(x, **{**dict(zip(names, args, strict=False)), **kwargs, "stable": True})

    return call


def _with_picked(function: Any, pick: Any) -> Any:
    """Values, and the elements at the places: of equal elements any place is right."""
    def call(x: Any, k: int, dim: int = -1, *args: Any) -> Any:
        values, places = function(x, k, dim, *args)
        return values, pick(x, places, dim)

    return call


TABLE = [
    same("sum", _reduced(gt.sum), scalar_axis()),
    same("mean", _reduced(gt.mean), scalar_axis()),
    same("prod", _reduced(gt.prod), scalar_axis()),
    same("amax", _reduced(gt.max), scalar_axis()),
    same("amin", _reduced(gt.min), scalar_axis()),
    same("all", _reduced(gt.all), scalar_axis()),
    same("any", _reduced(gt.any), scalar_axis()),
    same("argmax", _reduced(gt.argmax), scalar_axis()),
    same("argmin", _reduced(gt.argmin), scalar_axis()),
    same("count_nonzero", _reduced(gt.count_nonzero), scalar_axis()),
    same("logsumexp", _reduced(gt.logsumexp), scalar_axis(), NO_COMPLEX),
    same("max.reduction_no_dim", gt.max),
    same("min.reduction_no_dim", gt.min),
    same("max.reduction_with_dim", _with_places(gt.max, gt.argmax), scalar_axis()),
    same("min.reduction_with_dim", _with_places(gt.min, gt.argmin), scalar_axis()),
    same("aminmax", lambda x, dim=None, keepdim=False: (
        gt.min(x, axis=dim, keepdims=keepdim), gt.max(x, axis=dim, keepdims=keepdim)),
         scalar_axis()),
    *(same(name, _deviation(function), NO_COMPLEX) for name, function in (
        ("var", gt.var), ("var.unbiased", gt.var), ("std", gt.std), ("std.unbiased", gt.std))),
    same("cumsum", lambda x, dim, dtype=None: gt.cumulative_sum(x, axis=dim, dtype=dtype),
         scalar_axis()),
    same("cumprod", lambda x, dim, dtype=None: gt.cumulative_prod(x, axis=dim, dtype=dtype),
         scalar_axis()),
    same("sort", lambda x, dim=-1, descending=False, stable=False: (
        gt.sort(x, axis=dim, descending=descending),
        gt.argsort(x, axis=dim, descending=descending)), NO_AXIS,
         theirs=_stable(torch.sort)),
    same("msort", lambda x: gt.sort(x, axis=0)),
    same("argsort", lambda x, dim=-1, descending=False, stable=False: gt.argsort(
        x, axis=dim, descending=descending), NO_AXIS, theirs=_stable(torch.argsort)),
    same("topk", _with_picked(gt.topk, lambda x, places, dim: gt.take_along_axis(
        x, places, axis=dim)), NO_AXIS,
         theirs=_with_picked(torch.topk, torch.take_along_dim)),
    same("searchsorted", lambda x, y, side="left", right=False, sorter=None, out_int32=False:
         gt.searchsorted(x, y, side="right" if right else side, sorter=sorter),
         INT32, ONE_SORTED),
    same("bucketize", lambda x, y, right=False, out_int32=False: gt.searchsorted(
        y, x, side="right" if right else "left"), INT32),
    same("unique", _unique, Skip("gtensor finds the unique elements of the whole tensor",
                                 lambda given: given.kwargs.get("dim") is not None)),
    same("diff", lambda x, n, dim, prepend=None, append=None: gt.diff(
        x, n=n, axis=dim, prepend=prepend, append=append)),
    same("nonzero", lambda x, as_tuple: gt.nonzero(x) if as_tuple
         else gt.stack(gt.nonzero(x), axis=1),
         Skip("the array API refuses 0-d tensors", lambda given: given.input.ndim == 0)),
]

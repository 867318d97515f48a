"""Mutations of ops on unusual inputs; see `plants.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import numpy as np

from gtensor.engine.tape.op import registry
from gtensor.ops.arrange import scatter, writing
from gtensor.ops.losses import cross_entropy

from .plants import Context


def _wrapped(name: str, wrap: Callable[[Any, Any], Any]) -> Context:
    """An op whose CPU path gives `wrap(result of the right one, its first input)`."""
    right = registry[name].cpu

    def path(x: Any, *others: Any, out: Any = None, **params: Any) -> Any:
        result = wrap(right(x, *others, **params), x)
        if out is None:
            return result
        out[...] = result
        return out

    return patch.object(registry[name], "cpu", path)


def read_in_memory_order() -> Context:
    """softmax reads a matrix in the order of its memory"""
    def wrap(y: Any, x: Any) -> Any:
        columns = x.ndim > 1 and not x.flags.c_contiguous
        return np.ascontiguousarray(y.mT).reshape(y.shape) if columns else y
    return _wrapped("softmax", wrap)


def writes_in_memory_order() -> Context:
    """x[index] = value writes in the order of the index's memory"""
    return patch.object(writing, "_in_order", lambda index: index)


def extremes_not_shared() -> Context:
    """each of equal extremes gets the whole gradient"""
    right = scatter._shares

    def shares(*given: Any) -> tuple[Any, ...]:
        stays, taken, count = right(*given)
        return stays, taken, given[0].maximum(0.0, given[0].minimum(count, 1.0))
    return patch.object(scatter, "_shares", shares)


def sums_in_any_order() -> Context:
    """GTENSOR_REPEATABLE=1 sums values at repeated indices by atomics"""
    def combine(device: Any, function: str, out: Any, key: Any, g: Any) -> None:
        getattr(device.xp, function).at(out, key, g)
    return patch.object(scatter, "combine_in_order", combine)


def leading_one_dropped() -> Context:
    """sort drops a leading axis of size 1"""
    return _wrapped("sort", lambda y, x: y[0] if y.ndim > 2 and len(y) == 1 else y)


def wide_without_elements() -> Context:
    """the sum of no elements is of float64"""
    return _wrapped("sum", lambda y, x: y if x.size else y.astype(np.float64))


def divided_by_no_elements() -> Context:
    """the mean of no elements divides by their number in Python"""
    return _wrapped("mean", lambda y, x: y if x.size else y / (1 // x.size))


def axis_of_a_0d_result() -> Context:
    """tanh of a 0-d tensor has an axis"""
    return _wrapped("tanh", lambda y, x: y if x.ndim else np.reshape(y, (1,)))


def too_large_in_half() -> Context:
    """a norm of a half type is a third too large"""
    return _wrapped(
        "vector_norm", lambda y, x: y if x.dtype.itemsize > 2 else y * y.dtype.type(1.33))


def no_classes_refused_by_numpy() -> Context:
    """cross_entropy of no classes takes the largest of nothing"""
    return patch.object(cross_entropy, "class_axis", lambda ndim: 0)

"""Mutations of rounding, of singular matrices, and of kept gradients; see `plants.py`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np

from gtensor.backend import factors
from gtensor.engine.handle.namespaces import raw
from gtensor.engine.run import retained
from gtensor.ops.activations import activation
from gtensor.ops.linalg import singular_values, solving
from gtensor.ops.losses import cross_entropy
from gtensor.ops.reduce import statistics
from gtensor.ops.updates import loss_scale

Context = AbstractContextManager[Any]


def reduced_in_half() -> Context:
    """a reduction of half types returns half precision, from which its gradient is computed"""
    return patch.object(statistics, "rounded_last", lambda op, x, **params: op(x, **params))


@contextmanager
def mean_in_half() -> Iterator[None]:
    """a variance on CUDA is CuPy's, whose mean of a half type is in half precision"""
    import cupy

    def squares(root: bool) -> Any:
        def path(x: Any, mean: Any, scale: Any, **options: Any) -> Any:
            count = x.size // mean.size
            value = cupy.var(x, dtype=mean.dtype, **options) * (count * scale)
            return cupy.sqrt(value) if root else value
        return path
    with patch.object(statistics, "_squares", squares):
        yield


def slope_of_a_rounded_output() -> Context:
    """elu of half types saves its output"""
    return patch.object(activation, "elu_of_half_op", activation.elu_op)


def wrong_side_of_a_kink() -> Context:
    """the slope of hardswish at -3 and 3 is that of the parabola between"""
    def path(g: Any, x: Any, out: Any = None) -> Any:
        return g * np.where(x < -3, 0, np.where(x > 3, 1, x * (1 / 3) + 0.5))
    return patch.object(raw["cpu"], "hardswish_grad", path)


def nothing_divided_by_one() -> Context:
    """where the weights of all rows are 0, the gradient of cross_entropy divides by 1"""
    def share(g: Any, count: Any, counts: Any, reduction: str) -> Any:
        return (g / (count + (count == 0)) if reduction == "mean" else g) * counts
    return patch.object(cross_entropy, "_share", share)


def scale_without_a_floor() -> Context:
    """a loss scale is halved down to 0"""
    def path(*arrays: Any, out: Any, growth: float, backoff: float, interval: int) -> Any:
        scale, tracker, found = out
        scale[...], tracker[...], found[...] = scale * np.float32(backoff), 0, 0
        return out
    return patch.object(loss_scale.update_scale, "cpu", path)


def squares_of_singular_values() -> Context:
    """the gradient of singular vectors divides by differences of squares"""
    def parts(ns: Any, s: Any) -> Any:
        across, down = singular_values.row(ns, s), singular_values.column(ns, s)
        squares = ns.multiply(ns.subtract(across, down), ns.add(across, down))
        return squares, across, down
    return patch.object(singular_values, "_gaps_and_shares", parts)


def products_by_division() -> Context:
    """the products of all singular values but two are the product of all, divided by the two"""
    def others(xp: Any, s: Any) -> Any:
        with np.errstate(all="ignore"):
            found = s.prod(axis=-1)[..., None, None] / (s[..., :, None] * s[..., None, :])
        found *= 1 - np.eye(s.shape[-1])
        return found, np.zeros(found.shape, np.int32)
    return patch.object(solving, "_others_of_two", others)


def batch_refused_for_one() -> Context:
    """the gradient of slogdet raises for a batch in which one matrix is singular"""
    return patch.object(raw["cpu"], "inverse_or_nan", raw["cpu"].inv)


def status_ignored() -> Context:
    """inverses on CUDA are CuPy's, which does not read the library's status"""
    import cupy

    return patch.object(factors, "inverse", cupy.linalg.inv)


def convergence_taken_for_granted() -> Context:
    """an iteration on CUDA that did not converge is believed to have written its results"""
    return patch.object(factors, "finite_or_nan", lambda x, *results: None)


def failure_writes_factors() -> Context:
    """the host device's cuSOLVER writes what LAPACK does where a factorization fails"""
    from gtensor.hostcuda.libraries import cusolver

    return patch.object(cusolver, "unless_failed", lambda work, *outputs: work(*outputs))


def kept_gradient_stays_behind() -> Context:
    """`retain_grad()` of a tensor that is written through a view keeps the gradient before that"""
    def node_after_write(target: Any, node: Any) -> Any:
        if target._node is not None and target._node.retain:
            target._node.retain, node.retain = False, True
        return node
    return patch.object(retained, "node_after_write", node_after_write)

"""Mutations of input checks, of numbers at the ends of their range, and of cleanup."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from math import inf
from typing import Any
from unittest.mock import patch

import numpy as np

from gtensor import special
from gtensor.backend import elements
from gtensor.engine.handle.namespaces import raw
from gtensor.engine.tape.op import registry
from gtensor.memory import VirtualSegments
from gtensor.ops.define import updates
from gtensor.ops.updates import optimizers
from gtensor.system.frees import FreeListener

Context = AbstractContextManager[Any]


def objects_let_in() -> Context:
    """every dtype counts as one of numbers"""
    return patch.object(elements, "NUMBERS", "biufcmMOSUVT")


def masks_dropped() -> Context:
    """a masked array is read without its mask"""
    return patch.object(elements, "refuse_mask", lambda value, reader: None)


def log_of_the_sum_absorbed() -> Context:
    """the gradient of cross_entropy subtracts the rounded logarithm of the sum from the logits"""
    right = raw["cpu"].cross_entropy_grad

    def path(*inputs: Any, **params: Any) -> Any:
        *others, largest, total, count = inputs
        return right(*others, largest + np.log(total), np.ones_like(total), count, **params)
    return patch.object(raw["cpu"], "cross_entropy_grad", path)


def special_function_in_single() -> Context:
    """ndtr of float32 computes in float32"""
    return patch.object(special._NDTR, "wide", False)


def gates_gradients_exchanged() -> Context:
    """a gate is given the gradient of what it gates, and this the gate's"""
    right = raw["cuda"].swish_gated_grads

    def path(*inputs: Any, out: Any = None) -> Any:
        return right(*inputs)[::-1]
    return patch.object(raw["cuda"], "swish_gated_grads", path)


def kept_gradients_not_scaled() -> Context:
    """the gradient of relu_dropout is not divided by 1 - p"""
    right = raw["cpu"].relu_dropout_grad
    return patch.object(raw["cpu"], "relu_dropout_grad", lambda *inputs, factor, out=None: right(
        *inputs, factor=1.0, out=out))


def another_mask_for_the_gradient() -> Context:
    """the gradient of gelu_dropout is dropped by another seed's mask"""
    right = raw["cpu"].gelu_dropout_grad
    return patch.object(raw["cpu"], "gelu_dropout_grad", lambda *inputs, seed, **params: right(
        *inputs, seed=seed + 1, **params))


def branch_rounded_before_the_sum() -> Context:
    """a product is rounded to its factors' dtype before it is added to a wider summand"""
    def path(x: Any, weight: Any, bias: Any, summand: Any, *, out: Any = None) -> Any:
        low = None if bias is None else bias.astype(x.dtype)
        return raw["cpu"].add(raw["cpu"].linear(x, weight, low), summand, out=out)
    return patch.object(registry["linear_sum"], "cpu", path)


def norm_replaces_the_other_gradient() -> Context:
    """the gradient of a norm overwrites the one that its input has from elsewhere"""
    right = raw["cpu"].layer_norm_grads

    def path(*inputs: Any, beta: float = 0.0, **params: Any) -> Any:
        return right(*inputs, **params)
    return patch.object(raw["cpu"], "layer_norm_grads", path)


@contextmanager
def mean_square_overflows() -> Iterator[None]:
    """Adam's running mean of squares becomes infinite"""
    adam = optimizers.adam.cpu.__self__  # type: ignore[attr-defined]
    with patch.object(updates, "largest", lambda dtype: inf), patch.object(
            adam, "_known", updates.NOTHING):
        yield


def clearing_up_raises() -> Context:
    """a failed release of addresses after an error raises a second error"""
    def release(source: VirtualSegments) -> None:
        for spare in source._spare:
            source.pages.release(*spare)
        source._spare.clear()
    return patch.object(VirtualSegments, "_release_spare", release)


def owner_kept_by_listener() -> Context:
    """a listener for frees keeps the owners of all blocks alive"""
    right = FreeListener.listen

    def listen(listener: Any, block: Any, key: int) -> None:
        right(listener, block, key)
        listener.__dict__.setdefault("kept", []).append(block.owner)
    return patch.object(FreeListener, "listen", listen)

"""Mutations of the attention context and of values that are kept by versions."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

import numpy as np

from gtensor.engine.handle.namespaces import raw
from gtensor.engine.run import cached_values, double_buffer
from gtensor.nn import context

Context = AbstractContextManager[Any]


def saved_contexts_written() -> Context:
    """an update writes a context that an open tape has saved"""
    return patch.object(double_buffer._Buffer, "held", lambda buffer: False)


def newest_context_in_a_second_run() -> Context:
    """a checkpointed function, run again, mixes in the context that its first run has updated"""
    return patch.object(context, "same_again", lambda make: make())


def updated_again_in_a_second_run() -> Context:
    """a context is updated again when a checkpointed function runs again"""
    return patch.object(context, "is_recomputing", lambda: False)


def strength_summed_in_float32() -> Context:
    """the gradient of a context's strength is added up in float32"""
    return patch.object(raw["cpu"], "context_dot", lambda x, y, scratch: np.asarray(
        np.add.accumulate(np.multiply(x, y).reshape(-1))[-1]))


def context_work_arrays_made_anew() -> Context:
    """the work arrays of an update are allocated by each update"""
    return patch.object(context._Memory, "scratch", lambda memory, device: (
        lambda name, shape, dtype: device.empty(shape, dtype)))


def versions_not_compared() -> Context:
    """a norm that is kept is given also after a write"""
    return patch.object(cached_values._Facts, "hold", lambda facts, tensors: True)


def views_taken_for_one() -> Context:
    """what is kept for a tensor is given for another view of its memory"""
    def hold(facts: Any, tensors: Any) -> bool:
        return all(ref() is tensor._storage and tensor._storage.version == version
                   for tensor, (_, ref, version, _) in zip(tensors, facts.arrays, strict=True))
    return patch.object(cached_values._Facts, "hold", hold)

"""Mutations of the rules about handles' nodes on the tape; see `plants.py`."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from gtensor.creation import new_tensors
from gtensor.engine.handle import handle_node
from gtensor.engine.handle.node import FREE
from gtensor.engine.handle.tensor import Tensor
from gtensor.func import gradients

Context = AbstractContextManager[Any]


def stale_place() -> Context:
    """a handle whose memory was written through another one keeps its old node"""
    return patch.object(Tensor, "_current_node", lambda tensor, reader: tensor._node)


def cut_unseen() -> Context:
    """a value that `gt.grad` differentiates can be read as an array"""
    return patch.object(Tensor, "_refuse_cut", lambda tensor, reader: None)


def walked_off() -> Context:
    """a value whose graph was consumed counts as a constant"""
    right = handle_node.hangs_on
    return patch.object(handle_node, "hangs_on", lambda node, *more: (
        right(node, *more) if getattr(node, "state", FREE) == FREE else None))


def copied_without_history() -> Context:
    """`gt.tensor(t)` copies values without history"""
    return patch.object(new_tensors, "is_grad_enabled", lambda: False)


def unused_as_zeros() -> Context:
    """`gt.grad(f)` returns zeros where the result does not depend on an argument"""
    right = gradients._grad_function
    return patch.object(gradients, "_grad_function", lambda f, argnums, has_aux, _: right(
        f, argnums, has_aux, True))

"""Batch rules by kind: how an op runs on values whose first axis is that of the examples.

A rule `batch(op, inputs, mapped, params)` is given the inputs of all examples; where `mapped`, the
first axis is the batch. It returns the output with the batch axis first, by a call of the op itself
wherever that is possible: parameters count axes from the end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gtensor.engine.namespaces import recorded
from gtensor.engine.tensor import Tensor

if TYPE_CHECKING:
    from gtensor.backend.typing import Params
    from gtensor.engine.op import Op

Inputs = tuple[Any, ...]
Mapped = tuple[bool, ...]


def broadcasting(op: Op, inputs: Inputs, mapped: Mapped, params: Params) -> Tensor:
    """Of ops that broadcast their inputs (products: but the last two axes), aligned at the end."""
    return op.call(*aligned(inputs, mapped), **params)


def aligned(inputs: Inputs, mapped: Mapped) -> list[Any]:
    """The inputs, with axes of size 1 behind the batch axis where an example has fewer axes."""
    ndim = max(np.ndim(x) if not isinstance(x, Tensor) else x.ndim - m
               for x, m in zip(inputs, mapped, strict=True))
    found = []
    for x, m in zip(inputs, mapped, strict=True):
        if m and x.ndim - 1 < ndim:
            ones = (1,) * (ndim - x.ndim + 1)
            x = recorded.reshape(x, shape=(x.shape[0], *ones, *x.shape[1:]))
        found.append(x)
    return found


def unchanged(op: Op, inputs: Inputs, mapped: Mapped, params: Params) -> Tensor:
    """Of ops of one input whose parameters name axes from the end: the op itself."""
    return op.call(*inputs, **params)


def to_shape(op: Op, inputs: Inputs, mapped: Mapped, params: Params) -> Tensor:
    """Of reshape: the batch axis stays before the shape."""
    return op.call(*inputs, shape=(inputs[0].shape[0], *params["shape"]))


def broadcast_shape(op: Op, inputs: Inputs, mapped: Mapped, params: Params) -> Tensor:
    """Of broadcast_to: new axes come behind the batch axis."""
    (x,) = inputs
    size, *axes = x.shape
    ones = (1,) * (len(params["shape"]) - len(axes))
    return op.call(recorded.reshape(x, shape=(size, *ones, *axes)),
                   shape=(size, *params["shape"]))


def in_order(op: Op, inputs: Inputs, mapped: Mapped, params: Params) -> Tensor:
    """Of permute_dims: the batch axis stays first."""
    (x,) = inputs
    return op.call(x, axes=(-x.ndim, *params["axes"]))


def whole_axis_first(op: Op, inputs: Inputs, mapped: Mapped, params: Params) -> Tensor:
    """Of slice and its adjoint: the key selects within each example."""
    shape = {"shape": (inputs[0].shape[0], *params["shape"])} if "shape" in params else {}
    return op.call(*inputs, key=(slice(None), *params["key"]), **shape)

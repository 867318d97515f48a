"""Batch rules by kind: how an op runs on values whose first axis is that of the examples.

A rule `batch(op, inputs, mapped, params)` is given the inputs of all examples; where `mapped`, the
first axis is the batch. It returns the output with the batch axis first, by a call of the op itself
wherever that is possible: parameters count axes from the end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gtensor.engine.namespaces import recorded
from gtensor.engine.tensor import Tensor

if TYPE_CHECKING:
    from gtensor.backend.typing import Params
    from gtensor.engine.op import Op

Inputs = tuple[Any, ...]
Mapped = tuple[bool, ...]


def elementwise(op: Op, inputs: Inputs, mapped: Mapped, params: Params) -> Tensor:
    """Of ops that broadcast: the examples' axes are aligned at the end."""
    return op.call(*aligned(inputs, mapped), **params)


def aligned(inputs: Inputs, mapped: Mapped) -> list[Any]:
    """The inputs, with axes of size 1 behind the batch axis where an example has fewer axes."""
    ndim = max(x.ndim - m for x, m in zip(inputs, mapped, strict=True) if isinstance(x, Tensor))
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


def with_shape(op: Op, inputs: Inputs, mapped: Mapped, params: Params) -> Tensor:
    """Of ops whose parameter is the output's shape: the batch axis is put before it."""
    (x,) = inputs
    shape = params["shape"]
    if op.name == "broadcast_to":
        missing = (1,) * (len(shape) - x.ndim + 1)
        x = recorded.reshape(x, shape=(x.shape[0], *missing, *x.shape[1:]))
    return op.call(x, **{**params, "shape": (x.shape[0], *shape)})


def with_order(op: Op, inputs: Inputs, mapped: Mapped, params: Params) -> Tensor:
    """Of ops whose parameter is an order of all axes: the batch axis stays first."""
    (x,) = inputs
    return op.call(x, **{**params, "axes": (-x.ndim, *params["axes"])})

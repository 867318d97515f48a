"""Batch rules by kind: how an op runs on values whose first axis is that of the examples.

A rule `batch(ns, run, inputs, mapped, params)` is given the inputs of all examples; where `mapped`,
the first axis is the batch. It returns the output with the batch axis first, by a call of the op
itself, `run(*inputs, **params)`, wherever that is possible: parameters count axes from the end.
Other ops it finds in the namespace `ns`. As a backward rule it is written once for raw arrays and
for Tensors. Of an op with extra results, `run` returns the tuple of output and extras, and so does
the rule, each with the batch axis first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from gtensor.backend.typing import Params, Path
    from gtensor.engine.typing import Namespace

Inputs = tuple[Any, ...]
Mapped = tuple[bool, ...]


def broadcasting(
    ns: Namespace, run: Path, inputs: Inputs, mapped: Mapped, params: Params
) -> Any:
    """Of ops that broadcast their inputs (products: but the last two axes), aligned at the end."""
    return run(*aligned(ns, inputs, mapped), **params)


broadcasting.writes = True  # type: ignore[attr-defined]  # it hands on a buffer to write


def aligned(ns: Namespace, inputs: Inputs, mapped: Mapped) -> list[Any]:
    """The inputs, with axes of size 1 behind the batch axis where an example has fewer axes."""
    ndim = max(np.ndim(x) - m for x, m in zip(inputs, mapped, strict=True))
    found = []
    for x, m in zip(inputs, mapped, strict=True):
        if m and x.ndim - 1 < ndim:
            ones = (1,) * (ndim - x.ndim + 1)
            x = ns.reshape(x, shape=(x.shape[0], *ones, *x.shape[1:]))
        found.append(x)
    return found


def unchanged(ns: Namespace, run: Path, inputs: Inputs, mapped: Mapped, params: Params) -> Any:
    """Of ops of one input whose parameters name axes from the end: the op itself."""
    return run(*inputs, **params)


unchanged.writes = True  # type: ignore[attr-defined]


def to_shape(ns: Namespace, run: Path, inputs: Inputs, mapped: Mapped, params: Params) -> Any:
    """Of reshape: the batch axis stays before the shape."""
    return run(*inputs, shape=(inputs[0].shape[0], *params["shape"]))


def broadcast_shape(
    ns: Namespace, run: Path, inputs: Inputs, mapped: Mapped, params: Params
) -> Any:
    """Of broadcast_to: new axes come behind the batch axis."""
    (x,) = inputs
    size, *axes = x.shape
    ones = (1,) * (len(params["shape"]) - len(axes))
    return run(ns.reshape(x, shape=(size, *ones, *axes)), shape=(size, *params["shape"]))


def in_order(ns: Namespace, run: Path, inputs: Inputs, mapped: Mapped, params: Params) -> Any:
    """Of permute_dims: the batch axis stays first."""
    (x,) = inputs
    return run(x, axes=(-x.ndim, *params["axes"]))


def whole_axis_first(
    ns: Namespace, run: Path, inputs: Inputs, mapped: Mapped, params: Params
) -> Any:
    """Of slice and its adjoint: the key selects within each example."""
    shape = {"shape": (inputs[0].shape[0], *params["shape"])} if "shape" in params else {}
    return run(*inputs, key=(slice(None), *params["key"]), **shape)

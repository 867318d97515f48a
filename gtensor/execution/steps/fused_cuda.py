"""Composed elementwise calls as one kernel on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gtensor.backend import Device
from gtensor.execution.steps.pieces import Composed
from gtensor.ops.define.formula_cuda import kernel


def fused_kernel(
    made: Composed, shape: tuple[int, ...], dtype: np.dtype, arrays: Sequence[str],
    conditions: Sequence[str], device: Device, name: str,
) -> Callable[..., Any]:
    """`f(*arrays)` of the graph's inputs named `arrays`, which broadcast to the shape; it returns
    an array, or a tuple of them. The `conditions` among them are of bool."""
    launch = kernel(name, made.roots, arrays, (), analytic=False, conditions=conditions)
    types = [np.dtype(bool) if root.boolean else dtype for root in made.roots]
    several = len(types) > 1

    def fused(*given: Any) -> Any:
        found = [device.empty(shape, t, name) for t in types]
        launch(*given, out=tuple(found))
        return tuple(found) if several else found[0]

    return fused

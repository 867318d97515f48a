"""Fused elementwise ops: one formula is CPU path (tile by tile), reference and recorded form."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gtensor.engine.arguments import arguments_of
from gtensor.engine.namespaces import recorded
from gtensor.engine.op import Op, op
from gtensor.ops.build.batching import broadcasting
from gtensor.ops.build.path_builders import tiled

if TYPE_CHECKING:
    from gtensor.backend.typing import Array, Path, Scalar
    from gtensor.engine.tensor import Tensor


def fused(name: str, formula: Path, *, gpu: Path, **more: Any) -> Op:
    """Register an op that is `formula(ns, *inputs, **params)` in one pass over memory.

    It has no rule: if an input requires a gradient, the formula is recorded instead, op by op.
    Backward rules use such ops, so second order needs no second set of rules.
    """

    def composed(*inputs: Tensor | Array, **params: Any) -> Tensor:
        return formula(recorded, *inputs, **params)

    return op(name, inputs=" ".join(arguments_of(formula).inputs[1:]), cpu=tiled(name, formula),
              gpu=_one_dtype(gpu), backward=None,
              tangent=None, composed=composed, batch=broadcasting, **more)


def _one_dtype(gpu: Path) -> Path:
    """The path with arrays of different dtypes promoted first: a kernel has one type."""

    def path(*arrays: Any, **params: Any) -> Array:  # arrays and numbers
        dtypes = {a.dtype for a in arrays if hasattr(a, "dtype")}
        if len(dtypes) > 1:
            common = np.result_type(*dtypes)
            arrays = tuple(a.astype(common) if hasattr(a, "dtype") else a for a in arrays)
        return gpu(*arrays, **params)

    return path


def kernel_path(kernel: Path, *params: str) -> Path:
    """The GPU path that is a kernel taking the arrays, then these parameters, then the output."""

    def path(*arrays: Array | Scalar, out: Array | None = None, **given: Any) -> Array:
        return kernel(*arrays, *[given[name] for name in params], out=out)

    return path

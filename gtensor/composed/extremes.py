"""The extreme along axes without its place: PyTorch's and NumPy's `amax` and `amin`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gtensor.ops import max, min
from gtensor.ops.define.arguments import takes_arrays, torch_words

if TYPE_CHECKING:
    from gtensor.engine.handle.tensor import Tensor
    from gtensor.ops.reduce.reductions import Axis


@takes_arrays
def amax(
    x: Tensor, /, axis: Axis = None, *, keepdims: bool = False, dim: Axis = None,
    keepdim: bool | None = None,
) -> Tensor:
    """`max`, which takes PyTorch's words, too."""
    axis, keepdims = torch_words("amax", axis, dim, keepdims, keepdim)
    return max(x, axis, keepdims=keepdims)


@takes_arrays
def amin(
    x: Tensor, /, axis: Axis = None, *, keepdims: bool = False, dim: Axis = None,
    keepdim: bool | None = None,
) -> Tensor:
    """`min`, which takes PyTorch's words, too."""
    axis, keepdims = torch_words("amin", axis, dim, keepdims, keepdim)
    return min(x, axis, keepdims=keepdims)

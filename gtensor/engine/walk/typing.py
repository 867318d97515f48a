"""Names for types of the tape and of rules, in annotations. Nothing here is needed at run time.

A rule runs on arrays, or on Tensors while the backward pass is recorded, and uses only what both
have. Its values are annotated as `Array`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

from gtensor.backend.typing import Array, Params
from gtensor.engine.handle.namespaces import Namespace
from gtensor.engine.handle.tensor import Tensor
from gtensor.engine.walk import slots

Step: TypeAlias = slots.Step[Array]  # a rule's view of the walk
Values: TypeAlias = Sequence[Any]  # per input, as `primals`; None where there is none
ArrayOrTensor = TypeVar("ArrayOrTensor", Array, Tensor)  # of helpers of both modes

Backward: TypeAlias = Callable[[Namespace, Step, Array], None]
# tangent(ns, primals, tangents, out, params); the tangent of a constant input is None
Tangent: TypeAlias = Callable[
    [Namespace, Values, Values, Array, Params], Array | None]

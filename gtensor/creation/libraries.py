"""What other libraries ask of a tensor's: each function serves one, once it is imported."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gtensor.creation.new_tensors import arange, asarray
from gtensor.engine.handle.namespaces import public
from gtensor.engine.handle.tensor import Tensor, is_floating

if TYPE_CHECKING:
    from collections.abc import Sequence


def serve_einops(backends: Any) -> None:
    """Define a backend: einops finds the subclasses of `AbstractBackend` of imported libraries."""

    class GtensorBackend(backends.AbstractBackend):
        framework_name = "gtensor"

        def is_appropriate_type(self, tensor: object) -> bool:
            return isinstance(tensor, Tensor)

        def is_float_type(self, x: Tensor) -> bool:
            return is_floating(x.dtype) or x.dtype.kind == "c"

        def to_numpy(self, x: Tensor) -> Any:
            return x.detach().numpy()

        def transpose(self, x: Tensor, axes: Sequence[int]) -> Tensor:
            return public.permute_dims(x, axes)

        def add_axis(self, x: Tensor, new_position: int) -> Tensor:
            return public.expand_dims(x, new_position)

        from_numpy = staticmethod(asarray)
        arange = staticmethod(arange)
        stack_on_zeroth_dimension = staticmethod(public.stack)
        tile = staticmethod(public.tile)
        concat = staticmethod(public.concat)
        einsum = staticmethod(public.einsum)

    backends.GtensorBackend = GtensorBackend  # einops has no reference to its subclasses


def serve_opt_einsum(dispatch: Any) -> None:
    """Give `contract` the transposition by axes; it finds `gt.einsum` and `gt.tensordot` itself."""
    dispatch._cached_funcs["transpose", "gtensor"] = public.permute_dims

"""Mixed precision with PyTorch's names: `gt.autocast`, and the loss scale of `gtensor.optim`."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, overload

from gtensor.backend import element_type
from gtensor.creation.dtypes import bfloat16, float16
from gtensor.engine.handle.context import Block, casting, current_casts, set_casts
from gtensor.engine.run.casting import Casts
from gtensor.execution.graphs import around_captures
from gtensor.memory.serving import unserved
from gtensor.ops.updates.casts import cast
from gtensor.system.late_imports import late
from gtensor.system.written_code import enter as _enter

if TYPE_CHECKING:
    from gtensor.backend.typing import DTypeLike
    from gtensor.optim.grad_scaler import GradScaler
else:
    __getattr__, __dir__ = late(__name__, {"GradScaler": "gtensor.optim.grad_scaler"})

__all__ = ["GradScaler", "autocast"]

_OF_DEVICE = {"cpu": bfloat16, "cuda": float16}  # PyTorch's defaults
_blocks: ContextVar[Any] = ContextVar("autocast_blocks", default=None)


class autocast(Block):
    """In the block or the decorated function, ops run in the dtypes that suit them, in this thread.

        with gt.autocast("bfloat16"):
            loss = F.cross_entropy(net(x), target)     # products in bfloat16, the loss in float32
        loss.backward()                                # gradients in the parameters' float32

    Matrix products, convolutions and attention cast inputs of half types and float32 to `dtype`;
    exponentials, powers, sums, norms, softmax and losses cast them to float32; other ops take them
    as they are, and mixed inputs give the widest dtype. docs/ops.md has the policy of every public
    op. Float64 is never cast, and writes in place are not either. Gradients of what was cast have
    its dtype. Blocks nest; backward rules run in the dtypes of the forward pass, so they belong
    outside.

    PyTorch's calls, with the type of a device first, are accepted: `autocast("cuda", dtype)`. Ops
    on every device are cast all the same; without a dtype it is PyTorch's for that device, float16
    on "cuda" and bfloat16 on "cpu".

    Args:
        dtype: bfloat16 or float16; float16 wants a `GradScaler`.
        enabled: if not, nothing is cast in the block.
        cache_enabled: whether a leaf that requires a gradient is cast only once until the outermost
            block ends, or until it is written.

    Raises TypeError for what is no dtype, ValueError for any other dtype, unless not enabled.

    Names and rules are those of `torch.autocast`; on every device they are those for CUDA.

    Source: Micikevicius et al., "Mixed precision training", 2018.
    """

    _read, _set = staticmethod(current_casts), staticmethod(set_casts)
    _innermost, _set_innermost = staticmethod(_blocks.get), staticmethod(_blocks.set)

    @overload
    def __init__(
        self, dtype: DTypeLike, enabled: bool = True, cache_enabled: bool = True
    ) -> None: ...

    @overload
    def __init__(
        self, device_type: str, dtype: DTypeLike | None = None, enabled: bool = True,
        cache_enabled: bool = True
    ) -> None: ...

    def __init__(self, *given: Any, device_type: str | None = None, **named: Any) -> None:
        if given and isinstance(given[0], str) and given[0] in _OF_DEVICE:
            device_type, *given = given  # type: ignore[assignment]
        dtype, enabled, cache_enabled = _autocast(*given, **named)
        if device_type is not None and device_type not in _OF_DEVICE:
            raise ValueError(f"autocast was given device_type={device_type!r}; wanted 'cpu' or "
                             "'cuda'")
        if dtype is None:
            dtype = _OF_DEVICE.get(device_type, "no dtype")  # type: ignore[arg-type]
        self._mark = object()
        self._given = dtype, enabled, cache_enabled
        try:
            self._dtype = element_type(dtype)
        except TypeError:
            raise TypeError(f"autocast was given {dtype!r}; wanted bfloat16 or float16") from None
        if enabled and self._dtype not in (bfloat16, float16):
            raise ValueError(f"autocast was given {self._dtype}; wanted bfloat16 or float16")

    @property
    def _mode(self) -> Casts | None:
        _, enabled, cached = self._given
        return (Casts(self._dtype, cached, cast, unserved, current_casts()) if enabled
                else None)

    def _recreate_cm(self) -> autocast:
        """A new block for each call of a decorated function."""
        return autocast(*self._given)


def _autocast(
    dtype: Any = None, enabled: bool = True, cache_enabled: bool = True
) -> tuple[Any, bool, bool]:
    return dtype, enabled, cache_enabled


around_captures.append(lambda: casting(current_casts()))  # replays repeat the casts of a capture


_enter(globals())

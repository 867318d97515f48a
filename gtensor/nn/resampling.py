"""Images and signals at another size, as a module."""

from __future__ import annotations

from gtensor.engine.handle.tensor import Tensor
from gtensor.nn import functional as F
from gtensor.nn.module import Module


class Upsample(Module):
    """(N, C, L) or (N, C, H, W) at another size: see `gtensor.nn.functional.interpolate`.

    Arguments are those of that function, which says what is raised.
    """

    def __init__(self, size: int | tuple[int, ...] | None = None,
                 scale_factor: float | tuple[float, ...] | None = None, mode: str = "nearest",
                 align_corners: bool | None = None,
                 recompute_scale_factor: bool | None = None) -> None:
        super().__init__()
        self.size = size
        self.scale_factor = scale_factor
        self.mode = mode
        self.align_corners = align_corners
        self.recompute_scale_factor = recompute_scale_factor

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, ...) -> (N, C, ...)."""
        return F.interpolate(x, self.size, self.scale_factor, self.mode, self.align_corners,
                             self.recompute_scale_factor)

    def extra_repr(self) -> str:
        given = (f"scale_factor={self.scale_factor}" if self.size is None
                 else f"size={self.size}")
        return f"{given}, mode={self.mode!r}"

"""Images and signals at another size, pixels and patches moved about, as modules."""

from __future__ import annotations

from collections.abc import Callable

from gtensor.engine.handle.tensor import Tensor
from gtensor.nn import functional as F
from gtensor.nn.module import Module
from gtensor.nn.patches import Size


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


class _Moved(Module):
    """A function of one tensor and attributes of these names."""

    _function: Callable[..., Tensor]
    _options: tuple[str, ...]

    def forward(self, x: Tensor) -> Tensor:
        """The function of this name in `gtensor.nn.functional`."""
        return self._function(x, *[getattr(self, name) for name in self._options])

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={getattr(self, name)}" for name in self._options)


class PixelShuffle(_Moved):
    """(..., C * r^2, H, W) -> (..., C, H * r, W * r): see `gtensor.nn.functional.pixel_shuffle`.

    The factor r is `upscale_factor`. Source: Shi et al., 2016.
    """

    _function = staticmethod(F.pixel_shuffle)
    _options = ("upscale_factor",)

    def __init__(self, upscale_factor: int) -> None:
        super().__init__()
        self.upscale_factor = upscale_factor


class PixelUnshuffle(_Moved):
    """(..., C, H * r, W * r) -> (..., C * r^2, H, W), with r = downscale_factor.

    See `gtensor.nn.functional.pixel_unshuffle`.
    """

    _function = staticmethod(F.pixel_unshuffle)
    _options = ("downscale_factor",)

    def __init__(self, downscale_factor: int) -> None:
        super().__init__()
        self.downscale_factor = downscale_factor


class ChannelShuffle(_Moved):
    """(N, C, ...), the channels of all groups in turns.

    See `gtensor.nn.functional.channel_shuffle`. Source: Zhang et al., "ShuffleNet", 2018.
    """

    _function = staticmethod(F.channel_shuffle)
    _options = ("groups",)

    def __init__(self, groups: int) -> None:
        super().__init__()
        self.groups = groups


class Unfold(_Moved):
    """(N, C, H, W) -> (N, C * kernel size, patches): see `gtensor.nn.functional.unfold`."""

    _function: Callable[..., Tensor] = staticmethod(F.unfold)
    _options: tuple[str, ...] = ("kernel_size", "dilation", "padding", "stride")

    def __init__(self, kernel_size: Size, dilation: Size = 1, padding: Size = 0,
                 stride: Size = 1) -> None:
        super().__init__()
        self.kernel_size = kernel_size
        self.dilation = dilation
        self.padding = padding
        self.stride = stride


class Fold(Unfold):
    """(N, C * kernel size, patches) -> (N, C, *output_size): see `gtensor.nn.functional.fold`."""

    _function = staticmethod(F.fold)
    _options = ("output_size", *Unfold._options)

    def __init__(self, output_size: Size, kernel_size: Size, dilation: Size = 1,
                 padding: Size = 0, stride: Size = 1) -> None:
        super().__init__(kernel_size, dilation, padding, stride)
        self.output_size = output_size

"""Convolutions, ordinary and transposed, over one and two axes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from gtensor.engine.handle.tensor import Tensor
from gtensor.nn import functional as F
from gtensor.nn.layers import DeviceLike, weight_and_bias
from gtensor.nn.module import Module
from gtensor.nn.parameter import Parameter
from gtensor.ops.define.arguments import refuse_unsupported

if TYPE_CHECKING:
    from gtensor.backend.typing import DTypeLike

Sizes = int | tuple[int, ...]
_PADDINGS = ("zeros", "reflect", "replicate", "circular")


class _Convolution(Module):
    """The base of ordinary and transposed convolutions."""

    weight: Parameter
    bias: Parameter | None
    _axes = 2

    def _describe(
        self, in_channels: int, out_channels: int, kernel_size: Sizes, stride: Sizes,
        padding: Sizes | str, dilation: Sizes, groups: int,
    ) -> None:
        if groups < 1 or in_channels % groups or out_channels % groups:
            raise ValueError(f"groups={groups} given for {in_channels} input and {out_channels} "
                             "output channels; wanted a divisor of both")
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.kernel_size = self._each(kernel_size)
        self.stride = stride
        self.padding = padding
        self.dilation = dilation
        self.groups = groups

    def _each(self, value: Sizes) -> tuple[int, ...]:
        """One value per axis."""
        return (value,) * self._axes if isinstance(value, int) else tuple(value)

    def _extras(self) -> tuple[tuple[str, object, object], ...]:
        """Name, value and default of the options in repr."""
        return (("padding", self.padding, 0), ("dilation", self.dilation, 1),
                ("groups", self.groups, 1), ("bias", self.bias is not None, True))

    def extra_repr(self) -> str:
        parts = [f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, "
                 f"stride={self.stride}"]
        parts += [f"{name}={value!r}" for name, value, default in self._extras()
                  if value != default]
        return ", ".join(parts)


class Conv2d(_Convolution):
    """Cross-correlation of images (N, in_channels, H, W) -> (N, out_channels, H', W').

    Args:
        kernel_size: of the weight (out_channels, in_channels / groups, *kernel_size): one integer,
            or one per axis.
        stride: how far the kernel moves from one output to the next.
        padding: rows and columns added all around, "valid" (none), or "same" (the output has the
            input's size; stride 1).
        dilation: how far neighbours in the kernel lie apart in the image.
        groups: channels are split into as many independent convolutions.
        bias: whether a bias (out_channels) is added.
        padding_mode: what the padding holds: "zeros", or the image's own elements by "reflect",
            "replicate" or "circular" (see `gtensor.nn.functional.pad`), in a padded copy.

    H' = (H + 2 padding - dilation (kernel_size - 1) - 1) // stride + 1, and W' likewise. The
    arithmetic is that of `gtensor.nn.functional.conv2d`.

    Raises ValueError for an unknown padding or padding_mode, and for groups that do not divide the
    channels.
    """

    def __init__(self, in_channels: int, out_channels: int, kernel_size: Sizes, stride: Sizes = 1,
                 padding: Sizes | str = 0, dilation: Sizes = 1, groups: int = 1, bias: bool = True,
                 padding_mode: str = "zeros", device: DeviceLike = None,
                 dtype: DTypeLike | None = None) -> None:
        super().__init__()
        for name, value, wanted in (("padding_mode", padding_mode, _PADDINGS),
                                    ("padding", padding, ("same", "valid"))):
            if isinstance(value, str) and value not in wanted:
                raise ValueError(f"{name}={value!r} given to {type(self).__name__}; wanted one of "
                                 f"{', '.join(wanted)}")
        self._describe(in_channels, out_channels, kernel_size, stride, padding, dilation, groups)
        self.padding_mode = padding_mode
        shape = (out_channels, in_channels // groups, *self.kernel_size)
        weight_and_bias(self, shape, out_channels if bias else 0, device, dtype)

    def forward(self, x: Tensor) -> Tensor:
        """(N, in_channels, ...) -> (N, out_channels, ...)."""
        padding: Sizes | str = self.padding
        if self.padding_mode != "zeros":
            x, padding = F.pad(x, self._border(), mode=self.padding_mode), 0
        function: Callable[..., Tensor] = F.conv2d if self._axes == 2 else F.conv1d
        return function(x, self.weight, self.bias, stride=self.stride, padding=padding,
                        dilation=self.dilation, groups=self.groups)

    def _border(self) -> list[int]:
        """The padding as F.pad wants it: before and after, the last axis first."""
        if self.padding == "valid":
            return [0, 0] * self._axes
        if self.padding == "same":
            whole = [d * (k - 1) for d, k in
                     zip(self._each(self.dilation), self.kernel_size, strict=True)]
            return [part for n in reversed(whole) for part in (n // 2, n - n // 2)]
        assert not isinstance(self.padding, str)
        return [n for n in reversed(self._each(self.padding)) for _ in range(2)]

    def _extras(self) -> tuple[tuple[str, object, object], ...]:
        return (*super()._extras(), ("padding_mode", self.padding_mode, "zeros"))


class Conv1d(Conv2d):
    """Cross-correlation of signals (N, in_channels, L) -> (N, out_channels, L').

    Arguments as for `Conv2d`, of one axis.
    """

    _axes = 1


class ConvTranspose2d(_Convolution):
    """The adjoint of Conv2d: images (N, in_channels, H, W) -> (N, out_channels, H', W').

    Args:
        kernel_size: of the weight (in_channels, out_channels / groups, *kernel_size): one integer,
            or one per axis.
        stride, padding, dilation, groups: those of the `Conv2d` whose adjoint this is: stride
            spreads the input's elements, padding is cut off all around.
        output_padding: rows and columns more at the bottom and right; less than stride or dilation.
        bias: whether a bias (out_channels) is added.
        padding_mode: must be "zeros".

    H' = (H - 1) stride - 2 padding + dilation (kernel_size - 1) + output_padding + 1, and W'
    likewise. The arithmetic is that of `gtensor.nn.functional.conv_transpose2d`.
    """

    def __init__(self, in_channels: int, out_channels: int, kernel_size: Sizes, stride: Sizes = 1,
                 padding: Sizes = 0, output_padding: Sizes = 0, groups: int = 1, bias: bool = True,
                 dilation: Sizes = 1, padding_mode: str = "zeros", device: DeviceLike = None,
                 dtype: DTypeLike | None = None) -> None:
        super().__init__()
        refuse_unsupported("zeros", type(self).__name__, padding_mode=padding_mode)
        self._describe(in_channels, out_channels, kernel_size, stride, padding, dilation, groups)
        self.output_padding = output_padding
        shape = (in_channels, out_channels // groups, *self.kernel_size)
        weight_and_bias(self, shape, out_channels if bias else 0, device, dtype)

    def forward(self, x: Tensor) -> Tensor:
        """(N, in_channels, ...) -> (N, out_channels, ...)."""
        function: Callable[...,
        Tensor] = F.conv_transpose2d if self._axes == 2 else F.conv_transpose1d
        return function(x, self.weight, self.bias, stride=self.stride, padding=self.padding,
                        output_padding=self.output_padding, groups=self.groups,
                        dilation=self.dilation)

    def _extras(self) -> tuple[tuple[str, object, object], ...]:
        return (*super()._extras(), ("output_padding", self.output_padding, 0))


class ConvTranspose1d(ConvTranspose2d):
    """The adjoint of Conv1d: signals (N, in_channels, L) -> (N, out_channels, L').

    Arguments as for `ConvTranspose2d`, of one axis.
    """

    _axes = 1

"""Pooling over windows, as modules."""

from __future__ import annotations

from collections.abc import Callable

from gtensor.engine.handle.tensor import Tensor
from gtensor.nn import functional as F
from gtensor.nn.module import Module
from gtensor.ops.define.arguments import refuse_unsupported

Sizes = int | tuple[int, ...]


class _Pool(Module):
    """A function of windows with these options."""

    _function: Callable[..., Tensor]

    def __init__(self, kernel_size: Sizes, stride: Sizes | None, padding: Sizes,
                 **options: Sizes | bool) -> None:
        super().__init__()
        self.kernel_size = kernel_size
        self.stride = kernel_size if stride is None else stride
        self.padding = padding
        self.options = options

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, ...) -> (N, C, ...)."""
        return self._function(x, self.kernel_size, self.stride, self.padding, **self.options)

    def extra_repr(self) -> str:
        more = "".join(f", {name}={value}" for name, value in self.options.items())
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}{more}"


class MaxPool2d(_Pool):
    """The largest value of every window: (N, C, H, W) -> (N, C, H', W').

    Args:
        kernel_size: of the window: one integer, or one per axis.
        stride: from one window to the next; by default the kernel's size, side by side.
        padding: elements added all around that are never the largest; at most half the kernel.
        dilation: how far neighbours in the window lie apart.
        return_indices: must be False.
        ceil_mode: windows may also begin where less than a whole one fits.
    """

    _function: Callable[..., Tensor] = staticmethod(F.max_pool2d)

    def __init__(self, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0,
                 dilation: Sizes = 1, return_indices: bool = False, ceil_mode: bool = False
                 ) -> None:
        refuse_unsupported(False, type(self).__name__, return_indices=return_indices)
        super().__init__(kernel_size, stride, padding, dilation=dilation, ceil_mode=ceil_mode)


class MaxPool1d(MaxPool2d):
    """The largest value of every window: (N, C, L) -> (N, C, L'). Arguments as for MaxPool2d.

    Raises ValueError for a window larger than the padded input, and for return_indices=True.
    """

    _function = staticmethod(F.max_pool1d)


class AvgPool2d(_Pool):
    """The mean of every window: (N, C, H, W) -> (N, C, H', W').

    Args:
        kernel_size, stride, ceil_mode: as for `MaxPool2d`.
        padding: zeros added all around; at most half the kernel.
        count_include_pad: whether they count as elements of the mean.
    """

    _function: Callable[..., Tensor] = staticmethod(F.avg_pool2d)

    def __init__(self, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0,
                 ceil_mode: bool = False, count_include_pad: bool = True) -> None:
        super().__init__(kernel_size, stride, padding, ceil_mode=ceil_mode,
                         count_include_pad=count_include_pad)


class AvgPool1d(AvgPool2d):
    """The mean of every window: (N, C, L) -> (N, C, L'). Arguments as for AvgPool2d.

    Raises ValueError for a window larger than the padded input.
    """

    _function = staticmethod(F.avg_pool1d)


class AdaptiveAvgPool2d(Module):
    """Means of windows laid out so that the output has `output_size`: (N, C, *output_size).

    `output_size` is one integer or (height, width); None keeps that size.
    """

    _function: Callable[..., Tensor] = staticmethod(F.adaptive_avg_pool2d)

    def __init__(self, output_size: Sizes | tuple[int | None, ...]) -> None:
        super().__init__()
        self.output_size = output_size

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, ...) -> (N, C, *output_size)."""
        return self._function(x, self.output_size)

    def extra_repr(self) -> str:
        return f"output_size={self.output_size}"


class AdaptiveAvgPool1d(AdaptiveAvgPool2d):
    """Means of windows laid out so that (N, C, L) becomes (N, C, output_size)."""

    _function = staticmethod(F.adaptive_avg_pool1d)


class AdaptiveMaxPool2d(AdaptiveAvgPool2d):
    """Largest values of windows laid out so that the output is (N, C, *output_size)."""

    _function = staticmethod(F.adaptive_max_pool2d)
